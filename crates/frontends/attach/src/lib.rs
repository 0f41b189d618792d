//! Serves a namespace as a disk for programs, for the local kernel and for virtual machines.
//!
//! Each protocol has its own module. Each module takes a [`Namespace`](farblock_block::Namespace),
//! usually a remote one, and serves it over that protocol until the caller stops the server.
//! Clients see the namespace's own size and block size, and whether it can be written, deallocated
//! and flushed.
//!
//! # Not implemented
//!
//! Choosing a protocol, supervising a server and restarting it: the command line does these.

#[cfg(target_os = "linux")]
pub mod fuse;
pub mod nbd;
#[cfg(target_os = "linux")]
pub mod ublk;
#[cfg(target_os = "linux")]
pub mod vhost_user;
