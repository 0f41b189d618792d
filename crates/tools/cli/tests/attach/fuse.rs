//! Tests of FUSE with a loop device: a real file system on a real block device. A supervisor starts
//! a successor when a server dies. A broker is a helper process of a server with root's rights.

use crate::attached::{Attachments, Load, Mounted, Target, run, wait_for_progress};
use crate::scripted;
use crate::support::confinement::runs;
use crate::support::{noise, signal, until};
use farblock_proto::tcp::Digests;
use farblock_proto::tcp::host_end::Transfer;
use farblock_wire::opcode::NvmOpcode;
use farblock_wire::reservation::{
    AcquireAction, RegisterAction, ReleaseAction, ReservationControl, ReservationType,
};
use farblock_wire::{SglDescriptor, Sqe, Status};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

const DISK_BYTES: u64 = 64 << 20;

fn size_of(device: &str) -> u64 {
    run("blockdev", &["--getsize64", device]).trim().parse().expect("the text is a number")
}

/// Attaches a disk, uses and checks it, detaches it, and attaches it again. All data must survive.
#[test]
fn a_file_system_survives_detach_and_attach() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    let url = target.url();
    let device = attachments.attach(&[&url, "--as", "fuse"]);
    assert!(device.starts_with("/dev/loop"), "{device}");
    assert_eq!(size_of(&device), DISK_BYTES);
    run("mkfs.ext4", &["-q", &device]);
    let data = noise(7, 3 << 20);
    let mounted = Mounted::new(&device);
    fs::write(mounted.file("kept"), &data).expect("the write succeeds");
    let load = Load::start(&mounted.file("load"), &[]);
    wait_for_progress(&device);
    load.finish();
    fs::remove_file(mounted.file("load")).expect("the file is removed");

    // The refusal must name the users of the disk, and must not disturb them.
    let at = mounted.path().display().to_string();
    let refused = attachments.run(["detach", "fb0"]);
    refused.fails_in_a_line(1, &["fb0 is in use", &device, "mounted at", &at, "--force"]);
    let status = attachments.status("fb0");
    assert_eq!(status["state"], "live");
    assert_eq!(status["paths"][0]["access"], "optimized");
    assert!(status["users"][0].as_str().is_some_and(|user| user.contains(&at)), "{status}");
    let table = attachments.run(["list"]).ok().out();
    for part in ["fb0", &device, "64 MiB", "live", &at, &url] {
        assert!(table.contains(part), "{table}");
    }
    fs::write(mounted.file("after"), "it still works").expect("the write succeeds");
    mounted.unmount();
    run("fsck.ext4", &["-fn", &device]);

    // An open device without a file system also counts as use, and the refusal names the process.
    let file = fs::File::open(&device).expect("the file opens");
    let whose = format!("process {}", std::process::id());
    attachments.run(["detach", &device]).fails_in_a_line(1, &["fb0 is in use", &whose]);
    drop(file);
    attachments.run(["detach", &device]).ok();
    assert!(attachments.list().is_empty());
    assert!(!attachments.folder("fb0").exists());

    let device = attachments.attach(&[&url, "--as", "fuse", "--read-only", "--name", "again"]);
    let mounted = Mounted::new(&device);
    assert!(
        fs::read(mounted.file("kept")).expect("the file opens") == data,
        "the data differs from the written data"
    );
    assert_eq!(fs::read(mounted.file("after")).expect("the file opens"), b"it still works");
    assert!(fs::write(mounted.file("no"), "").is_err(), "a read-only mount was written");
    mounted.unmount();
    attachments.detach("again");
    target.server.stop();
    // The data must be in the file, and not only in this machine's cache.
    run("fsck.ext4", &["-fn", &attachments.scratch.text("disk.img")]);
}

/// Kills the server repeatedly under load. I/O must pause and then continue.
#[test]
fn io_continues_after_a_killed_server_is_replaced() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    let device = attachments.attach(&[&target.url(), "--as", "fuse"]);
    run("mkfs.ext4", &["-q", &device]);
    let mounted = Mounted::new(&device);
    let mut load = Load::start(&mounted.file("load"), &[]);
    // Returns the name of the only controller in the record of controllers that may execute
    // commands.
    let controller = || {
        let file = std::fs::read(attachments.folder("fb0").join("controllers.json"));
        let lives: Value =
            serde_json::from_slice(&file.expect("the file opens")).expect("the text is JSON");
        assert_eq!(lives.as_array().map(Vec::len), Some(1), "{lives}");
        assert!(lives[0]["name"].is_array(), "{lives}");
        lives[0]["name"].clone()
    };
    for _ in 0..3 {
        wait_for_progress(&device);
        let before = controller();
        let killed = attachments.kill_server("fb0");
        attachments.wait_for_successor("fb0", killed);
        assert_ne!(controller(), before, "the dead server's controller was not closed");
        wait_for_progress(&device);
        assert!(load.is_running(), "the load ended too early");
    }
    load.finish();
    let at = mounted.path().display().to_string();
    attachments.run(["detach", "fb0"]).fails_in_a_line(1, &["in use", &at]);
    mounted.unmount();
    run("fsck.ext4", &["-fn", &device]);
    attachments.detach("fb0");
    assert!(!Path::new("/sys/block").join(&device[5..]).join("loop").exists(), "{device} stays");
    target.server.stop();
}

