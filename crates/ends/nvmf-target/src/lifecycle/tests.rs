//! Runs a model command along every path, with every order in which gates can answer it, wake it or
//! end it.

use super::*;

/// A depth-first search over all sequences of choices.
#[derive(Default)]
struct Choices {
    taken: Vec<(usize, usize)>,
    next: usize,
}

impl Choices {
    /// Chooses one of `count` possibilities, and returns its index.
    fn choose(&mut self, count: usize) -> usize {
        if self.next == self.taken.len() {
            self.taken.push((0, count));
        }
        let (choice, possible) = self.taken[self.next];
        assert_eq!(possible, count, "a repeated choice has another number of results");
        self.next += 1;
        choice
    }

    /// Moves to the next sequence. Returns false after the last one.
    fn advance(&mut self) -> bool {
        self.next = 0;
        while let Some((choice, count)) = self.taken.pop() {
            if choice + 1 < count {
                self.taken.push((choice + 1, count));
                return true;
            }
        }
        false
    }
}

/// A command waits at most this many times in one run. Without this limit, a run could go on
/// forever.
const WAITS: usize = 3;

/// A command and its gates. The search chooses the answer of each gate.
struct Model<'a> {
    choices: &'a mut Choices,
    life: Lifecycle,
    passed: Vec<Gate>,
    /// The paths that the command has followed to their ends.
    followed: Vec<Path>,
    /// The gate at which the command waits.
    kept_at: Option<Gate>,
    /// Whether the command still borrows its data.
    borrows: bool,
    waits: usize,
    refusals: usize,
    is_started: bool,
}

impl<'a> Model<'a> {
    fn new(choices: &'a mut Choices, path: Path) -> Self {
        Self {
            choices,
            life: Lifecycle::new(path),
            passed: Vec::new(),
            followed: Vec::new(),
            kept_at: None,
            borrows: true,
            waits: 0,
            refusals: 0,
            is_started: false,
        }
    }

    fn is_over(&self) -> bool {
        self.is_started || self.refusals > 0
    }
}

const SLOT: SlotId = SlotId(7);

impl Gates for Model<'_> {
    fn life(&mut self, slot: SlotId) -> &mut Lifecycle {
        assert_eq!(slot, SLOT);
        &mut self.life
    }

    fn ask(&mut self, gate: Gate, _: SlotId) -> Answer {
        assert!(!self.is_over(), "an ended command asks {gate:?}");
        assert_eq!(self.kept_at, None, "the command waits at two gates");
        assert!(self.life.waits_at(gate), "a gate can wake the command before it answers");
        assert_eq!(
            Some(&gate),
            self.life.path().gates().get(self.passed.len()),
            "the gates are asked out of order"
        );
        match self.choices.choose(if self.waits < WAITS { 3 } else { 2 }) {
            0 => {
                self.passed.push(gate);
                Answer::Pass
            }
            1 => Answer::Refuse(Status::INVALID_FIELD),
            _ => {
                self.waits += 1;
                self.kept_at = Some(gate);
                Answer::Wait
            }
        }
    }

    fn keep(&mut self, _: SlotId) {
        assert!(self.kept_at.is_some());
        self.borrows = false;
    }

    fn start(&mut self, _: SlotId) -> Result<Option<Path>, Status> {
        assert_eq!(self.passed, self.life.path().gates(), "the command skipped a gate");
        assert_eq!(self.life.waits(), None);
        self.followed.push(self.life.path());
        self.passed.clear();
        let next = match self.life.path() {
            Path::Plain => [None, Some(Path::Read), Some(Path::Step)],
            Path::Requested | Path::InCapsule => [None, Some(Path::Step), Some(Path::CopyStep)],
            Path::First | Path::Second | Path::Read | Path::Step | Path::CopyStep => [None; 3],
        };
        match self.choices.choose(4) {
            3 => Err(Status::INVALID_NAMESPACE),
            choice => {
                self.is_started = next[choice].is_none();
                Ok(next[choice])
            }
        }
    }

    fn refuse(&mut self, _: SlotId, _: Status) {
        assert!(!self.is_over(), "the command is answered twice");
        self.refusals += 1;
        self.life = Lifecycle::ANSWERED;
    }
}

/// Executes one run. The command waits, is woken, asks again, or is withdrawn, until it has ended.
fn run(choices: &mut Choices, path: Path) {
    let mut model = Model::new(choices, path);
    admit(&mut model, SLOT);
    while !model.is_over() {
        let gate = model.kept_at.take().expect("the command is neither done nor at a gate");
        assert_eq!(model.life.waits(), Some(gate), "two gates keep the command");
        assert!(!model.borrows, "the command waits with borrowed data");
        match model.choices.choose(3) {
            // The rate limits have changed, so the waiting command asks its gate again.
            0 => admit(&mut model, SLOT),
            1 => {
                model.passed.push(gate);
                wake(&mut model, SLOT, gate);
            }
            // The command ends because of an Abort, a removed namespace, or the end of its fused
            // pair.
            _ => model.refuse(SLOT, Status::ABORT_REQUESTED),
        }
    }
    assert!(
        model.is_started != (model.refusals == 1),
        "the command must either start or be refused"
    );
    assert_eq!(model.kept_at, None);
    let ends = if model.is_started { CommandState::Admitted } else { CommandState::Answered };
    assert_eq!(model.life.state, ends);
}

#[test]
fn every_order_of_answers_completes_each_command_once_through_all_gates() {
    let mut runs = 0;
    for path in Path::ALL {
        let mut choices = Choices::default();
        loop {
            run(&mut choices, path);
            runs += 1;
            if !choices.advance() {
                break;
            }
        }
    }
    assert!(runs > 10_000, "{runs} runs");
}

#[test]
fn reservations_are_checked_first_and_after_every_wait() {
    for path in Path::ALL {
        assert_eq!(path.gates().last(), Some(&Gate::Access), "{path:?}");
    }
    for path in [Path::Plain, Path::Requested, Path::InCapsule, Path::First, Path::Second] {
        assert_eq!(path.gates().first(), Some(&Gate::Access), "{path:?}");
    }
}

#[test]
fn every_new_command_passes_the_memory_rate_and_fence_gates() {
    for path in [Path::Plain, Path::Requested, Path::InCapsule, Path::First] {
        for gate in [Gate::Memory, Gate::Pace, Gate::Fence] {
            let asked = path.gates().iter().filter(|asked| **asked == gate);
            assert_eq!(asked.count(), 1, "{gate:?} of {path:?}");
        }
    }
}

#[test]
fn commands_hold_no_memory_while_they_wait_for_rate_limits() {
    for path in [Path::Plain, Path::Requested] {
        let place = |gate| path.gates().iter().position(|asked| *asked == gate);
        assert!(place(Gate::Pace) < place(Gate::Memory), "{path:?}");
        assert!(path.may_wait_for_memory());
    }
}

/// The last two gates never make a command wait, so the permit is still valid at the submission.
#[test]
fn the_permit_is_checked_after_every_wait() {
    for path in Path::ALL {
        let gates = path.gates();
        assert_eq!(gates[gates.len() - 2..], [Gate::Permit, Gate::Access], "{path:?}");
    }
}
