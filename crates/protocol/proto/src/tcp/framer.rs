//! Splits a byte stream into PDUs. Collects and checks the headers, and passes the payload on
//! without a copy.
//!
//! ```text
//!            header bytes            all of it, checked
//!  +--------+ ----------> +--------+ ------------------> Framed::Pdu
//!  | Header |             | (same) |
//!  +--------+ <--+        +--------+
//!      ^         | no data    |
//!      |         +------------+
//!      | End                  v data follows
//!  +--------+  digest   +------+  padding  +---------+
//!  | Digest | <-------- | Data | <-------- | Padding |
//!  +--------+           +------+           +---------+
//! ```
//! The framer returns data as slices of the input. The driver may also receive data directly into
//! its destination ([`Framer::data_left`], [`Framer::data_received`]).

use super::Digests;
use super::digest::{crc32c, crc32c_append};
use super::fault::Fault;
use crate::limits;
use farblock_wire::tcp::{
    CapsuleCmd, CapsuleResp, CommonHeader, DIGEST_LEN, DataPdu, FatalErrorStatus, IcReq, IcResp,
    PduType, R2t, TERM_DATA_MAX_BYTES, TermReq,
};
use zerocopy::FromBytes;

/// Offsets of the common header's fields, for the FEI field.
const FEI_TYPE: u32 = 0;
const FEI_FLAGS: u32 = 1;
const FEI_HLEN: u32 = 2;
const FEI_PDO: u32 = 3;
const FEI_PLEN: u32 = 4;
/// Offset of DATAL in the data PDUs.
const FEI_DATAL: u32 = 16;

/// The length of the longest header of any PDU, together with its digest, in bytes.
const MAX_HEADER_BYTES: usize = 128 + DIGEST_LEN;

/// The end of the connection that uses the framer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The controller, which reads PDUs from a host.
    Controller,
    /// The host, which reads PDUs from a controller.
    Host,
}

/// A PDU with a valid header. The caller must check that it fits the commands in flight.
#[derive(Clone, Copy, Debug)]
pub enum Pdu {
    /// ICReq.
    IcReq(IcReq),
    /// ICResp.
    IcResp(IcResp),
    /// H2CTermReq or C2HTermReq: the peer ends the connection.
    TermReq(TermReq),
    /// Command capsule, with the length of its data in bytes.
    Command(CapsuleCmd, u32),
    /// Response capsule.
    Response(CapsuleResp),
    /// H2CData or C2HData.
    Data(DataPdu),
    /// R2T.
    R2t(R2t),
}

/// The next piece of the stream.
#[derive(Debug)]
pub enum Framed<'a> {
    /// A PDU's header. If the PDU has data, `Data` pieces and one `End` follow.
    Pdu(Pdu),
    /// The next bytes of the current PDU's data.
    Data(&'a [u8]),
    /// The end of the current PDU's data.
    End {
        /// `false` if the PDU has a data digest that does not match.
        intact: bool,
    },
}

/// The stream's position within a PDU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FramerState {
    /// The framer collects the header and its digest.
    Header,
    /// The framer skips the padding before the data. The number is the remaining padding in bytes.
    Padding(u32),
    /// The framer is inside the data. The number is the remaining data in bytes.
    Data(u32),
    /// The framer collects the data digest.
    Digest,
}

/// Splits a byte stream into PDUs; see the module.
#[derive(Debug)]
pub struct Framer {
    role: Role,
    state: FramerState,
    digests: Digests,
    /// Whether the IC exchange is complete. Before that, only IC and terminate PDUs are valid, and
    /// PDUs have no digests.
    operational: bool,
    max_in_capsule_bytes: u32,
    partial: [u8; MAX_HEADER_BYTES],
    partial_length: usize,
    data_length: u32,
    crc: u32,
}

impl Framer {
    /// Sets the largest in-capsule data to accept, in bytes.
    pub fn set_max_in_capsule_bytes(&mut self, bytes: u32) {
        self.max_in_capsule_bytes = bytes;
    }

