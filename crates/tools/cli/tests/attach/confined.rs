//! Checks, with the kernel's reports, which rights the server of a disk has dropped, and that the
//! disk works without them. A supervisor starts a successor when a server dies. A broker is a
//! helper process of a server with root's rights.

use crate::attached::{Attachments, Target, run};
use crate::support::confinement::{children, filter_of_the_tests, is_confined, runs};
use crate::support::{Server, noise, signal, until};
use serde_json::Value;
use std::fs::{self, File};
use std::process::Command;

const DISK_BYTES: u64 = 16 << 20;

/// Returns the server process, and checks that it is confined.
#[track_caller]
pub(crate) fn confined_server(status: &Value) -> u64 {
    let process = status["server_pid"].as_u64().expect("the status contains the process id");
    is_confined(process, &status["confinement"]);
    process
}

#[test]
fn servers_of_programs_and_their_successors_are_confined() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    for (name, way, option) in [
        ("programs", "nbd", &["--no-device"][..]),
        ("guests", "vhost-user", &[]),
        ("initiators", "iscsi", &["--listen", "127.0.0.1:0"]),
    ] {
        let args = [target.url(), "--as".into(), way.into(), "--name".into(), name.into()];
        let args: Vec<&str> =
            args.iter().map(String::as_str).chain(option.iter().copied()).collect();
        attachments.attach(&args);
        confined_server(&attachments.status(name));
        let killed = attachments.kill_server(name);
        attachments.wait_for_successor(name, killed);
        confined_server(&attachments.status(name));
        attachments.detach(name);
    }
    target.server.stop();
}

/// Checks that a confined server reconnects, handles a new size, and cleans up.
#[test]
fn a_confined_server_reconnects_resizes_and_detaches() {
    let attachments = Attachments::new();
    let mut target = Target::new(&attachments, DISK_BYTES);
    let url = attachments.attach(&[&target.url(), "--as", "nbd", "--no-device"]);
    let server = confined_server(&attachments.status("fb0"));
    target.kill();
    attachments.wait_for_state("fb0", "reconnecting");
    target.restart(&attachments);
    attachments.wait_for_state("fb0", "live");
    let grown = DISK_BYTES + (1 << 20);
    let grow = ["ctl", "resize", target.nqn(), "1", &grown.to_string()];
    attachments.scratch.run(grow).ok();
    until("the disk is larger", || attachments.status("fb0")["size_bytes"] == grown);
    let input = attachments.scratch.file("input", &noise(7, DISK_BYTES as usize));
    run("nbdcopy", &["--flush", "--", &input, &url]);
    let output = attachments.scratch.text("output");
    run("nbdcopy", &["--", &url, &output]);
    let read = fs::read(&output).expect("the file is readable");
    assert!(
        read[..DISK_BYTES as usize] == noise(7, DISK_BYTES as usize),
        "the data differs from the written data"
    );
    assert_eq!(confined_server(&attachments.status("fb0")), server, "the server's process changed");
    attachments.detach("fb0");
    until("the server has exited", || {
        !fs::exists(format!("/proc/{server}")).expect("/proc is readable")
    });
    target.server.stop();
}

#[test]
fn the_no_sandbox_option_disables_the_sandbox_of_a_server() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    for way in ["nbd", "fuse"] {
        attachments.attach(&[&target.url(), "--as", way, "--no-device", "--no-sandbox"]);
        let confinement = attachments.status("fb0")["confinement"].clone();
        assert_eq!(confinement["sandboxed"], false, "{confinement}");
        assert_eq!(confinement["lacks"].to_string(), "[]");
        attachments.detach("fb0");
    }
    target.server.stop();
}

