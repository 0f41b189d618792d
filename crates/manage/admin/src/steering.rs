//! One running target, its document, and everybody who wants to change it, one after the other.

use crate::live::{Disks, Live, Open};
use crate::status::Status;
use farblock_state::{Document, Failed, Kept, Problem, Store, StoreError};
use farblock_state::{merge, reconcile, steps, take_all_back};
use farblock_target::{Control, Report};
use std::fmt;
use std::sync::{Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

/// Reads the configuration file again: what it says now.
pub type Configured = Box<dyn Fn() -> Result<Document, String> + Send + Sync>;

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

/// See the module's text.
pub struct Steering {
    inner: Mutex<Inner>,
    control: Control,
    configured: Option<Configured>,
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
    revision: u64,
}

impl Steering {
    /// A target that shares `shared`, stored in `disks`.
    pub fn new(control: Control, opener: Box<dyn Open>, shared: Document, disks: Disks) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let live = Live::new(control.clone(), opener, disks);
        let configured = shared.clone();
        Self {
            inner: Mutex::new(Inner { live, configured, shared, store: None, revision: 1 }),
            control,
            configured: None,
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

    /// Keeps what is changed.
    #[must_use]
    pub fn kept_in(self, store: Store) -> Self {
        self.lock().store = Some(store);
        self
    }

    /// Gives namespaces the sizes that the document has for them.
    ///
    /// # Errors
    /// One sentence.
    pub fn begin(&self) -> Result<(), String> {
        let mut inner = self.lock();
        let shared = inner.shared.clone();
        for (nqn, subsystem) in &shared.subsystems {
            for (nsid, namespace) in &subsystem.namespaces {
                if namespace.size.is_some() {
                    inner.live.shape(nqn, *nsid, namespace)?;
                }
            }
        }
        Ok(())
    }

    /// What is shared, and the version of that.
    pub fn document(&self) -> (Document, String) {
        let inner = self.lock();
        (inner.shared.clone(), self.etag(&inner))
    }

    /// Makes it as `edit` says. With `expected`, only if that is the version still.
    ///
    /// # Errors
    /// Why it stays as it was.
    pub fn change(
        &self,
        expected: Option<&str>,
        edit: impl FnOnce(&Document) -> Result<Document, Refused>,
    ) -> Result<Changed, Refused> {
        let mut inner = self.lock();
        let etag = self.etag(&inner);
        if expected.is_some_and(|expected| expected != "*" && expected != etag) {
            return Err(Refused::Stale(etag));
        }
        let wanted = edit(&inner.shared)?;
        wanted.check().map_err(Refused::Problem)?;
        let configured = inner.configured.clone();
        let steps = inner.make(wanted, configured)?;
        Ok(Changed { steps, etag: self.etag(&inner) })
    }

    /// Reads the configuration again and makes what changed in it so; what was changed at run time
    /// besides stays. With `only_look`, says what would be done.
    ///
    /// # Errors
    /// Why everything stays as it was.
    pub fn reload(&self, only_look: bool) -> Result<Changed, Refused> {
        let Some(again) = &self.configured else {
            let sentence = "there is no configuration file to read again: this target was started \
                            without --config, and is changed by farblock ctl";
            return Err(Refused::Configuration(sentence.to_owned()));
        };
        let mut inner = self.lock();
        let configured = again().map_err(Refused::Configuration)?;
        let wanted = merge(&inner.configured, &configured, &inner.shared);
        wanted.check().map_err(Refused::Problem)?;
        let done = match only_look {
            true => sentences(&inner.shared, &wanted),
            false => inner.make(wanted, configured)?,
        };
        Ok(Changed { steps: done, etag: self.etag(&inner) })
    }

    /// What the target does at the moment.
    pub fn report(&self) -> Report {
        self.control.report()
    }

    /// The same, for people and programs.
    pub fn status(&self) -> Status {
        Status::of(&self.report())
    }

    fn etag(&self, inner: &Inner) -> String {
        format!("\"{:x}-{}\"", self.epoch, inner.revision)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no holder panics")
    }
}

impl Inner {
    fn make(&mut self, wanted: Document, configured: Document) -> Result<Vec<String>, Refused> {
        let steps = steps(&self.shared, &wanted);
        let said: Vec<_> = steps.iter().map(ToString::to_string).collect();
        let done = reconcile(&mut self.live, &steps).map_err(|failed| {
            self.live.settle();
            Refused::Failed(failed)
        })?;
        let is_new = wanted != self.shared || configured != self.configured;
        let kept = Kept { configured, shared: wanted };
        if let Some(store) = self.store.as_ref().filter(|_| is_new)
            && let Err(error) = store.save(&kept)
        {
            let left = take_all_back(&mut self.live, done);
            self.live.settle();
            return Err(Refused::Store(error, left));
        }
        drop(done);
        self.live.settle();
        if kept.shared != self.shared {
            self.revision += 1;
        }
        (self.shared, self.configured) = (kept.shared, kept.configured);
        for sentence in &said {
            tracing::info!("changed: {sentence}");
        }
        Ok(said)
    }
}

fn sentences(from: &Document, to: &Document) -> Vec<String> {
    steps(from, to).iter().map(ToString::to_string).collect()
}
