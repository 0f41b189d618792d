//! All limits of the target, with their units.

use std::time::Duration;

/// A target has at most this many connections at once. It closes further connections when it
/// accepts them.
pub const MAX_CONNECTIONS: usize = 16_384;

/// The target reserves the connection limit divided by this number for addresses from which hosts
/// have connected before.
pub const KNOWN_SHARE: usize = 16;

/// The number of addresses that the target remembers for [`KNOWN_SHARE`].
pub const KNOWN_ADDRESSES: usize = 4096;

/// At most this many hosts have their own I/O counters. All other hosts share one set of counters.
pub const METERED_HOSTS: usize = 256;

/// For each namespace, the target remembers at most this many hosts, to report another host's
/// failed flush to them. Further hosts learn only of their own failed flushes.
pub const FLUSHING_HOSTS: usize = 1024;

/// One address may have at most this many connections that have not completed Connect. When one
/// more arrives, the target closes the oldest of them.
pub const HALF_OPEN_PER_ADDRESS: usize = 256;

/// One address may have at most this many discovery controllers. Before the target creates one
/// more, it closes the oldest.
pub const DISCOVERIES_PER_ADDRESS: usize = 64;

/// Evicted connections that are still closing may exceed the connection limit by at most this
/// number.
pub const CLOSING_AT_ONCE: usize = RESERVED_DESCRIPTORS / 2;

/// The connection limit is at least this, even if the descriptors or memory suffice for fewer.
pub const CONNECTIONS_MIN: usize = 16;

/// If the descriptors suffice for fewer connections than this, the target warns at its start. A
/// host opens one connection for each of its processors, and one for its admin queue.
pub const FEW_CONNECTIONS: usize = 1024;

/// Descriptors reserved for other uses, for example namespaces opened later, and logs.
pub const RESERVED_DESCRIPTORS: usize = 64;

/// The commands of one connection may hold at most this many bytes of data buffers. Several
/// transfers of the largest size fit, so that one slow transfer does not stop the others. Beyond
/// this limit, commands wait, and the target leaves commands with in-capsule data unread.
///
/// There is one exception. While the host still has to send data that the target requested, the
/// target keeps reading, since new commands may precede the data in the stream. The queue depth
/// limits their number, and the host must send the data within [`TRANSFER_TIMEOUT`].
pub const CONNECTION_BUFFER_BYTES: usize = 32 << 20;

/// All peers together can make the target hold at most this many bytes: command buffers, responses
/// that hosts have not received, and slots of concurrent commands. Each core gets an equal part.
/// Decision 16 describes the behavior at the limit.
pub const BUFFER_BYTES: usize = 512 << 20;

/// On a machine with enough memory, the limit of each core is at least this many bytes, so that
/// several transfers of the largest size fit.
pub const CORE_BUFFER_BYTES_MIN: usize = 32 << 20;

/// On a machine with little memory, the target by default starts fewer cores, so that the limit of
/// each core is at least this many bytes, which suffice for a few transfers of the largest size.
pub const CORE_BUFFER_BYTES_FLOOR: usize = 4 << 20;

/// The estimated memory of a connection without its command buffers, in bytes. It covers the
/// connection's structures, the kernel's socket buffers, and TLS. All connections together take at
/// most a quarter of the memory that the process may use.
pub const CONNECTION_BYTES: u64 = 64 << 10;

/// The size of the smallest buffer, in bytes. A smaller request counts as this many bytes.
pub const BUFFER_BYTES_MIN: usize = 4096;

/// The memory reserve of a core is its limit divided by this number. Only hosts that hold little
/// memory may use the reserve; see [`POOR_SHARE`].
pub const RESERVE_SHARE: usize = 8;

/// A host counts as holding little memory if it holds at most a core's limit divided by this
/// number, or only the data of one command.
pub const POOR_SHARE: usize = 64;

