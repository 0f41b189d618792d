//! Creates and changes loop devices on a disk's file, in a small separate process.
//!
//! During its calls, the loop driver queries the file system of the file, and holds locks that all
//! loop devices share. Here the server itself is that file system. Suppose that the server made
//! such a call and were killed. Its exit would wait for the call, and the call for an answer that
//! only the server could give. This would block all loop devices. So a separate process makes these
//! calls: when the server dies, its connection to the kernel closes, and the call fails. For the
//! same reason, `stat` of a file that the server serves runs in the separate process.

mod backings;

use super::super::system;
use super::sentence;
pub(in super::super) use backings::ASK;
use farblock_attach::fuse::loop_device::{self, Error};
use farblock_program::error::{Failure, Result, os};
use farblock_program::output;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[derive(Serialize, Deserialize)]
enum Task {
    /// Attach a loop device to the file.
    Attach {
        file: PathBuf,
        block_size: u32,
        read_only: bool,
    },
    Detach {
        device: PathBuf,
        force: bool,
    },
    /// Make the kernel read the new size of the file, and of the loop device if there is one.
    Resize {
        file: PathBuf,
        device: Option<PathBuf>,
    },
    /// Report the backing files of loop devices.
    Backings {
        devices: Vec<PathBuf>,
    },
}

/// The reason why a task failed.
#[derive(Serialize, Deserialize)]
pub(super) enum Problem {
    /// The device is in use.
    InUse,
    /// Another error, as a sentence.
    Failed(String),
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        match error {
            Error::InUse(..) => Problem::InUse,
            error => Problem::Failed(sentence(error)),
        }
    }
}

impl From<Problem> for String {
    fn from(problem: Problem) -> String {
        match problem {
            Problem::InUse => "the loop device is in use".to_owned(),
            Problem::Failed(sentence) => sentence,
        }
    }
}

/// Creates a loop device on a file, and returns its path.
pub(super) fn attach(file: &Path, block_size: u32, read_only: bool) -> Result<PathBuf, Problem> {
    let made = ask(&Task::Attach { file: file.to_path_buf(), block_size, read_only })?;
    made.ok_or_else(|| Problem::Failed("the helper process returned no loop device".to_owned()))
}

pub(super) fn detach(device: &Path, force: bool) -> Result<(), Problem> {
    ask(&Task::Detach { device: device.to_path_buf(), force }).map(drop)
}

/// Makes the kernel read the new size of a file and of its loop device.
pub(super) fn resize(file: &Path, device: Option<&Path>) -> Result<(), Problem> {
    let device = device.map(Path::to_path_buf);
    ask(&Task::Resize { file: file.to_path_buf(), device }).map(drop)
}

/// Runs a separate process for the task.
fn ask(task: &Task) -> Result<Option<PathBuf>, Problem> {
    let failed = |error: io::Error| {
        Problem::Failed(format!("cannot run the helper process for a loop device: {}", os(&error)))
    };
    let output = command(task).and_then(|mut command| command.output()).map_err(failed)?;
    let died = |_| format!("the helper process for a loop device died ({})", output.status);
    serde_json::from_slice(&output.stdout).map_err(|error| Problem::Failed(died(error)))?
}

/// The arguments of the separate process, before the task.
const ARGUMENTS: [&str; 2] = ["attachment", "loop"];

fn command(task: &Task) -> io::Result<Command> {
    use std::os::unix::process::CommandExt;
    let program = std::env::current_exe()?;
    let task = serde_json::to_string(task).expect("the task serializes to JSON");
    let mut command = Command::new(system::program(&program));
    // Signals from a terminal must reach only the supervisor.
    command.args(ARGUMENTS).arg(&task).process_group(0);
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    Ok(command)
}

/// The main function of the separate process.
pub(in super::super) fn run(task: &str) -> Result<()> {
    let Ok(task) = serde_json::from_str::<Task>(task) else {
        return Err(Failure::usage("only `farblock attach` can run this command"));
    };
    let done: Result<Option<PathBuf>, Problem> = match task {
        Task::Attach { file, block_size, read_only } => {
            loop_device::attach(&file, block_size, read_only).map(Some).map_err(Problem::from)
        }
        Task::Detach { device, force } => {
            loop_device::detach(&device, force).map(|()| None).map_err(Problem::from)
        }
        Task::Resize { file, device } => show_size(&file, device.as_deref()).map(|()| None),
        Task::Backings { devices } => return backings::answer(devices),
    };
    output::print_json_line(&done)
}

fn show_size(file: &Path, device: Option<&Path>) -> Result<(), Problem> {
    // The kernel has dropped the cached size, and `stat` reads the new one.
    let found = std::fs::metadata(file);
    found.map_err(|error| Problem::Failed(format!("{}: {}", file.display(), os(&error))))?;
    device.map_or(Ok(()), loop_device::resize).map_err(Problem::from)
}
