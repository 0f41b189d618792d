//! Reads the reserved part at the end of a leg.

use std::sync::Arc;

use farblock_block::{Namespace, Op};
use farblock_reactor::Buffer;

use super::assemble::What;
use super::former::{self, Search};
use super::pages::Bitmap;
use super::panel::Panel;
use super::record::{self, USED_BYTES, Unreadable};
use super::{claim, content};
use crate::limits::RESERVED_BYTES;

/// The mirror reads this many bytes at the start of a leg. They show whether the leg is empty, or
/// which kind of data it has.
const START_BYTES: u64 = 1 << 20;
/// The maximum number of bytes per read.
const PIECE_BYTES: u64 = 128 << 10;

/// The contents of the reserved part of a leg.
pub(crate) struct Read {
    pub(crate) what: What,
    /// The slot (0 or 1) for the next record of the leg.
    pub(crate) slot: usize,
    pub(crate) bitmap: Bitmap,
}

impl Read {
    pub(crate) fn without(what: What) -> Read {
        Read { what, slot: 0, bitmap: Bitmap::default() }
    }
}

/// Reads the reserved part of a leg. The caller must first install the leg's namespace in the
/// state that the mirror's threads share.
pub(crate) fn read(
    panel: &mut Panel,
    leg: usize,
    namespace: &Arc<dyn Namespace>,
    search: Search,
) -> Read {
    let geometry = panel.geometry(leg, namespace);
    let block_size = u64::from(geometry.block_size);
    if geometry.capacity_bytes() <= RESERVED_BYTES {
        return Read::without(What::Unmarked {
            geometry,
            claimed: None,
            end_is_empty: true,
            start_is_empty: true,
            content: None,
            former: None,
        });
    }
    let reserved = geometry.blocks - RESERVED_BYTES / block_size;
    let used = match pieces(panel, leg, namespace, reserved, USED_BYTES) {
        Ok(used) => used,
        Err(reason) => return Read::without(What::Absent(reason)),
    };
    match record::newest(&used) {
        Ok((record, slot)) => {
            let bitmap = Bitmap::parse(&record, &used);
            Read { what: What::Marked(record), slot, bitmap }
        }
        Err(Unreadable::None) => Read::without(unmarked(panel, leg, namespace, search)),
        Err(unreadable) => Read::without(What::Unusable(unreadable)),
    }
}

/// The findings about a leg without a record.
fn unmarked(panel: &mut Panel, leg: usize, namespace: &Arc<dyn Namespace>, search: Search) -> What {
    let geometry = panel.geometry(leg, namespace);
    let (size, block_size) = (geometry.capacity_bytes(), u64::from(geometry.block_size));
    let mut read = |at: u64, bytes| pieces(panel, leg, namespace, at / block_size, bytes);
    let rest = read(size - RESERVED_BYTES, RESERVED_BYTES);
    let start = read(0, START_BYTES.min(size - RESERVED_BYTES));
    let content = start.as_deref().ok().and_then(content::bytes);
    let former = former::size(size, block_size, search, |at, bytes| read(at, bytes).ok());
    let is_empty = |read: Result<Vec<u8>, _>| read.is_ok_and(|b| b.iter().all(|&b| b == 0));
    What::Unmarked {
        geometry,
        claimed: rest.as_deref().ok().and_then(claim::parse),
        end_is_empty: is_empty(rest),
        start_is_empty: is_empty(start),
        content,
        former,
    }
}

fn pieces(
    panel: &mut Panel,
    leg: usize,
    namespace: &Arc<dyn Namespace>,
    lba: u64,
    bytes: u64,
) -> Result<Vec<u8>, String> {
    let geometry = namespace.geometry();
    let block_size = u64::from(geometry.block_size);
    let most = match geometry.max_blocks {
        0 => PIECE_BYTES,
        max => PIECE_BYTES.min(u64::from(max) * block_size),
    };
    let mut data = Vec::new();
    while (data.len() as u64) < bytes {
        let blocks = most.min(bytes - data.len() as u64).div_ceil(block_size) as u32;
        let at = lba + data.len() as u64 / block_size;
        let buffer = Buffer::new(geometry.bytes(blocks));
        let done = panel.run_one(leg, Op::read(at, blocks, buffer, 0));
        done.result.map_err(|error| format!("a read of the leg failed: {error}"))?;
        data.extend_from_slice(&done.buffer.unwrap_or_default());
    }
    Ok(data)
}

pub(crate) fn marked(bitmap: &[u8], regions: usize) -> impl Iterator<Item = usize> + use<'_> {
    (0..regions).filter(|region| bitmap[region / 8] & (1 << (region % 8)) != 0)
}
