//! Finds other users of a file or device that take no `flock`: QEMU, loop devices, swap.
//!
//! QEMU locks single bytes of an image with open file description locks (`block/file-posix.c`). It
//! locks byte 100 + n while it uses permission n. It locks byte 200 + n while it denies permission
//! n to other programs. farblock takes the same locks, so QEMU refuses an image that farblock uses,
//! and farblock refuses an image that QEMU uses.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use farblock_reactor::loop_device::Underlying;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use super::beneath;
use crate::error::FileProblem;

/// A program locks byte `USED + n` while it uses permission n.
const USED: i64 = 100;
/// A program locks byte `UNSHARED + n` while it denies permission n to other programs.
const UNSHARED: i64 = 200;
/// QEMU's number of the permission to read consistent data.
const READ: i64 = 0;
/// QEMU's number of the permission to write.
const WRITE: i64 = 1;
/// QEMU's number of the permission to change the file's size.
const RESIZE: i64 = 3;

/// Returns the permissions that farblock needs on the file of a disk.
fn needed(read_only: bool) -> &'static [i64] {
    if read_only { &[READ] } else { &[READ, WRITE, RESIZE] }
}

/// The permissions that farblock denies to other programs.
const EXCLUSIVE: [i64; 2] = [WRITE, RESIZE];

/// Takes QEMU's locks for as long as the file is open, and checks for other users.
///
/// # Errors
/// Returns [`FileProblem::InUse`], which names the other user.
pub(in crate::file) fn claim(file: &File, path: &Path, read_only: bool) -> Result<(), FileProblem> {
    let claimed = claim_bytes(file, path, read_only).and_then(|()| match file.metadata() {
        Ok(found) => beneath::look(&found, read_only),
        Err(_) => Ok(()),
    });
    claimed.inspect_err(|_| release(file))
}

/// Releases QEMU's locks.
pub(in crate::file) fn release(file: &File) {
    // Unlock from the first byte of the lower group to the last byte of the upper group.
    let _ = set(file, libc::F_UNLCK, USED, 2 * (UNSHARED - USED));
}

fn claim_bytes(file: &File, path: &Path, read_only: bool) -> Result<(), FileProblem> {
    let used = needed(read_only).iter().map(|permission| USED + permission);
    let unshared = EXCLUSIVE.iter().map(|permission| UNSHARED + permission);
    for byte in used.chain(unshared) {
        if let Err(error) = set(file, libc::F_RDLCK, byte, 1) {
            // QEMU takes only shared locks on these bytes. A program with an exclusive lock on such
            // a byte is not QEMU, but also uses the file.
            if error.kind() == io::ErrorKind::WouldBlock {
                return Err(in_use(path, read_only));
            }
            // The file system has no such locks, or the file is open only for writing. The locks of
            // other programs may still be visible.
            tracing::debug!(%error, "{} has no byte locks", path.display());
            break;
        }
    }
    match is_refused(file, read_only) {
        true => Err(in_use(path, read_only)),
        false => Ok(()),
    }
}

/// Whether another program uses a permission that farblock denies, or denies a permission that
/// farblock needs.
pub(in crate::file) fn is_refused(file: &File, read_only: bool) -> bool {
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

/// Whether another open file holds a lock on the byte.
fn is_locked_elsewhere(file: &File, byte: i64) -> bool {
    let mut found = range(libc::F_WRLCK, byte, 1);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut found)).is_ok()
        && i32::from(found.l_type) != libc::F_UNLCK
}

fn in_use(path: &Path, read_only: bool) -> FileProblem {
    let by = match holder(path, 1) {
        hidden if hidden == HIDDEN => VIRTUAL_MACHINE.to_owned(),
        named => named,
    };
    FileProblem::InUse { by, read_only }
}

/// The program with a conflicting lock on a file or device, from the kernel's list of locks.
pub(super) fn lock_of_another(thing: Underlying, read_only: bool) -> Option<String> {
    let list = fs::read_to_string("/proc/locks").unwrap_or_default();
    let lock = list
        .lines()
        .filter_map(Lock::parse)
        .find(|lock| lock.thing() == thing && lock.conflicts(read_only))?;
    Some(process(lock.process).unwrap_or_else(|| HIDDEN.to_owned()))
}

/// The process that has locked the whole file, from the kernel's list of locks.
fn locker(path: &Path) -> Option<String> {
    let thing = fs::metadata(path).ok().map(|found| Underlying::of_inode(&found))?;
    let list = fs::read_to_string("/proc/locks").unwrap_or_default();
    let own = std::process::id();
    let mut locks = list.lines().filter_map(Lock::parse);
    let lock =
        locks.find(|lock| lock.thing() == thing && lock.is_whole && lock.process != Some(own))?;
    process(lock.process)
}

