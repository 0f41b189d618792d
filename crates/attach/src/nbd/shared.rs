//! What the threads of a server share: the export, the mailboxes of the cores, and a count.

use super::limits;
use super::negotiate::Export;
use crate::writes::{Order, Report};
use farblock_block::Namespace;
use farblock_reactor::Waker;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// What a core is told.
#[derive(Debug)]
pub(super) enum Message {
    /// Serve this client. The stream may be any stream socket.
    Adopt(TcpStream, Arc<str>),
    /// The namespace has another size.
    Resized,
    /// See whether all is over.
    Look,
    /// To the gate of its writes.
    Order(Order),
    /// From a core's gate to the arbiter.
    Report(usize, Report),
    /// Finish what was accepted, close everything and end.
    Stop,
}

/// A core's mailbox.
pub(super) struct Mailbox {
    messages: Mutex<Vec<Message>>,
    waker: Waker,
}

impl Mailbox {
    pub(super) fn new(waker: Waker) -> Mailbox {
        Mailbox { messages: Mutex::new(Vec::new()), waker }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Message>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module's text.
pub(super) struct Shared {
    namespace: Arc<dyn Namespace>,
    name: String,
    read_only: bool,
    mailboxes: OnceLock<Vec<Mailbox>>,
    connections: AtomicUsize,
    /// Who they are, for as long as each of them lives.
    peers: Mutex<Vec<Weak<str>>>,
    next_core: AtomicUsize,
    /// A core ended before its time: no use in waiting for its connections.
    failed: AtomicBool,
}

impl Shared {
    pub(super) fn new(namespace: Arc<dyn Namespace>, name: String, read_only: bool) -> Shared {
        Shared {
            namespace,
            name,
            read_only,
            mailboxes: OnceLock::new(),
            connections: AtomicUsize::new(0),
            peers: Mutex::default(),
            next_core: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
        }
    }

    pub(super) fn set_mailboxes(&self, mailboxes: Vec<Mailbox>) {
        assert!(self.mailboxes.set(mailboxes).is_ok(), "the mailboxes are set once");
    }

    fn mailboxes(&self) -> &[Mailbox] {
        self.mailboxes.get().expect("set before any core runs")
    }

    pub(super) fn namespace(&self) -> &dyn Namespace {
        &*self.namespace
    }

    /// What clients are told, as of now.
    pub(super) fn export(&self) -> Export {
        let mut geometry = self.namespace.geometry();
        geometry.read_only |= self.read_only;
        Export { name: self.name.clone(), description: self.namespace.describe(), geometry }
    }

    pub(super) fn post(&self, core: usize, message: Message) {
        let mailbox = &self.mailboxes()[core];
        mailbox.lock().push(message);
        mailbox.waker.wake();
    }

    pub(super) fn post_all(&self, message: impl Fn() -> Message) {
        // None yet if a server does not even start.
        let count = self.mailboxes.get().map_or(0, Vec::len);
        (0..count).for_each(|core| self.post(core, message()));
    }

    pub(super) fn take_messages(&self, core: usize) -> Vec<Message> {
        std::mem::take(&mut self.mailboxes()[core].lock())
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Gives a client to the cores in turn.
    pub(super) fn connected(&self, stream: TcpStream, peer: String) {
        if self.connections.fetch_add(1, Ordering::Relaxed) >= limits::MAX_CONNECTIONS {
            self.disconnected();
            let most = limits::MAX_CONNECTIONS;
            tracing::warn!(%peer, "refused an NBD client: {most} connections are the limit");
            return;
        }
        let peer: Arc<str> = peer.into();
        let mut peers = self.lock_peers();
        peers.retain(|peer| peer.strong_count() > 0);
        peers.push(Arc::downgrade(&peer));
        drop(peers);
        let core = self.next_core.fetch_add(1, Ordering::Relaxed) % self.mailboxes().len();
        self.post(core, Message::Adopt(stream, peer));
    }

    fn lock_peers(&self) -> MutexGuard<'_, Vec<Weak<str>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who the clients are.
    pub(super) fn peers(&self) -> Vec<String> {
        let peers = self.lock_peers();
        peers.iter().filter_map(|peer| peer.upgrade().map(|peer| peer.to_string())).collect()
    }

    /// A client is gone.
    pub(super) fn disconnected(&self) {
        if self.connections.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.post_all(|| Message::Look);
        }
    }

    /// Whether a stopping core may end.
    pub(super) fn is_over(&self) -> bool {
        self.connections.load(Ordering::Acquire) == 0 || self.failed.load(Ordering::Acquire)
    }

    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }
}
