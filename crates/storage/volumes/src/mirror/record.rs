//! The reserved part at the end of each leg: two slots for the record, and the bitmap.
//!
//! The mirror writes a new record to the slot that does not hold the newest record. So a torn write
//! leaves the newest record intact.
//!
//! # The format
//!
//! All numbers are little-endian. The last MiB of a leg (1048576 bytes from its end) has a record
//! at 0, another one at 65536, and the bitmap at 196608. The bitmap has one bit per region, the
//! lowest bit first; 1 means that legs may differ in the region, or that a leg that is out lacks
//! the region's data. A new record durably replaces the older of the two.
//!
//! | bytes | record, 4096 bytes |
//! | --- | --- |
//! | 0–7 | `FBMIRROR` |
//! | 8–11 | version, 2 |
//! | 12–15 | flags; bit 0: every leg deallocates |
//! | 16–19 | block size in bytes |
//! | 20–23 | binary logarithm of the region size in bytes |
//! | 24–27 | the largest transfer in blocks, 0: any |
//! | 28–29, 30–31 | number of this leg; number of legs |
//! | 32–47 | the mirror's UUID |
//! | 48–55 | generation |
//! | 56–63 | blocks of the mirror |
//! | 64–65 | number of generations in the history |
//! | 72–79 | each leg: 1 in sync, 2 behind |
//! | 96– | the history, 8 bytes for each generation, the newest first; at most 400 |
//! | 3296–3359 | each leg: 8 bytes, the newest generation that it is known to have; 0: unknown |
//! | 4092–4095 | CRC-32C of the bytes before |
//!
//! The bitmap is in pages of 4096 bytes, or of a block if that is larger, one after the other:
//!
//! | bytes | page of the bitmap |
//! | --- | --- |
//! | 0–3 | CRC-32C of the mirror's UUID and the rest of the page |
//! | 4–7 | page number |
//! | 8–15 | number of pages written before |
//! | 16– | bits |
//!
//! While the mirror writes a leg's first record, a *claim* at 262144 names the mirror; zeroes
//! replace it later. A leg with a claim and a torn record counts as empty.
//!
//! | bytes | claim, 512 bytes |
//! | --- | --- |
//! | 0–7 | `FBCLAIM1` |
//! | 8–23 | the mirror's UUID |
//! | 508–511 | CRC-32C of the bytes before |
//!
//! Version 1 had the bitmap at 131072, without pages and checksums. The mirror reads version 1, and
//! writes version 2 when it starts; older versions of farblock then refuse the leg.
//!
//! The bitmap of a leg contains at least the regions with writes under way: before the mirror sends
//! a write, the region's bit is durable on all legs that get the write. Every five seconds, if all
//! legs are in sync, the mirror flushes them. Then it clears the bits of regions without writes
//! since the previous check.

use uuid::Uuid;

use crate::limits::{HISTORY, MAX_LEGS, MAX_REGIONS, MIN_REGION_BYTES, RESERVED_BYTES};

/// The length of a record in bytes, before padding to a whole block.
pub(crate) const RECORD_BYTES: usize = 4096;
/// The offsets of the two records in the reserved part. The offset of the bitmap follows.
pub(crate) const SLOT_OFFSETS: [u64; 2] = [0, 64 << 10];
pub(crate) const BITMAP_OFFSET: u64 = 192 << 10;
/// The offset of the bitmap in the version without checksums.
pub(crate) const OLD_BITMAP_OFFSET: u64 = 128 << 10;
/// The used bytes of the reserved part.
pub(crate) const USED_BYTES: u64 = BITMAP_OFFSET + (64 << 10);

pub(crate) const MAGIC: &[u8; 8] = b"FBMIRROR";
const VERSION: u32 = 2;
/// The first version whose bitmap has checksums.
pub(crate) const CHECKED: u32 = 2;
const FLAG_DEALLOCATE: u32 = 1;
const CHECKSUM_AT: usize = RECORD_BYTES - 4;
const STATES_AT: usize = 72;
const HISTORY_AT: usize = 96;
const HAD_AT: usize = HISTORY_AT + 8 * HISTORY;

