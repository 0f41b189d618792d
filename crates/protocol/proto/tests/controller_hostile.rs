//! Tests that no input from a peer, in any state, causes a panic or a response that is too long.

mod controller_fixture;

use controller_fixture::*;
use farblock_proto::capsule::RemoteForm;
use farblock_proto::controller::{AddressFamily, ErrorRecord};
use farblock_proto::controller::{
    AdminOutcome, ConnectRequest, DeallocateRanges, IoCommand, Listener, NamespaceInfo, PortId,
    Registry, SubsystemId,
};
use farblock_proto::ids::{CommandId, ControllerId, Lba, NamespaceId, QueueId};
use farblock_wire::fabrics::{ConnectCommand, ConnectData, PropertySetCommand, PropertySize};
use farblock_wire::log::TransportType;
use farblock_wire::nqn::DISCOVERY_NQN;
use farblock_wire::property::{Cc, offset};
use farblock_wire::sgl::SglDescriptor;
use farblock_wire::sqe::Sqe;
use farblock_wire::status::Status;
use proptest::prelude::*;
use proptest::strategy::ValueTree;

const MAX_TRANSFER: u32 = 64 * 1024;

/// One event of a registry.
#[derive(Clone, Debug)]
enum Step {
    Connect { discovery: bool, qid: u16, cntlid: u16, sqsize: u16, kato: u32, junk: Vec<u8> },
    Configure { controller: u16, cc: u32 },
    Admin { controller: u16, sqe: Box<[u8; 64]>, data: Vec<u8> },
    Io { sqe: Box<[u8; 64]> },
    FabricsOnIo { controller: u16, queue: u16, sqe: Box<[u8; 64]> },
    Close { controller: u16, queue: u16 },
    Tick { seconds: u16 },
    Namespace { id: u32, blocks: u64, remove: bool },
    RecordError { controller: u16 },
}

