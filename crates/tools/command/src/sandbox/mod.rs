//! What a process that serves strangers gives up before it hears of them: whoever takes it over has
//! only what is left (docs/decisions/0038, and 0052 for attached disks).
//!
//! Capabilities and Landlock are a thread's, and what it starts has them from it: this comes before
//! there is a second thread.

mod calls;
mod capabilities;
mod files;

use farblock_admin::Confinement;
use rustix::process::{DumpableBehavior, dumpable_behavior, set_dumpable_behavior};
use std::path::PathBuf;
use std::sync::OnceLock;

/// What was given up, for the process's life.
static GIVEN_UP: OnceLock<GivenUp> = OnceLock::new();

/// What the kernel does not tell again.
#[derive(Default)]
struct GivenUp {
    /// Anything was.
    sandboxed: bool,
    runs_no_program: bool,
    allowed: Option<Vec<PathBuf>>,
    lacks: Vec<String>,
}

/// What may be opened.
#[derive(Default)]
pub struct Paths {
    /// All below these, to be shared.
    pub shared: Vec<PathBuf>,
    /// Folders whose files are made and replaced: sockets, what is kept.
    pub own: Vec<PathBuf>,
    /// Folders that are read: configuration, keys.
    pub read: Vec<PathBuf>,
}

/// Gives up what is not needed. What the kernel cannot do is said in [`seen`]. With `paths`, only
/// those can be opened any more.
///
/// # Errors
/// One sentence, if only the paths were to be opened, and that cannot be had.
pub fn enter(paths: Option<&Paths>) -> Result<(), String> {
    // Landlock hides the files that say what the process may use.
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
    // The kernel tells that there is a filter, not that it is another one.
    let filtered = match is_filtered {
        true => Err("system calls are filtered by what started this, not by farblock".to_owned()),
        false => calls::filter(),
    };
    given_up.lacks.extend(filtered.err());
    let _ = GIVEN_UP.set(given_up);
    Ok(())
}

/// [`enter`], and opens only these paths where the kernel has that, and nobody else filters system
/// calls.
///
/// # Errors
/// As [`enter`].
pub fn enter_within(paths: &Paths) -> Result<(), String> {
    match is_filtered() || enter(Some(paths)).is_err() {
        true => enter(None),
        false => Ok(()),
    }
}

/// Gives nothing up, for this reason.
pub fn stay(why: &str) {
    let lacks = vec![why.to_owned()];
    let _ = GIVEN_UP.set(GivenUp { lacks, ..GivenUp::default() });
}

/// What could not be given up, a sentence each.
pub fn lacks() -> &'static [String] {
    GIVEN_UP.get().map_or(&[], |given_up| &given_up.lacks)
}

/// From now on this process holds keys: its memory is not to be in a core dump, nor a debugger's,
/// whatever else it has given up.
pub fn holds_keys() {
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::debug!("keys may be in core dumps: {error}");
    }
}

/// What holds, as the kernel says.
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

/// Says in a refusal why it may be one.
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

/// Whether what started this filters system calls. Such a filter may end a process that asks for
/// what it does not know.
fn is_filtered() -> bool {
    status("Seccomp").is_some_and(|mode| mode != "0")
}

/// A line of what the kernel says of this thread, which has it from the first one.
fn status(name: &str) -> Option<String> {
    let text = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

#[cfg(test)]
mod tests;
