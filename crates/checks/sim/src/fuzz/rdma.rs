//! Private data and data pointers of NVMe/RDMA. For each, a second parser in this file (the oracle)
//! computes the expected result.

use super::Input;
use farblock_proto::capsule::{self, DataPointer, RemoteForm};
use farblock_proto::rdma::{Admission, Granted, Offer, Reads, rejection};
use farblock_wire::rdma::RejectStatus;
use farblock_wire::{SglDescriptor, Sqe, Status};

/// Fuzzes the bytes that a peer sends over RDMA: the private data of a connect request, of its
/// answer and of a rejection, and a command's data pointer and list of descriptors.
///
/// # Panics
/// Panics if a result differs from the oracle's.
pub fn rdma(data: &[u8]) {
    let mut input = Input(data);
    match input.byte() % 5 {
        0 => request(&mut input),
        1 => answer(&mut input),
        2 => reject(&mut input),
        4 => segment(&mut input),
        _ => pointer(&mut input),
    }
}

/// The little-endian number at an offset; `None` if `data` has fewer than `whole` bytes.
fn number(data: &[u8], at: usize, whole: usize) -> Option<u16> {
    (data.len() >= whole).then(|| u16::from_le_bytes([data[at], data[at + 1]]))
}

fn request(input: &mut Input<'_>) {
    let [max_io_queues, max_entries, choice] = input.bytes::<3>().map(u16::from);
    let [host_answers, host_starts, own_answers, own_starts] = input.bytes::<4>();
    let host = Reads { answers: host_answers, starts: host_starts };
    let own = Reads { answers: own_answers, starts: own_starts };
    let (max_entries, has_resources) = (2 + max_entries * 4, choice & 1 != 0);
    let offer = Offer { max_io_queues, max_entries, has_resources };
    let data = input.0;
    let field = |at| number(data, at, 32).unwrap_or_default();
    let (receives, sends) = (u32::from(field(4)), u32::from(field(6)) + 1);
    let expected = [
        (data.len() < 32, RejectStatus::INVALID_LENGTH),
        (field(0) != 0, RejectStatus::INVALID_RECFMT),
        (field(2) > max_io_queues, RejectStatus::INVALID_QID),
        (sends < 2, RejectStatus::INVALID_HSQSIZE),
        (receives < 2, RejectStatus::INVALID_HRQSIZE),
        (host_answers == 0, RejectStatus::INVALID_IRD),
        (host_starts > 0 && own_answers == 0, RejectStatus::INVALID_ORD),
        (!has_resources || own_starts == 0, RejectStatus::NO_RESOURCES),
    ];
    let expected = expected.into_iter().find(|(is_wrong, _)| *is_wrong).map(|(_, status)| status);
    let admitted = Admission::admit(data, host, own, &offer);
    assert_eq!(admitted.err(), expected);
    let Ok(admission) = admitted else { return };
    assert_eq!((admission.announced.queue.0, admission.announced.cntlid), (field(2), field(8)));
    assert_eq!(u32::from(admission.entries), receives.min(sends).min(max_entries.into()));
    assert_eq!(admission.reads, host_answers.min(own_starts));
}

fn answer(input: &mut Input<'_>) {
    let requested = 2 + u16::from(input.byte()) * 4;
    let data = input.0;
    let expected = number(data, 0, 32).filter(|recfmt| *recfmt == 0);
    let expected = expected.and(number(data, 2, 32)).filter(|entries| *entries >= 2);
    let granted = Granted::parse(data, requested).ok().map(|granted| granted.entries);
    assert_eq!(granted, expected.map(|entries| entries.min(requested)));
}

fn reject(input: &mut Input<'_>) {
    let recfmt = number(input.0, 0, 4).filter(|recfmt| *recfmt == 0);
    let expected = recfmt.and(number(input.0, 2, 4)).filter(|status| *status != 0);
    assert_eq!(rejection(input.0).map(|status| status.0), expected);
}