/// A core that is short of memory frees its cached memory at this interval. If connections wait for
/// memory at that time, the core also closes overdue connections; see [`PRESSED_EPOCHS`].
pub const PRESSED_PERIOD: Duration = Duration::from_secs(1);

/// While a core is short of memory, it may close a connection whose host has kept a command or
/// output waiting for more than this many [`PRESSED_PERIOD`]s.
pub const PRESSED_EPOCHS: u32 = 2;

/// When memory is released, at most this many parked connections (which wait for memory) retry in
/// one round of the event loop. The others retry in the next rounds.
pub const WOKEN_AT_ONCE: usize = 32;

/// The size of the shared zero buffer in bytes. The target sends it repeatedly to pad log pages.
pub const ZEROES_BYTES: usize = 64 << 10;

/// The receive size while a core is short of memory, in bytes. Up to this many unparsed bytes of a
/// connection do not count as its held memory.
pub const SMALL_RECEIVE_BYTES: u32 = 4096;

/// While a send is in progress, at most this many bytes of further headers and responses may wait.
/// Beyond this limit, the target parses no more commands of the connection. A host that keeps
/// receiving does not reach this limit, even with the deepest queue.
pub const ANSWERS_BYTES: usize = 8 << 10;

/// A connection with more outgoing bytes than this parses no further command until the host has
/// received responses. Reads that the target sends together also stay within this limit. Large
/// sends are faster: over bare sockets, sends of 2 MiB reach twice the rate of sends of 64 KiB.
pub const OUTBOX_BYTES: usize = 2 << 20;

/// The capacity in bytes that a connection's header buffer keeps between sends.
pub const KEPT_BATCH_BYTES: usize = 16 << 10;

/// After a payload of at least this size, in bytes, the next receive has room for
/// [`LARGE_RECEIVE_BYTES`].
pub const LARGE_PAYLOAD_BYTES: u32 = 8 << 10;

/// The size of a large receive, in bytes. One system call receives several payloads with their
/// headers. The target copies each payload out of the receive buffer once, while the payload is in
/// the cache.
pub const LARGE_RECEIVE_BYTES: u32 = 256 << 10;

/// If the rest of a payload has at least this size, in bytes, the target receives it directly into
/// its destination. For smaller payloads, one large receive and a copy are cheaper than two
/// receives for each payload. For payloads from 256 KiB on, a copy costs up to a fifth of the rate.
pub const DIRECT_RECEIVE_BYTES: u32 = 128 << 10;

/// The number of bytes to receive between two payloads that the target receives directly. A few
/// headers fit.
pub const HEADER_RECEIVE_BYTES: u32 = 512;

/// A direct receive has at most this many bytes, so that even a slow network delivers them within
/// [`TRANSFER_TIMEOUT`].
pub const DIRECT_RECEIVE_MAX_BYTES: u32 = 256 << 10;

/// Compare, Verify, Write Zeroes, Copy and deallocation execute in steps. Each step is charged a
/// number of bytes; see [`STEP_BYTES`]. This is the maximum charge of a core's steps under way, and
/// of the steps that it starts in one tick of the event loop. To access this many bytes of memory
/// takes about half a millisecond.
pub const IN_PLACE_BYTES: usize = 2 << 20;

/// One step of a Verify or Copy reads at most this many bytes. A Write Zeroes of any length and a
/// deallocation step are also charged this many bytes. A Compare is a single step with the length
/// of the command.
pub const STEP_BYTES: usize = 256 << 10;

/// One deallocation step covers at most this many bytes. A file system deallocates this range in
/// one call; a memory namespace divides the step further.
pub const DEALLOCATE_STEP_BYTES: u64 = 1 << 30;

/// One deallocation step covers at most this many ranges. The next step continues with the
/// remaining ranges.
pub const DEALLOCATE_STEP_RANGES: usize = 8;

/// A queue defers at most this many reads while the namespace prefetches their data. The deferred
/// reads execute in the same tick. A higher limit was not faster in measurements.
pub const READS_AHEAD: usize = 4;

