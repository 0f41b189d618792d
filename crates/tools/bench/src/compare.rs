//! Runs a plan on one or two namespaces, and on the [floor](crate::floor) (bare sockets) if the
//! plan has one. Creates a report.
//!
//! **Order.** Patterns run one after another, and so do the runs of a pattern. Within a run the
//! sides follow each other: local first and floor last in the first run, the reverse in the second
//! run, and so on. Slow drift (a disk that warms up, another load on the machine) then affects all
//! sides alike. No two sides run at the same time.
//!
//! **Failures.** Errors in the plan are returned before the first I/O. A failed run ends the
//! measurement of this pattern on this side, and appears in the report. The benchmark continues
//! with the other sides and patterns.

use std::time::{Duration, SystemTime};

use farblock_block::BlockError;
use farblock_reactor::EngineKind;

use crate::addresses::check_fit;
use crate::error::{BenchError, RunError};
use crate::floor::{self, Floor, FloorSpec};
use crate::generator::{self, RunSpec, Sample, Tick};
use crate::limits::{DRAIN_LIMIT, KNOWN_WITHIN_PERCENT};
use crate::machine::{self, Machine};
use crate::pattern::Pattern;
use crate::plan::{Plan, Side};
use crate::progress::{Cancel, Phase, Progress, SideName, Snapshot};
use crate::result::{Failure, Figures, Method, PatternReport, Percent, Report, SCHEMA};
use crate::times::Times;
use crate::verdict::ratio_interval;
use farblock_random::Random;

const MIB: f64 = (1 << 20) as f64;

/// Measures `local`, `remote` or both according to `plan`, and the floor if the plan has one.
///
/// Returns when the benchmark is done or cancelled. The report of a cancelled benchmark contains
/// the results so far, and says that it was interrupted.
///
/// # Errors
///
/// The plan cannot be run (see [`BenchError`]). A failed run is not an error: it appears in the
/// report.
///
/// # Panics
///
/// If a namespace breaks its contract.
pub fn compare(
    plan: &Plan,
    local: Option<&Side>,
    remote: Option<&Side>,
    cancel: &Cancel,
    progress: &mut dyn Progress,
) -> Result<Report, BenchError> {
    let named = [(SideName::Local, local), (SideName::Remote, remote)];
    let disks = named.into_iter().filter_map(|(name, side)| Some((name, Under::Disk(side?))));
    let floor = plan.floor.iter().map(|floor| (SideName::Floor, Under::Floor(floor)));
    let sides: Vec<(SideName, Under<'_>)> = disks.chain(floor).collect();
    let given: Vec<&Side> = [local, remote].into_iter().flatten().collect();
    plan.check(&given)?;
    let mut session = Session {
        plan,
        sides: &sides,
        patterns: plan.scaled_patterns(),
        cancel,
        progress,
        engine: EngineKind::Auto,
        runs_done: 0,
    };
    let mut report = session.empty_report();
    session.fill()?;
    session.run(&mut report)?;
    report.engine = session.engine.to_string();
    Ok(report)
}

/// A disk or the floor, on which a load runs.
#[derive(Clone, Copy)]
enum Under<'a> {
    Disk(&'a Side),
    Floor(&'a Floor),
}

impl<'a> Under<'a> {
    fn describe(self) -> String {
        match self {
            Under::Disk(side) => side.namespace.describe(),
            Under::Floor(floor) => floor.describe(),
        }
    }

    /// The phases of a run on this disk or floor, derived from the phases on a disk.
    fn times(self, disk: Times) -> Times {
        match self {
            Under::Disk(_) => disk,
            Under::Floor(floor) => floor.times(disk),
        }
    }

    fn disk(self) -> Option<&'a Side> {
        match self {
            Under::Disk(side) => Some(side),
            Under::Floor(_) => None,
        }
    }
}

struct Session<'a> {
    plan: &'a Plan,
    sides: &'a [(SideName, Under<'a>)],
    patterns: Vec<Pattern>,
    cancel: &'a Cancel,
    progress: &'a mut dyn Progress,
    engine: EngineKind,
    runs_done: u32,
}

