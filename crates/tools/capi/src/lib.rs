//! libfarblock: remote namespaces for programs in C, and for whatever can call C.
//!
//! A thin layer over `farblock-host`: what a call means is said there and in `farblock-block`; the
//! header made of this crate, `engines/include/farblock.h`, says it again for its readers.
//!
//! # Contract
//!
//! **Hostile arguments.** Null and misaligned pointers, and sizes, flags and ranges that make no
//! sense, give a status and a sentence ([`fb_last_error`](status::fb_last_error)). What nobody
//! can check is the caller's duty: that memory is as long as the caller says, and that handles are
//! alive.
//!
//! **No panic leaves.** One of ours ends in `FB_STATUS_BUG`; the handle answers so ever after.
//!
//! **No copies.** Data is received into the caller's memory and sent from it.
//!
//! **Threads.** A disk may be used by any thread; a queue only by the one that opened it, since its
//! event loop belongs to a thread. Both belong to a process: after a fork every call that they are
//! given to answers `FB_STATUS_THREAD` at once, and closing them does nothing. The child may
//! connect again, whatever the parent's threads were doing.
//!
//! **Connections come and go.** A disk is a `farblock_host::Disk`: one that is lost is made again,
//! over one path or several, and what was in flight is finished then. How long that may take is in
//! the options.
//!
//! # Not implemented
//!
//! A callback for changes of a disk (`fb_info.changes` is to be looked at), admin commands, a
//! descriptor to wait for completions on (the event loop has none that tells all of its reasons to
//! wake), cancelling an operation of a queue, closing one of a queue's disks.

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
