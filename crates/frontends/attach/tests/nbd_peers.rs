//! Tests the NBD server with real clients: QEMU, libnbd and fio. `interop/packages.sh` installs
//! them.
#![cfg(target_os = "linux")]

mod nbd_support;

use farblock_attach::nbd::{Address, Config, Server};
use farblock_block::Namespace;
use farblock_random::Random;
use farblock_reactor::EngineKind;
use nbd_support::{ENGINES, disk};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

const SIZE: usize = 32 << 20;

/// A server on a TCP port, or on a Unix socket in its own folder.
struct Served {
    server: Server,
    uri: String,
    folder: tempfile::TempDir,
}

impl Served {
    fn start(engine: EngineKind, block_size: u32, tcp: bool) -> Served {
        let folder = tempfile::tempdir().expect("a folder");
        Served::start_with(engine, disk("mem:32MiB", block_size), tcp, folder)
    }

    fn start_file(engine: EngineKind, block_size: u32) -> Served {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk.img");
        let file = std::fs::File::create(&path).expect("a file");
        file.set_len(SIZE as u64).expect("the file grows");
        let disk = disk(path.to_str().expect("a name"), block_size);
        Served::start_with(engine, disk, false, folder)
    }

    fn start_with(
        engine: EngineKind,
        disk: Arc<dyn Namespace>,
        tcp: bool,
        folder: tempfile::TempDir,
    ) -> Served {
        let listen = match tcp {
            true => Address::Tcp(([127, 0, 0, 1], 0).into()),
            false => Address::Unix(folder.path().join("disk.sock")),
        };
        let export = "a disk".to_owned();
        let config = Config { engine, threads: 2, export, ..Config::new(Some(listen)) };
        let server = Server::start(&config, disk).expect("the server starts");
        let uri = server.address().expect("the server listens").uri(&config.export);
        Served { server, uri, folder }
    }

    /// Makes a file of random bytes, as large as the disk. Returns its path.
    fn random_file(&self) -> String {
        let path = self.folder.path().join("random");
        std::fs::write(&path, Random::new(5).bytes(SIZE)).expect("a file");
        path.display().to_string()
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }
}

fn output(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap_or_else(|error| {
        panic!("{program} does not start ({error}): run interop/packages.sh, which installs it")
    })
}

/// Runs a program that must succeed. Returns its output.
fn run(program: &str, arguments: &[&str]) -> String {
    let output = output(program, arguments);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}{complained}");
    said
}

fn same(left: impl AsRef<Path>, right: impl AsRef<Path>) -> bool {
    std::fs::read(left).expect("a file") == std::fs::read(right).expect("a file")
}

#[test]
fn nbdinfo_shows_the_export() {
    for engine in ENGINES {
        let served = Served::start(engine, 4096, false);
        let said = run("nbdinfo", &[&served.uri]);
        for line in [
            "structured packets",
            "export=\"a disk\":",
            "description: memory (32 MiB, 4096-byte blocks)",
            "export-size: 33554432 (32M)",
            "is_read_only: false",
            "can_cache: false",
            "can_df: true",
            "can_fast_zero: true",
            "can_flush: true",
            "can_fua: true",
            "can_multi_conn: true",
            "can_trim: true",
            "can_zero: true",
            "block_size_minimum: 4096",
            "block_size_preferred: 4096",
            "block_size_maximum: 33554432",
        ] {
            assert!(said.contains(line), "no {line:?} in {said}");
        }
        assert!(said.contains("base:allocation"), "{said}");
        let map = run("nbdinfo", &["--map", &served.uri]);
        assert_eq!(map.split_whitespace().collect::<Vec<_>>(), ["0", "33554432", "0", "data"]);
        let map = run("qemu-img", &["map", "--output=json", &served.uri]);
        assert!(map.contains("\"length\": 33554432") && map.contains("\"data\": true"), "{map}");
        let nameless = served.uri.replace("a%20disk", "");
        assert!(run("nbdinfo", &["--list", &nameless]).contains("export=\"a disk\":"));
        let other = output("nbdinfo", &["--size", &served.uri.replace("a%20disk", "other")]);
        let complained = String::from_utf8_lossy(&other.stderr);
        assert!(complained.contains("no export named 'other'"), "{complained}");
        served.server.stop().expect("the server stops");
    }
}

#[test]
fn nbdcopy_copies_in_both_directions() {
    for (engine, tcp) in ENGINES.into_iter().zip([false, true]) {
        let served = Served::start(engine, 512, tcp);
        let (file, back) = (served.random_file(), served.path("back"));
        let most = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            // Dropping `hang_up` ends the thread, even after a panic.
            let (hang_up, hung_up) = mpsc::channel::<()>();
            scope.spawn(|| {
                let hung_up = hung_up;
                while hung_up.try_recv() == Err(mpsc::TryRecvError::Empty) {
                    most.fetch_max(served.server.connections(), Ordering::Relaxed);
                    std::thread::yield_now();
                }
            });
            run("nbdcopy", &["--threads=4", "--connections=4", "--flush", &file, &served.uri]);
            run(
                "nbdcopy",
                &["--threads=4", "--connections=4", "--requests=64", &served.uri, &back],
            );
            drop(hang_up);
        });
        assert!(same(&file, &back));
        assert_eq!(most.load(Ordering::Relaxed), 4, "nbdcopy did not use four connections at once");
        // The client sends `NBD_CMD_WRITE_ZEROES` for ranges of zeroes.
        std::fs::write(&file, vec![0; SIZE]).expect("a file");
        run("nbdcopy", &["--destination-is-zero", &file, &served.uri]);
        run("nbdcopy", &[&file, &served.uri]);
        run("nbdcopy", &[&served.uri, &back]);
        assert!(same(&file, &back));
        served.server.stop().expect("the server stops");
    }
}

