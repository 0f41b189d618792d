//! Checks every claim of Identify and of the log pages of supported features. For each set bit, the
//! command or feature works. For each clear bit, the target refuses the command with the status
//! that NVMe specifies. The tests try each limit at its value and one beyond.

use super::gate::Gate;
use super::peer::{IDENTITY, Peer, place, target};
use crate::target::Target;
use farblock_backends::mem::Mem;
use farblock_backends::null::Null;
use farblock_block::{Command as Operation, Namespace};
use farblock_proto::host::command::{self, Command, Data, Identity, LogPage};
use farblock_wire::fabrics::DisconnectCommand;
use farblock_wire::features::{FeatureGet, FeatureId, FeatureSelect, HostBehavior};
use farblock_wire::identify::{
    Cns, IdentifyController, IdentifyControllerNvm, IdentifyNamespace, IdentifyParameters,
};
use farblock_wire::log::{CommandEffects, CommandEffectsLog, LogPageId, SupportedLogPages};
use farblock_wire::nqn::DISCOVERY_NQN;
use farblock_wire::opcode::{AdminOpcode, DataDirection, NvmOpcode};
use farblock_wire::reset::CrossControllerReset;
use farblock_wire::{IntoBytes, Sqe, Status};
use std::sync::Arc;
use std::time::{Duration, Instant};

const BLOCK: u32 = 512;
/// The number of blocks, which exceeds DMRSL and MCL. The namespace stores no data.
const BLOCKS: u64 = 1 << 28;
/// The number under which the target also shares the namespace read-only.
const READ_ONLY: u32 = 2;

struct Stand {
    target: Target,
    controller: u16,
    admin: Peer,
    io: Peer,
}

fn stand() -> Stand {
    let null = || Null::new(BLOCK, BLOCKS * u64::from(BLOCK)).expect("a size");
    let disks: [Arc<dyn Namespace>; 2] = [Arc::new(null()), Arc::new(null().read_only())];
    let target = target(disks);
    let (admin, controller) = Peer::admin(&target);
    let io = Peer::io(&target, controller, 1, 32);
    Stand { target, controller, admin, io }
}

impl Stand {
    fn admin(&mut self, command: &Command, data: &[u8]) -> Status {
        code(self.admin.run(command, data).status)
    }

    fn io(&mut self, command: &Command, data: &[u8]) -> Status {
        code(self.io.run(command, data).status)
    }

    fn controller(&mut self) -> IdentifyController {
        let page = self.admin.run(&command::identify_controller(), &[]).data;
        IdentifyController::parse(&page).expect("a page")
    }

    fn namespace(&mut self, nsid: u32) -> IdentifyNamespace {
        let page = self.admin.run(&command::identify_namespace(nsid), &[]).data;
        IdentifyNamespace::parse(&page).expect("a page")
    }

    fn limits(&mut self) -> IdentifyControllerNvm {
        let page = self.admin.run(&command::identify(Cns::COMMAND_SET_CONTROLLER, 0), &[]).data;
        IdentifyControllerNvm::parse(&page).expect("a page")
    }

    fn log(&mut self, page: LogPageId, bytes: u32) -> Vec<u8> {
        let answer = self.admin.run(&command::log_page(LogPage::new(page, bytes)), &[]);
        assert_eq!(answer.status, Status::SUCCESS);
        answer.data
    }
}

fn code(status: Status) -> Status {
    Status(status.code())
}

/// Returns a command with only an opcode and a namespace, and the data that the command requires.
fn bare(opcode: u8, nsid: u32) -> (Command, Vec<u8>) {
    let data = match DataDirection::of(opcode) {
        DataDirection::None => Data::None,
        DataDirection::HostToController | DataDirection::Bidirectional => Data::ToController(4096),
        DataDirection::ControllerToHost => Data::FromController(4096),
    };
    (Command::new(Sqe::new(opcode, 0, nsid), data), vec![0; 4096])
}

fn ranged(opcode: NvmOpcode, lba: u64, blocks: u32) -> Command {
    let zeroes = command::write_zeroes(1, lba, blocks, false, false);
    Command::new(Sqe { opcode: opcode.0, ..zeroes.sqe }, Data::None)
}

