//! Tests that change a target while hosts use it.
#![cfg(unix)]

mod support;

use farblock_block::blocking::Blocking;
use farblock_block::{BlockError, Namespace};
use farblock_host::disk::DiskOptions;
use farblock_host::{Disk, Options, Url};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use support::{Scratch, Server, until};

const NQN: &str = "nqn.2026-11.org.farblock:steered";
const HOST: &str = "nqn.2026-11.org.farblock:host";

fn connect(server: &Server, nsid: u32) -> Disk {
    let url: Url = server.url(nsid).parse().expect("the URL is valid");
    let options = DiskOptions {
        connection: Options::default(),
        reconnect_delay: Duration::from_millis(100),
        ctrl_loss_timeout: Some(Duration::from_secs(30)),
        ..DiskOptions::default()
    };
    Disk::connect(&[url], &options).expect("the disk connects")
}

/// Writes and reads data back until `stop`.
fn load(disk: &Disk, stop: &AtomicBool, count: &AtomicU64) {
    let mut blocks = Blocking::new(disk).expect("the queue opens");
    let mut back = vec![0; 512];
    for round in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let data = support::noise(round, 512);
        blocks.write(round % 64, &data).expect("the disk stays writable");
        blocks.read(round % 64, &mut back).expect("the disk stays readable");
        assert!(back == data, "round {round}");
        count.fetch_add(1, Ordering::Relaxed);
    }
}

impl Scratch {
    fn status(&self) -> serde_json::Value {
        self.run(["status", "--json"]).ok().json()
    }
}

