//! `farblock fleet --simulate`: a fleet in virtual time.

use super::args::FleetArgs;
use crate::args::Global;
use crate::error::Result;

#[cfg(not(feature = "simulate"))]
pub(super) fn run(_: &FleetArgs, _: bool, _: &Global) -> Result<()> {
    Err(crate::error::Failure::usage(
        "this farblock was built without the simulation: build one with `--features simulate`",
    ))
}

/// Runs the command.
#[cfg(feature = "simulate")]
pub(super) fn run(args: &FleetArgs, json: bool, global: &Global) -> Result<()> {
    use crate::error::Failure;
    use crate::output;
    use crate::signals::Stop;
    use farblock_bench::Cancel;
    use farblock_fleet::simulate::simulate;
    use farblock_measure::Destination;

    let stop = Stop::install_with_hangup()?;
    let svg = args.svg.as_deref().map(Destination::open).transpose()?;
    let json = args.json || json;
    if json && svg.as_ref().is_some_and(Destination::is_standard_output) {
        return Err(Failure::usage("only one of --json and --svg - fits the standard output"));
    }
    let cancel = Cancel::new();
    farblock_measure::watch(&stop, &cancel)?;
    let mut progress = super::Progress::new(global.quiet);
    let mut show =
        |what: &str, part: &str| progress.show(&farblock_fleet::Step { what, part, iops: 0.0 });
    let report = simulate(&args.simulate, &cancel, &mut show);
    progress.finish();
    let report = report.map_err(super::explain)?;
    let table_wanted = !json && !svg.as_ref().is_some_and(Destination::is_standard_output);
    if let Some(svg) = svg {
        svg.write(&report.to_svg())?;
    }
    if json {
        output::print(&(report.to_json() + "\n"))?;
    }
    if table_wanted {
        output::print(&report.render_within(output::columns()))?;
    }
    match report.has_errors() {
        true => Err(Failure::run("hosts did no I/O any more, or operations failed, as it says")),
        false => Ok(()),
    }
}
