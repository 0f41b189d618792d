//! Every limit of the target, with its unit.

use std::time::Duration;

/// Concurrent connections of a target; further ones are closed at accept.
pub const MAX_CONNECTIONS: usize = 16_384;

/// One part in this many of the connections is reserved for addresses from which hosts have
/// connected before.
pub const KNOWN_SHARE: usize = 16;

/// The number of addresses that the target remembers for [`KNOWN_SHARE`].
pub const KNOWN_ADDRESSES: usize = 4096;

/// The most hosts with their own I/O counters; all other hosts share one set.
pub const METERED_HOSTS: usize = 256;

/// The number of hosts of one namespace that receive the error of another host's failed flush.
pub const FLUSHING_HOSTS: usize = 1024;

/// The most connections of one address that have not completed Connect. For one more, the target
/// closes the oldest.
pub const HALF_OPEN_PER_ADDRESS: usize = 256;

/// The most discovery controllers of one address. For one more, the target closes the oldest.
pub const DISCOVERIES_PER_ADDRESS: usize = 64;

/// The number of connections that may exceed the limit while evicted connections close.
pub const CLOSING_AT_ONCE: usize = RESERVED_DESCRIPTORS / 2;

/// The least maximum of connections, even if descriptors or memory suffice for fewer.
pub const CONNECTIONS_MIN: usize = 16;

/// If the descriptors suffice for fewer connections, the target warns at its start. A host opens
/// one connection for each of its processors, and one more.
pub const FEW_CONNECTIONS: usize = 1024;

/// Descriptors reserved for other uses: namespaces opened later, logs.
pub const RESERVED_DESCRIPTORS: usize = 64;

/// The most bytes of data buffers that the commands of one connection may hold. It is enough for
/// several transfers of the largest size, so that one slow transfer does not stop the others.
/// Beyond it, commands wait. The target leaves commands with in-capsule data unread, unless the
/// host still has to send requested data, which arrives on the same stream. The host must send
/// these data within [`TRANSFER_TIMEOUT`], and its queue depth bounds the commands that precede
/// them.
pub const CONNECTION_BUFFER_BYTES: usize = 32 << 20;

/// Memory that all peers together can make the target hold, in bytes: command buffers, responses
/// that hosts do not receive, and slots of concurrent commands. It is divided equally among the
/// cores. Decision 16 describes the behavior at the limit.
pub const BUFFER_BYTES: usize = 512 << 20;

/// The least limit of a core where memory is plentiful, in bytes: several transfers of the largest
/// size.
pub const CORE_BUFFER_BYTES_MIN: usize = 32 << 20;

/// Where memory is short, the target starts fewer cores by default, so that each may hold this many
/// bytes: a few transfers of the largest size.
pub const CORE_BUFFER_BYTES_FLOOR: usize = 4 << 20;

/// The memory estimate for a connection without its command buffers, in bytes: its structures, the
/// kernel's socket buffers, and TLS. All connections together take at most a quarter of the memory
/// that the process may use.
pub const CONNECTION_BYTES: u64 = 64 << 10;

/// The size of the smallest buffer, in bytes. A smaller request counts as this many bytes.
pub const BUFFER_BYTES_MIN: usize = 4096;

/// Each core has a reserve of one part in this many of its limit, for hosts that hold next to
/// nothing.
pub const RESERVE_SHARE: usize = 8;

/// A host holds "next to nothing" if it holds at most one part in this many of a core's limit, or
/// the data of one command.
pub const POOR_SHARE: usize = 64;

/// Interval at which a core short of memory looks for the commands that hold it.
pub const PRESSED_PERIOD: Duration = Duration::from_secs(1);

/// The target may close a connection whose command still waits for its host after this many
/// intervals.
pub const PRESSED_EPOCHS: u32 = 2;

/// The number of connections that retry in one round after memory was released; the others follow
/// in the next rounds.
pub const WOKEN_AT_ONCE: usize = 32;

/// Size of the shared zero buffer, sent repeatedly to pad log pages, in bytes.
pub const ZEROES_BYTES: usize = 64 << 10;

/// The receive size while a core is short of memory, in bytes. A connection may keep as many
/// unparsed bytes without charge.
pub const SMALL_RECEIVE_BYTES: u32 = 4096;

/// The most bytes of headers and responses that may wait while a send is in progress. Beyond it the
/// target parses no more commands. No queue is so deep that a host that keeps receiving reaches
/// this limit.
pub const ANSWERS_BYTES: usize = 8 << 10;

