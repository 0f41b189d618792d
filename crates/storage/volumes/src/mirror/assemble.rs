//! Assembles a mirror from the records on its legs, or returns the reason why it cannot.

use uuid::Uuid;

use farblock_block::Geometry;
use farblock_block::size::{ExactSize, Size};

use super::MirrorError;
use super::record::{Record, Standing, Unreadable};
use crate::limits::{MAX_LEGS, MIN_LEGS, RESERVED_BYTES};

/// The findings about a leg that the user named.
pub(crate) struct Found {
    pub(crate) name: String,
    pub(crate) what: What,
}

pub(crate) enum What {
    /// The leg cannot be opened or read, for the given reason.
    Absent(String),
    Marked(Record),
    /// The leg has no record.
    Unmarked {
        geometry: Geometry,
        /// The mirror that has claimed the leg for its first record, and has written nothing else
        /// there.
        claimed: Option<Uuid>,
        /// Whether the first and the last part of the leg are zeroes.
        end_is_empty: bool,
        start_is_empty: bool,
        /// The size in bytes of a file system or volume at the start of the leg, if its format is
        /// known.
        content: Option<u64>,
        /// The former size of the leg, if it has a record at its former end but none at its present
        /// end.
        former: Option<u64>,
    },
    Unusable(Unreadable),
}

impl What {
    /// Whether the leg holds no data to keep: the leg is empty, or this mirror has claimed it for
    /// its first record.
    fn is_free_for(&self, mirror: Uuid) -> bool {
        match self {
            What::Unmarked { claimed, end_is_empty, start_is_empty, .. } => {
                *start_is_empty && (*end_is_empty || *claimed == Some(mirror))
            }
            _ => false,
        }
    }
}

/// The plan for opening a mirror.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The newest record of all legs. It lists new legs as behind.
    pub(crate) record: Record,
    /// For each leg of the mirror, its index in the list of named legs.
    pub(crate) named: Vec<usize>,
    /// For each leg, whether it is available and in sync.
    pub(crate) in_sync: Vec<bool>,
}

fn refuse<T>(sentence: impl Into<String>) -> Result<T, MirrorError> {
    Err(MirrorError(sentence.into()))
}

/// Plans a mirror from legs with records; with `take_empty`, also creates one from legs without
/// records. With `alone`, a leg in sync may be missing.
pub(crate) fn assemble(
    found: &[Found],
    take_empty: bool,
    alone: bool,
) -> Result<Plan, MirrorError> {
    if !(MIN_LEGS..=MAX_LEGS).contains(&found.len()) {
        return refuse(format!(
            "a mirror has {MIN_LEGS} to {MAX_LEGS} legs, but {} are named: name {MIN_LEGS} to \
             {MAX_LEGS}",
            found.len()
        ));
    }
    for leg in found {
        match &leg.what {
            What::Unusable(Unreadable::Newer(version)) => {
                return refuse(format!(
                    "{} is a leg of a mirror in a newer format ({version}): use the farblock that \
                     wrote it, or a later one",
                    leg.name
                ));
            }
            What::Unusable(_) => {
                return refuse(format!(
                    "the mirror record at the end of {0} is damaged: if another leg has all data, \
                     zero the first and last MiB of {0} and start with ?create, and the mirror \
                     fills {0} again",
                    leg.name
                ));
            }
            _ => {}
        }
    }
    match newest(found) {
        Some(newest) => join(found, newest, take_empty, alone),
        None => create(found, take_empty),
    }
}

/// The record that supersedes all others. If there is no such record, the newest one.
fn newest(found: &[Found]) -> Option<&Record> {
    let mut records: Vec<&Record> = found.iter().filter_map(record).collect();
    records.sort_by_key(|record| std::cmp::Reverse(record.generation));
    let of_all = |newest: &&&Record| records.iter().all(|other| newest.supersedes(other));
    records.iter().find(of_all).or(records.first()).copied()
}

fn record(found: &Found) -> Option<&Record> {
    match &found.what {
        What::Marked(record) => Some(record),
        _ => None,
    }
}

