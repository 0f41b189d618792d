//! The goals, as ratios within one run, and whether they are met.

use std::fmt::Write;

use serde::Serialize;

use super::measure::Figures;
use super::report::RowReport;
use super::sides::{self, Side};

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Better {
    More,
    #[expect(dead_code, reason = "latencies come with the peers")]
    Less,
}

/// A ratio of one side to another in one row.
#[derive(Clone, Copy)]
struct Goal {
    row: &'static str,
    what: &'static str,
    side: Side,
    of: fn(&Figures) -> Option<f64>,
    /// The best of these is compared with.
    against: &'static [Side],
    better: Better,
    bound: f64,
}

/// A goal and what came of it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct GoalReport {
    row: String,
    what: String,
    better: Better,
    goal: f64,
    measured: f64,
    met: bool,
}

const IOPS: fn(&Figures) -> Option<f64> = |figures| Some(figures.iops);

const fn floor(row: &'static str, bound: f64) -> Goal {
    Goal {
        row,
        what: "farblock to the floor, IOPS",
        side: sides::FARBLOCK,
        of: IOPS,
        against: &[sides::FLOOR],
        better: Better::More,
        bound,
    }
}

const GOALS: &[Goal] = &[
    floor("null-4k-randread-qd32-c1", 0.80),
    floor("null-4k-randwrite-qd32-c1", 0.80),
    floor("null-4k-randread-qd128-c1", 0.85),
    floor("null-4k-randwrite-qd128-c1", 0.85),
    floor("null-64k-randread-qd32-c1", 0.90),
    floor("null-64k-randwrite-qd32-c1", 0.90),
    floor("null-1M-randread-qd8-c1", 0.90),
    floor("null-1M-randwrite-qd8-c1", 0.90),
];

/// Every goal whose row and sides were measured.
pub(crate) fn compare(rows: &[RowReport]) -> Vec<GoalReport> {
    let report = |goal: &Goal| {
        let row = rows.iter().find(|row| row.name == goal.row)?;
        let ours = (goal.of)(row.of(goal.side)?)?;
        let others = goal.against.iter().filter_map(|side| (goal.of)(row.of(*side)?));
        let best = match goal.better {
            Better::More => others.max_by(f64::total_cmp)?,
            Better::Less => others.min_by(f64::total_cmp)?,
        };
        Some(goal_report(goal.row, goal.what, goal.better, goal.bound, ours / best))
    };
    GOALS.iter().filter_map(report).collect()
}

fn goal_report(row: &str, what: &str, better: Better, goal: f64, measured: f64) -> GoalReport {
    let met = match better {
        Better::More => measured >= goal,
        Better::Less => measured <= goal,
    };
    GoalReport { row: row.to_owned(), what: what.to_owned(), better, goal, measured, met }
}

/// The goals as a table.
pub(crate) fn markdown(goals: &[GoalReport], text: &mut String) {
    if goals.is_empty() {
        return;
    }
    text.push_str("\n### Goals\n\n| what | row | goal | measured | met |\n");
    text.push_str("| --- | --- | ---: | ---: | --- |\n");
    for goal in goals {
        let sign = match goal.better {
            Better::More => "≥",
            Better::Less => "≤",
        };
        let _ = writeln!(
            text,
            "| {} | {} | {sign} {} | {:.2} | {} |",
            goal.what,
            goal.row,
            goal.goal,
            goal.measured,
            if goal.met { "yes" } else { "**no**" },
        );
    }
}
