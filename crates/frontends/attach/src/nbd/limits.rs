//! Every limit of the server, with its unit.

pub use farblock_frontend::limits::{MERGES_PER_TURN, PIECE_BYTES};
use std::time::Duration;

/// Connections that a server holds at once; one more is closed at accept.
pub const MAX_CONNECTIONS: usize = 256;

/// Threads of a server.
pub const MAX_THREADS: usize = 64;

/// Limit for the data of one read or write, in bytes; the specification tells clients to expect
/// this one.
pub const MAX_PAYLOAD_BYTES: u32 = 32 << 20;

/// Block operations of one request.
pub const MAX_PIECES: u32 = 1 << 14;

/// Requests of one connection in flight. Further ones stay in the socket.
pub const MAX_REQUESTS: usize = 256;

/// Data buffers that the requests of one connection hold at once, in bytes. Above it the server
/// does not read from the connection.
pub const CONNECTION_BUFFER_BYTES: usize = 64 << 20;

/// Data buffers that all requests of a thread hold at once, in bytes. Beyond it a connection is
/// still let have one request's, so that nobody can starve another.
/// It is less where the process may use little memory ([`farblock_reactor::allowance`]).
pub const CORE_BUFFER_BYTES: usize = 512 << 20;

/// Bytes waiting to be sent above which the server stops reading from a connection. A client that
/// does not read its answers cannot ask for more.
pub const OUTBOX_BYTES: usize = 2 << 20;

/// Capacity for headers that a connection keeps between sends, in bytes.
pub const KEPT_BATCH_BYTES: usize = 64 << 10;

/// Payload size from which receiving directly into its destination pays off, in bytes. Below it,
/// copying from a receive that may hold several requests costs less than a system call.
pub const DIRECT_RECEIVE_BYTES: usize = 16 << 10;

/// Size of the receive after a large payload, in bytes: the next header, and little of its data.
pub const HEADER_RECEIVE_BYTES: u32 = 256;

/// Data of one option, in bytes; a longer one is skipped and refused.
pub const MAX_OPTION_BYTES: u32 = 16 << 10;

/// Options that one negotiation may take.
pub const MAX_OPTIONS: u32 = 256;

/// Time from accept to the end of the negotiation.
pub const NEGOTIATION_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for accepted requests to finish when a server stops.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Rounds of completions and answers before the event loop polls again. Without a limit, a
/// namespace that completes at once would starve the thread's other work.
pub const ROUNDS_PER_TICK: usize = 8;
