//! A host and a target in one thread, with a virtual network, disk and clock, all from one seed.
//!
//! **What it is.** [`World`] joins `proto`'s host side and its controller side through pipes that
//! delay, split, merge and cut what they carry, in front of a disk that completes operations late
//! and out of order. A run is a function of its seed: a failure prints it, and the seed brings it
//! back. [`Target`] alone is what the fuzzer feeds with bytes.
//!
//! **What it does not cover.** The drivers: sockets, threads and buffers of `target` and `host`
//! have tests of their own.

#![forbid(unsafe_code)]

pub mod fuzz;
mod host;
mod pipe;
mod random;
mod target;
mod world;

pub use random::Random;
pub use target::{BLOCK_BYTES, BLOCKS, Disk, NQN, Target};
pub use world::{Faults, World};
