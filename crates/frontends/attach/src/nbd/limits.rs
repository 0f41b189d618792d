//! Every limit of the server, with its unit.

pub use farblock_frontend::limits::{MERGES_PER_TURN, PIECE_BYTES};
use std::time::Duration;

/// Connections that a server holds at once; one more is closed at accept.
pub const MAX_CONNECTIONS: usize = 256;

/// Threads of a server.
pub const MAX_THREADS: usize = 64;

/// Data that one read or write moves at most, in bytes: what the specification has clients expect.
pub const MAX_PAYLOAD_BYTES: u32 = 32 << 20;

/// Block operations of one request.
pub const MAX_PIECES: u32 = 1 << 14;

/// Requests of one connection in flight; what is beyond stays in the socket.
pub const MAX_REQUESTS: usize = 256;

/// Data buffers that the requests of one connection hold at once, in bytes. A connection beyond it
/// is not read from.
pub const CONNECTION_BUFFER_BYTES: usize = 64 << 20;

/// Data buffers that all requests of a thread hold at once, in bytes. Beyond it a connection is
/// still let have one request's, so that nobody can starve another.
/// It is less where the process may use little memory ([`farblock_reactor::allowance`]).
pub const CORE_BUFFER_BYTES: usize = 512 << 20;

/// Bytes waiting to be sent beyond which a connection is not read from: a client that does not
/// take its answers cannot ask for more.
pub const OUTBOX_BYTES: usize = 2 << 20;

/// Capacity for headers that a connection keeps between sends, in bytes.
pub const KEPT_BATCH_BYTES: usize = 64 << 10;

/// Payload that is worth receiving straight into its destination, in bytes. Below it, copying out
/// of a receive that may hold several requests is cheaper than a system call of its own.
pub const DIRECT_RECEIVE_BYTES: usize = 16 << 10;

/// What is received after a large payload, in bytes: the next header, and little of its data.
pub const HEADER_RECEIVE_BYTES: u32 = 256;

/// Data of one option, in bytes; a longer one is skipped and refused.
pub const MAX_OPTION_BYTES: u32 = 16 << 10;

/// Options that one negotiation may take.
pub const MAX_OPTIONS: u32 = 256;

/// Time from accept to the end of the negotiation.
pub const NEGOTIATION_TIMEOUT: Duration = Duration::from_secs(10);

/// Time that a stopping server gives accepted requests to finish.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Rounds of completions and answers before the event loop is looked at again: a namespace that
/// completes at once must not keep a thread from everything else.
pub const ROUNDS_PER_TICK: usize = 8;
