//! `farblock bench`: compares a remote disk with a local one.
//!
//! The calling program opens Ceph images and sets with remote disks. So this crate has few
//! dependencies, and `make demo` compiles fast.

mod args;
mod demo;
mod floor;
mod plan;
mod progress;
mod report;
mod sides;

pub use args::BenchArgs;
use farblock_backends::{OpenError, Spec};
use farblock_bench::{BenchError, Cancel};
use farblock_block::Namespace;
use farblock_program::args::Global;
use farblock_program::error::{Failure, Result};
use farblock_program::output;
use farblock_program::signals::Stop;
pub use report::Destination;
use std::sync::Arc;

/// A function that opens a local disk for a measurement. Its arguments are the spec, the block
/// size, and whether to open it read-only.
pub type OpenLocal = fn(&Spec, u32, bool) -> Result<Arc<dyn Namespace>, OpenError>;

/// Runs `farblock bench` with these arguments, and writes its reports.
///
/// # Errors
/// A measurement failed, or a signal interrupted it.
pub fn run(mut args: BenchArgs, json: bool, global: &Global, open_local: OpenLocal) -> Result<()> {
    args.json = args.json.or_else(|| json.then(|| "-".into()));
    let args = &args;
    let stop = Stop::install_with_hangup()?;
    if let Some(address) = args.floor_serve {
        return floor::serve(address, &stop, global);
    }
    let mut plan = plan::plan(args, global)?;
    let floor = floor::open(args)?;
    plan.floor = floor.as_ref().map(floor::Open::side);
    // Check the output files before a run that may take hours.
    let files = report::Files::open(args)?;
    let sides = match args.disks.as_slice() {
        [] => demo::sides(args, global, &plan)?,
        disks => sides::open(disks, args, global, &plan, open_local)?,
    };
    if !global.quiet {
        sides.notes.iter().for_each(|note| output::note(note));
        let disks = [&sides.local, &sides.remote].into_iter().flatten().count();
        let about = if plan.most_runs.is_some() { "at most" } else { "about" };
        output::note(&format!("this takes {about} {}", words(plan.duration(disks))));
    }
    plan.remarks.clone_from(&sides.remarks);
    let cancel = Cancel::new();
    watch(&stop, &cancel)?;
    let mut progress = progress::Bar::new(global.quiet);
    let outcome = farblock_bench::compare(
        &plan,
        sides.local.as_ref(),
        sides.remote.as_ref(),
        &cancel,
        &mut progress,
    );
    progress.finish();
    let measured = outcome.map_err(|error| explain(&error))?;
    let closed = sides.close();
    files.write(&measured)?;
    closed?;
    if measured.interrupted {
        return Err(Failure::Interrupted(
            "interrupted: the report contains the results until then".to_owned(),
        ));
    }
    // A failure of a floor that the user did not request does not fail the command.
    let is_asked = args.floor.is_some();
    if measured.disks_have_errors() || is_asked && measured.has_errors() {
        return Err(Failure::run("some runs failed, as the report says"));
    }
    Ok(())
}

/// Starts a thread that cancels the benchmark when a signal arrives.
///
/// # Errors
/// The thread could not be started.
pub fn watch(stop: &Stop, cancel: &Cancel) -> Result<()> {
    let (stop, cancel) = (stop.clone(), cancel.clone());
    let body = move || {
        stop.wait();
        cancel.cancel();
    };
    let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(body);
    thread.map(drop).map_err(|error| {
        Failure::run(format_args!("cannot start a thread: {}", farblock_program::error::os(&error)))
    })
}

fn explain(error: &BenchError) -> Failure {
    match error {
        BenchError::Cancelled => Failure::Interrupted("interrupted before the first result".into()),
        BenchError::FillFailed { .. } | BenchError::Floor { .. } => Failure::run(error),
        BenchError::WritesRefused { .. } => {
            Failure::usage(format_args!("{error} (for example --patterns read)"))
        }
        _ => Failure::usage(error),
    }
}

/// Formats a duration for people.
pub fn words(time: std::time::Duration) -> String {
    match time.as_secs() {
        0..=1 => "1 second".to_owned(),
        seconds @ 2..=119 => format!("{seconds} seconds"),
        seconds => format!("{} minutes", seconds.div_ceil(60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_shown_in_seconds_or_whole_minutes() {
        let of = |seconds| words(std::time::Duration::from_secs(seconds));
        assert_eq!([of(0), of(1), of(2)], ["1 second", "1 second", "2 seconds"]);
        assert_eq!([of(119), of(120), of(121)], ["119 seconds", "2 minutes", "3 minutes"]);
    }
}
