//! Tests of Identify and log pages at the byte offsets of the specification, and of features.

mod controller_fixture;

use controller_fixture::*;
use farblock_proto::capsule::RemoteForm;
use farblock_proto::controller::{
    AddressFamily, AdminOutcome, ErrorRecord, Listener, PortId, Referral, Registry, SmartCounters,
    limits,
};
use farblock_proto::ids::{CommandId, Lba, NamespaceId, QueueId};
use farblock_wire::log::TransportType;
use farblock_wire::nqn::DISCOVERY_NQN;
use farblock_wire::opcode::AdminOpcode;
use farblock_wire::property::Cc;
use farblock_wire::sgl::{KeyedBlock, SglDescriptor};
use farblock_wire::sqe::Sqe;
use farblock_wire::status::Status;

fn u16_at(page: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(page[at..at + 2].try_into().unwrap())
}

fn u32_at(page: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(page[at..at + 4].try_into().unwrap())
}

fn u64_at(page: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(page[at..at + 8].try_into().unwrap())
}

/// Returns a text field without its padding.
fn text(page: &[u8], at: usize, bytes: usize) -> String {
    let field = String::from_utf8(page[at..at + bytes].to_vec()).unwrap();
    field.trim_end_matches(['\0', ' ']).to_string()
}

/// Returns the little-endian numbers of a list, up to the first zero.
fn list(page: &[u8]) -> Vec<u32> {
    let ids = page.chunks_exact(4).map(|id| u32::from_le_bytes(id.try_into().unwrap()));
    ids.take_while(|&id| id != 0).collect()
}

fn identify_sqe(cns: u32, nsid: u32) -> Sqe {
    let mut sqe = command(AdminOpcode::IDENTIFY, nsid);
    sqe.cdw10 = cns.into();
    sqe
}

fn identify(host: &Host, registry: &mut Registry, cns: u32, nsid: u32) -> Result<Vec<u8>, Status> {
    host.fetch(registry, identify_sqe(cns, nsid), 4096)
}

fn ready() -> (Registry, Host) {
    let (mut registry, _) = registry();
    let host = Host::ready(&mut registry);
    (registry, host)
}

#[test]
fn identify_controller_has_the_specified_fields() {
    let (mut registry, host) = ready();
    let page = identify(&host, &mut registry, 0x01, 0).unwrap();
    assert_eq!((u16_at(&page, 0), u16_at(&page, 2)), (0, 0), "VID, SSVID");
    assert_eq!(&page[4..24], b"SERIAL0001          ");
    assert_eq!(&page[24..64], b"farblock                                ");
    assert_eq!(text(&page, 64, 8), env!("CARGO_PKG_VERSION"));
    assert_eq!(page[76], 0b1011, "CMIC: several ports and controllers, ANA");
    assert_eq!(page[77], 8, "MDTS: 2^8 pages are 1 MiB");
    assert_eq!(u16_at(&page, 78), host.id.0, "CNTLID");
    assert_eq!(u32_at(&page, 80), 0x0002_0000, "VER");
    assert_eq!(u32_at(&page, 92), 1 << 8 | 1 << 11, "OAES: namespace attributes, ANA changes");
    assert_eq!(u32_at(&page, 96), 1 | 1 << 6, "CTRATT: 128-bit host identifier, TBKAS");
    assert_eq!(page[111], 1, "CNTRLTYPE: I/O");
    assert_eq!(u16_at(&page, 256), 0, "OACS");
    assert_eq!((page[258], page[259]), (3, 3), "ACL, AERL");
    assert_eq!(page[260], 0b11, "FRMW: one read-only slot");
    assert_eq!(page[261] & 0b111, 0b110, "LPA: effects, extended data");
    assert_eq!((page[262], page[263]), (63, 0), "ELPE, NPSS");
    assert_eq!(u16_at(&page, 320), 10, "KAS");
    assert_eq!((page[512], page[513]), (0x66, 0x44), "SQES, CQES");
    assert_eq!(u16_at(&page, 514), 128, "MAXCMD");
    assert_eq!(u32_at(&page, 516), 10_240, "NN");
    let oncs = 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8;
    assert_eq!(u16_at(&page, 520), oncs, "ONCS");
    assert_eq!((u16_at(&page, 522), u16_at(&page, 532)), (1, 0), "FUSES, ACWU: one block");
    assert_eq!(page[525], 0b111, "VWC");
    assert_eq!(u16_at(&page, 534), 1 | 1 << 2, "OCFS");
    assert_eq!(u32_at(&page, 536), 1 | 1 << 20 | 1 << 21, "SGLS");
    assert_eq!(u32_at(&page, 540), 10_240, "MNAN");
    assert_eq!(text(&page, 768, 256), SUBSYSTEM_NQN);
    assert_eq!(page[768 + SUBSYSTEM_NQN.len()], 0);
    assert_eq!(u32_at(&page, 1792), (64 + 65536) / 16, "IOCCSZ");
    assert_eq!(u32_at(&page, 1796), 1, "IORCSZ");
    assert_eq!(u16_at(&page, 1800), 0, "ICDOFF");
    assert_eq!((page[1802], page[1803]), (0, 1), "FCATT: dynamic, MSDBD");
    assert_eq!(u16_at(&page, 1804), 1, "OFCS: Disconnect");
}

