//! The lifecycle of an I/O command, from parsing to its response. A gate is a condition that a
//! command must meet before it starts. This module decides which gate a command must pass next. The
//! [`Gates`] implementation keeps the waiting commands and does the work.
//!
//! ```text
//!              +------------ wake: the gate lets it pass ---------+
//!              v                                                  |
//!   Parsed --> asks the next gate of its path --- waits ---> Waiting(gate)
//!              |     |                                            |
//!              |     | has passed all gates                       |
//!              |     v                                            |
//!              |  Admitted: starts, and may follow another path   |
//!              |     |                                            |
//!              +-----+---------- refused, aborted, done ----------+
//!                                        v
//!                                     Answered
//! ```
//!
//! A command that waits for its data is `Waiting(Gate::Data)`. An admitted command has operations
//! under way at its namespace until the last of these operations ends.

use farblock_proto::capsule::SlotId;
use farblock_proto::controller::{Fuse, IoCommand};
use farblock_wire::Status;

/// A condition that a command must meet before it starts. [`Path::gates`] defines the order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Gate {
    /// The reservations of other hosts allow the command. The target checks them again after each
    /// wait of the command, since they may have changed.
    Access,
    /// The rate limits of the command's host and namespaces allow the command.
    Pace,
    /// The core has memory for the command's buffers.
    Memory,
    /// The command's data have arrived from the host.
    Data,
    /// The other half of the command's fused pair has arrived.
    Partner,
    /// The changes that the host's closed queues left under way have ended.
    Fence,
    /// The connection has exclusive use of the blocks of the fused pair.
    Claim,
    /// The target has passed the reads that arrived together to the namespace, for prefetching.
    Round,
    /// Among the commands that execute in steps, it is this command's turn.
    Turn,
    /// The group of targets that shares the namespace permits I/O. Otherwise the command fails.
    Permit,
}

/// A path: the gates of a command, or of one of its steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Path {
    /// A command without data from the host.
    Plain,
    /// A command whose data the target requests. The command may wait before its data arrive.
    Requested,
    /// A command whose data arrive in the capsule. The command cannot wait for memory.
    InCapsule,
    /// The Compare of a fused pair. It passes the gates on behalf of both commands of the pair.
    First,
    /// The Write of a fused pair.
    Second,
    /// The second path of a Read, after it has passed the gates of [`Path::Plain`].
    Read,
    /// A step of a command that executes in steps.
    Step,
    /// A step of a Copy.
    CopyStep,
}

impl Path {
    /// All paths, for tests.
    #[cfg(test)]
    const ALL: [Self; 8] = [
        Self::Plain,
        Self::Requested,
        Self::InCapsule,
        Self::First,
        Self::Second,
        Self::Read,
        Self::Step,
        Self::CopyStep,
    ];

    pub(crate) fn of(command: &IoCommand, fuse: Fuse) -> Self {
        match (fuse, command.data_from_host()) {
            (Fuse::First, _) => Self::First,
            (Fuse::Second, _) => Self::Second,
            (_, None) => Self::Plain,
            (_, Some(pointer)) if pointer.is_in_capsule() => Self::InCapsule,
            (_, Some(_)) => Self::Requested,
        }
    }

    /// Returns the gates of the path, in order.
    const fn gates(self) -> &'static [Gate] {
        use Gate::{Access, Claim, Data, Fence, Memory, Pace, Partner, Permit, Round, Turn};
        match self {
            Self::Plain => &[Access, Pace, Memory, Fence, Permit, Access],
            Self::Requested => &[Access, Pace, Memory, Data, Fence, Permit, Access],
            Self::InCapsule => &[Access, Memory, Data, Pace, Fence, Permit, Access],
            Self::First => &[Access, Memory, Data, Partner, Pace, Fence, Claim, Permit, Access],
            Self::Second => &[Access, Memory, Data, Partner, Permit, Access],
            Self::Read => &[Round, Permit, Access],
            Self::Step => &[Turn, Permit, Access],
            Self::CopyStep => &[Pace, Turn, Permit, Access],
        }
    }

    /// Returns whether a command on this path may wait for memory. If memory is short, the target
    /// refuses the other commands: fused pairs, whose data are small, and commands whose data have
    /// already arrived.
    pub(crate) fn may_wait_for_memory(self) -> bool {
        matches!(self, Self::Plain | Self::Requested)
    }

    fn is_fused(self) -> bool {
        matches!(self, Self::First | Self::Second)
    }
}

