//! The controller's end of a TCP connection, which carries one queue pair.
//!
//! The driver owns all buffers. It feeds bytes to [`ControllerEnd::next`] and acts on the
//! [`Event`]s. A command's slot has these states:
//!
//! ```text
//!          Command event         pull()          all data arrived
//!  Free ----------------> Taken ---------> Pulling -------------> Taken
//!    ^                      |  push_header() any number of times     |
//!    +----------------------+---------- respond() or a final push ---+
//! ```
//!
//! In-capsule data directly follows its `Command` event. A driver that needs the data calls
//! [`ControllerEnd::pull`] before it calls [`ControllerEnd::next`] again. Otherwise this end drops
//! the data. If the driver responds before all in-capsule data has arrived, this end holds the
//! response until the capsule is complete. Without this delay, the host might receive the
//! completion and free the memory while it still sends the data. The Linux host would crash.

use super::digest::{DataDigest, crc32c};
use super::fault::Fault;
use super::framer::{Framed, Framer, Pdu, Role};
use super::{Digests, Sink, SlotId, put_header};
use crate::capsule::DataPointer;
use crate::ids::CommandId;
use crate::limits;
use alloc::vec::Vec;
use farblock_wire::tcp::{
    CapsuleResp, DataPdu, FatalErrorStatus, IcReq, IcResp, LAST_PDU, MAXH2CDATA_MIN_BYTES,
    PDA_MAX_Z, PFV_1_0, PduShape, PduType, R2t, SUCCESS,
};
use farblock_wire::{Cqe, Sqe, Status};
use zerocopy::IntoBytes;

/// Offsets in the PDU headers, for the FEI field.
const FEI_PFV: u32 = 8;
const FEI_HPDA: u32 = 10;
const FEI_CCCID: u32 = 8;
const FEI_TTAG: u32 = 10;
const FEI_DATAO: u32 = 12;

/// The options of a controller's end.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Digests to grant if the host requests them.
    pub digests: Digests,
    /// MAXH2CDATA in bytes, at least 4096.
    pub max_h2c_data_bytes: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { digests: Digests::BOTH, max_h2c_data_bytes: limits::MAX_H2C_DATA_BYTES }
    }
}

/// An event that the driver acts on.
#[derive(Debug)]
pub enum Event<'a> {
    /// The IC exchange is complete. This end has emitted the ICResp.
    Initialized,
    /// A command capsule.
    Command {
        /// The command's slot, valid until the response.
        slot: SlotId,
        /// The submission queue entry.
        sqe: Sqe,
    },
    /// Data that the driver pulled for a command.
    Data {
        /// The command.
        slot: SlotId,
        /// The offset of `bytes` in the command's data.
        offset: u32,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// All data that the driver pulled for this command has arrived.
    Pulled {
        /// The command.
        slot: SlotId,
        /// `false` if a data digest did not match. The driver then answers with Transient Transport
        /// Error.
        intact: bool,
    },
    /// The host ended the connection with a terminate PDU.
    Terminated {
        /// The error that the host reports.
        status: FatalErrorStatus,
    },
}

/// The position of a data PDU within a command's data to the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PushPart {
    /// More data PDUs follow.
    More,
    /// The last data PDU. A response capsule follows.
    Last,
    /// The last data PDU of a successful command without a result. If the SUCCESS flag is allowed,
    /// it replaces the response capsule.
    Final,
}

/// The state of a slot; see the diagram of the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Slot {
    /// The slot has no command.
    Free,
    /// The controller executes the command.
    Taken { cid: CommandId },
    /// The command's data is arriving. Of `length` bytes, the first `received` have arrived.
    Pulling { cid: CommandId, length: u32, received: u32, intact: bool, in_capsule: bool },
}

/// The owner of the arriving data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Incoming {
    /// The data belongs to no command, so this end drops it.
    Dropped,
    /// In-capsule data that the driver may still pull.
    Offered(SlotId, u32),
    /// In-capsule data that the driver does not need.
    Unwanted(SlotId),
    /// In-capsule data of a command whose response waits in `late`.
    Answered(SlotId),
    /// Data that the driver pulled for this command.
    For(SlotId),
}

/// The controller's end of the connection of one queue pair; see the module.
#[derive(Debug)]
pub struct ControllerEnd {
    framer: Framer,
    config: Config,
    digests: Digests,
    host_pda_z: u8,
    slots: Vec<Slot>,
    free: Vec<SlotId>,
    incoming: Incoming,
    /// The response that waits until the command's capsule has arrived.
    late: Option<Cqe>,
    success_flag: bool,
}

