//! The admin queue of a controller, on the control loop.
//!
//! The admin queue executes users' admin commands, keeps the controller alive, tracks changed
//! namespaces, and shuts the controller down. When the queue ends for any reason, it marks the
//! controller as lost, which wakes every queue and caller.
//!
//! ```text
//!  Serving ---- stop ----> Stopping(CC.SHN, then CSTS until complete) ----> over
//!     |                                    | too late                        ^
//!     +--- connection lost, keep alive, timeout ------------------------------+
//! ```

mod table;

use crate::control::{Local, Mailbox, Sender};
use crate::error::Error;
use crate::limits;
use crate::shared::{AdminRequest, ControllerShared, Notice};
use crate::transport::{Loss, Transport};
use farblock_proto::host::command::{self, LogPage};
use farblock_proto::host::{Command, Data, NamespaceInfo, parse_changed_namespaces};
use farblock_reactor::{Event, os};
use farblock_wire::event::AsyncEvent;
use farblock_wire::fabrics::PropertySize;
use farblock_wire::identify::{Cns, NamespaceList};
use farblock_wire::log::LogPageId;
use farblock_wire::property::{Cc, Csts, offset};
use farblock_wire::{Cqe, Status};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use table::{Done, Pending, Table};

/// Interval between reads of CSTS during a shutdown.
const SHUTDOWN_POLL: Duration = Duration::from_millis(10);
/// Bytes of a log page to read in order to clear its event.
const EVENT_LOG_BYTES: u32 = 512;

pub(crate) struct Settings {
    /// Interval and timeout of keep alives; `None` if the host sends none.
    pub(crate) keep_alive: Option<Pulse>,
    /// The timeout of a command; zero for none.
    pub(crate) timeout: Duration,
    /// The value written to CC.
    pub(crate) configuration: Cc,
    /// Whether asynchronous events are enabled.
    pub(crate) events: bool,
    /// The maximum number of commands in flight.
    pub(crate) depth: u16,
}

/// The keep alive timing that detects an unresponsive controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pulse {
    pub(crate) interval: Duration,
    pub(crate) timeout: Duration,
}

impl Pulse {
    /// `keep_alive` is the keep alive timeout (KATO) that the host sets at the controller; zero
    /// disables it. The host must detect an unresponsive controller within `path_timeout`.
    pub(crate) fn new(keep_alive: Duration, path_timeout: Option<Duration>) -> Option<Pulse> {
        let pulse = (!keep_alive.is_zero())
            .then(|| Pulse { interval: keep_alive / 2, timeout: keep_alive });
        let Some(path_timeout) = path_timeout else { return pulse };
        // The host sends a keep alive after one third of `path_timeout`, and waits for the answer
        // during the other two thirds.
        let interval = path_timeout / 3;
        let quick = Pulse { interval, timeout: path_timeout - interval };
        Some(pulse.map_or(quick, |pulse| Pulse {
            interval: pulse.interval.min(quick.interval),
            timeout: pulse.timeout.min(quick.timeout),
        }))
    }
}

enum Purpose {
    User(Sender<crate::shared::Answer>),
    KeepAlive,
    AsyncEvent,
    /// Reading the changed namespace list.
    Changed,
    /// Reading a log page only to clear its event.
    ClearEvent(LogPageId),
    /// Repeating Identify for a changed namespace.
    Refresh(u32),
    /// Reading the identification descriptors of a changed namespace.
    Names(Box<NamespaceInfo>),
    /// Setting CC.SHN.
    Shutdown,
    /// Reading CSTS during the shutdown.
    ShutdownStatus,
}

/// When to send the next keep alive, and when the unanswered one was sent.
struct KeepAlive {
    interval: Duration,
    timeout: Duration,
    next: Instant,
    /// The time at which the host sent the keep alive that the controller has not answered yet.
    unanswered: Option<Instant>,
}

struct Stopping {
    deadline: Instant,
    /// The time of the next read of CSTS.
    look: Option<Instant>,
    complete: bool,
}

pub(crate) struct Admin<T: Transport> {
    local: Local,
    mailbox: Mailbox,
    link: T,
    table: Table<T>,
    shared: Arc<ControllerShared>,
    settings: Settings,
    keep_alive: Option<KeepAlive>,
    stopping: Option<Stopping>,
    /// Whether the next [`Admin::turn`] closes the queue, because the controller is lost.
    is_last_turn: bool,
    events: Vec<Event>,
}

/// Marks the controller as lost when dropped, so that this happens however the admin queue ends.
struct Farewell(Arc<ControllerShared>);

