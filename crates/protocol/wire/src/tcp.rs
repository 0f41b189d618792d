//! NVMe/TCP PDUs (TCP 1.0c, "NVMe/TCP PDUs").
//!
//! A PDU is `header, [HDGST], [pad, DATA, [DDGST]]`. [`PduShape`] computes the offsets.

use core::fmt;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::sqe::{Cqe, Sqe};

/// Flag in all PDUs after initialization: a header digest follows the header (HDGSTF).
pub const HDGSTF: u8 = 1 << 0;
/// Flag in PDUs with data: a data digest follows the data (DDGSTF).
pub const DDGSTF: u8 = 1 << 1;
/// Flag in H2CData and C2HData: this PDU is the last of its R2T or of its command's data
/// (LAST_PDU).
pub const LAST_PDU: u8 = 1 << 2;
/// Flag in C2HData with LAST_PDU: the command succeeded and no response capsule follows (SUCCESS).
pub const SUCCESS: u8 = 1 << 3;

/// Length in bytes of a header digest or a data digest.
pub const DIGEST_LEN: usize = 4;
/// Longest data field of a terminate PDU, in bytes. A copy of any PDU header fits. TCP 1.0c limits
/// PLEN of a terminate PDU to 152, which includes the header of 24 bytes.
pub const TERM_DATA_MAX_BYTES: usize = 128;
/// The only PDU format version: NVMe/TCP 1.0 (PFV 0).
pub const PFV_1_0: u16 = 0;
/// Largest HPDA or CPDA value, 0's-based, in dwords. The largest alignment is therefore 128 bytes.
pub const PDA_MAX_Z: u8 = 31;
/// Smallest MAXH2CDATA that the specification allows, in bytes.
pub const MAXH2CDATA_MIN_BYTES: u32 = 4096;
/// The well-known port of NVMe/TCP I/O controllers.
pub const PORT_IO: u16 = 4420;
/// The well-known port of NVMe/TCP discovery controllers.
pub const PORT_DISCOVERY: u16 = 8009;

open_code! {
    /// PDU-Type, byte 0 of the common header (TCP 1.0c, "PDU Types").
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct PduType(u8), "PDU type" {
        IC_REQ = 0x00, "ICReq";
        IC_RESP = 0x01, "ICResp";
        H2C_TERM_REQ = 0x02, "H2CTermReq";
        C2H_TERM_REQ = 0x03, "C2HTermReq";
        CAPSULE_CMD = 0x04, "CapsuleCmd";
        CAPSULE_RESP = 0x05, "CapsuleResp";
        H2C_DATA = 0x06, "H2CData";
        C2H_DATA = 0x07, "C2HData";
        R2T = 0x09, "R2T";
    }
}

impl PduType {
    /// Returns the header length (HLEN) of this type; `None` for an unknown type.
    pub const fn header_len(self) -> Option<u8> {
        match self {
            Self::IC_REQ | Self::IC_RESP => Some(128),
            Self::CAPSULE_CMD => Some(72),
            Self::H2C_TERM_REQ
            | Self::C2H_TERM_REQ
            | Self::CAPSULE_RESP
            | Self::H2C_DATA
            | Self::C2H_DATA
            | Self::R2T => Some(24),
            _ => None,
        }
    }

    /// Whether a host sends this type (false also for an unknown type).
    pub const fn is_from_host(self) -> bool {
        matches!(self, Self::IC_REQ | Self::H2C_TERM_REQ | Self::CAPSULE_CMD | Self::H2C_DATA)
    }

    /// Whether a controller sends this type (false also for an unknown type).
    pub const fn is_from_controller(self) -> bool {
        matches!(
            self,
            Self::IC_RESP | Self::C2H_TERM_REQ | Self::CAPSULE_RESP | Self::C2H_DATA | Self::R2T
        )
    }
}

open_code! {
    /// Fatal Error Status (FES) of a terminate PDU (TCP 1.0c, "H2CTermReq" and "C2HTermReq").
    pub struct FatalErrorStatus(u16), "fatal error status" {
        INVALID_PDU_HEADER_FIELD = 0x01, "invalid PDU header field";
        PDU_SEQUENCE_ERROR = 0x02, "PDU sequence error";
        HEADER_DIGEST_ERROR = 0x03, "header digest error";
        DATA_TRANSFER_OUT_OF_RANGE = 0x04, "data transfer out of range";
        TRANSFER_LIMIT_EXCEEDED = 0x05, "R2T limit or data transfer limit exceeded";
        UNSUPPORTED_PARAMETER = 0x06, "unsupported parameter";
    }
}

/// DGST of ICReq and ICResp: the digests that the sender requests or grants (TCP 1.0c, "ICReq").
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Default,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(transparent)]
pub struct DigestFlags(pub u8);

