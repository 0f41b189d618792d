//! Runs the conformance suite on the fabric in memory, and tests what only this fabric does.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use farblock_verbs::conformance::{NAMES, Stand, run};
use farblock_verbs::{
    Access, Arming, CmEventType, Completion, ConnParam, Keys, Network, Node, Operation, Pages,
    Provider, QpOptions, ReceiveRequest, SendRequest, Status, Verbs,
};

const HOST: &str = "192.0.2.1";
const TARGET: &str = "192.0.2.2";

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

#[test]
fn the_memory_fabric_conforms() {
    for name in NAMES {
        println!("{name}");
        let network = Network::new();
        let (host, target) = (network.node(ip(HOST)), network.node(ip(TARGET)));
        run(&Stand { host, target, address: ip(TARGET) }, name);
    }
}

#[test]
fn one_node_can_be_both_ends() {
    for name in NAMES {
        let node = Network::new().node(ip(HOST));
        run(&Stand { host: node.clone(), target: node, address: ip(HOST) }, name);
    }
}

type Handle = <Node as Verbs>::Id;

/// One end of a connection, whose queues hold two requests.
struct End {
    node: Node,
    id: Handle,
    channel: <Node as Verbs>::EventChannel,
    pd: <Node as Verbs>::Pd,
    cq: <Node as Verbs>::Cq,
    mr: <Node as Verbs>::Mr,
}

impl End {
    fn new(node: &Node, id: &Handle, channel: <Node as Verbs>::EventChannel, entries: u32) -> Self {
        let pd = node.alloc_pd(id).expect("a domain");
        let cq = node.create_cq(&pd, entries).expect("a queue");
        let memory = Arc::new(Pages::new(64));
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let mr = node.reg_mr(&pd, memory, access).expect("a registration");
        let options = QpOptions {
            pd: pd.clone(),
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            max_send_wr: 2,
            max_recv_wr: 2,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_bytes: 8,
        };
        node.create_qp(id, options).expect("a queue pair");
        Self { node: node.clone(), id: id.clone(), channel, pd, cq, mr }
    }

    fn keys(&self) -> Keys {
        self.node.keys(&self.mr)
    }

    fn send(&self, id: u64, operation: Operation, signaled: bool) -> Result<(), String> {
        let slices = [self.keys().slice(0, 8).expect("the range is inside the registration")];
        let request = SendRequest { signaled, ..SendRequest::new(id, operation, &slices) };
        self.node.post_send(&self.id, &[request]).map_err(|error| error.to_string())
    }

    fn receive(&self, id: u64) -> Result<(), String> {
        let slices = [self.keys().slice(0, 8).expect("the range is inside the registration")];
        let request = ReceiveRequest { id, slices: &slices };
        self.node.post_recv(&self.id, &[request]).map_err(|error| error.to_string())
    }

    fn poll(&self) -> Option<Completion> {
        let mut out = [Completion::default()];
        (self.node.poll_cq(&self.cq, &mut out).expect("a queue") == 1).then_some(out[0])
    }

    fn outcome(&self) -> Option<(u64, Status)> {
        self.poll().map(|completion| (completion.id, completion.status))
    }
}

fn event(node: &Node, channel: &<Node as Verbs>::EventChannel) -> Option<(CmEventType, Handle)> {
    let event = node.get_cm_event(channel).expect("a channel")?;
    Some((event.event, event.id))
}

/// Connects two ends whose completion queues have this many entries. Returns the host's end first.
fn pair(network: &Network, entries: u32) -> (End, End) {
    let (host, target) = (network.node(ip(HOST)), network.node(ip(TARGET)));
    let at: SocketAddr = (ip(TARGET), 4420).into();
    let listening = target.create_event_channel().expect("a channel");
    let _listener = target.listen(&listening, at, 1).expect("a listener");
    let channel = host.create_event_channel().expect("a channel");
    let id = host.resolve_addr(&channel, None, at, 1).expect("an attempt");
    host.resolve_route(&id, 1).expect("a route");
    let host = End::new(&host, &id, channel, entries);
    host.node.connect(&id, &ConnParam::default()).expect("a request");
    let (kind, request) = event(&target, &listening).expect("a request");
    assert_eq!(kind, CmEventType::ConnectRequest);
    let target = End::new(&target, &request, listening, entries);
    target.node.accept(&request, &ConnParam::default()).expect("an answer");
    let seen: Vec<_> =
        std::iter::from_fn(|| event(&host.node, &host.channel)).map(|(kind, _)| kind).collect();
    use CmEventType::{AddrResolved, Established, RouteResolved};
    assert_eq!(seen, [AddrResolved, RouteResolved, Established]);
    (host, target)
}

