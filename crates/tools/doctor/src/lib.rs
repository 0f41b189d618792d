//! `farblock doctor`: finds problems, and gives advice.
//!
//! Each check is a function that returns a [`Finding`]: a verdict, one sentence about the state,
//! and one sentence of advice. A series of dependent checks stops at the first problem.
//!
//! - [`target`]: each step of a connection to a target, in order.
//! - [`machine`]: this machine's ability to share and attach disks.
//! - [`rdma`]: this machine's RDMA devices.
//! - [`sharing`]: the targets that run on this machine.
//! - [`attachment`]: an attached disk, and its failed paths.
//! - [`disk`]: a file or block device to share, and its users.

pub mod args;
#[cfg(any(target_os = "linux", windows))]
mod attachment;
#[cfg(target_os = "linux")]
mod disk;
mod finding;
mod first_answer;
mod machine;
mod rdma;
mod refusal;
#[cfg(unix)]
mod sharing;
mod speed;
mod target;

use args::DoctorArgs;
use error::{Failure, Result};
use farblock_daemon as attach;
use farblock_host::Options;
use farblock_host::url::Url;
use farblock_program::args::Global;
use farblock_program::{error, output, remote, table, values};
use finding::{Finding, Verdict};
use serde::Serialize;

#[derive(Serialize)]
struct Report<'a> {
    patient: &'a str,
    problems: usize,
    findings: &'a [Finding],
}

/// Runs the command.
pub fn run(args: &DoctorArgs, json: bool, global: &Global) -> Result<()> {
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

/// Returns the name of the subject, and the findings about it.
fn examine(args: &DoctorArgs, global: &Global) -> Result<(String, Vec<Finding>)> {
    match args.patient.as_deref() {
        None => Ok(("this machine".to_owned(), here(args))),
        Some(text) if text.starts_with("nvme") && text.contains("://") => {
            let url: Url =
                text.parse().map_err(|error| Failure::usage(format_args!("{text}: {error}")))?;
            let options = Options {
                connect_timeout: args.timeout,
                io_timeout: args.timeout,
                ..remote::options(global, &args.connection)
            };
            remote::one_host(&url, &options).map_err(Failure::Usage)?;
            let mut findings = known_here(args, &url);
            findings.extend(target::examine(&url, &options));
            Ok((url.to_string(), findings))
        }
        Some(name) => Ok((name.to_owned(), attached(args, name)?)),
    }
}

/// Returns the problems and hints about this disk from the attachments and targets of this machine.
/// `farblock doctor` without an argument reports the same findings.
fn known_here(args: &DoctorArgs, url: &Url) -> Vec<Finding> {
    let Some(nqn) = url.subsystem.as_deref() else { return Vec::new() };
    let mut findings = shared_here(args.timeout, std::slice::from_ref(url));
    #[cfg(any(target_os = "linux", windows))]
    {
        let runtime = args.runtime.runtime_dir.as_deref();
        let names = crate::attach::names(runtime).unwrap_or_default();
        let all = names.iter().filter_map(|name| crate::attach::examined(runtime, name).ok()?);
        let its = all.filter(|one| attachment::is_of(one, (nqn, url.namespace)));
        findings.extend(its.flat_map(|one| attachment::summary(&one)));
    }
    #[cfg(not(any(target_os = "linux", windows)))]
    let _ = nqn;
    findings.retain(|one| one.verdict != Verdict::Ok);
    findings
}

/// Returns findings about the disk with these URLs, from the targets that run on this machine.
#[cfg(unix)]
fn shared_here(patience: std::time::Duration, urls: &[Url]) -> Vec<Finding> {
    let is_meant = |nqn: &str, nsid: u32| {
        urls.iter().any(|url| {
            url.subsystem.as_deref() == Some(nqn) && url.namespace.is_none_or(|it| it == nsid)
        })
    };
    let running =
        farblock_admin_client::running(patience).into_iter().filter_map(|(_, status)| status);
    running.flat_map(|status| sharing::namespaces(&status, is_meant)).collect()
}

#[cfg(not(unix))]
fn shared_here(_: std::time::Duration, _: &[Url]) -> Vec<Finding> {
    Vec::new()
}

fn here(args: &DoctorArgs) -> Vec<Finding> {
    let mut findings = machine::examine();
    #[cfg(unix)]
    findings.extend(targets(args.timeout));
    findings.extend(attachments(args));
    findings
}

#[cfg(unix)]
fn targets(patience: std::time::Duration) -> Vec<Finding> {
    let running = farblock_admin_client::running(patience);
    if running.is_empty() {
        return vec![sharing::none(&farblock_admin_client::looked_in())];
    }
    let examine = |(socket, status): (std::path::PathBuf, Option<_>)| match status {
        Some(status) => sharing::examine(&status),
        None => vec![sharing::silent(&socket, patience)],
    };
    running.into_iter().flat_map(examine).collect()
}

/// Returns findings about all attachments of this user, and about their runtime directory.
#[cfg(any(target_os = "linux", windows))]
fn attachments(args: &DoctorArgs) -> Vec<Finding> {
    const CHECK: &str = "attachments";
    let runtime = args.runtime.runtime_dir.as_deref();
    let all = crate::attach::names(runtime).and_then(|names| {
        let no_room = crate::attach::no_room(runtime)?;
        Ok((names, no_room))
    });
    let (names, no_room) = match all {
        Ok(all) => all,
        Err(failure) => {
            let (what, advice) = finding::split(failure.sentence());
            return vec![Finding::hint(CHECK, what, advice)];
        }
    };
    let mut findings = Vec::new();
    findings.extend(no_room.map(|sentence| {
        let (what, advice) = finding::split(&sentence);
        Finding::problem(CHECK, what, format!("{advice}; until then no disk can be attached"))
    }));
    for name in names {
        match crate::attach::examined(runtime, &name) {
            Ok(Some(one)) => findings.extend(attachment::summary(&one)),
            // The attachment was detached meanwhile.
            Ok(None) => {}
            Err(failure) => {
                let (what, advice) = finding::split(failure.sentence());
                findings.push(Finding::problem(CHECK, what, advice));
            }
        }
    }
    findings
}

/// Returns nothing: this system cannot attach disks.
#[cfg(not(any(target_os = "linux", windows)))]
fn attachments(_: &DoctorArgs) -> Vec<Finding> {
    Vec::new()
}

#[cfg(any(target_os = "linux", windows))]
fn attached(args: &DoctorArgs, name: &str) -> Result<Vec<Finding>> {
    let runtime = args.runtime.runtime_dir.as_deref();
    match crate::attach::examined(runtime, name)? {
        Some(attachment) => {
            let urls: Vec<Url> = attachment.paths.iter().map(|way| way.url.clone()).collect();
            let mut findings = attachment::examine(&attachment, args.timeout);
            findings.extend(shared_here(args.timeout, &urls));
            Ok(findings)
        }
        None => disk(args, name).ok_or_else(|| nothing_called(name)),
    }
}

#[cfg(target_os = "linux")]
fn disk(args: &DoctorArgs, name: &str) -> Option<Vec<Finding>> {
    disk::examine(name.as_ref(), args.timeout)
}

/// Returns `None`: Windows does not report who else uses a file.
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
        "nothing is attached as {name}{}; `farblock list` shows the attached disks; to examine a \
         target, use its URL, nvme+tcp://HOST[:PORT]/NQN",
        if cfg!(target_os = "linux") { ", and there is no such file or device" } else { "" }
    ))
}
