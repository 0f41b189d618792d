//! Tests of I/O commands: the parsed form of each command, and every check.

mod controller_fixture;

use controller_fixture::config;
use farblock_proto::capsule::{DataPointer, RemoteForm};
use farblock_proto::controller::{
    DeallocateRanges, IoCommand, NamespaceInfo, NamespaceTable, data_pointer,
};
use farblock_proto::ids::{BlockCount, Lba, NamespaceId};
use farblock_wire::nvm::CopyRange;
use farblock_wire::opcode::NvmOpcode;
use farblock_wire::sgl::{KEYED_LENGTH_MAX, KeyedBlock, SglDescriptor};
use farblock_wire::sqe::Sqe;
use farblock_wire::status::Status;

const MAX_TRANSFER: u32 = 128 * 1024;

fn table() -> NamespaceTable {
    NamespaceTable::new(1, MAX_TRANSFER, config().namespaces)
}

fn sqe(opcode: NvmOpcode, nsid: u32, lba: u64, blocks: u32, data: u32) -> Sqe {
    let mut sqe = Sqe::new(opcode.0, 1, nsid);
    sqe.cdw10 = (lba as u32).into();
    sqe.cdw11 = ((lba >> 32) as u32).into();
    sqe.cdw12 = (blocks - 1).into();
    sqe.dptr = SglDescriptor::transport(data);
    sqe
}

fn parse(sqe: &Sqe, table: &NamespaceTable) -> Result<IoCommand, Status> {
    IoCommand::parse(sqe, table, RemoteForm::Transport)
}

fn refusal(sqe: &Sqe) -> Status {
    let status = parse(sqe, &table()).expect_err("a valid command");
    assert!(status.is_dnr());
    Status(status.code())
}

const FUA: u32 = 1 << 30;
const DEAC: u32 = 1 << 25;

#[test]
fn read_write_and_compare_are_parsed() {
    let namespace = NamespaceId(1);
    let (lba, blocks, fua) = (Lba(16), BlockCount(8), false);
    let data = DataPointer::Remote { length: 4096 };
    let parse = |opcode| parse(&sqe(opcode, 1, 16, 8, 4096), &table());
    let read = IoCommand::Read { namespace, lba, blocks, fua, data };
    assert_eq!(parse(NvmOpcode::READ), Ok(read));
    assert_eq!((read.data_to_host(), read.data_from_host()), (Some(data), None));
    let write = IoCommand::Write { namespace, lba, blocks, fua, data };
    assert_eq!(parse(NvmOpcode::WRITE), Ok(write));
    assert_eq!((write.data_to_host(), write.data_from_host()), (None, Some(data)));
    let compare = IoCommand::Compare { namespace, lba, blocks, fua, data };
    assert_eq!(parse(NvmOpcode::COMPARE), Ok(compare));
    assert_eq!((compare.data_to_host(), compare.data_from_host()), (None, Some(data)));
    assert_eq!(compare.namespace(), Some(namespace));
}

#[test]
fn in_capsule_data_are_refused_for_reads() {
    let mut write = sqe(NvmOpcode::WRITE, 1, 0, 8, 0);
    write.dptr = SglDescriptor::in_capsule(0, 4096);
    let parsed = parse(&write, &table()).unwrap();
    assert_eq!(parsed.data_from_host(), Some(DataPointer::InCapsule { length: 4096 }));
    write.opcode = NvmOpcode::READ.0;
    assert_eq!(refusal(&write), Status::SGL_TYPE_INVALID);
}