/// Checks that a server can open its own folders and its key's folder, but no other file of its
/// user.
#[test]
fn a_confined_server_opens_only_its_own_folders_and_its_key() {
    let attachments = Attachments::new();
    let folders = ["keys", "sockets"].map(|name| attachments.scratch.path(name));
    folders.iter().for_each(|folder| fs::create_dir(folder).expect("the folder is created"));
    let [key] = attachments.scratch.keys(["keys/tls.key"], &["--tls"]);
    let [socket] = ["sockets/nbd"].map(|name| attachments.scratch.text(name));
    let host = "nqn.2026-11.org.farblock:within-host";
    let given = format!("{host}={key}");
    let disk = attachments.scratch.disk("disk.img", 1 << 20);
    let target = [&disk, "--no-control", "--tls-key", &given];
    let target = attachments.scratch.serve(target);
    let url = format!("{}&hostnqn={host}&tls-key={key}", target.url(1));
    attachments.attach(&[&url, "--as", "nbd", "--no-device", "--socket", &socket]);
    let confinement = attachments.status("fb0")["confinement"].clone();
    if filter_of_the_tests() == "0" {
        let runtime = attachments.folder("fb0").parent().expect("the path has a folder").to_owned();
        let opened = serde_json::json!([runtime, attachments.scratch.path("sockets")]);
        assert_eq!(confinement["allowed_paths"], opened, "{confinement}");
    }
    // The next connection needs a key from another folder.
    let [other] = attachments.scratch.keys(["keys/other.key"], &["--tls"]);
    fs::rename(other, &key).expect("the file is renamed");
    let address = target.address.clone();
    drop(target);
    attachments.wait_for_state("fb0", "reconnecting");
    let again = ["serve", &disk, "--listen", &address, "--no-control", "--tls-key", &given];
    let _target = Server::start(attachments.scratch.command(again));
    attachments.wait_for_state("fb0", "live");
    attachments.detach("fb0");
}

/// The folder of the key is a symbolic link. When the key changes, the link moves to another
/// folder.
#[test]
fn a_confined_server_follows_a_changed_link_to_the_key_folder() {
    let attachments = Attachments::new();
    let path = |name: &str| attachments.scratch.path(name);
    for folder in ["sec", "sec/v1", "sec/v2"] {
        fs::create_dir(path(folder)).expect("the folder is created");
    }
    let [first, second] = attachments.scratch.keys(["sec/v1/key", "sec/v2/key"], &["--tls"]);
    let link = |to: &str, name: &str| {
        std::os::unix::fs::symlink(to, path(name)).expect("the link is created")
    };
    link("v1", "sec/current");
    let host = "nqn.2026-11.org.farblock:switched-host";
    let disk = attachments.scratch.disk("disk.img", 1 << 20);
    let serve = |address: &str, key: &str| {
        let given = format!("{host}={key}");
        let nqn = "nqn.2026-11.org.farblock:switched";
        let args = ["serve", &disk, "--listen", address, "--nqn", nqn, "--no-control"];
        let args = [&args[..], &["--tls-key", &given]].concat();
        Server::start(attachments.scratch.command(args))
    };
    let target = serve("127.0.0.1:0", &first);
    let address = target.address.clone();
    let key = attachments.scratch.text("sec/current/key");
    let url = format!("{}&hostnqn={host}&tls-key={key}", target.url(1));
    attachments.attach(&[&url, "--as", "nbd", "--no-device"]);
    let server = confined_server(&attachments.status("fb0"));
    drop(target);
    attachments.wait_for_state("fb0", "reconnecting");
    link("v2", "sec/next");
    fs::rename(path("sec/next"), path("sec/current")).expect("the file is renamed");
    let _target = serve(&address, &second);
    attachments.wait_for_state("fb0", "live");
    assert_eq!(confined_server(&attachments.status("fb0")), server, "the server's process changed");
    attachments.detach("fb0");
}

