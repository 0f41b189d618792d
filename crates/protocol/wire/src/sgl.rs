//! Scatter gather list descriptors (Base 2.0c, "Scatter Gather List (SGL)").

use zerocopy::little_endian::{U32, U64};

open_code! {
    /// SGL Descriptor Type, the high nibble of the identifier byte.
    pub struct SglType(u8), "SGL descriptor type" {
        DATA_BLOCK = 0x0, "data block";
        BIT_BUCKET = 0x1, "bit bucket";
        SEGMENT = 0x2, "segment";
        LAST_SEGMENT = 0x3, "last segment";
        KEYED_DATA_BLOCK = 0x4, "keyed data block";
        TRANSPORT_DATA_BLOCK = 0x5, "transport data block";
        VENDOR = 0xf, "vendor specific";
    }
}

open_code! {
    /// SGL Descriptor Sub Type, the low nibble of the identifier byte.
    pub struct SglSubtype(u8), "SGL descriptor sub type" {
        ADDRESS = 0x0, "address";
        OFFSET = 0x1, "offset";
        TRANSPORT = 0xa, "transport specific";
    }
}

layout! {
    /// One SGL descriptor (Base 2.0c, "Generic SGL Descriptor format").
    pub struct SglDescriptor, 16 {
        0 addr: U64, "Address or, with sub type offset, offset in the capsule's data.";
        8 length: U32, "Length in bytes (for a keyed descriptor: length and part of the key).";
        12 rsvd_12: [u8; 3], "Reserved (for a keyed descriptor: the rest of the key).";
        15 id: u8, "SGL identifier: type in bits 7:4, sub type in bits 3:0.";
    }
}

/// A keyed data block describes at most this many bytes.
pub const KEYED_LENGTH_MAX: u32 = 0xff_ffff;

/// A keyed SGL data block (Base 2.0c, "Keyed SGL Data Block descriptor").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyedBlock {
    /// The data's start address in the host's memory.
    pub address: u64,
    /// The data's length: 24 bits.
    pub length_bytes: u32,
    /// The key under which the host registered the memory.
    pub key: u32,
    /// Whether the controller must invalidate the key when the command completes.
    pub invalidate: bool,
}

impl SglDescriptor {
    /// Identifier byte of data in the capsule: data block, sub type offset.
    pub const ID_IN_CAPSULE: u8 = 0x01;
    /// Identifier byte of a list of descriptors in the capsule: last segment, sub type offset.
    pub const ID_SEGMENT_IN_CAPSULE: u8 = 0x31;
    /// Identifier byte of data in memory that the host registered: keyed data block, sub type
    /// address (Base 2.0c, "Keyed SGL Data Block descriptor").
    pub const ID_KEYED: u8 = 0x40;
    /// Identifier byte of a keyed data block whose key the controller must invalidate when the
    /// command completes (NVMe over RDMA).
    pub const ID_KEYED_INVALIDATE: u8 = 0x4f;
    /// Identifier byte of data that the transport moves: transport data block.
    pub const ID_TRANSPORT: u8 = 0x5a;

    /// A descriptor of zeroes: an empty data block, for commands without data.
    pub const NONE: Self = Self { addr: U64::ZERO, length: U32::ZERO, rsvd_12: [0; 3], id: 0 };

    /// Describes data inside the capsule, `offset_bytes` after the in-capsule data offset (ICDOFF).
    pub const fn in_capsule(offset_bytes: u64, length_bytes: u32) -> Self {
        Self::new(offset_bytes, length_bytes, Self::ID_IN_CAPSULE)
    }

    /// Describes a list of descriptors inside the capsule, `offset_bytes` after the in-capsule data
    /// offset (ICDOFF).
    pub const fn segment_in_capsule(offset_bytes: u64, length_bytes: u32) -> Self {
        Self::new(offset_bytes, length_bytes, Self::ID_SEGMENT_IN_CAPSULE)
    }

    /// Describes data that the transport moves with data PDUs (C2HData, or R2T and H2CData).
    pub const fn transport(length_bytes: u32) -> Self {
        Self::new(0, length_bytes, Self::ID_TRANSPORT)
    }

    /// Describes data in memory that the host registered under `block.key`.
    pub const fn keyed(block: KeyedBlock) -> Self {
        let id = if block.invalidate { Self::ID_KEYED_INVALIDATE } else { Self::ID_KEYED };
        let [key_low, key @ ..] = block.key.to_le_bytes();
        let length = block.length_bytes & KEYED_LENGTH_MAX | (key_low as u32) << 24;
        Self { rsvd_12: key, ..Self::new(block.address, length, id) }
    }

    /// Returns the content of a keyed data block; `None` for any other descriptor.
    pub const fn keyed_block(&self) -> Option<KeyedBlock> {
        if !matches!(self.id, Self::ID_KEYED | Self::ID_KEYED_INVALIDATE) {
            return None;
        }
        let [_, _, _, key_low] = self.length.to_bytes();
        let [key_1, key_2, key_3] = self.rsvd_12;
        Some(KeyedBlock {
            address: self.addr.get(),
            length_bytes: self.length.get() & KEYED_LENGTH_MAX,
            key: u32::from_le_bytes([key_low, key_1, key_2, key_3]),
            invalidate: self.id == Self::ID_KEYED_INVALIDATE,
        })
    }

    const fn new(addr: u64, length_bytes: u32, id: u8) -> Self {
        Self { addr: U64::new(addr), length: U32::new(length_bytes), rsvd_12: [0; 3], id }
    }

    /// The descriptor type.
    pub const fn descriptor_type(&self) -> SglType {
        SglType(self.id >> 4)
    }

    /// The descriptor sub type.
    pub const fn sub_type(&self) -> SglSubtype {
        SglSubtype(self.id & 0xf)
    }

    /// Whether this is a data block with an offset into the capsule.
    pub const fn is_in_capsule(&self) -> bool {
        self.id == Self::ID_IN_CAPSULE
    }

    /// Whether this is a list of descriptors in the capsule.
    pub const fn is_segment_in_capsule(&self) -> bool {
        self.id == Self::ID_SEGMENT_IN_CAPSULE
    }

    /// Whether this is a transport data block.
    pub const fn is_transport(&self) -> bool {
        self.id == Self::ID_TRANSPORT
    }
}
