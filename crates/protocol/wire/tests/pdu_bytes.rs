//! Compares emitted PDUs with bytes that we computed by hand. The buffer is full of 0xa5, so a test
//! sees bytes that `emit` does not write. Each test also parses the bytes again.

use farblock_wire::fabrics::{
    ConnectCommand, ConnectData, DisconnectCommand, PropertyGetCommand, PropertySetCommand,
    PropertySize,
};
use farblock_wire::log::{self, DiscoveryLogEntry, DiscoveryLogHeader};
use farblock_wire::nqn::DISCOVERY_NQN;
use farblock_wire::nvm::{DsmRange, RwCommand};
use farblock_wire::opcode::NvmOpcode;
use farblock_wire::tcp::{
    CapsuleCmd, CapsuleResp, DataPdu, DigestFlags, FatalErrorStatus, IcReq, IcResp, LAST_PDU,
    PduShape, PduType, R2t, SUCCESS, TermReq,
};
use farblock_wire::{Cqe, SglDescriptor, Sqe, Status, U16};

/// Emits the value into a buffer full of 0xa5, compares the bytes with `$expected` and parses them
/// again.
macro_rules! check {
    ($value:expr, $ty:ident, $expected:expr) => {{
        let value: $ty = $value;
        let expected: &[u8] = &$expected;
        assert_eq!(expected.len(), $ty::LEN);
        let mut memory = vec![0xa5; $ty::LEN + 16];
        assert_eq!(value.emit(&mut memory), $ty::LEN);
        assert_eq!(&memory[..$ty::LEN], expected);
        assert!(
            memory[$ty::LEN..].iter().all(|byte| *byte == 0xa5),
            "bytes after the structure are unchanged"
        );
        assert_eq!($ty::parse(&memory), Some(value));
        assert_eq!($ty::parse(&memory[..$ty::LEN - 1]), None);
    }};
}

/// Returns `prefix`, then zeroes up to `len`.
fn padded(prefix: &[u8], len: usize) -> Vec<u8> {
    let mut bytes = prefix.to_vec();
    bytes.resize(len, 0);
    bytes
}

/// Returns `len` zeroes, with the pieces at their offsets.
fn pieces(len: usize, pieces: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (at, piece) in pieces {
        bytes[*at..at + piece.len()].copy_from_slice(piece);
    }
    bytes
}

#[test]
fn an_icreq_equals_the_bytes_that_linux_sends() {
    let linux = [0x00, 0x00, 0x80, 0x00, 0x80, 0x00, 0x00, 0x00];
    check!(IcReq::new(0, DigestFlags::NONE, 0), IcReq, padded(&linux, 128));
}

#[test]
fn an_icreq_with_all_options_has_the_specified_bytes() {
    let bytes = [0, 0, 0x80, 0, 0x80, 0, 0, 0, 0, 0, 31, 3, 0x0f, 0, 0, 0];
    check!(IcReq::new(31, DigestFlags::BOTH, 15), IcReq, padded(&bytes, 128));
}

#[test]
fn an_icresp_has_the_specified_bytes() {
    let bytes = [1, 0, 0x80, 0, 0x80, 0, 0, 0, 0, 0, 3, 1, 0x00, 0x00, 0x02, 0x00];
    check!(IcResp::new(3, DigestFlags::HEADER, 0x20000), IcResp, padded(&bytes, 128));
}

