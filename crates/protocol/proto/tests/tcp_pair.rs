//! Tests of the two ends of the TCP transport. In some tests, a host end and a controller end
//! exchange messages, and each receives the stream in pieces of every size. In others, an end
//! receives bytes that a correct peer would never send.

use farblock_proto::capsule::{DataPointer, RemoteForm};
use farblock_proto::limits;
use farblock_proto::tcp::controller_end::{self, ControllerEnd, Event as FromHost, PushPart};
use farblock_proto::tcp::host_end::{Event as FromController, HostEnd, Transfer};
use farblock_proto::tcp::{Digests, SlotId};
use farblock_wire::tcp::{FatalErrorStatus, IcReq, PduType};
use farblock_wire::{Cqe, IntoBytes, SglDescriptor, Sqe, Status};
use proptest::prelude::*;

const ALL_DIGESTS: [Digests; 4] = [Digests::NONE, Digests::HEADER, Digests::DATA, Digests::BOTH];
const DEPTH: u16 = 8;

/// A controller's end with an array of bytes as its disk. Opcode 1 writes cdw10 bytes at offset 0,
/// and opcode 2 reads them.
struct Controller {
    end: ControllerEnd,
    disk: Vec<u8>,
    buffers: Vec<(Sqe, Vec<u8>)>,
    out: Vec<u8>,
    intact: bool,
}

impl Controller {
    fn new(success_flag: bool) -> Self {
        let mut end = ControllerEnd::new(controller_end::Config::default());
        end.set_depth(DEPTH);
        end.set_success_flag(success_flag);
        let buffers = (0..DEPTH).map(|_| (Sqe::zeroed(), Vec::new())).collect();
        Self { end, disk: Vec::new(), buffers, out: Vec::new(), intact: true }
    }

    fn feed(&mut self, mut input: &[u8]) {
        while let Some(event) = self.end.next(&mut input, &mut self.out).expect("a valid PDU") {
            match event {
                FromHost::Initialized => {}
                FromHost::Command { slot, sqe } => self.command(slot, sqe),
                FromHost::Data { slot, offset, bytes } => {
                    let buffer = &mut self.buffers[usize::from(slot.0)].1;
                    buffer[offset as usize..][..bytes.len()].copy_from_slice(bytes);
                }
                FromHost::Pulled { slot, intact } => {
                    self.intact &= intact;
                    self.disk = std::mem::take(&mut self.buffers[usize::from(slot.0)].1);
                    self.respond(slot);
                }
                FromHost::Terminated { status } => panic!("terminated: {status}"),
            }
        }
    }

    fn command(&mut self, slot: SlotId, sqe: Sqe) {
        let length = sqe.cdw10.get();
        if sqe.opcode == 1 {
            let pointer = DataPointer::parse(&sqe, RemoteForm::Transport).expect("a data pointer");
            self.end.pull(slot, pointer, &mut self.out).expect("a matching length");
            self.buffers[usize::from(slot.0)] = (sqe, vec![0xa5; length as usize]);
            return;
        }
        let data = self.disk[..length as usize].to_vec();
        // Push the data in two parts, to cover offsets other than 0.
        let (front, back) = data.split_at(data.len() / 2);
        let mut ended = false;
        for (offset, piece, part) in
            [(0, front, PushPart::More), (front.len(), back, PushPart::Final)]
        {
            if piece.is_empty() {
                continue;
            }
            let length = piece.len() as u32;
            ended = self.end.push_header(slot, offset as u32, length, part, &mut self.out);
            self.out.extend_from_slice(piece);
            self.out.extend(self.end.data_digest(piece).into_iter().flatten());
        }
        if !ended {
            self.respond(slot);
        }
    }

    fn respond(&mut self, slot: SlotId) {
        self.end.respond(slot, &Cqe::success(0, 0), &mut self.out);
    }
}

struct Host {
    end: HostEnd,
    out: Vec<u8>,
    write: Vec<u8>,
    read: Vec<u8>,
    completed: Vec<(SlotId, Status, bool)>,
}

