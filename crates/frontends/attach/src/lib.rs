//! Serves a namespace as a disk for programs, for the local kernel and for virtual machines.
//!
//! Each protocol has its own module. A module takes a [`Namespace`](farblock_block::Namespace),
//! usually a remote one, and serves it over the protocol until the caller stops the server. Clients
//! see the namespace's size and block size, and whether it is writable and supports deallocation
//! and flushes.
//!
//! # Not implemented
//!
//! Choosing a protocol, and supervising and restarting a server: the command line does these.

#[cfg(target_os = "linux")]
pub mod fuse;
pub mod nbd;
#[cfg(target_os = "linux")]
pub mod ublk;
#[cfg(target_os = "linux")]
pub mod vhost_user;
