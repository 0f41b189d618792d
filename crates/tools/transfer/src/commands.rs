//! The commands `read`, `write` and `copy`: their sources, destinations, ranges and messages.

use super::Summary;
use super::job::Job;
use super::place::{self, Input, Opener, TransferPlace};
use crate::args::{CopyArgs, Global, ReadArgs, WriteArgs};
use crate::error::{Failure, Result};
use crate::output;
use farblock_block::size::{FullSize, Size};
use std::ops::Range;
use std::path::Path;

/// Runs `farblock read`: copies a range of a namespace to a file or pipe.
pub fn read(args: &ReadArgs, global: &Global) -> Result<()> {
    if args.json && args.output == Path::new("-") {
        return Err(Failure::usage(
            "the data and the JSON cannot both go to the standard output: \
             name a file with --output",
        ));
    }
    let opener = Opener { global, options: &args.transfer };
    let input = opener.input(&TransferPlace::Remote(Box::new(args.url.clone())))?;
    let range = range_within(&input, args.offset, args.length)?;
    let output = opener.output(&TransferPlace::of_path(&args.output))?;
    let length = Some(range.end - range.start);
    let summary = Job { opener, input, from: range.start, length, output, to: 0 }.run()?;
    report("read", &summary, args.json, global)
}

/// Runs `farblock write`: copies a file or pipe to a range of a namespace.
pub fn write(args: &WriteArgs, global: &Global) -> Result<()> {
    let opener = Opener { global, options: &args.transfer };
    let input = opener.input(&TransferPlace::of_path(&args.input))?;
    let output = opener.output(&TransferPlace::Remote(Box::new(args.url.clone())))?;
    let capacity = output.capacity.unwrap_or(u64::MAX);
    if args.offset > capacity {
        return Err(beyond("--offset", args.offset, &output.name, capacity));
    }
    let length = match (args.length, input.bytes) {
        (Some(length), Some(bytes)) if length > bytes => {
            return Err(Failure::usage(format_args!(
                "{} has only {}, less than --length {}",
                input.name,
                FullSize(bytes),
                FullSize(length)
            )));
        }
        (Some(length), _) => Some(length),
        (None, bytes) => bytes,
    };
    let room = capacity - args.offset;
    if let Some(length) = length
        && length > room
    {
        return Err(too_small(&output.name, room, length, &input.name));
    }
    let summary = Job { opener, input, from: 0, length, output, to: args.offset }.run()?;
    report("wrote", &summary, args.json, global)
}

/// Runs `farblock copy`: copies a namespace or file to another one.
pub fn copy(args: &CopyArgs, global: &Global) -> Result<()> {
    let opener = Opener { global, options: &args.transfer };
    let (source, destination) =
        (TransferPlace::parse(&args.source)?, TransferPlace::parse(&args.destination)?);
    if args.json && matches!(destination, TransferPlace::Pipe) {
        return Err(Failure::usage(
            "the data and the JSON cannot both go to the standard output: name a file",
        ));
    }
    if args.source == args.destination && !matches!(source, TransferPlace::Pipe) {
        return Err(Failure::usage(format_args!(
            "{} would be copied to itself",
            args.source.display()
        )));
    }
    let input = opener.input(&source)?;
    let length = match input.bytes {
        Some(_) => {
            let range = range_within(&input, 0, args.length)?;
            Some(range.end)
        }
        None => args.length,
    };
    let output = opener.output(&destination)?;
    place::check_different(&input, &output)?;
    let room = output.capacity.unwrap_or(u64::MAX);
    if let Some(length) = length
        && length > room
    {
        return Err(too_small(&output.name, room, length, &input.name));
    }
    let summary = Job { opener, input, from: 0, length, output, to: 0 }.run()?;
    report("copied", &summary, args.json, global)
}

/// Returns the requested range, or an error if the input is shorter.
fn range_within(input: &Input, offset: u64, length: Option<u64>) -> Result<Range<u64>> {
    let bytes = input.bytes.unwrap_or(u64::MAX);
    let left =
        bytes.checked_sub(offset).ok_or_else(|| beyond("--offset", offset, &input.name, bytes))?;
    match length {
        None => Ok(offset..bytes),
        Some(length) if length <= left => Ok(offset..offset + length),
        Some(length) => Err(Failure::usage(format_args!(
            "{} has {}{}, less than --length {}",
            input.name,
            FullSize(left),
            if offset > 0 { format!(" from byte {offset} on") } else { String::new() },
            FullSize(length)
        ))),
    }
}

fn beyond(option: &str, value: u64, name: &str, bytes: u64) -> Failure {
    Failure::usage(format_args!(
        "{option} {} is beyond the end of {name}, which has {}",
        FullSize(value),
        FullSize(bytes)
    ))
}

fn too_small(name: &str, room: u64, length: u64, source: &str) -> Failure {
    Failure::run(format_args!(
        "{name} has room for {}, which is less than the {} of {source}; \
         nothing was written (--length copies only a part)",
        FullSize(room),
        FullSize(length)
    ))
}

fn report(what: &str, summary: &Summary, json: bool, global: &Global) -> Result<()> {
    if json {
        return output::print_json(summary);
    }
    if !global.quiet {
        let Summary { bytes, seconds, mib_per_second, .. } = summary;
        // Below 1 MiB, the rate would measure only the overhead.
        let rate =
            if *bytes >= 1 << 20 { format!(" ({mib_per_second:.0} MiB/s)") } else { String::new() };
        let before = match summary.resumed_from {
            0 => String::new(),
            bytes => format!(", after {} from an earlier attempt", Size(bytes)),
        };
        let verified = if summary.verified { ", and verified" } else { "" };
        output::note(&format!("{what} {} in {seconds:.2} s{rate}{before}{verified}", Size(*bytes)));
    }
    Ok(())
}
