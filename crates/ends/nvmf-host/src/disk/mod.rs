//! A disk: a remote namespace that outlives its connections.
//!
//! [`Disk`] is a [`Namespace`] like any other, reached over one or several paths. It keeps every
//! operation until a controller has answered it; when a path is lost, it goes on over another one,
//! or waits until one is back.
//!
//! ```no_run
//! use farblock_block::blocking::Blocking;
//! use farblock_host::{Disk, DiskOptions, Url};
//!
//! let urls: [Url; 2] = [
//!     "nvme+tcp://10.0.0.1/nqn.2024-01.example:disk?ns=1".parse()?,
//!     "nvme+tcp://10.0.1.1/nqn.2024-01.example:disk?ns=1".parse()?,
//! ];
//! let disk = Disk::connect(&urls, &DiskOptions::default())?;
//! let mut blocks = Blocking::new(&disk)?;
//! let mut block = vec![0; blocks.geometry().block_size as usize];
//! // However often the network comes and goes meanwhile.
//! blocks.read(0, &mut block)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Contract
//!
//! **Every operation ends once.** With what a controller said, or with
//! [`BlockError::Disconnected`] when no path was usable for as long as the options say
//! (`fast_io_fail_timeout`, `ctrl_loss_timeout`), or when for as long each path that it was given
//! to was lost with it, or did not want it, and every usable one was tried.
//!
//! **Nothing acknowledged is lost, nothing is done late.** What a lost connection left unanswered
//! is sent again: a read at once, a write only when nothing can carry out the first attempt any
//! more, so that it cannot undo what came after the second. What that takes hangs on the target:
//!
//! * One with Cross-Controller Reset (farblock's) is told through another controller to end the
//!   lost one, and confirms when nothing of it is left: milliseconds.
//! * One of farblock's that does not know the lost controller but is at its place, by its address
//!   and the boot of its machine, took the place of a process that has ended: at once.
//! * With any other (the Linux kernel's and SPDK at present), and where neither can be had, a write
//!   is held until the lost controller must have ended by the specification: three times the keep
//!   alive timeout (two where traffic is no sign of life to it), and what it asks for (CQT).
//!   That is as good as the target: one that goes on for longer, as those two do with a command
//!   that is stuck in their storage, can still carry it out late. And as good as this machine's
//!   clock: one that jumps ahead ends the wait too soon.
//! * `quiesce` of the options is waited instead of that if it is given. With less than it takes, a
//!   stuck command can undo what was written, acknowledged and flushed after it.
//!
//! A write that was reported as failed, one of a queue that was closed, or a dead process's is
//! waited for in the same way before anything else is written. Reads never wait for any of it.
//! Whoever begins with a new disk where a process died has what that left ended first
//! ([`OrphanedControllers`]).
//!
//! **Durability is the namespace's.** A write that completed is not lost with a connection. But if
//! the target's machine dies with a volatile cache, what was not flushed before is lost. A farblock
//! target says that its machine was started anew; then one flush fails, if anything was
//! acknowledged since the last one, or may have been to a predecessor. Where a path is connected
//! for the first time, and leads to another boot than the others did, those are asked first whether
//! they live: a machine that nobody answers for may be the one that was started anew. With other
//! targets nothing tells, and the flush succeeds.
//!
//! **A target's process is not trusted by its name.** Where a path is connected again and leads to
//! another process than before, or to a target that does not say which one it is, the disk tells
//! [`Change::Contents`](farblock_block::Change::Contents) before it uses the path.
//!
//! **Opening a queue never waits.** It can be done on an event loop; operations wait until it has
//! a connection.
//!
//! **The namespace may grow and shrink**: [`Disk::changes`] tells. A namespace with another
//! identity, or another block size, is another disk: nothing is sent to it, when a path is
//! connected and when it is announced on one. Such a path is lost, [`PathStatus::error`] says why,
//! and it is used again when it leads to the right one. What a process that died has known as its
//! namespace is its successor's ([`Disk::succeed`]).
//!
//! **Who was told that there is no volatile cache need not flush**: when a later target has one,
//! every write is made durable (FUA).

