//! Tests codes, bit fields and command parameters.

use farblock_wire::event::AsyncEvent;
use farblock_wire::fabrics::{ConnectInvalidParameter, ConnectResult, PropertySize};
use farblock_wire::features::{
    AsyncEventConfig, FeatureGet, FeatureId, FeatureSelect, FeatureSet, NumberOfQueues, Timestamp,
};
use farblock_wire::identify::{
    Cns, ControllerList, IdentifyController, IdentifyNamespace, IdentifyParameters, LbaFormat,
    NamespaceIdDescriptor, NamespaceIdType, NamespaceList, ascii_field, parse_ascii,
};
use farblock_wire::log::{CommandEffects, LogPageId, LogPageParameters};
use farblock_wire::nvm::{DsmCommand, DsmRange, RwCommand, RwControl};
use farblock_wire::opcode::{AdminOpcode, DataDirection, FabricsCommandType, NvmOpcode};
use farblock_wire::property::{Cap, Cc, Csts, Version};
use farblock_wire::reset::CrossControllerReset;
use farblock_wire::sgl::{KeyedBlock, SglSubtype, SglType};
use farblock_wire::status::StatusType;
use farblock_wire::tcp::{DigestFlags, FatalErrorStatus, PduType};
use farblock_wire::{SglDescriptor, Sqe, Status};

#[test]
fn statuses_print_the_name_of_the_specification() {
    assert_eq!(Status::SUCCESS.to_string(), "Successful Completion");
    assert_eq!(Status::INVALID_FIELD.with_dnr().to_string(), "Invalid Field in Command");
    assert_eq!(
        format!("{:#}", Status::INVALID_FIELD.with_dnr()),
        "Invalid Field in Command (0x002, do not retry)"
    );
    assert_eq!(
        format!("{:#}", Status::WRITE_FAULT.with_more()),
        "Write Fault (0x280, more in error log)"
    );
    assert_eq!(Status(0x1ff).to_string(), "unknown command specific status (0x1ff)");
    assert_eq!(Status(0x7c1).to_string(), "vendor specific status (0x7c1)");
    assert_eq!(format!("{:?}", Status::ABORTED_BY_HOST), "Status(Command Aborted By Host (0x371))");
    // The name of a status code depends on the command.
    let status = Status::CONNECT_INVALID_PARAMETERS;
    assert_eq!(status.connect_name(), Some("Connect Invalid Parameters"));
    assert_eq!(status.to_string(), "Attempted Write to Read Only Range");
    assert_eq!(Status::INVALID_FIELD.connect_name(), Status::INVALID_FIELD.name());
}

#[test]
fn status_bits_are_set_and_read() {
    let status = Status::new(3, 0x03).with_dnr().with_retry_delay(2);
    assert_eq!(status.0, 0x5303);
    assert_eq!(status.code(), Status::ANA_TRANSITION.code());
    assert_eq!(status.status_type(), StatusType::Path);
    assert_eq!((status.retry_delay(), status.is_dnr(), status.has_more()), (2, true, false));
    assert!(!status.is_success() && Status::SUCCESS.with_more().is_success());
    assert_eq!(Status::AUTHENTICATION_REQUIRED.0, 0x191);
    // Every 15-bit value can be printed.
    for value in 0..0x8000 {
        assert!(!Status(value).to_string().is_empty());
    }
}

#[test]
fn unknown_codes_are_printed_as_numbers() {
    assert_eq!(PduType::R2T.to_string(), "R2T");
    assert_eq!(format!("{:#}", PduType::R2T), "R2T (0x09)");
    assert_eq!(PduType(0x08).to_string(), "unknown PDU type 0x08");
    assert_eq!(format!("{:?}", AdminOpcode(0xfe)), "AdminOpcode(0xfe)");
    assert_eq!(format!("{:?}", Cns::CONTROLLER), "Cns(0x01 Identify Controller)");
    assert_eq!(FatalErrorStatus::HEADER_DIGEST_ERROR.to_string(), "header digest error");
    for byte in 0..=u8::MAX {
        let pdu_type = PduType(byte);
        let known = pdu_type.is_from_host() || pdu_type.is_from_controller();
        assert_eq!(known, pdu_type.header_len().is_some());
    }
}

