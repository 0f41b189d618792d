//! A test stand: two machines whose ends connect, and functions that wait for events and
//! completions.

use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::memory::{Keys, Pages, Slice};
use crate::request::{Access, Completion, Operation, ReceiveRequest, SendRequest};
use crate::verbs::{CmEvent, CmEventType, ConnParam, QpOptions, Verbs};

/// The longest wait for an event or a completion before a test fails, in seconds.
const WAIT_S: u64 = 60;
/// Time limit for resolving an address or a route, in milliseconds.
const RESOLVE_MS: u32 = 10_000;
/// The size of an end's memory, in bytes.
pub(super) const MEMORY_BYTES: usize = 1 << 16;
/// The depth of each queue of an end, in requests.
pub(super) const DEPTH: u32 = 16;
/// The maximum number of bytes that an end can send inline.
pub(super) const INLINE_BYTES: u32 = 64;

/// Two machines, or the same machine twice. The host must be able to reach the target's address.
pub struct Stand<V> {
    /// The active end.
    pub host: V,
    /// The passive end.
    pub target: V,
    /// The target's address.
    pub address: IpAddr,
}

/// One end of a connection, with registered memory.
pub(super) struct End<V: Verbs> {
    pub(super) verbs: V,
    pub(super) id: V::Id,
    pub(super) queues: Queues<V>,
    pub(super) channel: Arc<V::EventChannel>,
    /// The connection parameters that the peer sent in its request or answer.
    pub(super) seen: ConnParam,
}

/// The queues and the memory of an end. Several connections of the end can share them.
pub(super) struct Queues<V: Verbs> {
    pub(super) pd: V::Pd,
    pub(super) cq: V::Cq,
    pub(super) srq: Option<V::Srq>,
    pub(super) memory: Arc<Pages>,
    pub(super) mr: Arc<V::Mr>,
}

impl<V: Verbs> Clone for Queues<V> {
    fn clone(&self) -> Self {
        Self {
            pd: self.pd.clone(),
            cq: self.cq.clone(),
            srq: self.srq.clone(),
            memory: self.memory.clone(),
            mr: self.mr.clone(),
        }
    }
}

impl<V: Verbs> Queues<V> {
    /// Makes queues on the connection's device, and memory that peers may read and write.
    pub(super) fn new(verbs: &V, id: &V::Id, shared: bool) -> Self {
        let pd = verbs.alloc_pd(id).expect("a protection domain");
        let cq = verbs.create_cq(&pd, 4 * DEPTH).expect("a completion queue");
        let srq = shared.then(|| verbs.create_srq(&pd, DEPTH, 2).expect("a shared queue"));
        let memory = Arc::new(Pages::new(MEMORY_BYTES));
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let mr = Arc::new(verbs.reg_mr(&pd, memory.clone(), access).expect("a registration"));
        Self { pd, cq, srq, memory, mr }
    }

    pub(super) fn make_qp(&self, verbs: &V, id: &V::Id) {
        let options = QpOptions {
            pd: self.pd.clone(),
            send_cq: self.cq.clone(),
            recv_cq: self.cq.clone(),
            srq: self.srq.clone(),
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline_bytes: INLINE_BYTES,
        };
        verbs.create_qp(id, options).expect("a queue pair");
    }
}

