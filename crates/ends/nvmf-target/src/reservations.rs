//! Reservations: the registry decides, the cores enforce.
//!
//! Every core receives a change as a message. It sets the new rights of its connections' hosts, so
//! that no forbidden command starts, and replies once the commands started before have ended. When
//! all cores have replied, the change holds, and the reservation command completes. So the data
//! path reads nothing that other cores write: without reservations it costs one branch per command.
//! See decision 23.

use crate::by_namespace::ByNamespace;
use crate::session::ConnectionKey;
use crate::shared::{Message, Route, TargetShared};
use farblock_proto::capsule::SlotId;
use farblock_proto::controller::{
    AccessChange, AccessKind, HostId, IoCommand, KeyedCommand, Registry, ReservationRequest,
    Reservations, Rights, SubsystemId, Ticket,
};
use farblock_proto::ids::{ControllerId, NamespaceId, QueueId};
use farblock_reactor::os::{self, JoinHandle};
use farblock_wire::Status;
use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};

/// Durable storage for a namespace's reservations, so that they persist through power loss. It
/// stores one text, empty at first.
pub trait ReservationStore: Send + Sync {
    /// The text stored last.
    ///
    /// # Errors
    /// If it cannot be read.
    fn load(&self) -> io::Result<String>;

    /// Replaces the stored text. It is durable on return, and a power loss at any time leaves
    /// either the old or the new text. May block.
    ///
    /// # Errors
    /// If it could not be made durable; either text may be stored then.
    fn save(&self, text: &str) -> io::Result<()>;
}

/// Reservation stores by namespace.
pub(crate) type Stores = HashMap<(SubsystemId, NamespaceId), Arc<dyn ReservationStore>>;

/// Pending requests to the registry, and changes that cores have yet to apply.
#[derive(Default)]
pub(crate) struct Desk {
    next_ticket: u64,
    /// The commands that wait for an answer.
    tickets: HashMap<Ticket, (Route, SlotId)>,
    /// Changes that some cores have not applied, and the number of those cores.
    spreading: HashMap<u64, (usize, SubsystemId, NamespaceId)>,
}

/// A request to the keeper thread.
struct Save {
    key: (SubsystemId, NamespaceId),
    serial: u64,
    text: String,
    /// Its store, even if the number means another namespace by then.
    store: Arc<dyn ReservationStore>,
}

/// Loads the stored reservations into the registry.
///
/// # Errors
/// If they cannot be used: better no target than one that admits fenced hosts.
pub(crate) fn load(
    registry: &mut Registry,
    key: (SubsystemId, NamespaceId),
    store: &dyn ReservationStore,
) -> io::Result<()> {
    registry.keep_reservations(key.0, key.1, read(store)?).map_err(io::Error::other)
}

/// Reads a namespace's stored reservations.
///
/// # Errors
/// If they cannot be used.
pub(crate) fn read(store: &dyn ReservationStore) -> io::Result<Reservations> {
    let text = store.load()?;
    Reservations::from_text(&text).ok_or_else(|| io::Error::other("what was kept is damaged"))
}

/// The thread that stores reservations, since making data durable would block a core.
pub(crate) struct Keeper(Mutex<Keeping>);

struct Keeping {
    stores: Stores,
    /// `None` once the keeper has stopped.
    sender: Option<Sender<Save>>,
    /// Set until the thread starts: only targets with stored reservations start it.
    receiver: Option<Receiver<Save>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    pub(crate) fn new() -> Self {
        let (sender, receiver) = channel();
        let (sender, receiver) = (Some(sender), Some(receiver));
        Self(Mutex::new(Keeping { stores: Stores::new(), sender, receiver, thread: None }))
    }