/// Kills the target under load and restarts it. All I/O must complete correctly.
#[test]
fn io_waits_until_a_killed_target_restarts() {
    let attachments = Attachments::new();
    let mut target = Target::new(&attachments, DISK_BYTES);
    let options = ["--as", "fuse", "--reconnect-delay", "100ms", "--keep-alive-tmo", "2"];
    let device = attachments.attach(&[&[target.url().as_str()], &options[..]].concat());
    let mut load = Load::start(&device, &[]);
    for _ in 0..2 {
        wait_for_progress(&device);
        target.kill();
        attachments.wait_for_state("fb0", "reconnecting");
        let status = attachments.status("fb0");
        assert!(status["trouble"].is_string() && status["paths"][0]["error"].is_string());
        target.restart(&attachments);
        attachments.wait_for_state("fb0", "live");
        wait_for_progress(&device);
        assert!(load.is_running(), "the load ended too early");
    }
    // A busy machine may miss a keep-alive, and so reconnect more often.
    assert!(attachments.status("fb0")["paths"][0]["reconnects"].as_u64() >= Some(2));
    // Kill the target and the server at once.
    wait_for_progress(&device);
    target.kill();
    let killed = attachments.kill_server("fb0");
    attachments.wait_for_state("fb0", "restarting");
    let trouble = "connection refused";
    until("the list states the reason", || {
        let why = attachments.status("fb0")["trouble"].as_str().unwrap_or_default().to_owned();
        why.contains(trouble)
    });
    attachments.run(["detach", "fb0"]).fails_in_a_line(1, &["the server of fb0 restarts", trouble]);
    target.restart(&attachments);
    attachments.wait_for_successor("fb0", killed);
    wait_for_progress(&device);
    load.finish();
    attachments.detach("fb0");
    target.server.stop();
}

/// Checks that `detach` refuses while the target is down, since no flush can succeed.
#[test]
fn detach_refuses_while_the_target_is_unreachable() {
    let attachments = Attachments::new();
    let mut target = Target::new(&attachments, DISK_BYTES);
    attachments.attach(&[&target.url(), "--as", "fuse", "--reconnect-delay", "100ms"]);
    target.kill();
    attachments.wait_for_state("fb0", "reconnecting");
    let refused = attachments.run(["detach", "fb0"]);
    refused.fails_in_a_line(1, &["is unreachable", "--force"]);
    target.restart(&attachments);
    attachments.wait_for_state("fb0", "live");
    attachments.detach("fb0");
    // A forced detach must work.
    attachments.attach(&[&target.url(), "--as", "fuse"]);
    target.kill();
    attachments.wait_for_state("fb0", "reconnecting");
    attachments.run(["detach", "fb0", "--force"]).ok();
    assert!(attachments.list().is_empty());
}

