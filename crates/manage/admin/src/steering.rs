//! A running target, and the document that describes what it shares. All changes go through this
//! module, one at a time.

#[cfg(unix)]
use crate::group_orders::Grouped;
use crate::legs::AllLegs;
use crate::live::Live;
use crate::opener::{Disks, Keys, Open};
use farblock_admin_api::Stats;
use farblock_admin_api::Status;
#[cfg(unix)]
use farblock_admin_api::{AnaStatus, MirrorOrder, MirrorStatus};
use farblock_admin_api::{Aside, Confinement};
use farblock_state::{Document, Entrance, Failed, Host, Kept, Problem, Step, Store, StoreError};
use farblock_state::{doors_kept, merge, steps};
use farblock_target::{Control, Observer, Report};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

/// A function that reads the configuration file again.
pub type Configured = Arc<dyn Fn() -> Result<Document, String> + Send + Sync>;

/// A function that reports the rights that the process has dropped.
pub type Confined = Box<dyn Fn() -> Confinement + Send + Sync>;

/// The result of a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Changed {
    /// A sentence for each step; empty if the target has not changed.
    pub steps: Vec<String>,
    /// The new version of the document.
    pub etag: String,
}

/// The maximum number of steps that [`Changed::summary`] lists.
const SUMMARY_STEPS: usize = 8;

impl Changed {
    /// A sentence for the log, with the first steps and the number of further steps.
    #[must_use]
    pub fn summary(&self) -> String {
        let listed = self.steps.len().min(SUMMARY_STEPS);
        let text = self.steps[..listed].join("; ");
        match self.steps.len() - listed {
            0 if text.is_empty() => "nothing to change".to_owned(),
            0 => format!("changed: {text}"),
            more => format!("changed: {text}; and {more} more"),
        }
    }
}

/// The reason why nothing was changed.
#[derive(Debug)]
pub enum Refused {
    /// The version of the document is not the expected one.
    Stale(String),
    /// The request is invalid.
    Problem(Problem),
    /// The object does not exist.
    Missing(String),
    /// The object exists, although the request was to create it.
    There(String),
    /// The target failed to execute a step.
    Failed(Failed),
    /// The target executed the steps, but could not store the document.
    Store(StoreError, Vec<String>),
    /// The configuration is missing or cannot be read.
    Configuration(String),
    /// Only the group of the target may make the change.
    Group(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stale(etag) => write!(
                f,
                "another client has changed the document: read version {etag}, and repeat the \
                 change"
            ),
            Self::Problem(problem) => problem.fmt(f),
            Self::Missing(what) => write!(f, "there is no {what}"),
            Self::There(what) => write!(f, "{what} already exists"),
            Self::Failed(failed) => failed.fmt(f),
            Self::Store(error, left) => {
                write!(f, "the change could not be stored, so the target rolled it back: {error}")?;
                left.iter().try_for_each(|sentence| {
                    write!(f, "; but a step could not be rolled back: {sentence}")
                })
            }
            Self::Configuration(sentence) | Self::Group(sentence) => f.write_str(sentence),
        }
    }
}

impl std::error::Error for Refused {}

/// The files that a change reads again, even if their entries in the document stay the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reread {
    /// No files.
    Nothing,
    /// The key files of a host, by subsystem NQN and host NQN.
    Host(String, String),
    /// The file of a namespace, by subsystem NQN and namespace ID. If another file has its name
    /// now, the change replaces the namespace.
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

/// A running target with its document; see the [module](self).
pub struct Steering {
    inner: Mutex<Inner>,
    control: Control,
    legs: AllLegs,
    shown: Shown,
    configured: Option<Configured>,
    confined: Option<Confined>,
    #[cfg(unix)]
    group: Option<Arc<dyn Grouped>>,
    /// Whether a client has requested counters since the last [`Steering::rest`].
    asked: AtomicBool,
    /// The addresses on which the target listened at its start. They give the actual port for port
    /// 0 in a configuration.
    started: Vec<Entrance>,
    /// The number of changes of the document since the start.
    revision: Arc<AtomicU64>,
    /// The start time, which distinguishes the versions of different runs.
    epoch: u64,
}

