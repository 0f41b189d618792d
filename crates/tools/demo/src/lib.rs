//! `farblock demo`: a mirrored disk with two paths under load, while paths and targets fail in
//! turn.
//!
//! ```text
//!                 path 1               URL
//!   the load  ==[ cable ]==>  mirror  ------> left    each of the three targets
//!   (a disk)  ==[ cable ]==>          ------> right   is a process
//!                 path 2
//! ```

//!
//! With `--group`, three targets form a group instead; see `group.rs`.

#![cfg(unix)]
#![forbid(unsafe_code)]

pub mod args;
mod cable;
#[cfg(target_os = "linux")]
mod group;
mod load;
mod parts;
mod stage;
mod teller;

use args::DemoArgs;
use farblock_program::args::Global;
use farblock_program::error::{self, Failure, Result};
use farblock_program::signals::Stop;
use farblock_program::{output, values};
use load::{Load, WRITERS, write_and_compare};
use stage::Stage;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use teller::{Teller, seconds};

/// The polling interval while this module waits for a condition.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// Runs the command.
///
/// # Errors
/// A part cannot start, data differ, or the disk fails.
pub fn run(args: &DemoArgs, global: &Global) -> Result<()> {
    if let Some(folder) = &args.sweep {
        return parts::sweep(folder);
    }
    #[cfg(target_os = "linux")]
    if args.group {
        return group::run(args, global);
    }
    let stop = Stop::install_with_hangup()?;
    let mut stage = Stage::set(global)?;
    output::print(&introduction(&stage.dashboard))?;
    if args.open {
        open(&stage.dashboard);
    }
    let load = Load::default();
    let disk = stage.disk.clone();
    let (told, seconds) = std::thread::scope(|scope| {
        for number in 0..WRITERS {
            let (disk, load) = (&disk, &load);
            scope.spawn(move || write_and_compare(disk, number, load));
        }
        let mut narrator = Narrator::new(&stop, &load, args, global);
        let told = narrator
            .play(&mut stage)
            .map(|()| (narrator.paths, narrator.targets, narrator.teller.longest));
        let seconds = narrator.teller.began.elapsed().as_secs_f64();
        load.stop();
        (told, seconds)
    });
    drop(disk);
    drop(stage);
    let (paths, targets, longest) = told?;
    let faults = format!("{} cut, {} killed.", counted(paths, "path"), counted(targets, "target"));
    conclude(&load, seconds, &faults, longest)
}

fn introduction(dashboard: &str) -> String {
    format!(
        "Two targets, left and right, share one disk each. A third target shares a\n\
         mirror of both disks. This program writes to the mirror over two paths, and\n\
         verifies its data. Every few seconds it cuts a path or kills a target.\n\n\
         dashboard at {dashboard}\n\
         Press Ctrl-C to stop.\n\n"
    )
}

/// Opens the dashboard in the browser. If this fails, the user must open the printed address.
fn open(url: &str) {
    let opener = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut command = std::process::Command::new(opener);
    let nothing = std::process::Stdio::null;
    command.arg(url).stdin(nothing()).stdout(nothing()).stderr(nothing());
    if command.spawn().is_err() {
        output::note(&format!("cannot start {opener}: open the address in a browser yourself"));
    }
}

/// Injects faults, and reports their effects.
struct Narrator<'a> {
    teller: Teller<'a>,
    every: Duration,
    paths: u64,
    targets: u64,
}

impl<'a> Narrator<'a> {
    fn new(stop: &'a Stop, load: &'a Load, args: &DemoArgs, global: &Global) -> Self {
        let teller = Teller::new(stop, load, args, global);
        Self { teller, every: args.every, paths: 0, targets: 0 }
    }

    /// Injects one fault after the other until the demonstration is over.
    fn play(&mut self, stage: &mut Stage) -> Result<()> {
        while !self.teller.is_over() {
            for (path, leg) in [(0, 1), (1, 0)] {
                self.cut_path(stage, path)?;
                self.kill_target(stage, leg)?;
            }
        }
        Ok(())
    }

    fn cut_path(&mut self, stage: &mut Stage, path: usize) -> Result<()> {
        let (this, other) = (path + 1, 2 - path);
        if !self.rest(stage)? {
            return Ok(());
        }
        self.teller.say(&format!("path {this} is cut"))?;
        let before = self.teller.mark();
        stage.cables[path].cut();
        self.paths += 1;
        self.settle(stage, before)?;
        let paused = self.teller.paused(&format!("path {this} was cut"));
        self.teller.say(&format!("{paused}; I/O continues on path {other}"))?;
        self.rest(stage)?;
        stage.cables[path].mend();
        match self.until(stage, |stage| stage.is_live(path))? {
            true => self.teller.say(&format!("path {this} is connected again")),
            false => Ok(()),
        }
    }

