//! The guest's memory, which the virtual machine monitor shares with this process.

use super::lent::Lent;
use super::limits;
use super::wire::Fields;
use std::fs::File;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use vm_memory::{
    FileOffset, GuestAddress, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap, MmapRegion,
};

/// The guest's memory, addressed by guest physical addresses.
#[derive(Default)]
pub(super) struct Guest {
    lent: Vec<Arc<Lent>>,
    pub(super) map: GuestMemoryMmap<()>,
}

impl Guest {
    /// Makes guest memory from memory of this process at these guest addresses, for tests.
    #[cfg(test)]
    pub(super) fn of_ranges(ranges: &[(GuestAddress, usize)]) -> Guest {
        Guest { lent: Vec::new(), map: GuestMemoryMmap::from_ranges(ranges).expect("memory") }
    }

    /// True if the monitor has truncated some of the memory. Data read before this call may then be
    /// wrong.
    pub(super) fn is_lost(&self) -> bool {
        self.lent.iter().any(|lent| lent.is_lost())
    }
}

impl Deref for Guest {
    type Target = GuestMemoryMmap<()>;

    fn deref(&self) -> &GuestMemoryMmap<()> {
        &self.map
    }
}

/// A mapping of a file that the monitor may truncate (see [`Lent`]).
pub(super) struct Mapping {
    lent: Lent,
    pub(super) region: Arc<MmapRegion<()>>,
}

/// The guest's memory, and the regions that convert addresses in the monitor's mapping to guest
/// physical addresses.
pub(super) struct Memory {
    pub(super) guest: Arc<Guest>,
    regions: Vec<Region>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Region {
    guest: u64,
    length: u64,
    /// The address of the region in the monitor's process. Messages give ring addresses in that
    /// process.
    monitor: u64,
}

impl Region {
    /// Parses a region. Also returns its offset in its file.
    fn parse(fields: &mut Fields<'_>) -> Result<(Region, u64), String> {
        let (guest, length) = (fields.u64()?, fields.u64()?);
        let (monitor, offset) = (fields.u64()?, fields.u64()?);
        Ok((Region { guest, length, monitor }, offset))
    }

    fn map(self, file: OwnedFd, offset: u64) -> Result<(Lent, GuestRegionMmap<()>), String> {
        let Region { guest, length, monitor } = self;
        let map = map(file.into(), offset, length)
            .map_err(|error| format!("the memory region at {guest:#x}: {error}"))?;
        let Mapping { lent, region } = map;
        GuestRegionMmap::with_arc(region, GuestAddress(guest))
            .filter(|_| monitor.checked_add(length).is_some())
            .map(|region| (lent, region))
            .ok_or_else(|| format!("the memory region at {guest:#x} exceeds the address space"))
    }
}

impl Memory {
    /// Maps the regions of a `SET_MEM_TABLE` message.
    pub(super) fn map(body: &[u8], files: Vec<OwnedFd>) -> Result<Memory, String> {
        let mut fields = Fields(body);
        let (count, _) = (fields.u32()? as usize, fields.u32()?);
        if count == 0 || count > limits::MAX_REGIONS || files.len() != count {
            return Err(format!(
                "the monitor sent {count} memory regions with {} files",
                files.len()
            ));
        }
        let mut regions = Vec::new();
        let (mut lent, mut maps) = (Vec::new(), Vec::new());
        for file in files {
            let (region, offset) = Region::parse(&mut fields)?;
            let (listed, map) = region.map(file, offset)?;
            lent.push(Arc::new(listed));
            maps.push(map);
            regions.push(region);
        }
        maps.sort_by_key(GuestMemoryRegion::start_addr);
        let map = GuestMemoryMmap::from_regions(maps).map_err(|error| error.to_string())?;
        Ok(Memory { guest: Arc::new(Guest { lent, map }), regions })
    }

    /// The memory of a guest that has no regions yet.
    pub(super) fn empty() -> Memory {
        Memory { guest: Arc::default(), regions: Vec::new() }
    }

    /// A copy of this memory with the region of an `ADD_MEM_REG` message added.
    pub(super) fn with(&self, body: &[u8], file: OwnedFd) -> Result<Memory, String> {
        if self.regions.len() >= limits::MAX_SLOTS {
            return Err(format!(
                "the guest is at its limit of {} memory regions",
                self.regions.len()
            ));
        }
        let (region, offset) = Memory::one(body)?;
        let (listed, map) = region.map(file, offset)?;
        let map = self.guest.insert_region(Arc::new(map)).map_err(|error| error.to_string())?;
        let mut lent = self.guest.lent.clone();
        lent.push(Arc::new(listed));
        let mut regions = self.regions.clone();
        regions.push(region);
        Ok(Memory { guest: Arc::new(Guest { lent, map }), regions })
    }

    /// A copy of this memory without the region of a `REM_MEM_REG` message. Ignores the file offset
    /// in the message.
    pub(super) fn without(&self, body: &[u8]) -> Result<Memory, String> {
        let (region, _) = Memory::one(body)?;
        let Region { guest: at, length, .. } = region;
        let mut regions = self.regions.clone();
        let found = regions.iter().position(|other| *other == region);
        regions.remove(found.ok_or_else(|| {
            format!("the guest has no memory region of {length} bytes at {at:#x}")
        })?);
        let removed = self.guest.remove_region(GuestAddress(at), length);
        let (map, removed) = removed.map_err(|error| error.to_string())?;
        let (start, mut lent) = (removed.as_ptr().addr(), self.guest.lent.clone());
        lent.retain(|lent| lent.start() != start);
        Ok(Memory { guest: Arc::new(Guest { lent, map }), regions })
    }

    /// Parses a message that has exactly one region.
    fn one(body: &[u8]) -> Result<(Region, u64), String> {
        let mut fields = Fields(body);
        let _padding = fields.u64()?;
        Region::parse(&mut fields)
    }

    /// Converts an address in the monitor's process to a guest physical address. `None` if no
    /// region contains the address.
    pub(super) fn translate(&self, address: u64) -> Option<GuestAddress> {
        self.regions.iter().find_map(|region| {
            let distance = address.checked_sub(region.monitor)?;
            (distance < region.length).then(|| GuestAddress(region.guest + distance))
        })
    }
}

/// Maps a part of a file as shared memory. Fails if the file is too short.
pub(super) fn map(file: File, offset: u64, length: u64) -> Result<Mapping, String> {
    let size = file.metadata().map_err(|error| error.to_string())?.len();
    let end = offset.checked_add(length).filter(|&end| end <= size && length > 0);
    end.ok_or_else(|| format!("{length} bytes at offset {offset} exceed a file of {size} bytes"))?;
    let length = usize::try_from(length).map_err(|error| error.to_string())?;
    let mapped = MmapRegion::from_file(FileOffset::new(file, offset), length);
    let region = Arc::new(mapped.map_err(|error| error.to_string())?);
    let lent = Lent::new(Arc::clone(&region))?;
    Ok(Mapping { lent, region })
}
