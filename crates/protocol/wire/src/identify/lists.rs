//! The lists that Identify returns.

use zerocopy::little_endian::{U16, U32, U64};

open_code! {
    /// Namespace Identifier Type (NIDT) (Base 2.0c, "Namespace Identification Descriptor").
    pub struct NamespaceIdType(u8), "namespace identifier type" {
        EUI64 = 0x01, "EUI64";
        NGUID = 0x02, "NGUID";
        UUID = 0x03, "UUID";
        COMMAND_SET = 0x04, "Command Set Identifier";
    }
}

impl NamespaceIdType {
    /// Returns the length of the identifier in bytes; `None` for an unknown type.
    pub const fn id_len(self) -> Option<u8> {
        match self {
            Self::EUI64 => Some(8),
            Self::NGUID | Self::UUID => Some(16),
            Self::COMMAND_SET => Some(1),
            _ => None,
        }
    }
}

layout! {
    /// Header of one entry of the Namespace Identification Descriptor list (CNS 03h) (Base 2.0c,
    /// "Namespace Identification Descriptor"). An identifier of NIDL bytes follows. NIDL 0 ends the
    /// list.
    pub struct NamespaceIdDescriptor, 4 {
        0 nidt: u8, "Namespace identifier type (NIDT); see `NamespaceIdType`.";
        1 nidl: u8, "Namespace identifier length in bytes (NIDL).";
        2 rsvd_2: [u8; 2], "Reserved.";
    }
}

impl NamespaceIdDescriptor {
    /// Writes a descriptor to `out` at `at` and returns the position of the next descriptor.
    ///
    /// # Panics
    /// Panics if `out` is too short, or `id` has the wrong length for its type.
    pub fn append(out: &mut [u8], at: usize, id_type: NamespaceIdType, id: &[u8]) -> usize {
        assert_eq!(id_type.id_len().map(usize::from), Some(id.len()), "length of {id_type}");
        let header = Self { nidt: id_type.0, nidl: id.len() as u8, rsvd_2: [0; 2] };
        let id_at = at + header.emit(&mut out[at..]);
        out[id_at..id_at + id.len()].copy_from_slice(id);
        id_at + id.len()
    }

    /// Iterates over the descriptors of a list. Stops at a zero length or at the first malformed
    /// entry.
    pub fn iter(mut list: &[u8]) -> impl Iterator<Item = (NamespaceIdType, &[u8])> {
        core::iter::from_fn(move || {
            let header = Self::parse(list).filter(|header| header.nidl != 0)?;
            let end = Self::LEN + usize::from(header.nidl);
            let id = list.get(Self::LEN..end)?;
            list = &list[end..];
            Some((NamespaceIdType(header.nidt), id))
        })
    }
}

layout! {
    /// Controller List in ascending order (CNS 12h, 13h) (Base 2.0c, "Controller List Format").
    pub struct ControllerList, 4096 {
        0 count: U16, "Number of identifiers in the list.";
        2 ids: [U16; 2047], "Controller identifiers.";
    }
}

impl ControllerList {
    /// Creates a list of the first 2047 of `ids`, which must ascend.
    pub fn from_ids(ids: impl IntoIterator<Item = u16>) -> Self {
        let mut list = Self::zeroed();
        let mut count = 0;
        for (slot, id) in list.ids.iter_mut().zip(ids) {
            slot.set(id);
            count += 1;
        }
        list.count.set(count);
        list
    }

    /// Iterates over the identifiers. A count that exceeds the list's capacity yields only the
    /// identifiers in the list.
    pub fn iter(&self) -> impl Iterator<Item = u16> {
        self.ids.iter().take(usize::from(self.count.get())).map(|id| id.get())
    }
}

layout! {
    /// Namespace List in ascending order, ended by 0 (CNS 02h, 07h, 10h, 1Ah) (Base 2.0c,
    /// "Namespace List Format").
    pub struct NamespaceList, 4096 {
        0 nsids: [U32; 1024], "Namespace identifiers.";
    }
}

impl NamespaceList {
    /// Creates a list of the first 1024 of `nsids`, which must ascend.
    pub fn from_nsids(nsids: impl IntoIterator<Item = u32>) -> Self {
        let mut list = Self::zeroed();
        for (slot, nsid) in list.nsids.iter_mut().zip(nsids) {
            slot.set(nsid);
        }
        list
    }

    /// Iterates over the identifiers, up to the first 0.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.nsids.iter().map(|nsid| nsid.get()).take_while(|nsid| *nsid != 0)
    }
}

layout! {
    /// Identify I/O Command Set (CNS 1Ch) (Base 2.0c, "Identify I/O Command Set Data Structure").
    pub struct CommandSetVector, 4096 {
        0 combinations: [U64; 512],
            "Supported combinations: one bit per command set identifier; bit 0 is NVM.";
    }
}