impl Drop for Farewell {
    fn drop(&mut self) {
        self.0.lose("its admin queue ended");
    }
}

/// Reports the start and the end of an admin queue to its creator.
pub(crate) struct Told {
    /// The result of the start.
    pub(crate) started: Sender<io::Result<()>>,
    /// Sends nothing: the admin queue drops this sender after it has released its resources.
    pub(crate) ended: Sender<()>,
}

pub(crate) fn run<T: Transport>(
    local: &Local,
    connected: T::Connected,
    shared: Arc<ControllerShared>,
    settings: Settings,
    told: Told,
) -> impl Future<Output = ()> + use<T> {
    let Told { started, ended } = told;
    let farewell = Farewell(Arc::clone(&shared));
    let admin = Admin::<T>::new(local, connected, shared, settings);
    async move {
        match admin {
            Ok(mut admin) => {
                started.send(Ok(()));
                admin.serve().await;
            }
            Err(error) => started.send(Err(error)),
        }
        drop(farewell);
        drop(ended);
    }
}

impl<T: Transport> Admin<T> {
    fn new(
        local: &Local,
        connected: T::Connected,
        shared: Arc<ControllerShared>,
        settings: Settings,
    ) -> io::Result<Admin<T>> {
        let mailbox = Mailbox::new(local);
        let (reactor, task) = (local.reactor(), mailbox.task());
        let mut table = Table::new(reactor.clone(), settings.depth);
        let link = T::open(reactor, task, connected, &mut table)?;
        shared.set_admin(reactor.waker(task));
        let now = os::now();
        let keep_alive = settings.keep_alive.map(|Pulse { interval, timeout }| KeepAlive {
            interval,
            timeout,
            next: now + interval,
            unanswered: None,
        });
        if settings.events {
            let request = command::async_event_request();
            table.waiting.push_back((Purpose::AsyncEvent, request, Vec::new()));
        }
        Ok(Admin {
            local: local.clone(),
            mailbox,
            link,
            table,
            shared,
            settings,
            keep_alive,
            stopping: None,
            is_last_turn: false,
            events: Vec::new(),
        })
    }

    async fn serve(&mut self) {
        loop {
            // The first turn handles the requests that callers queued before this future started.
            self.turn();
            if !self.link.is_open() || self.stopping.as_ref().is_some_and(|stop| stop.complete) {
                break;
            }
            self.mailbox.ready().await;
        }
        match self.link.loss() {
            Some(loss) => {
                // Level info suffices here: the users of the controller receive the error and
                // report its effect.
                tracing::info!("the connection to the controller is lost: {loss}");
                self.shared.note_loss(loss);
                self.shared.lose(&loss.to_string());
            }
            None => self.shared.lose(&Loss::Shutdown.to_string()),
        }
        self.leave().await;
    }

    /// Waits at most [`limits::CLOSE_TIME`] until the connection has closed.
    async fn leave(&mut self) {
        let deadline = os::now() + limits::CLOSE_TIME;
        if self.link.is_open() {
            self.link.abandon();
        }
        self.local.reactor().set_timer(self.mailbox.task(), Some(deadline));
        while !self.link.is_closed() && os::now() < deadline {
            self.mailbox.ready().await;
            self.take_events();
        }
    }

    fn take_events(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        self.local.reactor().take_events(self.mailbox.task(), &mut events);
        for event in events.drain(..) {
            self.link.handle(event, &mut self.table);
        }
        self.events = events;
        self.link.poll(&mut self.table);
    }

    fn turn(&mut self) {
        self.take_events();
        for done in std::mem::take(&mut self.table.done) {
            self.handle_done(done);
        }
        while let Some(AdminRequest { command, data, reply }) = self.shared.next_request() {
            self.table.waiting.push_back((Purpose::User(reply), command, data));
        }
        let now = os::now();
        if self.shared.is_lost() {
            // Another queue has noticed the loss of the controller. This connection may still hold
            // the controller's last message, such as a refusal: read it in one more turn.
            if !std::mem::replace(&mut self.is_last_turn, true) {
                return self.local.reactor().set_timer(self.mailbox.task(), Some(now));
            }
            return self.link.fail(Loss::Shutdown, &mut self.table);
        }
        if self.shared.is_stopping() && self.stopping.is_none() {
            self.begin_shutdown(now);
        }
        self.handle_time(now);
        if self.link.is_open() {
            let timeout = self.settings.timeout;
            let deadline = if timeout.is_zero() { None } else { now.checked_add(timeout) };
            self.table.pump(self.link.outgoing(), deadline);
            self.link.flush();
        }
        self.local.reactor().set_timer(self.mailbox.task(), self.next_deadline());
    }

