//! A FUSE mount with one file: a namespace as a file and, for root, as a block device.
//!
//! **Overview.** [`Server::start`] opens a namespace, mounts a directory and serves one file in it,
//! as large as the namespace. The server needs a kernel with FUSE, and root or `fusermount3`.
//! [`loop_device`] makes a real block device from the file, without NVMe, NBD or ublk in the
//! kernel.
//!
//! **Contract.** The file has the size of the namespace, and is writable if the namespace is.
//! `fsync`, and a `close` by a writer, flush the namespace. A write with `O_DSYNC` is durable.
//! Programs cannot change the file's size, mode or owner. `O_TRUNC` has no effect, as with a
//! device. Truncating to another size fails (except `truncate` by path to 0, which the server
//! cannot distinguish from `O_TRUNC`). Programs can read and write any range of bytes. For a
//! partial block, the server reads the block, changes it and writes it back, while other writes
//! wait.
//!
//! To punch a hole, `fallocate` sends a Write Zeroes command that may deallocate. A hole must read
//! as zeroes, which [`Command::Deallocate`](farblock_block::Command::Deallocate) does not promise.
//! If the namespace cannot deallocate, punching fails (`EOPNOTSUPP`), and a loop device stops
//! discarding. Zeroing a range (`FALLOC_FL_ZERO_RANGE`) always works.
//!
//! The kernel does not cache the file (`FOPEN_DIRECT_IO`), with or without `O_DIRECT`. So all
//! clients see the same bytes, and errors reach the program that caused them. The kernel holds no
//! dirty pages that it can write back only through this process. A shared mapping needs Linux 6.6.
//! Programs that read byte by byte without a buffer are slow.
//!
//! **Threads.** Several threads of the library read requests from the kernel, each from its own
//! channel. The same number of cores execute the requests, each with a reactor and a queue. Any
//! number of requests is in flight, and a core answers each request when it completes. If a core
//! fails, all later requests fail, and none hangs.
//!
//! **Signals.** A request that has waited for a second ends when the thread that made it receives a
//! signal or exits. Reads and flushes end with `EINTR` at once. A write ends with `EINTR` only if
//! the namespace can withdraw it before it starts, so that it never takes effect later. The caller
//! of a started write waits until the result is known.
//!
//! **Users.** [`Server::stop`] and [`loop_device::detach`] refuse while the disk is in use, and
//! name its users. With `force`, they ignore the users. After a server was killed, the next server
//! at the same mountpoint removes the old mount. [`clean_up`] does the same.
//!
//! **Restarts.** If another process keeps [`Server::connection`], the mount outlives a killed
//! server. Users of the mount, and of a loop device on its file, wait until [`Server::resume`].
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
/// The synchronization types that the inboxes use.
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
