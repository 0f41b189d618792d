//! A target that is changed while hosts use it.
#![cfg(unix)]

mod support;

use farblock_block::blocking::Blocking;
use farblock_block::{BlockError, Namespace};
use farblock_host::disk::DiskOptions;
use farblock_host::{Disk, Options, Url};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use support::{Outcome, Scratch, Server, until};

const NQN: &str = "nqn.2026-11.org.farblock:steered";
const HOST: &str = "nqn.2026-11.org.farblock:host";

fn connect(server: &Server, nsid: u32) -> Disk {
    let url: Url = server.url(nsid).parse().expect("a URL");
    let options = DiskOptions {
        connection: Options::default(),
        reconnect_delay: Duration::from_millis(100),
        ctrl_loss_timeout: Some(Duration::from_secs(30)),
        ..DiskOptions::default()
    };
    Disk::connect(&[url], &options).expect("connected")
}

/// Writes and reads back until it is told to stop.
fn load(disk: &Disk, stop: &AtomicBool, count: &AtomicU64) {
    let mut blocks = Blocking::new(disk).expect("a queue");
    let mut back = vec![0; 512];
    for round in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let data = support::noise(round, 512);
        blocks.write(round % 64, &data).expect("it stays, and is written");
        blocks.read(round % 64, &mut back).expect("it stays, and is read");
        assert!(back == data, "round {round}");
        count.fetch_add(1, Ordering::Relaxed);
    }
}

impl Scratch {
    fn ctl(&self, args: &[&str]) -> Outcome {
        self.run(["ctl"].iter().chain(args))
    }

    fn status(&self) -> serde_json::Value {
        self.run(["status", "--json"]).ok().json()
    }
}

#[test]
fn namespaces_come_change_and_go_under_load() {
    let scratch = Scratch::new();
    let first = scratch.disk("first.img", 1 << 20);
    let second = scratch.disk("second.img", 1 << 20);
    scratch.disk("third.img", 1 << 20);
    let server = scratch.serve(["--nqn", NQN, &first, &second]);
    let (stays, other) = (connect(&server, 1), connect(&server, 2));
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let goes_on = || {
        let before = count.load(Ordering::Relaxed);
        until("the load goes on", || count.load(Ordering::Relaxed) > before + 20);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| load(&stays, &stop, &count));
        goes_on();
        let added = scratch.ctl(&["add-namespace", NQN, "third.img"]).ok();
        assert!(added.out().contains("namespace 3 added"), "{}", added.out());
        let third = connect(&server, 3);
        let mut blocks = Blocking::new(&third).expect("a queue");
        blocks.write(2047, &[7; 512]).expect("it is there");
        goes_on();
        scratch.ctl(&["resize", NQN, "2", "2MiB"]).ok();
        until("the host hears of the size", || other.geometry().blocks == 4096);
        assert_eq!(std::fs::metadata(&second).unwrap().len(), 2 << 20);
        let file = std::fs::File::options().write(true).open(scratch.path("third.img")).unwrap();
        file.set_len(3 << 20).unwrap();
        until("a file that grew is noticed", || third.geometry().blocks == 6144);
        goes_on();
        scratch.ctl(&["read-only", NQN, "3", "on"]).ok();
        until("the host hears of it", || third.geometry().read_only);
        assert_eq!(blocks.write(0, &[7; 512]), Err(BlockError::ReadOnly));
        scratch.ctl(&["read-only", NQN, "3", "off"]).ok();
        until("the host hears of it", || !third.geometry().read_only);
        blocks.write(0, &[7; 512]).expect("it may be written to again");
        goes_on();
        scratch.ctl(&["remove-namespace", NQN, "3"]).ok();
        until("what is gone answers so", || blocks.write(0, &[7; 512]).is_err());
        goes_on();
        // Its file is free, and that of one that the target began with.
        scratch.ctl(&["remove-namespace", NQN, "2"]).ok();
        scratch.ctl(&["add-namespace", NQN, "second.img"]).ok();
        scratch.ctl(&["add-namespace", NQN, "third.img", "--nsid", "9"]).ok();
        stop.store(true, Ordering::Relaxed);
    });
    let status = scratch.status();
    let namespaces = status["subsystems"][0]["namespaces"].as_array().unwrap();
    let ids: Vec<_> = namespaces.iter().map(|one| one["nsid"].as_u64().unwrap()).collect();
    assert_eq!(ids, [1, 2, 9]);
    assert_eq!(status["controllers"][0]["address"], "127.0.0.1");
    let people = scratch.run(["status"]).ok().out();
    assert!(people.contains(NQN) && people.contains("HOST"), "{people}");
    server.stop();
}