#[test]
fn commands_without_data_are_parsed() {
    let namespace = NamespaceId(1);
    let (lba, blocks) = (Lba(0), BlockCount(0x1000));
    let mut verify = sqe(NvmOpcode::VERIFY, 1, 0, 0x1000, 0);
    verify.cdw12 = (verify.cdw12.get() | FUA).into();
    let expected = IoCommand::Verify { namespace, lba, blocks, fua: true };
    assert_eq!(parse(&verify, &table()), Ok(expected));

    // A command without data may cover more blocks than the largest transfer.
    let mut zeroes = sqe(NvmOpcode::WRITE_ZEROES, 1, 0, 0x1000, 0);
    let parse = |sqe: &Sqe| parse(sqe, &table());
    let expected = |namespace, fua, deallocate| {
        Ok(IoCommand::WriteZeroes { namespace, lba, blocks, fua, deallocate })
    };
    assert_eq!(parse(&zeroes), expected(namespace, false, false));
    zeroes.cdw12 = (zeroes.cdw12.get() | DEAC | FUA).into();
    assert_eq!(parse(&zeroes), expected(namespace, true, true));
    zeroes.nsid = 7.into();
    assert_eq!(
        parse(&zeroes),
        expected(NamespaceId(7), true, false),
        "DEAC is ignored on a disk without deallocation"
    );
    assert_eq!(parse(&zeroes).unwrap().data_from_host(), None);

    for nsid in [1, 2, 0xffff_ffff] {
        let flush = IoCommand::Flush { namespace: NamespaceId(nsid) };
        assert_eq!(parse(&Sqe::new(NvmOpcode::FLUSH.0, 1, nsid)), Ok(flush));
    }
    let fabrics = Sqe { flags: 0, ..Sqe::new(0x7f, 1, 8) };
    assert_eq!(parse(&fabrics), Ok(IoCommand::Fabrics));
    assert_eq!(IoCommand::Fabrics.namespace(), None);
}

#[test]
fn ranges_beyond_the_end_are_refused() {
    let cases = [
        (0, 1, true),
        (19_999, 1, true),
        (19_998, 2, true),
        (19_999, 2, false),
        (20_000, 1, false),
        (u64::MAX, 1, false),
        (u64::MAX - 7, 8, false),
        (1 << 63, 256, false),
    ];
    for (lba, blocks, fits) in cases {
        let read = sqe(NvmOpcode::READ, 1, lba, blocks, blocks * 512);
        let verify = sqe(NvmOpcode::VERIFY, 1, lba, blocks, 0);
        for sqe in [read, verify] {
            match parse(&sqe, &table()) {
                Ok(_) => assert!(fits, "{lba} {blocks}"),
                Err(status) => {
                    assert!(!fits, "{lba} {blocks}");
                    assert_eq!(status, Status::LBA_OUT_OF_RANGE.with_dnr());
                }
            }
        }
    }
}

#[test]
fn transfers_above_the_limit_are_refused() {
    let most = MAX_TRANSFER / 512;
    assert!(parse(&sqe(NvmOpcode::READ, 1, 0, most, MAX_TRANSFER), &table()).is_ok());
    for blocks in [most + 1, 20_000] {
        let too_long = sqe(NvmOpcode::READ, 1, 0, blocks, blocks * 512);
        assert_eq!(refusal(&too_long), Status::INVALID_FIELD);
    }
    // The size of 2^16 blocks of 2^16 bytes does not fit in 32 bits.
    let huge = NamespaceInfo::new(1 << 16, 1 << 20);
    let table = NamespaceTable::new(1, u32::MAX, [(NamespaceId(1), huge)]);
    let status = parse(&sqe(NvmOpcode::READ, 1, 0, 1 << 16, 0), &table);
    assert_eq!(status, Err(Status::INVALID_FIELD.with_dnr()));

    let small = NamespaceInfo { max_blocks: 4, ..NamespaceInfo::new(512, 100) };
    let table = NamespaceTable::new(1, MAX_TRANSFER, [(NamespaceId(1), small)]);
    assert!(parse(&sqe(NvmOpcode::READ, 1, 0, 4, 2048), &table).is_ok());
    let status = parse(&sqe(NvmOpcode::READ, 1, 0, 5, 2560), &table);
    assert_eq!(status, Err(Status::INVALID_FIELD.with_dnr()));
    assert!(parse(&sqe(NvmOpcode::VERIFY, 1, 0, 5, 0), &table).is_ok());
}

