//! The host's end of a TCP connection, which carries one queue pair.
//!
//! The driver owns all buffers. It chooses a slot for each command; the slot is the command
//! identifier on the wire. It feeds received bytes to [`HostEnd::next`] and acts on the [`Event`]s.
//!
//! This end checks every PDU against the PDU's command. It reports a [`Fault`] for data outside the
//! command's buffer, and for a response to a command that is not in flight. It also reports a
//! request for more data than the command has. It never writes data outside a command's buffer.
//!
//! ```text
//!        submit()                  R2T event         all granted data emitted
//!  Free ---------> Waiting(read) / Waiting(write) --> Granted ----> Waiting(write)
//!    ^                 |                  |
//!    +--- Completed ---+------------------+     (response, or SUCCESS with the last data)
//! ```

use super::digest::crc32c;
use super::fault::Fault;
use super::framer::{Framed, Framer, Pdu, Role};
use super::{Digests, Sink, SlotId, put_header};
use alloc::vec::Vec;
use farblock_wire::tcp::{
    CapsuleCmd, DataPdu, FatalErrorStatus, IcReq, IcResp, MAXH2CDATA_MIN_BYTES, PDA_MAX_Z, PFV_1_0,
    PduShape, PduType, R2t,
};
use farblock_wire::{Cqe, Sqe};
use zerocopy::IntoBytes;

/// Offsets in the PDU headers, for the FEI field.
const FEI_PFV: u32 = 8;
const FEI_CPDA: u32 = 10;
const FEI_DGST: u32 = 11;
const FEI_MAXH2CDATA: u32 = 12;
const FEI_CCCID: u32 = 8;
const FEI_DATAO: u32 = 12;

/// The direction, the length and the location of a command's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transfer {
    /// The command has no data.
    None,
    /// The controller sends this many bytes.
    FromController(u32),
    /// The host sends this many bytes when the controller requests them (R2T).
    ToController(u32),
    /// The host sends this many bytes in the capsule. The caller appends the bytes.
    InCapsule(u32),
}

/// An event that the driver acts on.
#[derive(Debug)]
pub enum Event<'a> {
    /// The IC exchange is complete.
    Initialized,
    /// Data of a command.
    Data {
        /// The command.
        slot: SlotId,
        /// The offset of `bytes` in the command's buffer.
        offset: u32,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// The controller requests data. The driver answers with [`HostEnd::data_header`].
    Wanted(Grant),
    /// The command has completed and its slot is free.
    Completed {
        /// The command.
        slot: SlotId,
        /// The completion queue entry. If the SUCCESS flag ended the command, this end creates the
        /// entry.
        cqe: Cqe,
        /// The number of data bytes that this end received.
        received: u32,
        /// `false` if a data digest did not match. The driver then discards the received data.
        intact: bool,
    },
    /// The controller ended the connection with a terminate PDU.
    Terminated {
        /// The error that the controller reports.
        status: FatalErrorStatus,
    },
}

/// Data that the controller requests (R2T).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The command.
    pub slot: SlotId,
    /// The offset of the requested data in the command's buffer.
    pub offset: u32,
    /// The length of the requested data in bytes.
    pub length: u32,
    tag: u16,
}

/// The state of a slot; see the diagram of the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Slot {
    /// The slot has no command.
    Free,
    /// A command with data from the controller. Of `expected` bytes, the first `received` have
    /// arrived.
    Reading { expected: u32, received: u32, intact: bool },
    /// A command with `length` bytes to send. The controller has requested `granted` of them. This
    /// end has not yet emitted `unsent` of the requested bytes.
    Writing { length: u32, granted: u32, unsent: u32 },
}

/// The host's end of the connection of one queue pair; see the module.
#[derive(Debug)]
pub struct HostEnd {
    framer: Framer,
    wanted: Digests,
    digests: Digests,
    controller_pda_z: u8,
    max_h2c_data_bytes: u32,
    slots: Vec<Slot>,
    /// The command of the data PDU that is arriving, and whether this PDU ends the command.
    incoming: Option<(SlotId, bool)>,
}

impl HostEnd {
    /// Creates an end that requests `digests` and has up to `depth` commands in flight.
    #[must_use]
    pub fn new(digests: Digests, depth: u16) -> Self {
        Self {
            framer: Framer::new(Role::Host, 0),
            wanted: digests,
            digests: Digests::NONE,
            controller_pda_z: 0,
            max_h2c_data_bytes: MAXH2CDATA_MIN_BYTES,
            slots: alloc::vec![Slot::Free; usize::from(depth)],
            incoming: None,
        }
    }

    /// Emits the first PDU of the connection.
    pub fn start(&self, out: &mut impl Sink) {
        let request = IcReq::new(0, self.wanted, 0);
        out.put(request.as_bytes());
    }

    /// Returns the digests on which both ends agreed.
    #[must_use]
    pub fn digests(&self) -> Digests {
        self.digests
    }

