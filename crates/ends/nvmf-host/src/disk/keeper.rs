//! The keeper of one path, on the control loop. It connects and reconnects the path, connects an
//! I/O queue for each of the disk's queues, and waits until the commands of lost sessions have
//! ended.
//!
//! To bring up a controller, the host exchanges about a dozen messages, each of which may take
//! seconds. So the keeper does not run on a user's event loop.

use super::cache::{Answer, Meeting};
use super::fencing::is_over;
use super::hub::{Arrival, Hub, Mailbox};
use super::path::{Path, PathState};
use super::session::{Inbox, Reach, Session};
use super::twins::{self, Seen};
use crate::control::{self, Control, Local, all, blocking, unless};
use crate::controller::Controller;
use crate::error::Error;
use crate::limits;
use crate::namespace::RemoteNamespace;
use crate::options::Options;
use crate::url::Url;
use farblock_block::{Change, Namespace};
use farblock_proto::host::{ConnectError, InfoError};
use farblock_reactor::os;
use farblock_wire::identify::Cns;
use farblock_wire::origin::ControllerOrigin;
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

pub(super) struct Keeper {
    hub: Arc<Hub>,
    local: Local,
    control: Arc<Control>,
    index: usize,
    /// Reports the result of the first attempt. With a connect wait, it reports each attempt up to
    /// the first success.
    first: Option<Sender<Result<(), Error>>>,
    /// Lost sessions that queues may still refer to. The keeper holds them so that queues never
    /// drop the last reference: the drop would block their event loop until the controller has
    /// ended.
    retired: Vec<Arc<Session>>,
    /// The socket address of the controller in the last session. The next attempt starts with it.
    worked: Option<SocketAddr>,
    log: Log,
    breaches: Breaches,
}

/// The log state of the path. The log has one line when the path is lost and one line when it has
/// reconnected. Between the two, it has only new errors.
#[derive(Default)]
struct Log {
    lost_at: Option<Instant>,
    /// Whether the log lines report repeated breaches of the protocol by the target instead of a
    /// loss.
    is_repeated: bool,
    failure: Option<String>,
}

impl Log {
    fn connected(&mut self, url: &Url) {
        let Log { lost_at, is_repeated, .. } = std::mem::take(self);
        if let Some(at) = lost_at.filter(|_| !is_repeated) {
            let seconds = os::elapsed(at).as_secs_f64();
            tracing::warn!(path = %url, "the path reconnected after {seconds:.1} s");
        }
    }

    /// Logs a loss. `breaches` counts the target's breaches of the protocol; 0 if the loss has
    /// another reason.
    fn lost(&mut self, url: &Url, reason: &str, breaches: u64) {
        let is_repeated = breaches > 1;
        match is_repeated {
            false => {
                tracing::warn!(
                    path = %url,
                    "the path is lost, and the host reconnects it: {reason}"
                );
            }
            true if is_told(breaches) => tracing::warn!(
                path = %url,
                "the target has broken the protocol {breaches} times, and the host reconnects each \
                 time: {reason}"
            ),
            true => tracing::info!(path = %url, "the path is lost: {reason}"),
        }
        *self = Log { lost_at: Some(os::now()), is_repeated, failure: None };
    }

    fn failed(&mut self, url: &Url, error: &Error) {
        let text = error.to_string();
        let is_known = self.failure.as_ref() == Some(&text);
        if is_known || (self.lost_at.is_some() && is_absence(error)) {
            tracing::info!(path = %url, "not connected: {text}");
        } else {
            tracing::warn!(path = %url, "not connected: {text}");
            self.failure = Some(text);
        }
    }
}

/// Whether to log a breach with this count: 2, 10, 100, 1000 and so on.
fn is_told(count: u64) -> bool {
    count == 2 || (count >= 10 && 10_u64.pow(count.ilog10()) == count)
}

/// Counts equal breaches of the protocol in a row, without a successful operation between them.
/// The host gives up the path after some breaches (`breaches_max`).
#[derive(Default)]
struct Breaches {
    text: String,
    count: u32,
}

impl Breaches {
    fn note(&mut self, text: &str, has_progressed: bool) {
        if has_progressed || self.text != text {
            *self = Breaches { text: text.to_owned(), count: 0 };
        }
        self.count += 1;
    }
}

