//! All limits of a fleet, with their units. A controller here is the controller of a fleet.

use std::time::Duration;

/// The maximum length of a line that an agent or a controller accepts, in bytes.
pub const LINE_BYTES: u64 = 8 << 20;
/// The maximum length of a line from a peer that has not sent a token yet, in bytes.
pub const FIRST_LINE_BYTES: u64 = 4 << 10;
/// The time limit for a new peer to send its token.
pub const HELLO_TIME: Duration = Duration::from_secs(10);
/// The delay of the answer to a wrong token.
pub const WRONG_TOKEN_TIME: Duration = Duration::from_secs(1);
/// The maximum number of connections to an agent, including peers without a token.
pub const CONTROLLERS: usize = 16;
/// The time for which an agent reads from a controller above [`CONTROLLERS`] before it refuses that
/// controller.
pub const REFUSAL_TIME: Duration = Duration::from_millis(100);
/// The minimum length of a token, in characters.
pub const TOKEN_LEAST: usize = 16;

/// The maximum number of clients of one agent.
pub const CLIENTS: usize = 4096;
/// The maximum number of drives of one target.
pub const DRIVES: usize = 256;
/// The maximum number of nodes of a plan, which is the number of addresses in the network.
pub const NODES: u32 = 200;
/// The maximum number of paths from a client to its disk.
pub const PATHS: u32 = 8;
/// The maximum number of processes that a plan starts.
pub const AGENTS: u32 = 1000;
/// The maximum number of threads with which one client verifies.
pub const WRITERS: usize = 64;

/// The number of requests in the ring of a virtual machine's disk, as in QEMU.
pub const VM_RING: u16 = 128;
/// The maximum size of one request, in bytes, which is close to Linux's limit.
pub const VM_REQUEST_BYTES: u32 = 1 << 20;
/// The maximum number of rings of a virtual machine's disk.
pub const VM_RINGS: u32 = 64;

/// The maximum number of QEMU guests of a plan.
pub const GUESTS: u32 = 64;
/// The memory of each guest, for a kernel and an unpacked initial file system of 90 MiB.
pub const GUEST_MEMORY_MIB: u64 = 512;
/// The time limit for all guests to boot, or to answer after a load. Booting an emulated guest
/// takes 10 s of processor time.
pub const GUEST_BOOT_TIME: Duration = Duration::from_secs(600);
/// The time for fio to start in an emulated guest, which is added to the plan's ramp.
pub const GUEST_RAMP: Duration = Duration::from_secs(2);
/// The maximum number of bytes that each guest writes and compares.
pub const GUEST_VERIFY_BYTES: u64 = 8 << 20;
/// The maximum length of a line from a guest, in bytes. The longest is fio's output with
/// histograms.
pub const GUEST_LINE_BYTES: u64 = 1 << 20;

/// The time limit for an agent to send an answer that needs no work.
pub const ANSWER_TIME: Duration = Duration::from_secs(30);
/// The time limit for an agent to send any message after another agent has failed. If the agent
/// sends none, the controller reports this agent as the cause of the failure.
pub const WORD_TIME: Duration = Duration::from_secs(5);
/// The time limit for a message from an agent under load, which should report its speed five times
/// a second.
pub const SILENCE_TIME: Duration = Duration::from_secs(30);
/// The time limit for a message from a controller during a verification. The controller should send
/// a request ten times a second. An agent must not write to disks forever for a controller that
/// hangs.
pub const CONTROLLER_SILENCE_TIME: Duration = Duration::from_secs(60);
/// The idle time of a connection after which the system probes the peer.
pub const IDLE_TIME: Duration = Duration::from_secs(15);
/// The interval of these probes. The system sends a few before it closes the connection.
pub const IDLE_ASK_TIME: Duration = Duration::from_secs(5);
/// The time limit for connecting all clients of an agent.
pub const OPEN_TIME: Duration = Duration::from_secs(120);
/// The time limit after the end of a load for its results.
pub const LOAD_GRACE: Duration = Duration::from_secs(60);
/// The time from the controller's order to start a load until the start. In this time the slowest
/// agent must receive the message and open its queues.
pub const START_IN: Duration = Duration::from_millis(1500);
/// The time added to [`START_IN`] for each client of the machine with the most clients. With 576
/// clients on two processors, which other programs also used, the start took 1.85 s.
pub const START_IN_FOR_CLIENT: Duration = Duration::from_millis(5);
/// The number of round trips to measure a clock.
pub const CLOCK_ROUNDS: u32 = 16;
/// The time limit for an agent to exit on request.
pub const END_TIME: Duration = Duration::from_secs(10);

/// The keep-alive timeout of clients with several paths, after which they treat a path as lost. A
/// lost write waits two or three times as long before the client sends it over another path.
pub const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// The keep-alive timeout of clients under load. A machine may run hundreds of clients on a few
/// processors, and a client that waits for a processor must not lose its connection. The controller
/// still notices a dead agent, because that agent sends no messages.
pub const LOAD_KEEP_ALIVE: Duration = Duration::from_secs(30);

/// The time limit for tgtd to accept commands.
pub const TGT_TIME: Duration = Duration::from_secs(60);

/// The maximum pause of I/O after a fault.
pub const RECOVERY_TIME: Duration = Duration::from_secs(120);

/// The time limits of a controller for its agents.
#[derive(Clone, Copy, Debug)]
pub struct FleetTimeouts {
    /// The time limit for an answer that needs no work: [`ANSWER_TIME`].
    pub answer: Duration,
    /// The time limit for any message after another agent has failed: [`WORD_TIME`].
    pub word: Duration,
    /// The time limit for the next message of an agent under load: [`SILENCE_TIME`].
    pub silence: Duration,
    /// The time limit for connecting all clients: [`OPEN_TIME`].
    pub open: Duration,
    /// The time limit for the results of a load after its end: [`LOAD_GRACE`].
    pub grace: Duration,
    /// The time limit for the exit of an agent on request: [`END_TIME`].
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
