//! Fabrics commands (Base 2.0c, "Fabrics Command Set").
//!
//! Each command type is a 64-byte view of a submission queue entry. `from_sqe` and `to_sqe` convert
//! between the view and an [`Sqe`] by reinterpreting the bytes.

use zerocopy::little_endian::{U16, U32, U64};

use crate::Sqe;
use crate::auth;
use crate::nqn::{self, NqnError};
use crate::opcode::AdminOpcode;
pub use crate::opcode::FabricsCommandType;
use crate::sgl::SglDescriptor;

/// Connect Attributes bits 1:0: priority class of the queue.
pub const CATTR_PRIORITY: u8 = 0b11;
/// Connect Attributes bit 2: the host asks to disable SQ flow control.
pub const CATTR_DISABLE_SQ_FLOW: u8 = 1 << 2;
/// Connect Attributes bit 3: the host supports deletion of single I/O queues.
pub const CATTR_QUEUE_DELETION: u8 = 1 << 3;

/// Controller ID in Connect data: any controller (dynamic model).
pub const CNTLID_DYNAMIC: u16 = 0xffff;
/// Controller ID in Connect data: any available controller (static model).
pub const CNTLID_STATIC_ANY: u16 = 0xfffe;
/// The largest controller ID that a controller may have.
pub const CNTLID_MAX: u16 = 0xffef;
/// SQHD in a completion when SQ flow control is disabled.
pub const SQHD_NO_FLOW_CONTROL: u16 = 0xffff;

/// Adds the byte-for-byte conversions between a command view and [`Sqe`].
macro_rules! command_view {
    ($($name:ident),+) => {$(
        impl $name {
            /// Reinterprets an entry. The caller must first check the opcode and the command type.
            pub fn from_sqe(sqe: &Sqe) -> Self {
                zerocopy::transmute!(*sqe)
            }

            /// Returns an entry with the same bytes.
            pub fn to_sqe(&self) -> Sqe {
                zerocopy::transmute!(*self)
            }
        }
    )+};
}

command_view!(
    ConnectCommand,
    PropertyGetCommand,
    PropertySetCommand,
    DisconnectCommand,
    AuthenticationCommand
);

layout! {
    /// Connect (Base 2.0c, "Connect Command and Response"). Its data is [`ConnectData`].
    pub struct ConnectCommand, 64 {
        0 opcode: u8, "Opcode (OPC), 7Fh.";
        1 flags: u8, "Data transfer descriptor (PSDT) in bits 7:6.";
        2 cid: U16, "Command identifier (CID).";
        4 fctype: u8, "Fabrics command type (FCTYPE), 01h.";
        5 rsvd_5: [u8; 19], "Reserved.";
        24 dptr: SglDescriptor, "SGL descriptor of the 1024 bytes of Connect data (SGL1).";
        40 recfmt: U16, "Record format (RECFMT), 0.";
        42 qid: U16, "Queue identifier (QID): 0 creates the admin queue and the controller.";
        44 sqsize_z: U16, "Submission queue size, 0's-based (SQSIZE).";
        46 cattr: u8, "Connect attributes (CATTR); see the `CATTR_` constants.";
        47 rsvd_47: u8, "Reserved.";
        48 kato: U32, "Keep alive timeout in milliseconds, 0 for none (KATO).";
        52 rsvd_52: [u8; 12], "Reserved.";
    }
}

impl ConnectCommand {
    /// Creates a command that connects queue `qid` of `sqsize_z + 1` entries. The Connect data goes
    /// in the capsule, as TCP requires.
    pub fn new(cid: u16, qid: u16, sqsize_z: u16, kato_ms: u32) -> Self {
        Self {
            opcode: AdminOpcode::FABRICS.0,
            flags: Sqe::FLAGS_SGL,
            cid: U16::new(cid),
            fctype: FabricsCommandType::CONNECT.0,
            dptr: SglDescriptor::in_capsule(0, ConnectData::LEN as u32),
            qid: U16::new(qid),
            sqsize_z: U16::new(sqsize_z),
            kato: U32::new(kato_ms),
            ..Self::zeroed()
        }
    }
}

layout! {
    /// Data of the Connect command (Base 2.0c, "Connect Command - Data").
    pub struct ConnectData, 1024 {
        0 hostid: [u8; 16], "Host identifier (HOSTID).";
        16 cntlid: U16, "Controller to connect to, or FFFFh for any (CNTLID).";
        18 rsvd_18: [u8; 238], "Reserved.";
        256 subnqn: [u8; 256], "Subsystem's NQN, NUL-terminated (SUBNQN).";
        512 hostnqn: [u8; 256], "Host's NQN, NUL-terminated (HOSTNQN).";
        768 rsvd_768: [u8; 256], "Reserved.";
    }
}