impl Host {
    fn new(digests: Digests) -> Self {
        let end = HostEnd::new(digests, DEPTH);
        let mut out = Vec::new();
        end.start(&mut out);
        Self { end, out, write: Vec::new(), read: Vec::new(), completed: Vec::new() }
    }

    fn write(&mut self, slot: u16, data: Vec<u8>, in_capsule: bool) {
        let length = data.len() as u32;
        let mut sqe = Sqe::new(1, 0, 1);
        sqe.cdw10 = length.into();
        let transfer = if in_capsule {
            sqe.dptr = SglDescriptor::in_capsule(0, length);
            Transfer::InCapsule(length)
        } else {
            sqe.dptr = SglDescriptor::transport(length);
            Transfer::ToController(length)
        };
        self.end.submit(SlotId(slot), &sqe, transfer, &mut self.out);
        if in_capsule {
            self.out.extend_from_slice(&data);
            self.out.extend(self.end.data_digest(&data).into_iter().flatten());
        }
        self.write = data;
    }

    fn read(&mut self, slot: u16, length: u32) {
        let mut sqe = Sqe::new(2, 0, 1);
        sqe.cdw10 = length.into();
        sqe.dptr = SglDescriptor::transport(length);
        self.read = vec![0xa5; length as usize];
        self.end.submit(SlotId(slot), &sqe, Transfer::FromController(length), &mut self.out);
    }

    fn feed(&mut self, mut input: &[u8]) {
        while let Some(event) = self.end.next(&mut input).expect("a valid controller PDU") {
            match event {
                FromController::Initialized => {}
                FromController::Data { offset, bytes, .. } => {
                    self.read[offset as usize..][..bytes.len()].copy_from_slice(bytes);
                }
                FromController::Wanted(mut grant) => {
                    while let Some(range) = self.end.data_header(&mut grant, &mut self.out) {
                        let piece = &self.write[range];
                        self.out.extend_from_slice(piece);
                        self.out.extend(self.end.data_digest(piece).into_iter().flatten());
                    }
                }
                FromController::Completed { slot, cqe, intact, .. } => {
                    self.completed.push((slot, cqe.status(), intact));
                }
                FromController::Terminated { status } => panic!("terminated: {status}"),
            }
        }
    }
}

/// Exchanges bytes, at most `chunk` at a time, until both ends have nothing to send.
fn exchange(host: &mut Host, controller: &mut Controller, chunk: usize) {
    loop {
        let (to_controller, to_host) =
            (std::mem::take(&mut host.out), std::mem::take(&mut controller.out));
        if to_controller.is_empty() && to_host.is_empty() {
            return;
        }
        to_controller.chunks(chunk).for_each(|piece| controller.feed(piece));
        to_host.chunks(chunk).for_each(|piece| host.feed(piece));
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 31 + 7) as u8).collect()
}

#[test]
fn data_survives_every_digest_and_every_split() {
    for digests in ALL_DIGESTS {
        for chunk in 1..=200 {
            for in_capsule in [false, true] {
                let mut host = Host::new(digests);
                let mut controller = Controller::new(chunk % 2 == 0);
                exchange(&mut host, &mut controller, chunk);
                assert_eq!(controller.end.digests(), digests);
                assert_eq!(host.end.digests(), digests);
                let data = pattern(531);
                host.write(3, data.clone(), in_capsule);
                exchange(&mut host, &mut controller, chunk);
                host.read(5, 531);
                exchange(&mut host, &mut controller, chunk);
                assert_eq!(host.read, data);
                let done = |slot| (SlotId(slot), Status::SUCCESS, true);
                assert_eq!(host.completed, [done(3), done(5)]);
                assert!(controller.intact);
                assert_eq!(controller.end.in_flight(), 0);
            }
        }
    }
}

#[test]
fn large_writes_arrive_in_pieces_of_the_agreed_size() {
    let mut host = Host::new(Digests::BOTH);
    let mut controller = Controller::new(true);
    controller.end = ControllerEnd::new(controller_end::Config {
        max_h2c_data_bytes: 4096,
        ..controller_end::Config::default()
    });
    exchange(&mut host, &mut controller, 1 << 20);
    let data = pattern(100_000);
    host.write(0, data.clone(), false);
    exchange(&mut host, &mut controller, 1000);
    assert_eq!(controller.disk, data);
    assert_eq!(host.completed, [(SlotId(0), Status::SUCCESS, true)]);
}

