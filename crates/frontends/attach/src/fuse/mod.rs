//! A FUSE mount with one file in it: a namespace as a file, and, for root, as a block device.
//!
//! **What it is.** [`Server::start`] opens a namespace, mounts a directory and serves one file in
//! it, as large as the namespace. It takes a kernel with FUSE, and root or `fusermount3`.
//! [`loop_device`] makes a real block device of the file: with no NVMe, NBD or ublk in the kernel.
//!
//! **Contract.** The file is the namespace: its size, whether it can be written, `fsync` and
//! `close` of whoever wrote are flushes, a write with `O_DSYNC` is durable. It does not grow,
//! shrink, or change its mode; opening it with `O_TRUNC` does nothing, as with a device, and
//! truncating it to another size fails (`truncate` by path to 0 looks like `O_TRUNC` here). Any
//! range of bytes can be read and written: less than a block is read, changed and written back,
//! while other writes of this server wait.
//!
//! `fallocate` punches holes by zeroing with leave to deallocate, since a hole has to read as
//! zeroes and [`Command::Deallocate`](farblock_block::Command::Deallocate) does not promise it.
//! Where the namespace gives nothing back, there are no holes (`EOPNOTSUPP`), and a loop device
//! learns that it cannot discard. Zeroing a range (`FALLOC_FL_ZERO_RANGE`) always works.
//!
//! The kernel caches nothing of the file (`FOPEN_DIRECT_IO`), whether a client opens it with
//! `O_DIRECT` or not: all see the same bytes, errors reach whoever caused them, and there are no
//! dirty pages that only this process could clean. Mapping it shared takes Linux 6.6. Programs that
//! read it byte by byte without a buffer are slow.
//!
//! **Threads.** So many read requests from the kernel (the library's, each with a channel of its
//! own), and so many carry them out, each with a reactor and a queue: requests are in flight at any
//! depth, and answered as they are done. If one of the latter fails, all requests fail from then
//! on, and none hangs.
//!
//! **Signals.** A request that waits for a second or more ends when its thread gets a signal or
//! ends: reads and flushes with `EINTR` at once. A write ends with `EINTR` only if the namespace
//! gives it up unbegun, and is not carried out later. A write that was sent keeps its caller
//! waiting until its result is known.
//!
//! **Who uses it.** [`Server::stop`] and [`loop_device::detach`] refuse while somebody uses the
//! disk, and say who, unless they are forced. What a killed server left is cleaned up by the next
//! one that mounts at the same place, or by [`clean_up`].
//!
//! **Restarts.** If another process keeps [`Server::connection`], the mount outlives a killed
//! server, and whoever uses it, a loop device included, waits until [`Server::resume`] goes on.
//!
//! **Rights.** What takes root, or the helper that has its rights, is a [`Mounter`]'s: a server in
//! a process without rights has one in another process ([`Server::start_with`]).
//!
//! **Not implemented.** FUSE over io_uring, which the library (fuser 0.18) does not have; splicing;
//! a file for each of several namespaces; telling holes from data (`SEEK_DATA` finds data
//! everywhere); loop devices for whoever is not root.

mod callers;
mod core;
mod filesystem;
mod inboxes;
pub mod limits;
pub mod loop_device;
mod mount;
mod resume;
mod server;
mod shared;
/// Of the cores' inboxes.
mod sync {
    pub(super) use farblock_reactor::Waker;
    pub(super) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
}

pub use farblock_frontend::users::User;
pub use mount::{
    MountError, Mounter, Own, Way, available, clean_up, end, is_administrator, is_broken,
};
pub use server::{Config, Server, StartError, StopError, THREAD_NAME_PREFIX};
