//! Opens the storage and keys that a document names.

use crate::legs::Legs;
use farblock_backends::file::FileDisk;
use farblock_backends::{FileProblem, OpenError};
use farblock_block::Namespace as Store;
use farblock_state::{Host, Namespace};
use farblock_target::{HostKeys, ReservationStore};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The open storage of a namespace.
#[derive(Clone)]
pub struct Opened {
    /// The storage that the target shares.
    pub namespace: Arc<dyn Store>,
    /// The same storage as a file, if it is a plain file or device.
    pub file: Option<Arc<FileDisk>>,
    /// A text that distinguishes this disk from all other disks.
    pub identity: String,
    /// The legs or remote parts, if the storage has any.
    pub legs: Option<Legs>,
    /// The store for the reservations of the disk; `None` if they do not persist.
    pub reservations: Option<Arc<dyn ReservationStore>>,
    /// Announces to other processes that this disk is open. The announcement ends when its last
    /// clone is dropped.
    pub announcement: Option<Announcement>,
}

/// A value from the opener that an open disk keeps until the disk is closed.
pub type Announcement = Arc<dyn Any + Send + Sync>;

impl Opened {
    /// Storage that is not a file, and whose reservations do not persist.
    pub fn alone(namespace: Arc<dyn Store>, identity: String) -> Opened {
        let (file, legs, reservations, announcement) = (None, None, None, None);
        Opened { namespace, file, identity, legs, reservations, announcement }
    }

    /// Whether the storage is open read-only, so that it must be opened again before it accepts
    /// writes.
    #[must_use]
    pub fn is_opened_to_read(&self) -> bool {
        match &self.file {
            Some(file) => file.is_opened_to_read(),
            None => self.namespace.geometry().read_only,
        }
    }
}

/// The reason why a disk could not be opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotOpened {
    /// The kind of cause, for programs.
    pub cause: Cause,
    /// The reason in one sentence, for people.
    pub sentence: String,
}

/// The kind of cause, for programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// Another program, device or disk uses the disk.
    InUse,
    /// The disk does not exist.
    NotFound,
    /// This process lacks a permission.
    Denied,
    /// The size, block size or name of the disk is wrong, or another error occurred.
    Invalid,
}

impl NotOpened {
    /// The cause of a storage error, with the sentence to report.
    #[must_use]
    pub fn new(error: &OpenError, sentence: String) -> Self {
        use FileProblem::{
            Busy, Immutable, InUse, Locked, MayNotRead, MayNotWrite, NeedsAdministrator, NotFound,
            ReadOnly,
        };
        let OpenError::File { problem, .. } = error else { return Self::from(sentence) };
        let cause = match problem {
            Locked { .. } | InUse { .. } | Busy => Cause::InUse,
            NotFound => Cause::NotFound,
            MayNotRead | MayNotWrite | NeedsAdministrator | ReadOnly | Immutable => Cause::Denied,
            _ => Cause::Invalid,
        };
        Self { cause, sentence }
    }
}

impl From<String> for NotOpened {
    fn from(sentence: String) -> Self {
        Self { cause: Cause::Invalid, sentence }
    }
}

/// Opens the storage and keys that a document names.
pub trait Open: Send + Sync {
    /// Opens the storage of a namespace.
    ///
    /// # Errors
    /// One sentence with the reason, and the kind of cause.
    fn open(&self, namespace: &Namespace) -> Result<Opened, NotOpened>;

    /// Reads the keys of a host for a subsystem. `None` if the host does not authenticate.
    ///
    /// # Errors
    /// One sentence with the reason, which contains no part of a secret.
    fn keys(&self, subsystem: &str, name: &str, host: &Host) -> Result<Option<HostKeys>, String>;
}

/// The storage of all namespaces, by subsystem and namespace ID.
pub type Disks = BTreeMap<(String, u32), Opened>;

/// The keys of hosts, by subsystem NQN and host NQN.
pub type Keys = BTreeMap<(String, String), HostKeys>;