/// Outgoing bytes beyond which a connection parses no further command, so that a host must receive
/// responses before it can send more. It also limits the reads of one round. Large sends are
/// faster: over bare sockets, sends of 2 MiB reach twice the rate of sends of 64 KiB.
pub const OUTBOX_BYTES: usize = 2 << 20;

/// The capacity that a connection's header buffer keeps between sends, in bytes.
pub const KEPT_BATCH_BYTES: usize = 16 << 10;

/// After a payload of at least this size, in bytes, the next receive is a large one.
pub const LARGE_PAYLOAD_BYTES: u32 = 8 << 10;

/// The size of a large receive, in bytes: several payloads with their headers in one system call.
/// The target copies each payload once out of the receive buffer, while the payload is in the
/// cache.
pub const LARGE_RECEIVE_BYTES: u32 = 256 << 10;

/// If the rest of a payload has at least this size, in bytes, the target receives it directly into
/// its destination. For smaller payloads, one large receive and a copy are cheaper than two
/// receives for each payload. From 256 KiB on the copy costs up to a fifth of the rate.
pub const DIRECT_RECEIVE_BYTES: u32 = 128 << 10;

/// The receive size between direct receives of payloads, in bytes: a few headers.
pub const HEADER_RECEIVE_BYTES: u32 = 512;

/// Largest direct receive, in bytes: even a slow network delivers it within [`TRANSFER_TIMEOUT`].
pub const DIRECT_RECEIVE_MAX_BYTES: u32 = 256 << 10;

/// A core starts no further step of a command executed in place (Compare, Verify, Write Zeroes,
/// Copy, deallocation) once the steps under way, or those started in this tick, are charged this
/// many bytes: about half a millisecond of memory access.
pub const IN_PLACE_BYTES: usize = 2 << 20;

/// The most bytes that one step of a Verify or Copy reads, and the charge of a Write Zeroes of any
/// length or a deallocation step. A Compare is one step of its own length.
pub const STEP_BYTES: usize = 256 << 10;

/// The most bytes that one deallocation step covers. A file system deallocates them at once, and a
/// memory namespace divides the step itself.
pub const DEALLOCATE_STEP_BYTES: u64 = 1 << 30;

/// Most ranges of one deallocation step.
pub const DEALLOCATE_STEP_RANGES: usize = 8;

/// The most reads that a queue defers while the target prefetches their data; deferring more gains
/// nothing. They execute in the same tick.
pub const READS_AHEAD: usize = 4;

/// The most rounds of completions and responses before the event loop polls again, so that a
/// namespace that completes operations immediately does not monopolize a core.
pub const ROUNDS_PER_TICK: usize = 8;

/// Time for which the target retries a listen address in use: the kernel closes the sockets in an
/// io_uring some time after its process was killed.
pub const LISTEN_TIME: Duration = Duration::from_secs(3);

/// Pause between two attempts to bind.
pub const LISTEN_PAUSE: Duration = Duration::from_millis(20);

/// The most time from accept to a successful Connect command.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The most time from a successful Connect command to the end of the host's authentication.
pub const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(30);

/// The most messages that a host may send to authenticate; one transaction has three.
pub const AUTHENTICATION_MESSAGES: u32 = 9;

/// When this many authentication messages wait, the target drops those of closed connections.
pub const SWEPT_CALCULATIONS: usize = 256;

/// Interval at which the target halves the recorded authentication work of each address.
pub const CALCULATED_LATELY: Duration = Duration::from_secs(10);

/// If less recorded work is left after halving, the target forgets the address. In thousands of
/// multiplications: less than one exchange with the smallest group.
pub const CALCULATED_LITTLE: u64 = 64;

/// The most addresses whose authentication work is recorded.
pub const CALCULATED_ADDRESSES: usize = 16_384;

/// Largest authentication message, and largest allocation for one, in bytes.
pub const AUTHENTICATION_BYTES: u32 = 4096;

/// The most time without progress: while the target expects data, the host must send some of them,
/// and while the target sends, the host must receive some.
pub const TRANSFER_TIMEOUT: Duration = Duration::from_secs(30);

/// Time in which a stopping target completes accepted commands.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// TCP keep-alive interval of idle connections without a keep-alive timeout.
pub const TCP_KEEPALIVE: Duration = Duration::from_secs(60);