fn get_feature(feature: FeatureId, select: FeatureSelect, cdw11: u32, bytes: u32) -> Command {
    let mut sqe = Sqe::new(AdminOpcode::GET_FEATURES.0, 0, 1);
    FeatureGet { fid: feature, select, cdw11 }.emit(&mut sqe);
    let data = if bytes == 0 { Data::None } else { Data::FromController(bytes) };
    Command::new(sqe, data)
}

fn copy(format: u8) -> (Command, Vec<u8>) {
    let mut copy = command::copy(1, 1000, 1, false);
    copy.sqe.cdw12.set(u32::from(format) << 8);
    (copy, command::copy_range(1, 0, 1).as_bytes().to_vec())
}

#[test]
fn each_optional_command_works_exactly_if_advertised() {
    let mut stand = stand();
    let block = vec![0; BLOCK as usize];
    let range = command::deallocate_range(0, 1).as_bytes().to_vec();
    let report = Sqe { cdw10: 1023.into(), cdw11: 1.into(), ..Sqe::new(0x0e, 0, 1) };
    let oncs = stand.controller().oncs.get();
    let commands = [
        (0, command::compare(1, 0, 1, BLOCK), block),
        (1, ranged(NvmOpcode::WRITE_UNCORRECTABLE, 0, 1), vec![]),
        (2, command::deallocate(1, 1), range),
        (3, command::write_zeroes(1, 0, 1, false, false), vec![]),
        (5, Command::new(report, Data::FromController(4096)), vec![]),
        (7, ranged(NvmOpcode::VERIFY, 0, 1), vec![]),
        (8, copy(0).0, copy(0).1),
    ];
    for (bit, command, data) in &commands {
        let expected = if oncs >> bit & 1 == 1 { Status::SUCCESS } else { Status::INVALID_OPCODE };
        assert_eq!(stand.io(command, data), expected, "ONCS bit {bit}");
    }
    // Test the Select field and the Timestamp feature.
    let default = get_feature(FeatureId::ARBITRATION, FeatureSelect::DEFAULT, 0, 0);
    let timestamp = get_feature(FeatureId::TIMESTAMP, FeatureSelect::CURRENT, 0, 8);
    for (bit, command) in [(4, default), (6, timestamp)] {
        assert_eq!((oncs >> bit & 1, stand.admin(&command, &[])), (1, Status::SUCCESS));
    }
    assert_eq!(oncs >> 9, 0, "a set bit that this test does not check");
    let admin = [
        (0, 0x81),
        (0, 0x82),
        (1, 0x80),
        (2, 0x10),
        (2, 0x11),
        (3, 0x0d),
        (3, 0x15),
        (4, 0x14),
        (5, 0x19),
        (5, 0x1a),
        (6, 0x1d),
        (6, 0x1e),
        (7, 0x1c),
        (8, 0x7c),
        (9, 0x86),
        (10, 0x24),
    ];
    assert_eq!(stand.controller().oacs.get(), 0, "a set bit that this test does not check");
    for (bit, opcode) in admin {
        let (command, data) = bare(opcode, 1);
        assert_eq!(stand.admin(&command, &data), Status::INVALID_OPCODE, "OACS bit {bit}");
    }
}

#[test]
fn the_effects_log_lists_exactly_the_supported_opcodes() {
    let mut stand = stand();
    let page = CommandEffectsLog::parse(&stand.log(LogPageId::COMMAND_EFFECTS, 4096));
    let page = page.expect("a page");
    for opcode in 0..=u8::MAX {
        let held = opcode == AdminOpcode::ASYNC_EVENT_REQUEST.0;
        if held || opcode == AdminOpcode::FABRICS.0 {
            continue;
        }
        let effects = CommandEffects(page.acs[usize::from(opcode)].get());
        let (command, data) = bare(opcode, 0);
        let known = stand.admin(&command, &data) != Status::INVALID_OPCODE;
        assert_eq!(known, effects.csupp(), "admin opcode {opcode:#x}");
        let effects = CommandEffects(page.iocs[usize::from(opcode)].get());
        let (command, data) = bare(opcode, READ_ONLY);
        let status = stand.io(&command, &data);
        assert_eq!(status != Status::INVALID_OPCODE, effects.csupp(), "I/O opcode {opcode:#x}");
        let changes = status == Status::NAMESPACE_WRITE_PROTECTED;
        assert_eq!(changes, effects.lbcc(), "LBCC of I/O opcode {opcode:#x}");
    }
}