impl ControllerEnd {
    /// Creates the end of a new connection.
    #[must_use]
    pub fn new(config: Config) -> Self {
        assert!(config.max_h2c_data_bytes >= MAXH2CDATA_MIN_BYTES);
        let mut end = Self {
            framer: Framer::new(Role::Controller, limits::ADMIN_IN_CAPSULE_BYTES),
            config,
            digests: Digests::NONE,
            host_pda_z: 0,
            slots: Vec::new(),
            free: Vec::new(),
            incoming: Incoming::Dropped,
            late: None,
            success_flag: false,
        };
        end.set_depth(limits::UNCONNECTED_DEPTH);
        end
    }

    /// Allows `depth` commands in flight. The driver calls this function after it has accepted
    /// Connect.
    pub fn set_depth(&mut self, depth: u16) {
        let before = self.slots.len() as u16;
        self.slots.resize(usize::from(depth.max(before)), Slot::Free);
        // Put the lowest slots on top of the stack, so that they are used first. The memory of
        // slots that are never needed then remains untouched.
        self.free.splice(0..0, (before..depth).rev().map(SlotId));
    }

    /// Sets the largest in-capsule data, in bytes, in place of the admin queue's limit. The driver
    /// calls this function after it has accepted the Connect command of an I/O queue.
    pub fn set_in_capsule_bytes(&mut self, bytes: u32) {
        self.framer.set_max_in_capsule_bytes(bytes);
    }

    /// Sets whether the SUCCESS flag may replace a response capsule. Allow this only for hosts that
    /// disabled submission queue flow control, because the flag cannot carry SQHD.
    pub fn set_success_flag(&mut self, allowed: bool) {
        self.success_flag = allowed;
    }

    /// Returns the digests on which both ends agreed.
    #[must_use]
    pub fn digests(&self) -> Digests {
        self.digests
    }

    /// Returns the number of commands in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the place of the next payload bytes in the stream: their slot, their offset in the
    /// command's data, and their number until the next header. `None` if the next bytes are not
    /// payload of a command.
    #[must_use]
    pub fn data_wanted(&self) -> Option<(SlotId, u32, u32)> {
        let Incoming::For(slot) = self.incoming else { return None };
        let Slot::Pulling { received, .. } = self.slots[usize::from(slot.0)] else { return None };
        match self.framer.data_left() {
            0 => None,
            left => Some((slot, received, left)),
        }
    }

    /// Whether the stream is inside a data PDU that the driver pulled.
    #[must_use]
    pub fn is_in_data(&self) -> bool {
        matches!(self.incoming, Incoming::For(_))
    }

    /// Reports that the driver received `bytes` directly into the place that [`Self::data_wanted`]
    /// returned.
    pub fn data_received(&mut self, bytes: &[u8]) {
        let Incoming::For(slot) = self.incoming else { panic!("no data is expected") };
        self.framer.data_received(bytes);
        self.count_received(slot, bytes.len() as u32);
    }

    fn count_received(&mut self, slot: SlotId, count: u32) -> u32 {
        let Slot::Pulling { received, .. } = &mut self.slots[usize::from(slot.0)] else {
            panic!("data for {slot:?}, which is not pulling")
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
    pub fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
        out: &mut impl Sink,
    ) -> Result<Option<Event<'a>>, Fault> {
        if let Incoming::Offered(slot, _) = self.incoming {
            self.incoming = Incoming::Unwanted(slot);
        }
        loop {
            let Some(framed) = self.framer.next(input)? else { return Ok(None) };
            let event = match framed {
                Framed::Pdu(Pdu::IcReq(request)) => Some(self.initialize(&request, out)?),
                Framed::Pdu(Pdu::Command(command, in_capsule)) => {
                    Some(self.command(&command.sqe, in_capsule, command.as_bytes())?)
                }
                Framed::Pdu(Pdu::Data(data)) => {
                    self.host_data(&data)?;
                    None
                }
                Framed::Pdu(Pdu::TermReq(term)) => {
                    Some(Event::Terminated { status: term.status() })
                }
                Framed::Pdu(_) => unreachable!("the framer checks the direction"),
                Framed::Data(bytes) => self.data(bytes),
                Framed::End { intact } => self.data_end(intact, out),
            };
            if event.is_some() {
                return Ok(event);
            }
        }
    }

