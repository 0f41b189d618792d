//! The progress of a benchmark: a bar on a terminal, or otherwise a line for each run.

use farblock_bench::{Phase, Progress, SideName, Snapshot, group};
use farblock_program::output;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

/// The length of the bar, in steps of progress.
const STEPS: u64 = 1000;

/// Shows each snapshot of the progress as a bar, or as a line for each run.
pub(super) struct Bar {
    bar: Option<ProgressBar>,
    quiet: bool,
    /// The run that the last printed line described; a run gets only one line.
    last: Option<(usize, SideName, u32, bool)>,
}

impl Bar {
    pub(super) fn new(quiet: bool) -> Bar {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let style = ProgressStyle::with_template("{bar:12} {percent:>3} %  {wide_msg}")
                .expect("the template is valid");
            let bar = ProgressBar::new(STEPS).with_style(style);
            bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
            bar
        });
        Bar { bar, quiet, last: None }
    }

    /// Removes the bar, so that only the report remains.
    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Progress for Bar {
    fn update(&mut self, snapshot: &Snapshot<'_>) {
        if let Some(bar) = &self.bar {
            bar.set_position((snapshot.plan_fraction * STEPS as f64) as u64);
            // The figures come first, because a narrow terminal cuts the end off.
            bar.set_message(format!(
                "{} IOPS, {} MiB/s  {}: {}",
                group(&format!("{:.0}", snapshot.iops)),
                group(&format!("{:.0}", snapshot.mib_per_second)),
                heading(snapshot),
                snapshot.phase.name(),
            ));
            return;
        }
        let filling = snapshot.phase == Phase::Fill;
        let about = (snapshot.pattern_index, snapshot.side, snapshot.run, filling);
        if !self.quiet && self.last != Some(about) {
            self.last = Some(about);
            output::note(&heading(snapshot));
        }
    }
}

fn heading(snapshot: &Snapshot<'_>) -> String {
    let side = snapshot.side.name();
    if snapshot.phase == Phase::Fill {
        return format!("writing data to the {side} disk, for the read patterns");
    }
    let (index, count) = (snapshot.pattern_index + 1, snapshot.pattern_count);
    let run = match snapshot.runs {
        1 => String::new(),
        runs => format!(", run {} of {runs}", snapshot.run + 1),
    };
    format!("{index}/{count} {} {side}{run}", snapshot.pattern.name)
}
