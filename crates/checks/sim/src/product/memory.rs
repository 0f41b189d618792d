//! Checks that the target's memory for its peers stays within the limit, and that no buffer leaks.

use super::model::BLOCK_BYTES;
use super::server::TARGET;
use super::{MOST_BLOCKS, Plan};
use farblock_reactor::sim::{World, tally};
use farblock_target::limits;

/// Checks the highest memory use of the run. Call this while the target runs without connections.
pub(super) fn check(world: &World, plan: &Plan) {
    let usual = (limits::BUFFER_BYTES / plan.cores).max(limits::CORE_BUFFER_BYTES_MIN);
    let limit = plan.core_buffer_bytes.unwrap_or(usual);
    // A core grants a single command the memory that the command needs, even above the limit, so
    // allow for one large command.
    let largest = (MOST_BLOCKS as usize * BLOCK_BYTES).next_power_of_two();
    let most = (limit + limit / limits::RESERVE_SHARE).max(largest);
    let highest = world.highest("target: bytes that a core's peers hold");
    assert!(highest > 0, "the target counts no memory");
    assert!(highest <= most, "a core's peers hold {highest} bytes; the limit is {most}");
}

/// Checks that no buffers are left when hosts and targets are closed.
pub(super) fn check_end(machines: impl IntoIterator<Item = u32>) {
    for machine in machines.into_iter().chain([TARGET]) {
        let left = tally::of(machine).now_bytes;
        assert_eq!(left, 0, "machine {machine} has not freed this many bytes of buffers");
    }
}
