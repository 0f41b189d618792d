//! The process that serves a disk. It connects to the target, offers the disk in the chosen
//! [way](super::ways) (ublk, NBD, FUSE, …), and reports to its supervisor.

mod clients;

use super::control::Answer;
use super::folder::{Folder, Role};
use super::leftover;
use super::messages::{Order, Report};
use super::settings::Settings;
use super::status::{self, AttachmentState, Offer, Status};
use super::system::{Channel, Descriptor};
use super::ways::{self, Attached, Predecessor, Start, StopError};
use farblock_block::blocking::Blocking;
use farblock_block::size::Size;
use farblock_block::{Change, Namespace, Watch};
use farblock_host::Url;
use farblock_host::disk::{Disk, DiskState};
use farblock_program::error::{Failure, Result, os};
use farblock_program::signals;
use serde::{Deserialize, Serialize};
use std::cell::OnceCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::Duration;
#[cfg(target_os = "linux")]
use {super::args::As, farblock_program::broker::Broker};

/// Interval between checks for users of the disk, after a request to exit.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Pause before a status request retries a lock that another request holds.
const OTHERS_TURN: Duration = Duration::from_millis(5);
/// Time limit for a flush. If it expires, the detach fails.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for a flush before a forced detach. If it expires, the detach continues.
const FORCED_FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The state that a server saves for the next server, which replaces it after a crash.
#[derive(Serialize, Deserialize, Clone)]
pub(super) struct Saved {
    pub(super) offer: Offer,
    pub(super) state: serde_json::Value,
}

/// Events for the main thread.
enum Event {
    /// The supervisor or a signal (SIGTERM, SIGINT) asks the server to exit.
    Signal,
    /// The supervisor has exited, so no process would restart this server.
    SupervisorGone,
    /// A broker (a privileged helper process) has exited.
    #[cfg(target_os = "linux")]
    BrokerGone,
    Changed(Change),
    /// A new supervisor replaces one that has exited.
    #[cfg(target_os = "linux")]
    Adopted(Channel),
    /// The disk is detached.
    End,
}

/// The state that the server's threads share.
pub(super) struct DaemonShared {
    name: String,
    settings: Settings,
    folder: Folder,
    /// `None` with `--as nvme`: the kernel connects.
    disk: Option<Disk>,
    /// `None` after the detach.
    attached: Mutex<Option<Box<dyn Attached>>>,
    /// Whether the thread that holds the lock on `attached` is detaching the disk, which may take
    /// long.
    detaching: AtomicBool,
    events: Mutex<Sender<Event>>,
    /// Whether this server replaces a server that died: programs may use the disk already.
    resumed: bool,
    saved: Mutex<Saved>,
    /// The reason why the server could not write the state file.
    unsaved: Mutex<Option<String>>,
    /// The problem for the status, if a broker has exited and cannot be replaced.
    unbrokered: Mutex<Option<String>>,
}

const STATE: &str = "state.json";
const SETTINGS: &str = "settings.json";

pub(super) fn run(folder: Folder) -> Result<()> {
    let channel = Channel::inherited().map_err(not_ours)?;
    let Some(lock) = folder.lock(Role::Server) else {
        return Err(Failure::run(format_args!("{} already has a server", folder.name())));
    };
    #[cfg(target_os = "linux")]
    let brokers = folder
        .read_json("settings.json")
        .map(|settings| super::confined::confine(&folder, &settings))
        .unwrap_or_default();
    if let Err(error) = folder.write_process(Role::Server) {
        tracing::warn!("{}: {}", Role::Server.record(), os(&error));
    }
    let (events, receiver) = mpsc::channel();
    let signalled = events.clone();
    let watched = signals::on_each(move || drop(signalled.send(Event::Signal)));
    watched.map_err(|error| Failure::run(os(&error)))?;
    #[cfg(target_os = "linux")]
    brokers.all().try_for_each(|broker| watch_broker(broker, &events))?;
    let (order, kept) = channel
        .receive::<Order>()
        .map_err(not_ours)?
        .ok_or_else(|| Failure::run("the supervisor exited before it sent an order"))?;
    let offered = Offered {
        folder,
        order: &order,
        kept,
        #[cfg(target_os = "linux")]
        broker: brokers.device,
    };
    match offer(offered, events.clone()) {
        Ok(shared) => {
            let shared = Arc::new(shared);
            if let Err(failure) = serve(&shared, channel, &receiver, &events) {
                // Programs may use the disk, so keep it for the next server.
                if shared.resumed {
                    std::mem::forget(shared);
                }
                return Err(failure);
            }
            if !shared.folder.is_held(Role::Supervisor) {
                shared.folder.remove(lock);
            }
            Ok(())
        }
        Err(problem) => {
            let report = match problem.is_ways {
                true => Report::WayFailed(problem.sentence.clone()),
                false => Report::Failed(problem.sentence.clone()),
            };
            match channel.send(&report, None) {
                Ok(()) => Err(Failure::Reported),
                Err(_) => Err(Failure::Run(problem.sentence)),
            }
        }
    }
}

