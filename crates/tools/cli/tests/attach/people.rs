//! Tests of typical command lines, and of their output.

use crate::attached::{Attachments, Target};
use crate::support::{Server, finish};
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

const DISK_BYTES: u64 = 16 << 20;

fn without_namespace(server: &Server) -> String {
    let url = server.url(1);
    url.split_once("?ns=").expect("a URL with a namespace").0.to_owned()
}

#[test]
fn attach_finds_the_only_namespace_of_a_subsystem() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    let url = without_namespace(&target.server);
    attachments.attach(&[&url, "--as", "nbd", "--no-device"]);
    let found = attachments.status("fb0")["paths"][0]["url"].clone();
    assert_eq!(found, target.url().as_str());
    attachments.detach("fb0");
    // One URL with the namespace is enough for all paths.
    let path = target.url().replace("127.0.0.1", "localhost");
    attachments.attach(&[&url, &path, "--as", "nbd", "--no-device"]);
    attachments.detach("fb0");
    let several = attachments.scratch.serve(["mem:1MiB", "mem:2MiB"]);
    let url = without_namespace(&several);
    for command in ["attach", "read"] {
        let refused = attachments.run([command, &url]);
        refused.fails_in_a_line(2, &["has several namespaces (1, 2): choose one", "?ns=1"]);
    }
    assert!(attachments.list().is_empty());
}

#[test]
fn attach_all_attaches_every_discovered_namespace() {
    let attachments = Attachments::new();
    let first = attachments.scratch.serve(["mem:1MiB", "mem:2MiB"]);
    let attach =
        |address: &str| attachments.run(["attach", "--all", address, "--as", "nbd", "--no-device"]);
    let said = attach(&first.address).ok().out();
    assert!(said.contains("fb0: ") && said.contains("fb1: "), "{said}");
    let sizes: Vec<_> = attachments.list().iter().map(|it| it["size_bytes"].clone()).collect();
    assert_eq!(sizes, [1 << 20, 2 << 20]);
    // Disks that are attached already must not prevent attaching the others.
    attachments.detach("fb0");
    let again = attach(&first.address);
    assert!(again.out().starts_with("fb0: "), "{}", again.out());
    again.fails(1, &["already attached"]);
    assert_eq!(attachments.list().len(), 2);
    attachments.run(["detach", "--all"]).ok();
    let both = attachments.run(["attach", "--all", &first.address, &first.url(1)]);
    both.fails(2, &["--all"]);
}

#[test]
fn attach_refuses_a_mountpoint_that_would_hide_files() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    let full = attachments.scratch.path("full");
    fs::create_dir(&full).expect("the folder is created");
    fs::write(full.join("letter"), "dear").expect("the file is written");
    let mount = |place: &Path| {
        let place = place.to_str().expect("the path is UTF-8");
        attachments.run(["attach", &target.url(), "--as", "fuse", "--mountpoint", place])
    };
    mount(&full).fails_in_a_line(1, &["full is not empty", "choose an empty directory"]);
    let runtime = attachments.scratch.path("run");
    fs::create_dir_all(runtime.join("x")).expect("the folder is created");
    for place in [&runtime, &runtime.join("x")] {
        mount(place)
            .fails_in_a_line(2, &["is in the directory of the attachments", "--mountpoint"]);
    }
    assert!(attachments.list().is_empty());
    fs::remove_file(full.join("letter")).expect("the file is removed");
    mount(&full).ok();
    attachments.detach("fb0");
}

/// Checks that without FUSE farblock starts an NBD server for programs, and the output names this
/// choice.
#[test]
fn attach_uses_nbd_if_fuse_is_unavailable() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    let socket = attachments.scratch.text("closed");
    let _closed = UnixListener::bind(&socket).expect("the socket is bound");
    let attach = |url: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c"]);
        command.arg("mount --bind \"$1\" /dev/fuse && exec \"$2\" attach \"$3\" --no-device");
        command.args(["sh", &socket, env!("CARGO_BIN_EXE_farblock"), url]);
        attachments.scratch.prepare(&mut command);
        command.env("FARBLOCK_RUNTIME_DIR", attachments.scratch.path("run"));
        finish(command, b"")
    };
    attach(&target.server.url(7)).fails_in_a_line(1, &["namespace 7"]);
    let outcome = attach(&target.url()).ok();
    let said = "chose nbd: a server for programs (/dev/fuse does not exist";
    assert!(outcome.stderr.starts_with(said), "{}", outcome.stderr);
    attachments.detach("fb0");
}