#[test]
fn a_termination_request_has_its_information_at_byte_10() {
    let bytes =
        [3, 0, 24, 0, 96, 0, 0, 0, 1, 0, 0x78, 0x56, 0x34, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let term = TermReq::new(
        PduType::C2H_TERM_REQ,
        FatalErrorStatus::INVALID_PDU_HEADER_FIELD,
        0x1234_5678,
        72,
    );
    check!(term, TermReq, bytes);
    assert_eq!(term.fei_u32(), 0x1234_5678);
    assert_eq!(term.status(), FatalErrorStatus::INVALID_PDU_HEADER_FIELD);
}

fn write_sqe() -> Sqe {
    RwCommand::new(0x1122_3344_5566_7788, 8).unwrap().to_sqe(
        NvmOpcode::WRITE,
        0xbeef,
        1,
        SglDescriptor::in_capsule(0, 4096),
    )
}

#[rustfmt::skip]
const WRITE_SQE: [u8; 64] = [
    0x01, 0x40, 0xef, 0xbe, 0x01, 0x00, 0x00, 0x00, // opcode, flags, CID, NSID
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // CDW2, CDW3
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // MPTR
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // SGL address
    0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, // SGL length, identifier
    0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, // SLBA
    0x07, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // NLB, CDW13
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // CDW14, CDW15
];

#[test]
fn an_sqe_has_the_specified_bytes() {
    check!(write_sqe(), Sqe, WRITE_SQE);
    let read = SglDescriptor::transport(0x2_0000);
    check!(read, SglDescriptor, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0x5a]);
}

#[test]
fn a_command_capsule_with_data_has_the_specified_bytes() {
    // A header of 72 bytes, directly followed by data: 72 + 4096 = 0x1048.
    let mut bytes = vec![4, 0, 72, 72, 0x48, 0x10, 0, 0];
    bytes.extend(WRITE_SQE);
    check!(CapsuleCmd::new(write_sqe(), 4096, DigestFlags::NONE, 0).unwrap(), CapsuleCmd, bytes);
    // Both digests and 128-byte alignment: 72 + 4 pads to 128; 128 + 4096 + 4 = 0x1084.
    bytes[..8].copy_from_slice(&[4, 3, 72, 128, 0x84, 0x10, 0, 0]);
    check!(CapsuleCmd::new(write_sqe(), 4096, DigestFlags::BOTH, 31).unwrap(), CapsuleCmd, bytes);
    // Without data, the PDU has no data digest: 72 + 4.
    bytes[..8].copy_from_slice(&[4, 1, 72, 0, 76, 0, 0, 0]);
    check!(CapsuleCmd::new(write_sqe(), 0, DigestFlags::BOTH, 31).unwrap(), CapsuleCmd, bytes);
}

#[rustfmt::skip]
const CQE: [u8; 16] = [
    0x44, 0x33, 0x22, 0x11, 0x88, 0x77, 0x66, 0x55, // DW0, DW1
    0x05, 0x00, 0x00, 0x00, 0xef, 0xbe, 0x04, 0x80, // SQHD, SQID, CID, status 4002h << 1
];

#[test]
fn a_cqe_has_the_specified_bytes() {
    let status = Status::INVALID_FIELD.with_dnr();
    let cqe = Cqe::new(0xbeef, 5, status, 0x5566_7788_1122_3344);
    check!(cqe, Cqe, CQE);
    assert_eq!(cqe.status(), status);
    assert_eq!(cqe.result(), 0x5566_7788_1122_3344);
    // `status` ignores a phase tag from a peer.
    let phased = Cqe { status: U16::new(cqe.status.get() | 1), ..cqe };
    assert_eq!(phased.status(), status);
}

#[test]
fn a_response_capsule_has_the_specified_bytes() {
    let cqe = Cqe::parse(&CQE).unwrap();
    let mut bytes = vec![5, 0, 24, 0, 24, 0, 0, 0];
    bytes.extend(CQE);
    check!(CapsuleResp::new(cqe, DigestFlags::DATA), CapsuleResp, bytes);
    bytes[..8].copy_from_slice(&[5, 1, 24, 0, 28, 0, 0, 0]);
    check!(CapsuleResp::new(cqe, DigestFlags::HEADER), CapsuleResp, bytes);
}

