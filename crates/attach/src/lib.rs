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
pub mod iscsi;
pub mod limits;
#[cfg(target_os = "linux")]
mod modules;
pub mod nbd;
#[cfg(target_os = "linux")]
pub mod nvme_fabrics;
mod pieces;
#[cfg(target_os = "linux")]
pub mod ublk;
#[cfg(target_os = "linux")]
pub mod users;
#[cfg(target_os = "linux")]
pub mod vhost_user;
#[cfg(any(windows, test))]
#[cfg_attr(not(windows), allow(dead_code, reason = "only what is tested anywhere is built there"))]
pub mod winspd;
mod writes;
