//! The state that both ends of a memory connection share.

use farblock_reactor::{Buffer, Waker};
use farblock_wire::sgl::KeyedBlock;
use farblock_wire::{Cqe, Sqe};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// The time limit of [`Wire::wait`]: a test that needs longer has failed.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// Memory of the host that the controller may read and write.
pub enum Region {
    /// Bytes of a single command.
    Bytes(Vec<u8>),
    /// An operation's buffer.
    Buffer(Buffer),
}

impl Region {
    fn bytes(&self) -> &[u8] {
        match self {
            Region::Bytes(bytes) => bytes,
            Region::Buffer(buffer) => buffer,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Region::Bytes(bytes) => bytes,
            Region::Buffer(buffer) => buffer,
        }
    }
}

#[derive(Default)]
struct Ends {
    commands: VecDeque<(Sqe, Vec<u8>)>,
    answers: VecDeque<Cqe>,
    /// The host's memory by key.
    registered: HashMap<u32, Region>,
    /// Memory whose keys the controller has invalidated.
    invalidated: HashMap<u32, Region>,
    /// Whether the host has disconnected.
    left: bool,
    /// Whether the controller has closed the connection.
    closed: bool,
    controller: Option<Waker>,
    host: Option<Waker>,
}

/// A connection in memory: commands in one direction, answers in the other, and registered memory
/// of the host, which the controller reads and writes.
#[derive(Default)]
pub struct Wire {
    ends: Mutex<Ends>,
    news: Condvar,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wire")
    }
}

/// Returns the range of a descriptor from `offset` on. The descriptor's address counts from the
/// start of the region.
fn range(block: &KeyedBlock, offset: usize, length: usize) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(block.address).ok()?.checked_add(offset)?;
    let fits = offset + length <= block.length_bytes as usize;
    fits.then_some(start..start.checked_add(length)?)
}

/// The controller's side.
impl Wire {
    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.ends.lock().expect("no holder panics")
    }

    /// Sets the waker to call for new commands, and when the host disconnects.
    pub fn attend(&self, waker: Waker) {
        self.ends().controller = Some(waker);
    }

    /// Returns the next command and its in-capsule data, if there is one.
    #[must_use]
    pub fn take_command(&self) -> Option<(Sqe, Vec<u8>)> {
        self.ends().commands.pop_front()
    }

    /// Waits for the next command; `None` if the host disconnects.
    ///
    /// # Panics
    /// Panics if neither happens for a minute.
    #[must_use]
    pub fn wait_command(&self) -> Option<(Sqe, Vec<u8>)> {
        let waits = |ends: &mut Ends| ends.commands.is_empty() && !ends.left;
        self.wait_while("command", waits).commands.pop_front()
    }

    /// Whether the host has disconnected.
    #[must_use]
    pub fn is_left(&self) -> bool {
        self.ends().left
    }

    /// Copies the start of a block of the host's memory. Returns false if that range is not in
    /// registered memory.
    #[must_use]
    pub fn read(&self, block: &KeyedBlock, into: &mut [u8]) -> bool {
        let ends = self.ends();
        let from = range(block, 0, into.len())
            .and_then(|range| ends.registered.get(&block.key)?.bytes().get(range));
        from.map(|from| into.copy_from_slice(from)).is_some()
    }

    /// Copies into a block of the host's memory, from `offset` on. Returns false if that range is
    /// not in registered memory.
    #[must_use]
    pub fn write(&self, block: &KeyedBlock, offset: usize, from: &[u8]) -> bool {
        let mut ends = self.ends();
        let into = range(block, offset, from.len())
            .and_then(|range| ends.registered.get_mut(&block.key)?.bytes_mut().get_mut(range));
        into.map(|into| into.copy_from_slice(from)).is_some()
    }

    /// Invalidates a key of the host.
    pub fn invalidate(&self, key: u32) {
        let mut ends = self.ends();
        if let Some(region) = ends.registered.remove(&key) {
            ends.invalidated.insert(key, region);
        }
    }

    /// Answers a command.
    pub fn answer(&self, cqe: Cqe) {
        let mut ends = self.ends();
        ends.answers.push_back(cqe);
        self.tell_host(&ends);
    }

    /// Closes the connection. From now on the controller does not access the host's memory.
    pub fn close(&self) {
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
    /// Sets the waker to call for new answers, and when the controller closes the connection.
    pub fn listen(&self, waker: Waker) {
        self.ends().host = Some(waker);
    }

    /// Sends a command.
    pub fn send(&self, sqe: Sqe, capsule: &[u8]) {
        let mut ends = self.ends();
        ends.commands.push_back((sqe, capsule.to_vec()));
        self.tell_controller(&ends);
    }

    /// Registers memory under a key, so that the controller can read and write it.
    ///
    /// # Panics
    /// Panics if the key is in use.
    pub fn register(&self, key: u32, region: Region) {
        assert!(self.ends().registered.insert(key, region).is_none(), "the key is in use");
    }

    /// Deregisters the memory with this key and returns it. Also returns whether the controller had
    /// invalidated the key.
    #[must_use]
    pub fn deregister(&self, key: u32) -> Option<(Region, bool)> {
        let mut ends = self.ends();
        let invalidated = ends.invalidated.remove(&key).map(|region| (region, true));
        invalidated.or_else(|| ends.registered.remove(&key).map(|region| (region, false)))
    }

    /// Takes all answers that have arrived.
    #[must_use]
    pub fn take_answers(&self) -> Vec<Cqe> {
        self.ends().answers.drain(..).collect()
    }

    /// Whether the controller has closed the connection.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.ends().closed
    }

    /// Waits for the next answer; `None` if the controller closes the connection.
    ///
    /// # Panics
    /// Panics if neither happens for a minute.
    #[must_use]
    pub fn wait(&self) -> Option<Cqe> {
        let waits = |ends: &mut Ends| ends.answers.is_empty() && !ends.closed;
        self.wait_while("answer", waits).answers.pop_front()
    }

    /// Disconnects the host. The controller then closes the connection, even with commands in
    /// flight.
    pub fn leave(&self) {
        let mut ends = self.ends();
        ends.left = true;
        self.tell_controller(&ends);
    }

    fn tell_controller(&self, ends: &Ends) {
        ends.controller.iter().for_each(Waker::wake);
        self.news.notify_all();
    }

    fn wait_while(&self, what: &str, waits: impl FnMut(&mut Ends) -> bool) -> MutexGuard<'_, Ends> {
        let waited = self.news.wait_timeout_while(self.ends(), WAIT_LIMIT, waits);
        let (ends, timed_out) = waited.expect("no holder panics");
        assert!(!timed_out.timed_out(), "no {what}");
        ends
    }
}