#[test]
fn digest_flags_intersect_and_show_reserved_bits() {
    let both = DigestFlags::new(true, true);
    assert_eq!(both, DigestFlags::BOTH);
    assert_eq!(both.intersection(DigestFlags::DATA), DigestFlags::DATA);
    assert!(DigestFlags(4).has_reserved() && !both.has_reserved());
}

#[test]
fn opcodes_give_the_data_direction() {
    assert_eq!(DataDirection::of(NvmOpcode::READ.0), DataDirection::ControllerToHost);
    assert_eq!(DataDirection::of(NvmOpcode::WRITE.0), DataDirection::HostToController);
    assert_eq!(DataDirection::of(NvmOpcode::WRITE_ZEROES.0), DataDirection::None);
    let connect = Sqe::new(0x7f, 0, u32::from(FabricsCommandType::CONNECT.0));
    assert_eq!(DataDirection::of_command(&connect), DataDirection::HostToController);
}

#[test]
fn sgl_identifiers_give_type_and_subtype() {
    let in_capsule = SglDescriptor::in_capsule(0, 1);
    assert_eq!(in_capsule.descriptor_type(), SglType::DATA_BLOCK);
    assert_eq!(in_capsule.sub_type(), SglSubtype::OFFSET);
    assert!(in_capsule.is_in_capsule());
    let keyed =
        KeyedBlock { address: 1 << 40, length_bytes: 8192, key: 0x8765_4321, invalidate: true };
    let descriptor = SglDescriptor::keyed(keyed);
    assert_eq!(descriptor.descriptor_type(), SglType::KEYED_DATA_BLOCK);
    assert_eq!(descriptor.sub_type(), SglSubtype(0xf));
    let bytes = [0, 0, 0, 0, 0, 1, 0, 0, 0, 0x20, 0, 0x21, 0x43, 0x65, 0x87, 0x4f];
    assert_eq!(farblock_wire::IntoBytes::as_bytes(&descriptor), bytes);
    assert_eq!(descriptor.keyed_block(), Some(keyed));
    assert_eq!(SglDescriptor::keyed(KeyedBlock { invalidate: false, ..keyed }).id, 0x40);
    assert_eq!(SglDescriptor::transport(8192).keyed_block(), None);

    let transport = SglDescriptor::transport(1);
    assert_eq!(transport.descriptor_type(), SglType::TRANSPORT_DATA_BLOCK);
    assert_eq!(transport.sub_type(), SglSubtype::TRANSPORT);
    assert!(transport.is_transport());
}

#[test]
fn property_fields_are_set_and_read() {
    // CAP as a Linux target reports it, computed by hand: MQES 127, CQR, TO 15 s, NVM command set.
    let cap = Cap(0).with_mqes_z(127).with_cqr(true).with_to(30).with_css(Cap::CSS_NVM);
    assert_eq!(cap.0, 0x0000_0020_1e01_007f);
    assert_eq!((cap.mqes_z(), cap.to(), cap.css(), cap.mpsmin()), (127, 30, 1, 0));
    assert_eq!(Cap(u64::MAX).with_mpsmax(0).0, 0xff0f_ffff_ffff_ffff);

    let cc = Cc(0x0046_0001);
    assert!(cc.en());
    assert_eq!((cc.iosqes(), cc.iocqes()), (Cc::IOSQES_64, Cc::IOCQES_16));
    assert_eq!(cc.with_shn(Cc::SHN_NORMAL).0, 0x0046_4001);

    assert_eq!(Csts(0).with_rdy(true).with_shst(Csts::SHST_COMPLETE).0, 0b1001);
    assert_eq!(Version::V2_0.0, 0x0002_0000);
    assert_eq!(Version(0x0001_0301).to_string(), "1.3.1");
}

#[test]
#[should_panic(expected = "does not fit")]
fn an_overflowing_bit_field_panics() {
    let _ = Cap(0).with_dstrd(16);
}

#[test]
fn connect_results_round_trip() {
    let result = ConnectResult { cntlid: 5, authreq: ConnectResult::AUTHREQ_ATR };
    assert_eq!(result.emit(), 0x2_0005);
    assert_eq!(ConnectResult::parse(0xffff_ffff_0002_0005), result);
    let invalid = ConnectInvalidParameter::in_data(256);
    assert_eq!(invalid.emit(), 0x1_0100);
    assert_eq!(ConnectInvalidParameter::parse(0x1_0100), invalid);
    assert_eq!(PropertySize::parse(2), None);
    assert_eq!(PropertySize::parse(1), Some(PropertySize::Eight));
}

