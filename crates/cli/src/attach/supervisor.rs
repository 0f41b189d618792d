//! The process that has a server run, and runs the next one if it dies.
//!
//! ```text
//! Starting -- ready --> Serving -- died --> Waiting -- pause over --> Restarting -- ready --+
//!    | failed           |     ^               ^ |                         | failed          |
//!    v                  |     |               +-|-------------------------+                 |
//!   end (error)         |     +-----------------|-------------------------------------------+
//!                       v                       v
//!                      end (detached)         end (error: for longer than ctrl-loss-timeout)
//! ```
//! It does nothing but wait, and keeps what a successor needs (docs/decisions/0007). It is not in
//! the way of the data, has one thread and no connection, so there is little that could end it.

use super::folder::{Folder, Lock};
use super::messages::{Channel, Order, Report};
use super::notify::Notifier;
use super::settings::Settings;
use super::status::Offer;
use crate::args::Global;
use crate::error::{Failure, Result, os};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The pause before a server is started again that served for a while: none.
const FIRST_PAUSE: Duration = Duration::ZERO;
/// The next one, which doubles from there on.
const SECOND_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// How often the log's size is looked at.
const LOG_LOOK_EVERY: Duration = Duration::from_secs(600);
/// A server that ran for so long was well.
const WELL_AFTER: Duration = Duration::from_secs(10);

/// Who is told of the first server's fate.
pub(super) trait Audience {
    fn ready(&mut self, offer: &Offer) -> Result<()>;

    /// Where it can be seen that nobody waits any more.
    fn channel(&self) -> Option<&Channel> {
        None
    }
}

/// See the module's text.
pub(super) struct Supervisor<'a> {
    folder: Folder,
    _lock: Lock,
    global: &'a Global,
    notifier: Notifier,
    signals: UnixStream,
    /// What servers are to be given up after, when none of them serves any more.
    patience: Option<Duration>,
    /// What is kept for the next server.
    kept: Option<OwnedFd>,
    /// Was asked to end.
    ending: bool,
    /// Some server was ready.
    was_ready: bool,
    program: PathBuf,
}

/// How a server ended.
enum End {
    /// The disk is detached.
    Detached,
    Died {
        why: String,
        /// Since when it had served, if it had.
        ready: Option<Instant>,
    },
}

/// What there was to hear of.
struct Heard {
    server: bool,
    signal: bool,
    audience: bool,
}

