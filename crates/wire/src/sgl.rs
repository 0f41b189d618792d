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

impl SglDescriptor {
    /// Identifier byte of data in the capsule: data block, sub type offset.
    pub const ID_IN_CAPSULE: u8 = 0x01;
    /// Identifier byte of data that the transport moves: transport data block.
    pub const ID_TRANSPORT: u8 = 0x5a;

    /// All zero: a data block of no bytes, for commands without data.
    pub const NONE: Self = Self { addr: U64::ZERO, length: U32::ZERO, rsvd_12: [0; 3], id: 0 };

    /// Data inside the capsule, `offset_bytes` after the in-capsule data offset (ICDOFF).
    pub const fn in_capsule(offset_bytes: u64, length_bytes: u32) -> Self {
        Self::new(offset_bytes, length_bytes, Self::ID_IN_CAPSULE)
    }

    /// Data that the transport moves with PDUs of its own (C2HData, or R2T and H2CData).
    pub const fn transport(length_bytes: u32) -> Self {
        Self::new(0, length_bytes, Self::ID_TRANSPORT)
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

    /// Whether this is a transport data block.
    pub const fn is_transport(&self) -> bool {
        self.id == Self::ID_TRANSPORT
    }
}
