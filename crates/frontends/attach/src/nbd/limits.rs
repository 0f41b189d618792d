//! All limits of the NBD server, with their units.

pub use farblock_frontend::limits::{MERGES_PER_TURN, PIECE_BYTES};
use std::time::Duration;

/// The maximum number of connections of a server. The server accepts further connections, but
/// closes them at once.
pub const MAX_CONNECTIONS: usize = 256;

/// The maximum number of threads of a server.
pub const MAX_THREADS: usize = 64;

/// The maximum length of one read or write, in bytes. Clients may assume this limit if the server
/// states none, by the specification.
pub const MAX_PAYLOAD_BYTES: u32 = 32 << 20;

/// The maximum number of block operations into which the server splits one request.
pub const MAX_PIECES: u32 = 1 << 14;

/// The maximum number of requests in flight on one connection. At this limit, the server stops
/// reading from the connection.
pub const MAX_REQUESTS: usize = 256;

/// The limit on the data buffers that the requests of one connection hold at once, in bytes. Above
/// this limit the server does not read from the connection.
pub const CONNECTION_BUFFER_BYTES: usize = 64 << 20;

/// The limit on the data buffers that all requests of a thread hold at once, in bytes. Above this
/// limit each connection may still have one request, so that no client can starve another client. A
/// process with little memory has a smaller limit ([`farblock_reactor::allowance`]).
pub const CORE_BUFFER_BYTES: usize = 512 << 20;

/// The limit on the unsent output of a connection, in bytes. Above this limit the server stops
/// reading from the connection. So a client that does not read its answers cannot send more
/// requests.
pub const OUTBOX_BYTES: usize = 2 << 20;

/// The limit on the memory for headers that a connection keeps between two sends, in bytes.
pub const KEPT_BATCH_BYTES: usize = 64 << 10;

/// The shortest payload that the server receives directly into its destination, in bytes. The
/// server copies a shorter payload from a receive that may hold several requests, because a copy
/// costs less than another system call.
pub const DIRECT_RECEIVE_BYTES: usize = 16 << 10;

/// The size of a receive after a large payload, in bytes. It has room for the next header, but for
/// little of the data after it: the server receives that data directly into its destination.
pub const HEADER_RECEIVE_BYTES: u32 = 256;

/// The longest option data, in bytes. The server skips and refuses a longer option.
pub const MAX_OPTION_BYTES: u32 = 16 << 10;

/// The maximum number of options in one negotiation.
pub const MAX_OPTIONS: u32 = 256;

/// The longest time from accept to the end of the negotiation.
pub const NEGOTIATION_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest time that a stopping server waits for accepted requests to finish.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum number of rounds in one pass of the event loop. A round handles completions, then
/// sends answers. Without this limit, a namespace that completes operations at once would starve
/// the thread's other work.
pub const ROUNDS_PER_TICK: usize = 8;