    fn send(&mut self, purpose: Purpose, command: Command) {
        self.table.waiting.push_back((purpose, command, Vec::new()));
    }

    fn handle_done(&mut self, done: Done) {
        let Done { purpose, mut cqe, data, intact } = done;
        let succeeded = cqe.status().is_success() && intact;
        match purpose {
            Purpose::User(reply) => {
                if !intact {
                    // The data were damaged in transit, so do not trust any part of the completion.
                    let status = Status::TRANSIENT_TRANSPORT_ERROR;
                    cqe = Cqe::new(cqe.cid.get(), cqe.sqhd.get(), status, 0);
                }
                reply.send(Ok((cqe, data)));
            }
            Purpose::KeepAlive => {
                if let Some(keep_alive) = &mut self.keep_alive {
                    keep_alive.unanswered = None;
                }
            }
            Purpose::AsyncEvent if succeeded => self.handle_event(cqe.result() as u32),
            // Some controllers abort outstanding event requests before they shut down. This is no
            // error.
            Purpose::AsyncEvent if is_ended(cqe.status()) => {
                tracing::debug!(status = %cqe.status(), "the controller aborted an event request");
            }
            Purpose::AsyncEvent => {
                tracing::info!(status = %cqe.status(), "the controller sends no events");
            }
            Purpose::Changed => self.handle_changed(succeeded.then_some(data.as_slice())),
            // Notify only after this read of the log page. The read rearms the event, so the
            // controller reports every later change.
            Purpose::ClearEvent(LogPageId::ANA) => self.shared.notify(Notice::Access),
            Purpose::ClearEvent(_) => {}
            Purpose::Refresh(nsid) if succeeded => self.handle_refresh(nsid, &data),
            Purpose::Names(info) if succeeded || has_no_descriptors(cqe.status()) => {
                self.handle_names(*info, succeeded.then_some(data.as_slice()));
            }
            Purpose::Names(info) => self.handle_unreadable(info.nsid, cqe.status()),
            Purpose::Refresh(nsid) => self.handle_unreadable(nsid, cqe.status()),
            Purpose::Shutdown => self.send_shutdown_status(),
            Purpose::ShutdownStatus => self.handle_shutdown_status(Csts(cqe.result() as u32)),
        }
    }

    /// Handles an event and requests the next one.
    fn handle_event(&mut self, result: u32) {
        let event = AsyncEvent::parse(result);
        tracing::info!(?event, "asynchronous event");
        self.send(Purpose::AsyncEvent, command::async_event_request());
        if event == AsyncEvent::NAMESPACE_CHANGED {
            self.shared.namespaces_changed();
            let log = LogPage::new(event.log_page, NamespaceList::LEN as u32);
            self.send(Purpose::Changed, command::log_page(log));
        } else if event.log_page != LogPageId::SUPPORTED_LOG_PAGES {
            let log = LogPage::new(event.log_page, EVENT_LOG_BYTES);
            self.send(Purpose::ClearEvent(event.log_page), command::log_page(log));
        }
    }

    fn handle_refresh(&mut self, nsid: u32, data: &[u8]) {
        match NamespaceInfo::parse(nsid, data) {
            Ok(info) => {
                let command = command::identify(Cns::NAMESPACE_ID_DESCRIPTORS, nsid);
                self.send(Purpose::Names(Box::new(info)), command);
            }
            Err(error) => {
                tracing::warn!(nsid, "namespace changed: {error}");
                self.refresh(nsid, None);
            }
        }
    }

    /// Updates a changed namespace. `descriptors` is `None` if the controller has no list of
    /// identification descriptors.
    fn handle_names(&mut self, mut info: NamespaceInfo, descriptors: Option<&[u8]>) {
        tracing::info!(nsid = info.nsid, blocks = info.blocks, "namespace changed");
        descriptors.into_iter().for_each(|data| info.add_descriptors(data));
        self.refresh(info.nsid, Some(&info));
    }

    fn refresh(&self, nsid: u32, info: Option<&NamespaceInfo>) {
        if let Some(namespace) = self.shared.refresh(nsid, info) {
            self.local.spawn(async move { namespace.tell().await });
        }
    }

    /// Stops the use of a changed namespace that the host cannot identify: it may be a different
    /// namespace now.
    fn handle_unreadable(&mut self, nsid: u32, status: Status) {
        tracing::warn!(nsid, %status, "a changed namespace is unreadable");
        self.refresh(nsid, None);
    }