/// Whether this error means that the target does not answer, which is expected on a lost path.
fn is_absence(error: &Error) -> bool {
    use ConnectError::{Closed, ControllerBusy, Io, Refused, TimedOut, Unreachable};
    match error {
        Error::Lost(_) => true,
        Error::Connect { reason, .. } => matches!(
            reason,
            Refused | Unreachable(_) | TimedOut { .. } | Closed { .. } | Io(_) | ControllerBusy
        ),
        _ => false,
    }
}

/// Whether this error is a breach of the protocol, which would occur again at the next attempt.
fn is_breach(error: &Error) -> bool {
    use InfoError::{FormatOutOfRange, NotAscending, TooShort};
    match error {
        // Other invalid answers may be temporary: a missing namespace may return.
        Error::Answer { reason, .. } => {
            matches!(reason, TooShort | FormatOutOfRange | NotAscending)
        }
        Error::Connect { reason, .. } => matches!(reason, ConnectError::Protocol(_)),
        _ => false,
    }
}

/// The disk's queues for which this session has connected an I/O queue.
#[derive(Default)]
struct Served {
    done: HashSet<u64>,
    /// Set if the controller had no I/O queue left: the number of the disk's queues at that time.
    refused_at: Option<usize>,
}

impl Keeper {
    pub(super) fn new(
        hub: Arc<Hub>,
        local: Local,
        control: Arc<Control>,
        index: usize,
        first: Sender<Result<(), Error>>,
    ) -> Keeper {
        let (retired, worked, log, breaches) = Default::default();
        Keeper { hub, local, control, index, first: Some(first), retired, worked, log, breaches }
    }

    /// Runs until the disk is closed.
    pub(super) async fn run(mut self) {
        let mut pause = Duration::ZERO;
        while !self.hub.is_stopping() && self.path().state() != PathState::Dead {
            self.pause(spread(pause)).await;
            let mut longest = self.hub.options.reconnect_delay;
            match self.establish().await {
                Ok(session) => {
                    self.log.connected(&self.hub.paths[self.index].url);
                    self.report(Ok(()));
                    self.worked = Some(session.controller.address());
                    let begin = os::now();
                    self.keep(&session).await;
                    self.lose(session).await;
                    if os::elapsed(begin) >= limits::STEADY && !self.is_hopeless() {
                        pause = Duration::ZERO;
                        continue;
                    }
                }
                Err(_) if self.hub.is_stopping() => break,
                Err(error) => {
                    // The target is alive and will soon release the previous controller, so pause
                    // only briefly.
                    if matches!(&error, Error::Connect { reason: ConnectError::ControllerBusy, .. })
                    {
                        longest = longest.min(limits::BUSY_PAUSE);
                    }
                    self.handle_failure(error);
                }
            }
            if (self.is_late() || self.is_hopeless()) && self.path().state() != PathState::Dead {
                self.give_up().await;
            }
            pause = (pause * 2).max(limits::RECONNECT_PAUSE);
            pause = pause.min(longest);
        }
        // Wake the receiver, because no result will follow.
        self.first = None;
        while !self.hub.is_stopping() {
            let notified = self.hub.keepers.notified();
            self.let_go();
            self.hub.keepers.wait(&self.local, notified, limits::KEEPER_PERIOD).await;
        }
        self.end().await;
    }

    /// Shuts down the controllers that no other code owns, and waits until they have ended.
    async fn end(mut self) {
        for session in std::mem::take(&mut self.retired) {
            let association = Arc::downgrade(session.controller.association());
            let ended = session.controller.association().take_ended();
            drop(session);
            if let (Some(ended), 0) = (ended, association.strong_count()) {
                ended.await;
            }
        }
    }

    fn path(&self) -> &Path {
        &self.hub.paths[self.index]
    }

    fn report(&mut self, result: Result<(), Error>) {
        // With a connect wait, keep reporting until an attempt succeeds.
        let is_last = result.is_ok() || self.hub.options.connect_wait.is_zero();
        if let Some(first) = &self.first {
            let _ = first.send(result);
        }
        self.first.take_if(|_| is_last);
    }

    /// Waits until the next attempt is due, the path must be given up, or the disk is closed.
    async fn pause(&mut self, pause: Duration) {
        let until = os::now() + pause;
        loop {
            let notified = self.hub.keepers.notified();
            self.let_go();
            let left = until.saturating_duration_since(os::now());
            if left.is_zero() || self.is_late() || self.hub.is_stopping() {
                return;
            }
            // Wait in steps, because the time to give up the path may come earlier.
            let left = left.min(limits::KEEPER_PERIOD);
            self.hub.keepers.wait(&self.local, notified, left).await;
        }
    }

