//! The threads of a simulated world: coroutines, each of which runs until it waits.
//!
//! A round runs each thread that may make progress, in an order that the seed chooses. If a thread
//! waits for a condition that any thread may make true, every round checks the condition. Event
//! loops and sleeping threads need no check: an event or their deadline [marks](Marks) them. So the
//! cost of a round depends on the number of its events, not of threads.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr;
use std::time::{Duration, Instant};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::{Inner, current};

/// The stack size of a coroutine in bytes. Untouched pages take no memory.
const STACK_BYTES: usize = 2 << 20;

type Suspend = Yielder<(), Waits>;

/// The events that can end a thread's wait before its deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitsFor {
    /// Actions of any other thread, so every round checks the condition.
    Anybody,
    /// Events of this engine.
    Engine(u64),
    /// Only the deadline.
    Nobody,
}

/// A suspended thread's deadline, and the events that may end its wait earlier.
#[derive(Clone, Copy)]
struct Waits {
    until: Option<Instant>,
    waits_for: WaitsFor,
}

struct Thread {
    name: String,
    /// The thread's number in [`Marks`] until the thread ends.
    id: usize,
    /// The machine on which the thread runs.
    machine: u32,
    /// If the world ends before the thread, the coroutine is leaked: dropping it would unwind its
    /// stack, which may run code that waits.
    coroutine: ManuallyDrop<Coroutine<(), Waits, ()>>,
    deadline: Option<Instant>,
    has_ended: bool,
}

impl Drop for Thread {
    fn drop(&mut self) {
        if self.has_ended {
            // SAFETY: no other code drops the coroutine, and no code uses the thread afterwards.
            unsafe { ManuallyDrop::drop(&mut self.coroutine) };
        }
    }
}

/// The threads that may make progress, as one bit for each position in [`Ring`].
#[derive(Default)]
pub(super) struct Marks {
    /// The threads that an event has woken.
    woken: Vec<u64>,
    /// The threads whose conditions every round checks.
    asked: Vec<u64>,
    /// The positions of threads by thread number.
    places: Vec<Option<usize>>,
    /// The unused thread numbers.
    free: Vec<usize>,
}

impl Marks {
    /// Returns an unused thread number.
    fn new_id(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        })
    }

    /// Frees the number of a thread that has ended.
    fn forget(&mut self, id: usize) {
        self.places[id] = None;
        self.free.push(id);
    }

    /// Adopts the threads' new positions. Marks new threads, so that they run.
    fn arrange(&mut self, ids: impl ExactSizeIterator<Item = usize>) {
        let words = ids.len().div_ceil(64);
        let woken = std::mem::replace(&mut self.woken, vec![0; words]);
        let asked = std::mem::replace(&mut self.asked, vec![0; words]);
        let is_set = |bits: &[u64], place: usize| bits[place / 64] >> (place % 64) & 1;
        for (place, id) in ids.enumerate() {
            let was = self.places[id].replace(place);
            let (is_woken, is_asked) = match was {
                Some(was) => (is_set(&woken, was), is_set(&asked, was)),
                None => (1, 0),
            };
            self.woken[place / 64] |= is_woken << (place % 64);
            self.asked[place / 64] |= is_asked << (place % 64);
        }
    }

    pub(super) fn wake(&mut self, id: usize) {
        if let Some(place) = self.places.get(id).copied().flatten() {
            self.woken[place / 64] |= 1 << (place % 64);
        }
    }

    /// Returns the position of the first marked thread in a range, and clears its mark.
    fn take(&mut self, range: Range<usize>) -> Option<usize> {
        let mut place = range.start;
        while place < range.end {
            let (word, bit) = (place / 64, place % 64);
            let marked = (self.woken[word] | self.asked[word]) >> bit;
            if marked == 0 {
                place = (word + 1) * 64;
                continue;
            }
            place += marked.trailing_zeros() as usize;
            if place >= range.end {
                return None;
            }
            self.woken[place / 64] &= !(1 << (place % 64));
            return Some(place);
        }
        None
    }

    fn ask(&mut self, place: usize, asks: bool) {
        let bit = 1 << (place % 64);
        match asks {
            true => self.asked[place / 64] |= bit,
            false => self.asked[place / 64] &= !bit,
        }
    }
}