fn not_ours(_: std::io::Error) -> Failure {
    Failure::usage("only `farblock attach` can run this command")
}

/// Inputs of [`offer`].
struct Offered<'a> {
    folder: Folder,
    order: &'a Order,
    kept: Option<Descriptor>,
    #[cfg(target_os = "linux")]
    broker: Option<Arc<Broker>>,
}

/// The reason why the server cannot offer a disk.
struct Problem {
    sentence: String,
    /// Whether the disk was connected, and only this way to attach failed.
    is_ways: bool,
}

impl From<String> for Problem {
    fn from(sentence: String) -> Problem {
        Problem { sentence, is_ways: false }
    }
}

/// Connects the disk, and offers it to programs.
fn offer(offered: Offered<'_>, events: Sender<Event>) -> Result<DaemonShared, Problem> {
    let Offered { folder, order, kept, .. } = offered;
    let settings: Settings = folder
        .read_json("settings.json")
        .ok_or("the settings of the attachment are unreadable".to_owned())?;
    if let Some(congestion) = &settings.congestion {
        congestion.clone().choose()?;
    }
    let saved = folder.read_json::<Saved>(STATE).filter(|_| order.resume);
    let predecessor = saved.map(|saved| Predecessor { state: saved.state, kept });
    let name = folder.name();
    let start = Start {
        name: name.clone(),
        folder: &folder,
        settings: &settings,
        resume: order.resume,
        predecessor,
        disk: OnceCell::new(),
        #[cfg(target_os = "linux")]
        broker: offered.broker,
    };
    let attached = ways::start(&start).map_err(|sentence| Problem {
        sentence,
        is_ways: !order.resume && start.disk.get().is_some(),
    })?;
    let disk = start.disk.into_inner();
    let offer = described(&name, &settings, attached.as_ref(), disk.as_ref());
    let saved = Mutex::new(Saved { offer, state: attached.state() });
    let (attached, events) = (Mutex::new(Some(attached)), Mutex::new(events));
    let (resumed, unsaved, unbrokered) = (order.resume, Mutex::default(), Mutex::default());
    let shared = DaemonShared {
        name,
        settings,
        folder,
        disk,
        detaching: AtomicBool::new(false),
        attached,
        events,
        resumed,
        saved,
        unsaved,
        unbrokered,
    };
    match shared.save() {
        // No program uses the disk yet, so failing is harmless.
        Err(sentence) if !resumed => Err(sentence.into()),
        // Programs use the disk, and must not lose it because of this error.
        _ => Ok(shared),
    }
}

fn described(
    name: &str,
    settings: &Settings,
    attached: &dyn Attached,
    disk: Option<&Disk>,
) -> Offer {
    let geometry = match disk {
        Some(disk) => Some(status::geometry(disk, settings.read_only)),
        None => attached.condition().map(|condition| condition.geometry),
    };
    Offer {
        name: name.to_owned(),
        way: settings.way.name(),
        used: attached.used(),
        size_bytes: geometry.map_or(0, |geometry| geometry.capacity_bytes()),
        block_size: geometry.map_or(0, |geometry| geometry.block_size),
        read_only: geometry.is_some_and(|geometry| geometry.read_only),
    }
}