mod cache;
mod fencing;
mod hub;
mod identity;
mod keeper;
mod latency;
mod options;
mod orphans;
mod path;
mod paths;
mod queue;
mod refusal;
mod session;
mod table;
mod twins;

pub use farblock_wire::origin::ControllerOrigin;
pub use farblock_wire::reset::CrossControllerReset;
pub use fencing::{ControllerLife, Predecessor, Record};
pub use identity::KnownNamespace;
pub use latency::DiskLatency;
pub use options::{DiskOptions, ParsePolicyError, Policy};
pub use orphans::OrphanedControllers;
pub use path::{PathState, PathStatus};

use crate::control::{self, Control, reply};
use crate::controller::Controller;
use crate::error::Error;
use crate::limits;
use crate::url::Url;
use farblock_block::size::Size;
use farblock_block::{Availability, BlockError, Changes, Geometry, Namespace, Queue};
use farblock_reactor::{Reactor, TaskId, os};
use hub::Hub;
use keeper::Keeper;
use path::Path;
use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use twins::Seen;

/// See the [module](self). Clones are the same disk; it is closed when the last of them, and of its
/// queues, is gone.
#[derive(Clone)]
pub struct Disk {
    hub: Arc<Hub>,
    life: Arc<Life>,
}

/// What a disk as a whole can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskState {
    /// Every path is live.
    Live,
    /// Some path is live.
    Degraded,
    /// No path is live; operations wait.
    Waiting,
    /// Every path was given up; operations fail.
    Dead,
}

/// The keepers of a disk. Dropping it closes the disk and waits for them.
struct Life {
    hub: Arc<Hub>,
    /// Nobody is left to answer when they have ended.
    ended: Mutex<Vec<control::Receiver<()>>>,
    /// Where they run: given up last.
    control: Arc<Control>,
}

impl Drop for Life {
    fn drop(&mut self) {
        self.hub.stop();
        // A watcher may be the last that has it, for whom a keeper waits.
        if control::may_wait() {
            let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
            for ended in ended.drain(..) {
                let _ = ended.wait();
            }
        }
    }
}

impl Disk {
    /// Connects a disk. All URLs have to lead to the same namespace. One path that is connected
    /// is enough; the others are tried until they are, too.
    ///
    /// # Errors
    /// When no path can be connected, when two of them lead to different namespaces, or the URLs
    /// or options make no sense.
    pub fn connect(urls: &[Url], options: &DiskOptions) -> Result<Disk, Error> {
        Disk::connect_with(urls, options, |_| {})
    }

    /// As [`Disk::connect`], in place of a process that has died. Nothing is done before everything
    /// is over that it asked of its controllers, as with those that this disk loses itself; and
    /// nothing to another namespace than its.
    ///
    /// `record` is told what a successor of this process has to know.
    ///
    /// # Errors
    /// As [`Disk::connect`], and when `record` fails. A path that leads to another namespace than
    /// the predecessor's is one that cannot be connected.
    pub fn succeed(
        urls: &[Url],
        options: &DiskOptions,
        mut predecessor: Predecessor,
        record: impl Record + 'static,
    ) -> Result<Disk, Error> {
        Disk::connect_with(urls, options, |hub| {
            // Another subsystem knows nothing of them.
            predecessor.controllers.retain(|life| life.url.subsystem == urls[0].subsystem);
            hub.succeed(predecessor, Box::new(record));
        })
    }

    /// As [`Disk::connect`], and `record` is told which controllers have to be ended before
    /// anybody else writes, if this process is killed: by [`OrphanedControllers`], or by
    /// [`Disk::succeed`]. A disk that is closed with nothing under way leaves none.
    ///
    /// # Errors
    /// As [`Disk::connect`], and when `record` fails.
    pub fn connect_recorded(
        urls: &[Url],
        options: &DiskOptions,
        record: impl Record + 'static,
    ) -> Result<Disk, Error> {
        Disk::connect_with(urls, options, |hub| hub.record(Box::new(record)))
    }

