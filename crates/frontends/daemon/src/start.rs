//! `farblock attach`, and the processes that it starts.

#[cfg(target_os = "linux")]
use super::adopt;
use super::all;
use super::args::{As, AttachArgs, PartArgs, ProcessPart};
use super::claim::claim_again;
use super::folder::{Folder, Lock, Role, runtime};
use super::identify;
use super::leftover;
use super::messages::Report;
use super::more_paths;
use super::server::{self, Saved};
use super::settings::Settings;
use super::status::Offer;
use super::supervisor::{Audience, KEPT, Supervisor, again};
use super::system::{self, Channel, Descriptor};
use super::ways::{self, Candidate, StopError};
use farblock_program::args::Global;
use farblock_program::error::{Failure, Result, os};
use farblock_program::output;
use farblock_program::remote;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Time limit for a supervisor's exit after it reported a failure.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// The first message to a supervisor. The supervisor's lock is attached to it.
#[derive(Serialize, Deserialize)]
struct Begin {
    resume: bool,
    /// Whether the supervisor adopts a running server, whose own supervisor has exited.
    #[serde(default)]
    adopt: bool,
}

/// Runs `farblock attach`.
pub fn run(args: &AttachArgs, global: &Global) -> Result<()> {
    system::keep_own_files();
    match &args.all {
        Some(address) => all::run(address, args, global, |args| attach(args, global)),
        None => attach(args, global),
    }
}

fn attach(args: &AttachArgs, global: &Global) -> Result<()> {
    // Take this descriptor first, so that no process that this function starts inherits it.
    let kept = if args.foreground { system::handed_over(KEPT) } else { None };
    let mut settings = Settings::new(args, global)?;
    let runtime = runtime(args.runtime.runtime_dir.as_deref())?;
    check_mountpoint(&settings, &runtime)?;
    ways::check(&settings).map_err(Failure::Run)?;
    choose_namespace(&mut settings)?;
    leftover::sweep(&runtime);
    if let Some(offer) = more_paths::add(&runtime, &settings)? {
        let note = (!global.quiet).then(|| format!("added a path to {}", offer.name));
        return Terminal { json: args.json, note, way_failed: false }.ready(&offer);
    }
    let place = Launch { runtime: &runtime, args, global };
    if settings.way != As::Auto {
        return place.attach(&settings, kept, None).map_err(|(failure, _)| failure);
    }
    let (mut kept, mut failed) = (kept, None);
    for Candidate { way, no_device, why } in ways::candidates(&settings) {
        let no_device = settings.no_device || no_device;
        let settings = Settings { way, no_device, ..settings.clone() };
        let note = match &failed {
            None => why,
            Some(failure) => format!("{failure}; tried the next way, {}", way.name()),
        };
        match place.attach(&settings, kept.take(), (!global.quiet).then_some(note)) {
            Err((failure @ Failure::Run(_), true)) => {
                failed = Some(failure.sentence().to_owned());
            }
            done => return done.map_err(|(failure, _)| failure),
        }
    }
    Err(Failure::run(failed.unwrap_or_else(|| "no way to attach a disk works here".to_owned())))
}

/// The inputs of an attach that are the same for each way to attach (ublk, NBD and so on).
struct Launch<'a> {
    runtime: &'a Path,
    args: &'a AttachArgs,
    global: &'a Global,
}

impl Launch<'_> {
    /// Attaches the disk in one way (`settings.way`). The flag beside the error is true if the disk
    /// was connected, so that another way may work.
    fn attach(
        &self,
        settings: &Settings,
        kept: Option<Descriptor>,
        note: Option<String>,
    ) -> Result<(), (Failure, bool)> {
        let Launch { runtime, args, global } = *self;
        let mut terminal = Terminal { json: args.json, note, way_failed: false };
        let others = |failure: Failure| (failure, false);
        if let Some(folder) = identify::in_vain(runtime, settings) {
            let offer = identify::go_on(&folder, settings.uuid).map_err(others)?;
            return terminal.ready(&offer).map_err(others);
        }
        #[cfg(target_os = "linux")]
        if let Some((folder, lock)) = adopt::orphan(runtime, settings) {
            return self.adopt(folder, lock, &mut terminal).map_err(others);
        }
        let name = settings.name.as_deref();
        let (folder, lock) = Folder::claim(runtime, name).map_err(others)?;
        let resume = prepare(&folder, settings).map_err(others)?;
        if args.foreground {
            let mut supervisor = Supervisor::new(folder, lock, global).map_err(others)?;
            supervisor.take_back(kept);
            let ran = supervisor.run(resume, &mut terminal);
            return ran.map_err(|failure| (failure, terminal.way_failed));
        }
        let begin = Begin { resume, adopt: false };
        let offer = in_background(&folder, lock, begin, global)?;
        terminal.ready(&offer).map_err(others)
    }

    /// Starts a supervisor for a server whose supervisor has died.
    #[cfg(target_os = "linux")]
    fn adopt(&self, folder: Folder, lock: Lock, terminal: &mut Terminal) -> Result<()> {
        terminal.note = (!self.global.quiet).then(|| {
            format!(
                "{} gets a new supervisor, because its old one is dead; the disk \
                 keeps its device, its users and its options",
                folder.name()
            )
        });
        if !self.args.foreground {
            let begin = Begin { resume: true, adopt: true };
            let offer = in_background(&folder, lock, begin, self.global);
            return terminal.ready(&offer.map_err(|(failure, _)| failure)?);
        }
        let mut supervisor = Supervisor::new(folder, lock, self.global)?;
        supervisor.adopt()?;
        supervisor.run(true, terminal)
    }
}