impl DigestFlags {
    /// No digests.
    pub const NONE: Self = Self(0);
    /// Header digests only.
    pub const HEADER: Self = Self(1);
    /// Data digests only.
    pub const DATA: Self = Self(2);
    /// Both digests.
    pub const BOTH: Self = Self(3);

    /// Returns the flags for the given digests.
    pub const fn new(header: bool, data: bool) -> Self {
        Self(header as u8 | (data as u8) << 1)
    }

    /// Whether header digests are enabled (HDGST_ENABLE).
    pub const fn header(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether data digests are enabled (DDGST_ENABLE).
    pub const fn data(self) -> bool {
        self.0 & 2 != 0
    }

    /// Returns the digests that are in both `self` and `granted`.
    pub const fn intersection(self, granted: Self) -> Self {
        Self(self.0 & granted.0)
    }

    /// Whether bits that the specification reserves are set.
    pub const fn has_reserved(self) -> bool {
        self.0 & !3 != 0
    }
}

impl fmt::Debug for DigestFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            0 => "none",
            1 => "header",
            2 => "data",
            3 => "header+data",
            _ => return write!(f, "DigestFlags({:#04x})", self.0),
        };
        write!(f, "DigestFlags({text})")
    }
}

layout! {
    /// The first 8 bytes of every PDU (TCP 1.0c, "PDU Common Header").
    pub struct CommonHeader, 8 {
        0 pdu_type: PduType, "PDU type (PDU-Type).";
        1 flags: u8, "PDU type specific flags (FLAGS).";
        2 hlen: u8, "Header length in bytes, without the header digest (HLEN).";
        3 pdo: u8, "Offset of the data from the start of the PDU, in bytes (PDO); 0 without data.";
        4 plen: U32, "Length of the whole PDU in bytes, digests and padding included (PLEN).";
    }
}

impl CommonHeader {
    /// Creates the header of a PDU with a known type and with `shape`. Adds the digest flags of
    /// `shape` to `flags`.
    ///
    /// # Panics
    /// Panics if `pdu_type` is unknown, or `shape` has another header length.
    pub fn new(pdu_type: PduType, shape: PduShape, flags: u8) -> Self {
        assert_eq!(
            pdu_type.header_len(),
            Some(shape.hlen),
            "the shape belongs to another PDU type"
        );
        let flags = flags | shape.digest_flags();
        Self { pdu_type, flags, hlen: shape.hlen, pdo: shape.pdo, plen: U32::new(shape.plen) }
    }

    /// Whether a header digest follows the header.
    pub const fn has_header_digest(&self) -> bool {
        self.flags & HDGSTF != 0
    }

    /// Whether a data digest follows the data.
    pub const fn has_data_digest(&self) -> bool {
        self.flags & DDGSTF != 0
    }

    /// Whether LAST_PDU is set.
    pub const fn is_last(&self) -> bool {
        self.flags & LAST_PDU != 0
    }

    /// Whether SUCCESS is set.
    pub const fn is_success(&self) -> bool {
        self.flags & SUCCESS != 0
    }
}

/// The positions of a PDU's parts. The header length, the data length and the digests determine
/// them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PduShape {
    /// Header length in bytes.
    pub hlen: u8,
    /// Data offset in bytes, 0 without data.
    pub pdo: u8,
    /// Length of the whole PDU in bytes.
    pub plen: u32,
    /// Length of the data in bytes.
    pub data_bytes: u32,
    /// Whether a header digest follows the header.
    pub header_digest: bool,
    /// Whether a data digest follows the data; never without data.
    pub data_digest: bool,
}

impl PduShape {
    /// Returns the shape of a PDU whose header has `hlen` bytes, followed by `data_bytes` of data.
    /// The data starts at a multiple of `(pda_z + 1) * 4` bytes. `None`: a length does not fit its
    /// field, or `pda_z` is above [`PDA_MAX_Z`].
    pub const fn new(hlen: u8, data_bytes: u32, digests: DigestFlags, pda_z: u8) -> Option<Self> {
        let header_digest = digests.header();
        let header_end = hlen as u32 + if header_digest { DIGEST_LEN as u32 } else { 0 };
        if data_bytes == 0 {
            let plen = header_end;
            return Some(Self {
                hlen,
                pdo: 0,
                plen,
                data_bytes,
                header_digest,
                data_digest: false,
            });
        }
        if pda_z > PDA_MAX_Z {
            return None;
        }
        let align_bytes = (pda_z as u32 + 1) * 4;
        let pdo = header_end.div_ceil(align_bytes) * align_bytes;
        if pdo > u8::MAX as u32 {
            return None;
        }
        let data_digest = digests.data();
        let tail = if data_digest { DIGEST_LEN as u32 } else { 0 };
        match data_bytes.checked_add(pdo + tail) {
            Some(plen) => {
                Some(Self { hlen, pdo: pdo as u8, plen, data_bytes, header_digest, data_digest })
            }
            None => None,
        }
    }