fn walk_log_pages(stand: &mut Stand) {
    let page = SupportedLogPages::parse(&stand.log(LogPageId::SUPPORTED_LOG_PAGES, 1024));
    let page = page.expect("a page");
    for lid in 0..=u8::MAX {
        let known = page.lids[usize::from(lid)].get() & SupportedLogPages::LSUPP != 0;
        let status = stand.admin(&command::log_page(LogPage::new(LogPageId(lid), 64)), &[]);
        let expected = if known { Status::SUCCESS } else { Status::INVALID_LOG_PAGE };
        assert_eq!(status, expected, "log page {lid:#x}");
    }
}

#[test]
fn each_log_and_identify_page_is_supported_exactly_if_advertised() {
    let mut stand = stand();
    walk_log_pages(&mut stand);
    let lpa = stand.controller().lpa;
    assert_eq!(
        lpa,
        IdentifyController::LPA_COMMAND_EFFECTS | IdentifyController::LPA_EXTENDED_DATA
    );
    let of_namespace = LogPage { nsid: 1, ..LogPage::new(LogPageId::SMART_HEALTH, 512) };
    assert_eq!(stand.admin(&command::log_page(of_namespace), &[]), Status::INVALID_FIELD);
    let from = LogPage { offset: 1024, ..LogPage::new(LogPageId::COMMAND_EFFECTS, 1024) };
    let rest = stand.admin.run(&command::log_page(from), &[]).data;
    assert_eq!(rest, stand.log(LogPageId::COMMAND_EFFECTS, 4096)[1024..2048]);
    let known = [0, 1, 2, 3, 5, 6, 7, 8, 0x10, 0x11, 0x12, 0x13, 0x1a, 0x1c];
    for cns in 0..=u8::MAX {
        let status = stand.admin(&command::identify(Cns(cns), if cns == 1 { 0 } else { 1 }), &[]);
        let mut expected = Status::INVALID_FIELD;
        if known.contains(&cns) {
            expected = Status::SUCCESS;
        }
        // CNS 0x1c with controller identifier 0xffff returns this controller's command sets.
        if cns == Cns::COMMAND_SETS.0 {
            let mut command = command::identify(Cns(cns), 0);
            let this = IdentifyParameters { cntid: 0xffff, ..IdentifyParameters::new(Cns(cns)) };
            this.emit(&mut command.sqe);
            assert_eq!(stand.admin(&command, &[]), expected);
            continue;
        }
        assert_eq!(status, expected, "CNS {cns:#x}");
    }
}

fn walk_features(stand: &mut Stand) {
    let page = stand.log(LogPageId::FEATURE_EFFECTS, 1024);
    for (entry, id) in page.chunks(4).zip(0..=u8::MAX) {
        let known = entry[0] & 1 == 1;
        let (feature, extended) = (FeatureId(id), 1);
        let (cdw11, bytes) = match feature {
            FeatureId::TIMESTAMP => (0, 8),
            FeatureId::HOST_IDENTIFIER => (extended, 16),
            FeatureId::HOST_BEHAVIOR_SUPPORT => (0, 512),
            _ => (0, 0),
        };
        let expected = if known { Status::SUCCESS } else { Status::INVALID_FIELD };
        for select in [FeatureSelect::CURRENT, FeatureSelect::DEFAULT, FeatureSelect::SAVED] {
            let status = stand.admin(&get_feature(feature, select, cdw11, bytes), &[]);
            assert_eq!(status, expected, "feature {id:#x}, {select}");
        }
        let able = stand.admin.run(&get_feature(feature, FeatureSelect::SUPPORTED, cdw11, 0), &[]);
        assert_eq!(code(able.status), expected, "feature {id:#x}");
        let mut save = command::set_features(feature, 0);
        save.sqe.cdw10.set(save.sqe.cdw10.get() | 1 << 31);
        let refused = if known { Status::FEATURE_NOT_SAVEABLE } else { Status::INVALID_FIELD };
        assert_eq!((able.result & 1, stand.admin(&save, &[])), (0, refused), "save {id:#x}");
    }
}

/// OAES names the events that the host can enable. The test skips the lower bits, which name SMART
/// warnings.
fn walk_notices(stand: &mut Stand) {
    let oaes = stand.controller().oaes.get();
    for bit in 8..32 {
        let status = stand
            .admin(&command::set_features(FeatureId::ASYNC_EVENT_CONFIGURATION, 1 << bit), &[]);
        let expected = if oaes >> bit & 1 == 1 { Status::SUCCESS } else { Status::INVALID_FIELD };
        assert_eq!(status, expected, "OAES bit {bit}");
    }
}

