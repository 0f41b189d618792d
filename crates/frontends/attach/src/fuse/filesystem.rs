//! Answers the kernel's FUSE requests for the mounted directory, which contains one file: the disk.
//!
//! A reader thread answers a request for names or attributes itself. It passes reads, writes,
//! flushes and `fallocate` to a core: a thread with an event loop and a queue into the namespace.

use super::callers::Caller;
use super::limits;
use super::shared::{Job, MountShared, Reply};
use farblock_block::{Command, Geometry};
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs,
    ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{FallocateFlags, OFlags};
use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const ROOT: INodeNo = INodeNo::ROOT;
/// The inode number of the disk's file.
pub(super) const FILE: INodeNo = INodeNo(2);

/// The time for which the kernel may cache the file's attributes. The server invalidates this cache
/// when the size changes.
const REMEMBER: Duration = Duration::from_secs(3600);
/// The kernel must not cache the directory's attributes, so that `stat` of a dead server's mount
/// fails.
const FORGET: Duration = Duration::ZERO;

/// The handle of every open for reading only. Every other open has the handle [`WRITES`].
const READS: FileHandle = FileHandle(0);
const WRITES: FileHandle = FileHandle(1);

/// The unit of `st_blocks`, in bytes. It does not depend on the block size.
const STAT_BLOCK_BYTES: u64 = 512;