    fn handle_failure(&mut self, error: Error) {
        self.log.failed(&self.hub.paths[self.index].url, &error);
        if is_breach(&error) {
            let how = error.to_string();
            self.breaches.note(&how, self.hub.take_progress());
            self.path().breached(&how);
        }
        // Retry even if the path leads to another namespace, since the right namespace may return.
        self.path().failed(&error);
        self.report(Err(error));
    }

    /// Whether the time to reconnect the path has run out.
    fn is_late(&self) -> bool {
        let now = os::now();
        self.path().gives_up_at(&self.hub.options).is_some_and(|at| at <= now)
    }

    /// Whether the target breaks the protocol in the same way each time.
    fn is_hopeless(&self) -> bool {
        self.hub.options.breaches_max.is_some_and(|most| self.breaches.count >= most)
    }

    async fn give_up(&self) {
        let why = self.path().status().error.unwrap_or_default();
        tracing::error!(path = %self.path().url, "the host gives up the path: {why}");
        self.path().give_up();
        self.hub.ring_queues();
        self.tell(Change::Availability).await;
    }

    async fn tell(&self, change: Change) {
        control::tell(&self.hub.changes, change).await;
    }

    /// Runs a function that may store a record, which may take as long as file I/O.
    async fn recorded<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Hub) -> T + Send + 'static,
    ) -> Result<T, Error> {
        if !self.hub.journal.is_kept() {
            return Ok(act(&self.hub));
        }
        let hub = Arc::clone(&self.hub);
        Ok(blocking(move || act(&hub)).await?)
    }

    async fn establish(&mut self) -> Result<Arc<Session>, Error> {
        let session = self.bring_up().await;
        if session.is_err() {
            self.path().propose(None);
        }
        session
    }

    async fn bring_up(&mut self) -> Result<Arc<Session>, Error> {
        let options = self.options();
        let url = &self.path().url;
        let first = self.worked;
        let connect = Controller::connect_on(&self.local, &self.control, url, &options, first);
        let closed = self.hub.keepers.until(|| self.hub.is_stopping());
        let connected = unless(closed, connect).await;
        let controller =
            connected.unwrap_or_else(|| Err(Error::Lost("the disk is closed".into())))?;
        let shared = controller.association().shared();
        let inbox = Arc::new(Inbox::default());
        let (keepers, for_watcher) = (Arc::clone(&self.hub.keepers), Arc::clone(&inbox));
        shared.watch(Box::new(move |notice| {
            for_watcher.put(notice);
            keepers.notify();
        }));
        let namespace = RemoteNamespace::find(controller.association(), self.hub.nsid).await?;
        let (known, geometry) = (namespace.known().clone(), namespace.geometry());
        self.recorded(move |hub| hub.agree(&known)).await??;
        self.path().propose(Some(&controller));
        self.compare(&controller, geometry.capacity_bytes()).await?;
        if self.hub.adopt(namespace.known(), geometry) {
            self.tell(Change::Geometry).await;
        }
        self.learn_contents(&namespace).await?;
        let access = controller.association().access(self.hub.nsid).await?;
        let url = &self.path().url;
        let quiesce = self.quiesce_time(&controller)?;
        let session = Session::new(self.index, url, controller, namespace, inbox, access, quiesce);
        let session = Arc::new(session);
        self.meet(&session).await?;
        if self.path().may_lead_elsewhere(session.controller.info().process) {
            self.tell(Change::Contents).await;
        }
        let life = session.fencing.life.clone();
        let put_down = move |hub: &Hub| {
            hub.journal.add(&life)?;
            hub.cache.published(&life);
            Ok::<_, Error>(())
        };
        self.recorded(put_down).await??;
        self.hub.publish(&session);
        self.tell(Change::Availability).await;
        Ok(session)
    }

    /// Refuses a controller that cannot belong to the same subsystem as the controllers of the
    /// other paths (see [`twins`](super::twins)).
    async fn compare(&self, controller: &Controller, bytes: u64) -> Result<(), Error> {
        let new = Seen::of(controller, Some(bytes));
        let mut ended = Vec::new();
        loop {
            let others = self.hub.paths.iter().enumerate().filter_map(|(index, path)| {
                let is_before = index < self.index;
                path.settled_controller(is_before).filter(|_| index != self.index)
            });
            let mut doubts = others.filter_map(|(other, bytes)| {
                let why = twins::contradiction(&Seen::of(&other, bytes), &new)?;
                let life = (other.address(), other.info().cntlid);
                (!ended.contains(&life)).then_some((other, life, why))
            });
            let Some((other, life, why)) = doubts.next() else {
                // Do not await between the check and this call. Otherwise two paths that connect at
                // the same time might each miss the other's controller.
                self.path().compared();
                return Ok(());
            };
            let asked = other.association().identify(Cns::CONTROLLER, 0);
            match self.local.until(os::now() + self.options().connect_timeout, asked).await {
                Some(Ok(_) | Err(Error::Command { .. })) => return Err(Error::Twin(why)),
                // This target process has ended, and the connection to it has not reported the loss
                // yet.
                Some(Err(Error::Lost(_))) => ended.push(life),
                Some(Err(error)) => return Err(error),
                None => {
                    let text = format!("the target of another path, {}, does not answer", life.0);
                    return Err(Error::Lost(text.into()));
                }
            }
        }
    }

    /// Stores the UUIDs of the remote namespaces that make up the disk. Refuses the path if one of
    /// them contains this disk: a read would read itself forever.
    async fn learn_contents(&self, namespace: &RemoteNamespace) -> Result<(), Error> {
        if self.hub.nesting.consists_of(namespace.contents()) {
            self.tell(Change::Parts).await;
        }
        self.hub.nesting.check()
    }

    /// Finds out whether the target has lost acknowledged writes. The disk uses the session only
    /// after this.
    async fn meet(&self, session: &Session) -> Result<(), Error> {
        let mut answers = Vec::new();
        loop {
            let (index, life, known) = (self.index, session.fencing.life.clone(), answers.clone());
            let meet = move |hub: &Hub| {
                hub.cache.connected(index, &life, &known, |mark| hub.journal.add(mark))
            };
            match self.recorded(meet).await?? {
                Meeting::Well => return Ok(()),
                Meeting::Lost => {
                    self.tell(Change::Loss).await;
                    return Ok(());
                }
                Meeting::Doubt(paths) => answers.extend(self.ask(&paths, session).await?),
            }
        }
    }

    /// Probes the controllers of other paths for a new session.
    async fn ask(&self, paths: &[usize], for_session: &Session) -> Result<Vec<Answer>, Error> {
        let is_over = || for_session.is_lost() || self.hub.is_stopping();
        let asked = all(paths.iter().map(|path| self.ask_one(*path)));
        let in_time = self.local.until(os::now() + self.options().connect_timeout, asked);
        let answers = unless(self.hub.keepers.until(is_over), in_time).await;
        let lost = |words: &str| Error::Lost(words.into());
        let answers = answers.ok_or_else(|| lost("the path failed before its first use"))?;
        let answers = answers.ok_or_else(|| {
            lost("its machine may have restarted, and the probe of another path had no answer")
        })?;
        answers.into_iter().collect()
    }

    /// Probes one path. If the path is not connected, the answer has no boot.
    async fn ask_one(&self, path: usize) -> Result<Answer, Error> {
        let connections = self.hub.cache.connections();
        let nobody = Answer { path, boot: None, connections };
        let controller = self.hub.paths.get(path).and_then(Path::known_controller);
        let Some(controller) = controller else { return Ok(nobody) };
        let origin = controller.info().origin.filter(ControllerOrigin::knows_boot);
        match controller.association().identify(Cns::CONTROLLER, 0).await {
            Ok(_) | Err(Error::Command { .. }) => {
                Ok(Answer { boot: origin.map(|origin| origin.boot), ..nobody })
            }
            Err(Error::Lost(_)) => Ok(nobody),
            Err(error) => Err(error),
        }
    }

    /// Returns the time for which a controller may execute commands after its loss, if no other
    /// controller closes it.
    fn quiesce_time(&self, controller: &Controller) -> Result<Duration, Error> {
        let options = &self.hub.options;
        if let Some(chosen) = options.quiesce {
            return Ok(chosen);
        }
        let info = controller.info();
        match info.time_to_end(options.connection.keep_alive) {
            Some(time) => Ok(time),
            None if info.life.is_some() => Ok(Duration::MAX),
            None => Err(Error::Options(
                "this target cannot close a lost controller on request (it has no Cross-Controller \
                 Reset), and without keep alives it never closes one: choose a keep alive \
                 timeout, or set how long a lost write may still take there (quiesce)"
                    .to_owned(),
            )),
        }
    }

    /// The options of one attempt. An attempt must not take longer than the time until the path is
    /// given up.
    fn options(&self) -> Options {
        let mut options = self.hub.options.connection.clone();
        if self.hub.paths.len() > 1 {
            // Set the default for disks with several paths here, too, since this disk may have had
            // only one path at first.
            options.path_timeout.get_or_insert(limits::PATH_TIMEOUT);
        }
        if let Some(at) = self.path().gives_up_at(&self.hub.options) {
            let left = at.saturating_duration_since(os::now());
            options.connect_timeout =
                options.connect_timeout.min(left).max(limits::CONNECT_TIMEOUT_MIN);
        }
        options
    }

    /// Maintains a session until it is lost or the disk is closed.
    async fn keep(&mut self, session: &Arc<Session>) {
        let mut served = Served::default();
        let mut is_served = false;
        let mut pause = limits::FINISH_PAUSE;
        loop {
            let notified = self.hub.keepers.notified();
            if self.hub.is_stopping() || session.is_lost() {
                return;
            }
            self.let_go();
            self.forget_told().await;
            let (changed, access) = session.inbox.take();
            if changed {
                self.handle_change(session).await;
            }
            if let Err(error) = self.hub.nesting.check() {
                session.abort(&error.to_string());
                return;
            }
            if access || changed || session.reach() == Reach::Blocked {
                self.read_access(session).await;
            }
            let has_served = self.serve_queues(session, &mut served).await;
            if has_served && !std::mem::replace(&mut is_served, true) {
                self.path().served();
                self.hub.ring_queues();
            }
            let period = if !self.finish_lost(session).await {
                pause = (pause * 2).min(limits::FINISH_PAUSE_MAX);
                pause
            } else if session.reach() == Reach::Blocked {
                limits::ACCESS_PERIOD
            } else {
                pause = limits::FINISH_PAUSE;
                limits::KEEPER_PERIOD
            };
            self.hub.keepers.wait(&self.local, notified, period).await;
        }
    }

    /// Removes the records of losses that the disk has reported to its users, so that a successor
    /// does not report them again.
    async fn forget_told(&self) {
        if self.hub.cache.has_told() {
            let forget = |hub: &Hub| {
                hub.cache.take_told().iter().for_each(|mark| hub.journal.remove(mark));
            };
            // If this fails, a successor only reports these losses again.
            let _ = self.recorded(forget).await;
        }
    }

    async fn handle_change(&self, session: &Session) {
        let geometry = session.namespace.geometry();
        if geometry.blocks == 0 {
            // The target removed or replaced the namespace; the next connection shows which.
            session.abort("the target removed or replaced the namespace");
            return;
        }
        if self.hub.resized(geometry) {
            self.tell(Change::Geometry).await;
        }
        if self.hub.nesting.consists_of(session.namespace.contents()) {
            self.tell(Change::Parts).await;
        }
    }

    async fn read_access(&self, session: &Session) {
        let access = match session.controller.association().access(self.hub.nsid).await {
            Ok(access) => access,
            Err(error) => {
                tracing::warn!(path = %self.path().url, "access state unknown: {error}");
                return;
            }
        };
        if access != session.access() {
            tracing::info!(path = %self.path().url, %access, "the access state changed");
            session.set_access(access);
            self.path().access_changed();
            self.hub.ring_queues();
            self.tell(Change::Availability).await;
        }
    }

    /// Connects an I/O queue of this session for each queue of the disk that has none. Returns
    /// false if a queue cannot connect, or if the session or the disk ends in the meantime.
    async fn serve_queues(&self, session: &Arc<Session>, served: &mut Served) -> bool {
        let mailboxes = self.hub.mailboxes();
        if served.refused_at.is_some_and(|count| mailboxes.len() >= count) {
            return true;
        }
        served.refused_at = None;
        served.done.retain(|id| mailboxes.iter().any(|mailbox| mailbox.id == *id));
        let without = |mailbox: &&Arc<Mailbox>| !served.done.contains(&mailbox.id);
        let wanting: Vec<_> = mailboxes.iter().filter(without).collect();
        for several in wanting.chunks(limits::QUEUES_AT_ONCE) {
            // Connect several queues in parallel, because each takes several round trips.
            let connect = |_| session.namespace.connect_queue(&self.local);
            let queues = all((0..several.len()).map(connect));
            let is_over = || session.is_lost() || self.hub.is_stopping();
            let queues = unless(self.hub.keepers.until(is_over), queues).await;
            let Some(queues) = queues else { return false };
            for (mailbox, queue) in several.iter().zip(queues) {
                match &queue {
                    Err(Error::Connect {
                        reason: reason @ ConnectError::NoQueueLeft { .. },
                        ..
                    }) => {
                        tracing::warn!(path = %self.path().url, "{reason}");
                        served.refused_at = Some(mailboxes.len());
                    }
                    Err(error) => {
                        session.abort(&error.to_string());
                        return false;
                    }
                    Ok(_) => {
                        served.done.insert(mailbox.id);
                    }
                }
                mailbox.post(Arrival { session: Arc::clone(session), queue });
            }
        }
        true
    }

    /// Retires a session that is lost or no longer needed.
    async fn lose(&mut self, session: Arc<Session>) {
        if !self.hub.is_stopping() {
            let reason = match session.controller.lost() {
                Some(Error::Lost(reason)) => reason.to_string(),
                _ => "the connection was lost".to_owned(),
            };
            let mut count = 0;
            if let Some(breach) = session.controller.association().shared().breach() {
                self.breaches.note(&breach, self.hub.take_progress());
                count = self.path().breached(&breach);
            }
            self.log.lost(&self.hub.paths[self.index].url, &reason, count);
            self.hub.lose(&session, &reason);
            self.tell(Change::Availability).await;
        } else {
            if self.hub.journal.ends_in_order() && is_answered(&session) {
                let life = session.fencing.life.clone();
                // If this fails, the controller stays in the record, which does no harm.
                let _ = self.recorded(move |hub| hub.journal.remove(&life)).await;
            }
            // Drop the path's reference to the session, so that the keeper can drop the last one.
            self.path().lost("the disk was closed");
        }
        self.retired.push(session);
    }

    /// Drops lost sessions without other owners.
    fn let_go(&mut self) {
        self.retired.retain(|session| Arc::strong_count(session) > 1);
    }

    /// Asks the target, through a live controller, to end the commands of every lost controller.
    /// Returns true if all these commands have ended.
    async fn finish_lost(&self, through: &Session) -> bool {
        let lost = self.hub.unfinished();
        for fencing in &lost {
            if !fencing.is_finished() && is_over(through.controller.association(), fencing).await {
                tracing::info!(
                    path = %fencing.life.url,
                    "all commands of the lost connection have ended"
                );
                fencing.set_finished();
            }
        }
        if lost.iter().any(|fencing| fencing.is_finished()) {
            // If this fails, a successor tries to close these controllers again, which does no
            // harm.
            let _ = self.recorded(Hub::forget_finished).await;
        }
        lost.iter().all(|fencing| fencing.is_finished())
    }
}