#[test]
fn identify_parameters_round_trip() {
    let mut sqe = Sqe::new(AdminOpcode::IDENTIFY.0, 1, 0);
    let parameters = IdentifyParameters { cntid: 0x1234, ..IdentifyParameters::new(Cns::UUIDS) };
    parameters.emit(&mut sqe);
    assert_eq!(sqe.cdw10.get(), 0x1234_0017);
    assert_eq!(IdentifyParameters::parse(&sqe), parameters);
}

#[test]
fn identify_texts_and_limits_are_converted() {
    assert_eq!(&ascii_field::<6>("ab\u{e9}\n"), b"ab??  ");
    assert_eq!(&ascii_field::<2>("abc"), b"ab");
    assert_eq!(parse_ascii(b"ab c  "), "ab c");
    assert_eq!(parse_ascii(b"ab\xff"), "ab");

    let mut controller = IdentifyController::zeroed();
    assert_eq!(controller.max_transfer_bytes(4096), None);
    assert_eq!(controller.in_capsule_data_bytes(), 0);
    controller.mdts = 8;
    controller.ioccsz.set((64 + 8192) / 16);
    assert_eq!(controller.max_transfer_bytes(4096), Some(1 << 20));
    assert_eq!(controller.in_capsule_data_bytes(), 8192);
    controller.mdts = 255;
    assert_eq!(controller.max_transfer_bytes(4096), None);

    let mut namespace = IdentifyNamespace::zeroed();
    assert_eq!(namespace.format().block_bytes(), None);
    namespace.flbas = 0b0110_0001;
    namespace.lbaf[1].lbads = 12;
    assert_eq!(namespace.format().block_bytes(), Some(4096));
    namespace.nlbaf_z = 63;
    assert_eq!(namespace.format_index(), 49);
    namespace.flbas = 255;
    namespace.nulbaf = 255;
    namespace.nlbaf_z = 255;
    assert_eq!(namespace.format_index(), 63);
    assert_eq!(LbaFormat { lbads: 255, ..LbaFormat::zeroed() }.block_bytes(), None);
}

#[test]
fn identify_lists_are_bounded_by_their_size() {
    let controllers = ControllerList::from_ids(1..=3000);
    assert_eq!(controllers.iter().count(), 2047);
    let hostile = ControllerList { count: u16::MAX.into(), ..ControllerList::zeroed() };
    assert_eq!(hostile.iter().count(), 2047);
    let namespaces = NamespaceList::from_nsids([1, 2, 7]);
    assert_eq!(namespaces.iter().collect::<Vec<_>>(), [1, 2, 7]);
}

#[test]
fn namespace_identification_descriptors_round_trip() {
    let mut list = vec![0xa5; 64];
    list[24..].fill(0);
    let at = NamespaceIdDescriptor::append(&mut list, 0, NamespaceIdType::UUID, &[9; 16]);
    let at = NamespaceIdDescriptor::append(&mut list, at, NamespaceIdType::COMMAND_SET, &[0]);
    assert_eq!(at, 25);
    assert_eq!(list[..5], [3, 16, 0, 0, 9]);
    assert_eq!(list[20..26], [4, 1, 0, 0, 0, 0]);
    let parsed: Vec<_> = NamespaceIdDescriptor::iter(&list).collect();
    let expected: [(NamespaceIdType, &[u8]); 2] =
        [(NamespaceIdType::UUID, &[9; 16]), (NamespaceIdType::COMMAND_SET, &[0])];
    assert_eq!(parsed, expected);
    // The descriptor's length exceeds the list.
    assert_eq!(NamespaceIdDescriptor::iter(&[3, 16, 0, 0, 1]).count(), 0);
}