#[test]
fn a_data_pointer_of_another_length_is_refused() {
    for length in [0, 4095, 4097, u32::MAX] {
        let wrong = sqe(NvmOpcode::WRITE, 1, 0, 8, length);
        assert_eq!(refusal(&wrong), Status::DATA_SGL_LENGTH_INVALID);
        assert_eq!(
            data_pointer(&wrong, 4096, RemoteForm::Transport),
            Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr())
        );
    }
    let mut odd = sqe(NvmOpcode::WRITE, 1, 0, 8, 4096);
    for id in [0x00, 0x02, 0x10, 0x20, 0x30, 0x40, 0x4f, 0x50, 0xff] {
        odd.dptr.id = id;
        assert_eq!(refusal(&odd), Status::SGL_TYPE_INVALID);
    }
    odd.dptr = SglDescriptor::in_capsule(512, 4096);
    assert_eq!(refusal(&odd), Status::SGL_OFFSET_INVALID);
}

#[test]
fn each_transport_accepts_only_its_own_descriptor() {
    let mut write = sqe(NvmOpcode::WRITE, 1, 0, 8, 4096);
    let refused = Err(Status::SGL_TYPE_INVALID.with_dnr());
    let accepted = Ok(Some(DataPointer::Remote { length: 4096 }));
    let parse = |sqe: &Sqe, remote| {
        IoCommand::parse(sqe, &table(), remote).map(|command| command.data_from_host())
    };
    assert_eq!(parse(&write, RemoteForm::Transport), accepted);
    assert_eq!(parse(&write, RemoteForm::Keyed), refused);
    for invalidate in [false, true] {
        let (address, key) = (u64::MAX, u32::MAX);
        let block = KeyedBlock { address, length_bytes: 4096, key, invalidate };
        write.dptr = SglDescriptor::keyed(block);
        assert_eq!(parse(&write, RemoteForm::Keyed), accepted);
        assert_eq!(parse(&write, RemoteForm::Transport), refused);
    }
    write.dptr = SglDescriptor::in_capsule(0, 4096);
    let in_capsule = Ok(Some(DataPointer::InCapsule { length: 4096 }));
    assert_eq!(parse(&write, RemoteForm::Keyed), in_capsule);
}

/// Commands that pull a list of ranges or keys also use the transport's type of data pointer.
#[test]
fn lists_are_pulled_by_keyed_descriptors() {
    let ranges = 3_u32;
    let mut copy = sqe(NvmOpcode::COPY, 1, 100, 1, 0);
    copy.cdw12 = (ranges - 1).into();
    let needed = ranges * CopyRange::LEN as u32;
    let refused = |status: Status| Err(status.with_dnr());
    // The descriptor's length must equal the length of the list, as for any transfer.
    for length_bytes in [0, needed - 1, needed, needed + 1, KEYED_LENGTH_MAX] {
        let block = KeyedBlock { address: 1 << 40, length_bytes, key: 7, invalidate: true };
        copy.dptr = SglDescriptor::keyed(block);
        let wanted = match length_bytes == needed {
            true => Ok(Some(DataPointer::Remote { length: needed })),
            false => refused(Status::DATA_SGL_LENGTH_INVALID),
        };
        let pointer = |remote| {
            IoCommand::parse(&copy, &table(), remote).map(|command| command.data_from_host())
        };
        assert_eq!(pointer(RemoteForm::Keyed), wanted, "{length_bytes}");
        assert_eq!(pointer(RemoteForm::Transport), refused(Status::SGL_TYPE_INVALID));
    }
}

