//! Tests of the host's state machines with scripted, hostile and random input.

use super::command::LogPage;
use super::*;
use crate::tcp::host_end::Transfer;
use crate::tcp::recognise;
use core::time::Duration;
use farblock_wire::fabrics::{ConnectCommand, ConnectData, PropertySetCommand};
use farblock_wire::features::{AsyncEventConfig, FeatureId, FeatureSet, NumberOfQueues};
use farblock_wire::identify::{
    ControllerType, IdentifyController, IdentifyNamespace, NamespaceIdDescriptor, NamespaceIdType,
    NamespaceList,
};
use farblock_wire::log::{
    DiscoveryLogEntry, DiscoveryLogHeader, LogPageId, LogPageParameters, SubsystemType,
};
use farblock_wire::nqn::DISCOVERY_NQN;
use farblock_wire::nvm::{DsmCommand, DsmRange, RwCommand};
use farblock_wire::opcode::{AdminOpcode, NvmOpcode};
use farblock_wire::property::{Cap, Cc, Csts};
use farblock_wire::{Cqe, IntoBytes, Sqe, Status, U16, U32, U64};
use proptest::prelude::*;
use std::string::ToString;
use std::vec;
use std::vec::Vec;

const SUBNQN: &str = "nqn.2024-01.example:disk";
const EVENTS: AsyncEventConfig = AsyncEventConfig(0).with_namespace_attributes(true);

fn identity(subnqn: &str) -> Identity<'_> {
    Identity { hostid: [7; 16], hostnqn: "nqn.2014-08.org.example:me", subnqn }
}

fn bringup(subnqn: &str) -> Bringup {
    let parameters = Parameters {
        admin_sqsize_z: 31,
        keep_alive: Duration::from_secs(5),
        queues: 4,
        events: EVENTS,
    };
    Bringup::new(parameters, &identity(subnqn))
}

fn controller() -> IdentifyController {
    IdentifyController {
        sn: farblock_wire::identify::ascii_field("SN 1"),
        mn: farblock_wire::identify::ascii_field("A model"),
        fr: farblock_wire::identify::ascii_field("1.0"),
        mdts: 5,
        cntlid: U16::new(3),
        oaes: U32::new(EVENTS.0 | 1 << 9),
        cntrltype: ControllerType::IO.0,
        maxcmd: U16::new(64),
        oncs: U16::new(IdentifyController::ONCS_WRITE_ZEROES),
        vwc: 1,
        ioccsz: U32::new((64 + 8192) / 16),
        ..IdentifyController::zeroed()
    }
}

/// Returns the command of the next step. The step must be a command.
fn command(bringup: &Bringup) -> (Command, Vec<u8>) {
    match bringup.step() {
        Step::Command(command, data) => (command, data),
        other => panic!("{other:?} instead of a command"),
    }
}

fn complete(bringup: &mut Bringup, result: u64, data: &[u8]) -> Result<(), ConnectError> {
    bringup.handle_completion(&Cqe::new(0, 0xffff, Status::SUCCESS, result), data)
}

const CAP: Cap = Cap(0).with_mqes_z(127).with_to(1).with_css(Cap::CSS_NVM);

/// Returns a bring-up whose next step is Identify.
fn identifying(subnqn: &str) -> Bringup {
    let mut bringup = bringup(subnqn);
    complete(&mut bringup, 3, &[]).unwrap();
    complete(&mut bringup, CAP.0, &[]).unwrap();
    complete(&mut bringup, 0x0001_0400, &[]).unwrap();
    complete(&mut bringup, 0, &[]).unwrap();
    complete(&mut bringup, Csts(0).with_rdy(true).0.into(), &[]).unwrap();
    bringup
}