/// Kills all processes of an attachment. `list` must show what they left behind, and remove it when
/// it is unused.
#[test]
fn list_removes_the_unused_remains_of_killed_processes() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    let url = target.url();
    let kill_all = || {
        let status = attachments.status("fb0");
        for which in ["pid", "server_pid"] {
            signal(
                u32::try_from(status[which].as_u64().expect("the status contains the process id"))
                    .expect("the process id has 32 bits"),
                "KILL",
            );
        }
    };
    let device = attachments.attach(&[&url, "--as", "fuse"]);
    run("mkfs.ext4", &["-q", &device]);
    let mounted = Mounted::new(&device);
    kill_all();
    attachments.wait_for_state("fb0", "stale");
    let status = attachments.status("fb0");
    let at = mounted.path().display().to_string();
    assert!(status["users"][0].as_str().is_some_and(|user| user.contains(&at)), "{status}");
    attachments.run(["detach", "fb0"]).fails_in_a_line(1, &["in use", &at]);
    // A new device next to the dead one would hide that writes to the dead one are lost.
    assert!(status["trouble"].as_str().is_some_and(|it| it.contains("unmount")), "{status}");
    let again = ["attach", &url, "--as", "fuse", "--name", "fb0"];
    attachments.run(again).fails_in_a_line(1, &["broke", &device, &at, "unmount"]);
    let examined = attachments.run(["doctor", "fb0"]);
    assert!(examined.code != Some(0) && examined.out().contains("unmount"), "{}", examined.out());
    attachments.wait_for_state("fb0", "stale");
    mounted.unmount();
    let shown = attachments.list();
    assert_eq!(shown[0]["state"], "stale");
    assert!(shown[0]["trouble"].as_str().is_some_and(|it| it.contains("cleaned up")), "{shown:?}");
    assert!(attachments.list().is_empty(), "the device is listed twice");
    let mounts = fs::read_to_string("/proc/self/mounts").expect("the mounts are readable");
    assert!(
        !mounts.contains(attachments.folder("fb0").to_str().expect("the path is UTF-8")),
        "{mounts}"
    );

    // Attaching again must also reuse what the processes left behind.
    attachments.attach(&[&url, "--as", "fuse"]);
    kill_all();
    let folder = attachments.folder("fb0");
    assert!(folder.exists());
    let args = ["attach", &url, "--as", "fuse", "--name", "fb0"];
    // A killed process takes a short time to disappear.
    until("the disk is attached", || attachments.run(args).code == Some(0));
    let device = attachments.status("fb0")["use"]["path"]
        .as_str()
        .expect("the JSON contains the path")
        .to_owned();
    run("fsck.ext4", &["-fn", &device]);
    attachments.detach("fb0");
}

/// Checks that a server continues without its supervisor, and reports this.
#[test]
fn a_server_continues_without_its_supervisor() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    let device = attachments.attach(&[&target.url(), "--as", "fuse"]);
    let pid =
        attachments.status("fb0")["pid"].as_u64().expect("the status contains the process id");
    signal(u32::try_from(pid).expect("the process id has 32 bits"), "KILL");
    until("the reason is shown", || {
        let trouble = attachments.status("fb0")["trouble"].as_str().unwrap_or_default().to_owned();
        trouble.contains("supervisor is dead")
    });
    // doctor must report the problem for the machine and for the attachment.
    for asked in [&["doctor"][..], &["doctor", "fb0"]] {
        let outcome = attachments.run(asked);
        let said = outcome.out();
        assert_eq!(outcome.code, Some(1), "{said}");
        assert!(said.contains("PROBLEM") && said.contains("supervisor is dead"), "{said}");
    }
    run("mkfs.ext4", &["-q", &device]);
    run("fsck.ext4", &["-fn", &device]);
    let supervised = |text: &str| {
        let line = |line: &str| line.contains("disk_supervised") && line.ends_with(text);
        attachments.run(["list", "--metrics"]).ok().out().lines().any(line)
    };
    assert!(supervised(" 0"));
    let examined = attachments.run(["doctor", "fb0"]);
    assert!(examined.code != Some(0) && examined.out().contains("supervisor is dead"));

    // Attaching again must start a new supervisor, unnoticed by users of the disk.
    let mut load = Load::start(&device, &[]);
    wait_for_progress(&device);
    let of = target.url();
    attachments
        .run(["attach", "--name", "fb0", "nvme+tcp://127.0.0.1:1/other?ns=1"])
        .fails_in_a_line(2, &["already attached"]);
    assert_eq!(attachments.attach(&[&of, "--as", "fuse"]), device);
    let status = attachments.status("fb0");
    assert!(status["trouble"].is_null() && supervised(" 1"), "{status}");
    let killed = attachments.kill_server("fb0");
    attachments.wait_for_successor("fb0", killed);
    wait_for_progress(&device);
    assert!(load.is_running());
    load.finish();
    attachments.detach("fb0");

    // Detaching the adopted server must work normally.
    attachments.attach(&[&of, "--as", "fuse"]);
    let pid =
        attachments.status("fb0")["pid"].as_u64().expect("the status contains the process id");
    signal(u32::try_from(pid).expect("the process id has 32 bits"), "KILL");
    let mut said = String::new();
    until("the device is adopted", || {
        let outcome = attachments.run(["attach", &of, "--as", "fuse"]);
        said = outcome.stderr;
        outcome.code == Some(0)
    });
    assert!(said.contains("fb0 gets a new supervisor"), "{said}");
    attachments.detach("fb0");
    assert!(attachments.list().is_empty());
}

