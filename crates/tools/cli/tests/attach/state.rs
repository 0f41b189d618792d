//! Tests of the state that a server saves for its successor: write failures, and a changed size of
//! the disk. A successor is a server that replaces a killed one.

use crate::attached::{Attachments, Load, Target, run, wait_for_progress};
use crate::support::{signal, until};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

const DISK_BYTES: u64 = 64 << 20;

fn trouble(attachments: &Attachments) -> String {
    attachments.status("fb0")["trouble"].as_str().unwrap_or_default().to_owned()
}

/// Makes writes of this file fail: creates a folder with the name of its temporary file.
fn obstruct(attachments: &Attachments, file: &str) -> PathBuf {
    let path = attachments.folder("fb0").join(format!("{file}.new"));
    fs::create_dir(&path).expect("the folder is created");
    path
}

/// Checks that a successor that cannot save its state continues, and reports this. A successor that
/// cannot record its controllers waits. Users of the disk notice at most a pause.
#[test]
fn a_successor_that_cannot_write_its_state_reports_it() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    let device = attachments.attach(&[&target.url(), "--as", "fuse"]);
    let mut load = Load::start(&device, &[]);
    wait_for_progress(&device);
    let obstacle = obstruct(&attachments, "state.json");
    let killed = attachments.kill_server("fb0");
    attachments.wait_for_successor("fb0", killed);
    until("the reason is shown", || trouble(&attachments).contains("cannot write"));
    assert!(trouble(&attachments).contains("state.json"));
    wait_for_progress(&device);
    fs::remove_dir(obstacle).expect("the folder is removed");
    until("the state is written later", || attachments.status("fb0")["trouble"] == Value::Null);
    let obstacle = obstruct(&attachments, "controllers.json");
    let killed = attachments.kill_server("fb0");
    until("the reason is shown", || trouble(&attachments).contains("controllers.json"));
    assert!(load.is_running(), "the load ended too early");
    fs::remove_dir(obstacle).expect("the folder is removed");
    attachments.wait_for_successor("fb0", killed);
    wait_for_progress(&device);
    load.finish();
    attachments.detach("fb0");
    target.server.stop();
}

/// Checks that the first server refuses to start if it cannot save its state, since the disk has no
/// users yet.
#[test]
fn a_first_server_that_cannot_write_its_state_refuses_to_start() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    let url = target.url();
    for file in ["identity.json", "controllers.json", "state.json"] {
        fs::create_dir_all(attachments.folder("fb0")).expect("the folder is created");
        run("chmod", &["700", attachments.folder("fb0").to_str().expect("the path is UTF-8")]);
        obstruct(&attachments, file);
        let args = ["attach", &url, "--as", "nbd", "--no-device", "--name", "fb0"];
        attachments.run(args).fails_in_a_line(1, &["cannot write", file]);
        assert!(attachments.list().is_empty());
    }
}

/// Checks that the file, the device and the list show the namespace's size when the successor
/// starts.
#[test]
fn a_successor_shows_a_size_that_changed_while_no_server_ran() {
    let attachments = Attachments::new();
    let mut target = Target::new(&attachments, DISK_BYTES);
    let device = attachments.attach(&[&target.url(), "--as", "fuse", "--reconnect-delay", "100ms"]);
    let file = attachments.folder("fb0").join("mount/fb0");
    for bytes in [DISK_BYTES * 2, DISK_BYTES / 2] {
        let status = attachments.status("fb0");
        let pid = |of: &str| {
            u32::try_from(status[of].as_u64().expect("the status contains the process id"))
                .expect("the process id has 32 bits")
        };
        signal(pid("pid"), "STOP");
        signal(pid("server_pid"), "KILL");
        target.kill();
        let image = fs::File::options().write(true).open(attachments.scratch.path("disk.img"));
        image.expect("the file opens").set_len(bytes).expect("the file is resized");
        target.restart(&attachments);
        signal(pid("pid"), "CONT");
        attachments.wait_for_successor("fb0", pid("server_pid").into());
        until("the device has the new size", || {
            run("blockdev", &["--getsize64", &device]).trim() == bytes.to_string()
        });
        assert_eq!(fs::metadata(&file).expect("the file exists").len(), bytes);
        assert_eq!(attachments.status("fb0")["size_bytes"], bytes);
        until("the state file has the new size", || {
            let state = fs::read_to_string(attachments.folder("fb0").join("state.json"));
            state.expect("the file exists").contains(&format!("\"size_bytes\": {bytes}"))
        });
    }
    attachments.detach("fb0");
}

/// A file system of a few pages.
struct Small(PathBuf);

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// The folder's file system is full when a server dies. Its successor must wait for space, and
/// report this.
#[test]
fn a_successor_waits_for_space_in_a_full_runtime_folder() {
    // Declare the values in this order, so that a failed test detaches the disks before it unmounts
    // the file system.
    let (place, attachments);
    attachments = Attachments::new();
    let runtime = attachments.scratch.path("run");
    fs::create_dir(&runtime).expect("the folder is created");
    let path = runtime.to_str().expect("the path is UTF-8");
    run("mount", &["-t", "tmpfs", "-o", "size=256k,mode=700", "none", path]);
    place = Small(runtime.clone());
    let target = Target::new(&attachments, DISK_BYTES);
    let device = attachments.attach(&[&target.url(), "--as", "fuse"]);
    let mut load = Load::start(&device, &[]);
    wait_for_progress(&device);
    let filler = runtime.join("filler");
    let filled = fs::write(&filler, vec![1; 1 << 20]).expect_err("the file system is full");
    assert_eq!(filled.kind(), std::io::ErrorKind::StorageFull);
    let killed = attachments.kill_server("fb0");
    until("the reason is shown", || {
        let trouble = trouble(&attachments);
        trouble.contains("is full") || trouble.contains("cannot write")
    });
    assert!(load.is_running(), "the load ended too early");
    fs::remove_file(&filler).expect("the file is removed");
    attachments.wait_for_successor("fb0", killed);
    wait_for_progress(&device);
    load.finish();
    attachments.detach("fb0");
    target.server.stop();
    drop(place);
}

/// Finding a disk's users takes time. A status request during this time must not report a detach.
#[test]
fn concurrent_status_requests_report_no_detach() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, 1 << 20);
    attachments.attach(&[&target.url(), "--as", "fuse", "--no-device"]);
    let look = || {
        for _ in 0..8 {
            let status = attachments.status("fb0");
            assert_eq!(status["users"].as_array().map(Vec::len), Some(0), "{status}");
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(look);
        }
    });
    attachments.detach("fb0");
    target.server.stop();
}
