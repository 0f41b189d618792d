//! The running target, as what takes steps.

use farblock_backends::file::FileDisk;
use farblock_block::Namespace as Store;
use farblock_proto::controller::{AddressFamily, Referral};
use farblock_proto::ids::NamespaceId;
use farblock_state::{Namespace, Running, Step};
use farblock_target::{Control, Export, Removal, Subsystem};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How long a namespace's last operations are waited for; what takes longer goes on by itself, but
/// its file stays locked until then.
const DRAIN_TIME: Duration = Duration::from_secs(10);

/// What stores a namespace, opened.
#[derive(Clone)]
pub struct Opened {
    /// What the target shares.
    pub namespace: Arc<dyn Store>,
    /// The same, if it is a file or a device, and nothing around it.
    pub file: Option<Arc<FileDisk>>,
    /// What tells it from all other disks.
    pub identity: String,
}

/// Opens what a document names.
pub trait Open: Send {
    /// Opens what stores a namespace.
    ///
    /// # Errors
    /// One sentence.
    fn open(&mut self, namespace: &Namespace) -> Result<Opened, String>;

    /// Whether hosts may have it while the target runs, if it was not shared before.
    ///
    /// # Errors
    /// One sentence that says why not.
    fn may_be_added(&self, _namespace: &Namespace) -> Result<(), String> {
        Ok(())
    }
}

/// What stores the namespaces, by subsystem and identifier.
pub type Disks = BTreeMap<(String, u32), Opened>;

/// See the module's text.
pub(crate) struct Live {
    pub(crate) control: Control,
    opener: Box<dyn Open>,
    disks: Disks,
    /// What earlier steps of the change took away, until it is over.
    parked: Vec<Opened>,
}

/// What it takes to take a step back.
pub(crate) enum Undo {
    Step(Step),
    /// The namespace that was removed, and as what.
    Removed(String, u32, Namespace, Opened),
    /// The namespace that was changed, as it was, and what stored it if that was opened anew.
    Changed(String, u32, Namespace, Option<Opened>),
}

impl Live {
    pub(crate) fn new(control: Control, opener: Box<dyn Open>, disks: Disks) -> Self {
        Self { control, opener, disks, parked: Vec::new() }
    }

    /// A change is over: what it took away is given up.
    pub(crate) fn settle(&mut self) {
        self.parked.clear();
    }

    /// Opens what stores a namespace. A file may be in the way of its own new place.
    fn open(&mut self, namespace: &Namespace, instead: Option<&Opened>) -> Result<Opened, String> {
        let in_the_way: Vec<_> =
            self.parked.iter().chain(instead).filter_map(|opened| opened.file.clone()).collect();
        // Only those of the same name: another program may want the others.
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let name = namespace.path.strip_prefix("file:").unwrap_or(&namespace.path);
        let wanted = absolute(Path::new(name));
        let is_it = |file: &&Arc<FileDisk>| absolute(file.path()) == wanted;
        let unlocked: Vec<_> = in_the_way.iter().filter(is_it).collect();
        unlocked.iter().for_each(|file| file.unlock());
        let opened = self.opener.open(namespace).and_then(|mut opened| {
            if let (Some(file), Some(size)) = (&opened.file, namespace.size) {
                file.lengthen(size).map_err(|error| error.to_string())?;
            }
            if let Some(uuid) = namespace.uuid {
                opened.identity = uuid.to_string();
            }
            let is_shared = |other: &Opened| other.identity == opened.identity;
            let instead = instead.is_some_and(is_shared);
            if !instead && self.disks.values().any(is_shared) {
                // To a host, those of two subsystems are two disks.
                opened.identity.push_str(" once more");
            }
            Ok(opened)
        });
        if opened.is_err() {
            for file in unlocked {
                if let Err(error) = file.lock() {
                    tracing::warn!("a file was taken by another program meanwhile: {error}");
                }
            }
        }
        opened
    }

