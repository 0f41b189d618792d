//! A namespace as a disk: for programs, for the machine's own kernel, and for virtual machines.
//!
//! Each way to attach is a module of its own. All of them take a
//! [`Namespace`](farblock_block::Namespace), usually a remote one, and serve it by somebody else's
//! protocol until they are told to stop. They show its size, its block size, and whether it can be
//! written, deallocated and flushed as the namespace itself says.
//!
//! # Not implemented
//!
//! Choosing a way, supervising it and remembering it across a restart are the command line's work.

#[cfg(target_os = "linux")]
pub mod fuse;
pub mod nbd;
#[cfg(target_os = "linux")]
pub mod ublk;
#[cfg(target_os = "linux")]
pub mod vhost_user;
