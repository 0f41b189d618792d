//! Submission and completion queue entries (Base 2.0c, "Common Command Format", "Common
//! Completion Queue Entry").

use zerocopy::little_endian::{U16, U32, U64};

use crate::sgl::SglDescriptor;
use crate::status::Status;

layout! {
    /// Submission Queue Entry (Base 2.0c, "Common Command Format").
    pub struct Sqe, 64 {
        0 opcode: u8, "Opcode (OPC).";
        1 flags: u8, "Fused operation in bits 1:0, data transfer descriptor (PSDT) in bits 7:6.";
        2 cid: U16, "Command identifier (CID).";
        4 nsid: U32, "Namespace identifier (NSID); in a Fabrics command byte 4 is FCTYPE.";
        8 cdw2: U32, "Command dword 2.";
        12 cdw3: U32, "Command dword 3.";
        16 mptr: U64, "Metadata pointer (MPTR).";
        24 dptr: SglDescriptor, "Data pointer (DPTR): over fabrics always one SGL descriptor.";
        40 cdw10: U32, "Command dword 10.";
        44 cdw11: U32, "Command dword 11.";
        48 cdw12: U32, "Command dword 12.";
        52 cdw13: U32, "Command dword 13.";
        56 cdw14: U32, "Command dword 14.";
        60 cdw15: U32, "Command dword 15.";
    }
}

impl Sqe {
    /// The flags byte with PSDT 01b: SGL for the data, one buffer for metadata. Commands over
    /// fabrics use this value.
    pub const FLAGS_SGL: u8 = 0b01 << 6;

    /// Creates a command with this opcode, identifier and namespace, with [`Self::FLAGS_SGL`]. All
    /// other fields are zero.
    pub fn new(opcode: u8, cid: u16, nsid: u32) -> Self {
        Self {
            opcode,
            flags: Self::FLAGS_SGL,
            cid: U16::new(cid),
            nsid: U32::new(nsid),
            ..Self::zeroed()
        }
    }

    /// Fused operation (FUSE): 0 normal, 1 first, 2 second of a pair.
    pub const fn fuse(&self) -> u8 {
        self.flags & 0b11
    }

    /// PRP or SGL for Data Transfer (PSDT): 0 PRP, 1 SGL with metadata buffer, 2 SGL for both.
    pub const fn psdt(&self) -> u8 {
        self.flags >> 6
    }

    /// Fabrics command type: byte 4, meaningful only with the Fabrics opcode.
    pub const fn fctype(&self) -> u8 {
        (self.nsid.get() & 0xff) as u8
    }
}

layout! {
    /// Completion Queue Entry (Base 2.0c, "Common Completion Queue Entry Layout").
    pub struct Cqe, 16 {
        0 dw0: U32, "Command specific result, low dword (DW0).";
        4 dw1: U32, "Command specific result, high dword (DW1).";
        8 sqhd: U16, "Submission queue head pointer (SQHD).";
        10 sqid: U16, "Submission queue identifier (SQID); reserved over fabrics.";
        12 cid: U16, "Command identifier (CID).";
        14 status: U16, "Status field in bits 15:1; bit 0 is the phase tag, 0 over fabrics.";
    }
}

impl Cqe {
    /// Creates a completion for the command `cid`. SQID and the phase tag are zero, as fabrics
    /// require.
    pub const fn new(cid: u16, sqhd: u16, status: Status, result: u64) -> Self {
        Self {
            dw0: U32::new(result as u32),
            dw1: U32::new((result >> 32) as u32),
            sqhd: U16::new(sqhd),
            sqid: U16::ZERO,
            cid: U16::new(cid),
            status: U16::new(status.0 << 1),
        }
    }

    /// Creates a successful completion without a result.
    pub const fn success(cid: u16, sqhd: u16) -> Self {
        Self::new(cid, sqhd, Status::SUCCESS, 0)
    }

    /// Returns the status, without the phase tag.
    pub const fn status(&self) -> Status {
        Status(self.status.get() >> 1)
    }

    /// Returns both result dwords as one number.
    pub const fn result(&self) -> u64 {
        self.dw0.get() as u64 | (self.dw1.get() as u64) << 32
    }
}