#[test]
fn what_cannot_be_done_changes_nothing_and_is_said() {
    let scratch = Scratch::new();
    let server = scratch.serve(["--nqn", NQN, "mem:1MiB"]);
    let before = scratch.run(["config", "show"]).ok().out();
    scratch.ctl(&["add-namespace", NQN, "none.img"]).fails(1, &["none.img", "does not exist"]);
    scratch.ctl(&["add-namespace", NQN, "mem:1MiB", "--nsid", "1"]).fails(1, &["already"]);
    let wrong = ["add-namespace", NQN, "mem:1MiB", "--nsid", "2000"];
    scratch.ctl(&wrong).fails(1, &["namespaces.2000", "use 1 to 1024"]);
    scratch.ctl(&["resize", NQN, "1", "2MiB"]).fails(1, &["cannot have 4096"]);
    scratch.ctl(&["resize", NQN, "1", "100"]).fails(1, &["whole number of blocks"]);
    scratch.ctl(&["remove-namespace", NQN, "5"]).fails(1, &["there is no", "namespaces.5"]);
    scratch.ctl(&["allow-host", NQN, HOST]).fails(1, &["allow_any_host", "mean nothing"]);
    scratch.ctl(&["add-listener", &server.address]).ok();
    let address = server.address.clone();
    scratch.ctl(&["remove-listener", &address]).fails(1, &["listeners", "name one"]);
    scratch.run(["reload"]).fails(1, &["started without --config"]);
    assert_eq!(scratch.run(["config", "show"]).ok().out(), before);
    server.stop();
    scratch.run(["status"]).fails(1, &["no target", "farblock serve"]);
    let nowhere = scratch.text("nowhere");
    scratch.run(["status", "--control", &nowhere]).fails(1, &["no target answers at"]);
}

#[test]
fn hosts_subsystems_and_listeners() {
    let scratch = Scratch::new();
    let server = scratch.serve(["--nqn", NQN, "mem:1MiB"]);
    let read = |url: &str| scratch.run(["read", url, "--length", "512", "-o", "out.bin"]);
    read(&server.url(1)).ok();
    scratch.ctl(&["allow-any-host", NQN, "off"]).ok();
    read(&server.url(1)).fails(1, &["does not allow this host"]);
    scratch.ctl(&["allow-any-host", NQN, "on"]).ok();
    read(&server.url(1)).ok();
    let other = "nqn.2026-11.org.farblock:other";
    scratch.ctl(&["add-subsystem", other, "--allow-any-host"]).ok();
    scratch.ctl(&["add-namespace", other, "mem:1MiB"]).ok();
    let url = format!("nvme+tcp://{}/{other}?ns=1", server.address);
    read(&url).ok();
    scratch.ctl(&["remove-subsystem", other]).ok();
    read(&url).fails(1, &[]);
    server.stop();
}

/// A configuration that shares these.
fn configuration(scratch: &Scratch, namespaces: &[&str]) -> String {
    let mut text = format!(
        "listeners = [\"127.0.0.1:0\"]\n[[subsystems]]\nnqn = \"{NQN}\"\nallow_any_host = true\n"
    );
    for path in namespaces {
        text.push_str(&format!("[[subsystems.namespaces]]\npath = \"{path}\"\n"));
    }
    scratch.file("farblock.toml", text.as_bytes())
}