#[test]
fn a_transport_with_keyed_descriptors_accepts_only_those() {
    let (mut registry, _) = registry();
    let connect = Connect { remote: RemoteForm::Keyed, ..Connect::admin(SUBSYSTEM_NQN) };
    let host = Host::of(&connect.send(&mut registry, at(0)).unwrap());
    host.write_cc(&mut registry, enabling(), at(0));
    assert_eq!(identify(&host, &mut registry, 1, 0), refused(Status::SGL_TYPE_INVALID));
    let block = KeyedBlock { address: 0, length_bytes: 4096, key: 1, invalidate: false };
    let sqe = Sqe { dptr: SglDescriptor::keyed(block), ..identify_sqe(1, 0) };
    let AdminOutcome::Push { bytes, .. } = host.admin(&mut registry, &sqe, at(0)) else {
        panic!("no data")
    };
    assert_eq!(u32_at(&bytes, 536), 1 | 1 << 2 | 1 << 20, "SGLS");
}

#[test]
fn mdts_follows_the_smallest_namespace_limit() {
    let (mut registry, host) = ready();
    let subsystem = registry.find_subsystem(SUBSYSTEM_NQN).unwrap();
    let info = *registry.namespaces(subsystem).unwrap().find(NamespaceId(7)).unwrap();
    for (max_blocks, mdts) in [(100, 6), (64, 6), (1, 0), (100_000, 8)] {
        let info = farblock_proto::controller::NamespaceInfo { max_blocks, ..info };
        registry.replace_namespace(subsystem, NamespaceId(7), info).unwrap();
        let page = identify(&host, &mut registry, 0x01, 0).unwrap();
        // MDTS cannot express one page: a value of 0 means no limit. The smallest limit is two
        // pages.
        assert_eq!(page[77], if mdts == 0 { 1 } else { mdts }, "{max_blocks}");
    }
}

#[test]
fn identify_namespace_has_the_specified_fields() {
    let (mut registry, host) = ready();
    let page = identify(&host, &mut registry, 0x00, 1).unwrap();
    for at in [0, 8, 16] {
        assert_eq!(u64_at(&page, at), 20_000, "NSZE, NCAP, NUSE");
    }
    assert_eq!(page[24], 1 << 4, "NSFEAT: OPTPERF");
    assert_eq!((page[25], page[26]), (0, 0), "NLBAF, FLBAS");
    assert_eq!(page[30], 1, "NMIC: shared");
    assert_eq!(page[33], 0b1001, "DLFEAT: reads zeroes, DEAC");
    assert_eq!(u16_at(&page, 46), 256, "NOIOB");
    for at in [64, 66, 68, 70, 72] {
        assert_eq!(u16_at(&page, at), 7, "NPWG, NPWA, NPDG, NPDA, NOWS");
    }
    assert_eq!(
        (u16_at(&page, 74), u32_at(&page, 76), page[80]),
        (65535, 1 << 18, 127),
        "MSSRL, MCL, MSRC"
    );
    assert_eq!(u32_at(&page, 92), 1, "ANAGRPID");
    assert_eq!(page[99], 0, "NSATTR");
    assert_eq!(page[104..120], [0x22; 16], "NGUID");
    assert_eq!(page[120..128], [0x33; 8], "EUI64");
    assert_eq!(u32_at(&page, 128), 9 << 16, "LBAF0");

    let page = identify(&host, &mut registry, 0x00, 2).unwrap();
    assert_eq!(page[24], 0, "NSFEAT: no hints");
    assert_eq!(page[33], 0, "DLFEAT");
    assert_eq!(page[99], 1, "NSATTR: write protected");
    assert_eq!(u32_at(&page, 128), 12 << 16, "LBAF0");

    for nsid in [3, limits::MAX_NAMESPACE_ID] {
        let page = identify(&host, &mut registry, 0x00, nsid).unwrap();
        assert!(page.iter().all(|&byte| byte == 0), "an inactive namespace is all zero");
    }
    for nsid in [0, limits::MAX_NAMESPACE_ID + 1, 0xffff_fffe, 0xffff_ffff] {
        let page = identify(&host, &mut registry, 0x00, nsid);
        assert_eq!(page, refused(Status::INVALID_NAMESPACE), "{nsid}");
    }
}

#[test]
fn namespace_lists_start_after_the_given_number() {
    let (mut registry, host) = ready();
    for cns in [0x02, 0x07, 0x10, 0x1a] {
        for (nsid, expected) in [(0, &[1, 2, 7][..]), (1, &[2, 7]), (6, &[7]), (7, &[]), (99, &[])]
        {
            let page = identify(&host, &mut registry, cns, nsid).unwrap();
            assert_eq!(list(&page), expected, "{cns:#x} {nsid}");
        }
        for nsid in [0xffff_fffe, 0xffff_ffff] {
            let page = identify(&host, &mut registry, cns, nsid);
            assert_eq!(page, refused(Status::INVALID_NAMESPACE));
        }
    }
}

#[test]
fn many_namespaces_are_listed_page_by_page() {
    let (mut registry, host) = ready();
    let subsystem = registry.find_subsystem(SUBSYSTEM_NQN).unwrap();
    let info = *registry.namespaces(subsystem).unwrap().find(NamespaceId(7)).unwrap();
    let mut add = |ids: std::ops::RangeInclusive<u32>| {
        for id in ids {
            let _ = registry.add_namespace(subsystem, NamespaceId(id), info);
        }
    };
    add(1..=1027);
    add(limits::MAX_NAMESPACE_ID..=limits::MAX_NAMESPACE_ID);
    let page = identify(&host, &mut registry, 0x02, 0).unwrap();
    assert_eq!(list(&page), (1..=1024).collect::<Vec<_>>());
    let page = identify(&host, &mut registry, 0x02, 1024).unwrap();
    assert_eq!(list(&page), [1025, 1026, 1027, limits::MAX_NAMESPACE_ID]);
    let changed = host.fetch(&mut registry, log_page(0x04, 0, 4096), 4096).unwrap();
    assert_eq!(list(&changed), [0xffff_ffff], "FFFFFFFFh: too many changes for the list");
}