#[test]
fn each_feature_is_supported_exactly_if_advertised() {
    let mut stand = stand();
    walk_features(&mut stand);
    // The host identifier has 128 bits (CTRATT bit 0). The 64-bit form is refused.
    assert_eq!(stand.controller().ctratt.get(), 1 | 1 << 6);
    let short = get_feature(FeatureId::HOST_IDENTIFIER, FeatureSelect::CURRENT, 0, 8);
    assert_eq!(stand.admin(&short, &[]), Status::INVALID_FIELD);
    walk_notices(&mut stand);
}

#[test]
fn each_command_format_works_exactly_if_advertised() {
    let mut stand = stand();
    let identify = stand.controller();
    let behavior =
        HostBehavior { cdfe: HostBehavior::CDFE_FORMAT_2.into(), ..HostBehavior::zeroed() };
    let feature = command::set_features(FeatureId::HOST_BEHAVIOR_SUPPORT, 0);
    let feature = Command { data: Data::ToController(512), ..feature };
    assert_eq!(stand.admin(&feature, behavior.as_bytes()), Status::SUCCESS);
    for format in 0..16 {
        let known = identify.ocfs.get() >> format & 1 == 1;
        let (command, data) = copy(format);
        let expected = if known { Status::SUCCESS } else { Status::INVALID_FIELD };
        assert_eq!(stand.io(&command, &data), expected, "OCFS bit {format}");
    }
    // The controller fuses only Compare and Write, of up to ACWU blocks.
    assert_eq!(identify.fuses.get(), 1);
    let blocks = u32::from(identify.acwu_z.get()) + 1;
    for (blocks, expected) in [(blocks, Status::SUCCESS), (blocks + 1, Status::INVALID_FIELD)] {
        let data = vec![0; (blocks * BLOCK) as usize];
        let mut first = command::compare(1, 0, blocks, blocks * BLOCK);
        let mut second = command::write(1, 0, blocks, blocks * BLOCK, false);
        (first.sqe.flags, second.sqe.flags) = (first.sqe.flags | 1, second.sqe.flags | 2);
        let pair = [first, second].map(|command| stand.io.send(&command, &data, true));
        for (cid, expected) in pair.into_iter().zip([expected, expected]) {
            let status = code(stand.io.answer(cid).expect("the connection is open").status);
            assert_eq!(status == Status::SUCCESS, expected == Status::SUCCESS, "{blocks} blocks");
        }
    }
    for fuse in 1..4 {
        let mut read = command::read(1, 0, 1, BLOCK);
        read.sqe.flags |= fuse;
        assert_eq!(stand.io(&read, &[]), Status::INVALID_FIELD, "a fused read");
        // The next command is not fused with the refused one.
        assert_eq!(stand.io(&command::flush(1), &[]), Status::SUCCESS);
    }
    // The namespace has no metadata, no protection information (MC, DPC) and one block format
    // (NLBAF).
    let namespace = stand.namespace(1);
    let nothing = (namespace.mc, namespace.dpc, namespace.nlbaf_z, namespace.flbas);
    assert_eq!(nothing, (0, 0, 0, 0));
    let read = command::read(1, 0, 1, BLOCK);
    let metadata = Command { sqe: Sqe { mptr: 1.into(), ..read.sqe }, ..read };
    assert_eq!(stand.io(&metadata, &[]), Status::INVALID_FIELD);
    for bit in 26..30 {
        let mut protected = read;
        protected.sqe.cdw12.set(1 << bit);
        assert_eq!(stand.io(&protected, &[]), Status::INVALID_PROTECTION_INFORMATION);
    }
    // The controller accepts only in-capsule and keyed descriptors (SGLS), and over RDMA up to 16
    // keyed ones per command (MSDBD).
    assert_eq!((identify.sgls.get(), identify.msdbd), (1 | 1 << 2 | 1 << 20, 16));
    for (cid, id) in (500..).zip((0..=u8::MAX).filter(|id| ![0x01, 0x40, 0x4f].contains(id))) {
        let mut sqe = place(&stand.io.wire, &read, cid, &[], false);
        sqe.dptr.id = id;
        stand.io.wire.send(sqe, &[]);
        let status = code(stand.io.answer(cid).expect("the connection is open").status);
        assert_eq!(status, Status::SGL_TYPE_INVALID, "descriptor {id:#x}");
    }
    // A Flush can address all namespaces at once (VWC bits 2:1).
    assert_eq!(identify.vwc, 0b111);
    assert_eq!(stand.io(&command::flush(u32::MAX), &[]), Status::SUCCESS);
    // A host can disconnect a single queue (OFCS).
    assert_eq!(identify.ofcs.get(), 1);
    let disconnect = Command::new(DisconnectCommand::new(0).to_sqe(), Data::None);
    assert_eq!(stand.io(&disconnect, &[]), Status::SUCCESS);
}