#[test]
fn a_configuration_is_read_again() {
    let scratch = Scratch::new();
    let path = configuration(&scratch, &["mem:1MiB"]);
    let checked = scratch.run(["serve", "--check", &path]).ok().out();
    assert!(checked.contains("1 subsystem, 1 namespace, 1 listener"), "{checked}");
    let server = Server::start(scratch.command(["serve", "--config", &path]));
    scratch.ctl(&["add-namespace", NQN, "mem:4MiB", "--nsid", "7"]).ok();
    let nothing = scratch.run(["config", "diff"]).ok().out();
    assert!(nothing.contains("nothing"), "{nothing}");
    configuration(&scratch, &["mem:1MiB", "mem:2MiB"]);
    let diff = scratch.run(["config", "diff"]).ok().out();
    assert!(diff.contains("namespace 2 added, stored in mem:2MiB"), "{diff}");
    assert_eq!(scratch.run(["reload"]).ok().out(), diff);
    let ids = || {
        let status = scratch.status();
        let all = status["subsystems"][0]["namespaces"].as_array().unwrap().clone();
        all.iter().map(|one| one["nsid"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(ids(), [1, 2, 7], "what was changed by other means stays");
    configuration(&scratch, &["mem:1MiB"]);
    server.signal("HUP");
    until("the signal is heard", || ids() == [1, 7]);
    std::fs::write(&path, "nonsense = 1").unwrap();
    scratch.run(["reload"]).fails(1, &["farblock.toml:1", "nonsense"]);
    scratch.run(["serve", "--check", &path]).fails(2, &["nonsense"]);
    assert_eq!(ids(), [1, 7]);
    let ended = server.stop();
    assert!(ended.stderr.contains("namespace 2 removed"), "{}", ended.stderr);
}

#[test]
fn a_key_that_comes_into_the_configuration_lets_nobody_in_without_it() {
    let scratch = Scratch::new();
    let path = configuration(&scratch, &["mem:1MiB"]);
    let text = std::fs::read_to_string(&path).unwrap();
    let restricted =
        text.replace("allow_any_host = true", &format!("allowed_hosts = [\"{HOST}\"]"));
    std::fs::write(&path, &restricted).unwrap();
    let server = Server::start(scratch.command(["serve", "--config", &path]));
    scratch.run(["keys", "new", "--output", "host.key"]).ok();
    let locked =
        "[[subsystems.hosts]]\nnqn = \"nqn.2026-11.h:locked\"\ndhchap_key = \"host.key\"\n";
    std::fs::write(&path, format!("{restricted}{locked}")).unwrap();
    scratch.run(["serve", "--check", &path]).ok();
    scratch.run(["reload"]).fails(1, &["has a key", "restart"]);
    assert!(!scratch.run(["config", "show"]).ok().out().contains("h:locked"));
    server.stop();
}

#[test]
fn a_target_with_keys_or_without_control_says_that_it_cannot_be_steered() {
    let scratch = Scratch::new();
    scratch.run(["keys", "new", "--output", "host.key"]).ok();
    let path = configuration(&scratch, &["mem:1MiB"]);
    let text = std::fs::read_to_string(&path).unwrap();
    let locked =
        "[[subsystems.hosts]]\nnqn = \"nqn.2026-11.h:locked\"\ndhchap_key = \"host.key\"\n";
    let text = text.replace("allow_any_host = true", "") + locked;
    std::fs::write(&path, text).unwrap();
    let serve = ["serve", "--config", &path];
    let with =
        |more: &[&'static str]| scratch.run(serve.iter().copied().chain(more.iter().copied()));
    with(&["--control", "c.sock"]).fails(2, &["key", "cannot be steered"]);
    with(&["--persist", "p.json"]).fails(2, &["keeps no secrets"]);
    let keyed = Server::start(scratch.command(serve));
    scratch.run(["status"]).fails(1, &["can be steered", "hosts that have a key"]);
    keyed.stop();
    let closed = scratch.serve(["--no-control", "mem:1MiB"]);
    scratch.run(["status"]).fails(1, &["can be steered", "--no-control"]);
    closed.stop();
}

#[test]
#[cfg(target_os = "linux")]
fn reservations_that_were_kept_are_not_forgotten_by_sharing_their_file_meanwhile() {
    let scratch = Scratch::new();
    let disk = scratch.disk("reserved.img", 1 << 20);
    let server = scratch.serve(["--nqn", NQN, "mem:1MiB"]);
    let put = |value: &[u8]| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&disk, "user.farblock.reservations", value, flags)
    };
    // A file system without attributes keeps no reservations.
    if put(b"damaged").is_ok() {
        let add = ["add-namespace", NQN, disk.as_str()];
        scratch.ctl(&add).fails(1, &["reserved.img", "reservations", "restart"]);
        rustix::fs::removexattr(&disk, "user.farblock.reservations").unwrap();
        scratch.ctl(&add).ok();
    }
    server.stop();
}

#[test]
fn what_is_kept_comes_back() {
    let scratch = Scratch::new();
    let disk = scratch.disk("disk.img", 1 << 20);
    let added = scratch.disk("added.img", 1 << 20);
    let start = || scratch.serve(["--nqn", NQN, "--persist", "state.json", &disk]);
    let server = start();
    scratch.ctl(&["add-namespace", NQN, &added]).ok();
    scratch.ctl(&["resize", NQN, "2", "512KiB"]).ok();
    let before = scratch.run(["config", "show"]).ok().out();
    server.signal("KILL");
    server.wait();
    let server = start();
    assert_eq!(scratch.run(["config", "show"]).ok().out(), before);
    assert_eq!(scratch.status()["subsystems"][0]["namespaces"][1]["bytes"], 512 << 10);
    // Killed at any moment of many changes: one of the states that there were, whole.
    let mut rounds = std::process::Command::new("sh");
    let script = "i=0; while :; do i=$((i + 1)); \"$0\" ctl resize \"$1\" 2 $((i % 2 + 1))KiB \
                  || exit 0; done";
    rounds.args(["-c", script, env!("CARGO_BIN_EXE_farblock"), NQN]);
    scratch.prepare(&mut rounds);
    let rounds = rounds.spawn().unwrap();
    let size = || scratch.status()["subsystems"][0]["namespaces"][1]["bytes"].as_u64().unwrap();
    until("it changes", || size() < 3000);
    server.signal("KILL");
    server.wait();
    support::wait(rounds);
    let server = start();
    assert!([1024, 2048].contains(&size()), "{}", size());
    server.stop();
}

#[test]
fn counters_are_scraped() {
    use std::io::{Read, Write};
    let scratch = Scratch::new();
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap()
    };
    let server = scratch.serve(["--nqn", NQN, "--metrics", &port.to_string(), "mem:1MiB"]);
    scratch.run(["read", &server.url(1), "-o", "out.bin"]).ok();
    let mut stream = std::net::TcpStream::connect(port).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let line = format!("farblock_subsystem_read_bytes_total{{nqn=\"{NQN}\"}} 1048576");
    assert!(text.contains(&line), "{text}");
    assert!(text.contains("farblock_namespace_size_bytes"), "{text}");
    server.stop();
}
