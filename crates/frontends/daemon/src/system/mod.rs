//! Operating system services for attachments, with the same names on each system: private folders,
//! locks, daemon processes with message channels, and a socket for users who can open the folder.
//!
//! A lock is an open file that no other process can lock while any process has it open. So one
//! process can pass the lock to another without a gap. The standard library's locks do not work in
//! this way on Windows: there a lock belongs to a process and ends with it.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(windows)]
mod windows;

#[cfg(target_os = "linux")]
pub(super) use linux::*;
#[cfg(windows)]
pub(super) use windows::*;