#[test]
fn qemu_img_converts_and_compares() {
    for (engine, block_size) in ENGINES.into_iter().zip([4096, 512]) {
        let served = Served::start(engine, block_size, false);
        let (file, back) = (served.random_file(), served.path("back"));
        let said = run("qemu-img", &["info", "--output=json", &served.uri]);
        assert!(said.contains("\"virtual-size\": 33554432"), "{said}");
        run("qemu-img", &["convert", "-n", "-O", "raw", "-W", &file, &served.uri]);
        let said = run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &file, &served.uri]);
        assert!(said.contains("identical"), "{said}");
        run("qemu-img", &["convert", "-O", "raw", &served.uri, &back]);
        assert!(same(&file, &back));
        // QEMU writes a qcow2 image to the disk, and checks it.
        run("qemu-img", &["create", "-q", "-f", "qcow2", &served.uri, "16M"]);
        let io = ["-f", "qcow2", "-c", "write -P 7 0 9M", "-c", "read -P 7 1M 2M", &served.uri];
        run("qemu-io", &io);
        run("qemu-img", &["check", "-q", "-f", "qcow2", &served.uri]);
        served.server.stop().expect("the server stops");
    }
}

#[test]
fn qemu_io_reads_and_writes() {
    for (engine, block_size) in ENGINES.into_iter().zip([512, 4096]) {
        let served = Served::start_file(engine, block_size);
        let commands = [
            "write -P 1 0 1M",
            "write -P 2 -f 512 1k",
            "write -P 3 31M 1M",
            "flush",
            "read -P 1 0 512",
            "read -P 2 512 1k",
            "read -P 1 1536 100k",
            "read -P 3 31M 1M",
            "write -z 4k 64k",
            "read -P 0 4k 64k",
            "read -P 1 68k 4k",
            "write -z -u 128k 64k",
            "read -P 0 128k 64k",
            "discard 256k 64k",
            "discard 0 512",
            "aio_write -P 4 2M 1M",
            "aio_write -P 5 3M 1M",
            "aio_flush",
            "read -P 4 2M 1M",
            "read -P 5 3M 1M",
        ];
        let mut arguments = vec!["-f", "raw"];
        commands.iter().for_each(|command| arguments.extend(["-c", command]));
        arguments.push(&served.uri);
        let said = run("qemu-io", &arguments);
        assert!(!said.contains("verification failed"), "{said}");
        assert!(!said.contains("rror"), "{said}");
        let beyond = output("qemu-io", &["-f", "raw", "-c", "read 32M 512", &served.uri]);
        assert!(!beyond.status.success());
        let read_only = ["-r", "-f", "raw", "-c", "write 0 512", &served.uri];
        assert!(!output("qemu-io", &read_only).status.success());
        served.server.stop().expect("the server stops");
    }
}

#[test]
fn fio_verifies_its_data() {
    for (engine, tcp) in [(ENGINES[0], false), (ENGINES[0], true), (ENGINES[1], false)] {
        let served = Served::start(engine, 512, tcp);
        let uri = format!("--uri={}", served.uri);
        let patterns = [
            ("--rw=randwrite", "--bsrange=512-64k"),
            ("--rw=randrw", "--bs=4k"),
            ("--rw=write", "--bs=1m"),
        ];
        for (rw, bs) in patterns {
            let arguments = [
                "--name=verify",
                "--ioengine=nbd",
                &uri,
                "--iodepth=32",
                "--size=32m",
                "--verify=crc32c",
                "--verify_fatal=1",
                "--verify_state_save=0",
                "--randrepeat=1",
                "--minimal",
                rw,
                bs,
            ];
            run("fio", &arguments);
        }
        served.server.stop().expect("the server stops");
    }
}

/// Runs four fio jobs, each with its own connection and quarter of the disk.
#[test]
fn fio_works_with_many_connections() {
    for engine in ENGINES {
        let served = Served::start(engine, 4096, false);
        let uri = format!("--uri={}", served.uri);
        let arguments = [
            "--name=verify",
            "--ioengine=nbd",
            &uri,
            "--numjobs=4",
            "--size=8m",
            "--offset_increment=8m",
            "--iodepth=16",
            "--rw=randrw",
            "--bs=4k",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--group_reporting",
            "--minimal",
        ];
        run("fio", &arguments);
        served.server.stop().expect("the server stops");
    }
}