/// Plans a mirror from legs with records.
fn join(
    found: &[Found],
    newest: &Record,
    take_empty: bool,
    alone: bool,
) -> Result<Plan, MirrorError> {
    let places = places(found, newest, take_empty)?;
    refuse_two_histories(found, newest)?;
    refuse_older_copies(found, newest)?;
    let mut plan = Plan { record: newest.clone(), named: places, in_sync: Vec::new() };
    plan.record.standings.resize(found.len(), Standing::Behind);
    plan.record.had.resize(found.len(), 0);
    for (leg, &named) in plan.named.iter().enumerate() {
        let behind = newest.is_behind(leg) || leg >= newest.standings.len();
        if let What::Absent(reason) = &found[named].what
            && !behind
            && !alone
        {
            return refuse(format!(
                "{} cannot be opened ({reason}), and the leg in its place was in sync and may have \
                 newer data: make it available again or correct its name; add ?degraded only if \
                 you are certain that no mirror has written that leg since",
                found[named].name
            ));
        }
        let there = matches!(found[named].what, What::Marked(_));
        plan.in_sync.push(there && !behind);
        if behind || !there {
            plan.record.standings[leg] = Standing::Behind;
        }
    }
    // A record that this one supersedes may have a higher generation number. Start from the highest
    // number, so that the next record exceeds it, too.
    let most = found.iter().filter_map(record).map(|record| record.generation).max();
    while most > Some(plan.record.generation) {
        plan.record.advance(u64::from_le_bytes(random()?));
    }
    if !plan.in_sync.contains(&true) {
        return refuse(
            "none of the available legs has all data of the mirror: make the leg available that \
             was written last",
        );
    }
    Ok(plan)
}

/// For each leg of the record, its index in the list of named legs.
fn places(found: &[Found], newest: &Record, take_empty: bool) -> Result<Vec<usize>, MirrorError> {
    let legs = newest.standings.len();
    if found.len() < legs {
        return refuse(format!(
            "the mirror has {legs} legs, but only {} are named: name all legs, including \
             unavailable legs",
            found.len()
        ));
    }
    let mut places: Vec<Option<usize>> = vec![None; found.len()];
    for (named, leg) in found.iter().enumerate() {
        let Some(record) = record(leg) else { continue };
        if record.mirror != newest.mirror {
            return refuse(format!(
                "{} belongs to another mirror ({}) than {} ({}): name the legs of one mirror",
                leg.name,
                record.mirror,
                found.iter().find(|leg| self::record(leg) == Some(newest)).map_or("", |l| &l.name),
                newest.mirror
            ));
        }
        let place = places.get_mut(record.leg);
        match place {
            Some(place @ None) => *place = Some(named),
            Some(Some(other)) => {
                return refuse(format!(
                    "{} and {} are copies of the same leg: name the one that belongs to the mirror",
                    found[*other].name, leg.name
                ));
            }
            None => {
                return refuse(format!(
                    "{} belongs to a leg that this mirror does not have: name only the legs of \
                     this mirror",
                    leg.name
                ));
            }
        }
    }
    for (named, leg) in found.iter().enumerate().filter(|(_, leg)| record(leg).is_none()) {
        let free = places.iter().position(Option::is_none).expect("every leg has its place");
        if let What::Unmarked { geometry, .. } = &leg.what
            && !newest.is_behind(free)
        {
            may_take(leg, geometry, newest, take_empty)?;
        }
        places[free] = Some(named);
    }
    Ok(places.into_iter().flatten().collect())
}

/// Checks whether the mirror may overwrite a leg that has no record.
pub(crate) fn may_take(
    leg: &Found,
    geometry: &Geometry,
    record: &Record,
    take_empty: bool,
) -> Result<(), MirrorError> {
    let name = &leg.name;
    refuse_former(leg)?;
    if !take_empty {
        return refuse(format!(
            "{name} has no mirror record in its last MiB: if it was a leg of this mirror, it has \
             grown or was truncated, so give it its former size; add ?create only for a new disk \
             without data, because the mirror then overwrites all of it"
        ));
    }
    if !leg.what.is_free_for(record.mirror) {
        return refuse(format!(
            "the mirror would overwrite {name}, which does not look empty: if it was a leg of this \
             mirror, it has grown or was truncated, so give it its former size; if its data may be \
             lost, zero its first and last MiB"
        ));
    }
    fits(name, geometry, record)
}