    /// Returns the digest flags of a PDU with this shape: HDGSTF, DDGSTF.
    pub const fn digest_flags(self) -> u8 {
        (if self.header_digest { HDGSTF } else { 0 }) | (if self.data_digest { DDGSTF } else { 0 })
    }

    /// Returns the padding between the header (with its digest) and the data, in bytes.
    pub const fn pad_bytes(self) -> usize {
        let header_end = self.hlen as usize + if self.header_digest { DIGEST_LEN } else { 0 };
        (self.pdo as usize).saturating_sub(header_end)
    }
}

/// Returns the shape of a PDU without data.
const fn bare(hlen: u8, digests: DigestFlags) -> PduShape {
    match PduShape::new(hlen, 0, digests, 0) {
        Some(shape) => shape,
        None => unreachable!(),
    }
}

layout! {
    /// Initialize Connection Request (TCP 1.0c, "ICReq"). The PDU never carries a digest.
    pub struct IcReq, 128 {
        0 ch: CommonHeader, "Common header.";
        8 pfv: U16, "PDU format version (PFV).";
        10 hpda_z: u8, "Host PDU data alignment, 0's-based, in dwords (HPDA).";
        11 dgst: DigestFlags, "Digests that the host requests (DGST).";
        12 maxr2t_z: U32, "Maximum outstanding R2Ts per command, 0's-based (MAXR2T).";
        16 rsvd_16: [u8; 112], "Reserved.";
    }
}

impl IcReq {
    /// Creates a request for `dgst`, with the host's alignment and R2T limit.
    pub fn new(hpda_z: u8, dgst: DigestFlags, maxr2t_z: u32) -> Self {
        Self {
            ch: CommonHeader::new(PduType::IC_REQ, bare(128, DigestFlags::NONE), 0),
            pfv: U16::new(PFV_1_0),
            hpda_z,
            dgst,
            maxr2t_z: U32::new(maxr2t_z),
            rsvd_16: [0; 112],
        }
    }
}

layout! {
    /// Initialize Connection Response (TCP 1.0c, "ICResp"). The PDU never carries a digest.
    pub struct IcResp, 128 {
        0 ch: CommonHeader, "Common header.";
        8 pfv: U16, "PDU format version (PFV).";
        10 cpda_z: u8, "Controller PDU data alignment, 0's-based, in dwords (CPDA).";
        11 dgst: DigestFlags, "Digests that the controller grants (DGST).";
        12 maxh2cdata: U32, "Maximum data bytes per H2CData PDU, at least 4096 (MAXH2CDATA).";
        16 rsvd_16: [u8; 112], "Reserved.";
    }
}

impl IcResp {
    /// Creates a response that grants `dgst`, with the controller's alignment and H2CData limit.
    pub fn new(cpda_z: u8, dgst: DigestFlags, maxh2cdata_bytes: u32) -> Self {
        Self {
            ch: CommonHeader::new(PduType::IC_RESP, bare(128, DigestFlags::NONE), 0),
            pfv: U16::new(PFV_1_0),
            cpda_z,
            dgst,
            maxh2cdata: U32::new(maxh2cdata_bytes),
            rsvd_16: [0; 112],
        }
    }
}

layout! {
    /// Terminate Connection Request, in both directions (TCP 1.0c, "H2CTermReq" and "C2HTermReq").
    /// The first [`TERM_DATA_MAX_BYTES`] bytes of the offending PDU's header follow as data.
    pub struct TermReq, 24 {
        0 ch: CommonHeader, "Common header.";
        8 fes: U16, "Fatal error status (FES).";
        10 fei: [u8; 4], "Fatal error information (FEI), little-endian; see `fei_u32`.";
        14 rsvd_14: [u8; 10], "Reserved.";
    }
}

impl TermReq {
    /// Creates a terminate PDU header for `data_bytes` of the offending header. The PDU never
    /// carries a digest.
    ///
    /// # Panics
    /// Panics if `pdu_type` is not a terminate PDU, or `data_bytes` is above
    /// [`TERM_DATA_MAX_BYTES`].
    pub fn new(pdu_type: PduType, fes: FatalErrorStatus, fei: u32, data_bytes: usize) -> Self {
        assert!(matches!(pdu_type, PduType::H2C_TERM_REQ | PduType::C2H_TERM_REQ));
        assert!(data_bytes <= TERM_DATA_MAX_BYTES);
        // PDO is reserved in terminate PDUs, so the data always starts directly after the header.
        let plen = U32::new(24 + data_bytes as u32);
        Self {
            ch: CommonHeader { pdu_type, flags: 0, hlen: 24, pdo: 0, plen },
            fes: U16::new(fes.0),
            fei: fei.to_le_bytes(),
            rsvd_14: [0; 10],
        }
    }