/// Whether the controller has answered all writes of a session, after the disk has closed its
/// queues.
fn is_answered(session: &Session) -> bool {
    !session.is_lost() && !session.fencing.has_indeterminate_writes()
}

/// A random time between half the pause and all of it. It keeps hosts that lost the same target
/// from reconnecting at the same moment.
fn spread(pause: Duration) -> Duration {
    let mut bytes = [0; 4];
    if pause.is_zero() || !(os::fill_simulated(&mut bytes) || getrandom::fill(&mut bytes).is_ok()) {
        return pause;
    }
    let part = f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX);
    pause.mul_f64(0.5 + part / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_count_is_logged_at_powers_of_ten() {
        let told: Vec<u64> = (2..=1000).filter(|count| is_told(*count)).collect();
        assert_eq!(told, [2, 10, 100, 1000]);
    }

    #[test]
    fn reconnect_delays_are_spread_over_the_second_half_of_the_pause() {
        let pause = Duration::from_secs(10);
        let all: Vec<Duration> = (0..200).map(|_| spread(pause)).collect();
        assert!(all.iter().all(|one| (pause / 2..=pause).contains(one)), "{all:?}");
        let (least, most) = (all.iter().min(), all.iter().max());
        assert!(least < Some(&(pause * 6 / 10)) && most > Some(&(pause * 9 / 10)), "{all:?}");
        assert_eq!(spread(Duration::ZERO), Duration::ZERO, "the first attempt has no delay");
    }
}
