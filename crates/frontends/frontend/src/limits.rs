//! Limits that several frontends share, with their units.

/// The maximum length of one block operation, in bytes. The server splits a larger request into
/// several operations, so that their buffers fit the pool.
pub const PIECE_BYTES: u32 = 1 << 20;

/// The maximum number of merges (writes of partial blocks) that a thread executes in a row, while
/// all other writes wait.
pub const MERGES_PER_TURN: usize = 32;