    fn initialize(
        &mut self,
        request: &IcReq,
        out: &mut impl Sink,
    ) -> Result<Event<'static>, Fault> {
        let header = request.as_bytes();
        if request.pfv.get() != PFV_1_0 {
            let status = FatalErrorStatus::UNSUPPORTED_PARAMETER;
            return Err(Fault::new(status, FEI_PFV, "PDU format version is not 0", header));
        }
        if request.hpda_z > PDA_MAX_Z {
            return Err(Fault::field(FEI_HPDA, "data alignment is over 128 bytes", header));
        }
        self.digests = request.dgst.intersection(self.config.digests);
        self.host_pda_z = request.hpda_z;
        self.framer.set_operational(self.digests);
        let response = IcResp::new(0, self.digests, self.config.max_h2c_data_bytes);
        out.put(response.as_bytes());
        Ok(Event::Initialized)
    }

    fn command(
        &mut self,
        sqe: &Sqe,
        in_capsule: u32,
        header: &[u8],
    ) -> Result<Event<'static>, Fault> {
        let Some(slot) = self.free.pop() else {
            let status = FatalErrorStatus::PDU_SEQUENCE_ERROR;
            return Err(Fault::new(status, 0, "more commands than the queue has entries", header));
        };
        self.slots[usize::from(slot.0)] = Slot::Taken { cid: CommandId(sqe.cid.get()) };
        self.incoming =
            if in_capsule > 0 { Incoming::Offered(slot, in_capsule) } else { Incoming::Dropped };
        Ok(Event::Command { slot, sqe: *sqe })
    }

    fn host_data(&mut self, pdu: &DataPdu) -> Result<(), Fault> {
        let header = pdu.as_bytes();
        let slot = SlotId(pdu.ttag.get());
        let Some(Slot::Pulling { cid, length, received, in_capsule: false, .. }) =
            self.slots.get(usize::from(slot.0)).copied()
        else {
            return Err(Fault::field(FEI_TTAG, "no transfer has this transfer tag", header));
        };
        if cid.0 != pdu.cccid.get() {
            return Err(Fault::field(
                FEI_CCCID,
                "the transfer tag belongs to another command",
                header,
            ));
        }
        let out_of_range = FatalErrorStatus::DATA_TRANSFER_OUT_OF_RANGE;
        if pdu.datao.get() != received {
            return Err(Fault::new(out_of_range, FEI_DATAO, "data out of order", header));
        }
        let left = length - received;
        if pdu.datal.get() > left {
            return Err(Fault::new(
                out_of_range,
                FEI_DATAO,
                "more data than the R2T requested",
                header,
            ));
        }
        let last = pdu.ch.is_last();
        if last != (pdu.datal.get() == left) {
            return Err(Fault::field(1, "LAST_PDU does not match the end of the data", header));
        }
        if pdu.datal.get() > self.config.max_h2c_data_bytes {
            let status = FatalErrorStatus::TRANSFER_LIMIT_EXCEEDED;
            return Err(Fault::new(
                status,
                FEI_DATAO + 4,
                "more data than MAXH2CDATA allows",
                header,
            ));
        }
        self.incoming = Incoming::For(slot);
        Ok(())
    }

    fn data<'a>(&mut self, bytes: &'a [u8]) -> Option<Event<'a>> {
        let Incoming::For(slot) = self.incoming else { return None };
        let offset = self.count_received(slot, bytes.len() as u32);
        Some(Event::Data { slot, offset, bytes })
    }

    fn data_end(&mut self, pdu_intact: bool, out: &mut impl Sink) -> Option<Event<'static>> {
        let slot = match core::mem::replace(&mut self.incoming, Incoming::Dropped) {
            Incoming::For(slot) => slot,
            Incoming::Answered(slot) => {
                let cqe = self.late.take().expect("an answered slot has a late response");
                self.respond(slot, &cqe, out);
                return None;
            }
            _ => return None,
        };
        let state = &mut self.slots[usize::from(slot.0)];
        let Slot::Pulling { cid, length, received, intact, .. } = state else {
            panic!("data for {slot:?}, which is not pulling")
        };
        *intact &= pdu_intact;
        if received < length {
            return None;
        }
        let intact = *intact;
        *state = Slot::Taken { cid: *cid };
        Some(Event::Pulled { slot, intact })
    }

    /// Requests a command's data with an R2T, or accepts the data in the command's capsule.
    ///
    /// # Errors
    /// Data SGL Length Invalid if the length of the capsule's data differs from the length in the
    /// data pointer.
    pub fn pull(
        &mut self,
        slot: SlotId,
        pointer: DataPointer,
        out: &mut impl Sink,
    ) -> Result<(), Status> {
        let cid = self.cid(slot);
        let length = pointer.length();
        assert!(length > 0, "a pull of no data");
        let in_capsule = matches!(pointer, DataPointer::InCapsule { .. });
        if in_capsule {
            if self.incoming != Incoming::Offered(slot, length) {
                return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
            }
            self.incoming = Incoming::For(slot);
        } else {
            let r2t = R2t::new(cid.0, slot.0, 0, length, self.digests);
            put_header(&r2t, self.shape::<R2t>(0), out);
        }
        self.slots[usize::from(slot.0)] =
            Slot::Pulling { cid, length, received: 0, intact: true, in_capsule };
        Ok(())
    }

    fn cid(&self, slot: SlotId) -> CommandId {
        match self.slots[usize::from(slot.0)] {
            Slot::Taken { cid } => cid,
            other => panic!("{slot:?} is {other:?}, not the controller's"),
        }
    }

    /// Returns the slot of the command with this identifier, if the controller has not yet
    /// responded to the command.
    #[must_use]
    pub fn find(&self, cid: CommandId) -> Option<SlotId> {
        let taken = |slot: &Slot| matches!(slot, Slot::Taken { cid: c } if *c == cid);
        self.slots.iter().position(taken).map(|index| SlotId(index as u16))
    }

    /// Emits the header for `length` bytes of data to the host, from `offset` of the command's
    /// data. The caller appends these bytes and then their [`Self::data_digest`].
    ///
    /// Returns `true` if the PDU also ended the command (SUCCESS flag). The slot is then free, and
    /// the caller must not respond.
    pub fn push_header(
        &mut self,
        slot: SlotId,
        offset: u32,
        length: u32,
        part: PushPart,
        out: &mut impl Sink,
    ) -> bool {
        let cid = self.cid(slot);
        let ends = self.success_flag && part == PushPart::Final;
        let flags =
            if part != PushPart::More { LAST_PDU } else { 0 } | if ends { SUCCESS } else { 0 };
        let shape = self.shape::<DataPdu>(length);
        put_header(&DataPdu::c2h(cid.0, offset, shape, flags), shape, out);
        if ends {
            self.release(slot);
        }
        ends
    }

    /// Returns the digest to send after this data; `None` without data digests.
    #[must_use]
    pub fn data_digest(&self, bytes: &[u8]) -> Option<[u8; 4]> {
        self.digests.data().then(|| crc32c(bytes).to_le_bytes())
    }

    /// Creates a digest over data in several parts; `None` without data digests.
    #[must_use]
    pub fn data_digest_of_parts(&self) -> Option<DataDigest> {
        self.digests.data().then(DataDigest::default)
    }

    /// Emits the response capsule and frees the slot. `cqe.cid` must be the command's identifier.
    /// While in-capsule data of the command is still arriving, this end delays the response.
    pub fn respond(&mut self, slot: SlotId, cqe: &Cqe, out: &mut impl Sink) {
        assert_ne!(self.incoming, Incoming::Answered(slot), "a command has one response");
        if self.is_coming(slot) {
            self.incoming = Incoming::Answered(slot);
            self.late = Some(*cqe);
            return;
        }
        let cqe = Cqe { cid: self.cid(slot).0.into(), ..*cqe };
        let pdu = CapsuleResp::new(cqe, self.digests);
        put_header(&pdu, self.shape::<CapsuleResp>(0), out);
        self.release(slot);
    }

    /// Frees the slot of a command that will get no response.
    pub fn forget(&mut self, slot: SlotId) {
        self.cid(slot);
        self.release(slot);
    }

    /// Returns the layout of a PDU with header `H` and `data_bytes` of data on this connection.
    fn shape<H>(&self, data_bytes: u32) -> PduShape {
        PduShape::new(size_of::<H>() as u8, data_bytes, self.digests, self.host_pda_z)
            .expect("transfers are limited and the alignment was checked")
    }

    fn release(&mut self, slot: SlotId) {
        self.slots[usize::from(slot.0)] = Slot::Free;
        self.free.push(slot);
        if self.is_coming(slot) {
            self.incoming = Incoming::Dropped;
        }
    }

    /// Whether in-capsule data that the driver has not pulled is still arriving for a command.
    fn is_coming(&self, slot: SlotId) -> bool {
        let offered = matches!(self.incoming, Incoming::Offered(offered, _) if offered == slot);
        offered || self.incoming == Incoming::Unwanted(slot)
    }

    /// Emits the terminate PDU for `fault`.
    pub fn terminate(&self, fault: &Fault, out: &mut impl Sink) {
        fault.emit(PduType::C2H_TERM_REQ, out);
    }
}
