//! Scripted targets over RDMA, on a network in memory. They implement the specification
//! independently of the host's transport. A test's script can make them misbehave.

use super::{Capsule, Carries, PeerShared, SUBSYSTEM, Script};
use farblock_host::{Controller, Error, Options};
use farblock_verbs::{
    Access, CmEventType, Completed, Completion, ConnParam, Network, Node, Operation, Pages,
    Provider, QpOptions, ReceiveRequest, SendRequest, Status as WorkStatus, Verbs,
};
use farblock_wire::rdma::{CmAccept, CmReject, RejectStatus};
use farblock_wire::sgl::KeyedBlock;
use farblock_wire::{Cqe, Sqe, Status};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Id = <Node as Verbs>::Id;
type Channel = <Node as Verbs>::EventChannel;

const HOST: [u8; 4] = [192, 0, 2, 1];
const TARGET: [u8; 4] = [192, 0, 2, 2];
const PORT: u16 = 4420;

/// Bytes of a receive: an entry and the in-capsule data that the script announces.
const RECEIVE_BYTES: usize = 64 + 8192;
const MOST_RECEIVES: u16 = 128;
/// The offset of the memory for data that the target sends, which follows the receives.
const DATA: usize = MOST_RECEIVES as usize * RECEIVE_BYTES;
const DATA_BYTES: usize = 1 << 20;

/// The answer to a connection request.
pub enum Reply {
    /// Accepts, with this private data and this number of receives.
    Accept(Vec<u8>, u16),
    /// Rejects, with this private data.
    Reject(Vec<u8>),
    /// Never answers.
    Silence,
}

impl Reply {
    /// Accepts with a receive queue of this many entries.
    pub fn entries(count: u16) -> Reply {
        let mut data = vec![0; CmAccept::LEN];
        CmAccept::new(count).emit(&mut data);
        Reply::Accept(data, count)
    }

    pub fn reason(status: u16) -> Reply {
        let mut data = vec![0; CmReject::LEN];
        CmReject::new(RejectStatus(status)).emit(&mut data);
        Reply::Reject(data)
    }
}

/// Returns the answer to a connection request with these parameters.
pub type Greeting = Box<dyn Fn(&ConnParam) -> Reply + Send + Sync>;

/// A controller's end of a queue pair.
pub struct Paired {
    pub node: Node,
    pub id: Id,
    cq: <Node as Verbs>::Cq,
    memory: Arc<Pages>,
    mr: <Node as Verbs>::Mr,
    /// The host's memory for unanswered commands, by command identifier.
    pub blocks: HashMap<u16, KeyedBlock>,
    /// Capsules that [`Carries::command`] has not returned yet.
    arrived: VecDeque<Capsule>,
    /// Outcomes of requests that [`Paired::transfer`] has not returned yet.
    outcomes: VecDeque<WorkStatus>,
    ended: Arc<AtomicBool>,
    /// Whether a receive failed, or the target stops.
    failed: bool,
    stop: Arc<AtomicBool>,
}

impl Paired {
    fn new(
        node: Node,
        id: Id,
        receives: u16,
        ended: Arc<AtomicBool>,
        stop: Arc<AtomicBool>,
    ) -> Paired {
        let pd = node.alloc_pd(&id).expect("a domain");
        let cq = node.create_cq(&pd, 4096).expect("a completion queue");
        let memory = Arc::new(Pages::new(DATA + DATA_BYTES));
        let mr = node.reg_mr(&pd, memory.clone(), Access::LOCAL_WRITE).expect("a registration");
        let options = QpOptions {
            pd,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            max_send_wr: 1024,
            max_recv_wr: MOST_RECEIVES.into(),
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_bytes: 0,
        };
        node.create_qp(&id, options).expect("a queue pair");
        let paired = Paired {
            node,
            id,
            cq,
            memory,
            mr,
            blocks: HashMap::new(),
            arrived: VecDeque::new(),
            outcomes: VecDeque::new(),
            ended,
            failed: false,
            stop,
        };
        (0..receives.min(MOST_RECEIVES)).for_each(|index| paired.receive(index));
        paired
    }

    fn receive(&self, index: u16) {
        let start = usize::from(index) * RECEIVE_BYTES;
        let slice = self.node.keys(&self.mr).slice(start, RECEIVE_BYTES as u32).expect("inside");
        let request = ReceiveRequest { id: index.into(), slices: &[slice] };
        // A queue pair that has failed takes no more receives.
        let _ = self.node.post_recv(&self.id, &[request]);
    }