#[test]
fn the_host_enables_a_controller_step_by_step() {
    let mut bringup = bringup(SUBNQN);
    let (connect, data) = command(&bringup);
    let view = ConnectCommand::from_sqe(&connect.sqe);
    assert_eq!((view.qid.get(), view.sqsize_z.get(), view.kato.get()), (0, 31, 5000));
    let data = ConnectData::parse(&data).unwrap();
    assert_eq!((data.subsystem_nqn(), data.cntlid.get()), (Ok(SUBNQN), 0xffff));
    complete(&mut bringup, 3, &[]).unwrap();
    complete(&mut bringup, CAP.0, &[]).unwrap();
    complete(&mut bringup, 0x0001_0400, &[]).unwrap();
    let set = PropertySetCommand::from_sqe(&command(&bringup).0.sqe);
    let cc = Cc(set.value.get() as u32);
    assert_eq!((cc.en(), cc.iosqes(), cc.iocqes(), cc.css(), cc.mps()), (true, 6, 4, 0, 0));
    complete(&mut bringup, 0, &[]).unwrap();
    complete(&mut bringup, Csts(0).with_rdy(true).0.into(), &[]).unwrap();
    complete(&mut bringup, 0, controller().as_bytes()).unwrap();
    let set = FeatureSet::parse(&command(&bringup).0.sqe);
    assert_eq!((set.fid, set.cdw11), (FeatureId::NUMBER_OF_QUEUES, NumberOfQueues::pairs(4).0));
    complete(&mut bringup, NumberOfQueues::pairs(2).0.into(), &[]).unwrap();
    let set = FeatureSet::parse(&command(&bringup).0.sqe);
    assert_eq!((set.fid, set.cdw11), (FeatureId::ASYNC_EVENT_CONFIGURATION, EVENTS.0));
    complete(&mut bringup, 0, &[]).unwrap();
    let Step::Ready(info) = bringup.step() else { panic!("not ready") };
    assert_eq!((info.cntlid, info.queues, info.max_queue_entries), (3, 2, 128));
    assert_eq!((info.serial.as_str(), info.model.as_str()), ("SN 1", "A model"));
    assert_eq!((info.max_transfer_bytes, info.in_capsule_bytes), (Some(131072), 8192));
    assert_eq!(info.version.to_string(), "1.4.0");
    assert!(info.volatile_cache && info.has_write_zeroes() && !info.has_deallocate());
    assert_eq!(info.configuration, cc);
}

#[test]
fn the_host_waits_for_readiness_up_to_the_advertised_timeout() {
    let mut bringup = bringup(SUBNQN);
    for result in [3, CAP.0, 0, 0] {
        complete(&mut bringup, result, &[]).unwrap();
    }
    let mut waited = Duration::ZERO;
    let error = loop {
        if let Err(error) = complete(&mut bringup, 0, &[]) {
            break error;
        }
        let Step::Wait(pause) = bringup.step() else { panic!("no pause") };
        assert!(pause > Duration::ZERO && pause <= Duration::from_millis(100));
        waited += pause;
        bringup.handle_waited();
    };
    assert_eq!(error, ConnectError::NotReady { after: Duration::from_secs(1) });
    assert_eq!(waited, Duration::from_secs(1));
}

#[test]
fn a_discovery_controller_gets_no_io_queues() {
    // Old discovery controllers do not report their type and their name.
    let mut bringup = identifying(DISCOVERY_NQN);
    let old = IdentifyController { cntrltype: 0, cntlid: U16::new(99), ..controller() };
    complete(&mut bringup, 0, old.as_bytes()).unwrap();
    let Step::Ready(info) = bringup.step() else { panic!("not ready") };
    assert_eq!((info.discovery, info.cntlid), (true, 3));
    // New discovery controllers may have their own name.
    let mut bringup = identifying(SUBNQN);
    let new = IdentifyController { cntrltype: ControllerType::DISCOVERY.0, ..controller() };
    complete(&mut bringup, 0, new.as_bytes()).unwrap();
    assert!(matches!(bringup.step(), Step::Ready(info) if info.discovery));
}

