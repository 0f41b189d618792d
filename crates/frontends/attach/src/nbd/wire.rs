//! The constants of the NBD protocol, named as in its specification
//! (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>). All integers are
//! big-endian.

/// The magic number at the start of a server's greeting: `NBDMAGIC`.
pub(super) const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// The magic number before each option: `IHAVEOPT`. The greeting contains it after `NBDMAGIC`.
pub(super) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// The magic number before the answer to an option.
pub(super) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// The magic number before each request.
pub(super) const REQUEST_MAGIC: u32 = 0x2560_9513;
/// The magic number before a simple reply.
pub(super) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// The magic number before a chunk of a structured reply.
pub(super) const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// The length of an option's header, in bytes: magic, option, length.
pub(super) const OPTION_HEADER_BYTES: usize = 16;
/// The length of a request, in bytes: magic, flags, type, cookie, offset, length.
pub(super) const REQUEST_BYTES: usize = 28;
/// The longest string that the specification allows, in bytes.
pub(super) const MAX_STRING_BYTES: usize = 4096;
/// The number of zeroes after the answer to `NBD_OPT_EXPORT_NAME`, unless both sides agreed to omit
/// them.
pub(super) const EXPORT_NAME_PADDING_BYTES: usize = 124;

/// Handshake flags that both sides use.
pub(super) mod handshake {
    /// The fixed newstyle negotiation.
    pub(in crate::nbd) const FIXED_NEWSTYLE: u16 = 1;
    /// The answer to `NBD_OPT_EXPORT_NAME` has no padding.
    pub(in crate::nbd) const NO_ZEROES: u16 = 2;
}

/// Options: `NBD_OPT_…`.
pub(super) mod option {
    pub(in crate::nbd) const EXPORT_NAME: u32 = 1;
    pub(in crate::nbd) const ABORT: u32 = 2;
    pub(in crate::nbd) const LIST: u32 = 3;
    pub(in crate::nbd) const INFO: u32 = 6;
    pub(in crate::nbd) const GO: u32 = 7;
    pub(in crate::nbd) const STRUCTURED_REPLY: u32 = 8;
    pub(in crate::nbd) const LIST_META_CONTEXT: u32 = 9;
    pub(in crate::nbd) const SET_META_CONTEXT: u32 = 10;
}

/// Answers to options: `NBD_REP_…`.
pub(super) mod reply {
    pub(in crate::nbd) const ACK: u32 = 1;
    pub(in crate::nbd) const SERVER: u32 = 2;
    pub(in crate::nbd) const INFO: u32 = 3;
    pub(in crate::nbd) const META_CONTEXT: u32 = 4;
    const ERROR: u32 = 1 << 31;
    pub(in crate::nbd) const ERR_UNSUP: u32 = ERROR + 1;
    pub(in crate::nbd) const ERR_INVALID: u32 = ERROR + 3;
    pub(in crate::nbd) const ERR_UNKNOWN: u32 = ERROR + 6;
    pub(in crate::nbd) const ERR_TOO_BIG: u32 = ERROR + 9;
}

/// Information types: `NBD_INFO_…`.
pub(super) mod info {
    pub(in crate::nbd) const EXPORT: u16 = 0;
    pub(in crate::nbd) const NAME: u16 = 1;
    pub(in crate::nbd) const DESCRIPTION: u16 = 2;
    pub(in crate::nbd) const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags, which state the features of an export: `NBD_FLAG_…`.
pub(super) mod flag {
    pub(in crate::nbd) const HAS_FLAGS: u16 = 1;
    pub(in crate::nbd) const READ_ONLY: u16 = 1 << 1;
    pub(in crate::nbd) const SEND_FLUSH: u16 = 1 << 2;
    pub(in crate::nbd) const SEND_FUA: u16 = 1 << 3;
    pub(in crate::nbd) const SEND_TRIM: u16 = 1 << 5;
    pub(in crate::nbd) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(in crate::nbd) const SEND_DF: u16 = 1 << 7;
    pub(in crate::nbd) const CAN_MULTI_CONN: u16 = 1 << 8;
    pub(in crate::nbd) const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Request types: `NBD_CMD_…`.
pub(super) mod command {
    pub(in crate::nbd) const READ: u16 = 0;
    pub(in crate::nbd) const WRITE: u16 = 1;
    pub(in crate::nbd) const DISC: u16 = 2;
    pub(in crate::nbd) const FLUSH: u16 = 3;
    pub(in crate::nbd) const TRIM: u16 = 4;
    pub(in crate::nbd) const WRITE_ZEROES: u16 = 6;
    pub(in crate::nbd) const BLOCK_STATUS: u16 = 7;
}

/// Request flags: `NBD_CMD_FLAG_…`.
pub(super) mod command_flag {
    pub(in crate::nbd) const FUA: u16 = 1;
    pub(in crate::nbd) const NO_HOLE: u16 = 1 << 1;
    pub(in crate::nbd) const DF: u16 = 1 << 2;
    pub(in crate::nbd) const REQ_ONE: u16 = 1 << 3;
    pub(in crate::nbd) const FAST_ZERO: u16 = 1 << 4;
}

/// Chunk types of a structured reply (`NBD_REPLY_TYPE_…`), and the flag that marks a reply's last
/// chunk.
pub(super) mod chunk {
    pub(in crate::nbd) const DONE: u16 = 1;
    pub(in crate::nbd) const NONE: u16 = 0;
    pub(in crate::nbd) const OFFSET_DATA: u16 = 1;
    pub(in crate::nbd) const BLOCK_STATUS: u16 = 5;
    pub(in crate::nbd) const ERROR: u16 = (1 << 15) + 1;
}

/// The error numbers of the protocol. The protocol allows no others.
pub(super) mod errno {
    pub(in crate::nbd) const EPERM: u32 = 1;
    pub(in crate::nbd) const EIO: u32 = 5;
    pub(in crate::nbd) const ENOMEM: u32 = 12;
    pub(in crate::nbd) const EINVAL: u32 = 22;
    pub(in crate::nbd) const ENOSPC: u32 = 28;
    pub(in crate::nbd) const ENOTSUP: u32 = 95;
}

/// Reads integers and pieces from the front of a message.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(front)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N).map(|bytes| bytes.try_into().expect("N bytes"))
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }
}