/// Returns both ends after the IC exchange, with no commands in flight.
fn initialized(digests: Digests) -> (Host, Controller) {
    let (mut host, mut controller) = (Host::new(digests), Controller::new(true));
    exchange(&mut host, &mut controller, 1 << 20);
    (host, controller)
}

#[test]
fn a_flipped_data_bit_affects_only_its_command() {
    let (mut host, mut controller) = initialized(Digests::BOTH);
    host.write(1, pattern(600), true);
    let mut bytes = std::mem::take(&mut host.out);
    let length = bytes.len();
    bytes[length - 100] ^= 1;
    controller.feed(&bytes);
    assert!(!controller.intact);
    controller.intact = true;
    exchange(&mut host, &mut controller, 1 << 20);
    host.write(1, pattern(600), true);
    exchange(&mut host, &mut controller, 1 << 20);
    assert!(controller.intact);

    host.read(2, 600);
    exchange_with(&mut host, &mut controller, |to_host| {
        to_host[100] ^= 4; // in the data of the first PDU
    });
    assert_eq!(host.completed.pop(), Some((SlotId(2), Status::SUCCESS, false)));
}

/// Makes one round trip in which `tamper` changes the controller's bytes.
fn exchange_with(host: &mut Host, controller: &mut Controller, tamper: impl Fn(&mut Vec<u8>)) {
    controller.feed(&std::mem::take(&mut host.out));
    let mut to_host = std::mem::take(&mut controller.out);
    tamper(&mut to_host);
    host.feed(&to_host);
}

/// Returns the fault that the controller's end reports for bytes after the IC exchange.
fn controller_fault(digests: Digests, bytes: &[u8]) -> Option<(FatalErrorStatus, u32)> {
    let (_, mut controller) = initialized(digests);
    let mut input = bytes;
    loop {
        match controller.end.next(&mut input, &mut controller.out) {
            Ok(Some(_)) => {}
            Ok(None) => return None,
            Err(fault) => {
                let before = controller.out.len();
                controller.end.terminate(&fault, &mut controller.out);
                let term = &controller.out[before..];
                assert_eq!(term[0], PduType::C2H_TERM_REQ.0);
                assert_eq!(term[8..10], fault.status.0.to_le_bytes());
                assert_eq!(term[10..14], fault.information.to_le_bytes());
                return Some((fault.status, fault.information));
            }
        }
    }
}

fn common(pdu_type: u8, flags: u8, hlen: u8, pdo: u8, plen: u32) -> Vec<u8> {
    let mut bytes = vec![pdu_type, flags, hlen, pdo];
    bytes.extend(plen.to_le_bytes());
    bytes.resize(usize::from(hlen).max(8), 0);
    bytes
}

