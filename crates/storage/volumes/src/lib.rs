//! Namespaces that survive the loss of a disk: mirrors.
//!
//! A [`Mirror`] keeps the same blocks on two or more *legs*: files, devices, remote disks, or any
//! other [`Namespace`](farblock_block::Namespace). A leg is *in sync* if it has all data. The
//! mirror works while one leg in sync remains. When a leg is lost, the mirror records on the other
//! legs in which regions the lost leg lacks data. When the leg returns, the mirror copies only
//! these regions.
//!
//! # Contract
//!
//! **An acknowledged write is on every leg in sync.** A write completes after every leg that the
//! mirror's records list as in sync has completed it. If a leg has failed or is unavailable, all
//! other legs first record durably that this leg is behind. Only after that does the mirror
//! acknowledge writes and flushes that this leg has missed.
//!
//! **Reads use legs in sync.** The mirror prefers the leg that it expects to answer first. It
//! retries a failed read on another leg. A read never returns older data than an earlier read.
//! After a power cut the legs may hold different data; the mirror makes them equal before it reads.
//!
//! **The mirror puts a failed leg *out***: it stops using the leg. It never puts out the last leg
//! in sync, but reports the errors of this leg as its own.
//!
//! **The mirror refuses split histories.** If two legs were each written without the other, the
//! mirror never joins them. An operator decides which one to keep.
//!
//! **The mirror overwrites no data without a request.** It adds a leg without a record only on
//! request ([`Taking::Empty`]), and only if the leg looks empty.
//!
//! # Limits
//!
//! Mirrors have no parity and no checksums, cannot be resized, and cannot move legs to another
//! mirror. [`Mirror::verify`] finds a leg that silently returns wrong data, but cannot tell which
//! leg is right. Mirrors do not decide which process may use the legs, and two processes that open
//! the same mirror destroy it. For files and devices, the backends' locks prevent this. For remote
//! legs, use reservations or a failover manager.

#![forbid(unsafe_code)]

pub mod limits;
pub mod mirror;

pub use mirror::{
    LegSource, LegState, Mirror, MirrorError, MirrorOptions, MirrorStatus, Taking, mirror_of,
};