#[test]
fn namespaces_are_added_changed_and_removed_under_load() {
    let scratch = Scratch::new();
    let first = scratch.disk("first.img", 1 << 20);
    let second = scratch.disk("second.img", 1 << 20);
    scratch.disk("third.img", 1 << 20);
    let server = scratch.serve(["--nqn", NQN, &first, &second]);
    let (stays, other) = (connect(&server, 1), connect(&server, 2));
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let goes_on = || {
        let before = count.load(Ordering::Relaxed);
        until("the load continues", || count.load(Ordering::Relaxed) > before + 20);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| load(&stays, &stop, &count));
        goes_on();
        let added = scratch.ctl(&["add-namespace", NQN, "third.img"]).ok();
        assert!(added.out().contains("namespace 3 added"), "{}", added.out());
        let third = connect(&server, 3);
        let mut blocks = Blocking::new(&third).expect("the queue opens");
        blocks.write(2047, &[7; 512]).expect("the block exists");
        goes_on();
        scratch.ctl(&["resize", NQN, "2", "2MiB"]).ok();
        until("the host knows the new size", || other.geometry().blocks == 4096);
        assert_eq!(std::fs::metadata(&second).unwrap().len(), 2 << 20);
        let file = std::fs::File::options().write(true).open(scratch.path("third.img")).unwrap();
        file.set_len(3 << 20).unwrap();
        until("a grown file is noticed", || third.geometry().blocks == 6144);
        goes_on();
        scratch.ctl(&["read-only", NQN, "3", "on"]).ok();
        until("the host knows the change", || third.geometry().read_only);
        assert_eq!(blocks.write(0, &[7; 512]), Err(BlockError::ReadOnly));
        scratch.ctl(&["read-only", NQN, "3", "off"]).ok();
        until("the host knows the change", || !third.geometry().read_only);
        blocks.write(0, &[7; 512]).expect("the disk is writable again");
        goes_on();
        scratch.ctl(&["remove-namespace", NQN, "3"]).ok();
        until("a removed namespace returns errors", || blocks.write(0, &[7; 512]).is_err());
        goes_on();
        // Removing a namespace must close its file, even if the target started with that namespace.
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
fn the_memory_limit_is_set_in_the_file_or_options_and_shown_in_the_status() {
    let scratch = Scratch::new();
    let text = "memory = '8MiB'\nlisteners = ['127.0.0.1:0']\n[[subsystems]]\n\
                nqn = 'nqn.2026-11.a:b'\n\
                allow_any_host = true\n[[subsystems.namespaces]]\npath = 'mem:1MiB'\n";
    let config = scratch.file("farblock.toml", text.as_bytes());
    for (options, wanted) in [(&[][..], 8), (&["--memory", "16MiB"], 16)] {
        let server = scratch.serve([&["--config", &config][..], options].concat());
        let budget = scratch.status()["budget"].clone();
        assert_eq!(budget["buffer_bytes"].as_u64(), Some(wanted << 20), "{budget}");
        assert_eq!(budget["is_set"], true, "{budget}");
        let people = scratch.run(["status"]).ok().out();
        assert!(people.contains(&format!("budget: {wanted} MiB")), "{people}");
        server.stop();
    }
    scratch.run(["serve", "mem:1MiB", "--memory", "4k"]).fails(2, &["--memory", "1MiB"]);
}

#[test]
fn the_spin_policy_is_set_in_the_file_or_options_and_shown_in_the_status() {
    let scratch = Scratch::new();
    let text = "spin = 'latency'\nlisteners = ['127.0.0.1:0']\n[[subsystems]]\n\
                nqn = 'nqn.2026-11.a:b'\n\
                allow_any_host = true\n[[subsystems.namespaces]]\npath = 'mem:1MiB'\n";
    let config = scratch.file("farblock.toml", text.as_bytes());
    for (options, wanted) in [(&[][..], "latency"), (&["--spin", "efficient"], "efficient")] {
        let server = scratch.serve([&["--config", &config][..], options].concat());
        assert!(server.said.contains(&format!("engine, spin {wanted}")), "{}", server.said);
        assert_eq!(scratch.status()["spin"], wanted);
        let people = scratch.run(["status"]).ok().out();
        assert!(people.contains(&format!("spin: {wanted}")), "{people}");
        server.stop();
    }
    let names = "efficient, balanced, latency, always";
    scratch.run(["serve", "mem:1MiB", "--spin", "fast"]).fails(2, &["fast", names]);
    let both = ["serve", "mem:1MiB", "--spin", "latency", "--poll"];
    scratch.run(both).fails(2, &["cannot be used with"]);
}

#[test]
fn a_refused_ctl_command_changes_nothing() {
    let scratch = Scratch::new();
    let server = scratch.serve(["--nqn", NQN, "mem:1MiB"]);
    let before = scratch.run(["config", "show"]).ok().out();
    scratch.ctl(&["add-namespace", NQN, "none.img"]).fails(1, &["none.img", "does not exist"]);
    scratch.ctl(&["add-namespace", NQN, "mem:1MiB", "--nsid", "1"]).fails(1, &["already"]);
    let wrong = ["add-namespace", NQN, "mem:1MiB", "--nsid", "20000"];
    scratch.ctl(&wrong).fails(2, &["--nsid", "write 1 to 10240"]);
    scratch.ctl(&["resize", NQN, "1", "2MiB"]).fails(1, &["cannot have 4096"]);
    scratch.ctl(&["resize", NQN, "1", "100"]).fails(1, &["whole number of 512-byte blocks"]);
    scratch
        .ctl(&["remove-namespace", NQN, "5"])
        .fails(1, &["there is no namespace 5 of subsystem"]);
    scratch.ctl(&["allow-host", NQN, HOST]).fails(1, &["allow_any_host", "no effect"]);
    scratch.ctl(&["add-listener", &server.address]).ok();
    let address = server.address.clone();
    scratch.ctl(&["remove-listener", &address]).fails(1, &["listeners", "name at least one"]);
    scratch.run(["reload"]).fails(1, &["started without --config"]);
    let used = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let used = used.local_addr().expect("the socket has an address").to_string();
    scratch.ctl(&["add-listener", &used]).fails(1, &[&used, "in use by another program"]);
    assert_eq!(scratch.run(["config", "show"]).ok().out(), before);
    // The subsystem works, but farblock warns about its name.
    let added = scratch.ctl(&["add-subsystem", "disks"]).ok();
    assert!(added.stderr.contains("for example nqn."), "{}", added.stderr);
    server.stop();
    scratch.run(["status"]).fails(1, &["no target", "farblock serve"]);
    let nowhere = scratch.text("nowhere");
    scratch.run(["status", "--control", &nowhere]).fails(1, &["no target answers at"]);
}

#[test]
fn hosts_subsystems_and_listeners_are_added_and_removed() {
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
fn reload_applies_a_changed_configuration() {
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
    assert_eq!(ids(), [1, 2, 7], "a namespace that `ctl` added was lost");
    configuration(&scratch, &["mem:1MiB"]);
    server.signal("HUP");
    until("the signal takes effect", || ids() == [1, 7]);
    std::fs::write(&path, "nonsense = 1").unwrap();
    scratch.run(["reload"]).fails(1, &["farblock.toml:1", "nonsense"]);
    scratch.run(["serve", "--check", &path]).fails(2, &["nonsense"]);
    assert_eq!(ids(), [1, 7]);
    let ended = server.stop();
    assert!(ended.stderr.contains("namespace 2 removed"), "{}", ended.stderr);
}

/// A pipe without a writer replaces the configuration. A reload must fail at once, and the target
/// must still accept queries and changes.
#[test]
#[cfg(target_os = "linux")]
fn reload_refuses_a_pipe_without_a_writer() {
    let scratch = Scratch::new();
    let path = configuration(&scratch, &["mem:1MiB"]);
    let server = Server::start(scratch.command(["serve", "--config", &path]));
    std::fs::remove_file(&path).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo runs");
    assert!(made.success(), "{made}");
    server.signal("HUP");
    scratch.run(["reload"]).fails(1, &["farblock.toml", "is not a regular file"]);
    scratch.run(["config", "diff"]).fails(1, &["is not a regular file"]);
    scratch.ctl(&["add-namespace", NQN, "mem:4MiB", "--nsid", "7"]).ok();
    std::fs::remove_file(&path).unwrap();
    configuration(&scratch, &["mem:1MiB"]);
    scratch.run(["reload"]).ok();
    server.stop();
}

#[test]
fn status_reports_a_target_without_a_control_socket() {
    let scratch = Scratch::new();
    let closed = scratch.serve(["--no-control", "mem:1MiB"]);
    scratch.run(["status"]).fails(1, &["with a control socket", "--no-control"]);
    closed.stop();
}

#[test]
#[cfg(target_os = "linux")]
fn add_namespace_refuses_a_file_with_damaged_reservations() {
    let scratch = Scratch::new();
    let disk = scratch.disk("reserved.img", 1 << 20);
    let server = scratch.serve(["--nqn", NQN, "mem:1MiB"]);
    let put = |value: &[u8]| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&disk, "user.farblock.reservations", value, flags)
    };
    // A file system without extended attributes cannot store reservations.
    if put(b"damaged").is_ok() {
        let add = ["add-namespace", NQN, disk.as_str()];
        scratch.ctl(&add).fails(1, &["reservations", "damaged"]);
        rustix::fs::removexattr(&disk, "user.farblock.reservations").unwrap();
        scratch.ctl(&add).ok();
    }
    server.stop();
}