#[test]
fn a_broken_header_is_reported_with_status_and_offset() {
    const FIELD: FatalErrorStatus = FatalErrorStatus::INVALID_PDU_HEADER_FIELD;
    const SEQUENCE: FatalErrorStatus = FatalErrorStatus::PDU_SEQUENCE_ERROR;
    let cases: &[(Vec<u8>, FatalErrorStatus, u32)] = &[
        (common(0x0a, 0, 24, 0, 24), FIELD, 0),
        (common(0xff, 0, 24, 0, 24), FIELD, 0),
        // PDUs that only a controller may send.
        (common(0x07, 0, 24, 24, 28), FIELD, 0),
        (common(0x09, 0, 24, 0, 24), FIELD, 0),
        // A second ICReq.
        (common(0x00, 0, 128, 0, 128), SEQUENCE, 0),
        // Command capsules with a wrong header length, wrong flags, a wrong offset and a wrong
        // length.
        (common(0x04, 0, 71, 0, 72), FIELD, 2),
        (common(0x04, 1, 72, 0, 72), FIELD, 1),
        (common(0x04, 2, 72, 72, 76), FIELD, 1),
        (common(0x04, 0, 72, 0, 71), FIELD, 3),
        (common(0x04, 0, 72, 72, 71), FIELD, 4),
        (common(0x04, 0, 72, 70, 80), FIELD, 3),
        (common(0x04, 0, 72, 73, 80), FIELD, 3),
        (common(0x04, 0, 72, 72, u32::MAX), FIELD, 4),
        (common(0x04, 0, 72, 72, 72 + 8193), FIELD, 4),
        // Data PDUs without a transfer.
        (data_pdu(0, 0, 0, 16), FIELD, 10),
        (data_pdu(0xffff, 7, 0, 16), FIELD, 10),
        (data_pdu(0, 0, 0, 0), FIELD, 16),
        (data_pdu(0, 0, 0, u32::MAX - 24), FIELD, 16),
        (common(0x02, 0, 24, 0, 24 + 129), FIELD, 4),
        (common(0x02, 0, 24, 0, 23), FIELD, 4),
    ];
    for (bytes, status, information) in cases {
        let found = controller_fault(Digests::NONE, bytes);
        assert_eq!(found, Some((*status, *information)), "{bytes:02x?}");
    }
}

fn data_pdu(cccid: u16, ttag: u16, datao: u32, datal: u32) -> Vec<u8> {
    let mut bytes = common(0x06, 4, 24, 24, datal.saturating_add(24));
    bytes[8..10].copy_from_slice(&cccid.to_le_bytes());
    bytes[10..12].copy_from_slice(&ttag.to_le_bytes());
    bytes[12..16].copy_from_slice(&datao.to_le_bytes());
    bytes[16..20].copy_from_slice(&datal.to_le_bytes());
    bytes
}

#[test]
fn a_wrong_header_digest_ends_the_connection() {
    let mut capsule = common(0x04, 1, 72, 0, 76);
    capsule.extend([1, 2, 3, 4]);
    let expected = u32::from_le_bytes([1, 2, 3, 4]);
    assert_eq!(
        controller_fault(Digests::HEADER, &capsule),
        Some((FatalErrorStatus::HEADER_DIGEST_ERROR, expected))
    );
}

#[test]
fn early_commands_and_invalid_ic_requests_are_refused() {
    let fault = |bytes: &[u8]| {
        let mut end = ControllerEnd::new(controller_end::Config::default());
        let error = end.next(&mut &bytes[..], &mut Vec::new()).expect_err("an invalid PDU");
        (error.status, error.information)
    };
    assert_eq!(fault(&common(0x04, 0, 72, 0, 72)), (FatalErrorStatus::PDU_SEQUENCE_ERROR, 0));
    let mut request = IcReq::new(0, Digests::NONE, 0);
    request.pfv = 1.into();
    assert_eq!(fault(request.as_bytes()), (FatalErrorStatus::UNSUPPORTED_PARAMETER, 8));
    let request = IcReq::new(32, Digests::NONE, 0);
    assert_eq!(fault(request.as_bytes()), (FatalErrorStatus::INVALID_PDU_HEADER_FIELD, 10));
    assert_eq!(fault(b"GET / HTTP/1.1\r\n").0, FatalErrorStatus::INVALID_PDU_HEADER_FIELD);
}

#[test]
fn data_out_of_order_or_beyond_the_r2t_end_the_connection() {
    for (datao, datal, flags) in [(1, 16, 4), (0, 600, 4), (0, 16, 4)] {
        let (mut host, mut controller) = initialized(Digests::NONE);
        host.write(2, pattern(512), false);
        controller.feed(&std::mem::take(&mut host.out));
        let tag = u16::from_le_bytes(controller.out[10..12].try_into().expect("two bytes"));
        let mut pdu = data_pdu(2, tag, datao, datal);
        pdu[1] = flags;
        let error = controller
            .end
            .next(&mut &pdu[..], &mut Vec::new())
            .expect_err("data out of order or beyond the R2T is accepted");
        assert_ne!(error.status.0, 0);
    }
}

