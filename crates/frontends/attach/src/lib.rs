//! Serves a namespace as a disk to local programs, the local kernel and virtual machines.
//!
//! Each protocol (FUSE, NBD, ublk and so on) has its own module. A module takes a
//! [`Namespace`](farblock_block::Namespace), usually a remote one, and serves it over the protocol
//! until the caller stops the server. Clients see the namespace's size and block size, and whether
//! it is writable and supports deallocation and flushes.
//!
//! # Not implemented
//!
//! The callers choose a protocol, supervise a server and restart it: this crate does not.

#[cfg(target_os = "linux")]
pub mod fuse;
pub mod nbd;
#[cfg(target_os = "linux")]
pub mod ublk;
#[cfg(target_os = "linux")]
pub mod vhost_user;
