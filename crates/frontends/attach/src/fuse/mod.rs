//! A FUSE mount with one file in it: a namespace as a file, and, for root, as a block device.
//!
//! **Overview.** [`Server::start`] opens a namespace, mounts a directory and serves one file in
//! it, as large as the namespace. It needs a kernel with FUSE, and root or `fusermount3`.
//! [`loop_device`] makes a real block device from the file, without NVMe, NBD or ublk in the
//! kernel.
//!
//! **Contract.** The file has the size of the namespace, and is writable if the namespace is.
//! `fsync` and the `close` of a writer are flushes, and a write with `O_DSYNC` is durable. The file
//! does not grow, shrink, or change its mode. `O_TRUNC` has no effect, as with a device. Truncating
//! to another size fails (except `truncate` by path to 0, which the server cannot distinguish from
//! `O_TRUNC`). Programs can read and write any range of bytes: the server reads, changes and writes
//! back a partial block while its other writes wait.
//!
//! `fallocate` punches a hole with a write zeroes that may deallocate, since a hole must read as
//! zeroes, which [`Command::Deallocate`](farblock_block::Command::Deallocate) does not promise. If
//! the namespace cannot deallocate, punching fails (`EOPNOTSUPP`), and a loop device stops
//! discarding. Zeroing a range (`FALLOC_FL_ZERO_RANGE`) always works.
//!
//! The kernel does not cache the file (`FOPEN_DIRECT_IO`), with or without `O_DIRECT`. All clients
//! see the same bytes, errors reach the program that caused them, and there are no dirty pages that
//! only this process could clean. A shared mapping needs Linux 6.6. Programs that read byte by byte
//! without a buffer are slow.
//!
//! **Threads.** Several threads of the library read requests from the kernel, each from its own
//! channel. The same number of cores execute the requests, each with a reactor and a queue. Any
//! number of requests is in flight, and each is answered when it completes. If a core fails, all
//! requests fail from then on, and none hangs.
//!
//! **Signals.** A request that has waited for a second ends when its thread receives a signal or
//! exits. Reads and flushes end with `EINTR` at once. A write ends with `EINTR` only if the
//! namespace can withdraw it before it starts, so that it never takes effect later. A started write
//! keeps its caller waiting until its result is known.
//!
//! **Users.** [`Server::stop`] and [`loop_device::detach`] refuse while the disk is in use and name
//! its users, unless the caller forces them. The next server at the same mountpoint cleans up after
//! a killed server, and so does [`clean_up`].
//!
//! **Restarts.** If another process keeps [`Server::connection`], the mount outlives a killed
//! server. Users of the mount, and of a loop device on it, wait until [`Server::resume`].
//!
//! **Rights.** A [`Mounter`] does the steps that need root or its setuid helper. A server in an
//! unprivileged process uses a mounter in another process ([`Server::start_with`]).
//!
//! **Not implemented.** FUSE over io_uring, which the library (fuser 0.18) does not have; splicing;
//! a file for each of several namespaces; telling holes from data (`SEEK_DATA` finds data
//! everywhere); loop devices for users without root.

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
/// Synchronisation of the cores' inboxes.
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