#[test]
fn a_command_beyond_the_queue_depth_ends_the_connection() {
    let (_, mut controller) = initialized(Digests::NONE);
    let capsule = {
        let mut bytes = common(0x04, 0, 72, 0, 72);
        bytes[8] = 1;
        bytes
    };
    let mut commands = 0;
    let error = loop {
        match controller.end.next(&mut &capsule[..], &mut Vec::new()) {
            Ok(Some(FromHost::Command { .. })) => commands += 1,
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    assert_eq!(commands, DEPTH);
    assert_eq!(error.status, FatalErrorStatus::PDU_SEQUENCE_ERROR);
}

#[test]
fn only_io_queues_accept_large_in_capsule_data() {
    for (length, is_io, taken) in
        [(8192, false, true), (8196, false, false), (65536, true, true), (65540, true, false)]
    {
        let (mut host, mut controller) = initialized(Digests::NONE);
        if is_io {
            controller.end.set_in_capsule_bytes(limits::IN_CAPSULE_BYTES);
        }
        host.write(0, pattern(length), true);
        let bytes = std::mem::take(&mut host.out);
        let event = controller.end.next(&mut &bytes[..], &mut Vec::new());
        match event {
            Ok(Some(FromHost::Command { .. })) => assert!(taken, "{length} bytes"),
            Err(fault) => {
                assert!(!taken, "{length} bytes");
                assert_eq!(fault.status, FatalErrorStatus::INVALID_PDU_HEADER_FIELD);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn unused_in_capsule_data_are_skipped() {
    let (mut host, mut controller) = initialized(Digests::BOTH);
    host.write(0, pattern(64), true);
    host.write(1, pattern(32), true);
    let bytes = std::mem::take(&mut host.out);
    let mut input = &bytes[..];
    let mut commands = 0;
    while let Some(event) = controller.end.next(&mut input, &mut Vec::new()).expect("well formed") {
        match event {
            FromHost::Command { .. } => commands += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(commands, 2);
}

/// A host may free its data buffer once a command completes, even if it is still sending the data.
#[test]
fn a_refused_command_completes_after_its_whole_capsule_arrived() {
    for digests in ALL_DIGESTS {
        for waits in [false, true] {
            let (mut host, mut controller) = initialized(digests);
            host.write(0, pattern(4096), true);
            let bytes = std::mem::take(&mut host.out);
            let (mut out, mut refused) = (Vec::new(), None);
            for (byte, at) in bytes.chunks(1).zip(0..) {
                let mut input = byte;
                let event = controller.end.next(&mut input, &mut out).expect("well formed");
                if let Some(FromHost::Command { slot, .. }) = event {
                    refused = Some((slot, at + if waits { 100 } else { 0 }));
                }
                if let Some((slot, _)) = refused.take_if(|(_, when)| *when == at) {
                    controller.end.respond(slot, &Cqe::success(0, 0), &mut out);
                }
                assert_eq!(out.is_empty(), at + 1 < bytes.len(), "{digests:?}, byte {at}");
            }
            host.feed(&out);
            assert_eq!(host.completed, [(SlotId(0), Status::SUCCESS, true)]);
        }
    }
}

/// Returns the fault that the host's end reports for bytes from a controller. A read (slot 1, 512
/// bytes) and a write (slot 2, 512 bytes) are in flight.
fn host_fault(bytes: &[u8]) -> Option<FatalErrorStatus> {
    let (mut host, _) = initialized(Digests::NONE);
    host.write(2, pattern(512), false);
    host.read(1, 512);
    let mut input = bytes;
    loop {
        match host.end.next(&mut input) {
            Ok(Some(_)) => {}
            Ok(None) => return None,
            Err(fault) => return Some(fault.status),
        }
    }
}

fn c2h(cccid: u16, datao: u32, datal: u32, flags: u8) -> Vec<u8> {
    let mut bytes = data_pdu(cccid, 0, datao, datal);
    bytes[0] = 0x07;
    bytes[1] = flags;
    bytes.resize(24 + datal as usize, 0);
    bytes
}

fn r2t(cccid: u16, offset: u32, length: u32) -> Vec<u8> {
    let mut bytes = data_pdu(cccid, 9, offset, length);
    bytes[..8].copy_from_slice(&common(0x09, 0, 24, 0, 24)[..8]);
    bytes
}

#[test]
fn a_host_refuses_data_outside_a_read() {
    let out_of_range = Some(FatalErrorStatus::DATA_TRANSFER_OUT_OF_RANGE);
    let field = Some(FatalErrorStatus::INVALID_PDU_HEADER_FIELD);
    assert_eq!(host_fault(&c2h(1, 0, 512, 4)), None);
    assert_eq!(host_fault(&c2h(1, 0, 513, 4)), out_of_range);
    assert_eq!(host_fault(&c2h(1, 1, 511, 4)), out_of_range);
    assert_eq!(host_fault(&c2h(1, u32::MAX, 1, 4)), out_of_range);
    assert_eq!(host_fault(&[c2h(1, 0, 512, 4), c2h(1, 512, 1, 4)].concat()), out_of_range);
    // The identifiers of a write, of a command that is not in flight, and beyond the queue.
    assert_eq!(host_fault(&c2h(2, 0, 16, 4)), field);
    assert_eq!(host_fault(&c2h(0, 0, 16, 4)), field);
    assert_eq!(host_fault(&c2h(0xffff, 0, 16, 4)), field);
    // A PDU with SUCCESS but without LAST_PDU, and more data for a completed command.
    assert_eq!(host_fault(&c2h(1, 0, 512, 8)), field);
    assert_eq!(host_fault(&[c2h(1, 0, 512, 12), c2h(1, 0, 512, 12)].concat()), field);
}

#[test]
fn a_host_refuses_an_r2t_outside_its_data() {
    let out_of_range = Some(FatalErrorStatus::DATA_TRANSFER_OUT_OF_RANGE);
    assert_eq!(host_fault(&r2t(2, 0, 512)), None);
    assert_eq!(host_fault(&r2t(2, 0, 513)), out_of_range);
    assert_eq!(host_fault(&r2t(2, 1, 1)), out_of_range);
    assert_eq!(host_fault(&r2t(2, 0, 0)), out_of_range);
    assert_eq!(host_fault(&r2t(1, 0, 16)), Some(FatalErrorStatus::INVALID_PDU_HEADER_FIELD));
    let twice = [r2t(2, 0, 16), r2t(2, 16, 16)].concat();
    assert_eq!(host_fault(&twice), Some(FatalErrorStatus::TRANSFER_LIMIT_EXCEEDED));
}

#[test]
fn a_second_completion_is_refused() {
    let mut capsule = common(0x05, 0, 24, 0, 24);
    capsule[20] = 1;
    assert_eq!(host_fault(&capsule), None);
    let field = Some(FatalErrorStatus::INVALID_PDU_HEADER_FIELD);
    assert_eq!(host_fault(&[capsule.clone(), capsule].concat()), field);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// For any input, an end returns events or a fault, and never reads past the input.
    #[test]
    fn arbitrary_bytes_give_events_or_a_fault(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
        valid_start in any::<bool>(),
        kind in 0u8..10,
        digests in 0usize..4,
    ) {
        let (mut host, mut controller) = initialized(ALL_DIGESTS[digests]);
        host.write(2, pattern(512), false);
        host.read(1, 512);
        let mut bytes = bytes;
        if valid_start && bytes.len() >= 8 {
            let hlen = farblock_wire::tcp::PduType(kind).header_len().unwrap_or(24);
            bytes[0] = kind;
            bytes[2] = hlen;
            bytes[4..8].copy_from_slice(&u32::from(hlen).to_le_bytes());
        }
        let mut input = &bytes[..];
        while let Ok(Some(event)) = controller.end.next(&mut input, &mut controller.out) {
            if let FromHost::Command { slot, sqe } = event
                && let Ok(pointer) = DataPointer::parse(&sqe, RemoteForm::Transport)
                && pointer.length() > 0
            {
                let _ = controller.end.pull(slot, pointer, &mut controller.out);
            }
        }
        let mut input = &bytes[..];
        while let Ok(Some(_)) = host.end.next(&mut input) {}
    }
}