/// Checks that a disk keeps the identifiers by which hosts already know it.
#[test]
fn a_namespace_keeps_identifiers_of_another_target() {
    const UUID: &str = "11111111-2222-4333-8444-555555555555";
    let scratch = Scratch::new();
    let config = |nguid: &str| {
        let text = format!(
            "listeners = [\"127.0.0.1:0\"]\n[[subsystems]]\nnqn = \"{NQN}\"\n\
             allow_any_host = true\n[[subsystems.namespaces]]\npath = \"mem:1MiB\"\n\
             uuid = \"{UUID}\"\nnguid = \"{nguid}\"\n"
        );
        scratch.file("farblock.toml", text.as_bytes())
    };
    let path = config(&"0".repeat(32));
    scratch.run(["serve", "--check", &path]).fails(2, &["namespaces[0].nguid", "leave it out"]);
    config("0123456789ABCDEF0123456789abcdef");
    let server = Server::start(scratch.command(["serve", "--config", &path]));
    let url = format!("nvme+tcp://{}/{NQN}", server.address);
    let known = || {
        let namespace = scratch.run(["id", &url, "--json"]).ok().json()["namespaces"][0].clone();
        (namespace["uuid"].clone(), namespace["nguid"].clone())
    };
    let first = known();
    assert_eq!(first, (UUID.into(), "0123456789abcdef0123456789abcdef".into()));
    scratch.ctl(&["read-only", NQN, "1", "on"]).ok();
    assert_eq!(known(), first, "another change also changed the names");
    config("fedcba98-7654-3210-fedc-ba9876543210");
    let said = scratch.run(["reload"]).ok().out();
    assert!(said.contains("namespace 1 removed") && said.contains("namespace 1 added"), "{said}");
    assert_eq!(known().1, "fedcba9876543210fedcba9876543210");
    server.stop();
}

