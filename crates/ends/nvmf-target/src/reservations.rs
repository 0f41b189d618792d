//! Reservations. The [registry](farblock_proto::controller::Registry) decides which host may access
//! a namespace, and the cores enforce the decision.
//!
//! Every core receives a change as a message. The core sets the new rights of its connections'
//! hosts, so that it starts no forbidden command. It replies once the forbidden commands that had
//! already started have ended. When all cores have replied, the change is in effect, and the
//! reservation command completes. So the data path reads no memory that other cores write. For a
//! namespace without reservations, the check costs one branch per command. See decision 23.

use crate::by_namespace::ByNamespace;
use crate::route::ConnectionKey;
use crate::route::Route;
use farblock_proto::capsule::SlotId;
use farblock_proto::controller::{
    AccessKind, HostId, IoCommand, Registry, Reservations, Rights, SharedProposal, SubsystemId,
    Ticket,
};
use farblock_proto::ids::NamespaceId;
use farblock_reactor::os::{self, JoinHandle};
use farblock_wire::Status;
use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};

/// Durable storage for a namespace's reservations, which makes them persist through power loss. It
/// stores a single text, which is empty at first.
pub trait ReservationStore: Send + Sync {
    /// Returns the text that was last stored.
    ///
    /// # Errors
    /// Fails if the store cannot read the text.
    fn load(&self) -> io::Result<String>;

    /// Replaces the stored text. The text is durable when this function returns. After a power loss
    /// at any time, the store contains either the old or the new text. The call may block.
    ///
    /// # Errors
    /// Fails if the store could not make the text durable. The store then contains either the old
    /// or the new text.
    fn save(&self, text: &str) -> io::Result<()>;
}

/// The group of targets with which a target shares the reservations of a namespace. The target
/// calls these functions with a lock held: they must not block, and must not call the target.
pub trait SharedReservations: Send + Sync {
    /// Asks the group for the last change that is in force. Pass the answer, with the number
    /// `serial`, to
    /// [`Control::answer_shared_reservations`](crate::Control::answer_shared_reservations).
    fn consult(&self, serial: u64);

    /// Proposes a change to the group. Pass the answer as for [`Self::consult`].
    fn propose(&self, proposal: SharedProposal);

    /// Reports that all changes up to `index` are in force on every core, and that all commands
    /// that they forbid have ended.
    fn applied(&self, index: u64);
}

pub(crate) type Stores = HashMap<(SubsystemId, NamespaceId), Arc<dyn ReservationStore>>;

/// The reservation commands that wait for the registry, and the changes that some cores have not
/// applied yet.
#[derive(Default)]
pub(crate) struct Desk {
    pub(crate) next_ticket: u64,
    /// The reservation commands that wait for the registry's answer.
    pub(crate) tickets: HashMap<Ticket, (Route, SlotId)>,
    /// The changes that some cores have not applied yet, by serial number. The `usize` is the
    /// number of those cores.
    pub(crate) spreading: HashMap<u64, (usize, SubsystemId, NamespaceId)>,
}

/// A job for the thread of the [`Keeper`]: make the reservations of a namespace durable.
struct Save {
    key: (SubsystemId, NamespaceId),
    serial: u64,
    text: String,
    /// The namespace's reservation store at the time when the job was queued. When the thread
    /// executes the job, the namespace number may already belong to another namespace.
    store: Arc<dyn ReservationStore>,
}

/// Loads the stored reservations into the registry.
///
/// # Errors
/// Fails if the target cannot use the stored reservations. The target must not start without them,
/// since it would then admit fenced hosts.
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
/// Fails if the store cannot read them, or they are damaged.
pub(crate) fn read(store: &dyn ReservationStore) -> io::Result<Reservations> {
    let text = store.load()?;
    Reservations::from_text(&text)
        .ok_or_else(|| io::Error::other("the stored reservations are damaged"))
}

/// The thread that stores reservations. A core must not store them, since making data durable
/// blocks.
pub(crate) struct Keeper(Mutex<Keeping>);

struct Keeping {
    stores: Stores,
    shared: HashMap<(SubsystemId, NamespaceId), Arc<dyn SharedReservations>>,
    /// `None` once the keeper has stopped.
    sender: Option<Sender<Save>>,
    /// `Some` until the thread starts. Only targets with stored reservations start the thread.
    receiver: Option<Receiver<Save>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    pub(crate) fn new() -> Self {
        let (sender, receiver) = channel();
        let (sender, receiver) = (Some(sender), Some(receiver));
        let (stores, shared) = (Stores::new(), HashMap::new());
        Self(Mutex::new(Keeping { stores, shared, sender, receiver, thread: None }))
    }

    /// Shares the reservations of a namespace with a group of targets.
    pub(crate) fn share_with(
        &self,
        key: (SubsystemId, NamespaceId),
        group: Arc<dyn SharedReservations>,
    ) {
        self.lock().shared.insert(key, group);
    }

