//! The *ways* to offer a disk to this machine (ublk, NBD, FUSE, …), one file for each, and the
//! choice among them.
//!
//! A way is a function `start(&Start) -> Result<Box<dyn Attached>, String>`. If it creates devices
//! or mounts that outlive its process, the way also has a function `clean_up`. [`start`],
//! [`clean_up`] and [`candidates`] list all ways.

#[cfg(target_os = "linux")]
mod fuse;
mod iscsi;
#[cfg(target_os = "linux")]
mod loops;
mod nbd;
#[cfg(target_os = "linux")]
mod nvme;
#[cfg(target_os = "linux")]
mod ublk;
#[cfg(target_os = "linux")]
mod vhost_user;
#[cfg(windows)]
mod winspd;

use super::args::As;
use super::folder::Folder;
#[cfg(target_os = "linux")]
use super::rights;
use super::settings::Settings;
use super::status::{AttachmentState, Use};
use super::system::Descriptor;
use farblock_block::Geometry;
use farblock_host::disk::Disk;
#[cfg(target_os = "linux")]
use farblock_program::broker::Broker;
#[cfg(target_os = "linux")]
use farblock_program::error::{Failure, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::cell::OnceCell;
use std::fmt;
use std::net::SocketAddr;
#[cfg(target_os = "linux")]
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[cfg(target_os = "linux")]
pub(super) use loops::{ASK as ASK_ABOUT_LOOPS, run as run_loop};

/// Time limit for retrying a port that is in use, for example by `farblock serve`.
const LISTEN_TIME: Duration = Duration::from_secs(3);
/// Pause between two attempts to listen.
const LISTEN_PAUSE: Duration = Duration::from_millis(20);

/// The input of a way's `start` function.
pub(super) struct Start<'a> {
    pub(super) name: String,
    pub(super) folder: &'a Folder,
    pub(super) settings: &'a Settings,
    /// Whether programs may use the disk already.
    pub(super) resume: bool,
    /// The records of a dead server, which this server replaces.
    pub(super) predecessor: Option<Predecessor>,
    pub(super) disk: OnceCell<Disk>,
    /// The process that performs privileged operations if this process has dropped its rights.
    #[cfg(target_os = "linux")]
    pub(super) broker: Option<Arc<Broker>>,
}

/// The records of a server that died.
pub(super) struct Predecessor {
    /// The server's [`Attached::state`].
    pub(super) state: Value,
    /// The descriptor from the server's [`Attached::keep`]. The supervisor has kept it.
    #[cfg_attr(windows, expect(dead_code, reason = "no way on Windows keeps a descriptor"))]
    pub(super) kept: Option<Descriptor>,
}

impl Start<'_> {
    /// Returns the disk, and connects it on the first call. The way `nvme` never calls this: the
    /// kernel connects.
    pub(super) fn disk(&self) -> Result<&Disk, String> {
        if self.disk.get().is_none() {
            let disk = super::connect(self.settings, self.folder, self.resume)?;
            let _ = self.disk.set(disk);
        }
        Ok(self.disk.get().expect("the disk was set above"))
    }

    fn namespace(&self) -> Result<Arc<dyn farblock_block::Namespace>, String> {
        Ok(Arc::new(self.disk()?.clone()))
    }

    /// Returns the address on which a network server listens. A restarted server uses the first
    /// server's address, even if the system chose the port (port 0).
    fn address(&self, wanted: SocketAddr) -> SocketAddr {
        let state = self.predecessor.as_ref().map(|predecessor| &predecessor.state["address"]);
        let before = state.and_then(|address| address.as_str()?.parse::<SocketAddr>().ok());
        let before = before.filter(|before| wanted.port() == 0 && wanted.ip() == before.ip());
        before.unwrap_or(wanted)
    }
}

