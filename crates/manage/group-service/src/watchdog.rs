//! The watchdog: a second small process that kills the target at the end of its permit, which
//! allows I/O until a certain time.
//!
//! Between a core's check of the permit and its system call, SIGSTOP may stop the process for
//! hours. A disk without a hard fence (one that cannot refuse an earlier leader's I/O) would
//! execute the operation after another member has begun. So the watchdog kills the process with
//! SIGKILL unless the permit was renewed in time.
//!
//! The member's thread writes the end of the permit to a memory file with one `pwrite` for each
//! renewal. No core takes part. The watchdog sleeps until the end that it read last, and then reads
//! the file again. A byte through a socket wakes it only when the end became earlier.
//!
//! **After the end of the target**, whatever its cause, the watchdog waits until no operation of
//! the target is in flight (`proof.rs`). Then it releases the target's leaderships in etcd. Without
//! this release, other members wait until the lease and the permits have ended, and then for the
//! slowest operation. The watchdog ignores the signals that a supervisor sends to all processes of
//! a service.
//!
//! **Limits.** The freezer of control groups (`docker pause`) and a hypervisor stop the watchdog
//! together with the target. Such machines need disks with complete hard fences, or a watchdog
//! device.

use crate::clock;
use crate::ended::{self, Disks};
use crate::notice::{Enlisted, MAX_BYTES, Notice, Reporter};
use crate::proof::Disk;
use farblock_proto::time::Instant;
use nix::sys::signal::{SigSet, Signal as Ignored};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair,
};
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal, setsid};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

/// The value of the memory file while the target has no permit.
const DISARMED: u64 = u64::MAX;

/// Offsets in the memory file: the end of the permit, and the process identifier.
const END: u64 = 0;
const PROCESS: u64 = 8;

/// The time limit for the start of a watchdog.
const START_LIMIT: Duration = Duration::from_secs(10);

/// A running watchdog, as its target sees it.
#[derive(Debug)]
pub struct Watchdog {
    file: File,
    socket: Arc<OwnedFd>,
    child: Child,
    end: u64,
}

/// Starts the watchdog with a command: a program and its arguments, which call [`run`]. Returns
/// when the watchdog is ready. Call this before the process drops its rights.
///
/// # Errors
/// The program does not start, or ends before it is ready.
pub fn spawn(command: &[OsString]) -> io::Result<Watchdog> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let file = File::from(memfd_create("permit", MemfdFlags::CLOEXEC)?);
    file.write_all_at(&DISARMED.to_le_bytes(), END)?;
    let process = u64::from(std::process::id());
    file.write_all_at(&process.to_le_bytes(), PROCESS)?;
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let (socket, its) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
    let child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::from(file.try_clone()?))
        .stdout(Stdio::from(its))
        .spawn()?;
    await_ready(&socket)?;
    Ok(Watchdog { file, socket: Arc::new(socket), child, end: DISARMED })
}

