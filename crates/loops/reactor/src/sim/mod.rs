//! A simulated *world* with its own clock, network, disks and threads. One seed determines their
//! behaviour.
//!
//! A world belongs to the thread that [entered](World::enter) it. Reactors that this thread creates
//! with [`EngineKind::Sim`](crate::EngineKind::Sim) belong to the world, and [`os`](crate::os) uses
//! the world's time, threads and sockets. The world's threads are coroutines: one runs until it
//! waits, then another runs. When all wait, the time advances to the next event. So the seed
//! decides every race, and runs with the same seed are identical ([`World::trace`]).
//!
//! ```text
//!   root: the test          coroutines: cores, control loops
//!     |  waits                 |  wait (for an event, a message, a time)
//!     v                        v
//!   each resumes in turn, until all wait   ──>  time advances to the next event
//!     ^                                                  |
//!     +───────── bytes arrive, disks answer, timers ─────+
//! ```
//!
//! A world can have several machines. A thread runs on the machine of the thread that started it,
//! or on the machine that [`on_machine`] selected. It connects from the address of this machine,
//! and shares no process state with other machines ([`os::world`](crate::os::world)). A [`tally`]
//! counts the buffers of each machine. A machine's clock may [jump](World::jump) ahead.
//!
//! The owner of the [`World`] injects faults: broken connections ([`Break`]), addresses that do not
//! answer, packet loss, disk faults ([`DiskFaults`]), power cuts, killed processes and clock jumps.

mod disk;
mod net;
mod news;
mod serving;
mod threads;

use farblock_random::Random;
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use disk::{DiskFaults, Landed, Medium};
pub use farblock_mem::tally;
pub use net::{Break, Connection, EarlyFaults, Listener, NetFaults, Side, Stream};
pub use serving::Service;

use disk::Media;
use net::Net;
use news::News;
pub(crate) use threads::WaitsFor;
use threads::{Marks, Threads};

thread_local! {
    static WORLD: RefCell<Option<Rc<Inner>>> = const { RefCell::new(None) };
    static IS_ENTERED: Cell<bool> = const { Cell::new(false) };
}

/// A future event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Happening {
    /// Bytes from one side of a connection reach the other side.
    Arrive { link: usize, side: Side },
    /// A connection request reaches its listener.
    Connect { link: usize },
    /// One side of a connection notices that the connection is broken.
    Fail { link: usize, side: Side },
    /// A disk operation completes.
    Done { medium: usize, op: u64 },
}

pub(crate) struct WorldState {
    /// The time since the start of the world, in nanoseconds.
    now: u64,
    random: Random,
    queue: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    /// The number of the next entry in the queue of events. Of two events at the same time, the one
    /// with the lower number happens first.
    serial: u64,
    net: Net,
    media: Media,
    /// The number of restarts of each machine. Empty before the first call of [`World::reboot`].
    /// Until then, each power cut counts as a restart of all machines.
    boots: BTreeMap<u32, u64>,
    /// The pending events of each engine, by engine number.
    engines: HashMap<u64, News>,
    /// The threads that may make progress.
    marks: Marks,
    /// A hash of all events.
    trace: u64,
}

/// The number of worlds that the process has created.
static WORLDS: AtomicU64 = AtomicU64::new(0);

struct Inner {
    /// The number of the world: 1 or more, unique in the process.
    number: u64,
    epoch: Instant,
    state: RefCell<WorldState>,
    threads: Threads,
    mistake: Cell<Option<&'static str>>,
    /// The time by which the clocks of machines are ahead of the world's time.
    jumps: RefCell<Vec<(Range<u32>, Duration)>>,
    /// The highest reported value of each level (see [`os::note_level`](crate::os::note_level)).
    levels: RefCell<BTreeMap<&'static str, usize>>,
}

/// A simulated world, as the [module](self) describes.
pub struct World(Rc<Inner>);

impl World {
    /// Creates a world, to which the calling thread then belongs instead of its current world.
    /// Dropping the returned value leaves the world.
    #[must_use]
    pub fn enter(seed: u64) -> World {
        let state = WorldState {
            now: 0,
            random: Random::new(seed),
            queue: BinaryHeap::new(),
            serial: 0,
            net: Net::default(),
            media: Media::default(),
            boots: BTreeMap::new(),
            engines: HashMap::new(),
            marks: Marks::default(),
            trace: seed,
        };
        let inner = Rc::new(Inner {
            number: WORLDS.fetch_add(1, Ordering::Relaxed) + 1,
            epoch: Instant::now(),
            state: RefCell::new(state),
            threads: Threads::default(),
            mistake: Cell::new(None),
            jumps: RefCell::default(),
            levels: RefCell::default(),
        });
        farblock_mem::tally::begin();
        WORLD.with(|world| *world.borrow_mut() = Some(Rc::clone(&inner)));
        IS_ENTERED.set(true);
        World(inner)
    }