    /// Emits a command capsule. The command identifier on the wire is the slot's number.
    ///
    /// # Panics
    /// Panics if the slot is in use. The driver must allocate free slots.
    pub fn submit(&mut self, slot: SlotId, sqe: &Sqe, transfer: Transfer, out: &mut impl Sink) {
        let state = &mut self.slots[usize::from(slot.0)];
        assert_eq!(*state, Slot::Free, "{slot:?} is in use");
        *state = match transfer {
            Transfer::ToController(length) => Slot::Writing { length, granted: 0, unsent: 0 },
            Transfer::FromController(expected) => {
                Slot::Reading { expected, received: 0, intact: true }
            }
            Transfer::None | Transfer::InCapsule(_) => {
                Slot::Reading { expected: 0, received: 0, intact: true }
            }
        };
        let sqe = Sqe { cid: slot.0.into(), ..*sqe };
        let data = if let Transfer::InCapsule(length) = transfer { length } else { 0 };
        let shape = self.shape::<CapsuleCmd>(data);
        let capsule = CapsuleCmd::new(sqe, data, self.digests, self.controller_pda_z)
            .expect("`shape` checked the same values");
        put_header(&capsule, shape, out);
    }

    /// Returns the layout of a PDU with header `H` and `data_bytes` of data on this connection.
    fn shape<H>(&self, data_bytes: u32) -> PduShape {
        PduShape::new(size_of::<H>() as u8, data_bytes, self.digests, self.controller_pda_z)
            .expect("transfers are limited and the alignment was checked")
    }

    /// Emits the header of the next data PDU of a grant. The caller then appends the returned range
    /// of the command's buffer and its [`Self::data_digest`]. `None`: this end has emitted all data
    /// of the grant.
    pub fn data_header(
        &mut self,
        grant: &mut Grant,
        out: &mut impl Sink,
    ) -> Option<core::ops::Range<usize>> {
        if grant.length == 0 {
            return None;
        }
        let length = grant.length.min(self.max_h2c_data_bytes);
        let last = length == grant.length;
        let shape = self.shape::<DataPdu>(length);
        let pdu = DataPdu::h2c(grant.slot.0, grant.tag, grant.offset, shape, last);
        put_header(&pdu, shape, out);
        if let Slot::Writing { unsent, .. } = &mut self.slots[usize::from(grant.slot.0)] {
            *unsent = unsent.saturating_sub(length);
        }
        let start = grant.offset as usize;
        grant.offset += length;
        grant.length -= length;
        Some(start..start + length as usize)
    }

    /// Returns the digest to send after this data; `None` without data digests.
    #[must_use]
    pub fn data_digest(&self, bytes: &[u8]) -> Option<[u8; 4]> {
        self.digests.data().then(|| crc32c(bytes).to_le_bytes())
    }

    /// Returns the place of the next payload bytes in the stream: their slot, their offset in the
    /// command's buffer, and their number until the next header. `None` if the next bytes are not
    /// payload.
    #[must_use]
    pub fn data_wanted(&self) -> Option<(SlotId, u32, u32)> {
        let (slot, _) = self.incoming?;
        let Slot::Reading { received, .. } = self.slots[usize::from(slot.0)] else { return None };
        match self.framer.data_left() {
            0 => None,
            left => Some((slot, received, left)),
        }
    }

    /// Reports that the driver received `bytes` directly into the place that [`Self::data_wanted`]
    /// returned.
    pub fn data_received(&mut self, bytes: &[u8]) {
        let (slot, _) = self.incoming.expect("the framer reports only expected data");
        self.framer.data_received(bytes);
        self.count_received(slot, bytes.len() as u32);
    }

    fn count_received(&mut self, slot: SlotId, count: u32) -> u32 {
        let Slot::Reading { received, .. } = &mut self.slots[usize::from(slot.0)] else {
            panic!("data for {slot:?}, which is not reading")
        };
        let offset = *received;
        *received += count;
        offset
    }

