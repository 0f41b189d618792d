//! A scripted host on the in-memory fabric. It implements the specification independently of
//! farblock's host.

use crate::config::{Export, RdmaListeners, Subsystem, TargetConfig};
use crate::target::Target;
use farblock_backends::mem::Mem;
use farblock_proto::host::command::{self, Command, Data, Identity};
use farblock_proto::ids::NamespaceId;
use farblock_verbs::{
    Access, CmEvent, CmEventType, Completed, Completion, ConnParam, Keys, Network, Node, Operation,
    Pages, Provider, QpOptions, ReceiveRequest, SendRequest, Status as WorkStatus, Verbs,
};
use farblock_wire::fabrics::ConnectResult;
use farblock_wire::property::{Cc, offset};
use farblock_wire::rdma::{CmReject, CmRequest, RejectStatus};
use farblock_wire::sgl::KeyedBlock;
use farblock_wire::{Cqe, IntoBytes, SglDescriptor, Sqe, Status};
use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

pub(super) const NQN: &str = "nqn.2026-11.org.farblock:rdma";
const HOST_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555";
pub(super) const IDENTITY: Identity<'_> =
    Identity { hostid: [7; 16], hostnqn: HOST_NQN, subnqn: NQN };
const TARGET: &str = "192.0.2.2";
const PORT: u16 = 4420;
pub(super) const DISK_BYTES: u64 = 16 << 20;

/// The longest wait in a test.
const WAIT: Duration = Duration::from_secs(60);
/// The offsets of responses, capsules and data in the host's memory.
const RESPONSES: usize = 0;
const CAPSULES: usize = 64 << 10;
const CAPSULE_BYTES: usize = 8 << 10;
const DATA: usize = CAPSULES + 1024 * CAPSULE_BYTES;
const MEMORY_BYTES: usize = DATA + (64 << 20);

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Calls a function repeatedly until it returns a value.
pub(super) fn wait_for<T>(what: &str, mut call: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + WAIT;
    loop {
        if let Some(value) = call() {
            return value;
        }
        assert!(Instant::now() < end, "{what} did not happen within {WAIT:?}");
        thread::sleep(Duration::from_micros(200));
    }
}

/// A network with a target that shares a disk.
pub(super) struct Stand {
    pub(super) network: Network,
    pub(super) target: Target,
}

impl Stand {
    pub(super) fn new() -> Self {
        Self::with(|_| {})
    }

    /// Starts a target with changed settings.
    pub(super) fn with(change: impl FnOnce(&mut TargetConfig)) -> Self {
        let network = Network::new();
        let mut config = config(&network);
        change(&mut config);
        let target = Target::start(&config).expect("the target starts");
        assert_eq!(target.rdma_addresses(), [(ip(TARGET), PORT).into()]);
        Self { network, target }
    }

    /// Waits until the target serves this many connections.
    pub(super) fn expect_connections(&self, count: usize) {
        wait_for("the expected number", || (self.target.connections() == count).then_some(()));
    }
}

pub(super) fn config(network: &Network) -> TargetConfig {
    let mut subsystem = Subsystem::new(NQN);
    subsystem.config.allow_any_host = true;
    let namespace = Arc::new(Mem::new(512, DISK_BYTES).expect("a size"));
    let export = Export { namespace, identity: "disk".to_owned() };
    subsystem.exports.insert(NamespaceId(1), export);
    let provider = Provider::Memory(network.node(ip(TARGET)));
    TargetConfig {
        subsystems: vec![subsystem],
        listeners: vec!["127.0.0.1:0".parse().expect("an address")],
        rdma: Some(RdmaListeners { provider, addresses: vec![(ip(TARGET), PORT).into()] }),
        ..TargetConfig::default()
    }
}

#[derive(Debug)]
pub(super) struct Answered {
    pub(super) cid: u16,
    pub(super) status: Status,
    pub(super) result: u64,
    pub(super) head: u16,
    /// The key that the target has invalidated with this response.
    pub(super) invalidated: Option<u32>,
}

