//! The threads of a world: coroutines that run until they wait.
//!
//! In a round each thread runs that may get on, in an order that the seed chooses. Whoever waits
//! for a condition that anybody may make true is asked each time; a loop and a sleeper are not:
//! they are [marked](Marks) by what happens to them. So a round costs what happens in it.

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

/// Stack of a coroutine; what is not touched takes no memory.
const STACK_BYTES: usize = 2 << 20;

type Suspend = Yielder<(), Waits>;

/// What a thread waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Whom {
    /// Anybody may let it get on: it is asked in each round.
    Anybody,
    /// What happens to this engine.
    Engine(u64),
    /// Nobody: the time.
    Nobody,
}

/// How long a thread waits, and for whom.
#[derive(Clone, Copy)]
struct Waits {
    until: Option<Instant>,
    whom: Whom,
}

struct Thread {
    name: String,
    /// Names it in [`Marks`], for as long as it is there.
    id: usize,
    /// The machine that it runs on.
    machine: u32,
    /// Forgotten unless it has ended: unwinding it would have to run code that waits.
    coroutine: ManuallyDrop<Coroutine<(), Waits, ()>>,
    deadline: Option<Instant>,
    has_ended: bool,
}

impl Drop for Thread {
    fn drop(&mut self) {
        if self.has_ended {
            // SAFETY: this is the only place that drops it, and the thread is not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.coroutine) };
        }
    }
}

/// Who may get on: by place in the ring of threads, a bit each.
#[derive(Default)]
pub(super) struct Marks {
    /// Something happened for them.
    woken: Vec<u64>,
    /// They are asked in each round.
    asked: Vec<u64>,
    /// Places by the threads' numbers.
    places: Vec<Option<usize>>,
    /// Numbers that no thread has.
    free: Vec<usize>,
}

impl Marks {
    /// A number that no thread has.
    fn new_id(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        })
    }

    /// The thread is not there any more.
    fn forget(&mut self, id: usize) {
        self.places[id] = None;
        self.free.push(id);
    }

    /// The threads are in other places. New ones are to run.
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

    /// A thread may get on.
    pub(super) fn wake(&mut self, id: usize) {
        if let Some(place) = self.places.get(id).copied().flatten() {
            self.woken[place / 64] |= 1 << (place % 64);
        }
    }

    /// The first place in a range whose thread may get on. It is not marked any more.
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
    /// Where a round that nobody's seed has turned would begin.
    first: usize,
}

impl Ring {
    /// Has the ring begin where it stands.
    fn straighten(&mut self) {
        let first = std::mem::take(&mut self.first);
        self.threads.rotate_left(first);
    }
}

pub(super) struct Threads {
    all: RefCell<Ring>,
    /// Started, and not run yet.
    new: RefCell<Vec<Thread>>,
    /// When somebody wants to run at the latest, with the thread's number. It may have changed its
    /// mind since.
    deadlines: RefCell<BinaryHeap<Reverse<(Instant, usize)>>>,
    /// What the one that runs suspends itself with; null: the root runs.
    running: Cell<*const Suspend>,
    /// Where whoever runs is.
    machine: Cell<u32>,
    /// Somebody got what it waited for in this round.
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
        let stack = DefaultStack::new(STACK_BYTES).expect("memory for a stack");
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

    /// The machine that whoever runs is on.
    pub(super) fn machine(&self) -> u32 {
        self.machine.get()
    }

    /// Puts whoever runs on another machine; gives the one that it was on.
    pub(super) fn go_to(&self, machine: u32) -> u32 {
        farblock_mem::tally::count_for(machine);
        self.machine.replace(machine)
    }

    /// Those on these machines waited until a time that is so much sooner now.
    pub(super) fn jump(&self, world: &Inner, machines: Range<u32>, time: Duration) {
        let mut all = self.all.borrow_mut();
        let mut deadlines = self.deadlines.borrow_mut();
        for thread in all.threads.iter_mut().filter(|it| machines.contains(&it.machine)) {
            let Some(deadline) = &mut thread.deadline else { continue };
            *deadline = deadline.checked_sub(time).unwrap_or(world.epoch);
            deadlines.push(Reverse((*deadline, thread.id)));
        }
    }

    /// Whether a deadline is still the thread's.
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

    /// Marks whoever waited until now.
    pub(super) fn expire(&self, world: &Inner) {
        let now = world.now();
        while let Some(at) = self.next_deadline(world)
            && at <= now
        {
            let Some(Reverse((_, id))) = self.deadlines.borrow_mut().pop() else { return };
            world.state.borrow_mut().marks.wake(id);
        }
    }

    /// Whoever runs got what it waited for.
    pub(super) fn got_on(&self) {
        self.progress.set(true);
    }

    /// Lets others run; returns after a round of them, or later.
    pub(super) fn park(&self, world: &Inner, until: Option<Instant>, whom: Whom) {
        let running = self.running.get();
        let until = until.map(|until| world.world_time(until));
        if running.is_null() {
            return self.round(world, until);
        }
        let machine = self.machine.get();
        // SAFETY: it is in the frame in which the coroutine began, which lives for as long as the
        // coroutine runs; and it is the coroutine that runs, since every switch sets the pointer.
        unsafe { &*running }.suspend(Waits { until, whom });
        self.running.set(running);
        self.go_to(machine);
    }

    /// Lets each thread run once that may get on, and time pass if none of them did.
    fn round(&self, world: &Inner, deadline: Option<Instant>) {
        let mut ring = self.all.take();
        let machine = self.machine.get();
        self.progress.set(!self.new.borrow().is_empty());
        self.take_in(world, &mut ring);
        let count = ring.threads.len();
        if count > 0 {
            // The order is the seed's: whoever is first sees the others late.
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

    /// Puts the new threads at the ring's end.
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

    /// Lets a thread run until it waits; true if it has ended.
    fn run(&self, world: &Inner, thread: &mut Thread, place: usize) -> bool {
        self.go_to(thread.machine);
        let result = thread.coroutine.resume(());
        self.running.set(ptr::null());
        let CoroutineResult::Yield(Waits { until, whom }) = result else {
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
        state.marks.ask(place, whom == Whom::Anybody);
        if let Whom::Engine(engine) = whom {
            state.serve(engine, thread.id);
        }
        false
    }
}
