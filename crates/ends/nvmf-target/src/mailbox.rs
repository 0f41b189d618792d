//! The mailboxes of the cores, and the messages that threads post there.

use crate::backings::{BackingId, Backings};
use crate::claim::Claim;
use crate::door::ConnectionRequest;
use crate::fence::EndingId;
use crate::removal::Share;
use crate::route::{Asking, Route};

use farblock_proto::capsule::SlotId;
use farblock_proto::controller::{AccessChange, Entrance, NamespaceTable, SubsystemId};
use farblock_proto::ids::CommandId;
use farblock_reactor::Waker;
use farblock_reactor::os::{ListenSocket, Socket};
use farblock_secure::Controller;
use farblock_verbs::Provider;
use farblock_wire::Status;
use std::fmt;
use std::net::SocketAddr;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

#[derive(Debug)]
pub(crate) enum Message {
    /// Serve this new connection with this peer address and serial number.
    Accepted(Socket, SocketAddr, u64),
    /// A host's request for an RDMA connection, with its serial number.
    Requested(Box<ConnectionRequest>, u64),
    /// Serve a host in this process, with this serial number.
    #[cfg(test)]
    Joined(Arc<crate::transport::memory::Wire>, u64),
    /// Close this connection.
    Close(Route),
    /// An I/O queue of this admin queue's controller has closed. Check whether the admin queue can
    /// close, too.
    Look(Route),
    /// Complete a held command (an asynchronous event request) of this connection.
    Complete { route: Route, command: CommandId, status: Status, result: u64 },
    /// Drop a held command of this connection without a response.
    Forget { route: Route, command: CommandId },
    /// The authentication thread has handled a message of this connection's host; see
    /// [`crate::authentication`].
    Authenticated { route: Route, slot: SlotId, machine: Box<Controller> },
    /// The answer to a reservation command of this connection.
    Reserved { route: Route, slot: SlotId, status: Status, report: Option<Vec<u8>> },
    /// Abort this command of this connection, and report whether that succeeded.
    Abort { route: Route, command: CommandId, asking: Asking },
    /// The answer to an Abort command of this connection.
    Aborted { route: Route, slot: SlotId, aborted: bool },
    /// Apply a reservation change to the connections of its subsystem.
    Access(Arc<AccessChange>),
    /// Use this table and these stores for this subsystem's connections from now on.
    Namespaces(SubsystemId, Arc<NamespaceTable>, Arc<Backings>),
    /// Park new changes of these blocks. Report when none is under way on this core.
    Claimed(Arc<Claim>),
    /// This connection now holds its claim.
    Granted(Route, Arc<Claim>),
    /// Stop parking changes of these blocks.
    Unclaimed(Arc<Claim>),
    /// Close the queue into this store, and then drop the share, which reports the close. The core
    /// has received a list without this store before.
    Retire(BackingId, Share),
    /// Drop the share once no operation is in flight at this store.
    Settle(BackingId, Share),
    /// The changes of this closed queue are known or have ended. Check the waiting commands of this
    /// fenced connection again.
    Ended(Route, EndingId),
    /// Open a listener at this address, and report the result.
    Listen(Opening, SocketAddr, Sender<Result<(), String>>),
    /// Close this listener, and close the connections that it accepted.
    Unlisten(Entrance),
    /// Close the connections in this scope that were accepted by this listener.
    CloseAt(Entrance, Scope),
    /// Complete the accepted commands, close all connections and end.
    Stop,
}

/// The means to open a listener.
pub(crate) enum Opening {
    /// A bound socket.
    Tcp(ListenSocket),
    /// The RDMA devices.
    Rdma(Provider),
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(_) => f.write_str("Tcp"),
            Self::Rdma(_) => f.write_str("Rdma"),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scope {
    All,
    WithoutTls,
}

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

    /// Posts a subsystem's namespaces. The new list replaces an older one that the core has not
    /// read yet, so that after many changes, a core reads only one list. The new list may thereby
    /// come before earlier [`Message::Retire`] messages: it does not contain the retired stores
    /// either.
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

    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    pub(crate) fn take(&self) -> Vec<Message> {
        std::mem::take(&mut self.messages.lock().expect("no holder panics"))
    }
}
