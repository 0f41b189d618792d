//! The watchdog: a second small process that kills the target at the end of its permit.
//!
//! Between a core's look at the permit and its system call, a signal may stop the process for
//! hours. A disk that refuses nothing would execute the operation after another member has begun.
//! So the watchdog kills the process with SIGKILL unless the permit was renewed in time.
//!
//! The member's thread writes the end of the permit to a memory file with one `pwrite` for each
//! renewal. No core takes part. The watchdog sleeps until the end that it read last, and then reads
//! the file again. A byte through a socket wakes it only when the end became earlier.
//!
//! **Limits.** The freezer of control groups (`docker pause`) and a hypervisor stop the watchdog
//! together with the target. Such machines need disks with complete hard fences, or a watchdog
//! device.

use crate::clock;
use farblock_proto::time::Instant;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal, setsid};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

/// The value of the memory file while nothing is permitted.
const DISARMED: u64 = u64::MAX;

/// The offset of the end of the permit, and of the process identifier.
const END: u64 = 0;
const PROCESS: u64 = 8;

/// A running watchdog, as its target sees it.
#[derive(Debug)]
pub struct Watchdog {
    file: File,
    socket: UnixStream,
    child: Child,
    end: u64,
}

/// Starts the watchdog with a command: a program and its arguments, which call [`run`]. Returns
/// when the watchdog is ready. A program that confines itself calls this before.
///
/// # Errors
/// The program does not start, or ends before it is ready.
pub fn spawn(command: &[OsString]) -> io::Result<Watchdog> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let file = File::from(memfd_create("permit", MemfdFlags::CLOEXEC)?);
    file.write_all_at(&DISARMED.to_le_bytes(), END)?;
    let process = u64::from(std::process::id());
    file.write_all_at(&process.to_le_bytes(), PROCESS)?;
    let (mut socket, its) = UnixStream::pair()?;
    let child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::from(file.try_clone()?))
        .stdout(Stdio::from(OwnedFd::from(its)))
        .spawn()?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    // A program may print text before it calls `run`.
    let mut ready = [1];
    while ready != [0] {
        socket.read_exact(&mut ready)?;
    }
    socket.set_nonblocking(true)?;
    Ok(Watchdog { file, socket, child, end: DISARMED })
}

impl Watchdog {
    /// Sets the time at which the watchdog kills this process; `None`: never. Does not block.
    ///
    /// # Errors
    /// The watchdog does not run any more: nothing may be permitted.
    pub(crate) fn set(&mut self, end: Option<Instant>) -> io::Result<()> {
        let end = end.map_or(DISARMED, |end| end.0);
        let before = std::mem::replace(&mut self.end, end);
        if before != end {
            self.file.write_all_at(&end.to_le_bytes(), END)?;
        }
        if end < before {
            // If the buffer is full, an earlier byte still wakes the watchdog.
            match self.socket.write(&[0]) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
        match self.socket.read(&mut [0]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(()),
        }
    }
}

impl Drop for Watchdog {
    /// Lets the watchdog end, and waits for it if nothing is permitted.
    fn drop(&mut self) {
        if self.end == DISARMED {
            let _ = self.socket.shutdown(std::net::Shutdown::Both);
            let _ = self.child.wait();
        }
    }
}

/// Runs the watchdog in this process, which [`spawn`] created. Returns when the target has ended,
/// or has closed the watchdog while nothing was permitted.
#[must_use]
pub fn run() -> ExitCode {
    match watch() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("watchdog: {error}");
            ExitCode::FAILURE
        }
    }
}

fn word(file: &File, offset: u64) -> io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Opens the target. It is the parent, so its number is not in use again.
fn target(file: &File) -> io::Result<OwnedFd> {
    let number = i32::try_from(word(file, PROCESS)?).ok().and_then(Pid::from_raw);
    let pid = number.ok_or(io::ErrorKind::InvalidData)?;
    let target = pidfd_open(pid, PidfdFlags::empty())?;
    if getppid() != Some(pid) {
        return Err(io::Error::other("its target is not its parent"));
    }
    Ok(target)
}

fn watch() -> io::Result<()> {
    let file = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut socket = UnixStream::from(io::stdout().as_fd().try_clone_to_owned()?);
    let target = target(&file)?;
    // Signals to the terminal's foreground process group do not reach the watchdog.
    let _ = setsid();
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;
    socket.set_nonblocking(true)?;
    socket.write_all(&[0])?;
    let mut is_open = true;
    loop {
        let end = word(&file, END)?;
        if end == DISARMED && !is_open {
            return Ok(());
        }
        if end <= clock::now().0 {
            pidfd_send_signal(&target, Signal::KILL)?;
            return Err(io::Error::other("killed the target at the end of its permit"));
        }
        arm(&timer, end)?;
        let mut files = [
            PollFd::new(&target, PollFlags::IN),
            PollFd::new(&timer, PollFlags::IN),
            PollFd::new(&socket, PollFlags::IN),
        ];
        // A closed socket is always ready.
        let count = if is_open { 3 } else { 2 };
        match poll(&mut files[..count], None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        if !files[0].revents().is_empty() {
            return Ok(());
        }
        if is_open && !files[2].revents().is_empty() {
            let mut bytes = [0; 64];
            is_open = match socket.read(&mut bytes) {
                Ok(count) => count > 0,
                Err(error) => error.kind() == io::ErrorKind::WouldBlock,
            };
        }
    }
}

fn arm(timer: &OwnedFd, end: u64) -> io::Result<()> {
    let at = if end == DISARMED { 0 } else { end.max(1) };
    let seconds = i64::try_from(at / 1_000_000_000).unwrap_or(i64::MAX);
    let value = Timespec { tv_sec: seconds, tv_nsec: (at % 1_000_000_000) as _ };
    let never = Timespec { tv_sec: 0, tv_nsec: 0 };
    let spec = Itimerspec { it_interval: never, it_value: value };
    timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &spec)?;
    Ok(())
}
