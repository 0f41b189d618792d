//! What the tests of several crates need. Nothing of the product depends on it.

mod counting;
mod waiting;

pub use counting::{Counting, allocations, allocations_here, allocations_marked, live_bytes, mark};
pub use waiting::eventually;
