//! The state that the cores (threads) of an NBD server share: the export, a mailbox for each core,
//! and the number of connections.

use super::limits;
use super::negotiate::Export;
use super::succession::Admission;
use farblock_frontend::writes::{Order, Report};
use farblock_frontend::{Complaints, ConnectionKey, Disk, Mailboxes};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

#[derive(Debug)]
pub(super) enum Message {
    /// Serve this client. The stream may also be a Unix socket.
    Adopt(TcpStream, Arc<str>),
    /// The namespace's geometry has changed.
    Resized,
    /// Check whether the core may exit: the server has no connections.
    Look,
    /// Grant this admission of a new client once no operation of a disconnected client is in flight
    /// (see [`succession`](super::succession)).
    Ask(Weak<Admission>),
    /// Every core has admitted the client of this connection.
    Admitted(ConnectionKey),
    /// An order from the arbiter, which decides which core may write partial blocks. This core's
    /// gate then holds back or releases writes (see [`farblock_frontend::writes`]).
    Order(Order),
    /// A report to the arbiter, which is on the first core, from the gate of the core with this
    /// number.
    Report(usize, Report),
    /// Finish the accepted requests, close all connections, then exit.
    Stop,
}

/// The state that all threads of a server share.
pub(super) struct ExportShared {
    disk: Disk,
    name: String,
    pub(super) mailboxes: Mailboxes<Message>,
    pub(super) complaints: Complaints,
    connections: AtomicUsize,
    /// The names of the connected clients.
    peers: Mutex<Vec<Weak<str>>>,
    next_core: AtomicUsize,
    /// True after a core has failed. The server then stops without waiting for connections.
    failed: AtomicBool,
}

impl ExportShared {
    pub(super) fn new(disk: Disk, name: String) -> ExportShared {
        ExportShared {
            disk,
            name,
            mailboxes: Mailboxes::default(),
            complaints: Complaints::default(),
            connections: AtomicUsize::new(0),
            peers: Mutex::default(),
            next_core: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
        }
    }

    pub(super) fn disk(&self) -> &Disk {
        &self.disk
    }

    /// The current properties of the export for new clients.
    pub(super) fn export(&self) -> Export {
        let description = self.disk.namespace().describe();
        Export { name: self.name.clone(), description, geometry: self.disk.geometry() }
    }

    pub(super) fn post(&self, core: usize, message: Message) {
        self.mailboxes.post(core, message);
    }

    pub(super) fn cores(&self) -> usize {
        self.mailboxes.count()
    }

    pub(super) fn post_all(&self, message: impl Fn() -> Message) {
        self.mailboxes.post_all(message);
    }

    pub(super) fn take_messages(&self, core: usize) -> Vec<Message> {
        self.mailboxes.take(core)
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Assigns a new client to a core, round-robin. At the limit of connections, closes the
    /// client's connection instead.
    pub(super) fn connected(&self, stream: TcpStream, peer: String) {
        if self.connections.fetch_add(1, Ordering::Relaxed) >= limits::MAX_CONNECTIONS {
            self.disconnected();
            let most = limits::MAX_CONNECTIONS;
            self.complaints.say("NBD clients refused", &peer, || {
                tracing::warn!(
                    %peer,
                    "refused an NBD client: the server is at its limit of {most} connections"
                );
            });
            return;
        }
        let peer: Arc<str> = peer.into();
        let mut peers = self.lock_peers();
        peers.retain(|peer| peer.strong_count() > 0);
        peers.push(Arc::downgrade(&peer));
        drop(peers);
        let core = self.next_core.fetch_add(1, Ordering::Relaxed) % self.cores();
        self.post(core, Message::Adopt(stream, peer));
    }

    fn lock_peers(&self) -> MutexGuard<'_, Vec<Weak<str>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The names of the connected clients.
    pub(super) fn peers(&self) -> Vec<String> {
        let peers = self.lock_peers();
        peers.iter().filter_map(|peer| peer.upgrade().map(|peer| peer.to_string())).collect()
    }

    /// Subtracts a disconnected client from the number of connections.
    pub(super) fn disconnected(&self) {
        if self.connections.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.post_all(|| Message::Look);
        }
    }

    /// True if the cores of a stopping server may exit: the server has no connections, or a core
    /// has failed.
    pub(super) fn is_over(&self) -> bool {
        self.connections.load(Ordering::Acquire) == 0 || self.failed.load(Ordering::Acquire)
    }

    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }
}