    fn connect_with(
        urls: &[Url],
        options: &DiskOptions,
        prepare: impl FnOnce(&mut Hub),
    ) -> Result<Disk, Error> {
        let nsid = check(urls, options)?;
        let mut options = options.clone();
        if urls.len() > 1 {
            options.connection.path_timeout.get_or_insert(limits::PATH_TIMEOUT);
        }
        let paths = urls.iter().cloned().map(Path::new).collect();
        let mut hub = Hub::new(options, nsid, paths);
        prepare(&mut hub);
        let hub = Arc::new(hub);
        let is_decided = hub.is_decided();
        let control = Control::shared(hub.options.connection.engine).map_err(Error::System)?;
        let life = Life { hub: Arc::clone(&hub), ended: Mutex::default(), control };
        let disk = Disk { hub, life: Arc::new(life) };
        let (first, results) = channel();
        for index in 0..urls.len() {
            disk.start_keeper(index, first.clone());
        }
        drop(first);
        wait_for_first(&results, urls.len(), disk.hub.options.connect_wait, is_decided)?;
        Ok(disk)
    }

    /// Adds a path while the disk is used, once it is connected and leads to this disk's namespace.
    ///
    /// # Errors
    /// When the address cannot be connected, leads to another namespace, or makes no sense beside
    /// those that the disk has; and when it has as many paths as it may have. It has no such path
    /// then.
    pub fn add_path(&self, url: &Url) -> Result<(), Error> {
        let mut urls: Vec<Url> = self.hub.paths.iter().map(|path| path.url.clone()).collect();
        urls.push(url.clone());
        let nsid = check(&urls, &self.hub.options)?;
        let wrong = |text: String| Err(Error::Options(text));
        match self.hub.known() {
            Some(known) if !known.is_named() => {
                return wrong(format!(
                    "namespace {nsid} has no UUID, NGUID or EUI-64, so nobody can tell whether \
                     {url} leads to the same one"
                ));
            }
            known => {
                let mut options = self.hub.options.connection.clone();
                options.path_timeout.get_or_insert(limits::PATH_TIMEOUT);
                let controller = Controller::connect_url(url, &options)?;
                let found = controller.namespace(nsid)?;
                let new = Seen::of(&controller, Some(found.geometry().capacity_bytes()));
                let others = self.hub.paths.iter().filter_map(|it| it.settled_controller(false));
                let contradiction = |(other, bytes): (Controller, Option<u64>)| {
                    twins::contradiction(&Seen::of(&other, bytes), &new)
                };
                if let Some(difference) = known.and_then(|it| it.check(found.known()).err()) {
                    return Err(Error::Namespace(format!("{url}: {difference}")));
                }
                if let Some(why) = others.filter_map(contradiction).next() {
                    return Err(Error::Twin(why));
                }
            }
        }
        let Some(index) = self.hub.paths.add(Path::new(url.clone())) else {
            return wrong(format!("{} paths are the limit", limits::PATHS));
        };
        let (first, connected) = channel();
        self.start_keeper(index, first);
        // It was reached a moment ago. If it is lost meanwhile, it is connected again like others.
        let _ = os::recv_timeout(&connected, limits::OTHER_PATHS_TIME);
        Ok(())
    }

    fn start_keeper(&self, index: usize, first: Sender<Result<(), Error>>) {
        let (hub, control) = (Arc::clone(&self.hub), Arc::clone(&self.life.control));
        let (over, ended) = reply::<()>();
        self.life.ended.lock().unwrap_or_else(PoisonError::into_inner).push(ended);
        self.life.control.spawn(move |local| {
            let keeper = Keeper::new(hub, local.clone(), control, index, first);
            async move {
                keeper.run().await;
                drop(over);
            }
        });
    }

