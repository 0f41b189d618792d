//! Checks, with the kernel's reports, which rights a running target has dropped, and that the
//! target works without them.
#![cfg(target_os = "linux")]

mod support;

use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Stdio;
use support::confinement::{children, filter_of_the_tests, is_confined, threads};
use support::{Scratch, Server, finish, is_root, keyring};

const NQN: &str = "nqn.2026-11.org.farblock:confined";
const HOST: &str = "nqn.2026-11.org.farblock:host";

fn status(scratch: &Scratch) -> serde_json::Value {
    scratch.run(["status", "--json"]).ok().json()
}

/// Writes to the namespace and reads back.
fn is_used(scratch: &Scratch, server: &Server, nsid: u32) {
    scratch.run_with(["write", &server.url(nsid)], &support::noise(1, 4096)).ok();
    let back = scratch.run(["read", &server.url(nsid), "--length", "4096"]).ok();
    assert!(back.stdout == support::noise(1, 4096), "the data differs from the written data");
}

#[test]
fn every_thread_of_a_target_is_confined() {
    let scratch = Scratch::new();
    let disk = scratch.disk("a.img", 1 << 20);
    let server = scratch.serve(["--nqn", NQN, &disk]);
    is_used(&scratch, &server, 1);
    let seen = status(&scratch);
    let process = seen["pid"].as_u64().expect("the status contains the process id");
    is_confined(process, &seen["confinement"]);
    let brief = scratch.run(["status"]).ok().out();
    assert!(brief.lines().any(|line| line == "sandbox: on"), "{brief}");
    let text = scratch.run(["status", "--verbose"]).ok().out();
    assert!(text.contains("sandbox: no new privileges, system calls filtered"), "{text}");
}

#[test]
fn a_target_of_an_ordinary_user_has_no_capability() {
    let scratch = Scratch::new();
    let args = ["serve", "mem:1MiB", "--listen", "127.0.0.1:0", "--nqn", NQN, "--no-control"];
    let server = Server::start(scratch.command_of_nobody(args));
    is_used(&scratch, &server, 1);
    for name in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        let masks = threads(server.id.into(), name);
        let is_none = |mask: &String| mask == "0000000000000000";
        assert!(masks.len() > 1 && masks.iter().all(is_none), "{name}: {masks:?}");
    }
    assert!(threads(server.id.into(), "Seccomp").iter().all(|mode| mode == "2"));
}

#[test]
fn the_no_sandbox_option_disables_the_sandbox() {
    let scratch = Scratch::new();
    let _server = scratch.serve(["--nqn", NQN, "mem:1MiB", "--no-sandbox"]);
    let seen = status(&scratch);
    assert_eq!(seen["confinement"]["sandboxed"], false, "{seen}");
    let process = seen["pid"].as_u64().expect("the status contains the process id");
    assert_eq!(threads(process, "Seccomp")[0], filter_of_the_tests());
    let text = scratch.run(["status"]).ok().out();
    assert!(text.contains("sandbox: off (--no-sandbox)"), "{text}");
    let both = ["serve", "mem:1MiB", "--no-sandbox", "--allow-path", "."];
    scratch.run(both).fails(2, &["--allow-path"]);
}

#[test]
fn a_target_with_a_key_writes_no_core_dump() {
    let scratch = Scratch::new();
    let key = scratch.text("host.key");
    scratch.run(["keys", "new", "--output", &key]).ok();
    let dumpable = |scratch: &Scratch| status(scratch)["confinement"]["dumpable"].clone();
    let server = scratch.serve(["--nqn", NQN, "mem:1MiB", "--allow-host", HOST]);
    assert_eq!(dumpable(&scratch), true);
    scratch.run(["ctl", "allow-host", NQN, HOST, "--key", &key]).ok();
    assert_eq!(dumpable(&scratch), false);
    server.stop();
    let given = format!("{HOST}={key}");
    for options in [&[][..], &["--no-sandbox"]] {
        let server = scratch.serve([&["mem:1MiB", "--host-key", &given], options].concat());
        assert_eq!(dumpable(&scratch), false, "{options:?}");
        server.stop();
    }
    // The tokens of the management API are secrets, too.
    let tokens = scratch.file("tokens", b"ops admin 0123456789abcdef0123456789abcdef\n");
    std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o600))
        .expect("the permissions are set");
    let _server = scratch.serve(["mem:1MiB", "--api", "127.0.0.1:0", "--api-tokens", &tokens]);
    assert_eq!(dumpable(&scratch), false);
}

