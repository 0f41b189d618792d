//! What the two ends in memory share.

use farblock_reactor::Waker;
use farblock_wire::sgl::KeyedBlock;
use farblock_wire::{Cqe, Sqe};
use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// How long a host waits for anything: a test that needs longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Ends {
    commands: VecDeque<(Sqe, Vec<u8>)>,
    answers: VecDeque<Cqe>,
    /// The host's memory by key.
    registered: HashMap<u32, Vec<u8>>,
    /// What the target made inaccessible to itself.
    invalidated: HashMap<u32, Vec<u8>>,
    /// The host has left.
    left: bool,
    /// The target has closed.
    closed: bool,
    target: Option<Waker>,
    host: Option<Waker>,
}

/// See the module's text.
#[derive(Default)]
pub(crate) struct Wire {
    ends: Mutex<Ends>,
    news: Condvar,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wire")
    }
}

/// The range of a region that a descriptor names from `offset` on; its address counts from the
/// region's start.
fn range(block: &KeyedBlock, offset: usize, length: usize) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(block.address).ok()?.checked_add(offset)?;
    let fits = offset + length <= block.length_bytes as usize;
    fits.then_some(start..start.checked_add(length)?)
}

/// The target's side.
impl Wire {
    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.ends.lock().expect("no holder panics")
    }

    pub(super) fn attend(&self, waker: Waker) {
        self.ends().target = Some(waker);
    }

    pub(super) fn take_command(&self) -> Option<(Sqe, Vec<u8>)> {
        self.ends().commands.pop_front()
    }

    pub(super) fn is_left(&self) -> bool {
        self.ends().left
    }

    /// Copies out of the host's memory; false if there is none.
    pub(super) fn read(&self, block: &KeyedBlock, into: &mut [u8]) -> bool {
        let ends = self.ends();
        let from = range(block, 0, into.len())
            .and_then(|range| ends.registered.get(&block.key)?.get(range));
        from.map(|from| into.copy_from_slice(from)).is_some()
    }

    /// Copies into the host's memory; false if there is none.
    pub(super) fn write(&self, block: &KeyedBlock, offset: usize, from: &[u8]) -> bool {
        let mut ends = self.ends();
        let into = range(block, offset, from.len())
            .and_then(|range| ends.registered.get_mut(&block.key)?.get_mut(range));
        into.map(|into| into.copy_from_slice(from)).is_some()
    }

    pub(super) fn invalidate(&self, key: u32) {
        let mut ends = self.ends();
        if let Some(region) = ends.registered.remove(&key) {
            ends.invalidated.insert(key, region);
        }
    }

    pub(super) fn answer(&self, cqe: Cqe) {
        let mut ends = self.ends();
        ends.answers.push_back(cqe);
        self.tell_host(&ends);
    }

    pub(super) fn close(&self) {
        let mut ends = self.ends();
        ends.closed = true;
        self.tell_host(&ends);
    }

    fn tell_host(&self, ends: &Ends) {
        ends.host.iter().for_each(Waker::wake);
        self.news.notify_all();
    }
}

/// The host's side.
impl Wire {
    /// Has this waker woken when there are answers.
    pub(super) fn listen(&self, waker: Waker) {
        self.ends().host = Some(waker);
    }

    pub(super) fn send(&self, sqe: Sqe, capsule: &[u8]) {
        let mut ends = self.ends();
        ends.commands.push_back((sqe, capsule.to_vec()));
        ends.target.iter().for_each(Waker::wake);
    }

    pub(super) fn register(&self, key: u32, memory: Vec<u8>) {
        assert!(self.ends().registered.insert(key, memory).is_none(), "a key is used once");
    }

    /// The memory back, and whether the target had made its key invalid.
    pub(super) fn deregister(&self, key: u32) -> Option<(Vec<u8>, bool)> {
        let mut ends = self.ends();
        let invalidated = ends.invalidated.remove(&key).map(|memory| (memory, true));
        invalidated.or_else(|| ends.registered.remove(&key).map(|memory| (memory, false)))
    }

    pub(super) fn take_answers(&self) -> Vec<Cqe> {
        self.ends().answers.drain(..).collect()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.ends().closed
    }

    /// The next answer; `None` if the target closes instead.
    pub(super) fn wait(&self) -> Option<Cqe> {
        let waits = |ends: &mut Ends| ends.answers.is_empty() && !ends.closed;
        let (mut ends, timed_out) =
            self.news.wait_timeout_while(self.ends(), PATIENCE, waits).expect("no holder panics");
        assert!(!timed_out.timed_out(), "no answer");
        ends.answers.pop_front()
    }

    /// Leaves: the target closes, whatever is under way.
    pub(super) fn leave(&self) {
        let mut ends = self.ends();
        ends.left = true;
        ends.target.iter().for_each(Waker::wake);
    }
}