    /// Removes the next event from the front of `input`; `None` if `input` has too few bytes for an
    /// event.
    ///
    /// # Errors
    /// Returns a [`Fault`]. The driver emits it with [`Self::terminate`] and closes the connection.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, Fault> {
        loop {
            let Some(framed) = self.framer.next(input)? else { return Ok(None) };
            let event = match framed {
                Framed::Pdu(Pdu::IcResp(response)) => Some(self.initialized(&response)?),
                Framed::Pdu(Pdu::Response(response)) => {
                    Some(self.completed(response.cqe, response.as_bytes())?)
                }
                Framed::Pdu(Pdu::Data(data)) => {
                    self.controller_data(&data)?;
                    None
                }
                Framed::Pdu(Pdu::R2t(r2t)) => Some(self.wanted(&r2t)?),
                Framed::Pdu(Pdu::TermReq(term)) => {
                    Some(Event::Terminated { status: term.status() })
                }
                Framed::Pdu(_) => unreachable!("the framer checks the direction"),
                Framed::Data(bytes) => {
                    let (slot, _) =
                        self.incoming.expect("the header's check set the incoming slot");
                    let offset = self.count_received(slot, bytes.len() as u32);
                    Some(Event::Data { slot, offset, bytes })
                }
                Framed::End { intact } => self.data_end(intact),
            };
            if event.is_some() {
                return Ok(event);
            }
        }
    }

    fn initialized(&mut self, response: &IcResp) -> Result<Event<'static>, Fault> {
        let header = response.as_bytes();
        if response.pfv.get() != PFV_1_0 {
            let status = FatalErrorStatus::UNSUPPORTED_PARAMETER;
            return Err(Fault::new(status, FEI_PFV, "PDU format version is not 0", header));
        }
        if response.cpda_z > PDA_MAX_Z {
            return Err(Fault::field(FEI_CPDA, "data alignment is over 128 bytes", header));
        }
        let digests = response.dgst;
        if digests.intersection(self.wanted) != digests {
            let reason = "ICResp enables digests that this host did not request";
            return Err(Fault::field(FEI_DGST, reason, header));
        }
        let max_h2c = response.maxh2cdata.get();
        if max_h2c < MAXH2CDATA_MIN_BYTES {
            return Err(Fault::field(FEI_MAXH2CDATA, "MAXH2CDATA is under 4096 bytes", header));
        }
        self.digests = digests;
        self.controller_pda_z = response.cpda_z;
        self.max_h2c_data_bytes = max_h2c & !3;
        self.framer.set_operational(digests);
        Ok(Event::Initialized)
    }

    fn wanted(&mut self, r2t: &R2t) -> Result<Event<'static>, Fault> {
        let header = r2t.as_bytes();
        let slot = SlotId(r2t.cccid.get());
        let Some(Slot::Writing { length, granted, unsent }) =
            self.slots.get_mut(usize::from(slot.0))
        else {
            return Err(Fault::field(
                FEI_CCCID,
                "an R2T names a command that has no write in flight",
                header,
            ));
        };
        if *unsent > 0 {
            // This host announced MAXR2T 0, which allows one R2T at a time.
            let status = FatalErrorStatus::TRANSFER_LIMIT_EXCEEDED;
            return Err(Fault::new(
                status,
                0,
                "an R2T before this host answered the previous one",
                header,
            ));
        }
        let (offset, wanted) = (r2t.r2to.get(), r2t.r2tl.get());
        if offset != *granted || wanted == 0 || wanted > *length - *granted {
            let status = FatalErrorStatus::DATA_TRANSFER_OUT_OF_RANGE;
            return Err(Fault::new(
                status,
                FEI_DATAO,
                "R2T for data outside the command's buffer",
                header,
            ));
        }
        *granted += wanted;
        *unsent = wanted;
        Ok(Event::Wanted(Grant { slot, offset, length: wanted, tag: r2t.ttag.get() }))
    }

    fn controller_data(&mut self, pdu: &DataPdu) -> Result<(), Fault> {
        let header = pdu.as_bytes();
        let slot = SlotId(pdu.cccid.get());
        let Some(Slot::Reading { expected, received, .. }) =
            self.slots.get(usize::from(slot.0)).copied()
        else {
            return Err(Fault::field(FEI_CCCID, "no read in flight has this identifier", header));
        };
        if pdu.datao.get() != received || pdu.datal.get() > expected - received {
            let status = FatalErrorStatus::DATA_TRANSFER_OUT_OF_RANGE;
            return Err(Fault::new(status, FEI_DATAO, "data outside the command's buffer", header));
        }
        if pdu.ch.is_success() && !pdu.ch.is_last() {
            return Err(Fault::field(1, "SUCCESS without LAST_PDU", header));
        }
        self.incoming = Some((slot, pdu.ch.is_success()));
        Ok(())
    }

    fn data_end(&mut self, pdu_intact: bool) -> Option<Event<'static>> {
        let (slot, ends) = self.incoming.take().expect("the header's check set the incoming slot");
        let Slot::Reading { received, intact, .. } = &mut self.slots[usize::from(slot.0)] else {
            panic!("data for {slot:?}, which is not reading")
        };
        *intact &= pdu_intact;
        let (received, intact) = (*received, *intact);
        if !ends {
            return None;
        }
        self.slots[usize::from(slot.0)] = Slot::Free;
        let cqe = Cqe::success(slot.0, 0);
        Some(Event::Completed { slot, cqe, received, intact })
    }

    fn completed(&mut self, cqe: Cqe, header: &[u8]) -> Result<Event<'static>, Fault> {
        let slot = SlotId(cqe.cid.get());
        let state = self.slots.get_mut(usize::from(slot.0)).filter(|slot| **slot != Slot::Free);
        let Some(state) = state else {
            return Err(Fault::field(
                8 + 12,
                "no command is in flight under this identifier",
                header,
            ));
        };
        let (received, intact) = match *state {
            Slot::Reading { received, intact, .. } => (received, intact),
            _ => (0, true),
        };
        *state = Slot::Free;
        Ok(Event::Completed { slot, cqe, received, intact })
    }

    /// Emits the terminate PDU for `fault`.
    pub fn terminate(&self, fault: &Fault, out: &mut impl Sink) {
        fault.emit(PduType::H2C_TERM_REQ, out);
    }
}
