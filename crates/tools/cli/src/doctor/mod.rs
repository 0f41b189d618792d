//! `farblock doctor`: what is wrong, and what to do about it.
//!
//! Each check is a function that gives a [`Finding`]: a verdict, one sentence of what is, one of
//! what to do. Checks that stand on each other end with the first problem: what comes behind it
//! would only repeat it.
//!
//! - [`target`]: the way to a target, step by step, in the order in which a connection takes them.
//! - [`machine`]: what this machine has for sharing and attaching.
//! - [`sharing`]: the targets that run on it.
//! - [`attachment`]: one that is attached, and the ways to it that are not free.
//! - [`disk`]: a file or block device that is to be shared, and who else has it.

pub(crate) mod args;
#[cfg(any(target_os = "linux", windows))]
mod attachment;
#[cfg(target_os = "linux")]
mod disk;
mod finding;
mod first_answer;
mod machine;
mod refusal;
#[cfg(unix)]
mod sharing;
mod speed;
mod target;

use crate::args::Global;
use crate::error::{Failure, Result};
use crate::{output, remote};
use args::DoctorArgs;
use farblock_host::Options;
use farblock_host::url::Url;
use finding::{Finding, Verdict};
use serde::Serialize;
use std::time::Duration;

#[derive(Serialize)]
struct Report<'a> {
    patient: &'a str,
    problems: usize,
    findings: &'a [Finding],
}

/// Runs the command.
pub(crate) fn run(args: &DoctorArgs, json: bool, global: &Global) -> Result<()> {
    let (patient, findings) = examine(args, global)?;
    let problems = findings.iter().filter(|one| one.verdict == Verdict::Problem).count();
    if json || args.json {
        output::print_json(&Report { patient: &patient, problems, findings: &findings })?;
    } else {
        output::print(&finding::listing(&patient, &findings))?;
    }
    match problems {
        0 => Ok(()),
        _ => Err(Failure::Reported),
    }
}

/// What was looked at, and what was found.
fn examine(args: &DoctorArgs, global: &Global) -> Result<(String, Vec<Finding>)> {
    match args.patient.as_deref() {
        None => Ok(("this machine".to_owned(), here(args.timeout))),
        Some(text) if text.starts_with("nvme") && text.contains("://") => {
            let url: Url =
                text.parse().map_err(|error| Failure::usage(format_args!("{text}: {error}")))?;
            let options = Options {
                connect_timeout: args.timeout,
                io_timeout: args.timeout,
                ..remote::options(global, &args.connection)
            };
            remote::one_host(&url, &options).map_err(Failure::Usage)?;
            Ok((url.to_string(), target::examine(&url, &options)))
        }
        Some(name) => Ok((name.to_owned(), attached(args, name)?)),
    }
}

#[cfg_attr(not(unix), expect(unused_variables, reason = "no target can be asked"))]
fn here(patience: Duration) -> Vec<Finding> {
    #[cfg_attr(not(unix), expect(unused_mut, reason = "no target can be asked"))]
    let mut findings = machine::examine();
    #[cfg(unix)]
    for (socket, status) in crate::steer::running(patience) {
        match status {
            Some(status) => findings.extend(sharing::examine(&status)),
            None => findings.push(sharing::silent(&socket, patience)),
        }
    }
    findings
}

#[cfg(any(target_os = "linux", windows))]
fn attached(args: &DoctorArgs, name: &str) -> Result<Vec<Finding>> {
    let runtime = args.runtime.runtime_dir.as_deref();
    match crate::attach::examined(runtime, name)? {
        Some(attachment) => Ok(attachment::examine(&attachment, args.timeout)),
        None => disk(args, name).ok_or_else(|| nothing_called(name)),
    }
}

#[cfg(target_os = "linux")]
fn disk(args: &DoctorArgs, name: &str) -> Option<Vec<Finding>> {
    disk::examine(name.as_ref(), args.timeout)
}

/// Who else has a file is nothing that Windows tells.
#[cfg(windows)]
fn disk(_: &DoctorArgs, _: &str) -> Option<Vec<Finding>> {
    None
}

#[cfg(not(any(target_os = "linux", windows)))]
fn attached(_: &DoctorArgs, name: &str) -> Result<Vec<Finding>> {
    Err(nothing_called(name))
}

fn nothing_called(name: &str) -> Failure {
    Failure::usage(format_args!(
        "nothing is attached as {name} (`farblock list` shows what is){}; a target is named by its \
         URL: nvme+tcp://HOST[:PORT]/NQN",
        if cfg!(target_os = "linux") { ", and there is no such file or device" } else { "" }
    ))
}