/// If only another mount namespace has the mount, `list` and `doctor` must report that the disk is
/// unusable in this one.
#[test]
fn a_mount_in_another_namespace_only_is_reported_as_unusable() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    let path = attachments.attach(&[&target.url(), "--as", "fuse", "--no-device"]);
    let mut holder = Command::new("unshare");
    // Make a private copy of the mounts, as containers have.
    holder.args(["--mount", "--propagation", "private", "sleep", "600"]);
    let mut holder = holder.spawn().expect("unshare starts");
    let own = fs::read_link("/proc/self/ns/mnt").expect("the link is readable");
    until("the process has its own mount namespace", || {
        let its = fs::read_link(format!("/proc/{}/ns/mnt", holder.id()));
        let command = fs::read_to_string(format!("/proc/{}/comm", holder.id()));
        its.is_ok_and(|its| its != own) && command.is_ok_and(|name| name.trim() == "sleep")
    });
    run(
        "umount",
        &["--lazy", Path::new(&path).parent().and_then(Path::to_str).expect("the path is UTF-8")],
    );
    let status = attachments.status("fb0");
    let trouble = status["trouble"].as_str().unwrap_or_default();
    assert_eq!(status["state"], "unusable", "{status}");
    assert!(trouble.contains(&format!("process {}", holder.id())), "{status}");
    let examined = attachments.run(["doctor", "fb0"]);
    assert!(examined.code != Some(0) && examined.out().contains("cannot use it"));
    holder.kill().expect("the process can be killed");
    holder.wait().expect("the process can be waited for");
    until("the disk is detached", || attachments.run(["detach", "fb0"]).code == Some(0));
    assert!(attachments.list().is_empty());
}

/// Checks that SIGTERM detaches the disk once its last user has closed it.
#[test]
fn sigterm_detaches_the_disk_after_its_last_user_closes_it() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    let device = attachments.attach(&[&target.url(), "--as", "fuse"]);
    run("mkfs.ext4", &["-q", &device]);
    let mounted = Mounted::new(&device);
    let pid = u32::try_from(
        attachments.status("fb0")["pid"].as_u64().expect("the status contains the process id"),
    );
    signal(pid.expect("the signal is sent"), "TERM");
    until("the log names the mount", || attachments.log("fb0").contains("is mounted at"));
    fs::write(mounted.file("still"), noise(1, 1 << 20)).expect("the mount still works");
    run("sync", &["-f", &mounted.file("still")]);
    assert_eq!(attachments.status("fb0")["state"], "live");
    mounted.unmount();
    until("the attachment ends", || attachments.list().is_empty());
    target.server.stop();
    run("fsck.ext4", &["-fn", &attachments.scratch.text("disk.img")]);
}

/// Returns the processes that create a loop device on this mount: the process inside the system
/// call, the broker that started it, and the server that started the broker.
fn makers(mount: &str) -> Option<[u32; 3]> {
    let parent = |pid: u32| -> Option<u32> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        parent.trim().parse().ok()
    };
    let entries = fs::read_dir("/proc").expect("the folder is readable").flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find_map(|pid| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
        let is_it = line.contains("attachment\0loop\0") && line.contains(mount);
        let broker = parent(pid).filter(|_| is_it)?;
        Some([pid, broker, parent(broker)?])
    })
}

fn loop_devices_below(mount: &str) -> usize {
    let devices = fs::read_dir("/sys/block").expect("the folder is readable").flatten();
    let files = devices.map(|it| fs::read_to_string(it.path().join("loop/backing_file")));
    files.flatten().filter(|file| file.starts_with(mount)).count()
}