#[test]
fn identification_descriptors_list_every_identifier() {
    let (mut registry, host) = ready();
    let page = identify(&host, &mut registry, 0x03, 1).unwrap();
    let mut descriptors = Vec::new();
    let mut rest = &page[..];
    while rest[0] != 0 {
        let bytes = usize::from(rest[1]);
        assert_eq!(rest[2..4], [0, 0]);
        descriptors.push((rest[0], rest[4..4 + bytes].to_vec()));
        rest = &rest[4 + bytes..];
    }
    assert!(rest.iter().all(|&byte| byte == 0));
    let expected = [(1, vec![0x33; 8]), (2, vec![0x22; 16]), (3, vec![0x11; 16]), (4, vec![0])];
    assert_eq!(descriptors, expected);

    let page = identify(&host, &mut registry, 0x03, 2).unwrap();
    assert_eq!(page[..6], [4, 1, 0, 0, 0, 0], "only the command set is listed");
    for nsid in [0, 3, 0xffff_ffff] {
        let page = identify(&host, &mut registry, 0x03, nsid);
        assert_eq!(page, refused(Status::INVALID_NAMESPACE));
    }
}

#[test]
fn command_set_pages_support_only_the_nvm_command_set() {
    let (mut registry, host) = ready();
    let page = identify(&host, &mut registry, 0x05, 1).unwrap();
    assert!(page.iter().all(|&byte| byte == 0), "no protection information");
    let page = identify(&host, &mut registry, 0x05, 3);
    assert_eq!(page, refused(Status::INVALID_NAMESPACE));

    let page = identify(&host, &mut registry, 0x06, 0).unwrap();
    assert_eq!((page[0], page[1], page[2]), (13, 13, 0), "VSL, WZSL: 32 MiB; no WUSL");
    assert_eq!(page[3], 128, "DMRL");
    assert_eq!((u32_at(&page, 4), u64_at(&page, 8)), (1 << 27, 1 << 27), "DMRSL, DMSL");

    for cns in [0x05, 0x06, 0x07, 0x1a] {
        for csi in [1, 2, 0xff] {
            let mut sqe = identify_sqe(cns, 1);
            sqe.cdw11 = (csi << 24).into();
            let page = host.fetch(&mut registry, sqe, 4096);
            assert_eq!(page, refused(Status::INVALID_FIELD), "{cns:#x} {csi}");
        }
    }

    let page = identify(&host, &mut registry, 0xffff_001c, 0).unwrap();
    assert_eq!(u64_at(&page, 0), 1, "only the NVM command set is listed");
    assert!(page[8..].iter().all(|&byte| byte == 0));
    for (cntid, fits) in [(host.id.0, true), (0xffff, true), (host.id.0 + 1, false)] {
        let sqe = identify_sqe(0x1c | u32::from(cntid) << 16, 0);
        let page = host.fetch(&mut registry, sqe, 4096);
        assert_eq!(page.is_ok(), fits, "{cntid:#x}");
    }
}

#[test]
fn the_command_set_independent_page_has_the_specified_fields() {
    let (mut registry, host) = ready();
    let page = identify(&host, &mut registry, 0x08, 1).unwrap();
    assert_eq!(page[0] & 1 << 5, 0, "NSFEAT: there is a volatile cache");
    assert_eq!(page[1], 1, "NMIC: shared");
    assert_eq!(u32_at(&page, 4), 1, "ANAGRPID");
    assert_eq!(page[8], 0, "NSATTR");
    assert_eq!(page[14], 1, "NSTAT: ready");
    let page = identify(&host, &mut registry, 0x08, 2).unwrap();
    assert_eq!((page[0], page[8], page[14]), (1 << 5, 1, 1));
    for nsid in [0, 3, 0xffff_ffff] {
        let page = identify(&host, &mut registry, 0x08, nsid);
        assert_eq!(page, refused(Status::INVALID_NAMESPACE));
    }
}

#[test]
fn the_allocated_namespaces_equal_the_active_ones() {
    let (mut registry, host) = ready();
    let active = identify(&host, &mut registry, 0x00, 1).unwrap();
    assert_eq!(identify(&host, &mut registry, 0x11, 1), Ok(active));
    let page = identify(&host, &mut registry, 0x11, 3).unwrap();
    assert!(page.iter().all(|&byte| byte == 0));
    let page = identify(&host, &mut registry, 0x11, 0xffff_ffff);
    assert_eq!(page, refused(Status::INVALID_NAMESPACE));
}

/// Parses a controller list: a count, then identifiers.
fn controllers(page: &[u8]) -> Vec<u16> {
    let count = usize::from(u16_at(page, 0));
    assert!(page[2 + 2 * count..].iter().all(|&byte| byte == 0));
    (0..count).map(|index| u16_at(page, 2 + 2 * index)).collect()
}