#[test]
fn reservations_support_exactly_the_advertised_types() {
    let mut stand = stand();
    let rescap = stand.namespace(1).rescap;
    let send = |stand: &mut Stand, opcode: NvmOpcode, cdw10: u32, keys: &[u64]| {
        let data: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
        let sqe = Sqe { cdw10: cdw10.into(), ..Sqe::new(opcode.0, 0, 1) };
        stand.io(&Command::new(sqe, Data::ToController(data.len() as u32)), &data)
    };
    let persisting = 0b11 << 30;
    let expected = if rescap & 1 == 1 { Status::SUCCESS } else { Status::INVALID_FIELD };
    let opcode = NvmOpcode::RESERVATION_REGISTER;
    assert_eq!(send(&mut stand, opcode, persisting, &[0, 7]), expected, "PTPL");
    assert_eq!(send(&mut stand, opcode, 0, &[0, 7]), Status::SUCCESS);
    for rtype in 0..8 {
        let known = rtype > 0 && rescap >> rtype & 1 == 1 && rtype < 7;
        let expected = if known { Status::SUCCESS } else { Status::INVALID_FIELD };
        let opcode = NvmOpcode::RESERVATION_ACQUIRE;
        assert_eq!(send(&mut stand, opcode, rtype << 8, &[7, 0]), expected, "type {rtype}");
        if known {
            let opcode = NvmOpcode::RESERVATION_RELEASE;
            assert_eq!(send(&mut stand, opcode, rtype << 8, &[7]), Status::SUCCESS);
        }
    }
}

#[test]
fn commands_may_have_at_most_the_advertised_size() {
    let mut stand = stand();
    let (identify, limits) = (stand.controller(), stand.limits());
    let most = identify.max_transfer_bytes(4096).expect("a limit") as u32 / BLOCK;
    for opcode in [NvmOpcode::READ, NvmOpcode::WRITE, NvmOpcode::COMPARE] {
        for (blocks, expected) in [(most, Status::SUCCESS), (most + 1, Status::INVALID_FIELD)] {
            let bytes = blocks * BLOCK;
            let data = match opcode {
                NvmOpcode::READ => Data::FromController(bytes),
                _ => Data::ToController(bytes),
            };
            let command = Command::new(ranged(opcode, 0, blocks).sqe, data);
            let answer = stand.io.run_with(&command, &vec![0; bytes as usize], false);
            assert_eq!(code(answer.status), expected, "MDTS, {blocks} blocks");
        }
    }
    // With 512-byte blocks, VSL and WZSL equal the largest block count of a command.
    for (opcode, limit) in [(NvmOpcode::VERIFY, limits.vsl), (NvmOpcode::WRITE_ZEROES, limits.wzsl)]
    {
        assert_eq!((4096u64 << limit) / u64::from(BLOCK), 1 << 16);
        assert_eq!(stand.io(&ranged(opcode, 0, 1 << 16), &[]), Status::SUCCESS);
    }
    let mut deallocate = |ranges: usize, blocks: u32, first: u32| {
        let mut data = command::deallocate_range(0, first).as_bytes().to_vec();
        for _ in 1..ranges {
            data.extend(command::deallocate_range(1 << 27, blocks).as_bytes());
        }
        stand.io(&command::deallocate(1, ranges), &data)
    };
    let (dmrl, dmrsl) = (usize::from(limits.dmrl), limits.dmrsl.get());
    assert_eq!(deallocate(dmrl, 1, 1), Status::SUCCESS);
    assert_eq!(deallocate(dmrl + 1, 1, 1), Status::COMMAND_SIZE_LIMIT_EXCEEDED);
    assert_eq!(deallocate(1, 0, dmrsl), Status::SUCCESS);
    assert_eq!(deallocate(1, 0, dmrsl + 1), Status::COMMAND_SIZE_LIMIT_EXCEEDED);
    let dmsl = u32::try_from(limits.dmsl.get()).expect("a limit");
    assert_eq!(deallocate(2, 1, dmsl - 1), Status::SUCCESS);
    assert_eq!(deallocate(2, 2, dmsl - 1), Status::COMMAND_SIZE_LIMIT_EXCEEDED);
    let namespace = stand.namespace(1);
    assert_eq!((namespace.nsze.get(), namespace.ncap.get()), (BLOCKS, BLOCKS));
    let read = |lba, blocks| command::read(1, lba, blocks, blocks * BLOCK);
    assert_eq!(stand.io(&read(BLOCKS - 1, 1), &[]), Status::SUCCESS);
    assert_eq!(stand.io(&read(BLOCKS - 1, 2), &[]), Status::LBA_OUT_OF_RANGE);
}

