//! Commands whose capsule has a list of keyed descriptors, valid ones and hostile ones.

use super::host::{ScriptedHost, Stand};
use super::{HOST, OTHER, assert_works, connected, pattern, read, write};
use farblock_proto::host::command;
use farblock_wire::sgl::KeyedBlock;
use farblock_wire::{SglDescriptor, Sqe, Status};

/// The offset of the blocks in the host's memory, beyond its responses and capsules.
const PLACE: u64 = 16 << 20;

/// Returns a keyed descriptor of bytes in the host's memory.
fn block(host: &ScriptedHost, offset: u64, length_bytes: u32) -> SglDescriptor {
    let keys = host.keys();
    let address = keys.address() + PLACE + offset;
    SglDescriptor::keyed(KeyedBlock { address, length_bytes, key: keys.rkey(), invalidate: false })
}

fn bytes_of(descriptors: &[SglDescriptor]) -> Vec<u8> {
    let mut bytes = vec![0; descriptors.len() * SglDescriptor::LEN];
    for (place, descriptor) in bytes.chunks_exact_mut(SglDescriptor::LEN).zip(descriptors) {
        descriptor.emit(place);
    }
    bytes
}

/// Sends a command with this list after `before` other bytes of the capsule. Returns its status.
fn run(host: &mut ScriptedHost, sqe: Sqe, list: &[SglDescriptor], before: usize) -> Status {
    let mut data = vec![0xa5; before];
    data.extend(bytes_of(list));
    let length = (list.len() * SglDescriptor::LEN) as u32;
    let dptr = SglDescriptor::segment_in_capsule(before as u64, length);
    let cid = host.send_capsule(Sqe { dptr, ..sqe }, &data);
    let answer = host.answer().expect("the queue is open");
    assert_eq!(answer.cid, cid);
    answer.status
}

/// Writes `lengths` from separate blocks, reads them into other blocks, and compares.
fn assert_scattered(host: &mut ScriptedHost, lengths: &[u32], before: usize) {
    let total: u32 = lengths.iter().sum();
    let data = pattern(lengths.len() as u8, total as usize);
    let list = |base: u64, host: &ScriptedHost| -> Vec<_> {
        // Blocks in descending order, with gaps, show that each one has its own address.
        let place = |at: usize| base + (lengths.len() - at) as u64 * (3 << 20) / 2;
        lengths.iter().enumerate().map(|(at, length)| block(host, place(at), *length)).collect()
    };
    let (from, to) = (list(0, host), list(28 << 20, host));
    let mut start = 0;
    for descriptor in &from {
        let block = descriptor.keyed_block().expect("keyed");
        let end = start + block.length_bytes as usize;
        host.put(block.address, &data[start..end]);
        start = end;
    }
    let written = run(host, write(8, total as usize).sqe, &from, before);
    assert_eq!(written, Status::SUCCESS, "{lengths:?}");
    assert_eq!(run(host, read(8, total as usize).sqe, &to, before), Status::SUCCESS);
    let blocks = to.iter().map(|descriptor| descriptor.keyed_block().expect("keyed"));
    let got: Vec<_> =
        blocks.flat_map(|block| host.get(block.address, block.length_bytes as usize)).collect();
    assert!(got == data, "{lengths:?}");
}

#[test]
fn data_in_several_blocks_arrive_in_order() {
    let stand = Stand::new();
    let (_admin, mut io) = connected(&stand, HOST, 8);
    assert_scattered(&mut io, &[4096], 0);
    assert_scattered(&mut io, &[512, 4096], 0);
    assert_scattered(&mut io, &[1, 510, 1, 512], 16);
    assert_scattered(&mut io, &[4096; 16], 4096 - 256);
    assert_scattered(&mut io, &[65_536; 16], 64);
    // Blocks with the length 0 are valid anywhere in the list.
    assert_scattered(&mut io, &[0, 512, 0, 512, 0], 0);
    assert_works(&mut io, 1);
}

#[test]
fn blocks_larger_than_a_request_are_split() {
    let stand = Stand::with(|config| {
        config.subsystems[0].config.max_transfer_bytes = 8 << 20;
    });
    let (_admin, mut io) = connected(&stand, HOST, 8);
    assert_scattered(&mut io, &[512, (1 << 20) + 512, 1 << 20], 0);
}

