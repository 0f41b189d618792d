//! The lifecycle of an I/O command, from parsing to its response. This module decides which gate a
//! command asks next. The [`Gates`] implementation keeps the commands that wait, and does the work.
//!
//! ```text
//!              +------------ wake: the gate lets it pass ---------+
//!              v                                                  |
//!   Parsed --> asks the next gate of its path --- waits ---> Waiting(gate)
//!              |     |                                            |
//!              |     | has passed them all                        |
//!              |     v                                            |
//!              |  Admitted: starts, and may follow another path   |
//!              |     |                                            |
//!              +-----+---------- refused, aborted, done ----------+
//!                                        v
//!                                     Answered
//! ```
//!
//! A command that waits for its data is `Waiting(Gate::Data)`. An admitted command has operations
//! under way at its namespace, until the last of them ends.

use farblock_proto::capsule::SlotId;
use farblock_proto::controller::{Fuse, IoCommand};
use farblock_wire::Status;

/// A condition that a command must meet before it starts. [`Path::gates`] has the order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Gate {
    /// Reservations of other hosts. A command asks again after each wait, since they may have
    /// changed.
    Access,
    /// The rate limits of its host and namespaces.
    Pace,
    /// Room for its buffers.
    Memory,
    /// The arrival of its data from the host.
    Data,
    /// The other half of its fused pair.
    Partner,
    /// Changes that earlier queues of its host left under way.
    Fence,
    /// Exclusive use of the blocks of its fused pair.
    Claim,
    /// The announcement of other reads of the same round, so that the namespace can prefetch.
    Round,
    /// Its turn among the commands that execute in steps.
    Turn,
}

/// A path: the gates of a command, or of one of its steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Path {
    /// The command has no data from the host.
    Plain,
    /// The target requests the command's data, so the command may wait before its data arrive.
    Requested,
    /// The data arrive in the command capsule, so the command cannot wait for memory.
    InCapsule,
    /// The Compare of a fused pair. It passes the gates for both commands.
    First,
    /// The Write of a fused pair.
    Second,
    /// The second path of a Read, once it is admitted.
    Read,
    /// A step of a command that executes in steps.
    Step,
    /// A step of a Copy.
    CopyStep,
}

impl Path {
    /// Every path, for tests.
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

    /// The gates of the path, in order. All admission follows this table.
    const fn gates(self) -> &'static [Gate] {
        use Gate::{Access, Claim, Data, Fence, Memory, Pace, Partner, Round, Turn};
        match self {
            Self::Plain => &[Access, Pace, Memory, Fence, Access],
            Self::Requested => &[Access, Pace, Memory, Data, Fence, Access],
            Self::InCapsule => &[Access, Memory, Data, Pace, Fence, Access],
            Self::First => &[Access, Memory, Data, Partner, Pace, Fence, Claim, Access],
            Self::Second => &[Access, Memory, Data, Partner, Access],
            Self::Read => &[Round, Access],
            Self::Step => &[Turn, Access],
            Self::CopyStep => &[Pace, Turn, Access],
        }
    }

    /// Whether a command on this path may wait for memory. Others are refused if memory is short:
    /// fused pairs, whose data are small, and commands whose data have arrived already.
    pub(crate) fn may_wait_for_memory(self) -> bool {
        matches!(self, Self::Plain | Self::Requested)
    }

    fn is_fused(self) -> bool {
        matches!(self, Self::First | Self::Second)
    }
}

/// The state of a command; see the module's diagram.
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
    /// How many gates of the path it has passed.
    passed: u8,
    state: CommandState,
}

impl Lifecycle {
    /// The end of a lifecycle, or a slot that had no I/O command yet.
    pub(crate) const ANSWERED: Self =
        Self { path: Path::Plain, passed: 0, state: CommandState::Answered };

    /// A command, or a step of one, that has passed no gate yet.
    pub(crate) const fn new(path: Path) -> Self {
        Self { path, passed: 0, state: CommandState::Parsed }
    }

    pub(crate) fn path(self) -> Path {
        self.path
    }

    pub(crate) fn waits_at(self, gate: Gate) -> bool {
        self.state == CommandState::Waiting(gate)
    }

    /// The gate at which the command waits; `None` if it does not wait.
    pub(crate) fn waits(self) -> Option<Gate> {
        match self.state {
            CommandState::Waiting(gate) => Some(gate),
            CommandState::Parsed | CommandState::Admitted | CommandState::Answered => None,
        }
    }

    /// Whether the command has passed a gate of this path.
    pub(crate) fn has_passed_one(self) -> bool {
        self.passed > 0
    }

    pub(crate) fn is_fused(self) -> bool {
        self.path.is_fused()
    }

    /// Returns the next gate to ask; `None`: the command has passed all gates, and is admitted.
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
    /// The gate keeps the command, and wakes it later.
    Wait,
    /// The command ends with this status.
    Refuse(Status),
}

impl From<Result<(), Status>> for Answer {
    fn from(result: Result<(), Status>) -> Self {
        result.map_or_else(Self::Refuse, |()| Self::Pass)
    }
}

/// Implements the gates of a queue, and executes admitted commands.
pub(crate) trait Gates {
    fn life(&mut self, slot: SlotId) -> &mut Lifecycle;

    /// Asks a gate about a command. The gate may wake other commands before it answers, but not
    /// this one.
    fn ask(&mut self, gate: Gate, slot: SlotId) -> Answer;

    /// Copies the data that a command borrows into its own buffer, since the command must wait.
    fn keep(&mut self, slot: SlotId);

    /// Starts a command that has passed its path. Returns the next path that the command must
    /// follow, if any.
    fn start(&mut self, slot: SlotId) -> Result<Option<Path>, Status>;

    fn refuse(&mut self, slot: SlotId, status: Status);
}

/// Lets a command ask its gates, from its present gate on, until it waits, ends or has started.
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

/// Lets a command continue that `gate` has kept.
#[inline]
pub(crate) fn wake(gates: &mut impl Gates, slot: SlotId, gate: Gate) {
    let life = gates.life(slot);
    debug_assert!(life.waits_at(gate), "{life:?} is woken at {gate:?}");
    life.pass();
    admit(gates, slot);
}

#[cfg(test)]
mod tests;