#[test]
fn advertised_maximum_counts_are_enforced() {
    let mut stand = stand();
    let identify = stand.controller();
    // NN is the largest valid namespace number, whether or not the number is in use.
    let nn = identify.nn.get();
    assert_eq!(identify.mnan.get(), nn);
    assert_eq!(stand.admin(&command::identify_namespace(nn), &[]), Status::SUCCESS);
    assert_eq!(stand.admin(&command::identify_namespace(nn + 1), &[]), Status::INVALID_NAMESPACE);
    // MAXCMD is the number of queue entries.
    let depth = identify.maxcmd.get();
    Peer::io(&stand.target, stand.controller, 2, depth);
    let mut deeper = Peer::new(&stand.target);
    let data = command::connect_data(&IDENTITY, Some(stand.controller));
    let answer = deeper.run(&command::connect(3, depth, 0), data.as_bytes());
    assert_eq!(code(answer.status), Status::CONNECT_INVALID_PARAMETERS);
    // ELPE is the number of error log entries.
    let entries = u32::from(identify.elpe_z) + 1;
    for _ in 0..entries + 3 {
        let unknown = command::log_page(LogPage::new(LogPageId(0xff), 64));
        assert_eq!(stand.admin(&unknown, &[]), Status::INVALID_LOG_PAGE);
    }
    let log = stand.log(LogPageId::ERROR_INFORMATION, (entries + 1) * 64);
    let filled = log.chunks(64).filter(|entry| entry[..8] != [0; 8]).count();
    assert_eq!(filled, entries as usize);
    hold_events(&mut stand);
}

/// AERL limits the outstanding event requests. A further request fails.
fn hold_events(stand: &mut Stand) {
    let held = u16::from(stand.controller().aerl_z) + 1;
    let event = |cid: u16| Sqe { cid: cid.into(), ..command::async_event_request().sqe };
    for cid in 900..900 + held {
        stand.admin.wire.send(event(cid), &[]);
    }
    stand.admin.wire.send(event(999), &[]);
    let beyond = stand.admin.wire.wait().expect("the connection is open");
    assert_eq!(
        (beyond.cid.get(), code(beyond.status())),
        (999, Status::ASYNC_EVENT_LIMIT_EXCEEDED)
    );
}

/// IOCCSZ and IORCSZ are the sizes of an I/O queue's capsules and responses, in units of 16 bytes.
/// A larger capsule ends its connection, as on TCP, where the target could not find the next
/// capsule.
#[test]
fn a_capsule_may_have_at_most_the_advertised_size() {
    let mut stand = stand();
    let identify = stand.controller();
    assert_eq!((identify.iorcsz.get(), identify.icdoff.get()), (1, 0));
    let bytes = identify.ioccsz.get() * 16 - Sqe::LEN as u32;
    assert_eq!(bytes % BLOCK, 0, "a partial block would not reach the limit");
    for (blocks, fits) in [(bytes / BLOCK, true), (bytes / BLOCK + 1, false)] {
        let write = command::write(1, 0, blocks, blocks * BLOCK, false);
        let cid = stand.io.send(&write, &vec![0; (blocks * BLOCK) as usize], true);
        let status = stand.io.answer(cid).map(|answer| answer.status);
        assert_eq!(status, fits.then_some(Status::SUCCESS), "{blocks} blocks in the capsule");
    }
}

