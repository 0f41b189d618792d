//! Backends: the namespaces that store blocks.
//!
//! | Module       | Description                                                              |
//! |--------------|--------------------------------------------------------------------------|
//! | [`null`]     | discards writes, reads zeroes: measures the cost of all other layers     |
//! | [`mem`]      | a RAM disk that allocates memory at the first write                      |
//! | [`mod@file`] | a regular file or a block device, with direct I/O if that works          |
//! | [`stripe`]   | RAID 0 over any namespaces                                               |
//! | [`concat`]   | a concatenation of any namespaces                                        |
//! | [`range`]    | a part of any namespace                                                  |
//! | [`delay`]    | a decorator that delays the completions of any namespace                 |
//! | [`fault`]    | a decorator that makes selected operations fail                          |
//! | [`limit`]    | a decorator that limits operations and bytes per second                  |
//! | [`standby`]  | a DRBD device while another machine is its primary                       |
//!
//! [`Spec`] parses the name of a namespace on the command line: `mem:1GiB`,
//! `stripe:64KiB,a.img,b.img`, `disk.img`. [`nodes`] finds the NUMA node of a disk.
//!
//! All backends keep the contract of [`farblock_block`], and pass its conformance suite on both
//! engines of the reactor (io_uring and portable). After warm-up, `null`, `mem`, `file` and
//! `stripe` do not allocate per operation. `mem` has two exceptions: the first write of a chunk,
//! and a write of a chunk whose old contents a reader still borrows.
//!
//! # Not here
//!
//! This crate has no mirrors (they are in `farblock-volumes`), parity, thin provisioning,
//! snapshots, encryption, or image formats (qcow2). Only files and devices can be resized while
//! they are open. Stripe sets, concatenations and ranges of them then adapt their size. The crate
//! supports block devices on Linux, and raw disks on Windows.

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
mod open;
pub mod range;
mod set;
mod spec;
pub mod standby;
pub mod stripe;

pub use error::{FileProblem, OpenError};
pub use open::OpenElsewhere;
pub use spec::{DEFAULT_CHUNK_BYTES, KINDS, REMOTE_RDMA_SCHEME, REMOTE_SCHEME, Spec, SpecError};