/// Refuses a leg that has changed its size since it got its record. The leg may have data that no
/// other leg has, so not even `?create` overwrites it.
fn refuse_former(leg: &Found) -> Result<(), MirrorError> {
    let What::Unmarked { geometry, former: Some(former), .. } = &leg.what else { return Ok(()) };
    let (name, was) = (&leg.name, ExactSize(*former));
    let change = if *former < geometry.capacity_bytes() { "has grown" } else { "was truncated" };
    refuse(format!(
        "{name} was a leg of a mirror when it had {was}, and {change} to {} since: give it its \
         former size (a file: truncate -s {former}), and start without ?create, which would lose \
         data; only if you do not need that mirror, zero the MiB from byte {} on",
        ExactSize(geometry.capacity_bytes()),
        former.saturating_sub(RESERVED_BYTES)
    ))
}

/// Checks the block size of a leg, and that the leg has enough blocks.
pub(crate) fn fits(name: &str, geometry: &Geometry, record: &Record) -> Result<(), MirrorError> {
    let needed = record.blocks * u64::from(record.block_size) + RESERVED_BYTES;
    let limit = |max: u32| if max == 0 { u32::MAX } else { max };
    if geometry.block_size != record.block_size {
        refuse(format!(
            "{name} has {}-byte blocks, but the mirror has {}-byte blocks: use a leg with the same \
             block size",
            geometry.block_size, record.block_size
        ))
    } else if geometry.capacity_bytes() < needed {
        refuse(format!(
            "{name} has {}, but each leg of the mirror needs at least {}: give it its \
             former size again, or use a larger leg",
            Size(geometry.capacity_bytes()),
            ExactSize(needed)
        ))
    } else if geometry.read_only {
        refuse(format!("{name} is read-only: make it writable"))
    } else if limit(geometry.max_blocks) < limit(record.max_blocks) {
        refuse(format!(
            "{name} takes at most {} blocks in an operation, but the mirror was made for {}: use \
             another leg",
            geometry.max_blocks, record.max_blocks
        ))
    } else {
        Ok(())
    }
}

/// Refuses a leg that may have writes that the leg with the newest record lacks.
fn refuse_two_histories(found: &[Found], newest: &Record) -> Result<(), MirrorError> {
    let of_newest = found.iter().find(|leg| record(leg) == Some(newest)).map_or("", |l| &l.name);
    for leg in found {
        if record(leg).is_some_and(|record| !newest.supersedes(record)) {
            return refuse(format!("{of_newest} and {} {TWO_HISTORIES}", leg.name));
        }
    }
    Ok(())
}

/// Refuses a leg that was restored to an earlier state, because no bitmap lists the changes that
/// such a leg lacks.
fn refuse_older_copies(found: &[Found], newest: &Record) -> Result<(), MirrorError> {
    for leg in found {
        if record(leg).is_some_and(|record| newest.is_newer_than_leg(record)) {
            return refuse(format!("{} {OLDER_COPY}", leg.name));
        }
    }
    Ok(())
}

/// The end of a message about a leg that was restored to an earlier state.
pub(crate) const OLDER_COPY: &str = "is an older copy of itself (perhaps a snapshot or a backup), \
    and the mirror does not know which data it lacks: restore the leg as it was, or zero its first \
    and last MiB and start with ?create, and the mirror fills it from the other legs";

/// The end of a message about two legs that were each written without the other.
pub(crate) const TWO_HISTORIES: &str = "were each written without the other: decide which one has \
    the right data, zero the first and last MiB of the other one, and start with ?create";