    fn kill_target(&mut self, stage: &mut Stage, leg: usize) -> Result<()> {
        let (this, other) = (stage::LEGS[leg], stage::LEGS[1 - leg]);
        if !self.rest(stage)? {
            return Ok(());
        }
        self.teller.say(&format!("the target {this} is killed (kill -9)"))?;
        let before = self.teller.mark();
        stage.kill(leg);
        self.targets += 1;
        self.settle(stage, before)?;
        self.until(stage, |stage| stage.is_out(leg))?;
        let paused = self.teller.paused(&format!("the target {this} was killed"));
        self.teller.say(&format!("{paused}; the mirror continues with {other}"))?;
        self.rest(stage)?;
        stage.start(leg)?;
        let began = Instant::now();
        self.teller.say(&format!("the target {this} has restarted"))?;
        if self.until(stage, Stage::is_in_sync)? {
            let took = seconds(began.elapsed());
            self.teller
                .say(&format!("the mirror has copied the missing data to {this} in {took}"))?;
        }
        Ok(())
    }

    /// Waits until each writer has done two more operations than in `before`.
    fn settle(&self, stage: &mut Stage, before: [u64; WRITERS]) -> Result<()> {
        self.until(stage, |_| self.teller.has_settled(before)).map(drop)
    }

    /// Waits for the interval between two faults. Returns false if the demonstration is over.
    fn rest(&self, stage: &mut Stage) -> Result<bool> {
        let begin = Instant::now();
        while begin.elapsed() < self.every && !self.teller.is_over() {
            stage.check()?;
            std::thread::sleep(LOOK_EVERY.min(self.every));
        }
        Ok(!self.teller.is_over())
    }

    /// Waits until `is_so` returns true. Returns false after a timeout or a signal.
    fn until(&self, stage: &mut Stage, is_so: impl Fn(&Stage) -> bool) -> Result<bool> {
        let begin = Instant::now();
        while begin.elapsed() < WAIT_LIMIT && !self.teller.is_stopped() {
            if is_so(stage) {
                return Ok(true);
            }
            stage.check()?;
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(false)
    }
}

fn conclude(
    load: &Load,
    seconds_taken: f64,
    faults: &str,
    longest: Option<(Duration, String)>,
) -> Result<()> {
    let count = |counter: &AtomicU64| counter.load(Relaxed);
    let mut text = format!(
        "\nIn {seconds_taken:.0} s, {} writes were acknowledged, and {} reads compared.\n",
        grouped(count(&load.tally.writes)),
        grouped(count(&load.reads))
    );
    let _ = writeln!(text, "{faults}");
    if let Some((longest, why)) = longest {
        let _ = writeln!(text, "The longest pause was {}, when {why}.", seconds(longest));
    }
    let (failed, lost) = (count(&load.tally.failed), count(&load.tally.lost));
    if failed == 0 && lost == 0 {
        let swept = grouped(count(&load.swept));
        let _ = writeln!(text, "A final read compared all {swept} blocks: no data is lost.");
        return output::print(&text);
    }
    output::print(&text)?;
    Err(Failure::run(format_args!(
        "{} failed, and {} did not contain the acknowledged data: {}",
        counted(failed, "operation"),
        counted(lost, "block"),
        load.tally.wrong().unwrap_or_default()
    )))
}

fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// A number with commas between its thousands.
fn grouped(number: u64) -> String {
    farblock_bench::group(&number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_fleet::versioned::Compared;

    #[test]
    fn numbers_are_grouped_and_times_are_rounded() {
        let shown = [0, 999, 1000, 1_234_567].map(grouped);
        assert_eq!(shown, ["0", "999", "1,000", "1,234,567"]);
        let shown = [12, 999, 2049].map(|ms| seconds(Duration::from_millis(ms)));
        assert_eq!(shown, ["12 ms", "999 ms", "2.0 s"]);
    }

    #[test]
    fn a_lost_block_makes_the_demo_fail() {
        let load = Load::default();
        let lost = Compared { known: 1, lost: 1, first_lost: Some(7) };
        load.tally.compared(Ok(lost), &load.swept);
        let failure = conclude(&load, 1.0, "1 path cut.", None).expect_err("a write was lost");
        assert!(failure.sentence().contains("1 block did not contain"), "{failure:?}");
    }
}
