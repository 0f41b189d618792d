//! What the process that serves a disk has given up, as the kernel sees it, and what goes on all
//! the same.

use crate::attached::{Attachments, Target, run};
use crate::support::confinement::is_confined;
use crate::support::{noise, until};
use serde_json::Value;
use std::fs;

const DISK_BYTES: u64 = 16 << 20;

/// The process that serves it.
#[track_caller]
fn confined_server(status: &Value) -> u64 {
    let process = status["server_pid"].as_u64().expect("it is served");
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

/// A confined server finds its target again, sees its new size, and cleans up.
#[test]
fn a_confined_server_does_all_that_it_is_for() {
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
    let read = fs::read(&output).expect("a file");
    assert!(read[..DISK_BYTES as usize] == noise(7, DISK_BYTES as usize), "other data");
    assert_eq!(confined_server(&attachments.status("fb0")), server, "one process did it all");
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
