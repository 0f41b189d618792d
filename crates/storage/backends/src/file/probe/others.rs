//! Other users of a file or device that take no `flock`: QEMU, loop devices, swap.
//!
//! QEMU locks single bytes of an image with open file description locks (`block/file-posix.c`):
//! byte 100 + n while it uses permission n, and byte 200 + n while no other program may use it.
//! farblock takes the same locks, so that each refuses an image that the other one uses.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use crate::error::FileProblem;

/// The first bytes of the permissions that a program uses, and of those that it denies to others.
const USED: i64 = 100;
const UNSHARED: i64 = 200;
/// QEMU's permissions: consistent reads, writes, and changes of the size.
const READ: i64 = 0;
const WRITE: i64 = 1;
const RESIZE: i64 = 3;

/// The permissions that a disk needs for its file.
fn needed(read_only: bool) -> &'static [i64] {
    if read_only { &[READ] } else { &[READ, WRITE, RESIZE] }
}

/// The permissions that it denies to other programs.
const EXCLUSIVE: [i64; 2] = [WRITE, RESIZE];

/// Takes QEMU's locks for the life of the open file, and checks for other users.
///
/// # Errors
/// [`FileProblem::InUse`], which names the user.
pub(in crate::file) fn claim(file: &File, path: &Path, read_only: bool) -> Result<(), FileProblem> {
    let claimed = claim_bytes(file, path, read_only).and_then(|()| look_beneath(path, read_only));
    claimed.inspect_err(|_| release(file))
}

/// Releases QEMU's locks.
pub(in crate::file) fn release(file: &File) {
    // From the first byte of either group to the last.
    let _ = set(file, libc::F_UNLCK, USED, 2 * (UNSHARED - USED));
}

fn claim_bytes(file: &File, path: &Path, read_only: bool) -> Result<(), FileProblem> {
    let used = needed(read_only).iter().map(|permission| USED + permission);
    let unshared = EXCLUSIVE.iter().map(|permission| UNSHARED + permission);
    for byte in used.chain(unshared) {
        if let Err(error) = set(file, libc::F_RDLCK, byte, 1) {
            // A program that locks this byte exclusively is not QEMU, but it uses the file, too.
            if error.kind() == io::ErrorKind::WouldBlock {
                return Err(in_use(path, read_only));
            }
            tracing::debug!(%error, "{} has no byte locks", path.display());
            return Ok(());
        }
    }
    match is_refused(file, read_only) {
        true => Err(in_use(path, read_only)),
        false => Ok(()),
    }
}

/// Whether another program uses a permission that we deny, or denies one that we need.
fn is_refused(file: &File, read_only: bool) -> bool {
    let used = EXCLUSIVE.iter().map(|permission| USED + permission);
    let unshared = needed(read_only).iter().map(|permission| UNSHARED + permission);
    used.chain(unshared).any(|byte| is_locked_elsewhere(file, byte))
}

fn range(kind: i32, start: i64, length: i64) -> libc::flock {
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: length,
        l_pid: 0,
    }
}

fn set(file: &File, kind: i32, start: i64, length: i64) -> io::Result<()> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&range(kind, start, length)))?;
    Ok(())
}

/// Whether another open file has a lock on the byte.
fn is_locked_elsewhere(file: &File, byte: i64) -> bool {
    let mut found = range(libc::F_WRLCK, byte, 1);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut found)).is_ok()
        && i32::from(found.l_type) != libc::F_UNLCK
}

fn in_use(path: &Path, read_only: bool) -> FileProblem {
    FileProblem::InUse { by: holder(path, 1), read_only }
}

/// Checks for users below or above the disk: loop devices on a file, the file of a loop device,
/// swap.
fn look_beneath(path: &Path, read_only: bool) -> Result<(), FileProblem> {
    let Ok(found) = fs::metadata(path) else { return Ok(()) };
    if let Some(swap) = swap_at(&found) {
        return Err(FileProblem::InUse { by: swap, read_only });
    }
    if found.is_file() {
        return match loop_device_on(&found, read_only) {
            Some(by) => Err(FileProblem::InUse { by, read_only }),
            None => Ok(()),
        };
    }
    match backing_file(&found) {
        Some(below) => look_at_backing_file(&below, read_only),
        None => Ok(()),
    }
}

/// The swap area on this file or device.
fn swap_at(found: &fs::Metadata) -> Option<String> {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let area = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    let mut areas = area.map(|area| area.replace("\\040", " "));
    let area = areas.find(|area| fs::metadata(area).is_ok_and(|other| is_same(&other, found)))?;
    Some(format!("the kernel, which swaps to {area}"))
}

fn is_same(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    match one.file_type().is_block_device() && other.file_type().is_block_device() {
        true => one.rdev() == other.rdev(),
        false => (one.dev(), one.ino()) == (other.dev(), other.ino()),
    }
}

/// The loop device that uses a file. For a read-only open, a read-only loop device is no conflict.
fn loop_device_on(file: &fs::Metadata, read_only: bool) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut devices = fs::read_dir("/sys/block").ok()?.flatten().map(|entry| entry.path());
    let device = devices.find(|device| {
        let name = fs::read_to_string(device.join("loop/backing_file")).unwrap_or_default();
        let below = Path::new(name.trim_end_matches('\n'));
        let is_harmless =
            read_only && fs::read_to_string(device.join("ro")).is_ok_and(|text| text.trim() == "1");
        !is_harmless
            && may_have(&mounts, below, file.dev())
            && fs::metadata(below).is_ok_and(|other| is_same(&other, file))
    })?;
    let name = device.file_name()?.to_str()?.to_owned();
    Some(format!("the loop device /dev/{name} (`losetup -d /dev/{name}` removes it)"))
}