/// The state of a command. See the diagram of this module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CommandState {
    Parsed,
    Waiting(Gate),
    Admitted,
    Answered,
}

/// The position of a command in its lifecycle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifecycle {
    path: Path,
    /// The number of gates of the path that the command has passed.
    passed: u8,
    state: CommandState,
}

impl Lifecycle {
    /// The lifecycle of a slot whose last command has its response, and of a slot that has not had
    /// an I/O command yet.
    pub(crate) const ANSWERED: Self =
        Self { path: Path::Plain, passed: 0, state: CommandState::Answered };

    /// Returns the lifecycle of a command or step that has not passed a gate yet.
    pub(crate) const fn new(path: Path) -> Self {
        Self { path, passed: 0, state: CommandState::Parsed }
    }

    pub(crate) fn path(self) -> Path {
        self.path
    }

    pub(crate) fn waits_at(self, gate: Gate) -> bool {
        self.state == CommandState::Waiting(gate)
    }

    /// Returns the gate at which the command waits; `None` if it does not wait.
    pub(crate) fn waits(self) -> Option<Gate> {
        match self.state {
            CommandState::Waiting(gate) => Some(gate),
            CommandState::Parsed | CommandState::Admitted | CommandState::Answered => None,
        }
    }

    /// Returns whether the command has passed a gate of its path.
    pub(crate) fn has_passed_one(self) -> bool {
        self.passed > 0
    }

    pub(crate) fn is_fused(self) -> bool {
        self.path.is_fused()
    }

    /// Returns the next gate for the command. `None`: the command has passed all gates and is
    /// admitted.
    #[inline]
    fn ask(&mut self) -> Option<Gate> {
        let next = self.path.gates().get(usize::from(self.passed)).copied();
        self.state = next.map_or(CommandState::Admitted, CommandState::Waiting);
        next
    }

    fn pass(&mut self) {
        self.passed += 1;
        self.state = CommandState::Parsed;
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Pass,
    /// The command must wait. The gate keeps it and calls [`wake`] later.
    Wait,
    /// The command ends with this status.
    Refuse(Status),
}

impl From<Result<(), Status>> for Answer {
    fn from(result: Result<(), Status>) -> Self {
        result.map_or_else(Self::Refuse, |()| Self::Pass)
    }
}

/// The gates of a queue. An implementation also executes the admitted commands.
pub(crate) trait Gates {
    fn life(&mut self, slot: SlotId) -> &mut Lifecycle;

    /// Asks a gate whether a command may pass. Before it answers, the gate may wake other commands,
    /// but not this command.
    fn ask(&mut self, gate: Gate, slot: SlotId) -> Answer;

    /// Copies the command's borrowed data into a buffer that the command owns, since the command
    /// must wait.
    fn keep(&mut self, slot: SlotId);

    /// Starts a command that has passed all gates of its path. Returns the next path that the
    /// command must follow, if any.
    fn start(&mut self, slot: SlotId) -> Result<Option<Path>, Status>;

    fn refuse(&mut self, slot: SlotId, status: Status);
}

/// Asks one gate after the other, beginning with the command's current gate. Stops when the command
/// has to wait, ends or has started.
#[inline]
pub(crate) fn admit(gates: &mut impl Gates, slot: SlotId) {
    loop {
        let Some(gate) = gates.life(slot).ask() else {
            match gates.start(slot) {
                Ok(None) => return,
                Ok(Some(path)) => *gates.life(slot) = Lifecycle::new(path),
                Err(status) => return gates.refuse(slot, status),
            }
            continue;
        };
        match gates.ask(gate, slot) {
            Answer::Pass => gates.life(slot).pass(),
            Answer::Wait => return gates.keep(slot),
            Answer::Refuse(status) => return gates.refuse(slot, status),
        }
    }
}

/// Lets a command that waits at `gate` continue.
#[inline]
pub(crate) fn wake(gates: &mut impl Gates, slot: SlotId, gate: Gate) {
    let life = gates.life(slot);
    debug_assert!(life.waits_at(gate), "{life:?} is woken at {gate:?}");
    life.pass();
    admit(gates, slot);
}

#[cfg(test)]
mod tests;