/// Checks one command. If a process's memory may not be dumped, its /proc files belong to root.
#[test]
fn a_command_with_a_key_writes_no_core_dump() {
    let scratch = Scratch::new();
    let key = scratch.text("tls.key");
    let made = ["keys", "new", "--tls", "--output", &key];
    finish(scratch.command_of_nobody(made), b"").ok();
    // This peer stays silent.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url =
        format!("nvme+tcp://{}/{NQN}", silent.local_addr().expect("the socket has an address"));
    for (options, root) in [(&[][..], false), (&["--tls-key", &key], true)] {
        let args = [&["id", &url], options].concat();
        let mut command = scratch.command_of_nobody(args);
        let mut child = command.stderr(Stdio::null()).spawn().expect("the process starts");
        let (mut peer, _) = silent.accept().expect("the connection opens");
        // The command reads its key before it sends its first byte.
        peer.read_exact(&mut [0]).expect("the peer sends a byte");
        let file = format!("/proc/{}/environ", child.id());
        let owner = std::fs::metadata(file).expect("the process runs").uid();
        child.kill().expect("the process still runs");
        child.wait().expect("the command exits");
        assert_eq!(owner == 0, root, "{options:?}: {owner}");
    }
}

#[test]
fn a_confined_target_opens_only_disks_in_allowed_folders() {
    let scratch = Scratch::new();
    for folder in ["disks", "keys", "kept"] {
        std::fs::create_dir(scratch.path(folder)).expect("the folder is created");
    }
    let (first, second) =
        (scratch.disk("disks/a.img", 1 << 20), scratch.disk("disks/b.img", 1 << 20));
    let outside = scratch.disk("c.img", 1 << 20);
    let (allowed, state) = (scratch.text("disks"), scratch.text("kept/state.json"));
    let args = ["--nqn", NQN, &first, "--allow-path", &allowed, "--persist", &state];
    let server = scratch.serve(args);
    scratch.ctl(&["add-namespace", NQN, &second]).ok();
    scratch.ctl(&["resize", NQN, "2", "2MiB"]).ok();
    let port = server.address.rsplit_once(':').expect("the address has a port").1;
    scratch.ctl(&["add-listener", &format!("127.0.0.2:{port}")]).ok();
    is_used(&scratch, &server, 2);
    let parts = ["may not be read", "opens only files below", &allowed, "--allow-path"];
    scratch.ctl(&["add-namespace", NQN, &outside]).fails(1, &parts);
    let seen = status(&scratch);
    assert_eq!(seen["confinement"]["allowed_paths"], serde_json::json!([allowed]));
    server.stop();
    // The target must restore the saved state, and still refuse files outside its paths.
    let server = scratch.serve(args);
    is_used(&scratch, &server, 2);
    server.stop();
    scratch.run(["serve", &outside, "--allow-path", &allowed]).fails(1, &parts[..3]);
    let missing = ["serve", &first, "--allow-path", "/nowhere/at/all"];
    scratch.run(missing).fails_in_a_line(2, &["--allow-path /nowhere", "No such file"]);
}

