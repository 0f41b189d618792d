//! Offers a disk as a file in a FUSE mount and, for root, as a loop device on this file.
//!
//! On kernels that can resend unanswered requests (Linux 6.9), the mount outlives its server: the
//! supervisor keeps the connection to the kernel, and the next server resumes it. Meanwhile I/O
//! waits. On older kernels the mount breaks when the server dies, and a loop device on it fails all
//! I/O. The next server then creates a new mount and device.

mod root;

use super::super::folder::Folder;
use super::super::settings::Settings;
use super::super::status::{LOOP_ON, Use, UseKind};
use super::{Attached, Start, StopError, is_root, loops, sentence, users_of};
use farblock_attach::fuse::{self, Config, Server, StopError as FuseError, User, loop_device};
use root::Mounts;
pub(super) use root::Root;
use rustix::fd::OwnedFd;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

const CONTROL: &str = "/dev/loop-control";

struct Fuse {
    server: Server,
    mounts: Arc<Mounts>,
    device: Option<PathBuf>,
    /// The mountpoint, if this process created it.
    made: Option<PathBuf>,
}

/// Checks that this process can create loop devices. The error states the reason.
pub(super) fn device_available() -> Result<(), String> {
    if !is_root() {
        return Err("only root can create loop devices".to_owned());
    }
    match fs::File::options().read(true).write(true).open(CONTROL) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("{CONTROL}: {}", farblock_program::error::os(&error))),
    }
}

fn mountpoint(folder: &Folder, settings: &Settings) -> PathBuf {
    settings.mountpoint.clone().unwrap_or_else(|| folder.path("mount"))
}

pub(super) fn start(start: &Start<'_>) -> Result<Box<dyn Attached>, String> {
    let settings = start.settings;
    let mountpoint = mountpoint(start.folder, settings);
    let mut config = Config::new(mountpoint.clone());
    config.name.clone_from(&start.name);
    (config.engine, config.polling) = (settings.engine(), settings.spin());
    config.threads = settings.threads();
    config.read_only = settings.read_only;
    config.allow_other = settings.allow_other;
    config.kept = true;
    let mounts = Arc::new(Mounts::new(start));
    if let Some(predecessor) = &start.predecessor
        && let Some(connection) = &predecessor.kept
    {
        return resume(start, config, &predecessor.state, connection, mounts);
    }
    let made = mounts.make()?.then_some(mountpoint);
    let namespace = start.namespace()?;
    let geometry = namespace.geometry();
    let server = Server::start_with(&config, namespace, Arc::clone(&mounts) as _);
    // From here on, the drop of `fuse` unmounts the file system.
    let mut fuse = Fuse { server: server.map_err(sentence)?, mounts, device: None, made };
    if !settings.no_device && is_root() {
        let read_only = geometry.read_only || settings.read_only;
        let device = fuse.mounts.attach(geometry.block_size, read_only);
        let hint = "; use --no-device to attach without it";
        fuse.device = Some(device.map_err(|problem| format!("{}{hint}", String::from(problem)))?);
    }
    Ok(Box::new(fuse))
}

/// Resumes the mount of a dead server.
fn resume(
    start: &Start<'_>,
    mut config: Config,
    state: &Value,
    connection: &OwnedFd,
    mounts: Arc<Mounts>,
) -> Result<Box<dyn Attached>, String> {
    if let Some(path) = state["mountpoint"].as_str() {
        config.mountpoint = path.into();
    }
    let mounter = Arc::clone(&mounts) as _;
    let server = Server::resume_with(&config, start.namespace()?, connection, mounter);
    let server = server.map_err(sentence)?;
    let device = state["device"].as_str().map(PathBuf::from);
    let device = device.filter(|device| {
        let is_ours = mounts.has(device);
        if !is_ours {
            let file = server.path().display();
            tracing::warn!("{} is no longer attached to {file}", device.display());
        }
        is_ours
    });
    let made = state["made"].as_str().map(PathBuf::from);
    Ok(Box::new(Fuse { server, mounts, device, made }))
}