/// A line of `/proc/locks`.
struct Lock {
    /// Whether this is a `flock` instead of a lock on bytes.
    is_whole: bool,
    excludes: bool,
    /// The process id of the owner; `None` for open file description locks.
    process: Option<u32>,
    device: u64,
    inode: u64,
    first: i64,
    last: i64,
}

impl Lock {
    /// Parses a line such as `1: FLOCK  ADVISORY  WRITE 3548 fe:00:1234 0 EOF`.
    fn parse(line: &str) -> Option<Lock> {
        let mut words = line.split_whitespace().skip(1);
        // If the process still waits for the lock, the kernel prints `->` here.
        let kind = words.next()?;
        let excludes = words.nth(1)? == "WRITE";
        let process = words.next()?.parse().ok();
        let mut file = words.next()?.split(':');
        let major = u32::from_str_radix(file.next()?, 16).ok()?;
        let minor = u32::from_str_radix(file.next()?, 16).ok()?;
        let inode = file.next()?.parse().ok()?;
        let first = words.next()?.parse().ok()?;
        let last = words.next()?.parse().unwrap_or(i64::MAX);
        let is_whole = match kind {
            "FLOCK" => true,
            "OFDLCK" | "POSIX" => false,
            _ => return None,
        };
        let device = rustix::fs::makedev(major, minor);
        Some(Lock { is_whole, excludes, process, device, inode, first, last })
    }

    fn thing(&self) -> Underlying {
        Underlying::File { device: self.device, inode: self.inode }
    }

    fn conflicts(&self, read_only: bool) -> bool {
        if self.is_whole {
            return self.excludes || !read_only;
        }
        let used = EXCLUSIVE.iter().map(|permission| USED + permission);
        let unshared = needed(read_only).iter().map(|permission| UNSHARED + permission);
        used.chain(unshared).any(|byte| (self.first..=self.last).contains(&byte))
    }
}

const HIDDEN: &str = "a process that this user cannot see";
/// The user to report for a byte lock. The kernel does not name the owner of a byte lock, and a
/// sandbox hides the open files of other processes.
const VIRTUAL_MACHINE: &str =
    "a program with QEMU's locks, such as a virtual machine (`farblock doctor FILE` names it)";

/// A process by its id and its command, as in `process 4123 (qemu-system-x86)`.
fn process(number: Option<u32>) -> Option<String> {
    let number = number?;
    if number == std::process::id() {
        return Some("this target, as another disk".to_owned());
    }
    let command = fs::read_to_string(format!("/proc/{number}/comm")).ok()?;
    Some(format!("process {number} ({})", command.trim_end()))
}

/// The process that has the file open, with its command, as far as this user can see. `asking` is
/// the number of times that this process has opened the file for this check.
pub(in crate::file) fn holder(path: &Path, asking: usize) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let own = std::process::id();
    let mut numbers: Vec<u32> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    // This process comes last, because it has opened the file for this check.
    numbers.sort_by_key(|&number| (number == own, number));
    let least = |number| if number == own { asking + 1 } else { 1 };
    let Some(number) = numbers.into_iter().find(|&number| has_open(number, &path, least(number)))
    else {
        // A sandbox hides the open files of other processes, but not their locks.
        return locker(&path).unwrap_or_else(|| HIDDEN.to_owned());
    };
    process(Some(number)).unwrap_or_else(|| HIDDEN.to_owned())
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
        File::options().read(true).write(!read_only).open(path).expect("a file that can be opened")
    }

    #[test]
    fn byte_locks_exclude_the_same_users_as_qemus_locks() {
        let folder = tempfile::tempdir().expect("a temporary folder is created");
        let path = folder.path().join("disk.img");
        fs::write(&path, [0; 512]).expect("the file is written");
        for (first, second, is_let_in) in
            [(false, false, false), (false, true, false), (true, false, false), (true, true, true)]
        {
            let (one, other) = (opened(&path, first), opened(&path, second));
            claim(&one, &path, first).expect("the file is free");
            assert_eq!(claim(&other, &path, second).is_ok(), is_let_in, "{first} {second}");
            if !is_let_in {
                release(&one);
                claim(&other, &path, second).expect("the refused open holds no lock");
            }
        }
    }

    #[test]
    fn a_refusal_names_the_user_of_the_file() {
        let folder = tempfile::tempdir().expect("a temporary folder is created");
        let path = folder.path().join("disk.img");
        fs::write(&path, [0; 512]).expect("the file is written");
        let (one, other) = (opened(&path, false), opened(&path, false));
        claim(&one, &path, false).expect("the file is free");
        let refused = claim(&other, &path, false).expect_err("two users claimed the file");
        assert!(
            matches!(&refused, FileProblem::InUse { by, .. } if by.contains("this target")),
            "{refused:?}"
        );
    }
}
