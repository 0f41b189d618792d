//! Every bound of a fleet, with its unit.

use std::time::Duration;

/// The longest line that an agent or a controller takes.
pub const LINE_BYTES: u64 = 8 << 20;
/// The longest line of one who has not shown a token yet.
pub const FIRST_LINE_BYTES: u64 = 4 << 10;
/// How long a stranger may take to show one.
pub const HELLO_TIME: Duration = Duration::from_secs(10);
/// How long one with a wrong token waits for the answer.
pub const WRONG_TOKEN_TIME: Duration = Duration::from_secs(1);
/// Controllers that an agent talks with at once, strangers included.
pub const CONTROLLERS: usize = 16;
/// Characters that a token has at least.
pub const TOKEN_LEAST: usize = 16;

/// Clients of one agent.
pub const CLIENTS: usize = 4096;
/// Drives of one target.
pub const DRIVES: usize = 256;
/// Nodes of a plan: as many as have an address in a node's network.
pub const NODES: u32 = 200;
/// Processes that a plan starts.
pub const AGENTS: u32 = 1000;
/// Threads of one client's verify.
pub const WRITERS: usize = 64;

/// How long an agent may take for an answer that takes no time.
pub const ANSWER_TIME: Duration = Duration::from_secs(30);
/// How long an agent may say nothing when somebody else has failed, before it is to blame.
pub const WORD_TIME: Duration = Duration::from_secs(5);
/// How long connecting all clients of an agent may take.
pub const OPEN_TIME: Duration = Duration::from_secs(120);
/// How much longer than its time a load may take to say what it measured.
pub const LOAD_GRACE: Duration = Duration::from_secs(60);
/// Between the agreement on a start and the start: what the slowest agent takes to hear of it and
/// to open its queues.
pub const START_IN: Duration = Duration::from_millis(1500);
/// Round trips by which a clock is measured.
pub const CLOCK_ROUNDS: u32 = 16;
/// How long an agent that is asked to end may take.
pub const END_TIME: Duration = Duration::from_secs(10);

/// How long tgtd may take to take orders.
pub const TGT_TIME: Duration = Duration::from_secs(60);

/// How long I/O may pause after a fault before that is given up on.
pub const RECOVERY_TIME: Duration = Duration::from_secs(120);
