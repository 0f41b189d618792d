//! Stops all uses of a disk, like LVM's `blkdeactivate`, starting with the highest layer: unmounts
//! file systems, stops swap, and removes loop, device-mapper and RAID devices on the disk.
//!
//! This module never kills a process that uses the disk. It retries a step that fails because of
//! such a process. Each step runs in a separate process, because it may wait forever for an
//! unreachable target. The calling process waits only until the deadline.

use super::status::{Use, UseKind};
use super::system;
use farblock_attach::fuse::loop_device;
use farblock_frontend::users::loops::{self, LoopDevice};
use farblock_frontend::users::{self, Mount, User};
use farblock_program::error::{Failure, Result, os};
use farblock_reactor::loop_device::device_number;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The folder with an entry for each block device, including partitions.
const BLOCK_DEVICES: &str = "/sys/class/block";
/// Maximum depth of stacked devices.
const MAX_DEPTH: usize = 16;
/// Polling interval while a step runs.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Pause before another attempt to stop all uses.
const PAUSE: Duration = Duration::from_millis(250);
/// Time limit for writing back dirty data.
const SYNC_TIME: Duration = Duration::from_secs(8);

/// The disk's block device, if it has one, and the loop devices that other programs created on the
/// disk's file.
fn devices(used: &Use) -> (Option<PathBuf>, Vec<PathBuf>) {
    let own = (used.kind == UseKind::Device).then(|| PathBuf::from(&used.path));
    let mut others = used.directory().map(loop_device::below).unwrap_or_default();
    others.retain(|device| own.as_ref() != Some(device));
    (own, others)
}

/// Stops the uses of a disk until none remains or the deadline passes. Returns the remaining users.
pub(super) fn release(used: &Use, deadline: Instant) -> Vec<User> {
    loop {
        let ((own, others), release) = (devices(used), Release { deadline });
        others.iter().for_each(|device| release.end_loop_device(device, 0));
        own.iter().for_each(|device| release.end_uses(device, 0));
        // Also unmount the copies of the file's mount in other mount namespaces.
        let mounts = users::mounts();
        let is_its = |mount: &&Mount| used.directory() == Some(&mount.mountpoint);
        if let Some(mount) = mounts.iter().rev().find(is_its) {
            release.unmount_elsewhere(&mount.device);
        }
        let left = users_of(used);
        if left.is_empty() || Instant::now() + PAUSE >= deadline {
            return left;
        }
        thread::sleep(PAUSE);
    }
}

/// The users of the disk's block device, and of loop devices that other programs created on the
/// disk's file.
fn users_of(used: &Use) -> Vec<User> {
    let (own, others) = devices(used);
    let users = own.iter().flat_map(|device| users::of_block_device(device));
    let what = |device: &PathBuf| format!("{} is on {}", device.display(), used.path);
    users.chain(others.iter().map(|device| User::kernel(what(device)))).collect()
}

/// Writes back the dirty data of a disk and of the file systems stacked on it. Returns false if
/// this fails or takes too long.
pub(super) fn sync(used: &Use) -> bool {
    let release = Release { deadline: Instant::now() + SYNC_TIME };
    // A failure on one device must not keep the others from being synced.
    let (own, others) = devices(used);
    let synced = others.iter().chain(&own).map(|device| release.sync(device, 0));
    let synced: Vec<bool> = synced.collect();
    synced.iter().all(|well| *well)
}

struct Release {
    deadline: Instant,
}

impl Release {
    /// Stops the uses of a loop device, and detaches it from its file.
    fn end_loop_device(&self, device: &Path, depth: usize) {
        if depth < MAX_DEPTH {
            self.end_uses(device, depth);
            self.run("losetup", &["--detach".as_ref(), device.as_os_str()]);
        }
    }

    /// Stops the uses of a device. First stops the devices on top of it.
    fn end_uses(&self, device: &Path, depth: usize) {
        for folder in folders(device) {
            let (Some(device), Some(number)) = (device_of(&folder), number_of(&folder)) else {
                continue;
            };
            for holder in holders(&folder).into_iter().filter(|_| depth < MAX_DEPTH) {
                self.end_uses(&holder, depth + 1);
                self.take_away(&holder);
            }
            for loop_device in loop_devices_above(&number, &device) {
                self.end_loop_device(&loop_device, depth + 1);
            }
            let mounts = users::mounts();
            let is_of = |mount: &&Mount| mount.device == number || mount.source == device;
            for mount in mounts.iter().rev().filter(is_of) {
                self.end_mount(&mounts, mount, depth);
            }
            if is_swap(&device) {
                self.run("swapoff", &[device.as_os_str()]);
            }
            // Unmounting has also removed most copies of these mounts in other mount namespaces
            // (mount propagation). Unmount the remaining copies.
            self.unmount_elsewhere(&number);
        }
    }

    fn unmount_elsewhere(&self, number: &str) {
        for (pid, mount) in users::mounts_elsewhere(number) {
            self.unmount(Some(pid), &mount.mountpoint);
        }
    }

