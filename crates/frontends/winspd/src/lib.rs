//! A disk of Windows, through WinSpd.
//!
//! **What it is.** [`Server::start`] opens a namespace and makes a storage unit of WinSpd of it: a
//! disk like any other to Windows, with partitions, drive letters and NTFS. WinSpd's driver gives
//! what Windows asks of that disk to its library, which is loaded when the server starts, and that
//! to a few functions here. Each hands the request to one thread with a reactor and a queue into
//! the namespace, and returns at once; the answer is sent when the operations have ended. So as
//! many requests are under way as Windows sends.
//!
//! **Contract.** Windows sees the size, the block size, and whether the disk can be written, has a
//! cache to flush, and can be unmapped. What is answered as durable is: a flush, a write with FUA,
//! and without a volatile cache every write. Errors come with the sense data that SCSI has for
//! them. While the way to the namespace is lost, requests wait, as long as it says. Windows gives a
//! request up after 60 seconds, unless its registry says otherwise, and may give its name to
//! another; then that one is answered, and the first is not.
//!
//! **Device names.** [`Device::Pipe`] is WinSpd's own way to test without a driver: its library
//! serves a named pipe. `\\.\pipe\NAME\0` then gives the first client 128 bytes of parameters;
//! after that each message is a request of 48 bytes, with what is to be written or unmapped, or an
//! answer of 48 bytes, with what was read.
//!
//! **Not implemented.** Telling Windows a new size, which WinSpd cannot: detach and attach again.
//! Who uses the disk, and dismounting its volumes before it is taken away. ARM64, for which WinSpd
//! has no library.

#![cfg_attr(not(windows), allow(dead_code, reason = "only what is tested anywhere is built there"))]

mod core;
#[cfg(windows)]
mod library;
pub mod limits;
#[cfg(windows)]
mod server;
mod shared;
mod status;
mod uapi;

#[cfg(windows)]
pub use server::{Device, Options, Server, StartError, THREAD_NAME_PREFIX};

/// What whoever shows that WinSpd is used has to show as well: its licence asks for it.
pub const NOTICE: &str = "WinSpd - Windows Storage Proxy Driver, Copyright (C) Bill Zissimopoulos, \
                          https://github.com/winfsp/winspd";

/// Where to download WinSpd.
pub const RELEASES: &str = "https://github.com/winfsp/winspd/releases";