#[test]
fn invalid_identify_controller_data_are_refused() {
    let identified = |identify: &[u8]| complete(&mut identifying(SUBNQN), 0, identify);
    let protocol = |result| matches!(result, Err(ConnectError::Protocol(_)));
    assert!(protocol(identified(&[])));
    assert!(protocol(identified(&controller().as_bytes()[..4095])));
    let small = IdentifyController { ioccsz: U32::new(3), ..controller() };
    assert!(protocol(identified(small.as_bytes())));
    let other = IdentifyController { cntlid: U16::new(4), ..controller() };
    assert!(protocol(identified(other.as_bytes())));
    let mut bringup = bringup(SUBNQN);
    complete(&mut bringup, 3, &[]).unwrap();
    assert!(protocol(complete(&mut bringup, 0, &[])), "a queue with one entry is refused");
}

#[test]
fn controller_limits_are_read_from_identify() {
    let info = |identify: IdentifyController| {
        let mut bringup = identifying(DISCOVERY_NQN);
        complete(&mut bringup, 0, identify.as_bytes()).unwrap();
        let Step::Ready(info) = bringup.step() else { panic!("not ready") };
        info
    };
    assert_eq!(info(IdentifyController { mdts: 0, ..controller() }).max_transfer_bytes, None);
    let huge = info(IdentifyController { mdts: 31, ..controller() });
    assert_eq!(huge.max_transfer_bytes, Some(u32::MAX));
    let huge = info(IdentifyController { ioccsz: U32::new(u32::MAX), ..controller() });
    assert_eq!(huge.in_capsule_bytes, u32::MAX);
    let offset = info(IdentifyController { icdoff: U16::new(1), ..controller() });
    assert_eq!(offset.in_capsule_bytes, 0);
    // MQES allows 127 commands, MAXCMD 64.
    assert_eq!(info(controller()).queue_depth(128), 64);
    assert_eq!(info(controller()).queue_depth(0), 1);
    let any = IdentifyController { maxcmd: U16::new(0), ..controller() };
    assert_eq!(info(any).queue_depth(500), 127);
    let widest = ControllerInfo { max_queue_entries: 65536, ..ControllerInfo::default() };
    assert_eq!(widest.queue_depth(u16::MAX), u16::MAX - 1);
}

#[test]
fn the_error_names_the_failed_command() {
    let failed = |bringup: &mut Bringup| {
        let cqe = Cqe::new(0, 0, Status::INTERNAL_ERROR, 0);
        bringup.handle_completion(&cqe, &[]).unwrap_err().to_string()
    };
    assert!(failed(&mut identifying(SUBNQN)).starts_with("Identify Controller failed"));
    let mut bringup = identifying(SUBNQN);
    complete(&mut bringup, 0, controller().as_bytes()).unwrap();
    assert!(failed(&mut bringup).starts_with("requesting I/O queues failed"));
}

#[test]
fn commands_have_the_right_fields() {
    let range = |command: Command| RwCommand::parse(&command.sqe);
    let read = command::read(5, 1 << 40, 65536, 1 << 25);
    assert_eq!((read.sqe.opcode, read.sqe.nsid.get()), (NvmOpcode::READ.0, 5));
    assert_eq!((range(read).slba, range(read).block_count()), (1 << 40, 65536));
    assert!(range(command::write(1, 0, 1, 512, true)).control.fua());
    assert!(!range(command::write(1, 0, 1, 512, false)).control.fua());
    let zeroes = range(command::write_zeroes(1, 9, 3, true, true));
    assert_eq!((zeroes.control.deac(), zeroes.control.fua()), (true, true));
    let dsm = command::deallocate(1, 256);
    assert_eq!(DsmCommand::parse(&dsm.sqe).range_count(), 256);
    assert!(DsmCommand::parse(&dsm.sqe).attributes.ad());
    assert_eq!(dsm.data, Data::ToController(256 * DsmRange::LEN as u32));
    let log = LogPage { offset: 1 << 33, ..LogPage::new(LogPageId::DISCOVERY, 1 << 20) };
    let log = LogPageParameters::parse(&command::log_page(log).sqe);
    assert_eq!((log.lid, log.lpo, log.length_bytes()), (LogPageId::DISCOVERY, 1 << 33, 1 << 20));
    assert_eq!(command::keep_alive().sqe.opcode, AdminOpcode::KEEP_ALIVE.0);
    assert_eq!(command::granted_queues(u32::MAX), u16::MAX);
    assert_eq!(command::granted_queues(0x0000_0004), 1);
}