    /// Creates a framer at the start of a connection.
    #[must_use]
    pub fn new(role: Role, max_in_capsule_bytes: u32) -> Self {
        Self {
            role,
            state: FramerState::Header,
            digests: Digests::NONE,
            operational: false,
            max_in_capsule_bytes,
            partial: [0; MAX_HEADER_BYTES],
            partial_length: 0,
            data_length: 0,
            crc: 0,
        }
    }

    /// Reports that the IC exchange is complete. The digests apply from the next PDU.
    pub fn set_operational(&mut self, digests: Digests) {
        self.digests = digests;
        self.operational = true;
    }

    /// Returns the number of payload bytes until the next header in the stream. A driver may
    /// receive them directly into their destination and report them with [`Self::data_received`].
    #[must_use]
    pub fn data_left(&self) -> u32 {
        if let FramerState::Data(left) = self.state { left } else { 0 }
    }

    /// Reports that the driver received `bytes` of data directly into their destination.
    ///
    /// # Panics
    /// Panics if `bytes` is longer than [`Self::data_left`].
    pub fn data_received(&mut self, bytes: &[u8]) {
        let FramerState::Data(left) = self.state else { panic!("no data is expected") };
        let length = u32::try_from(bytes.len()).expect("bounded by data_left");
        assert!(length <= left, "{length} bytes reported, {left} expected");
        self.advance_data(bytes, left - length);
    }

    fn advance_data(&mut self, bytes: &[u8], left: u32) {
        if self.digests.data() {
            self.crc = crc32c_append(self.crc, bytes);
        }
        self.state = FramerState::Data(left);
    }

