//! Tests of the admission of RDMA connections by a controller, and of a host's check of the
//! answers.

use farblock_proto::ids::QueueId;
use farblock_proto::rdma::{Admission, Announced, AnswerError, Granted, Offer, Reads, rejection};
use farblock_wire::fabrics::{ConnectCommand, ConnectData, ConnectInvalidParameter};
use farblock_wire::rdma::{CmAccept, CmReject, CmRequest, RejectStatus};
use farblock_wire::{IntoBytes, U16};
use proptest::prelude::*;

const OFFER: Offer = Offer { max_io_queues: 16, max_entries: 256, has_resources: true };

/// A device that answers and starts 16 READs.
const DEVICE: Reads = Reads { answers: 16, starts: 16 };
/// A host that answers 16 READs and starts none, as Linux and SPDK do.
const HOST: Reads = Reads { answers: 16, starts: 0 };

/// Returns a controller's decision about a request, in the form that RoCE delivers.
fn admit(request: CmRequest) -> Result<Admission, RejectStatus> {
    let mut data = request.as_bytes().to_vec();
    data.resize(56, 0);
    Admission::admit(&data, HOST, DEVICE, &OFFER)
}

fn refused(change: impl FnOnce(&mut CmRequest)) -> RejectStatus {
    let mut request = CmRequest::new(1, 128, 127, 1);
    change(&mut request);
    admit(request).expect_err("an invalid request")
}

#[test]
fn the_queue_size_is_the_smallest_of_all_limits() {
    let entries = |hrqsize, hsqsize_z| {
        admit(CmRequest::new(1, hrqsize, hsqsize_z, 1)).expect("a valid request").entries
    };
    assert_eq!(entries(128, 127), 128);
    assert_eq!(entries(128, 63), 64);
    assert_eq!(entries(32, 127), 32);
    assert_eq!(entries(1024, 1023), OFFER.max_entries);
    assert_eq!(entries(u16::MAX, u16::MAX), OFFER.max_entries);
    assert_eq!(entries(2, 1), 2);
}

#[test]
fn an_admin_queue_request_of_linux_is_admitted() {
    let admission = admit(CmRequest::new(0, 32, 31, 0)).expect("a valid request");
    let announced = Announced { queue: QueueId(0), cntlid: 0 };
    assert_eq!(admission, Admission { announced, entries: 32, reads: 16 });
    assert_eq!(admission.answer(), CmAccept::new(32));
}

#[test]
fn each_invalid_field_has_its_status() {
    let request = CmRequest::new(1, 128, 127, 1);
    for bytes in [0, 1, 31] {
        let data = &request.as_bytes()[..bytes];
        let status = Admission::admit(data, HOST, DEVICE, &OFFER).expect_err("too short");
        assert_eq!(status, RejectStatus::INVALID_LENGTH);
    }
    assert_eq!(refused(|r| r.recfmt = U16::new(1)), RejectStatus::INVALID_RECFMT);
    assert_eq!(refused(|r| r.qid = U16::new(17)), RejectStatus::INVALID_QID);
    assert_eq!(refused(|r| r.hsqsize_z = U16::new(0)), RejectStatus::INVALID_HSQSIZE);
    assert_eq!(refused(|r| r.hrqsize = U16::new(0)), RejectStatus::INVALID_HRQSIZE);
    assert_eq!(refused(|r| r.hrqsize = U16::new(1)), RejectStatus::INVALID_HRQSIZE);
    admit(CmRequest::new(16, 2, 1, 1)).expect("the largest queue identifier");
}

#[test]
fn outstanding_rdma_reads_are_limited_by_both_ends() {
    let request = CmRequest::new(1, 128, 127, 1);
    let reads = |answers, starts| {
        let (host, own) = (Reads { answers, ..HOST }, Reads { starts, ..DEVICE });
        Admission::admit(request.as_bytes(), host, own, &OFFER).map(|a| a.reads)
    };
    assert_eq!(reads(1, 16), Ok(1), "one READ at a time suffices, for ESXi");
    assert_eq!(reads(16, 4), Ok(4));
    assert_eq!(reads(0, 16), Err(RejectStatus::INVALID_IRD));
    assert_eq!(reads(16, 0), Err(RejectStatus::NO_RESOURCES), "a device without READs is refused");
}