/// During the system call that creates a device, the loop driver waits for the server. A server
/// that is killed during this call must still exit. Otherwise it would block all loop devices of
/// the machine.
#[test]
fn a_server_killed_while_it_creates_the_loop_device_exits() {
    let attachments = Attachments::new();
    // Delay reads, which holds up the driver while it looks for partitions.
    let server = attachments.scratch.serve(["delay:2s,mem:16MiB"]);
    for (victim, why) in
        [("server", "died (signal: 9"), ("broker", "the privileged helper process")]
    {
        let mut command = attachments.command(["attach", &server.url(1), "--as", "fuse"]);
        let attach = command.spawn().expect("the program runs");
        let mount = attachments.folder("fb0").join("mount").display().to_string();
        let mut found = None;
        until("the device is being created", || {
            found = makers(&mount);
            found.is_some()
        });
        let [maker, broker, server_pid] = found.expect("processes that were found above");
        signal(if victim == "server" { server_pid } else { broker }, "KILL");
        let output = crate::support::wait(attach);
        assert_eq!(output.status.code(), Some(1), "{victim}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(why), "{victim}: {said}");
        for pid in [maker, broker] {
            until("the processes have exited", || !runs(pid.into()));
        }
        until("no loop device remains", || loop_devices_below(&mount) == 0);
        assert!(!attachments.folder("fb0").exists(), "{victim}: the folder fb0 remains");
    }
}

/// Checks that a forced detach takes effect at once, whatever uses the disk.
#[test]
fn forced_detach_takes_effect_while_the_disk_is_in_use() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    let path = attachments.attach(&[&target.url(), "--as", "fuse", "--no-device"]);
    let file = fs::File::options().read(true).write(true).open(&path).expect("the file opens");
    file.write_all_at(&noise(3, 8192), 4096).expect("the write succeeds");
    let whose = format!("process {}", std::process::id());
    attachments.run(["detach", "fb0"]).fails_in_a_line(1, &["in use", &whose]);
    attachments.run(["detach", "fb0", "--force"]).ok();
    assert!(file.read_at(&mut [0; 512], 0).is_err());
    assert!(attachments.list().is_empty());
    let kept = fs::read(attachments.scratch.path("disk.img")).expect("the file is readable");
    assert!(kept[4096..4096 + 8192] == noise(3, 8192), "written data was lost");
}

/// Checks that another host's reservation does not count as a failure of the disk. Errors, the list
/// and commands must name the reservation.
#[test]
fn errors_of_a_fenced_host_name_the_reservation() {
    const EBADE: i32 = 52;
    const KEY: u64 = 7;
    let attachments = Attachments::new();
    let disk = attachments.scratch.disk("disk.img", 1 << 20);
    let server = attachments.scratch.serve(["--nqn", scripted::NQN, &disk]);
    let url = server.url(1);
    let path = attachments.attach(&[&url, "--as", "fuse", "--no-device"]);
    let file = fs::OpenOptions::new().write(true).open(&path).expect("the file opens");
    file.write_all_at(&noise(1, 4096), 0).expect("no host reserved the disk");

    let address = server.address.parse().expect("the address is valid");
    let (_admin, controller) = scripted::admin_of([9; 16], address, Digests::NONE);
    let mut other = scripted::io_of([9; 16], address, Digests::NONE, controller, true);
    let mut send = |opcode: NvmOpcode, control: ReservationControl, keys: &[u64]| {
        let data: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
        let dptr = SglDescriptor::in_capsule(0, data.len() as u32);
        let sqe = Sqe { cdw10: control.0.into(), dptr, ..Sqe::new(opcode.0, 0, 1) };
        let status = other.run(sqe, Transfer::InCapsule(data.len() as u32), &data).status;
        assert_eq!(status, Status::SUCCESS);
    };
    let action = |action: u8| ReservationControl::default().with_action(action);
    let acquire = action(AcquireAction::ACQUIRE.0).with_rtype(ReservationType::WRITE_EXCLUSIVE.0);
    send(NvmOpcode::RESERVATION_REGISTER, action(RegisterAction::REGISTER.0), &[0, KEY]);
    send(NvmOpcode::RESERVATION_ACQUIRE, acquire, &[KEY, 0]);

    let error = file.write_all_at(&noise(2, 4096), 0).expect_err("another host reserved the disk");
    assert_eq!(error.raw_os_error(), Some(EBADE), "{error}");
    let reserved = "another host has reserved the namespace";
    let status = attachments.status("fb0");
    assert_eq!(status["state"], "degraded", "{status}");
    assert!(status["trouble"].as_str().is_some_and(|it| it.contains(reserved)), "{status}");
    // `doctor` must report the problem for the machine, the attachment and the URL.
    for asked in [&["doctor"][..], &["doctor", "fb0"], &["doctor", &url]] {
        let doctor = attachments.run(asked);
        let out = doctor.out();
        let problem = |line: &str| line.contains("PROBLEM") && line.contains(reserved);
        assert!(doctor.code == Some(1) && out.lines().any(problem), "{asked:?}: {out}");
    }
    let image = attachments.scratch.disk("image", 4096);
    let write = attachments.scratch.run(["write", &url, "--input", &image]);
    write.fails_in_a_line(1, &[reserved, "release the reservation"]);

    send(NvmOpcode::RESERVATION_RELEASE, action(ReleaseAction::CLEAR.0), &[KEY]);
    file.write_all_at(&noise(3, 4096), 0).expect("the reservation is released");
    assert_eq!(attachments.status("fb0")["state"], "live");
    drop(file);
    attachments.detach("fb0");
    server.stop();
}
