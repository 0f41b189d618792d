//! libfarblock: remote namespaces for programs in C, and in languages that can call C.
//!
//! This crate is a thin layer over `farblock-host`. The documentation of `farblock-host` and
//! `farblock-block` defines the behaviour of its calls. The header generated from this crate,
//! `engines/include/farblock.h`, repeats this behaviour for C programmers.
//!
//! # Contract
//!
//! **Hostile arguments.** Null and misaligned pointers, and invalid sizes, flags and ranges, return
//! a status and a sentence ([`fb_last_error`](status::fb_last_error)). The library cannot check
//! that memory is as long as the caller says, or that a handle still exists: this is the caller's
//! duty.
//!
//! **No panic leaves the library.** A call that panics returns `FB_STATUS_BUG`, as does every later
//! call with its handle.
//!
//! **No copies.** The library receives data into the caller's memory and sends data from it.
//!
//! **Threads.** Any thread may use a disk. Only the thread that opened a queue may use it, because
//! its event loop belongs to a thread. Disks and queues belong to a process. After a fork, every
//! call with them in the child returns `FB_STATUS_THREAD` at once, and closing them does nothing.
//! The child may connect again, even if the parent's threads were in calls.
//!
//! **Reconnecting.** A disk is a `farblock_host::Disk`. It reconnects lost connections, over one
//! path or several paths, and then finishes the operations in flight. The options limit the time
//! that this may take.
//!
//! # Not implemented
//!
//! A callback for changes of a disk (poll `fb_info.changes`). Admin commands. A descriptor to wait
//! for completions (no descriptor of the event loop covers all its wakeups). Cancelling an
//! operation of a queue. Removing a disk from a queue.

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
