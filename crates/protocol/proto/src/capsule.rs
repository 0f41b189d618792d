//! The location of a command's data: in the capsule or in the host's memory. This description is
//! the same for every transport.

use alloc::vec::Vec;
use core::ops::Range;
use farblock_wire::rdma::MAX_DESCRIPTORS;
use farblock_wire::sgl::{KEYED_LENGTH_MAX, KeyedBlock};
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

/// Returns the place of an SGL segment in a capsule's data, which is `data_bytes` long.
///
/// # Errors
/// Invalid SGL Segment Descriptor for a length that is not a whole number of descriptors. Invalid
/// Number of SGL Descriptors for more than MSDBD. SGL Offset Invalid for a segment that is not
/// entirely in the capsule.
pub fn segment_range(dptr: &SglDescriptor, data_bytes: usize) -> Result<Range<usize>, Status> {
    let bytes = dptr.length.get() as usize;
    if bytes == 0 || !bytes.is_multiple_of(SglDescriptor::LEN) {
        return Err(Status::INVALID_SGL_SEGMENT.with_dnr());
    }
    if bytes / SglDescriptor::LEN > usize::from(MAX_DESCRIPTORS) {
        return Err(Status::INVALID_SGL_COUNT.with_dnr());
    }
    let start = usize::try_from(dptr.addr.get()).ok();
    let range = start.and_then(|start| Some(start..start.checked_add(bytes)?));
    range.filter(|range| range.end <= data_bytes).ok_or(Status::SGL_OFFSET_INVALID.with_dnr())
}

/// Reads the descriptors of an SGL segment, which must be keyed data blocks. Also returns one
/// descriptor for the whole segment: it has the sum of the lengths, and the last block's key, which
/// the controller must invalidate.
///
/// # Errors
/// SGL Descriptor Type Invalid for another descriptor. Data SGL Length Invalid for a sum that one
/// keyed data block cannot describe.
pub fn segment_blocks(segment: &[u8]) -> Result<(Vec<KeyedBlock>, SglDescriptor), Status> {
    let read = |bytes| SglDescriptor::parse(bytes).and_then(|it| it.keyed_block());
    let blocks: Option<Vec<_>> = segment.chunks_exact(SglDescriptor::LEN).map(read).collect();
    let blocks = blocks.filter(|blocks| !blocks.is_empty());
    let blocks = blocks.ok_or(Status::SGL_TYPE_INVALID.with_dnr())?;
    let length_bytes = blocks.iter().map(|block| block.length_bytes).sum();
    if length_bytes > KEYED_LENGTH_MAX {
        return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
    }
    let whole = SglDescriptor::keyed(KeyedBlock { length_bytes, ..blocks[blocks.len() - 1] });
    Ok((blocks, whole))
}
