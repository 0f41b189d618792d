//! Whether a leg is still the one that was written.
//!
//! A leg is known by the record that it was given last. Another copy of it that is put in its place
//! (a snapshot rolled back, a backup written over it, another file under its name) has an older
//! one. So a leg in sync has to show its record now and then, before it is given the next one, and,
//! if it is the last one in sync, before it is used again after its target was another process.
//!
//! With the right record a leg lacks at most what the bitmap has: nothing leaves that before each
//! leg has a record of after it was durable there.

use std::time::Instant;

use farblock_block::Op;
use farblock_reactor::{Buffer, os};

use super::keeper::{Keeper, sooner};
use super::record::{RECORD_BYTES, Record, SLOT_OFFSETS};
use super::shared::{LegSet, bit, members};
use crate::limits::AUDIT_EVERY;

/// A record that a leg was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Given {
    slot: usize,
    generation: u64,
    /// The generation's number in the history.
    number: u64,
}

/// What is known of the legs' records.
pub(crate) struct Audit {
    /// By leg, the last one; none if it is not known whether the leg has one of this process.
    given: Vec<Option<Given>>,
    /// Legs that were given a record while they may have been others: it proves nothing.
    misled: LegSet,
    next: Instant,
}

impl Audit {
    pub(crate) fn new(legs: usize, now: Instant) -> Audit {
        Audit { given: vec![None; legs], misled: 0, next: now + AUDIT_EVERY }
    }
}

/// What came of looking at a leg's record.
enum Shown {
    Right,
    Other(&'static str),
    /// Nobody knows which one to expect, or the leg is away.
    Unknown,
}

impl Keeper {
    /// A leg has the record of the present generation. Gives whether it is certain that it is the
    /// leg that has it: `doubts` of the leg before it was written.
    pub(crate) fn has_record(&mut self, leg: usize, doubts: u64) -> bool {
        let slot = self.slots[leg];
        self.slots[leg] = 1 - slot;
        if self.shared.legs[leg].doubts() != doubts {
            // The one before, in the other slot, is still what the leg has to show.
            self.audit.misled |= bit(leg);
            return self.shared.written() & bit(leg) != 0;
        }
        self.record.had[leg] = self.record.generation;
        let number = self.record.history.first().copied().unwrap_or(0);
        let generation = self.record.generation;
        self.audit.given[leg] = Some(Given { slot, generation, number });
        true
    }

    /// Nobody knows whether a leg has the record of the present generation.
    pub(crate) fn has_no_record(&mut self, leg: usize, doubts: u64) {
        if self.shared.legs[leg].doubts() != doubts {
            self.audit.misled |= bit(leg);
        }
    }

    /// Whether the record of a leg that comes back may be on another copy of it.
    pub(crate) fn misleads(&self, leg: usize) -> bool {
        self.audit.misled & bit(leg) != 0
    }

    /// What a misleading leg lacks, everything perhaps, is in the bitmap.
    pub(crate) fn vouches_again(&mut self, leg: usize) {
        self.audit.misled &= !bit(leg);
    }

    /// Looks at all legs in sync when it is time.
    pub(crate) fn audit_in_time(&mut self, deadline: &mut Option<Instant>) {
        if self.audit.next <= os::now() {
            self.audit(self.shared.in_sync());
            self.audit.next = os::now() + AUDIT_EVERY;
        }
        sooner(deadline, self.audit.next);
    }

    /// Has these legs show their records. One that shows another is put out.
    pub(crate) fn audit(&mut self, legs: LegSet) {
        for (leg, shown) in self.show(legs & self.shared.trusted()) {
            if let Shown::Other(what) = shown {
                self.shared.doubt(leg, what);
            }
        }
    }

    /// Lets the last leg in sync be used again when it has shown its record.
    pub(crate) fn prove(&mut self) {
        let unproven = self.shared.unproven();
        if unproven == 0 {
            return;
        }
        let doubts: Vec<u64> = self.shared.legs.iter().map(|leg| leg.doubts()).collect();
        for (leg, shown) in self.show(unproven) {
            let is_there = self.shared.legs[leg].is_there();
            match shown {
                Shown::Other(what) => self.shared.legs[leg].say(what),
                Shown::Unknown if !is_there => {}
                _ if self.shared.legs[leg].doubts() == doubts[leg] => self.shared.prove(leg),
                _ => {}
            }
        }
    }

    fn show(&mut self, legs: LegSet) -> Vec<(usize, Shown)> {
        let (mut shown, mut reads) = (Vec::new(), Vec::new());
        for leg in members(legs) {
            match self.audit.given[leg] {
                Some(given) if self.shared.legs[leg].is_there() => {
                    reads.push((leg, self.record_read(leg, given.slot)));
                }
                _ => shown.push((leg, Shown::Unknown)),
            }
        }
        if reads.is_empty() {
            return shown;
        }
        for ended in self.panel.run(reads) {
            let found = ended.done.result.ok().and(ended.done.buffer);
            shown.push((ended.leg, self.compare_record(ended.leg, found)));
        }
        shown
    }

    fn compare_record(&self, leg: usize, found: Option<Buffer>) -> Shown {
        let Some(given) = self.audit.given[leg] else { return Shown::Unknown };
        let Some(found) = found else {
            return match self.shared.legs[leg].is_there() {
                true => Shown::Other("its record cannot be read"),
                false => Shown::Unknown,
            };
        };
        match Record::parse(&found[..RECORD_BYTES]) {
            Ok(record)
                if record.mirror == self.record.mirror
                    && record.leg == leg
                    && record.generation == given.generation
                    && record.history.first() == Some(&given.number) =>
            {
                Shown::Right
            }
            Ok(_) => Shown::Other("it is another copy of itself: its record is another one"),
            Err(_) => Shown::Other("its record is lost: it was cut short, or written over"),
        }
    }

    fn record_read(&self, leg: usize, slot: usize) -> Op {
        let block_size = u64::from(self.record.block_size);
        let blocks = (RECORD_BYTES as u64).div_ceil(block_size);
        let lba = self.reserved_lba(leg) + SLOT_OFFSETS[slot] / block_size;
        Op::read(lba, blocks as u32, Buffer::new((blocks * block_size) as usize), 0)
    }
}
