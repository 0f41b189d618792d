//! The functions that the fuzz targets call. Each takes the bytes of the fuzzer as input, and
//! panics if a check fails. `make test` also runs them on random input.

mod concatenation;
mod rdma;
mod secrets;

pub use concatenation::concatenation;
pub use rdma::rdma;
pub use secrets::{authentication, keys};

/// Fuzzes two TLS peers that have the keys. An attacker without the keys changes their records in
/// transit.
#[cfg(unix)]
pub use farblock_tls::records_of as records;

use crate::target::{NQN, Target};
use farblock_proto::host::command::{self, Identity};
use farblock_proto::tcp::Digests;
use farblock_proto::tcp::framer::{Framed, Framer, Pdu, Role};
use farblock_proto::time::Instant;
use farblock_random::Random;
use farblock_wire::fabrics::PropertySize;
use farblock_wire::property::offset;
use farblock_wire::tcp::{CapsuleCmd, DigestFlags, IcReq, PduType};
use farblock_wire::{IntoBytes, SglDescriptor, Sqe};
use std::collections::BTreeMap;
use std::time::Duration;

/// The digests that a byte of the input selects.
fn digests(choice: u8) -> Digests {
    Digests::new(choice & 1 != 0, choice & 2 != 0)
}

/// Passes the input to a framer (a parser of PDUs), first as a whole and then byte by byte.
///
/// # Panics
/// Panics if the results differ.
pub fn framer(data: &[u8]) {
    let Some((&choice, data)) = data.split_first() else { return };
    let role = if choice & 4 == 0 { Role::Controller } else { Role::Host };
    let new = || {
        let mut framer = Framer::new(role, 8192);
        if choice & 8 == 0 {
            framer.set_operational(digests(choice));
        }
        framer
    };
    let whole = summary(&mut new(), std::iter::once(data));
    let bytewise = summary(&mut new(), data.chunks(1));
    assert_eq!(whole, bytewise);
}

/// The output of a framer: the PDUs, their data with the pieces joined, and the final error.
fn summary<'a>(framer: &mut Framer, pieces: impl Iterator<Item = &'a [u8]>) -> Vec<String> {
    let mut found = Vec::new();
    let mut data = Vec::new();
    for mut piece in pieces {
        loop {
            match framer.next(&mut piece) {
                Ok(None) => break,
                Ok(Some(Framed::Data(bytes))) => data.extend_from_slice(bytes),
                Ok(Some(Framed::Pdu(pdu))) => {
                    found.push(format!("{pdu:?}"));
                    if matches!(pdu, Pdu::TermReq(_)) {
                        return found;
                    }
                }
                Ok(Some(Framed::End { intact })) => {
                    found.push(format!("{intact} {:x?}", std::mem::take(&mut data)));
                }
                Err(fault) => {
                    found.push(format!("{fault:?}"));
                    return found;
                }
            }
        }
    }
    found.push(format!("{data:x?}"));
    found
}

/// Runs whole sessions: the input encodes well-formed and malformed PDUs on two connections.
///
/// # Panics
/// Panics if the target panics, sends a malformed PDU, or answers a command that was not sent.
pub fn session(data: &[u8]) {
    let mut input = Input(data);
    let choice = input.byte();
    let mut session = Session::new(digests(choice), choice & 4 != 0);
    while !input.0.is_empty() {
        session.act(&mut input);
    }
    session.finish();
}

/// The bytes from the fuzzer, consumed from the front. After their end, the input is zeroes.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }
}

const ADMIN: u64 = 0;
const IO: u64 = 1;

struct Session {
    target: Target,
    digests: Digests,
    now: Instant,
    framers: BTreeMap<u64, Framer>,
    asked: [u64; 2],
    answered: [u64; 2],
    /// For each connection, whether the fuzzer sent raw bytes on it. Such bytes may contain
    /// commands that `finish` cannot count.
    raw: [bool; 2],
}

impl Session {
    /// Opens two connections. With `connected`, they have an enabled controller and an I/O queue.
    fn new(digests: Digests, connected: bool) -> Self {
        let mut session = Self {
            target: Target::new(1, Duration::from_millis(10)),
            digests,
            now: Instant(0),
            framers: BTreeMap::new(),
            asked: [0; 2],
            answered: [0; 2],
            raw: [false; 2],
        };
        for id in [ADMIN, IO] {
            session.target.accept(id);
            session.framers.insert(id, Framer::new(Role::Host, 0));
        }
        if connected {
            session.connect();
        }
        session
    }

    fn connect(&mut self) {
        let identity = Identity {
            hostid: [1; 16],
            hostnqn: "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-4111-8111-111111111111",
            subnqn: NQN,
        };
        for (id, controller) in [(ADMIN, None), (IO, Some(1))] {
            self.feed(id, IcReq::new(0, self.digests, 0).as_bytes());
            let connect = command::connect(id as u16, 31, 0);
            let data = command::connect_data(&identity, controller);
            self.command(id, connect.place(8192).0, data.as_bytes());
            if id == ADMIN {
                let enable = command::set_property(offset::CC, 1 | 6 << 16 | 4 << 20);
                self.command(id, enable.sqe, &[]);
                let ready = command::property(offset::CSTS, PropertySize::Four);
                self.command(id, ready.sqe, &[]);
            }
        }
    }