    /// Returns the fatal error status.
    pub const fn status(&self) -> FatalErrorStatus {
        FatalErrorStatus(self.fes.get())
    }

    /// Returns the fatal error information. For an invalid header field or an unsupported
    /// parameter, it is the field's offset in bytes. For a header digest error, it is the received
    /// digest.
    pub const fn fei_u32(&self) -> u32 {
        u32::from_le_bytes(self.fei)
    }
}

layout! {
    /// Command Capsule (TCP 1.0c, "CapsuleCmd"). In-capsule data may follow.
    pub struct CapsuleCmd, 72 {
        0 ch: CommonHeader, "Common header.";
        8 sqe: Sqe, "The submission queue entry (CCSQE).";
    }
}

impl CapsuleCmd {
    /// Creates a command capsule with `data_bytes` of in-capsule data; `None` if the data does not
    /// fit in a PDU.
    pub fn new(sqe: Sqe, data_bytes: u32, digests: DigestFlags, cpda_z: u8) -> Option<Self> {
        let shape = PduShape::new(72, data_bytes, digests, cpda_z)?;
        Some(Self { ch: CommonHeader::new(PduType::CAPSULE_CMD, shape, 0), sqe })
    }
}

layout! {
    /// Response Capsule (TCP 1.0c, "CapsuleResp").
    pub struct CapsuleResp, 24 {
        0 ch: CommonHeader, "Common header.";
        8 cqe: Cqe, "The completion queue entry (RCCQE).";
    }
}

impl CapsuleResp {
    /// Creates a response capsule.
    pub fn new(cqe: Cqe, digests: DigestFlags) -> Self {
        Self { ch: CommonHeader::new(PduType::CAPSULE_RESP, bare(24, digests), 0), cqe }
    }
}

layout! {
    /// Data transfer in either direction (TCP 1.0c, "H2CData" and "C2HData").
    pub struct DataPdu, 24 {
        0 ch: CommonHeader, "Common header.";
        8 cccid: U16, "Command identifier of the command capsule (CCCID).";
        10 ttag: U16, "Transfer tag of the R2T, in H2CData; reserved in C2HData (TTAG).";
        12 datao: U32, "Offset of this data in the command's data, in bytes (DATAO).";
        16 datal: U32, "Length of this data in bytes (DATAL).";
        20 rsvd_20: [u8; 4], "Reserved.";
    }
}

impl DataPdu {
    /// Creates a PDU with host to controller data for the R2T `ttag`.
    pub fn h2c(cccid: u16, ttag: u16, datao: u32, shape: PduShape, last: bool) -> Self {
        let flags = if last { LAST_PDU } else { 0 };
        Self::new(CommonHeader::new(PduType::H2C_DATA, shape, flags), cccid, ttag, datao, shape)
    }

    /// Creates a PDU with controller to host data. `flags` are [`LAST_PDU`] and [`SUCCESS`].
    pub fn c2h(cccid: u16, datao: u32, shape: PduShape, flags: u8) -> Self {
        Self::new(CommonHeader::new(PduType::C2H_DATA, shape, flags), cccid, 0, datao, shape)
    }

    fn new(ch: CommonHeader, cccid: u16, ttag: u16, datao: u32, shape: PduShape) -> Self {
        Self {
            ch,
            cccid: U16::new(cccid),
            ttag: U16::new(ttag),
            datao: U32::new(datao),
            datal: U32::new(shape.data_bytes),
            rsvd_20: [0; 4],
        }
    }
}

layout! {
    /// Ready to Transfer (TCP 1.0c, "R2T").
    pub struct R2t, 24 {
        0 ch: CommonHeader, "Common header.";
        8 cccid: U16, "Command identifier of the command capsule (CCCID).";
        10 ttag: U16, "Transfer tag, chosen by the controller (TTAG).";
        12 r2to: U32, "Offset of the requested data in the command's data, in bytes (R2TO).";
        16 r2tl: U32, "Length of the requested data in bytes (R2TL).";
        20 rsvd_20: [u8; 4], "Reserved.";
    }
}

impl R2t {
    /// Requests `length_bytes` of the command's data, from `offset_bytes`.
    pub fn new(
        cccid: u16,
        ttag: u16,
        offset_bytes: u32,
        length_bytes: u32,
        digests: DigestFlags,
    ) -> Self {
        Self {
            ch: CommonHeader::new(PduType::R2T, bare(24, digests), 0),
            cccid: U16::new(cccid),
            ttag: U16::new(ttag),
            r2to: U32::new(offset_bytes),
            r2tl: U32::new(length_bytes),
            rsvd_20: [0; 4],
        }
    }
}
