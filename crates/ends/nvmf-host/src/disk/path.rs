//! A path to the namespace, and its state. The path's [keeper](super::keeper), which connects the
//! path, sets the state. Queues and users read the state.
//!
//! ```text
//!  Connecting ---- connected ----> Live <---- connected ---- Reconnecting
//!      |                            |                          ^   |
//!      |                            +----------- lost ---------+   |
//!      +-------- given up (ctrl_loss_timeout) --> Dead <-----------+
//! ```

use super::options::DiskOptions;
use super::session::{Reach, Session};
use crate::controller::Controller;
use crate::error::Error;
use crate::limits;
use crate::url::Url;
use farblock_block::Namespace;
use farblock_reactor::os;
use farblock_wire::log::AnaState;
use farblock_wire::origin::ProcessName;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The state of a path; see the module documentation for a diagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathState {
    /// The path has not connected yet.
    Connecting,
    /// The path is connected.
    Live,
    /// The path is lost, and its keeper reconnects it.
    Reconnecting,
    /// The host has given up the path.
    Dead,
}

/// The current status of a path.
#[derive(Clone, Debug)]
pub struct PathStatus {
    /// The path's URL, as given.
    pub url: Url,
    /// The path's state.
    pub state: PathState,
    /// The time since the last change of `state`.
    pub since: Duration,
    /// The controller's address and identifier, if the path is live.
    pub controller: Option<(SocketAddr, u16)>,
    /// The number of I/O queues that the controller granted, one for each of the disk's queues; 0
    /// if the path is not live.
    pub queues: u16,
    /// The maximum number of commands in flight on each queue; 0 if the path is not live.
    pub queue_depth: u16,
    /// The namespace's access state (ANA) on this path; `None` if the path is not live.
    pub access: Option<AnaState>,
    /// Number of reconnects.
    pub reconnects: u64,
    /// Number of changes of the access state (ANA).
    pub access_changes: u64,
    /// Number of losses and failed attempts, by the word that [`Error::reason`] returns.
    pub failures: BTreeMap<&'static str, u64>,
    /// The reason of the last loss or failed attempt.
    pub error: Option<String>,
    /// The target's breaches of the protocol: their number, and a description of the last one.
    /// Counts breaches that follow the previous one within ten minutes. `None` ten minutes after
    /// the last breach.
    pub breaches: Option<(u64, String)>,
}

/// The limit of an operation's wait for a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WaitLimit {
    /// Without limit.
    Unlimited,
    /// Until this time.
    Until(Instant),
}

struct PathInner {
    state: PathState,
    since: Instant,
    /// The time since which the path has had no connections for the disk's queues; `None` while it
    /// has some. A reconnect that fails before it connects a queue does not change this time.
    lost_since: Option<Instant>,
    /// The time since which the namespace has been unreachable; `None` while it is reachable. A
    /// target that denies access makes the namespace unreachable, too.
    unusable_since: Option<Instant>,
    reconnects: u64,
    access_changes: u64,
    /// The number of failures by reason. There are few reasons, and their number is fixed.
    failures: BTreeMap<&'static str, u64>,
    error: Option<String>,
    session: Option<Arc<Session>>,
    /// The number of the target's breaches of the protocol, with the time and the description of
    /// the last one.
    breaches: Option<(u64, Instant, String)>,
    /// The controller of a new session that the disk does not use yet.
    candidate: Option<Controller>,
    /// Whether the keeper has compared the candidate with the controllers of all other paths (see
    /// [`twins`](super::twins)).
    is_compared: bool,
    /// The target process of the last session. The inner `None` means that the target does not
    /// report its process, the outer `None` that there was no session yet.
    process: Option<Option<ProcessName>>,
}

pub(super) struct Path {
    pub(super) url: Url,
    state: Mutex<PathInner>,
}