impl<'a> Supervisor<'a> {
    pub(super) fn new(folder: Folder, lock: Lock, global: &'a Global) -> Result<Supervisor<'a>> {
        let failed = |error: io::Error| Failure::run(os(&error));
        let settings: Option<Settings> = folder.read_json("settings.json");
        let Some(settings) = settings else {
            return Err(Failure::run("there are no settings to be read"));
        };
        let (read, write) = UnixStream::pair().map_err(failed)?;
        read.set_nonblocking(true).map_err(failed)?;
        for signal in [SIGTERM, SIGINT] {
            let write = write.try_clone().map_err(failed)?;
            signal_hook::low_level::pipe::register(signal, write).map_err(failed)?;
        }
        folder.write("pid", &format!("{}\n", std::process::id())).map_err(failed)?;
        Ok(Supervisor {
            folder,
            _lock: lock,
            global,
            notifier: Notifier::from_environment(),
            signals: read,
            patience: settings.disk_options().ctrl_loss_timeout,
            kept: None,
            ending: false,
            was_ready: false,
            program: std::env::current_exe().map_err(failed)?,
        })
    }

    /// Supervises until the disk is detached. `resume`: what a dead server left is to be gone on
    /// with.
    pub(super) fn run(mut self, mut resume: bool, audience: &mut dyn Audience) -> Result<()> {
        let mut pause = FIRST_PAUSE;
        let mut dead_since = None;
        loop {
            let end = self.run_server(resume, audience)?;
            let End::Died { why, ready } = end else {
                self.notifier.stopping("the disk is detached");
                self.folder.remove();
                return Ok(());
            };
            if !self.was_ready {
                if !resume {
                    self.folder.remove();
                }
                return Err(Failure::Run(why));
            }
            resume = true;
            if ready.is_some() {
                dead_since = None;
            }
            let since = *dead_since.get_or_insert_with(Instant::now);
            if self.patience.is_some_and(|patience| since.elapsed() > patience) {
                let sentence = format!("given up: {why}");
                self.trouble(&sentence);
                return Err(Failure::Run(sentence));
            }
            if ready.is_some_and(|ready| ready.elapsed() > WELL_AFTER) {
                pause = FIRST_PAUSE;
            }
            self.trouble(&why);
            self.rest(pause)?;
            pause = (pause * 2).clamp(SECOND_PAUSE, MAX_PAUSE);
        }
    }

    /// Notes why there is no server.
    fn trouble(&self, why: &str) {
        tracing::error!("{why}");
        self.notifier.status(&format!("restarting: {why}"));
        if let Err(error) = self.folder.write("trouble", why) {
            tracing::warn!("trouble: {}", os(&error));
        }
    }

    /// Runs one server from its start to its end.
    fn run_server(&mut self, resume: bool, audience: &mut dyn Audience) -> Result<End> {
        let failed = |error: io::Error| {
            Failure::run(format_args!("cannot start a process to serve: {}", os(&error)))
        };
        let (channel, mut child) = self.spawn().map_err(failed)?;
        let order = Order { resume };
        // If it died already, that is seen below.
        let _ = channel.send(&order, self.kept.as_ref().map(AsFd::as_fd));
        let (mut why, mut ready) = (None, None);
        loop {
            let waiting = if self.was_ready { None } else { audience.channel() };
            let heard = self.listen(Some(&channel), waiting, Some(LOG_LOOK_EVERY));
            let heard = heard.map_err(failed)?;
            self.folder.bound_log();
            if heard.signal || heard.audience && !self.was_ready {
                self.ending = true;
                terminate(&child);
            }
            if !heard.server {
                continue;
            }
            match channel.receive::<Report>() {
                Ok(Some((Report::Ready(offer), kept))) => {
                    ready = Some(Instant::now());
                    self.take_ready(&offer, kept, audience)?;
                    if self.ending {
                        terminate(&child);
                    }
                }
                Ok(Some((Report::Failed(sentence), _))) => why = Some(sentence),
                Ok(Some((Report::Status(line), _))) => self.notifier.status(&line),
                Ok(Some((Report::Ending(line), _))) => self.notifier.stopping(&line),
                Ok(None) | Err(_) => break,
            }
        }
        let status = child.wait().map_err(failed)?;
        if status.success() {
            return Ok(End::Detached);
        }
        let why = why.unwrap_or_else(|| format!("the process that served it died ({status})"));
        Ok(End::Died { why, ready })
    }

    fn take_ready(
        &mut self,
        offer: &Offer,
        kept: Option<OwnedFd>,
        audience: &mut dyn Audience,
    ) -> Result<()> {
        // The same connection again, if a server went on with it: it is kept once.
        self.kept = kept;
        let _ = std::fs::remove_file(self.folder.path("trouble"));
        if !self.was_ready {
            self.was_ready = true;
            self.notifier.ready(&offer.sentence());
            audience.ready(offer)?;
        } else {
            tracing::warn!("the disk is served again");
            self.notifier.status("live");
        }
        Ok(())
    }

    /// A server, and the way to talk to it.
    fn spawn(&self) -> io::Result<(Channel, Child)> {
        let (channel, theirs) = Channel::pair()?;
        let mut command = again(&self.program, self.global);
        command.args(["attachment".as_ref(), "serve".as_ref(), self.folder.0.as_os_str()]);
        Notifier::hide_from(&mut command);
        command.stdin(theirs).stdout(Stdio::null()).current_dir("/");
        Ok((channel, command.spawn()?))
    }

    /// Waits before the next server, for a signal too.
    fn rest(&mut self, pause: Duration) -> Result<()> {
        let until = Instant::now() + pause;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let heard = self.listen(None, None, Some(left));
            // The next server is told, which alone can say whether somebody uses the disk.
            self.ending |= heard.map_err(|error| Failure::run(os(&error)))?.signal;
        }
    }

    fn listen(
        &mut self,
        server: Option<&Channel>,
        audience: Option<&Channel>,
        timeout: Option<Duration>,
    ) -> io::Result<Heard> {
        let signals = self.signals.as_fd();
        let others = [server, audience].map(|channel| channel.map_or(signals, AsFd::as_fd));
        let mut polled = [signals, others[0], others[1]]
            .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
        let timeout = timeout.map(|time| Timespec {
            tv_sec: time.as_secs().cast_signed(),
            tv_nsec: time.subsec_nanos().into(),
        });
        match rustix::event::poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let has_news = |index: usize| !polled[index].revents().is_empty();
        let heard = Heard {
            signal: has_news(0),
            server: server.is_some() && has_news(1),
            audience: audience.is_some() && has_news(2),
        };
        if heard.signal {
            // How many came does not matter.
            let _ = (&self.signals).read(&mut [0; 64]);
        }
        Ok(heard)
    }
}

/// Asks a server to end when nobody uses the disk.
fn terminate(child: &Child) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    // It is there until it is waited for.
    let sent = pid.map(|pid| rustix::process::kill_process(pid, Signal::TERM));
    if let Some(Err(error)) = sent {
        tracing::error!("the server cannot be asked to end: {error}");
    }
}

/// This program once more, with the same options that all commands have.
pub(super) fn again(program: &Path, global: &Global) -> Command {
    // It may have been replaced by a newer one, which is fine, or removed.
    let mut command =
        Command::new(if program.exists() { program } else { Path::new("/proc/self/exe") });
    command.args((0..global.verbose).map(|_| "--verbose"));
    if global.quiet {
        command.arg("--quiet");
    }
    command
}