/// The results of one side for the current pattern.
struct Measured {
    samples: Vec<Sample>,
    failure: Option<Failure>,
}

/// The position of a run in the plan.
#[derive(Clone, Copy)]
struct ComparedPlace {
    pattern: usize,
    side: usize,
    run: u32,
}

impl Session<'_> {
    fn empty_report(&self) -> Report {
        let describe = |wanted: SideName| {
            let side = self.sides.iter().find(|(name, _)| *name == wanted);
            side.map(|(_, side)| side.describe())
        };
        Report {
            schema: SCHEMA,
            tool: concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION")).to_owned(),
            date: machine::utc(SystemTime::now()),
            command_line: machine::command_line(),
            machine: Machine::this(),
            engine: String::new(),
            method: method(self.plan, self.sides),
            local: describe(SideName::Local),
            remote: describe(SideName::Remote),
            floor: describe(SideName::Floor),
            patterns: Vec::new(),
            remarks: self.plan.remarks.clone(),
            interrupted: false,
        }
    }

    fn fill(&mut self) -> Result<(), BenchError> {
        let disks = self.sides.iter().filter_map(|&(name, side)| Some((name, side.disk()?)));
        for (name, side) in disks.filter(|(_, side)| side.fill) {
            let (pattern, span) = side.fill_span(self.plan)?;
            let bytes = span.ios * u64::from(pattern.block_size_bytes);
            let spec = RunSpec {
                pattern: &pattern,
                span,
                reactor: &self.plan.reactor,
                connections: self.plan.connections,
                seed: Random::mix(&[self.plan.seed, u64::MAX, name as u64]),
                start: None,
                ramp: Duration::ZERO,
                runtime: None,
                io_size: Some(bytes),
                drain_limit: DRAIN_LIMIT,
                meters: &side.meters,
            };
            let (progress, pattern_count) = (&mut *self.progress, self.patterns.len());
            let mut on_tick = |tick: Tick| {
                progress.update(&Snapshot {
                    pattern_index: 0,
                    pattern_count,
                    pattern: &pattern,
                    side: name,
                    run: 0,
                    runs: 1,
                    phase: Phase::Fill,
                    elapsed: tick.elapsed,
                    planned: None,
                    iops: tick.iops,
                    mib_per_second: tick.iops * f64::from(pattern.block_size_bytes) / MIB,
                    plan_fraction: 0.0,
                });
            };
            let filled = generator::run(&side.namespace, &spec, self.cancel, &mut on_tick);
            match filled {
                Ok(_) => {}
                Err(RunError::Cancelled) => return Err(BenchError::Cancelled),
                Err(error) => {
                    let namespace = side.namespace.describe();
                    return Err(BenchError::FillFailed { namespace, error });
                }
            }
        }
        Ok(())
    }

    fn run(&mut self, report: &mut Report) -> Result<(), BenchError> {
        for index in 0..self.patterns.len() {
            let measured = self.run_pattern(index)?;
            let anything = measured.iter().any(|side| !side.samples.is_empty());
            if anything || !self.cancel.is_cancelled() {
                report.patterns.push(self.pattern_report(index, measured));
            }
            if self.cancel.is_cancelled() {
                report.interrupted = true;
                let nothing = report.patterns.is_empty();
                return if nothing { Err(BenchError::Cancelled) } else { Ok(()) };
            }
        }
        Ok(())
    }

    fn run_pattern(&mut self, pattern: usize) -> Result<Vec<Measured>, BenchError> {
        let empty = || Measured { samples: Vec::new(), failure: None };
        let mut measured: Vec<Measured> = self.sides.iter().map(|_| empty()).collect();
        let last = self.plan.last_run();
        for run in 0..last {
            if run >= self.plan.runs && self.is_known(&measured) {
                self.runs_done += (last - run) * self.sides.len() as u32;
                break;
            }
            for turn in 0..self.sides.len() {
                let side = if run % 2 == 0 { turn } else { self.sides.len() - 1 - turn };
                if measured[side].failure.is_some() {
                    self.runs_done += 1;
                    continue;
                }
                match self.run_once(ComparedPlace { pattern, side, run })? {
                    Ok(sample) => {
                        if self.sides[side].1.disk().is_some() {
                            self.engine = sample.engine; // the floor has no engine
                        }
                        measured[side].samples.push(sample);
                    }
                    Err(RunError::Cancelled) => return Ok(measured),
                    Err(error) => {
                        let (side_name, under) = self.sides[side];
                        let message = explain(under.disk(), &error);
                        let failure = Failure { side: side_name, run, message };
                        measured[side].failure = Some(failure);
                    }
                }
                self.runs_done += 1;
            }
        }
        Ok(measured)
    }

    /// Whether the ratio of the two disks is known precisely enough to stop the runs.
    fn is_known(&self, measured: &[Measured]) -> bool {
        let rates = |wanted| {
            let at = self.sides.iter().position(|(name, _)| *name == wanted)?;
            let rate = |sample: &Sample| {
                (sample.reads + sample.writes) as f64 / sample.elapsed.as_secs_f64()
            };
            let side = &measured[at];
            side.failure.is_none().then(|| side.samples.iter().map(rate).collect::<Vec<_>>())
        };
        let both = rates(SideName::Local).zip(rates(SideName::Remote));
        let Some((local, remote)) = both else { return true };
        ratio_interval(&local, &remote)
            .is_some_and(|[low, high]| high - low <= 2.0 * KNOWN_WITHIN_PERCENT)
    }

    fn run_once(&mut self, place: ComparedPlace) -> Result<Result<Sample, RunError>, BenchError> {
        let plan = self.plan;
        let (name, under) = self.sides[place.side];
        let pattern = &self.patterns[place.pattern];
        let times = under.times(plan.times(place.run));
        let parts = [place.pattern as u64, name as u64, u64::from(place.run)];
        let load = Load {
            plan,
            pattern,
            seed: Random::mix(&[plan.seed, parts[0], parts[1], parts[2]]),
            times,
        };
        let all_runs = plan.last_run() as usize * self.sides.len() * self.patterns.len();
        let (progress, runs_done) = (&mut *self.progress, f64::from(self.runs_done));
        let pattern_count = self.patterns.len();
        let mut on_tick = |tick: Tick| {
            let (phase, elapsed, planned) = phase_of(tick, times);
            let so_far = match tick.phase {
                Phase::Ramp => tick.elapsed,
                _ => times.warm_up + times.ramp + tick.elapsed,
            };
            let whole = (times.warm_up + times.ramp + times.runtime).as_secs_f64();
            let run_fraction = match tick.phase {
                Phase::Drain => 1.0,
                _ if whole > 0.0 => (so_far.as_secs_f64() / whole).min(1.0),
                _ => 0.0,
            };
            progress.update(&Snapshot {
                pattern_index: place.pattern,
                pattern_count,
                pattern,
                side: name,
                run: place.run,
                runs: plan.runs,
                phase,
                elapsed,
                planned,
                iops: tick.iops,
                mib_per_second: tick.iops * f64::from(pattern.block_size_bytes) / MIB,
                plan_fraction: (runs_done + run_fraction) / all_runs as f64,
            });
        };
        match under {
            Under::Disk(side) => load.put_on_disk(side, self.cancel, &mut on_tick),
            Under::Floor(floor) => Ok(load.put_on_floor(floor, self.cancel, &mut on_tick)),
        }
    }

    fn pattern_report(&self, index: usize, measured: Vec<Measured>) -> PatternReport {
        let pattern = &self.patterns[index];
        let mut report = PatternReport {
            pattern: pattern.clone(),
            local: None,
            remote: None,
            floor: None,
            remote_percent_of_local: None,
            remote_percent_of_floor: None,
            errors: Vec::new(),
        };
        for (&(name, _), side) in self.sides.iter().zip(measured) {
            let figures = Figures::average(pattern, &side.samples);
            match name {
                SideName::Local => report.local = figures,
                SideName::Remote => report.remote = figures,
                SideName::Floor => report.floor = figures,
            }
            report.errors.extend(side.failure);
        }
        let percent_of = |base: &Option<Figures>| {
            let (base, remote) = base.as_ref().zip(report.remote.as_ref())?;
            Percent::new(base, remote)
        };
        report.remote_percent_of_local = percent_of(&report.local);
        report.remote_percent_of_floor = percent_of(&report.floor);
        report
    }
}