/// Removes or takes over what a dead attachment with this name left behind, and writes the
/// settings. Returns true if this attach resumes the dead attachment.
fn prepare(folder: &Folder, settings: &Settings) -> Result<bool> {
    let resume = clear(folder, settings)?;
    if resume {
        claim_again(folder, settings).map_err(Failure::Run)?;
    }
    folder.write_json("settings.json", settings).map_err(|error| {
        Failure::run(format_args!("cannot write to {}: {}", folder.0.display(), os(&error)))
    })?;
    Ok(resume)
}

/// Returns an error for a mountpoint in the runtime directory, because the mount would hide the
/// attachments.
fn check_mountpoint(settings: &Settings, runtime: &Path) -> Result<()> {
    let full = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    match &settings.mountpoint {
        Some(path) if full(path).starts_with(full(runtime)) => Err(Failure::usage(format_args!(
            "{} is in the directory of the attachments, where no mount is possible: choose another \
             --mountpoint, or none",
            path.display()
        ))),
        _ => Ok(()),
    }
}

/// Adds a namespace ID to the URLs that lack one: the ID from another URL, or the ID of the only
/// namespace that the target has.
fn choose_namespace(settings: &mut Settings) -> Result<()> {
    if settings.urls.iter().all(|url| url.namespace.is_some()) {
        return Ok(());
    }
    let options = settings.disk_options().connection;
    let mut chosen = settings.urls.iter().find_map(|url| url.namespace).map(Ok);
    for url in &settings.urls {
        // One path that answers is enough.
        if !matches!(chosen, Some(Ok(_) | Err(Failure::Usage(_)))) {
            chosen = Some(remote::resolve(url, &options));
        }
    }
    let nsid = chosen.expect("there is a URL")?;
    settings.urls.iter_mut().for_each(|url| url.namespace = url.namespace.or(Some(nsid)));
    Ok(())
}

/// Returns true if this attach can resume an attachment whose processes died: both have the same
/// URLs and the same way to attach. Otherwise removes what the dead attachment left behind, and
/// returns false.
fn clear(folder: &Folder, settings: &Settings) -> Result<bool> {
    let Some(saved) = folder.read_json::<Saved>("state.json") else { return Ok(false) };
    let Some(before) = folder.read_json::<Settings>("settings.json") else { return Ok(false) };
    let name = folder.name();
    if before.urls == settings.urls && before.way == settings.way {
        return match ways::users_of_broken(folder, &before).as_slice() {
            [] => Ok(true),
            // Refuse. With a new device beside the old one, the disk would look repaired, but
            // programs would still use the broken device.
            users => Err(Failure::run(format_args!(
                "{name} broke when its processes died, but is still in use: {}; all that its users \
                 write is lost: unmount or close it, then attach {name} again",
                users.join("; ")
            ))),
        };
    }
    ways::clean_up(folder, &before, &saved.state, false).map_err(|error| match error {
        StopError::InUse(users) => Failure::run(format_args!(
            "the name {name} belongs to another disk whose daemon is dead, but which is in use: \
             {}; stop that use first, or choose another --name",
            users.join("; ")
        )),
        StopError::Failed(sentence) => Failure::Run(sentence),
    })?;
    let _ = std::fs::remove_file(folder.path("state.json"));
    let _ = std::fs::remove_file(folder.path("identity.json"));
    Ok(false)
}