#[test]
fn log_page_parameters_round_trip() {
    let mut sqe = Sqe::new(AdminOpcode::GET_LOG_PAGE.0, 1, 0);
    let parameters = LogPageParameters {
        rae: true,
        lsp: 0x7f,
        ..LogPageParameters::new(LogPageId::DISCOVERY, 0x1_0000_0400, 0x8_0000)
    };
    parameters.emit(&mut sqe);
    assert_eq!(sqe.cdw10.get(), 0xffff_ff70);
    assert_eq!(sqe.cdw11.get(), 1);
    assert_eq!((sqe.cdw12.get(), sqe.cdw13.get()), (0x400, 1));
    assert_eq!(LogPageParameters::parse(&sqe), parameters);
    assert_eq!(parameters.length_bytes(), 0x8_0000);
    sqe.cdw10.set(u32::MAX);
    sqe.cdw11.set(u32::MAX);
    assert_eq!(LogPageParameters::parse(&sqe).length_bytes(), 1 << 34);
    assert_eq!(
        CommandEffects::SUPPORTED_WRITES,
        CommandEffects(0).with_csupp(true).with_lbcc(true)
    );
}

#[test]
fn feature_commands_round_trip() {
    let mut sqe = Sqe::new(AdminOpcode::SET_FEATURES.0, 1, 0);
    let queues = NumberOfQueues::pairs(8);
    assert_eq!(queues.0, 0x0007_0007);
    assert_eq!(NumberOfQueues(0xffff_0003).pair_count(), 4);
    let set = FeatureSet { fid: FeatureId::NUMBER_OF_QUEUES, save: true, cdw11: queues.0 };
    set.emit(&mut sqe);
    assert_eq!(sqe.cdw10.get(), 0x8000_0007);
    assert_eq!(FeatureSet::parse(&sqe), set);
    let fid = FeatureId::KEEP_ALIVE_TIMER;
    let read = FeatureGet { fid, select: FeatureSelect::SUPPORTED, cdw11: 0 };
    read.emit(&mut sqe);
    assert_eq!(sqe.cdw10.get(), 0x30f);
    assert_eq!(FeatureGet::parse(&sqe), read);
    assert_eq!(AsyncEventConfig(0).with_discovery_log(true).0, 0x8000_0000);
    assert_eq!(Timestamp::new(0x0102_0304_0506, 0).unix_ms(), 0x0102_0304_0506);
}

#[test]
fn nvm_command_parameters_round_trip() {
    assert_eq!(RwCommand::new(0, 0), None);
    assert_eq!(RwCommand::new(0, 65537), None);
    let mut command = RwCommand::new(10, 65536).unwrap();
    assert_eq!((command.block_count(), command.end_lba()), (65536, Some(65546)));
    command.control = command.control.with_fua(true);
    assert_eq!(command.control, RwControl(0x4000_ffff));
    assert_eq!(RwControl(0).with_deac(true).0, 1 << 25);
    let sqe = command.to_sqe(NvmOpcode::WRITE, 1, 1, SglDescriptor::NONE);
    assert_eq!(RwCommand::parse(&sqe), command);
    assert_eq!(RwCommand { slba: u64::MAX, ..command }.end_lba(), None);

    let mut sqe = Sqe::new(NvmOpcode::DATASET_MANAGEMENT.0, 1, 1);
    sqe.cdw10.set(0xff);
    sqe.cdw11.set(4);
    let dsm = DsmCommand::parse(&sqe);
    assert!(dsm.attributes.ad() && !dsm.attributes.idr());
    assert_eq!((dsm.range_count(), dsm.data_bytes()), (256, 4096));
    assert_eq!(DsmRange::new(u64::MAX, 1).end_lba(), None);
}

#[test]
fn async_events_round_trip() {
    assert_eq!(AsyncEvent::NAMESPACE_CHANGED.emit(), 0x0004_0002);
    assert_eq!(AsyncEvent::ANA_CHANGE.emit(), 0x000c_0302);
    assert_eq!(AsyncEvent::DISCOVERY_CHANGED.emit(), 0x0070_f002);
    assert_eq!(AsyncEvent::parse(0x0070_f002), AsyncEvent::DISCOVERY_CHANGED);
}

#[test]
fn cross_controller_reset_commands_round_trip() {
    let reset = CrossControllerReset { icid: 0x1234, ciu: 0x56, cirn: 0x0123_4567_89ab_cdef };
    let sqe = reset.emit();
    assert_eq!((sqe.opcode, sqe.flags), (0x38, 0x40));
    assert_eq!(sqe.cdw10.get(), 0x0056_1234);
    assert_eq!((sqe.cdw12.get(), sqe.cdw13.get()), (0x89ab_cdef, 0x0123_4567));
    assert_eq!(CrossControllerReset::parse(&sqe), reset);
}
