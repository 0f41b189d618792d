//! The admin queue of a controller, on the control loop.
//!
//! It executes the users' admin commands, keeps the controller alive, learns of changed
//! namespaces, and shuts the controller down at the end. Whatever ends it, it leaves the
//! controller marked as lost, so that every queue and every caller finds out.
//!
//! ```text
//!  Serving ---- stop ----> Stopping(CC.SHN, then CSTS until complete) ----> over
//!     |                                    | too late                        ^
//!     +--- connection lost, keep alive, timeout ------------------------------+
//! ```

use crate::control::{Local, Mailbox, Sender};
use crate::error::Error;
use crate::handshake::Connected;
use crate::limits;
use crate::link::{Commands, Inline, Link, Loss, Outgoing};
use crate::shared::{Notice, Request, Shared};
use farblock_proto::host::command::{self, LogPage};
use farblock_proto::host::{Command, Data, NamespaceInfo, parse_changed_namespaces};
use farblock_proto::limits::ADMIN_IN_CAPSULE_BYTES;
use farblock_proto::tcp::SlotId;
use farblock_proto::tcp::host_end::{Grant, Transfer};
use farblock_reactor::{Buffer, Event, os};
use farblock_wire::event::AsyncEvent;
use farblock_wire::fabrics::PropertySize;
use farblock_wire::identify::{Cns, NamespaceList};
use farblock_wire::log::LogPageId;
use farblock_wire::property::{Cc, Csts, offset};
use farblock_wire::{Cqe, Status};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pause between two looks at whether the shutdown is complete.
const SHUTDOWN_POLL: Duration = Duration::from_millis(10);
/// As much of a log page is read as it takes to clear its event.
const EVENT_LOG_BYTES: u32 = 512;

/// What the queue is started with.
pub(crate) struct Settings {
    /// How often a keep alive is sent, and how long it may go unanswered; `None`: never.
    pub(crate) keep_alive: Option<Pulse>,
    /// Zero: commands may take for ever.
    pub(crate) timeout: Duration,
    /// What was written to CC.
    pub(crate) configuration: Cc,
    /// Asynchronous events are enabled.
    pub(crate) events: bool,
}

/// How the host finds out that the controller does not answer any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pulse {
    pub(crate) interval: Duration,
    pub(crate) timeout: Duration,
}

impl Pulse {
    /// The controller ends the association if it hears nothing for `keep_alive` (zero: never);
    /// the host is to know within `path_timeout` that nobody answers.
    pub(crate) fn new(keep_alive: Duration, path_timeout: Option<Duration>) -> Option<Pulse> {
        let pulse = (!keep_alive.is_zero())
            .then(|| Pulse { interval: keep_alive / 2, timeout: keep_alive });
        let Some(path_timeout) = path_timeout else { return pulse };
        // Sent, and sent again: one third passes before the first, two until it is late.
        let interval = path_timeout / 3;
        let quick = Pulse { interval, timeout: path_timeout - interval };
        Some(pulse.map_or(quick, |pulse| Pulse {
            interval: pulse.interval.min(quick.interval),
            timeout: pulse.timeout.min(quick.timeout),
        }))
    }
}

/// What an admin command is for.
enum Purpose {
    User(Sender<crate::shared::Answer>),
    KeepAlive,
    AsyncEvent,
    /// Reading the changed namespace list.
    Changed,
    /// Reading a log page only to clear its event.
    ClearEvent(LogPageId),
    /// Learning about a namespace anew.
    Refresh(u32),
    /// Learning what it is called.
    Names(Box<NamespaceInfo>),
    /// Setting CC.SHN.
    Shutdown,
    /// Reading CSTS during the shutdown.
    ShutdownStatus,
}

/// An admin command in flight.
struct Pending {
    purpose: Purpose,
    to_controller: Vec<u8>,
    from_controller: Vec<u8>,
    deadline: Option<Instant>,
}

/// The admin queue's commands.
#[derive(Default)]
struct Table {
    slots: Vec<Option<Pending>>,
    waiting: VecDeque<(Purpose, Command, Vec<u8>)>,
    /// Commands that are over: what for, completion, data, and whether the data is good.
    done: Vec<(Purpose, Cqe, Vec<u8>, bool)>,
}

impl Table {
    fn pump(&mut self, out: &mut Outgoing, deadline: Option<Instant>) {
        while let Some((purpose, _, _)) = self.waiting.front() {
            // The first slot is the keep alive's own: it must not wait behind slow commands.
            let first = usize::from(!matches!(purpose, Purpose::KeepAlive));
            let free = (first..self.slots.len()).find(|&slot| self.slots[slot].is_none());
            let Some(free) = free else { return };
            let Some((purpose, command, to_controller)) = self.waiting.pop_front() else { return };
            let (sqe, transfer) = command.place(ADMIN_IN_CAPSULE_BYTES);
            out.end.submit(SlotId(free as u16), &sqe, transfer, &mut Inline(&mut out.batch));
            let mut from_controller = Vec::new();
            match transfer {
                Transfer::InCapsule(_) => append(&to_controller, out),
                Transfer::FromController(length) => from_controller.resize(length as usize, 0),
                Transfer::None | Transfer::ToController(_) => {}
            }
            // An event may take as long as it likes.
            let deadline = deadline.filter(|_| !matches!(purpose, Purpose::AsyncEvent));
            let pending = Pending { purpose, to_controller, from_controller, deadline };
            self.slots[free] = Some(pending);
        }
    }