#[test]
fn data_pdus_have_the_specified_bytes() {
    #[rustfmt::skip]
    let h2c = [
        6, 4, 24, 24, 0x18, 0x02, 0, 0, // type, LAST, HLEN, PDO, PLEN 24 + 512
        0x34, 0x12, 0x78, 0x56, 0x00, 0x10, 0x00, 0x00, // CCCID, TTAG, DATAO
        0x00, 0x02, 0x00, 0x00, 0, 0, 0, 0, // DATAL, reserved
    ];
    let shape = PduShape::new(24, 512, DigestFlags::NONE, 0).unwrap();
    check!(DataPdu::h2c(0x1234, 0x5678, 4096, shape, true), DataPdu, h2c);

    #[rustfmt::skip]
    let c2h = [
        7, 0x0e, 24, 24, 0x1c, 0x02, 0, 0, // type, DDGST|LAST|SUCCESS, HLEN, PDO, PLEN 24 + 512 + 4
        0x34, 0x12, 0, 0, 0x00, 0x10, 0x00, 0x00, // CCCID, reserved, DATAO
        0x00, 0x02, 0x00, 0x00, 0, 0, 0, 0, // DATAL, reserved
    ];
    let shape = PduShape::new(24, 512, DigestFlags::DATA, 0).unwrap();
    check!(DataPdu::c2h(0x1234, 4096, shape, LAST_PDU | SUCCESS), DataPdu, c2h);
}

#[test]
fn an_r2t_has_the_specified_bytes() {
    #[rustfmt::skip]
    let bytes = [
        9, 1, 24, 0, 28, 0, 0, 0, // type, HDGST, HLEN, PDO, PLEN
        0x34, 0x12, 0x78, 0x56, 0x00, 0x10, 0x00, 0x00, // CCCID, TTAG, R2TO
        0x00, 0x00, 0x02, 0x00, 0, 0, 0, 0, // R2TL, reserved
    ];
    check!(R2t::new(0x1234, 0x5678, 4096, 0x20000, DigestFlags::BOTH), R2t, bytes);
}

#[test]
fn pdu_shapes_include_digests_and_padding() {
    let shape = |data, digests, pda_z| PduShape::new(24, data, digests, pda_z);
    assert_eq!(shape(1, DigestFlags::BOTH, 0).unwrap().plen, 24 + 4 + 1 + 4);
    let padded = shape(8, DigestFlags::HEADER, 7).unwrap();
    assert_eq!((padded.pdo, padded.pad_bytes(), padded.plen), (32, 4, 40));
    assert_eq!(shape(0, DigestFlags::BOTH, 31).unwrap().pad_bytes(), 0);
    assert_eq!(shape(1, DigestFlags::NONE, 32), None);
    assert_eq!(shape(u32::MAX - 23, DigestFlags::NONE, 0), None);
    assert_eq!(shape(u32::MAX - 24, DigestFlags::NONE, 0).unwrap().plen, u32::MAX);
    // A data offset of 256 does not fit PDO.
    assert_eq!(PduShape::new(128, 1, DigestFlags::HEADER, 31).map(|shape| shape.pdo), None);
}

#[test]
fn a_connect_command_has_the_specified_bytes() {
    let bytes = pieces(
        64,
        &[
            (0, &[0x7f, 0x40, 0x07, 0x00, 0x01]),
            (32, &[0x00, 0x04, 0x00, 0x00, 0, 0, 0, 0x01]),
            (42, &[0x02, 0x00, 0x7f, 0x00]),
            (48, &[0xc0, 0xd4, 0x01, 0x00]),
        ],
    );
    let connect = ConnectCommand::new(7, 2, 127, 120_000);
    check!(connect, ConnectCommand, bytes);
    assert_eq!(connect.to_sqe().fctype(), 1);
    assert_eq!(ConnectCommand::from_sqe(&connect.to_sqe()), connect);
}

