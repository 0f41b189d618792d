//! Byte layouts of the NVMe base, NVM, fabrics, TCP and RDMA structures: no_std, no unsafe, no I/O.
//!
//! **Overview.** The byte layouts of NVMe over Fabrics, without behaviour. Structures are
//! little-endian zerocopy structs with alignment 1, so callers can read and write them at any
//! offset of a buffer. Codes (opcodes, statuses, PDU types, ...) are open newtypes: an unknown
//! value survives a round trip and prints as hex.
//!
//! **Contract.**
//! - Every struct asserts its size and the offset of *every* field at compile time. The size alone
//!   is not enough: padding can hide the wrong offset of a field.
//! - `parse` takes bytes of any length and content and never panics. It returns `None` if there are
//!   too few bytes. It does not check values: the caller checks reserved bits and ranges.
//! - `emit` writes every byte of the structure, including reserved bytes. It panics if the buffer
//!   is too short, because that is a bug of the caller and not an error of the peer.
//! - The names of 0's-based fields, whose value 0 means one, end in `_z`. Functions that return the
//!   actual number have its unit in their names.
//!
//! **Specifications.** NVM Express Base Specification 2.0c ("Base 2.0c"), NVM Command Set
//! Specification 1.0c ("NVM 1.0c"), NVMe/TCP Transport Specification 1.0c ("TCP 1.0c"), NVMe/RDMA
//! Transport Specification 1.0c ("RDMA 1.0c"). Comments cite sections and figures by name.
//!
//! **Not implemented.** PRP lists and SGL segments (fabrics commands carry one descriptor), queues
//! and doorbells of the memory based transport, protection information formats, the Zoned and Key
//! Value command sets, directives, and NVMe-MI.
//!
//! Other crates compute digests (CRC-32C). This crate only computes the position of a digest in a
//! PDU.

#![no_std]
#![forbid(unsafe_code)]

#[macro_use]
mod macros;

pub mod auth;
pub mod contents;
pub mod event;
pub mod fabrics;
pub mod features;
pub mod identify;
pub mod log;
pub mod nqn;
pub mod nvm;
pub mod opcode;
pub mod origin;
pub mod property;
pub mod rdma;
pub mod reservation;
pub mod reset;
pub mod sgl;
pub mod sqe;
pub mod status;
pub mod tcp;
pub mod text;

pub use sgl::SglDescriptor;
pub use sqe::{Cqe, Sqe};
pub use status::Status;

/// The field types of this crate's structs, for callers that create or change a struct.
pub use zerocopy::little_endian::{U16, U32, U64, U128};
/// The traits that this crate's structs implement. Callers need not depend on zerocopy.
pub use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The namespace identifier that denotes every namespace (Base 2.0c, "Namespace Identifiers").
pub const NSID_BROADCAST: u32 = 0xffff_ffff;

/// Length in bytes of every Identify data structure (Base 2.0c, "Identify command").
pub const IDENTIFY_BYTES: usize = 4096;
