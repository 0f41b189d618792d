//! Tests the PDU parsers (framers) of host and target over TLS, as their connections use them. If a
//! record contains only data of a command, TLS decrypts it directly into the command's buffer. The
//! tests use digests, frequent key updates, and records in arbitrary pieces. In some tests, the
//! last record is damaged in transit.

use farblock_proto::capsule::{DataPointer, RemoteForm};
use farblock_proto::tcp::controller_end::{self, ControllerEnd, Event as FromHost, PushPart};
use farblock_proto::tcp::host_end::{Event as FromController, HostEnd, Transfer};
use farblock_proto::tcp::{Digests, SlotId};
use farblock_secure::{Hash, TlsKey};
use farblock_tls::limits::{OPENED_BYTES, PORTION_BYTES};
use farblock_tls::{ServerKeys, Tls, TlsError, portion};
use farblock_wire::{Cqe, SglDescriptor, Sqe, Status};
use std::sync::Arc;

const HOST: &str = "nqn.2026-11.h:one";
const SUBSYSTEM: &str = "nqn.2026-11.s:one";
const DEPTH: u16 = 8;
/// The byte that fills buffers before data are written into them.
const UNTOUCHED: u8 = 0xa5;
/// TLS changes keys after this many records: several times within one large transfer.
const RECORDS_PER_KEY: u64 = 3;
/// The minimum size in bytes of a payload that is decrypted directly into place.
const DIRECT_BYTES: u32 = 8192;
const READ: u8 = 2;
const WRITE: u8 = 1;

/// The commands of one end, and their buffers.
#[derive(Default)]
struct Buffers {
    all: Vec<Vec<u8>>,
    /// The number of bytes that were decrypted directly into place.
    placed: usize,
}

impl Buffers {
    fn new() -> Self {
        Self { all: vec![Vec::new(); usize::from(DEPTH)], placed: 0 }
    }

    fn of(&mut self, slot: SlotId) -> &mut Vec<u8> {
        &mut self.all[usize::from(slot.0)]
    }

    fn put(&mut self, slot: SlotId, offset: u32, bytes: &[u8]) {
        self.of(slot)[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }
}

/// The common interface of the host and controller ends.
trait End {
    fn wanted(&self) -> Option<(SlotId, u32, u32)>;
    fn received(&mut self, bytes: &[u8]);
    fn buffers(&mut self) -> &mut Buffers;
    fn take_apart(&mut self, input: &[u8]);
}

/// Decrypts input until it is empty or an error occurs.
fn receive(end: &mut impl End, tls: &mut dyn Tls, mut sealed: &[u8]) -> Option<TlsError> {
    let mut plain = vec![0; OPENED_BYTES];
    loop {
        if let Some((slot, offset, left)) = end.wanted()
            && left >= DIRECT_BYTES
        {
            let mut buffer = std::mem::take(end.buffers().of(slot));
            let place = &mut buffer[offset as usize..(offset + left) as usize];
            let (count, ended) = tls.open_some(&mut sealed, place);
            end.received(&place[..count]);
            *end.buffers().of(slot) = buffer;
            end.buffers().placed += count;
            end.take_apart(&[]);
            if ended.is_some() {
                return ended;
            }
            if count > 0 {
                continue;
            }
        }
        let (count, ended) = tls.open_some(&mut sealed, &mut plain);
        end.take_apart(&plain[..count]);
        if ended.is_some() || count == 0 {
            return ended;
        }
    }
}

struct ControllerSide {
    end: ControllerEnd,
    buffers: Buffers,
    out: Vec<u8>,
    /// The data of each write, as received by the target.
    written: Vec<Vec<u8>>,
    disk: Vec<u8>,
}

impl End for ControllerSide {
    fn wanted(&self) -> Option<(SlotId, u32, u32)> {
        self.end.data_wanted()
    }

    fn received(&mut self, bytes: &[u8]) {
        self.end.data_received(bytes);
    }

    fn buffers(&mut self) -> &mut Buffers {
        &mut self.buffers
    }

