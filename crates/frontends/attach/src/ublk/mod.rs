//! A kernel block device, `/dev/ublkbN`, that this process serves through Linux's ublk.
//!
//! **Overview.** [`Server::start`] makes a device from a namespace, with several hardware queues.
//! Each queue has a thread with its own reactor and namespace queue. Requests arrive as completions
//! of an io_uring, and the kernel copies their data once. The server needs the module `ublk_drv` of
//! Linux 6.5 or later. It also needs root, or a machine that lets other users make their own
//! devices (`UBLK_F_UNPRIVILEGED_DEV`).
//!
//! **Contract.** The device has the namespace's size, block size, preferred I/O sizes, write and
//! discard support, and volatile cache if there is one. The namespace itself executes flushes,
//! writes with FUA, discards, and Write Zeroes requests. Errors reach the program that caused them,
//! because the server retries nothing. From Linux 6.16 on, the device shows a new size at once
//! ([`Server::resized`]).
//!
//! **Recovery.** A recoverable device remains when its server dies, and its users' requests wait
//! for [`Server::recover`]. The kernel also holds the requests, with their data, that the dead
//! server had taken and not answered. The kernel hands these to the next server
//! (`UBLK_F_USER_RECOVERY_REISSUE`). So a write may be executed twice. This is harmless if the dead
//! server's write does not take effect *after* the write of the next server. The writer got no
//! answer in between, so it cannot have written the same blocks again.
//!
//! A dead process starts no operation. But its earlier operations may still be in transit: in a
//! socket, at a target, or in a local disk's queue. So `recover` waits for [`Config::settle`]
//! before the kernel hands out requests again. The namespace takes precautions, too. With
//! [`farblock_host`'s disk], the target refuses a host's new controller while operations of the old
//! controller are in flight. An operation that arrives even later could undo later writes; decision
//! 10 describes the remaining risk.
//!
//! [`farblock_host`'s disk]: https://docs.rs/farblock-host
//!
//! **Users.** [`Server::stop`] and [`detach`] refuse while the device is mounted, part of another
//! device, used for swap, or open, and name its users. The caller can force both functions. Unless
//! forced, both open the device exclusively (`O_EXCL`) first, so that it gets no new users. A
//! forced stop waits [`limits::DRAIN_TIMEOUT`] for the requests in flight, and then fails them.
//!
//! A server must not wait for its own device while the kernel writes memory to the device. If the
//! threads run as root, they mark themselves for the kernel as threads that its writeback depends
//! on. Even so, do not swap to a device that a process on the same machine serves.
//!
//! **Not implemented.** Blocks of more than 4096 bytes; kernels before 6.5; zero copy (the
//! namespace has its own buffers); zones. Changes of the namespace's write protection while it is
//! attached.

mod driver;
mod kernel;
pub mod limits;
mod server;
mod uapi;
mod worker;

pub use driver::Error;
pub use farblock_frontend::users::User;
pub use server::{Config, Server, StartError, StopError, THREAD_NAME_PREFIX, detach};
