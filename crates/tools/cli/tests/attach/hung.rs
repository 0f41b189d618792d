//! Tests a target whose file system no longer answers: the file is on an attached disk whose server
//! is suspended.

use crate::attached::{Attachments, Target};
use crate::support::{Scratch, signal, until};
use std::fs;

const DISK_BYTES: u64 = 16 << 20;
const NQN: &str = "nqn.2026-11.org.farblock:hung";

/// A suspended process. Dropping it resumes the process, even if the test fails: otherwise
/// processes that wait for it could never exit.
struct Stopped(u32);

impl Stopped {
    fn new(pid: u32) -> Stopped {
        signal(pid, "STOP");
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal(self.0, "CONT");
    }
}

fn bytes(scratch: &Scratch, nsid: u64) -> Option<u64> {
    let status = scratch.run(["status", "--json"]).ok().json();
    let namespaces = status["subsystems"][0]["namespaces"].as_array()?.clone();
    namespaces.iter().find(|it| it["nsid"] == nsid)?["bytes"].as_u64()
}

#[test]
fn a_hung_file_system_delays_other_changes_only_until_the_timeout() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    let place = attachments.scratch.text("mounted");
    fs::create_dir(&place).expect("the folder is created");
    let place = ["--mountpoint", &place, "--no-device"];
    let file = attachments.attach(&[&[&*target.url(), "--as", "fuse"][..], &place].concat());
    let server_pid = attachments.status("fb0")["server_pid"]
        .as_u64()
        .expect("the status contains the process id");
    let scratch = Scratch::new();
    let other = scratch.disk("other.img", 1 << 20);
    let hung = scratch.serve(["--nqn", NQN, &file, &other]);

    let stopped = Stopped::new(u32::try_from(server_pid).expect("the process id has 32 bits"));
    // Resizing needs the file system, which does not answer.
    let longer = (2 * DISK_BYTES).to_string();
    scratch.ctl(&["resize", NQN, "1", &longer]).fails_in_a_line(1, &[&file, "does not answer"]);
    assert_eq!(bytes(&scratch, 1), Some(DISK_BYTES), "the size changed");
    scratch.ctl(&["add-namespace", NQN, "mem:1MiB"]).ok();
    // The target must still notice that another file has grown.
    fs::File::options().write(true).open(&other).unwrap().set_len(2 << 20).unwrap();
    until("the other file has grown", || bytes(&scratch, 2) == Some(2 << 20));
    // The target must remove the namespace although its file does not close, and other changes must
    // still work.
    scratch.ctl(&["remove-namespace", NQN, "1"]).ok();
    assert_eq!(bytes(&scratch, 1), None);
    scratch.ctl(&["remove-namespace", NQN, "3"]).ok();

    drop(stopped);
    until("the file can be added", || scratch.ctl(&["add-namespace", NQN, &file]).code == Some(0));
    assert_eq!(bytes(&scratch, 1), Some(DISK_BYTES));
    hung.stop();
    attachments.detach("fb0");
}
