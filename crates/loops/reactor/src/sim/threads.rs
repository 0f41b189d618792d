//! The threads of a world: coroutines that run until they wait.

use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::ptr;
use std::time::Instant;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::{Inner, current};

/// Stack of a coroutine; what is not touched takes no memory.
const STACK_BYTES: usize = 2 << 20;

type Suspend = Yielder<(), Option<Instant>>;

struct Thread {
    name: String,
    /// Forgotten unless it has ended: unwinding it would have to run code that waits.
    coroutine: ManuallyDrop<Coroutine<(), Option<Instant>, ()>>,
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

pub(super) struct Threads {
    all: RefCell<Vec<Thread>>,
    /// Started, and not run yet.
    new: RefCell<Vec<Thread>>,
    /// What the one that runs suspends itself with; null: the root runs.
    running: Cell<*const Suspend>,
    /// Somebody got what it waited for in this round.
    progress: Cell<bool>,
}

impl Default for Threads {
    fn default() -> Threads {
        Threads {
            all: RefCell::default(),
            new: RefCell::default(),
            running: Cell::new(ptr::null()),
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
        let thread = Thread { name, coroutine, deadline: None, has_ended: false };
        self.new.borrow_mut().push(thread);
    }

    pub(super) fn names(&self) -> Vec<String> {
        let (all, new) = (self.all.borrow(), self.new.borrow());
        all.iter().chain(new.iter()).map(|thread| thread.name.clone()).collect()
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.all.borrow().iter().filter_map(|thread| thread.deadline).min()
    }

    /// Whoever runs got what it waited for.
    pub(super) fn got_on(&self) {
        self.progress.set(true);
    }

    /// Lets others run; returns after a round of them, or later.
    pub(super) fn park(&self, world: &Inner, deadline: Option<Instant>) {
        let running = self.running.get();
        if running.is_null() {
            return self.round(world, deadline);
        }
        // SAFETY: it is in the frame in which the coroutine began, which lives for as long as the
        // coroutine runs; and it is the coroutine that runs, since every switch sets the pointer.
        unsafe { &*running }.suspend(deadline);
        self.running.set(running);
    }

    /// Lets each thread run once, and time pass if none of them got on.
    fn round(&self, world: &Inner, deadline: Option<Instant>) {
        let mut threads = self.all.take();
        self.progress.set(!self.new.borrow().is_empty());
        threads.append(&mut self.new.borrow_mut());
        if !threads.is_empty() {
            // The order is the seed's: whoever is first sees the others late.
            let first = world.state.borrow_mut().random.below(threads.len() as u64);
            threads.rotate_left(first as usize);
        }
        for thread in &mut threads {
            match thread.coroutine.resume(()) {
                CoroutineResult::Yield(deadline) => thread.deadline = deadline,
                CoroutineResult::Return(()) => {
                    thread.has_ended = true;
                    self.progress.set(true);
                }
            }
            self.running.set(ptr::null());
        }
        threads.retain(|thread| !thread.has_ended);
        *self.all.borrow_mut() = threads;
        if !self.progress.get() && self.new.borrow().is_empty() {
            world.advance(deadline);
        }
    }
}
