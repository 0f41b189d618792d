//! Every limit of a fleet, with its unit.

use std::time::Duration;

/// The longest line that an agent or a controller accepts.
pub const LINE_BYTES: u64 = 8 << 20;
/// The longest line of a peer that has not sent a token yet.
pub const FIRST_LINE_BYTES: u64 = 4 << 10;
/// Time for a stranger to send its token.
pub const HELLO_TIME: Duration = Duration::from_secs(10);
/// Delay of the answer to a wrong token.
pub const WRONG_TOKEN_TIME: Duration = Duration::from_secs(1);
/// Controllers connected to an agent at once, including strangers.
pub const CONTROLLERS: usize = 16;
/// Time that an agent reads from a controller above [`CONTROLLERS`] before it refuses it.
pub const REFUSAL_TIME: Duration = Duration::from_millis(100);
/// Minimum length of a token, in characters.
pub const TOKEN_LEAST: usize = 16;

/// Clients of one agent.
pub const CLIENTS: usize = 4096;
/// Drives of one target.
pub const DRIVES: usize = 256;
/// Nodes of a plan: as many as the network has addresses.
pub const NODES: u32 = 200;
/// Paths of a client to its disk.
pub const PATHS: u32 = 8;
/// Processes that a plan starts.
pub const AGENTS: u32 = 1000;
/// Threads of one client's verify.
pub const WRITERS: usize = 64;

/// Requests in the ring of a virtual machine's disk, as in QEMU.
pub const VM_RING: u16 = 128;
/// Limit for the data of one request, in bytes: about Linux's own.
pub const VM_REQUEST_BYTES: u32 = 1 << 20;
/// Rings of a virtual machine's disk.
pub const VM_RINGS: u32 = 64;

/// QEMU guests of a plan.
pub const GUESTS: u32 = 64;
/// Memory of each guest: a kernel, and an unpacked initial file system of 90 MiB.
pub const GUEST_MEMORY_MIB: u64 = 512;
/// Time for all guests to boot, or to answer after a load: an emulated one takes 10 s of a
/// processor.
pub const GUEST_BOOT_TIME: Duration = Duration::from_secs(600);
/// Time for fio to start in an emulated guest, added to the plan's ramp.
pub const GUEST_RAMP: Duration = Duration::from_secs(2);
/// Limit for the data that each guest writes and compares.
pub const GUEST_VERIFY_BYTES: u64 = 8 << 20;
/// The longest line of a guest: fio's output with its histograms.
pub const GUEST_LINE_BYTES: u64 = 1 << 20;

/// Time for an agent to send an answer that needs no work.
pub const ANSWER_TIME: Duration = Duration::from_secs(30);
/// Time for an agent to send any message after another agent has failed, before the error blames
/// this agent.
pub const WORD_TIME: Duration = Duration::from_secs(5);
/// Time for an agent under load to send a message: it should report its speed five times a second.
pub const SILENCE_TIME: Duration = Duration::from_secs(30);
/// Time for a controller to send a message during a verify: it should ask ten times a second. An
/// agent must not write to disks forever for a controller that hangs.
pub const CONTROLLER_SILENCE_TIME: Duration = Duration::from_secs(60);
/// Idle time of a connection before the system probes the other end.
pub const IDLE_TIME: Duration = Duration::from_secs(15);
/// Interval between such probes, of which the system sends a few.
pub const IDLE_ASK_TIME: Duration = Duration::from_secs(5);
/// Time to connect all clients of an agent.
pub const OPEN_TIME: Duration = Duration::from_secs(120);
/// Time after a load's end for its results to arrive.
pub const LOAD_GRACE: Duration = Duration::from_secs(60);
/// Time between the agreement on a start and the start: the slowest agent must receive it and open
/// its queues.
pub const START_IN: Duration = Duration::from_millis(1500);
/// Time added to [`START_IN`] for each client of the machine with the most clients: 576 on two
/// processors, which other work shared, took 1.85 s.
pub const START_IN_FOR_CLIENT: Duration = Duration::from_millis(5);
/// Round trips to measure a clock.
pub const CLOCK_ROUNDS: u32 = 16;
/// Time for an agent to exit on request.
pub const END_TIME: Duration = Duration::from_secs(10);

/// Keep-alive of clients with several paths, after which they know that a path is lost for good. A
/// lost write waits two or three times as long before the client sends it over another path.
pub const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// Keep-alive of clients under load. A machine may run hundreds of clients on a few processors, and
/// a client that waits for a processor has lost no connection. The controller notices a dead agent
/// by its silence.
pub const LOAD_KEEP_ALIVE: Duration = Duration::from_secs(30);

/// Time for tgtd to accept commands.
pub const TGT_TIME: Duration = Duration::from_secs(60);

/// Limit for a pause of I/O after a fault.
pub const RECOVERY_TIME: Duration = Duration::from_secs(120);

/// Time limits of a controller for its agents.
#[derive(Clone, Copy, Debug)]
pub struct FleetTimeouts {
    /// Time for an answer that needs no work: [`ANSWER_TIME`].
    pub answer: Duration,
    /// Time for any message, after another agent has failed: [`WORD_TIME`].
    pub word: Duration,
    /// Time for the next message of an agent under load: [`SILENCE_TIME`].
    pub silence: Duration,
    /// Time to connect all clients: [`OPEN_TIME`].
    pub open: Duration,
    /// Time for the results of a load, after its end: [`LOAD_GRACE`].
    pub grace: Duration,
    /// Time for an agent's exit on request: [`END_TIME`].
    pub end: Duration,
}

impl Default for FleetTimeouts {
    fn default() -> FleetTimeouts {
        FleetTimeouts {
            answer: ANSWER_TIME,
            word: WORD_TIME,
            silence: SILENCE_TIME,
            open: OPEN_TIME,
            grace: LOAD_GRACE,
            end: END_TIME,
        }
    }
}
