//! Finds the record at the former end of a leg that has grown, or was truncated by less than 1 MiB.
//!
//! Such a leg looks like a new disk, but may be the only leg with the newest data. So the mirror
//! searches a leg without a record at its end before it may overwrite the leg.

use super::record::{MAGIC, RECORD_BYTES, SLOT_OFFSETS};
use crate::limits::{FORMER_ENDS, RESERVED_BYTES};

/// The mirror searches this many bytes before the present end block by block. So it finds a record
/// in this area whatever the former size was.
const NEAR_BYTES: u64 = 2 * RESERVED_BYTES;
const GIB: u64 = 1 << 30;

/// Where to search for a record.
#[derive(Clone, Copy)]
pub(crate) enum Search {
    /// At the sizes that `ends` lists. The size of the mirror's legs is not known yet.
    Far,
    /// Close to the present end, and where a leg of a mirror of this size has its record.
    Near(u64),
}

/// The former size of a leg of `size` bytes. `read` reads a number of bytes at an offset; the
/// number and the offset are multiples of `block_size`.
pub(crate) fn size(
    size: u64,
    block_size: u64,
    search: Search,
    mut read: impl FnMut(u64, u64) -> Option<Vec<u8>>,
) -> Option<u64> {
    // Start so early that the search finds the first slot of a record before it finds the second.
    let begin = size.saturating_sub(NEAR_BYTES + SLOT_OFFSETS[1]);
    let near = read(begin, size - begin)?;
    let starts = near.chunks(block_size as usize);
    if let Some(at) = starts.clone().position(|block| block.starts_with(MAGIC)) {
        let at = begin + at as u64 * block_size;
        let is_whole = at + NEAR_BYTES >= size || begin == 0;
        // Do not report the present end as a former one: a record there is torn or damaged.
        return Some(at + RESERVED_BYTES).filter(|&former| is_whole && former != size);
    }
    let length = (RECORD_BYTES as u64).next_multiple_of(block_size);
    ends(size, search)
        .filter(|end| *end > RESERVED_BYTES && *end < size && end.is_multiple_of(block_size))
        .find(|end| read(end - RESERVED_BYTES, length).is_some_and(|it| it.starts_with(MAGIC)))
}

/// The former sizes to try, the likely ones first: smaller by a multiple of a MiB, or whole GiB.
/// The search finds no other size.
fn ends(size: u64, search: Search) -> Box<dyn Iterator<Item = u64>> {
    match search {
        Search::Near(bytes) => Box::new(std::iter::once(bytes + RESERVED_BYTES)),
        Search::Far => {
            let by_mib = (1..=FORMER_ENDS).map_while(move |it| size.checked_sub(it << 20));
            let gibs = size / GIB;
            let by_gib = (0..FORMER_ENDS).map_while(move |it| Some(gibs.checked_sub(it)? * GIB));
            Box::new(by_mib.chain(by_gib))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// The size that the search finds on a disk of `now` bytes whose former size was `former`
    /// bytes.
    fn found(former: u64, now: u64, search: Search) -> Option<u64> {
        let record = |slot: usize| former - RESERVED_BYTES + SLOT_OFFSETS[slot];
        size(now, 512, search, |at, bytes| {
            let mut data = vec![0; bytes as usize];
            for record in [record(0), record(1)] {
                if (at..at + bytes).contains(&record) {
                    data[(record - at) as usize..][..8].copy_from_slice(MAGIC);
                }
            }
            Some(data)
        })
    }

    #[test]
    fn a_record_at_the_former_end_of_a_disk_is_found() {
        for (former, now) in [
            (17 * MIB, 33 * MIB),
            (17 * MIB, 17 * MIB + 512),
            (17 * MIB + 512, 17 * MIB),
            (17 * MIB, 18 * MIB - 512),
            (2 * MIB, 18 * MIB),
            (100 * GIB, 160 * GIB + 5 * MIB),
        ] {
            assert_eq!(found(former, now, Search::Far), Some(former), "{former} {now}");
        }
        assert_eq!(
            found(9 * MIB + 512, 50 * MIB, Search::Near(8 * MIB + 512)),
            Some(9 * MIB + 512)
        );
    }

    #[test]
    fn the_second_record_slot_is_not_mistaken_for_the_first() {
        for more in (0..200 << 10).step_by(4096) {
            let size = found(17 * MIB, 18 * MIB + more, Search::Far);
            assert!(size.is_none_or(|size| size == 17 * MIB), "{more}: {size:?}");
        }
        assert_eq!(found(17 * MIB, 18 * MIB, Search::Far), Some(17 * MIB));
    }

    #[test]
    fn a_disk_without_a_record_has_no_former_size() {
        assert_eq!(
            found(17 * MIB, 17 * MIB, Search::Far),
            None,
            "a record at the present end counts as a former one"
        );
        for now in [MIB + 512, 2 * MIB, 40 * GIB] {
            assert_eq!(size(now, 512, Search::Far, |_, bytes| Some(vec![0; bytes as usize])), None);
        }
    }
}