impl Attached for Fuse {
    fn used(&self) -> Use {
        let file = self.server.path().display().to_string();
        match &self.device {
            Some(device) => Use {
                kind: UseKind::Device,
                path: device.display().to_string(),
                behind: Some(format!("{LOOP_ON}{file}")),
            },
            None => Use { kind: UseKind::File, path: file, behind: None },
        }
    }

    fn state(&self) -> Value {
        json!({
            "mountpoint": self.server.path().parent(),
            "device": self.device,
            "made": self.made,
        })
    }

    fn keep(&self) -> Option<OwnedFd> {
        self.server.connection()
    }

    fn users(&self) -> Vec<String> {
        let is_own = |user: &User| user.device.is_some() && user.device == self.device;
        let users = self.server.users().into_iter().filter(|user| !is_own(user));
        users.map(|user| user.to_string()).collect()
    }

    fn unusable(&self) -> Option<String> {
        let advice = "detach it with --force, and attach it again";
        if !self.server.is_mounted_here() {
            let users = self.server.users_elsewhere();
            let users: Vec<_> = users.iter().map(ToString::to_string).collect();
            let place = match users.join("; ") {
                users if users.is_empty() => "nor in any other mount namespace".to_owned(),
                users => format!("but only in other mount namespaces ({users})"),
            };
            return Some(format!(
                "the disk is no longer mounted in this mount namespace, {place}: {advice}"
            ));
        }
        let device = self.device.as_ref()?;
        (!self.mounts.has(device)).then(|| {
            let (device, file) = (device.display(), self.server.path().display());
            format!("another program has detached {device} from {file}: {advice}")
        })
    }

    fn resized(&mut self, _: u64) -> Result<(), String> {
        // Resize the mounted file first: the loop driver adopts the file's size.
        self.server.resized().map_err(|error| farblock_program::error::os(&error))?;
        self.mounts.resize(self.device.as_deref()).map_err(String::from)
    }

    fn stop(&mut self, force: bool) -> Result<(), StopError> {
        StopError::if_used(self.users(), force)?;
        if let Some(device) = &self.device {
            // Another program may have attached the device to another file.
            if self.mounts.has(device) {
                match self.mounts.detach(device, force) {
                    Ok(()) => {}
                    Err(loops::Problem::InUse) => return Err(StopError::InUse(self.users())),
                    Err(loops::Problem::Failed(sentence)) => {
                        return Err(StopError::Failed(sentence));
                    }
                }
            }
            self.device = None;
        }
        match self.server.stop(force) {
            Ok(()) => {}
            Err(FuseError::InUse(..)) => return Err(StopError::InUse(self.users())),
            Err(FuseError::Failed(error)) => {
                tracing::error!("an event loop of the server failed: {error}")
            }
            Err(error) => return Err(StopError::Failed(sentence(error))),
        }
        if let Some(path) = &self.made {
            let _ = fs::remove_dir(path);
        }
        Ok(())
    }
}

/// The users of loop devices on a broken mount. All their I/O fails, and continues to fail: the
/// next server creates another mount and device.
pub(super) fn users_of_broken(folder: &Folder, settings: &Settings) -> Vec<String> {
    let path = mountpoint(folder, settings);
    if !fuse::is_broken(&path) {
        return Vec::new();
    }
    let devices = loop_device::below(&fuse::Own::new(path, false).path());
    devices.iter().flat_map(|device| users_of(device)).collect()
}

/// Unmounts the mount of a dead server, and detaches its loop device. This loses no data, because
/// all I/O on the device already fails. Without `force`, does not unmount if a process keeps the
/// mount for the next server.
pub(super) fn clean_up(
    folder: &Folder,
    settings: &Settings,
    state: &Value,
    force: bool,
) -> Result<(), StopError> {
    let path = mountpoint(folder, settings);
    let device = state["device"].as_str().map(PathBuf::from);
    let is_ours = |device: &PathBuf| loop_device::is_below(device, &path);
    let users = device.filter(is_ours).map(|device| users_of(&device)).unwrap_or_default();
    StopError::if_used(users, force)?;
    let cleaned = if force { fuse::end(&path) } else { fuse::clean_up(&path) };
    cleaned.map_err(|error| StopError::Failed(sentence(error)))
}
