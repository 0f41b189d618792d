//! Limits that several frontends share, with their units.

/// Data of one block operation, in bytes, so that the buffers of large requests come from the pool.
/// Larger requests become several operations.
pub const PIECE_BYTES: u32 = 1 << 20;

/// Unaligned writes that a thread executes while all other writes wait.
pub const MERGES_PER_TURN: usize = 32;
