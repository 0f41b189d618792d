//! Serves a disk to Windows through WinSpd.
//!
//! **Overview.** [`Server::start`] opens a namespace and makes a WinSpd storage unit from it. To
//! Windows, the unit is an ordinary disk, with partitions, drive letters and NTFS. WinSpd's driver
//! passes Windows' requests to WinSpd's library, which the server loads when it starts. The library
//! calls callbacks of this crate. Each callback passes its request to one thread with a reactor and
//! a queue into the namespace, and returns at once. The thread answers a request when its
//! operations have completed, so all requests that Windows sends run concurrently.
//!
//! **Contract.** Windows sees the disk's size and block size, and whether the disk is writable,
//! supports unmap, and has a cache to flush. An answered flush makes earlier writes durable. An
//! answered write is durable if it has FUA or the namespace has no volatile cache. Errors carry
//! SCSI sense data. While the namespace is disconnected, requests wait as long as the namespace
//! allows. Windows abandons a request after 60 seconds (a registry setting), and may reuse the
//! request's hint (its identifier). The server then answers only the new request.
//!
//! **Device names.** [`Device::Pipe`] is WinSpd's own test mode, which needs no driver: the library
//! serves a named pipe. A client connects to `\\.\pipe\NAME\0`; the library sends 128 bytes of
//! parameters to the first client. After that, each message is a request or an answer of 48 bytes.
//! The data to write, or the ranges to unmap, follow a request. The data read follows an answer.
//!
//! **Not implemented.** Notifying Windows of a new size, which WinSpd does not support: detach and
//! attach the disk instead. Finding the users of a disk. Dismounting the disk's volumes before a
//! stop. ARM64, for which WinSpd has no library.

#![cfg_attr(not(windows), allow(dead_code, reason = "other systems build only the tested parts"))]

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

/// The notice that every program with WinSpd must show, as WinSpd's licence requires.
pub const NOTICE: &str = "WinSpd - Windows Storage Proxy Driver, Copyright (C) Bill Zissimopoulos, \
                          https://github.com/winfsp/winspd";

/// The page to download WinSpd from.
pub const RELEASES: &str = "https://github.com/winfsp/winspd/releases";
