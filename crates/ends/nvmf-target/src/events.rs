//! What happens to a target that somebody who looks after it wants to know: each is a line in the
//! log, and whoever observes the target hears of it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

/// A host's controller, as its administrator knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Visitor {
    /// The host's name.
    pub host: String,
    /// Where it is.
    pub address: IpAddr,
    /// The subsystem's name.
    pub subsystem: String,
    /// The controller's identifier.
    pub controller: u16,
}

/// Something that happened. Its text is a sentence for people.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A host connected, and has authenticated if it has to.
    Connected(Visitor),
    /// Its controller ended, and why.
    Ended(Visitor, &'static str),
    /// A host was refused: its name, where it is, what it wanted, and why not.
    Refused {
        /// The host's name, as far as it said one; nothing if it did not.
        host: String,
        /// Where it is.
        address: IpAddr,
        /// The subsystem that it wanted, as far as it said.
        subsystem: String,
        /// A few words.
        reason: String,
    },
    /// A namespace is shared from now on.
    NamespaceAdded(String, u32),
    /// A namespace is not shared any more.
    NamespaceRemoved(String, u32),
    /// A namespace has another size, protection or store.
    NamespaceChanged {
        /// The subsystem's name.
        subsystem: String,
        /// The namespace.
        nsid: u32,
        /// Its size.
        bytes: u64,
        /// Whether writes are refused.
        read_only: bool,
    },
    /// A subsystem is offered from now on.
    SubsystemAdded(String),
    /// A subsystem is not offered any more.
    SubsystemRemoved(String),
    /// The target listens there from now on.
    ListenerAdded(SocketAddr),
    /// The target does not listen there any more.
    ListenerRemoved(SocketAddr),
    /// What stores a namespace failed; the first of many.
    StorageFailed {
        /// The namespace.
        nsid: u32,
        /// The host whose command it was.
        host: String,
        /// A sentence.
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
                write!(f, "a host at {} was refused: {reason}", where_from(address))
            }
            Self::Refused { host, address, subsystem, reason } => write!(
                f,
                "host {host} at {} was refused at {subsystem}: {reason}",
                where_from(address)
            ),
            Self::NamespaceAdded(nqn, nsid) => write!(f, "{nqn}: namespace {nsid} is shared now"),
            Self::NamespaceRemoved(nqn, nsid) => {
                write!(f, "{nqn}: namespace {nsid} is not shared any more")
            }
            Self::NamespaceChanged { subsystem, nsid, bytes, read_only } => {
                let access = if *read_only { "read only" } else { "read and write" };
                write!(f, "{subsystem}: namespace {nsid} has {bytes} bytes now, {access}")
            }
            Self::SubsystemAdded(nqn) => write!(f, "subsystem {nqn} is offered now"),
            Self::SubsystemRemoved(nqn) => write!(f, "subsystem {nqn} is not offered any more"),
            Self::ListenerAdded(address) => write!(f, "listening on {address} now"),
            Self::ListenerRemoved(address) => write!(f, "not listening on {address} any more"),
            Self::StorageFailed { nsid, host, what } => {
                write!(f, "namespace {nsid}, host {host}: {what}")
            }
        }
    }
}

/// Hears of every event. It may be called by cores, and with locks held: it must not wait, nor call
/// the target.
pub type Observer = Arc<dyn Fn(&Event) + Send + Sync>;

/// Who observes the target, if anybody does.
#[derive(Default)]
pub(crate) struct Observed(Mutex<Option<Observer>>);

impl Observed {
    pub(crate) fn set(&self, observer: Option<Observer>) {
        *self.0.lock().expect("no holder panics") = observer;
    }

    /// Tells of an event.
    pub(crate) fn tell(&self, event: &Event) {
        let observer = self.0.lock().expect("no holder panics").clone();
        if let Some(observer) = observer {
            observer(event);
        }
    }

    /// The same, with a line in the log.
    pub(crate) fn log(&self, event: &Event) {
        tracing::info!("{event}");
        self.tell(event);
    }

    /// The same of what somebody has asked for: whoever makes the change for them logs it, and who
    /// they are.
    pub(crate) fn log_change(&self, event: &Event) {
        tracing::debug!("{event}");
        self.tell(event);
    }
}