/// A core handles at most this many rounds of completions and responses before it polls for events
/// again. Otherwise a namespace that completes operations immediately could keep the core from all
/// other work.
pub const ROUNDS_PER_TICK: usize = 8;

/// The time for which the target retries to bind a listen address in use. If the previous process
/// used io_uring and was killed, the kernel closes its sockets only some time later.
pub const LISTEN_TIME: Duration = Duration::from_secs(3);

/// The pause between two attempts to bind.
pub const LISTEN_PAUSE: Duration = Duration::from_millis(20);

/// A connection must complete a Connect command within this time after accept. Otherwise the target
/// closes it.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A host must finish its authentication within this time after its successful Connect command.
/// Otherwise the target closes the connection.
pub const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(30);

/// A host may send at most this many messages to authenticate. One transaction has three messages.
pub const AUTHENTICATION_MESSAGES: u32 = 9;

/// When this many authentication messages wait, the target drops the messages of closed
/// connections.
pub const SWEPT_CALCULATIONS: usize = 256;

/// The interval at which the target halves the recorded authentication work of each address.
pub const CALCULATED_LATELY: Duration = Duration::from_secs(10);

/// When the target halves the recorded work of an address (see [`CALCULATED_LATELY`]) and less than
/// this remains, it forgets the address. The unit is thousands of multiplications. An exchange with
/// the smallest group takes more, so the target remembers it at least until the next halving.
pub const CALCULATED_LITTLE: u64 = 64;

/// The target records authentication work for at most this many addresses.
pub const CALCULATED_ADDRESSES: usize = 16_384;

/// The largest authentication message in bytes, and the largest allocation length for one.
pub const AUTHENTICATION_BYTES: u32 = 4096;

/// A transfer must make progress within this time: the host must send some of the requested data,
/// or receive some of the bytes that the target sends. Otherwise the target closes the connection.
pub const TRANSFER_TIMEOUT: Duration = Duration::from_secs(30);

/// The time that a stopping target waits for accepted commands to complete.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The TCP keep-alive interval of connections without an NVMe keep-alive timeout.
pub const TCP_KEEPALIVE: Duration = Duration::from_secs(60);

/// At most this many connection requests may wait at an RDMA listener.
pub const RDMA_BACKLOG: u32 = 256;

/// The interval at which a target tries to listen again, after the device of an RDMA listener was
/// removed or its address moved to another device.
pub const RDMA_LISTEN_PERIOD: Duration = Duration::from_secs(5);

/// The registered memory for RDMA transfers in flight, in bytes, for each device and core. Beyond
/// it, transfers wait. The device keeps this memory locked.
pub const STAGING_BYTES: usize = 16 << 20;

/// The registered memory that the transfers of one connection may use, in bytes. If one host does
/// not answer, the other connections still have memory.
pub const STAGING_BYTES_PER_CONNECTION: usize = STAGING_BYTES / 4;

/// The unit in which a core registers the memory of [`STAGING_BYTES`], in bytes: the largest
/// transfer.
pub const STAGING_SLAB_BYTES: usize = 1 << 20;

/// The smallest part of [`STAGING_BYTES`] that a transfer takes, in bytes.
pub const STAGING_CHUNK_BYTES_MIN: usize = 4096;

/// The estimated bytes of one RDMA queue entry without its receive buffer: its entries of the send,
/// receive and completion queues, which the device keeps locked.
pub const RDMA_ENTRY_BYTES: usize = 512;

/// A core handles at most this many connection requests in one round. Then its connections have
/// their turn.
pub const RDMA_REQUESTS_PER_ROUND: usize = 64;

/// A connection handles at most this many work completions in one round. Then other connections
/// have their turn.
pub const RDMA_COMPLETIONS_PER_ROUND: usize = 64;

/// After an RDMA connection has closed, the target waits at most this long for its outstanding work
/// requests. Then it destroys the queue pair.
pub const RDMA_FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
