//! All limits of the target, with their units.

use std::time::Duration;

/// The most concurrent connections of a target. The target closes further connections at accept.
pub const MAX_CONNECTIONS: usize = 16_384;

/// The target reserves the connection limit divided by this number for addresses from which hosts
/// have connected before.
pub const KNOWN_SHARE: usize = 16;

/// The number of addresses that the target remembers for [`KNOWN_SHARE`].
pub const KNOWN_ADDRESSES: usize = 4096;

/// The most hosts with their own I/O counters; all other hosts share one set.
pub const METERED_HOSTS: usize = 256;

/// The number of hosts of one namespace that receive the error of another host's failed flush.
pub const FLUSHING_HOSTS: usize = 1024;

/// The most connections of one address that have not completed Connect. When another one arrives,
/// the target closes the oldest.
pub const HALF_OPEN_PER_ADDRESS: usize = 256;

/// The most discovery controllers of one address. Before it creates another one, the target closes
/// the oldest.
pub const DISCOVERIES_PER_ADDRESS: usize = 64;

/// The most connections above the connection limit, while evicted connections close.
pub const CLOSING_AT_ONCE: usize = RESERVED_DESCRIPTORS / 2;

/// The connection limit is at least this, even if the descriptors or memory suffice for fewer.
pub const CONNECTIONS_MIN: usize = 16;

/// If the descriptors suffice for fewer connections than this, the target warns at its start. A
/// host opens one connection for each of its processors, and one more.
pub const FEW_CONNECTIONS: usize = 1024;

/// Descriptors reserved for other uses, for example namespaces opened later, and logs.
pub const RESERVED_DESCRIPTORS: usize = 64;

/// The most bytes of data buffers that the commands of one connection may hold. Several transfers
/// of the largest size fit, so that one slow transfer does not stop the others. Beyond this limit,
/// commands wait, and the target leaves commands with in-capsule data unread.
///
/// One exception applies: while the host still has to send requested data, the target reads on,
/// since these data arrive on the same stream. The host must send them within [`TRANSFER_TIMEOUT`].
/// The host's queue depth bounds the commands that precede them.
pub const CONNECTION_BUFFER_BYTES: usize = 32 << 20;

/// The most bytes that all peers together can make the target hold: command buffers, responses that
/// hosts have not received, and slots of concurrent commands. Each core gets an equal part.
/// Decision 16 describes the behavior at the limit.
pub const BUFFER_BYTES: usize = 512 << 20;

/// The minimum memory limit of a core where memory is plentiful, in bytes. Several transfers of the
/// largest size fit.
pub const CORE_BUFFER_BYTES_MIN: usize = 32 << 20;

/// Where memory is short, the target starts fewer cores by default, so that each core can hold this
/// many bytes. A few transfers of the largest size fit.
pub const CORE_BUFFER_BYTES_FLOOR: usize = 4 << 20;

/// The memory estimate for a connection without its command buffers, in bytes. It covers the
/// connection's structures, the kernel's socket buffers, and TLS. All connections together take at
/// most a quarter of the memory that the process may use.
pub const CONNECTION_BYTES: u64 = 64 << 10;

/// The size of the smallest buffer, in bytes. A smaller request counts as this many bytes.
pub const BUFFER_BYTES_MIN: usize = 4096;

/// The memory reserve of a core is its limit divided by this number. The reserve is for hosts that
/// hold next to nothing; see [`POOR_SHARE`].
pub const RESERVE_SHARE: usize = 8;

/// A host holds "next to nothing" if it holds at most a core's limit divided by this number, or
/// only the data of one command.
pub const POOR_SHARE: usize = 64;

/// The interval at which a core that is short of memory frees cached memory. If connections wait
/// for memory, the core also closes connections then; see [`PRESSED_EPOCHS`].
pub const PRESSED_PERIOD: Duration = Duration::from_secs(1);

/// While a core is short of memory, it may close a connection whose host has kept a command or
/// output waiting for more than this many [`PRESSED_PERIOD`]s.
pub const PRESSED_EPOCHS: u32 = 2;

/// The number of connections that retry in one round after a release of memory. The other
/// connections follow in the next rounds.
pub const WOKEN_AT_ONCE: usize = 32;

/// The size of the shared zero buffer in bytes. The target sends it repeatedly to pad log pages.
pub const ZEROES_BYTES: usize = 64 << 10;

/// The receive size while a core is short of memory, in bytes. A connection may keep this many
/// unparsed bytes without charge.
pub const SMALL_RECEIVE_BYTES: u32 = 4096;

/// The most bytes of headers and responses that may wait while a send is in progress. Beyond this
/// limit, the target parses no more commands. A host that keeps receiving does not reach this
/// limit, even with the deepest queue.
pub const ANSWERS_BYTES: usize = 8 << 10;

/// A connection with more outgoing bytes than this parses no further command. The host must then
/// receive responses before it can send more. This also limits the reads of one round. Large sends
/// are faster: over bare sockets, sends of 2 MiB reach twice the rate of sends of 64 KiB.
pub const OUTBOX_BYTES: usize = 2 << 20;

/// The capacity in bytes that a connection's header buffer keeps between sends.
pub const KEPT_BATCH_BYTES: usize = 16 << 10;

