//! The state of each region. All queues of a mirror share it without a lock.
//!
//! ```text
//!              a write wants it            the bitmap is durable
//!   clean  ───────────────────> WANTED  ─────────────────────────> DIRTY
//!     ^                                                              │
//!     └──────────────────────────────────────────────────────────────┘
//!        all legs were flushed, and no write has entered since
//! ```
//!
//! A write *enters* its regions before it starts, and *leaves* them when no leg that gets writes
//! executes it any more. To copy a region, the keeper (the mirror's thread) closes the region, and
//! waits until it has no writes. No write can enter a CLOSED region.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Legs may differ in the region, and the bitmap of every leg that gets writes says so durably.
const DIRTY: u32 = 1 << 31;
/// The keeper copies the region, or is about to copy it.
const CLOSED: u32 = 1 << 30;
/// Legs in sync may differ in the region. No queue may read it before the keeper has copied it.
const SUSPECT: u32 = 1 << 29;
/// A write has entered the region since the last call of [`Regions::forget_touches`].
const TOUCHED: u32 = 1 << 28;
/// A write waits until the region is dirty, and has asked the keeper to mark the region.
const WANTED: u32 = 1 << 27;
const COUNT: u32 = WANTED - 1;
/// While one of these bits is set, the region must stay in the bitmap.
const BUSY: u32 = COUNT | CLOSED | SUSPECT | TOUCHED | WANTED;

pub(crate) struct Regions {
    words: Vec<AtomicU32>,
}

/// The result of entering regions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    /// One of the regions is closed, so the write entered none.
    Closed,
    /// The write entered all regions, but some are not dirty yet.
    Wait,
    /// The write entered all regions, and all are dirty.
    Go,
}

impl Regions {
    pub(crate) fn new(count: usize) -> Regions {
        Regions { words: (0..count).map(|_| AtomicU32::new(0)).collect() }
    }

    pub(crate) fn len(&self) -> usize {
        self.words.len()
    }

    fn load(&self, region: usize) -> u32 {
        self.words[region].load(Ordering::SeqCst)
    }

    fn change(&self, region: usize, change: impl Fn(u32) -> Option<u32>) -> Result<u32, u32> {
        self.words[region].fetch_update(Ordering::SeqCst, Ordering::SeqCst, change)
    }

    /// Enters all regions of `range`, or none. Appends the regions that must become dirty to
    /// `wanted`.
    pub(crate) fn enter(&self, range: Range<usize>, wanted: &mut Vec<usize>) -> Entry {
        let mut entry = Entry::Go;
        for region in range.clone() {
            let entered = self.change(region, |word| {
                let wanted = if word & DIRTY == 0 { WANTED } else { 0 };
                (word & CLOSED == 0).then_some((word + 1) | TOUCHED | wanted)
            });
            match entered {
                Err(_) => {
                    self.leave(range.start..region);
                    return Entry::Closed;
                }
                Ok(before) if before & DIRTY == 0 => {
                    entry = Entry::Wait;
                    if before & WANTED == 0 {
                        wanted.push(region);
                    }
                }
                Ok(_) => {}
            }
        }
        entry
    }

    /// Leaves the regions. Returns true if a closed region now has no writes: the keeper may be
    /// waiting for this.
    pub(crate) fn leave(&self, range: Range<usize>) -> bool {
        let mut awaited = false;
        for region in range {
            let before = self.words[region].fetch_sub(1, Ordering::SeqCst);
            assert!(before & COUNT > 0, "the region's count is already zero");
            awaited |= before & CLOSED != 0 && before & COUNT == 1;
        }
        awaited
    }

    pub(crate) fn are_dirty(&self, mut range: Range<usize>) -> bool {
        range.all(|region| self.load(region) & DIRTY != 0)
    }

    pub(crate) fn is_dirty(&self, region: usize) -> bool {
        self.load(region) & DIRTY != 0
    }