impl ConnectData {
    /// Creates the data for a connection between the named host and the named subsystem.
    ///
    /// # Panics
    /// Panics if a name is longer than [`nqn::NQN_MAX_BYTES`]. Callers must validate names that
    /// users or peers supply.
    pub fn new(hostid: [u8; 16], cntlid: u16, subnqn: &str, hostnqn: &str) -> Self {
        Self {
            hostid,
            cntlid: U16::new(cntlid),
            subnqn: nqn::nqn_field(subnqn),
            hostnqn: nqn::nqn_field(hostnqn),
            ..Self::zeroed()
        }
    }

    /// Returns the subsystem's name, which need not be a valid NQN.
    pub fn subsystem_nqn(&self) -> Result<&str, NqnError> {
        nqn::parse_field_text(&self.subnqn)
    }

    /// Returns the host's name, which need not be a valid NQN.
    pub fn host_nqn(&self) -> Result<&str, NqnError> {
        nqn::parse_field_text(&self.hostnqn)
    }
}

/// The result of Connect (Base 2.0c, "Connect Response").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectResult {
    /// The controller to which the queue now belongs (CNTLID).
    pub cntlid: u16,
    /// Authentication requirements (AUTHREQ): see the `AUTHREQ_` constants.
    pub authreq: u16,
}

impl ConnectResult {
    /// The host must authenticate before other commands (ATR).
    pub const AUTHREQ_ATR: u16 = 1 << 1;
    /// The host must authenticate and then use a secure channel with the generated key (ASCR).
    pub const AUTHREQ_ASCR: u16 = 1 << 2;

    /// Reads the result of a successful completion.
    pub const fn parse(result: u64) -> Self {
        Self { cntlid: result as u16, authreq: (result >> 16) as u16 }
    }

    /// Returns the result field of a successful completion.
    pub const fn emit(self) -> u64 {
        self.cntlid as u64 | (self.authreq as u64) << 16
    }
}

/// The result of a Connect that failed with status Connect Invalid Parameters: the location of the
/// invalid parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectInvalidParameter {
    /// Whether the parameter is in the Connect data instead of the submission queue entry (IATTR
    /// bit 0).
    pub in_data: bool,
    /// The parameter's offset in bytes (IPO).
    pub offset: u16,
}

impl ConnectInvalidParameter {
    /// The location of a parameter in the submission queue entry.
    pub const fn in_command(offset: usize) -> Self {
        Self { in_data: false, offset: offset as u16 }
    }

    /// The location of a parameter in the Connect data.
    pub const fn in_data(offset: usize) -> Self {
        Self { in_data: true, offset: offset as u16 }
    }

    /// Reads the result of a failed completion.
    pub const fn parse(result: u64) -> Self {
        Self { in_data: (result >> 16) & 1 != 0, offset: result as u16 }
    }

    /// Returns the result field of a failed completion.
    pub const fn emit(self) -> u64 {
        self.offset as u64 | (self.in_data as u64) << 16
    }
}

/// Size of a property access: ATTRIB bits 2:0 (Base 2.0c, "Property Get Command").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PropertySize {
    /// 4 bytes (000b).
    Four,
    /// 8 bytes (001b).
    Eight,
}

impl PropertySize {
    /// Reads the attributes byte; `None` for a reserved size.
    pub const fn parse(attrib: u8) -> Option<Self> {
        match attrib & 0b111 {
            0 => Some(Self::Four),
            1 => Some(Self::Eight),
            _ => None,
        }
    }

    /// Returns the attributes byte.
    pub const fn emit(self) -> u8 {
        match self {
            Self::Four => 0,
            Self::Eight => 1,
        }
    }
}

layout! {
    /// Property Get (Base 2.0c, "Property Get Command and Response").
    pub struct PropertyGetCommand, 64 {
        0 opcode: u8, "Opcode (OPC), 7Fh.";
        1 flags: u8, "Reserved.";
        2 cid: U16, "Command identifier (CID).";
        4 fctype: u8, "Fabrics command type (FCTYPE), 04h.";
        5 rsvd_5: [u8; 35], "Reserved.";
        40 attrib: u8, "Attributes: property size in bits 2:0 (ATTRIB).";
        41 rsvd_41: [u8; 3], "Reserved.";
        44 ofst: U32, "Offset of the property (OFST); see `property::offset`.";
        48 rsvd_48: [u8; 16], "Reserved.";
    }
}

impl PropertyGetCommand {
    /// Creates a command that reads the property at offset `ofst`.
    pub fn new(cid: u16, ofst: u32, size: PropertySize) -> Self {
        Self {
            opcode: AdminOpcode::FABRICS.0,
            flags: Sqe::FLAGS_SGL,
            cid: U16::new(cid),
            fctype: FabricsCommandType::PROPERTY_GET.0,
            attrib: size.emit(),
            ofst: U32::new(ofst),
            ..Self::zeroed()
        }
    }
}

