//! libfarblock: remote namespaces for programs in C, and in languages that can call C.
//!
//! A thin layer over `farblock-host`. The documentation of `farblock-host` and `farblock-block`
//! defines its calls; the header generated from this crate, `engines/include/farblock.h`, repeats
//! it for C programmers.
//!
//! # Contract
//!
//! **Hostile arguments.** Null and misaligned pointers, and invalid sizes, flags and ranges, give a
//! status and a sentence ([`fb_last_error`](status::fb_last_error)). The library cannot check that
//! memory is as long as the caller says, or that handles are alive: that is the caller's duty.
//!
//! **No panic leaves.** A call that panics returns `FB_STATUS_BUG`, as does every later call with
//! its handle.
//!
//! **No copies.** Data is received into the caller's memory and sent from it.
//!
//! **Threads.** Any thread may use a disk. Only the thread that opened a queue may use it, since
//! its event loop belongs to a thread. Disks and queues belong to a process: after a fork every
//! call with them returns `FB_STATUS_THREAD` at once, and closing them does nothing. The child may
//! connect again, even if the parent's threads were in calls.
//!
//! **Connections come and go.** A disk is a `farblock_host::Disk`: it reconnects lost connections,
//! over one path or several, and then finishes the operations in flight. The options limit how long
//! that may take.
//!
//! # Not implemented
//!
//! A callback for changes of a disk (poll `fb_info.changes`), admin commands, a descriptor to wait
//! for completions (the event loop has none that covers all its wakeups), cancelling an operation
//! of a queue, and closing one of a queue's disks.

#![allow(non_camel_case_types, reason = "the names of the C interface")]

pub mod discover;
pub mod disk;
mod fork;
mod limits;
mod memory;
pub mod options;
pub mod paths;
pub mod queue;
pub mod status;
mod waiting;
mod worker;

#[cfg(test)]
mod tests;
