//! The location of a command's data: in the capsule or in the host's memory. This description is
//! the same for every transport.

use farblock_wire::sgl::KEYED_LENGTH_MAX;
use farblock_wire::{SglDescriptor, Sqe, Status};

/// PSDT 01b: SGL, with a contiguous metadata pointer.
const PSDT_SGL: u8 = 0b01;
/// PSDT 10b: SGL, with an SGL for metadata. farblock accepts this value, because commands never
/// transfer metadata.
const PSDT_SGL_METADATA: u8 = 0b10;

/// Identifies a command in flight on one connection. The number is an index into tables that have
/// as many entries as the queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotId(pub u16);

/// The type of SGL descriptor that describes data outside the capsule. The type depends on the
/// transport (NVMe Base Specification 2.0, "SGL Descriptor").
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum RemoteForm {
    /// Transport SGL data block (TCP). The descriptor contains only the length, because the
    /// transport transfers the data in PDUs.
    #[default]
    Transport,
    /// Keyed SGL data block (RDMA): memory that the host has registered.
    Keyed,
}

/// The location of a command's data. This type leaves out the key and the address of registered
/// memory: the transport, which alone needs them, reads them from the SGL descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataPointer {
    /// In the command capsule, after the submission queue entry.
    InCapsule {
        /// Length in bytes.
        length: u32,
    },
    /// In the host's memory. The transport transfers the data when the controller pulls or pushes
    /// it.
    Remote {
        /// Length in bytes.
        length: u32,
    },
}

impl DataPointer {
    /// Reads the data pointer of a command that transfers data. `remote` is the transport's
    /// descriptor type for data outside capsules.
    ///
    /// # Errors
    /// SGL Descriptor Type Invalid for a descriptor that is neither in-capsule nor of type
    /// `remote`. SGL Offset Invalid for data that does not directly follow the submission queue
    /// entry. Invalid Field for PRPs.
    pub fn parse(sqe: &Sqe, remote: RemoteForm) -> Result<Self, Status> {
        if !matches!(sqe.psdt(), PSDT_SGL | PSDT_SGL_METADATA) {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let length = sqe.dptr.length.get();
        match sqe.dptr.id {
            SglDescriptor::ID_IN_CAPSULE if sqe.dptr.addr.get() != 0 => {
                Err(Status::SGL_OFFSET_INVALID.with_dnr())
            }
            SglDescriptor::ID_IN_CAPSULE => Ok(Self::InCapsule { length }),
            SglDescriptor::ID_TRANSPORT if remote == RemoteForm::Transport => {
                Ok(Self::Remote { length })
            }
            SglDescriptor::ID_KEYED | SglDescriptor::ID_KEYED_INVALIDATE
                if remote == RemoteForm::Keyed =>
            {
                Ok(Self::Remote { length: length & KEYED_LENGTH_MAX })
            }
            _ => Err(Status::SGL_TYPE_INVALID.with_dnr()),
        }
    }

    /// The length of the data in bytes, according to the host.
    #[must_use]
    pub fn length(self) -> u32 {
        match self {
            Self::InCapsule { length } | Self::Remote { length } => length,
        }
    }

    /// Whether the data is in the command capsule.
    #[must_use]
    pub fn is_in_capsule(self) -> bool {
        matches!(self, Self::InCapsule { .. })
    }
}
