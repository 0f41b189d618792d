//! Every limit of the host, with its unit. What happens at each is tested.

use std::time::Duration;

/// Entries of the admin queue; one less is in flight at once.
pub const ADMIN_QUEUE_ENTRIES: u16 = 32;

/// I/O queue pairs that are asked for, unless the options say otherwise.
pub const QUEUES: u16 = 64;

/// Most bytes that one command moves, if the controller allows more: larger operations are split.
/// Beyond this, header overhead is nothing and other commands would wait.
pub const MAX_COMMAND_BYTES: u32 = 1 << 20;

/// In-capsule data up to this many bytes is copied next to its header instead of becoming a piece
/// of its own in the gather list.
pub const COPY_BYTES: usize = 4096;

/// After a payload of this size the next receive is a large one, in bytes. TLS opens the records of
/// such a payload straight into its destination.
pub const LARGE_PAYLOAD_BYTES: u32 = 8 << 10;

/// A large receive, in bytes: several payloads with their headers in one system call. The host
/// copies each payload once from there, while it is in the cache.
pub const LARGE_RECEIVE_BYTES: u32 = 256 << 10;

/// The host receives the rest of a payload of this size straight into its destination, in bytes.
/// For smaller payloads a large receive and one copy are cheaper than two receives for each. From
/// 256 KiB on the copy costs up to a fifth of the rate.
pub const DIRECT_RECEIVE_BYTES: u32 = 128 << 10;

/// Records of a large payload that are received at once, in bytes: as many as stay in the cache
/// until they are opened.
pub const SEALED_RECEIVE_BYTES: usize = 256 << 10;

/// What is received at once between large payloads, in bytes: a few headers.
pub const HEADER_RECEIVE_BYTES: u32 = 256;

/// Most in-capsule bytes used, whatever the controller announces.
pub const MAX_IN_CAPSULE_BYTES: u32 = 64 << 10;

/// Zeroes that are sent at once where the controller has no Write Zeroes command, in bytes.
pub const ZEROES_BYTES: u32 = 256 << 10;

/// How long an admin queue waits at its end for its connection to be closed.
pub const CLOSE_TIME: Duration = Duration::from_secs(1);

/// How long the orderly shutdown of a controller may take in all.
pub const SHUTDOWN_TIME: Duration = Duration::from_secs(1);

/// How long a new queue is tried for while the controller is busy letting go of the last one.
pub const BUSY_RETRY_TIME: Duration = Duration::from_secs(2);

/// Pause between those tries.
pub const BUSY_RETRY_PAUSE: Duration = Duration::from_millis(20);

/// How often a command is tried again that failed for a reason that may pass, as Linux does.
pub const COMMAND_RETRIES: u8 = 5;

/// The pause before that if the namespace is not ready and the controller advises none.
pub const NOT_READY_PAUSE: Duration = Duration::from_millis(200);

/// The longest pause before that, whatever the controller advises.
pub const RETRY_DELAY_MAX: Duration = Duration::from_secs(10);

/// The longest pause after that time before it is tried again.
pub const BUSY_PAUSE: Duration = Duration::from_millis(500);

/// The shortest time in which a controller can be expected to answer a sign of life.
pub const PATH_TIMEOUT_MIN: Duration = Duration::from_millis(100);

/// Admin commands of users that wait or are in flight at once.
pub const ADMIN_REQUESTS: usize = 1024;

/// Largest transfer of an admin command, in bytes.
pub const ADMIN_TRANSFER_BYTES: u32 = 4 << 20;

/// Namespaces that a controller's list may name.
pub const NAMESPACES: usize = 1 << 16;

/// How often a namespace is read that changes while it is.
pub const LOOKS: usize = 8;

/// Referrals that discovery follows from one to the next.
pub const REFERRAL_DEPTH: usize = 4;

/// Referrals that one discovery follows in all.
pub const REFERRALS: usize = 32;

/// Addresses of one name that are tried.
pub const ADDRESSES: usize = 16;

/// The delay between the attempts to connect to two addresses of a name (RFC 8305, 8).
pub const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Failed commands that are logged per queue and [`LOG_PERIOD`].
pub const LOGGED_FAILURES: u32 = 8;

/// Period of [`LOGGED_FAILURES`].
pub const LOG_PERIOD: Duration = Duration::from_secs(10);

/// The pause before the second attempt to reconnect; the first is made at once.
pub const RECONNECT_PAUSE: Duration = Duration::from_millis(50);

/// A path that lasted for this long is tried again at once when it is lost; one that did not, like
/// one that could not be connected.
pub const STEADY: Duration = Duration::from_secs(1);

/// The shortest time that a step of reconnecting is given when the path is about to be given up.
pub const CONNECT_TIMEOUT_MIN: Duration = Duration::from_millis(100);

/// How often the keeper of a path looks around even if nothing happens.
pub const KEEPER_PERIOD: Duration = Duration::from_secs(1);

/// First pause between two questions whether a lost controller has ended; it doubles.
pub const FINISH_PAUSE: Duration = Duration::from_millis(1);

/// Longest pause between those questions.
pub const FINISH_PAUSE_MAX: Duration = Duration::from_millis(20);

/// How often the access state of a path that cannot be used is read, besides when it changes.
pub const ACCESS_PERIOD: Duration = Duration::from_millis(500);

/// The path timeout of a disk with several paths: half a second is left of one to go on elsewhere.
pub const PATH_TIMEOUT: Duration = Duration::from_millis(600);

/// How long connecting a disk waits for its other paths once one is connected.
pub const OTHER_PATHS_TIME: Duration = Duration::from_secs(1);

/// How long a path is left alone after it answered that a command is not for it now.
pub const BACKOFF: Duration = Duration::from_millis(20);

/// Boots of targets' machines that are remembered as over.
pub const BOOTS: usize = 64;

/// I/O queues of a path that are connected side by side.
pub const QUEUES_AT_ONCE: usize = 16;

/// Paths of a disk.
pub const PATHS: usize = 16;

/// Commands that one deallocation is cut into at most, each with a range of 16 bytes.
pub const DEALLOCATE_COMMANDS: u32 = 4096;