/// Serves until the disk is detached.
fn serve(
    shared: &Arc<DaemonShared>,
    channel: Channel,
    receiver: &Receiver<Event>,
    events: &Sender<Event>,
) -> Result<()> {
    let cannot = |error: std::io::Error| Failure::run(format_args!("control: {}", os(&error)));
    clients::serve(shared).map_err(cannot)?;
    shared.tell_ready(&channel).map_err(cannot)?;
    #[cfg_attr(not(target_os = "linux"), expect(unused_mut, reason = "only Linux assigns to it"))]
    let mut channel = Arc::new(channel);
    watch_supervisor(&channel, events).map_err(cannot)?;
    let _watch = shared.disk.as_ref().map(|disk| watch_disk(disk, events));
    // The size may have changed before this process began to watch it.
    shared.show_size();
    let mut ending = None::<Vec<String>>;
    loop {
        let event = match ending.is_some() || shared.unsaved().is_some() {
            true => receiver.recv_timeout(LOOK_EVERY),
            false => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match event {
            Ok(Event::End) | Err(RecvTimeoutError::Disconnected) => {
                let _ = channel.send(&Report::Detached, None);
                return Ok(());
            }
            #[cfg(target_os = "linux")]
            Ok(Event::Adopted(of)) => channel = shared.adopted(of, events).map_err(cannot)?,
            Ok(Event::Changed(change)) => shared.changed(change, &channel),
            Ok(Event::SupervisorGone) => {
                tracing::warn!(
                    "the supervisor is dead: if this process dies, no process restarts it"
                );
            }
            #[cfg(target_os = "linux")]
            Ok(Event::BrokerGone) => shared.broker_gone(),
            Ok(Event::Signal) => {
                ending.get_or_insert_default();
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if shared.unsaved().is_some() && shared.save().is_ok() {
            tracing::info!("saved {STATE} after a failed attempt");
        }
        if let Some(before) = &mut ending
            && shared.end_if_unused(before, &channel)
        {
            let _ = channel.send(&Report::Detached, None);
            return Ok(());
        }
    }
}

fn watch_disk(disk: &Disk, events: &Sender<Event>) -> Watch {
    let events = Mutex::new(events.clone());
    disk.changes().watch(move |change| {
        let events = events.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = events.send(Event::Changed(change));
    })
}

/// Starts a thread that reports the exit of a broker.
#[cfg(target_os = "linux")]
fn watch_broker(broker: &Arc<Broker>, events: &Sender<Event>) -> Result<()> {
    let (broker, events) = (Arc::clone(broker), events.clone());
    let watch = move || {
        broker.wait_for_end();
        let _ = events.send(Event::BrokerGone);
    };
    let begun = thread::Builder::new().name("broker".to_owned()).spawn(watch);
    begun.map(drop).map_err(|error| Failure::run(os(&error)))
}

fn watch_supervisor(channel: &Arc<Channel>, events: &Sender<Event>) -> std::io::Result<()> {
    let (channel, events) = (Arc::clone(channel), events.clone());
    thread::Builder::new().name("supervisor".to_owned()).spawn(move || {
        while let Ok(Some((order, _))) = channel.receive::<Order>() {
            if order.end {
                let _ = events.send(Event::Signal);
            }
        }
        let _ = events.send(Event::SupervisorGone);
    })?;
    Ok(())
}

impl DaemonShared {
    /// Reports to a supervisor that the disk is usable, and passes it the descriptor to keep for
    /// the next server.
    fn tell_ready(&self, channel: &Channel) -> std::io::Result<()> {
        let keep = self.lock().as_ref().and_then(|attached| attached.keep());
        channel.send(&Report::Ready(self.offer()), keep.as_ref())
    }

    /// Passes the channel of a new supervisor to the main thread, which calls
    /// [`DaemonShared::adopted`].
    #[cfg(target_os = "linux")]
    pub(super) fn adopt(&self, channel: Channel) {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = events.send(Event::Adopted(channel));
    }

    #[cfg(target_os = "linux")]
    fn adopted(&self, channel: Channel, events: &Sender<Event>) -> std::io::Result<Arc<Channel>> {
        let channel = Arc::new(channel);
        // Ignore an error: if this supervisor has exited, the watch of its channel reports that.
        let _ = self.tell_ready(&channel);
        watch_supervisor(&channel, events)?;
        tracing::warn!("a new supervisor has replaced the dead one");
        Ok(channel)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Box<dyn Attached>>> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Exits after the death of a broker, so that the supervisor restarts the server and the
    /// broker. If a restarted server could not resume the disk, this server continues without the
    /// broker.
    #[cfg(target_os = "linux")]
    fn broker_gone(&self) {
        let why = "the privileged helper process is dead";
        // A mount whose descriptor no other process keeps would break.
        let is_kept = || self.lock().as_ref().is_some_and(|attached| attached.keep().is_some());
        let goes_on = self.settings.way != As::Fuse || is_kept();
        if goes_on && self.folder.is_held(Role::Supervisor) {
            tracing::error!(
                "{why}: this process exits, so that the supervisor restarts it and the helper"
            );
            // Exit as if killed: the users of the disk then wait for the next server.
            std::process::exit(1);
        }
        tracing::error!("{why}: this process continues to serve without the helper");
        *self.unbrokered.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!(
            "{why}, and cannot be restarted: detach the disk with --force, or kill process {} \
             and attach the disk again",
            std::process::id()
        ));
    }

    /// Returns the offer with current values.
    fn offer(&self) -> Offer {
        match self.attached.try_lock().as_deref() {
            Ok(Some(attached)) => {
                described(&self.name, &self.settings, attached.as_ref(), self.disk.as_ref())
            }
            _ => self.saved().offer.clone(),
        }
    }

    fn saved(&self) -> MutexGuard<'_, Saved> {
        self.saved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unsaved(&self) -> Option<String> {
        self.unsaved.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn unbrokered(&self) -> Option<String> {
        self.unbrokered.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Saves the state for the next server.
    fn save(&self) -> Result<(), String> {
        let written = self.folder.write_json(STATE, &*self.saved());
        let written = written.map_err(|error| {
            format!(
                "cannot write {}, which the next server would need: {}",
                self.folder.path(STATE).display(),
                os(&error)
            )
        });
        let mut unsaved = self.unsaved.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(sentence) = &written
            && unsaved.as_ref() != Some(sentence)
        {
            tracing::error!("{sentence}");
        }
        *unsaved = written.clone().err();
        written
    }

    /// Measures latencies from now until the process exits, because another scrape may follow at
    /// any time.
    pub(super) fn measure(&self) {
        if let Some(disk) = &self.disk {
            disk.measure_latency(true);
        }
    }

    /// Authenticates this host again on each connected path. Returns each path with its error, if
    /// any.
    pub(super) fn authenticate(&self) -> Vec<(String, Option<String>)> {
        let Some(disk) = &self.disk else { return Vec::new() };
        let sentence = |url: &Url, error: farblock_host::Error| match error {
            // The error contains no address, so name the path. A target that rejects the secret may
            // simply close the connection.
            farblock_host::Error::Lost(_) => format!(
                "{} during the authentication: {error}; see farblock list for whether the path \
                 reconnects with its secret",
                url.address()
            ),
            _ => error.to_string(),
        };
        let said = |(url, done): (Url, std::result::Result<(), farblock_host::Error>)| {
            (url.without_keys().to_string(), done.err().map(|error| sentence(&url, error)))
        };
        disk.authenticate().into_iter().map(said).collect()
    }

    /// Adds a path over another address, and saves the address for the next server.
    pub(super) fn add_path(&self, url: &str) -> Answer {
        let failed = |sentence: String| Answer::Refused(StopError::Failed(sentence));
        let Some(disk) = &self.disk else {
            return failed(
                "the kernel's NVMe host manages the paths of this disk: add one with nvme connect"
                    .to_owned(),
            );
        };
        let url: Url = match url.parse() {
            Ok(url) => url,
            Err(error) => return failed(format!("{url}: {error}")),
        };
        match disk.add_path(&url) {
            Ok(()) => {}
            Err(farblock_host::Error::Namespace(_)) => return Answer::OtherNamespace,
            Err(error) => return failed(error.to_string()),
        }
        tracing::warn!(path = %url.without_keys(), "added a path");
        let mut settings: Settings = self.folder.read_json(SETTINGS).unwrap_or_default();
        settings.urls.push(url);
        match self.folder.write_json(SETTINGS, &settings) {
            Ok(()) => Answer::PathAdded(self.offer()),
            Err(error) => failed(format!(
                "the path is in use, but cannot be saved in {} ({}), so a restarted server would \
                 not use it",
                self.folder.path(SETTINGS).display(),
                os(&error)
            )),
        }
    }

    /// Returns the current status. Does not wait for a detach in progress.
    pub(super) fn status(&self) -> Status {
        self.status_with(|attached| attached.users())
    }

    /// Returns the current status without users, for frequent requests: the search for users reads
    /// the open files of every process.
    pub(super) fn status_without_users(&self) -> Status {
        self.status_with(|_| Vec::new())
    }

    fn status_with(&self, users: impl Fn(&dyn Attached) -> Vec<String>) -> Status {
        let (users, condition, unusable) = loop {
            match self.attached.try_lock() {
                Ok(attached) => match attached.as_ref() {
                    Some(attached) => {
                        let users = users(attached.as_ref());
                        break (users, attached.condition(), attached.unusable());
                    }
                    None => break (Vec::new(), None, None),
                },
                Err(TryLockError::Poisoned(_)) => break (Vec::new(), None, None),
                Err(TryLockError::WouldBlock) if self.detaching.load(Ordering::Acquire) => {
                    break (vec!["a detach is in progress".to_owned()], None, None);
                }
                // Another short request holds the lock.
                Err(TryLockError::WouldBlock) => thread::sleep(OTHERS_TURN),
            }
        };
        let paths = self.disk.as_ref().map(Disk::paths).unwrap_or_default();
        let breaches = status::breaches(&paths);
        let (state, since_seconds, trouble) = match (&self.disk, condition) {
            _ if unusable.is_some() => (AttachmentState::Unusable, 0, unusable),
            (Some(disk), _) => status::of_disk(disk),
            (None, Some(condition)) => (condition.state, 0, condition.trouble),
            (None, None) => (AttachmentState::Live, 0, None),
        };
        let supervised = self.folder.is_held(Role::Supervisor);
        let unsupervised = "its supervisor is dead: no process would restart its server".to_owned();
        Status {
            offer: self.offer(),
            state,
            since_seconds,
            trouble: self
                .unbrokered()
                .or(breaches)
                .or(trouble)
                .or((!supervised).then_some(unsupervised))
                .or(self.unsaved()),
            refusal: self.disk.as_ref().and_then(Disk::refusal),
            paths: paths.into_iter().map(Into::into).collect(),
            pid: self.folder.pid().filter(|_| supervised),
            server_pid: Some(std::process::id()),
            // The client adds this value.
            cpu_ms: None,
            users,
            #[cfg(target_os = "linux")]
            confinement: super::confined::seen(),
            #[cfg(not(target_os = "linux"))]
            confinement: None,
            spin: Some(self.settings.spin().to_string()),
            latency: self.disk.as_ref().and_then(status::latency),
        }
    }

    /// Detaches the disk, unless it is in use and `force` is false. The caller must call
    /// [`DaemonShared::end`] afterwards.
    pub(super) fn detach(&self, force: bool) -> Result<(), StopError> {
        let mut slot = self.lock();
        self.detaching.store(true, Ordering::Release);
        let done = self.detach_from(&mut slot, force);
        self.detaching.store(false, Ordering::Release);
        done
    }

    fn detach_from(
        &self,
        slot: &mut Option<Box<dyn Attached>>,
        force: bool,
    ) -> Result<(), StopError> {
        let Some(attached) = slot.as_mut() else { return Ok(()) };
        #[cfg(target_os = "linux")]
        if let Some(why) = self.unbrokered()
            && (!force || ways::takes_rights(&self.settings))
        {
            return Err(StopError::Failed(why));
        }
        let users = attached.users();
        let is_used = !users.is_empty();
        StopError::if_used(users, force)?;
        // Flush first: if the flush fails, the server can still refuse to detach.
        self.flush(force)?;
        attached.stop(force)?;
        if let Err(error) = self.flush(force) {
            tracing::error!("the flush after the detach failed: {error:?}");
        }
        if is_used {
            // The disk was in use, so its controllers may still execute commands: keep their
            // record.
            leftover::keep(&self.folder);
        }
        *slot = None;
        Ok(())
    }

    /// Makes the main thread exit.
    pub(super) fn end(&self) {
        let _ = self.events.lock().unwrap_or_else(PoisonError::into_inner).send(Event::End);
    }

    /// Flushes all writes to the medium. With `force`, waits only for a short time.
    fn flush(&self, force: bool) -> Result<(), StopError> {
        let Some(disk) = &self.disk else { return Ok(()) };
        if disk.geometry().read_only {
            return Ok(());
        }
        let patience = if force { FORCED_FLUSH_TIMEOUT } else { FLUSH_TIMEOUT };
        match flush(disk, patience) {
            Err(sentence) if force => {
                tracing::warn!("{sentence}; detaching anyway");
                leftover::keep(&self.folder);
                Ok(())
            }
            Err(sentence) => Err(StopError::Failed(sentence)),
            Ok(()) => Ok(()),
        }
    }

    /// Tries to detach after a request to exit. Returns true once the disk is detached. Reports the
    /// remaining users when they change.
    fn end_if_unused(&self, before: &mut Vec<String>, channel: &Channel) -> bool {
        let in_the_way = match self.detach(false) {
            Ok(()) => return true,
            Err(StopError::InUse(users)) => users,
            Err(StopError::Failed(sentence)) => vec![sentence],
        };
        if *before != in_the_way {
            let line =
                format!("the server waits for the last use to end: {}", in_the_way.join("; "));
            tracing::warn!("{line}");
            let _ = channel.send(&Report::Ending(line), None);
            *before = in_the_way;
        }
        false
    }

    fn changed(&self, change: Change, channel: &Channel) {
        let Some(disk) = &self.disk else { return };
        match change {
            Change::Geometry => self.show_size(),
            Change::Availability => {
                let (state, _, trouble) = status::of_disk(disk);
                let trouble = trouble.map_or(String::new(), |trouble| format!(": {trouble}"));
                let line = format!("{}{trouble}", state.name());
                tracing::info!("{line}");
                let _ = channel.send(&Report::Status(line), None);
            }
            // Only log these changes. After a loss of data, the next flush by a user fails.
            Change::Loss | Change::Contents | Change::Parts => {}
        }
    }
}

impl DaemonShared {
    /// Shows the disk's size to its users, if it changed or if a dead server may have shown another
    /// size.
    fn show_size(&self) {
        let Some(disk) = &self.disk else { return };
        let bytes = disk.geometry().capacity_bytes();
        let is_new = self.saved().offer.size_bytes != bytes;
        if !is_new && !self.resumed {
            return;
        }
        let Some(shown) = self.lock().as_mut().map(|attached| attached.resized(bytes)) else {
            return;
        };
        match shown {
            Err(error) if is_new => {
                let size = Size(bytes);
                tracing::error!("cannot show the disk's new size, {size}, to its users: {error}");
            }
            Err(error) => tracing::debug!("cannot show the disk's size to its users: {error}"),
            Ok(()) => tracing::info!("the disk's size is now {}", Size(bytes)),
        }
        if is_new {
            let offer = self.offer();
            self.saved().offer = offer;
            // The main loop retries a failed save.
            let _ = self.save();
        }
    }
}

fn flush(disk: &Disk, patience: Duration) -> Result<(), String> {
    let unknown = "it is unknown whether all writes are durable";
    match disk.state() {
        DiskState::Waiting => {
            return Err(format!(
                "the disk is unreachable (see farblock list), so {unknown}: wait until \
                 it reconnects, or detach with --force"
            ));
        }
        DiskState::Dead => {
            return Err(format!(
                "the host has given up all paths, so {unknown}, and will not reconnect: detach \
                 with --force, and attach it again"
            ));
        }
        _ => {}
    }
    let (sender, result) = mpsc::channel();
    let disk = disk.clone();
    let run = move || {
        let flushed = Blocking::new(&disk).and_then(|mut blocks| blocks.flush());
        let _ = sender.send(flushed);
    };
    let thread = thread::Builder::new().name("flush".to_owned()).spawn(run);
    thread.map_err(|error| os(&error))?;
    match result.recv_timeout(patience) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(format!("the target cannot flush: {error}")),
        Err(_) => Err(format!("a flush takes longer than {} s", patience.as_secs())),
    }
}
