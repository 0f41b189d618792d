//! Operating system services for attachments, with the same names on each system: private folders
//! and locks, daemon processes with message channels, and a socket for users who may open the
//! folder.
//!
//! A lock is an open file that no other process can lock while any process has it open. So one
//! process can hand the lock to another without a gap. The standard library's locks do not work
//! like that on Windows, where a lock belongs to a process and ends with it.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(windows)]
mod windows;

#[cfg(target_os = "linux")]
pub(super) use linux::*;
#[cfg(windows)]
pub(super) use windows::*;
