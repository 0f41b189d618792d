//! Every limit of the target, with its unit.

pub use farblock_frontend::limits::PIECE_BYTES;
use std::time::Duration;

/// Sessions that a target holds at once, including discovery and logins in progress; one more is
/// closed at accept.
pub const MAX_CONNECTIONS: usize = 64;

/// Commands of one session in flight: the width of its command window.
pub const MAX_TASKS: u32 = 128;

/// Immediate commands of one session in flight, which do not count against the window.
pub const MAX_IMMEDIATE_TASKS: u32 = 16;

/// Bytes waiting to be sent above which the target stops reading from a connection. An initiator
/// that does not read its answers cannot ask for more.
pub const OUTBOX_BYTES: usize = 4 << 20;

/// The longest data segment that the target accepts, in bytes (its `MaxRecvDataSegmentLength`).
pub const MAX_DATA_SEGMENT_BYTES: u32 = 256 << 10;

/// The longest data segment before the negotiation, in bytes (RFC 7143, 13.12).
pub const DEFAULT_DATA_SEGMENT_BYTES: u32 = 8192;

/// The longest burst of solicited data, in bytes.
pub const MAX_BURST_BYTES: u32 = 1 << 20;

/// Limit for unsolicited data with a command, in bytes.
pub const MAX_FIRST_BURST_BYTES: u32 = 256 << 10;

/// Outstanding R2Ts of one command.
pub const MAX_OUTSTANDING_R2T: u32 = 8;

/// Bytes of keys in one text, which may span several PDUs.
pub const MAX_TEXT_BYTES: usize = 8192;

/// Requests that one login may take.
pub const MAX_LOGIN_REQUESTS: u32 = 32;

/// Limit for the data of one command, in bytes.
pub const MAX_TRANSFER_BYTES: u32 = 32 << 20;

/// Limit for parameter lists, which are data of a command that is not for the medium, in bytes.
pub const MAX_PARAMETER_BYTES: u32 = 8192;

/// Ranges in one UNMAP.
pub const MAX_UNMAP_DESCRIPTORS: u32 = 256;

/// Blocks that one WRITE SAME fills.
pub const MAX_WRITE_SAME_BLOCKS: u32 = 1 << 22;

/// Data buffers that the commands of one session hold at once, in bytes. Commands beyond it wait,
/// each with at most one buffer of [`PIECE_BYTES`] for data that came unasked.
/// It is less where the process may use little memory ([`farblock_reactor::allowance`]).
pub const CONNECTION_BUFFER_BYTES: usize = 64 << 20;

/// Sessions among which the memory of a small machine or control group is divided: an initiator
/// usually has one, with a few paths.
pub const USUAL_SESSIONS: usize = 4;

/// Blocks that one COMPARE AND WRITE compares, in bytes: it keeps all other changes waiting.
pub const MAX_COMPARE_WRITE_BYTES: u32 = 64 << 10;

/// Initiators registered for persistent reservations.
pub const MAX_REGISTRATIONS: usize = 64;

/// Unit attentions that wait for one session.
pub const MAX_UNIT_ATTENTIONS: usize = 8;

/// Capacity for headers that a connection keeps between sends, in bytes.
pub const KEPT_BATCH_BYTES: usize = 64 << 10;

/// Data size from which receiving directly into its destination pays off, in bytes. Below it,
/// copying from a receive that may hold several PDUs costs less than a system call.
pub const DIRECT_RECEIVE_BYTES: usize = 16 << 10;

/// Time from accept to the end of the login.
pub const LOGIN_TIMEOUT: Duration = Duration::from_secs(15);

/// Time for initiators to log out when a target stops.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

/// Rounds of completions and answers before the event loop polls again. Without a limit, a
/// namespace that completes at once would starve the thread's other work.
pub const ROUNDS_PER_TICK: usize = 8;

/// The longest iSCSI name, in bytes (RFC 7143, 4.2.7.1).
pub const MAX_NAME_BYTES: usize = 223;