/// The target rounds the timeout up to a multiple of KAS.
#[test]
fn the_keep_alive_timeout_is_rounded_up_to_the_advertised_granularity() {
    let mut stand = stand();
    let step = u32::from(stand.controller().kas.get()) * 100;
    assert!(step > 0, "the controller supports keep-alive");
    for (asked, told) in [(step, step), (step + 1, 2 * step), (7 * step - 1, 7 * step), (0, 0)] {
        let set = command::set_features(FeatureId::KEEP_ALIVE_TIMER, asked);
        assert_eq!(stand.admin(&set, &[]), Status::SUCCESS);
        let get = get_feature(FeatureId::KEEP_ALIVE_TIMER, FeatureSelect::CURRENT, 0, 0);
        let answer = stand.admin.run(&get, &[]);
        assert_eq!((answer.status, answer.result), (Status::SUCCESS, told.into()), "{asked} ms");
    }
}

/// CTRATT bit 6: commands on any queue keep a controller alive, without the Keep Alive command.
#[test]
fn traffic_keeps_a_controller_alive() {
    let mut stand = stand();
    assert_eq!(stand.controller().ctratt.get() >> 6 & 1, 1);
    let timeout = Duration::from_millis(u64::from(stand.controller().kas.get()) * 100);
    let set = command::set_features(FeatureId::KEEP_ALIVE_TIMER, timeout.as_millis() as u32);
    assert_eq!(stand.admin(&set, &[]), Status::SUCCESS);
    let (began, mut last) = (Instant::now(), Instant::now());
    while began.elapsed() < timeout * 3 {
        let sent = Instant::now();
        let cid = stand.io.send(&command::read(1, 0, 1, BLOCK), &[], true);
        let Some(answer) = stand.io.answer(cid) else {
            // On a busy machine, the test may pause for longer than the timeout. The target may
            // then close the controller.
            assert!(
                last.elapsed() >= timeout / 2,
                "the controller closed despite traffic within {timeout:?}"
            );
            return;
        };
        assert_eq!(answer.status, Status::SUCCESS);
        last = sent;
        std::thread::sleep(timeout / 50);
    }
    assert!(stand.io.wire.wait().is_none(), "the controller of a silent host stays open");
    assert!(last.elapsed() >= timeout, "the controller closed too early");
}

/// CCRL is the number of concurrent resets. Each reset closes the controller that CIU and CIRN
/// name.
#[test]
fn at_most_the_advertised_number_of_resets_run_at_once() {
    let mut stand = stand();
    let most = stand.controller().ccrl;
    assert!(most > 0);
    let lost: Vec<_> = (0..most).map(|_| Peer::admin(&stand.target)).collect();
    let name = |(mut admin, icid): (Peer, u16)| {
        let page = admin.run(&command::identify_controller(), &[]).data;
        let page = IdentifyController::parse(&page).expect("a page");
        (admin, CrossControllerReset { icid, ciu: page.ciu, cirn: page.cirn.get() })
    };
    let lost: Vec<_> = lost.into_iter().map(name).collect();
    let send = |(_, name): &(Peer, CrossControllerReset)| {
        stand.admin.send(&command::cross_controller_reset(*name), &[], true)
    };
    let asked: Vec<_> = lost.iter().map(send).collect();
    for _ in &asked {
        let cqe = stand.admin.wire.wait().expect("the connection is open");
        assert!(asked.contains(&cqe.cid.get()) && cqe.status() == Status::SUCCESS, "{cqe:?}");
    }
    lost.iter()
        .for_each(|(admin, _)| assert!(admin.wire.wait().is_none(), "the controller has closed"));
}

