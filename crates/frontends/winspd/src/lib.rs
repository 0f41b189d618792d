//! Serves a disk to Windows through WinSpd.
//!
//! **Overview.** [`Server::start`] opens a namespace and makes a WinSpd storage unit from it. For
//! Windows, the unit is an ordinary disk: it can have partitions, drive letters and NTFS. WinSpd's
//! driver passes Windows' requests to WinSpd's library, which the server loads when it starts. The
//! library calls callbacks of this crate. Each callback passes its request to the worker, and
//! returns at once. The worker is one thread with an event loop and a queue into the namespace. It
//! answers each request when its operations have completed, so all requests from Windows run
//! concurrently.
//!
//! **Contract.** Windows sees the disk's size and block size, and whether the disk is writable,
//! supports unmap, and has a cache to flush. An answered flush makes earlier writes durable. An
//! answered write is durable if it has FUA or the namespace has no volatile cache. Errors carry
//! SCSI sense data. While the namespace is disconnected, requests wait until the namespace fails
//! them. Windows abandons a request after 60 seconds (a registry setting), and may reuse the
//! request's hint (its identifier). The server then answers only the new request.
//!
//! **Device names.** [`Device::Pipe`] is WinSpd's own test mode, which needs no driver: the library
//! serves a named pipe. A client connects to `\\.\pipe\NAME\0`; the library sends 128 bytes of
//! parameters to the first client. After that, each message is a request or an answer of 48 bytes.
//! A request is followed by the data to write or the ranges to unmap, and an answer by the data
//! read.
//!
//! **Not implemented.** Notifying Windows of a new size, which WinSpd does not support: detach and
//! attach the disk instead. Finding the users of a disk. Dismounting the disk's volumes before the
//! server stops. ARM64, for which WinSpd has no library.

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

/// A notice that WinSpd's licence requires every program to show that uses WinSpd.
pub const NOTICE: &str = "WinSpd - Windows Storage Proxy Driver, Copyright (C) Bill Zissimopoulos, \
                          https://github.com/winfsp/winspd";

/// The page to download WinSpd from.
pub const RELEASES: &str = "https://github.com/winfsp/winspd/releases";
