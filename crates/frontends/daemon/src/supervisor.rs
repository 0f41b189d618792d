//! The supervisor of an attachment: starts the server that serves the disk, and restarts it if it
//! dies.
//!
//! ```text
//! Starting -- ready --> Serving -- died --> Waiting -- pause over --> Restarting -- ready --+
//!    | failed           |     ^               ^ |                         | failed          |
//!    v                  |     |               +-|-------------------------+                 |
//!   end (error)         |     +-----------------|-------------------------------------------+
//!                       v                       v
//!                      end (detached)         end (error: for longer than ctrl-loss-timeout)
//! ```
//! The supervisor only waits, and keeps the descriptor that the next server needs
//! (docs/decisions/0011). It has no network connection and handles no data, so it seldom dies. One
//! thread makes all decisions. Each other thread waits for one kind of event and passes it on.

use super::folder::{Folder, Lock, Role};
use super::messages::{Order, Report};
use super::settings::Settings;
use super::status::Offer;
use super::system::{self, Channel, Descriptor, Notifier};
use super::ways;
use farblock_program::args::Global;
use farblock_program::error::{Failure, Result, os};
use farblock_program::signals;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// The pause before the restart of a server that has served for a while.
const FIRST_PAUSE: Duration = Duration::ZERO;
/// The second pause. Each later pause is twice the previous one.
const SECOND_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// Interval between checks of the log's size.
const LOG_LOOK_EVERY: Duration = Duration::from_secs(600);
/// Time limit for a server's exit after it has closed its channel.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a server to exit when the attach is cancelled before it is ready. The server may be
/// creating a device, so the supervisor does not kill it at once.
const START_TIMEOUT: Duration = Duration::from_secs(1);
/// Polling interval for the server's exit.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The name under which systemd keeps the descriptor for the next supervisor.
pub(super) const KEPT: &str = "farblock-connection";
/// After a server that served for this long, pauses begin at [`FIRST_PAUSE`] again.
const WELL_AFTER: Duration = Duration::from_secs(10);

/// Receives the result of the first server's start: for example, the waiting `farblock attach`.
pub(super) trait Audience {
    fn ready(&mut self, offer: &Offer) -> Result<()>;

    /// Records that the server connected the disk, but this way to attach failed.
    /// [`Supervisor::run`] then returns the error.
    fn way_failed(&mut self) {}

    /// The channel to the waiting `farblock attach`, which closes when that process exits.
    fn channel(&self) -> Option<Arc<Channel>> {
        None
    }
}

/// The supervisor of an attachment; see the module documentation.
pub(super) struct Supervisor<'a> {
    folder: Folder,
    lock: Lock,
    global: &'a Global,
    notifier: Notifier,
    events: Receiver<Event>,
    /// Sends events to this thread. Each thread that waits for an event gets a copy.
    sender: Sender<Event>,
    /// The supervisor gives up after this time without a working server. `None`: never.
    patience: Option<Duration>,
    /// The descriptor that the next server needs: for FUSE, the connection to the kernel. If this
    /// process is a service, systemd keeps a copy in case this process dies.
    kept: Option<Descriptor>,
    /// The channel to a server that another supervisor started.
    adopted: Option<Channel>,
    /// Whether the supervisor has received a request to exit.
    ending: bool,
    /// Whether at least one server was ready.
    was_ready: bool,
    program: PathBuf,
}

/// The result of a server's run.
enum End {
    Detached,
    Died {
        why: String,
        /// The time at which the server became ready, if it did.
        ready: Option<Instant>,
    },
}

/// The exit of a server's process.
enum Ended {
    With(ExitStatus),
    /// The process has exited with an unknown status: another supervisor started it.
    Unseen,
    Not,
}

/// The trouble text starts with this prefix once the supervisor has given up.
pub(super) const GIVEN_UP: &str = "given up: ";