/// A submission queue entry that is arbitrary, or valid enough to pass the first checks.
fn entry() -> impl Strategy<Value = Box<[u8; 64]>> {
    let plausible_opcode = prop::sample::select(vec![
        0x00, 0x01, 0x02, 0x02, 0x05, 0x06, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18, 0x7f,
    ]);
    let page = prop::sample::select(vec![
        0u8, 1, 2, 3, 4, 5, 6, 7, 8, 0x0a, 0x0b, 0x0e, 0x0f, 0x10, 0x11, 0x12, 0x13, 0x1c, 0x70,
        0x81,
    ]);
    let length = prop_oneof![
        Just(4096u32),
        Just(8),
        Just(16),
        (0u32..=MAX_TRANSFER / 4).prop_map(|dwords| dwords * 4),
        any::<u32>(),
    ];
    let small_or_any = prop_oneof![0u32..20, any::<u32>()];
    let dwords = prop::array::uniform5(small_or_any.clone());
    let parts = (plausible_opcode, page, length, dwords, small_or_any, any::<u16>());
    let plausible = parts.prop_map(|(opcode, page, length, dwords, nsid, cid)| {
        let mut sqe = Sqe::new(opcode, cid, nsid);
        sqe.dptr = SglDescriptor::transport(length);
        let dwords_z = (length / 4).wrapping_sub(1);
        // Half of the entries have valid fields for a Get Log Page or an Identify command. The
        // other half have random fields.
        let (high, cdw11, cdw12) = match (dwords[0] % 2, opcode) {
            (0, 0x02) => (dwords_z << 16, 0, dwords[2] % 2048 * 4),
            (0, _) => (0, dwords[1] % 2, dwords[2] % 256),
            _ => (dwords[0] << 8, dwords[1], dwords[2]),
        };
        sqe.cdw10 = (u32::from(page) | high).into();
        sqe.cdw11 = cdw11.into();
        sqe.cdw12 = cdw12.into();
        sqe.cdw13 = (dwords[3] / 8 % 2).into();
        sqe.cdw14 = ((dwords[4] % 2) << 24).into();
        let mut bytes = Box::new([0; 64]);
        sqe.emit(&mut bytes[..]);
        bytes
    });
    prop_oneof![
        4 => plausible,
        1 => prop::array::uniform32(any::<u16>()).prop_map(|words| {
            let mut bytes = Box::new([0; 64]);
            for (chunk, word) in bytes.chunks_exact_mut(2).zip(words) {
                chunk.copy_from_slice(&word.to_le_bytes());
            }
            bytes
        }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let controller = || 1u16..6;
    let cc = prop_oneof![
        4 => Just(enabling().0),
        1 => Just(enabling().with_shn(Cc::SHN_NORMAL).0),
        1 => Just(0),
        1 => any::<u32>(),
    ];
    let id = prop_oneof![Just(0xffffu16), 1u16..6, any::<u16>()];
    let qid = prop_oneof![Just(0u16), 0u16..6, any::<u16>()];
    let size = prop_oneof![Just(31u16), any::<u16>()];
    let junk = prop::collection::vec(any::<u8>(), 0..3);
    let connect = (any::<bool>(), qid, id, size, any::<u32>(), junk);
    let namespace = (0u32..12, prop_oneof![1u64..100_000, any::<u64>()], any::<bool>());
    let data = || prop::collection::vec(any::<u8>(), 0..16);
    prop_oneof![
        2 => connect.prop_map(|(discovery, qid, cntlid, sqsize, kato, junk)| Step::Connect {
            discovery, qid, cntlid, sqsize, kato, junk,
        }),
        3 => (controller(), cc).prop_map(|(controller, cc)| Step::Configure { controller, cc }),
        20 => (controller(), entry(), data())
            .prop_map(|(controller, sqe, data)| Step::Admin { controller, sqe, data }),
        10 => entry().prop_map(|sqe| Step::Io { sqe }),
        1 => (controller(), 0u16..3, entry())
            .prop_map(|(controller, queue, sqe)| Step::FabricsOnIo { controller, queue, sqe }),
        1 => (controller(), 0u16..3)
            .prop_map(|(controller, queue)| Step::Close { controller, queue }),
        1 => any::<u16>().prop_map(|seconds| Step::Tick { seconds }),
        1 => namespace.prop_map(|(id, blocks, remove)| Step::Namespace { id, blocks, remove }),
        1 => controller().prop_map(|controller| Step::RecordError { controller }),
    ]
}

/// A registry in an arbitrary state, and its clock.
struct World {
    registry: Registry,
    subsystem: SubsystemId,
    seconds: u64,
    pushed: usize,
    commands: usize,
}

impl World {
    fn new() -> Self {
        let mut registry = Registry::new();
        let mut config = config();
        config.max_transfer_bytes = MAX_TRANSFER;
        config.allow_any_host = true;
        config.flush_on_shutdown = true;
        let subsystem = registry.add_subsystem(config).unwrap();
        for port in 0..3 {
            let family = AddressFamily::V4;
            let (address, service) = ("0.0.0.0".into(), (4420 + port).to_string());
            let listener = Listener {
                port: PortId(port),
                number: None,
                transport: TransportType::TCP,
                family,
                address,
                service,
            };
            registry.add_listener(listener).unwrap();
        }
        for nqn in [SUBSYSTEM_NQN, DISCOVERY_NQN] {
            let host = Host::connect(&mut registry, nqn);
            host.write_cc(&mut registry, enabling(), at(0));
        }
        Self { registry, subsystem, seconds: 0, pushed: 0, commands: 0 }
    }

    fn apply(&mut self, step: &Step) {
        let now = at(self.seconds);
        match step {
            Step::Connect { discovery, qid, cntlid, sqsize, kato, junk } => {
                let nqn = if *discovery { DISCOVERY_NQN } else { SUBSYSTEM_NQN };
                let command = ConnectCommand::new(1, *qid, *sqsize, *kato);
                let mut data = ConnectData::new(HOST_ID, *cntlid, nqn, HOST_NQN);
                for (byte, junk) in data.subnqn.iter_mut().rev().zip(junk) {
                    *byte = *junk;
                }
                let (command, data) = (&command, &data);
                let request = ConnectRequest {
                    command,
                    data,
                    local_address: LOCAL_ADDRESS,
                    port: None,
                    remote: RemoteForm::Transport,
                };
                let _ = self.registry.connect(&request, now);
            }
            Step::Configure { controller, cc } => {
                let command =
                    PropertySetCommand::new(1, offset::CC, PropertySize::Four, u64::from(*cc));
                self.admin(ControllerId(*controller), &command.to_sqe(), &[]);
            }
            Step::Admin { controller, sqe, data } => {
                let sqe = Sqe::parse(&sqe[..]).expect("64 bytes");
                self.admin(ControllerId(*controller), &sqe, data);
            }
            Step::Io { sqe } => self.io(&Sqe::parse(&sqe[..]).expect("64 bytes")),
            Step::FabricsOnIo { controller, queue, sqe } => {
                let sqe = Sqe::parse(&sqe[..]).expect("64 bytes");
                let (controller, queue) = (ControllerId(*controller), QueueId(*queue));
                self.registry.fabrics_on_io_queue(controller, queue, &sqe);
            }
            Step::Close { controller, queue } => {
                self.registry.queue_closed(ControllerId(*controller), QueueId(*queue));
            }
            Step::Tick { seconds } => {
                self.seconds += u64::from(*seconds) / 1000;
                self.registry.tick(at(self.seconds));
            }
            Step::Namespace { id, blocks, remove } => {
                let (subsystem, id) = (self.subsystem, NamespaceId(*id));
                if *remove {
                    let _ = self.registry.remove_namespace(subsystem, id);
                } else {
                    let info = NamespaceInfo::new(4096, *blocks);
                    let _ = self.registry.add_namespace(subsystem, id, info);
                }
            }
            Step::RecordError { controller } => {
                let record = ErrorRecord {
                    queue: QueueId(1),
                    command: CommandId(2),
                    status: Status::UNRECOVERED_READ_ERROR,
                    namespace: NamespaceId(1),
                    lba: Some(Lba(u64::MAX)),
                };
                self.registry.record_error(ControllerId(*controller), &record);
            }
        }
        let (look, end) = (self.registry.next_look(), self.registry.next_deadline());
        assert!(end.is_none_or(|end| look.is_some_and(|look| look <= end)), "{look:?}, {end:?}");
        drain(&mut self.registry);
    }

    fn admin(&mut self, controller: ControllerId, sqe: &Sqe, data: &[u8]) {
        let pulled = self.registry.admin_data_bytes(controller, sqe) as usize;
        let mut data = data.to_vec();
        // A target pulls as many bytes as the registry requests. Shorter data must not cause a
        // panic either.
        if data.len().is_multiple_of(2) {
            data.resize(pulled, 0x5a);
        }
        let outcome = self.registry.admin(controller, sqe, &data, at(self.seconds));
        if let AdminOutcome::Push { bytes, .. } = outcome {
            self.pushed += 1;
            let expected = sqe.dptr.length.get();
            assert_eq!(bytes.len(), expected as usize, "the data has the requested length");
            let most = self.registry.max_transfer_bytes(controller);
            assert!(expected <= most.expect("a live controller"));
        }
    }

    fn io(&mut self, sqe: &Sqe) {
        let table = self.registry.namespaces(self.subsystem).unwrap();
        let Ok(command) = IoCommand::parse(sqe, &table, RemoteForm::Transport) else { return };
        self.commands += 1;
        let info = command.namespace().and_then(|id| table.find(id));
        for data in [command.data_from_host(), command.data_to_host()].into_iter().flatten() {
            assert!(data.length() <= MAX_TRANSFER.max(4096));
        }
        match command {
            IoCommand::Read { lba, blocks, data, .. }
            | IoCommand::Write { lba, blocks, data, .. }
            | IoCommand::Compare { lba, blocks, data, .. } => {
                let info = info.unwrap();
                assert!(lba.0 + u64::from(blocks.0) <= info.blocks);
                assert_eq!(data.length(), blocks.0 * info.block_size);
            }
            IoCommand::Verify { lba, blocks, .. } | IoCommand::WriteZeroes { lba, blocks, .. } => {
                assert!(lba.0 + u64::from(blocks.0) <= info.unwrap().blocks);
            }
            IoCommand::Deallocate { ranges, data, .. } => {
                assert!(data.length() as usize >= usize::from(ranges) * 16);
            }
            IoCommand::Reserve { command, data, .. } => {
                assert_eq!(data.length(), command.data_bytes());
            }
            IoCommand::Copy { plan, data, .. } => {
                assert_eq!(data.length(), u32::from(plan.ranges) * 32);
                assert!(plan.lba.0 < info.unwrap().blocks && plan.ranges <= 128);
            }
            IoCommand::Advise { .. } | IoCommand::Flush { .. } | IoCommand::Fabrics => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_commands_break_no_invariant(steps in prop::collection::vec(step(), 0..60)) {
        let mut world = World::new();
        for step in &steps {
            world.apply(step);
        }
    }

    #[test]
    fn accepted_deallocate_ranges_are_within_the_namespace(
        data in prop::collection::vec(any::<u8>(), 0..4200),
        count in 0u16..300,
        blocks in 1u64..u64::MAX,
    ) {
        let info = NamespaceInfo::new(512, blocks);
        if let Ok(ranges) = DeallocateRanges::parse(&data, count, &info) {
            for (lba, length) in ranges {
                prop_assert!(length.0 != 0);
                prop_assert!(lba.0.checked_add(u64::from(length.0)).unwrap() <= blocks);
            }
        }
    }
}

/// Some of the generated entries pass the first checks, so the test also reaches the later code.
#[test]
fn generated_commands_pass_the_first_checks() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut world = World::new();
    for _ in 0..2000 {
        let sqe = entry().new_tree(&mut runner).unwrap().current();
        world.apply(&Step::Admin { controller: 1, sqe: sqe.clone(), data: Vec::new() });
        world.apply(&Step::Admin { controller: 2, sqe: sqe.clone(), data: Vec::new() });
        world.apply(&Step::Io { sqe });
        for controller in [1, 2] {
            world.apply(&Step::Configure { controller, cc: enabling().0 });
        }
    }
    assert!(world.pushed > 50, "{} pushes", world.pushed);
    assert!(world.commands > 50, "{} I/O commands", world.commands);
}