struct Inner {
    live: Live,
    /// The configuration that was read last.
    configured: Document,
    /// The current document.
    shared: Document,
    store: Option<Store>,
    /// The number of changes. It is written only under the lock of `Inner`, but can be read without
    /// it.
    revision: Arc<AtomicU64>,
    shown: Shown,
}

/// The document that was last in effect. Unlike `Inner`, it can be read without waiting for a
/// change.
type Shown = Arc<Mutex<Arc<Document>>>;

impl Steering {
    /// Manages a target that shares the objects in `shared`. `disks` has their open storage.
    pub fn new(control: Control, opener: Arc<dyn Open>, shared: Document, disks: Disks) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let live = Live::new(control.clone(), opener, disks);
        let legs = live.legs.clone();
        let configured = shared.clone();
        let started = shared.listeners.keys().copied().collect();
        let revision = Arc::new(AtomicU64::new(1));
        let shown = Arc::new(Mutex::new(Arc::new(shared.clone())));
        Self {
            started,
            inner: Mutex::new(Inner {
                live,
                configured,
                shared,
                store: None,
                revision: Arc::clone(&revision),
                shown: Arc::clone(&shown),
            }),
            shown,
            revision,
            control,
            legs,
            configured: None,
            confined: None,
            #[cfg(unix)]
            group: None,
            asked: AtomicBool::new(false),
            epoch: u64::try_from(since.as_micros()).unwrap_or_default(),
        }
    }

    /// Sets the configuration at the start, and a function that reads the configuration again.
    #[must_use]
    pub fn configured(mut self, document: Document, again: Option<Configured>) -> Self {
        self.lock().configured = document;
        self.configured = again;
        self
    }

    /// Sets the group of which the target is a member.
    #[cfg(unix)]
    #[must_use]
    pub fn grouped(self, group: Arc<dyn Grouped>) -> Self {
        Self { group: Some(group), ..self }
    }

    #[cfg(unix)]
    pub(crate) fn group(&self) -> Option<Arc<dyn Grouped>> {
        self.group.clone()
    }

    /// Sets the function that reports the dropped rights in the status.
    #[must_use]
    pub fn confined(mut self, confined: Confined) -> Self {
        self.confined = Some(confined);
        self
    }

    /// Sets the host keys that the target already uses.
    #[must_use]
    pub fn keyed(self, keys: Keys) -> Self {
        self.lock().live.keys = keys;
        self
    }

    /// Sets the time limit for opening disks, key files and the configuration.
    #[cfg(test)]
    pub(crate) fn opening_within(self, longest: std::time::Duration) -> Self {
        self.lock().live.patience = farblock_admin_api::OpenTimeouts::new(longest);
        self
    }

    /// Stores all changes in this store.
    #[must_use]
    pub fn kept_in(self, store: Store) -> Self {
        self.lock().store = Some(store);
        self
    }

    /// Applies the sizes, limits and copy speeds in the document to the namespaces.
    ///
    /// # Errors
    /// One sentence with the reason.
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

    /// The document and its version.
    pub fn document(&self) -> (Document, String) {
        let inner = self.lock();
        (inner.shared.clone(), self.version())
    }

    /// Changes the document with `edit`. `expected` is a comma-separated list of versions, or `*`.
    /// If it is given, it must contain the current version.
    ///
    /// # Errors
    /// The reason why nothing was changed.
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
        wanted.check_after(&inner.shared).map_err(Refused::Problem)?;
        doors_kept(&inner.shared, &wanted).map_err(Refused::Problem)?;
        let configured = inner.configured.clone();
        let steps = inner.steps(&wanted, reread)?;
        self.fits_group(&steps)?;
        let steps = inner.make(wanted, configured, &steps)?;
        Ok(Changed { steps, etag: self.version() })
    }

    /// The hosts for whose entries `is_such` returns true, by subsystem NQN and host NQN.
    pub fn hosts(&self, is_such: impl Fn(&Host) -> bool) -> Vec<(String, String)> {
        let inner = self.lock();
        let all = inner.shared.subsystems.iter().flat_map(|(nqn, subsystem)| {
            subsystem.hosts.iter().map(move |(host, entry)| (nqn, host, entry))
        });
        let found = all.filter(|(.., entry)| is_such(entry));
        found.map(|(nqn, host, _)| (nqn.clone(), host.clone())).collect()
    }

    /// Reads the keys of a host again. Returns a sentence if they have changed, otherwise `None`.
    /// Other changes wait meanwhile.
    ///
    /// # Errors
    /// The reason why the host keeps its previous keys.
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
        let done = inner.live.take_all(&steps);
        let (done, failed) = done.map_or_else(|why| (Vec::new(), Some(why)), |done| (done, None));
        inner.live.settle(done);
        failed.map_or(Ok(Some(said)), |why| Err(Refused::Failed(why)))
    }

    /// Reads the configuration again and applies its changes. Other changes made at run time stay.
    /// With `only_look`, this only reports the steps.
    ///
    /// # Errors
    /// The reason why nothing was changed.
    pub fn reload(&self, only_look: bool) -> Result<Changed, Refused> {
        let Some(again) = self.configured.clone() else {
            let sentence = "this target was started without --config, so it has no configuration \
                            file to read again: change it with farblock ctl";
            return Err(Refused::Configuration(sentence.to_owned()));
        };
        let mut inner = self.lock();
        // Read on a helper thread with a time limit. The file may be on a network share whose
        // server does not respond, and other changes wait for the lock.
        let configured =
            inner.live.patience.with(Aside::Configuration, "the configuration", move || again());
        let configured = configured.map_err(Refused::Configuration)?;
        let (old, new) = (self.with_ports(&inner.configured), self.with_ports(&configured));
        let wanted = merge(&old, &new, &inner.shared);
        wanted.check_after(&inner.shared).map_err(Refused::Problem)?;
        let steps = inner.steps(&wanted, &Reread::All)?;
        self.fits_group(&steps)?;
        let done = match only_look {
            true => steps.iter().map(ToString::to_string).collect(),
            false => inner.make(wanted, configured, &steps)?,
        };
        Ok(Changed { steps: done, etag: self.version() })
    }

    /// The state of the target.
    pub fn report(&self) -> Report {
        self.control.report()
    }

    /// The state of the target, in a form for people and programs.
    pub fn status(&self) -> Status {
        let confinement = self.confined.as_ref().map(|confined| confined());
        let document = Arc::clone(&self.shown.lock().expect("no lock holder panics"));
        #[allow(unused_mut, reason = "only Unix has groups")]
        let mut status = crate::status::of(&self.report(), &self.legs, &document);
        #[cfg(unix)]
        if let Some(group) = &self.group {
            let leads = group.leads().into_iter().map(|it| (it.to_string(), "optimized".into()));
            let groups: std::collections::BTreeMap<_, _> = leads.collect();
            for ana in status.ana.values_mut() {
                *ana = AnaStatus { state: "inaccessible".to_owned(), groups: groups.clone() };
            }
        }
        Status { confinement, ..status }
    }

    /// Sends an order to a mirror. Returns the status of the mirror; `None` if there is no such
    /// mirror.
    #[cfg(unix)]
    pub(crate) fn order(&self, nqn: &str, nsid: u32, order: &MirrorOrder) -> Option<MirrorStatus> {
        let mirror = self.legs.find(nqn, nsid)?;
        mirror.order(order);
        mirror.status().and_then(|(_, status)| status)
    }

    /// The counters. Also starts the measurement of latency. [`rest`](Steering::rest) stops it when
    /// no client has requested counters for some time.
    pub fn stats(&self) -> Stats {
        self.asked.store(true, Ordering::Relaxed);
        self.control.measure_latency(true);
        crate::stats::of(&self.control.stats())
    }

    /// The counters in total and by core. Does not start the measurement of latency.
    #[cfg(unix)]
    pub(crate) fn totals(&self) -> Stats {
        let mut counted = self.control.stats();
        counted.subsystems.clear();
        counted.hosts.clear();
        crate::stats::of(&counted)
    }

    /// The counters as the target reports them. Does not start the measurement of latency.
    pub fn counts(&self) -> farblock_target::Stats {
        self.control.stats()
    }

    /// Stops the measurement of latency if no client has requested counters since the last call.
    pub fn rest(&self) {
        let asked = self.asked.swap(false, Ordering::Relaxed);
        self.control.measure_latency(asked);
    }

    /// Sends all events to `observer`.
    pub fn observe(&self, observer: Option<Observer>) {
        self.control.observe(observer);
    }

    /// The configuration with the actual ports in the place of port 0.
    fn with_ports(&self, configured: &Document) -> Document {
        let named = &configured.listeners;
        let taken = |address: &Entrance| {
            let is_it = |one: &&Entrance| {
                address.with_port(one.port()) == **one && !named.contains_key(one)
            };
            let found = self.started.iter().find(is_it).filter(|_| address.port() == 0);
            found.copied().unwrap_or(*address)
        };
        let listeners = named.iter().map(|(address, listener)| (taken(address), listener.clone()));
        Document { listeners: listeners.collect(), ..configured.clone() }
    }

    /// The version of the document. Unlike [`Self::document`], this does not wait for a change in
    /// progress.
    pub fn version(&self) -> String {
        format!("\"{:x}-{}\"", self.epoch, self.revision.load(Ordering::Relaxed))
    }

    /// Refuses a change that only the group may make.
    fn fits_group(&self, steps: &[Step]) -> Result<(), Refused> {
        #[cfg(unix)]
        if self.group.is_some() {
            return crate::in_group::check(steps).map_err(Refused::Group);
        }
        let _ = steps;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no lock holder panics")
    }
}