/// Plans a new mirror that keeps the data of the first leg.
fn create(found: &[Found], take_empty: bool) -> Result<Plan, MirrorError> {
    let mut geometries = Vec::new();
    found.iter().try_for_each(refuse_former)?;
    for (at, leg) in found.iter().enumerate() {
        match &leg.what {
            What::Absent(reason) => return refuse(format!("{}: {reason}", leg.name)),
            What::Unmarked { .. } if !take_empty => {
                return refuse(format!(
                    "{} has no mirror record in its last MiB: if it was a leg, it has grown or was \
                     truncated, so give it its former size; add ?create only for a new mirror, \
                     which keeps the data of {} and overwrites all other legs",
                    leg.name, found[0].name
                ));
            }
            What::Unmarked { end_is_empty: false, claimed: None, .. } if at == 0 => {
                return refuse(format!(
                    "the mirror needs the last MiB of {0} for its record, and this MiB contains \
                     data: if {0} was a leg of a mirror, it was truncated, so give it its former \
                     size; otherwise make {0} 1 MiB larger first",
                    leg.name
                ));
            }
            What::Unmarked { geometry, .. } => geometries.push(*geometry),
            What::Marked(_) | What::Unusable(_) => unreachable!("handled above"),
        }
    }
    let first = geometries[0];
    let smallest = geometries.iter().map(Geometry::capacity_bytes).min().unwrap_or(0);
    let made = Record::new(random_uuid()?, first.block_size, smallest, found.len());
    let Some(mut record) = made else {
        return refuse(format!(
            "the smallest leg has {}, which is too small: give each leg 1 MiB for the mirror \
             record, and room for data",
            Size(smallest)
        ));
    };
    keeps_its_data(&found[0], &geometries, &record)?;
    record.max_blocks =
        geometries.iter().map(|leg| leg.max_blocks).filter(|&max| max > 0).min().unwrap_or(0);
    record.deallocate = geometries.iter().all(|leg| leg.deallocate);
    for (leg, found) in found.iter().enumerate() {
        let What::Unmarked { geometry, .. } = &found.what else { continue };
        if leg == 0 {
            fits(&found.name, geometry, &record)?;
        } else {
            may_take(found, geometry, &record, true)?;
            record.standings[leg] = Standing::Behind;
        }
    }
    let in_sync = (0..found.len()).map(|leg| leg == 0).collect();
    Ok(Plan { record, named: (0..found.len()).collect(), in_sync })
}

/// Refuses to create a mirror that would be too small for the data of its first leg. A mirror is
/// smaller than its legs, because the end of each leg is reserved. If the size of the data is
/// unknown, no other leg may be smaller than the first.
fn keeps_its_data(
    first: &Found,
    geometries: &[Geometry],
    record: &Record,
) -> Result<(), MirrorError> {
    let What::Unmarked { start_is_empty: false, content, .. } = &first.what else { return Ok(()) };
    let (name, size) = (&first.name, geometries[0].capacity_bytes());
    let room = record.blocks * u64::from(record.block_size);
    match content {
        Some(content) if *content > room => refuse(format!(
            "{name} has a file system or volume of {}, but the mirror would have {}: give each leg \
             at least {} first (truncate -s SIZE FILE)",
            Size(*content),
            Size(room),
            ExactSize(content + RESERVED_BYTES)
        )),
        None if room + RESERVED_BYTES < size => refuse(format!(
            "{name} has {} and contains data, but the mirror would have {}: give each other leg at \
             least {}",
            Size(size),
            Size(room),
            ExactSize(size)
        )),
        Some(_) => Ok(()),
        None => {
            tracing::warn!(
                "the mirror has {}, 1 MiB less than {name}, whose data have an unknown size: make \
                 sure that no data are in its last MiB",
                Size(room)
            );
            Ok(())
        }
    }
}

/// Random bytes. In a simulation, the seed determines them.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], MirrorError> {
    let mut bytes = [0; N];
    if !farblock_reactor::os::fill_simulated(&mut bytes) {
        getrandom::fill(&mut bytes).map_err(|error| {
            MirrorError(format!("cannot get random numbers from the system: {error}"))
        })?;
    }
    Ok(bytes)
}

