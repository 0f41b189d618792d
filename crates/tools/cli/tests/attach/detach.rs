//! Tests that detach disks with unresponsive servers, several disks at once, and disks in use. A
//! successor is a server that replaces a killed one.

use crate::attached::{Attachments, Mounted, Target, run};
use crate::support::{signal, until};
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

const DISK_BYTES: u64 = 16 << 20;

fn socket(attachments: &Attachments, url: &str, name: &str) {
    attachments.attach(&[url, "--as", "nbd", "--no-device", "--name", name, "--shared"]);
}

/// A suspended server does not answer.
#[test]
fn forced_detach_ends_a_suspended_server() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    attachments.attach(&[&target.url(), "--as", "fuse", "--no-device"]);
    let pid = attachments.status("fb0")["server_pid"]
        .as_u64()
        .expect("the status contains the process id");
    signal(u32::try_from(pid).expect("the process id has 32 bits"), "STOP");
    let refused = attachments.run(["detach", "fb0"]);
    refused.fails_in_a_line(1, &["does not answer", "resume the server", "--force"]);
    attachments.run(["detach", "fb0", "--force"]).ok();
    assert!(!attachments.folder("fb0").exists(), "the folder of the attachment remains");
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("the mounts are readable");
    let folder = attachments.scratch.path("run").display().to_string();
    assert!(!mounts.contains(&folder), "{mounts}");
}

/// The suspended server has read a key, so only root can see its descriptors.
#[test]
fn forced_detach_ends_a_suspended_server_with_a_key() {
    let attachments = Attachments::new();
    let [key] = attachments.scratch.keys(["tls.key"], &["--tls"]);
    let host = "nqn.2026-11.org.farblock:stopped-host";
    let given = format!("{host}={key}");
    let target = attachments.scratch.serve(["mem:1MiB", "--no-control", "--tls-key", &given]);
    let url = format!("{}&hostnqn={host}&tls-key={key}", target.url(1));
    socket(&attachments, &url, "fb0");
    let pid = attachments.status("fb0")["server_pid"]
        .as_u64()
        .expect("the status contains the process id");
    signal(u32::try_from(pid).expect("the process id has 32 bits"), "STOP");
    attachments.run(["detach", "fb0", "--force"]).ok();
    assert!(!attachments.folder("fb0").exists(), "the folder of the attachment remains");
    let is_gone = || !Path::new(&format!("/proc/{pid}/exe")).exists();
    until("the server has exited", is_gone);
}

/// The network drops a successor's messages, so the successor keeps connecting and serves nothing.
#[test]
fn forced_detach_ends_a_successor_that_still_connects() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    let address = target.server.address.clone();
    attachments.attach(&[&target.url(), "--as", "fuse", "--no-device"]);
    target.kill();
    until("the port is closed", || std::net::TcpStream::connect(&address).is_err());
    let mut silent = None;
    until("another process listens", || {
        silent = TcpListener::bind(&address).ok();
        silent.is_some()
    });
    let pid = attachments.kill_server("fb0");
    until("a successor connects", || {
        let text = std::fs::read_to_string(attachments.folder("fb0").join("server-pid"));
        text.is_ok_and(|text| text.trim() != pid.to_string())
    });
    let refused = attachments.run(["detach", "fb0"]);
    refused.fails_in_a_line(1, &["the server of fb0 restarts", "--force"]);
    attachments.run(["detach", "fb0", "--force"]).ok();
    assert!(!attachments.folder("fb0").exists(), "the folder of the attachment remains");
}

/// The process IDs in an attachment's folder may be wrong or reused. `detach` must not kill a
/// process that does not belong to the attachment.
#[test]
fn detach_kills_only_processes_of_the_attachment() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    let mut stranger = Command::new("sleep").arg("600").spawn().expect("the process starts");
    for record in [stranger.id().to_string(), "nonsense".to_owned(), String::new()] {
        attachments.attach(&[&target.url(), "--as", "nbd", "--no-device"]);
        let status = attachments.status("fb0");
        let pid = |of: &str| {
            u32::try_from(status[of].as_u64().expect("the status contains the process id"))
                .expect("the process id has 32 bits")
        };
        signal(pid("server_pid"), "STOP");
        for file in ["pid", "server-pid"] {
            let path = attachments.folder("fb0").join(file);
            match record.is_empty() {
                true => fs::remove_file(path).expect("the file is removed"),
                false => fs::write(path, &record).expect("the write succeeds"),
            }
        }
        attachments.run(["detach", "fb0", "--force"]).ok();
        assert!(!attachments.folder("fb0").exists(), "the folder of the attachment remains");
        let is_gone = |pid: u32| !Path::new(&format!("/proc/{pid}/fd/0")).exists();
        until("the processes have exited", || is_gone(pid("pid")) && is_gone(pid("server_pid")));
        assert!(
            stranger.try_wait().expect("the process can be waited for").is_none(),
            "another process was killed"
        );
    }
    stranger.kill().expect("the process can be killed");
    stranger.wait().expect("the process exits");
}

