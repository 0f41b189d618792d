//! Every limit of the host, with its unit. A test covers the behaviour at each limit.

use std::time::Duration;

/// The number of entries of the admin queue. The maximum number of commands in flight is one less.
pub const ADMIN_QUEUE_ENTRIES: u16 = 32;

/// The host by default requests this many I/O queue pairs from a controller.
pub const QUEUES: u16 = 64;

/// One command moves at most this many bytes, or fewer if the controller has a lower limit. The
/// host splits larger operations. Larger commands would save little overhead, and other commands
/// would wait longer.
pub const MAX_COMMAND_BYTES: u32 = 1 << 20;

/// The host copies in-capsule data of up to this many bytes behind their header, and sends both as
/// one piece. Larger data stay in their buffer and become a separate piece of the send.
pub const COPY_BYTES: usize = 4096;

/// After a payload of at least this size, in bytes, the next receive is a large one (see
/// [`LARGE_RECEIVE_BYTES`]). TLS decrypts the records of such a payload directly into its
/// destination.
pub const LARGE_PAYLOAD_BYTES: u32 = 8 << 10;

/// The size of a large receive, in bytes. One system call then receives several payloads with their
/// headers. The host copies each payload once, while it is in the cache.
pub const LARGE_RECEIVE_BYTES: u32 = 256 << 10;

/// If at least this many bytes of a payload remain, the host receives them directly into their
/// destination. For smaller payloads, one large receive with a copy is cheaper than two receives
/// for each payload. For payloads of 256 KiB or more, the copy costs up to a fifth of the
/// throughput.
pub const DIRECT_RECEIVE_BYTES: u32 = 128 << 10;

/// Size of a receive of a large payload's TLS records, in bytes. The records stay in the cache
/// until the host decrypts them.
pub const SEALED_RECEIVE_BYTES: usize = 256 << 10;

/// Size of a receive between large payloads, in bytes: enough for a few headers.
pub const HEADER_RECEIVE_BYTES: u32 = 256;

/// A command has at most this many bytes of in-capsule data, even if the controller allows more.
pub const MAX_IN_CAPSULE_BYTES: u32 = 64 << 10;

/// Size of a write of zeroes if the controller has no Write Zeroes command, in bytes.
pub const ZEROES_BYTES: u32 = 256 << 10;

/// Time that a closing admin queue waits for its connection to close.
pub const CLOSE_TIME: Duration = Duration::from_secs(1);

/// Total time for the orderly shutdown of a controller.
pub const SHUTDOWN_TIME: Duration = Duration::from_secs(1);

/// The host retries to connect a queue for at most this time, if the controller is still releasing
/// the host's previous queue.
pub const BUSY_RETRY_TIME: Duration = Duration::from_secs(2);

/// Pause between retries within [`BUSY_RETRY_TIME`].
pub const BUSY_RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Retries of a command after a transient error, as in Linux.
pub const COMMAND_RETRIES: u8 = 5;

/// Pause before a retry of a command if the namespace is not ready and the controller advises no
/// delay.
pub const NOT_READY_PAUSE: Duration = Duration::from_millis(200);

/// The host pauses at most this long before it retries a command, even if the controller advises a
/// longer delay.
pub const RETRY_DELAY_MAX: Duration = Duration::from_secs(10);

/// While a target is still releasing the host's previous controller, the host pauses at most this
/// long between its attempts to reconnect the path.
pub const BUSY_PAUSE: Duration = Duration::from_millis(500);

/// The minimum of [`Options::path_timeout`](crate::Options::path_timeout): a controller may need
/// this long to answer a keep alive.
pub const PATH_TIMEOUT_MIN: Duration = Duration::from_millis(100);

/// The maximum number of users' admin commands that wait for the admin queue.
pub const ADMIN_REQUESTS: usize = 1024;

/// An admin command transfers at most this many bytes.
pub const ADMIN_TRANSFER_BYTES: u32 = 4 << 20;

/// The host accepts at most this many namespaces in a controller's list.
pub const NAMESPACES: usize = 1 << 16;

/// If a namespace changes while the host reads its properties, the host reads them again. This is
/// the maximum number of reads.
pub const LOOKS: usize = 8;

/// Discovery follows referrals to other services at most this many times in a row.
pub const REFERRAL_DEPTH: usize = 4;

/// The number of referrals that one discovery follows in total.
pub const REFERRALS: usize = 32;

/// The maximum number of addresses to try for one name.
pub const ADDRESSES: usize = 16;

/// The delay between the starts of attempts to connect to several addresses of a name (RFC 8305,
/// section 8).
pub const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// A queue logs at most this many failed commands in each [`LOG_PERIOD`], and counts the rest.
pub const LOGGED_FAILURES: u32 = 8;

/// Period of [`LOGGED_FAILURES`].
pub const LOG_PERIOD: Duration = Duration::from_secs(10);

/// The pause before the second attempt to reconnect. The first attempt has no pause.
pub const RECONNECT_PAUSE: Duration = Duration::from_millis(50);

/// The host reconnects a lost path at once if the path was connected for at least this long.
/// Otherwise it treats the loss like a failed attempt.
pub const STEADY: Duration = Duration::from_secs(1);

/// The status of a path reports the target's last breach of the protocol for this time. Breaches
/// with shorter intervals count together.
pub const BREACH_PERIOD: Duration = Duration::from_secs(600);

/// The minimum time limit for a step of reconnecting, even if the host gives up the path sooner.
pub const CONNECT_TIMEOUT_MIN: Duration = Duration::from_millis(100);

/// The keeper of a path checks the path's state at this interval, even if nothing has happened.
pub const KEEPER_PERIOD: Duration = Duration::from_secs(1);

/// First pause between queries whether a lost controller has ended. Each further pause is twice the
/// previous one.
pub const FINISH_PAUSE: Duration = Duration::from_millis(1);

/// The pause between queries whether a lost controller has ended grows up to this value.
pub const FINISH_PAUSE_MAX: Duration = Duration::from_millis(20);

/// Interval between reads of an unusable path's access state, in addition to reads after events.
pub const ACCESS_PERIOD: Duration = Duration::from_millis(500);

/// Default path timeout of a disk with several paths. A failover shall take at most one second, so
/// 400 ms remain for the steps after the timeout.
pub const PATH_TIMEOUT: Duration = Duration::from_millis(600);

/// Time for which [`Disk::connect`](crate::Disk::connect) waits for the other paths after the first
/// path has connected.
pub const OTHER_PATHS_TIME: Duration = Duration::from_secs(1);

/// When a controller cannot execute an operation at present, the disk sends its path no operations
/// for this time.
pub const BACKOFF: Duration = Duration::from_millis(20);

/// The maximum number of boot identifiers of targets' machines that a disk remembers after a
/// reboot.
pub const BOOTS: usize = 64;

/// The number of I/O queues of a path that the host connects in parallel.
pub const QUEUES_AT_ONCE: usize = 16;

/// A disk has at most this many paths.
pub const PATHS: usize = 16;

/// The maximum number of commands into which a queue splits one deallocation. Each command needs
/// memory for a range entry of 16 bytes.
pub const DEALLOCATE_COMMANDS: u32 = 4096;
