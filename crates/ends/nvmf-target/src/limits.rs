//! Every limit of the target, with its unit.

use std::time::Duration;

/// Connections that a target holds at once; one more is closed at accept.
pub const MAX_CONNECTIONS: usize = 16_384;

/// One part in so many of the connections is kept for addresses that hosts have connected from.
pub const KNOWN_SHARE: usize = 16;

/// Addresses that are remembered for that.
pub const KNOWN_ADDRESSES: usize = 4096;

/// Hosts whose I/O is counted apart; what others do is counted together.
pub const METERED_HOSTS: usize = 256;

/// Hosts of one namespace that hear of a flush of another one that failed.
pub const FLUSHING_HOSTS: usize = 1024;

/// Connections of one address whose hosts have not connected yet: the oldest makes room.
pub const HALF_OPEN_PER_ADDRESS: usize = 256;

/// Discovery controllers of hosts at one address: the oldest makes room.
pub const DISCOVERIES_PER_ADDRESS: usize = 64;

/// Connections beyond the limit while others are being closed for them.
pub const CLOSING_AT_ONCE: usize = RESERVED_DESCRIPTORS / 2;

/// Connections that are tried however few descriptors there are.
pub const CONNECTIONS_MIN: usize = 16;

/// Descriptors that are kept for other things than connections: what namespaces open later, logs.
pub const RESERVED_DESCRIPTORS: usize = 64;

/// Data buffers that the commands of one connection hold at once, in bytes. Commands beyond it
/// wait; it is several of the largest transfers, so that one slow transfer stops no other. Those
/// that bring their data with them wait in the network, except while the host owes data that it was
/// asked for: they come the same way. It has [`TRANSFER_TIMEOUT`] for that, and its queue's depth.
pub const CONNECTION_BUFFER_BYTES: usize = 32 << 20;

/// Memory that all peers make the target hold at once, in bytes: buffers of commands, answers that
/// are not taken, commands beyond the first. Each core has an equal part of it. What happens at the
/// limit is told in decision 16.
pub const BUFFER_BYTES: usize = 512 << 20;

/// A core's part of [`BUFFER_BYTES`] is not less, in bytes, where memory is plentiful: several of
/// the largest transfers.
pub const CORE_BUFFER_BYTES_MIN: usize = 32 << 20;

/// Where memory is short, fewer cores run by default, so that each has this many bytes: a few of
/// the largest transfers.
pub const CORE_BUFFER_BYTES_FLOOR: usize = 4 << 20;

/// Bytes that a connection takes besides the buffers of its commands: its structures, what
/// waits in the kernel's sockets, and TLS. All connections together take at most a quarter of what
/// the process may use.
pub const CONNECTION_BYTES: u64 = 64 << 10;

/// The smallest buffer, in bytes: what each counts for at least.
pub const BUFFER_BYTES_MIN: usize = 4096;

/// One part in so many of a core's limit is kept, on top of it, for hosts that hold next to
/// nothing.
pub const RESERVE_SHARE: usize = 8;

/// Next to nothing is one part in so many of a core's limit, or one command's data.
pub const POOR_SHARE: usize = 64;

/// How often a core that is short of memory looks for what keeps it waiting.
pub const PRESSED_PERIOD: Duration = Duration::from_secs(1);

/// After so many looks a command that still waits for its host loses its connection.
pub const PRESSED_EPOCHS: u32 = 2;

/// Connections that are woken at once when memory comes back; the others' turn is next.
pub const WOKEN_AT_ONCE: usize = 32;

/// Zeroes that pages end with are sent from a buffer of so many bytes, over and over.
pub const ZEROES_BYTES: usize = 64 << 10;

/// What is received at once while a core is short of memory, and what is kept for later of what was
/// received without being counted, in bytes.
pub const SMALL_RECEIVE_BYTES: u32 = 4096;

/// Answers without data that may wait behind a send that the host does not take, in bytes. Beyond
/// it nothing more is looked at: a queue is not so deep that a host which reads would notice.
pub const ANSWERS_BYTES: usize = 8 << 10;