#[test]
fn controller_lists_name_the_controllers_of_the_subsystem() {
    let (mut registry, host) = ready();
    Host::discovery(&mut registry);
    let other = Host::connect(&mut registry, SUBSYSTEM_NQN);
    let both = vec![host.id.0, other.id.0];
    for (cns, nsid) in [(0x12, 1), (0x13, 0), (0x13, 77)] {
        let page = identify(&host, &mut registry, cns, nsid).unwrap();
        assert_eq!(controllers(&page), both, "{cns:#x}");
        let sqe = identify_sqe(cns | u32::from(host.id.0 + 1) << 16, nsid);
        let page = host.fetch(&mut registry, sqe, 4096).unwrap();
        assert_eq!(controllers(&page), both[1..]);
        let sqe = identify_sqe(cns | 0xffff << 16, nsid);
        let page = host.fetch(&mut registry, sqe, 4096).unwrap();
        assert_eq!(controllers(&page), [0; 0]);
    }
    let page = identify(&host, &mut registry, 0x12, 3).unwrap();
    assert_eq!(controllers(&page), [0; 0], "an inactive namespace has no controllers");
    let page = identify(&host, &mut registry, 0x12, 0xffff_ffff);
    assert_eq!(page, refused(Status::INVALID_NAMESPACE));
}

#[test]
fn identify_accepts_only_known_pages_of_4096_bytes() {
    let (mut registry, host) = ready();
    for cns in [0x04, 0x09, 0x0a, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1b, 0x1d, 0x20, 0xff] {
        let page = identify(&host, &mut registry, cns, 1);
        assert_eq!(page, refused(Status::INVALID_FIELD), "{cns:#x}");
    }
    for bytes in [0, 512, 4095, 8192] {
        let page = host.fetch(&mut registry, identify_sqe(1, 0), bytes);
        assert_eq!(page, refused(Status::DATA_SGL_LENGTH_INVALID));
    }
    let mut in_capsule = identify_sqe(1, 0);
    in_capsule.dptr = SglDescriptor::in_capsule(0, 4096);
    let answer = host.result(&mut registry, &in_capsule);
    assert_eq!(answer, refused(Status::SGL_TYPE_INVALID));
}

#[test]
fn a_discovery_controller_identifies_as_such() {
    let (mut registry, _) = registry();
    let host = Host::discovery(&mut registry);
    let page = identify(&host, &mut registry, 0x01, 0).unwrap();
    assert_eq!(page[111], 2, "CNTRLTYPE: discovery");
    assert_eq!(u32_at(&page, 92), 1 << 31, "OAES: discovery log page changes");
    assert_eq!(page[261], 0b100, "LPA: extended data");
    assert_eq!((page[512], page[513], page[525]), (0, 0, 0), "SQES, CQES, VWC");
    assert_eq!((u32_at(&page, 516), u16_at(&page, 520)), (0, 0), "NN, ONCS");
    assert_eq!(u16_at(&page, 320), 10, "KAS");
    assert_eq!(text(&page, 768, 256), DISCOVERY_NQN);
    assert_eq!(u16_at(&page, 78), host.id.0);
    for cns in [0x00, 0x02, 0x03, 0x06, 0x08, 0x13] {
        let page = identify(&host, &mut registry, cns, 1);
        assert_eq!(page, refused(Status::INVALID_FIELD), "{cns:#x}");
    }
}

#[test]
fn exactly_the_listed_log_pages_can_be_read() {
    let (mut registry, host) = ready();
    let discovery = Host::discovery(&mut registry);
    for (host, expected) in
        [(&host, &[0, 1, 2, 3, 4, 5, 0x0c, 0x12, 0x80][..]), (&discovery, &[0, 1, 0x12, 0x70])]
    {
        let page = host.fetch(&mut registry, log_page(0x00, 0, 1024), 1024).unwrap();
        for id in 0..=0xffu8 {
            let listed = u32_at(&page, usize::from(id) * 4) & 1 == 1;
            assert_eq!(listed, expected.contains(&id), "{id:#x}");
            let answer = host.fetch(&mut registry, log_page(id, 0, 512), 512);
            match listed {
                true => assert!(answer.is_ok(), "{id:#x}"),
                false => assert_eq!(answer, refused(Status::INVALID_LOG_PAGE), "{id:#x}"),
            }
        }
    }
}

#[test]
fn log_pages_can_be_read_at_offsets_up_to_their_end() {
    let (mut registry, host) = ready();
    for _ in 0..3 {
        host.set_feature(&mut registry, 0xff, 0).unwrap_err();
    }
    let whole = host.fetch(&mut registry, log_page(0x01, 0, 4096), 4096).unwrap();
    for (offset, bytes) in [(0, 4), (64, 64), (60, 8), (4092, 4), (128, 3968)] {
        let part = host.fetch(&mut registry, log_page(0x01, offset, bytes), bytes).unwrap();
        let start = offset as usize;
        assert_eq!(part, whole[start..start + bytes as usize], "{offset} {bytes}");
    }
    // Bytes beyond the end read as zeroes.
    let beyond = host.fetch(&mut registry, log_page(0x01, 4032, 128), 128).unwrap();
    assert!(beyond.iter().all(|&byte| byte == 0));
    let beyond = host.fetch(&mut registry, log_page(0x01, 4096, 16), 16).unwrap();
    assert!(beyond.iter().all(|&byte| byte == 0));
    let long = host.fetch(&mut registry, log_page(0x01, 0, 1 << 20), 1 << 20).unwrap();
    assert_eq!(long[..4096], whole);
    for offset in [4100, 1 << 40, u64::MAX - 3, 2, 65] {
        let answer = host.fetch(&mut registry, log_page(0x01, offset, 4), 4);
        assert_eq!(answer, refused(Status::INVALID_FIELD), "{offset}");
    }
}

