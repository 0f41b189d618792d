//! Limits of the controller side, each with its unit. Tests cover the behaviour at each limit.

use core::time::Duration;

/// Most subsystems of a registry.
pub const MAX_SUBSYSTEMS: usize = 256;

/// Live controllers of a registry, discovery controllers included. At the limit, Connect gets
/// Connect Controller Busy.
pub const MAX_CONTROLLERS: usize = 16_384;

/// Discovery controllers among these. Any host may create one, so they must not use up all
/// controllers.
pub const MAX_DISCOVERY_CONTROLLERS: usize = 1024;

/// Listeners of a registry.
pub const MAX_LISTENERS: usize = 32;

/// Referrals of a registry.
pub const MAX_REFERRALS: usize = 64;

/// Host NQNs that a subsystem may list as allowed.
pub const MAX_ALLOWED_HOSTS: usize = 1024;

/// Different hosts that a subsystem may list as seeing a namespace: each has its own table.
pub const MAX_VISIBLE_TO: usize = 256;

/// Largest namespace identifier, and so also the most namespaces of a subsystem (NN and MNAN).
/// Linux does not use ANA if the ANA log page for MNAN namespaces exceeds one transfer. With this
/// limit the page is smaller than 64 KiB.
pub const MAX_NAMESPACE_ID: u32 = 10_240;

/// I/O queues that a subsystem may grant a controller.
pub const MAX_IO_QUEUES: u16 = 1024;

/// Entries of an admin queue (ASQSZ of a discovery log page entry). The specification requires at
/// least 32.
pub const ADMIN_QUEUE_ENTRIES: u16 = 128;

/// Smallest depth of I/O queues that a subsystem may be configured with, in entries.
pub const MIN_QUEUE_DEPTH: u16 = 2;

/// Asynchronous Event Requests that a controller holds (AERL is one less). A further request gets
/// Asynchronous Event Request Limit Exceeded.
pub const ASYNC_EVENT_REQUESTS: usize = 4;

/// Abort commands that a host may have outstanding (ACL is one less). The target refuses any more.
pub const ABORT_COMMANDS: u8 = 4;

/// Blocks that a fused Compare and Write may name (ACWU is one less). On-disk locks use one block,
/// and every store writes one block atomically.
pub const FUSED_BLOCKS: u32 = 1;

/// Cross-Controller Resets that a host may have in progress (CCRL). The target answers each at
/// once, so it need not enforce the limit.
pub const CROSS_CONTROLLER_RESETS: u8 = 4;

/// Entries of a controller's error information log (ELPE is one less). New entries replace the
/// oldest.
pub const ERROR_LOG_ENTRIES: u8 = 64;

/// Granularity of the keep-alive timeout, in milliseconds (KAS counts units of 100 ms).
pub const KEEP_ALIVE_GRANULARITY_MS: u32 = 1000;

/// ANA groups that namespaces can be in (ANAGRPMAX, NANAGRPID).
pub const MAX_ANA_GROUPS: u32 = 128;

/// The longest time of an ANA state transition, in seconds (ANATT). The operator must end a
/// transition within this time: hosts abandon the path after twice as long.
pub const ANA_TRANSITION_SECONDS: u8 = 30;

/// Keep-alive timeout of a discovery controller whose host requested none, so that abandoned
/// discovery sessions end.
pub const DISCOVERY_KEEP_ALIVE: Duration = Duration::from_secs(120);

/// The time for which a controller keeps its admin queue after a shutdown, so that the host can
/// still read properties. The specification requires at least two minutes ("Association
/// termination").
pub const ASSOCIATION_LINGER: Duration = Duration::from_secs(120);

/// CAP.TO and CRTO: the time for which a host waits for readiness, in units of 500 ms. Our
/// controllers are ready at once.
pub const READY_TIMEOUT_500_MS: u8 = 15;

/// Smallest memory page (CAP.MPSMIN 0), the unit of MDTS, in bytes.
pub const PAGE_BYTES: u32 = 4096;

/// Smallest data transfer limit that a subsystem may be configured with, in bytes: MDTS cannot
/// express one page, as 0 means no limit.
pub const MIN_TRANSFER_BYTES: u32 = 2 * PAGE_BYTES;

/// Largest data transfer limit that a subsystem may be configured with, in bytes.
pub const MAX_TRANSFER_BYTES: u32 = 64 << 20;

/// Largest in-capsule data limit that a subsystem may be configured with, in bytes.
pub const MAX_IN_CAPSULE_BYTES: u32 = 1 << 20;

/// Ranges of one Dataset Management command (DMRL).
pub const DATASET_RANGES: u16 = 128;

/// Blocks of one range of a Dataset Management command (DMRSL), and of all of its ranges (DMSL): 64
/// GiB of the smallest blocks. Linux splits deallocations by DMRSL only. A command of Linux never
/// has more than DMRSL blocks in all of its ranges.
pub const DATASET_BLOCKS: u32 = 1 << 27;

/// Largest range of a Write Zeroes (WZSL) or Verify (VSL) command, in bytes: 65,536 blocks, the
/// most that a command can name, of the smallest size. With a larger WZSL, Linux would exceed NLB.
pub const IN_PLACE_BYTES: u32 = 32 << 20;

/// Source ranges of a Copy command (MSRC is one less).
pub const COPY_RANGES: u16 = 128;

/// Largest source range of a Copy command (MSSRL), in bytes; at most 65,535 blocks, the largest
/// value of MSSRL.
pub const COPY_RANGE_BYTES: u32 = 32 << 20;

/// Most bytes that a Copy command copies (MCL): few enough for a slow disk to finish before the
/// host's timeout.
pub const COPY_BYTES: u32 = 128 << 20;

/// Registrants of a namespace: hosts that have registered a reservation key. A further host gets
/// Internal Error, and may try again.
pub const MAX_REGISTRANTS: usize = 64;

/// Identifiers (HOSTID) that one host with a proved name may own in a subsystem at once. A host
/// usually has one; it has more after a reinstallation, or if several systems share its name.
pub const MAX_IDENTIFIERS: usize = 8;

/// Reservation notifications that a controller keeps for its host. New notifications replace the
/// oldest; the host sees the gap in their numbers.
pub const RESERVATION_NOTIFICATIONS: usize = 64;

/// Smallest logical block, in bytes.
pub const MIN_BLOCK_BYTES: u32 = 512;

/// Largest logical block, in bytes.
pub const MAX_BLOCK_BYTES: u32 = 64 << 10;