    fn take_apart(&mut self, mut input: &[u8]) {
        while let Some(event) = self.end.next(&mut input, &mut self.out).expect("a valid PDU") {
            match event {
                FromHost::Initialized => {}
                FromHost::Command { slot, sqe } => self.command(slot, &sqe),
                FromHost::Data { slot, offset, bytes } => self.buffers.put(slot, offset, bytes),
                FromHost::Pulled { slot, intact } => {
                    assert!(intact, "a wrong digest");
                    self.written.push(std::mem::take(self.buffers.of(slot)));
                    self.end.respond(slot, &Cqe::success(0, 0), &mut self.out);
                }
                FromHost::Terminated { status } => panic!("terminated: {status}"),
            }
        }
    }
}

impl ControllerSide {
    fn new(disk: Vec<u8>) -> Self {
        let mut end = ControllerEnd::new(controller_end::Config::default());
        end.set_depth(DEPTH);
        end.set_success_flag(true);
        Self { end, buffers: Buffers::new(), out: Vec::new(), written: Vec::new(), disk }
    }

    fn command(&mut self, slot: SlotId, sqe: &Sqe) {
        let length = sqe.cdw10.get();
        if sqe.opcode == WRITE {
            let pointer = DataPointer::parse(sqe, RemoteForm::Transport).expect("a data pointer");
            *self.buffers.of(slot) = vec![UNTOUCHED; length as usize];
            return self.end.pull(slot, pointer, &mut self.out).expect("a matching length");
        }
        let data = &self.disk[..length as usize];
        let ended = self.end.push_header(slot, 0, length, PushPart::Final, &mut self.out);
        self.out.extend_from_slice(data);
        self.out.extend(self.end.data_digest(data).expect("digests were negotiated"));
        assert!(ended, "the SUCCESS flag was not set");
    }
}

struct HostSide {
    end: HostEnd,
    buffers: Buffers,
    out: Vec<u8>,
    completed: Vec<SlotId>,
}

impl End for HostSide {
    fn wanted(&self) -> Option<(SlotId, u32, u32)> {
        self.end.data_wanted()
    }

    fn received(&mut self, bytes: &[u8]) {
        self.end.data_received(bytes);
    }

    fn buffers(&mut self) -> &mut Buffers {
        &mut self.buffers
    }

    fn take_apart(&mut self, mut input: &[u8]) {
        while let Some(event) = self.end.next(&mut input).expect("a valid controller PDU") {
            match event {
                FromController::Initialized => {}
                FromController::Data { slot, offset, bytes } => {
                    self.buffers.put(slot, offset, bytes);
                }
                FromController::Wanted(mut grant) => {
                    while let Some(range) = self.end.data_header(&mut grant, &mut self.out) {
                        let piece = &self.buffers.all[usize::from(grant.slot.0)][range];
                        self.out.extend_from_slice(piece);
                        self.out.extend(self.end.data_digest(piece).expect("negotiated"));
                    }
                }
                FromController::Completed { slot, cqe, intact, .. } => {
                    assert!(cqe.status() == Status::SUCCESS && intact, "{cqe:?}, {intact}");
                    self.completed.push(slot);
                }
                FromController::Terminated { status } => panic!("terminated: {status}"),
            }
        }
    }
}

impl HostSide {
    fn new() -> Self {
        let end = HostEnd::new(Digests::BOTH, DEPTH);
        let mut out = Vec::new();
        end.start(&mut out);
        Self { end, buffers: Buffers::new(), out, completed: Vec::new() }
    }

    fn write(&mut self, slot: u16, data: Vec<u8>) {
        let (slot, length) = (SlotId(slot), data.len() as u32);
        let mut sqe = Sqe::new(WRITE, 0, 1);
        sqe.cdw10 = length.into();
        let is_small = length < DIRECT_BYTES;
        let transfer = if is_small {
            sqe.dptr = SglDescriptor::in_capsule(0, length);
            Transfer::InCapsule(length)
        } else {
            sqe.dptr = SglDescriptor::transport(length);
            Transfer::ToController(length)
        };
        self.end.submit(slot, &sqe, transfer, &mut self.out);
        if is_small {
            self.out.extend_from_slice(&data);
            self.out.extend(self.end.data_digest(&data).expect("digests were negotiated"));
        }
        *self.buffers.of(slot) = data;
    }