/// Events for the supervisor's thread.
enum Event {
    Signal,
    /// The `farblock attach` command no longer waits for the disk.
    AudienceGone,
    /// A report from the server, with the descriptor to keep for the next server.
    Report(Report, Option<Descriptor>),
    /// The server has closed its channel, because it is exiting.
    ServerGone,
}

impl<'a> Supervisor<'a> {
    pub(super) fn new(folder: Folder, lock: Lock, global: &'a Global) -> Result<Supervisor<'a>> {
        let failed = |error: io::Error| Failure::run(os(&error));
        let settings: Option<Settings> = folder.read_json("settings.json");
        let Some(settings) = settings else {
            return Err(Failure::run("the settings of the attachment are unreadable"));
        };
        let (sender, events) = mpsc::channel();
        let signalled = sender.clone();
        signals::on_each(move || drop(signalled.send(Event::Signal))).map_err(failed)?;
        folder.write_process(Role::Supervisor).map_err(failed)?;
        Ok(Supervisor {
            folder,
            lock,
            global,
            notifier: Notifier::from_environment(),
            events,
            sender,
            patience: settings.disk_options().ctrl_loss_timeout,
            kept: None,
            adopted: None,
            ending: false,
            was_ready: false,
            program: std::env::current_exe().map_err(failed)?,
        })
    }

    /// Takes the descriptor that systemd kept for a supervisor that was killed together with its
    /// server.
    pub(super) fn take_back(&mut self, kept: Option<Descriptor>) {
        self.kept = kept;
    }

    /// Adopts a running server whose supervisor has died.
    #[cfg(target_os = "linux")]
    pub(super) fn adopt(&mut self) -> Result<()> {
        let channel = super::adopt::channel(&self.folder).map_err(|error| {
            let (name, error) = (self.folder.name(), os(&error));
            Failure::run(format_args!(
                "{name} is already attached, and its server does not accept another supervisor \
                 ({error}): detach it, or try again"
            ))
        })?;
        self.adopted = Some(channel);
        Ok(())
    }

    /// Supervises until the disk is detached. With `resume`, the first server takes over the disk
    /// of a dead server.
    pub(super) fn run(mut self, mut resume: bool, audience: &mut dyn Audience) -> Result<()> {
        let mut pause = FIRST_PAUSE;
        let mut dead_since = None;
        if !resume && self.kept.take().is_some() {
            // The descriptor is of an attachment that no longer exists, so systemd need not keep
            // it.
            self.notifier.forget(KEPT);
        }
        if let Some(channel) = audience.channel() {
            self.watch_audience(channel).map_err(|error| Failure::run(os(&error)))?;
        }
        loop {
            let end = self.run_server(resume, audience)?;
            let End::Died { why, ready } = end else {
                self.notifier.stopping("the disk is detached");
                self.notifier.forget(KEPT);
                self.folder.remove(self.lock);
                return Ok(());
            };
            if !self.was_ready {
                let given_up = self.ending && !resume;
                if !resume {
                    self.clear_away();
                    self.folder.remove(self.lock);
                }
                return Err(match given_up {
                    true => Failure::Interrupted("interrupted: nothing is attached".to_owned()),
                    false => Failure::Run(why),
                });
            }
            resume = true;
            if ready.is_some() {
                dead_since = None;
            }
            let since = *dead_since.get_or_insert_with(Instant::now);
            if self.patience.is_some_and(|patience| since.elapsed() > patience) {
                let sentence = format!("{GIVEN_UP}{why}");
                self.trouble(&sentence);
                return Err(Failure::Run(sentence));
            }
            if ready.is_some_and(|ready| ready.elapsed() > WELL_AFTER) {
                pause = FIRST_PAUSE;
            }
            self.trouble(&why);
            self.rest(pause);
            pause = (pause * 2).clamp(SECOND_PAUSE, MAX_PAUSE);
        }
    }

    /// Removes the mounts and devices of a server that died before it reported the disk as ready.
    fn clear_away(&self) {
        let settings = self.folder.read_json::<Settings>("settings.json");
        let Some(settings) = settings.filter(|_| !self.folder.is_held(Role::Server)) else {
            return;
        };
        let cleared = ways::clean_up(&self.folder, &settings, &serde_json::Value::Null, true);
        if let Err(error) = cleared {
            tracing::warn!("cannot remove the remains of the server: {error:?}");
        }
    }

    /// Records why no server runs, for `farblock list`.
    fn trouble(&self, why: &str) {
        tracing::error!("{why}");
        self.notifier.status(&format!("restarting: {why}"));
        if let Err(error) = self.folder.write("trouble", why) {
            tracing::warn!("trouble: {}", os(&error));
        }
    }

    /// Runs one server until it exits.
    fn run_server(&mut self, resume: bool, audience: &mut dyn Audience) -> Result<End> {
        let failed = |error: io::Error| {
            Failure::run(format_args!("cannot start a server process: {}", os(&error)))
        };
        let (channel, mut child) = self.server(resume).map_err(failed)?;
        self.watch_server(&channel).map_err(failed)?;
        let (mut why, mut ready, mut detached) = (None, None, false);
        loop {
            // Kill a server that was never ready: its disk has no users, and it may wait forever
            // for a target.
            let give_up = self.ending && !self.was_ready && !resume;
            let look = if give_up { START_TIMEOUT } else { LOG_LOOK_EVERY };
            let event = self.events.recv_timeout(look);
            self.folder.bound_log();
            match event {
                Err(RecvTimeoutError::Timeout) if give_up => {
                    // Killing fails only if the server is dead. The loop detects the death later.
                    child.iter_mut().for_each(|child| drop(child.kill()));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Event::AudienceGone) if self.was_ready => {}
                Ok(Event::Signal | Event::AudienceGone) => self.end(&channel),
                Ok(Event::Report(Report::Ready(offer), kept)) => {
                    ready = Some(Instant::now());
                    self.take_ready(&offer, kept, audience)?;
                    if self.ending {
                        self.end(&channel);
                    }
                }
                Ok(Event::Report(Report::Failed(sentence), _)) => why = Some(sentence),
                Ok(Event::Report(Report::WayFailed(sentence), _)) => {
                    audience.way_failed();
                    why = Some(sentence);
                }
                Ok(Event::Report(Report::Status(line), _)) => self.notifier.status(&line),
                Ok(Event::Report(Report::Ending(line), _)) => self.notifier.stopping(&line),
                Ok(Event::Report(Report::Detached, _)) => detached = true,
                Ok(Event::ServerGone) | Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let died = match self.wait_for(&mut child).map_err(failed)? {
            _ if detached => return Ok(End::Detached),
            Ended::With(status) if status.success() => return Ok(End::Detached),
            Ended::With(status) => format!("the server died ({status})"),
            Ended::Unseen => "the server died".to_owned(),
            Ended::Not => "the server does not exit".to_owned(),
        };
        let why = why.unwrap_or(died);
        Ok(End::Died { why, ready })
    }

    /// Returns the adopted server, or starts a new server and orders it to serve.
    fn server(&mut self, resume: bool) -> io::Result<(Arc<Channel>, Option<Child>)> {
        if let Some(channel) = self.adopted.take() {
            return Ok((Arc::new(channel), None));
        }
        let (channel, child) = self.spawn()?;
        // Sending fails only if the server is dead. The loop detects the death later.
        let _ = channel.send(&Order::serve(resume), self.kept.as_ref());
        Ok((channel, Some(child)))
    }

    /// Waits until a server that closed its channel has exited, up to a time limit. The kernel may
    /// delay the exit until the descriptor that this process keeps is closed.
    fn wait_for(&self, server: &mut Option<Child>) -> io::Result<Ended> {
        let deadline = Instant::now() + END_TIMEOUT;
        loop {
            let ended = match server {
                Some(child) => child.try_wait()?.map(Ended::With),
                None => (!self.folder.is_held(Role::Server)).then_some(Ended::Unseen),
            };
            if let Some(ended) = ended {
                return Ok(ended);
            }
            if Instant::now() >= deadline {
                return Ok(Ended::Not);
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    fn take_ready(
        &mut self,
        offer: &Offer,
        kept: Option<Descriptor>,
        audience: &mut dyn Audience,
    ) -> Result<()> {
        // A resumed server sends the same descriptor again. Replace the old copy.
        self.kept = kept;
        if let Some(kept) = &self.kept {
            self.notifier.store(KEPT, kept);
        }
        let _ = std::fs::remove_file(self.folder.path("trouble"));
        if !self.was_ready {
            self.was_ready = true;
            #[cfg(target_os = "linux")]
            super::swap::refuse(&self.folder);
            self.notifier.ready(&offer.sentence());
            audience.ready(offer)?;
        } else {
            tracing::warn!("a new server serves the disk");
            self.notifier.status("live");
        }
        Ok(())
    }

    /// Starts a server. Returns the channel to the server.
    fn spawn(&self) -> io::Result<(Arc<Channel>, Child)> {
        let mut command = again(&self.program, self.global);
        command.args(["attachment".as_ref(), "serve".as_ref(), self.folder.0.as_os_str()]);
        system::make_server(&mut command);
        let (channel, child) = Channel::start(command)?;
        Ok((Arc::new(channel), child))
    }

    /// Requests that a server exits as soon as no process uses the disk.
    fn end(&mut self, server: &Channel) {
        #[cfg(target_os = "linux")]
        if self.was_ready && !self.ending {
            self.see_to_end();
        }
        self.ending = true;
        // Sending fails only if the server is dead. The loop detects the death later.
        let _ = server.send(&Order::end(), None);
    }

    /// Starts to stop the disk's uses, if the machine is shutting down.
    #[cfg(target_os = "linux")]
    fn see_to_end(&self) {
        let (folder, is_service) = (self.folder.clone(), self.notifier.is_service());
        let see = move || super::shutdown::see_to_end(&folder, is_service);
        if let Err(error) = thread::Builder::new().name("shutdown".to_owned()).spawn(see) {
            tracing::warn!("cannot stop the uses of the disk: {}", os(&error));
        }
    }

    fn watch_server(&self, channel: &Arc<Channel>) -> io::Result<()> {
        let (channel, sender) = (Arc::clone(channel), self.sender.clone());
        let watch = move || {
            while let Ok(Some((report, kept))) = channel.receive() {
                let _ = sender.send(Event::Report(report, kept));
            }
            let _ = sender.send(Event::ServerGone);
        };
        thread::Builder::new().name("server".to_owned()).spawn(watch).map(drop)
    }

    /// Watches whether the waiting `farblock attach` has exited, which closes the channel. Ignores
    /// messages.
    fn watch_audience(&self, channel: Arc<Channel>) -> io::Result<()> {
        let sender = self.sender.clone();
        let watch = move || {
            while let Ok(Some(_)) = channel.receive::<serde::de::IgnoredAny>() {}
            let _ = sender.send(Event::AudienceGone);
        };
        thread::Builder::new().name("audience".to_owned()).spawn(watch).map(drop)
    }

    /// Pauses before the next server, but still handles signals.
    fn rest(&mut self, pause: Duration) {
        let until = Instant::now() + pause;
        loop {
            match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                // Tell the next server to exit: only a server can find out whether the disk is in
                // use.
                Ok(Event::Signal) => self.ending = true,
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }
}

/// Creates a command that runs this program again, with the same global options.
pub(super) fn again(program: &Path, global: &Global) -> Command {
    let mut command = Command::new(system::program(program));
    command.args((0..global.verbose).map(|_| "--verbose"));
    if global.quiet {
        command.arg("--quiet");
    }
    command.args(["--log-format", global.log_format.name()]);
    command
}