#[test]
fn a_full_queue_refuses_until_its_completions_are_polled() {
    let (host, target) = pair(&Network::new(), 8);
    target.receive(0).expect("the queue has room");
    target.receive(1).expect("the queue has room");
    let refused = target.receive(2).expect_err("only two receives fit");
    assert!(refused.contains("ibv_post_recv failed"), "{refused}");
    host.send(0, Operation::Send, false).expect("the queue has room");
    host.send(1, Operation::Send, true).expect("the queue has room");
    host.send(2, Operation::Send, true).expect_err("the first two completions were not polled");
    assert_eq!(host.outcome(), Some((1, Status::SUCCESS)));
    host.send(3, Operation::Send, false).expect("both entries are free");
    assert_eq!(host.poll(), None);
    assert!(target.poll().is_some());
    target.receive(4).expect("a polled receive frees its entry");
}

#[test]
fn an_overflowed_completion_queue_fails() {
    let (host, target) = pair(&Network::new(), 1);
    target.receive(0).expect("the queue has room");
    target.receive(1).expect("the queue has room");
    host.send(0, Operation::Send, false).expect("the queue has room");
    host.send(1, Operation::Send, false).expect("the queue has room");
    let mut out = [Completion::default()];
    target.node.poll_cq(&target.cq, &mut out).expect_err("the queue overflowed");
}

/// Polls as an event loop does. Returns the number of completions before the queue is armed.
fn poll_and_arm(end: &End, arming: &mut Arming) -> usize {
    let mut total = 0;
    loop {
        let count = usize::from(end.poll().is_some());
        total += count;
        if !arming.after(&end.node, &end.cq, count).expect("a queue") {
            return total;
        }
    }
}

#[test]
fn a_sleep_costs_one_arming_and_one_event() {
    let (host, target) = pair(&Network::new(), 8);
    let mut arming = Arming::default();
    assert_eq!(poll_and_arm(&target, &mut arming), 0);
    let before = target.node.calls();
    for round in 1..=100 {
        target.receive(round).expect("the queue has room");
        target.receive(round).expect("the queue has room");
        for signaled in [false, true] {
            host.send(round, Operation::Send, signaled).expect("the queue has room");
        }
        assert!(host.poll().is_some());
        assert_eq!(poll_and_arm(&target, &mut arming), 2);
        // A poll of an armed queue without completions does not take an event.
        assert_eq!(poll_and_arm(&target, &mut arming), 0);
        let after = target.node.calls();
        assert_eq!(after.req_notify_cq - before.req_notify_cq, round);
        assert_eq!(after.get_cq_event - before.get_cq_event, round);
    }
    assert!(
        !target.node.get_cq_event(&target.cq).expect("a queue"),
        "an event remains after the poll"
    );
}

#[test]
fn a_completion_between_the_poll_and_the_arming_is_not_lost() {
    let (host, target) = pair(&Network::new(), 8);
    let mut arming = Arming::default();
    for round in 0..100 {
        target.receive(round).expect("the queue has room");
        assert_eq!(target.poll(), None);
        host.send(round, Operation::Send, true).expect("the queue has room");
        assert!(host.poll().is_some());
        // The caller has found nothing, and arms the queue behind the completion.
        assert!(
            arming.after(&target.node, &target.cq, 0).expect("a queue"),
            "the caller must poll again"
        );
        assert_eq!(poll_and_arm(&target, &mut arming), 1);
        // The queue is armed: the next completion gives an event, and only one.
        target.receive(round).expect("the queue has room");
        host.send(round, Operation::Send, true).expect("the queue has room");
        assert!(host.poll().is_some());
        assert!(target.poll().is_some());
        assert!(arming.after(&target.node, &target.cq, 1).expect("a queue"));
        assert!(
            !target.node.get_cq_event(&target.cq).expect("a queue"),
            "an event remains after the poll"
        );
    }
}

#[test]
fn an_unplugged_node_receives_nothing() {
    let network = Network::new();
    let (host, target) = pair(&network, 8);
    host.send(0, Operation::Send, true).expect("the queue has room");
    assert_eq!(host.poll(), None, "a message without a posted receive completed");
    network.unplug(ip(TARGET));
    assert_eq!(host.outcome(), Some((0, Status::RETRY_EXC_ERR)));
    assert_eq!(target.poll(), None);
    host.node.disconnect(&host.id).expect("a connection");
    assert_eq!(
        event(&target.node, &target.channel).map(|(kind, _)| kind),
        Some(CmEventType::Established)
    );
    assert!(
        event(&target.node, &target.channel).is_none(),
        "an unplugged peer noticed the disconnection"
    );
    let at: SocketAddr = (ip(TARGET), 4420).into();
    let _id = host.node.resolve_addr(&host.channel, None, at, 1).expect("an attempt");
    let kinds: Vec<_> =
        std::iter::from_fn(|| event(&host.node, &host.channel)).map(|(kind, _)| kind).collect();
    assert_eq!(kinds, [CmEventType::Disconnected, CmEventType::AddrError]);
}

