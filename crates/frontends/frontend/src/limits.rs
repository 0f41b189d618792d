//! Limits that several frontends share, with their units.

/// The most data of one block operation, in bytes. Larger requests become several operations, so
/// that their buffers come from the pool.
pub const PIECE_BYTES: u32 = 1 << 20;

/// The most partial-block writes that a thread executes in a row while all other writes wait.
pub const MERGES_PER_TURN: usize = 32;
