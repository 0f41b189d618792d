//! Reservations between the registry, which decides, and the cores, which heed it.
//!
//! A change goes to every core as a message. A core sets what the hosts of its connections may do,
//! so that nothing more is begun that must not be, and answers when what it had begun before has
//! ended. When all have answered the change holds, and the command that brought it is completed. So
//! the data path looks at nothing that others write: without reservations it is one branch a
//! command. See decision 24.

use crate::session::ConnectionKey;
use crate::shared::{Message, Route, Shared};
use farblock_proto::capsule::SlotId;
use farblock_proto::controller::{
    AccessChange, AccessKind, HostId, IoCommand, Registry, Request, ReservationRequest,
    Reservations, Rights, SubsystemId, Ticket,
};
use farblock_proto::ids::{ControllerId, NamespaceId, QueueId};
use farblock_reactor::os::{self, JoinHandle};
use farblock_wire::Status;
use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

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
pub(crate) struct Save {
    key: (SubsystemId, NamespaceId),
    serial: u64,
    text: String,
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
    let text = store.load()?;
    let state = Reservations::from_text(&text)
        .ok_or_else(|| io::Error::other("what was kept is damaged"))?;
    registry.keep_reservations(key.0, key.1, state).map_err(io::Error::other)
}

/// The thread that keeps reservations: to make something durable takes longer than a core has.
pub(crate) struct Keeper {
    sender: Mutex<Option<Sender<Save>>>,
}

impl Keeper {
    pub(crate) fn new() -> (Self, Receiver<Save>) {
        let (sender, receiver) = channel();
        (Self { sender: Mutex::new(Some(sender)) }, receiver)
    }

    /// False if nobody keeps anything any more.
    fn post(&self, save: Save) -> bool {
        let sender = self.sender.lock().expect("no holder panics");
        sender.as_ref().is_some_and(|sender| sender.send(save).is_ok())
    }

    /// Lets the thread end when it has done what it was told.
    pub(crate) fn end(&self) {
        self.sender.lock().expect("no holder panics").take();
    }
}

/// Starts the thread.
pub(crate) fn start_keeper(
    shared: Arc<Shared>,
    stores: Stores,
    receiver: Receiver<Save>,
) -> io::Result<JoinHandle<()>> {
    os::spawn("reservations".to_owned(), move || {
        while let Ok(Save { key, serial, text }) = os::recv(&receiver) {
            let saved = stores
                .get(&key)
                .map_or_else(|| Err(io::ErrorKind::NotFound.into()), |store| store.save(&text));
            if let Err(error) = &saved {
                let NamespaceId(nsid) = key.1;
                tracing::error!(namespace = nsid, "reservations cannot be kept: {error}");
            }
            shared.saved(key, serial, saved.is_ok());
        }
    })
}

impl Shared {
    /// Hands a reservation command in. Unless it fails at once, its answer comes as a message.
    pub(crate) fn reserve(
        &self,
        (route, slot): (Route, SlotId),
        (controller, queue): (ControllerId, QueueId),
        namespace: NamespaceId,
        request: Request,
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
        self.keeper.post(Save { key, serial, text })
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
    rights: Vec<(NamespaceId, Rights)>,
}

impl Limits {
    /// `None`: nothing stands in its way.
    pub(crate) fn new(rights: Vec<(NamespaceId, Rights)>) -> Option<Box<Self>> {
        (!rights.is_empty()).then(|| Box::new(Self { rights }))
    }

    pub(crate) fn set(&mut self, namespace: NamespaceId, rights: Rights) {
        self.rights.retain(|(other, _)| *other != namespace);
        if rights != Rights::All {
            self.rights.push((namespace, rights));
        }
    }

    /// Whether a namespace may be read.
    pub(crate) fn check_read(&self, namespace: NamespaceId) -> Result<(), Status> {
        let forbids = |(other, rights): &(NamespaceId, Rights)| {
            *other == namespace && !rights.allow(AccessKind::Read)
        };
        match self.rights.iter().any(forbids) {
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
        let is_meant = |namespace: NamespaceId| {
            meant == namespace || (meant == NamespaceId::ALL && sees(namespace))
        };
        let forbids = |(namespace, rights): &(NamespaceId, Rights)| {
            is_meant(*namespace) && !rights.allow(kind)
        };
        match self.rights.iter().any(forbids) {
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
