//! The proof that no operation of an ended process is in flight at a disk.
//!
//! A process may end before its operations: the kernel executes io_uring requests that it has
//! started. Each request holds a reference to the open file (`req->file`, which `io_put_file`
//! releases together with the request). The member has locked that open file with `flock`. Such a
//! lock belongs to the open file description, not to the process (flock(2)), and `__fput` releases
//! it (`locks_remove_file` in fs/file_table.c), which runs after the last reference. A thread in a
//! blocking system call holds a reference, too. So once the member has ended and another process
//! gets the lock, all requests of the member have ended. An operation that the kernel has failed
//! counts as ended, as in a planned move of the leadership.
//!
//! The page cache may still hold data, therefore a `fdatasync` follows.
//!
//! **Not covered.** File systems whose clients may leave a request in flight when a signal kills
//! the process, such as NFS, Ceph and FUSE. Only block devices and the file systems in [`PROVEN`]
//! count.

use rustix::fs::{FileType, FlockOperation, fdatasync, flock, fstat, fstatfs};
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// The types of file systems (statfs(2)) on which a signal cannot end a direct I/O request before
/// its disk operation: ext4, XFS, Btrfs, F2FS and tmpfs.
const PROVEN: [u64; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];

/// The pause between attempts at a lock.
const PAUSE: Duration = Duration::from_millis(2);

/// A disk of the member. `None`: the watchdog cannot check whether operations on it have ended.
#[derive(Debug)]
pub(crate) struct Disk(Option<File>);

impl Disk {
    /// Opens a disk that the member has open and locked.
    pub(crate) fn open(path: Option<&Path>) -> Self {
        let file = path.and_then(|path| File::open(path).ok());
        Self(file.filter(|file| has_lock_of_another(file).unwrap_or(false)))
    }

    /// Whether the watchdog can check that operations on this disk have ended.
    pub(crate) fn can_prove(&self) -> bool {
        self.0.is_some()
    }

    /// Waits until no operation of the ended process is in flight, or until `end`. Returns whether
    /// there is proof.
    pub(crate) fn is_quiet(&self, end: Instant) -> bool {
        let Some(file) = &self.0 else { return false };
        while flock(file, FlockOperation::NonBlockingLockExclusive).is_err() {
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(PAUSE);
        }
        let is_unlocked = flock(file, FlockOperation::Unlock).is_ok();
        is_unlocked && fdatasync(file).is_ok()
    }
}

/// Whether another open file has the exclusive lock. False on file systems outside [`PROVEN`].
fn has_lock_of_another(file: &File) -> io::Result<bool> {
    let is_device = FileType::from_raw_mode(fstat(file)?.st_mode) == FileType::BlockDevice;
    let kind = u64::try_from(fstatfs(file)?.f_type).unwrap_or(0);
    if !is_device && !PROVEN.contains(&kind) {
        return Ok(false);
    }
    match flock(file, FlockOperation::NonBlockingLockShared) {
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(error.into()),
        Ok(()) => {
            flock(file, FlockOperation::Unlock)?;
            Ok(false)
        }
    }
}