#[test]
fn a_send_with_invalidate_invalidates_the_key() {
    let (host, target) = pair(&Network::new(), 8);
    let (address, rkey) = (host.keys().address(), host.keys().rkey());
    let second = Arc::new(Pages::new(64));
    let mr = host.node.reg_mr(&host.pd, second, Access::LOCAL_WRITE).expect("a registration");
    let slices = [host.node.keys(&mr).slice(0, 8).expect("the range is inside the registration")];
    host.node
        .post_recv(&host.id, &[ReceiveRequest { id: 7, slices: &slices }])
        .expect("the queue has room");
    target.send(1, Operation::Write { address, rkey }, true).expect("the queue has room");
    assert_eq!(target.outcome(), Some((1, Status::SUCCESS)));
    target.send(2, Operation::SendWithInvalidate(rkey), true).expect("the queue has room");
    assert_eq!(target.outcome(), Some((2, Status::SUCCESS)));
    let received = host.poll().expect("a message");
    assert_eq!((received.id, received.invalidated), (7, Some(rkey)));
    target.send(3, Operation::Write { address, rkey }, true).expect("the queue has room");
    assert_eq!(target.outcome(), Some((3, Status::REM_ACCESS_ERR)));
}

#[test]
fn a_peer_cannot_invalidate_a_key_without_remote_access() {
    let (host, target) = pair(&Network::new(), 8);
    let own = Arc::new(Pages::new(64));
    let mr = host.node.reg_mr(&host.pd, own, Access::LOCAL_WRITE).expect("a registration");
    let slices = [host.node.keys(&mr).slice(0, 8).expect("the range is inside the registration")];
    host.node
        .post_recv(&host.id, &[ReceiveRequest { id: 7, slices: &slices }])
        .expect("the queue has room");
    let key = host.node.keys(&mr).rkey();
    target.send(1, Operation::SendWithInvalidate(key), true).expect("the queue has room");
    assert_eq!(target.outcome(), Some((1, Status::REM_ACCESS_ERR)));
    assert_eq!(host.poll().map(|it| it.status), Some(Status::LOC_ACCESS_ERR));
}

#[test]
fn connections_and_listeners_get_events_about_their_device() {
    let network = Network::new();
    let (host, target) = pair(&network, 8);
    let at: SocketAddr = (ip(HOST), 4420).into();
    let listener = host.node.listen(&host.channel, at, 1).expect("a listener");
    let kinds =
        || std::iter::from_fn(|| event(&host.node, &host.channel)).map(|(kind, _)| kind).collect();
    let _: Vec<CmEventType> = kinds();
    network.change_address(ip(HOST));
    assert_eq!(kinds(), [CmEventType::AddrChange; 2]);
    network.remove_device(ip(HOST));
    assert_eq!(kinds(), [CmEventType::DeviceRemoval; 2]);
    target.send(1, Operation::Send, true).expect("the queue has room");
    assert_eq!(target.outcome(), Some((1, Status::RETRY_EXC_ERR)));
    // Add the device again.
    let node = network.node(ip(HOST));
    drop(listener);
    node.listen(&host.channel, at, 1).expect("a listener again");
}

#[test]
fn a_listener_accepts_as_many_requests_as_its_backlog() {
    let network = Network::new();
    let (host, target) = (network.node(ip(HOST)), network.node(ip(TARGET)));
    let at: SocketAddr = (ip(TARGET), 4420).into();
    let listening = target.create_event_channel().expect("a channel");
    let listener = target.listen(&listening, at, 1).expect("a listener");
    target.listen(&listening, at, 1).expect_err("the address is in use");
    let request = || {
        let channel = host.create_event_channel().expect("a channel");
        let id = host.resolve_addr(&channel, None, at, 1).expect("an attempt");
        host.resolve_route(&id, 1).expect("a route");
        let end = End::new(&host, &id, channel, 8);
        end.node.connect(&id, &ConnParam::default()).expect("a request");
        end
    };
    let last = |end: &End| {
        let kinds = std::iter::from_fn(|| event(&end.node, &end.channel)).map(|(kind, _)| kind);
        kinds.last()
    };
    let (first, second) = (request(), request());
    assert_eq!(last(&first), Some(CmEventType::RouteResolved));
    assert_eq!(last(&second), Some(CmEventType::Rejected));
    drop(listener);
    assert_eq!(last(&first), Some(CmEventType::Rejected), "the waiting request was not rejected");
}

#[test]
fn a_provider_of_the_memory_fabric_conforms() {
    for name in NAMES {
        let network = Network::new();
        let provider = |address| Provider::Memory(network.node(ip(address)));
        run(&Stand { host: provider(HOST), target: provider(TARGET), address: ip(TARGET) }, name);
    }
}
