//! Every limit of the host, with its unit. A test covers the behaviour at each limit.

use std::time::Duration;

/// Entries of the admin queue, which has at most one command fewer in flight.
pub const ADMIN_QUEUE_ENTRIES: u16 = 32;

/// Default number of I/O queue pairs to request.
pub const QUEUES: u16 = 64;

/// Most bytes that one command moves, if the controller allows it: larger operations are split.
/// Larger commands would hardly save overhead, and other commands would wait longer.
pub const MAX_COMMAND_BYTES: u32 = 1 << 20;

/// Up to this many bytes, in-capsule data is copied next to its header instead of becoming a
/// separate piece of the gather list.
pub const COPY_BYTES: usize = 4096;

/// After a payload of at least this size, in bytes, the next receive is a large one. TLS opens the
/// records of such a payload straight into its destination.
pub const LARGE_PAYLOAD_BYTES: u32 = 8 << 10;

/// Size of a large receive, in bytes: several payloads with their headers in one system call. The
/// host copies each payload once, while it is in the cache.
pub const LARGE_RECEIVE_BYTES: u32 = 256 << 10;

/// If the rest of a payload has at least this size, in bytes, the host receives it straight into
/// its destination. For smaller payloads a large receive and a copy are cheaper than two receives
/// each. From 256 KiB on the copy costs up to a fifth of the rate.
pub const DIRECT_RECEIVE_BYTES: u32 = 128 << 10;

/// Size of a receive of a large payload's records, in bytes: they stay in the cache until the host
/// decrypts them.
pub const SEALED_RECEIVE_BYTES: usize = 256 << 10;

/// Size of a receive between large payloads, in bytes: a few headers.
pub const HEADER_RECEIVE_BYTES: u32 = 256;

/// Most in-capsule bytes per command, even if the controller allows more.
pub const MAX_IN_CAPSULE_BYTES: u32 = 64 << 10;

/// Size of a write of zeroes if the controller has no Write Zeroes command, in bytes.
pub const ZEROES_BYTES: u32 = 256 << 10;

/// Time that a closing admin queue waits for its connection to close.
pub const CLOSE_TIME: Duration = Duration::from_secs(1);

/// Total time for the orderly shutdown of a controller.
pub const SHUTDOWN_TIME: Duration = Duration::from_secs(1);

/// Time for which the host retries to connect a queue while the controller still releases the
/// previous one.
pub const BUSY_RETRY_TIME: Duration = Duration::from_secs(2);

/// Pause between retries within [`BUSY_RETRY_TIME`].
pub const BUSY_RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Retries of a command after a transient error, as in Linux.
pub const COMMAND_RETRIES: u8 = 5;

/// Pause before such a retry if the namespace is not ready and the controller advises no delay.
pub const NOT_READY_PAUSE: Duration = Duration::from_millis(200);

/// Longest pause before such a retry, even if the controller advises more.
pub const RETRY_DELAY_MAX: Duration = Duration::from_secs(10);

/// Longest pause between further attempts to connect while the controller is busy.
pub const BUSY_PAUSE: Duration = Duration::from_millis(500);

/// Shortest time in which a controller can be expected to answer a keep alive.
pub const PATH_TIMEOUT_MIN: Duration = Duration::from_millis(100);

/// Users' admin commands waiting or in flight at once.
pub const ADMIN_REQUESTS: usize = 1024;

/// Largest transfer of an admin command, in bytes.
pub const ADMIN_TRANSFER_BYTES: u32 = 4 << 20;

/// Most namespaces in a controller's list.
pub const NAMESPACES: usize = 1 << 16;

/// Attempts to read the properties of a namespace that keeps changing.
pub const LOOKS: usize = 8;

/// Longest chain of referrals that discovery follows.
pub const REFERRAL_DEPTH: usize = 4;

/// Referrals that one discovery follows in total.
pub const REFERRALS: usize = 32;

/// Most addresses of one name to try.
pub const ADDRESSES: usize = 16;

/// The delay between the attempts to connect to two addresses of a name (RFC 8305, 8).
pub const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Failed commands that are logged per queue and [`LOG_PERIOD`].
pub const LOGGED_FAILURES: u32 = 8;

/// Period of [`LOGGED_FAILURES`].
pub const LOG_PERIOD: Duration = Duration::from_secs(10);

/// The pause before the second attempt to reconnect; the first is made at once.
pub const RECONNECT_PAUSE: Duration = Duration::from_millis(50);

/// A lost path is reconnected at once if it was connected for at least this long. Otherwise it is
/// treated like a failed attempt.
pub const STEADY: Duration = Duration::from_secs(1);

/// The time for which a target's breach of the protocol counts.
pub const BREACH_PERIOD: Duration = Duration::from_secs(600);

/// Shortest time for a step of reconnecting when the path is about to be given up.
pub const CONNECT_TIMEOUT_MIN: Duration = Duration::from_millis(100);

/// Interval at which the keeper of a path checks its state even without an event.
pub const KEEPER_PERIOD: Duration = Duration::from_secs(1);

/// First pause between queries whether a lost controller has ended; each further pause is twice as
/// long.
pub const FINISH_PAUSE: Duration = Duration::from_millis(1);

/// Longest pause between queries whether a lost controller has ended.
pub const FINISH_PAUSE_MAX: Duration = Duration::from_millis(20);

/// Interval between reads of an unusable path's access state, apart from change events.
pub const ACCESS_PERIOD: Duration = Duration::from_millis(500);

/// Path timeout of a disk with several paths: it leaves almost half of one second for failover.
pub const PATH_TIMEOUT: Duration = Duration::from_millis(600);

/// Time for which [`Disk::connect`](crate::Disk::connect) waits for other paths after the first is
/// connected.
pub const OTHER_PATHS_TIME: Duration = Duration::from_secs(1);

/// Time for which a path gets no commands after its controller asked for a retry later.
pub const BACKOFF: Duration = Duration::from_millis(20);

/// Most ended boots of targets' machines that a disk remembers.
pub const BOOTS: usize = 64;

/// I/O queues of a path to connect in parallel.
pub const QUEUES_AT_ONCE: usize = 16;

/// Most paths of a disk.
pub const PATHS: usize = 16;

/// Most commands into which one deallocation is split. Each needs a range entry of 16 bytes.
pub const DEALLOCATE_COMMANDS: u32 = 4096;
