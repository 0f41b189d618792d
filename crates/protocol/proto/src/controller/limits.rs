//! Limits of controllers and of their [`Registry`](super::Registry), each with its unit. The tests
//! check the behaviour at each limit.

use core::time::Duration;

/// A registry has at most this many subsystems. Adding one more fails.
pub const MAX_SUBSYSTEMS: usize = 256;

/// A registry has at most this many live controllers, including discovery controllers. At the
/// limit, it refuses Connect with Connect Controller Busy.
pub const MAX_CONTROLLERS: usize = 16_384;

/// A registry has at most this many discovery controllers, which also count toward
/// [`MAX_CONTROLLERS`]. The limit exists because any host may create discovery controllers, and
/// they must not use up all controllers.
pub const MAX_DISCOVERY_CONTROLLERS: usize = 1024;

/// A registry has at most this many listeners. Adding one more fails.
pub const MAX_LISTENERS: usize = 32;

/// A registry has at most this many referrals. Adding one more fails.
pub const MAX_REFERRALS: usize = 64;

/// The list of allowed hosts of a subsystem has at most this many hosts. Adding one more fails.
pub const MAX_ALLOWED_HOSTS: usize = 1024;

/// All visibility lists of a subsystem's namespaces together name at most this many different
/// hosts. Each of these hosts has its own table of namespaces, which takes memory.
pub const MAX_VISIBLE_TO: usize = 256;

/// A namespace identifier is at most this number (NN), so a subsystem has at most this many
/// namespaces (MNAN). Linux does not use ANA if the ANA log page for MNAN namespaces exceeds one
/// transfer. With this limit, the page is smaller than 64 KiB.
pub const MAX_NAMESPACE_ID: u32 = 10_240;

/// A subsystem may be configured to grant a controller at most this many I/O queues.
pub const MAX_IO_QUEUES: u16 = 1024;

/// Number of entries in an admin queue (ASQSZ of a discovery log page entry). The specification
/// requires at least 32.
pub const ADMIN_QUEUE_ENTRIES: u16 = 128;

/// A subsystem's I/O queues must be configured with at least this many entries.
pub const MIN_QUEUE_DEPTH: u16 = 2;

/// A controller holds at most this many Asynchronous Event Requests (AERL is one less). A further
/// request fails with Asynchronous Event Request Limit Exceeded.
pub const ASYNC_EVENT_REQUESTS: usize = 4;

/// A host may have at most this many Abort commands outstanding (ACL is one less). The target
/// refuses further Abort commands.
pub const ABORT_COMMANDS: u8 = 4;

/// A fused Compare and Write may have at most this many blocks (ACWU is one less). One block
/// suffices for locks on disks, and every store can write one block atomically.
pub const FUSED_BLOCKS: u32 = 1;

/// A host may have at most this many Cross-Controller Resets in progress (CCRL). The target
/// completes each reset immediately, so the number in progress never reaches the limit.
pub const CROSS_CONTROLLER_RESETS: u8 = 4;

/// Number of entries in a controller's error information log (ELPE is one less). New entries
/// replace the oldest entries.
pub const ERROR_LOG_ENTRIES: u8 = 64;

/// Granularity of the keep-alive timeout, in milliseconds. (KAS counts units of 100 ms.)
pub const KEEP_ALIVE_GRANULARITY_MS: u32 = 1000;

/// The number of ANA groups, and the highest group number (NANAGRPID, ANAGRPMAX).
pub const MAX_ANA_GROUPS: u32 = 128;

/// An ANA group may be in the state Change for at most this many seconds (ANATT). The operator must
/// end the transition within this time, because hosts abandon the path after twice as long.
pub const ANA_TRANSITION_SECONDS: u8 = 30;

/// If the host of a discovery controller requests no keep-alive timeout, the controller uses this
/// one. This timeout ends abandoned discovery sessions.
pub const DISCOVERY_KEEP_ALIVE: Duration = Duration::from_secs(120);

/// Time for which a controller keeps its admin queue after a shutdown. In this time the host can
/// still read properties. The specification requires at least two minutes ("Association
/// termination").
pub const ASSOCIATION_LINGER: Duration = Duration::from_secs(120);

/// The time for which a host must wait for the controller to become ready (CAP.TO and CRTO), in
/// units of 500 ms. farblock's controllers are ready immediately.
pub const READY_TIMEOUT_500_MS: u8 = 15;

/// Smallest memory page (CAP.MPSMIN 0), the unit of MDTS, in bytes.
pub const PAGE_BYTES: u32 = 4096;

/// A subsystem's data transfer limit must be at least this many bytes. MDTS cannot express a limit
/// of one page, because its value would be 0, which means no limit.
pub const MIN_TRANSFER_BYTES: u32 = 2 * PAGE_BYTES;

/// A subsystem's data transfer limit may be at most this many bytes.
pub const MAX_TRANSFER_BYTES: u32 = 64 << 20;

/// A subsystem's limit of in-capsule data may be at most this many bytes.
pub const MAX_IN_CAPSULE_BYTES: u32 = 1 << 20;

/// A Dataset Management command may have at most this many ranges (DMRL).
pub const DATASET_RANGES: u16 = 128;

/// A Dataset Management command may have at most this many blocks in one range (DMRSL), and also in
/// all of its ranges together (DMSL). With the smallest blocks, this is 64 GiB. Linux obeys only
/// DMRSL, and limits all ranges of a command together to DMRSL. So the two limits are equal.
pub const DATASET_BLOCKS: u32 = 1 << 27;

/// A Write Zeroes (WZSL) or Verify (VSL) command may cover at most this many bytes: 65,536 blocks
/// of the smallest size, the most that the field NLB can express. With a larger WZSL, Linux would
/// send commands that overflow NLB.
pub const IN_PLACE_BYTES: u32 = 32 << 20;

/// A Copy command may have at most this many source ranges (MSRC is one less).
pub const COPY_RANGES: u16 = 128;

/// A source range of a Copy command may have at most this many bytes (MSSRL), and at most 65,535
/// blocks, the largest value that MSSRL can express.
pub const COPY_RANGE_BYTES: u32 = 32 << 20;

/// A Copy command may copy at most this many bytes (MCL), so that even a slow disk finishes before
/// the host's timeout.
pub const COPY_BYTES: u32 = 128 << 20;

/// At most this many hosts may have registered a reservation key for a namespace. A further host
/// gets Internal Error, and may try again.
pub const MAX_REGISTRANTS: usize = 64;

/// A host that has proved its name may own at most this many identifiers (HOSTID) in a subsystem at
/// the same time. A host usually has one identifier. It has more after a reinstallation, or if
/// several systems share its name.
pub const MAX_IDENTIFIERS: usize = 8;

/// A controller keeps at most this many reservation notifications for its host. Newer ones replace
/// the oldest, and the host sees a gap in the numbers of the notifications.
pub const RESERVATION_NOTIFICATIONS: usize = 64;

/// Smallest logical block, in bytes.
pub const MIN_BLOCK_BYTES: u32 = 512;

/// Largest logical block, in bytes.
pub const MAX_BLOCK_BYTES: u32 = 64 << 10;