    fn lock(&self) -> MutexGuard<'_, Keeping> {
        self.0.lock().expect("no holder panics")
    }

    /// Sets the store of a namespace's reservations.
    pub(crate) fn keep_in(
        &self,
        key: (SubsystemId, NamespaceId),
        store: Arc<dyn ReservationStore>,
    ) {
        self.lock().stores.insert(key, store);
    }

    /// Removes a namespace; its stored reservations remain.
    pub(crate) fn forget(&self, key: (SubsystemId, NamespaceId)) {
        // It may own an open file: close that without the lock.
        let forgotten = self.lock().stores.remove(&key);
        drop(forgotten);
    }

    /// Queues a save; false if the namespace has no store.
    fn post(&self, key: (SubsystemId, NamespaceId), serial: u64, text: String) -> bool {
        let keeping = self.lock();
        let (Some(store), Some(sender)) = (keeping.stores.get(&key), &keeping.sender) else {
            return false;
        };
        sender.send(Save { key, serial, text, store: Arc::clone(store) }).is_ok()
    }

    /// Lets the thread finish its queue, and returns it to be joined.
    pub(crate) fn end(&self) -> Option<JoinHandle<()>> {
        let mut keeping = self.lock();
        keeping.sender.take();
        keeping.thread.take()
    }
}

impl TargetShared {
    /// Starts the thread, if it is not running.
    pub(crate) fn start_keeper(self: &Arc<Self>) -> io::Result<()> {
        let Some(receiver) = self.keeper.lock().receiver.take() else { return Ok(()) };
        let shared = Arc::clone(self);
        let thread = os::spawn("reservations".to_owned(), move || {
            while let Ok(Save { key, serial, text, store }) = os::recv(&receiver) {
                let saved = match os::has_mistake("target: reservations are not kept") {
                    true => Ok(()),
                    false => store.save(&text),
                };
                if let Err(error) = &saved {
                    let NamespaceId(nsid) = key.1;
                    tracing::error!(namespace = nsid, "reservations cannot be kept: {error}");
                }
                shared.saved(key, serial, saved.is_ok());
            }
        })?;
        self.keeper.lock().thread = Some(thread);
        Ok(())
    }
}

impl TargetShared {
    /// Submits a reservation command. Unless it fails at once, the answer arrives as a message.
    pub(crate) fn reserve(
        &self,
        (route, slot): (Route, SlotId),
        (controller, queue): (ControllerId, QueueId),
        namespace: NamespaceId,
        request: KeyedCommand,
    ) -> Result<(), Status> {
        let mut management = self.lock();
        let desk = &mut management.desk;
        let ticket = Ticket(desk.next_ticket);
        desk.next_ticket += 1;
        desk.tickets.insert(ticket, (route, slot));
        let asked = ReservationRequest { ticket, controller, queue, namespace, request };
        let done = management.registry.reserve(&asked);
        if done.is_err() {
            management.desk.tickets.remove(&ticket);
        }
        self.act(&mut management);
        done
    }

    /// Drops the pending answers of a closed queue.
    pub(crate) fn forget_tickets(desk: &mut Desk, route: Route) {
        desk.tickets.retain(|_, (waiting, _)| *waiting != route);
    }

    /// Answers a reservation command.
    pub(crate) fn answer(
        &self,
        desk: &mut Desk,
        ticket: Ticket,
        status: Status,
        report: Option<Vec<u8>>,
    ) {
        if let Some((route, slot)) = desk.tickets.remove(&ticket) {
            let message = Message::Reserved { route, slot, status, report };
            self.mailboxes()[route.core].post(message);
        }
    }

    /// Sends a change to every core.
    pub(crate) fn spread(&self, desk: &mut Desk, change: &Arc<AccessChange>) {
        let cores = self.mailboxes().len();
        desk.spreading.insert(change.serial, (cores, change.subsystem, change.namespace));
        for mailbox in self.mailboxes() {
            mailbox.post(Message::Access(Arc::clone(change)));
        }
    }

    /// A core has applied a change, and the commands that it forbids have ended there.
    pub(crate) fn applied(&self, serial: u64) {
        let mut management = self.lock();
        let Some((left, subsystem, namespace)) = management.desk.spreading.get_mut(&serial) else {
            return;
        };
        *left -= 1;
        let key = (*subsystem, *namespace);
        if *left == 0 {
            management.desk.spreading.remove(&serial);
            management.registry.access_spread(key.0, key.1, serial);
            self.act(&mut management);
        }
    }