#[test]
fn too_long_log_page_reads_are_refused() {
    let (mut registry, host) = ready();
    let too_long = host.fetch(&mut registry, log_page(0x01, 0, (1 << 20) + 4), (1 << 20) + 4);
    assert_eq!(too_long, refused(Status::INVALID_FIELD));
    // Set all bits of the number of dwords (NUMD), which requests 16 GiB.
    let mut sqe = log_page(0x01, 0, 4);
    sqe.cdw10 = 0xffff_0001.into();
    sqe.cdw11 = 0xffff.into();
    assert_eq!(host.fetch(&mut registry, sqe, 4), refused(Status::INVALID_FIELD));
    let other_length = host.fetch(&mut registry, log_page(0x01, 0, 512), 508);
    assert_eq!(other_length, refused(Status::DATA_SGL_LENGTH_INVALID));
    let mut index = log_page(0x01, 0, 64);
    index.cdw14 = (1 << 23).into();
    assert_eq!(host.fetch(&mut registry, index, 64), refused(Status::INVALID_FIELD));
}

#[test]
fn the_error_log_lists_the_newest_entry_first() {
    let (mut registry, host) = ready();
    let mut bad = command(AdminOpcode::FORMAT_NVM, 1);
    bad.cid = 0x1234.into();
    host.result(&mut registry, &bad).unwrap_err();
    let record = ErrorRecord {
        queue: QueueId(3),
        command: CommandId(77),
        status: Status::UNRECOVERED_READ_ERROR,
        namespace: NamespaceId(7),
        lba: Some(Lba(0x0102_0304_0506)),
    };
    registry.record_error(host.id, &record);
    let page = host.fetch(&mut registry, log_page(0x01, 0, 4096), 4096).unwrap();
    assert_eq!(u64_at(&page, 0), 2, "error count");
    assert_eq!((u16_at(&page, 8), u16_at(&page, 10)), (3, 77), "SQID, CID");
    assert_eq!(u16_at(&page, 12), 0x281 << 1, "status field");
    assert_eq!(u16_at(&page, 14), 0xffff, "parameter error location: not a parameter");
    assert_eq!((u64_at(&page, 16), u32_at(&page, 24)), (0x0102_0304_0506, 7), "LBA, NSID");
    assert_eq!(page[29], 3, "TRTYPE: TCP");
    assert_eq!(u64_at(&page, 64), 1);
    assert_eq!((u16_at(&page, 72), u16_at(&page, 74)), (0, 0x1234));
    let status = Status::INVALID_OPCODE.with_dnr();
    assert_eq!(u16_at(&page, 76), status.0 << 1);
    assert!(page[128..].iter().all(|&byte| byte == 0));

    for _ in 0..100 {
        registry.record_error(host.id, &record);
    }
    let page = host.fetch(&mut registry, log_page(0x01, 0, 4096), 4096).unwrap();
    let counts: Vec<_> = page.chunks_exact(64).map(|entry| u64_at(entry, 0)).collect();
    assert_eq!(counts, (39..=102).rev().collect::<Vec<_>>());
    assert_eq!(registry.controllers().next().unwrap().errors, 102);
}

#[test]
fn the_health_page_shows_the_counters() {
    let (mut registry, host) = ready();
    let subsystem = registry.find_subsystem(SUBSYSTEM_NQN).unwrap();
    let counters = SmartCounters {
        read_bytes: 512_000 * 5,
        written_bytes: 1,
        read_commands: 10,
        write_commands: 1 << 70,
        busy_ms: 120_000,
        uptime_ms: 3 * 3_600_000 + 1,
        media_errors: 4,
    };
    registry.set_counters(subsystem, counters);
    host.set_feature(&mut registry, 0xff, 0).unwrap_err();
    let page = host.fetch(&mut registry, log_page(0x02, 0, 512), 512).unwrap();
    let u128_at = |at: usize| u128::from_le_bytes(page[at..at + 16].try_into().unwrap());
    assert_eq!(page[0], 0, "no critical warning");
    assert_eq!((page[3], page[4], page[5]), (100, 0, 0), "spare, threshold, used");
    assert_eq!((u128_at(32), u128_at(48)), (5, 1), "data units, rounded up");
    assert_eq!((u128_at(64), u128_at(80)), (10, 1 << 70), "commands");
    assert_eq!((u128_at(96), u128_at(128)), (2, 3), "busy minutes, hours");
    assert_eq!((u128_at(160), u128_at(176)), (4, 1), "media errors, error log entries");

    for (nsid, fits) in [(0, true), (0xffff_ffff, true), (1, false), (99, false)] {
        let sqe = Sqe { nsid: nsid.into(), ..log_page(0x02, 0, 512) };
        let answer = host.fetch(&mut registry, sqe, 512);
        assert_eq!(answer.is_ok(), fits, "{nsid}");
    }
}

#[test]
fn the_firmware_and_effects_pages_have_the_specified_fields() {
    let (mut registry, host) = ready();
    let page = host.fetch(&mut registry, log_page(0x03, 0, 512), 512).unwrap();
    assert_eq!(page[0], 1, "slot 1 is active");
    assert_eq!(text(&page, 8, 8), env!("CARGO_PKG_VERSION"));
    assert!(page[16..].iter().all(|&byte| byte == 0));

    let page = host.fetch(&mut registry, log_page(0x05, 0, 4096), 4096).unwrap();
    let (admin, io) = (&page[..1024], &page[1024..2048]);
    for opcode in 0..256 {
        let known = [0x02, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18, 0x38].contains(&opcode);
        assert_eq!(u32_at(admin, opcode * 4) & 1 == 1, known, "admin {opcode:#x}");
        let known = [0, 1, 2, 5, 8, 9, 0x0c, 0x0d, 0x0e, 0x11, 0x15, 0x19].contains(&opcode);
        assert_eq!(u32_at(io, opcode * 4) & 1 == 1, known, "I/O {opcode:#x}");
        let changes = [0x01, 0x08, 0x09, 0x19].contains(&opcode);
        assert_eq!(u32_at(io, opcode * 4) & 0b10 != 0, changes, "LBCC {opcode:#x}");
    }
    let mut zoned = log_page(0x05, 0, 4096);
    zoned.cdw14 = (2 << 24).into();
    assert_eq!(host.fetch(&mut registry, zoned, 4096), refused(Status::INVALID_FIELD));
}

