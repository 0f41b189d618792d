//! Every limit of the target, with its unit.

use std::time::Duration;

/// Concurrent connections of a target; further ones are closed at accept.
pub const MAX_CONNECTIONS: usize = 16_384;

/// One connection in this many is reserved for addresses from which hosts have connected.
pub const KNOWN_SHARE: usize = 16;

/// Addresses remembered for [`KNOWN_SHARE`].
pub const KNOWN_ADDRESSES: usize = 4096;

/// Hosts with their own I/O counters; all others share one.
pub const METERED_HOSTS: usize = 256;

/// Hosts of one namespace that receive the error of another host's failed flush.
pub const FLUSHING_HOSTS: usize = 1024;

/// Connections of one address that have not completed Connect: beyond it, the oldest is closed.
pub const HALF_OPEN_PER_ADDRESS: usize = 256;

/// Discovery controllers of one address: beyond it, the oldest is closed.
pub const DISCOVERIES_PER_ADDRESS: usize = 64;

/// Connections beyond the limit while evicted ones close.
pub const CLOSING_AT_ONCE: usize = RESERVED_DESCRIPTORS / 2;

/// Connections allowed however few descriptors there are.
pub const CONNECTIONS_MIN: usize = 16;

/// Connections below which a target warns that descriptors are short. A host opens one for each of
/// its processors, and one more.
pub const FEW_CONNECTIONS: usize = 1024;

/// Descriptors reserved for other uses: namespaces opened later, logs.
pub const RESERVED_DESCRIPTORS: usize = 64;

/// Data buffers of one connection's commands, in bytes: several of the largest transfers, so that
/// one slow transfer stops no other. Further commands wait. Those with in-capsule data wait in the
/// network, unless the host owes requested data, which arrives on the same stream. The host has
/// [`TRANSFER_TIMEOUT`] to send it, and its queue depth bounds the commands before it.
pub const CONNECTION_BUFFER_BYTES: usize = 32 << 20;

/// Memory that all peers make the target hold, in bytes: command buffers, responses that hosts do
/// not receive, commands beyond the first. Each core has an equal part. Decision 16 describes the
/// behavior at the limit.
pub const BUFFER_BYTES: usize = 512 << 20;

/// The least part of [`BUFFER_BYTES`] for a core where memory is plentiful, in bytes: several of
/// the largest transfers.
pub const CORE_BUFFER_BYTES_MIN: usize = 32 << 20;

/// Where memory is short, fewer cores run by default, so that each has this many bytes: a few of
/// the largest transfers.
pub const CORE_BUFFER_BYTES_FLOOR: usize = 4 << 20;

/// Bytes that a connection takes besides its command buffers: its structures, socket buffers of the
/// kernel, and TLS. All connections together take at most a quarter of the memory that the process
/// may use.
pub const CONNECTION_BYTES: u64 = 64 << 10;

/// The smallest buffer, in bytes: every buffer counts as at least this.
pub const BUFFER_BYTES_MIN: usize = 4096;

/// One part in this many of a core's limit is added as a reserve for hosts that hold next to
/// nothing.
pub const RESERVE_SHARE: usize = 8;

/// "Next to nothing" is one part in this many of a core's limit, or one command's data.
pub const POOR_SHARE: usize = 64;

/// Interval at which a core short of memory looks for the commands that hold it.
pub const PRESSED_PERIOD: Duration = Duration::from_secs(1);

/// After this many intervals, a command that still waits for its host loses its connection.
pub const PRESSED_EPOCHS: u32 = 2;

/// Connections woken at once when memory is released; the others follow.
pub const WOKEN_AT_ONCE: usize = 32;

/// Size of the shared zero buffer, sent repeatedly to pad log pages, in bytes.
pub const ZEROES_BYTES: usize = 64 << 10;

/// Receive size while a core is short of memory, and the most uncounted received bytes to keep.
pub const SMALL_RECEIVE_BYTES: u32 = 4096;

/// Responses without data that may wait behind a stalled send, in bytes. Beyond it the target
/// parses no more commands: no queue is so deep that a host that receives would notice.
pub const ANSWERS_BYTES: usize = 8 << 10;