    fn add(
        &mut self,
        nqn: &str,
        nsid: u32,
        namespace: &Namespace,
        opened: Opened,
    ) -> Result<(), String> {
        self.opener.may_be_added(namespace)?;
        let id = NamespaceId(nsid);
        let blocks = blocks(namespace);
        let has = opened.namespace.geometry().blocks;
        if let Some(wanted) = blocks.filter(|blocks| *blocks > has) {
            return Err(too_small(&opened, wanted, has));
        }
        let said = |error: farblock_target::ChangeError| error.to_string();
        self.control.add_namespace(nqn, id, &export(&opened)).map_err(said)?;
        if blocks.is_some_and(|blocks| blocks < has) {
            self.control.resize_namespace(nqn, id, blocks).map_err(said)?;
        }
        if namespace.read_only && !opened.namespace.geometry().read_only {
            self.control.set_read_only(nqn, id, true).map_err(said)?;
        }
        self.disks.insert((nqn.to_owned(), nsid), opened);
        Ok(())
    }

    fn remove(&mut self, nqn: &str, nsid: u32) -> Result<Opened, String> {
        let removal = self.control.remove_namespace(nqn, NamespaceId(nsid));
        drain(removal.map_err(|error| error.to_string())?);
        Ok(self.disks.remove(&(nqn.to_owned(), nsid)).expect("what is shared is known"))
    }

    /// Puts another store behind a namespace.
    fn replace(&mut self, nqn: &str, nsid: u32, new: Opened) -> Result<Opened, String> {
        let removal = self.control.replace_namespace(nqn, NamespaceId(nsid), &export(&new));
        drain(removal.map_err(|error| error.to_string())?);
        let old = self.disks.insert((nqn.to_owned(), nsid), new);
        Ok(old.expect("what is shared is known"))
    }

    fn change(&mut self, nqn: &str, nsid: u32, from: &Namespace, to: &Namespace) -> Taken {
        let key = (nqn.to_owned(), nsid);
        let opened = self.disks.get(&key).expect("what is shared is known").clone();
        let mut undo = Undo::Changed(nqn.to_owned(), nsid, from.clone(), None);
        if !to.read_only && opened.namespace.geometry().read_only {
            let new = self.open(to, Some(&opened))?;
            let old = self.replace(nqn, nsid, new)?;
            undo = Undo::Changed(nqn.to_owned(), nsid, from.clone(), Some(old));
        }
        match self.shape(nqn, nsid, to) {
            Ok(()) => Ok(undo),
            Err(reason) => match self.take_back(undo) {
                Ok(()) => Err(reason),
                Err(left) => Err(format!("{reason}; and this could not be taken back: {left}")),
            },
        }
    }

    /// Gives a namespace the size and the protection that it is to have.
    pub(crate) fn shape(&mut self, nqn: &str, nsid: u32, to: &Namespace) -> Result<(), String> {
        let id = NamespaceId(nsid);
        let opened = &self.disks[&(nqn.to_owned(), nsid)];
        if let Some(file) = &opened.file {
            let measured = match to.size {
                Some(size) => file.lengthen(size),
                None => file.measure(),
            };
            measured.map_err(|error| error.to_string())?;
        }
        let has = opened.namespace.geometry().blocks;
        if let Some(wanted) = blocks(to).filter(|blocks| *blocks > has) {
            return Err(too_small(opened, wanted, has));
        }
        let said = |error: farblock_target::ChangeError| error.to_string();
        self.control.resize_namespace(nqn, id, blocks(to)).map_err(said)?;
        self.control.set_read_only(nqn, id, to.read_only).map_err(said)
    }

    fn take_simple(&mut self, step: &Step) -> Result<Step, String> {
        let said = |error: farblock_target::ChangeError| error.to_string();
        let control = &self.control;
        Ok(match step.clone() {
            Step::AddListener(address) => {
                control.listen(address).map_err(said)?;
                Step::RemoveListener(address)
            }
            Step::RemoveListener(address) => {
                control.unlisten(address).map_err(said)?;
                Step::AddListener(address)
            }
            Step::AddReferral(address) => {
                control.add_referral(&referral(address)).map_err(said)?;
                Step::RemoveReferral(address)
            }
            Step::RemoveReferral(address) => {
                control.remove_referral(&referral(address)).map_err(said)?;
                Step::AddReferral(address)
            }
            Step::AddSubsystem { nqn, subsystem } => {
                control.add_subsystem(&offered(&nqn, &subsystem)).map_err(said)?;
                Step::RemoveSubsystem { nqn, subsystem }
            }
            Step::RemoveSubsystem { nqn, subsystem } => {
                control.remove_subsystem(&nqn).map_err(said)?;
                Step::AddSubsystem { nqn, subsystem }
            }
            Step::AllowHost { nqn, host } => {
                control.allow_host(&nqn, &host).map_err(said)?;
                Step::DisallowHost { nqn, host }
            }
            Step::DisallowHost { nqn, host } => {
                control.disallow_host(&nqn, &host).map_err(said)?;
                Step::AllowHost { nqn, host }
            }
            Step::AllowAnyHost { nqn, allow } => {
                control.set_allow_any_host(&nqn, allow).map_err(said)?;
                Step::AllowAnyHost { nqn, allow: !allow }
            }
            Step::AddNamespace { .. }
            | Step::RemoveNamespace { .. }
            | Step::ChangeNamespace { .. } => unreachable!("taken by the caller"),
        })
    }
}

