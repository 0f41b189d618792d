//! Limits of the controller side, each with its unit. The tests check the behaviour at each limit.

use core::time::Duration;

/// Largest number of subsystems in a registry.
pub const MAX_SUBSYSTEMS: usize = 256;

/// Largest number of live controllers in a registry, including discovery controllers. At the limit,
/// the registry refuses Connect with Connect Controller Busy.
pub const MAX_CONTROLLERS: usize = 16_384;

/// Largest number of discovery controllers, which count toward [`MAX_CONTROLLERS`]. Any host may
/// create discovery controllers, so they must not use up all controllers.
pub const MAX_DISCOVERY_CONTROLLERS: usize = 1024;

/// Largest number of listeners in a registry.
pub const MAX_LISTENERS: usize = 32;

/// Largest number of referrals in a registry.
pub const MAX_REFERRALS: usize = 64;

/// Largest number of allowed hosts of a subsystem.
pub const MAX_ALLOWED_HOSTS: usize = 1024;

/// Largest number of different hosts in the visibility lists of a subsystem. Each such host has its
/// own table.
pub const MAX_VISIBLE_TO: usize = 256;

/// Largest namespace identifier, and therefore also the largest number of namespaces in a subsystem
/// (NN and MNAN). Linux does not use ANA if the ANA log page for MNAN namespaces exceeds one
/// transfer. With this limit, the page is smaller than 64 KiB.
pub const MAX_NAMESPACE_ID: u32 = 10_240;

/// Largest number of I/O queues that a subsystem may grant to a controller.
pub const MAX_IO_QUEUES: u16 = 1024;

/// Number of entries in an admin queue (ASQSZ of a discovery log page entry). The specification
/// requires at least 32.
pub const ADMIN_QUEUE_ENTRIES: u16 = 128;

/// Smallest configurable depth of I/O queues, in entries.
pub const MIN_QUEUE_DEPTH: u16 = 2;

/// Largest number of Asynchronous Event Requests that a controller holds (AERL is one less). A
/// further request fails with Asynchronous Event Request Limit Exceeded.
pub const ASYNC_EVENT_REQUESTS: usize = 4;

/// Largest number of Abort commands that a host may have outstanding (ACL is one less). The target
/// refuses further Abort commands.
pub const ABORT_COMMANDS: u8 = 4;

/// Largest number of blocks in a fused Compare and Write (ACWU is one less). On-disk locks use one
/// block, and every store writes one block atomically.
pub const FUSED_BLOCKS: u32 = 1;

/// Largest number of Cross-Controller Resets that a host may have in progress (CCRL). The target
/// completes each of them immediately, so it need not enforce the limit.
pub const CROSS_CONTROLLER_RESETS: u8 = 4;

/// Number of entries in a controller's error information log (ELPE is one less). New entries
/// replace the oldest entries.
pub const ERROR_LOG_ENTRIES: u8 = 64;

/// Granularity of the keep-alive timeout, in milliseconds. (KAS counts units of 100 ms.)
pub const KEEP_ALIVE_GRANULARITY_MS: u32 = 1000;

/// Largest ANA group number, and number of ANA groups (ANAGRPMAX, NANAGRPID).
pub const MAX_ANA_GROUPS: u32 = 128;

/// The longest time of an ANA state transition, in seconds (ANATT). The operator must end a
/// transition within this time: hosts abandon the path after twice as long.
pub const ANA_TRANSITION_SECONDS: u8 = 30;

/// Keep-alive timeout of a discovery controller whose host requested no timeout. It ends abandoned
/// discovery sessions.
pub const DISCOVERY_KEEP_ALIVE: Duration = Duration::from_secs(120);

/// Time for which a controller keeps its admin queue after a shutdown. In this time the host can
/// still read properties. The specification requires at least two minutes ("Association
/// termination").
pub const ASSOCIATION_LINGER: Duration = Duration::from_secs(120);

/// CAP.TO and CRTO: the time for which a host waits for readiness, in units of 500 ms. Our
/// controllers are immediately ready.
pub const READY_TIMEOUT_500_MS: u8 = 15;

/// Smallest memory page (CAP.MPSMIN 0), the unit of MDTS, in bytes.
pub const PAGE_BYTES: u32 = 4096;

/// Smallest configurable data transfer limit, in bytes. MDTS cannot express one page, because 0
/// means no limit.
pub const MIN_TRANSFER_BYTES: u32 = 2 * PAGE_BYTES;

/// Largest configurable data transfer limit, in bytes.
pub const MAX_TRANSFER_BYTES: u32 = 64 << 20;

/// Largest configurable in-capsule data limit, in bytes.
pub const MAX_IN_CAPSULE_BYTES: u32 = 1 << 20;

/// Largest number of ranges in one Dataset Management command (DMRL).
pub const DATASET_RANGES: u16 = 128;

/// Largest number of blocks in one range of a Dataset Management command (DMRSL), and in all of its
/// ranges (DMSL). With the smallest blocks, this is 64 GiB. The limits are equal because Linux
/// splits deallocations by DMRSL only. A command of Linux never has more than DMRSL blocks in all
/// of its ranges.
pub const DATASET_BLOCKS: u32 = 1 << 27;

/// Largest range of a Write Zeroes (WZSL) or Verify (VSL) command, in bytes. This is 65,536 blocks
/// of the smallest size; NLB cannot express more blocks. With a larger WZSL, Linux would exceed
/// NLB.
pub const IN_PLACE_BYTES: u32 = 32 << 20;

/// Largest number of source ranges in a Copy command (MSRC is one less).
pub const COPY_RANGES: u16 = 128;

/// Largest source range of a Copy command (MSSRL), in bytes. A range has at most 65,535 blocks, the
/// largest value of MSSRL.
pub const COPY_RANGE_BYTES: u32 = 32 << 20;

/// Largest number of bytes that one Copy command copies (MCL). A slow disk must finish the copy
/// before the host's timeout.
pub const COPY_BYTES: u32 = 128 << 20;

/// Largest number of registrants of a namespace: hosts that have registered a reservation key. A
/// further host gets Internal Error, and may try again.
pub const MAX_REGISTRANTS: usize = 64;

/// Largest number of identifiers (HOSTID) that one host with a proved name may own in a subsystem
/// at the same time. A host usually has one identifier. It has more after a reinstallation, or if
/// several systems share its name.
pub const MAX_IDENTIFIERS: usize = 8;

/// Largest number of reservation notifications that a controller keeps for its host. New
/// notifications replace the oldest notifications; the host sees the gap in their numbers.
pub const RESERVATION_NOTIFICATIONS: usize = 64;

/// Smallest logical block, in bytes.
pub const MIN_BLOCK_BYTES: u32 = 512;

/// Largest logical block, in bytes.
pub const MAX_BLOCK_BYTES: u32 = 64 << 10;
