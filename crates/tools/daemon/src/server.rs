//! The process that serves a disk: it connects, offers it one way, and tells its supervisor.

use super::control::{self, Answer};
use super::folder::{Folder, Role};
use super::leftover;
use super::messages::{Order, Report};
use super::settings::Settings;
use super::status::{self, AttachmentState, Offer, Status};
use super::system::{Channel, Descriptor};
use super::ways::{self, Attached, Predecessor, Start, StopError};
use farblock_block::blocking::Blocking;
use farblock_block::{Change, Namespace, Watch};
use farblock_command::error::{Failure, Result, os};
use farblock_command::signals;
use farblock_host::Url;
use farblock_host::disk::{Disk, DiskState};
use serde::{Deserialize, Serialize};
use std::cell::OnceCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::Duration;
#[cfg(target_os = "linux")]
use {super::args::As, farblock_command::broker::Broker};

/// How often it is looked whether the last user is gone, when it is to end.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long a question waits before it looks again whether another one is answered.
const OTHERS_TURN: Duration = Duration::from_millis(5);
/// How long a flush may take before a disk is not detached after all.
const FLUSH_PATIENCE: Duration = Duration::from_secs(30);
/// How long it may take when the disk is detached anyway.
const FORCED_FLUSH_PATIENCE: Duration = Duration::from_secs(2);

/// What a server leaves for its successor.
#[derive(Serialize, Deserialize, Clone)]
pub(super) struct Saved {
    pub(super) offer: Offer,
    pub(super) state: serde_json::Value,
}

/// What the main thread waits for.
enum Event {
    /// SIGTERM, SIGINT or the supervisor asks it to end.
    Signal,
    /// Nobody is there any more to start the next one.
    SupervisorGone,
    /// Who does what takes rights is gone.
    #[cfg(target_os = "linux")]
    BrokerGone,
    Changed(Change),
    /// Another supervisor took the place of one that is gone.
    #[cfg(target_os = "linux")]
    Adopted(Channel),
    /// The disk is detached.
    End,
}

/// What the threads of a server share.
pub(super) struct DaemonShared {
    name: String,
    settings: Settings,
    folder: Folder,
    /// `None` if a way needs none of ours.
    disk: Option<Disk>,
    /// `None` when it is detached.
    attached: Mutex<Option<Box<dyn Attached>>>,
    /// Whoever has `attached` locked is detaching it, which may take long.
    detaching: AtomicBool,
    events: Mutex<Sender<Event>>,
    /// Took the place of a server that died: somebody may use the disk already.
    resumed: bool,
    saved: Mutex<Saved>,
    /// Why that is not in its file, if it is not.
    unsaved: Mutex<Option<String>>,
    /// What cannot be done any more, if the broker that does it is gone.
    unbrokered: Mutex<Option<String>>,
}

const STATE: &str = "state.json";
const SETTINGS: &str = "settings.json";

/// Runs the process.
pub(super) fn run(folder: Folder) -> Result<()> {
    let channel = Channel::inherited().map_err(not_ours)?;
    let Some(lock) = folder.lock(Role::Server) else {
        return Err(Failure::run(format_args!("{} has a server already", folder.name())));
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
        .ok_or_else(|| Failure::run("the supervisor ended before it said anything"))?;
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
                // What is offered is in use, and the next process goes on with it.
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
    Failure::usage("this is for `farblock attach` to run, not for people")
}

/// What it takes to offer a disk.
struct Offered<'a> {
    folder: Folder,
    order: &'a Order,
    kept: Option<Descriptor>,
    #[cfg(target_os = "linux")]
    broker: Option<Arc<Broker>>,
}

/// Why a disk is not offered.
struct Problem {
    sentence: String,
    /// It was connected, and this way to offer it failed.
    is_ways: bool,
}

impl From<String> for Problem {
    fn from(sentence: String) -> Problem {
        Problem { sentence, is_ways: false }
    }
}

