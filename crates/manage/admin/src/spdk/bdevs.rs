//! Block devices by SPDK's names: what stores a namespace, opened, whether one uses it or not.

use super::limits::{MAX_BDEVS, MAX_NAME};
use super::message::{Errno, RpcError};
use crate::live::{NotOpened, Open, Opened};
use farblock_state::{Host, Limits, Namespace};
use farblock_target::HostKeys;
use std::sync::{Arc, Mutex, MutexGuard};
use uuid::Uuid;

/// What kind of block device one is to SPDK's clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BdevKind {
    Malloc,
    Null,
    Aio,
    Uring,
    Raid,
    /// What SPDK has no bdev for: a mirror, a concatenation, an image of a Ceph cluster and so on.
    Other,
}

impl BdevKind {
    /// SPDK's name for the product.
    pub(super) fn product(self) -> &'static str {
        match self {
            Self::Malloc => "Malloc disk",
            Self::Null => "Null disk",
            Self::Aio => "AIO disk",
            Self::Uring => "URING bdev",
            Self::Raid => "Raid Volume",
            Self::Other => "farblock disk",
        }
    }
}

/// A block device.
#[derive(Clone)]
pub(super) struct Bdev {
    pub(super) name: String,
    pub(super) kind: BdevKind,
    pub(super) uuid: Uuid,
    /// Its place in a document.
    pub(super) namespace: Namespace,
    /// What stores it; none of one that only the document has.
    pub(super) opened: Option<Opened>,
    /// Of a RAID bdev, those that it is made of.
    pub(super) bases: Vec<String>,
    /// KiB of a chunk of a RAID bdev.
    pub(super) strip_kib: u32,
}

/// The block devices that clients have made. What stores them stays open, whether a namespace uses
/// it or not, so that what was written is there when it is used again.
#[derive(Default)]
pub struct Bdevs {
    /// In the order in which they were made.
    made: Mutex<Vec<Bdev>>,
}

impl Bdevs {
    /// None yet.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Opens what a document names: these, where they are what is meant, and the rest by `opener`.
    pub fn opening(self: &Arc<Self>, opener: Arc<dyn Open>) -> Arc<dyn Open> {
        Arc::new(Opener { bdevs: Arc::clone(self), opener })
    }

    pub(super) fn all(&self) -> Vec<Bdev> {
        self.lock().clone()
    }

    pub(super) fn find(&self, name: &str) -> Option<Bdev> {
        self.lock().iter().find(|bdev| has_name(bdev, name)).cloned()
    }

    /// Whether one of this name may be made.
    pub(super) fn check_name(&self, name: &str) -> Result<(), RpcError> {
        if name.is_empty() || name.chars().count() > MAX_NAME {
            let sentence = format!("name: 1 to {MAX_NAME} characters");
            return Err(RpcError::from(Errno::Invalid).because(sentence));
        }
        let made = self.lock();
        if made.len() == MAX_BDEVS {
            let sentence = format!("there are no more than {MAX_BDEVS} bdevs: delete one");
            return Err(RpcError::from(Errno::NoSpace).because(sentence));
        }
        match made.iter().any(|bdev| has_name(bdev, name)) {
            true => Err(RpcError::from(Errno::Exists).because(format!("there is a bdev {name}"))),
            false => Ok(()),
        }
    }

    pub(super) fn add(&self, bdev: Bdev) -> Result<(), RpcError> {
        let mut made = self.lock();
        if made.iter().any(|other| other.uuid == bdev.uuid) {
            let sentence = format!("there is a bdev with the UUID {}", bdev.uuid);
            return Err(RpcError::from(Errno::Exists).because(sentence));
        }
        made.push(bdev);
        Ok(())
    }

    /// Gives what stores these to whoever gives it up, which may take its time.
    pub(super) fn remove(&self, names: &[String]) -> Vec<Bdev> {
        let mut made = self.lock();
        made.extract_if(.., |bdev| names.contains(&bdev.name)).collect()
    }

    /// What a namespace would be in a document that is stored here.
    pub(super) fn export(&self, name: &str, namespace: &Namespace) {
        let mut made = self.lock();
        if let Some(bdev) = made.iter_mut().find(|bdev| bdev.name == name) {
            bdev.namespace = namespace.clone();
        }
    }

    /// Remembers the limits of what is stored here, for when a namespace uses it.
    pub(super) fn limit(&self, name: &str, limits: Limits) {
        let mut made = self.lock();
        if let Some(bdev) = made.iter_mut().find(|bdev| bdev.name == name) {
            bdev.namespace.limits = limits;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Bdev>> {
        self.made.lock().expect("no holder panics")
    }
}

/// A bdev is found by its UUID, too: SPDK has that among its aliases.
fn has_name(bdev: &Bdev, name: &str) -> bool {
    bdev.name == name || Uuid::parse_str(name).is_ok_and(|uuid| uuid == bdev.uuid)
}

/// Whether a namespace of a document is stored in this bdev.
pub(super) fn is_of(namespace: &Namespace, bdev: &Bdev) -> bool {
    namespace.path == bdev.namespace.path && namespace.uuid == bdev.namespace.uuid
}

struct Opener {
    bdevs: Arc<Bdevs>,
    opener: Arc<dyn Open>,
}

impl Open for Opener {
    fn open(&self, namespace: &Namespace) -> Result<Opened, NotOpened> {
        let all = self.bdevs.all();
        // What a RAID bdev is made of is nobody else's.
        let is_part = |name| all.iter().any(|raid| raid.bases.contains(name));
        let bdev = all.iter().find(|bdev| {
            is_of(namespace, bdev)
                && namespace.block_size == bdev.namespace.block_size
                && !is_part(&bdev.name)
        });
        let opened = bdev.and_then(|bdev| bdev.opened.clone());
        let fits = |opened: &Opened| namespace.read_only || !opened.is_opened_to_read();
        let Some(opened) = opened.filter(fits) else { return self.opener.open(namespace) };
        if let Some(file) = &opened.file {
            // Whoever put it aside has unlocked it.
            file.lock().map_err(|error| NotOpened::new(&error, error.to_string()))?;
        }
        Ok(opened)
    }

    fn keys(&self, subsystem: &str, name: &str, host: &Host) -> Result<Option<HostKeys>, String> {
        self.opener.keys(subsystem, name, host)
    }
}
