//! Backends: the namespaces that store blocks.
//!
//! | Module       | Description                                                              |
//! |--------------|--------------------------------------------------------------------------|
//! | [`null`]     | discards writes, reads zeroes: measures the cost of all other layers     |
//! | [`mem`]      | a RAM disk that allocates memory at the first write                      |
//! | [`mod@file`] | a regular file or a block device, with direct I/O where that works       |
//! | [`stripe`]   | RAID 0 over any namespaces                                               |
//! | [`concat`]   | any namespaces, concatenated                                             |
//! | [`range`]    | a part of any namespace                                                  |
//! | [`delay`]    | a decorator that makes any namespace slower                              |
//! | [`fault`]    | a decorator that makes chosen operations fail                            |
//! | [`limit`]    | a decorator with a budget of operations and bytes per second             |
//! | [`standby`]  | a DRBD device while another machine is its primary                       |
//!
//! [`Spec`] parses a namespace's name on the command line: `mem:1GiB`, `stripe:64KiB,a.img,b.img`,
//! `disk.img`. [`nodes`] finds the NUMA node of a disk.
//!
//! All of them keep the contract of [`farblock_block`] and run its conformance suite on both
//! engines. After warm-up, `null`, `mem`, `file` and `stripe` do not allocate per operation. The
//! exceptions are in `mem`: the first write of a chunk, and a write of a chunk whose old contents
//! are still being sent.
//!
//! # Not here
//!
//! Mirrors (they are in `farblock-volumes`), parity, thin provisioning and snapshots, encryption,
//! image formats (qcow2), and online resize except for files and devices. Block devices are
//! supported on Linux only.

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
pub use spec::{DEFAULT_CHUNK_BYTES, KINDS, REMOTE_SCHEME, Spec, SpecError};