fn listener(port: u16, family: AddressFamily, address: &str) -> Listener {
    let service = (4420 + port).to_string();
    let (transport, address) = (TransportType::TCP, address.into());
    Listener { port: PortId(port), number: None, transport, family, address, service }
}

/// Returns the records of the discovery log page: type, family, address, service, NQN, port.
fn records(page: &[u8]) -> Vec<(u8, u8, String, String, String, u16)> {
    assert_eq!(u16_at(page, 16), 0, "RECFMT");
    let count = u64_at(page, 8) as usize;
    let record = |entry: &[u8]| {
        assert_eq!(entry[0], 3, "TRTYPE: TCP");
        assert_eq!(u16_at(entry, 6), 0xffff, "CNTLID: dynamic");
        assert!(u16_at(entry, 8) >= 32, "ASQSZ");
        (
            entry[2],
            entry[1],
            text(entry, 512, 256),
            text(entry, 32, 32),
            text(entry, 256, 256),
            u16_at(entry, 4),
        )
    };
    page[1024..].chunks_exact(1024).take(count).map(record).collect()
}

#[test]
fn discovery_lists_the_subsystems_that_a_host_may_use() {
    let (mut registry, subsystem) = registry();
    let mut hidden = config();
    hidden.nqn = "nqn.2026-01.test.farblock:hidden".into();
    hidden.allowed_hosts = vec![OTHER_HOST_NQN.into()];
    registry.add_subsystem(hidden).unwrap();
    registry.add_listener(listener(0, AddressFamily::V4, "0.0.0.0")).unwrap();
    registry.add_listener(listener(1, AddressFamily::V6, "2001:db8::1")).unwrap();
    let referral = Referral {
        family: AddressFamily::V4,
        address: "198.51.100.9".into(),
        service: "8009".into(),
    };
    registry.add_referral(referral.clone()).unwrap();

    let host = Host::discovery(&mut registry);
    let page = host.fetch(&mut registry, log_page(0x70, 0, 8192), 8192).unwrap();
    let entry = |kind, family, address: &str, service: &str, nqn: &str, port| {
        (kind, family, address.to_string(), service.to_string(), nqn.to_string(), port)
    };
    let expected = [
        entry(2, 1, LOCAL_ADDRESS, "4420", SUBSYSTEM_NQN, 0),
        entry(2, 2, "2001:db8::1", "4421", SUBSYSTEM_NQN, 1),
        entry(1, 1, "198.51.100.9", "8009", DISCOVERY_NQN, 0),
        entry(3, 1, LOCAL_ADDRESS, "4420", DISCOVERY_NQN, 0),
        entry(3, 2, "2001:db8::1", "4421", DISCOVERY_NQN, 1),
    ];
    assert_eq!(records(&page), expected);
    assert!(page[6 * 1024..].iter().all(|&byte| byte == 0));
    let generation = u64_at(&page, 0);

    // Fetch the header alone, then single records, then bytes across record borders.
    let header = host.fetch(&mut registry, log_page(0x70, 0, 16), 16).unwrap();
    assert_eq!(header, page[..16]);
    for (offset, bytes) in [(1024, 1024), (1000, 100), (2048, 4096), (6140, 8), (6144, 4)] {
        let part = host.fetch(&mut registry, log_page(0x70, offset, bytes), bytes).unwrap();
        let start = offset as usize;
        assert_eq!(part, page[start..start + bytes as usize], "{offset}");
    }
    let beyond = host.fetch(&mut registry, log_page(0x70, 6148, 4), 4);
    assert_eq!(beyond, refused(Status::INVALID_FIELD));

    registry.remove_referral(&referral).unwrap();
    registry.remove_listener(PortId(1)).unwrap();
    registry.disallow_host(subsystem, HOST_NQN).unwrap();
    let page = host.fetch(&mut registry, log_page(0x70, 0, 8192), 8192).unwrap();
    assert_eq!(records(&page), [expected[3].clone()]);
    assert_eq!(u64_at(&page, 0), generation + 3);
}

#[test]
fn discovery_replaces_wildcard_addresses_with_usable_ones() {
    let seen = |listeners: &[Listener], local_address: &str| {
        let (mut registry, _) = registry();
        for listener in listeners {
            registry.add_listener(listener.clone()).unwrap();
        }
        let connect = Connect::admin(DISCOVERY_NQN);
        let request = farblock_proto::controller::ConnectRequest {
            command: &connect.command,
            data: &connect.data,
            local_address,
            port: None,
            remote: RemoteForm::Transport,
        };
        let host = Host::of(&registry.connect(&request, at(0)).unwrap());
        host.write_cc(&mut registry, enabling(), at(0));
        let page = host.fetch(&mut registry, log_page(0x70, 0, 65536), 65536).unwrap();
        let own = records(&page).into_iter().filter(|record| record.0 == 3);
        own.map(|record| (record.1, record.2)).collect::<Vec<_>>()
    };
    let v4 = listener(0, AddressFamily::V4, "0.0.0.0");
    let v6 = listener(1, AddressFamily::V6, "::");
    let same = Listener { service: v4.service.clone(), ..v6.clone() };
    let local = |family: u8, address: &str| (family, address.to_string());
    assert_eq!(seen(std::slice::from_ref(&v4), "192.0.2.7"), [local(1, "192.0.2.7")]);
    assert_eq!(seen(std::slice::from_ref(&v4), "2001:db8::7"), []);
    assert_eq!(seen(std::slice::from_ref(&v6), "192.0.2.7"), [local(1, "192.0.2.7")]);
    assert_eq!(seen(std::slice::from_ref(&v6), "2001:db8::7"), [local(2, "2001:db8::7")]);
    assert_eq!(seen(&[v4, same], "192.0.2.7"), [local(1, "192.0.2.7")], "listed only once");
}