/// A queue pair of a host.
pub(super) struct ScriptedHost {
    pub(super) node: Node,
    channel: <Node as Verbs>::EventChannel,
    pub(super) id: <Node as Verbs>::Id,
    cq: <Node as Verbs>::Cq,
    memory: Arc<Pages>,
    mr: <Node as Verbs>::Mr,
    entries: u16,
    next: u16,
    /// The number of messages sent. Each has its own memory, where it may wait for a receive of the
    /// target.
    messages: usize,
    /// Completions of receives that no test has taken yet.
    answers: std::collections::VecDeque<Answered>,
    /// The first failed request.
    pub(super) failed: Option<WorkStatus>,
    /// The number of receives that [`Self::look`] does not post again.
    withheld: u16,
}

/// Returns a host with a queue pair, before it sends its connection request.
pub(super) fn request(stand: &Stand, address: &str, entries: u16) -> ScriptedHost {
    let node = stand.network.node(ip(address));
    let channel = node.create_event_channel().expect("a channel");
    let id =
        node.resolve_addr(&channel, None, (ip(TARGET), PORT).into(), 1000).expect("an attempt");
    expect(&node, &channel, CmEventType::AddrResolved);
    node.resolve_route(&id, 1000).expect("a route");
    expect(&node, &channel, CmEventType::RouteResolved);
    let pd = node.alloc_pd(&id).expect("a domain");
    let cq = node.create_cq(&pd, 8192).expect("a queue");
    let memory = Arc::new(Pages::new(MEMORY_BYTES));
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let mr = node.reg_mr(&pd, memory.clone(), access).expect("a registration");
    let options = QpOptions {
        pd,
        send_cq: cq.clone(),
        recv_cq: cq.clone(),
        srq: None,
        max_send_wr: 4096,
        max_recv_wr: 4096,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_bytes: 0,
    };
    node.create_qp(&id, options).expect("a queue pair");
    let answers = std::collections::VecDeque::new();
    let host = ScriptedHost {
        node,
        channel,
        id,
        cq,
        memory,
        mr,
        entries,
        next: 0,
        messages: 0,
        answers,
        failed: None,
        withheld: 0,
    };
    (0..entries).for_each(|index| host.receive(index));
    host
}

fn expect(
    node: &Node,
    channel: &<Node as Verbs>::EventChannel,
    kind: CmEventType,
) -> CmEvent<<Node as Verbs>::Id> {
    let name = format!("the event {kind:?}");
    let event = wait_for(&name, || node.get_cm_event(channel).expect("a channel"));
    assert_eq!(event.event, kind, "with status {}", event.status);
    event
}

impl ScriptedHost {
    /// Sends the connection request with this private data. Returns the target's answer, or the
    /// target's reason to reject.
    pub(super) fn connect(&self, param: ConnParam) -> Result<ConnParam, RejectStatus> {
        self.node.connect(&self.id, &param).expect("a request");
        let event = wait_for("an answer", || {
            self.node.get_cm_event(&self.channel).expect("the channel works")
        });
        match event.event {
            CmEventType::Established => Ok(event.param),
            CmEventType::Rejected => {
                let reject = CmReject::parse(&event.param.private_data).expect("private data");
                assert_eq!(reject.recfmt.get(), 0);
                Err(reject.status())
            }
            other => panic!("{other:?}"),
        }
    }

    /// Returns the private data and parameters of a valid request for a queue.
    pub(super) fn usual(&self, queue: u16) -> ConnParam {
        let mut private_data = vec![0; CmRequest::LEN];
        CmRequest::new(queue, self.entries, self.entries - 1, 0).emit(&mut private_data);
        ConnParam { private_data, responder_resources: 16, ..ConnParam::default() }
    }

    /// Returns a connected queue pair, before the Connect command.
    pub(super) fn queue(stand: &Stand, address: &str, queue: u16, entries: u16) -> Self {
        let host = request(stand, address, entries);
        let param = host.usual(queue);
        let answer = host.connect(param).expect("the target accepts");
        assert_eq!(answer.private_data[..2], [0, 0], "RECFMT");
        let receives = u16::from_le_bytes([answer.private_data[2], answer.private_data[3]]);
        assert_eq!(receives, entries, "CRQSIZE");
        host
    }

    /// Returns the admin queue of an enabled controller, and the controller's identifier.
    pub(super) fn admin(stand: &Stand, address: &str) -> (Self, u16) {
        Self::admin_of(stand, address, NQN)
    }

