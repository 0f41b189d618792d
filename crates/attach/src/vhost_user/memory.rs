//! The guest's memory, as the monitor lends it.

use super::limits;
use super::wire::Fields;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use vm_memory::{
    FileOffset, GuestAddress, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap, MmapRegion,
};

/// The memory by the guest's own (physical) addresses.
pub(super) type Guest = GuestMemoryMmap<()>;

/// See the module's text.
pub(super) struct Memory {
    pub(super) guest: Arc<Guest>,
    regions: Vec<Region>,
}

#[derive(Clone, Copy)]
struct Region {
    guest: u64,
    length: u64,
    /// Where the monitor itself sees it, which is how it names rings.
    monitor: u64,
}

impl Memory {
    /// Maps what a `SET_MEM_TABLE` lists.
    pub(super) fn map(body: &[u8], files: Vec<OwnedFd>) -> Result<Memory, String> {
        let mut fields = Fields(body);
        let (count, _) = (fields.u32()? as usize, fields.u32()?);
        if count == 0 || count > limits::MAX_REGIONS || files.len() != count {
            return Err(format!("{count} regions of memory come with {} files", files.len()));
        }
        let mut regions = Vec::new();
        let mut maps = Vec::new();
        for file in files {
            let (guest, length) = (fields.u64()?, fields.u64()?);
            let (monitor, offset) = (fields.u64()?, fields.u64()?);
            let region = Region { guest, length, monitor };
            let map = map(file.into(), offset, length)
                .map_err(|error| format!("memory at {guest:#x}: {error}"))?;
            let map = GuestRegionMmap::new(map, GuestAddress(guest))
                .filter(|_| monitor.checked_add(length).is_some())
                .ok_or_else(|| format!("memory at {guest:#x} has no end"))?;
            maps.push(map);
            regions.push(region);
        }
        maps.sort_by_key(GuestMemoryRegion::start_addr);
        let guest = Guest::from_regions(maps).map_err(|error| error.to_string())?;
        Ok(Memory { guest: Arc::new(guest), regions })
    }

    /// The guest's address of what the monitor sees at this one.
    pub(super) fn translate(&self, address: u64) -> Option<GuestAddress> {
        self.regions.iter().find_map(|region| {
            let distance = address.checked_sub(region.monitor)?;
            (distance < region.length).then(|| GuestAddress(region.guest + distance))
        })
    }
}

/// Maps part of a file, shared, if it is as long as is said: touching what is beyond its end would
/// end the process.
pub(super) fn map(file: File, offset: u64, length: u64) -> Result<MmapRegion<()>, String> {
    let size = file.metadata().map_err(|error| error.to_string())?.len();
    let end = offset.checked_add(length).filter(|&end| end <= size && length > 0);
    end.ok_or_else(|| format!("{length} bytes at {offset} are not in a file of {size} bytes"))?;
    let length = usize::try_from(length).map_err(|error| error.to_string())?;
    MmapRegion::from_file(FileOffset::new(file, offset), length).map_err(|error| error.to_string())
}
