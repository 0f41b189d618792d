//! A process that serves untrusted peers first gives up the rights that it does not need. An
//! attacker who takes it over has only the remaining ones (docs/decisions/0038, and 0052 for
//! attached disks).
//!
//! Capabilities and Landlock apply to one thread, and its children inherit them. Therefore this
//! runs before any other thread starts.

mod calls;
mod capabilities;
mod files;

use farblock_admin::Confinement;
use rustix::process::{DumpableBehavior, dumpable_behavior, set_dumpable_behavior};
use std::path::PathBuf;
use std::sync::OnceLock;

/// The rights that this process has given up.
static GIVEN_UP: OnceLock<GivenUp> = OnceLock::new();

/// Facts that the kernel does not report later.
#[derive(Default)]
struct GivenUp {
    /// Whether the process tried to give up rights.
    sandboxed: bool,
    runs_no_program: bool,
    allowed: Option<Vec<PathBuf>>,
    lacks: Vec<String>,
}

/// The paths that may be opened.
#[derive(Default)]
pub struct Paths {
    /// The target may share everything below these.
    pub shared: Vec<PathBuf>,
    /// Folders in which files are made and replaced: sockets, saved state.
    pub own: Vec<PathBuf>,
    /// Folders to read: configuration, keys.
    pub read: Vec<PathBuf>,
}

/// Gives up unneeded rights; [`seen`] reports those that the kernel could not drop. With `paths`,
/// the process can open only those from now on.
///
/// # Errors
/// One sentence for people, if `paths` cannot be enforced.
pub fn enter(paths: Option<&Paths>) -> Result<(), String> {
    // Read now: Landlock hides the files with the process's limits.
    farblock_reactor::allowance::read();
    let mut given_up = GivenUp { sandboxed: true, ..GivenUp::default() };
    let is_filtered = is_filtered();
    if let Err(error) = rustix::thread::set_no_new_privs(true) {
        given_up.lacks.push(format!("new privileges are not refused: {error}"));
    }
    match (paths, is_filtered) {
        (None, true) => {
            let kept = "Landlock was not tried: what started this filters its system calls";
            given_up.lacks.push(kept.to_owned());
        }
        _ => match files::restrict(paths) {
            Ok(()) => given_up.runs_no_program = true,
            Err(problem) if paths.is_some() => {
                return Err(format!(
                    "--allow-path cannot be kept: {problem}; leave it out, or use a kernel with \
                     Landlock (Linux 5.13 and newer)"
                ));
            }
            Err(problem) => given_up.lacks.push(problem),
        },
    }
    given_up.allowed = paths.map(|paths| paths.shared.clone());
    given_up.lacks.extend(capabilities::drop_unneeded().err());
    // The kernel reports that a filter exists, but not whose it is.
    let filtered = match is_filtered {
        true => Err("system calls are filtered by what started this, not by farblock".to_owned()),
        false => calls::filter(),
    };
    given_up.lacks.extend(filtered.err());
    let _ = GIVEN_UP.set(given_up);
    Ok(())
}

/// Like [`enter`], restricted to these paths if the kernel supports that and no other filter of
/// system calls is active.
///
/// # Errors
/// As for [`enter`].
pub fn enter_within(paths: &Paths) -> Result<(), String> {
    match is_filtered() || enter(Some(paths)).is_err() {
        true => enter(None),
        false => Ok(()),
    }
}

/// Keeps all rights, and records the reason.
pub fn stay(why: &str) {
    let lacks = vec![why.to_owned()];
    let _ = GIVEN_UP.set(GivenUp { lacks, ..GivenUp::default() });
}

/// The rights that could not be given up, a sentence each.
pub fn lacks() -> &'static [String] {
    GIVEN_UP.get().map_or(&[], |given_up| &given_up.lacks)
}

/// Declares that this process holds keys: it disables core dumps and debuggers, whatever else it
/// has given up.
pub fn holds_keys() {
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::debug!("keys may be in core dumps: {error}");
    }
}

/// The active restrictions, as reported by the kernel.
pub fn seen() -> Confinement {
    let given_up = GIVEN_UP.get();
    let paths = |paths: &Vec<PathBuf>| paths.iter().map(|it| it.display().to_string()).collect();
    Confinement {
        sandboxed: given_up.is_some_and(|it| it.sandboxed),
        no_new_privileges: status("NoNewPrivs").is_some_and(|it| it == "1"),
        system_calls_filtered: status("Seccomp").is_some_and(|it| it == "2"),
        runs_no_program: given_up.is_some_and(|it| it.runs_no_program),
        allowed_paths: given_up.and_then(|it| it.allowed.as_ref()).map(paths),
        capabilities: capabilities::held(),
        dumpable: dumpable_behavior() != Ok(DumpableBehavior::NotDumpable),
        lacks: lacks().to_vec(),
    }
}

/// Adds to a refusal that the sandbox may be the cause.
pub fn explained(problem: String) -> String {
    let allowed = GIVEN_UP.get().and_then(|given_up| given_up.allowed.as_ref());
    let is_refusal = ["ermission denied", "may not be"].iter().any(|part| problem.contains(part));
    match allowed.filter(|_| is_refusal) {
        Some(paths) => {
            let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
            format!(
                "{problem} (this target opens only what is below {}: start it with --allow-path \
                 for other places, too)",
                paths.join(", ")
            )
        }
        None => problem,
    }
}

/// Whether the parent process installed a filter of system calls. Such a filter may kill a process
/// for a call that it does not know.
fn is_filtered() -> bool {
    status("Seccomp").is_some_and(|mode| mode != "0")
}

/// A line of the kernel's status for this thread, which inherits it from the first thread.
fn status(name: &str) -> Option<String> {
    let text = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

#[cfg(test)]
mod tests;