/// Bytes waiting to be sent beyond which a connection parses no further command: a host that does
/// not read its answers cannot ask for more. The target also reads no more than this at once from a
/// namespace that answers at once. Large sends pay: over bare sockets 2 MiB at a time reach twice
/// the rate of 64 KiB.
pub const OUTBOX_BYTES: usize = 2 << 20;

/// Capacity for headers that a connection keeps between sends, in bytes.
pub const KEPT_BATCH_BYTES: usize = 16 << 10;

/// After a payload of this size the next receive is a large one, in bytes.
pub const LARGE_PAYLOAD_BYTES: u32 = 8 << 10;

/// A large receive, in bytes: several payloads with their headers in one system call. The target
/// copies each payload once from there, while it is in the cache.
pub const LARGE_RECEIVE_BYTES: u32 = 256 << 10;

/// The target receives the rest of a payload of this size straight into its destination, in bytes.
/// For smaller payloads a large receive and one copy are cheaper than two receives for each. From
/// 256 KiB on the copy costs up to a fifth of the rate.
pub const DIRECT_RECEIVE_BYTES: u32 = 128 << 10;

/// What is received at once between payloads that are received straight, in bytes: a few headers.
pub const HEADER_RECEIVE_BYTES: u32 = 512;

/// Payload that is received straight at once, in bytes: little enough that even a slow network
/// brings it within [`TRANSFER_TIMEOUT`].
pub const DIRECT_RECEIVE_MAX_BYTES: u32 = 256 << 10;

/// What is carried out in place for hosts (Compare, Verify, Write Zeroes, deallocation) at once on
/// one core, and begun in one tick, in bytes: about half a millisecond's worth of memory.
pub const IN_PLACE_BYTES: usize = 2 << 20;

/// What one step of such a command reads, or counts for, in bytes. A Compare is one step.
pub const STEP_BYTES: usize = 256 << 10;

/// What one step of a deallocation covers at most, in bytes: a file system does that at once, and
/// memory takes turns of its own.
pub const DEALLOCATE_STEP_BYTES: u64 = 1 << 30;

/// Ranges that one step of a deallocation covers at most.
pub const DEALLOCATE_STEP_RANGES: usize = 8;

/// Reads that are put off while what they need is brought near, at most: longer than it takes is
/// not worth it. They are carried out in the same tick.
pub const READS_AHEAD: usize = 4;

/// Rounds of completions and answers before the event loop is looked at again: a namespace that
/// completes at once must not keep a core from everything else.
pub const ROUNDS_PER_TICK: usize = 8;

/// How long an address that is in use is tried for: a process that was killed is gone before its
/// io_uring is, and the sockets in it.
pub const LISTEN_TIME: Duration = Duration::from_secs(3);

/// Time between two tries.
pub const LISTEN_PAUSE: Duration = Duration::from_millis(20);

/// Time from accept to an accepted Connect command.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time from an accepted Connect command to the end of a host's authentication, if it has to.
pub const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(30);

/// Messages that a host may send to authenticate; a transaction has three.
pub const AUTHENTICATION_MESSAGES: u32 = 9;

/// Messages that wait to be worked on with which those of closed connections are left out.
pub const SWEPT_CALCULATIONS: usize = 256;

/// How long it takes until half of what was calculated for an address is forgotten.
pub const CALCULATED_LATELY: Duration = Duration::from_secs(10);

/// What was calculated for an address and is forgotten altogether, in thousands of multiplications:
/// less than with the smallest group.
pub const CALCULATED_LITTLE: u64 = 64;

/// Addresses for which it is remembered how much was calculated.
pub const CALCULATED_ADDRESSES: usize = 16_384;

/// The largest message of an authentication, and the most room for one, in bytes.
pub const AUTHENTICATION_BYTES: u32 = 4096;

/// Time in which some of the data that is to come has to arrive, and in which the host has to
/// take some of what is sent to it.
pub const TRANSFER_TIMEOUT: Duration = Duration::from_secs(30);

/// Time that a stopping target gives accepted commands to finish.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// How often idle connections without a keep-alive timeout are probed by TCP itself.
pub const TCP_KEEPALIVE: Duration = Duration::from_secs(60);
