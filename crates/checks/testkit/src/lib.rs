//! Test helpers that several crates share. The product does not depend on them.

mod counting;
mod waiting;

pub use counting::{Counting, allocations, allocations_here, allocations_marked, live_bytes, mark};
pub use waiting::eventually;
