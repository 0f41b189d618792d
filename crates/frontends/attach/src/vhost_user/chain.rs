//! Parses descriptor chains in a guest's memory. Returns a request, or an error if the chain is
//! broken.
//!
//! The crate `virtio-queue` also parses chains, but only new ones in the available ring, and it
//! treats a fault as the end of the chain. This module reports faults. It can also parse chains
//! that a previous server took and did not finish.

use super::blk::{HEADER_BYTES, Header};
use super::limits;
use super::memory::Guest;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};

/// A range of the guest's memory, completely mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) address: GuestAddress,
    pub(super) length: u32,
}

/// A descriptor table: a ring's own table, or an indirect table.
#[derive(Clone, Copy)]
pub(super) struct Table {
    pub(super) address: GuestAddress,
    pub(super) size: u16,
    /// True if the driver chose `VIRTIO_F_INDIRECT_DESC`.
    pub(super) indirect: bool,
}

/// A parsed request. The next request reuses the vectors, to save allocations.
#[derive(Default)]
pub(super) struct BlkRequest {
    pub(super) kind: u32,
    pub(super) sector: u64,
    /// The segments with the driver's data, after the request's header.
    pub(super) from_guest: Vec<Segment>,
    /// The segments for the device's data, before the status byte.
    pub(super) to_guest: Vec<Segment>,
    pub(super) status: GuestAddress,
}

/// The fault of a broken chain. The driver gets no answer, because the chain has no valid place for
/// a status byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Broken(pub(super) &'static str);

impl BlkRequest {
    /// Parses the chain that begins at the descriptor `head`.
    pub(super) fn read(&mut self, guest: &Guest, table: Table, head: u16) -> Result<(), Broken> {
        self.from_guest.clear();
        self.to_guest.clear();
        self.walk(guest, table, head)?;
        let mut header = [0; HEADER_BYTES];
        let status = self.to_guest.last_mut().ok_or(Broken("the request has no status"))?;
        status.length -= 1;
        self.status = GuestAddress(status.address.0 + u64::from(status.length));
        if status.length == 0 {
            self.to_guest.pop();
        }
        if total(&self.from_guest) < HEADER_BYTES as u64 {
            return Err(Broken("the request has no header"));
        }
        copy_from(guest, &self.from_guest, 0, &mut header)
            .ok_or(Broken("the request's header is not in the guest's memory"))?;
        skip(&mut self.from_guest, HEADER_BYTES as u32);
        let Header { kind, sector } = Header::parse(&header);
        (self.kind, self.sector) = (kind, sector);
        Ok(())
    }

    fn walk(&mut self, guest: &Guest, mut table: Table, head: u16) -> Result<(), Broken> {
        // Linux makes indirect tables for the maximum number of segments, even if the ring has
        // fewer descriptors.
        let most = u32::from(table.size).max(limits::MAX_SEGMENTS + 2);
        let mut next = head;
        for _ in 0..=most {
            if next >= table.size {
                return Err(Broken("the descriptor chain leaves its table"));
            }
            let at = u64::from(next) * size_of::<Descriptor>() as u64;
            let address = table.address.0.checked_add(at).map(GuestAddress);
            let descriptor: Descriptor =
                address
                    .and_then(|address| guest.read_obj(address).ok())
                    .ok_or(Broken("the descriptor table is not in the guest's memory"))?;
            if descriptor.refers_to_indirect_table() {
                table = indirect(table, descriptor)?;
                next = 0;
                continue;
            }
            self.add(guest, descriptor)?;
            if !descriptor.has_next() {
                return Ok(());
            }
            next = descriptor.next();
        }
        Err(Broken("the descriptor chain has no end"))
    }

    fn add(&mut self, guest: &Guest, descriptor: Descriptor) -> Result<(), Broken> {
        let (address, length) = (descriptor.addr(), descriptor.len());
        let writable = descriptor.is_write_only();
        if !writable && !self.to_guest.is_empty() {
            return Err(Broken("a readable descriptor follows a writable one"));
        }
        if length == 0 {
            return Ok(());
        }
        if !guest.check_range(address, length as usize) {
            return Err(Broken("the descriptor's buffer is not in the guest's memory"));
        }
        let segments = if writable { &mut self.to_guest } else { &mut self.from_guest };
        segments.push(Segment { address, length });
        Ok(())
    }
}

