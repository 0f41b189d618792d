//! The targets and hosts that the measuring stand starts. Each process is pinned to a processor,
//! paused while another side runs, and killed at the end.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use farblock_bench::CpuSource;
use farblock_bench::cpu::{OtherProcess, resident_memory_bytes};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The time limit for a process to become ready, or to exit.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// The time limit for a process to clean up after an order to stop.
const OBEDIENCE: Duration = Duration::from_secs(10);
/// The number of output lines that an error quotes.
const QUOTED_LINES: usize = 4;

/// A process. Dropping this kills the process.
pub(crate) struct Process {
    name: String,
    child: Child,
    pid: Pid,
    cpu: OtherProcess,
    output: Receiver<String>,
    /// All output lines so far, from stdout and stderr.
    lines: Vec<String>,
}

impl Process {
    pub(crate) fn start(command: Command, cpu: usize) -> Result<Process, String> {
        Process::start_with(command, cpu, Stdio::null())
    }

    /// Starts a server that cleans up and exits when it reads `stop` from its input.
    pub(crate) fn start_obedient(command: Command, cpu: usize) -> Result<Process, String> {
        Process::start_with(command, cpu, Stdio::piped())
    }

    fn start_with(mut command: Command, cpu: usize, input: Stdio) -> Result<Process, String> {
        let name = command.get_program().to_string_lossy().into_owned();
        let name = name.rsplit('/').next().unwrap_or_default().to_owned();
        command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = spawn_pinned(&mut command, cpu)
            .map_err(|error| format!("cannot start {}: {error}", describe(&command)))?;
        let (sender, output) = mpsc::channel();
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        follow(stdout.expect("the child's stream is a pipe"), sender.clone());
        follow(stderr.expect("the child's stream is a pipe"), sender);
        let cpu = OtherProcess::new(child.id())
            .map_err(|error| format!("cannot read the processor time of {name}: {error}"))?;
        let pid = Pid::from_child(&child);
        Ok(Process { name, child, pid, cpu, output, lines: Vec::new() })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn cpu_time(&self) -> Duration {
        self.cpu.cpu_time()
    }

    pub(crate) fn memory_bytes(&self) -> Option<u64> {
        resident_memory_bytes(self.id())
    }

    /// Stops the process without killing it, so that it uses no processor while other sides run.
    pub(crate) fn pause(&self) {
        let _ = kill_process(self.pid, Signal::STOP);
    }

    pub(crate) fn resume(&self) {
        let _ = kill_process(self.pid, Signal::CONT);
    }

    /// Waits for an output line in which `wanted` finds a value.
    pub(crate) fn wait_for<T>(&mut self, wanted: impl Fn(&str) -> Option<T>) -> Result<T, String> {
        let deadline = Instant::now() + WAIT_LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(line) => {
                    let found = wanted(&line);
                    self.lines.push(line);
                    if let Some(found) = found {
                        return Ok(found);
                    }
                }
                Err(RecvTimeoutError::Timeout) => return Err(self.complain("did not become ready")),
                Err(RecvTimeoutError::Disconnected) => return Err(self.complain("ended")),
            }
        }
    }

    /// Waits for the exit of the process. Returns its output.
    pub(crate) fn finish(mut self, limit: Duration) -> Result<String, String> {
        let deadline = Instant::now() + limit + WAIT_LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(line) => self.lines.push(line),
                Err(RecvTimeoutError::Timeout) => return Err(self.complain("did not exit in time")),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        match self.child.wait() {
            Ok(status) if status.success() => Ok(self.lines.join("\n")),
            Ok(status) => Err(self.complain(&format!("failed ({status})"))),
            Err(error) => Err(self.complain(&format!("cannot be observed: {error}"))),
        }
    }

    fn ends_within(&mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return true;
            }
            thread::sleep(Duration::from_millis(5));
        }
        false
    }

    fn complain(&mut self, what: &str) -> String {
        self.lines.extend(self.output.try_iter());
        let first = self.lines.len().saturating_sub(QUOTED_LINES);
        format!("{} {what}: {}", self.name, self.lines[first..].join(" / "))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.resume();
        if let Some(mut input) = self.child.stdin.take() {
            let _ = input.write_all(b"stop\n");
            drop(input);
            if self.ends_within(OBEDIENCE) {
                return;
            }
        }
        let _ = kill_process(self.pid, Signal::TERM);
        if !self.ends_within(Duration::from_secs(2)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The command as a user would type it in a shell.
pub(crate) fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Starts a child process on one processor. The child inherits the affinity of this thread, which
/// is set only for the start.
fn spawn_pinned(command: &mut Command, cpu: usize) -> std::io::Result<Child> {
    let before = sched_getaffinity(None)?;
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only)?;
    let child = command.spawn();
    sched_setaffinity(None, &before)?;
    child
}

fn follow(output: impl std::io::Read + Send + 'static, lines: mpsc::Sender<String>) {
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                return;
            }
        }
    });
}