/// After a payload of at least this size, in bytes, the next receive is a large one.
pub const LARGE_PAYLOAD_BYTES: u32 = 8 << 10;

/// The size of a large receive, in bytes. One system call receives several payloads with their
/// headers. The target copies each payload out of the receive buffer once, while the payload is in
/// the cache.
pub const LARGE_RECEIVE_BYTES: u32 = 256 << 10;

/// If the rest of a payload has at least this size, in bytes, the target receives it directly into
/// its destination. For smaller payloads, one large receive and a copy are cheaper than two
/// receives for each payload. For payloads from 256 KiB on, a copy costs up to a fifth of the rate.
pub const DIRECT_RECEIVE_BYTES: u32 = 128 << 10;

/// The receive size between direct receives of payloads, in bytes. A few headers fit.
pub const HEADER_RECEIVE_BYTES: u32 = 512;

/// The largest direct receive, in bytes. Even a slow network delivers it within
/// [`TRANSFER_TIMEOUT`].
pub const DIRECT_RECEIVE_MAX_BYTES: u32 = 256 << 10;

/// The most bytes that a core charges for commands executed in place: Compare, Verify, Write
/// Zeroes, Copy, deallocation. One limit applies to the steps under way, and the same limit applies
/// to the steps started in one tick. Beyond it, the core starts no further step. This many bytes
/// take about half a millisecond of memory access.
pub const IN_PLACE_BYTES: usize = 2 << 20;

/// The most bytes that one step of a Verify or Copy reads. It is also the charge of a Write Zeroes
/// of any length, and of a deallocation step. A Compare is a single step with the length of the
/// command.
pub const STEP_BYTES: usize = 256 << 10;

/// The most bytes that one deallocation step covers. A file system deallocates them at once. A
/// memory namespace divides the step further.
pub const DEALLOCATE_STEP_BYTES: u64 = 1 << 30;

/// The most ranges of one deallocation step.
pub const DEALLOCATE_STEP_RANGES: usize = 8;

/// The most reads that a queue defers while the target prefetches their data. The deferred reads
/// execute in the same tick. A higher limit is not faster.
pub const READS_AHEAD: usize = 4;

/// The most rounds of completions and responses before the event loop polls again. The limit keeps
/// a namespace that completes operations immediately from monopolizing a core.
pub const ROUNDS_PER_TICK: usize = 8;

/// The time for which the target retries to bind a listen address in use. The kernel closes the
/// sockets of an io_uring only some time after their process was killed.
pub const LISTEN_TIME: Duration = Duration::from_secs(3);

/// The pause between two attempts to bind.
pub const LISTEN_PAUSE: Duration = Duration::from_millis(20);

/// The most time from accept to a successful Connect command.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The most time from a successful Connect command to the end of the host's authentication.
pub const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(30);

/// The most messages that a host may send to authenticate; one transaction has three.
pub const AUTHENTICATION_MESSAGES: u32 = 9;

/// When this many authentication messages wait, the target drops the messages of closed
/// connections.
pub const SWEPT_CALCULATIONS: usize = 256;

/// The interval at which the target halves the recorded authentication work of each address.
pub const CALCULATED_LATELY: Duration = Duration::from_secs(10);

/// The target forgets an address if less recorded work than this remains after halving. The unit is
/// thousands of multiplications. An exchange with the smallest group takes more.
pub const CALCULATED_LITTLE: u64 = 64;

/// The most addresses for which the target records authentication work.
pub const CALCULATED_ADDRESSES: usize = 16_384;

/// The largest authentication message in bytes, and the largest allocation length for one.
pub const AUTHENTICATION_BYTES: u32 = 4096;

/// The longest time without progress. While the target expects data, the host must send some of
/// them. While the target sends, the host must receive some bytes.
pub const TRANSFER_TIMEOUT: Duration = Duration::from_secs(30);

/// The time that a stopping target waits for accepted commands to complete.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The TCP keep-alive interval of connections without an NVMe keep-alive timeout.
pub const TCP_KEEPALIVE: Duration = Duration::from_secs(60);

/// Connection requests that wait for an RDMA listener.
pub const RDMA_BACKLOG: u32 = 256;

/// Registered memory for transfers in flight over RDMA, in bytes, for each device and core. Beyond
/// it, transfers wait. A device keeps this memory locked.
pub const STAGING_BYTES: usize = 16 << 20;

/// Registered memory that the transfers of one connection may use, in bytes: the others progress
/// while one host does not answer.
pub const STAGING_BYTES_PER_CONNECTION: usize = STAGING_BYTES / 4;

/// The unit in which a core registers the memory of [`STAGING_BYTES`], in bytes: the largest
/// transfer.
pub const STAGING_SLAB_BYTES: usize = 1 << 20;

/// The smallest part of the memory of [`STAGING_BYTES`] that a transfer takes, in bytes.
pub const STAGING_CHUNK_BYTES_MIN: usize = 4096;

/// Work completions that a connection handles in one round, so that others have their turn.
pub const RDMA_COMPLETIONS_PER_ROUND: usize = 64;

/// The time that a closed RDMA connection has to end its requests, before the target destroys its
/// queue pair.
pub const RDMA_FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
