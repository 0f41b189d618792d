//! A scripted host. It sends commands that tests have built or changed.

use super::Wire;
use crate::config::{Export, Subsystem, TargetConfig};
use crate::limits;
use crate::target::Target;
use farblock_block::Namespace;
use farblock_host::memory::Region;
use farblock_proto::host::command::{self, Command, Data, Identity};
use farblock_proto::ids::NamespaceId;
use farblock_proto::limits::KEYED_IN_CAPSULE_BYTES;
use farblock_reactor::EngineKind;
use farblock_wire::fabrics::ConnectResult;
use farblock_wire::property::{Cc, offset};
use farblock_wire::sgl::KeyedBlock;
use farblock_wire::{IntoBytes, SglDescriptor, Sqe, Status};
use std::sync::Arc;

pub(super) const NQN: &str = "nqn.2026-11.org.farblock:memory";
const HOST_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555";
pub(super) const IDENTITY: Identity<'_> =
    Identity { hostid: [7; 16], hostnqn: HOST_NQN, subnqn: NQN };

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: Status,
    pub(super) result: u64,
    pub(super) data: Vec<u8>,
}

/// Starts a target that shares these namespaces, numbered from 1, with any host.
pub(super) fn target(namespaces: impl IntoIterator<Item = Arc<dyn Namespace>>) -> Target {
    target_on(EngineKind::default(), namespaces)
}

/// Starts a target like [`target`], on a given engine.
pub(super) fn target_on(
    engine: EngineKind,
    namespaces: impl IntoIterator<Item = Arc<dyn Namespace>>,
) -> Target {
    let mut subsystem = Subsystem::new(NQN);
    subsystem.config.allow_any_host = true;
    for (nsid, namespace) in (1..).zip(namespaces) {
        let export = Export { namespace, identity: nsid.to_string() };
        subsystem.exports.insert(NamespaceId(nsid), export);
    }
    Target::start(&TargetConfig {
        subsystems: vec![subsystem],
        listeners: vec!["127.0.0.1:0".parse().expect("an address")],
        engine,
        ..TargetConfig::default()
    })
    .expect("the target starts")
}

/// A host's queue pair on a wire.
pub(super) struct Peer {
    pub(super) wire: Arc<Wire>,
    next: u16,
}

impl Peer {
    /// Returns a queue pair that is not connected to a controller.
    pub(super) fn new(target: &Target) -> Self {
        let wire = Arc::new(Wire::default());
        target.join(Arc::clone(&wire));
        Self { wire, next: 0 }
    }

    /// Connects and enables a controller. Returns its admin queue and its controller identifier.
    pub(super) fn admin(target: &Target) -> (Self, u16) {
        Self::admin_of(target, &IDENTITY)
    }

    /// Like [`Self::admin`], for another host.
    pub(super) fn admin_of(target: &Target, host: &Identity<'_>) -> (Self, u16) {
        let mut peer = Self::new(target);
        let data = command::connect_data(host, None);
        let answer = peer.run(&command::connect(0, 31, 0), data.as_bytes());
        assert_eq!(answer.status, Status::SUCCESS);
        let controller = ConnectResult::parse(answer.result).cntlid;
        let cc = Cc::default().with_en(true).with_iosqes(Cc::IOSQES_64).with_iocqes(Cc::IOCQES_16);
        let answer = peer.run(&command::set_property(offset::CC, cc.0), &[]);
        assert_eq!(answer.status, Status::SUCCESS);
        (peer, controller)
    }

    /// Connects an I/O queue with room for `depth` entries.
    pub(super) fn io(target: &Target, controller: u16, queue: u16, depth: u16) -> Self {
        Self::io_of(target, &IDENTITY, controller, queue, depth)
    }

    /// Like [`Self::io`], for another host.
    pub(super) fn io_of(
        target: &Target,
        host: &Identity<'_>,
        controller: u16,
        queue: u16,
        depth: u16,
    ) -> Self {
        let mut peer = Self::new(target);
        let data = command::connect_data(host, Some(controller));
        let answer = peer.run(&command::connect(queue, depth - 1, 0), data.as_bytes());
        assert_eq!(answer.status, Status::SUCCESS);
        peer
    }

    /// Executes a command. Data for the controller go into the capsule of an I/O queue if they fit.
    /// All other data are in registered memory.
    pub(super) fn run(&mut self, command: &Command, data: &[u8]) -> Answer {
        let fits = data.len() <= KEYED_IN_CAPSULE_BYTES as usize;
        let in_capsule = fits && matches!(command.data, Data::ToController(_));
        self.run_with(command, data, in_capsule)
    }

    /// Like [`Self::run`], but the caller chooses whether data for the controller are in the
    /// capsule.
    pub(super) fn run_with(&mut self, command: &Command, data: &[u8], in_capsule: bool) -> Answer {
        let cid = self.send(command, data, in_capsule);
        self.answer(cid).expect("the connection closed before the answer")
    }

    /// Waits until the queue's core has handled its earlier messages. This takes more than one
    /// response: the core may have taken the first command in a tick that had already started.
    pub(super) fn is_heard(&mut self) {
        for _ in 0..=limits::ROUNDS_PER_TICK {
            assert_eq!(self.run(&command::flush(u32::MAX), &[]).status, Status::SUCCESS);
        }
    }

    /// Sends a command without waiting for its response. Returns its identifier.
    pub(super) fn send(&mut self, command: &Command, data: &[u8], in_capsule: bool) -> u16 {
        let cid = self.next;
        self.next += 1;
        let sqe = place(&self.wire, command, cid, data, in_capsule);
        self.wire.send(sqe, if sqe.dptr.is_in_capsule() { data } else { &[] });
        cid
    }

    /// Waits for the next response, which must be for `cid`. `None`: the connection has closed.
    pub(super) fn answer(&mut self, cid: u16) -> Option<Answer> {
        let cqe = self.wire.wait()?;
        assert_eq!(cqe.cid.get(), cid);
        let memory = take_back(&self.wire, cid).map(|(memory, _)| memory);
        let (status, result) = (cqe.status(), cqe.result());
        Some(Answer { status, result, data: memory.unwrap_or_default() })
    }
}

/// Returns the memory key of a command.
pub(super) fn key_of(cid: u16) -> u32 {
    0x4b00_0000 | u32::from(cid)
}

/// Deregisters a command's memory. Returns the memory, and whether the target has invalidated its
/// key.
pub(super) fn take_back(wire: &Wire, cid: u16) -> Option<(Vec<u8>, bool)> {
    let (region, is_invalidated) = wire.deregister(key_of(cid))?;
    let Region::Bytes(memory) = region else { unreachable!("a script registers bytes") };
    Some((memory, is_invalidated))
}

/// Returns a command's submission queue entry with a data descriptor. Registers the data if they do
/// not go into the capsule.
pub(super) fn place(wire: &Wire, command: &Command, cid: u16, data: &[u8], capsule: bool) -> Sqe {
    let keyed = |memory: Vec<u8>| {
        let length_bytes = memory.len() as u32;
        wire.register(key_of(cid), Region::Bytes(memory));
        let block = KeyedBlock { address: 0, length_bytes, key: key_of(cid), invalidate: false };
        SglDescriptor::keyed(block)
    };
    let dptr = match command.data {
        Data::None => SglDescriptor::NONE,
        Data::FromController(length) => keyed(vec![0; length as usize]),
        Data::ToController(length) if capsule => SglDescriptor::in_capsule(0, length),
        Data::ToController(_) => keyed(data.to_vec()),
    };
    Sqe { cid: cid.into(), dptr, ..command.sqe }
}
