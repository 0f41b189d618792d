//! What the tests of several crates need. Nothing of the product depends on it.

mod counting;

pub use counting::{Counting, allocations, allocations_here, allocations_marked, live_bytes, mark};