#[test]
fn persisted_changes_survive_a_kill() {
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
    // A target killed during many changes must restart with one complete state.
    let mut rounds = std::process::Command::new("sh");
    let script = "i=0; while :; do i=$((i + 1)); \"$0\" ctl resize \"$1\" 2 $((i % 2 + 1))KiB \
                  || exit 0; done";
    rounds.args(["-c", script, env!("CARGO_BIN_EXE_farblock"), NQN]);
    scratch.prepare(&mut rounds);
    let rounds = rounds.spawn().unwrap();
    let size = || scratch.status()["subsystems"][0]["namespaces"][1]["bytes"].as_u64().unwrap();
    until("the size changes", || size() < 3000);
    server.signal("KILL");
    server.wait();
    support::wait(rounds);
    let server = start();
    // `ctl` exits only after the target has saved the change.
    assert!([1024, 2048, 512 << 10].contains(&size()), "{}", size());
    server.stop();
}

/// Checks that a disk removed at run time may be missing at the next start, both in the
/// configuration and as a file.
#[test]
fn a_removed_disk_may_be_missing_at_the_next_start() {
    let scratch = Scratch::new();
    let disks = ["one.img", "two.img"].map(|name| scratch.disk(name, 1 << 20));
    let config = configuration(&scratch, &["one.img", "two.img"]);
    for start in [&["--config", &config][..], &["--nqn", NQN, &disks[0], &disks[1]]] {
        let state = scratch.text(&format!("kept-{}.json", start.len()));
        let serve = || scratch.serve([start, &["--persist", &state]].concat());
        let server = serve();
        scratch.ctl(&["remove-namespace", NQN, "2"]).ok();
        // A second process must not use the same state file.
        let other = ["serve", "mem:1MiB", "--listen", "127.0.0.1:0", "--persist", &state];
        scratch.run(other).fails_in_a_line(1, &["another farblock", &state]);
        server.stop();
        std::fs::remove_file(&disks[1]).unwrap();
        let server = serve();
        let namespaces = scratch.status()["subsystems"][0]["namespaces"].clone();
        assert_eq!(namespaces.as_array().unwrap().len(), 1, "{namespaces}");
        server.stop();
        scratch.disk("two.img", 1 << 20);
    }
}

/// Returns the names and data of events, up to the first event `until`.
fn read_events(
    reader: &mut impl std::io::BufRead,
    until: &str,
) -> Vec<(String, serde_json::Value)> {
    let (mut all, mut name) = (Vec::new(), String::new());
    loop {
        let mut line = String::new();
        assert!(reader.read_line(&mut line).unwrap() > 0, "the output ends before {until}");
        if let Some(told) = line.strip_prefix("event: ") {
            told.trim().clone_into(&mut name);
        } else if let Some(data) = line.strip_prefix("data: ") {
            all.push((name.clone(), serde_json::from_str(data).unwrap()));
            if name == until {
                return all;
            }
        }
    }
}

#[test]
fn events_are_sent_when_they_happen() {
    use std::io::Write;
    let scratch = Scratch::new();
    let server = scratch.serve(["--nqn", NQN, "--control", "c.sock", "mem:1MiB"]);
    let connect = || {
        let mut stream = std::os::unix::net::UnixStream::connect(scratch.path("c.sock")).unwrap();
        stream.write_all(b"GET /v1/events HTTP/1.1\r\nHost: farblock\r\n\r\n").unwrap();
        std::io::BufReader::new(stream)
    };
    let mut events = connect();
    let first = read_events(&mut events, "stats");
    assert_eq!(first.last().unwrap().1["total"]["reads"], 0);
    let mut seen = |name: &str| read_events(&mut events, name).pop().unwrap().1;
    let url = format!("{}&hostnqn={HOST}", server.url(1));
    scratch.run(["read", &url, "-o", "out.bin"]).ok();
    let connected = seen("host_connected");
    assert_eq!((&connected["host"], &connected["address"]), (&HOST.into(), &"127.0.0.1".into()));
    assert_eq!(seen("host_ended")["controller"], connected["controller"]);
    let ctl = |args: &[&str]| scratch.run(["ctl", "--control", "c.sock"].iter().chain(args)).ok();
    ctl(&["add-namespace", NQN, "mem:2MiB"]);
    assert_eq!(seen("namespace_added")["nsid"], 2);
    ctl(&["read-only", NQN, "2", "on"]);
    let changed = seen("namespace_changed");
    assert_eq!((&changed["bytes"], &changed["read_only"]), (&(2 << 20).into(), &true.into()));
    ctl(&["remove-namespace", NQN, "2"]);
    assert_eq!(seen("namespace_removed")["subsystem"], NQN);
    ctl(&["allow-any-host", NQN, "off"]);
    scratch.run(["read", &url, "-o", "out.bin"]).fails(1, &[]);
    let refused = seen("host_refused");
    let sentence = refused["sentence"].as_str().unwrap();
    assert!(sentence.contains(HOST) && sentence.contains("refused"), "{sentence}");
    drop(events);
    server.stop();
}