    /// Enables a deliberate bug: [`os::has_mistake`](crate::os::has_mistake) then returns true for
    /// this name.
    pub fn make_mistake(&self, mistake: &'static str) {
        self.0.mistake.set(Some(mistake));
    }

    /// Returns the time since the start of the world.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.0.state.borrow().now)
    }

    /// Returns a hash of all events so far. Identical runs have the same hash.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.0.state.borrow().trace
    }

    /// Returns the names of the threads that have not ended.
    #[must_use]
    pub fn threads(&self) -> Vec<String> {
        self.0.threads.names()
    }

    /// Sets the faults of the whole network.
    pub fn set_net_faults(&self, faults: NetFaults) {
        self.0.state.borrow_mut().net.faults = faults;
    }

    /// Returns the number of connections that [`EarlyFaults`] broke or damaged.
    #[must_use]
    pub fn early_faults(&self) -> u64 {
        self.0.state.borrow().net.early
    }

    /// Returns the unbroken connections, oldest first.
    #[must_use]
    pub fn connections(&self) -> Vec<Connection> {
        self.0.state.borrow().net.connections()
    }

    /// Breaks a connection.
    pub fn break_connection(&self, connection: Connection, how: Break) {
        self.0.state.borrow_mut().break_link(connection.link, how);
    }

    /// Sets whether the address answers connection requests. By default it answers.
    pub fn set_reachable(&self, address: SocketAddr, reachable: bool) {
        self.0.state.borrow_mut().net.set_reachable(address, reachable);
    }

    /// Kills the process that listens on `address`. Its connections break, and the address becomes
    /// free. The caller must ensure that the process's threads do nothing more.
    pub fn kill(&self, address: SocketAddr) {
        self.0.state.borrow_mut().kill(address);
    }

    /// Sets how the machine with this address serves its clients (see [`Service`]).
    pub fn set_service(&self, address: SocketAddr, service: Service) {
        self.0.state.borrow_mut().net.set_service(address, service);
    }

    /// Returns the number of connection requests that found the address's backlog full.
    #[must_use]
    pub fn overflows(&self, address: SocketAddr) -> u64 {
        self.0.state.borrow().net.overflows(address)
    }

    /// Disconnects machines from the network for `time`. Data to and from them arrives only when
    /// the sender retransmits it afterwards, as with TCP.
    pub fn cut(&self, machines: Range<u32>, time: Duration) {
        self.0.state.borrow_mut().cut(machines, time);
    }

    /// Drops all data that one side of the connections to an address sends within `time`, without
    /// an error. The other direction works. Afterwards the sender retransmits the data, as with
    /// TCP, even if the sending program no longer waits for an answer.
    pub fn blackhole(&self, address: SocketAddr, side: Side, time: Duration) {
        self.0.state.borrow_mut().blackhole(address, side, time);
    }

    /// Kills the process on a machine. Its connections break, and new connections fail. Data that
    /// it has sent may still arrive for up to `longest`. The caller must ensure that the process's
    /// threads do nothing more.
    pub fn end_process(&self, machine: u32, longest: Duration) {
        self.0.state.borrow_mut().end_process(machine, longest);
    }

    /// Moves the clocks of machines ahead by `time`, so that their deadlines pass sooner. Only the
    /// thread that created the world may call this.
    pub fn jump(&self, machines: Range<u32>, time: Duration) {
        self.0.threads.jump(&self.0, machines.clone(), time);
        self.0.jumps.borrow_mut().push((machines, time));
    }

    /// Returns the highest reported value of a level (see
    /// [`os::note_level`](crate::os::note_level)), or 0.
    #[must_use]
    pub fn highest(&self, level: &str) -> usize {
        self.0.levels.borrow().get(level).copied().unwrap_or_default()
    }

    /// Creates a disk of `bytes` zeroes.
    #[must_use]
    pub fn disk(&self, bytes: usize) -> Medium {
        self.0.state.borrow_mut().media.add(bytes)
    }

    /// Sets the faults of a disk.
    pub fn set_disk_faults(&self, medium: Medium, faults: DiskFaults) {
        self.0.state.borrow_mut().media.at(medium).faults = faults;
    }

    /// Simulates the death of the process that uses the disk. Each of its operations takes effect
    /// fully, partly or not at all. Returns a handle for the next process. Operations through the
    /// old handle have no more effect.
    #[must_use]
    pub fn orphan_disk(&self, medium: Medium) -> Medium {
        self.0.state.borrow_mut().orphan(medium)
    }

    /// Cuts the power. Of the unsynced data, any atomic units may be lost. Returns a handle for use
    /// after the power cut.
    #[must_use]
    pub fn cut_power(&self, medium: Medium) -> Medium {
        self.0.state.borrow_mut().cut_power(medium)
    }

    /// Returns the writes to the disk since the last call, in order. The first call starts the
    /// recording. A partial write appears as one write for each written part. A power cut is not a
    /// write.
    #[must_use]
    pub fn take_landed(&self, medium: Medium) -> Vec<Landed> {
        let mut state = self.0.state.borrow_mut();
        state.media.at(medium).landed.replace(Vec::new()).unwrap_or_default()
    }

    /// Truncates a file that may be in use, or extends it with zeroes, as another program would.
    /// The size must be a multiple of the disk's atomic unit.
    pub fn set_disk_size(&self, medium: Medium, bytes: usize) {
        self.0.state.borrow_mut().media.at(medium).set_size(bytes);
    }

    /// Overwrites a file that may be in use, in place and durably, as another program would.
    pub fn replace_contents(&self, medium: Medium, contents: &[u8]) {
        self.0.state.borrow_mut().media.at(medium).replace(contents);
    }

    /// Restarts a machine. Programs that start on it afterwards see a new boot identifier. After
    /// the first call, power cuts no longer change boot identifiers.
    pub fn reboot(&self, machine: u32) {
        *self.0.state.borrow_mut().boots.entry(machine).or_default() += 1;
    }

    /// Returns the current contents of the disk.
    #[must_use]
    pub fn contents(&self, medium: Medium) -> Vec<u8> {
        self.0.state.borrow_mut().media.at(medium).current().to_vec()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let is_current = WORLD.with(|world| {
            world.borrow().as_ref().is_some_and(|current| Rc::ptr_eq(current, &self.0))
        });
        if is_current {
            IS_ENTERED.set(false);
            WORLD.with(|world| world.borrow_mut().take());
        }
    }
}