#[test]
fn unsupported_command_bits_are_refused() {
    let read = sqe(NvmOpcode::READ, 1, 0, 8, 4096);
    let with_cdw12 = |bits: u32| Sqe { cdw12: (read.cdw12.get() | bits).into(), ..read };
    for bit in (16..24).chain([25]) {
        assert_eq!(refusal(&with_cdw12(1 << bit)), Status::INVALID_FIELD, "bit {bit}");
    }
    for bit in [24, 26, 27, 28, 29] {
        let status = Status::INVALID_PROTECTION_INFORMATION;
        assert_eq!(refusal(&with_cdw12(1 << bit)), status, "bit {bit}");
    }
    for bit in [30, 31] {
        assert!(parse(&with_cdw12(1 << bit), &table()).is_ok());
    }
    assert_eq!(refusal(&Sqe { mptr: 1.into(), ..read }), Status::INVALID_FIELD);
    for flags in [0x00, 0x41, 0x42, 0xc0] {
        assert_eq!(refusal(&Sqe { flags, ..read }), Status::INVALID_FIELD);
    }
    assert!(parse(&Sqe { flags: 0x80, ..read }, &table()).is_ok());
    let known = [0x00, 0x01, 0x02, 0x05, 0x08, 0x09, 0x0c, 0x0d, 0x0e, 0x11, 0x15, 0x19, 0x7f];
    for opcode in (0..=0xff).filter(|opcode| !known.contains(opcode)) {
        assert_eq!(refusal(&Sqe { opcode, ..read }), Status::INVALID_OPCODE, "{opcode:#x}");
    }
}

#[test]
fn commands_to_missing_namespaces_are_refused() {
    for opcode in [0x01, 0x02, 0x05, 0x08, 0x09, 0x0c, 0x0d, 0x0e, 0x11, 0x15] {
        for nsid in [0, 3, 8, 0xffff_fffe, 0xffff_ffff] {
            let sqe = Sqe::new(opcode, 1, nsid);
            assert_eq!(refusal(&sqe), Status::INVALID_NAMESPACE, "{opcode:#x} {nsid}");
        }
    }
    for nsid in [0, 3, 0xffff_fffe] {
        let flush = Sqe::new(NvmOpcode::FLUSH.0, 1, nsid);
        assert_eq!(refusal(&flush), Status::INVALID_NAMESPACE);
    }
}

#[test]
fn writes_to_a_read_only_namespace_are_refused() {
    for opcode in [NvmOpcode::WRITE, NvmOpcode::WRITE_ZEROES, NvmOpcode::DATASET_MANAGEMENT] {
        let change = sqe(opcode, 2, 0, 1, 4096);
        assert_eq!(refusal(&change), Status::NAMESPACE_WRITE_PROTECTED);
    }
    for opcode in [NvmOpcode::READ, NvmOpcode::COMPARE, NvmOpcode::VERIFY, NvmOpcode::FLUSH] {
        assert!(parse(&sqe(opcode, 2, 0, 1, 4096), &table()).is_ok());
    }
}

fn dataset_management(ranges: u32, data: u32) -> Sqe {
    let mut sqe = Sqe::new(NvmOpcode::DATASET_MANAGEMENT.0, 1, 1);
    sqe.cdw10 = (ranges - 1).into();
    sqe.cdw11 = 0b100.into();
    sqe.dptr = SglDescriptor::transport(data);
    sqe
}

#[test]
fn deallocate_refuses_lists_that_are_too_short_or_too_long() {
    let namespace = NamespaceId(1);
    for (ranges, length) in [(1, 16), (1, 4096), (128, 4096), (3, 48)] {
        let parsed = parse(&dataset_management(ranges, length), &table());
        let (ranges, data) = (ranges as u16, DataPointer::Remote { length });
        assert_eq!(parsed, Ok(IoCommand::Deallocate { namespace, ranges, data }));
        assert_eq!(parsed.unwrap().data_from_host(), Some(data));
    }
    for (ranges, length) in [(1, 0), (1, 15), (128, 2047), (1, 4112), (2, u32::MAX)] {
        let status = refusal(&dataset_management(ranges, length));
        assert_eq!(status, Status::DATA_SGL_LENGTH_INVALID, "{ranges} {length}");
    }
    // The parser accepts and ignores hints.
    for attributes in [0, 0b11] {
        let hint = Sqe { cdw11: attributes.into(), ..dataset_management(1, 0) };
        let advise = IoCommand::Advise { namespace };
        assert_eq!(parse(&hint, &table()), Ok(advise));
        assert_eq!(advise.data_from_host(), None);
    }
}

fn range(lba: u64, blocks: u32) -> [u8; 16] {
    let mut bytes = [0xa5; 16];
    bytes[4..8].copy_from_slice(&blocks.to_le_bytes());
    bytes[8..].copy_from_slice(&lba.to_le_bytes());
    bytes
}