/// DLFEAT: deallocated blocks read as zeroes, and Write Zeroes may deallocate blocks.
#[test]
fn deallocated_blocks_read_as_advertised() {
    let disk = Arc::new(Mem::new(BLOCK, 1 << 20).expect("a size"));
    let zeroing = Operation::WriteZeroes { deallocate: true };
    let gate = Arc::new(Gate::of(zeroing, disk));
    let target = target([Arc::clone(&gate) as Arc<dyn Namespace>]);
    let (admin, controller) = Peer::admin(&target);
    let io = Peer::io(&target, controller, 1, 32);
    let mut stand = Stand { target, controller, admin, io };
    let dlfeat = stand.namespace(1).dlfeat;
    assert_eq!(dlfeat, IdentifyNamespace::DLFEAT_READ_ZEROES | 1 << 3);
    let full = vec![0xaa; 8 * BLOCK as usize];
    let write = command::write(1, 0, 8, 8 * BLOCK, false);
    assert_eq!(stand.io(&write, &full), Status::SUCCESS);
    let range = command::deallocate_range(2, 2).as_bytes().to_vec();
    assert_eq!(stand.io(&command::deallocate(1, 1), &range), Status::SUCCESS);
    assert_eq!(gate.seen(), [0; 0]);
    assert_eq!(stand.io(&command::write_zeroes(1, 5, 1, true, false), &[]), Status::SUCCESS);
    assert_eq!(gate.seen(), [5], "the command asks to deallocate");
    assert_eq!(stand.io(&command::write_zeroes(1, 6, 1, false, false), &[]), Status::SUCCESS);
    assert_eq!(gate.seen(), [5], "the command does not ask to deallocate");
    let data = stand.io.run(&command::read(1, 0, 8, 8 * BLOCK), &[]).data;
    let blocks = data.chunks(BLOCK as usize).map(|block| {
        assert!(block.iter().all(|byte| *byte == block[0]));
        block[0]
    });
    let [x, o] = [0xaa, 0];
    assert_eq!(blocks.collect::<Vec<_>>(), [x, x, o, o, x, o, o, x]);
}

/// A discovery controller has its own Identify page, and supports fewer features.
#[test]
fn a_discovery_controller_supports_exactly_what_it_advertises() {
    let target = target([Arc::new(Null::new(BLOCK, 1 << 20).expect("a size")) as _]);
    let identity = Identity { subnqn: DISCOVERY_NQN, ..IDENTITY };
    let (admin, controller) = Peer::admin_of(&target, &identity);
    let io = Peer::new(&target);
    let mut stand = Stand { target, controller, admin, io };
    let identify = stand.controller();
    assert_eq!(identify.cntrltype, 2, "discovery");
    assert_eq!((identify.nn.get(), identify.sqes, identify.cqes), (0, 0, 0));
    // A discovery controller supports no optional command and no I/O.
    let optional = (identify.oacs.get(), identify.oncs.get(), identify.fuses.get(), identify.vwc);
    assert_eq!((optional, identify.ccrl, identify.anacap), ((0, 0, 0, 0), 0, 0));
    let mandatory = [0x02, 0x06, 0x09, 0x0a, 0x0c, 0x18, 0x7f];
    for opcode in (0..=u8::MAX).filter(|opcode| !mandatory.contains(opcode)) {
        let (command, data) = bare(opcode, 0);
        assert_eq!(stand.admin(&command, &data), Status::INVALID_OPCODE, "opcode {opcode:#x}");
    }
    let data = command::connect_data(&identity, Some(controller));
    let refused = stand.io.run(&command::connect(1, 31, 0), data.as_bytes()).status;
    assert_eq!(code(refused), Status::CONNECT_INVALID_PARAMETERS);
    for cns in 0..=u8::MAX {
        let status = stand.admin(&command::identify(Cns(cns), 0), &[]);
        let expected = if cns == 1 { Status::SUCCESS } else { Status::INVALID_FIELD };
        assert_eq!(status, expected, "CNS {cns:#x}");
    }
    assert_eq!(identify.lpa, IdentifyController::LPA_EXTENDED_DATA);
    walk_log_pages(&mut stand);
    let from = LogPage { offset: 512, ..LogPage::new(LogPageId::DISCOVERY, 512) };
    let rest = stand.admin.run(&command::log_page(from), &[]).data;
    assert_eq!(rest, stand.log(LogPageId::DISCOVERY, 1024)[512..]);
    walk_features(&mut stand);
    walk_notices(&mut stand);
    // A log page transfer may have at most MDTS bytes.
    let most = identify.max_transfer_bytes(4096).expect("a limit") as u32;
    for (bytes, expected) in [(most, Status::SUCCESS), (most + 4, Status::INVALID_FIELD)] {
        let page = command::log_page(LogPage::new(LogPageId::DISCOVERY, bytes));
        assert_eq!(stand.admin(&page, &[]), expected, "MDTS, {bytes} bytes");
    }
    hold_events(&mut stand);
}