#[test]
fn a_host_may_start_more_reads_than_a_device_answers_if_the_device_answers_any() {
    let request = CmRequest::new(1, 128, 127, 1);
    let admitted = |starts, answers| {
        let (host, own) = (Reads { starts, ..HOST }, Reads { answers, ..DEVICE });
        Admission::admit(request.as_bytes(), host, own, &OFFER).map(|a| a.reads)
    };
    assert_eq!(admitted(1, 16), Ok(16));
    assert_eq!(
        admitted(u8::MAX, 16),
        Ok(16),
        "a host may announce more READs than the device answers"
    );
    assert_eq!(admitted(0, 0), Ok(16));
    assert_eq!(admitted(1, 0), Err(RejectStatus::INVALID_ORD));
}

#[test]
fn a_connect_command_is_for_the_announced_queue() {
    let check = |announced: (u16, u16), connect: (u16, u16)| {
        let announced = Announced { queue: QueueId(announced.0), cntlid: announced.1 };
        let mut data = ConnectData::zeroed();
        data.cntlid = U16::new(connect.1);
        announced.check(&ConnectCommand::new(0, connect.0, 31, 0), &data)
    };
    let other_queue = ConnectInvalidParameter::in_command(42).emit();
    let other_controller = ConnectInvalidParameter::in_data(16).emit();
    assert_eq!(check((1, 7), (1, 7)), Ok(()));
    assert_eq!(check((1, 0), (1, 7)), Ok(()), "an older host announces controller 0");
    assert_eq!(check((0, 0), (0, 0xffff)), Ok(()));
    assert_eq!(check((0, 9), (0, 0xffff)), Ok(()), "the admin queue has no controller yet");
    assert_eq!(check((1, 7), (2, 7)).map_err(|it| it.result), Err(other_queue));
    assert_eq!(check((0, 0), (1, 7)).map_err(|it| it.result), Err(other_queue));
    assert_eq!(check((1, 0), (0, 0xffff)).map_err(|it| it.result), Err(other_queue));
    assert_eq!(check((1, 7), (1, 8)).map_err(|it| it.result), Err(other_controller));
}

#[test]
fn an_invalid_request_gets_its_own_status_even_without_resources() {
    let offer = Offer { has_resources: false, ..OFFER };
    let valid = CmRequest::new(1, 128, 127, 1);
    let status = Admission::admit(valid.as_bytes(), HOST, DEVICE, &offer);
    assert_eq!(status, Err(RejectStatus::NO_RESOURCES));
    let invalid = CmRequest::new(99, 128, 127, 1);
    let status = Admission::admit(invalid.as_bytes(), HOST, DEVICE, &offer);
    assert_eq!(status, Err(RejectStatus::INVALID_QID));
}

#[test]
fn a_host_obeys_the_controllers_answer() {
    let granted = |entries| Granted::parse(CmAccept::new(entries).as_bytes(), 128);
    assert_eq!(granted(64), Ok(Granted { entries: 64 }));
    assert_eq!(granted(256), Ok(Granted { entries: 128 }));
    assert_eq!(granted(1), Err(AnswerError::Entries(1)));
    assert_eq!(Granted::parse(&[0; 31], 128), Err(AnswerError::Length(31)));
    let newer = CmAccept { recfmt: U16::new(1), ..CmAccept::new(64) };
    assert_eq!(Granted::parse(newer.as_bytes(), 128), Err(AnswerError::Format(1)));
}

#[test]
fn a_host_parses_the_reason_of_a_rejection() {
    for code in 1..=8 {
        let mut data = CmReject::new(RejectStatus(code)).as_bytes().to_vec();
        data.resize(148, 0);
        assert_eq!(rejection(&data), Some(RejectStatus(code)));
    }
    assert_eq!(rejection(&[0; 148]), None, "the data is not from an NVMe controller");
    assert_eq!(rejection(&[1, 0, 1, 0]), None);
    assert_eq!(rejection(&[0, 0, 1]), None);
}

proptest! {
    #[test]
    fn arbitrary_private_data_never_exceed_the_limits(
        data in proptest::collection::vec(any::<u8>(), 0..200),
        answers: u8,
        starts: u8,
    ) {
        if let Ok(admission) = Admission::admit(&data, Reads { answers, starts }, DEVICE, &OFFER) {
            prop_assert!((2..=OFFER.max_entries).contains(&admission.entries));
            prop_assert!((1..=16).contains(&admission.reads));
            prop_assert!(admission.announced.queue.0 <= OFFER.max_io_queues);
        }
        let _ = Granted::parse(&data, 128);
        let _ = rejection(&data);
    }
}