/// The state of a leg according to a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    InSync,
    /// The leg lacks writes to regions in the bitmap.
    Behind,
}

/// The state of a mirror in one generation, as stored on a leg.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    /// The format version of the record on the leg. Records are written in the newest version.
    pub(crate) version: u32,
    pub(crate) mirror: Uuid,
    /// The number of the generation. Each new record has the next number.
    pub(crate) generation: u64,
    pub(crate) block_size: u32,
    pub(crate) blocks: u64,
    pub(crate) region_shift: u32,
    pub(crate) max_blocks: u32,
    pub(crate) deallocate: bool,
    /// The index of the leg that has this record.
    pub(crate) leg: usize,
    pub(crate) standings: Vec<Standing>,
    /// A random number per generation, the newest first. These numbers show which generations two
    /// legs have in common.
    pub(crate) history: Vec<u64>,
    /// For each leg, the newest generation that it is known to have durably; 0 if unknown. If a leg
    /// has an older record than this, it was restored to an earlier state.
    pub(crate) had: Vec<u64>,
}

/// The reason why the reserved part of a leg cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unreadable {
    /// The leg has no record.
    None,
    /// A later version of farblock wrote the record.
    Newer(u32),
    /// The checksum of the record is right, but its values are invalid.
    Nonsense,
}

impl Record {
    /// The record of a new mirror.
    pub(crate) fn new(mirror: Uuid, block_size: u32, leg_bytes: u64, legs: usize) -> Option<Self> {
        let bytes = leg_bytes.checked_sub(RESERVED_BYTES)?;
        let blocks = bytes / u64::from(block_size);
        if blocks == 0 {
            return None;
        }
        let region = (bytes.div_ceil(MAX_REGIONS)).next_power_of_two().max(MIN_REGION_BYTES);
        Some(Record {
            version: VERSION,
            mirror,
            generation: 1,
            block_size,
            blocks,
            region_shift: region.trailing_zeros(),
            max_blocks: 0,
            deallocate: false,
            leg: 0,
            standings: vec![Standing::InSync; legs],
            history: vec![0],
            had: vec![0; legs],
        })
    }

    pub(crate) fn region_bytes(&self) -> u64 {
        1 << self.region_shift
    }

    pub(crate) fn regions(&self) -> usize {
        let bytes = self.blocks * u64::from(self.block_size);
        bytes.div_ceil(self.region_bytes()) as usize
    }

