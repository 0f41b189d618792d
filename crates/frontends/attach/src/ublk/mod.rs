//! A kernel block device, `/dev/ublkbN`, that this process serves: Linux's ublk.
//!
//! **Overview.** [`Server::start`] makes a device from a namespace, with several hardware queues. A
//! thread serves each of them with its own reactor and namespace queue. Requests arrive as
//! completions of an io_uring, and the kernel copies their data once. It needs the module
//! `ublk_drv` of Linux 6.5 or later. It also needs root, or a machine that lets other users make
//! their own devices (`UBLK_F_UNPRIVILEGED_DEV`).
//!
//! **Contract.** The device has the namespace's size, block size, preferred I/O sizes, write and
//! discard support, and volatile cache if there is one. The namespace executes flushes, writes with
//! FUA, discards and write zeroes itself. Errors reach the program that caused them, and the server
//! retries nothing. From Linux 6.16 on, a new size shows at once ([`Server::resized`]).
//!
//! **It outlives its server.** A recoverable device stays when its server dies, and its users'
//! requests wait until [`Server::recover`]. The kernel also holds the requests that the dead server
//! had taken and not answered, with their data, and gives them to the successor
//! (`UBLK_F_USER_RECOVERY_REISSUE`). So a write may be executed twice. This is harmless as long as
//! the dead server's write does not take effect *after* the successor's: the writer got no answer
//! in between, so it cannot have written the same blocks again.
//!
//! A dead process starts no operation, but its earlier operations may still be on their way: in a
//! socket, at a target, in a local disk's queue. So `recover` waits for [`Config::settle`] before
//! it hands out a request again. The namespace takes its own precautions, too: with
//! [`farblock_host`'s disk] the target refuses a host's new controller while operations of the old
//! controller are in progress. An operation that arrives even later could undo later writes;
//! decision 10 describes the remaining risk.
//!
//! [`farblock_host`'s disk]: https://docs.rs/farblock-host
//!
//! **Users.** [`Server::stop`] and [`detach`] refuse while the device is mounted, part of another
//! device, used for swap, or open, and name its users, unless the caller forces them. They first
//! open the device exclusively (`O_EXCL`), so that it gets no new users. A forced stop gives
//! requests in progress [`limits::DRAIN_TIMEOUT`], and then fails them.
//!
//! A server must not wait for its own device while the kernel writes memory to the device. If they
//! run as root, the threads tell the kernel that they serve its writeback. Even so, do not swap to
//! a device that a process on the same machine serves.
//!
//! **Not implemented.** Blocks of more than 4096 bytes; kernels before 6.5; zero copy (the
//! namespace has its own buffers); zones; a namespace that becomes read-only or writable while it
//! is attached.

mod driver;
mod kernel;
pub mod limits;
mod server;
mod uapi;
mod worker;

pub use driver::Error;
pub use farblock_frontend::users::User;
pub use server::{Config, Server, StartError, StopError, THREAD_NAME_PREFIX, detach};