#[test]
fn data_that_fit_are_sent_in_the_capsule() {
    let write = command::write(1, 0, 8, 4096, false);
    let (sqe, transfer) = write.place(4096);
    assert_eq!(transfer, Transfer::InCapsule(4096));
    assert!(sqe.dptr.is_in_capsule());
    let (sqe, transfer) = write.place(4095);
    assert_eq!(transfer, Transfer::ToController(4096));
    assert!(sqe.dptr.is_transport());
    let (sqe, transfer) = command::read(1, 0, 8, 4096).place(4096);
    assert_eq!((transfer, sqe.dptr.is_transport()), (Transfer::FromController(4096), true));
    let (_, transfer) = command::flush(1).place(4096);
    assert_eq!(transfer, Transfer::None);
    // The host overwrites the caller's data pointer and descriptor type.
    let odd = Sqe { flags: 0xff, ..Sqe::new(0xc1, 9, 0) };
    let (sqe, _) = Command::new(odd, Data::ToController(4)).place(0);
    assert_eq!((sqe.psdt(), sqe.fuse(), sqe.dptr.length.get()), (1, 3, 4));
}

fn namespace() -> IdentifyNamespace {
    let mut namespace = IdentifyNamespace { nsze: U64::new(1000), ..IdentifyNamespace::zeroed() };
    namespace.lbaf[0].lbads = 9;
    namespace
}

fn parse(namespace: &IdentifyNamespace) -> Result<NamespaceInfo, InfoError> {
    NamespaceInfo::parse(1, namespace.as_bytes())
}

#[test]
fn identify_namespace_data_are_parsed() {
    let info = parse(&namespace()).unwrap();
    assert_eq!((info.block_size, info.blocks, info.preferred_blocks), (512, 1000, 0));
    let mut namespace = IdentifyNamespace {
        nlbaf_z: 1,
        flbas: 1,
        nsattr: 1,
        nsfeat: IdentifyNamespace::NSFEAT_OPTIMAL_IO,
        npwg_z: U16::new(7),
        noiob: U16::new(64),
        nguid: [4; 16],
        ..namespace()
    };
    namespace.lbaf[1].lbads = 12;
    let mut info = parse(&namespace).unwrap();
    assert_eq!((info.block_size, info.read_only), (4096, true));
    assert_eq!((info.preferred_blocks, info.optimal_blocks), (8, 64));
    assert_eq!((info.nguid, info.eui64), (Some([4; 16]), None));
    let mut list = [0; 4096];
    let at = NamespaceIdDescriptor::append(&mut list, 0, NamespaceIdType::UUID, &[9; 16]);
    NamespaceIdDescriptor::append(&mut list, at, NamespaceIdType::NGUID, &[0; 16]);
    info.add_descriptors(&list);
    assert_eq!((info.uuid, info.nguid), (Some([9; 16]), Some([4; 16])));
}