/// Outgoing bytes beyond which a connection parses no further command, so that a host must receive
/// responses before it can send more. It also limits one read from a namespace that responds at
/// once. Large sends pay: over bare sockets, 2 MiB at a time reach twice the rate of 64 KiB.
pub const OUTBOX_BYTES: usize = 2 << 20;

/// Header buffer capacity that a connection keeps between sends, in bytes.
pub const KEPT_BATCH_BYTES: usize = 16 << 10;

/// A payload of at least this size makes the next receive a large one, in bytes.
pub const LARGE_PAYLOAD_BYTES: u32 = 8 << 10;

/// A large receive, in bytes: several payloads with their headers in one system call. The target
/// copies each payload once from there, while it is in the cache.
pub const LARGE_RECEIVE_BYTES: u32 = 256 << 10;

/// The target receives the rest of a payload of this size directly into its destination, in bytes.
/// For smaller payloads a large receive and one copy are cheaper than two receives for each. From
/// 256 KiB on the copy costs up to a fifth of the rate.
pub const DIRECT_RECEIVE_BYTES: u32 = 128 << 10;

/// Receive size between direct payload receives, in bytes: a few headers.
pub const HEADER_RECEIVE_BYTES: u32 = 512;

/// Largest direct receive, in bytes: even a slow network delivers it within [`TRANSFER_TIMEOUT`].
pub const DIRECT_RECEIVE_MAX_BYTES: u32 = 256 << 10;

/// Bytes of commands executed in place (Compare, Verify, Write Zeroes, deallocation) at once on one
/// core, and started in one tick: about half a millisecond of memory access.
pub const IN_PLACE_BYTES: usize = 2 << 20;

/// Bytes that one step of such a command reads or counts as. A Compare is one step.
pub const STEP_BYTES: usize = 256 << 10;

/// Largest range of one deallocation step, in bytes: a file system does that at once, and memory
/// limits its own steps.
pub const DEALLOCATE_STEP_BYTES: u64 = 1 << 30;

/// Most ranges of one deallocation step.
pub const DEALLOCATE_STEP_RANGES: usize = 8;

/// Most reads deferred while the target prefetches their data: longer lines do not pay. They
/// execute in the same tick.
pub const READS_AHEAD: usize = 4;

/// Rounds of completions and responses before the event loop polls again, so that a namespace that
/// completes at once does not monopolize a core.
pub const ROUNDS_PER_TICK: usize = 8;

/// Time for which the target retries a listen address in use: a killed process disappears before
/// its io_uring and the sockets in it.
pub const LISTEN_TIME: Duration = Duration::from_secs(3);

/// Pause between two tries.
pub const LISTEN_PAUSE: Duration = Duration::from_millis(20);

/// From accept to a successful Connect command.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// From a successful Connect command to the end of the host's authentication, if required.
pub const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(30);

/// Messages that a host may send to authenticate; one transaction has three.
pub const AUTHENTICATION_MESSAGES: u32 = 9;

/// When this many messages wait, the messages of closed connections are dropped.
pub const SWEPT_CALCULATIONS: usize = 256;

/// Time after which half of an address's recorded work is forgotten.
pub const CALCULATED_LATELY: Duration = Duration::from_secs(10);

/// Recorded work of an address that is forgotten entirely, in thousands of multiplications: less
/// than one exchange with the smallest group.
pub const CALCULATED_LITTLE: u64 = 64;

/// Addresses whose work is recorded.
pub const CALCULATED_ADDRESSES: usize = 16_384;

/// Largest authentication message, and largest allocation for one, in bytes.
pub const AUTHENTICATION_BYTES: u32 = 4096;

/// Time within which some expected data must arrive, and within which the host must receive some of
/// the sent data.
pub const TRANSFER_TIMEOUT: Duration = Duration::from_secs(30);

/// Time in which a stopping target completes accepted commands.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// TCP keep-alive interval of idle connections without a keep-alive timeout.
pub const TCP_KEEPALIVE: Duration = Duration::from_secs(60);