    pub(crate) fn emit(&self, bytes: &mut [u8]) {
        bytes.fill(0);
        bytes[..8].copy_from_slice(MAGIC);
        let flags = if self.deallocate { FLAG_DEALLOCATE } else { 0 };
        let short = [VERSION, flags, self.block_size, self.region_shift, self.max_blocks];
        for (at, value) in short.into_iter().enumerate() {
            bytes[8 + 4 * at..12 + 4 * at].copy_from_slice(&value.to_le_bytes());
        }
        bytes[28..30].copy_from_slice(&(self.leg as u16).to_le_bytes());
        bytes[30..32].copy_from_slice(&(self.standings.len() as u16).to_le_bytes());
        bytes[32..48].copy_from_slice(self.mirror.as_bytes());
        bytes[48..56].copy_from_slice(&self.generation.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.blocks.to_le_bytes());
        for (byte, standing) in bytes[STATES_AT..].iter_mut().zip(&self.standings) {
            *byte = if *standing == Standing::InSync { 1 } else { 2 };
        }
        bytes[64..66].copy_from_slice(&(self.history.len() as u16).to_le_bytes());
        for (into, number) in bytes[HISTORY_AT..].chunks_exact_mut(8).zip(&self.history) {
            into.copy_from_slice(&number.to_le_bytes());
        }
        for (into, had) in bytes[HAD_AT..].chunks_exact_mut(8).zip(&self.had) {
            into.copy_from_slice(&had.to_le_bytes());
        }
        let checksum = crc32c::crc32c(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..RECORD_BYTES].copy_from_slice(&checksum.to_le_bytes());
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Record, Unreadable> {
        let short = |at: usize| {
            u32::from_le_bytes(
                bytes[at..at + 4].try_into().expect("the slice has the right length"),
            )
        };
        let long = |at: usize| {
            u64::from_le_bytes(bytes[at..at + 8].try_into().expect("the range has eight bytes"))
        };
        if bytes[..8] != *MAGIC || short(CHECKSUM_AT) != crc32c::crc32c(&bytes[..CHECKSUM_AT]) {
            return Err(Unreadable::None);
        }
        if !(1..=VERSION).contains(&short(8)) {
            return Err(Unreadable::Newer(short(8)));
        }
        let legs = usize::from(u16::from_le_bytes([bytes[30], bytes[31]]));
        let standing = |byte: &u8| match byte {
            1 => Some(Standing::InSync),
            2 => Some(Standing::Behind),
            _ => None,
        };
        let states = bytes.get(STATES_AT..STATES_AT + legs.min(MAX_LEGS)).unwrap_or_default();
        let standings: Option<Vec<_>> = states.iter().map(standing).collect();
        let remembered = usize::from(u16::from_le_bytes([bytes[64], bytes[65]]));
        if remembered > HISTORY {
            return Err(Unreadable::Nonsense);
        }
        let record = Record {
            version: short(8),
            mirror: Uuid::from_slice(&bytes[32..48]).expect("the slice has 16 bytes"),
            generation: long(48),
            block_size: short(16),
            blocks: long(56),
            region_shift: short(20),
            max_blocks: short(24),
            deallocate: short(12) & FLAG_DEALLOCATE != 0,
            leg: usize::from(u16::from_le_bytes([bytes[28], bytes[29]])),
            standings: standings.ok_or(Unreadable::Nonsense)?,
            history: (0..remembered).map(|at| long(HISTORY_AT + 8 * at)).collect(),
            had: (0..legs.min(MAX_LEGS)).map(|at| long(HAD_AT + 8 * at)).collect(),
        };
        if legs <= MAX_LEGS && record.makes_sense() {
            Ok(record)
        } else {
            Err(Unreadable::Nonsense)
        }
    }

    fn makes_sense(&self) -> bool {
        let bytes = self.blocks.checked_mul(u64::from(self.block_size));
        farblock_block::Geometry::is_block_size(self.block_size)
            && bytes.is_some_and(|bytes| {
                bytes > 0
                    && bytes <= i64::MAX as u64 - RESERVED_BYTES
                    && (16..60).contains(&self.region_shift)
                    && bytes.div_ceil(self.region_bytes()) <= MAX_REGIONS
            })
            && self.leg < self.standings.len()
            && self.generation > 0
            && self.had.iter().all(|had| *had <= self.generation)
            && !self.history.is_empty()
    }

    /// Starts the next generation, with this random number.
    pub(crate) fn advance(&mut self, number: u64) {
        self.generation += 1;
        self.history.insert(0, number);
        self.history.truncate(HISTORY);
    }

    /// Whether this record is equal to the other record, or continues its history.
    pub(crate) fn descends_from(&self, other: &Record) -> bool {
        let age = self.generation.checked_sub(other.generation);
        let then = age.and_then(|age| self.history.get(usize::try_from(age).ok()?));
        then == other.history.first()
    }

    /// Whether the mirror can ignore the other record, because the mirror acknowledged no write
    /// under that record. This happens if the power failed before all legs had the other record,
    /// and the mirror then started without the leg that has it. The other record says that all
    /// legs are in sync, but the legs of this record never got the other record.
    pub(crate) fn went_past(&self, other: &Record) -> bool {
        let is_common = |&age: &u64| {
            let then = other.generation.checked_sub(age)?;
            let here = self.history.get(usize::try_from(self.generation.checked_sub(then)?).ok()?);
            (here? == other.history.get(age as usize)?).then_some(())
        };
        let fork = (1..other.history.len() as u64).find(|age| is_common(age).is_some());
        let Some(fork) = fork.map(|age| other.generation - age) else { return false };
        let mut go_on = (0..self.standings.len()).filter(|&leg| !self.is_behind(leg));
        let lack_it = |leg| other.had.get(leg).is_none_or(|had: &u64| *had <= fork);
        self.is_behind(other.leg)
            && other.standings.iter().all(|standing| *standing == Standing::InSync)
            && go_on.all(lack_it)
    }

    /// Whether the other record is older than the history in this record, and its leg nevertheless
    /// has no write that the other legs lack. The leg would have such a write if it had executed a
    /// write "alone", without them.
    ///
    /// Before a leg writes alone, it records that the other legs are behind. When another leg
    /// returns, the first leg gets two more records. So the leg of the other record wrote nothing
    /// alone in each of these cases:
    /// - Some leg is in sync according to both records.
    /// - The leg has got no record after the generation that this record lists for it.
    /// - The leg's record says that the leg itself is behind.
    pub(crate) fn outlived(&self, other: &Record) -> bool {
        let is_forgotten = other.generation + self.history.len() as u64 <= self.generation;
        let had = self.had.get(other.leg).copied().unwrap_or(0);
        let is_together = |leg| {
            // The leg's last record may be one that this mirror has not confirmed yet.
            other.standings.get(leg) == Some(&Standing::InSync)
                && other.had.get(leg).is_none_or(|its| *its <= had + 1)
        };
        let mut go_on = (0..self.standings.len()).filter(|&leg| !self.is_behind(leg));
        is_forgotten
            && self.is_behind(other.leg)
            && (other.generation <= had || other.is_behind(other.leg) || go_on.any(is_together))
    }

    /// Whether no data is lost if this mirror continues without the other record.
    pub(crate) fn supersedes(&self, other: &Record) -> bool {
        self.descends_from(other) || self.went_past(other) || self.outlived(other)
    }

    /// Whether the other record of this mirror shows that its leg is an older copy. The mirror does
    /// not know which changes such a copy lacks.
    pub(crate) fn is_newer_than_leg(&self, other: &Record) -> bool {
        self.had.get(other.leg).is_some_and(|had| other.generation < *had)
    }

    pub(crate) fn is_behind(&self, leg: usize) -> bool {
        self.standings.get(leg) == Some(&Standing::Behind)
    }
}

/// The newest record in the reserved part of a leg, and the slot for the next record.
pub(crate) fn newest(area: &[u8]) -> Result<(Record, usize), Unreadable> {
    let parse = |slot: usize| {
        let at = SLOT_OFFSETS[slot] as usize;
        Record::parse(&area[at..at + RECORD_BYTES])
    };
    match (parse(0), parse(1)) {
        (Ok(first), Ok(second)) if first.generation > second.generation => Ok((first, 1)),
        (Err(Unreadable::Newer(version)), _) | (_, Err(Unreadable::Newer(version))) => {
            Err(Unreadable::Newer(version))
        }
        (_, Ok(second)) => Ok((second, 0)),
        (Ok(first), Err(_)) => Ok((first, 1)),
        (Err(Unreadable::Nonsense), _) | (_, Err(Unreadable::Nonsense)) => {
            Err(Unreadable::Nonsense)
        }
        (Err(_), Err(_)) => Err(Unreadable::None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let mut record = Record::new(Uuid::from_bytes([7; 16]), 512, 64 << 20, 3).unwrap();
        (record.leg, record.generation, record.max_blocks) = (2, 9, 256);
        (record.deallocate, record.standings[1]) = (true, Standing::Behind);
        (record.history, record.had) = (vec![5, 6, 7], vec![9, 0, 8]);
        record
    }

    #[test]
    fn a_record_round_trips() {
        let mut bytes = vec![0xff; RECORD_BYTES];
        record().emit(&mut bytes);
        assert_eq!(Record::parse(&bytes), Ok(record()));
        assert_eq!(record().regions(), 63 << 4);
    }

    #[test]
    fn every_flipped_bit_of_a_record_is_detected() {
        let mut bytes = vec![0; RECORD_BYTES];
        record().emit(&mut bytes);
        for at in (0..RECORD_BYTES * 8).step_by(61).chain(0..8 * 100) {
            bytes[at / 8] ^= 1 << (at % 8);
            assert_eq!(Record::parse(&bytes), Err(Unreadable::None), "bit {at}");
            bytes[at / 8] ^= 1 << (at % 8);
        }
    }

    #[test]
    fn an_inconsistent_record_is_refused_despite_a_valid_checksum() {
        let refused = |change: &dyn Fn(&mut [u8])| {
            let mut bytes = vec![0; RECORD_BYTES];
            record().emit(&mut bytes);
            change(&mut bytes);
            let checksum = crc32c::crc32c(&bytes[..CHECKSUM_AT]);
            bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
            Record::parse(&bytes).unwrap_err()
        };
        assert_eq!(refused(&|bytes| bytes[8] = 3), Unreadable::Newer(3));
        for (at, value) in [(16, 1), (20, 70), (20, 3), (28, 3), (30, 200), (63, 0xff), (72, 9)] {
            assert_eq!(refused(&|bytes| bytes[at] = value), Unreadable::Nonsense, "byte {at}");
        }
        assert_eq!(refused(&|bytes| bytes[64..66].fill(0)), Unreadable::Nonsense);
        assert_eq!(refused(&|bytes| bytes[65] = 9), Unreadable::Nonsense);
        assert_eq!(refused(&|bytes| bytes[HAD_AT + 8] = 10), Unreadable::Nonsense);
        assert_eq!(refused(&|bytes| bytes[48..56].fill(0)), Unreadable::Nonsense);
        assert_eq!(refused(&|bytes| bytes[56..64].fill(0)), Unreadable::Nonsense);
    }

    #[test]
    fn a_torn_record_leaves_the_previous_one() {
        let mut area = vec![0; USED_BYTES as usize];
        assert_eq!(newest(&area), Err(Unreadable::None));
        let (mut now, mut slot) = (record(), 0);
        for _ in 0..3 {
            let at = SLOT_OFFSETS[slot] as usize;
            now.emit(&mut area[at..at + RECORD_BYTES]);
            let (found, next) = newest(&area).unwrap();
            assert_eq!((&found, next), (&now, 1 - slot));
            let torn = SLOT_OFFSETS[next] as usize;
            area[torn..torn + 512].fill(0x5a);
            assert_eq!(newest(&area).unwrap(), (found, next));
            (now.generation, slot) = (now.generation + 1, next);
        }
    }

    #[test]
    fn a_record_descends_from_the_records_in_its_history() {
        let old = record();
        let (mut one, mut other) = (old.clone(), old.clone());
        one.advance(11);
        other.advance(12);
        assert!(one.descends_from(&old) && old.descends_from(&old) && !old.descends_from(&one));
        assert!(!one.descends_from(&other) && !other.descends_from(&one));
        one.advance(13);
        assert!(one.descends_from(&old) && !one.descends_from(&other));
        (0..2 * HISTORY as u64).for_each(|number| one.advance(number));
        assert!(
            !one.descends_from(&old),
            "a generation older than the history counts as an ancestor"
        );
        let mut bytes = vec![0; RECORD_BYTES];
        one.emit(&mut bytes);
        assert_eq!(Record::parse(&bytes), Ok(one));
    }

    /// Only one of two legs got a record. The mirror continues with the other leg.
    #[test]
    fn a_record_that_only_one_leg_got_is_superseded() {
        let mut before = Record::new(Uuid::nil(), 512, 64 << 20, 2).unwrap();
        (before.history, before.had) = (vec![5], vec![1, 1]);
        let (mut here, mut beside) = (before.clone(), before.clone());
        (beside.leg, here.standings[1]) = (1, Standing::Behind);
        beside.advance(11);
        (12..20).for_each(|number| here.advance(number));
        assert!(here.went_past(&beside) && !here.descends_from(&beside));
        assert!(!beside.went_past(&here), "the record of the leg that continued was ignored");
        // The power may fail repeatedly.
        beside.advance(21);
        assert!(here.went_past(&beside));
        let known = Record { had: vec![2, 3], ..beside.clone() };
        assert!(!here.went_past(&known), "a record that all legs had was ignored");
        let alone =
            Record { standings: vec![Standing::Behind, Standing::InSync], ..beside.clone() };
        assert!(!here.went_past(&alone), "the record of a leg that continued alone was ignored");
        let unrelated = Record { history: vec![1, 2, 3], ..beside };
        assert!(!here.went_past(&unrelated));
    }

    /// The records of the two legs of a mirror: the record of the first leg, which ran for long
    /// without the second leg, and the last record of the second leg.
    fn long_alone() -> (Record, Record) {
        let mut before = Record::new(Uuid::nil(), 512, 64 << 20, 2).unwrap();
        (before.generation, before.history, before.had) = (9, vec![5; 9], vec![8, 8]);
        let other = Record { leg: 1, ..before.clone() };
        before.standings[1] = Standing::Behind;
        (0..2 * HISTORY as u64).for_each(|number| before.advance(number));
        (before, other)
    }

    #[test]
    fn a_leg_that_was_out_longer_than_the_history_is_superseded() {
        let (here, other) = long_alone();
        assert!(!here.descends_from(&other) && here.outlived(&other) && here.supersedes(&other));
        assert!(!other.supersedes(&here));
        // The last record of the second leg lists the first leg as in sync again.
        assert!(here.outlived(&Record { had: vec![9, 8], ..other.clone() }));
        // The second leg's record says that the second leg is behind, or that another leg, which
        // the mirror has filled since, is behind.
        let standings = vec![Standing::InSync, Standing::Behind];
        assert!(here.outlived(&Record { standings, had: vec![99, 0], ..other.clone() }));
        let mut three = here.clone();
        three.standings.push(Standing::InSync);
        let standings = vec![Standing::InSync, Standing::InSync, Standing::Behind];
        assert!(three.outlived(&Record { standings, had: vec![8, 8, 0], ..other.clone() }));
        let older = Record { generation: 7, ..other.clone() };
        assert!(
            here.outlived(&older) && here.is_newer_than_leg(&older),
            "the leg was not recognized as an older copy"
        );
        let recent = Record { generation: here.generation - 1, ..other };
        assert!(
            !here.outlived(&recent),
            "a record within the history counts as older than the history"
        );
    }

    #[test]
    fn a_leg_that_wrote_alone_is_never_superseded() {
        let (here, other) = long_alone();
        let in_sync_here = Record { standings: vec![Standing::InSync; 2], ..here.clone() };
        assert!(!in_sync_here.outlived(&other), "a leg with the only copy of data was superseded");
        let mut alone = other;
        alone.standings[0] = Standing::Behind;
        (60..62).for_each(|number| alone.advance(number));
        assert!(!here.supersedes(&alone) && !alone.supersedes(&here));
        let long_after = (0..2000).fold(alone.clone(), |mut alone, number| {
            alone.advance(number + 1000);
            alone
        });
        assert!(!here.supersedes(&long_after) && !long_after.supersedes(&here));
        // Another leg has replaced the first one, and the second leg's record says that both legs
        // are in sync.
        let again =
            Record { standings: vec![Standing::InSync; 2], had: vec![10, 11], ..alone.clone() };
        assert!(!here.supersedes(&again));
    }

    #[test]
    fn the_number_of_regions_is_bounded() {
        for leg_bytes in [2 << 20, 16 << 30, (16 << 30) + 12345 * 512, 1 << 50, 1 << 62] {
            let record = Record::new(Uuid::nil(), 512, leg_bytes, 2).unwrap();
            assert!(record.regions() as u64 <= MAX_REGIONS && record.makes_sense(), "{leg_bytes}");
        }
        assert!(Record::new(Uuid::nil(), 512, RESERVED_BYTES, 2).is_none());
    }
}