/// Checks that a target reports, saves and restores the ANA states of a listener and of a group.
#[test]
fn ana_states_of_listeners_and_groups_are_reported_and_restored() {
    let scratch = Scratch::new();
    let (disk, kept) = (scratch.disk("disk.img", 1 << 20), scratch.text("kept.json"));
    let serve = || {
        let more = ["--ana", "non-optimized", "--cntlids", "500-599", "--persist", &kept];
        scratch.serve(["--nqn", NQN, &disk].iter().chain(&more))
    };
    let server = serve();
    let host = connect(&server, 1);
    let access = || host.paths()[0].access.map(|state| state.0);
    until("the first state is reported", || access() == Some(2));
    assert_eq!(host.paths()[0].controller.map(|(_, id)| id / 100), Some(5));
    let address = server.address.clone();
    let said = scratch.ctl(&["set-ana", &address, "inaccessible"]).ok().out();
    assert_eq!(said, format!("{address}: namespaces are inaccessible\n"));
    until("the host knows the change", || access() == Some(3));
    scratch.ctl(&["set-ana", &address, "optimized", "--group", "5"]).ok();
    scratch.ctl(&["ana-group", NQN, "1", "5"]).ok();
    until("the group is accessible", || access() == Some(1));
    scratch.ctl(&["add-listener", &address]).ok();
    let again = scratch.ctl(&["set-ana", &address, "inaccessible"]).ok().out();
    assert_eq!(again, "nothing to change\n");
    scratch.ctl(&["set-ana", &address, "good"]).fails(2, &["optimized, non-optimized"]);
    let beyond = ["set-ana", &address, "change", "--group", "129"];
    scratch.ctl(&beyond).fails(2, &["not an ANA group: write 1 to 128"]);
    scratch
        .ctl(&["set-ana", "127.0.0.1:1", "change"])
        .fails(1, &["there is no listener 127.0.0.1:1"]);
    server.stop();
    let server = serve();
    assert_eq!(server.address, address);
    let shown = scratch.run(["config", "show"]).ok().json();
    assert_eq!(shown["listeners"][&address]["ana_groups"]["5"], "optimized", "{shown}");
    until("the group is accessible again", || access() == Some(1));
    server.stop();
}

#[test]
fn limits_of_a_namespace_are_set_and_removed() {
    let scratch = Scratch::new();
    let kept = scratch.text("kept.json");
    let server = scratch.serve(["--nqn", NQN, "--persist", &kept, "mem:1MiB"]);
    let limit = |args: &[&str]| scratch.ctl(&[&["limit", NQN, "1"], args].concat());
    let said = limit(&["--iops", "100000", "--read-mib", "2", "--burst-ms", "5"]).ok().out();
    let expected = "namespace 1 limited to iops 100000 read_bytes 2 MiB/s burst_ms 5";
    assert!(said.contains(expected), "{said}");
    let shown = || scratch.run(["config", "show"]).ok().json()["subsystems"][NQN].clone();
    assert_eq!(shown()["namespaces"]["1"]["limits"]["read_bytes"], 2 << 20);
    scratch.run(["read", &server.url(1), "--output", "out.bin"]).ok();
    // The target removes limits that the command does not name.
    limit(&["--write-iops", "7"]).ok();
    assert_eq!(shown()["namespaces"]["1"]["limits"], serde_json::json!({ "write_iops": 7 }));
    limit(&["--iops", "0"]).fails(2, &["--iops", "leave it out for no limit"]);
    limit(&["--iops", "1", "--burst-ms", "60001"]).fails(2, &["--burst-ms", "1 to 60000"]);
    limit(&[]).fails(2, &["--iops"]);
    limit(&["--none", "--iops", "1"]).fails(2, &["--none"]);
    limit(&["--mib", "99999999999999"]).fails(2, &["write a whole number of MiB"]);
    let said = limit(&["--none"]).ok().out();
    assert!(said.contains("namespace 1 without limits"), "{said}");
    assert_eq!(shown()["namespaces"]["1"]["limits"], serde_json::Value::Null);
    server.stop();
}

