//! Limits of the controller side, each with its unit. What happens at each is tested.

use core::time::Duration;

/// Subsystems of a registry.
pub const MAX_SUBSYSTEMS: usize = 256;

/// Live controllers of a registry, discovery controllers included. At the limit Connect is
/// answered with Connect Controller Busy.
pub const MAX_CONTROLLERS: usize = 16_384;

/// Discovery controllers among them: anybody may have one, so they must not use up the others'.
pub const MAX_DISCOVERY_CONTROLLERS: usize = 1024;

/// Listeners of a registry.
pub const MAX_LISTENERS: usize = 32;

/// Referrals of a registry.
pub const MAX_REFERRALS: usize = 64;

/// Host NQNs that a subsystem may list as allowed.
pub const MAX_ALLOWED_HOSTS: usize = 1024;

/// Different hosts that the namespaces of a subsystem are visible to by name: each has a table of
/// its own.
pub const MAX_VISIBLE_TO: usize = 256;

/// Largest namespace identifier, and so also the most namespaces of a subsystem (NN and MNAN). As
/// many as one page of a namespace list has room for.
pub const MAX_NAMESPACE_ID: u32 = 1024;

/// I/O queues that a subsystem may grant a controller.
pub const MAX_IO_QUEUES: u16 = 1024;

/// Entries of an admin queue (ASQSZ of a discovery log page entry). The specification asks for at
/// least 32.
pub const ADMIN_QUEUE_ENTRIES: u16 = 128;

/// Smallest depth of I/O queues that a subsystem may be configured with, in entries.
pub const MIN_QUEUE_DEPTH: u16 = 2;

/// Asynchronous Event Requests that a controller holds (AERL is one less). One more is refused
/// with Asynchronous Event Request Limit Exceeded.
pub const ASYNC_EVENT_REQUESTS: usize = 4;

/// Abort commands that a host may have outstanding (ACL is one less). Those that are not answered
/// at once are the target's to hold, and to refuse beyond this.
pub const ABORT_COMMANDS: u8 = 4;

/// Blocks that a fused Compare and Write may name (ACWU is one less). One is what locks on disk are
/// made of, and what every store writes whole.
pub const FUSED_BLOCKS: u32 = 1;

/// Cross-Controller Resets that a host may have in progress (CCRL): each is answered at once, so
/// that nothing is held here and the limit is not enforced.
pub const CROSS_CONTROLLER_RESETS: u8 = 4;

/// Entries of a controller's error information log (ELPE is one less). The oldest goes first.
pub const ERROR_LOG_ENTRIES: u8 = 64;

/// Granularity of the keep-alive timeout, in milliseconds (KAS counts units of 100 ms).
pub const KEEP_ALIVE_GRANULARITY_MS: u32 = 1000;

/// ANA groups that namespaces can be in (ANAGRPMAX, NANAGRPID).
pub const MAX_ANA_GROUPS: u32 = 128;

/// How long a transition from one ANA state to another may take, in seconds (ANATT). Whoever says
/// that one has begun has to end it in this time: hosts give the path up after twice as much.
pub const ANA_TRANSITION_SECONDS: u8 = 30;

/// Keep-alive timeout of a discovery controller whose host asked for none, so that discovery
/// sessions left behind are cleaned up.
pub const DISCOVERY_KEEP_ALIVE: Duration = Duration::from_secs(120);

/// How long a controller that was shut down keeps its admin queue, so that the host can still read
/// properties: at least two minutes says the specification ("Association termination").
pub const ASSOCIATION_LINGER: Duration = Duration::from_secs(120);

/// CAP.TO and CRTO: how long a host waits for readiness, in units of 500 ms. We are ready at once.
pub const READY_TIMEOUT_500_MS: u8 = 15;

/// Smallest memory page (CAP.MPSMIN 0), the unit of MDTS, in bytes.
pub const PAGE_BYTES: u32 = 4096;

/// Smallest data transfer limit that a subsystem may be configured with, in bytes: MDTS cannot say
/// one page, as 0 means no limit.
pub const MIN_TRANSFER_BYTES: u32 = 2 * PAGE_BYTES;

/// Largest data transfer that a subsystem may be configured with, in bytes.
pub const MAX_TRANSFER_BYTES: u32 = 64 << 20;

/// Largest in-capsule data that a subsystem may be configured with, in bytes.
pub const MAX_IN_CAPSULE_BYTES: u32 = 1 << 20;

/// Ranges of one Dataset Management command (DMRL).
pub const DATASET_RANGES: u16 = 128;

/// Blocks of one range of a Dataset Management command (DMRSL), and of all of its ranges (DMSL): 64
/// GiB of the smallest blocks. Linux splits by DMRSL and does not look at DMSL, but counts a
/// command's ranges together.
pub const DATASET_BLOCKS: u32 = 1 << 27;

/// Largest range of a Write Zeroes (WZSL) or Verify (VSL) command, in bytes: as many of the
/// smallest blocks as a command can name. A larger WZSL would have Linux send more blocks than it
/// can name.
pub const IN_PLACE_BYTES: u32 = 32 << 20;

/// Source ranges of a Copy command (MSRC is one less).
pub const COPY_RANGES: u16 = 128;

/// Largest source range of a Copy command (MSSRL), in bytes; and 65,535 blocks, which is as much as
/// MSSRL can say.
pub const COPY_RANGE_BYTES: u32 = 32 << 20;

/// Most that a Copy command copies (MCL), in bytes: a slow disk is done with it before hosts lose
/// patience.
pub const COPY_BYTES: u32 = 128 << 20;

/// Registrants of a namespace: hosts that have registered a reservation key. One more is refused
/// with Internal Error, and may try again.
pub const MAX_REGISTRANTS: usize = 64;

/// Identifiers (HOSTID) of a subsystem that are a host's that has proved its name, at once: one,
/// but for a machine that was set up anew, or several systems of one name.
pub const MAX_IDENTIFIERS: usize = 8;

/// Reservation notifications that a controller keeps for its host. The oldest goes first; the host
/// sees the gap in their numbers.
pub const RESERVATION_NOTIFICATIONS: usize = 64;

/// Smallest logical block, in bytes.
pub const MIN_BLOCK_BYTES: u32 = 512;

/// Largest logical block, in bytes.
pub const MAX_BLOCK_BYTES: u32 = 64 << 10;