    /// Returns the group with which the target shares the reservations of a namespace, if any.
    pub(crate) fn group(
        &self,
        key: (SubsystemId, NamespaceId),
    ) -> Option<Arc<dyn SharedReservations>> {
        self.lock().shared.get(&key).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Keeping> {
        self.0.lock().expect("no holder panics")
    }

    pub(crate) fn keep_in(
        &self,
        key: (SubsystemId, NamespaceId),
        store: Arc<dyn ReservationStore>,
    ) {
        self.lock().stores.insert(key, store);
    }

    /// Removes a namespace; its stored reservations remain.
    pub(crate) fn forget(&self, key: (SubsystemId, NamespaceId)) {
        // The store may own an open file. Drop the store without holding the lock, since the file
        // closes then.
        let forgotten = self.lock().stores.remove(&key);
        drop(forgotten);
    }

    /// Queues a save. Returns false if the namespace has no store.
    pub(crate) fn post(&self, key: (SubsystemId, NamespaceId), serial: u64, text: String) -> bool {
        let keeping = self.lock();
        let (Some(store), Some(sender)) = (keeping.stores.get(&key), &keeping.sender) else {
            return false;
        };
        sender.send(Save { key, serial, text, store: Arc::clone(store) }).is_ok()
    }

    /// Starts the thread, if it is not running. After each save, the thread calls `saved` with the
    /// namespace, the serial number, and whether the text is durable.
    pub(crate) fn start(
        &self,
        saved: impl Fn((SubsystemId, NamespaceId), u64, bool) + Send + 'static,
    ) -> io::Result<()> {
        let Some(receiver) = self.lock().receiver.take() else { return Ok(()) };
        let thread = os::spawn("reservations".to_owned(), move || {
            while let Ok(Save { key, serial, text, store }) = os::recv(&receiver) {
                let result = match os::has_mistake("target: reservations are not stored") {
                    true => Ok(()),
                    false => store.save(&text),
                };
                if let Err(error) = &result {
                    let NamespaceId(nsid) = key.1;
                    tracing::error!(namespace = nsid, "cannot store the reservations: {error}");
                }
                saved(key, serial, result.is_ok());
            }
        })?;
        self.lock().thread = Some(thread);
        Ok(())
    }

    /// Makes the thread finish its queue and end. Returns the thread's handle for joining.
    pub(crate) fn end(&self) -> Option<JoinHandle<()>> {
        let mut keeping = self.lock();
        keeping.sender.take();
        keeping.thread.take()
    }
}

/// By namespace: the accesses that other hosts' reservations deny to the host of a connection.
#[derive(Default)]
pub(crate) struct Limits {
    rights: ByNamespace<Rights>,
}

impl Limits {
    /// Returns the limits; `None` if reservations deny no access.
    pub(crate) fn new(rights: Vec<(NamespaceId, Rights)>) -> Option<Box<Self>> {
        (!rights.is_empty()).then(|| Box::new(Self { rights: rights.into_iter().collect() }))
    }

    pub(crate) fn set(&mut self, namespace: NamespaceId, rights: Rights) {
        match rights {
            Rights::All => self.rights.remove(namespace),
            rights => self.rights.set(namespace, rights),
        }
    }

    pub(crate) fn check_read(&self, namespace: NamespaceId) -> Result<(), Status> {
        let forbids = |rights: &Rights| !rights.allow(AccessKind::Read);
        match self.rights.find(namespace).is_some_and(forbids) {
            true => Err(Status::RESERVATION_CONFLICT.with_dnr()),
            false => Ok(()),
        }
    }

    /// Checks whether a command is allowed. A command for all namespaces must be allowed on every
    /// namespace that its host sees.
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

/// The subsystem and host of a connection, for reservations. A session keeps its `Owner` even after
/// its queue has closed.
pub(crate) struct Owner {
    pub(crate) subsystem: SubsystemId,
    pub(crate) host: HostId,
}

/// A command with block operations under way.
pub(crate) type UnderWay = (ConnectionKey, SlotId);

/// The changes (of reservations or claims) that a core is applying. Each has the list of earlier
/// commands that must end before the change takes effect.
pub(crate) struct Barriers<K> {
    barriers: Vec<(K, Vec<UnderWay>)>,
}

impl<K> Default for Barriers<K> {
    fn default() -> Self {
        Self { barriers: Vec::new() }
    }
}

impl<K: PartialEq> Barriers<K> {
    pub(crate) fn is_up(&self) -> bool {
        !self.barriers.is_empty()
    }

    /// Adds a change, and the commands that must end before the core reports the change as applied.
    pub(crate) fn put_up(&mut self, key: K, under_way: Vec<UnderWay>) {
        self.barriers.push((key, under_way));
    }

    pub(crate) fn forget(&mut self, key: &K) {
        self.barriers.retain(|(other, _)| other != key);
    }

    /// Notes that all operations of a command have ended. Returns the changes for which this was
    /// the last command to end.
    pub(crate) fn ended(&mut self, command: UnderWay) -> Vec<K> {
        let is_over = |(_, under_way): &mut (K, Vec<UnderWay>)| {
            under_way.retain(|other| *other != command);
            under_way.is_empty()
        };
        self.barriers.extract_if(.., is_over).map(|(key, _)| key).collect()
    }
}