/// The load of one run, on a disk or the floor.
struct Load<'a> {
    plan: &'a Plan,
    pattern: &'a Pattern,
    seed: u64,
    times: Times,
}

impl Load<'_> {
    fn put_on_disk(
        &self,
        side: &Side,
        cancel: &Cancel,
        on_tick: &mut dyn FnMut(Tick),
    ) -> Result<Result<Sample, RunError>, BenchError> {
        let Load { plan, pattern, seed, times } = *self;
        let geometry = side.namespace.geometry();
        let span = check_fit(&geometry, &side.namespace.describe(), pattern, plan.size)?;
        let spec = RunSpec {
            pattern,
            span,
            reactor: &plan.reactor,
            connections: plan.connections,
            seed,
            start: None,
            ramp: times.warm_up + times.ramp,
            runtime: Some(times.runtime).filter(|runtime| !runtime.is_zero()),
            io_size: plan.io_size,
            drain_limit: DRAIN_LIMIT,
            meters: &side.meters,
        };
        Ok(generator::run(&side.namespace, &spec, cancel, on_tick))
    }

    fn put_on_floor(
        &self,
        floor: &Floor,
        cancel: &Cancel,
        on_tick: &mut dyn FnMut(Tick),
    ) -> Result<Sample, RunError> {
        let spec = FloorSpec {
            address: floor.address,
            pattern: self.pattern,
            connections: self.plan.connections,
            threads: floor.threads,
            cpus: &[],
            ramp: self.times.warm_up + self.times.ramp,
            runtime: self.times.runtime,
            seed: self.seed,
            meters: &floor.meters,
        };
        floor::run(&spec, cancel, on_tick)
    }
}