layout! {
    /// Property Set (Base 2.0c, "Property Set Command and Response").
    pub struct PropertySetCommand, 64 {
        0 opcode: u8, "Opcode (OPC), 7Fh.";
        1 flags: u8, "Reserved.";
        2 cid: U16, "Command identifier (CID).";
        4 fctype: u8, "Fabrics command type (FCTYPE), 00h.";
        5 rsvd_5: [u8; 35], "Reserved.";
        40 attrib: u8, "Attributes: property size in bits 2:0 (ATTRIB).";
        41 rsvd_41: [u8; 3], "Reserved.";
        44 ofst: U32, "Offset of the property (OFST); see `property::offset`.";
        48 value: U64, "New value; a 4-byte property uses the low bytes (VALUE).";
        56 rsvd_56: [u8; 8], "Reserved.";
    }
}

impl PropertySetCommand {
    /// Creates a command that writes `value` to the property at offset `ofst`.
    pub fn new(cid: u16, ofst: u32, size: PropertySize, value: u64) -> Self {
        Self {
            opcode: AdminOpcode::FABRICS.0,
            flags: Sqe::FLAGS_SGL,
            cid: U16::new(cid),
            fctype: FabricsCommandType::PROPERTY_SET.0,
            attrib: size.emit(),
            ofst: U32::new(ofst),
            value: U64::new(value),
            ..Self::zeroed()
        }
    }
}

layout! {
    /// Disconnect of one I/O queue (Base 2.0c, "Disconnect Command and Response").
    pub struct DisconnectCommand, 64 {
        0 opcode: u8, "Opcode (OPC), 7Fh.";
        1 flags: u8, "Reserved.";
        2 cid: U16, "Command identifier (CID).";
        4 fctype: u8, "Fabrics command type (FCTYPE), 08h.";
        5 rsvd_5: [u8; 35], "Reserved.";
        40 recfmt: U16, "Record format (RECFMT), 0.";
        42 rsvd_42: [u8; 22], "Reserved.";
    }
}

impl DisconnectCommand {
    /// Creates a command that deletes the queue on which the host sends it.
    pub fn new(cid: u16) -> Self {
        Self {
            opcode: AdminOpcode::FABRICS.0,
            flags: Sqe::FLAGS_SGL,
            cid: U16::new(cid),
            fctype: FabricsCommandType::DISCONNECT.0,
            ..Self::zeroed()
        }
    }
}

layout! {
    /// Authentication Send and Receive (Base 2.0c, "Authentication Send Command and Response",
    /// "Authentication Receive Command and Response").
    pub struct AuthenticationCommand, 64 {
        0 opcode: u8, "Opcode (OPC), 7Fh.";
        1 flags: u8, "Data transfer descriptor (PSDT) in bits 7:6.";
        2 cid: U16, "Command identifier (CID).";
        4 fctype: u8, "Fabrics command type (FCTYPE), 05h send, 06h receive.";
        5 rsvd_5: [u8; 19], "Reserved.";
        24 dptr: SglDescriptor, "SGL descriptor of the message (SGL1).";
        40 rsvd_40: u8, "Reserved.";
        41 spsp0: u8, "Security protocol specific, byte 0 (SPSP0), 01h.";
        42 spsp1: u8, "Security protocol specific, byte 1 (SPSP1), 01h.";
        43 secp: u8, "Security protocol (SECP), E9h.";
        44 length: U32, "Transfer length (TL) of a send, allocation length (AL) of a receive.";
        48 rsvd_48: [u8; 16], "Reserved.";
    }
}

impl AuthenticationCommand {
    fn new(cid: u16, fctype: FabricsCommandType, length: u32) -> Self {
        Self {
            opcode: AdminOpcode::FABRICS.0,
            flags: Sqe::FLAGS_SGL,
            cid: U16::new(cid),
            fctype: fctype.0,
            spsp0: auth::SPSP,
            spsp1: auth::SPSP,
            secp: auth::SECP_NVME,
            length: U32::new(length),
            ..Self::zeroed()
        }
    }

    /// Creates a command that sends a message of `length` bytes to the controller.
    pub fn send(cid: u16, length: u32) -> Self {
        Self::new(cid, FabricsCommandType::AUTHENTICATION_SEND, length)
    }

    /// Creates a command that requests the controller's message, of at most `length` bytes.
    pub fn receive(cid: u16, length: u32) -> Self {
        Self::new(cid, FabricsCommandType::AUTHENTICATION_RECEIVE, length)
    }

    /// Whether the command uses NVMe's own authentication protocol (SECP E9h).
    pub fn is_nvme(&self) -> bool {
        (self.secp, self.spsp0, self.spsp1) == (auth::SECP_NVME, auth::SPSP, auth::SPSP)
    }
}
