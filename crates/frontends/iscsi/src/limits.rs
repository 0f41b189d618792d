//! All limits of the iSCSI target, with their units.

pub use farblock_frontend::limits::PIECE_BYTES;
use std::time::Duration;

/// The maximum number of sessions of a target, including discovery sessions and logins in progress.
/// The target accepts further connections, but closes them at once.
pub const MAX_CONNECTIONS: usize = 64;

/// The maximum number of commands in flight of one session: its command window.
pub const MAX_TASKS: u32 = 128;

/// The maximum number of immediate commands in flight of one session. Immediate commands do not
/// count against the window.
pub const MAX_IMMEDIATE_TASKS: u32 = 16;

/// The limit on the unsent output of a connection, in bytes. Above this limit the target stops
/// reading from the connection. So an initiator that does not read its answers cannot send more
/// requests.
pub const OUTBOX_BYTES: usize = 4 << 20;

/// The longest data segment that the target accepts, in bytes (its `MaxRecvDataSegmentLength`).
pub const MAX_DATA_SEGMENT_BYTES: u32 = 256 << 10;

/// The longest data segment before the login has negotiated another value, in bytes (RFC 7143,
/// 13.12).
pub const DEFAULT_DATA_SEGMENT_BYTES: u32 = 8192;

/// The longest burst of data that the target requests by one R2T, in bytes.
pub const MAX_BURST_BYTES: u32 = 1 << 20;

/// The maximum length of the data that an initiator sends without an R2T, in bytes, for one
/// command.
pub const MAX_FIRST_BURST_BYTES: u32 = 256 << 10;

/// The maximum number of outstanding R2Ts of one command.
pub const MAX_OUTSTANDING_R2T: u32 = 8;

/// The maximum length of a text (keys and values in logins and text requests), in bytes. A text may
/// span several PDUs.
pub const MAX_TEXT_BYTES: usize = 8192;

/// The maximum number of requests in one login.
pub const MAX_LOGIN_REQUESTS: u32 = 32;

/// The maximum length of one command's data, in bytes.
pub const MAX_TRANSFER_BYTES: u32 = 32 << 20;

/// The longest parameter list, in bytes. A parameter list is the data of a command that does not
/// write blocks.
pub const MAX_PARAMETER_BYTES: u32 = 8192;

/// The maximum number of ranges in one UNMAP.
pub const MAX_UNMAP_DESCRIPTORS: u32 = 256;

/// The maximum number of blocks that one WRITE SAME fills.
pub const MAX_WRITE_SAME_BLOCKS: u32 = 1 << 22;

/// The limit on the data buffers that the commands of one session hold at once, in bytes. Further
/// commands wait, but each may hold a buffer of [`PIECE_BYTES`] for unsolicited data. A process
/// with little memory has a smaller limit ([`farblock_reactor::allowance`]).
pub const CONNECTION_BUFFER_BYTES: usize = 64 << 20;

/// The number of sessions among which the target divides its memory if the process has little
/// memory. It suffices for one initiator with a few paths.
pub const USUAL_SESSIONS: usize = 4;

/// The maximum number of bytes that one COMPARE AND WRITE compares. The limit is small, because all
/// other writes wait for the command.
pub const MAX_COMPARE_WRITE_BYTES: u32 = 64 << 10;

/// The maximum number of initiators registered for persistent reservations.
pub const MAX_REGISTRATIONS: usize = 64;

/// The maximum number of pending unit attentions of one session.
pub const MAX_UNIT_ATTENTIONS: usize = 8;

/// The limit on the memory for headers that a connection keeps between two sends, in bytes.
pub const KEPT_BATCH_BYTES: usize = 64 << 10;

/// The minimum length of data that the target receives directly into its destination, in bytes. The
/// target copies shorter data from a receive that may hold several PDUs, because a copy costs less
/// than another system call.
pub const DIRECT_RECEIVE_BYTES: usize = 16 << 10;

/// The longest time from accept to the end of the login.
pub const LOGIN_TIMEOUT: Duration = Duration::from_secs(15);

/// The time that a stopping target waits for initiators to log out.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

/// The maximum number of rounds in one pass of the event loop. A round handles completions, then
/// sends answers. Without this limit, a namespace that completes operations at once would starve
/// the thread's other work.
pub const ROUNDS_PER_TICK: usize = 8;

/// The longest iSCSI name, in bytes (RFC 7143, 4.2.7.1).
pub const MAX_NAME_BYTES: usize = 223;
