//! Block devices by SPDK's names, with their open storage, whether or not a namespace uses them.

use super::limits::{MAX_BDEVS, MAX_NAME};
use super::message::{Errno, INTERNAL_ERROR, Params, RpcError};
use farblock_admin::{NotOpened, Open, Opened};
use farblock_state::{Host, Limits, Namespace};
use farblock_target::HostKeys;
use serde::de::DeserializeOwned;
use std::sync::{Arc, Mutex, MutexGuard};
use uuid::Uuid;

/// The kind of a block device to SPDK's clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BdevKind {
    Malloc,
    Null,
    Aio,
    Uring,
    Raid,
    /// Kinds without an SPDK bdev: a mirror, a concatenation, a Ceph image and others.
    Other,
}

impl BdevKind {
    /// SPDK's product name.
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
    /// Its settings as a namespace of the document.
    pub(super) namespace: Namespace,
    /// Its open storage; `None` if only the document names it.
    pub(super) opened: Option<Opened>,
    /// The base bdevs of a RAID bdev.
    pub(super) bases: Vec<String>,
    /// Chunk size of a RAID bdev in KiB.
    pub(super) strip_kib: u32,
}

/// The block devices that clients have created. Their storage stays open even without a namespace,
/// so that the next namespace still has the written data.
#[derive(Default)]
pub struct Bdevs {
    /// In creation order.
    made: Mutex<Vec<Bdev>>,
}

impl Bdevs {
    /// Starts without bdevs.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// An opener that uses these bdevs where they match, and `opener` otherwise.
    pub fn opening(self: &Arc<Self>, opener: Arc<dyn Open>) -> Arc<dyn Open> {
        Arc::new(Opener { bdevs: Arc::clone(self), opener })
    }

    pub(super) fn all(&self) -> Vec<Bdev> {
        self.lock().clone()
    }

    pub(super) fn find(&self, name: &str) -> Option<Bdev> {
        self.lock().iter().find(|bdev| has_name(bdev, name)).cloned()
    }

    /// Checks that a bdev of this name can be created.
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

    /// Removes these bdevs, and returns them for the caller to close, which may take long.
    pub(super) fn remove(&self, names: &[String]) -> Vec<Bdev> {
        let mut made = self.lock();
        made.extract_if(.., |bdev| names.contains(&bdev.name)).collect()
    }

    /// Sets a bdev's settings as a namespace of the document.
    pub(super) fn export(&self, name: &str, namespace: &Namespace) {
        let mut made = self.lock();
        if let Some(bdev) = made.iter_mut().find(|bdev| bdev.name == name) {
            bdev.namespace = namespace.clone();
        }
    }

    /// Remembers a bdev's limits until a namespace uses it.
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

/// SPDK also lists a bdev's UUID among its aliases.
fn has_name(bdev: &Bdev, name: &str) -> bool {
    bdev.name == name || Uuid::parse_str(name).is_ok_and(|uuid| uuid == bdev.uuid)
}

/// Whether this bdev stores a namespace of the document.
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
        // A base bdev of a RAID bdev serves nothing else.
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
            // The caller has unlocked it.
            file.lock().map_err(|error| NotOpened::new(&error, error.to_string()))?;
        }
        Ok(opened)
    }

    fn keys(&self, subsystem: &str, name: &str, host: &Host) -> Result<Option<HostKeys>, String> {
        self.opener.keys(subsystem, name, host)
    }
}

/// The parameters of a method for bdevs.
pub(super) fn parse<T: DeserializeOwned>(params: Params) -> Result<T, RpcError> {
    let error = RpcError::new(INTERNAL_ERROR, "spdk_json_decode_object failed");
    params.parse().map_err(|sentence| error.because(sentence))
}

/// The refusal of such parameters.
pub(super) fn invalid(sentence: impl ToString) -> RpcError {
    RpcError::from(Errno::Invalid).because(sentence)
}