/// Waits for the packet with the byte 0, which [`run`] sends. A program may print other text
/// before.
fn await_ready(socket: &OwnedFd) -> io::Result<()> {
    let end = Clock::now() + START_LIMIT;
    loop {
        let left = end.saturating_duration_since(Clock::now());
        let left = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
        let mut files = [PollFd::new(socket, PollFlags::IN)];
        match poll(&mut files, Some(&left)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut bytes = [1; 64];
        match recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((_, 1)) if bytes[0] == 0 => return Ok(()),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

impl Watchdog {
    /// Sets the time at which the watchdog kills this process; `None`: never. Does not block.
    ///
    /// # Errors
    /// The watchdog has ended, so the member may permit no I/O.
    pub(crate) fn set(&mut self, end: Option<Instant>) -> io::Result<()> {
        let end = end.map_or(DISARMED, |end| end.0);
        let before = std::mem::replace(&mut self.end, end);
        if before != end {
            self.file.write_all_at(&end.to_le_bytes(), END)?;
        }
        if end < before {
            // If the buffer is full, an earlier packet still wakes the watchdog.
            match send(&self.socket, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) | Err(Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match recv(&self.socket, &mut [0; 1][..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns a sender that reports opened and closed disks to the watchdog.
    #[must_use]
    pub fn reporter(&self) -> Reporter {
        Reporter::new(Arc::clone(&self.socket))
    }

    /// Lets the watchdog release the leaderships of this process after its end.
    pub(crate) fn enlist(&self, enlisted: Enlisted) -> io::Result<()> {
        self.reporter().send(&Notice::Enlist(Box::new(enlisted)))
    }

    /// Reports that the member has closed the disks of an ANA group.
    pub(crate) fn closed(&self, group: u32) {
        // Ignore an error: the next permit notices that the watchdog has ended.
        let _ = self.reporter().send(&Notice::Closed { group });
    }
}

impl Drop for Watchdog {
    /// Tells the watchdog to end, and waits for its end if the target has no permit.
    fn drop(&mut self) {
        if self.end == DISARMED {
            let _ = self.reporter().send(&Notice::Farewell);
            let _ = shutdown(&self.socket, Shutdown::Both);
            let _ = self.child.wait();
        }
    }
}

/// Runs the watchdog in this process, which [`spawn`] created. Returns when the target has ended,
/// or has dropped its [`Watchdog`] while it had no permit.
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

/// Opens a pidfd of the target, which is the parent process. While the parent lives, no other
/// process can have its process ID.
fn target(file: &File) -> io::Result<OwnedFd> {
    let number = i32::try_from(word(file, PROCESS)?).ok().and_then(Pid::from_raw);
    let pid = number.ok_or(io::ErrorKind::InvalidData)?;
    let target = pidfd_open(pid, PidfdFlags::empty())?;
    if getppid() != Some(pid) {
        return Err(io::Error::other("the watched process is not the watchdog's parent"));
    }
    Ok(target)
}

fn watch() -> io::Result<()> {
    let file = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let socket = io::stdout().as_fd().try_clone_to_owned()?;
    let target = target(&file)?;
    // Signals to the terminal's foreground process group do not reach the watchdog.
    let _ = setsid();
    let ignored = [Ignored::SIGTERM, Ignored::SIGINT, Ignored::SIGHUP];
    ignored.into_iter().collect::<SigSet>().thread_block()?;
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;
    send(&socket, &[0], SendFlags::NOSIGNAL)?;
    let mut ward =
        Ward { socket, is_open: true, says_farewell: false, member: None, disks: Disks::new() };
    loop {
        let end = word(&file, END)?;
        if end == DISARMED && ward.says_farewell {
            return Ok(());
        }
        if end <= clock::now().0 {
            pidfd_send_signal(&target, Signal::KILL)?;
            eprintln!("watchdog: killed the target at the end of its permit");
            poll_once(&mut [PollFd::new(&target, PollFlags::IN)])?;
            return ward.settle();
        }
        arm(&timer, end)?;
        let mut files = [
            PollFd::new(&target, PollFlags::IN),
            PollFd::new(&timer, PollFlags::IN),
            PollFd::new(&ward.socket, PollFlags::IN),
        ];
        // Do not poll a closed socket, which is always ready.
        let count = if ward.is_open { 3 } else { 2 };
        poll_once(&mut files[..count])?;
        let (has_ended, is_told) = (!files[0].revents().is_empty(), !files[2].revents().is_empty());
        if has_ended {
            return ward.settle();
        }
        if ward.is_open && is_told {
            ward.receive();
        }
    }
}

/// Waits for one of the files. Only a signal that is not blocked ends the wait early.
fn poll_once(files: &mut [PollFd<'_>]) -> io::Result<()> {
    loop {
        match poll(files, None) {
            Err(Errno::INTR) => {}
            other => return Ok(other.map(|_| ())?),
        }
    }
}

/// The member as its watchdog knows it.
struct Ward {
    socket: OwnedFd,
    is_open: bool,
    says_farewell: bool,
    member: Option<Box<Enlisted>>,
    disks: Disks,
}

impl Ward {
    /// Reads all messages that have arrived.
    fn receive(&mut self) {
        let mut bytes = vec![0; MAX_BYTES];
        loop {
            match recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return self.is_open = false,
                Ok((_, length)) => {
                    if let Ok(notice) = serde_json::from_slice(&bytes[..length.min(MAX_BYTES)]) {
                        self.take(notice);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => return self.is_open = false,
            }
        }
    }

    fn take(&mut self, notice: Notice) {
        match notice {
            Notice::Enlist(member) => self.member = Some(member),
            Notice::Opened { group, path } => {
                let disk = Disk::open(path.as_deref());
                self.disks.entry(group).or_default().push(disk);
            }
            Notice::Closed { group } => {
                self.disks.remove(&group);
            }
            Notice::Farewell => self.says_farewell = true,
        }
    }

    /// Releases the leaderships of the member, whose process has ended.
    fn settle(mut self) -> io::Result<()> {
        self.receive();
        let Some(member) = self.member.filter(|_| !self.says_farewell) else { return Ok(()) };
        ended::settle(&member, self.disks)
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