#[test]
fn invalid_lists_get_the_status_of_the_specification() {
    let stand = Stand::new();
    let (_other_admin, mut other) = connected(&stand, OTHER, 8);
    let (mut admin, mut io) = connected(&stand, HOST, 8);
    let flush = command::flush(1).sqe;
    let small = block(&io, 0, 512);
    let with_id = |id| SglDescriptor { id, ..small };
    let largest = block(&io, 0, 0xff_ffff);
    for (list, status) in [
        (vec![small; 17], Status::INVALID_SGL_COUNT),
        (vec![small; 255], Status::INVALID_SGL_COUNT),
        (vec![], Status::INVALID_SGL_SEGMENT),
        (vec![SglDescriptor::in_capsule(0, 512)], Status::SGL_TYPE_INVALID),
        (vec![small, SglDescriptor::segment_in_capsule(0, 16)], Status::SGL_TYPE_INVALID),
        (vec![small, with_id(0x41)], Status::SGL_TYPE_INVALID),
        (vec![small, with_id(0x10)], Status::SGL_TYPE_INVALID),
        (vec![largest, block(&io, 0, 1)], Status::DATA_SGL_LENGTH_INVALID),
        (vec![largest; 16], Status::DATA_SGL_LENGTH_INVALID),
        // A length that differs from the command's.
        (vec![small; 7], Status::DATA_SGL_LENGTH_INVALID),
        (vec![small; 9], Status::DATA_SGL_LENGTH_INVALID),
        (vec![block(&io, 0, 0); 16], Status::DATA_SGL_LENGTH_INVALID),
    ] {
        for command in [read(0, 4096), write(0, 4096)] {
            let got = run(&mut io, command.sqe, &list, 0);
            assert_eq!(got, status.with_dnr(), "{list:?}");
        }
    }
    // Segments that are not in the capsule, or have no whole number of descriptors.
    let data = bytes_of(&[small; 8]);
    for (offset, length, status) in [
        (16, 128, Status::SGL_OFFSET_INVALID),
        (1, 128, Status::SGL_OFFSET_INVALID),
        (128, 16, Status::SGL_OFFSET_INVALID),
        (4096, 128, Status::SGL_OFFSET_INVALID),
        (u64::MAX, 128, Status::SGL_OFFSET_INVALID),
        (u64::MAX - 127, 128, Status::SGL_OFFSET_INVALID),
        (0, 0, Status::INVALID_SGL_SEGMENT),
        (0, 127, Status::INVALID_SGL_SEGMENT),
        (0, u32::MAX, Status::INVALID_SGL_SEGMENT),
        (0, u32::MAX - 15, Status::INVALID_SGL_COUNT),
    ] {
        for sqe in [read(0, 4096).sqe, write(0, 4096).sqe, flush] {
            let dptr = SglDescriptor::segment_in_capsule(offset, length);
            io.send_capsule(Sqe { dptr, ..sqe }, &data);
            let got = io.answer().expect("the queue is open").status;
            assert_eq!(got, status.with_dnr(), "{offset} {length}");
        }
    }
    // A capsule of the admin queue has no room for a list.
    let dptr = SglDescriptor::segment_in_capsule(0, 16);
    admin.send_capsule(Sqe { dptr, ..command::identify_controller().sqe }, &[]);
    let got = admin.answer().expect("the queue is open").status;
    assert_eq!(got, Status::SGL_OFFSET_INVALID.with_dnr());
    assert_works(&mut io, 2);
    assert_works(&mut other, 3);
}

#[test]
fn a_list_with_a_wrong_key_or_range_closes_only_its_own_queue() {
    let stand = Stand::new();
    let (_other_admin, mut other) = connected(&stand, OTHER, 8);
    for command in [read(0, 4096), write(0, 4096)] {
        for place in 0..8 {
            let (_admin, mut io) = connected(&stand, HOST, 8);
            let keys = io.keys();
            let beyond = keys.address() + keys.bytes() - 511;
            let (address, key) = match place % 2 {
                0 => (keys.address(), keys.rkey() ^ 0x5555_5500),
                _ => (beyond, keys.rkey()),
            };
            let wrong = KeyedBlock { address, length_bytes: 512, key, invalidate: false };
            let mut list = [block(&io, 0, 512); 8];
            list[place] = SglDescriptor::keyed(wrong);
            let dptr = SglDescriptor::segment_in_capsule(0, 128);
            io.send_capsule(Sqe { dptr, ..command.sqe }, &bytes_of(&list));
            io.expect_end();
            drop(io);
            assert_works(&mut other, place as u8);
        }
    }
}

#[test]
fn the_response_invalidates_the_key_of_the_last_block() {
    let stand = Stand::new();
    let (_admin, mut io) = connected(&stand, HOST, 8);
    let keys = io.keys();
    let invalidating = SglDescriptor::keyed(KeyedBlock {
        address: keys.address() + PLACE,
        length_bytes: 512,
        key: keys.rkey(),
        invalidate: true,
    });
    // The host's whole memory has one key, so the test cannot use the queue after this response.
    let list = [block(&io, 0, 512), invalidating];
    let dptr = SglDescriptor::segment_in_capsule(0, 32);
    io.send_capsule(Sqe { dptr, ..read(0, 1024).sqe }, &bytes_of(&list));
    let answer = io.answer().expect("the queue is open");
    assert_eq!((answer.status, answer.invalidated), (Status::SUCCESS, Some(keys.rkey())));
}