    pub(super) fn admin_of(stand: &Stand, address: &str, nqn: &str) -> (Self, u16) {
        let mut host = Self::queue(stand, address, 0, 32);
        let data = command::connect_data(&Identity { subnqn: nqn, ..IDENTITY }, None);
        let answer = host.run_with(&command::connect(0, 31, 0), data.as_bytes(), false).0;
        assert_eq!(answer.status, Status::SUCCESS);
        let controller = ConnectResult::parse(answer.result).cntlid;
        let cc = Cc::default().with_en(true).with_iosqes(Cc::IOSQES_64).with_iocqes(Cc::IOCQES_16);
        let answer = host.run(&command::set_property(offset::CC, cc.0), &[]).0;
        assert_eq!(answer.status, Status::SUCCESS);
        (host, controller)
    }

    /// Returns a connected I/O queue.
    pub(super) fn io(stand: &Stand, address: &str, controller: u16, entries: u16) -> Self {
        Self::io_of(stand, address, (controller, 1), entries)
    }

    /// Returns a connected I/O queue with this controller and queue identifier.
    pub(super) fn io_of(stand: &Stand, address: &str, of: (u16, u16), entries: u16) -> Self {
        Self::connect_io(Self::queue(stand, address, of.1, entries), of, entries)
    }

    /// Sends the Connect command of an I/O queue.
    pub(super) fn connect_io(
        mut host: Self,
        (controller, queue): (u16, u16),
        entries: u16,
    ) -> Self {
        let data = command::connect_data(&IDENTITY, Some(controller));
        let answer = host.run(&command::connect(queue, entries - 1, 0), data.as_bytes()).0;
        assert_eq!(answer.status, Status::SUCCESS);
        host
    }

    /// Uses up all receives without posting any again.
    pub(super) fn takes_no_responses(&mut self) {
        self.withheld = u16::MAX;
        for _ in 0..self.entries {
            self.run(&command::flush(1), &[]);
        }
    }

    /// Sends the request and returns whether the target accepts it. False if nothing listens there.
    pub(super) fn try_connect(&self, param: ConnParam) -> bool {
        self.node.connect(&self.id, &param).expect("a request");
        let event = wait_for("an answer", || {
            self.node.get_cm_event(&self.channel).expect("the channel works")
        });
        event.event == CmEventType::Established
    }

    /// Waits until the connection has failed. A message that the host sends reveals the failure.
    pub(super) fn expect_loss(&mut self) {
        let _ = self.node.post_send(&self.id, &[SendRequest::new(1 << 32, Operation::Send, &[])]);
        self.expect_end();
    }

    pub(super) fn keys(&self) -> Keys {
        self.node.keys(&self.mr)
    }

    fn receive(&self, index: u16) {
        let offset = RESPONSES + usize::from(index) * Cqe::LEN;
        let slices = [self.keys().slice(offset, Cqe::LEN as u32).expect("inside")];
        let request = ReceiveRequest { id: u64::from(index), slices: &slices };
        self.node.post_recv(&self.id, &[request]).expect("room");
    }

    /// Executes a command: data for the controller are in the capsule if they fit.
    pub(super) fn run(&mut self, command: &Command, data: &[u8]) -> (Answered, Vec<u8>) {
        self.run_with(command, data, data.len() <= 4096)
    }

    pub(super) fn run_with(
        &mut self,
        command: &Command,
        data: &[u8],
        in_capsule: bool,
    ) -> (Answered, Vec<u8>) {
        let cid = self.send(command, data, in_capsule, 0);
        let answer = self.answer().expect("the connection ended before the answer");
        assert_eq!(answer.cid, cid);
        let bytes = match command.data {
            Data::FromController(length) => self.data(0, length as usize),
            _ => Vec::new(),
        };
        (answer, bytes)
    }

    /// Returns bytes of the host's data memory.
    pub(super) fn data(&self, at: usize, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        self.memory.read(DATA + at, &mut out);
        out
    }

    /// Returns bytes at an address of the host's memory.
    pub(super) fn get(&self, address: u64, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        self.memory.read((address - self.keys().address()) as usize, &mut out);
        out
    }