fn pointer(input: &mut Input<'_>) {
    let bytes = input.bytes::<{ Sqe::LEN }>();
    let sqe = Sqe::parse(&bytes).expect("an entry has these bytes");
    let length = u32::from_le_bytes([bytes[32], bytes[33], bytes[34], bytes[35]]);
    let address = u64::from_le_bytes(std::array::from_fn(|at| bytes[24 + at]));
    let expected = match (bytes[1] >> 6, bytes[39]) {
        (0 | 3, _) => Err(Status::INVALID_FIELD.with_dnr()),
        (_, 0x01) if address != 0 => Err(Status::SGL_OFFSET_INVALID.with_dnr()),
        (_, 0x01) => Ok((true, length)),
        // The length has three bytes.
        (_, 0x40 | 0x4f) => Ok((false, length & 0xff_ffff)),
        _ => Err(Status::SGL_TYPE_INVALID.with_dnr()),
    };
    let parsed = DataPointer::parse(&sqe, RemoteForm::Keyed);
    assert_eq!(parsed.map(|it| (it.is_in_capsule(), it.length())), expected);
    if let Some(block) = sqe.dptr.keyed_block() {
        assert_eq!((block.address, block.length_bytes), (address, length & 0xff_ffff));
        assert_eq!(block.key, u32::from_le_bytes(std::array::from_fn(|at| bytes[35 + at])));
        assert_eq!(block.invalidate, bytes[39] == 0x4f);
    }
}

/// A list of descriptors in a capsule: its descriptor, and the capsule's data.
fn segment(input: &mut Input<'_>) {
    let bytes = input.bytes::<{ SglDescriptor::LEN }>();
    let dptr = SglDescriptor::parse(&bytes).expect("a descriptor has these bytes");
    let address = u128::from(u64::from_le_bytes(std::array::from_fn(|at| bytes[at])));
    let length = u32::from_le_bytes(std::array::from_fn(|at| bytes[8 + at]));
    let data = input.0;
    let expected = [
        (length == 0 || length % 16 != 0, Status::INVALID_SGL_SEGMENT),
        (length / 16 > 16, Status::INVALID_SGL_COUNT),
        (address + u128::from(length) > data.len() as u128, Status::SGL_OFFSET_INVALID),
    ];
    let expected = expected.into_iter().find(|(is_wrong, _)| *is_wrong);
    let range = capsule::segment_range(&dptr, data.len());
    let wanted = expected.map(|(_, status)| status.with_dnr());
    assert_eq!(range.as_ref().err().copied(), wanted);
    let Ok(range) = range else { return };
    assert_eq!((range.start as u128, range.len()), (address, length as usize));
    let descriptors: Vec<_> = data[range.clone()].chunks(16).collect();
    let is_keyed = descriptors.iter().all(|it| [0x40, 0x4f].contains(&it[15]));
    let lengths = descriptors.iter().map(|it| u64::from(it[8]) | u64::from(it[9]) << 8);
    let lengths = lengths.zip(&descriptors).map(|(low, it)| low | u64::from(it[10]) << 16);
    let sum: u64 = lengths.sum();
    match capsule::segment_blocks(&data[range]) {
        Ok((blocks, whole)) => {
            assert!(is_keyed && sum <= 0xff_ffff);
            assert_eq!(blocks.len(), descriptors.len());
            let whole = whole.keyed_block().expect("keyed");
            assert_eq!(u64::from(whole.length_bytes), sum);
            assert_eq!(Some(whole.key), blocks.last().map(|it| it.key));
        }
        Err(status) if is_keyed => {
            assert!(sum > 0xff_ffff && status == Status::DATA_SGL_LENGTH_INVALID.with_dnr());
        }
        Err(status) => assert_eq!(status, Status::SGL_TYPE_INVALID.with_dnr()),
    }
}
