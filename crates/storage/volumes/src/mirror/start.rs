//! Reads the legs when a mirror starts, and decides to which of them the mirror may write.
//!
//! A remote leg may still execute writes of a killed process. As long as it may, the mirror only
//! reads the leg. The leg starts as out, and returns like any other leg when it can no longer
//! execute old writes. The bitmap lists the regions of the data that the leg lacks, and also the
//! regions of its late writes: the earlier process marked each region on all legs before it sent
//! data, and no region is cleared while a leg is out. If no other leg has all data, the mirror
//! waits.

use std::sync::Arc;
use std::time::Duration;

use farblock_reactor::os;

use super::assemble::{self, Found, Plan, What};
use super::keeper::Opening;
use super::{LegSource, MirrorError, MirrorOptions, Taking, find, probe};
use crate::limits::LATE;

/// The interval of checks of the legs for which the mirror waits.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The findings about the named legs, and the plan for them.
pub(super) struct Start {
    pub(super) found: Vec<Found>,
    pub(super) reads: Vec<find::Read>,
    pub(super) opened: Vec<Opening>,
    pub(super) plan: Plan,
}

type Settled = Vec<Result<(), String>>;

/// Opens and reads the legs, and plans the start.
pub(super) fn find_out(
    sources: &[Arc<dyn LegSource>],
    options: &MirrorOptions,
) -> Result<Start, MirrorError> {
    let mut settled: Settled = sources.iter().map(|source| source.settle()).collect();
    let begin = os::now();
    loop {
        let mut start = look(sources, options)?;
        let Some(waited_for) = start.hold_back(&settled) else { return Ok(start) };
        // The contents of the legs may change while the mirror waits, so read them again
        // afterwards.
        drop(start);
        for &named in &waited_for {
            tracing::warn!(
                leg = %sources[named].name(),
                "the mirror waits for this leg, because no other leg has all data: {}",
                settled[named].as_ref().err().map_or("", |reason| reason)
            );
        }
        while waited_for.iter().all(|&named| settled[named].is_err()) {
            if !waited_for.iter().all(|&named| sources[named].is_wanted()) {
                return Err(MirrorError(format!(
                    "stopped while the mirror waited for {}",
                    sources[waited_for[0]].name()
                )));
            }
            if os::elapsed(begin) >= LATE {
                return Err(in_vain(sources, &settled, waited_for[0]));
            }
            os::sleep(LOOK_EVERY);
            waited_for.iter().for_each(|&named| settled[named] = sources[named].settle());
        }
    }
}

fn in_vain(sources: &[Arc<dyn LegSource>], settled: &Settled, named: usize) -> MirrorError {
    MirrorError(format!(
        "only {} has all data, but its target may still execute earlier writes ({}): find out what \
         that target waits for, and start again",
        sources[named].name(),
        settled[named].as_ref().err().map_or("", |reason| reason)
    ))
}

fn look(sources: &[Arc<dyn LegSource>], options: &MirrorOptions) -> Result<Start, MirrorError> {
    let names = sources.iter().map(|source| source.name());
    let opened: Vec<_> = sources.iter().map(|source| source.open()).collect();
    let probe = probe(names.collect(), &opened, options.engine)?;
    let (found, reads): (Vec<_>, Vec<_>) = probe.into_iter().unzip();
    let taking = options.taking == Taking::Empty;
    let plan = assemble::assemble(&found, taking, options.degraded)?;
    for (named, found) in found.iter().enumerate() {
        if let (What::Marked(_), Ok(leg)) = (&found.what, &opened[named]) {
            assemble::fits(&found.name, &leg.geometry(), &plan.record)?;
        }
    }
    Ok(Start { found, reads, opened, plan })
}

impl Start {
    /// Puts out each leg that may still get late writes. If no other leg has all data, returns the
    /// legs for which the mirror must wait until one leg can get no more late writes.
    fn hold_back(&mut self, settled: &Settled) -> Option<Vec<usize>> {
        let Start { plan, opened, found, .. } = self;
        let in_sync = plan.named.iter().zip(&plan.in_sync);
        let in_sync: Vec<usize> = in_sync.filter(|(_, is)| **is).map(|(&named, _)| named).collect();
        if in_sync.iter().all(|&named| settled[named].is_err()) {
            return Some(in_sync);
        }
        for (leg, &named) in plan.named.iter().enumerate() {
            if let (Err(reason), Ok(_)) = (&settled[named], &opened[named]) {
                tracing::warn!(
                    leg = %found[named].name,
                    "the leg starts as out of the mirror: {reason}"
                );
                plan.in_sync[leg] = false;
                plan.record.standings[leg] = super::record::Standing::Behind;
                // The keeper opens the leg again when it adds the leg.
                opened[named] = Err(reason.clone());
                found[named].what = What::Absent(reason.clone());
            }
        }
        None
    }
}