/// Starts a server, and retries for a while if the port is in use: a killed process may hold the
/// port for a moment.
fn until_free<T, E: fmt::Display>(
    mut start: impl FnMut() -> Result<T, E>,
    is_busy: impl Fn(&E) -> bool,
) -> Result<T, String> {
    let until = Instant::now() + LISTEN_TIME;
    loop {
        match start() {
            Err(error) if is_busy(&error) && Instant::now() < until => {
                std::thread::sleep(LISTEN_PAUSE);
            }
            started => return started.map_err(sentence),
        }
    }
}

/// A disk that a server offers. Call [`Attached::stop`] before the drop, or devices and mounts may
/// remain.
pub(super) trait Attached: Send {
    /// The disk's path or address.
    fn used(&self) -> Use;

    /// The state, problem and geometry of the disk, if the kernel connects to the target instead of
    /// a [`Disk`].
    fn condition(&self) -> Option<Condition> {
        None
    }

    /// The state that the next server and [`clean_up`] need. The server calls this once, after the
    /// start.
    fn state(&self) -> Value;

    /// The descriptor that the supervisor must keep for the next server.
    fn keep(&self) -> Option<Descriptor> {
        None
    }

    /// The users as phrases, for example `fio (process 7) has /dev/loop0 open`.
    fn users(&self) -> Vec<String>;

    /// The reason why this machine can no longer use the disk; `None` if it can.
    fn unusable(&self) -> Option<String> {
        None
    }

    /// Shows a new size to the disk's users. After an error, they do not see it.
    fn resized(&mut self, _bytes: u64) -> Result<(), String> {
        Ok(())
    }

    /// Stops offering the disk. Without `force`, only if it is not in use. After an error, the
    /// server continues to offer the disk.
    fn stop(&mut self, force: bool) -> Result<(), StopError>;
}

/// The condition of a disk that the kernel itself connects.
pub(super) struct Condition {
    pub(super) state: AttachmentState,
    pub(super) trouble: Option<String>,
    pub(super) geometry: Geometry,
}

/// The reason why a disk was not detached.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum StopError {
    /// The disk's users.
    InUse(Vec<String>),
    /// Another reason, as a sentence.
    Failed(String),
}

impl StopError {
    /// Returns an error if there are users, unless forced.
    pub(super) fn if_used(users: Vec<String>, force: bool) -> Result<(), StopError> {
        match users.is_empty() || force {
            true => Ok(()),
            false => Err(StopError::InUse(users)),
        }
    }
}

/// The ways on this system, except `auto`.
#[cfg(target_os = "linux")]
pub(super) const HERE: &[As] = &[As::Nvme, As::Ublk, As::Nbd, As::Fuse, As::VhostUser, As::Iscsi];
#[cfg(windows)]
pub(super) const HERE: &[As] = &[As::Winspd, As::Iscsi, As::Nbd];

/// Offers the disk.
pub(super) fn start(start: &Start<'_>) -> Result<Box<dyn Attached>, String> {
    match start.settings.way {
        As::Auto => Err("the settings name no way to attach".to_owned()),
        As::Nbd => nbd::start(start),
        As::Iscsi => iscsi::start(start),
        #[cfg(target_os = "linux")]
        As::Nvme => nvme::start(start),
        #[cfg(target_os = "linux")]
        As::Ublk => ublk::start(start),
        #[cfg(target_os = "linux")]
        As::Fuse => fuse::start(start),
        #[cfg(target_os = "linux")]
        As::VhostUser => vhost_user::start(start),
        #[cfg(windows)]
        As::Winspd => winspd::start(start),
        way => Err(format!("{} is not a way to attach on this system", way.name())),
    }
}

/// The reason why the server keeps its rights with this way to attach: it creates and removes
/// devices itself. `None` if it drops its rights.
#[cfg(target_os = "linux")]
pub(super) fn keeps_rights(settings: &Settings) -> Option<&'static str> {
    match settings.way {
        As::Ublk => Some("only root can create, change and remove the device"),
        As::Nvme => Some("only root can close the kernel's connection"),
        As::Auto | As::Fuse | As::Nbd | As::VhostUser | As::Iscsi | As::Winspd => None,
    }
}

/// Whether the kernel writes dirty memory back through the server of this way to attach.
#[cfg(target_os = "linux")]
pub(super) fn flushes_for_the_kernel(settings: &Settings) -> bool {
    takes_rights(settings)
}

