//! `farblock authenticate`.

use super::args::AuthenticateArgs;
use super::control::{self, Answer, ControlRequest};
use super::detach;
use super::folder::{Folder, runtime};
use farblock_program::error::{Failure, Result, os};
use farblock_program::output;
use std::io::ErrorKind;
use std::time::Duration;

/// Time limit for one attachment. It is long, because each path needs modular exponentiations (slow
/// arithmetic on large numbers) at both ends.
const WAIT_LIMIT: Duration = Duration::from_secs(120);

/// Runs `farblock authenticate`.
pub fn run(args: &AuthenticateArgs) -> Result<()> {
    let runtime = runtime(args.runtime.runtime_dir.as_deref())?;
    let folders: Result<Vec<Folder>> =
        args.names.iter().map(|name| detach::find(&runtime, name)).collect();
    let mut result = Ok(());
    for folder in folders? {
        if let Err(failure) = authenticate(&folder) {
            failure.report();
            result = Err(Failure::Reported);
        }
    }
    result
}

fn authenticate(folder: &Folder) -> Result<()> {
    let name = folder.name();
    let answer = control::ask(folder, &ControlRequest::Authenticate, Some(WAIT_LIMIT));
    let answer = answer.map_err(|error| match error.kind() {
        // A server of an earlier version does not know this request, and closes the connection.
        ErrorKind::UnexpectedEof => Failure::run(format_args!(
            "the server of {name} has exited, or is of an earlier version: detach {name} \
             and attach it again"
        )),
        _ => Failure::run(format_args!(
            "the process that serves {name} does not answer: {}",
            os(&error)
        )),
    })?;
    let Answer::Authenticated(paths) = answer else {
        return Err(Failure::run(format_args!(
            "the server of {name} has another version: detach {name} with that version"
        )));
    };
    if paths.is_empty() {
        return Err(Failure::run(format_args!(
            "{name} is not connected: it authenticates with the secret in its file when it \
             connects (see farblock list)"
        )));
    }
    let mut refused = Vec::new();
    for (url, why) in paths {
        match why {
            None => output::note(&format!("{name}: {url} has authenticated again")),
            Some(why) => refused.push(why),
        }
    }
    match refused.is_empty() {
        true => Ok(()),
        false => Err(Failure::run(format_args!("{name}: {}", refused.join("; ")))),
    }
}
