//! The goals for farblock, each a ratio of two results of one run, and whether the run meets them.

use serde::Serialize;

use super::measure::Figures;
use super::report::RowReport;
use super::sides::{self, Side};

/// Whether a larger or a smaller ratio is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Better {
    More,
    Less,
}

/// A goal for the ratio of one side to another side in one row.
#[derive(Clone, Copy)]
struct Goal {
    row: &'static str,
    what: &'static str,
    side: Side,
    of: fn(&Figures) -> Option<f64>,
    /// The sides to compare with. The best of them counts.
    against: &'static [Side],
    better: Better,
    bound: f64,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct GoalReport {
    row: String,
    what: String,
    better: Better,
    goal: f64,
    measured: f64,
    met: bool,
}

type Metric = fn(&Figures) -> Option<f64>;

const IOPS: Metric = |figures| Some(figures.iops);
const P50: Metric = |figures| figures.p50_us;
const P99: Metric = |figures| figures.p99_us;
const HOST_CPU: Metric = |figures| Some(figures.host_cpu_us);
const TARGET_CPU: Metric = |figures| figures.target_cpu_us;
/// The processor time of both ends. The local disk has only one end.
const CPU: Metric = |figures| Some(figures.host_cpu_us + figures.target_cpu_us.unwrap_or(0.0));

/// SPDK's host and target, with and without zero copy. The better pair counts.
const SPDK: &[Side] = &[sides::SPDK, sides::SPDK_ZERO_COPY];

/// The rows with a goal for the ratio of farblock's IOPS to SPDK's, and the ratio to reach.
const AGAINST_SPDK: [(&str, f64); 8] = [
    ("mem-4k-randread-qd32-c1", 2.0),
    ("mem-4k-randwrite-qd32-c1", 2.0),
    ("mem-4k-randread-qd128-c1", 1.5),
    ("mem-4k-randwrite-qd128-c1", 1.5),
    ("mem-64k-randread-qd32-c1", 1.5),
    ("mem-64k-randwrite-qd32-c1", 1.5),
    ("mem-1M-randread-qd8-c1", 1.5),
    ("mem-1M-randwrite-qd8-c1", 1.5),
];

/// The rows with a disk file in which farblock must reach the IOPS of SPDK, whose target polls.
const FILE_AGAINST_SPDK: [&str; 6] = [
    "file-4k-randread-qd1-c1",
    "file-4k-randwrite-qd1-c1",
    "file-4k-randread-qd32-c1",
    "file-4k-randwrite-qd32-c1",
    "file-4k-randread-qd128-c1",
    "file-4k-randwrite-qd128-c1",
];

const AGAINST_FLOOR: [(&str, f64); 8] = [
    ("null-4k-randread-qd32-c1", 0.80),
    ("null-4k-randwrite-qd32-c1", 0.80),
    ("null-4k-randread-qd128-c1", 0.85),
    ("null-4k-randwrite-qd128-c1", 0.85),
    ("null-64k-randread-qd32-c1", 0.90),
    ("null-64k-randwrite-qd32-c1", 0.90),
    ("null-1M-randread-qd8-c1", 0.90),
    ("null-1M-randwrite-qd8-c1", 0.90),
];

const QD1: [&str; 2] = ["mem-4k-randread-qd1-c1", "mem-4k-randwrite-qd1-c1"];

const FIXED_RATE: [&str; 2] =
    ["mem-4k-randread-qd32-c1-rate20000", "mem-4k-randwrite-qd32-c1-rate20000"];

/// The six patterns with their documented jobs and depths. The number is the maximum processor time
/// of both ends, as a multiple of the local processor time.
const SIX_PATTERNS: [(&str, f64); 6] = [
    ("file-4k-randread-qd512-c16", 3.0),
    ("file-4k-randwrite-qd32-c8", 3.0),
    ("file-64k-randread-qd128-c4", 4.0),
    ("file-64k-randwrite-qd4-c4", 4.0),
    ("file-1M-read-qd16-c2", 4.0),
    ("file-1M-write-qd8-c1", 4.0),
];

/// The rows with a total depth of 32 on several connections.
const MANY_CONNECTIONS: [&str; 4] = [
    "mem-4k-randread-qd32-c4",
    "mem-4k-randread-qd32-c16",
    "mem-4k-randwrite-qd32-c4",
    "mem-4k-randwrite-qd32-c16",
];

const WITH_TLS: [&str; 6] = [
    "mem-4k-randread-qd32-c1",
    "mem-4k-randwrite-qd32-c1",
    "mem-64k-randread-qd32-c1",
    "mem-64k-randwrite-qd32-c1",
    "mem-1M-randread-qd8-c1",
    "mem-1M-randwrite-qd8-c1",
];

const fn goal(
    row: &'static str,
    what: &'static str,
    side: Side,
    of: Metric,
    against: &'static [Side],
    (better, bound): (Better, f64),
) -> Goal {
    Goal { row, what, side, of, against, better, bound }
}

fn at_least(bound: f64) -> (Better, f64) {
    (Better::More, bound)
}

fn at_most(bound: f64) -> (Better, f64) {
    (Better::Less, bound)
}

fn more(
    row: &'static str,
    what: &'static str,
    side: Side,
    against: &'static [Side],
    bound: f64,
) -> Goal {
    goal(row, what, side, IOPS, against, at_least(bound))
}

fn within_rows() -> Vec<Goal> {
    let mut goals = against_spdk();
    goals.extend(AGAINST_FLOOR.map(|(row, bound)| {
        more(row, "farblock to the floor, IOPS", sides::FARBLOCK, &[sides::FLOOR], bound)
    }));
    goals.extend(SIX_PATTERNS.into_iter().flat_map(|(row, most_cpu)| six_patterns(row, most_cpu)));
    goals.extend(WITH_TLS.map(|row| {
        more(row, "farblock with TLS to without, IOPS", sides::TLS, &[sides::FARBLOCK], 0.5)
    }));
    goals.extend(WITH_TLS.map(|row| {
        let what = "farblock with TLS to without, CPU per I/O of both ends";
        goal(row, what, sides::TLS, CPU, &[sides::FARBLOCK], at_most(2.0))
    }));
    goals
        .extend([QD1[0], AGAINST_SPDK[0].0, AGAINST_SPDK[2].0].map(|row| {
            more(row, "farblock to iSCSI, IOPS", sides::FARBLOCK, &[sides::ISCSI], 5.5)
        }));
    goals
}

fn six_patterns(row: &'static str, most_cpu: f64) -> [Goal; 4] {
    let local = &[sides::LOCAL];
    let ours = |what, of, bound| goal(row, what, sides::FARBLOCK, of, local, bound);
    [
        ours("farblock to local, IOPS", IOPS, at_least(0.95)),
        ours("farblock to local, p99", P99, at_most(1.3)),
        ours("farblock to local, CPU per I/O of both ends", CPU, at_most(most_cpu)),
        more(row, "farblock to SPDK, IOPS", sides::FARBLOCK, SPDK, 1.1),
    ]
}

fn against_spdk() -> Vec<Goal> {
    let ours = |row, bound| more(row, "farblock to SPDK, IOPS", sides::FARBLOCK, SPDK, bound);
    let mut goals: Vec<Goal> = AGAINST_SPDK.map(|(row, bound)| ours(row, bound)).into();
    goals.extend(FILE_AGAINST_SPDK.map(|row| ours(row, 1.0)));
    goals.extend(MANY_CONNECTIONS.map(|row| ours(row, 1.3)));
    for row in QD1 {
        let less = |what, side, bound| goal(row, what, side, P50, SPDK, at_most(bound));
        goals.push(less("farblock polling to SPDK, p50", sides::POLLING, 0.7));
        goals.push(less("farblock to SPDK, p50", sides::FARBLOCK, 0.75));
    }
    for row in AGAINST_SPDK.map(|(row, _)| row).into_iter().chain(QD1) {
        let swapped = [
            ("SPDK's host on farblock's target to SPDK, IOPS", sides::SPDK_ON_FARBLOCK),
            ("farblock's host on SPDK's target to SPDK, IOPS", sides::FARBLOCK_ON_SPDK),
        ];
        goals.extend(swapped.map(|(what, side)| more(row, what, side, SPDK, 1.0)));
    }
    for row in FIXED_RATE {
        let less = |what, of| goal(row, what, sides::FARBLOCK, of, SPDK, at_most(0.25));
        goals.push(less("farblock to SPDK at 20,000 IOPS, target CPU per I/O", TARGET_CPU));
        goals.push(less("farblock to SPDK at 20,000 IOPS, host CPU per I/O", HOST_CPU));
    }
    goals
}

/// A goal for the ratio of two rows of one side.
struct Pair {
    what: &'static str,
    row: &'static str,
    base: &'static str,
    of: Metric,
    better: Better,
    bound: f64,
}

/// All goals that compare two rows of farblock.
fn between_rows() -> Vec<Pair> {
    let keeps =
        |what, row, base, bound| Pair { what, row, base, of: IOPS, better: Better::More, bound };
    let four = "4 connections to 1, IOPS";
    let sixteen = "16 connections to 1, IOPS";
    let digests = "digests on to off, IOPS";
    vec![
        keeps(four, "mem-4k-randread-qd32-c4", "mem-4k-randread-qd32-c1", 0.8),
        keeps(sixteen, "mem-4k-randread-qd32-c16", "mem-4k-randread-qd32-c1", 0.5),
        keeps(four, "mem-4k-randwrite-qd32-c4", "mem-4k-randwrite-qd32-c1", 0.8),
        keeps(sixteen, "mem-4k-randwrite-qd32-c16", "mem-4k-randwrite-qd32-c1", 0.5),
        keeps(four, "mem-4k-randread-qd128-c4", "mem-4k-randread-qd128-c1", 0.8),
        keeps(sixteen, "mem-4k-randread-qd128-c16", "mem-4k-randread-qd128-c1", 0.5),
        keeps(four, "mem-4k-randwrite-qd128-c4", "mem-4k-randwrite-qd128-c1", 0.8),
        keeps(sixteen, "mem-4k-randwrite-qd128-c16", "mem-4k-randwrite-qd128-c1", 0.5),
        keeps(digests, "mem-4k-randread-qd32-c1-digests", "mem-4k-randread-qd32-c1", 0.9),
        keeps(digests, "mem-4k-randwrite-qd32-c1-digests", "mem-4k-randwrite-qd32-c1", 0.9),
    ]
}

/// All goals whose rows and sides were measured.
pub(crate) fn compare(rows: &[RowReport]) -> Vec<GoalReport> {
    let find = |name: &str| rows.iter().find(|row| row.name == name);
    let within = |goal: Goal| {
        let row = find(goal.row)?;
        let ours = (goal.of)(row.of(goal.side)?)?;
        let others = goal.against.iter().filter_map(|side| (goal.of)(row.of(*side)?));
        let best = match goal.better {
            Better::More => others.max_by(f64::total_cmp)?,
            Better::Less => others.min_by(f64::total_cmp)?,
        };
        Some(goal_report(goal.row, goal.what, goal.better, goal.bound, ours / best))
    };
    let between = |pair: Pair| {
        let of = |row| (pair.of)(find(row)?.of(sides::FARBLOCK)?);
        let ratio = of(pair.row)? / of(pair.base)?;
        Some(goal_report(pair.row, pair.what, pair.better, pair.bound, ratio))
    };
    let within = within_rows().into_iter().filter_map(within);
    within.chain(between_rows().into_iter().filter_map(between)).collect()
}

fn goal_report(row: &str, what: &str, better: Better, goal: f64, measured: f64) -> GoalReport {
    let met = match better {
        Better::More => measured >= goal,
        Better::Less => measured <= goal,
    };
    GoalReport { row: row.to_owned(), what: what.to_owned(), better, goal, measured, met }
}

pub(crate) const COLUMNS: [&str; 5] = ["ratio", "row", "goal", "measured", "met"];

impl GoalReport {
    /// The cells of this goal in a table.
    pub(crate) fn row(&self) -> Vec<String> {
        let sign = match self.better {
            Better::More => "≥",
            Better::Less => "≤",
        };
        vec![
            self.what.clone(),
            self.row.clone(),
            format!("{sign} {}", self.goal),
            format!("{:.3}", self.measured),
            if self.met { "yes" } else { "no" }.to_owned(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench_peers::work;

    #[test]
    fn every_goal_names_rows_and_sides_that_are_measured() {
        let rows = work::all();
        let has = |name: &str, side: Side| {
            let row = rows.iter().find(|row| row.slug() == name);
            row.unwrap_or_else(|| panic!("there is no row {name}")).sides.contains(&side)
        };
        for goal in within_rows() {
            assert!(has(goal.row, goal.side), "{} {}", goal.row, goal.side.name);
            let against = goal.against.iter().any(|side| has(goal.row, *side));
            assert!(against, "{}: {}", goal.row, goal.what);
        }
        for pair in between_rows() {
            assert!(has(pair.row, sides::FARBLOCK) && has(pair.base, sides::FARBLOCK));
        }
    }

    #[test]
    fn a_ratio_equal_to_the_bound_meets_the_goal() {
        let met = |better, measured| goal_report("r", "w", better, 0.9, measured).met;
        assert!(met(Better::More, 0.9) && met(Better::More, 1.0) && !met(Better::More, 0.89));
        assert!(met(Better::Less, 0.9) && met(Better::Less, 0.5) && !met(Better::Less, 0.91));
    }
}
