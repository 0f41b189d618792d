//! A disk: a remote namespace that outlives its connections.
//!
//! [`Disk`] implements [`Namespace`] over one or several paths. It keeps every operation until a
//! controller has answered it. When a path is lost, the disk uses another path, or waits until a
//! path has reconnected.
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
//! // Works across network outages.
//! blocks.read(0, &mut block)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Contract
//!
//! **Every operation completes once**, with the controller's result or with
//! [`BlockError::Disconnected`]. The options `fast_io_fail_timeout` and `ctrl_loss_timeout` set a
//! time limit for that error. The disk reports the error if no path was usable for this time. It
//! also reports the error if, for this time, every usable path refused the operation or was lost
//! with it. `denied_timeout` limits the wait for targets that answer but deny access.
//!
//! **No acknowledged write is lost, and no write takes effect late.** The disk repeats operations
//! that a lost connection left unanswered. It repeats a read at once. It repeats a write only when
//! the target can no longer execute the first attempt, which could otherwise undo later writes. The
//! delay depends on the target:
//!
//! * A target with Cross-Controller Reset (farblock's) closes the lost controller on request
//!   through another controller. It confirms that all commands of the lost controller have ended.
//!   This takes milliseconds.
//! * A farblock target with the same addresses and the same boot of its machine may not know the
//!   lost controller. The previous target process, which served that controller, has then ended, so
//!   the disk repeats the write at once.
//! * For other targets (at present the Linux kernel's and SPDK), or if neither case applies, the
//!   disk holds the write until, by the specification, the lost controller must have stopped. This
//!   takes three keep alive timeouts (two without traffic-based keep alive) plus the time that the
//!   controller reports as CQT. This is only as safe as the target: Linux and SPDK may later
//!   execute a command that is stuck in their storage. If this machine's clock jumps ahead, the
//!   wait is too short.
//! * The option `quiesce` sets the length of this wait. If it is too short, a stuck command can
//!   undo later writes that the target acknowledged and flushed.
//!
//! For some unfinished writes no user waits any more: the disk reported them as failed, or their
//! queue or process has ended. The disk sends no other writes until the target can no longer
//! execute these. Reads never wait. To start a new disk after a process died, first stop the
//! controllers that the process left ([`OrphanedControllers`]).
//!
//! **The namespace determines durability.** A lost connection does not lose a completed write. But
//! if the target's machine has a volatile cache and crashes, it loses unflushed data. A farblock
//! target reports that its machine rebooted. One flush then fails if the target acknowledged writes
//! since the last flush, or may have acknowledged writes of a predecessor process. If a new path
//! reports a different boot than the other paths, the disk first probes the other paths: a machine
//! that does not answer may have rebooted. Other targets do not report reboots, so after a crash
//! their flush succeeds although data is lost.
//!
//! **The name of a target does not prove that its data is the same.** A path may reconnect to
//! another process, or to a target that does not identify its process. The disk then reports
//! [`Change::Contents`](farblock_block::Change::Contents) before it uses the path.
//!
//! **Opening a queue never blocks**, so code on an event loop can open one. Operations wait until
//! the queue has a connection.
//!
//! **The namespace may grow and shrink**; [`Disk::changes`] reports it. A namespace with another
//! identity or block size is not the same disk, and the disk sends no operations to it. The disk
//! closes the path, sets [`PathStatus::error`] to the cause, and retries until the path leads to
//! the right namespace. A process that continues the disk of a dead process keeps this identity
//! ([`Disk::succeed`]).
//!
//! **A user that once saw no volatile cache need not flush.** If a later target has a volatile
//! cache, the disk makes every write durable (FUA).

mod cache;
mod fencing;
mod hub;
mod keeper;
mod latency;
mod nesting;
mod options;
mod orphans;
mod path;
mod paths;
mod queue;
mod refusal;
mod session;
mod table;
mod twins;

pub use crate::known::KnownNamespace;
pub use farblock_wire::origin::ControllerOrigin;
pub use farblock_wire::reset::CrossControllerReset;
pub use fencing::{ControllerLife, Predecessor, Record};
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
use farblock_block::{Availability, BlockError, Changes, Geometry, Namespace, Part, Queue};
use farblock_reactor::{Reactor, TaskId, os};
use hub::Hub;
use keeper::Keeper;
use path::Path;
use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use twins::Seen;

/// A remote namespace that outlives its connections; see the [module](self). Clones refer to the
/// same disk. The disk closes when its last clone and queue are dropped.
#[derive(Clone)]
pub struct Disk {
    hub: Arc<Hub>,
    life: Arc<Life>,
}

/// The state of a whole disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskState {
    /// Every path is live.
    Live,
    /// At least one path is live, but not every path.
    Degraded,
    /// No path is live; operations wait.
    Waiting,
    /// The host gave up every path; operations fail.
    Dead,
}

/// The keepers of a disk: the futures that keep its paths connected. Dropping this value closes the
/// disk and waits until the keepers have ended.
struct Life {
    hub: Arc<Hub>,
    /// Receivers that resolve when the keepers have ended.
    ended: Mutex<Vec<control::Receiver<()>>>,
    /// The keepers' control loop. It must be dropped last.
    control: Arc<Control>,
}

impl Drop for Life {
    fn drop(&mut self) {
        self.hub.stop();
        // Do not wait if a listener of changes drops the last reference: a keeper may be waiting
        // for that listener.
        if control::may_wait() {
            let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
            for ended in ended.drain(..) {
                let _ = ended.wait();
            }
        }
    }
}

impl Disk {
    /// Connects a disk. All URLs must lead to the same namespace. One connected path is enough; the
    /// disk continues to try the others.
    ///
    /// # Errors
    /// Fails if no path connects, if two paths lead to different namespaces, or if URLs or options
    /// are invalid.
    pub fn connect(urls: &[Url], options: &DiskOptions) -> Result<Disk, Error> {
        Disk::connect_with(urls, options, |_| {})
    }