    /// Removes the next piece from the front of `input`; `None` if `input` has too few bytes for a
    /// piece.
    ///
    /// # Errors
    /// Returns a [`Fault`]; the connection is then unusable.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Framed<'a>>, Fault> {
        loop {
            match self.state {
                FramerState::Header => return Ok(self.header(input)?.map(Framed::Pdu)),
                FramerState::Padding(left) => {
                    let skipped = (left as usize).min(input.len());
                    *input = &input[skipped..];
                    let left = left - skipped as u32;
                    if left > 0 {
                        self.state = FramerState::Padding(left);
                        return Ok(None);
                    }
                    self.state = FramerState::Data(self.data_length);
                }
                FramerState::Data(0) if self.digests.data() => self.state = FramerState::Digest,
                FramerState::Data(0) => {
                    self.state = FramerState::Header;
                    return Ok(Some(Framed::End { intact: true }));
                }
                FramerState::Data(left) => {
                    let taken = (left as usize).min(input.len());
                    if taken == 0 {
                        return Ok(None);
                    }
                    let (data, rest) = input.split_at(taken);
                    *input = rest;
                    self.advance_data(data, left - taken as u32);
                    return Ok(Some(Framed::Data(data)));
                }
                FramerState::Digest => return Ok(self.data_digest(input)),
            }
        }
    }

    fn data_digest<'a>(&mut self, input: &mut &'a [u8]) -> Option<Framed<'a>> {
        let digest = self.collect(input, DIGEST_LEN)?;
        let received = u32::from_le_bytes(digest[..DIGEST_LEN].try_into().expect("four bytes"));
        self.state = FramerState::Header;
        Some(Framed::End { intact: received == self.crc })
    }

    /// Collects `wanted` bytes over several calls. Returns the bytes when all have arrived.
    fn collect(&mut self, input: &mut &[u8], wanted: usize) -> Option<[u8; MAX_HEADER_BYTES]> {
        let taken = (wanted - self.partial_length).min(input.len());
        self.partial[self.partial_length..][..taken].copy_from_slice(&input[..taken]);
        *input = &input[taken..];
        self.partial_length += taken;
        if self.partial_length < wanted {
            return None;
        }
        self.partial_length = 0;
        Some(self.partial)
    }

    fn header(&mut self, input: &mut &[u8]) -> Result<Option<Pdu>, Fault> {
        const COMMON: usize = size_of::<CommonHeader>();
        // Most headers arrive in one piece. Only split headers are copied to `partial`.
        if self.partial_length == 0 && input.len() >= COMMON {
            let whole = self.check_common(&input[..COMMON])?;
            if input.len() >= whole {
                let (header, rest) = input.split_at(whole);
                *input = rest;
                return self.whole_header(header).map(Some);
            }
        }
        if self.partial_length < COMMON {
            let taken = (COMMON - self.partial_length).min(input.len());
            self.partial[self.partial_length..][..taken].copy_from_slice(&input[..taken]);
            *input = &input[taken..];
            self.partial_length += taken;
            if self.partial_length < COMMON {
                return Ok(None);
            }
        }
        let common: [u8; COMMON] = self.partial[..COMMON].try_into().expect("collected");
        let whole = self.check_common(&common)?;
        let Some(header) = self.collect(input, whole) else { return Ok(None) };
        self.whole_header(&header[..whole]).map(Some)
    }

    /// Checks the fields of the common header. Returns the length of the header and its digest.
    fn check_common(&self, header: &[u8]) -> Result<usize, Fault> {
        let common = CommonHeader::ref_from_bytes(header).expect("eight bytes");
        let (hlen, with_digest) = self.expected_header(common, header)?;
        if usize::from(common.hlen) != hlen {
            return Err(Fault::field(
                FEI_HLEN,
                "header length does not match the PDU type",
                header,
            ));
        }
        let digest_flag = common.has_header_digest();
        if digest_flag != (with_digest && self.digests.header()) {
            return Err(Fault::field(
                FEI_FLAGS,
                "header digest flag differs from the negotiated digests",
                header,
            ));
        }
        Ok(hlen + if digest_flag { DIGEST_LEN } else { 0 })
    }

    /// Returns the header length of a PDU of this type, and whether digests apply to the PDU.
    fn expected_header(
        &self,
        common: &CommonHeader,
        header: &[u8],
    ) -> Result<(usize, bool), Fault> {
        let expected = match (self.role, common.pdu_type) {
            (Role::Controller, PduType::IC_REQ) | (Role::Host, PduType::IC_RESP) => {
                if self.operational {
                    return Err(Fault::new(
                        FatalErrorStatus::PDU_SEQUENCE_ERROR,
                        FEI_TYPE,
                        "the connection is already initialised",
                        header,
                    ));
                }
                return Ok((size_of::<IcReq>(), false));
            }
            (Role::Controller, PduType::H2C_TERM_REQ) | (Role::Host, PduType::C2H_TERM_REQ) => {
                return Ok((size_of::<TermReq>(), false));
            }
            (Role::Controller, PduType::CAPSULE_CMD) => size_of::<CapsuleCmd>(),
            (Role::Controller, PduType::H2C_DATA) | (Role::Host, PduType::C2H_DATA) => {
                size_of::<DataPdu>()
            }
            (Role::Host, PduType::CAPSULE_RESP) => size_of::<CapsuleResp>(),
            (Role::Host, PduType::R2T) => size_of::<R2t>(),
            _ => return Err(Fault::field(FEI_TYPE, "not a PDU type for this direction", header)),
        };
        if !self.operational {
            return Err(Fault::new(
                FatalErrorStatus::PDU_SEQUENCE_ERROR,
                FEI_TYPE,
                "the connection is not initialised yet",
                header,
            ));
        }
        Ok((expected, true))
    }

    /// Checks and reads `bytes`, a whole header with its digest if there is one.
    fn whole_header(&mut self, bytes: &[u8]) -> Result<Pdu, Fault> {
        let common = CommonHeader::read_from_prefix(bytes).expect("eight bytes").0;
        let header = &bytes[..usize::from(common.hlen)];
        if bytes.len() > header.len() {
            let received = &bytes[header.len()..];
            if received != crc32c(header).to_le_bytes() {
                let received = u32::from_le_bytes(received.try_into().expect("four bytes"));
                let status = FatalErrorStatus::HEADER_DIGEST_ERROR;
                return Err(Fault::new(status, received, "header digest does not match", header));
            }
        }
        match common.pdu_type {
            PduType::IC_REQ => {
                no_data(&common, header)?;
                Ok(Pdu::IcReq(read(header)))
            }
            PduType::IC_RESP => {
                no_data(&common, header)?;
                Ok(Pdu::IcResp(read(header)))
            }
            PduType::H2C_TERM_REQ | PduType::C2H_TERM_REQ => self.term_req(&common, header),
            PduType::CAPSULE_CMD => self.command(&common, header),
            PduType::CAPSULE_RESP => {
                self.exact(&common, header)?;
                Ok(Pdu::Response(read(header)))
            }
            PduType::R2T => {
                self.exact(&common, header)?;
                Ok(Pdu::R2t(read(header)))
            }
            _ => {
                let pdu: DataPdu = read(header);
                let length = pdu.datal.get();
                if length == 0 || length > limits::MAX_PDU_DATA_BYTES {
                    return Err(Fault::field(FEI_DATAL, "data length out of bounds", header));
                }
                self.begin_data(&common, header, Some(length))?;
                Ok(Pdu::Data(pdu))
            }
        }
    }

    fn header_with_digest(&self, common: &CommonHeader) -> u32 {
        u32::from(common.hlen) + if self.digests.header() { DIGEST_LEN as u32 } else { 0 }
    }

    /// Checks that no bytes follow the header of a PDU without data.
    fn exact(&self, common: &CommonHeader, header: &[u8]) -> Result<(), Fault> {
        if common.plen.get() != self.header_with_digest(common) {
            return Err(Fault::field(FEI_PLEN, "PDU length does not match the PDU type", header));
        }
        Ok(())
    }

    fn term_req(&self, common: &CommonHeader, header: &[u8]) -> Result<Pdu, Fault> {
        match common.plen.get().checked_sub(u32::from(common.hlen)) {
            Some(length) if length as usize <= TERM_DATA_MAX_BYTES => {
                // The framer need not check or skip the PDU's data, because a terminate PDU ends
                // the connection.
                Ok(Pdu::TermReq(read(header)))
            }
            _ => Err(Fault::field(FEI_PLEN, "terminate PDU is too long or too short", header)),
        }
    }

    fn command(&mut self, common: &CommonHeader, header: &[u8]) -> Result<Pdu, Fault> {
        let data = if common.plen.get() == self.header_with_digest(common) {
            0
        } else {
            self.begin_data(common, header, None)?
        };
        Ok(Pdu::Command(read(header), data))
    }

    /// Checks the offset and length of a PDU's data, and starts to receive the data. Returns the
    /// length in bytes.
    fn begin_data(
        &mut self,
        common: &CommonHeader,
        header: &[u8],
        stated: Option<u32>,
    ) -> Result<u32, Fault> {
        let start = self.header_with_digest(common);
        let pdo = u32::from(common.pdo);
        if pdo < start || pdo % 4 != 0 {
            return Err(Fault::field(
                FEI_PDO,
                "data offset lies in the header or is unaligned",
                header,
            ));
        }
        if common.has_data_digest() != self.digests.data() {
            return Err(Fault::field(
                FEI_FLAGS,
                "data digest flag differs from the negotiated digests",
                header,
            ));
        }
        let trailer = if self.digests.data() { DIGEST_LEN as u32 } else { 0 };
        let length = common.plen.get().checked_sub(pdo + trailer).filter(|&length| length > 0);
        let Some(length) = length else {
            return Err(Fault::field(
                FEI_PLEN,
                "PDU length is too short for header and data",
                header,
            ));
        };
        match stated {
            Some(stated) if stated != length => {
                return Err(Fault::field(
                    FEI_PLEN,
                    "PDU length differs from its data length",
                    header,
                ));
            }
            None if length > self.max_in_capsule_bytes => {
                return Err(Fault::field(
                    FEI_PLEN,
                    "more in-capsule data than the capsule size allows",
                    header,
                ));
            }
            _ => {}
        }
        self.data_length = length;
        self.crc = 0;
        self.state = FramerState::Padding(pdo - start);
        Ok(length)
    }
}

/// Checks that an IC PDU has neither data nor digests.
fn no_data(common: &CommonHeader, header: &[u8]) -> Result<(), Fault> {
    if common.plen.get() as usize != header.len() {
        return Err(Fault::field(FEI_PLEN, "PDU length does not match the PDU type", header));
    }
    Ok(())
}

fn read<T: FromBytes>(header: &[u8]) -> T {
    T::read_from_bytes(header).expect("the header length was checked")
}
