//! Serves a namespace as a disk for programs, for the local kernel and for virtual machines.
//!
//! Each way to attach has its own module. Each takes a
//! [`Namespace`](farblock_block::Namespace), usually a remote one, and serves it over another
//! project's protocol until the caller stops it. Clients see the namespace's own size and block
//! size, and whether it can be written, deallocated and flushed.
//!
//! # Not implemented
//!
//! The command line chooses a way, supervises it and remembers it across a restart.

#[cfg(target_os = "linux")]
pub mod fuse;
pub mod nbd;
#[cfg(target_os = "linux")]
pub mod ublk;
#[cfg(target_os = "linux")]
pub mod vhost_user;
