//! Runs the product in one thread, with a virtual network, disk and clock that depend on one seed.
//!
//! **Contents.** `product::run` (with the feature `product`) runs the host's `Disk` against the
//! target over the network and disks of a simulated world (`farblock_reactor::sim`). It injects
//! faults, and checks every answer against a model. A run is a function of its seed: a failure
//! prints the seed, which reproduces the run byte for byte. The fuzzer sends bytes to [`Target`]: a
//! target without a network, with a disk in memory.
//!
//! **Limits.** The simulation covers neither the event-loop engines (io_uring, epoll) nor threads
//! that run in parallel. Both have separate tests.

#![forbid(unsafe_code)]

pub mod fuzz;
#[cfg(feature = "product")]
pub mod product;
mod target;

pub use target::{BLOCK_BYTES, BLOCKS, Disk, NQN, Target};