#[test]
fn a_mirror_leg_uses_a_key_of_the_keyring() {
    let scratch = Scratch::new();
    let [key] = scratch.keys(["tls.key"], &["--tls"]);
    let nqn = "nqn.2026-11.org.farblock:leg";
    let given = format!("{HOST}={key}");
    let far = scratch.serve(["mem:4MiB", "--nqn", nqn, "--no-control", "--tls-key", &given]);
    let _kept = keyring::put(&key, HOST, nqn);
    let leg = format!("{}&hostnqn={HOST}&tls-key=keyring:", far.url(1));
    let near = scratch.disk("near.img", 4 << 20);
    let mirror = format!("mirror:{leg},{near}?create");
    let server = scratch.serve(["--nqn", NQN, &mirror]);
    is_used(&scratch, &server, 1);
    let seen = status(&scratch);
    is_confined(
        seen["pid"].as_u64().expect("the status contains the process id"),
        &seen["confinement"],
    );
    let legs = || scratch.run(["status"]).ok().out();
    support::until("both legs are in sync", || legs().matches("in sync").count() >= 2);
    server.stop();
    // A target that started without a keyring key cannot query the keyring later, and says so.
    let _server = scratch.serve(["--nqn", NQN, "mem:1MiB"]);
    let other = scratch.disk("other.img", 4 << 20);
    let mirror = format!("mirror:{leg},{other}?create");
    scratch
        .ctl(&["add-namespace", NQN, &mirror])
        .fails(1, &["gives up access to the kernel's keyring"]);
}

/// Checks that a broker reads hosts' keys for the target, whenever the target needs them.
#[test]
fn a_target_uses_host_keys_of_its_keyring() {
    let scratch = Scratch::new();
    let [first, second] = scratch.keys(["first.key", "second.key"], &["--tls"]);
    let (host, nqn) = ("nqn.2026-11.org.farblock:known", "nqn.2026-11.org.farblock:keyring-target");
    let given = format!("{host}=keyring:");
    let serve = ["serve", "mem:4MiB", "--listen", "127.0.0.1:0", "--nqn", nqn];
    let with_key = [&serve[..], &["--tls-key", &given]].concat();
    scratch.run(&with_key).fails_in_a_line(1, &["no key of nqn.2026-11.org.farblock:known for"]);
    let kept = keyring::put(&first, host, nqn);
    let config = scratch.text("target.toml");
    let text = format!(
        "listeners = [\"127.0.0.1:0\"]\ntls = \"required\"\n[[subsystems]]\nnqn = \"{nqn}\"\n\
         namespaces = [{{ path = \"mem:4MiB\" }}]\n\
         [[subsystems.hosts]]\nnqn = \"{host}\"\ntls_key = \"keyring:\"\n"
    );
    std::fs::write(&config, text).expect("the file is written");
    let by_options = Server::start(scratch.command(&with_key));
    let id = |server: &Server, key: &str| {
        let url = format!("{}&hostnqn={host}", server.url(1));
        scratch.run(["id", &url, "--tls-key", key])
    };
    id(&by_options, &first).ok();
    id(&by_options, "keyring:").ok();
    id(&by_options, &second).fails_in_a_line(1, &["refuses TLS"]);
    let seen = status(&scratch);
    let process = seen["pid"].as_u64().expect("the status contains the process id");
    is_confined(process, &seen["confinement"]);
    assert_eq!(seen["confinement"]["dumpable"], false, "{seen}");
    // The kernel must not swap the process that holds the keys, if the user may lock memory.
    if is_root() {
        let locked = |process: &u64| threads(*process, "VmLck")[0] != "0 kB";
        let brokers = children(process);
        assert!(brokers.len() == 1 && brokers.iter().all(locked), "{brokers:?}");
    }
    by_options.stop();
    // During the change, the target accepts both keys. Afterwards it accepts only the new one.
    let log = scratch.path("log");
    let mut command = scratch.command(["serve", "--config", &config]);
    command.stderr(std::fs::File::create(&log).expect("the file is created"));
    let server = Server::start(command);
    id(&server, &first).ok();
    let kept_second = keyring::put(&second, host, nqn);
    scratch.run(["reload"]).ok();
    id(&server, &first).ok();
    id(&server, &second).ok();
    // The target must notice a changed key without a request.
    drop(kept);
    let url = format!("{}&hostnqn={host}", server.url(1));
    let is_refused = || scratch.run(["id", &url, "--tls-key", &first]).code == Some(1);
    support::until("the first key is refused", is_refused);
    id(&server, &second).ok();
    let allow = ["allow-host", nqn, host, "--tls-key", "keyring:"];
    scratch.ctl(&allow).ok();
    // The keyring holds no secrets for authentication.
    let secret = ["allow-host", nqn, host, "--key", "keyring:"];
    scratch.ctl(&secret).fails(1, &["dhchap_key", "credential:NAME"]);
    // Removing the last key must log one warning, since the host can still connect.
    drop(kept_second);
    let sentence = "can still connect with its old key";
    let warned = || std::fs::read_to_string(&log).expect("a log").matches(sentence).count();
    support::until("the log warns that the old key is still valid", || warned() > 0);
    id(&server, &second).ok();
    let _kept = keyring::put(&first, host, nqn);
    support::until("the restored key is accepted", || id(&server, &first).code == Some(0));
    assert_eq!(warned(), 1, "the warning is not logged exactly once");
    server.stop();
    // A target that started without a keyring key cannot query the keyring later, and says so.
    let _server = scratch.serve(["--nqn", nqn, "mem:1MiB", "--allow-host", HOST]);
    scratch.ctl(&allow).fails(1, &["gives up access to the kernel's keyring", "name a key file"]);
}