#[derive(Default)]
struct Ring {
    threads: Vec<Thread>,
    /// The position of the thread that runs first in a round. New threads are added before this
    /// position.
    first: usize,
}

impl Ring {
    /// Moves the threads in memory so that the thread at `first` has index 0.
    fn straighten(&mut self) {
        let first = std::mem::take(&mut self.first);
        self.threads.rotate_left(first);
    }
}

pub(super) struct Threads {
    all: RefCell<Ring>,
    /// The threads that have started but have not run yet.
    new: RefCell<Vec<Thread>>,
    /// The deadlines of waiting threads, with their thread numbers. If the thread has another
    /// deadline by now, the entry is stale.
    deadlines: RefCell<BinaryHeap<Reverse<(Instant, usize)>>>,
    /// The handle with which the running coroutine suspends itself; null while the root runs.
    running: Cell<*const Suspend>,
    /// The machine of the running thread.
    machine: Cell<u32>,
    /// Whether a thread has made progress in this round.
    progress: Cell<bool>,
}

impl Default for Threads {
    fn default() -> Threads {
        Threads {
            all: RefCell::default(),
            new: RefCell::default(),
            deadlines: RefCell::default(),
            running: Cell::new(ptr::null()),
            machine: Cell::new(0),
            progress: Cell::new(false),
        }
    }
}

impl Threads {
    pub(super) fn spawn(&self, name: String, body: impl FnOnce() + 'static) {
        let stack = DefaultStack::new(STACK_BYTES).expect("the system has memory for a stack");
        let coroutine = Coroutine::with_stack(stack, move |suspend: &Suspend, ()| {
            current().threads.running.set(suspend);
            body();
        });
        let coroutine = ManuallyDrop::new(coroutine);
        let (machine, id) = (self.machine.get(), usize::MAX);
        let thread = Thread { name, id, machine, coroutine, deadline: None, has_ended: false };
        self.new.borrow_mut().push(thread);
    }

    pub(super) fn names(&self) -> Vec<String> {
        let (all, new) = (self.all.borrow(), self.new.borrow());
        let (later, sooner) = all.threads.split_at(all.first);
        let all = sooner.iter().chain(later).chain(new.iter());
        all.map(|thread| thread.name.clone()).collect()
    }

    /// Returns the machine of the running thread.
    pub(super) fn machine(&self) -> u32 {
        self.machine.get()
    }

    /// Moves the running thread to another machine. Returns its previous machine.
    pub(super) fn go_to(&self, machine: u32) -> u32 {
        farblock_mem::tally::count_for(machine);
        self.machine.replace(machine)
    }

    /// Adjusts the deadlines of the threads on these machines after a clock jump.
    pub(super) fn jump(&self, world: &Inner, machines: Range<u32>, time: Duration) {
        let mut all = self.all.borrow_mut();
        let mut deadlines = self.deadlines.borrow_mut();
        for thread in all.threads.iter_mut().filter(|it| machines.contains(&it.machine)) {
            let Some(deadline) = &mut thread.deadline else { continue };
            *deadline = deadline.checked_sub(time).unwrap_or(world.epoch);
            deadlines.push(Reverse((*deadline, thread.id)));
        }
    }

    /// Whether `at` is still the thread's deadline, not one of an earlier wait.
    fn is_meant(&self, world: &Inner, at: Instant, id: usize) -> bool {
        let place = world.state.borrow().marks.places.get(id).copied().flatten();
        let all = self.all.borrow();
        place.is_some_and(|place| all.threads[place].deadline == Some(at))
    }

    pub(super) fn next_deadline(&self, world: &Inner) -> Option<Instant> {
        let mut deadlines = self.deadlines.borrow_mut();
        while let Some(&Reverse((at, id))) = deadlines.peek() {
            if self.is_meant(world, at, id) {
                return Some(at);
            }
            deadlines.pop();
        }
        None
    }