/// Checks that a process with a key writes no core dump, confined or not. A process without a key
/// writes one.
#[test]
fn a_server_with_a_key_writes_no_core_dump() {
    let attachments = Attachments::new();
    let [key] = attachments.scratch.keys(["tls.key"], &["--tls"]);
    let host = "nqn.2026-11.org.farblock:dumped-host";
    let given = format!("{host}={key}");
    let secured = ["mem:1MiB", "--no-control", "--tls-key", &given];
    let secured = attachments.scratch.serve(secured);
    let secured = format!("{}&hostnqn={host}&tls-key={key}", secured.url(1));
    let open = Target::new(&attachments, DISK_BYTES);
    for (url, options, dumpable) in
        [(&open.url(), &[][..], true), (&secured, &[], false), (&secured, &["--no-sandbox"], false)]
    {
        let args = [&[url, "--as", "nbd", "--no-device"], options].concat();
        attachments.attach(&args);
        let confinement = attachments.status("fb0")["confinement"].clone();
        assert_eq!(confinement["dumpable"], dumpable, "{options:?}: {confinement}");
        attachments.detach("fb0");
    }
}

/// The broker, a helper process with root's rights, creates and removes the mount and its loop
/// device.
#[test]
fn successors_of_killed_fuse_servers_and_brokers_are_confined() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    for device in [true, false] {
        let option = ["--no-device"];
        let option = if device { &[][..] } else { &option[..] };
        let used = attachments.attach(&[&[&target.url(), "--as", "fuse"], option].concat());
        run("dd", &["if=/dev/urandom", &format!("of={used}"), "bs=64k", "count=16", "conv=fsync"]);
        let sum = run("sha256sum", &[&used]);
        for victims in ["server", "broker", "both"] {
            let server = confined_server(&attachments.status("fb0"));
            let brokers = children(server);
            let [broker] = brokers[..] else { panic!("brokers: {brokers:?}") };
            let killed: &[u64] = match victims {
                "server" => &[server],
                "broker" => &[broker],
                _ => &[broker, server],
            };
            // Kill both at once, because a server without its broker would stop anyway.
            let killed: Vec<String> = killed.iter().map(u64::to_string).collect();
            let kill = Command::new("kill").arg("-KILL").args(&killed).status();
            assert!(
                victims == "both" || kill.expect("the program kill runs").success(),
                "{victims}"
            );
            attachments.wait_for_successor("fb0", server);
            until("the broker has exited", || !runs(broker));
            assert_eq!(run("sha256sum", &[&used]), sum, "after the end of the {victims}");
        }
        let busy = File::open(&used).expect("the file opens");
        let refused = attachments.run(["detach", "fb0"]);
        refused.fails(1, &["is in use", "has", "open"]);
        drop(busy);
        // Detaching must also work without a supervisor.
        let supervisor =
            attachments.status("fb0")["pid"].as_u64().expect("the status contains the process id");
        signal(u32::try_from(supervisor).expect("the process id has 32 bits"), "KILL");
        until("the supervisor has exited", || attachments.status("fb0")["pid"].is_null());
        confined_server(&attachments.status("fb0"));
        attachments.detach("fb0");
    }
    target.server.stop();
}

/// Checks that a forced detach cleans up in place of a dead broker.
#[test]
fn forced_detach_unmounts_a_disk_whose_broker_is_dead() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    let used = attachments.attach(&[&target.url(), "--as", "fuse", "--no-device"]);
    let server = confined_server(&attachments.status("fb0"));
    let [broker] = children(server)[..] else { panic!("the server has one broker") };
    let supervisor =
        attachments.status("fb0")["pid"].as_u64().expect("the status contains the process id");
    for process in [supervisor, broker] {
        signal(u32::try_from(process).expect("the process id has 32 bits"), "KILL");
        until("the process has exited", || !runs(process));
    }
    let advice = "detach the disk with --force";
    until("the list states what to do", || attachments.run(["list"]).ok().out().contains(advice));
    attachments.run(["detach", "fb0"]).fails(1, &[advice]);
    attachments.run(["detach", "fb0", "--force"]).ok();
    assert!(!fs::exists(&used).expect("the path exists"), "{used}");
    until("the server has exited", || !runs(server));
    target.server.stop();
}
