//! Operating system services for attachments, with the same names on each system: private folders,
//! locks, daemon processes with message channels, and a socket for users who can open the folder.
//!
//! A lock is an open file that no other process can lock while any process has it open. So a
//! process can pass its lock to another, without a moment at which the lock is free. The standard
//! library's locks cannot do this on Windows: there a lock belongs to one process.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(windows)]
mod windows;

#[cfg(target_os = "linux")]
pub(super) use linux::*;
#[cfg(windows)]
pub(super) use windows::*;
