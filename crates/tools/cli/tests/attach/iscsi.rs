//! Tests of attachments as an iSCSI target: third-party initiators use the disk, also after a new
//! server has replaced a killed one. A successor is a server that replaces a killed one.

use crate::attached::{Attachments, Target, run};
use crate::support::{noise, until};
use std::fs;
use std::process::{Command, Stdio};

const DISK_BYTES: u64 = 16 << 20;

#[test]
fn iscsi_initiators_use_the_disk_before_and_after_a_killed_server() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    let url = attachments.attach(&[
        &target.url(),
        "--as",
        "iscsi",
        "--listen",
        "127.0.0.1:0",
        "--name",
        "a_Box",
    ]);
    assert!(url.starts_with("iscsi://127.0.0.1:") && url.contains(":a-box"), "{url}");
    let capacity = run("iscsi-readcapacity16", &[&url]);
    assert!(capacity.contains(&format!("Total size:{DISK_BYTES}")), "{capacity}");
    let input = attachments.scratch.file("input", &noise(9, DISK_BYTES as usize));
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &input, &url]);

    // The successor must listen at the same address, with the same disk.
    let killed = attachments.kill_server("a_Box");
    attachments.wait_for_successor("a_Box", killed);
    let output = attachments.scratch.text("output");
    run("qemu-img", &["convert", "-f", "raw", "-O", "raw", &url, &output]);
    assert!(
        fs::read(&output).expect("the file is readable")
            == fs::read(&input).expect("the file is readable"),
        "the data differs from the written data"
    );
    attachments.detach("a_Box");
    target.server.stop();
}

/// Checks that a logged-in initiator counts as a user of the disk.
#[test]
fn detach_refuses_while_an_iscsi_initiator_is_logged_in() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    let url = attachments.attach(&[&target.url(), "--as", "iscsi", "--listen", "127.0.0.1:0"]);
    let mut initiator = Command::new("qemu-io")
        .args(["-f", "raw", &url])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("qemu-io runs");
    until("the initiator is logged in", || !attachments.status("fb0")["users"][0].is_null());
    attachments.run(["detach", "fb0"]).fails_in_a_line(1, &["in use", "initiator", "--force"]);
    drop(initiator.stdin.take());
    initiator.wait().expect("the process exits");
    until("the disk is detached", || attachments.run(["detach", "fb0"]).code == Some(0));
    target.server.stop();
}