impl Path {
    pub(super) fn new(url: Url) -> Path {
        let now = os::now();
        let state = PathInner {
            state: PathState::Connecting,
            since: now,
            lost_since: Some(now),
            unusable_since: Some(now),
            reconnects: 0,
            access_changes: 0,
            failures: BTreeMap::new(),
            error: None,
            session: None,
            breaches: None,
            candidate: None,
            is_compared: false,
            process: None,
        };
        Path { url, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, PathInner> {
        // A panic cannot leave this state half-changed, so ignore poisoning.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the path is connected.
    pub(super) fn connected(&self, session: &Arc<Session>) {
        let mut state = self.lock();
        if state.state == PathState::Reconnecting {
            state.reconnects += 1;
        }
        state.state = PathState::Live;
        state.since = os::now();
        state.session = Some(Arc::clone(session));
        state.candidate = None;
    }

    /// Returns whether the next session may lead to another process than the previous session.
    /// Another process may serve another copy of the data.
    pub(super) fn may_lead_elsewhere(&self, process: Option<ProcessName>) -> bool {
        let before = self.lock().process.replace(process);
        before.is_some_and(|before| before.is_none() || before != process)
    }

    /// Whether the path is connected and the target allows access to the namespace.
    pub(super) fn is_usable(&self) -> bool {
        let state = self.lock();
        let usable = |session: &Arc<Session>| session.reach() < Reach::Blocked;
        state.state == PathState::Live && state.session.as_ref().is_some_and(usable)
    }

    /// Sets the controller that the disk is about to use, or clears it.
    pub(super) fn propose(&self, candidate: Option<&Controller>) {
        let mut state = self.lock();
        state.candidate = candidate.cloned();
        state.is_compared = false;
    }

    /// Records that the candidate contradicts no other path's controller.
    pub(super) fn compared(&self) {
        self.lock().is_compared = true;
    }

    /// Returns the controller with which another path must compare its candidate, and the
    /// namespace's size if the disk already uses this controller. If both paths have candidates,
    /// the path with the higher number compares; `is_before`: this path has the lower number.
    pub(super) fn settled_controller(&self, is_before: bool) -> Option<(Controller, Option<u64>)> {
        let state = self.lock();
        if let Some(session) = &state.session {
            let bytes = session.namespace.geometry().capacity_bytes();
            return Some((session.controller.clone(), Some(bytes)));
        }
        let candidate = state.candidate.clone().filter(|_| is_before || state.is_compared)?;
        Some((candidate, None))
    }

    /// The path's controller, if any. The disk may not use that controller yet.
    pub(super) fn known_controller(&self) -> Option<Controller> {
        let state = self.lock();
        let of_session = state.session.as_ref().map(|session| &session.controller);
        of_session.or(state.candidate.as_ref()).cloned()
    }

    /// The path's controller; `None` if the path is not connected.
    pub(super) fn controller(&self) -> Option<Controller> {
        self.lock().session.as_ref().map(|session| session.controller.clone())
    }

    /// Records that every queue of the disk has a connection on this path.
    pub(super) fn served(&self) {
        let mut state = self.lock();
        state.lost_since = None;
        state.note_reach();
    }

    /// Records a change of the session's access state.
    pub(super) fn access_changed(&self) {
        let mut state = self.lock();
        state.access_changes += 1;
        state.note_reach();
    }

    /// Records the loss of the connection.
    pub(super) fn lost(&self, reason: &str) {
        let mut state = self.lock();
        let now = os::now();
        state.state = PathState::Reconnecting;
        state.since = now;
        state.session = None;
        state.count("lost");
        state.error = Some(reason.to_owned());
        state.lost_since.get_or_insert(now);
        state.unusable_since.get_or_insert(now);
    }

    /// Records a failed attempt to connect.
    pub(super) fn failed(&self, error: &Error) {
        let mut state = self.lock();
        state.count(error.reason());
        state.error = Some(error.to_string());
    }

    /// Records a breach of the protocol by the target. Returns the number of breaches so far.
    pub(super) fn breached(&self, how: &str) -> u64 {
        let mut state = self.lock();
        let count = state.recent_breaches().map_or(1, |(count, _)| count + 1);
        state.breaches = Some((count, os::now(), how.to_owned()));
        count
    }

    pub(super) fn give_up(&self) {
        let mut state = self.lock();
        state.state = PathState::Dead;
        state.since = os::now();
    }

    pub(super) fn state(&self) -> PathState {
        self.lock().state
    }

    /// The time at which the host gives up the path; `None` if a connection serves the disk's
    /// queues, or if the host never gives up a path.
    pub(super) fn gives_up_at(&self, options: &DiskOptions) -> Option<Instant> {
        self.lock().lost_since?.checked_add(options.ctrl_loss_timeout?)
    }

    /// Returns the limit of an operation's wait for this path.
    pub(super) fn wait_limit(&self, options: &DiskOptions) -> WaitLimit {
        let state = self.lock();
        let reach = state.session.as_ref().map(|session| session.reach());
        if state.state == PathState::Dead || reach == Some(Reach::Gone) {
            return WaitLimit::Until(state.since);
        }
        let Some(since) = state.unusable_since else { return WaitLimit::Unlimited };
        let is_denied = state.lost_since.is_none() && reach == Some(Reach::Blocked);
        let limits = [
            options.wait_limit().and_then(|limit| since.checked_add(limit)),
            options
                .denied_timeout
                .filter(|_| is_denied)
                .and_then(|limit| since.max(state.since).checked_add(limit)),
        ];
        let Some(at) = limits.into_iter().flatten().min() else { return WaitLimit::Unlimited };
        if state.lost_since.is_some() && reach.is_some_and(|reach| reach < Reach::Blocked) {
            // The path is connected but has no I/O queues yet: allow it at least the connect
            // timeout.
            return WaitLimit::Until(at.max(state.since + options.connection.connect_timeout));
        }
        WaitLimit::Until(at)
    }

    pub(super) fn status(&self) -> PathStatus {
        let state = self.lock();
        let session = state.session.as_ref();
        PathStatus {
            url: self.url.clone(),
            state: state.state,
            since: os::elapsed(state.since),
            controller: session
                .map(|session| (session.controller.address(), session.controller.info().cntlid)),
            queues: session.map_or(0, |session| session.controller.info().queues),
            queue_depth: session.map_or(0, |session| session.queue_depth()),
            access: session.map(|session| session.access()),
            reconnects: state.reconnects,
            access_changes: state.access_changes,
            failures: state.failures.clone(),
            error: state.error.clone(),
            breaches: state.recent_breaches(),
        }
    }
}

impl PathInner {
    fn recent_breaches(&self) -> Option<(u64, String)> {
        let (count, last, how) = self.breaches.as_ref()?;
        (os::elapsed(*last) < limits::BREACH_PERIOD).then(|| (*count, how.clone()))
    }

    fn count(&mut self, reason: &'static str) {
        *self.failures.entry(reason).or_default() += 1;
    }

    fn note_reach(&mut self) {
        let usable = self.session.as_ref().is_some_and(|session| session.reach() < Reach::Blocked);
        match usable && self.lost_since.is_none() {
            true => self.unusable_since = None,
            false => {
                self.unusable_since.get_or_insert_with(os::now);
            }
        }
    }
}