#[test]
fn deallocate_ranges_beyond_the_end_are_refused() {
    let info = NamespaceInfo::new(512, 1000);
    let parse = |ranges: &[[u8; 16]], count: u16| {
        let bytes = ranges.concat();
        let parsed = DeallocateRanges::parse(&bytes, count, &info)?;
        Ok::<_, Status>(parsed.collect::<Vec<_>>())
    };
    let good = [range(0, 8), range(5, 0), range(999, 1), range(2000, 1)];
    let expected = vec![(Lba(0), BlockCount(8)), (Lba(999), BlockCount(1))];
    assert_eq!(parse(&good, 3), Ok(expected), "bytes after the ranges are ignored");
    assert_eq!(parse(&[range(1000, 0)], 1), Ok(vec![]));
    let out = Err(Status::LBA_OUT_OF_RANGE.with_dnr());
    for bad in [range(1000, 1), range(999, 2), range(u64::MAX, u32::MAX), range(0, u32::MAX)] {
        assert_eq!(parse(&[range(0, 1), bad], 2), out);
    }
    let short = Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
    assert_eq!(parse(&good, 5), short);
    assert_eq!(parse(&[], 1), short);
    assert_eq!(parse(&good, u16::MAX), short);
}

#[test]
fn deallocate_ranges_are_merged_and_limited() {
    const MOST: u32 = 1 << 27;
    let info = NamespaceInfo::new(512, 1 << 40);
    let parse =
        |ranges: &[[u8; 16]]| DeallocateRanges::parse(&ranges.concat(), ranges.len() as u16, &info);
    let too_large = Status::COMMAND_SIZE_LIMIT_EXCEEDED.with_dnr();
    let mut merged = parse(&[range(100, 8), range(5, 10), range(108, 2), range(6, 4), range(0, 5)])
        .expect("ranges within the limits");
    assert_eq!(merged.next_part(10), Some((Lba(0), BlockCount(10))));
    assert!(!merged.is_empty());
    let rest: Vec<_> = merged.collect();
    assert_eq!(rest, [(Lba(10), BlockCount(5)), (Lba(100), BlockCount(10))]);
    // The limits DMRSL, DMSL, DMRL.
    assert_eq!(parse(&[range(7, MOST)]).expect("as many blocks as the limit").count(), 1);
    assert_eq!(parse(&[range(7, MOST + 1)]), Err(too_large));
    assert_eq!(
        parse(&[range(7, MOST), range(7, 1)]),
        Err(too_large),
        "overlapping ranges count twice"
    );
    assert_eq!(parse(&vec![range(3, 1); 128]).expect("as many ranges as the limit").count(), 1);
    assert_eq!(parse(&vec![range(3, 1); 129]), Err(too_large));
}

#[test]
fn verify_and_write_zeroes_are_limited_in_size() {
    let namespace = NamespaceId(1);
    let table = NamespaceTable::new(1, 1 << 20, [(namespace, NamespaceInfo::new(4096, 1 << 30))]);
    for opcode in [NvmOpcode::WRITE_ZEROES, NvmOpcode::VERIFY] {
        assert!(parse(&sqe(opcode, 1, 0, 8192, 0), &table).is_ok());
        let too_large = parse(&sqe(opcode, 1, 0, 8193, 0), &table);
        assert_eq!(too_large, Err(Status::INVALID_FIELD.with_dnr()));
    }
}

#[test]
fn writes_without_a_volatile_cache_are_durable() {
    let fua = |command| match command {
        IoCommand::Write { fua, .. } | IoCommand::WriteZeroes { fua, .. } => fua,
        other => panic!("{other:?}"),
    };
    let zeroes = parse(&sqe(NvmOpcode::WRITE_ZEROES, 1, 0, 1, 0), &table()).expect("valid");
    assert!(!fua(zeroes) && fua(zeroes.written_through()));
    let flush = IoCommand::Flush { namespace: NamespaceId(1) };
    assert_eq!(flush.written_through(), flush);
}