#[test]
fn detach_accepts_several_names_or_all() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    attachments.run(["detach", "--all"]).ok();
    for name in ["a", "b", "c", "d"] {
        socket(&attachments, &target.url(), name);
    }
    // If one name is wrong, `detach` detaches no disk.
    let unknown = attachments.run(["detach", "a", "nosuch", "b"]);
    unknown.fails_in_a_line(2, &["\"nosuch\" is not attached: the attached disks are a, b, c, d"]);
    assert_eq!(attachments.list().len(), 4);
    attachments.run(["detach", "a", "a", "b"]).ok();
    assert_eq!(attachments.list().len(), 2);
    // A disk in use must not prevent the detaching of other disks.
    let path = attachments.folder("c").join("nbd.sock");
    let client = std::os::unix::net::UnixStream::connect(&path);
    let client = client.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    until("the client is counted", || !attachments.status("c")["users"][0].is_null());
    attachments.run(["detach", "--all"]).fails_in_a_line(1, &["c is in use"]);
    assert_eq!(attachments.list().len(), 1);
    drop(client);
    until("the client has disconnected", || attachments.status("c")["users"][0].is_null());
    attachments.run(["detach", "--all"]).ok();
    assert!(attachments.list().is_empty());
    attachments.run(["detach"]).fails(2, &["NAME"]);
    attachments.run(["detach", "a", "--all"]).fails(2, &["--all"]);
}

/// Checks that `detach` accepts any path that leads to the disk, relative to the user's directory.
#[test]
fn detach_accepts_relative_paths_to_the_disk() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    std::fs::create_dir(attachments.scratch.path("mnt")).expect("the folder is created");
    std::os::unix::fs::symlink("mnt", attachments.scratch.path("link"))
        .expect("the link is created");
    let url = target.url();
    for (options, path) in [
        (&["--no-device"][..], "mnt/fb0"),
        (&["--no-device"], "./mnt"),
        (&[], "mnt/"),
        (&[], "link"),
    ] {
        let args = [&[url.as_str(), "--as", "fuse", "--mountpoint", "mnt"], options].concat();
        attachments.attach(&args);
        attachments.run(["detach", "mnt/other"]).fails_in_a_line(2, &["is not attached"]);
        attachments.detach_by("fb0", path);
    }
}

/// Checks the completion of `farblock detach <TAB>`.
#[test]
fn bash_completes_the_names_of_attached_disks() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    socket(&attachments, &target.url(), "alpha");
    socket(&attachments, &target.url(), "beta");
    let offered = |word: &str| {
        let mut command = std::process::Command::new("bash");
        let program = env!("CARGO_BIN_EXE_farblock");
        command.args(["--norc", "-c"]).arg(
            "source <(\"$1\" completions bash); COMP_WORDS=(\"$1\" detach \"$2\"); COMP_CWORD=2\n\
             COMP_LINE=\"$1 detach $2\"; COMP_POINT=${#COMP_LINE}\n\
             _farblock \"$1\" \"$2\" detach; printf '%s ' \"${COMPREPLY[@]}\"",
        );
        command.args(["bash", program, word]);
        attachments.scratch.prepare(&mut command);
        command.env("FARBLOCK_RUNTIME_DIR", attachments.scratch.path("run"));
        crate::support::finish(command, b"").ok().out()
    };
    assert_eq!(offered("al").trim(), "alpha");
    assert!(offered("").starts_with("alpha beta "), "{}", offered(""));
    assert_eq!(offered("--f").trim(), "--force");
}

