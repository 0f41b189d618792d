//! Checks that a leg still has the data that the mirror wrote to it.
//!
//! The last record written to a leg identifies the leg. If another copy takes the place of the leg
//! (a rolled back snapshot, a restored backup, another file with the same name), that copy has an
//! older record. So the keeper (the mirror's thread) reads the record of each leg in sync
//! periodically, and before it writes the next record. After the target process of the last leg in
//! sync was replaced, the keeper also reads the record of this leg before the mirror uses the leg
//! again.
//!
//! A leg with the right record lacks at most the regions in the bitmap. The keeper removes a region
//! from the bitmap only when its data is durable on each leg, and each leg has since got another
//! record.

use std::time::Instant;

use farblock_block::Op;
use farblock_reactor::{Buffer, os};

use super::keeper::{Keeper, sooner};
use super::record::{RECORD_BYTES, Record, SLOT_OFFSETS};
use super::shared::{LegSet, bit, members};
use crate::limits::AUDIT_EVERY;

/// The identity of a record written to a leg.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Given {
    slot: usize,
    generation: u64,
    /// The random number of the generation.
    number: u64,
}

/// The records that the legs must have.
pub(crate) struct Audit {
    /// The last record written to each leg. `None` if it is not certain that this process has
    /// written a record to the leg.
    given: Vec<Option<Given>>,
    /// Legs that got a record while another copy may have taken their place. Such a record does not
    /// prove that the leg is the right one.
    misled: LegSet,
    next: Instant,
}

impl Audit {
    pub(crate) fn new(legs: usize, now: Instant) -> Audit {
        Audit { given: vec![None; legs], misled: 0, next: now + AUDIT_EVERY }
    }
}

/// The result of reading the record of a leg.
enum Shown {
    Right,
    Other(&'static str),
    /// The mirror does not know which record to expect, or the leg is unavailable.
    Unknown,
}

impl Keeper {
    /// Registers that a leg has the record of the present generation. `doubts` is the value of
    /// [`Leg::doubts`](super::shared::Leg::doubts) before the write. If it has grown since, another
    /// disk may have got the record. Returns false if the mirror has put such a leg out.
    pub(crate) fn has_record(&mut self, leg: usize, doubts: u64) -> bool {
        let slot = self.slots[leg];
        self.slots[leg] = 1 - slot;
        if self.shared.legs[leg].doubts() != doubts {
            // The record may be on another disk, so it proves nothing. The next audit must find the
            // previous record, which the leg still has in the other slot.
            self.audit.misled |= bit(leg);
            return self.shared.written() & bit(leg) != 0;
        }
        self.record.had[leg] = self.record.generation;
        let number = self.record.history.first().copied().unwrap_or(0);
        let generation = self.record.generation;
        self.audit.given[leg] = Some(Given { slot, generation, number });
        true
    }

    /// Registers a failed write of the record: the leg may or may not have the record.
    pub(crate) fn has_no_record(&mut self, leg: usize, doubts: u64) {
        if self.shared.legs[leg].doubts() != doubts {
            self.audit.misled |= bit(leg);
        }
    }

    /// Whether a returning leg may be another copy, although it has the right record.
    pub(crate) fn misleads(&self, leg: usize) -> bool {
        self.audit.misled & bit(leg) != 0
    }

    /// Trusts the record of the leg again, because the bitmap now lists all regions in which the
    /// leg may lack data.
    pub(crate) fn vouches_again(&mut self, leg: usize) {
        self.audit.misled &= !bit(leg);
    }

    /// Audits all legs in sync if the audit is due.
    pub(crate) fn audit_in_time(&mut self, deadline: &mut Option<Instant>) {
        if self.audit.next <= os::now() {
            self.audit(self.shared.in_sync());
            self.audit.next = os::now() + AUDIT_EVERY;
        }
        sooner(deadline, self.audit.next);
    }

    /// Reads the records of these legs, and puts out each leg whose record is not the expected one.
    pub(crate) fn audit(&mut self, legs: LegSet) {
        for (leg, shown) in self.show(legs & self.shared.trusted()) {
            if let Shown::Other(what) = shown {
                self.shared.doubt(leg, what);
            }
        }
    }

    /// Allows the use of the last leg in sync once the keeper has found the right record there.
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
                true => Shown::Other("the leg's record cannot be read"),
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
            Ok(_) => Shown::Other(
                "the leg does not contain the last mirror record that was written to it: it is \
                 another copy of this leg",
            ),
            Err(_) => Shown::Other(
                "the mirror record of the leg is lost: the leg was truncated, or another program \
                 overwrote the record",
            ),
        }
    }

    fn record_read(&self, leg: usize, slot: usize) -> Op {
        let block_size = u64::from(self.record.block_size);
        let blocks = (RECORD_BYTES as u64).div_ceil(block_size);
        let lba = self.reserved_lba(leg) + SLOT_OFFSETS[slot] / block_size;
        Op::read(lba, blocks as u32, Buffer::new((blocks * block_size) as usize), 0)
    }
}