/// The indirect table to which a descriptor of the ring's table points.
fn indirect(table: Table, descriptor: Descriptor) -> Result<Table, Broken> {
    let bytes = size_of::<Descriptor>() as u32;
    if !table.indirect || descriptor.has_next() {
        return Err(Broken("an indirect table is not allowed here"));
    }
    let size = u16::try_from(descriptor.len() / bytes).unwrap_or(0);
    if size == 0 || !descriptor.len().is_multiple_of(bytes) {
        return Err(Broken("the indirect table has an invalid length"));
    }
    // An indirect table may not contain indirect tables.
    Ok(Table { address: descriptor.addr(), size, indirect: false })
}

/// The total length of the segments, in bytes.
pub(super) fn total(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.length)).sum()
}

/// Removes the first `bytes` bytes from the segments.
fn skip(segments: &mut Vec<Segment>, mut bytes: u32) {
    let whole = segments.iter().take_while(|segment| {
        let inside = segment.length <= bytes;
        bytes -= if inside { segment.length } else { 0 };
        inside
    });
    let whole = whole.count();
    segments.drain(..whole);
    if let Some(first) = segments.first_mut() {
        first.address.0 += u64::from(bytes);
        first.length -= bytes;
    }
}

/// Calls `call` for every contiguous piece of the `length` bytes at `offset` in the segments.
/// `call` gets the piece's guest address and its range in these bytes. Returns `None` if the
/// segments are too short or a call fails.
fn pieces(
    segments: &[Segment],
    mut offset: u64,
    length: usize,
    mut call: impl FnMut(GuestAddress, std::ops::Range<usize>) -> Option<()>,
) -> Option<()> {
    let mut done = 0;
    for segment in segments {
        if done == length {
            break;
        }
        let segment_bytes = u64::from(segment.length);
        if offset >= segment_bytes {
            offset -= segment_bytes;
            continue;
        }
        let count = ((segment_bytes - offset) as usize).min(length - done);
        call(GuestAddress(segment.address.0 + offset), done..done + count)?;
        (done, offset) = (done + count, 0);
    }
    (done == length).then_some(())
}

/// Copies bytes from the guest, starting at `offset` in the segments. Returns `None` if that fails.
pub(super) fn copy_from(
    guest: &Guest,
    segments: &[Segment],
    offset: u64,
    into: &mut [u8],
) -> Option<()> {
    pieces(segments, offset, into.len(), |address, range| {
        guest.read_slice(&mut into[range], address).ok()
    })
}

/// Copies bytes to the guest, starting at `offset` in the segments. Returns `None` if that fails.
pub(super) fn copy_to(guest: &Guest, segments: &[Segment], offset: u64, from: &[u8]) -> Option<()> {
    pieces(segments, offset, from.len(), |address, range| {
        guest.write_slice(&from[range], address).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(list: &[(u64, u32)]) -> Vec<Segment> {
        let segment = |&(address, length)| Segment { address: GuestAddress(address), length };
        list.iter().map(segment).collect()
    }

    #[test]
    fn skip_removes_bytes_from_the_front() {
        let list = &[(100, 4), (200, 12), (300, 5)];
        for (bytes, left) in [
            (0, &[(100, 4), (200, 12), (300, 5)][..]),
            (3, &[(103, 1), (200, 12), (300, 5)]),
            (4, &[(200, 12), (300, 5)]),
            (16, &[(300, 5)]),
            (21, &[]),
        ] {
            let mut from = segments(list);
            skip(&mut from, bytes);
            assert_eq!(from, segments(left), "without {bytes}");
        }
    }

    #[test]
    fn copies_cross_segments_and_fail_past_the_end() {
        let guest = Guest::of_ranges(&[(GuestAddress(0), 4096)]);
        let list = segments(&[(100, 3), (50, 2), (10, 4)]);
        assert_eq!(copy_to(&guest, &list, 2, &[1, 2, 3, 4]), Some(()));
        let mut read = [9; 6];
        assert_eq!(copy_from(&guest, &list, 1, &mut read), Some(()));
        assert_eq!(read, [0, 1, 2, 3, 4, 0]);
        assert_eq!(
            guest.read_obj::<u8>(GuestAddress(50)).expect("the address is in the guest's memory"),
            2
        );
        assert_eq!(copy_from(&guest, &list, 4, &mut [0; 6]), None);
        assert_eq!(copy_from(&guest, &list, 9, &mut []), Some(()));
        assert_eq!(total(&list), 9);
    }
}
