//! A block device of the kernel's own, `/dev/ublkbN`, served by this process: Linux's ublk.
//!
//! **What it is.** [`Server::start`] makes a device of a namespace, with several hardware queues,
//! each of which a thread serves with a reactor and a queue of its own. Requests come as
//! completions of an io_uring and their data is copied by the kernel, once: the nearest that a disk
//! in user space comes to a local one. It takes the module `ublk_drv` of Linux 6.5 or later, and
//! root, or a machine that is set up to let others make devices of their own
//! (`UBLK_F_UNPRIVILEGED_DEV`).
//!
//! **Contract.** The device is the namespace: its size, its block size, what it prefers to be read
//! and written in, whether it can be written and discarded, and whether it has a cache that has to
//! be flushed. Flushes, writes with FUA, discards and write zeroes are the namespace's own. Errors
//! reach whoever caused them, and nothing is tried twice. Where the kernel can
//! ([`Server::resized`]: 6.16), a new size shows at once.
//!
//! **It outlives its server.** A recoverable device whose server dies stays, and what its users
//! ask for waits until [`Server::recover`]; so does what the dead server was asked and had not
//! answered: the kernel holds those requests, data and all, and gives them to the successor
//! (`UBLK_F_USER_RECOVERY_REISSUE`). A write may so be carried out twice. That is harmless as long
//! as the first time is not *after* the second, since whoever asked for it was told of neither, and
//! so cannot have written the same blocks again in between. A dead process starts nothing, but what
//! it had started may still be on its way: in a socket, at a target, in a local disk's queue.
//! `recover` therefore waits for [`Config::settle`] before anything is given out again, besides
//! what the namespace itself does ([`farblock_host`'s disk] has its target refuse a host's new
//! controller while the old one's operations are under way). What takes longer than that to arrive
//! could undo what was written since; decision 10 says what remains.
//!
//! [`farblock_host`'s disk]: https://docs.rs/farblock-host
//!
//! **Who uses it.** [`Server::stop`] and [`detach`] refuse while the device is mounted, part of
//! another, swapped to, or open, and say who has it, unless they are forced. To be sure that nobody
//! begins meanwhile they take the device for themselves first (`O_EXCL`). A forced stop gives
//! requests under way [`limits::DRAIN_TIMEOUT`], and then fails them.
//!
//! A process whose memory the kernel wants to write to such a device must not wait for that device:
//! the threads say so to the kernel when they are root's, but swap on a device that a process of
//! the same machine serves stays a bad idea.
//!
//! **Not implemented.** Blocks of more than 4096 bytes; kernels before 6.5; zero copy (the
//! namespace's buffers are its own); zones; showing that a namespace has become read-only or
//! writable while it is attached.

mod driver;
mod kernel;
pub mod limits;
mod server;
mod uapi;
mod worker;

pub use driver::Error;
pub use farblock_frontend::users::User;
pub use server::{Config, Server, StartError, StopError, THREAD_NAME_PREFIX, detach};