    fn read(&mut self, slot: u16, length: u32) {
        let mut sqe = Sqe::new(READ, 0, 1);
        sqe.cdw10 = length.into();
        sqe.dptr = SglDescriptor::transport(length);
        *self.buffers.of(SlotId(slot)) = vec![UNTOUCHED; length as usize];
        self.end.submit(SlotId(slot), &sqe, Transfer::FromController(length), &mut self.out);
    }
}

/// A host and a controller, with TLS in between.
struct Pair {
    host: HostSide,
    controller: ControllerSide,
    host_tls: Box<dyn Tls>,
    controller_tls: Box<dyn Tls>,
}

impl Pair {
    /// Returns a pair after the handshake and the first PDUs.
    fn new(disk: &[u8]) -> Self {
        let key = TlsKey::generate(Hash::Sha256, &mut |out: &mut [u8]| out.fill(7));
        let key = key.expect("a suite");
        let psk = key.psks(HOST, SUBSYSTEM).swap_remove(0);
        let mut keys = ServerKeys::default();
        keys.add(key, HOST);
        let host_tls = farblock_tls::client_with(psk, RECORDS_PER_KEY).expect("OpenSSL");
        let controller_tls = farblock_tls::server_with(Arc::new(keys), RECORDS_PER_KEY);
        let controller_tls = controller_tls.expect("OpenSSL");
        let (host, controller) = (HostSide::new(), ControllerSide::new(disk.to_vec()));
        let mut pair = Self { host, controller, host_tls, controller_tls };
        while !(pair.host_tls.handshake().expect("the handshake continues")
            & pair.controller_tls.handshake().expect("the handshake continues"))
        {
            pair.controller_tls.feed(&seal(&mut *pair.host_tls, &[]));
            pair.host_tls.feed(&seal(&mut *pair.controller_tls, &[]));
        }
        pair.exchange(1 << 20);
        assert_eq!(pair.controller.end.digests(), Digests::BOTH);
        pair
    }

    fn host_says(&mut self) -> Vec<u8> {
        seal(&mut *self.host_tls, &std::mem::take(&mut self.host.out))
    }

    fn controller_says(&mut self) -> Vec<u8> {
        seal(&mut *self.controller_tls, &std::mem::take(&mut self.controller.out))
    }

    fn host_hears(&mut self, sealed: &[u8], piece: usize) -> Option<TlsError> {
        let mut pieces = sealed.chunks(piece);
        pieces.find_map(|piece| receive(&mut self.host, &mut *self.host_tls, piece))
    }

    fn controller_hears(&mut self, sealed: &[u8], piece: usize) -> Option<TlsError> {
        let mut pieces = sealed.chunks(piece);
        pieces.find_map(|piece| receive(&mut self.controller, &mut *self.controller_tls, piece))
    }

