//! Every limit of the target, with its unit.

use std::time::Duration;

/// Connections that a target holds at once; one more is closed at accept.
pub const MAX_CONNECTIONS: usize = 16_384;

/// Data buffers that the commands of one connection hold at once, in bytes. Commands beyond it
/// wait; it is several of the largest transfers, so that one slow transfer stops no other. Those
/// that bring their data with them wait in the network, except while the host owes data that it was
/// asked for: they come the same way. It has [`TRANSFER_TIMEOUT`] for that, and its queue's depth.
pub const CONNECTION_BUFFER_BYTES: usize = 32 << 20;

/// Data buffers that all commands of a core hold at once, in bytes. Beyond it a connection is
/// still let have one command's, so that nobody can starve another.
pub const CORE_BUFFER_BYTES: usize = 512 << 20;

/// Bytes waiting to be sent beyond which nothing more of a connection is looked at: a host that
/// does not read its answers cannot ask for more. No more than this is read at once from a
/// namespace that answers at once, so that it is sent while it is still in the processor's cache.
pub const OUTBOX_BYTES: usize = 256 << 10;

/// Capacity for headers that a connection keeps between sends, in bytes.
pub const KEPT_BATCH_BYTES: usize = 64 << 10;

/// Payload that is worth receiving straight into its destination, in bytes. Below it, copying out
/// of a receive that may hold several PDUs is cheaper than a system call of its own.
pub const DIRECT_RECEIVE_BYTES: u32 = 16 << 10;

/// What is received at once between payloads that are received straight, in bytes: a few headers.
pub const HEADER_RECEIVE_BYTES: u32 = 512;

/// Payload that is received straight at once, in bytes: little enough that even a slow network
/// brings it within [`TRANSFER_TIMEOUT`].
pub const DIRECT_RECEIVE_MAX_BYTES: u32 = 256 << 10;

/// Reads that are put off while what they need is brought near, at most: longer than it takes is
/// not worth it. They are carried out in the same tick.
pub const READS_AHEAD: usize = 4;

/// Rounds of completions and answers before the event loop is looked at again: a namespace that
/// completes at once must not keep a core from everything else.
pub const ROUNDS_PER_TICK: usize = 8;

/// Time from accept to an accepted Connect command.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time in which some of the data that is to come has to arrive, and in which the host has to
/// take some of what is sent to it.
pub const TRANSFER_TIMEOUT: Duration = Duration::from_secs(30);

/// Time that a stopping target gives accepted commands to finish.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// How often idle connections without a keep-alive timeout are probed by TCP itself.
pub const TCP_KEEPALIVE: Duration = Duration::from_secs(60);