/// Starts a supervisor that outlives this process, and waits until the disk is usable. The flag
/// beside the error is true if the disk was connected, so that another way may work.
fn in_background(
    folder: &Folder,
    lock: Lock,
    begin: Begin,
    global: &Global,
) -> Result<Offer, (Failure, bool)> {
    let failed = |error: io::Error| {
        (Failure::run(format_args!("cannot start the daemon: {}", os(&error))), false)
    };
    if !begin.adopt {
        let _ = std::fs::remove_file(folder.path("log"));
    }
    let log = folder.log().map_err(failed)?;
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = again(&program, global);
    command.args(["attachment".as_ref(), "supervise".as_ref(), folder.0.as_os_str()]);
    command.stderr(log);
    system::make_daemon(&mut command);
    // Do not wait for the child, which outlives this process.
    let (channel, _) = Channel::start(command).map_err(failed)?;
    channel.send(&begin, Some(lock.descriptor())).map_err(failed)?;
    drop(lock);
    match channel.receive::<Report>() {
        Ok(Some((Report::Ready(offer), _))) => Ok(offer),
        Ok(Some((report @ (Report::Failed(_) | Report::WayFailed(_)), _))) => {
            if !begin.resume && folder.wait_for_end(END_TIMEOUT) {
                folder.remove_rest();
            }
            Err(match report {
                Report::WayFailed(sentence) => (Failure::Run(sentence), true),
                Report::Failed(sentence) => (Failure::Run(sentence), false),
                _ => unreachable!("the outer pattern matches only failures"),
            })
        }
        _ => {
            let log = folder.path("log");
            let died = format_args!("the daemon died at once; see {}", log.display()).to_string();
            Err((Failure::Run(died), false))
        }
    }
}

/// Runs one of the internal subcommands, which an attachment's processes use.
pub fn part(args: PartArgs, global: &Global) -> Result<()> {
    system::keep_own_files();
    match args.part {
        ProcessPart::Serve { folder } => server::run(Folder(folder)),
        ProcessPart::Supervise { folder } => supervise(Folder(folder), global),
        #[cfg(target_os = "linux")]
        ProcessPart::Loop { task } => ways::run_loop(&task),
        #[cfg(target_os = "linux")]
        ProcessPart::Device { folder } => super::rights::run(Folder(folder)),
        #[cfg(target_os = "linux")]
        ProcessPart::Unmount { path, of } => super::release::unmount(&path, of),
        #[cfg(target_os = "linux")]
        ProcessPart::Keys { subsystems } => farblock_program::broker::keys::run(&subsystems),
        #[cfg(not(target_os = "linux"))]
        ProcessPart::Loop { .. }
        | ProcessPart::Device { .. }
        | ProcessPart::Unmount { .. }
        | ProcessPart::Keys { .. } => {
            Err(Failure::usage("this system does not support this command"))
        }
    }
}

fn supervise(folder: Folder, global: &Global) -> Result<()> {
    let not_ours = || Failure::usage("only `farblock attach` can run this command");
    let channel = Channel::inherited().map_err(|_| not_ours())?;
    let begin = channel.receive::<Begin>().map_err(|_| not_ours())?;
    let Some((begin, Some(lock))) = begin else { return Err(not_ours()) };
    let lock = Lock::inherited(lock);
    assert!(
        folder.is_held(Role::Supervisor),
        "the supervisor holds the lock that the command passed"
    );
    system::begin_daemon().map_err(|error| Failure::run(os(&error)))?;
    let mut client = Client { channel: Some(Arc::new(channel)), way_failed: false };
    #[cfg_attr(
        not(target_os = "linux"),
        expect(unused_mut, reason = "only Linux can adopt a server")
    )]
    let mut supervisor = Supervisor::new(folder, lock, global)?;
    let begun = match begin.adopt {
        #[cfg(target_os = "linux")]
        true => supervisor.adopt(),
        _ => Ok(()),
    };
    let result = begun.and_then(|()| supervisor.run(begin.resume, &mut client));
    if let (Err(failure), Some(channel)) = (&result, &client.channel) {
        let sentence = failure.sentence().to_owned();
        let report = match client.way_failed {
            true => Report::WayFailed(sentence),
            false => Report::Failed(sentence),
        };
        let _ = channel.send(&report, None);
    }
    result
}

/// The waiting `farblock attach` process.
struct Client {
    channel: Option<Arc<Channel>>,
    way_failed: bool,
}

impl Audience for Client {
    fn ready(&mut self, offer: &Offer) -> Result<()> {
        // Ignore an error: the disk works even if the client no longer waits.
        if let Some(channel) = self.channel.take() {
            let _ = channel.send(&Report::Ready(offer.clone()), None);
        }
        Ok(())
    }

    fn way_failed(&mut self) {
        self.way_failed = true;
    }

    fn channel(&self) -> Option<Arc<Channel>> {
        self.channel.clone()
    }
}

/// The output of the command: a terminal or a program reads it.
struct Terminal {
    json: bool,
    /// The chosen way to attach, and the reason.
    note: Option<String>,
    way_failed: bool,
}

impl Audience for Terminal {
    fn way_failed(&mut self) {
        self.way_failed = true;
    }

    fn ready(&mut self, offer: &Offer) -> Result<()> {
        self.note.take().iter().for_each(|note| output::note(note));
        #[cfg(target_os = "linux")]
        super::swap::warning(offer).iter().for_each(|warning| output::note(warning));
        let printed = match self.json {
            true => output::print_json_line(offer),
            false => output::print(&format!("{}\n", offer.sentence())),
        };
        match printed {
            // The attach has succeeded, even if the reader has closed the output.
            Err(Failure::OutputClosed) => Ok(()),
            printed => printed,
        }
    }
}