    /// Writes bytes at an address of the host's memory.
    pub(super) fn put(&self, address: u64, bytes: &[u8]) {
        self.memory.write((address - self.keys().address()) as usize, bytes);
    }

    /// Sends a command whose data are in the capsule, or at offset `at` of the data memory.
    pub(super) fn send(&mut self, command: &Command, data: &[u8], capsule: bool, at: usize) -> u16 {
        let (address, key) = (self.keys().address() + (DATA + at) as u64, self.keys().rkey());
        let keyed = |length_bytes| {
            SglDescriptor::keyed(KeyedBlock { address, length_bytes, key, invalidate: false })
        };
        let dptr = match command.data {
            Data::None => SglDescriptor::NONE,
            Data::FromController(length) => keyed(length),
            Data::ToController(length) if capsule => SglDescriptor::in_capsule(0, length),
            Data::ToController(length) => {
                self.memory.write(DATA + at, data);
                keyed(length)
            }
        };
        let sqe = Sqe { dptr, ..command.sqe };
        self.send_capsule(sqe, if capsule { data } else { &[] })
    }

    /// Sends a capsule with this entry and these data. Returns the command identifier.
    pub(super) fn send_capsule(&mut self, sqe: Sqe, data: &[u8]) -> u16 {
        let cid = self.next;
        self.next = self.next.wrapping_add(1);
        let mut capsule = vec![0; Sqe::LEN];
        Sqe { cid: cid.into(), ..sqe }.emit(&mut capsule);
        capsule.extend_from_slice(data);
        self.send_bytes(&capsule);
        cid
    }

    /// Sends a message.
    pub(super) fn send_bytes(&mut self, bytes: &[u8]) {
        let at = CAPSULES + (self.messages % 1024) * CAPSULE_BYTES;
        self.messages += 1;
        self.memory.write(at, bytes);
        let slices = [self.keys().slice(at, bytes.len() as u32).expect("inside")];
        let request = SendRequest::new(1 << 32, Operation::Send, &slices);
        self.node.post_send(&self.id, &[request]).expect("room");
    }

    /// Returns the next response; `None` if the connection has ended.
    pub(super) fn answer(&mut self) -> Option<Answered> {
        wait_for("a response", || {
            self.look();
            match self.answers.pop_front() {
                Some(answer) => Some(Some(answer)),
                None => self.failed.is_some().then_some(None),
            }
        })
    }

    /// The next response, if there is one.
    pub(super) fn try_answer(&mut self) -> Option<Answered> {
        self.look();
        self.answers.pop_front()
    }

    /// Does not post the receives of the next `count` responses again.
    pub(super) fn withhold(&mut self, count: u16) {
        self.withheld = count;
    }

    /// Waits until the target has ended the connection.
    pub(super) fn expect_end(&mut self) {
        while self.answer().is_some() {}
    }

    fn look(&mut self) {
        let mut out = [Completion::default(); 16];
        let count = self.node.poll_cq(&self.cq, &mut out).expect("a queue");
        for completion in &out[..count] {
            if !completion.status.is_success() {
                self.failed.get_or_insert(completion.status);
            } else if completion.operation == Completed::Receive {
                assert_eq!(completion.bytes as usize, Cqe::LEN, "the size of a response");
                let index = completion.id as u16;
                let mut bytes = [0; Cqe::LEN];
                self.memory.read(RESPONSES + usize::from(index) * Cqe::LEN, &mut bytes);
                match self.withheld {
                    0 => self.receive(index),
                    _ => self.withheld -= 1,
                }
                let cqe = Cqe::parse(&bytes).expect("a response");
                self.answers.push_back(Answered {
                    cid: cqe.cid.get(),
                    status: cqe.status(),
                    result: cqe.result(),
                    head: cqe.sqhd.get(),
                    invalidated: completion.invalidated,
                });
            }
        }
        // The host's own requests do not complete with errors when the peer disconnects, so check
        // the events.
        while let Some(event) = self.node.get_cm_event(&self.channel).expect("a channel") {
            if event.event == CmEventType::Disconnected {
                self.failed.get_or_insert(WorkStatus::WR_FLUSH_ERR);
            }
        }
    }
}
