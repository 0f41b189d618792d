//! Namespaces made of several namespaces that may be lost.
//!
//! A [`Mirror`] keeps the same blocks on two or more *legs*: files, devices, or remote disks, any
//! [`Namespace`](farblock_block::Namespace). It goes on while one of them is left, remembers on the
//! others what the lost one lacks, and copies just that when it is back.
//!
//! # Contract
//!
//! **Acknowledged is on every leg that is in sync.** A write completes when each leg has it that
//! the legs' own records call in sync. A leg that failed, or that is away, is recorded as behind,
//! durably and on every other leg, before a write that it lacks is acknowledged. A flush likewise.
//!
//! **Reads come from legs in sync**, from the one that is expected to answer first. A read that
//! fails is tried on another one. Reads never go back in time: where a power cut may have left legs
//! that differ, the range is made equal before it is read.
//!
//! **The last leg in sync is never put out**: its errors are the mirror's.
//!
//! **Two histories are refused.** Legs that were each written without the other are never put
//! together: a person says which one counts.
//!
//! **Nothing is overwritten unasked.** A leg without a record is taken in only when that is asked
//! for ([`Taking::Empty`]), and only if it looks empty.
//!
//! # What it does not do
//!
//! Parity, changing the size, moving legs between mirrors, checksums (a leg that returns wrong data
//! without an error is found by [`Mirror::verify`], and nobody can say which one is right), and
//! deciding who may use the legs: two processes with one mirror destroy it. Files and devices are
//! locked by their backend; for remote legs that is up to reservations or whoever fails over.

#![forbid(unsafe_code)]

pub mod limits;
pub mod mirror;

pub use mirror::{
    LegSource, LegState, Mirror, MirrorError, MirrorOptions, MirrorStatus, Taking, mirror_of,
};