#[test]
fn limiting_a_host_allows_no_other_host() {
    let scratch = Scratch::new();
    let kept = scratch.text("kept.json");
    let config = format!(
        "listeners = [\"127.0.0.1:0\"]\n[[subsystems]]\nnqn = \"{NQN}\"\n\
         allow-any-host = true\n[[subsystems.namespaces]]\npath = \"mem:1MiB\"\n"
    );
    std::fs::write(scratch.path("farblock.toml"), config).unwrap();
    let serve = || scratch.serve(["--config", "farblock.toml", "--persist", &kept]);
    let server = serve();
    scratch.ctl(&["allow-any-host", NQN, "off"]).ok();
    let limit = |args: &[&str]| scratch.ctl(&[&["limit-host", NQN, HOST], args].concat());
    limit(&["--iops", "5"]).fails(1, &["is not in the list of hosts", "ctl allow-host"]);
    scratch.ctl(&["allow-host", NQN, HOST]).ok();
    let said = limit(&["--write-iops", "5", "--mib", "200"]).ok().out();
    let expected = format!("host {HOST} is limited to write_iops 5 bytes 200 MiB/s");
    assert!(said.contains(&expected), "{said}");
    // Other changes of a host must not change its limits.
    scratch.ctl(&["allow-host", NQN, HOST, "--no-key"]).ok();
    let shown = || scratch.run(["config", "show"]).ok().json()["subsystems"][NQN]["hosts"].clone();
    assert_eq!(shown()[HOST]["limits"]["write_iops"], 5);
    limit(&["--iops", "0"]).fails(2, &["--iops", "leave it out for no limit"]);
    limit(&["--weight", "1001"]).fails(2, &["--weight", "1 to 1000"]);
    let of_namespace = scratch.ctl(&["limit", NQN, "1", "--weight", "50"]);
    of_namespace.fails(2, &["only hosts have a weight", "limit-host"]);
    let said = limit(&["--weight", "50", "--mib", "200"]).ok().out();
    assert!(said.contains("is limited to bytes 200 MiB/s weight 50"), "{said}");
    let status = scratch.run(["status"]).ok().out();
    let host =
        format!("  host {HOST}: no key: the target trusts its name; at most 200 MiB/s; weight 50");
    assert!(status.contains(&host), "{status}");
    assert_eq!(scratch.status()["subsystems"][0]["host_limits"][HOST]["weight"], 50);
    server.stop();
    let server = serve();
    assert_eq!(shown()[HOST]["limits"]["weight"], 50);
    assert_eq!(shown()[HOST]["limits"]["bytes"], 200 << 20);
    let said = limit(&["--none"]).ok().out();
    assert!(said.contains(&format!("host {HOST} is without limits")), "{said}");
    assert_eq!(shown()[HOST]["limits"], serde_json::Value::Null);
    server.stop();
}

/// Checks that a configuration can limit a host without a key, from the start.
#[test]
fn a_configuration_limits_hosts() {
    let scratch = Scratch::new();
    let config = |hosts: &str| {
        let text = format!(
            "listeners = [\"127.0.0.1:0\"]\n[[subsystems]]\nnqn = \"{NQN}\"\n{hosts}\n\
             [[subsystems.namespaces]]\npath = \"mem:1MiB\"\n"
        );
        std::fs::write(scratch.path("farblock.toml"), text).unwrap();
    };
    let limited = |limits: &str| {
        config(&format!("[[subsystems.hosts]]\nnqn = \"{HOST}\"\nlimits = {{ {limits} }}"));
    };
    limited("iops = 0");
    let serve = || scratch.run(["serve", "--config", "farblock.toml"]);
    serve().fails(2, &["subsystems[0].hosts[0].limits.iops"]);
    config(&format!("[[subsystems.hosts]]\nnqn = \"{HOST}\""));
    serve().fails(2, &["belongs in allowed_hosts"]);
    limited("read_iops = 700");
    let server = scratch.serve(["--config", "farblock.toml"]);
    let url = format!("nvme+tcp://{}/{NQN}?hostnqn={HOST}", server.address);
    scratch.run(["id", &url]).ok();
    let shown = || scratch.run(["config", "show"]).ok().json()["subsystems"][NQN]["hosts"].clone();
    assert_eq!(shown()[HOST]["limits"]["read_iops"], 700);
    limited("read_iops = 800");
    scratch.run(["reload"]).ok();
    assert_eq!(shown()[HOST]["limits"]["read_iops"], 800);
    server.stop();
}

