//! The capsule seam: what a command says about where its data is, in words of no transport.

use farblock_wire::{SglDescriptor, Sqe, Status};

/// PSDT 01b: SGL, with a contiguous metadata pointer.
const PSDT_SGL: u8 = 0b01;
/// PSDT 10b: SGL, with an SGL for metadata; tolerated, since no metadata is ever transferred.
const PSDT_SGL_METADATA: u8 = 0b10;

/// Where a command's data is (NVMe Base Specification 2.0, "SGL Descriptor", and the TCP
/// transport's two allowed forms).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataPointer {
    /// In the command capsule, after the submission queue entry.
    InCapsule {
        /// Length in bytes.
        length: u32,
    },
    /// Moved by the transport when the controller asks (R2T) or pushes (C2HData).
    Transport {
        /// Length in bytes.
        length: u32,
    },
}

impl DataPointer {
    /// Reads the data pointer of a command that transfers data.
    ///
    /// # Errors
    /// SGL Descriptor Type Invalid for any other descriptor, SGL Offset Invalid for data that does
    /// not start right after the entry, Invalid Field for a PRP list.
    pub fn parse(sqe: &Sqe) -> Result<Self, Status> {
        if !matches!(sqe.psdt(), PSDT_SGL | PSDT_SGL_METADATA) {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let length = sqe.dptr.length.get();
        match sqe.dptr.id {
            SglDescriptor::ID_IN_CAPSULE if sqe.dptr.addr.get() != 0 => {
                Err(Status::SGL_OFFSET_INVALID.with_dnr())
            }
            SglDescriptor::ID_IN_CAPSULE => Ok(Self::InCapsule { length }),
            SglDescriptor::ID_TRANSPORT => Ok(Self::Transport { length }),
            _ => Err(Status::SGL_TYPE_INVALID.with_dnr()),
        }
    }

    /// Length in bytes that the host says it transfers.
    #[must_use]
    pub fn length(self) -> u32 {
        match self {
            Self::InCapsule { length } | Self::Transport { length } => length,
        }
    }
}