    fn act(&mut self, input: &mut Input<'_>) {
        let kind = input.byte();
        let id = u64::from(kind >> 7);
        match kind & 7 {
            0 => {
                let length = usize::from(input.byte());
                let bytes: Vec<u8> = (0..length).map(|_| input.byte()).collect();
                self.raw[id as usize] = true;
                self.feed(id, &bytes);
            }
            1 => {
                self.now = self.now.saturating_add(Duration::from_millis(u64::from(input.byte())));
                self.target.tick(self.now);
                self.check_output();
            }
            2 => {
                self.feed(id, IcReq::new(input.byte() & 31, DigestFlags(kind >> 3), 0).as_bytes());
            }
            3 => self.host_data(id, input),
            _ => {
                let mut sqe = Sqe::parse(&input.bytes::<64>()).expect("64 bytes");
                let length = u32::from(input.byte()) * 16;
                match kind >> 3 & 3 {
                    0 => sqe.dptr = SglDescriptor::in_capsule(0, length),
                    1 => sqe.dptr = SglDescriptor::transport(length),
                    2 => sqe.dptr = SglDescriptor::transport(4096),
                    _ => {}
                }
                sqe.nsid = (sqe.nsid.get() % 3).into();
                sqe.flags = if kind & 0x20 == 0 { Sqe::FLAGS_SGL } else { sqe.flags };
                let data = vec![0x5a; if sqe.dptr.is_in_capsule() { length as usize } else { 0 }];
                self.command(id, sqe, &data);
            }
        }
    }

    /// Sends an H2CData PDU with a transfer tag from the input, which may be invalid.
    fn host_data(&mut self, id: u64, input: &mut Input<'_>) {
        use farblock_wire::tcp::{DataPdu, PduShape};
        let length = u32::from(input.byte()) * 16;
        let Some(shape) = PduShape::new(24, length, self.digests, 0) else { return };
        let [cid, tag, last, offset] = input.bytes();
        let offset = u32::from(offset) * 16;
        let pdu = DataPdu::h2c(u16::from(cid), u16::from(tag), offset, shape, last & 1 == 0);
        self.pdu(id, pdu.as_bytes(), shape.pad_bytes(), &vec![0x33; length as usize]);
    }

    fn command(&mut self, id: u64, sqe: Sqe, data: &[u8]) {
        let Some(capsule) = CapsuleCmd::new(sqe, data.len() as u32, self.digests, 0) else {
            return;
        };
        let pad = usize::from(capsule.ch.pdo)
            .saturating_sub(72 + if self.digests.header() { 4 } else { 0 });
        self.asked[id as usize] += 1;
        self.pdu(id, capsule.as_bytes(), pad, data);
    }

    fn pdu(&mut self, id: u64, header: &[u8], pad: usize, data: &[u8]) {
        use farblock_proto::tcp::digest::crc32c;
        let mut bytes = header.to_vec();
        if self.digests.header() {
            bytes.extend(crc32c(header).to_le_bytes());
        }
        if !data.is_empty() {
            bytes.extend(std::iter::repeat_n(0, pad));
            bytes.extend(data);
            if self.digests.data() {
                bytes.extend(crc32c(data).to_le_bytes());
            }
        }
        self.feed(id, &bytes);
    }

    fn feed(&mut self, id: u64, bytes: &[u8]) {
        self.target.feed(id, bytes, self.now);
        self.check_output();
    }

    /// Checks that the target sends only well-formed PDUs that fit the direction and the digests.
    fn check_output(&mut self) {
        for id in [ADMIN, IO] {
            let output = self.target.take_output(id);
            let framer = self.framers.get_mut(&id).expect("a framer per connection");
            let mut input = &output[..];
            while let Some(framed) = framer.next(&mut input).expect("well-formed output") {
                match framed {
                    Framed::Pdu(Pdu::IcResp(response)) => framer.set_operational(response.dgst),
                    Framed::Pdu(Pdu::Response(_)) => self.answered[id as usize] += 1,
                    Framed::Pdu(Pdu::Data(pdu)) if pdu.ch.is_success() => {
                        self.answered[id as usize] += 1;
                    }
                    Framed::Pdu(Pdu::TermReq(term)) => {
                        assert_eq!(term.ch.pdu_type, PduType::C2H_TERM_REQ);
                        assert!(!self.target.is_open(id), "a connection stays open after TermReq");
                        break;
                    }
                    Framed::End { intact } => assert!(intact, "the target sends a wrong digest"),
                    _ => {}
                }
            }
        }
    }

    /// Lets the disk finish, and compares the number of answers with the number of commands.
    fn finish(mut self) {
        self.now = self.now.saturating_add(Duration::from_secs(1));
        self.target.tick(self.now);
        self.check_output();
        for id in [ADMIN, IO].map(|id| id as usize) {
            let (asked, answered) = (self.asked[id], self.answered[id]);
            assert!(self.raw[id] || answered <= asked, "{answered} answers to {asked} commands");
        }
        self.target.cut(IO);
        self.target.cut(ADMIN);
        self.target.tick(self.now.saturating_add(Duration::from_secs(600)));
        assert_eq!(self.target.controllers(), 0, "a controller outlives its connections");
    }
}

/// Runs `body` on `count` random inputs from `seed`. Half of them consist mostly of zeroes.
pub fn replay(body: fn(&[u8]), seed: u64, count: u64) {
    let mut random = Random::new(seed);
    for _ in 0..count {
        let length = random.below(1500) as usize;
        let sparse = random.one_in(2);
        let data: Vec<u8> = (0..length)
            .map(|_| if sparse && random.below(3) > 0 { 0 } else { random.bits() as u8 })
            .collect();
        body(&data);
    }
}