    /// Handles completions. Returns whether the connection is up.
    pub fn look(&mut self) -> bool {
        let mut out = [Completion::default(); 16];
        let count = self.node.poll_cq(&self.cq, &mut out).expect("a queue");
        for completion in &out[..count] {
            if completion.id >= u64::from(MOST_RECEIVES) {
                self.outcomes.push_back(completion.status);
            } else if completion.status.is_success() {
                assert_eq!(completion.operation, Completed::Receive);
                self.arrive(completion.id as u16, completion.bytes as usize);
            } else {
                self.failed = true;
            }
        }
        let is_over = self.ended.load(Ordering::Acquire) || self.stop.load(Ordering::Acquire);
        count > 0 || !(self.failed || is_over)
    }

    fn arrive(&mut self, index: u16, bytes: usize) {
        let mut capsule = vec![0; bytes];
        self.memory.read(usize::from(index) * RECEIVE_BYTES, &mut capsule);
        let sqe = Sqe::parse(&capsule[..64]).expect("a host sends whole entries");
        if let Some(block) = sqe.dptr.keyed_block() {
            self.blocks.insert(sqe.cid.get(), block);
        }
        self.arrived.push_back(Capsule { sqe, data: capsule.split_off(64) });
        self.receive(index);
    }

    /// The next capsule, if it has arrived already.
    pub fn next(&mut self) -> Option<Capsule> {
        self.look();
        self.arrived.pop_front()
    }