fn random_uuid() -> Result<Uuid, MirrorError> {
    Ok(uuid::Builder::from_random_bytes(random()?).into_uuid())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A leg with a record. `standings` has one letter per leg: `i` for in sync, `b` for behind.
    fn marked(leg: usize, generation: u64, standings: &str) -> Found {
        let mut record = Record::new(Uuid::from_bytes([7; 16]), 512, 16 << 20, 2).unwrap();
        (record.leg, record.generation) = (leg, generation);
        let standing = |letter| if letter == 'i' { Standing::InSync } else { Standing::Behind };
        record.standings = standings.chars().map(standing).collect();
        // One history for all legs: the random number of each generation is the number of the
        // generation.
        record.history = (1..=generation).rev().collect();
        Found { name: format!("leg{leg}"), what: What::Marked(record) }
    }

    fn absent(leg: usize) -> Found {
        Found { name: format!("leg{leg}"), what: What::Absent("gone".to_owned()) }
    }

    fn blank(bytes: u64, empty: bool) -> Found {
        let geometry = Geometry::new(512, bytes / 512);
        let (claimed, content, former) = (None, None, None);
        let (start_is_empty, end_is_empty) = (empty, empty);
        let what =
            What::Unmarked { geometry, claimed, end_is_empty, start_is_empty, content, former };
        Found { name: "blank".to_owned(), what }
    }

    /// A leg with data but without a record. `of` is the size of the data, if it is known.
    fn full(bytes: u64, of: Option<u64>) -> Found {
        let mut found = blank(bytes, true);
        if let What::Unmarked { start_is_empty, content, .. } = &mut found.what {
            (*start_is_empty, *content) = (false, of);
        }
        found
    }

    fn in_sync(found: &[Found]) -> Vec<bool> {
        assemble(found, false, false).unwrap().in_sync
    }

    #[track_caller]
    fn refused(found: &[Found], take: bool, alone: bool, because: &str) {
        let error = assemble(found, take, alone).unwrap_err().to_string();
        assert!(error.contains(because), "{error}");
    }

    #[test]
    fn the_newest_record_decides_which_legs_are_in_sync() {
        assert_eq!(in_sync(&[marked(0, 3, "ii"), marked(1, 3, "ii")]), [true, true]);
        assert_eq!(in_sync(&[marked(0, 4, "ib"), marked(1, 3, "ii")]), [true, false]);
        // The newest record did not reach all legs.
        assert_eq!(
            in_sync(&[marked(0, 4, "iib"), marked(1, 3, "iii"), marked(2, 3, "iii")]),
            [true, true, false]
        );
        assert_eq!(in_sync(&[marked(1, 4, "bi"), marked(0, 4, "bi")]), [false, true]);
        // The first leg's record says that the second leg is behind. The second leg's newer record
        // says that both legs are in sync.
        assert_eq!(in_sync(&[marked(0, 4, "ib"), marked(1, 5, "ii")]), [true, true]);
        assert_eq!(in_sync(&[marked(0, 5, "ii"), marked(1, 4, "ib")]), [true, true]);
        assert_eq!(in_sync(&[marked(0, 5, "ib"), absent(1)]), [true, false]);
    }

    #[test]
    fn legs_may_be_given_in_any_order() {
        let plan = assemble(&[marked(1, 4, "bi"), absent(0)], false, false).unwrap();
        assert_eq!((plan.named, plan.in_sync), (vec![1, 0], vec![false, true]));
    }

    #[test]
    fn a_new_mirror_must_have_room_for_the_data_of_its_first_leg() {
        const MIB: u64 = 1 << 20;
        for (first, second, content, is_made) in [
            (16, 16, Some(15), true),
            (16, 16, Some(16), false),
            (16, 10, Some(9), true),
            (16, 10, Some(10), false),
            (16, 10, None, false),
            (16, 16, None, true),
            (16, 20, None, true),
        ] {
            let content = content.map(|it| it * MIB);
            let legs = [full(first * MIB, content), blank(second * MIB, true)];
            if is_made {
                assert!(assemble(&legs, true, false).is_ok(), "{first} {second} {content:?}");
            } else {
                refused(&legs, true, false, "the mirror would have");
            }
        }
        let legs = [blank(16 * MIB, true), blank(10 * MIB, true)];
        assert!(assemble(&legs, true, false).is_ok(), "an empty leg of another size was refused");
    }

    #[test]
    fn legs_with_divergent_histories_are_refused() {
        for generation in [3, 4, 9] {
            let mut other = marked(1, generation, "bi");
            if let What::Marked(record) = &mut other.what {
                record.history.fill(77);
            }
            let (found, first) = ([marked(0, 5, "ib"), other], if generation > 5 { 1 } else { 0 });
            let names = format!("leg{first} and leg{} were each", 1 - first);
            refused(&found, true, true, &names);
        }
    }

    #[test]
    fn a_mirror_does_not_open_without_a_leg_that_may_have_newer_data() {
        refused(&[marked(0, 4, "ii"), absent(1)], false, false, "?degraded");
        let plan = assemble(&[marked(0, 4, "ii"), absent(1)], false, true).unwrap();
        assert_eq!(plan.in_sync, [true, false]);
        assert_eq!(plan.record.standings, [Standing::InSync, Standing::Behind]);
        refused(&[absent(0), marked(1, 4, "ib")], false, true, "none of the available legs");
    }

    #[test]
    fn no_leg_is_overwritten_without_create() {
        refused(&[blank(8 << 20, true), blank(8 << 20, true)], false, false, "?create");
        refused(&[blank(8 << 20, true), blank(8 << 20, false)], true, false, "not look empty");
        refused(&[blank(8 << 20, false), blank(8 << 20, true)], true, false, "1 MiB larger");
        refused(&[marked(0, 4, "ii"), blank(16 << 20, true)], false, false, "?create");
        refused(&[marked(0, 4, "ii"), blank(8 << 20, true)], true, false, "larger");
        // The mirror starts without the second leg, whose status reports the problem.
        assert_eq!(in_sync(&[marked(0, 4, "ib"), blank(16 << 20, false)]), [true, false]);
        let plan = assemble(&[blank(8 << 20, true), blank(9 << 20, true)], true, false).unwrap();
        assert_eq!((plan.record.blocks, plan.in_sync), (7 << 11, vec![true, false]));
        let found = [marked(0, 4, "ii"), marked(1, 4, "ii"), blank(16 << 20, true)];
        let plan = assemble(&found, true, false).unwrap();
        assert_eq!((plan.record.standings.len(), plan.in_sync), (3, vec![true, true, false]));
    }

    #[test]
    fn a_leg_that_changed_its_size_is_never_overwritten() {
        let changed = |bytes: u64, was: u64| {
            let mut found = blank(bytes, true);
            if let What::Unmarked { former, .. } = &mut found.what {
                *former = Some(was);
            }
            found
        };
        for take in [false, true] {
            let grown = || changed(33 << 20, 17 << 20);
            refused(&[grown(), grown()], take, true, "truncate -s 17825792)");
            refused(&[blank(33 << 20, true), grown()], take, true, "when it had 17MiB");
            refused(&[marked(0, 4, "ii"), grown()], take, true, "from byte 16777216 on");
            refused(&[changed(16 << 20, 17 << 20), grown()], take, true, "was truncated to 16MiB");
        }
        // The size of a leg may have changed by an amount that the search does not try.
        let unknown = || blank(16 << 20, true);
        refused(
            &[unknown(), unknown()],
            false,
            false,
            "if it was a leg, it has grown or was truncated",
        );
        let or_grown = "if it was a leg of this mirror, it has grown or was truncated";
        refused(&[marked(0, 4, "ii"), unknown()], false, false, or_grown);
        refused(&[marked(0, 4, "ii"), blank(16 << 20, false)], true, false, or_grown);
    }

    #[test]
    fn legs_that_form_no_mirror_are_refused() {
        refused(&[marked(0, 4, "ii")], false, false, "2 to 8 legs");
        refused(&[marked(0, 4, "iii"), marked(1, 4, "iii")], false, false, "name all");
        refused(&[marked(0, 4, "ii"), marked(0, 4, "ii")], false, false, "copies");
        let mut other = marked(1, 4, "ii");
        if let What::Marked(record) = &mut other.what {
            record.mirror = Uuid::nil();
        }
        refused(&[marked(0, 4, "ii"), other], false, false, "another mirror");
        let newer = Found { name: "x".into(), what: What::Unusable(Unreadable::Newer(2)) };
        refused(&[marked(0, 4, "ii"), newer], false, false, "newer format");
    }
}
