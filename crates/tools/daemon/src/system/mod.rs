//! What attachments need of the system they are on, with the same names for each: folders and locks
//! of their own, processes that outlive who started them and can be talked to, and a socket that
//! only who may open the folder can use.
//!
//! A lock is an open file that nobody else can lock, for as long as any process has it open: so it
//! can be handed over without a moment in which nobody has it. What the standard library calls a
//! lock is not that on Windows, where a lock is a process's and ends with it.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(windows)]
mod windows;

#[cfg(target_os = "linux")]
pub(super) use linux::*;
#[cfg(windows)]
pub(super) use windows::*;
