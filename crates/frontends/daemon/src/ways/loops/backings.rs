//! Queries the loop driver for the backing files of loop devices, in a separate process.
//!
//! A query may wait forever for the disk under a loop device. So this module makes no further query
//! for that device until the first is answered. This limits the number of waiting processes.

use super::super::super::system;
use super::{ARGUMENTS, Task, command};
use farblock_frontend::users::loops::{Ask, DriverAnswer, sequence};
use farblock_program::error::Result;
use farblock_program::output;
use farblock_reactor::loop_device::{self, Backing, Underlying};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit for the driver's answers.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// Time limit for the separate process. It is shorter than the time that a command waits for a
/// server's status.
const PROCESS_TIME: Duration = Duration::from_secs(2);

/// The functions with which farblock queries the loop driver.
pub(in super::super::super) const ASK: Ask = Ask { backings: ask, only_asks };

/// The driver's answer about a device, in a form that a process can send. Without an answer there
/// is no value.
#[derive(Serialize, Deserialize, Clone, Copy)]
enum Below {
    File { device: u64, inode: u64 },
    Device(u64),
    Refused,
}

impl From<Underlying> for Below {
    fn from(backing: Underlying) -> Below {
        match backing {
            Underlying::File { device, inode } => Below::File { device, inode },
            Underlying::Device(number) => Below::Device(number),
        }
    }
}

impl From<Below> for DriverAnswer {
    fn from(below: Below) -> DriverAnswer {
        match below {
            Below::File { device, inode } => DriverAnswer::On(Underlying::File { device, inode }),
            Below::Device(number) => DriverAnswer::On(Underlying::Device(number)),
            Below::Refused => DriverAnswer::Refused,
        }
    }
}

/// A process with unanswered queries.
struct Waiting {
    process: Child,
    /// Devices without an answer. The number is the device's sequence number at the time of the
    /// query.
    devices: Vec<(PathBuf, Option<u64>)>,
    /// Receives the line that contains the answers.
    told: mpsc::Receiver<String>,
}

static WAITING: Mutex<Vec<Waiting>> = Mutex::new(Vec::new());

fn ask(devices: &[PathBuf]) -> Vec<DriverAnswer> {
    let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    let is_asked = |device: &PathBuf| {
        waiting.iter().flat_map(|it| &it.devices).any(|(asked, _)| asked == device)
    };
    let wanted: Vec<_> = devices.iter().filter(|it| !is_asked(it)).cloned().collect();
    waiting.extend(start(wanted));
    let deadline = Instant::now() + PROCESS_TIME;
    let mut answers = BTreeMap::new();
    waiting.iter_mut().for_each(|it| it.collect(deadline, &mut answers));
    waiting.retain_mut(|it| !it.devices.is_empty() && matches!(it.process.try_wait(), Ok(None)));
    devices.iter().map(|device| answers.remove(device).unwrap_or(DriverAnswer::Silent)).collect()
}

/// Starts a process that queries these devices. `None` if `devices` is empty.
fn start(devices: Vec<PathBuf>) -> Option<Waiting> {
    if devices.is_empty() {
        return None;
    }
    let devices: Vec<_> = devices.into_iter().map(|it| (it.clone(), sequence(&it))).collect();
    let asked = devices.iter().map(|(device, _)| device.clone()).collect();
    let mut command = command(&Task::Backings { devices: asked }).ok()?;
    let mut process = command.stdout(Stdio::piped()).spawn().ok()?;
    let stdout = process.stdout.take()?;
    let (tell, told) = mpsc::channel();
    let read = move || {
        let mut line = String::new();
        let _ = BufReader::new(stdout).read_line(&mut line);
        let _ = tell.send(line);
    };
    thread::Builder::new().name("loop-device".to_owned()).spawn(read).ok()?;
    Some(Waiting { process, devices, told })
}

impl Waiting {
    /// Waits for the answers until the deadline. The answers may be to queries of an earlier call.
    /// Ignores answers about devices that have changed since the query.
    fn collect(&mut self, deadline: Instant, answers: &mut BTreeMap<PathBuf, DriverAnswer>) {
        let time = deadline.saturating_duration_since(Instant::now());
        let Ok(line) = self.told.recv_timeout(time) else { return };
        let told: Vec<Option<Below>> = serde_json::from_str(&line).unwrap_or_default();
        let mut told = told.into_iter();
        self.devices.retain(|(device, asked)| {
            let Some(answer) = told.next().flatten() else { return true };
            if sequence(device) == *asked {
                answers.insert(device.clone(), answer.into());
            }
            false
        });
        if self.devices.is_empty() {
            let _ = self.process.wait();
        }
    }
}

/// The main function of the separate process. Each device has its own thread.
pub(super) fn answer(devices: Vec<PathBuf>) -> Result<()> {
    let (tell, told) = mpsc::channel();
    let mut answers = vec![None; devices.len()];
    for (at, device) in devices.into_iter().enumerate() {
        let tell = tell.clone();
        thread::spawn(move || tell.send((at, backing(&device))));
    }
    drop(tell);
    let deadline = Instant::now() + ANSWER_TIME;
    while let Ok((at, backing)) =
        told.recv_timeout(deadline.saturating_duration_since(Instant::now()))
    {
        answers[at] = Some(backing.map_or(Below::Refused, Below::from));
    }
    output::print_json_line(&answers)
}

fn backing(device: &Path) -> Option<Underlying> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let device = File::options().read(true).custom_flags(flags).open(device).ok()?;
    loop_device::backing(&device).ok().as_ref().map(Backing::underlying)
}

/// Whether a process is such a separate process, which only makes queries.
fn only_asks(pid: u32) -> bool {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let arguments = fs::read(process.join("cmdline")).unwrap_or_default();
    let mut words = arguments.split(|&byte| byte == 0).skip(1);
    let asks = ARGUMENTS.iter().all(|word| words.next() == Some(word.as_bytes()));
    let task = words.next().and_then(|task| serde_json::from_slice::<Task>(task).ok());
    asks && matches!(task, Some(Task::Backings { .. })) && is_this_program(&process.join("exe"))
}

fn is_this_program(program: &Path) -> bool {
    let Ok(own) = std::env::current_exe() else { return false };
    let inode = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    inode(program).is_some_and(|program| inode(system::program(&own)) == Some(program))
}