/// The number of checks whether a namespace was removed.
const GONE_LOOKS: u32 = 10;
/// The pause between two checks whether a namespace was removed.
const GONE_PAUSE: Duration = Duration::from_millis(50);
/// The message for an error if the namespace was removed.
const GONE: &str = "the namespace was removed at the target, or replaced by another namespace";

/// Explains a failed run, with the cause of a lost connection. A removed namespace has no blocks,
/// but a remote namespace reports this only a moment after its commands have failed with various
/// errors.
fn explain(disk: Option<&Side>, error: &RunError) -> String {
    let perhaps = [BlockError::Disconnected, BlockError::OutOfRange, BlockError::Aborted];
    let text = error.to_string();
    let (Some(disk), RunError::Io { error: reason, .. }) = (disk, error) else { return text };
    let is_gone = |look| {
        if look > 0 {
            std::thread::sleep(GONE_PAUSE);
        }
        disk.namespace.geometry().blocks == 0
    };
    match perhaps.contains(reason) && (0..GONE_LOOKS).any(is_gone) {
        true => text.replace(&reason.to_string(), GONE),
        false => match disk.namespace.trouble().filter(|_| *reason == BlockError::Disconnected) {
            Some(why) => format!("{text}: {why}"),
            None => text,
        },
    }
}

/// The phase to report, its elapsed time, and its planned time.
fn phase_of(tick: Tick, times: Times) -> (Phase, Duration, Option<Duration>) {
    let Times { warm_up, ramp, runtime } = times;
    match tick.phase {
        Phase::Ramp if tick.elapsed < warm_up => (Phase::WarmUp, tick.elapsed, Some(warm_up)),
        Phase::Ramp => (Phase::Ramp, tick.elapsed.saturating_sub(warm_up), Some(ramp)),
        Phase::Measure => {
            let planned = Some(runtime).filter(|runtime| !runtime.is_zero());
            (Phase::Measure, tick.elapsed, planned)
        }
        phase => (phase, tick.elapsed, None),
    }
}