#[test]
fn an_rdma_listener_is_listed_beside_a_tcp_listener_at_the_same_address() {
    let (mut registry, _) = registry();
    let tcp = listener(0, AddressFamily::V4, "192.0.2.7");
    let rdma = Listener { port: PortId(1), transport: TransportType::RDMA, ..tcp.clone() };
    [tcp, rdma].into_iter().for_each(|it| registry.add_listener(it).unwrap());
    let host = Host::discovery(&mut registry);
    let page = host.fetch(&mut registry, log_page(0x70, 0, 8192), 8192).unwrap();
    let kinds: Vec<_> = page[1024..].chunks(1024).map(|entry| (entry[0], entry[2])).collect();
    assert_eq!(kinds[..4], [(3, 2), (1, 2), (3, 3), (1, 3)], "TRTYPE, SUBTYPE");
    // RDMA_QPTYPE, RDMA_PRTYPE and RDMA_CMS have the same values as in Linux nvmet.
    assert_eq!(page[2048 + 768..][..4], [1, 1, 1, 0]);
}

#[test]
fn a_discovery_controller_has_no_pages_about_storage_and_few_features() {
    let (mut registry, _) = registry();
    let host = Host::discovery(&mut registry);
    for page in [0x02, 0x03, 0x04, 0x05] {
        let answer = host.fetch(&mut registry, log_page(page, 0, 512), 512);
        assert_eq!(answer, refused(Status::INVALID_LOG_PAGE));
    }
    assert_eq!(host.feature(&mut registry, 0x0f, 0, 0), Ok(5000));
    for feature in [0x01, 0x02, 0x07, 0x0e] {
        let answer = host.feature(&mut registry, feature, 0, 0);
        assert_eq!(answer, refused(Status::INVALID_FIELD));
        let answer = host.set_feature(&mut registry, feature, 0);
        assert_eq!(answer, refused(Status::INVALID_FIELD));
    }
}

#[test]
fn features_report_current_default_and_capabilities() {
    let (mut registry, host) = ready();
    // For each feature: dword 11, the default, a new value, the value after the change, and the
    // capabilities.
    let cases = [
        (0x01, 0, 0b111, Some((0x0102_0304, 0x0102_0304)), 4),
        (0x02, 0, 0, Some((0, 0)), 4),
        (0x04, 0, 0xffff, Some((0x0155, 0x0155)), 4),
        (0x04, 1 << 20, 1 << 20, Some((1 << 20 | 0x0111, 1 << 20 | 0x0111)), 4),
        (0x05, 0, 0, Some((0x1234, 0x1234)), 4),
        (0x06, 0, 1, Some((0, 0)), 4),
        (0x07, 0, 3 | 3 << 16, Some((1 | 7 << 16, 1 | 1 << 16)), 4),
        (0x0a, 0, 0, Some((1, 1)), 4),
        (0x0b, 0, 0, Some((0x1ff, 0x1ff)), 4),
        (0x0f, 0, 0, Some((1500, 2000)), 4),
    ];
    for (feature, cdw11, default, set, capabilities) in cases {
        for select in [1, 2] {
            let value = host.feature(&mut registry, feature, select, cdw11);
            assert_eq!(value, Ok(default), "{feature:#x} default");
        }
        assert_eq!(host.feature(&mut registry, feature, 3, cdw11), Ok(capabilities));
        let reserved = host.feature(&mut registry, feature, 4, cdw11);
        assert_eq!(reserved, refused(Status::INVALID_FIELD));
        if let Some((value, then)) = set {
            host.set_feature(&mut registry, feature, value).unwrap();
            let current = host.feature(&mut registry, feature, 0, cdw11);
            assert_eq!(current, Ok(then), "{feature:#x} current");
            let value = host.feature(&mut registry, feature, 1, cdw11);
            assert_eq!(value, Ok(default), "{feature:#x} default still");
        }
    }
}

