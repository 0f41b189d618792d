//! The product in one thread, with a virtual network, disk and clock, all from one seed.
//!
//! **What it is.** `product::run` (with the feature `product`) has the host's `Disk` use the target
//! over a network and disks of a simulated world (`farblock_reactor::sim`), has things go wrong,
//! and checks every answer against a model. A run is a function of its seed: a failure prints it,
//! and the seed brings it back, byte for byte. [`Target`], the protocol's controller side on a disk
//! of its own, is what the fuzzer feeds with bytes.
//!
//! **What it does not cover.** The engines for real systems, and threads that really run at the
//! same time: those have tests of their own.

#![forbid(unsafe_code)]

pub mod fuzz;
#[cfg(feature = "product")]
pub mod product;
mod target;

pub use target::{BLOCK_BYTES, BLOCKS, Disk, NQN, Target};