fn method(plan: &Plan, sides: &[(SideName, Under<'_>)]) -> Method {
    let order = "Within a run, the sides run one after the other. The first side alternates from \
        run to run, and the first run begins with the local side.";
    let latency = "Latency is the time from submission to completion, as the job sees it. An I/O \
        counts if it completes within the measured time. An I/O error ends the run.";
    let addresses = "A random job uses the whole size. Sequential jobs divide the size into equal \
        regions (fio's offset_increment). Written data is random, and no two written pages are \
        equal.";
    let average = "Figures are means of the runs. Percentiles and maxima cover the I/Os of all \
        runs together.";
    let cpu = "100 % CPU is one core that is always busy. The host's CPU includes the load \
        generator. The option --spin sets how much CPU the host may spend to reduce latency.";
    let known = "More runs follow until the ratio of the rates is known to within ±5 % (with a \
        confidence of 95 %), or until the maximum number of runs.";
    let brief = "The floor's runs are shorter, because bare sockets vary less than a disk.";
    let floor = "The floor is the same load on bare sockets: the same number of connections, bytes \
        and I/Os in flight, without a protocol or a disk. Its threads never sleep, so it has at \
        most one thread per core, and its CPU includes this busy waiting.";
    let is_brief = plan.floor.as_ref().is_some_and(|floor| floor.briefly.is_some());
    let notes = [
        (sides.len() > 1, order),
        (true, latency),
        (true, addresses),
        (plan.last_run() > 1, average),
        (plan.most_runs.is_some(), known),
        (true, cpu),
        (plan.floor.is_some(), floor),
        (is_brief, brief),
    ];
    let applies = notes.into_iter().filter(|(applies, _)| *applies);
    Method {
        runtime_seconds: plan.runtime.as_secs_f64(),
        ramp_seconds: plan.ramp.as_secs_f64(),
        warm_up_seconds: plan.warm_up.as_secs_f64(),
        runs: plan.runs,
        spin: plan.reactor.polling.to_string(),
        size_bytes: plan.size,
        io_size_bytes: plan.io_size,
        notes: applies.map(|(_, note)| note.to_owned()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_block::{Command, Geometry, Namespace, Queue};
    use farblock_reactor::{Reactor, TaskId};
    use std::sync::Arc;

    struct Disk(u64);

    impl Namespace for Disk {
        fn geometry(&self) -> Geometry {
            Geometry::new(512, self.0)
        }
        fn describe(&self) -> String {
            "a disk".to_owned()
        }
        fn trouble(&self) -> Option<String> {
            Some("the controller broke the protocol".to_owned())
        }
        fn open(&self, _: &Reactor, _: TaskId) -> Result<Box<dyn Queue>, BlockError> {
            Err(BlockError::NoResources)
        }
    }

    #[test]
    fn the_error_distinguishes_a_removed_namespace_from_a_lost_connection() {
        let said = |blocks, error| {
            let error = RunError::Io {
                job: 0,
                command: Command::Read,
                lba: 0,
                blocks: 1,
                completed: 9,
                error,
            };
            explain(Some(&Side::new(Arc::new(Disk(blocks)))), &error)
        };
        for error in [BlockError::Disconnected, BlockError::OutOfRange] {
            let text = said(0, error);
            assert!(text.contains("was removed") && !text.contains("lost"), "{text}");
        }
        let lost = said(8, BlockError::Disconnected);
        assert!(lost.contains("connection to the namespace is lost: the controller"), "{lost}");
        let failed = said(0, BlockError::ReadFailed);
        assert!(failed.contains("reading failed") && !failed.contains("protocol"), "{failed}");
    }
}