/// Connects and offers the disk.
fn offer(offered: Offered<'_>, events: Sender<Event>) -> Result<DaemonShared, Problem> {
    let Offered { folder, order, kept, .. } = offered;
    let settings: Settings =
        folder.read_json("settings.json").ok_or("there are no settings to be read".to_owned())?;
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
        // Nobody uses it yet.
        Err(sentence) if !resumed => Err(sentence.into()),
        // Whoever does is not to lose it for that.
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
    control::serve(&shared.folder, shared).map_err(cannot)?;
    shared.tell_ready(&channel).map_err(cannot)?;
    let mut channel = Arc::new(channel);
    watch_supervisor(&channel, events).map_err(cannot)?;
    let _watch = shared.disk.as_ref().map(|disk| watch_disk(disk, events));
    // What it was while nobody watched: before this process, or since it connected.
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
                    "the supervisor is gone: if this process dies, nobody starts another"
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
            tracing::info!("{STATE} is written after all");
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

/// Tells when a broker is gone.
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
    /// Tells a supervisor what is offered, with what it is to keep.
    fn tell_ready(&self, channel: &Channel) -> std::io::Result<()> {
        let keep = self.lock().as_ref().and_then(|attached| attached.keep());
        channel.send(&Report::Ready(self.offer()), keep.as_ref())
    }

    /// Has another supervisor, to which this leads. [`DaemonShared::adopted`] follows.
    #[cfg(target_os = "linux")]
    pub(super) fn adopt(&self, channel: Channel) {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = events.send(Event::Adopted(channel));
    }

    #[cfg(target_os = "linux")]
    fn adopted(&self, channel: Channel, events: &Sender<Event>) -> std::io::Result<Arc<Channel>> {
        let channel = Arc::new(channel);
        // If that one is gone already, its end is seen.
        let _ = self.tell_ready(&channel);
        watch_supervisor(&channel, events)?;
        tracing::warn!("another supervisor took the place of the one that is gone");
        Ok(channel)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Box<dyn Attached>>> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the supervisor start a server anew, with what this one has lost.
    #[cfg(target_os = "linux")]
    fn broker_gone(&self) {
        let why = "the process with the rights that serving takes is gone";
        // A mount that nobody keeps would break.
        let is_kept = || self.lock().as_ref().is_some_and(|attached| attached.keep().is_some());
        let goes_on = self.settings.way != As::Fuse || is_kept();
        if goes_on && self.folder.is_held(Role::Supervisor) {
            tracing::error!("{why}: this one ends, to have both started anew");
            // As if it had been killed: who uses the disk waits for the successor.
            std::process::exit(1);
        }
        tracing::error!("{why}: this one serves on as long as it can");
        *self.unbrokered.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!(
            "{why}, and nobody starts another: detach it with --force, or end process {} (kill) \
             and attach the disk again",
            std::process::id()
        ));
    }

    /// What is offered, as of now.
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

    /// Writes down what a successor needs.
    fn save(&self) -> Result<(), String> {
        let written = self.folder.write_json(STATE, &*self.saved());
        let written = written.map_err(|error| {
            format!(
                "cannot write {}, without which no other process could go on with the disk: {}",
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

    /// Has it measured how long operations take: until the process ends, since nobody says when
    /// the next scrape is.
    pub(super) fn measure(&self) {
        if let Some(disk) = &self.disk {
            disk.measure_latency(true);
        }
    }

    /// Has the host prove anew who it is, on each path that is connected; says how that went.
    pub(super) fn authenticate(&self) -> Vec<(String, Option<String>)> {
        let Some(disk) = &self.disk else { return Vec::new() };
        let sentence = |url: &Url, error: farblock_host::Error| match error {
            // It does not say where; and a target that refuses the secret may end it unsaid.
            farblock_host::Error::Lost(_) => format!(
                "{}, while it authenticated: {error}; farblock list says whether it connects again \
                 with its secret",
                url.address()
            ),
            _ => error.to_string(),
        };
        let said = |(url, done): (Url, std::result::Result<(), farblock_host::Error>)| {
            (url.without_keys().to_string(), done.err().map(|error| sentence(&url, error)))
        };
        disk.authenticate().into_iter().map(said).collect()
    }

    /// Connects the disk by another address, too, and writes that down for a successor.
    pub(super) fn add_path(&self, url: &str) -> Answer {
        let failed = |sentence: String| Answer::Refused(StopError::Failed(sentence));
        let Some(disk) = &self.disk else {
            return failed("its connections are the kernel's: nvme connect adds one".to_owned());
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
        tracing::warn!(path = %url.without_keys(), "a path was added");
        let mut settings: Settings = self.folder.read_json(SETTINGS).unwrap_or_default();
        settings.urls.push(url);
        match self.folder.write_json(SETTINGS, &settings) {
            Ok(()) => Answer::PathAdded(self.offer()),
            Err(error) => failed(format!(
                "the path is used, and cannot be written to {} ({}), so the next process would not \
                 know it",
                self.folder.path(SETTINGS).display(),
                os(&error)
            )),
        }
    }

    /// For who asks. It never waits for a detach that is under way.
    pub(super) fn status(&self) -> Status {
        self.status_with(|attached| attached.users())
    }

    /// The same without the users, for frequent questions: looking for users is reading what each
    /// process has open.
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
                    break (vec!["it is being detached".to_owned()], None, None);
                }
                // Somebody else who asks, and is done soon.
                Err(TryLockError::WouldBlock) => thread::sleep(OTHERS_TURN),
            }
        };
        let (state, since_seconds, trouble) = match (&self.disk, condition) {
            _ if unusable.is_some() => (AttachmentState::Unusable, 0, unusable),
            (Some(disk), _) => status::of_disk(disk),
            (None, Some(condition)) => (condition.state, 0, condition.trouble),
            (None, None) => (AttachmentState::Live, 0, None),
        };
        let supervised = self.folder.is_held(Role::Supervisor);
        let unsupervised = "its supervisor is gone: nobody would start it again".to_owned();
        let paths = self.disk.as_ref().map(Disk::paths).unwrap_or_default();
        Status {
            offer: self.offer(),
            state,
            since_seconds,
            trouble: self
                .unbrokered()
                .or(trouble)
                .or((!supervised).then_some(unsupervised))
                .or(self.unsaved()),
            paths: paths.into_iter().map(Into::into).collect(),
            pid: self.folder.pid().filter(|_| supervised),
            server_pid: Some(std::process::id()),
            // Whoever asks can see that for himself.
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

    /// Detaches, unless somebody uses the disk; `force`d, even then. [`DaemonShared::end`] is to
    /// follow.
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
        // Before, as long as it can still be refused.
        self.flush(force)?;
        attached.stop(force)?;
        if let Err(error) = self.flush(force) {
            tracing::error!("after the disk was detached: {error:?}");
        }
        if is_used {
            // Its users may have been waiting for something that is still under way.
            leftover::keep(&self.folder);
        }
        *slot = None;
        Ok(())
    }

    /// The process ends.
    pub(super) fn end(&self) {
        let _ = self.events.lock().unwrap_or_else(PoisonError::into_inner).send(Event::End);
    }

    /// Has everything on its medium that was written; `force`d, if that does not take long.
    fn flush(&self, force: bool) -> Result<(), StopError> {
        let Some(disk) = &self.disk else { return Ok(()) };
        if disk.geometry().read_only {
            return Ok(());
        }
        let patience = if force { FORCED_FLUSH_PATIENCE } else { FLUSH_PATIENCE };
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

    /// It was asked to end. True when it does; else says who is in the way, when that changes.
    fn end_if_unused(&self, before: &mut Vec<String>, channel: &Channel) -> bool {
        let in_the_way = match self.detach(false) {
            Ok(()) => return true,
            Err(StopError::InUse(users)) => users,
            Err(StopError::Failed(sentence)) => vec![sentence],
        };
        if *before != in_the_way {
            let line = format!("ends when nobody uses it any more: {}", in_the_way.join("; "));
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
            // The next flush fails, which its user sees; the log has why.
            Change::Loss | Change::Contents => {}
        }
    }
}

impl DaemonShared {
    /// Has who uses the disk see its size, if that is another one than it was told, or a dead
    /// server may have told it.
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
                tracing::error!("the disk's new size, {bytes} bytes, cannot be shown: {error}");
            }
            Err(error) => tracing::debug!("the disk's size cannot be shown: {error}"),
            Ok(()) => tracing::info!("the disk has {bytes} bytes now"),
        }
        if is_new {
            let offer = self.offer();
            self.saved().offer = offer;
            // Else it is tried again.
            let _ = self.save();
        }
    }
}

fn flush(disk: &Disk, patience: Duration) -> Result<(), String> {
    let unknown = "it is not known that everything that was written is safe";
    match disk.state() {
        DiskState::Waiting => {
            return Err(format!(
                "the disk cannot be reached (farblock list says why), so {unknown}: wait until \
                 it can, or detach with --force"
            ));
        }
        DiskState::Dead => {
            return Err(format!(
                "all paths were given up, so {unknown}, and waiting does not help: detach with \
                 --force, and attach it again"
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
