//! What the process that serves a disk has given up, as the kernel sees it, and what goes on all
//! the same.

use crate::attached::{Attachments, Target, run};
use crate::support::{noise, until};
use serde_json::Value;
use std::fs;

const DISK_BYTES: u64 = 16 << 20;

/// What the kernel says of each thread of a process under this name.
fn threads(process: u64, name: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
    let value = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("status")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.trim().to_owned())
    };
    tasks.filter_map(|task| value(task.expect("an entry"))).collect()
}

/// Whether the tests' own system calls are filtered, and those of what they start.
fn filter_of_the_tests() -> String {
    threads(std::process::id().into(), "Seccomp").swap_remove(0)
}

/// The process that serves it, each thread of which has given up the same.
#[track_caller]
fn is_confined(status: &Value) -> u64 {
    let process = status["server_pid"].as_u64().expect("it is served");
    for (name, value) in [("NoNewPrivs", "1"), ("Seccomp", "2"), ("CapInh", "0000000000000000")] {
        let found = threads(process, name);
        assert!(found.len() > 1 && found.iter().all(|it| it == value), "{name}: {found:?}");
    }
    // Administrators', debuggers' and modules'.
    let forbidden = 1 << 21 | 1 << 19 | 1 << 16_u64;
    for mask in threads(process, "CapEff") {
        let held = u64::from_str_radix(&mask, 16).expect("a mask");
        assert_eq!(held & forbidden, 0, "{mask}");
    }
    let said = &status["confinement"];
    for name in ["sandboxed", "no_new_privileges", "system_calls_filtered"] {
        assert_eq!(said[name], true, "{name}: {said}");
    }
    // Under a filter of somebody else's (a container's) Landlock is not tried, which is said.
    let is_ours = filter_of_the_tests() == "0";
    assert_eq!(said["runs_no_program"], is_ours, "{said}");
    assert_eq!(said["lacks"] == serde_json::json!([]), is_ours, "{said}");
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
        is_confined(&attachments.status(name));
        let killed = attachments.kill_server(name);
        attachments.wait_for_successor(name, killed);
        is_confined(&attachments.status(name));
        attachments.detach(name);
    }
    target.server.stop();
}

/// A confined server finds its target again, sees its new size, and cleans up.
#[test]
fn a_confined_server_does_all_that_it_is_for() {
    let attachments = Attachments::new();
    let mut target = Target::new(&attachments, DISK_BYTES);
    let url = attachments.attach(&[&target.url(), "--as", "nbd", "--no-device"]);
    let server = is_confined(&attachments.status("fb0"));
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
    let read = fs::read(&output).expect("a file");
    assert!(read[..DISK_BYTES as usize] == noise(7, DISK_BYTES as usize), "other data");
    assert_eq!(is_confined(&attachments.status("fb0")), server, "one process did it all");
    attachments.detach("fb0");
    until("the server is gone", || !fs::exists(format!("/proc/{server}")).expect("proc"));
    target.server.stop();
}

#[test]
fn what_is_not_confined_says_so() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    let said = |args: &[&str]| {
        attachments.attach(&[&[&target.url(), "--as"], args].concat());
        let status = attachments.status("fb0");
        let log = attachments.log("fb0");
        attachments.detach("fb0");
        let confinement = status["confinement"].clone();
        assert_eq!(confinement["sandboxed"], false, "{confinement}");
        (confinement["lacks"].to_string(), log)
    };
    let (lacks, log) = said(&["fuse", "--no-device"]);
    assert!(lacks.contains("nothing is given up: the mount"), "{lacks}");
    assert!(log.contains("sandbox: nothing is given up: the mount"), "{log}");
    let (lacks, _) = said(&["nbd", "--no-device", "--no-sandbox"]);
    assert_eq!(lacks, "[]");
    target.server.stop();
}