    /// Marks the threads whose deadlines have passed.
    pub(super) fn expire(&self, world: &Inner) {
        let now = world.now();
        while let Some(at) = self.next_deadline(world)
            && at <= now
        {
            let Some(Reverse((_, id))) = self.deadlines.borrow_mut().pop() else { return };
            world.state.borrow_mut().marks.wake(id);
        }
    }

    /// Records that the running thread has made progress.
    pub(super) fn got_on(&self) {
        self.progress.set(true);
    }

    /// Suspends the running thread. Returns in the next round or later.
    pub(super) fn park(&self, world: &Inner, until: Option<Instant>, waits_for: WaitsFor) {
        let running = self.running.get();
        let until = until.map(|until| world.world_time(until));
        if running.is_null() {
            return self.round(world, until);
        }
        let machine = self.machine.get();
        // SAFETY: the pointer refers to the first frame of the coroutine, which exists while the
        // coroutine runs. Every switch sets the pointer, so it belongs to the running coroutine.
        unsafe { &*running }.suspend(Waits { until, waits_for });
        self.running.set(running);
        self.go_to(machine);
    }

    /// Runs each thread that may make progress once. If no thread made progress, advances the time.
    fn round(&self, world: &Inner, deadline: Option<Instant>) {
        let mut ring = self.all.take();
        let machine = self.machine.get();
        self.progress.set(!self.new.borrow().is_empty());
        self.take_in(world, &mut ring);
        let count = ring.threads.len();
        if count > 0 {
            // The seed chooses the first thread of the round. A thread sees the actions of threads
            // that ran earlier in this round. It sees the actions of later threads only in the next
            // round.
            let turn = world.state.borrow_mut().random.below(count as u64) as usize;
            ring.first = (ring.first + turn) % count;
        }
        let mut has_ended = false;
        for range in [ring.first..count, 0..ring.first] {
            let mut next = range.start;
            loop {
                let place = world.state.borrow_mut().marks.take(next..range.end);
                let Some(place) = place else { break };
                next = place + 1;
                has_ended |= self.run(world, &mut ring.threads[place], place);
            }
        }
        self.go_to(machine);
        if has_ended {
            ring.straighten();
            let marks = &mut world.state.borrow_mut().marks;
            ring.threads.iter().filter(|it| it.has_ended).for_each(|it| marks.forget(it.id));
            ring.threads.retain(|thread| !thread.has_ended);
            marks.arrange(ring.threads.iter().map(|thread| thread.id));
        }
        *self.all.borrow_mut() = ring;
        if !self.progress.get() && self.new.borrow().is_empty() {
            world.advance(deadline);
        }
    }

    /// Adds new threads at the end of the ring.
    fn take_in(&self, world: &Inner, ring: &mut Ring) {
        if self.new.borrow().is_empty() {
            return;
        }
        ring.straighten();
        let marks = &mut world.state.borrow_mut().marks;
        for mut thread in self.new.borrow_mut().drain(..) {
            thread.id = marks.new_id();
            ring.threads.push(thread);
        }
        marks.arrange(ring.threads.iter().map(|thread| thread.id));
    }

    /// Runs a thread until it waits. Returns `true` if the thread has ended.
    fn run(&self, world: &Inner, thread: &mut Thread, place: usize) -> bool {
        self.go_to(thread.machine);
        let result = thread.coroutine.resume(());
        self.running.set(ptr::null());
        let CoroutineResult::Yield(Waits { until, waits_for }) = result else {
            thread.has_ended = true;
            thread.deadline = None;
            self.progress.set(true);
            return true;
        };
        if thread.deadline != until {
            thread.deadline = until;
            let entry = until.map(|at| Reverse((at, thread.id)));
            self.deadlines.borrow_mut().extend(entry);
        }
        let mut state = world.state.borrow_mut();
        state.marks.ask(place, waits_for == WaitsFor::Anybody);
        if let WaitsFor::Engine(engine) = waits_for {
            state.serve(engine, thread.id);
        }
        false
    }
}
