//! Block devices with SPDK's names and their open storage, whether or not a namespace uses them.

use super::limits::{MAX_BDEVS, MAX_NAME};
use super::message::{Errno, INTERNAL_ERROR, Params, RpcError};
use farblock_admin::{NotOpened, Open, Opened};
use farblock_state::{Host, Limits, Namespace};
use farblock_target::HostKeys;
use serde::de::DeserializeOwned;
use std::sync::{Arc, Mutex, MutexGuard};
use uuid::Uuid;

/// The kind of a block device, as SPDK's clients see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BdevKind {
    Malloc,
    Null,
    Aio,
    Uring,
    Raid,
    /// A disk without an SPDK equivalent: a mirror, a concatenation, a Ceph image or another one.
    Other,
}

impl BdevKind {
    /// The product name that SPDK uses for this kind.
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
    /// The settings of the bdev, in the form of a namespace in the document.
    pub(super) namespace: Namespace,
    /// The open storage of the bdev; `None` if only the document names the bdev.
    pub(super) opened: Option<Opened>,
    /// The names of the base bdevs of a RAID bdev.
    pub(super) bases: Vec<String>,
    /// The chunk size of a RAID bdev, in KiB.
    pub(super) strip_kib: u32,
}

/// The block devices that clients have created. Their storage stays open even if no namespace uses
/// it, so that the next namespace still has the written data.
#[derive(Default)]
pub struct Bdevs {
    /// The bdevs, in the order of their creation.
    made: Mutex<Vec<Bdev>>,
}

impl Bdevs {
    /// An empty list of bdevs.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// An opener for the target. It opens the storage of these bdevs for namespaces that match one
    /// of them, and uses `opener` for all other namespaces.
    pub fn opening(self: &Arc<Self>, opener: Arc<dyn Open>) -> Arc<dyn Open> {
        Arc::new(Opener { bdevs: Arc::clone(self), opener })
    }

    pub(super) fn all(&self) -> Vec<Bdev> {
        self.lock().clone()
    }

    pub(super) fn find(&self, name: &str) -> Option<Bdev> {
        self.lock().iter().find(|bdev| has_name(bdev, name)).cloned()
    }

    /// Checks that a bdev with this name can be created.
    pub(super) fn check_name(&self, name: &str) -> Result<(), RpcError> {
        if name.is_empty() || name.chars().count() > MAX_NAME {
            let sentence = format!("name: use 1 to {MAX_NAME} characters");
            return Err(RpcError::from(Errno::Invalid).because(sentence));
        }
        let made = self.lock();
        if made.len() == MAX_BDEVS {
            let sentence = format!("at most {MAX_BDEVS} bdevs can exist: delete one");
            return Err(RpcError::from(Errno::NoSpace).because(sentence));
        }
        match made.iter().any(|bdev| has_name(bdev, name)) {
            true => {
                Err(RpcError::from(Errno::Exists).because(format!("a bdev {name} already exists")))
            }
            false => Ok(()),
        }
    }

    pub(super) fn add(&self, bdev: Bdev) -> Result<(), RpcError> {
        let mut made = self.lock();
        if made.iter().any(|other| other.uuid == bdev.uuid) {
            let sentence = format!("a bdev with the UUID {} already exists", bdev.uuid);
            return Err(RpcError::from(Errno::Exists).because(sentence));
        }
        made.push(bdev);
        Ok(())
    }

    /// Removes these bdevs. Returns them, so that the caller can close them: that may take long.
    pub(super) fn remove(&self, names: &[String]) -> Vec<Bdev> {
        let mut made = self.lock();
        made.extract_if(.., |bdev| names.contains(&bdev.name)).collect()
    }

    /// Updates the settings of a bdev to those of a namespace in the document.
    pub(super) fn export(&self, name: &str, namespace: &Namespace) {
        let mut made = self.lock();
        if let Some(bdev) = made.iter_mut().find(|bdev| bdev.name == name) {
            bdev.namespace = namespace.clone();
        }
    }

    /// Stores the limits of a bdev until a namespace uses the bdev.
    pub(super) fn limit(&self, name: &str, limits: Limits) {
        let mut made = self.lock();
        if let Some(bdev) = made.iter_mut().find(|bdev| bdev.name == name) {
            bdev.namespace.limits = limits;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Bdev>> {
        self.made.lock().expect("no lock holder panics")
    }
}

/// Whether the name is the name or the UUID of the bdev. SPDK lists the UUID among the aliases,
/// too.
fn has_name(bdev: &Bdev, name: &str) -> bool {
    bdev.name == name || Uuid::parse_str(name).is_ok_and(|uuid| uuid == bdev.uuid)
}

/// Whether a namespace of the document is stored on this bdev.
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
        // The base bdevs of a RAID bdev store no namespace of their own.
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
            // Lock the file again: the caller has released its lock.
            file.lock().map_err(|error| NotOpened::new(&error, error.to_string()))?;
        }
        Ok(opened)
    }

    fn keys(&self, subsystem: &str, name: &str, host: &Host) -> Result<Option<HostKeys>, String> {
        self.opener.keys(subsystem, name, host)
    }
}

/// Parses the parameters of a bdev method.
pub(super) fn parse<T: DeserializeOwned>(params: Params) -> Result<T, RpcError> {
    let error = RpcError::new(INTERNAL_ERROR, "spdk_json_decode_object failed");
    params.parse().map_err(|sentence| error.because(sentence))
}

/// The error for invalid parameters of a bdev method.
pub(super) fn invalid(sentence: impl ToString) -> RpcError {
    RpcError::from(Errno::Invalid).because(sentence)
}