#[test]
fn invalid_identify_namespace_data_are_refused() {
    let with = |change: fn(&mut IdentifyNamespace)| {
        let mut namespace = namespace();
        change(&mut namespace);
        parse(&namespace).unwrap_err()
    };
    assert_eq!(with(|ns| ns.nsze = U64::ZERO), InfoError::NoSuchNamespace);
    assert_eq!(with(|ns| ns.flbas = 1), InfoError::FormatOutOfRange);
    assert_eq!(with(|ns| (ns.nlbaf_z, ns.flbas) = (16, 0x6f)), InfoError::FormatOutOfRange);
    assert_eq!(with(|ns| ns.lbaf[0].lbads = 8), InfoError::BlockSize { shift: 8 });
    assert_eq!(with(|ns| ns.lbaf[0].lbads = 17), InfoError::BlockSize { shift: 17 });
    assert_eq!(with(|ns| ns.lbaf[0].lbads = 255), InfoError::BlockSize { shift: 255 });
    assert_eq!(with(|ns| ns.lbaf[0].ms = U16::new(8)), InfoError::Metadata { bytes: 8 });
    let blocks = u64::MAX;
    assert_eq!(with(|ns| ns.nsze = U64::new(u64::MAX)), InfoError::TooLarge { blocks });
    let mut largest = namespace();
    largest.nsze = U64::new(i64::MAX as u64 >> 9);
    assert!(parse(&largest).is_ok());
    assert_eq!(NamespaceInfo::parse(1, &[0; 4095]), Err(InfoError::TooShort));
}

#[test]
fn namespace_lists_must_be_ascending() {
    let list = |nsids: &[u32]| NamespaceList::from_nsids(nsids.iter().copied());
    let read = |nsids: &[u32], after| parse_namespace_list(list(nsids).as_bytes(), after);
    assert_eq!(read(&[], 0), Ok((vec![], false)));
    assert_eq!(read(&[1, 3, 9], 0), Ok((vec![1, 3, 9], false)));
    assert_eq!(read(&[1, 3, 9], 1), Err(InfoError::NotAscending));
    assert_eq!(read(&[3, 3], 1), Err(InfoError::NotAscending));
    let full: Vec<u32> = (1..=1024).collect();
    assert_eq!(read(&full, 0), Ok((full.clone(), true)));
    assert_eq!(parse_namespace_list(&[0; 16], 0), Err(InfoError::TooShort));
    assert_eq!(parse_changed_namespaces(list(&[9, 4]).as_bytes()), Some(vec![9, 4]));
    assert_eq!(parse_changed_namespaces(list(&[u32::MAX]).as_bytes()), None);
}

/// Simulates a controller whose page has these generations and record counts, one pair for each
/// read of the header.
fn discover(headers: &[(u64, u64)]) -> Result<Vec<DiscoveryEntry>, InfoError> {
    let mut headers = headers.iter();
    let mut generation = 0;
    let mut reader = DiscoveryReader::new();
    while let DiscoveryStep::Read(log) = reader.step() {
        assert_eq!((log.page, log.bytes % 1024), (LogPageId::DISCOVERY, 0));
        let mut data = Vec::new();
        if log.offset == 0 {
            let &(genctr, numrec) = headers.next().expect("one more header read than expected");
            generation = genctr;
            let header = DiscoveryLogHeader {
                genctr: U64::new(genctr),
                numrec: U64::new(numrec),
                ..DiscoveryLogHeader::zeroed()
            };
            data.extend(header.as_bytes());
        }
        while data.len() < log.bytes as usize {
            let record = DiscoveryLogEntry {
                trtype: 3,
                subtype: SubsystemType::REFERRAL.0,
                portid: U16::new(generation as u16),
                ..DiscoveryLogEntry::zeroed()
            };
            data.extend(record.as_bytes());
        }
        reader.handle_data(&data)?;
    }
    Ok(reader.into_entries())
}

