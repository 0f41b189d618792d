//! `farblock detach`.

use super::args::DetachArgs;
use super::control::{self, Answer, ControlRequest};
use super::folder::{Folder, Found, Role, runtime};
use super::leftover;
use super::list;
#[cfg(target_os = "linux")]
use super::release;
use super::status::Use;
use super::ways::StopError;
use farblock_program::error::{Failure, Result, os};
use farblock_program::output;
use std::io;
use std::path::Path;
use std::time::Duration;
#[cfg(target_os = "linux")]
use std::time::Instant;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit for a detach, including the flush and the wait for the last user.
const DETACH_TIMEOUT: Duration = Duration::from_secs(120);

/// Time limit for a forced detach, which waits only briefly for the flush.
const FORCED_TIMEOUT: Duration = Duration::from_secs(30);

/// Time limit to unmount the file systems and stop the devices on a disk.
#[cfg(target_os = "linux")]
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit for the exit of an attachment's processes.
const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// Time limit for the exit of processes that another command or the kernel ends.
const END_TIMEOUT: Duration = Duration::from_secs(3);

/// Runs `farblock detach`.
pub fn run(args: &DetachArgs) -> Result<()> {
    let runtime = runtime(args.runtime.runtime_dir.as_deref())?;
    leftover::sweep(&runtime);
    let mut folders: Vec<Folder> = Vec::new();
    if args.all {
        folders = Folder::attached(&runtime);
        if folders.is_empty() {
            output::note("nothing is attached");
        }
    }
    // Look up all names before detaching any disk.
    for name in &args.names {
        let folder = find(&runtime, name)?;
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    match folders.as_slice() {
        [folder] => detach(folder, args),
        several => {
            let mut result = Ok(());
            for folder in several {
                if let Err(failure) = detach(folder, args) {
                    failure.report();
                    result = Err(Failure::Reported);
                }
            }
            result
        }
    }
}

fn detach(folder: &Folder, args: &DetachArgs) -> Result<()> {
    #[cfg(target_os = "linux")]
    if args.unmount {
        end_uses(folder, args.force);
    }
    let (name, force) = (folder.name(), args.force);
    if folder.is_held(Role::Server) {
        match control::ask(folder, &ControlRequest::Status, Some(ANSWER_TIMEOUT)) {
            Ok(_) => return ask(folder, force),
            Err(_) if force => end_processes(folder)?,
            Err(error) if is_silence(&error) => return Err(silent(&name)),
            Err(_) => return Err(starting(folder)),
        }
    } else if folder.is_held(Role::Supervisor) {
        if !force {
            return Err(starting(folder));
        }
        end_processes(folder)?;
    }
    clear(folder, force)
}

/// Unmounts the disk's file systems, and stops swap and other devices on the disk. With `force`,
/// also writes back the cached data of the uses that remain.
#[cfg(target_os = "linux")]
fn end_uses(folder: &Folder, force: bool) {
    let Some(status) = list::status(folder) else { return };
    let left = release::release(&status.offer.used, Instant::now() + UNMOUNT_TIMEOUT);
    if force && !left.is_empty() && !release::sync(&status.offer.used) {
        output::note(&format!("cannot write back all data of the users of {}", folder.name()));
    }
}

/// Cleans up an attachment whose processes are dead.
fn clear(folder: &Folder, force: bool) -> Result<()> {
    let name = folder.name();
    let Some(lock) = folder.lock(Role::Supervisor) else {
        return Err(Failure::run(format_args!("another command is attaching {name}: wait")));
    };
    let stranded = list::users_of_broken(folder);
    list::clean_up(folder, force).map_err(|error| refused(&name, error))?;
    folder.remove_unfinished(lock);
    if !stranded.is_empty() {
        output::note(&format!(
            "{name} is detached but still in use: {}; all that its users write is lost: unmount or \
             close it",
            stranded.join("; ")
        ));
    }
    Ok(())
}

fn starting(folder: &Folder) -> Failure {
    let why = folder.read("trouble").unwrap_or_else(|| "starting".to_owned());
    Failure::run(format_args!(
        "the server of {} restarts ({why}), so its users are unknown: wait, or detach the disk \
         with --force",
        folder.name()
    ))
}

fn silent(name: &str) -> Failure {
    Failure::run(format_args!(
        "the server of {name} does not answer (it may be stopped), so the users of {name} are \
         unknown: resume the server, or detach {name} with --force"
    ))
}

fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

pub(super) fn find(runtime: &Path, name: &str) -> Result<Folder> {
    let all = Folder::all(runtime);
    if let Some(folder) = all.iter().find(|folder| folder.name() == name) {
        return Ok(folder.clone());
    }
    let path = Path::new(name);
    let by_path = all.iter().find(|folder| {
        let is_alive = folder.is_held(Role::Server) || folder.is_held(Role::Supervisor);
        is_alive && list::status(folder).is_some_and(|status| is_at(&status.offer.used, path))
    });
    by_path.cloned().ok_or_else(|| {
        let names: Vec<String> = all.iter().map(Folder::name).collect();
        let known = match names.as_slice() {
            [] => "nothing is attached".to_owned(),
            names => format!("the attached disks are {}", names.join(", ")),
        };
        Failure::usage(format_args!("{name:?} is not attached: {known}"))
    })
}

/// Whether `path` is the disk's device or file, or the mountpoint of that file. The path may be
/// relative or contain symbolic links.
fn is_at(used: &Use, path: &Path) -> bool {
    let place = Path::new(&used.path);
    let full = |path: &Path| path.canonicalize().or_else(|_| std::path::absolute(path)).ok();
    let Some(path) = full(path) else { return false };
    let is = |place: &Path| full(place).is_some_and(|place| place == path);
    path == place || is(place) || used.directory().is_some_and(is)
}

/// Asks the server to detach the disk.
fn ask(folder: &Folder, force: bool) -> Result<()> {
    let name = folder.name();
    let patience = if force { FORCED_TIMEOUT } else { DETACH_TIMEOUT };
    match control::ask(folder, &ControlRequest::Detach { force }, Some(patience)) {
        Ok(Answer::Detached) => {}
        // The server has dropped the rights that it needs to detach. Kill the server, and clean up
        // with this process's rights.
        Ok(Answer::Refused(StopError::Failed(sentence))) if force => {
            output::note(&format!("{sentence}: killing its server"));
            end_processes(folder)?;
            return clear(folder, force);
        }
        Ok(Answer::Refused(error)) => return Err(refused(&name, error)),
        Ok(_) => {
            return Err(Failure::run(format_args!("the server of {name} has another version")));
        }
        // The server exited without an answer: another command detached the disk, or something
        // killed it.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return match folder.wait_for_end(END_TIMEOUT) {
                true => {
                    folder.remove_rest();
                    Ok(())
                }
                false => Err(Failure::run(format_args!(
                    "the server of {name} died before it detached the disk: try again"
                ))),
            };
        }
        Err(error) if is_silence(&error) && force => {
            end_processes(folder)?;
            return clear(folder, force);
        }
        Err(error) if is_silence(&error) => return Err(silent(&name)),
        Err(error) => {
            return Err(Failure::run(format_args!(
                "the server of {name} does not answer: {}",
                os(&error)
            )));
        }
    }
    if folder.wait_for_end(WAIT_LIMIT) {
        folder.remove_rest();
        return Ok(());
    }
    Err(Failure::run(format_args!("{name} is detached, but its processes do not exit")))
}

