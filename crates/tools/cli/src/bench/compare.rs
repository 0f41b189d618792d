//! `farblock bench compare`: checks whether the second of two reports is slower than the first.

use super::CompareArgs;
use crate::error::{Failure, Result, os};
use crate::output;
use farblock_bench::Report;
use farblock_bench::verdict::{Comparison, Subject, render_within};
use farblock_host::readable::Readable;
use farblock_program::args::Global;
use serde_json::json;
use std::io::Read;
use std::path::Path;

/// The size limit of a report file.
const MAX_REPORT_BYTES: u64 = 256 << 20;

pub(super) fn run(args: &CompareArgs, json: bool, global: &Global) -> Result<()> {
    let (a, b) = (subject(&args.a)?, subject(&args.b)?);
    let comparison = Comparison::of(&a, &b);
    if comparison.loads.is_empty() && comparison.missing.is_empty() {
        return Err(Failure::usage("the two reports have no load in common"));
    }
    let failures = args.fail_if_slower.map_or_else(Vec::new, |limit| comparison.failures(limit));
    if args.json || json {
        let mut value = serde_json::to_value(&comparison).expect("our own types are JSON");
        value["failures"] = json!(failures);
        output::print_json(&value)?;
    } else {
        output::print(&render_within(&comparison, output::columns()))?;
    }
    if failures.is_empty() {
        return Ok(());
    }
    if !global.quiet {
        failures.iter().for_each(|failure| output::note(failure));
    }
    let limit = args.fail_if_slower.unwrap_or_default();
    let what = if failures.len() == 1 { "one result is" } else { "some results are" };
    Err(Failure::run(format_args!("{what} slower by more than {limit} %, or missing; see above")))
}

fn subject(path: &Path) -> Result<Subject> {
    let place = path.display();
    let no_report = |why: &dyn std::fmt::Display| {
        Failure::usage(format_args!("{place} is not a report of `farblock bench --json`: {why}"))
    };
    let file = Readable::open(path)
        .map_err(|error| Failure::usage(format_args!("cannot read {place}: {}", os(&error))))?;
    let mut text = String::new();
    let read = file.take(MAX_REPORT_BYTES + 1).read_to_string(&mut text);
    read.map_err(|error| no_report(&os(&error)))?;
    if text.len() as u64 > MAX_REPORT_BYTES {
        return Err(no_report(&"it is too large"));
    }
    #[cfg(unix)]
    if text.contains("\"fleet_schema\"") {
        let report = farblock_fleet::Report::from_json(&text);
        return report.map(|report| report.subject()).map_err(|error| no_report(&error));
    }
    Report::from_json(&text).map(|report| report.subject()).map_err(|error| no_report(&error))
}
