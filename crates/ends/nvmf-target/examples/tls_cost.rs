//! Measures the cost of TLS. Host and target run in this process, and rounds with and without TLS
//! alternate. Prints the processor time per operation of both ends together: the best of seven
//! rounds.
//!
//! `cargo run --release -p farblock-target --example tls_cost`

use farblock_backends::mem::Mem;
use farblock_block::blocking::Blocking;
use farblock_host::{Controller, Options, TcpOptions};
use farblock_proto::ids::NamespaceId;
use farblock_secure::{Hash, TlsKey};
use farblock_target::{Export, Subsystem, Target, TargetConfig, TlsPolicy};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

const NQN: &str = "nqn.2026-11.org.example:disk";
const HOST: &str = "nqn.2026-11.org.example:host";
const DISK_BYTES: u64 = 64 << 20;
const ROUNDS: usize = 7;
/// The name, bytes per operation and number of operations of each load. The host splits an
/// operation into commands of 1 MiB.
const LOADS: [(&str, usize, u64); 4] = [
    ("8 x 1 MiB", 8 << 20, 40),
    ("1 MiB", 1 << 20, 200),
    ("64 KiB", 64 << 10, 2000),
    ("4 KiB", 4096, 5000),
];

fn main() {
    let key = TlsKey::generate(Hash::Sha256, &mut |out: &mut [u8]| out.fill(7)).expect("a suite");
    let path = std::env::temp_dir().join(format!("tls-cost-{}.key", std::process::id()));
    write_key(&path, &key);
    let plain = connect(None, &path);
    let tls = connect(Some(&key), &path);
    let open = |controller: &Controller| {
        Blocking::new(&controller.namespace(1).expect("the target shares namespace 1"))
            .expect("a queue")
    };
    let mut disks = [open(&plain.1), open(&tls.1)];
    // Connecting a queue reads the key file, so remove the file only after all queues have
    // connected.
    std::fs::remove_file(&path).expect("this program wrote the key file");
    for (name, bytes, count) in LOADS {
        for is_write in [false, true] {
            let mut best = [f64::MAX; 2];
            for _ in 0..ROUNDS {
                for (disk, best) in disks.iter_mut().zip(&mut best) {
                    *best = best.min(cost(disk, bytes, count, is_write));
                }
            }
            let [plain, tls] = best;
            let way = if is_write { "writes" } else { "reads" };
            println!("{name} {way}: {plain:.1} us plain, {tls:.1} us with TLS: {:.2}", plain / tls);
        }
    }
}

fn write_key(path: &Path, key: &TlsKey) {
    let mut options = std::fs::File::options();
    options.create_new(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path).expect("a file");
    writeln!(file, "{}", key.text().as_str()).expect("the file system has room");
}

fn connect(key: Option<&TlsKey>, path: &Path) -> (Target, Controller) {
    let mut subsystem = Subsystem::new(NQN);
    subsystem.config.allow_any_host = true;
    let namespace = Arc::new(Mem::new(512, DISK_BYTES).expect("a size"));
    let export = Export { namespace, identity: "disk".to_owned() };
    subsystem.exports.insert(NamespaceId(1), export);
    let listeners = vec!["127.0.0.1:0".parse().expect("an address")];
    let mut config =
        TargetConfig { subsystems: vec![subsystem], listeners, ..TargetConfig::default() };
    if let Some(key) = key {
        config.tls = Some(TlsPolicy::Required);
        config.tls_keys.insert(HOST.to_owned(), vec![key.clone()]);
    }
    let target = Target::start(&config).expect("the target starts");
    let tls_key = key.map(|_| path.to_path_buf());
    let tcp = TcpOptions { tls_key, ..TcpOptions::default() };
    let options = Options { hostnqn: Some(HOST.to_owned()), tcp, ..Options::default() };
    let address = target.addresses()[0].to_string();
    let controller = Controller::connect(&address, NQN, &options).expect("the target is running");
    (target, controller)
}

/// Returns the processor time of an operation, in microseconds.
fn cost(disk: &mut Blocking, bytes: usize, count: u64, is_write: bool) -> f64 {
    let mut data = vec![3; bytes];
    let before = processor_ns();
    for index in 0..count {
        let lba = index * bytes as u64 % (DISK_BYTES - bytes as u64) / 512;
        match is_write {
            true => disk.write(lba, &data).expect("the write succeeds"),
            false => disk.read(lba, &mut data).expect("the read succeeds"),
        }
    }
    (processor_ns() - before) as f64 / 1000.0 / count as f64
}

/// Returns the processor time of all threads, in nanoseconds.
fn processor_ns() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux has it");
    let ns = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or_default()
    };
    tasks.flatten().map(ns).sum()
}