fn refused(name: &str, error: StopError) -> Failure {
    match error {
        StopError::InUse(users) => {
            let users = match users.as_slice() {
                [] => "a process that this user cannot see has it open".to_owned(),
                users => users.join("; "),
            };
            Failure::run(format_args!(
                "{name} is in use: {users}; stop this use, or detach with --force, which loses \
                 unwritten data"
            ))
        }
        StopError::Failed(sentence) => {
            Failure::run(format_args!("cannot detach {name}: {sentence}"))
        }
    }
}

/// Kills the processes of an attachment whose server does not answer.
fn end_processes(folder: &Folder) -> Result<()> {
    // Kill the supervisor first, otherwise it would start another server.
    let found = [Role::Supervisor, Role::Server].map(|role| folder.kill(role));
    if !found.contains(&Found::Unknown) {
        if folder.wait_for_end(WAIT_LIMIT) {
            return Ok(());
        }
        return Err(Failure::run(format_args!("the daemon of {} does not exit", folder.name())));
    }
    // A process that could not be found may have exited by now.
    if folder.wait_for_end(END_TIMEOUT) {
        return Ok(());
    }
    let done = match found.contains(&Found::Ended) {
        true => "this command killed only one of the attachment's two processes",
        false => "this command killed no process",
    };
    Err(Failure::run(format_args!(
        "cannot find the process that serves {}: {done}; kill the process that has {} \
         open, and detach again",
        folder.name(),
        folder.0.display()
    )))
}
