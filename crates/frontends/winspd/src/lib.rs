//! Serves a disk to Windows through WinSpd.
//!
//! **Overview.** [`Server::start`] opens a namespace and makes a WinSpd storage unit from it: an
//! ordinary disk to Windows, with partitions, drive letters and NTFS. WinSpd's driver passes
//! Windows' requests to its library, which the server loads when it starts. The library calls a few
//! functions here. Each passes the request to one thread with a reactor and a queue into the
//! namespace, and returns at once. The thread answers when the operations have completed, so all
//! requests that Windows sends are in progress at once.
//!
//! **Contract.** Windows sees the size and the block size, and whether the disk can be written and
//! unmapped, and has a cache to flush. These are durable once answered: a flush, a write with FUA,
//! and without a volatile cache every write. Errors have SCSI's sense data. While the connection to
//! the namespace is lost, requests wait, as long as the namespace says. Windows gives a request up
//! after 60 seconds, unless its registry says otherwise, and may reuse its hint. Then the server
//! answers the new request, and not the old one.
//!
//! **Device names.** [`Device::Pipe`] is WinSpd's own way to test without a driver: its library
//! serves a named pipe. `\\.\pipe\NAME\0` sends the first client 128 bytes of parameters. After
//! that each message is a request of 48 bytes, with the data to write or the ranges to unmap, or an
//! answer of 48 bytes, with the data read.
//!
//! **Not implemented.** Telling Windows a new size, which WinSpd cannot: detach and attach again.
//! Finding the users of a disk, and dismounting its volumes before it is taken away. ARM64, for
//! which WinSpd has no library.

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

/// The notice that WinSpd's licence requires from a program that shows its use of WinSpd.
pub const NOTICE: &str = "WinSpd - Windows Storage Proxy Driver, Copyright (C) Bill Zissimopoulos, \
                          https://github.com/winfsp/winspd";

/// Where to download WinSpd.
pub const RELEASES: &str = "https://github.com/winfsp/winspd/releases";
