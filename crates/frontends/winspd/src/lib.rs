//! Serves a disk to Windows through WinSpd.
//!
//! **Overview.** [`Server::start`] opens a namespace and makes a WinSpd storage unit from it: an
//! ordinary disk to Windows, with partitions, drive letters and NTFS. WinSpd's driver passes
//! Windows' requests to WinSpd's library, which the server loads when it starts. The library calls
//! back a few functions of this crate. Each passes the request to one thread with a reactor and a
//! queue into the namespace, and returns at once. The thread answers when the operations have
//! completed, so all requests that Windows sends are in progress at once.
//!
//! **Contract.** Windows sees the size and the block size, and whether the disk can be written and
//! unmapped, and has a cache to flush. An answered flush makes earlier writes durable. A write is
//! durable once answered if it has FUA or the namespace has no volatile cache. Errors have SCSI
//! sense data. While the connection to the namespace is lost, requests wait, for as long as the
//! namespace allows. Windows gives up a request after 60 seconds (set in its registry), and may
//! reuse the request's hint (its identifier). Then the server answers only the new request.
//!
//! **Device names.** [`Device::Pipe`] is WinSpd's own test mode without a driver: its library
//! serves a named pipe. `\\.\pipe\NAME\0` sends the first client 128 bytes of parameters. After
//! that each message is a request of 48 bytes, followed by the data to write or the ranges to
//! unmap, or an answer of 48 bytes, followed by the data read.
//!
//! **Not implemented.** Notifying Windows of a new size, which WinSpd does not support: detach and
//! attach again. Finding the users of a disk, and dismounting its volumes before a stop. ARM64, for
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

/// The notice that WinSpd's licence requires programs that use WinSpd to show.
pub const NOTICE: &str = "WinSpd - Windows Storage Proxy Driver, Copyright (C) Bill Zissimopoulos, \
                          https://github.com/winfsp/winspd";

/// Where to download WinSpd.
pub const RELEASES: &str = "https://github.com/winfsp/winspd/releases";