    /// Registers that the bitmap contains the region durably.
    pub(crate) fn set_dirty(&self, region: usize) {
        let _ = self.change(region, |word| Some((word | DIRTY) & !WANTED));
    }

    /// Whether the region can be cleared.
    pub(crate) fn is_quiet(&self, region: usize) -> bool {
        let word = self.load(region);
        word & BUSY == 0 && word & DIRTY != 0
    }

    /// Clears a dirty region, unless a write has entered it since [`Self::forget_touches`].
    pub(crate) fn clear_if_idle(&self, region: usize) -> bool {
        self.change(region, |word| (word & BUSY == 0 && word & DIRTY != 0).then_some(0)).is_ok()
    }

    /// Clears TOUCHED in the regions that have no writes at present. Returns true if one of these
    /// regions is dirty.
    pub(crate) fn forget_touches(&self) -> bool {
        let mut dirty = false;
        for region in 0..self.len() {
            dirty |= self
                .change(region, |word| {
                    (word & DIRTY != 0 && word & COUNT == 0).then_some(word & !TOUCHED)
                })
                .is_ok();
        }
        dirty
    }

    pub(crate) fn close(&self, region: usize) {
        let _ = self.change(region, |word| Some(word | CLOSED));
    }

    pub(crate) fn is_empty(&self, region: usize) -> bool {
        self.load(region) & COUNT == 0
    }

    pub(crate) fn open(&self, region: usize) {
        let _ = self.change(region, |word| Some(word & !CLOSED));
    }

    pub(crate) fn suspect(&self, region: usize) {
        let _ = self.change(region, |word| Some(word | SUSPECT));
    }

    pub(crate) fn trust(&self, region: usize) {
        let _ = self.change(region, |word| Some(word & !SUSPECT));
    }

    pub(crate) fn is_suspect(&self, region: usize) -> bool {
        self.load(region) & SUSPECT != 0
    }

    pub(crate) fn first_suspect(&self, mut range: Range<usize>) -> Option<usize> {
        range.find(|&region| self.is_suspect(region))
    }

    pub(crate) fn dirty_count(&self) -> usize {
        (0..self.len()).filter(|&region| self.is_dirty(region)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_waits_until_its_regions_are_dirty_and_open() {
        let (regions, mut wanted) = (Regions::new(4), Vec::new());
        assert_eq!(regions.enter(1..3, &mut wanted), Entry::Wait);
        assert_eq!(regions.enter(2..4, &mut wanted), Entry::Wait);
        assert_eq!(wanted, [1, 2, 3], "not each region was listed once");
        wanted.iter().for_each(|&region| regions.set_dirty(region));
        assert!(regions.are_dirty(1..4) && !regions.is_dirty(0));
        regions.close(2);
        assert_eq!(regions.enter(1..4, &mut wanted), Entry::Closed);
        assert!(!regions.leave(1..3), "a region with another write counts as free");
        assert!(regions.leave(2..4), "the last write left the closed region unreported");
        assert!(
            (0..4).all(|region| regions.is_empty(region)),
            "the refused write entered a region"
        );
        regions.open(2);
        assert_eq!(regions.enter(1..4, &mut wanted), Entry::Go);
    }

    #[test]
    fn only_an_untouched_region_becomes_clean() {
        let (regions, mut wanted) = (Regions::new(2), Vec::new());
        regions.enter(0..1, &mut wanted);
        regions.set_dirty(0);
        assert!(
            !regions.forget_touches() && !regions.clear_if_idle(0),
            "a region with a write became clean"
        );
        regions.leave(0..1);
        assert!(!regions.clear_if_idle(0), "a region written since the flush became clean");
        assert!(regions.forget_touches());
        regions.suspect(0);
        assert!(!regions.clear_if_idle(0), "a suspect region became clean");
        regions.trust(0);
        assert!(regions.clear_if_idle(0) && !regions.is_dirty(0));
    }
}