thread_local! {
    /// The number of the core that executes this thread's requests.
    static CORE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The file system that the fuser library serves.
pub(super) struct Disk {
    pub(super) shared: Arc<MountShared>,
    pub(super) name: OsString,
    /// Whether users other than the user who mounted have access.
    pub(super) for_all: bool,
    pub(super) mounted_at: SystemTime,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl Disk {
    fn attributes(&self, inode: INodeNo) -> Option<(Duration, FileAttr)> {
        let Geometry { block_size, read_only, .. } = self.shared.geometry();
        let (ttl, kind, size, writable, perm) = match inode {
            ROOT => {
                (FORGET, FileType::Directory, 0, false, if self.for_all { 0o755 } else { 0o700 })
            }
            FILE => {
                let perm = if self.for_all { 0o666 } else { 0o600 };
                (REMEMBER, FileType::RegularFile, self.shared.capacity_bytes(), !read_only, perm)
            }
            _ => return None,
        };
        let attributes = FileAttr {
            ino: inode,
            size,
            blocks: size / STAT_BLOCK_BYTES,
            atime: self.mounted_at,
            mtime: self.mounted_at,
            ctime: self.mounted_at,
            crtime: self.mounted_at,
            kind,
            perm: if kind == FileType::Directory || writable { perm } else { perm & 0o444 },
            nlink: if kind == FileType::Directory { 2 } else { 1 },
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            blksize: block_size,
            flags: 0,
        };
        Some((ttl, attributes))
    }

    fn core(&self) -> usize {
        CORE.get().unwrap_or_else(|| {
            let core = self.shared.core_of_reader();
            CORE.set(Some(core));
            core
        })
    }

    fn post(&self, job: Job) {
        self.shared.inboxes().post_work(self.core(), job);
    }

    fn flush(&self, request: &Request, reply: ReplyEmpty) {
        let (reply, command, caller) = (Reply::Done(reply), Command::Flush, caller(request));
        self.post(Job { reply, caller, command, offset: 0, length: 0, fua: false, buffer: None });
    }

    /// The length of the part of a request's range that is inside the namespace, in bytes.
    fn clamp(&self, offset: u64, length: u64) -> u64 {
        length.min(self.shared.capacity_bytes().saturating_sub(offset))
    }
}

/// True if a `setattr` requests another size. The truncation to 0 by `open` with `O_TRUNC` does not
/// count: the server ignores it.
fn resizes(asked: u64, size: u64, handle: Option<FileHandle>) -> bool {
    asked != size && (asked != 0 || handle.is_some())
}

fn caller(request: &Request) -> Caller {
    Caller(request.pid())
}

/// The command that executes a `fallocate`. `None` if the server does not support the mode.
///
/// `Deallocate` is not sufficient: a hole must read as zeroes, and the loop device punches holes to
/// zero ranges. `WriteZeroes` with `deallocate` zeroes the range and frees its space.
fn zeroing(mode: i32, geometry: &Geometry) -> Option<Command> {
    let flags = FallocateFlags::from_bits_retain(mode.cast_unsigned());
    match flags - FallocateFlags::KEEP_SIZE {
        // Without deallocation, punching a hole would write zeroes and free no space.
        FallocateFlags::PUNCH_HOLE if !geometry.deallocate => None,
        FallocateFlags::PUNCH_HOLE => Some(Command::WriteZeroes { deallocate: true }),
        FallocateFlags::ZERO_RANGE => Some(Command::WriteZeroes { deallocate: false }),
        _ => None,
    }
}

impl Filesystem for Disk {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Enable two optional kernel features: asynchronous direct I/O, and shared mappings of
        // files that the kernel does not cache.
        for wish in [InitFlags::FUSE_ASYNC_DIO, InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP] {
            if config.add_capabilities(wish).is_err() {
                tracing::debug!("the kernel's FUSE lacks {wish:?}");
            }
        }
        let resends = config.add_capabilities(InitFlags::FUSE_HAS_RESEND).is_ok();
        self.shared.set_resends(resends);
        let limits = (
            config.set_max_write(limits::MAX_REQUEST_BYTES),
            config.set_max_background(limits::MAX_BACKGROUND),
            config.set_congestion_threshold(limits::MAX_BACKGROUND),
        );
        assert!(matches!(limits, (Ok(_), Ok(_), Ok(_))), "the library accepts these limits");
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(FILE) {
            Some((ttl, file)) if parent == ROOT && name == self.name => {
                reply.entry(&ttl, &file, Generation(0));
            }
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode) {
            Some((ttl, attributes)) => reply.attr(&ttl, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    /// Refuses changes of the disk's size, owner or mode. Ignores `O_TRUNC`, as a device does, so
    /// that `cp` and `dd` can write to the file. Refuses `ftruncate`, which passes a file handle;
    /// `O_TRUNC` passes none.
    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(Errno::EPERM);
        }
        match self.attributes(inode) {
            Some((_, file)) if size.is_some_and(|size| resizes(size, file.size, handle)) => {
                reply.error(Errno::EINVAL);
            }
            Some((ttl, attributes)) => reply.attr(&ttl, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    /// Opens the file without a kernel cache. So readers see the namespace's data, and a failed
    /// write returns its error to the program that wrote. The kernel never waits for this process
    /// to write back cached pages.
    fn open(&self, _: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let reads = flags.acc_mode() == OpenAccMode::O_RDONLY;
        if inode != FILE {
            return reply.error(Errno::EISDIR);
        }
        if !reads && self.shared.geometry().read_only {
            return reply.error(Errno::EROFS);
        }
        let direct = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(if reads { READS } else { WRITES }, direct);
    }

    fn read(
        &self,
        request: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let length = self.clamp(offset, u64::from(size));
        if length == 0 {
            return reply.data(&[]);
        }
        let (reply, command, caller) = (Reply::Read(reply), Command::Read, caller(request));
        self.post(Job { reply, caller, command, offset, length, fua: false, buffer: None });
    }

    fn write(
        &self,
        request: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let length = self.clamp(offset, data.len() as u64) as usize;
        let Geometry { block_size, read_only, .. } = self.shared.geometry();
        if read_only || length == 0 {
            let beyond = if data.is_empty() { Errno::EINVAL } else { Errno::ENOSPC };
            return reply.error(if read_only { Errno::EROFS } else { beyond });
        }
        let start = (offset & u64::from(block_size - 1)) as usize;
        let whole = (start + length).next_multiple_of(block_size as usize);
        let mut buffer = self.shared.inboxes().buffer(self.core(), whole);
        buffer[start..start + length].copy_from_slice(&data[..length]);
        let flags = OFlags::from_bits_retain(flags.0.cast_unsigned());
        self.post(Job {
            reply: Reply::Write(reply),
            caller: caller(request),
            command: Command::Write,
            offset,
            length: length as u64,
            fua: flags.contains(OFlags::DSYNC),
            buffer: Some(buffer),
        });
    }

    fn flush(
        &self,
        request: &Request,
        _: INodeNo,
        fh: FileHandle,
        _: LockOwner,
        reply: ReplyEmpty,
    ) {
        match fh {
            WRITES => self.flush(request, reply),
            _ => reply.ok(),
        }
    }

    fn fsync(&self, request: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.flush(request, reply);
    }

    fn fallocate(
        &self,
        request: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let geometry = self.shared.geometry();
        let Some(command) = zeroing(mode, &geometry) else {
            return reply.error(Errno::EOPNOTSUPP);
        };
        let inside = self.clamp(offset, length);
        let grows = mode.cast_unsigned() & FallocateFlags::KEEP_SIZE.bits() == 0;
        if geometry.read_only {
            return reply.error(Errno::EROFS);
        }
        if inside < length && grows {
            return reply.error(Errno::ENOSPC);
        }
        if inside == 0 {
            return reply.ok();
        }
        let (reply, caller) = (Reply::Done(reply), caller(request));
        self.post(Job { reply, caller, command, offset, length: inside, fua: false, buffer: None });
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rmdir(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn mkdir(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        reply.error(Errno::EPERM);
    }

    fn rename(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: INodeNo,
        _: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EPERM);
    }

    fn readdir(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        if inode != ROOT {
            return reply.error(Errno::ENOTDIR);
        }
        let entries = [
            (ROOT, FileType::Directory, OsStr::new(".")),
            (ROOT, FileType::Directory, OsStr::new("..")),
            (FILE, FileType::RegularFile, &self.name),
        ];
        for (index, (inode, kind, name)) in (1..).zip(entries) {
            if index > offset && reply.add(inode, index, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    /// Reports the block size, which the loop device uses as its discard granularity.
    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let Geometry { block_size, blocks, .. } = self.shared.geometry();
        reply.statfs(blocks, 0, 0, 1, 0, block_size, limits::MAX_NAME_BYTES as u32, block_size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fallocate_modes_map_to_zeroing_commands() {
        let geometry = Geometry { deallocate: true, ..Geometry::new(512, 1) };
        let keeps_all = Geometry { deallocate: false, ..geometry };
        let zeroes = |deallocate| Some(Command::WriteZeroes { deallocate });
        // The values are FALLOC_FL_KEEP_SIZE 1, PUNCH_HOLE 2, COLLAPSE_RANGE 8, and ZERO_RANGE
        // 0x10.
        assert_eq!(zeroing(3, &geometry), zeroes(true));
        assert_eq!(zeroing(3, &keeps_all), None);
        assert_eq!(zeroing(0x10, &geometry), zeroes(false));
        assert_eq!(zeroing(0x11, &keeps_all), zeroes(false));
        for mode in [0, 1, 8, 0x13, -1] {
            assert_eq!(zeroing(mode, &geometry), None, "mode {mode:#x}");
        }
    }
}