/// Whether the kernel may write dirty memory to a disk that this process serves. The process must
/// then not wait for free memory.
#[cfg(target_os = "linux")]
pub(super) fn may_be_written_back_to(settings: &Settings) -> bool {
    settings.way == As::Ublk || flushes_for_the_kernel(settings)
}

/// Whether this way to attach needs privileged operations, which a broker performs for the server.
#[cfg(target_os = "linux")]
pub(super) fn takes_rights(settings: &Settings) -> bool {
    match settings.way {
        As::Fuse => true,
        As::Nbd => nbd::takes_device_rights(settings),
        _ => false,
    }
}

/// Runs a broker (a process with root's rights), which performs this way's privileged operations
/// until the server exits.
#[cfg(target_os = "linux")]
pub(super) fn with_rights(folder: &Folder, settings: &Settings) -> Result<()> {
    match settings.way {
        As::Fuse => rights::answer(fuse::Root::new(folder, settings)),
        As::Nbd => rights::answer(nbd::root(folder)),
        way => Err(Failure::run(format_args!("{} needs no privileged operations", way.name()))),
    }
}

/// Does nothing: on Windows, no device outlives its server.
#[cfg(windows)]
pub(super) fn clean_up(_: &Folder, _: &Settings, _: &Value, _: bool) -> Result<(), StopError> {
    Ok(())
}

/// A candidate for `--as auto`.
pub(super) struct Candidate {
    pub(super) way: As,
    /// Whether this candidate creates no block device.
    pub(super) no_device: bool,
    /// The reason for this choice, as a sentence.
    pub(super) why: String,
}

/// The candidates for `--as auto`, the best first.
#[cfg(windows)]
pub(super) fn candidates(settings: &Settings) -> Vec<Candidate> {
    let (way, why) = if settings.no_device {
        (As::Nbd, "chose nbd: a server, because no block device was requested")
    } else if winspd::available().is_ok() {
        (As::Winspd, "chose winspd: its library is installed")
    } else {
        (As::Iscsi, "chose iscsi: Windows has an initiator, and WinSpd is not installed")
    };
    vec![Candidate { way, no_device: settings.no_device, why: why.to_owned() }]
}

/// Accepts all settings: on Windows, every way can create what was requested.
#[cfg(windows)]
pub(super) fn check(_: &Settings) -> Result<(), String> {
    Ok(())
}

/// Cleans up after a dead server that no other server replaces. Fails if an operation fails, or if
/// the disk is in use and `force` is false.
#[cfg(target_os = "linux")]
pub(super) fn clean_up(
    folder: &Folder,
    settings: &Settings,
    state: &Value,
    force: bool,
) -> Result<(), StopError> {
    match settings.way {
        As::Nvme => nvme::clean_up(state, force),
        As::Ublk => ublk::clean_up(state, force),
        As::Nbd => nbd::clean_up(state, force),
        As::Fuse => fuse::clean_up(folder, settings, state, force),
        As::Auto | As::VhostUser | As::Iscsi | As::Winspd => Ok(()),
    }
}

/// The users of a device that broke when an attachment's processes died. No later server can repair
/// the device.
#[cfg(target_os = "linux")]
pub(super) fn users_of_broken(folder: &Folder, settings: &Settings) -> Vec<String> {
    match settings.way {
        As::Fuse => fuse::users_of_broken(folder, settings),
        _ => Vec::new(),
    }
}

/// Does nothing: on Windows, no device outlives its server.
#[cfg(windows)]
pub(super) fn users_of_broken(_: &Folder, _: &Settings) -> Vec<String> {
    Vec::new()
}