    /// What the disk as a whole can do.
    #[must_use]
    pub fn state(&self) -> DiskState {
        let count = |state| self.hub.paths.iter().filter(|path| path.state() == state).count();
        let all = self.hub.paths.len();
        match (count(PathState::Live), count(PathState::Dead)) {
            (live, _) if live == all => DiskState::Live,
            (1.., _) => DiskState::Degraded,
            (_, dead) if dead == all => DiskState::Dead,
            _ => DiskState::Waiting,
        }
    }

    /// The operations that the target refuses although the disk is connected, with the reason: for
    /// example a reservation of another host. It stands until the same kind of operation succeeds.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        let (writes, error) = self.hub.refusal.held()?;
        let what = if writes { "writes" } else { "reads" };
        Some(format!("the target refuses {what}: {error}"))
    }

    /// Whether some path is connected over which the target lets it be used.
    fn is_usable(&self) -> bool {
        self.hub.paths.iter().any(Path::is_usable)
    }

    /// The paths as they are, in the order in which they were given.
    #[must_use]
    pub fn paths(&self) -> Vec<PathStatus> {
        self.hub.paths.iter().map(Path::status).collect()
    }

    /// Has the controllers of all paths that are connected authenticate this host anew, with the
    /// secret that its file has now: what came of it, by path. One that is not connected uses that
    /// secret when it is.
    #[must_use]
    pub fn authenticate(&self) -> Vec<(Url, Result<(), Error>)> {
        let live = self.hub.paths.iter().filter_map(|path| Some((path, path.controller()?)));
        live.map(|(path, controller)| (path.url.clone(), controller.authenticate())).collect()
    }

    /// Has it measured how long operations take that are submitted from now on, which costs two
    /// looks at the clock for what is submitted and completed together; or not.
    pub fn measure_latency(&self, measure: bool) {
        self.hub.meters.measure(measure);
    }

    /// Whether that is measured.
    #[must_use]
    pub fn measures_latency(&self) -> bool {
        self.hub.meters.measures()
    }

    /// How long operations took, of those that were measured.
    #[must_use]
    pub fn latency(&self) -> DiskLatency {
        self.hub.meters.sum()
    }

    /// Where it tells of its changes: a path that comes or goes is one of its availability.
    #[must_use]
    pub fn changes(&self) -> &Changes {
        &self.hub.changes
    }
}

impl Namespace for Disk {
    fn geometry(&self) -> Geometry {
        self.hub.geometry()
    }

    fn changes(&self) -> Option<&Changes> {
        Some(&self.hub.changes)
    }

    fn availability(&self) -> Availability {
        match self.state() {
            DiskState::Live | DiskState::Degraded if self.is_usable() => Availability::Ready,
            // Connected, but the target does not let it be used (ANA).
            DiskState::Live | DiskState::Degraded => Availability::Waiting,
            DiskState::Waiting => Availability::Waiting,
            DiskState::Dead => Availability::Gone,
        }
    }

    fn trouble(&self) -> Option<String> {
        if self.is_usable() {
            return None;
        }
        let access = self.paths().into_iter().find_map(|path| path.access);
        if let Some(access) = access {
            return Some(format!(
                "its target reports {access} for it at present: see why on the target's machine"
            ));
        }
        let errors = self.paths().into_iter().filter_map(|path| path.error);
        let mut errors: Vec<String> = errors.collect();
        errors.dedup();
        (!errors.is_empty()).then(|| errors.join("; "))
    }

    fn describe(&self) -> String {
        let geometry = self.geometry();
        let size = Size(geometry.capacity_bytes());
        let urls: Vec<String> = self.hub.paths.iter().map(|path| path.url.to_string()).collect();
        format!("{} ({size}, {}-byte blocks)", urls.join(" and "), geometry.block_size)
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        let (hub, life) = (Arc::clone(&self.hub), Arc::clone(&self.life));
        Ok(Box::new(queue::DiskQueue::new(hub, life, reactor, parent)))
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Disk({}, {:?})", self.describe(), self.state())
    }
}

