//! Events for the target's operator. The target logs each event and passes it to the observer.

use farblock_block::size::Size;
use farblock_proto::controller::Entrance;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

/// Identifies a host's controller in an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Visitor {
    /// The host's name.
    pub host: String,
    /// The host's address.
    pub address: IpAddr,
    /// The subsystem's name.
    pub subsystem: String,
    /// The controller's identifier.
    pub controller: u16,
}

/// An event. Its `Display` text is one sentence for people.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A host has connected, and authenticated if the target requires that.
    Connected(Visitor),
    /// A host's controller has closed. The text is the reason.
    Ended(Visitor, &'static str),
    /// The target refused a host.
    Refused {
        /// The host's name; empty if the host gave none.
        host: String,
        /// The host's address.
        address: IpAddr,
        /// The subsystem that the host requested; empty if unknown.
        subsystem: String,
        /// Why the target refused the host, in a few words.
        reason: String,
    },
    /// A namespace was added to a subsystem.
    NamespaceAdded(String, u32),
    /// A namespace was removed from a subsystem.
    NamespaceRemoved(String, u32),
    /// The size, write protection or store of a namespace changed.
    NamespaceChanged {
        /// The subsystem's name.
        subsystem: String,
        /// The namespace's identifier.
        nsid: u32,
        /// The namespace's size in bytes.
        bytes: u64,
        /// Whether the target refuses writes.
        read_only: bool,
    },
    /// A subsystem was added.
    SubsystemAdded(String),
    /// A subsystem was removed.
    SubsystemRemoved(String),
    /// The target started to listen on this address.
    ListenerAdded(Entrance),
    /// The target stopped listening on this address.
    ListenerRemoved(Entrance),
    /// A namespace's store failed. After several failures in a short time, the target only counts
    /// further failures and reports no event for each.
    StorageFailed {
        /// The namespace's identifier.
        nsid: u32,
        /// The host that sent the command.
        host: String,
        /// The error in one sentence.
        what: String,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let where_from = |address: &IpAddr| address.to_canonical();
        match self {
            Self::Connected(Visitor { host, address, subsystem, controller }) => write!(
                f,
                "host {host} at {} connected to {subsystem} (controller {controller})",
                where_from(address)
            ),
            Self::Ended(Visitor { host, address, subsystem, controller }, reason) => write!(
                f,
                "host {host} at {} has left {subsystem} (controller {controller}): {reason}",
                where_from(address)
            ),
            Self::Refused { host, address, reason, .. } if host.is_empty() => {
                write!(f, "refused a host at {}: {reason}", where_from(address))
            }
            Self::Refused { host, address, subsystem, reason } => write!(
                f,
                "refused host {host} at {} access to {subsystem}: {reason}",
                where_from(address)
            ),
            Self::NamespaceAdded(nqn, nsid) => {
                write!(f, "{nqn}: started to share namespace {nsid}")
            }
            Self::NamespaceRemoved(nqn, nsid) => {
                write!(f, "{nqn}: stopped sharing namespace {nsid}")
            }
            Self::NamespaceChanged { subsystem, nsid, bytes, read_only } => {
                let access = if *read_only { "read-only" } else { "writable" };
                write!(f, "{subsystem}: namespace {nsid} now has {} and is {access}", Size(*bytes))
            }
            Self::SubsystemAdded(nqn) => write!(f, "added subsystem {nqn}"),
            Self::SubsystemRemoved(nqn) => write!(f, "removed subsystem {nqn}"),
            Self::ListenerAdded(address) => write!(f, "started to listen on {address}"),
            Self::ListenerRemoved(address) => write!(f, "stopped listening on {address}"),
            Self::StorageFailed { nsid, host, what } => {
                write!(f, "namespace {nsid}, host {host}: {what}")
            }
        }
    }
}

/// A function that receives every event. The target may call it with locks held, so it must neither
/// block nor call the target.
pub type Observer = Arc<dyn Fn(&Event) + Send + Sync>;

#[derive(Default)]
pub(crate) struct Observed(Mutex<Option<Observer>>);

impl Observed {
    pub(crate) fn set(&self, observer: Option<Observer>) {
        *self.0.lock().expect("no holder panics") = observer;
    }

    pub(crate) fn tell(&self, event: &Event) {
        let observer = self.0.lock().expect("no holder panics").clone();
        if let Some(observer) = observer {
            observer(event);
        }
    }

    pub(crate) fn log(&self, event: &Event) {
        tracing::info!("{event}");
        self.tell(event);
    }

    /// Passes a requested change to the observer, without a log line: the requester logs the
    /// change, together with the user's name.
    pub(crate) fn log_change(&self, event: &Event) {
        tracing::debug!("{event}");
        self.tell(event);
    }
}