/// Whether a path can be on the file system `device`. Only then is it safe to stat: a path on
/// another mount, such as a FUSE disk whose target is down, may hang.
fn may_have(mounts: &str, path: &Path, device: u64) -> bool {
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    // Field 3 is the device, field 5 the mount point; the type follows a hyphen.
    let mount = |line: &'_ str| {
        let mut words = line.split(' ');
        let found = words.nth(2)?.to_owned();
        let at = words.nth(1)?.replace("\\040", " ");
        let kind = line.split(" - ").nth(1)?.split(' ').next()?.to_owned();
        path.starts_with(&at).then_some((at.len(), found, kind))
    };
    // Of several mounts at one point, the last is in use.
    let deepest = mounts.lines().filter_map(mount).max_by_key(|(length, ..)| *length);
    // Subvolumes of these file systems have their own device numbers.
    deepest.is_some_and(|(_, found, kind)| {
        found == number || ["btrfs", "bcachefs", "overlay"].contains(&kind.as_str())
    })
}

/// The file of a loop device, if the device, or the disk of the partition, is one.
fn backing_file(device: &fs::Metadata) -> Option<PathBuf> {
    if !device.file_type().is_block_device() {
        return None;
    }
    let (major, minor) = (rustix::fs::major(device.rdev()), rustix::fs::minor(device.rdev()));
    ["loop", "../loop"].iter().find_map(|folder| {
        let path = format!("/sys/dev/block/{major}:{minor}/{folder}/backing_file");
        let name = fs::read_to_string(path).ok()?;
        Some(PathBuf::from(name.trim_end_matches('\n')))
    })
}

/// Whether another program uses the file below a loop device. Only tries the locks, because
/// partitions of one device may have several users.
fn look_at_backing_file(below: &Path, read_only: bool) -> Result<(), FileProblem> {
    // Files of another user or mount namespace cannot be examined.
    let Ok(file) = File::open(below) else { return Ok(()) };
    let is_locked = match read_only {
        true => matches!(file.try_lock_shared(), Err(fs::TryLockError::WouldBlock)),
        false => matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock)),
    };
    match is_locked || is_refused(&file, read_only) {
        true => Err(in_use(below, read_only)),
        false => Ok(()),
    }
}

/// The process that has the file open, and its command, as far as this user can see. `asking`: the
/// open files of this process that belong to the question itself.
pub(in crate::file) fn holder(path: &Path, asking: usize) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let own = std::process::id();
    let mut numbers: Vec<u32> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    // This process last: it has the file open to ask.
    numbers.sort_by_key(|&number| (number == own, number));
    let least = |number| if number == own { asking + 1 } else { 1 };
    let Some(number) = numbers.into_iter().find(|&number| has_open(number, &path, least(number)))
    else {
        return "a process that this user cannot see".to_owned();
    };
    if number == own {
        return "this target, as another disk".to_owned();
    }
    let command = fs::read_to_string(format!("/proc/{number}/comm")).unwrap_or_default();
    format!("process {number} ({})", command.trim_end())
}

/// Whether a process has the path open at least `least` times.
fn has_open(number: u32, path: &Path, least: usize) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{number}/fd")).into_iter().flatten().flatten();
    let links = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok());
    links.filter(|link| link == path).take(least).count() == least
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(path: &Path, read_only: bool) -> File {
        File::options().read(true).write(!read_only).open(path).expect("the file opens")
    }

    #[test]
    fn byte_locks_keep_out_what_qemu_would_keep_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk.img");
        fs::write(&path, [0; 512]).expect("a file");
        for (first, second, is_let_in) in
            [(false, false, false), (false, true, false), (true, false, false), (true, true, true)]
        {
            let (one, other) = (opened(&path, first), opened(&path, second));
            claim(&one, &path, first).expect("the file is free");
            assert_eq!(claim(&other, &path, second).is_ok(), is_let_in, "{first} {second}");
            if !is_let_in {
                release(&one);
                claim(&other, &path, second).expect("what was refused holds no lock");
            }
        }
    }

    #[test]
    fn a_path_on_another_mount_is_not_looked_at() {
        let mounts = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            40 21 0:50 / /run/disk rw - fuse.farblock farblock rw\n\
            41 21 0:60 / /data rw - btrfs /dev/sdb rw\n";
        let device = rustix::fs::makedev(8, 1);
        assert!(may_have(mounts, Path::new("/srv/disk.img"), device));
        assert!(!may_have(mounts, Path::new("/run/disk/disk"), device), "a FUSE disk");
        assert!(may_have(mounts, Path::new("/data/v/disk.img"), device), "a subvolume");
        assert!(!may_have(mounts, Path::new("/srv/disk.img"), rustix::fs::makedev(8, 2)));
    }

    #[test]
    fn a_refusal_names_the_user() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk.img");
        fs::write(&path, [0; 512]).expect("a file");
        let (one, other) = (opened(&path, false), opened(&path, false));
        claim(&one, &path, false).expect("the file is free");
        let refused = claim(&other, &path, false).expect_err("in use");
        assert!(
            matches!(&refused, FileProblem::InUse { by, .. } if by.contains("this target")),
            "{refused:?}"
        );
    }
}