    /// Stores a namespace's reservations.
    pub(crate) fn save(&self, key: (SubsystemId, NamespaceId), serial: u64, text: String) -> bool {
        self.keeper.post(key, serial, text)
    }

    fn saved(&self, (subsystem, namespace): (SubsystemId, NamespaceId), serial: u64, done: bool) {
        let mut management = self.lock();
        management.registry.reservations_saved(subsystem, namespace, serial, done);
        self.act(&mut management);
    }
}

/// The accesses that reservations deny to a connection's host.
#[derive(Default)]
pub(crate) struct Limits {
    rights: ByNamespace<Rights>,
}

impl Limits {
    /// `None`: no access is denied.
    pub(crate) fn new(rights: Vec<(NamespaceId, Rights)>) -> Option<Box<Self>> {
        (!rights.is_empty()).then(|| Box::new(Self { rights: rights.into_iter().collect() }))
    }

    pub(crate) fn set(&mut self, namespace: NamespaceId, rights: Rights) {
        match rights {
            Rights::All => self.rights.remove(namespace),
            rights => self.rights.set(namespace, rights),
        }
    }

    /// Whether a namespace may be read.
    pub(crate) fn check_read(&self, namespace: NamespaceId) -> Result<(), Status> {
        let forbids = |rights: &Rights| !rights.allow(AccessKind::Read);
        match self.rights.find(namespace).is_some_and(forbids) {
            true => Err(Status::RESERVATION_CONFLICT.with_dnr()),
            false => Ok(()),
        }
    }

    /// Whether a command is allowed. One for all namespaces must be allowed on each that its host
    /// sees.
    pub(crate) fn check(
        &self,
        command: &IoCommand,
        sees: impl Fn(NamespaceId) -> bool,
    ) -> Result<(), Status> {
        let (Some(kind), Some(meant)) = (command.access(), command.namespace()) else {
            return Ok(());
        };
        let forbids = |rights: &Rights| !rights.allow(kind);
        let mut all = self.rights.iter();
        let is_forbidden = match meant {
            NamespaceId::ALL => all.any(|(id, rights)| sees(*id) && forbids(rights)),
            meant => self.rights.find(meant).is_some_and(forbids),
        };
        match is_forbidden {
            true => Err(Status::RESERVATION_CONFLICT.with_dnr()),
            false => Ok(()),
        }
    }
}

/// The host of a connection for reservations, even after its queue has closed.
pub(crate) struct Owner {
    pub(crate) subsystem: SubsystemId,
    pub(crate) host: HostId,
}

/// A command with block operations under way.
pub(crate) type UnderWay = (ConnectionKey, SlotId);

/// Changes that a core applies, each with the earlier commands that it waits for.
pub(crate) struct Barriers<K> {
    barriers: Vec<(K, Vec<UnderWay>)>,
}

impl<K> Default for Barriers<K> {
    fn default() -> Self {
        Self { barriers: Vec::new() }
    }
}

impl<K: PartialEq> Barriers<K> {
    /// Whether any change waits.
    pub(crate) fn is_up(&self) -> bool {
        !self.barriers.is_empty()
    }

    /// Adds a change with the commands that it must wait for.
    pub(crate) fn put_up(&mut self, key: K, under_way: Vec<UnderWay>) {
        self.barriers.push((key, under_way));
    }

    /// Drops a change.
    pub(crate) fn forget(&mut self, key: &K) {
        self.barriers.retain(|(other, _)| other != key);
    }

    /// A command's operations have all ended: returns the changes that waited only for it.
    pub(crate) fn ended(&mut self, command: UnderWay) -> Vec<K> {
        let is_over = |(_, under_way): &mut (K, Vec<UnderWay>)| {
            under_way.retain(|other| *other != command);
            under_way.is_empty()
        };
        self.barriers.extract_if(.., is_over).map(|(key, _)| key).collect()
    }
}
