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
/// How long one too many is listened to, before it is told so.
pub const REFUSAL_TIME: Duration = Duration::from_millis(100);
/// Characters that a token has at least.
pub const TOKEN_LEAST: usize = 16;

/// Clients of one agent.
pub const CLIENTS: usize = 4096;
/// Drives of one target.
pub const DRIVES: usize = 256;
/// Nodes of a plan: as many as have an address in a node's network.
pub const NODES: u32 = 200;
/// Ways from a client to its disk.
pub const PATHS: u32 = 8;
/// Processes that a plan starts.
pub const AGENTS: u32 = 1000;
/// Threads of one client's verify.
pub const WRITERS: usize = 64;

/// Requests in the ring of a virtual machine's disk, as QEMU has it.
pub const VM_RING: u16 = 128;
/// Data of one of them at most, in bytes: about what Linux asks for at once.
pub const VM_REQUEST_BYTES: u32 = 1 << 20;
/// Rings of such a disk.
pub const VM_RINGS: u32 = 64;

/// Guests of QEMU's that a plan may have.
pub const GUESTS: u32 = 64;
/// Memory of each: a kernel, and an initial file system of 90 MiB that is unpacked.
pub const GUEST_MEMORY_MIB: u64 = 512;
/// How long all of them may take to boot, or to answer after a load: an emulated one takes 10 s of
/// a processor.
pub const GUEST_BOOT_TIME: Duration = Duration::from_secs(600);
/// Time that fio takes to begin in an emulated guest, added to the plan's ramp.
pub const GUEST_RAMP: Duration = Duration::from_secs(2);
/// What each writes and compares at most.
pub const GUEST_VERIFY_BYTES: u64 = 8 << 20;
/// The longest line of a guest: what fio says, with its histograms.
pub const GUEST_LINE_BYTES: u64 = 1 << 20;

/// How long an agent may take for an answer that takes no time.
pub const ANSWER_TIME: Duration = Duration::from_secs(30);
/// How long an agent may say nothing when somebody else has failed, before it is to blame.
pub const WORD_TIME: Duration = Duration::from_secs(5);
/// How long an agent under load may say nothing: it is to say how fast it is five times a second.
pub const SILENCE_TIME: Duration = Duration::from_secs(30);
/// How long a controller may say nothing while its agent verifies: it looks ten times a second. One
/// that stands still is not to have disks written for ever.
pub const CONTROLLER_SILENCE_TIME: Duration = Duration::from_secs(60);
/// How long the other end of a connection may be idle before the system asks whether it is there.
pub const IDLE_TIME: Duration = Duration::from_secs(15);
/// Between two such questions, of which the system asks a few.
pub const IDLE_ASK_TIME: Duration = Duration::from_secs(5);
/// How long connecting all clients of an agent may take.
pub const OPEN_TIME: Duration = Duration::from_secs(120);
/// How much longer than its time a load may take to say what it measured.
pub const LOAD_GRACE: Duration = Duration::from_secs(60);
/// Between the agreement on a start and the start: what the slowest agent takes to hear of it and
/// to open its queues.
pub const START_IN: Duration = Duration::from_millis(1500);
/// And for each client of the machine that has the most of them: 576 on two processors, which other
/// work shared, took 1.85 s.
pub const START_IN_FOR_CLIENT: Duration = Duration::from_millis(5);
/// Round trips by which a clock is measured.
pub const CLOCK_ROUNDS: u32 = 16;
/// How long an agent that is asked to end may take.
pub const END_TIME: Duration = Duration::from_secs(10);

/// After so long without a word a client with several paths knows that one is lost for good. A
/// write that was lost with it waits two or three times as long before it is sent another way.
pub const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// The same of clients under load, which may be hundreds on a few processors: one that waits for
/// its turn has lost no connection. An agent that is gone is noticed by its silence.
pub const LOAD_KEEP_ALIVE: Duration = Duration::from_secs(30);

/// How long tgtd may take to take orders.
pub const TGT_TIME: Duration = Duration::from_secs(60);

/// How long I/O may pause after a fault before that is given up on.
pub const RECOVERY_TIME: Duration = Duration::from_secs(120);

/// How long a controller waits for its agents.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For an answer that takes no time: [`ANSWER_TIME`].
    pub answer: Duration,
    /// For a word, when somebody else has failed: [`WORD_TIME`].
    pub word: Duration,
    /// For the next word of one under load: [`SILENCE_TIME`].
    pub silence: Duration,
    /// For all clients to be connected: [`OPEN_TIME`].
    pub open: Duration,
    /// For what a load measured, after its time: [`LOAD_GRACE`].
    pub grace: Duration,
    /// For its end, when it is asked to end: [`END_TIME`].
    pub end: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            answer: ANSWER_TIME,
            word: WORD_TIME,
            silence: SILENCE_TIME,
            open: OPEN_TIME,
            grace: LOAD_GRACE,
            end: END_TIME,
        }
    }
}