#[test]
fn invalid_feature_values_are_refused() {
    let (mut registry, host) = ready();
    let cases = [
        (0x00u32, 0u32, Status::INVALID_FIELD),
        (0x02, 1, Status::INVALID_FIELD),
        (0x03, 0, Status::INVALID_FIELD),
        (0x04, 1 << 16, Status::INVALID_FIELD),
        (0x04, 2 << 20, Status::INVALID_FIELD),
        (0x05, 1 << 16, Status::INVALID_FIELD),
        (0x06, 2, Status::INVALID_FIELD),
        (0x06, 1 << 31 | 1, Status::INVALID_FIELD),
        (0x07, 0xffff, Status::INVALID_FIELD),
        (0x07, 0xffff_0000, Status::INVALID_FIELD),
        (0x08, 0, Status::INVALID_FIELD),
        (0x0b, 1 << 31, Status::INVALID_FIELD),
        (0x0b, 1 << 9, Status::INVALID_FIELD),
        (0x0e, 0, Status::DATA_SGL_LENGTH_INVALID),
        (0x16, 0, Status::DATA_SGL_LENGTH_INVALID),
        (0x81, 1, Status::COMMAND_SEQUENCE_ERROR),
        (0x84, 1, Status::INVALID_FIELD),
        (0xff, 1, Status::INVALID_FIELD),
    ];
    for (feature, value, status) in cases {
        let mut sqe = command(AdminOpcode::SET_FEATURES, 0);
        sqe.cdw10 = feature.into();
        sqe.cdw11 = value.into();
        sqe.dptr = SglDescriptor::transport(0);
        let answer = host.result(&mut registry, &sqe);
        assert_eq!(answer, refused(status), "{feature:#x} {value:#x}");
    }
    let mut save = command(AdminOpcode::SET_FEATURES, 0);
    save.cdw10 = (0x01 | 1 << 31).into();
    assert_eq!(host.result(&mut registry, &save), refused(Status::FEATURE_NOT_SAVEABLE));

    host.io_queue(&mut registry, 1).unwrap();
    let late = host.set_feature(&mut registry, 0x07, 0);
    assert_eq!(late, refused(Status::COMMAND_SEQUENCE_ERROR));
}

#[test]
fn at_most_the_configured_queues_are_granted() {
    let (mut registry, host) = ready();
    let granted = host.set_feature(&mut registry, 0x07, 0xfffe_fffe);
    assert_eq!(granted, Ok(3 | 3 << 16));
}

#[test]
fn the_host_identifier_feature_returns_the_value_from_connect() {
    let (mut registry, host) = ready();
    let extended = host.fetch(&mut registry, get_features(0x81, 0, 1), 16);
    assert_eq!(extended, Ok(HOST_ID.to_vec()));
    let short = host.fetch(&mut registry, get_features(0x81, 0, 0), 8);
    assert_eq!(short, refused(Status::INVALID_FIELD));
    let wrong_length = host.fetch(&mut registry, get_features(0x81, 0, 1), 8);
    assert_eq!(wrong_length, refused(Status::DATA_SGL_LENGTH_INVALID));
    assert_eq!(host.feature(&mut registry, 0x81, 3, 1), Ok(0), "the feature is not changeable");
}

#[test]
fn host_behavior_support_accepts_only_supported_bits() {
    let (mut registry, host) = ready();
    let set = |registry: &mut Registry, byte: usize, value: u8| {
        let mut sqe = command(AdminOpcode::SET_FEATURES, 0);
        sqe.cdw10 = 0x16.into();
        sqe.dptr = SglDescriptor::transport(512);
        let mut data = [0; 512];
        data[byte] = value;
        match registry.admin(host.id, &sqe, &data, at_ms(0)) {
            AdminOutcome::Respond { status, result } if status.is_success() => Ok(result),
            AdminOutcome::Respond { status, .. } => Err(status),
            other => panic!("{other:?}"),
        }
    };
    for (at, value) in [(0, 2), (1, 2), (2, 1), (3, 2), (4, 1), (4, 1 << 3), (5, 1)] {
        let answer = set(&mut registry, at, value);
        assert_eq!(answer, refused(Status::INVALID_FIELD), "byte {at}: {value}");
    }
    assert_eq!(set(&mut registry, 4, 1 << 2), Ok(0), "copy descriptor format 2 is accepted");
    let page = host.fetch(&mut registry, get_features(0x16, 0, 0), 512).unwrap();
    assert_eq!(page.iter().position(|byte| *byte != 0), Some(4));
    let default = host.fetch(&mut registry, get_features(0x16, 1, 0), 512).unwrap();
    assert!(default.iter().all(|byte| *byte == 0));
}

#[test]
fn the_timestamp_continues_from_the_set_value() {
    let (mut registry, host) = ready();
    let get = |registry: &mut Registry, milliseconds| {
        let mut sqe = get_features(0x0e, 0, 0);
        sqe.dptr = SglDescriptor::transport(8);
        match host.admin(registry, &sqe, at_ms(milliseconds)) {
            AdminOutcome::Push { bytes, .. } => u64_at(&bytes, 0),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(get(&mut registry, 2500), 2500, "the time since the controller was enabled");

    let mut set = command(AdminOpcode::SET_FEATURES, 0);
    set.cdw10 = 0x0e.into();
    set.dptr = SglDescriptor::transport(8);
    assert_eq!(registry.admin_data_bytes(host.id, &set), 8);
    let value = 1_700_000_000_000u64 | 0xffff << 48;
    let outcome = registry.admin(host.id, &set, &value.to_le_bytes(), at_ms(3000));
    assert_eq!(outcome, AdminOutcome::Respond { status: Status::SUCCESS, result: 0 });
    assert_eq!(get(&mut registry, 3250), 1_700_000_000_250 | 0b10 << 48);

    let short = registry.admin(host.id, &set, &[1; 7], at_ms(3000));
    let status = Status::DATA_TRANSFER_ERROR;
    assert_eq!(short, AdminOutcome::Respond { status, result: 0 });
    set.dptr = SglDescriptor::transport(9);
    assert_eq!(registry.admin_data_bytes(host.id, &set), 0);

    host.write_cc(&mut registry, Cc::default(), at_ms(4000));
    host.write_cc(&mut registry, enabling(), at_ms(5000));
    assert_eq!(get(&mut registry, 6000), 2000, "a reset does not clear the timestamp");
}