impl WorldState {
    fn schedule(&mut self, delay: Duration, happening: Happening) {
        self.schedule_at(self.after(delay), happening);
    }

    fn schedule_at(&mut self, at: u64, happening: Happening) {
        self.serial += 1;
        self.queue.push(Reverse((at.max(self.now), self.serial, happening)));
    }

    fn after(&self, delay: Duration) -> u64 {
        self.now.saturating_add(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX))
    }

    fn note(&mut self, value: u64) {
        self.trace = Random::new(self.trace ^ value).bits();
    }

    fn note_bytes(&mut self, bytes: &[u8]) {
        // A simple hash (FNV-1a) suffices: it only has to show whether two runs differ.
        let digest = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |digest, &byte| {
            (digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        self.note(digest);
    }

    /// Processes all due events.
    fn happen(&mut self) {
        while let Some(&Reverse((at, _, happening))) = self.queue.peek()
            && at <= self.now
        {
            self.queue.pop();
            self.note(at);
            match happening {
                Happening::Arrive { link, side } => self.arrive(link, side),
                Happening::Connect { link } => self.reach_listener(link),
                Happening::Fail { link, side } => self.fail_end(link, side),
                Happening::Done { medium, op } => self.finish(medium, op),
            }
        }
    }
}

impl Inner {
    /// Returns the world's time, independent of clock jumps.
    fn now(&self) -> Instant {
        self.epoch + Duration::from_nanos(self.state.borrow().now)
    }

    /// Returns the time by which the running thread's clock is ahead of the world's time.
    fn ahead(&self) -> Duration {
        let machine = self.threads.machine();
        let jumps = self.jumps.borrow();
        jumps.iter().filter(|(of, _)| of.contains(&machine)).map(|(_, time)| *time).sum()
    }

    /// Returns the time on the running thread's clock.
    fn local_now(&self) -> Instant {
        self.now() + self.ahead()
    }

    /// Converts a time of the running thread's clock to the world's time.
    fn world_time(&self, local: Instant) -> Instant {
        local.checked_sub(self.ahead()).unwrap_or(self.epoch)
    }

    /// Advances the time to the next event, or to the next deadline of a waiting thread.
    fn advance(&self, deadline: Option<Instant>) {
        let waiting = self.threads.next_deadline(self);
        let mut state = self.state.borrow_mut();
        let nanos = |at: Instant| {
            u64::try_from(at.saturating_duration_since(self.epoch).as_nanos()).unwrap_or(u64::MAX)
        };
        let next = state.queue.peek().map(|&Reverse((at, _, _))| at);
        let waiting = waiting.into_iter().chain(deadline).map(nanos).min();
        let Some(next) = next.into_iter().chain(waiting).min() else {
            panic!("deadlock: every thread waits, and no event is due: {:?}", self.threads.names());
        };
        state.now = state.now.max(next);
        state.happen();
        drop(state);
        self.threads.expire(self);
    }
}

fn current() -> Rc<Inner> {
    WORLD.with(|world| world.borrow().clone()).expect("the thread runs in a simulation")
}

pub(crate) fn with_state<R>(act: impl FnOnce(&mut WorldState) -> R) -> R {
    act(&mut current().state.borrow_mut())
}

/// Like [`with_state`], for values that may be dropped after the world.
pub(crate) fn try_with_state(act: impl FnOnce(&mut WorldState)) {
    let world = WORLD.try_with(|world| world.borrow().clone());
    if let Ok(Some(world)) = world {
        act(&mut world.state.borrow_mut());
    }
}

#[inline]
pub(crate) fn is_entered() -> bool {
    IS_ENTERED.try_with(Cell::get).unwrap_or(false)
}

/// Returns a number that identifies the machine in its world; 0 outside a world.
pub(crate) fn number() -> u64 {
    if is_entered() { current().number << 32 | u64::from(machine()) } else { 0 }
}

/// Returns the machine of the calling thread.
fn machine() -> u32 {
    current().threads.machine()
}

/// Runs `act` as if on another machine of the thread's world. Threads that `act` starts stay on
/// that machine.
pub fn on_machine<T>(machine: u32, act: impl FnOnce() -> T) -> T {
    let world = current();
    let before = world.threads.go_to(machine);
    let result = act();
    world.threads.go_to(before);
    result
}

/// Returns the time on the clock of the calling thread, which must be in a world.
fn local_now() -> Instant {
    current().local_now()
}

/// Returns the time on the clock of the calling thread; `None` outside a world.
#[inline]
pub(crate) fn time() -> Option<Instant> {
    is_entered().then(|| current().local_now())
}

/// Returns the identifier of the machine's boot. It contains the number of the machine's restarts
/// or, before the first [`World::reboot`], of the world's power cuts.
pub(crate) fn boot() -> Option<String> {
    is_entered().then(|| {
        let machine = machine();
        with_state(|state| match state.boots.is_empty() {
            true => format!("boot {}", state.media.power_cuts),
            false => {
                let boots = state.boots.get(&machine).copied().unwrap_or_default();
                format!("boot {boots} of machine {machine}")
            }
        })
    })
}

/// Returns the size of a simulated file in bytes.
pub(crate) fn size(medium: Medium) -> u64 {
    with_state(|state| state.media.at(medium).current().len() as u64)
}

pub(crate) fn has_mistake(mistake: &str) -> bool {
    is_entered() && current().mistake.get() == Some(mistake)
}

pub(crate) fn note_level(level: &'static str, value: usize) {
    if is_entered() {
        let world = current();
        let mut levels = world.levels.borrow_mut();
        let highest = levels.entry(level).or_default();
        *highest = value.max(*highest);
    }
}

pub(crate) fn fill(bytes: &mut [u8]) -> bool {
    if !is_entered() {
        return false;
    }
    with_state(|state| bytes.fill_with(|| state.random.bits() as u8));
    true
}

pub(crate) fn spawn(name: String, body: impl FnOnce() + 'static) {
    current().threads.spawn(name, body);
}

/// Lets other threads run until the deadline has passed or the condition holds. Any thread may make
/// the condition true.
pub(crate) fn wait_until(deadline: Option<Instant>, holds: impl FnMut() -> bool) {
    block_until(deadline, WaitsFor::Anybody, holds);
}

/// Lets other threads run until the deadline.
pub(crate) fn sleep_until(deadline: Option<Instant>) {
    block_until(deadline, WaitsFor::Nobody, || false);
}

/// Lets other threads run until the condition holds or the deadline has passed. Only events in
/// `waits_for` may make the condition true.
pub(crate) fn block_until(
    deadline: Option<Instant>,
    waits_for: WaitsFor,
    mut holds: impl FnMut() -> bool,
) {
    let world = current();
    let mut result = holds();
    while !result && deadline.is_none_or(|at| at > world.local_now()) && !std::thread::panicking() {
        world.threads.park(&world, deadline, waits_for);
        result = holds();
    }
    world.threads.got_on();
}

/// Lets other threads run, and continues 1 us later.
pub(crate) fn pass() {
    const PASS: Duration = Duration::from_micros(1);
    let world = current();
    sleep_until(Some(world.local_now() + PASS));
}
