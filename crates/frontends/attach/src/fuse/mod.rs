//! A FUSE mount with one file: it serves a namespace as a file and, for root, as a block device.
//!
//! **Overview.** [`Server::start`] opens a namespace, mounts a directory and serves one file in it,
//! as large as the namespace. The server needs a kernel with FUSE, and root or `fusermount3`.
//! [`loop_device`] makes a real block device from the file, without NVMe, NBD or ublk in the
//! kernel.
//!
//! **Contract.** The file has the size of the namespace, and is writable if the namespace is.
//! `fsync`, or closing a file that was open for writing, flushes the namespace. A write with
//! `O_DSYNC` is durable. Programs cannot change the file's size, mode or owner. `O_TRUNC` has no
//! effect, as with a device. Truncating to another size fails (except `truncate` by path to 0,
//! which the server cannot distinguish from `O_TRUNC`). Programs can read and write any range of
//! bytes. For a partial block, the server reads the block, changes it and writes it back, while
//! other writes wait.
//!
//! To punch a hole, `fallocate` sends a Write Zeroes command that may deallocate. A hole must read
//! as zeroes, which [`Command::Deallocate`](farblock_block::Command::Deallocate) does not promise.
//! If the namespace cannot deallocate, punching fails (`EOPNOTSUPP`), and a loop device stops
//! discarding. Zeroing a range (`FALLOC_FL_ZERO_RANGE`) always works.
//!
//! The kernel does not cache the file (`FOPEN_DIRECT_IO`), with or without `O_DIRECT`. So all
//! programs see the same bytes, and a failed write returns its error to the program that wrote. The
//! kernel holds no dirty pages that it can write back only through this process. A shared mapping
//! needs Linux 6.6. Every read becomes a request, so programs that read single bytes are slow.
//!
//! **Threads.** Several threads of the FUSE library read requests from the kernel, each from its
//! own descriptor. There are as many *cores*: threads that execute the requests, each with an event
//! loop and a queue into the namespace. Any number of requests can be in flight, and complete in
//! any order. If a core fails, all later requests fail at once.
//!
//! **Signals.** A signal to the calling thread, or its exit, interrupts a request that has waited
//! for a second. Reads and flushes then fail with `EINTR` at once. A write fails with `EINTR` only
//! if the namespace can withdraw it before it starts, so that an interrupted write never takes
//! effect later. The caller of a started write waits for its result.
//!
//! **Users.** [`Server::stop`] and [`loop_device::detach`] refuse while the disk is in use, and
//! name its users. With `force`, both ignore the users. After a server was killed, the next server
//! at the same mountpoint removes the old mount. [`clean_up`] also removes it.
//!
//! **Restarts.** If another process holds the descriptor from [`Server::connection`], the mount
//! outlives a killed server. Reads and writes then wait until a new server calls
//! [`Server::resume`].
//!
//! **Rights.** A [`Mounter`] executes the steps that need root or the setuid helper. A server in an
//! unprivileged process uses a mounter in another process ([`Server::start_with`]).
//!
//! **Not implemented.** FUSE over io_uring, which the library (fuser 0.18) does not support;
//! splicing; one file for each of several namespaces; a distinction between holes and data
//! (`SEEK_DATA` finds data everywhere); loop devices for users without root.

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
/// The synchronization types of the inboxes; `tests/fuse_inboxes.rs` replaces them with loom's.
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