    /// Exchanges pieces of `piece` bytes until both ends are idle.
    fn exchange(&mut self, piece: usize) {
        loop {
            let (down, up) = (self.controller_says(), self.host_says());
            if down.is_empty() && up.is_empty() {
                return;
            }
            assert_eq!(
                (self.host_hears(&down, piece), self.controller_hears(&up, piece)),
                (None, None)
            );
        }
    }
}

/// Encrypts all output of an end, in portions.
fn seal(tls: &mut dyn Tls, plain: &[u8]) -> Vec<u8> {
    let (mut all, mut rest) = (Vec::new(), plain);
    loop {
        let bytes = rest.len().min(PORTION_BYTES);
        let mut sealed = vec![0; tls.sealed_bytes(bytes)];
        let portion = &mut portion(std::iter::once(rest), bytes);
        let length = tls.seal(portion, &mut sealed).expect("room in the buffer");
        all.extend_from_slice(&sealed[..length]);
        rest = &rest[bytes..];
        if rest.is_empty() {
            return all;
        }
    }
}

/// Returns bytes in which no sequence repeats.
fn pattern(length: usize) -> Vec<u8> {
    (0..length as u32).step_by(4).flat_map(|at| (at ^ 0x1357_9bdf).to_be_bytes()).collect()
}

/// Returns whether a buffer contains none of the data that belong there.
fn has_none_of(buffer: &[u8], data: &[u8]) -> bool {
    buffer.chunks(8).zip(data.chunks(8)).all(|(found, belongs)| found != belongs)
}

/// Damages the record that is `ahead` records before the last one, and drops the records after it.
fn spoil(sealed: &mut Vec<u8>, ahead: usize) {
    let (mut ends, mut end) = (Vec::new(), 0);
    while let Some([_, _, _, high, low]) = sealed.get(end..end + 5) {
        end += 5 + usize::from(u16::from_be_bytes([*high, *low]));
        ends.push(end);
    }
    assert_eq!(end, sealed.len(), "a truncated record");
    sealed.truncate(ends[ends.len() - 1 - ahead]);
    *sealed.last_mut().expect("at least one byte") ^= 1;
}

/// Each case has the size of the pieces in bytes, and the number of records after the damaged
/// record. The last record contains the digest. The record before it contains only data, so TLS
/// decrypts it directly into place.
const SPOILT: [(usize, usize); 6] =
    [(1000, 0), (16 << 10, 0), (1 << 20, 0), (1000, 1), (16 << 10, 1), (1 << 20, 1)];

#[test]
fn data_arrive_in_place_across_tls_key_updates() {
    let disk = pattern(300_000);
    for piece in [1000, 16 << 10, 65_537, 1 << 20] {
        let mut pair = Pair::new(&disk);
        for round in 0..3 {
            pair.host.write(0, pattern(4096));
            pair.host.write(1, pattern(300_000));
            pair.host.read(2, 300_000);
            pair.host.read(3, 512);
            pair.host.write(4, pattern(100_000));
            pair.exchange(piece);
            let lengths: Vec<usize> = pair.controller.written.iter().map(Vec::len).collect();
            assert_eq!(lengths, [4096, 300_000, 100_000], "{piece}: {round}");
            for written in pair.controller.written.drain(..) {
                assert!(written == pattern(written.len()), "{piece}: {round}");
            }
            assert!(*pair.host.buffers.of(SlotId(2)) == disk && pair.host.completed.len() == 5);
            assert!(*pair.host.buffers.of(SlotId(3)) == disk[..512], "{piece}: {round}");
            pair.host.completed.clear();
        }
        // The first part of each payload is in one record with its header, so TLS cannot decrypt it
        // into place.
        assert!(pair.controller.buffers.placed > 800_000, "{}", pair.controller.buffers.placed);
        assert!(pair.host.buffers.placed > 700_000, "{}", pair.host.buffers.placed);
    }
}

#[test]
fn a_target_delivers_no_data_of_a_write_with_a_damaged_last_record() {
    let data = pattern(300_000);
    for (piece, ahead) in SPOILT {
        let mut pair = Pair::new(&[]);
        pair.host.write(0, pattern(4096));
        pair.host.write(1, data.clone());
        let sealed = pair.host_says();
        assert_eq!(pair.controller_hears(&sealed, piece), None);
        let sealed = pair.controller_says();
        assert_eq!(pair.host_hears(&sealed, piece), None);
        // Insert one more record ahead of the data that the target has requested.
        let granted = std::mem::take(&mut pair.host.out);
        pair.host.write(2, pattern(2048));
        pair.host.out.extend(granted);
        let mut sealed = pair.host_says();
        spoil(&mut sealed, ahead);
        let ended = pair.controller_hears(&sealed, piece);
        assert!(matches!(ended, Some(TlsError::Broken(_))), "{ended:?}");
        let written = &pair.controller.written;
        assert!(*written == [pattern(4096), pattern(2048)], "{} are written", written.len());
        let (slot, offset, left) = pair.controller.end.data_wanted().expect("missing data");
        let buffer = pair.controller.buffers.of(slot);
        assert!(buffer.len() == data.len() && left > 0 && offset > 250_000, "{offset}, {left}");
        let (before, behind) = buffer.split_at(offset as usize);
        assert!(before == &data[..before.len()] && has_none_of(behind, &data[before.len()..]));
        let alert = pair.controller_says();
        let told = pair.host_hears(&alert, piece);
        assert_eq!(told, Some(TlsError::Refused("it sent the alert 20".to_owned())));
    }
}

#[test]
fn a_host_completes_only_the_reads_before_a_damaged_record() {
    let disk = pattern(300_000);
    for (piece, ahead) in SPOILT {
        let mut pair = Pair::new(&disk);
        pair.host.read(0, 4096);
        pair.host.read(1, 20_000);
        pair.host.read(2, 300_000);
        let sealed = pair.host_says();
        assert_eq!(pair.controller_hears(&sealed, piece), None);
        let mut sealed = pair.controller_says();
        spoil(&mut sealed, ahead);
        let ended = pair.host_hears(&sealed, piece);
        assert!(matches!(ended, Some(TlsError::Broken(_))), "{ended:?}");
        assert_eq!(pair.host.completed, [SlotId(0), SlotId(1)]);
        for (slot, length) in [(0, 4096), (1, 20_000)] {
            assert!(*pair.host.buffers.of(SlotId(slot)) == disk[..length]);
        }
        let (slot, offset, _) = pair.host.end.data_wanted().expect("missing data");
        let (before, behind) = pair.host.buffers.of(slot).split_at(offset as usize);
        assert!(slot == SlotId(2) && before == &disk[..before.len()]);
        assert!(has_none_of(behind, &disk[before.len()..]));
        let alert = pair.host_says();
        let told = pair.controller_hears(&alert, piece);
        assert_eq!(told, Some(TlsError::Refused("it sent the alert 20".to_owned())));
    }
}
