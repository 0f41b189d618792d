//! Namespaces to share: where the blocks really are.
//!
//! | Module       | What it is                                                               |
//! |--------------|--------------------------------------------------------------------------|
//! | [`null`]     | throws writes away, reads zeroes: shows what everything around it costs  |
//! | [`mem`]      | a RAM disk, allocated as it is written                                   |
//! | [`mod@file`] | a regular file or a block device, with direct I/O where that works       |
//! | [`stripe`]   | RAID 0 over any namespaces                                               |
//! | [`concat`]   | any namespaces, one behind the other                                     |
//! | [`range`]    | a part of any namespace                                                  |
//! | [`delay`]    | a decorator that makes any namespace slower                              |
//! | [`fault`]    | a decorator that makes chosen operations fail                            |
//! | [`limit`]    | a decorator with a budget of operations and bytes per second             |
//! | [`standby`]  | a device of DRBD, while another machine is its primary                   |
//!
//! [`Spec`] is how people name one on a command line: `mem:1GiB`, `stripe:64KiB,a.img,b.img`,
//! `disk.img`. [`nodes`] finds out at which node of a machine (NUMA) a disk is.
//!
//! All keep the contract of [`farblock_block`] and run its conformance suite on both engines.
//! `null`, `mem`, `file` and `stripe` allocate nothing per operation once they have warmed up,
//! apart from memory that `mem` hands out at the first write of a chunk, and when one is written
//! while its old contents are still being sent.
//!
//! # Not here
//!
//! Mirrors (they are in `farblock-volumes`), parity, thin provisioning and snapshots, encryption,
//! image formats (qcow2), and resizing anything but files and devices while it is open. Block
//! devices other than Linux's are refused.

#![forbid(unsafe_code)]

pub mod concat;
pub mod delay;
mod error;
pub mod fault;
pub mod file;
pub mod limit;
pub mod mem;
pub mod nodes;
pub mod null;
pub mod range;
mod set;
mod shared;
mod spec;
pub mod standby;
pub mod stripe;

pub use error::{FileProblem, OpenError};
pub use spec::{OpenElsewhere, REMOTE_SCHEME, Spec, SpecError};