    /// Repeats Identify for the namespaces in use that `list` names; for all in use without a list.
    fn handle_changed(&mut self, list: Option<&[u8]>) {
        let changed = list.and_then(parse_changed_namespaces);
        for nsid in self.shared.used_namespaces() {
            if changed.as_ref().is_none_or(|changed| changed.contains(&nsid)) {
                self.send(Purpose::Refresh(nsid), command::identify_namespace(nsid));
            }
        }
    }

    fn handle_time(&mut self, now: Instant) {
        let late = |pending: &Pending<T>| pending.deadline.is_some_and(|deadline| deadline <= now);
        if self.table.pending().any(late) {
            self.link.fail(Loss::Timeout, &mut self.table);
        }
        if let Some(keep_alive) = &mut self.keep_alive {
            let age = keep_alive.unanswered.map(|since| now.saturating_duration_since(since));
            if age.is_some_and(|age| age >= keep_alive.timeout) {
                self.link.fail(Loss::KeepAlive, &mut self.table);
            } else if keep_alive.next <= now && age.is_none() {
                keep_alive.next = now + keep_alive.interval;
                keep_alive.unanswered = Some(now);
                // Send the keep alive before all other waiting commands.
                let command = command::keep_alive();
                self.table.waiting.push_front((Purpose::KeepAlive, command, Vec::new()));
            }
        }
        if let Some(stopping) = &mut self.stopping {
            if stopping.deadline <= now {
                tracing::debug!("the controller's shutdown takes too long");
                stopping.complete = true;
            } else if stopping.look.take_if(|look| *look <= now).is_some() {
                self.send_shutdown_status();
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let commands = self.table.pending().filter_map(|pending| pending.deadline);
        let keep_alive = self.keep_alive.as_ref().map(|keep_alive| match keep_alive.unanswered {
            Some(since) => since + keep_alive.timeout,
            None => keep_alive.next,
        });
        let stopping = self.stopping.as_ref().map(|stop| stop.look.unwrap_or(stop.deadline));
        commands.chain(keep_alive).chain(stopping).min()
    }

    fn begin_shutdown(&mut self, now: Instant) {
        let deadline = now + limits::SHUTDOWN_TIME;
        self.stopping = Some(Stopping { deadline, look: None, complete: false });
        let cc = self.settings.configuration.with_shn(Cc::SHN_NORMAL);
        self.send(Purpose::Shutdown, command::set_property(offset::CC, cc.0));
    }

    fn send_shutdown_status(&mut self) {
        let command = command::property(offset::CSTS, PropertySize::Four);
        self.send(Purpose::ShutdownStatus, command);
    }

    fn handle_shutdown_status(&mut self, csts: Csts) {
        let Some(stopping) = &mut self.stopping else { return };
        if csts.shst() == Csts::SHST_COMPLETE || csts.cfs() {
            stopping.complete = true;
        } else {
            stopping.look = Some((os::now() + SHUTDOWN_POLL).min(stopping.deadline));
        }
    }
}

impl<T: Transport> Drop for Admin<T> {
    fn drop(&mut self) {
        // The event loop outlives this queue, so the queue must remove its connection from the
        // loop.
        self.link.abandon();
    }
}

/// Whether the status says that the controller has no list of identification descriptors.
/// Controllers before NVMe 1.3 have none.
pub(crate) fn has_no_descriptors(status: Status) -> bool {
    !status.is_success() && (status.is_dnr() || status.code() == Status::INVALID_FIELD.0)
}

/// Whether a command was aborted because its queue or controller ended.
fn is_ended(status: Status) -> bool {
    let status = Status(status.code());
    matches!(status, Status::ABORT_REQUESTED | Status::ABORTED_SQ_DELETION)
}

/// Checks that `data` has the length that a user's command states, and that the command does not
/// transfer too many bytes.
pub(crate) fn check_request(command: &Command, data: &[u8]) -> Result<(), Error> {
    let (length, given) = match command.data {
        Data::None => (0, data.len()),
        Data::FromController(length) => (length, data.len() + length as usize),
        Data::ToController(length) => (length, data.len()),
    };
    if given != length as usize {
        return Err(Error::Options(format!(
            "an admin command for {length} bytes came with {given} bytes"
        )));
    }
    if length > limits::ADMIN_TRANSFER_BYTES {
        return Err(Error::Options(format!("{length} bytes are too many for an admin command")));
    }
    Ok(())
}