/// Returns the candidates for `--as auto`, the best first. The command tries each until one works.
#[cfg(target_os = "linux")]
pub(super) fn candidates(settings: &Settings) -> Vec<Candidate> {
    let candidate = |way, no_device, why| Candidate { way, no_device, why };
    let no_fuse = farblock_attach::fuse::available().err().map(sentence);
    let mut found = Vec::new();
    if settings.no_device {
        let lacks = match no_fuse {
            None => {
                let why = "chose fuse: a file, because no block device was requested".to_owned();
                found.push(candidate(As::Fuse, true, why));
                String::new()
            }
            Some(why) => format!(" ({why})"),
        };
        found.push(candidate(As::Nbd, true, format!("chose nbd: a server for programs{lacks}")));
        return found;
    }
    let no_ublk = match administrators(ublk::available()) {
        Ok(()) => {
            let why = "chose ublk: the kernel's driver for user-space block devices";
            found.push(candidate(As::Ublk, false, why.to_owned()));
            "ublk failed".to_owned()
        }
        Err(why) => why,
    };
    if administrators(nbd::device_available()).is_ok() {
        let why = format!("chose nbd: the kernel has an NBD client ({no_ublk})");
        found.push(candidate(As::Nbd, false, why));
    }
    let lacks = no_fuse.clone().unwrap_or_else(|| "fuse failed".to_owned());
    if no_fuse.is_none() {
        let why = match fuse::device_available() {
            Ok(()) => format!("chose fuse with a loop device: {no_ublk}, and no NBD client"),
            Err(reason) => format!("chose fuse: a file and no block device ({reason})"),
        };
        found.push(candidate(As::Fuse, false, why));
    }
    let why = format!("chose nbd: a server for programs ({no_ublk}; {lacks})");
    found.push(candidate(As::Nbd, true, why));
    found
}

/// Returns `available`, or an error if this process is root in a container that cannot create
/// devices.
#[cfg(target_os = "linux")]
fn administrators(available: Result<(), String>) -> Result<(), String> {
    match is_root() && !farblock_attach::fuse::is_administrator() {
        true => Err("this container or service cannot create devices".to_owned()),
        false => available,
    }
}

/// Checks that the requested way can create a block device, if one is requested.
#[cfg(target_os = "linux")]
pub(super) fn check(settings: &Settings) -> Result<(), String> {
    if settings.way != As::Nbd || !nbd::wants_device(settings) {
        return Ok(());
    }
    administrators(nbd::device_available()).map_err(|why| {
        format!(
            "cannot create a block device: {why}; or use --no-device, which serves programs that \
             support NBD"
        )
    })
}

/// Reads an attribute of a block device in sysfs.
#[cfg(target_os = "linux")]
fn system(device: &Path, attribute: &str) -> Option<String> {
    let folder = Path::new("/sys/block").join(device.file_name()?);
    Some(std::fs::read_to_string(folder.join(attribute)).ok()?.trim_end().to_owned())
}

/// Formats an error without Rust's `(os error 28)`.
fn sentence(error: impl fmt::Display) -> String {
    const NUMBER: &str = " (os error ";
    let mut text = error.to_string();
    while let Some(start) = text.find(NUMBER) {
        let end = text[start..].find(')').map_or(text.len(), |end| start + end + 1);
        text.replace_range(start..end, "");
    }
    text
}

#[cfg(target_os = "linux")]
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The users of a block device, as phrases.
#[cfg(target_os = "linux")]
fn users_of(device: &Path) -> Vec<String> {
    farblock_frontend::users::of_block_device(device).iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_omit_os_error_numbers() {
        let text = sentence("/x is none (No such thing (os error 2)): create it (os error 2)");
        assert_eq!(text, "/x is none (No such thing): create it");
    }

    #[test]
    fn the_chosen_way_has_a_reason() {
        for Candidate { why, .. } in candidates(&Settings::default()) {
            assert!(why.starts_with("chose ") && why.lines().count() == 1, "{why}");
        }
        let settings = Settings { no_device: true, ..Settings::default() };
        #[cfg(windows)]
        let has_fuse = false;
        #[cfg(target_os = "linux")]
        let has_fuse = farblock_attach::fuse::available().is_ok();
        let first = candidates(&settings).first().map(|candidate| candidate.way);
        assert_eq!(first, Some(if has_fuse { As::Fuse } else { As::Nbd }));
    }
}