type Taken = Result<Undo, String>;

impl Running for Live {
    type Undo = Undo;

    fn take(&mut self, step: &Step) -> Taken {
        match step {
            Step::AddNamespace { nqn, nsid, namespace } => {
                let opened = self.open(namespace, None)?;
                self.add(nqn, *nsid, namespace, opened)?;
                let (nqn, namespace) = (nqn.clone(), namespace.clone());
                Ok(Undo::Step(Step::RemoveNamespace { nqn, nsid: *nsid, namespace }))
            }
            Step::RemoveNamespace { nqn, nsid, namespace } => {
                let opened = self.remove(nqn, *nsid)?;
                self.parked.push(opened.clone());
                Ok(Undo::Removed(nqn.clone(), *nsid, namespace.clone(), opened))
            }
            Step::ChangeNamespace { nqn, nsid, from, to } => self.change(nqn, *nsid, from, to),
            step => self.take_simple(step).map(Undo::Step),
        }
    }

    fn take_back(&mut self, undo: Undo) -> Result<(), String> {
        match undo {
            Undo::Step(Step::RemoveNamespace { nqn, nsid, .. }) => {
                self.remove(&nqn, nsid).map(drop)
            }
            Undo::Step(step) => self.take_simple(&step).map(drop),
            Undo::Removed(nqn, nsid, namespace, opened) => {
                if let Some(file) = &opened.file {
                    file.lock().map_err(|error| error.to_string())?;
                }
                self.add(&nqn, nsid, &namespace, opened)
            }
            Undo::Changed(nqn, nsid, namespace, opened) => {
                if let Some(old) = opened {
                    let relock = old.file.clone();
                    // The new one is dropped with the removal, and its lock with it.
                    drop(self.replace(&nqn, nsid, old)?);
                    if let Some(file) = relock {
                        file.lock().map_err(|error| error.to_string())?;
                    }
                }
                self.shape(&nqn, nsid, &namespace)
            }
        }
    }
}

fn blocks(namespace: &Namespace) -> Option<u64> {
    namespace.size.map(|size| size / u64::from(namespace.block_size))
}

fn too_small(opened: &Opened, wanted: u64, has: u64) -> String {
    format!(
        "{} has {has} blocks and cannot have {wanted}: only a file is made longer; ask for less, \
         or enlarge what stores it",
        opened.namespace.describe()
    )
}

/// Waits until nothing of a namespace is under way; not for ever, and then a thread does.
fn drain(removal: Removal) {
    let Err(mut removal) = removal.wait(DRAIN_TIME) else { return };
    tracing::warn!("{removal:?} goes on: its last operations take long");
    let wait = move || {
        while let Err(goes_on) = removal.wait(DRAIN_TIME) {
            removal = goes_on;
        }
    };
    let waiting = std::thread::Builder::new().name("removal".to_owned()).spawn(wait);
    if let Err(error) = waiting {
        tracing::warn!("nobody waits for its end: {error}");
    }
}

fn export(opened: &Opened) -> Export {
    Export { namespace: Arc::clone(&opened.namespace), identity: opened.identity.clone() }
}

fn referral(address: SocketAddr) -> Referral {
    Referral {
        family: if address.is_ipv4() { AddressFamily::V4 } else { AddressFamily::V6 },
        address: address.ip().to_string(),
        service: address.port().to_string(),
    }
}

/// A subsystem that no host may use yet.
fn offered(nqn: &str, subsystem: &farblock_state::Subsystem) -> Subsystem {
    let mut offered = Subsystem::new(nqn);
    if let Some(serial) = &subsystem.serial {
        offered.config.serial.clone_from(serial);
    }
    if let Some(model) = &subsystem.model {
        offered.config.model.clone_from(model);
    }
    offered
}