/// Checks what a disk is to be made of; gives the namespace's identifier.
fn check(urls: &[Url], options: &DiskOptions) -> Result<u32, Error> {
    let wrong = |text: String| Err(Error::Options(text));
    let Some(first) = urls.first() else {
        return wrong("a disk needs at least one address".to_owned());
    };
    if urls.len() > limits::PATHS {
        return wrong(format!("{} paths are more than the limit of {}", urls.len(), limits::PATHS));
    }
    let nsid = first.namespace.unwrap_or(1);
    for (index, url) in urls.iter().enumerate() {
        if url.subsystem.is_none() {
            return wrong(format!("{url} names no subsystem: append /NQN"));
        }
        if url.subsystem != first.subsystem {
            return wrong(format!("{first} and {url} are different subsystems, not one disk"));
        }
        if url.namespace.unwrap_or(1) != nsid {
            return wrong(format!("{first} and {url} are different namespaces, not one disk"));
        }
        if urls[..index].contains(url) {
            return wrong(format!("{url} is given twice"));
        }
    }
    if options.reconnect_delay.is_zero() {
        return wrong("a reconnect delay of 0 would try without a pause".to_owned());
    }
    Ok(nsid)
}

/// Returns when a disk of `paths` paths can be used: one is connected, and the others are too, or
/// failed, or take longer than is waited for. `wait`: how long to hope for the first one.
/// `is_decided`: it is known which of two namespaces is the right one.
fn wait_for_first(
    results: &Receiver<Result<(), Error>>,
    paths: usize,
    wait: Duration,
    is_decided: bool,
) -> Result<(), Error> {
    let begin = os::now();
    let mut connected: Option<Instant> = None;
    let mut error = None;
    let mut reports = 0;
    while reports < paths || (connected.is_none() && !wait.is_zero()) {
        let result = match connected {
            Some(since) => {
                let left = limits::OTHER_PATHS_TIME.saturating_sub(os::elapsed(since));
                os::recv_timeout(results, left)
            }
            None if wait.is_zero() => os::recv(results).map_err(|_| RecvTimeoutError::Disconnected),
            None => os::recv_timeout(results, wait.saturating_sub(os::elapsed(begin))),
        };
        reports += 1;
        match result {
            Ok(Ok(())) => {
                connected.get_or_insert_with(os::now);
            }
            Ok(Err(another @ (Error::Namespace(_) | Error::Twin(_)))) if !is_decided => {
                return Err(another);
            }
            // Time changes nothing about it.
            Ok(Err(wrong @ Error::Options(_))) => return Err(wrong),
            Ok(Err(failure)) => {
                error.get_or_insert(failure);
            }
            Err(_) => break,
        }
    }
    match (connected, error) {
        (Some(_), _) => Ok(()),
        (None, Some(error)) => Err(error),
        (None, None) => Err(Error::Lost("no path was connected in time".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused_in_words() {
        let refused = |urls: &[&str], options: &DiskOptions| {
            let urls: Vec<Url> = urls.iter().map(|url| url.parse().expect(url)).collect();
            check(&urls, options).expect_err("nonsense").to_string()
        };
        let usual = DiskOptions::default();
        assert!(refused(&[], &usual).contains("at least one"));
        assert!(refused(&["nvme+tcp://a"], &usual).contains("append /NQN"));
        let (a, b) = ("nvme+tcp://a/n", "nvme+tcp://b/n");
        assert!(refused(&[a, "nvme+tcp://b/m"], &usual).contains("different subsystems"));
        assert!(refused(&[a, "nvme+tcp://b/n?ns=2"], &usual).contains("different namespaces"));
        assert!(refused(&[a, b, a], &usual).contains("twice"));
        let options = DiskOptions { reconnect_delay: Duration::ZERO, ..usual };
        assert!(refused(&[a], &options).contains("reconnect delay"));
    }
}