    /// Connects a disk like [`Disk::connect`], and continues the disk of a process that died. The
    /// disk uses only the namespace of that process. It writes nothing until all commands of the
    /// process's controllers have ended, as for controllers that the disk loses itself.
    ///
    /// `record` stores the state that a successor of this process needs.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Disk::connect`], and if `record` fails. A path to another
    /// namespace than the predecessor's counts as not connected.
    pub fn succeed(
        urls: &[Url],
        options: &DiskOptions,
        mut predecessor: Predecessor,
        record: impl Record + 'static,
    ) -> Result<Disk, Error> {
        Disk::connect_with(urls, options, |hub| {
            // The target closes controllers only through a controller of their own subsystem.
            predecessor.controllers.retain(|life| life.url.subsystem == urls[0].subsystem);
            hub.succeed(predecessor, Box::new(record));
        })
    }

    /// Connects a disk like [`Disk::connect`]. `record` stores the disk's controllers. If this
    /// process is killed, another process must close them before it writes
    /// ([`OrphanedControllers`], [`Disk::succeed`]). A disk that closes without operations in
    /// flight leaves no controllers in the record.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Disk::connect`], and if `record` fails.
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

    /// Connects another path to this disk's namespace and adds it, while the disk is in use.
    ///
    /// # Errors
    /// Fails if the host cannot connect to the address, or if the address leads to another
    /// namespace or conflicts with the existing paths. It also fails if the disk has the maximum
    /// number of paths. A call that fails does not add the path.
    pub fn add_path(&self, url: &Url) -> Result<(), Error> {
        let mut urls: Vec<Url> = self.hub.paths.iter().map(|path| path.url.clone()).collect();
        urls.push(url.clone());
        let nsid = check(&urls, &self.hub.options)?;
        let wrong = |text: String| Err(Error::Options(text));
        match self.hub.known() {
            Some(known) if !known.is_named() => {
                return wrong(format!(
                    "namespace {nsid} has no UUID, NGUID or EUI-64, so the host cannot tell \
                     whether {url} leads to the same namespace"
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
            return wrong(format!("a disk has at most {} paths", limits::PATHS));
        };
        let (first, connected) = channel();
        self.start_keeper(index, first);
        // The check has just reached the target over this path. If the path has failed since, the
        // keeper reconnects it, so ignore the result.
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

    /// The state of the whole disk.
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

    /// One sentence: the kind of operation that the target refuses although the disk is connected,
    /// and the reason. For example, another host may hold a reservation. `None` once an operation
    /// of the same kind has succeeded.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        let (writes, error) = self.hub.refusal.held()?;
        let what = if writes { "writes" } else { "reads" };
        Some(format!("the target refuses {what}: {error}"))
    }

    /// Whether the target allows access to the namespace through a connected path.
    fn is_usable(&self) -> bool {
        self.hub.paths.iter().any(Path::is_usable)
    }

    /// The status of each path, in the order of the URLs.
    #[must_use]
    pub fn paths(&self) -> Vec<PathStatus> {
        self.hub.paths.iter().map(Path::status).collect()
    }

    /// Reauthenticates this host with the controllers of all connected paths, with the current
    /// secret in the key file. Returns the result for each path. Other paths use that secret when
    /// they connect.
    #[must_use]
    pub fn authenticate(&self) -> Vec<(Url, Result<(), Error>)> {
        let live = self.hub.paths.iter().filter_map(|path| Some((path, path.controller()?)));
        live.map(|(path, controller)| (path.url.clone(), controller.authenticate())).collect()
    }

    /// Switches latency measurement on or off for operations submitted from now on. The measurement
    /// costs one clock read per batch of submissions and one per batch of completions.
    pub fn measure_latency(&self, measure: bool) {
        self.hub.meters.measure(measure);
    }

    /// Whether the disk measures latencies.
    #[must_use]
    pub fn measures_latency(&self) -> bool {
        self.hub.meters.measures()
    }

    /// The latencies of the measured operations.
    #[must_use]
    pub fn latency(&self) -> DiskLatency {
        self.hub.meters.sum()
    }

    /// The changes of the disk, for listeners. If a path connects or is lost, the disk's
    /// availability changes.
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
            // Paths are connected, but the target denies access (ANA).
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
                "the target reports the access state {access} at present: look for the cause on \
                 the target's machine"
            ));
        }
        let errors = self.paths().into_iter().filter_map(|path| path.error);
        let mut errors: Vec<String> = errors.collect();
        errors.dedup();
        (!errors.is_empty()).then(|| errors.join("; "))
    }

    fn parts(&self) -> Vec<Arc<dyn Part>> {
        vec![Arc::clone(&self.hub) as Arc<dyn Part>]
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

/// Checks the URLs and options of a disk. Returns the namespace identifier.
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
        return wrong(
            "a reconnect delay of 0 would retry without a pause: use 1 ms or more".to_owned(),
        );
    }
    Ok(nsid)
}

/// Waits until a disk of `paths` paths is usable: one path is connected, and each other path is
/// connected, has failed, or has used up its time. `wait` limits the retries until the first path
/// connects. `is_decided` says whether the disk knows the right namespace.
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
            // Invalid options stay invalid, so do not wait for a retry.
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
        (None, None) => Err(Error::Lost("no path connected in time".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_urls_and_options_are_refused() {
        let refused = |urls: &[&str], options: &DiskOptions| {
            let urls: Vec<Url> = urls.iter().map(|url| url.parse().expect(url)).collect();
            check(&urls, options).expect_err("invalid options").to_string()
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