/// Checks that `attach` falls back to NBD for root in a container without the right to mount, and
/// that `farblock doctor` predicts this choice.
#[test]
fn attach_uses_nbd_if_root_may_not_mount() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    let confined = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]);
        command.arg(env!("CARGO_BIN_EXE_farblock")).args(args);
        attachments.scratch.prepare(&mut command);
        command.env("FARBLOCK_RUNTIME_DIR", attachments.scratch.path("run"));
        finish(command, b"")
    };
    let url = target.url();
    let outcome = confined(&["attach", &url]).ok();
    assert!(outcome.stderr.starts_with("chose nbd: a server for programs"), "{}", outcome.stderr);
    assert!(outcome.out().contains("nbd+unix"));
    attachments.detach("fb0");
    let said = confined(&["doctor"]).out();
    assert!(said.contains("attach would choose nbd: a server for programs"), "{said}");
    // An explicit choice must fail with the reason.
    let refused = confined(&["attach", &url, "--as", "fuse"]);
    refused.fails_in_a_line(1, &["may not mount file systems", "CAP_SYS_ADMIN"]);
}

/// FUSE seems to be available, but the kernel refuses the mount although the process has all
/// rights.
#[test]
fn attach_falls_back_to_nbd_if_the_kernel_refuses_the_mount() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    let mut command = Command::new("unshare");
    // Root of a user namespace has all rights in it, but may not open the device that mounting
    // needs.
    command.args(["--user", "--map-root-user", env!("CARGO_BIN_EXE_farblock"), "attach"]);
    command.arg(target.url());
    attachments.scratch.prepare(&mut command);
    command.env("FARBLOCK_RUNTIME_DIR", attachments.scratch.path("run"));
    let outcome = finish(command, b"").ok();
    assert!(outcome.stderr.contains("tried the next way, nbd"), "{}", outcome.stderr);
    assert!(outcome.out().contains("nbd+unix"));
    attachments.detach("fb0");
}

#[test]
fn attach_reports_that_it_cannot_create_a_block_device() {
    if Path::new("/sys/module/nbd").exists() || Path::new("/sys/block/nbd0").exists() {
        return;
    }
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    let asked = attachments.run(["attach", &target.url(), "--as", "nbd"]);
    asked.fails_in_a_line(1, &["cannot create a block device: ", "modprobe nbd", "--no-device"]);
    assert!(attachments.list().is_empty());
}

#[test]
fn status_lists_the_attached_disks() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    assert!(!attachments.run(["status"]).ok().out().contains("ttached"), "a disk is listed");
    let used = attachments.attach(&[&target.url(), "--as", "nbd", "--no-device"]);
    let control = attachments.scratch.path("run-serve").join(&target.server.address);
    let control = control.to_str().expect("the path is UTF-8");
    let line = |said: &str| said.lines().find(|line| line.contains(&used)).map(str::to_owned);
    let row = line(&attachments.run(["status"]).ok().out()).expect("the table has the row");
    assert!(row.contains("fb0") && row.contains("live"), "{row}");
    // With an explicit socket, the output covers only that target.
    let named = attachments.run(["status", "--control", control]).ok().out();
    assert!(named.contains(target.nqn()) && line(&named).is_none(), "{named}");
    let table = attachments.run(["list"]).ok().out();
    assert!(
        table.contains("SANDBOX") && line(&table).expect("the table has the row").contains(" yes "),
        "{table}"
    );
    target.server.stop();
    attachments.wait_for_state("fb0", "reconnecting");
    let alone = attachments.run(["status"]).ok().out();
    assert!(alone.starts_with("no target of this user runs here\n"), "{alone}");
    assert!(line(&alone).expect("the table has the row").contains("reconnecting"), "{alone}");
    attachments.run(["status", "--json"]).fails(1, &["no target of this user runs here"]);
}
