//! One running target, its document, and everybody who wants to change it, one after the other.

use crate::confinement::Confinement;
use crate::legs::AllLegs;
#[cfg(unix)]
use crate::legs::{MirrorOrder, MirrorStatus};
use crate::live::{Disks, Keys, Live, Open};
use crate::patience::Aside;
use crate::stats::Stats;
use crate::status::{Paths, Status};
use farblock_state::{Document, Failed, Host, Kept, Problem, Step, Store, StoreError};
use farblock_state::{doors_kept, merge, reconcile, steps, take_all_back};
use farblock_target::{Control, Observer, Report};
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

/// Reads the configuration file again: what it says now.
pub type Configured = Arc<dyn Fn() -> Result<Document, String> + Send + Sync>;

/// Says what the process cannot do, as of now.
pub type Confined = Box<dyn Fn() -> Confinement + Send + Sync>;

/// What a change did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Changed {
    /// A sentence for each step; none if nothing was to be done.
    pub steps: Vec<String>,
    /// The version of the document now.
    pub etag: String,
}

/// Why nothing was changed.
#[derive(Debug)]
pub enum Refused {
    /// The document has another version than whoever asked had seen.
    Stale(String),
    /// What is asked for cannot be meant.
    Problem(Problem),
    /// There is no such thing.
    Missing(String),
    /// There is such a thing, and only a new one was to be made.
    There(String),
    /// The target could not do it.
    Failed(Failed),
    /// It could be done, but not kept.
    Store(StoreError, Vec<String>),
    /// The configuration cannot be read, or there is none.
    Configuration(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stale(etag) => write!(
                f,
                "somebody else has changed this meanwhile: read it again ({etag} is its version \
                 now), and change that"
            ),
            Self::Problem(problem) => problem.fmt(f),
            Self::Missing(what) => write!(f, "there is no {what}"),
            Self::There(what) => write!(f, "there is a {what} already"),
            Self::Failed(failed) => failed.fmt(f),
            Self::Store(error, left) => {
                write!(f, "what was changed could not be kept, and is as it was: {error}")?;
                left.iter().try_for_each(|sentence| write!(f, "; but {sentence}"))
            }
            Self::Configuration(sentence) => f.write_str(sentence),
        }
    }
}

impl std::error::Error for Refused {}

/// Which files a change looks at again where the document stays the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reread {
    /// None.
    Nothing,
    /// The key file of a host, by the names of its subsystem and its own.
    Host(String, String),
    /// That of a namespace, by the name of its subsystem and its number: another file that has its
    /// name now takes its place.
    Namespace(String, u32),
    /// All key files.
    All,
}

impl Reread {
    fn concerns(&self, nqn: &str, host: &str) -> bool {
        match self {
            Self::Nothing | Self::Namespace(..) => false,
            Self::Host(subsystem, name) => subsystem == nqn && name == host,
            Self::All => true,
        }
    }
}

/// See the module's text.
pub struct Steering {
    inner: Mutex<Inner>,
    control: Control,
    legs: AllLegs,
    paths: Arc<Mutex<Paths>>,
    configured: Option<Configured>,
    confined: Option<Confined>,
    /// Somebody has asked for what the target counts.
    asked: AtomicBool,
    /// Where it listened first: what a configuration means by port 0.
    started: Vec<SocketAddr>,
    /// Changes of the document since this began.
    revision: Arc<AtomicU64>,
    /// When this began: the same number of another run is another version.
    epoch: u64,
}

struct Inner {
    live: Live,
    /// What the configuration said last.
    configured: Document,
    /// What is shared.
    shared: Document,
    store: Option<Store>,
    /// Counted while this is held; whoever has only the counter need not wait for that.
    revision: Arc<AtomicU64>,
    /// What stores the namespaces, for whoever has only that.
    paths: Arc<Mutex<Paths>>,
}

/// What stores the namespaces of a document.
fn paths(document: &Document) -> Paths {
    let all = document.subsystems.iter().flat_map(|(nqn, subsystem)| {
        let namespaces = subsystem.namespaces.iter();
        namespaces.map(move |(nsid, one)| ((nqn.clone(), *nsid), one.path.clone()))
    });
    all.collect()
}

