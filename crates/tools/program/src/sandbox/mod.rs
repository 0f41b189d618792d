//! Drops the rights that a process does not need, before it serves untrusted peers. An attacker who
//! takes over the process has only the remaining rights (docs/decisions/0035).
//!
//! Capabilities and Landlock apply to one thread and to the threads that it starts later. Therefore
//! a process calls [`enter`] before it starts other threads.

mod calls;
mod capabilities;
mod files;

use farblock_admin_api::Confinement;
use rustix::process::{DumpableBehavior, dumpable_behavior, set_dumpable_behavior};
use std::path::PathBuf;
use std::sync::OnceLock;

/// The rights that this process has dropped.
static GIVEN_UP: OnceLock<GivenUp> = OnceLock::new();

/// The state of the sandbox that a later query of the kernel would not show.
#[derive(Default)]
struct GivenUp {
    /// Whether the process tried to drop rights.
    sandboxed: bool,
    runs_no_program: bool,
    allowed: Option<Vec<PathBuf>>,
    lacks: Vec<String>,
}

/// The paths that the process may open.
#[derive(Default)]
pub struct Paths {
    /// Files and folders to read and write, with everything below them: the disks to share.
    pub shared: Vec<PathBuf>,
    /// Folders in which the process creates and replaces files, such as sockets and saved state.
    pub own: Vec<PathBuf>,
    /// Folders to read, such as the folders of the configuration and the keys.
    pub read: Vec<PathBuf>,
}

/// Drops unneeded rights. With `paths`, the process can open only these paths from then on.
/// [`lacks`] reports the rights that it could not drop.
///
/// # Errors
/// The kernel cannot enforce `paths`. The error is a sentence for the user.
pub fn enter(paths: Option<&Paths>) -> Result<(), String> {
    // Read the limits first: Landlock hides the files with the process's limits.
    farblock_reactor::allowance::read();
    let mut given_up = GivenUp { sandboxed: true, ..GivenUp::default() };
    let is_filtered = is_filtered();
    if let Err(error) = rustix::thread::set_no_new_privs(true) {
        given_up.lacks.push(format!("the kernel cannot refuse new privileges: {error}"));
    }
    match (paths, is_filtered) {
        (None, true) => {
            let kept = "Landlock was not tried: the parent process filters system calls";
            given_up.lacks.push(kept.to_owned());
        }
        _ => match files::restrict(paths) {
            Ok(()) => given_up.runs_no_program = true,
            Err(problem) if paths.is_some() => {
                return Err(format!(
                    "--allow-path cannot be enforced: {problem}; leave it out, or use a kernel \
                     with Landlock (Linux 5.13 and newer)"
                ));
            }
            Err(problem) => given_up.lacks.push(problem),
        },
    }
    given_up.allowed = paths.map(|paths| paths.shared.clone());
    given_up.lacks.extend(capabilities::drop_unneeded().err());
    // The kernel reports that a filter exists, but not who installed it.
    let filtered = match is_filtered {
        true => Err("system calls are filtered by the parent process, not by farblock".to_owned()),
        false => calls::filter(),
    };
    given_up.lacks.extend(filtered.err());
    let _ = GIVEN_UP.set(given_up);
    Ok(())
}

/// Like [`enter`], but ignores `paths` if the kernel cannot enforce them or another filter of
/// system calls is active.
///
/// # Errors
/// Fails like [`enter`].
pub fn enter_within(paths: &Paths) -> Result<(), String> {
    match is_filtered() || enter(Some(paths)).is_err() {
        true => enter(None),
        false => Ok(()),
    }
}

/// Keeps all rights. [`lacks`] then returns `why`.
pub fn stay(why: &str) {
    let lacks = vec![why.to_owned()];
    let _ = GIVEN_UP.set(GivenUp { lacks, ..GivenUp::default() });
}

/// Returns a sentence for each right that the process could not drop.
pub fn lacks() -> &'static [String] {
    GIVEN_UP.get().map_or(&[], |given_up| &given_up.lacks)
}

/// Disables core dumps and debuggers, because this process holds keys. Works with and without the
/// sandbox.
pub fn holds_keys() {
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::debug!("core dumps may contain keys: {error}");
    }
}

/// Returns the active restrictions, as far as possible from the kernel itself.
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

/// If the sandbox may have caused this error, adds which paths it allows.
pub fn explained(problem: String) -> String {
    let allowed = GIVEN_UP.get().and_then(|given_up| given_up.allowed.as_ref());
    let is_refusal = ["ermission denied", "may not be"].iter().any(|part| problem.contains(part));
    match allowed.filter(|_| is_refusal) {
        Some(paths) => {
            let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
            format!(
                "{problem} (this target opens only files below {}: start it with --allow-path for \
                 other places, too)",
                paths.join(", ")
            )
        }
        None => problem,
    }
}

/// Whether the parent process installed a filter of system calls. Such a filter may kill this
/// process for an unknown call, for example of Landlock.
fn is_filtered() -> bool {
    status("Seccomp").is_some_and(|mode| mode != "0")
}

/// Returns a value from `/proc/thread-self/status`. Every thread inherited it from the first one.
fn status(name: &str) -> Option<String> {
    let text = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

#[cfg(test)]
mod tests;
