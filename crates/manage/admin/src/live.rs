//! Executes the steps of a change on the running target.

use crate::legs::AllLegs;
use crate::open_disks::{OpenDisks, absolute};
use crate::opener::{Disks, Keys, Open, Opened};
use farblock_admin_api::MirrorOrder;
use farblock_admin_api::{Aside, OpenTimeouts, Wanted};
use farblock_backends::OpenError;
use farblock_backends::file::FileDisk;
use farblock_proto::controller::{AddressFamily, AnaState, PortAccess, Referral};
use farblock_proto::ids::NamespaceId;
use farblock_state::{
    Ana, Document, Failed, Host, Limits, Listener, Namespace, Running, Step, Tls,
};
use farblock_state::{reconcile, take_all_back};
use farblock_target::{
    Control, DEFAULT_BURST, DEFAULT_WEIGHT, Export, HostKeys, Rate, Rates, Removal, Sharing,
    Subsystem, TlsPolicy,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time limit for the last operations of a removed namespace. Slower operations continue in the
/// background, and the file of the namespace stays locked until they end.
const DRAIN_TIME: Duration = Duration::from_secs(10);

pub(crate) struct Live {
    pub(crate) control: Control,
    opener: Arc<dyn Open>,
    pub(crate) patience: OpenTimeouts,
    disks: OpenDisks,
    pub(crate) legs: AllLegs,
    pub(crate) keys: Keys,
    /// The limits of hosts, by subsystem NQN and host NQN.
    limits: BTreeMap<(String, String), Limits>,
    /// The copy speeds of mirrors, from the document, by subsystem NQN and namespace ID.
    copy_speeds: BTreeMap<(String, u32), u64>,
    /// The removals of the current change, whose last operations may still be running.
    removals: Vec<Removal>,
}

/// The data with which to roll a step back.
pub(crate) enum Undo {
    Step(Box<Step>),
    /// The changed or removed host, with its previous keys and limits.
    Host(String, String, Option<HostKeys>, Limits),
    /// The removed namespace, with its settings and storage.
    Removed(String, u32, Namespace, Opened),
    /// The changed namespace, with its previous settings. If its storage was reopened, also the
    /// previous storage.
    Changed(String, u32, Namespace, Option<Opened>),
}

impl Undo {
    fn by(step: Step) -> Undo {
        Undo::Step(Box::new(step))
    }

    /// Whether this entry holds the storage of a namespace.
    fn has_disk(&self) -> bool {
        matches!(self, Self::Removed(..) | Self::Changed(_, _, _, Some(_)))
    }
}

impl Live {
    pub(crate) fn new(control: Control, opener: Arc<dyn Open>, disks: Disks) -> Self {
        let legs = AllLegs::default();
        for ((nqn, nsid), opened) in &disks {
            legs.set(nqn, *nsid, opened.legs.as_ref());
        }
        let (keys, limits, copy_speeds) = (Keys::new(), BTreeMap::new(), BTreeMap::new());
        let patience = OpenTimeouts::default();
        let (removals, disks) = (Vec::new(), OpenDisks::new(disks));
        Self { control, opener, patience, disks, legs, keys, limits, copy_speeds, removals }
    }

    fn read_keys(
        &self,
        subsystem: &str,
        host: &str,
        entry: &Host,
    ) -> Result<Option<HostKeys>, String> {
        if !entry.has_key() {
            return Ok(None);
        }
        let (opener, entry) = (Arc::clone(&self.opener), entry.clone());
        let what = format!("the key of {host}");
        let (subsystem, host) = (subsystem.to_owned(), host.to_owned());
        let read = move || opener.keys(&subsystem, &host, &entry);
        self.patience.with(Aside::Key, &what, read)
    }

    /// The steps for the hosts that `concerns` selects and whose key files have changed.
    pub(crate) fn keys_changed(
        &self,
        document: &Document,
        concerns: impl Fn(&str, &str) -> bool,
    ) -> Result<Vec<Step>, String> {
        let mut steps = Vec::new();
        for (nqn, subsystem) in &document.subsystems {
            for (host, entry) in &subsystem.hosts {
                if entry.has_key() && concerns(nqn, host) {
                    steps.extend(self.key_changed(nqn, host, entry)?);
                }
            }
        }
        Ok(steps)
    }

    /// The step for one host, if its key files have changed.
    pub(crate) fn key_changed(
        &self,
        nqn: &str,
        host: &str,
        entry: &Host,
    ) -> Result<Option<Step>, String> {
        let names = (nqn.to_owned(), host.to_owned());
        if self.read_keys(nqn, host, entry)?.as_ref() == self.keys.get(&names) {
            return Ok(None);
        }
        let (from, to) = (entry.clone(), entry.clone());
        Ok(Some(Step::ChangeHost { nqn: names.0, host: names.1, from, to }))
    }

    /// Allows a host, with these keys or with its name only. Sets the keys first, so that the host
    /// is never allowed without them.
    fn allow(&mut self, nqn: &str, host: &str, keys: Option<HostKeys>) -> Result<(), String> {
        let said = |error: farblock_target::ChangeError| error.to_string();
        let names = (nqn.to_owned(), host.to_owned());
        self.control.set_host_keys(nqn, host, keys.as_ref()).map_err(said)?;
        if let Err(error) = self.control.allow_host(nqn, host) {
            let before = self.keys.get(&names);
            self.control.set_host_keys(nqn, host, before).map_err(said)?;
            return Err(said(error));
        }
        match keys {
            Some(keys) => self.keys.insert(names, keys),
            None => self.keys.remove(&names),
        };
        Ok(())
    }

    /// Sets the limits of a host. Returns its previous limits.
    pub(crate) fn limit(
        &mut self,
        nqn: &str,
        host: &str,
        limits: &Limits,
    ) -> Result<Limits, String> {
        let set = self.control.set_host_rates(nqn, host, &rates(limits));
        set.map_err(|error| error.to_string())?;
        let names = (nqn.to_owned(), host.to_owned());
        let before = match limits.is_empty() {
            true => self.limits.remove(&names),
            false => self.limits.insert(names, *limits),
        };
        Ok(before.unwrap_or_default())
    }

    /// Disallows a host. Returns its previous keys and limits.
    fn disallow(&mut self, nqn: &str, host: &str) -> Result<(Option<HostKeys>, Limits), String> {
        let said = |error: farblock_target::ChangeError| error.to_string();
        self.control.disallow_host(nqn, host).map_err(said)?;
        self.control.set_host_keys(nqn, host, None).map_err(said)?;
        let limits = self.limit(nqn, host, &Limits::default())?;
        Ok((self.keys.remove(&(nqn.to_owned(), host.to_owned())), limits))
    }

    /// Executes all steps, or none. The cores get all changes of namespaces together.
    pub(crate) fn take_all(&mut self, steps: &[Step]) -> Result<Vec<Undo>, Failed> {
        let batch = self.control.batch();
        let done = reconcile(self, steps);
        self.drain();
        drop(batch);
        done
    }

    /// Rolls the steps of [`Self::take_all`] back. Returns the failures as sentences.
    pub(crate) fn undo_all(&mut self, done: Vec<Undo>) -> Vec<String> {
        let batch = self.control.batch();
        let left = take_all_back(self, done);
        self.drain();
        drop(batch);
        left
    }

    /// Waits for the removals so far. Later steps may need the files of the removed namespaces.
    fn drain(&mut self) {
        if !self.removals.is_empty() {
            self.control.send_changes();
            drain(std::mem::take(&mut self.removals));
        }
    }

    /// Finishes a change: closes the storage that the change has removed, and the storage kept for
    /// a rollback.
    pub(crate) fn settle(&mut self, done: Vec<Undo>) {
        let parked = self.disks.take_parked();
        if parked.is_empty() && !done.iter().any(Undo::has_disk) {
            return;
        }
        self.patience.close("the storage", (parked, done));
    }

    /// Whether another file has taken the name of a namespace's file. False for storage that is not
    /// a plain file.
    pub(crate) fn is_replaced(&self, nqn: &str, nsid: u32) -> Result<bool, String> {
        let opened = self.disks.get(nqn, nsid);
        let Some(file) = opened.and_then(|opened| opened.file.clone()) else { return Ok(false) };
        let what = file.path().display().to_string();
        let look = move || file.is_replaced().map_err(|error| error.to_string());
        self.patience.with(Aside::File, &what, look)
    }

    /// Runs an operation, which may hang, on an open file.
    fn with_file(
        &self,
        file: &Arc<FileDisk>,
        work: impl FnOnce(&FileDisk, &Wanted) -> Result<(), OpenError> + Send + 'static,
    ) -> Result<(), String> {
        let (aside, what) = (Arc::clone(file), file.path().display().to_string());
        self.patience.while_wanted(Aside::File, &what, move |wanted| {
            let done = work(&aside, wanted).map_err(|error| error.to_string());
            // Drop this clone before sending `done`, so that the caller's clone is the last one.
            drop(aside);
            done
        })
    }

    /// Reads the size of a file, and extends the file to `size` if it is given, unless the caller
    /// has timed out.
    fn measure(&self, file: &Arc<FileDisk>, size: Option<u64>) -> Result<(), String> {
        self.with_file(file, move |file, wanted| match size {
            Some(size) => file.lengthen_while(size, || wanted.is()),
            None => file.measure(),
        })
    }

    fn lock(&self, file: &Arc<FileDisk>) -> Result<(), String> {
        self.with_file(file, |file, _| file.lock())
    }

    /// Opens the storage of a namespace. First unlocks a file of the same name that this change
    /// replaces.
    fn open(&mut self, namespace: &Namespace, instead: Option<&Opened>) -> Result<Opened, String> {
        self.drain();
        let name = namespace.path.strip_prefix("file:").unwrap_or(&namespace.path);
        let wanted = absolute(Path::new(name));
        // Unlock only files with this name: another program could lock any other unlocked file
        // meanwhile.
        let replaced = instead.and_then(|opened| opened.file.as_ref());
        let replaced = replaced.filter(|file| absolute(file.path()) == wanted);
        let unlocked: Vec<_> = self.disks.parked_files(&wanted).chain(replaced).cloned().collect();
        let has_it = |file: &Arc<FileDisk>| {
            let is_it = unlocked.iter().any(|it| Arc::ptr_eq(it, file));
            !is_it && (!namespace.read_only || !file.is_opened_to_read())
        };
        // Refuse a file that another namespace uses. Opening it would wait for the lock, and block
        // all changes meanwhile.
        let mut others = self.disks.of_file(&wanted);
        if let Some(((nqn, nsid), _)) = others.find(|(_, file)| has_it(file)) {
            return Err(format!(
                "{} is already shared as namespace {nsid} of {nqn}: remove that namespace first \
                 (two writers would destroy the data)",
                namespace.path
            ));
        }
        let opened = self.open_aside(namespace, &unlocked)?;
        let checked = Ok(opened).and_then(|mut opened| {
            let is_one = |other: &Opened| Arc::ptr_eq(&other.namespace, &opened.namespace);
            if self.disks.has_store(&opened.namespace) && !instead.is_some_and(is_one) {
                return Err(format!("{} is already shared", namespace.path));
            }
            if let (Some(file), Some(size)) = (&opened.file, namespace.size) {
                self.measure(file, Some(size))?;
            }
            if let Some(uuid) = namespace.uuid {
                opened.identity = uuid.to_string();
            }
            let is_its = |other: &Opened| other.identity == opened.identity;
            let is_twice =
                !instead.is_some_and(is_its) && self.disks.has_identity(&opened.identity);
            if let Some(uuid) = namespace.uuid.filter(|_| is_twice) {
                return Err(format!(
                    "another shared disk has the UUID {uuid}, and hosts would treat both as one \
                     disk: give this disk another UUID"
                ));
            }
            if is_twice {
                // If two subsystems share one disk, hosts see two disks, so each needs its own
                // identity.
                opened.identity.push_str(" once more");
                // A disk stores only one set of reservations.
                opened.reservations = None;
            }
            Ok(opened)
        });
        if checked.is_err() {
            let locked = unlocked.iter().map(|file| self.lock(file));
            locked.filter_map(Result::err).for_each(|problem| taken_away(&problem));
        }
        checked
    }

    /// Opens the storage of a namespace while the files in `unlocked` are unlocked. After a
    /// failure, locks these files again, even if the caller has timed out.
    fn open_aside(
        &self,
        namespace: &Namespace,
        unlocked: &[Arc<FileDisk>],
    ) -> Result<Opened, String> {
        let (opener, named) = (Arc::clone(&self.opener), namespace.clone());
        let unlocked = unlocked.to_vec();
        self.patience.while_wanted(Aside::Disk, &namespace.path, move |wanted| {
            unlocked.iter().for_each(|file| file.unlock());
            let opened = opener.open(&named).map_err(|why| why.sentence);
            if opened.is_ok() && wanted.claim() {
                return opened;
            }
            let problem =
                opened.err().unwrap_or_else(|| "the disk opened after the time limit".to_owned());
            for file in unlocked {
                if let Err(error) = file.lock() {
                    taken_away(&error.to_string());
                }
            }
            Err(problem)
        })
    }

    fn add(
        &mut self,
        nqn: &str,
        nsid: u32,
        namespace: &Namespace,
        opened: Opened,
    ) -> Result<(), String> {
        let has = opened.namespace.geometry().blocks;
        if let Some(wanted) = blocks(namespace).filter(|blocks| *blocks > has) {
            return Err(too_small(&opened, wanted, has));
        }
        let (id, export) = (NamespaceId(nsid), export(&opened));
        let (sharing, kept_in) = (sharing(namespace), opened.reservations.as_ref());
        let added = self.control.add_namespace_kept(nqn, id, &export, &sharing, kept_in);
        added.map_err(|error| error.to_string())?;
        self.legs.set(nqn, nsid, opened.legs.as_ref());
        self.disks.insert((nqn.to_owned(), nsid), opened);
        self.pace(nqn, nsid, namespace);
        Ok(())
    }

    fn remove(&mut self, nqn: &str, nsid: u32) -> Result<Opened, String> {
        let removal = self.control.remove_namespace(nqn, NamespaceId(nsid));
        self.removals.push(removal.map_err(|error| error.to_string())?);
        self.legs.set(nqn, nsid, None);
        self.copy_speeds.remove(&(nqn.to_owned(), nsid));
        Ok(self.disks.remove(nqn, nsid).expect("every shared namespace has open storage"))
    }

    /// Replaces the storage of a namespace.
    fn replace(
        &mut self,
        nqn: &str,
        nsid: u32,
        (new, namespace): (Opened, &Namespace),
    ) -> Result<Opened, String> {
        let (id, export, has) = (NamespaceId(nsid), export(&new), new.namespace.geometry().blocks);
        let mut sharing = sharing(namespace);
        // If the size in the document exceeds the disk, a later call extends the disk.
        sharing.blocks = sharing.blocks.filter(|blocks| *blocks <= has);
        let removal = self.control.replace_namespace_as(nqn, id, &export, &sharing);
        self.removals.push(removal.map_err(|error| error.to_string())?);
        self.drain();
        self.legs.set(nqn, nsid, new.legs.as_ref());
        self.copy_speeds.remove(&(nqn.to_owned(), nsid));
        let old = self.disks.insert((nqn.to_owned(), nsid), new);
        Ok(old.expect("every shared namespace has open storage"))
    }

    fn change(&mut self, nqn: &str, nsid: u32, from: &Namespace, to: &Namespace) -> Taken {
        let opened =
            self.disks.get(nqn, nsid).expect("every shared namespace has open storage").clone();
        let mut undo = Undo::Changed(nqn.to_owned(), nsid, from.clone(), None);
        // Reopen only a disk that was opened read-only. A disk that was opened writable may be
        // write-protected now, and reopening would not change that.
        if from.read_only && !to.read_only && opened.is_opened_to_read() {
            let new = self.open(to, Some(&opened))?;
            let old = self.replace(nqn, nsid, (new, to))?;
            undo = Undo::Changed(nqn.to_owned(), nsid, from.clone(), Some(old));
        }
        match self.shape(nqn, nsid, to) {
            Ok(()) => Ok(undo),
            Err(reason) => match self.take_back(undo) {
                Ok(()) => Err(reason),
                Err(left) => Err(format!("{reason}; and the rollback failed: {left}")),
            },
        }
    }

    /// Sets the copy speed of a mirror if its value in the document has changed. Otherwise the
    /// mirror keeps the speed from the last order.
    fn pace(&mut self, nqn: &str, nsid: u32, namespace: &Namespace) {
        let (key, speed) = ((nqn.to_owned(), nsid), namespace.copy_bytes_per_second);
        let before = match speed {
            Some(speed) => self.copy_speeds.insert(key, speed),
            None => self.copy_speeds.remove(&key),
        };
        if before != speed
            && let Some(legs) = self.legs.find(nqn, nsid)
        {
            let copy_bytes_per_second = Some(speed.unwrap_or(0));
            legs.order(&MirrorOrder { verify: false, copy_bytes_per_second });
        }
    }

    /// Applies the size, the write protection and all other settings to a namespace.
    pub(crate) fn shape(&mut self, nqn: &str, nsid: u32, to: &Namespace) -> Result<(), String> {
        let opened = self.disks.get(nqn, nsid).expect("every shared namespace has open storage");
        if let Some(file) = &opened.file {
            self.measure(file, to.size)?;
        }
        self.share_as(nqn, nsid, to)
    }

    /// Like [`Self::shape`], but does not resize the file. A rollback uses this, because it must
    /// not wait for a file that hangs.
    fn share_as(&mut self, nqn: &str, nsid: u32, to: &Namespace) -> Result<(), String> {
        let id = NamespaceId(nsid);
        let opened = self.disks.get(nqn, nsid).expect("every shared namespace has open storage");
        let has = opened.namespace.geometry().blocks;
        if let Some(wanted) = blocks(to).filter(|blocks| *blocks > has) {
            return Err(too_small(opened, wanted, has));
        }
        self.control.set_sharing(nqn, id, &sharing(to)).map_err(|error| error.to_string())?;
        self.pace(nqn, nsid, to);
        Ok(())
    }

    fn take_simple(&mut self, step: &Step) -> Result<Step, String> {
        let said = |error: farblock_target::ChangeError| error.to_string();
        let control = &self.control;
        Ok(match step.clone() {
            Step::AddListener(address, listener) => {
                let tls = tls_policy(listener.tls);
                control.listen(address, &access(&listener), tls).map_err(said)?;
                Step::RemoveListener(address, listener)
            }
            Step::RemoveListener(address, listener) => {
                control.unlisten(address).map_err(said)?;
                Step::AddListener(address, listener)
            }
            Step::ChangeListener { address, from, to } => {
                // Change the ANA states only if the entry has changed: in a group, the group sets
                // other states.
                if access(&from) != access(&to) {
                    control.set_access(address, &access(&to)).map_err(said)?;
                }
                if from.tls != to.tls
                    && let Err(error) = control.set_tls(address, tls_policy(to.tls))
                {
                    if access(&from) != access(&to) {
                        control.set_access(address, &access(&from)).map_err(said)?;
                    }
                    return Err(said(error));
                }
                Step::ChangeListener { address, from: to, to: from }
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
            Step::AllowAnyHost { nqn, allow } => {
                control.set_allow_any_host(&nqn, allow).map_err(said)?;
                Step::AllowAnyHost { nqn, allow: !allow }
            }
            Step::AllowHost { .. }
            | Step::DisallowHost { .. }
            | Step::ChangeHost { .. }
            | Step::AddNamespace { .. }
            | Step::RemoveNamespace { .. }
            | Step::ChangeNamespace { .. } => unreachable!("the caller executes this step"),
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
                Ok(Undo::by(Step::RemoveNamespace { nqn, nsid: *nsid, namespace }))
            }
            Step::RemoveNamespace { nqn, nsid, namespace } => {
                let opened = self.remove(nqn, *nsid)?;
                self.disks.park(opened.clone());
                Ok(Undo::Removed(nqn.clone(), *nsid, namespace.clone(), opened))
            }
            Step::ChangeNamespace { nqn, nsid, from, to } => self.change(nqn, *nsid, from, to),
            Step::AllowHost { nqn, host, entry } => {
                let keys = self.read_keys(nqn, host, entry)?;
                self.limit(nqn, host, &entry.limits)?;
                self.allow(nqn, host, keys)?;
                let (nqn, host) = (nqn.clone(), host.clone());
                Ok(Undo::by(Step::DisallowHost { nqn, host }))
            }
            Step::ChangeHost { nqn, host, to, .. } => {
                let keys = self.read_keys(nqn, host, to)?;
                let before = self.keys.get(&(nqn.clone(), host.clone())).cloned();
                self.allow(nqn, host, keys)?;
                let limits = self.limit(nqn, host, &to.limits)?;
                Ok(Undo::Host(nqn.clone(), host.clone(), before, limits))
            }
            Step::DisallowHost { nqn, host } => {
                let (before, limits) = self.disallow(nqn, host)?;
                Ok(Undo::Host(nqn.clone(), host.clone(), before, limits))
            }
            step => self.take_simple(step).map(Undo::by),
        }
    }

    fn take_back(&mut self, undo: Undo) -> Result<(), String> {
        match undo {
            Undo::Step(step) => match &*step {
                Step::RemoveNamespace { nqn, nsid, .. } => self.remove(nqn, *nsid).map(drop),
                Step::DisallowHost { nqn, host } => self.disallow(nqn, host).map(drop),
                step => self.take_simple(step).map(drop),
            },
            Undo::Host(nqn, host, keys, limits) => {
                self.limit(&nqn, &host, &limits)?;
                self.allow(&nqn, &host, keys)
            }
            Undo::Removed(nqn, nsid, namespace, opened) => {
                // A namespace that was added after this one may still have the same file locked.
                self.drain();
                if let Some(file) = &opened.file {
                    self.lock(file)?;
                }
                self.add(&nqn, nsid, &namespace, opened)
            }
            Undo::Changed(nqn, nsid, namespace, opened) => {
                if let Some(old) = opened {
                    let relock = old.file.clone();
                    // Dropping the returned storage, which is the new one, releases its lock.
                    drop(self.replace(&nqn, nsid, (old, &namespace))?);
                    if let Some(file) = relock {
                        self.lock(&file)?;
                    }
                }
                self.share_as(&nqn, nsid, &namespace)
            }
        }
    }
}

fn taken_away(problem: &str) {
    tracing::warn!("another program has locked a file of this target in the meantime: {problem}");
}

fn blocks(namespace: &Namespace) -> Option<u64> {
    namespace.size.map(|size| size / u64::from(namespace.block_size))
}

fn too_small(opened: &Opened, wanted: u64, has: u64) -> String {
    format!(
        "{} has {has} blocks and cannot have {wanted}: farblock extends only files; choose a \
         smaller size, or enlarge the disk",
        opened.namespace.describe()
    )
}

/// Waits for the last operations of namespaces. After [`DRAIN_TIME`], a thread continues to wait.
fn drain(removals: Vec<Removal>) {
    let until = Instant::now() + DRAIN_TIME;
    let wait = |removal: Removal| removal.wait(until.saturating_duration_since(Instant::now()));
    let slow: Vec<_> = removals.into_iter().filter_map(|removal| wait(removal).err()).collect();
    if slow.is_empty() {
        return;
    }
    for removal in &slow {
        tracing::warn!(
            "{removal:?} continues in the background, because its last operations take long"
        );
    }
    let wait = move || {
        for mut removal in slow {
            while let Err(continues) = removal.wait(DRAIN_TIME) {
                removal = continues;
            }
        }
    };
    let waiting = std::thread::Builder::new().name("removal".to_owned()).spawn(wait);
    if let Err(error) = waiting {
        tracing::warn!("cannot start a thread that waits for removals: {error}");
    }
}

fn export(opened: &Opened) -> Export {
    Export { namespace: Arc::clone(&opened.namespace), identity: opened.identity.clone() }
}

/// The target's settings for a namespace of the document.
#[must_use]
pub fn sharing(namespace: &Namespace) -> Sharing {
    Sharing {
        ana_group: namespace.ana_group,
        visible_to: namespace.visible_to.clone(),
        nguid: namespace.nguid.map(uuid::Uuid::into_bytes),
        eui64: namespace.eui64.map(|id| id.0),
        blocks: blocks(namespace),
        read_only: namespace.read_only,
        rates: rates(&namespace.limits),
    }
}

/// The target's rates for the limits of a namespace or host.
#[must_use]
pub fn rates(limits: &Limits) -> Rates {
    let rate = |all: Option<u64>, reads: Option<u64>, writes: Option<u64>| Rate {
        all: all.unwrap_or(0),
        reads: reads.unwrap_or(0),
        writes: writes.unwrap_or(0),
    };
    let burst = limits.burst_ms.map(|ms| Duration::from_millis(ms.into()));
    Rates {
        commands: rate(limits.iops, limits.read_iops, limits.write_iops),
        bytes: rate(limits.bytes, limits.read_bytes, limits.write_bytes),
        burst: burst.unwrap_or(DEFAULT_BURST),
        weight: limits.weight.unwrap_or(DEFAULT_WEIGHT),
    }
}

/// The ANA states for a listener of the document.
#[must_use]
pub fn access(listener: &Listener) -> PortAccess {
    let state = |ana: Ana| match ana {
        Ana::Optimized => AnaState::OPTIMIZED,
        Ana::NonOptimized => AnaState::NON_OPTIMIZED,
        Ana::Inaccessible => AnaState::INACCESSIBLE,
        Ana::PersistentLoss => AnaState::PERSISTENT_LOSS,
        Ana::Change => AnaState::CHANGE,
    };
    let groups = listener.ana_groups.iter().map(|(group, ana)| (*group, state(*ana)));
    PortAccess { usual: state(listener.ana), groups: groups.collect() }
}

/// The TLS policy for a setting of the document.
#[must_use]
pub fn tls_policy(tls: Tls) -> TlsPolicy {
    match tls {
        Tls::Plain => TlsPolicy::Plain,
        Tls::Allowed => TlsPolicy::Allowed,
        Tls::Required => TlsPolicy::Required,
    }
}

fn referral(address: SocketAddr) -> Referral {
    Referral {
        family: if address.is_ipv4() { AddressFamily::V4 } else { AddressFamily::V6 },
        address: address.ip().to_string(),
        service: address.port().to_string(),
    }
}

/// A subsystem to which no host may connect yet.
fn offered(nqn: &str, subsystem: &farblock_state::Subsystem) -> Subsystem {
    let mut offered = Subsystem::new(nqn);
    if let Some(serial) = &subsystem.serial {
        offered.config.serial.clone_from(serial);
    }
    if let Some(model) = &subsystem.model {
        offered.config.model.clone_from(model);
    }
    offered.config.controller_ids = subsystem.controller_ids();
    offered
}

#[cfg(test)]
mod tests;
