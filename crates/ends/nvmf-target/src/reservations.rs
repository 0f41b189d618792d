//! Reservations between the registry, which decides, and the cores, which heed it.
//!
//! A change goes to every core as a message. A core sets what the hosts of its connections may do,
//! so that nothing more is begun that must not be, and answers when what it had begun before has
//! ended. When all have answered the change holds, and the command that brought it is completed. So
//! the data path looks at nothing that others write: without reservations it is one branch a
//! command. See decision 23.

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

/// Where a namespace's reservations are kept while nothing runs, so that they persist through a
/// power loss. It holds one text, which is empty in the beginning.
pub trait ReservationStore: Send + Sync {
    /// What was kept last.
    ///
    /// # Errors
    /// If it cannot be read.
    fn load(&self) -> io::Result<String>;

    /// Keeps `text` in place of what was kept before: when this returns it is durable, and a power
    /// loss at any moment leaves the one or the other. May block.
    ///
    /// # Errors
    /// If it could not be made durable; then either may be there.
    fn save(&self, text: &str) -> io::Result<()>;
}

/// Stores, by what they are of.
pub(crate) type Stores = HashMap<(SubsystemId, NamespaceId), Arc<dyn ReservationStore>>;

/// What the registry has been asked, and what the cores have.
#[derive(Default)]
pub(crate) struct Desk {
    next_ticket: u64,
    /// Whose commands wait for an answer.
    tickets: HashMap<Ticket, (Route, SlotId)>,
    /// Changes that not every core heeds yet, and how many do not.
    spreading: HashMap<u64, (usize, SubsystemId, NamespaceId)>,
}

/// Something for the thread that keeps reservations.
struct Save {
    key: (SubsystemId, NamespaceId),
    serial: u64,
    text: String,
    /// Where it belongs, whatever is there under this number by then.
    store: Arc<dyn ReservationStore>,
}

/// What is kept, to begin with.
///
/// # Errors
/// Why it cannot be used: better no target than one that lets in who was fenced.
pub(crate) fn load(
    registry: &mut Registry,
    key: (SubsystemId, NamespaceId),
    store: &dyn ReservationStore,
) -> io::Result<()> {
    registry.keep_reservations(key.0, key.1, read(store)?).map_err(io::Error::other)
}

/// What was kept of a namespace's reservations.
///
/// # Errors
/// Why it cannot be used.
pub(crate) fn read(store: &dyn ReservationStore) -> io::Result<Reservations> {
    let text = store.load()?;
    Reservations::from_text(&text).ok_or_else(|| io::Error::other("what was kept is damaged"))
}

/// The thread that keeps reservations: to make something durable takes longer than a core has.
pub(crate) struct Keeper(Mutex<Keeping>);

struct Keeping {
    stores: Stores,
    /// None when nobody keeps anything any more.
    sender: Option<Sender<Save>>,
    /// Until there is a thread: only a target that keeps something has one.
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

    /// From now on a namespace's reservations are kept there.
    pub(crate) fn keep_in(
        &self,
        key: (SubsystemId, NamespaceId),
        store: Arc<dyn ReservationStore>,
    ) {
        self.lock().stores.insert(key, store);
    }

    /// A namespace is gone; what was kept of it stays.
    pub(crate) fn forget(&self, key: (SubsystemId, NamespaceId)) {
        // It may hold a file open, which is closed when nobody waits for us.
        let forgotten = self.lock().stores.remove(&key);
        drop(forgotten);
    }

    /// False if nobody keeps this.
    fn post(&self, key: (SubsystemId, NamespaceId), serial: u64, text: String) -> bool {
        let keeping = self.lock();
        let (Some(store), Some(sender)) = (keeping.stores.get(&key), &keeping.sender) else {
            return false;
        };
        sender.send(Save { key, serial, text, store: Arc::clone(store) }).is_ok()
    }

    /// Lets the thread end when it has done what it was told, and gives it to be waited for.
    pub(crate) fn end(&self) -> Option<JoinHandle<()>> {
        let mut keeping = self.lock();
        keeping.sender.take();
        keeping.thread.take()
    }
}

impl TargetShared {
    /// Starts the thread, if there is none.
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
    /// Hands a reservation command in. Unless it fails at once, its answer comes as a message.
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

    /// A queue is closed: nobody waits for its answers.
    pub(crate) fn forget_tickets(desk: &mut Desk, route: Route) {
        desk.tickets.retain(|_, (waiting, _)| *waiting != route);
    }

    /// The answer to a reservation command.
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

    /// Tells every core.
    pub(crate) fn spread(&self, desk: &mut Desk, change: &Arc<AccessChange>) {
        let cores = self.mailboxes().len();
        desk.spreading.insert(change.serial, (cores, change.subsystem, change.namespace));
        for mailbox in self.mailboxes() {
            mailbox.post(Message::Access(Arc::clone(change)));
        }
    }

    /// A core heeds a change, and what that forbids has ended there.
    pub(crate) fn heeded(&self, serial: u64) {
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

    /// Has a namespace's reservations made durable.
    pub(crate) fn save(&self, key: (SubsystemId, NamespaceId), serial: u64, text: String) -> bool {
        self.keeper.post(key, serial, text)
    }

    fn saved(&self, (subsystem, namespace): (SubsystemId, NamespaceId), serial: u64, done: bool) {
        let mut management = self.lock();
        management.registry.reservations_saved(subsystem, namespace, serial, done);
        self.act(&mut management);
    }
}

/// What a connection's host may not do with namespaces that others have reserved.
#[derive(Default)]
pub(crate) struct Limits {
    rights: ByNamespace<Rights>,
}

impl Limits {
    /// `None`: nothing stands in its way.
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

    /// Whether a command is carried out. One for all namespaces is, if it is for each that its host
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

/// Whose a connection is, as reservations see it, even when its queue is closed.
pub(crate) struct Owner {
    pub(crate) subsystem: SubsystemId,
    pub(crate) host: HostId,
}

/// A command that has block operations under way.
pub(crate) type UnderWay = (ConnectionKey, SlotId);

/// What a core heeds, and what had been begun before that it waits for.
pub(crate) struct Barriers<K> {
    barriers: Vec<(K, Vec<UnderWay>)>,
}

impl<K> Default for Barriers<K> {
    fn default() -> Self {
        Self { barriers: Vec::new() }
    }
}

impl<K: PartialEq> Barriers<K> {
    /// Whether anything is waited for.
    pub(crate) fn is_up(&self) -> bool {
        !self.barriers.is_empty()
    }

    /// What a change has to wait for.
    pub(crate) fn put_up(&mut self, key: K, under_way: Vec<UnderWay>) {
        self.barriers.push((key, under_way));
    }

    /// Nobody waits for this any more.
    pub(crate) fn forget(&mut self, key: &K) {
        self.barriers.retain(|(other, _)| other != key);
    }

    /// A command has no operations under way any more: gives what waited for nothing else.
    pub(crate) fn ended(&mut self, command: UnderWay) -> Vec<K> {
        let is_over = |(_, under_way): &mut (K, Vec<UnderWay>)| {
            under_way.retain(|other| *other != command);
            under_way.is_empty()
        };
        self.barriers.extract_if(.., is_over).map(|(key, _)| key).collect()
    }
}
