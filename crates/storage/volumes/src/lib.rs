//! Namespaces that survive the loss of a part: mirrors.
//!
//! A [`Mirror`] keeps the same blocks on two or more *legs*: files, devices, remote disks, or any
//! other [`Namespace`](farblock_block::Namespace). It works while one leg in sync remains, records
//! on the others the regions that a lost leg lacks, and copies only those when it returns.
//!
//! # Contract
//!
//! **An acknowledged write is on every leg in sync.** A write completes when every leg that the
//! records call in sync has it. If a leg failed or is away, all other legs first record durably
//! that it is behind; only then does the mirror acknowledge writes and flushes that this leg
//! missed.
//!
//! **Reads use legs in sync**, preferably the one that should answer first. A failed read is
//! retried on another leg. Reads never go back in time: where a power cut may have left different
//! data on the legs, the mirror makes them equal before it reads.
//!
//! **A leg that fails is put out**: the mirror stops using it. The last leg in sync is never put
//! out; its errors are reported as the mirror's.
//!
//! **Split histories are refused.** Legs that were each written without the other are never joined:
//! an operator decides which one to keep.
//!
//! **Nothing is overwritten without a request.** A leg without a record is added only on request
//! ([`Taking::Empty`]), and only if it looks empty.
//!
//! # Limits
//!
//! Mirrors have no parity, no resize, no move of legs between mirrors, and no checksums:
//! [`Mirror::verify`] finds a leg that silently returns wrong data, but cannot tell which leg is
//! right. They do not decide who may use the legs, and two processes with one mirror destroy it.
//! Backends lock files and devices; remote legs need reservations or a failover manager.

#![forbid(unsafe_code)]

pub mod limits;
pub mod mirror;

pub use mirror::{
    LegSource, LegState, Mirror, MirrorError, MirrorOptions, MirrorStatus, Taking, mirror_of,
};