    fn pending(&mut self, slot: SlotId) -> &mut Pending {
        self.slots[usize::from(slot.0)].as_mut().expect("the connection knows what is in flight")
    }
}

/// Appends data and its digest.
fn append(bytes: &[u8], out: &mut Outgoing) {
    out.batch.bytes(bytes);
    if let Some(digest) = out.end.data_digest(bytes) {
        out.batch.bytes(&digest);
    }
}

impl Commands for Table {
    fn data(&mut self, slot: SlotId, offset: u32, bytes: &[u8]) {
        self.pending(slot).from_controller[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn lend(&mut self, _: SlotId, _: u32) -> Option<(Buffer, usize)> {
        None
    }

    fn lent(&mut self, _: SlotId, _: Buffer) {
        unreachable!("nothing is lent");
    }

    fn wanted(&mut self, mut grant: Grant, out: &mut Outgoing) {
        let data = std::mem::take(&mut self.pending(grant.slot).to_controller);
        while let Some(range) = out.end.data_header(&mut grant, &mut Inline(&mut out.batch)) {
            append(&data[range], out);
        }
        self.pending(grant.slot).to_controller = data;
    }

    fn completed(&mut self, slot: SlotId, cqe: &Cqe, received: u32, intact: bool) {
        let pending = self.slots[usize::from(slot.0)].take().expect("it was in flight");
        let mut data = pending.from_controller;
        data.truncate(received as usize);
        self.done.push((pending.purpose, *cqe, data, intact));
    }

    fn returned(&mut self, _: u64, _: Buffer) {
        unreachable!("admin data is copied");
    }
}

/// When the next keep alive is due, and how the last one went.
struct KeepAlive {
    interval: Duration,
    timeout: Duration,
    next: Instant,
    /// When the one that is unanswered was sent.
    unanswered: Option<Instant>,
}

/// The shutdown under way.
struct Stopping {
    deadline: Instant,
    /// When to look at CSTS again.
    look: Option<Instant>,
    complete: bool,
}

/// See the module's text.
pub(crate) struct Admin {
    local: Local,
    mailbox: Mailbox,
    link: Link,
    table: Table,
    shared: Arc<Shared>,
    settings: Settings,
    keep_alive: Option<KeepAlive>,
    stopping: Option<Stopping>,
    events: Vec<Event>,
}

/// Marks the controller as lost, whatever becomes of its admin queue.
struct Farewell(Arc<Shared>);

impl Drop for Farewell {
    fn drop(&mut self) {
        self.0.lose("its admin queue ended");
    }
}

/// Who is told of the beginning and the end of an admin queue.
pub(crate) struct Told {
    /// Whether it runs.
    pub(crate) started: Sender<io::Result<()>>,
    /// Answered by nobody: it is dropped when nothing is left of the queue.
    pub(crate) ended: Sender<()>,
}

/// Runs the admin queue until its end.
pub(crate) fn run(
    local: &Local,
    connected: Connected,
    shared: Arc<Shared>,
    settings: Settings,
    depth: u16,
    told: Told,
) -> impl Future<Output = ()> + use<> {
    let Told { started, ended } = told;
    let farewell = Farewell(Arc::clone(&shared));
    let admin = Admin::new(local, connected, shared, settings, depth);
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

impl Admin {
    fn new(
        local: &Local,
        connected: Connected,
        shared: Arc<Shared>,
        settings: Settings,
        depth: u16,
    ) -> io::Result<Admin> {
        let mailbox = Mailbox::new(local);
        let (reactor, task) = (local.reactor(), mailbox.task());
        let mut table = Table::default();
        table.slots.resize_with(usize::from(depth), || None);
        let link = Link::new(reactor, task, connected, &mut table)?;
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
            events: Vec::new(),
        })
    }

    async fn serve(&mut self) {
        loop {
            // At the first turn there is what was queued before.
            self.turn();
            if !self.link.is_open() || self.stopping.as_ref().is_some_and(|stop| stop.complete) {
                break;
            }
            self.mailbox.ready().await;
        }
        match self.link.loss() {
            Some(loss) => {
                // Whoever uses it is told, and says what that means for them.
                tracing::info!("the connection to the controller is lost: {loss}");
                self.shared.lose(&loss.to_string());
            }
            None => self.shared.lose(&Loss::Shutdown.to_string()),
        }
        self.leave().await;
    }

    /// Lets a terminate PDU, or a close, reach the network.
    async fn leave(&mut self) {
        let deadline = os::now() + limits::TERMINATE_TIME;
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
    }

    fn turn(&mut self) {
        self.take_events();
        for (purpose, cqe, data, intact) in std::mem::take(&mut self.table.done) {
            self.handle_done(purpose, &cqe, data, intact);
        }
        while let Some(Request { command, data, reply }) = self.shared.next_request() {
            self.table.waiting.push_back((Purpose::User(reply), command, data));
        }
        let now = os::now();
        if self.shared.is_lost() {
            return self.link.fail(Loss::Shutdown, &mut self.table);
        }
        if self.shared.is_stopping() && self.stopping.is_none() {
            self.begin_shutdown(now);
        }
        self.handle_time(now);
        if self.link.is_open() {
            let timeout = self.settings.timeout;
            let deadline = if timeout.is_zero() { None } else { now.checked_add(timeout) };
            self.table.pump(&mut self.link.out, deadline);
            self.link.flush();
        }
        self.local.reactor().set_timer(self.mailbox.task(), self.next_deadline());
    }

    fn send(&mut self, purpose: Purpose, command: Command) {
        self.table.waiting.push_back((purpose, command, Vec::new()));
    }

    fn handle_done(&mut self, purpose: Purpose, cqe: &Cqe, data: Vec<u8>, intact: bool) {
        let succeeded = cqe.status().is_success() && intact;
        match purpose {
            Purpose::User(reply) => {
                let mut cqe = *cqe;
                if !intact {
                    // The transport's fault, not the command's; nothing of it is to be believed.
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
            // That is how some controllers end what is outstanding before they go.
            Purpose::AsyncEvent if is_ended(cqe.status()) => {
                tracing::debug!(status = %cqe.status(), "the controller ended an event request");
            }
            Purpose::AsyncEvent => {
                tracing::info!(status = %cqe.status(), "the controller sends no events");
            }
            Purpose::Changed => self.handle_changed(succeeded.then_some(data.as_slice())),
            // Only now is a later change told by another event.
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

    /// An event came: asks for the next one, and does what it says.
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

    /// `None`: the controller has no list of a namespace's names.
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

    /// What changed and does not show itself may be anything: it is not used any more.
    fn handle_unreadable(&mut self, nsid: u32, status: Status) {
        tracing::warn!(nsid, %status, "a changed namespace is unreadable");
        self.refresh(nsid, None);
    }

    /// Reads those namespaces in use anew that changed: all of them if it is not said which.
    fn handle_changed(&mut self, list: Option<&[u8]>) {
        let changed = list.and_then(parse_changed_namespaces);
        for nsid in self.shared.used_namespaces() {
            if changed.as_ref().is_none_or(|changed| changed.contains(&nsid)) {
                self.send(Purpose::Refresh(nsid), command::identify_namespace(nsid));
            }
        }
    }

    fn handle_time(&mut self, now: Instant) {
        self.link.handle_time(now);
        let late = |pending: &Pending| pending.deadline.is_some_and(|deadline| deadline <= now);
        if self.table.slots.iter().flatten().any(late) {
            self.link.fail(Loss::Timeout, &mut self.table);
        }
        if let Some(keep_alive) = &mut self.keep_alive {
            let age = keep_alive.unanswered.map(|since| now.saturating_duration_since(since));
            if age.is_some_and(|age| age >= keep_alive.timeout) {
                self.link.fail(Loss::KeepAlive, &mut self.table);
            } else if keep_alive.next <= now && age.is_none() {
                keep_alive.next = now + keep_alive.interval;
                keep_alive.unanswered = Some(now);
                // Before whatever else waits.
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
        let commands = self.table.slots.iter().flatten().filter_map(|pending| pending.deadline);
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

impl Drop for Admin {
    fn drop(&mut self) {
        // The loop goes on without it.
        self.link.abandon();
    }
}

/// Before version 1.3 there is no list of a namespace's names.
pub(crate) fn has_no_descriptors(status: Status) -> bool {
    !status.is_success() && (status.is_dnr() || status.code() == Status::INVALID_FIELD.0)
}

/// Whether a command was ended with its queue or controller.
fn is_ended(status: Status) -> bool {
    let status = Status(status.code());
    matches!(status, Status::ABORT_REQUESTED | Status::ABORTED_SQ_DELETION)
}

/// Checks a user's command before it is sent.
pub(crate) fn check_request(command: &Command, data: &[u8]) -> Result<(), Error> {
    let (length, given) = match command.data {
        Data::None => (0, data.len()),
        Data::FromController(length) => (length, data.len() + length as usize),
        Data::ToController(length) => (length, data.len()),
    };
    if given != length as usize {
        return Err(Error::Options(format!("{given} bytes of data where {length} are named")));
    }
    if length > limits::ADMIN_TRANSFER_BYTES {
        return Err(Error::Options(format!("{length} bytes are too much for an admin command")));
    }
    Ok(())
}