/// Checks that `--unmount` unmounts two more file systems: one on a loop device whose file is on
/// the disk, and a copy of the mount in another mount namespace.
#[test]
fn detach_unmount_unmounts_file_systems_stacked_on_the_disk() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, 64 << 20);
    let device = attachments.attach(&[&target.url(), "--as", "fuse"]);
    run("mkfs.ext4", &["-q", &device]);
    let lower = Mounted::new(&device);
    let file = lower.file("inner.img");
    run("truncate", &["-s", "16M", &file]);
    let inner = run("losetup", &["--find", "--show", &file]);
    run("mkfs.ext4", &["-q", inner.trim()]);
    let upper = Mounted::new(inner.trim());
    fs::write(upper.file("kept"), "all of it").expect("the write succeeds");
    let user = fs::File::create(upper.file("open")).expect("the file is created");

    // `detach` must not kill a process with an open file, and everything must stay mounted.
    let refused = attachments.run(["detach", "fb0", "--unmount"]);
    refused.fails_in_a_line(1, &["fb0 is in use", &device, "is mounted at"]);
    fs::write(upper.file("more"), "still there").expect("the write succeeds");
    drop(user);
    let mut holder = Command::new("unshare");
    holder.args(["--mount", "--propagation", "private", "sleep", "600"]);
    let mut holder = holder.spawn().expect("unshare starts");
    let own = fs::read_link("/proc/self/ns/mnt").expect("the link is readable");
    until("the process has its own mount namespace", || {
        let its = fs::read_link(format!("/proc/{}/ns/mnt", holder.id()));
        let command = fs::read_to_string(format!("/proc/{}/comm", holder.id()));
        its.is_ok_and(|its| its != own) && command.is_ok_and(|name| name.trim() == "sleep")
    });
    attachments.run(["detach", "fb0", "--unmount"]).ok();
    assert!(attachments.list().is_empty());
    holder.kill().expect("the process can be killed");
    holder.wait().expect("the process can be waited for");
    drop((upper, lower));
    let device = attachments.attach(&[&target.url(), "--as", "fuse"]);
    run("fsck.ext4", &["-fn", &device]);
    attachments.detach("fb0");
}

fn loop_on(path: &str) -> String {
    run("losetup", &["--find", "--show", path]).trim().to_owned()
}

/// Checks that loop devices that other programs created on the disk or on its file count as users
/// of the disk. `--unmount` detaches them.
#[test]
fn detach_unmount_detaches_loop_devices_on_the_disk() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, 64 << 20);
    let device = attachments.attach(&[&target.url(), "--as", "fuse"]);
    let file = attachments.folder("fb0").join("mount/fb0").display().to_string();
    let (above, beside) = (loop_on(&device), loop_on(&file));
    let refused = attachments.run(["detach", "fb0"]);
    let users = [
        format!("{above} is a loop device on {device}"),
        format!("{beside} is a loop device on {file}"),
    ];
    refused.fails_in_a_line(1, &["fb0 is in use", &users[0], &users[1]]);
    let found = attachments.run(["doctor", &device]).ok();
    let found = String::from_utf8_lossy(&found.stdout).into_owned();
    assert!(found.contains(&users[0]), "{found}");
    run("mkfs.ext4", &["-q", &above]);
    let mounted = Mounted::new(&above);
    fs::write(mounted.file("kept"), "all of it").expect("the write succeeds");
    attachments.run(["detach", "fb0", "--unmount"]).ok();
    drop(mounted);
    let device = attachments.attach(&[&target.url(), "--as", "fuse"]);
    run("fsck.ext4", &["-fn", &device]);
    attachments.detach("fb0");
}

/// Another mount namespace has the disk's file system and a loop device on one of its files. In
/// this namespace, a different file has the same path, and also has a loop device.
#[test]
fn detach_unmount_detaches_a_loop_device_in_another_mount_namespace() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, 64 << 20);
    let device = attachments.attach(&[&target.url(), "--as", "fuse"]);
    run("mkfs.ext4", &["-q", &device]);
    let folder = tempfile::tempdir().expect("a temporary folder is created");
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::create_dir(path("m")).expect("the folder is created");
    run("truncate", &["-s", "4M", &path("m/inner.img")]);
    let other = loop_on(&path("m/inner.img"));
    let script = "mount \"$1\" \"$2/m\" && truncate -s 4M \"$2/m/inner.img\" && \
                  losetup --find --show \"$2/m/inner.img\" >\"$2/made\" && exec sleep 600";
    let mut holder = Command::new("unshare");
    holder.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh", &device]);
    let mut holder = holder.arg(folder.path()).spawn().expect("unshare starts");
    let made = || fs::read_to_string(path("made")).unwrap_or_default();
    until("the loop device exists", || made().ends_with('\n'));
    let backing = |device: &str| {
        let name = device.trim().strip_prefix("/dev/").expect("the path starts with /dev/");
        fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"))
    };
    assert_eq!(
        backing(&other).expect("the loop device has a file"),
        backing(&made()).expect("the loop device has a file")
    );
    attachments.run(["detach", "fb0", "--unmount"]).ok();
    assert!(backing(&made()).is_err(), "the loop device still has a file");
    assert!(backing(&other).is_ok(), "a loop device on another file was detached");
    run("losetup", &["--detach", &other]);
    holder.kill().expect("the process can be killed");
    holder.wait().expect("the process can be waited for");
    let device = attachments.attach(&[&target.url(), "--as", "fuse"]);
    run("fsck.ext4", &["-fn", &device]);
    attachments.detach("fb0");
}