#[test]
fn discovery_returns_entries_of_one_generation() {
    assert_eq!(discover(&[(1, 0), (1, 0)]), Ok(vec![]));
    let entries = discover(&[(1, 40), (2, 17), (2, 17)]).unwrap();
    assert_eq!(entries.len(), 17);
    assert!(entries.iter().all(|entry| entry.port_id == 2 && entry.is_referral()));
    let restless: Vec<(u64, u64)> = (0..20).map(|generation| (generation, 1)).collect();
    assert_eq!(discover(&restless), Err(InfoError::Unstable));
    assert_eq!(discover(&[(1, u64::MAX)]), Err(InfoError::TooManyRecords(u64::MAX)));
    let mut reader = DiscoveryReader::new();
    assert_eq!(reader.handle_data(&[0; 1023]), Err(InfoError::TooShort));
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic_any_parser(
        data in proptest::collection::vec(any::<u8>(), 0..5000),
    ) {
        if let Ok(mut info) = NamespaceInfo::parse(1, &data) {
            prop_assert!(info.block_size.is_power_of_two() && info.block_size >= 512);
            prop_assert!(info.blocks.checked_mul(info.block_size.into()).is_some());
            info.add_descriptors(&data);
        }
        NamespaceInfo::default().add_descriptors(&data);
        let _ = parse_namespace_list(&data, 0);
        let _ = parse_changed_namespaces(&data);
        let _ = recognise(&data);
        let _ = identifying(DISCOVERY_NQN).handle_completion(&Cqe::success(0, 0), &data);
    }

    /// Structures of the right size with mostly zero bytes. Such structures often pass the checks.
    #[test]
    fn arbitrary_namespaces_give_valid_geometries(
        bytes in proptest::collection::vec((0usize..400, any::<u8>()), 0..40),
        lbads in 8u8..18,
    ) {
        let mut data = namespace().as_bytes().to_vec();
        data[130] = lbads;
        for (at, byte) in bytes {
            data[at] = byte;
        }
        if let Ok(info) = NamespaceInfo::parse(1, &data) {
            let bytes = info.blocks.checked_mul(info.block_size.into());
            prop_assert!(bytes.is_some_and(|bytes| i64::try_from(bytes).is_ok()));
            prop_assert!((512..=65536).contains(&info.block_size) && info.blocks > 0);
        }
    }

    /// The bring-up ends after a bounded number of steps, whatever the controller answers.
    #[test]
    fn arbitrary_answers_end_the_bring_up(
        answers in proptest::collection::vec((any::<u16>(), any::<u64>()), 1..40),
        mostly_good in any::<bool>(),
    ) {
        let mut bringup = bringup(SUBNQN);
        for (status, result) in answers {
            match bringup.step() {
                Step::Command(..) => {
                    let status = if mostly_good { 0 } else { status & 0x7fff };
                    let status = Status(status);
                    let cqe = Cqe::new(0, 0, status, result);
                    if bringup.handle_completion(&cqe, controller().as_bytes()).is_err() {
                        break;
                    }
                }
                Step::Authenticate => bringup.handle_authenticated(),
                Step::Wait(pause) => {
                    prop_assert!(pause <= Duration::from_millis(100));
                    bringup.handle_waited();
                }
                Step::Ready(info) => {
                    prop_assert!(info.queues <= 4);
                    break;
                }
            }
        }
    }

    #[test]
    fn arbitrary_pages_end_the_discovery(
        pages in proptest::collection::vec((0u64..4, 0u64..40, any::<u16>(), 0usize..20000), 1..30),
    ) {
        let mut reader = DiscoveryReader::new();
        for (generation, records, format, length) in pages {
            let DiscoveryStep::Read(log) = reader.step() else { break };
            prop_assert!(log.bytes <= 16 << 10);
            let mut data = vec![0xa5; length];
            let header = DiscoveryLogHeader {
                genctr: U64::new(generation),
                numrec: U64::new(records),
                recfmt: U16::new(format & 1),
                ..DiscoveryLogHeader::zeroed()
            };
            if log.offset == 0 && length >= 1024 {
                header.emit(&mut data);
            }
            if reader.handle_data(&data).is_err() {
                break;
            }
        }
    }

    #[test]
    fn every_refusal_has_a_message(status in 0u16..0x8000, result in any::<u64>()) {
        prop_assert!(!refused(Status(status), result).to_string().is_empty());
    }
}