#[test]
fn connect_data_have_the_specified_bytes() {
    let hostid: [u8; 16] = core::array::from_fn(|index| index as u8);
    let bytes = pieces(
        1024,
        &[
            (0, &hostid),
            (16, &[0xff, 0xff]),
            (256, b"nqn.2014-08.org.nvmexpress.discovery"),
            (512, b"nqn.2026-01.io.farblock:h"),
        ],
    );
    let data = ConnectData::new(hostid, 0xffff, DISCOVERY_NQN, "nqn.2026-01.io.farblock:h");
    check!(data, ConnectData, bytes);
    assert_eq!(data.subsystem_nqn(), Ok(DISCOVERY_NQN));
    assert_eq!(data.host_nqn(), Ok("nqn.2026-01.io.farblock:h"));
}

#[test]
fn property_and_disconnect_commands_have_the_specified_bytes() {
    check!(
        PropertyGetCommand::new(1, 0, PropertySize::Eight),
        PropertyGetCommand,
        pieces(64, &[(0, &[0x7f, 0x40, 1, 0, 4]), (40, &[1])])
    );
    check!(
        PropertySetCommand::new(2, 0x14, PropertySize::Four, 0x0046_0001),
        PropertySetCommand,
        pieces(64, &[(0, &[0x7f, 0x40, 2]), (44, &[0x14]), (48, &[0x01, 0x00, 0x46])])
    );
    check!(
        DisconnectCommand::new(3),
        DisconnectCommand,
        pieces(64, &[(0, &[0x7f, 0x40, 3, 0, 8])])
    );
}

#[test]
fn a_discovery_log_has_the_specified_bytes() {
    let mut header = DiscoveryLogHeader::zeroed();
    header.genctr.set(0x0102);
    header.numrec.set(1);
    check!(header, DiscoveryLogHeader, pieces(1024, &[(0, &[2, 1]), (8, &[1])]));

    let mut service = [b' '; 32];
    service[..4].copy_from_slice(b"4420");
    let mut address = [b' '; 256];
    address[..9].copy_from_slice(b"127.0.0.1");
    let bytes = pieces(
        1024,
        &[
            (0, &[3, 1, 2, 4, 1, 0, 0xff, 0xff, 32, 0, 2, 0]),
            (32, &service),
            (256, b"nqn.2026-01.io.farblock:disk"),
            (512, &address),
        ],
    );
    let mut entry = DiscoveryLogEntry::zeroed();
    entry.trtype = log::TransportType::TCP.0;
    entry.adrfam = log::AddressFamily::IPV4.0;
    entry.subtype = log::SubsystemType::NVM.0;
    entry.treq = DiscoveryLogEntry::TREQ_DISABLE_SQ_FLOW;
    entry.portid.set(1);
    entry.cntlid.set(0xffff);
    entry.asqsz.set(32);
    entry.eflags.set(DiscoveryLogEntry::EFLAGS_PERSISTENT);
    entry.trsvcid = log::text_field("4420");
    entry.subnqn = farblock_wire::nqn::nqn_field("nqn.2026-01.io.farblock:disk");
    entry.traddr = log::text_field("127.0.0.1");
    check!(entry, DiscoveryLogEntry, bytes);
    assert_eq!(entry.address(), Some("127.0.0.1"));
    assert_eq!(entry.service(), Some("4420"));
}

#[test]
fn address_texts_may_be_padded_with_blanks_or_nul() {
    assert_eq!(log::parse_text(b"4420    "), Some("4420"));
    assert_eq!(log::parse_text(b"4420\0\0\0\xff"), Some("4420"));
    assert_eq!(log::parse_text(b"44\n0\0\0\0\0"), None);
    assert_eq!(log::parse_text(b"\xff\xfe"), None);
    assert_eq!(log::parse_text(b""), Some(""));
}

#[test]
fn a_deallocate_range_has_the_specified_bytes() {
    check!(
        DsmRange::new(0x1122_3344_5566_7788, 256),
        DsmRange,
        [0, 0, 0, 0, 0, 1, 0, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]
    );
}