impl Inner {
    /// The steps of a change, including key files with changed contents.
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

    /// Removes and adds a namespace if another file now has its path: for hosts, it is another
    /// disk.
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
            let reason = format!("{nqn}: namespace {nsid} is unchanged: {reason}");
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
        let done = self.live.take_all(steps).map_err(|failed| {
            self.live.settle(Vec::new());
            Refused::Failed(failed)
        })?;
        let is_new = wanted != self.shared || configured != self.configured;
        let kept = Kept { configured, shared: wanted };
        if let Some(store) = self.store.as_ref().filter(|_| is_new)
            && let Err(error) = store.save(&kept)
        {
            let left = self.live.undo_all(done);
            self.live.settle(Vec::new());
            return Err(Refused::Store(error, left));
        }
        self.live.settle(done);
        if kept.shared != self.shared {
            self.revision.fetch_add(1, Ordering::Relaxed);
        }
        (self.shared, self.configured) = (kept.shared, kept.configured);
        *self.shown.lock().expect("no lock holder panics") = Arc::new(self.shared.clone());
        // The caller logs the change with the name of the client.
        Ok(said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_of_ten_thousand_steps_is_one_short_line() {
        let summary = |count: usize| {
            let steps = (1..=count).map(|step| format!("step {step}")).collect();
            Changed { steps, etag: String::new() }.summary()
        };
        assert_eq!(summary(0), "nothing to change");
        assert_eq!(summary(2), "changed: step 1; step 2");
        assert!(summary(SUMMARY_STEPS).ends_with("; step 8"));
        assert!(summary(SUMMARY_STEPS + 1).ends_with("; step 8; and 1 more"));
        assert_eq!(summary(10_000).len(), summary(9_999).len());
    }
}