/// A copy of a whole file system has all attributes and inode numbers of its original. In the
/// sandbox, a target cannot examine the files of the other target.
#[test]
fn a_copy_is_refused_while_its_original_is_shared() {
    use rustix::fs::{XattrFlags, getxattr, setxattr};
    use std::os::unix::fs::MetadataExt;
    const IDENTITY: &str = "user.farblock.identity";
    let scratch = Scratch::new();
    let (original, copy) = (scratch.disk("a.img", 4 << 20), scratch.disk("b.img", 4 << 20));
    let server = scratch.serve(["--no-control", &original]);
    let mut text = [0; 128];
    let Ok(length) = getxattr(&original, IDENTITY, &mut text[..]) else { return };
    let uuid = std::str::from_utf8(&text[..length]).unwrap().split(' ').next().unwrap();
    let inode = std::fs::metadata(&copy).unwrap().ino();
    setxattr(&copy, IDENTITY, format!("{uuid} {inode}").as_bytes(), XattrFlags::CREATE).unwrap();
    let refused = |disk: &str| {
        let args = ["serve", "--listen", "127.0.0.1:0", "--no-control", disk];
        scratch.run(args).fails(1, &["has the same identity as the file with the inode number"]);
    };
    refused(&copy);
    refused(&format!("delay:1ms,{copy}"));
    refused(&format!("concat:{copy},mem:1MiB"));
    server.stop();
}

#[test]
fn a_copied_mirror_is_refused_while_its_original_is_shared() {
    let scratch = Scratch::new();
    let legs = ["a.img", "b.img", "c.img", "d.img"].map(|name| scratch.disk(name, 8 << 20));
    let mirror = |legs: &[String]| format!("mirror:{},{}", legs[0], legs[1]);
    scratch.serve(["--no-control", &format!("{}?create", mirror(&legs[..2]))]).stop();
    std::fs::copy(&legs[0], &legs[2]).unwrap();
    std::fs::copy(&legs[1], &legs[3]).unwrap();
    let server = scratch.serve(["--no-control", &mirror(&legs[..2])]);
    let args = ["serve", "--listen", "127.0.0.1:0", "--no-control", &mirror(&legs[2..])];
    scratch.run(args).fails(1, &["has the same identity as the file with the inode number"]);
    server.stop();
}