    /// Unmounts a file system. First stops everything that uses its files, and all mounts below it.
    fn end_mount(&self, mounts: &[Mount], mount: &Mount, depth: usize) {
        let below = |path: &Path| path.starts_with(&mount.mountpoint);
        for device in loop_device::below(&mount.mountpoint) {
            self.end_loop_device(&device, depth + 1);
        }
        for swap in swaps().iter().filter(|swap| below(swap)) {
            self.run("swapoff", &[swap.as_os_str()]);
        }
        let inner = mounts.iter().rev().filter(|it| below(&it.mountpoint) && *it != mount);
        for inner in inner.filter(|it| it.mountpoint != mount.mountpoint) {
            self.unmount(None, &inner.mountpoint);
        }
        self.unmount(None, &mount.mountpoint);
    }

    /// Removes a loop, device-mapper or RAID device.
    fn take_away(&self, device: &Path) {
        let Some(folder) = device.file_name().map(|name| Path::new(BLOCK_DEVICES).join(name))
        else {
            return;
        };
        if let Ok(name) = fs::read_to_string(folder.join("dm/name")) {
            self.run("dmsetup", &["remove".as_ref(), name.trim_end().as_ref()]);
        } else if folder.join("md").exists() {
            self.run("mdadm", &["--stop".as_ref(), device.as_os_str()]);
        }
    }

    fn unmount(&self, of: Option<u32>, path: &Path) {
        let Ok(program) = std::env::current_exe() else { return };
        let mut command = Command::new(system::program(&program));
        command.args(["attachment", "unmount"]).arg(path);
        command.args(of.map(|pid| pid.to_string()));
        self.finish(command);
    }

    fn sync(&self, device: &Path, depth: usize) -> bool {
        let mut well = true;
        for folder in folders(device) {
            let (Some(device), Some(number)) = (device_of(&folder), number_of(&folder)) else {
                continue;
            };
            for holder in holders(&folder).into_iter().filter(|_| depth < MAX_DEPTH) {
                well &= self.sync(&holder, depth + 1);
            }
            let above = loop_devices_above(&number, &device).into_iter();
            for loop_device in above.filter(|_| depth < MAX_DEPTH) {
                well &= self.sync(&loop_device, depth + 1);
            }
            for mount in users::mounts().iter().filter(|mount| mount.device == number) {
                well &= self.run("sync", &["-f".as_ref(), mount.mountpoint.as_os_str()]);
            }
            well &= self.run("sync", &[device.as_os_str()]);
        }
        well
    }

    fn run(&self, program: &str, args: &[&std::ffi::OsStr]) -> bool {
        let mut command = Command::new(program);
        command.args(args);
        self.finish(command)
    }

    /// Runs a step. If it has not finished by the deadline, the step continues in its own process.
    fn finish(&self, mut command: Command) -> bool {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                tracing::warn!("{}: {}", command.get_program().display(), os(&error));
                return false;
            }
        };
        loop {
            match child.try_wait() {
                Ok(Some(status)) => {
                    tracing::debug!("{command:?}: {status}");
                    return status.success();
                }
                Ok(None) if Instant::now() < self.deadline => thread::sleep(LOOK_EVERY),
                _ => return false,
            }
        }
    }
}

/// Unmounts a path in this mount namespace, or in the mount namespace of process `of` (`attachment
/// unmount`).
pub(super) fn unmount(path: &Path, of: Option<u32>) -> Result<()> {
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
    let failed = |error: std::io::Error| {
        Failure::run(format_args!("cannot unmount {}: {}", path.display(), os(&error)))
    };
    if let Some(pid) = of {
        let namespace = fs::File::open(format!("/proc/{pid}/ns/mnt")).map_err(failed)?;
        let kind = Some(LinkNameSpaceType::Mount);
        move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), kind)
            .map_err(|error| failed(error.into()))?;
    }
    let flags = rustix::mount::UnmountFlags::NOFOLLOW;
    rustix::mount::unmount(path, flags).map_err(|error| failed(error.into()))
}

/// Returns the sysfs folders of a device and its partitions, partitions first.
fn folders(device: &Path) -> Vec<PathBuf> {
    let Some(name) = device.file_name() else { return Vec::new() };
    let whole = Path::new(BLOCK_DEVICES).join(name);
    let below = fs::read_dir(&whole).into_iter().flatten().flatten().map(|entry| entry.path());
    below.filter(|part| part.join("partition").exists()).chain([whole.clone()]).collect()
}

fn device_of(folder: &Path) -> Option<PathBuf> {
    Some(Path::new("/dev").join(folder.file_name()?))
}

/// Returns the number of a device, as `major:minor`.
fn number_of(folder: &Path) -> Option<String> {
    Some(fs::read_to_string(folder.join("dev")).ok()?.trim_end().to_owned())
}

/// Returns the devices stacked on a device.
fn holders(folder: &Path) -> Vec<PathBuf> {
    let holders = fs::read_dir(folder.join("holders")).into_iter().flatten().flatten();
    holders.map(|holder| Path::new("/dev").join(holder.file_name())).collect()
}

/// Returns the loop devices on a device (`major:minor`), and those on files of the device's file
/// system, in any mount namespace.
fn loop_devices_above(number: &str, device: &Path) -> Vec<PathBuf> {
    let Some(number) = device_number(number) else { return Vec::new() };
    let is_above =
        |it: &LoopDevice| it.is_on_device(number, device) || it.is_in(Some(number), None);
    loops::all().into_iter().filter(is_above).map(|it| it.device).collect()
}

/// The devices and files used as swap.
fn swaps() -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let names = table.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    names.map(|name| PathBuf::from(name.replace("\\040", " "))).collect()
}

fn is_swap(device: &Path) -> bool {
    swaps().iter().any(|swap| swap == device)
}
