//! Every limit of the target, with its unit.

pub use farblock_frontend::limits::PIECE_BYTES;
use std::time::Duration;

/// The most sessions of a target, including discovery and logins in progress; it closes further
/// connections at accept.
pub const MAX_CONNECTIONS: usize = 64;

/// The most commands of one session in flight: the width of its command window.
pub const MAX_TASKS: u32 = 128;

/// The most immediate commands of one session in flight, which do not count against the window.
pub const MAX_IMMEDIATE_TASKS: u32 = 16;

/// With more bytes than this waiting to be sent, the target stops reading from a connection. So an
/// initiator that does not read its answers cannot send more requests.
pub const OUTBOX_BYTES: usize = 4 << 20;

/// The longest data segment that the target accepts, in bytes (its `MaxRecvDataSegmentLength`).
pub const MAX_DATA_SEGMENT_BYTES: u32 = 256 << 10;

/// The longest data segment before the negotiation, in bytes (RFC 7143, 13.12).
pub const DEFAULT_DATA_SEGMENT_BYTES: u32 = 8192;

/// The longest burst of solicited data, in bytes.
pub const MAX_BURST_BYTES: u32 = 1 << 20;

/// The most unsolicited data of a command, in bytes.
pub const MAX_FIRST_BURST_BYTES: u32 = 256 << 10;

/// The most outstanding R2Ts of one command.
pub const MAX_OUTSTANDING_R2T: u32 = 8;

/// The most bytes in one text of keys, which may span several PDUs.
pub const MAX_TEXT_BYTES: usize = 8192;

/// The most requests of one login.
pub const MAX_LOGIN_REQUESTS: u32 = 32;

/// The most data of one command, in bytes.
pub const MAX_TRANSFER_BYTES: u32 = 32 << 20;

/// The longest parameter list (the data of a command that is not for the medium), in bytes.
pub const MAX_PARAMETER_BYTES: u32 = 8192;

/// The most ranges in one UNMAP.
pub const MAX_UNMAP_DESCRIPTORS: u32 = 256;

/// The most blocks that one WRITE SAME fills.
pub const MAX_WRITE_SAME_BLOCKS: u32 = 1 << 22;

/// The most data buffers that the commands of one session hold at once, in bytes. Further commands
/// wait, each with at most one buffer of [`PIECE_BYTES`] for unsolicited data. The limit is smaller
/// where the process may use little memory ([`farblock_reactor::allowance`]).
pub const CONNECTION_BUFFER_BYTES: usize = 64 << 20;

/// The number of sessions among which the memory of a small machine or control group is divided:
/// usually one initiator with a few paths.
pub const USUAL_SESSIONS: usize = 4;

/// The most bytes that one COMPARE AND WRITE compares: all other changes wait for it.
pub const MAX_COMPARE_WRITE_BYTES: u32 = 64 << 10;

/// The most initiators registered for persistent reservations.
pub const MAX_REGISTRATIONS: usize = 64;

/// The most pending unit attentions of one session.
pub const MAX_UNIT_ATTENTIONS: usize = 8;

/// The most memory for headers that a connection keeps between sends, in bytes.
pub const KEPT_BATCH_BYTES: usize = 64 << 10;

/// The smallest data that is received directly into its destination, in bytes. Less data is copied
/// from a receive that may hold several PDUs, which costs less than a system call.
pub const DIRECT_RECEIVE_BYTES: usize = 16 << 10;

/// Time from accept to the end of the login.
pub const LOGIN_TIMEOUT: Duration = Duration::from_secs(15);

/// The time that a stopping target waits for initiators to log out.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

/// The most rounds of completions and answers before the event loop polls again. Without a limit, a
/// namespace that completes at once would starve the thread's other work.
pub const ROUNDS_PER_TICK: usize = 8;

/// The longest iSCSI name, in bytes (RFC 7143, 4.2.7.1).
pub const MAX_NAME_BYTES: usize = 223;