/// Calls a function until it returns `Some`.
pub(super) fn wait_for<T>(what: &str, mut call: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(WAIT_S);
    loop {
        if let Some(value) = call() {
            return value;
        }
        assert!(Instant::now() < end, "this did not happen within {WAIT_S} s: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Waits for the next event, and checks its kind.
pub(super) fn expect_event<V: Verbs>(
    verbs: &V,
    channel: &V::EventChannel,
    expected: CmEventType,
) -> CmEvent<V::Id> {
    let name = format!("the event {expected:?}");
    let event = wait_for(&name, || verbs.get_cm_event(channel).expect("a working channel"));
    assert_eq!(event.event, expected, "the event has status {}", event.status);
    event
}

impl<V: Verbs + Clone> Stand<V> {
    /// Starts a connection to the target: resolves its address and route.
    pub(super) fn route(&self, port: u16) -> (Arc<V::EventChannel>, V::Id) {
        let verbs = &self.host;
        let channel = Arc::new(verbs.create_event_channel().expect("a channel"));
        let target = (self.address, port).into();
        let id = verbs.resolve_addr(&channel, None, target, RESOLVE_MS).expect("an attempt");
        expect_event(verbs, &channel, CmEventType::AddrResolved);
        verbs.resolve_route(&id, RESOLVE_MS).expect("a route");
        expect_event(verbs, &channel, CmEventType::RouteResolved);
        (channel, id)
    }

    /// Makes the target listen on a free port. Also returns the port.
    pub(super) fn listen(&self) -> (Arc<V::EventChannel>, V::Id, u16) {
        let channel = Arc::new(self.target.create_event_channel().expect("a channel"));
        let id = self.target.listen(&channel, (self.address, 0).into(), 8).expect("a listener");
        let port = self.target.local_addr(&id).expect("an address").port();
        assert_ne!(port, 0);
        (channel, id, port)
    }

    /// Sends a connection request. Returns the host's end, before the target answers.
    pub(super) fn request(&self, port: u16, param: &ConnParam) -> End<V> {
        let (channel, id) = self.route(port);
        let queues = Queues::new(&self.host, &id, false);
        queues.make_qp(&self.host, &id);
        self.host.connect(&id, param).expect("a request");
        End { verbs: self.host.clone(), id, queues, channel, seen: ConnParam::default() }
    }

    /// Connects two ends, both with these parameters. Returns the host's end first.
    pub(super) fn pair(&self, param: &ConnParam) -> (End<V>, End<V>) {
        let (channel, _listener, port) = self.listen();
        let mut host = self.request(port, param);
        let target = self.accept(&channel, param, None);
        host.expect_established();
        (host, target)
    }

    /// Makes the target accept the next request.
    pub(super) fn accept(
        &self,
        channel: &Arc<V::EventChannel>,
        param: &ConnParam,
        queues: Option<&Queues<V>>,
    ) -> End<V> {
        let verbs = &self.target;
        let event = expect_event(verbs, channel, CmEventType::ConnectRequest);
        let id = event.id;
        let queues = queues.cloned().unwrap_or_else(|| Queues::new(verbs, &id, false));
        queues.make_qp(verbs, &id);
        verbs.accept(&id, param).expect("an answer");
        End { verbs: verbs.clone(), id, queues, channel: channel.clone(), seen: event.param }
    }
}

impl<V: Verbs> End<V> {
    pub(super) fn expect(&self, event: CmEventType) -> CmEvent<V::Id> {
        expect_event(&self.verbs, &self.channel, event)
    }

    pub(super) fn expect_established(&mut self) {
        self.seen = self.expect(CmEventType::Established).param;
    }

    pub(super) fn keys(&self) -> Keys {
        self.verbs.keys(&self.queues.mr)
    }

    pub(super) fn slice(&self, offset: usize, bytes: u32) -> Slice {
        self.keys().slice(offset, bytes).expect("the range is inside the registration")
    }

    pub(super) fn fill(&self, offset: usize, bytes: &[u8]) {
        self.queues.memory.write(offset, bytes);
    }

    pub(super) fn bytes(&self, offset: usize, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        self.queues.memory.read(offset, &mut out);
        out
    }

    /// Posts a receive, to the shared queue if there is one.
    pub(super) fn receive(&self, id: u64, slices: &[Slice]) {
        let request = [ReceiveRequest { id, slices }];
        match &self.queues.srq {
            Some(srq) => self.verbs.post_srq_recv(srq, &request).expect("room for a receive"),
            None => self.verbs.post_recv(&self.id, &request).expect("room for a receive"),
        }
    }

    pub(super) fn send(&self, id: u64, operation: Operation, slices: &[Slice]) {
        self.post(&[SendRequest::new(id, operation, slices)]);
    }

    pub(super) fn post(&self, requests: &[SendRequest<'_>]) {
        self.verbs.post_send(&self.id, requests).expect("room for a request");
    }

    /// Waits for the next completion.
    pub(super) fn completion(&self) -> Completion {
        let mut out = [Completion::default()];
        wait_for("a completion", || {
            (self.verbs.poll_cq(&self.queues.cq, &mut out).expect("a queue") == 1).then_some(out[0])
        })
    }

    /// Waits for the next completion, and checks that this request succeeded.
    pub(super) fn success(&self, id: u64) -> Completion {
        let completion = self.completion();
        assert!(completion.status.is_success(), "{completion:?}");
        assert_eq!(completion.id, id);
        completion
    }
}
