//! The cores' mailboxes, and what is posted there.

use crate::backings::{BackingId, Backings};
use crate::claim::Claim;
use crate::fence::EndingId;
use crate::removal::Share;
use crate::route::{Asking, Route};
use farblock_proto::capsule::SlotId;
use farblock_proto::controller::{AccessChange, NamespaceTable, SubsystemId};
use farblock_proto::ids::CommandId;
use farblock_reactor::Waker;
use farblock_reactor::os::{ListenSocket, Socket};
use farblock_secure::Controller;
use farblock_wire::Status;
use std::net::SocketAddr;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

/// A message to a core.
#[derive(Debug)]
pub(crate) enum Message {
    /// A new connection, with its serial number.
    Accepted(Socket, SocketAddr, u64),
    /// A host in this process, with its serial number.
    #[cfg(test)]
    Joined(Arc<crate::transport::memory::Wire>, u64),
    /// Close this connection.
    Close(Route),
    /// A queue of this admin connection's controller is gone: it may be drained now.
    Look(Route),
    /// Complete a held command of this connection.
    Complete { route: Route, command: CommandId, status: Status, result: u64 },
    /// Drop a held command of this connection without a response.
    Forget { route: Route, command: CommandId },
    /// A message of this connection's host was handled; see [`crate::authentication`].
    Authenticated { route: Route, slot: SlotId, machine: Box<Controller> },
    /// The answer to a reservation command of this connection.
    Reserved { route: Route, slot: SlotId, status: Status, report: Option<Vec<u8>> },
    /// Abort this command of this connection, and report whether that succeeded.
    Abort { route: Route, command: CommandId, asking: Asking },
    /// The answer to an Abort command of this connection.
    Aborted { route: Route, slot: SlotId, aborted: bool },
    /// Apply a reservation change to this subsystem's connections.
    Access(Arc<AccessChange>),
    /// This subsystem's connections use this table and these stores from now on.
    Namespaces(SubsystemId, Arc<NamespaceTable>, Arc<Backings>),
    /// Park changes of these blocks; report when none is under way.
    Claimed(Arc<Claim>),
    /// This connection now holds its claim.
    Granted(Route, Arc<Claim>),
    /// Stop parking changes of these blocks.
    Unclaimed(Arc<Claim>),
    /// Release this store: no list older than this message is used any more.
    Retire(BackingId, Share),
    /// News of an earlier queue for the waiting commands of this fenced connection.
    Ended(Route, EndingId),
    /// Listen on this socket, too, and report the result.
    Listen(ListenSocket, SocketAddr, Sender<std::io::Result<()>>),
    /// Stop listening there, and close the connections accepted there.
    Unlisten(SocketAddr),
    /// Close the connections accepted there that may not stay.
    CloseAt(SocketAddr, Scope),
    /// Complete what was accepted, close all connections and end.
    Stop,
}

/// The connections to close.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scope {
    All,
    WithoutTls,
}

/// A core's mailbox.
pub(crate) struct Mailbox {
    messages: Mutex<Vec<Message>>,
    waker: Waker,
}

impl Mailbox {
    pub(crate) fn new(waker: Waker) -> Self {
        Self { messages: Mutex::new(Vec::new()), waker }
    }

    pub(crate) fn post(&self, message: Message) {
        self.messages.lock().expect("no holder panics").push(message);
        self.waker.wake();
    }

    /// Posts a subsystem's namespaces. A list that the core has not read yet is outdated, so the
    /// new one replaces it: after any number of changes, a core reads one list. Stores retired
    /// after that message are not in the new list either.
    pub(crate) fn post_namespaces(
        &self,
        subsystem: SubsystemId,
        table: Arc<NamespaceTable>,
        backings: Arc<Backings>,
    ) {
        let mut messages = self.messages.lock().expect("no holder panics");
        let older = messages.iter_mut().find(|message| match message {
            Message::Namespaces(other, ..) => *other == subsystem,
            _ => false,
        });
        let news = Message::Namespaces(subsystem, table, backings);
        match older {
            Some(older) => *older = news,
            None => messages.push(news),
        }
        drop(messages);
        self.waker.wake();
    }

    /// Wakes the core.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    pub(crate) fn take(&self) -> Vec<Message> {
        std::mem::take(&mut self.messages.lock().expect("no holder panics"))
    }
}