#[test]
fn a_namespace_is_visible_only_to_the_named_hosts() {
    const OTHER: &str = "nqn.2026-11.org.farblock:other";
    let scratch = Scratch::new();
    let kept = scratch.text("kept.json");
    let config = format!(
        "listeners = [\"127.0.0.1:0\"]\nana_groups = {{ 7 = \"non-optimized\" }}\n[[subsystems]]\n\
         nqn = \"{NQN}\"\nallow-any-host = true\n[[subsystems.namespaces]]\npath = \"mem:1MiB\"\n\
         [[subsystems.namespaces]]\npath = \"mem:1MiB\"\nvisible_to = [\"{HOST}\"]\n\
         limits = {{ iops = 100000 }}\n"
    );
    std::fs::write(scratch.path("farblock.toml"), &config).unwrap();
    let serve = || scratch.serve(["--config", "farblock.toml", "--persist", &kept]);
    let server = serve();
    let seen = |server: &Server, host: &str| {
        let url = format!("nvme+tcp://{}/{NQN}?hostnqn={host}", server.address);
        let listed = scratch.run(["id", &url, "--json"]).ok().json();
        let all = listed["namespaces"].as_array().unwrap_or_else(|| panic!("{listed}")).clone();
        all.iter().map(|one| one["nsid"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!((seen(&server, HOST), seen(&server, OTHER)), (vec![1, 2], vec![1]));
    let status = scratch.run(["status"]).ok().out();
    for part in [
        &*format!(
            "listener {}: TLS for hosts with a TLS key; ANA optimized, group 7 non-",
            server.address
        ),
        "  hosts: any may connect\n",
        &*format!("  namespace 2: visible only to {HOST}\n"),
        "  namespace 2: at most 100000 I/Os/s\n",
    ] {
        assert!(status.contains(part), "{part}: {status}");
    }
    let told = scratch.status();
    assert_eq!(told["ana"][&server.address]["groups"]["7"], "non-optimized", "{told}");
    let second = &told["subsystems"][0]["namespaces"][1];
    assert_eq!(
        (&second["limits"]["iops"], &second["visible_to"][0]),
        (&100_000.into(), &HOST.into())
    );
    let shown = || scratch.run(["config", "show"]).ok().json();
    assert_eq!(shown()["listeners"][&server.address]["ana_groups"]["7"], "non-optimized");
    assert_eq!(shown()["subsystems"][NQN]["namespaces"]["2"]["limits"]["iops"], 100_000);
    let said = scratch.ctl(&["visible-to", NQN, "2", OTHER]).ok().out();
    assert!(said.ends_with(&format!("namespace 2 visible only to {OTHER}\n")), "{said}");
    assert_eq!((seen(&server, HOST), seen(&server, OTHER)), (vec![1], vec![1, 2]));
    scratch.ctl(&["add-namespace", NQN, "mem:1MiB", "--visible-to", OTHER]).ok();
    scratch.ctl(&["visible-to", NQN, "1", "--none"]).ok();
    server.stop();
    let server = serve();
    assert_eq!((seen(&server, HOST), seen(&server, OTHER)), (vec![], vec![2, 3]));
    for nsid in ["1", "2", "3"] {
        scratch.ctl(&["visible-to", NQN, nsid, "--all"]).ok();
    }
    assert_eq!(seen(&server, HOST), [1, 2, 3]);
    scratch.ctl(&["visible-to", NQN, "1"]).fails(2, &["--all"]);
    scratch
        .ctl(&["visible-to", NQN, "9", "--all"])
        .fails(1, &["there is no namespace 9 of subsystem"]);
    // Reload the configuration, first with a mistake and then without one.
    let broken = config.replace(HOST, "nqn.bad");
    std::fs::write(scratch.path("farblock.toml"), broken).unwrap();
    scratch.run(["reload"]).fails(1, &["visible_to[0]"]);
    std::fs::write(scratch.path("farblock.toml"), config.replace(HOST, OTHER)).unwrap();
    scratch.run(["reload"]).ok();
    assert_eq!((seen(&server, HOST), seen(&server, OTHER)), (vec![1, 3], vec![1, 2, 3]));
    server.stop();
}

/// `farblock top` in a terminal of this size, which `script` provides.
#[cfg(target_os = "linux")]
struct Screen {
    script: std::process::Child,
    text: String,
}

#[cfg(target_os = "linux")]
impl Screen {
    fn of(scratch: &Scratch, rows: u32, columns: u32) -> Screen {
        use std::process::Stdio;
        let top = format!(
            "stty rows {rows} cols {columns}; exec {} top --control c.sock",
            env!("CARGO_BIN_EXE_farblock")
        );
        let mut command = std::process::Command::new("script");
        command.args(["--quiet", "--flush", "--return", "--command", &top, "/dev/null"]);
        scratch.prepare(&mut command);
        command.env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::piped());
        let script = command.spawn().expect("no script: it is part of util-linux");
        Screen { script, text: String::new() }
    }

    fn shows(&mut self, what: &str) {
        use std::io::Read;
        let screen = self.script.stdout.as_mut().unwrap();
        let mut piece = [0; 4096];
        while !self.text.contains(what) {
            let count = screen.read(&mut piece).unwrap();
            assert!(count > 0, "the output ends before {what}: {}", self.text);
            self.text.push_str(&String::from_utf8_lossy(&piece[..count]));
        }
    }

    fn press(&mut self, key: &[u8]) {
        use std::io::Write;
        self.script.stdin.as_mut().unwrap().write_all(key).unwrap();
    }

    /// Checks that `top` leaves the alternate screen and exits with success.
    fn quits(mut self) {
        self.press(b"q");
        self.shows("\u{1b}[?1049l");
        let ended = support::wait(self.script);
        assert!(ended.status.success(), "{}", self.text);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn top_shows_io_and_restores_the_terminal() {
    let scratch = Scratch::new();
    let server = scratch.serve(["--nqn", NQN, "--control", "c.sock", "mem:1MiB"]);
    scratch.run(["top", "--control", "c.sock"]).fails(2, &["terminal", "top --once"]);
    let mut screen = Screen::of(&scratch, 12, 150);
    screen.shows("NAMESPACE");
    screen.shows(NQN);
    screen.press(b"c");
    // `top` draws only the differences.
    screen.shows("core ");
    screen.quits();
    for (rows, columns) in [(1, 1), (2, 5), (300, 2)] {
        let mut screen = Screen::of(&scratch, rows, columns);
        screen.shows("\u{1b}[?1049h");
        screen.quits();
    }
    let mut screen = Screen::of(&scratch, 12, 150);
    screen.shows("NAMESPACE");
    let script = screen.script.id();
    let children = support::read(format!("/proc/{script}/task/{script}/children"));
    let top =
        String::from_utf8(children).unwrap().trim().parse().expect("the process has one child");
    support::signal(top, "TERM");
    screen.shows("\u{1b}[?1049l");
    screen.shows("a signal stopped top");
    let mut screen = Screen::of(&scratch, 12, 150);
    screen.shows("NAMESPACE");
    server.signal("KILL");
    screen.shows("no target answers");
}

#[test]
fn status_shows_rates_and_errors() {
    let scratch = Scratch::new();
    let server = scratch.serve(["--nqn", NQN, "mem:1MiB"]);
    let url = format!("{}&hostnqn={HOST}", server.url(1));
    scratch.run(["read", &url, "-o", "out.bin"]).ok();
    let once = scratch.run(["status"]).ok().out();
    assert!(once.contains("(1 MiB), 0 writes (0 bytes); no errors"), "{once}");
    let mut watch = scratch.command(["status", "--watch"]);
    watch.stdout(std::process::Stdio::piped());
    let mut watch = watch.spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(watch.stdout.take().unwrap()));
    assert!(lines.any(|line| line.unwrap().contains("reads/s")));
    assert!(lines.any(|line| line.unwrap().starts_with("core 0")));
    watch.kill().unwrap();
    watch.wait().unwrap();
    server.stop();
}
