//! The ways to offer a disk, one file each, and the choice among them.
//!
//! A way is a function `start(&Start) -> Result<Box<dyn Attached>, String>` and, if something of it
//! can outlive its process, `clean_up`; [`start`], [`clean_up`] and [`available`] name them all.

mod fuse;
mod iscsi;
mod nbd;
mod nvme;
mod ublk;
mod vhost_user;

use super::args::As;
use super::folder::Folder;
use super::settings::Settings;
use super::status::{State, Use};
use farblock_block::Geometry;
use farblock_host::disk::Disk;
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::cell::OnceCell;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// What a way is given.
pub(super) struct Start<'a> {
    pub(super) name: String,
    pub(super) folder: &'a Folder,
    pub(super) settings: &'a Settings,
    /// What a server that died has left, if one did.
    pub(super) predecessor: Option<Predecessor>,
    pub(super) disk: OnceCell<Disk>,
}

/// A server that died.
pub(super) struct Predecessor {
    /// Its [`Attached::state`].
    pub(super) state: Value,
    /// What the supervisor kept of it: its [`Attached::keep`].
    pub(super) kept: Option<OwnedFd>,
}

impl Start<'_> {
    /// The disk, connected when it is asked for first. Who never asks, such as a way that leaves
    /// connecting to the kernel, has no connections of ours.
    pub(super) fn disk(&self) -> Result<&Disk, String> {
        if self.disk.get().is_none() {
            let disk = super::connect(self.settings, self.folder)?;
            let _ = self.disk.set(disk);
        }
        Ok(self.disk.get().expect("it was set"))
    }

    fn namespace(&self) -> Result<Arc<dyn farblock_block::Namespace>, String> {
        Ok(Arc::new(self.disk()?.clone()))
    }
}

/// A disk that is offered. Dropping it without [`Attached::stop`] may leave anything.
pub(super) trait Attached: Send {
    /// What is used of it.
    fn used(&self) -> Use;

    /// How it is and why, and what it looks like, if the disk is not ours to ask.
    fn condition(&self) -> Option<Condition> {
        None
    }

    /// What a successor needs to go on, and [`clean_up`] to clean up. Asked for once, when it runs.
    fn state(&self) -> Value;

    /// What another process is to keep open so that a successor can go on.
    fn keep(&self) -> Option<OwnedFd> {
        None
    }

    /// Who uses it, each as a part of a sentence: `fio (process 7) has /dev/loop0 open`.
    fn users(&self) -> Vec<String>;

    /// The disk has another size now.
    fn resized(&mut self, bytes: u64) -> Result<(), String>;

    /// Ends it, unless somebody uses it; `force`d, even then. After an error it goes on.
    fn stop(&mut self, force: bool) -> Result<(), StopError>;
}

/// What a way says that has no connection of ours.
pub(super) struct Condition {
    pub(super) state: State,
    pub(super) trouble: Option<String>,
    pub(super) geometry: Geometry,
}

/// Why a disk is still offered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum StopError {
    /// By whom it is used.
    InUse(Vec<String>),
    /// In a sentence.
    Failed(String),
}

impl StopError {
    /// Refuses, if there are users and nothing is forced.
    pub(super) fn if_used(users: Vec<String>, force: bool) -> Result<(), StopError> {
        match users.is_empty() || force {
            true => Ok(()),
            false => Err(StopError::InUse(users)),
        }
    }
}

/// Offers the disk.
pub(super) fn start(start: &Start<'_>) -> Result<Box<dyn Attached>, String> {
    match start.settings.way {
        As::Auto => Err("a way is to be chosen first".to_owned()),
        As::Nvme => nvme::start(start),
        As::Ublk => ublk::start(start),
        As::Nbd => nbd::start(start),
        As::Fuse => fuse::start(start),
        As::VhostUser => vhost_user::start(start),
        As::Iscsi => iscsi::start(start),
    }
}

/// Clears away what a server left that is gone for good. `Err` says why it stays: in use, unless
/// it is forced.
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
        As::Auto | As::VhostUser | As::Iscsi => Ok(()),
    }
}

/// The way for `--as auto`, and why, in a sentence.
pub(super) fn choose(settings: &Settings) -> (As, String) {
    if settings.no_device {
        return (As::Fuse, "chose fuse: a file, since no block device is wanted".to_owned());
    }
    let Err(no_ublk) = ublk::available() else {
        let why = "chose ublk: the kernel's driver for block devices like this";
        return (As::Ublk, why.to_owned());
    };
    if nbd::device_available().is_ok() {
        return (As::Nbd, format!("chose nbd: the kernel has its client ({no_ublk})"));
    }
    match fuse::device_available() {
        Ok(()) => {
            let why = format!("chose fuse with a loop device: {no_ublk}, and no NBD client");
            (As::Fuse, why)
        }
        Err(reason) => (As::Fuse, format!("chose fuse: a file and no block device ({reason})")),
    }
}

/// What the kernel says of a block device.
fn system(device: &Path, attribute: &str) -> Option<String> {
    let folder = Path::new("/sys/block").join(device.file_name()?);
    Some(std::fs::read_to_string(folder.join(attribute)).ok()?.trim_end().to_owned())
}

/// An error in words, without Rust's `(os error 28)`.
fn sentence(error: impl fmt::Display) -> String {
    const NUMBER: &str = " (os error ";
    let mut text = error.to_string();
    while let Some(start) = text.find(NUMBER) {
        let end = text[start..].find(')').map_or(text.len(), |end| start + end + 1);
        text.replace_range(start..end, "");
    }
    text
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Users of a block device, in words.
fn users_of(device: &Path) -> Vec<String> {
    farblock_attach::users::of_block_device(device).iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_have_no_numbers_of_errors() {
        let error = std::io::Error::from_raw_os_error(2);
        let text = sentence(format_args!("/x is none ({error}): create it"));
        assert_eq!(text, "/x is none (No such file or directory): create it");
    }

    #[test]
    fn a_choice_says_why() {
        let (_, why) = choose(&Settings::default());
        assert!(why.starts_with("chose ") && why.lines().count() == 1, "{why}");
        let settings = Settings { no_device: true, ..Settings::default() };
        assert_eq!(choose(&settings).0, As::Fuse);
    }
}