    /// Executes an operation on a copy of `bytes` in the target's memory, and copies the result
    /// back.
    pub fn transfer(&mut self, operation: Operation, bytes: &mut [u8]) -> io::Result<()> {
        self.memory.write(DATA, bytes);
        let keys = self.node.keys(&self.mr);
        let slice = keys.slice(DATA, bytes.len() as u32).expect("inside");
        let id = u64::from(MOST_RECEIVES);
        let posted = self.node.post_send(&self.id, &[SendRequest::new(id, operation, &[slice])]);
        posted.map_err(|error| io::Error::other(error.error.to_string()))?;
        while self.outcomes.is_empty() {
            if !self.look() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        match self.outcomes.pop_front() {
            Some(status) if status.is_success() => {
                self.memory.read(DATA, bytes);
                Ok(())
            }
            status => Err(io::Error::other(format!("{status:?}"))),
        }
    }

    /// Sends a message, which may invalidate a key of the host.
    pub fn send(&mut self, message: &[u8], invalidate: Option<u32>) -> io::Result<()> {
        let operation = invalidate.map_or(Operation::Send, Operation::SendWithInvalidate);
        self.transfer(operation, &mut message.to_vec())
    }

    /// Sends a response, with any command identifier.
    pub fn answer(&mut self, cid: u16, status: Status) -> io::Result<()> {
        let mut message = [0; Cqe::LEN];
        Cqe::new(cid, super::SQHD, status, 0).emit(&mut message);
        self.send(&message, None)
    }

    pub fn disconnect(&self) {
        // The host may have left in the meantime.
        let _ = self.node.disconnect(&self.id);
    }

    fn block(&self, cid: u16) -> io::Result<KeyedBlock> {
        self.blocks.get(&cid).copied().ok_or_else(|| io::Error::other("the command has no data"))
    }
}

impl Carries for Paired {
    fn command(&mut self) -> io::Result<Capsule> {
        loop {
            if let Some(capsule) = self.next() {
                return Ok(capsule);
            }
            if !self.look() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    fn respond(&mut self, cid: u16, status: Status, result: u64) -> io::Result<()> {
        self.blocks.remove(&cid);
        let mut message = [0; Cqe::LEN];
        Cqe::new(cid, super::SQHD, status, result).emit(&mut message);
        self.send(&message, None)
    }

    fn push_all(&mut self, cid: u16, data: &[u8], _: usize, _: bool) -> io::Result<()> {
        let KeyedBlock { address, key, length_bytes, .. } = self.block(cid)?;
        if length_bytes as usize != data.len() {
            return Err(io::Error::other("the length of the host's block differs from the data"));
        }
        self.transfer(Operation::Write { address, rkey: key }, &mut data.to_vec())?;
        self.succeed(cid)
    }

    fn pull(&mut self, capsule: &Capsule, offset: u32, length: u32) -> io::Result<Vec<u8>> {
        let block = self.block(capsule.cid())?;
        let address = block.address + u64::from(offset);
        let mut data = vec![0; length as usize];
        self.transfer(Operation::Read { address, rkey: block.key }, &mut data)?;
        Ok(data)
    }
}

/// A target on a network in memory.
pub struct OverRdma {
    pub network: Network,
    shared: Arc<PeerShared<Paired>>,
    stop: Arc<AtomicBool>,
    accepting: Option<std::thread::JoinHandle<()>>,
}

impl OverRdma {
    /// Creates a target that accepts all connection requests, with queues of 128 entries.
    pub fn new(script: Script<Paired>) -> OverRdma {
        OverRdma::greeting(script, Box::new(|_| Reply::entries(MOST_RECEIVES)))
    }

    pub fn greeting(script: Script<Paired>, greeting: Greeting) -> OverRdma {
        let network = Network::new();
        let node = network.node(TARGET.into());
        let shared = Arc::new(PeerShared::new(script));
        let stop = Arc::new(AtomicBool::new(false));
        let channel = node.create_event_channel().expect("a channel");
        let listener =
            node.listen(&channel, (TARGET, PORT).into(), 64).expect("the target listens");
        let door = Door { node, shared: Arc::clone(&shared), greeting, stop: Arc::clone(&stop) };
        let accepting = std::thread::spawn(move || {
            door.run(&channel);
            drop(listener);
        });
        OverRdma { network, shared, stop, accepting: Some(accepting) }
    }

    /// Connects a host to this target.
    pub fn connect(&self, options: &Options) -> Result<Controller, Error> {
        let host = Provider::Memory(self.network.node(HOST.into()));
        let address: SocketAddr = (TARGET, PORT).into();
        Controller::connect_by_rdma(host, address, SUBSYSTEM, options)
    }

    /// The host's address.
    pub fn host(&self) -> IpAddr {
        HOST.into()
    }

    /// The target's address.
    pub fn address(&self) -> IpAddr {
        TARGET.into()
    }

    pub fn was_shut_down(&self) -> bool {
        self.shared.shut_down.load(Ordering::Acquire)
    }

    /// Ends the target, and waits until the host has given back its registered memory.
    pub fn expect_nothing_left(mut self) {
        self.end();
        let mut left = self.network.registered_bytes();
        for _ in 0..60_000 {
            if left == 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
            left = self.network.registered_bytes();
        }
        panic!("{left} bytes are still registered");
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(accepting) = self.accepting.take() {
            accepting.join().expect("the target's own thread");
        }
    }
}

impl Drop for OverRdma {
    fn drop(&mut self) {
        self.end();
    }
}

struct Door {
    node: Node,
    shared: Arc<PeerShared<Paired>>,
    greeting: Greeting,
    stop: Arc<AtomicBool>,
}

impl Door {
    fn run(&self, channel: &Channel) {
        let ends: Mutex<HashMap<u64, Arc<AtomicBool>>> = Mutex::default();
        let mut silent = Vec::new();
        while !self.stop.load(Ordering::Acquire) {
            let Some(event) = self.node.get_cm_event(channel).expect("a channel") else {
                std::thread::sleep(Duration::from_micros(100));
                continue;
            };
            let key = self.node.id_key(&event.id);
            match event.event {
                CmEventType::ConnectRequest => match (self.greeting)(&event.param) {
                    Reply::Accept(data, receives) => {
                        let ended = Arc::new(AtomicBool::new(false));
                        ends.lock().unwrap().insert(key, Arc::clone(&ended));
                        self.accept(event.id, data, receives, ended);
                    }
                    // The host may have left in the meantime.
                    Reply::Reject(data) => drop(self.node.reject(&event.id, &data)),
                    Reply::Silence => silent.push(event.id),
                },
                CmEventType::Disconnected | CmEventType::DeviceRemoval => {
                    if let Some(ended) = ends.lock().unwrap().remove(&key) {
                        ended.store(true, Ordering::Release);
                    }
                }
                _ => {}
            }
        }
    }

    fn accept(&self, id: Id, private_data: Vec<u8>, receives: u16, ended: Arc<AtomicBool>) {
        let (node, stop) = (self.node.clone(), Arc::clone(&self.stop));
        let mut paired = Paired::new(node.clone(), id.clone(), receives, ended, stop);
        let param = ConnParam { private_data, initiator_depth: 16, ..ConnParam::default() };
        if node.accept(&id, &param).is_err() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        std::thread::spawn(move || {
            shared.connections.fetch_add(1, Ordering::AcqRel);
            // The host disconnects when a test ends.
            let _ = shared.serve(&mut paired);
            paired.disconnect();
            drop(paired);
            shared.connections.fetch_sub(1, Ordering::AcqRel);
        });
    }
}
