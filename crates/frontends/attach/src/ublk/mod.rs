//! A kernel block device, `/dev/ublkbN`, that this process serves through Linux's ublk.
//!
//! **Overview.** [`Server::start`] makes a device from a namespace, with several hardware queues.
//! Each queue has a thread with its own event loop and its own queue into the namespace. Requests
//! arrive as completions of an io_uring, and the kernel copies their data once. The server needs
//! the kernel module `ublk_drv` of Linux 6.5 or later. It also needs root, or a machine that lets
//! other users make their own devices (`UBLK_F_UNPRIVILEGED_DEV`).
//!
//! **Contract.** The device has the namespace's size, block size, preferred I/O sizes, write and
//! discard support, and volatile cache if there is one. The server passes flushes, writes with FUA,
//! discards and Write Zeroes requests to the namespace. It retries nothing: a failed request
//! returns its error to the program at once. From Linux 6.16 on, the device shows a new size at
//! once ([`Server::resized`]).
//!
//! **Recovery.** If the server of a recoverable device dies, the device remains, and its users'
//! requests wait for [`Server::recover`]. The kernel also keeps the requests, with their data, that
//! the dead server had received but not answered. It sends these requests to the next server
//! (`UBLK_F_USER_RECOVERY_REISSUE`), so a write may be executed twice. A repeated write is harmless
//! while its writer waits for the answer, because the writer cannot have written the same blocks
//! again. A repeated write is harmful if the dead server's write takes effect *after* the next
//! server's.
//!
//! A dead process starts no operation. But its earlier operations may still be in transit: in a
//! socket, at a target, or in a local disk's queue. So `recover` waits for [`Config::settle`]
//! before it lets the kernel send requests again. The namespace may also help. With
//! [`farblock_host`'s disk], the target refuses a host's new controller while operations of the old
//! controller are in flight. An operation that arrives even later could undo later writes; decision
//! 10 describes the remaining risk.
//!
//! [`farblock_host`'s disk]: https://docs.rs/farblock-host
//!
//! **Users.** [`Server::stop`] and [`detach`] refuse while the device is mounted, part of another
//! device, used for swap, or open, and name its users. Both first open the device exclusively
//! (`O_EXCL`), so that it gets no new users. With `force`, both ignore users. A forced stop waits
//! [`limits::DRAIN_TIMEOUT`] for the requests in flight, and then fails them.
//!
//! A server's thread must not wait for its own device while the kernel writes memory to the device.
//! So threads that run as root mark themselves as needed for the kernel's writeback
//! (`PR_SET_IO_FLUSHER`). Even so, do not swap to a device that a process on the same machine
//! serves.
//!
//! **Not implemented.** Blocks of more than 4096 bytes; kernels before 6.5; zero copy (the
//! namespace has its own buffers); zones. The device does not adopt changes of the namespace's
//! write protection.

mod driver;
mod kernel;
pub mod limits;
mod server;
mod uapi;
mod worker;

pub use driver::Error;
pub use farblock_frontend::users::User;
pub use server::{Config, Server, StartError, StopError, THREAD_NAME_PREFIX, detach};