impl Steering {
    /// A target that shares `shared`, stored in `disks`.
    pub fn new(control: Control, opener: Arc<dyn Open>, shared: Document, disks: Disks) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let live = Live::new(control.clone(), opener, disks);
        let legs = live.legs.clone();
        let configured = shared.clone();
        let started = shared.listeners.keys().copied().collect();
        let revision = Arc::new(AtomicU64::new(1));
        let paths = Arc::new(Mutex::new(paths(&shared)));
        Self {
            started,
            inner: Mutex::new(Inner {
                live,
                configured,
                shared,
                store: None,
                revision: Arc::clone(&revision),
                paths: Arc::clone(&paths),
            }),
            paths,
            revision,
            control,
            legs,
            configured: None,
            confined: None,
            asked: AtomicBool::new(false),
            epoch: u64::try_from(since.as_micros()).unwrap_or_default(),
        }
    }

    /// What the configuration said at the start, and how it is read again.
    #[must_use]
    pub fn configured(mut self, document: Document, again: Option<Configured>) -> Self {
        self.lock().configured = document;
        self.configured = again;
        self
    }

    /// Says in its status what the process cannot do.
    #[must_use]
    pub fn confined(mut self, confined: Confined) -> Self {
        self.confined = Some(confined);
        self
    }

    /// With the secrets with which hosts have to authenticate already.
    #[must_use]
    pub fn keyed(self, keys: Keys) -> Self {
        self.lock().live.keys = keys;
        self
    }

    /// Has disks, key files and the configuration be opened within this time.
    #[cfg(test)]
    pub(crate) fn opening_within(self, longest: std::time::Duration) -> Self {
        self.lock().live.patience = crate::patience::Patience::new(longest);
        self
    }

    /// Keeps what is changed.
    #[must_use]
    pub fn kept_in(self, store: Store) -> Self {
        self.lock().store = Some(store);
        self
    }

    /// Gives namespaces what the document has for them: their sizes, and the speed of copying.
    ///
    /// # Errors
    /// One sentence.
    pub fn begin(&self) -> Result<(), String> {
        let mut inner = self.lock();
        let shared = inner.shared.clone();
        for (nqn, subsystem) in &shared.subsystems {
            for (nsid, namespace) in &subsystem.namespaces {
                let is_paced = namespace.copy_bytes_per_second.is_some();
                if is_paced || namespace.size.is_some() || !namespace.limits.is_empty() {
                    inner.live.shape(nqn, *nsid, namespace)?;
                }
            }
            for (host, entry) in &subsystem.hosts {
                if !entry.limits.is_empty() {
                    inner.live.limit(nqn, host, &entry.limits)?;
                }
            }
        }
        Ok(())
    }

    /// What is shared, and the version of that.
    pub fn document(&self) -> (Document, String) {
        let inner = self.lock();
        (inner.shared.clone(), self.version())
    }

    /// Makes it as `edit` says. With `expected`, only if that is the version still: one of several
    /// with commas between them, or any (`*`).
    ///
    /// # Errors
    /// Why it stays as it was.
    pub fn change(
        &self,
        expected: Option<&str>,
        reread: &Reread,
        edit: impl FnOnce(&Document) -> Result<Document, Refused>,
    ) -> Result<Changed, Refused> {
        let mut inner = self.lock();
        let etag = self.version();
        let is_it = |expected: &str| {
            expected.split(',').map(str::trim).any(|one| one == "*" || one == etag)
        };
        if expected.is_some_and(|expected| !is_it(expected)) {
            return Err(Refused::Stale(etag));
        }
        let wanted = edit(&inner.shared)?;
        wanted.check().map_err(Refused::Problem)?;
        doors_kept(&inner.shared, &wanted).map_err(Refused::Problem)?;
        let configured = inner.configured.clone();
        let steps = inner.steps(&wanted, reread)?;
        let steps = inner.make(wanted, configured, &steps)?;
        Ok(Changed { steps, etag: self.version() })
    }

    /// The hosts whose entries are such, by the names of their subsystems and their own.
    pub fn hosts(&self, is_such: impl Fn(&Host) -> bool) -> Vec<(String, String)> {
        let inner = self.lock();
        let all = inner.shared.subsystems.iter().flat_map(|(nqn, subsystem)| {
            subsystem.hosts.iter().map(move |(host, entry)| (nqn, host, entry))
        });
        let found = all.filter(|(.., entry)| is_such(entry));
        found.map(|(nqn, host, _)| (nqn.clone(), host.clone())).collect()
    }

    /// Reads the keys of one host again where the document stays the same; gives a sentence if they
    /// are others. Others wait for no longer than that takes.
    ///
    /// # Errors
    /// Why the host has the keys that it had.
    pub fn read_keys(&self, nqn: &str, host: &str) -> Result<Option<String>, Refused> {
        let mut inner = self.lock();
        let subsystem = inner.shared.subsystems.get(nqn);
        let Some(entry) = subsystem.and_then(|it| it.hosts.get(host)).filter(|it| it.has_key())
        else {
            return Ok(None);
        };
        let step = inner.live.key_changed(nqn, host, entry).map_err(Refused::Configuration)?;
        let Some(step) = step else { return Ok(None) };
        let (said, steps) = (step.to_string(), [step]);
        let done = reconcile(&mut inner.live, &steps);
        let (done, failed) = done.map_or_else(|why| (Vec::new(), Some(why)), |done| (done, None));
        inner.live.settle(done);
        failed.map_or(Ok(Some(said)), |why| Err(Refused::Failed(why)))
    }

    /// Reads the configuration again and makes what changed in it so; what was changed at run time
    /// besides stays. With `only_look`, says what would be done.
    ///
    /// # Errors
    /// Why everything stays as it was.
    pub fn reload(&self, only_look: bool) -> Result<Changed, Refused> {
        let Some(again) = self.configured.clone() else {
            let sentence = "there is no configuration file to read again: this target was started \
                            without --config, and is changed by farblock ctl";
            return Err(Refused::Configuration(sentence.to_owned()));
        };
        let mut inner = self.lock();
        // Aside: it may be on a share whose server is gone, and others wait to change something.
        let configured =
            inner.live.patience.with(Aside::Configuration, "the configuration", move || again());
        let configured = configured.map_err(Refused::Configuration)?;
        let (old, new) = (self.with_ports(&inner.configured), self.with_ports(&configured));
        let wanted = merge(&old, &new, &inner.shared);
        wanted.check().map_err(Refused::Problem)?;
        let steps = inner.steps(&wanted, &Reread::All)?;
        let done = match only_look {
            true => steps.iter().map(ToString::to_string).collect(),
            false => inner.make(wanted, configured, &steps)?,
        };
        Ok(Changed { steps: done, etag: self.version() })
    }

    /// What the target does at the moment.
    pub fn report(&self) -> Report {
        self.control.report()
    }

    /// The same, for people and programs.
    pub fn status(&self) -> Status {
        let confinement = self.confined.as_ref().map(|confined| confined());
        let paths = self.paths.lock().expect("no holder panics").clone();
        Status { confinement, ..Status::of(&self.report(), &self.legs, &paths) }
    }

    /// Asks a mirror for something; what it is then. Without the document, as what is shared stays
    /// the same.
    #[cfg(unix)]
    pub(crate) fn order(&self, nqn: &str, nsid: u32, order: &MirrorOrder) -> Option<MirrorStatus> {
        let mirror = self.legs.find(nqn, nsid)?;
        mirror.order(order);
        mirror.status().and_then(|(_, status)| status)
    }

    /// What it has counted. It measures how long commands take from now on, until nobody has asked
    /// for a while.
    pub fn stats(&self) -> Stats {
        self.asked.store(true, Ordering::Relaxed);
        self.control.measure_latency(true);
        Stats::of(&self.control.stats())
    }

    /// What it has counted altogether and by core. Nothing is measured for that which is not
    /// already.
    #[cfg(unix)]
    pub(crate) fn totals(&self) -> Stats {
        let mut counted = self.control.stats();
        counted.subsystems.clear();
        counted.hosts.clear();
        Stats::of(&counted)
    }

    /// What it has counted, as it stands.
    #[cfg(unix)]
    pub(crate) fn counts(&self) -> farblock_target::Stats {
        self.control.stats()
    }

    /// Has the target measure nothing that nobody has asked for since the last call.
    pub fn rest(&self) {
        let asked = self.asked.swap(false, Ordering::Relaxed);
        self.control.measure_latency(asked);
    }

    /// Has `observer` told of everything that happens.
    pub fn observe(&self, observer: Option<Observer>) {
        self.control.observe(observer);
    }

    /// A configuration with the port that was taken where it says that any will do.
    fn with_ports(&self, configured: &Document) -> Document {
        let named = &configured.listeners;
        let taken = |address: &SocketAddr| {
            let is_it = |one: &&SocketAddr| one.ip() == address.ip() && !named.contains_key(one);
            let found = self.started.iter().find(is_it).filter(|_| address.port() == 0);
            found.copied().unwrap_or(*address)
        };
        let listeners = named.iter().map(|(address, listener)| (taken(address), listener.clone()));
        Document { listeners: listeners.collect(), ..configured.clone() }
    }

    /// The document's version. Unlike [`Self::document`] it does not wait for a change that is
    /// being made.
    pub fn version(&self) -> String {
        format!("\"{:x}-{}\"", self.epoch, self.revision.load(Ordering::Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no holder panics")
    }
}

impl Inner {
    /// What is to be done, key files included whose content alone has changed.
    fn steps(&mut self, wanted: &Document, reread: &Reread) -> Result<Vec<Step>, Refused> {
        let mut steps = steps(&self.shared, wanted);
        let is_same = |nqn: &str, host: &str| {
            let entry =
                |document: &Document| document.subsystems.get(nqn)?.hosts.get(host).cloned();
            reread.concerns(nqn, host) && entry(wanted) == entry(&self.shared)
        };
        let changed = self.live.keys_changed(wanted, is_same).map_err(Refused::Configuration)?;
        steps.extend(changed);
        if let Reread::Namespace(nqn, nsid) = reread {
            self.replace_file(&mut steps, wanted, (nqn, *nsid))?;
        }
        Ok(steps)
    }

    /// Has a namespace that keeps its path made anew, if another file is there now: to hosts it is
    /// another disk.
    fn replace_file(
        &self,
        steps: &mut Vec<Step>,
        wanted: &Document,
        (nqn, nsid): (&String, u32),
    ) -> Result<(), Refused> {
        let of = |document: &Document| document.subsystems.get(nqn)?.namespaces.get(&nsid).cloned();
        let (Some(from), Some(to)) = (of(&self.shared), of(wanted)) else { return Ok(()) };
        let is_made_anew = |step: &Step| {
            matches!(step, Step::AddNamespace { nqn: name, nsid: id, .. }
                if name == nqn && *id == nsid)
        };
        if from.path != to.path || steps.iter().any(is_made_anew) {
            return Ok(());
        }
        let (name, namespace) = (nqn.clone(), from.clone());
        let failed = |reason| {
            let reason = format!("{nqn}: namespace {nsid} stays as it is: {reason}");
            let step = Box::new(Step::RemoveNamespace { nqn: name, nsid, namespace });
            Refused::Failed(Failed { step, reason, left: Vec::new() })
        };
        if self.live.is_replaced(nqn, nsid).map_err(failed)? {
            let is_change = |step: &Step| {
                matches!(step, Step::ChangeNamespace { nqn: name, nsid: id, .. }
                    if name == nqn && *id == nsid)
            };
            steps.retain(|step| !is_change(step));
            let nqn = nqn.clone();
            steps.push(Step::RemoveNamespace { nqn: nqn.clone(), nsid, namespace: from });
            steps.push(Step::AddNamespace { nqn, nsid, namespace: to });
        }
        Ok(())
    }

    fn make(
        &mut self,
        wanted: Document,
        configured: Document,
        steps: &[Step],
    ) -> Result<Vec<String>, Refused> {
        let said: Vec<_> = steps.iter().map(ToString::to_string).collect();
        let done = reconcile(&mut self.live, steps).map_err(|failed| {
            self.live.settle(Vec::new());
            Refused::Failed(failed)
        })?;
        let is_new = wanted != self.shared || configured != self.configured;
        let kept = Kept { configured, shared: wanted };
        if let Some(store) = self.store.as_ref().filter(|_| is_new)
            && let Err(error) = store.save(&kept)
        {
            let left = take_all_back(&mut self.live, done);
            self.live.settle(Vec::new());
            return Err(Refused::Store(error, left));
        }
        self.live.settle(done);
        if kept.shared != self.shared {
            self.revision.fetch_add(1, Ordering::Relaxed);
        }
        (self.shared, self.configured) = (kept.shared, kept.configured);
        *self.paths.lock().expect("no holder panics") = paths(&self.shared);
        // Whoever asked for it logs it, and who they are.
        Ok(said)
    }
}
