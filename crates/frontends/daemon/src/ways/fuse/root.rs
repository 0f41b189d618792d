//! Privileged operations for a mount and its loop device, as root or through fusermount3.

use super::super::super::folder::Folder;
use super::super::super::rights::{Privileged, Rights};
use super::super::super::settings::Settings;
use super::super::{Start, loops, sentence};
use super::{loop_device, mountpoint};
use farblock_attach::fuse::{self, MountError, Mounter, Own, User, Way};
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Requests for operations on a mount. They contain no mountpoint, so that a server can request
/// nothing for another mount.
#[derive(Serialize, Deserialize)]
pub(in super::super) enum MountRequest {
    /// Removes what a dead server left behind. Creates the mountpoint if the user did not name one.
    Make,
    Prepare,
    Mount {
        read_only: bool,
    },
    Unmount(How),
    Users,
    Elsewhere {
        device: String,
    },
    DetachAll,
    /// Checks whether this loop device is attached to the mounted file.
    IsOn {
        device: PathBuf,
    },
    AttachLoop {
        block_size: u32,
        read_only: bool,
    },
    DetachLoop {
        device: PathBuf,
        force: bool,
    },
    Resize {
        device: Option<PathBuf>,
    },
}

#[derive(Serialize, Deserialize)]
pub(in super::super) enum Answer {
    /// Whether farblock created the mountpoint.
    Made(bool),
    Prepared(PathBuf),
    /// The file system is mounted. The connection to the kernel is attached to the answer.
    Mounted,
    /// The users, each with process ID, command, use, and loop device.
    Users(Vec<(Option<u32>, String, String, Option<PathBuf>)>),
    On(bool),
    Attached(PathBuf),
    Done,
    /// The mount or device is in use.
    Busy(String),
    Refused(String),
}

/// A [`Way`] to unmount that a request can contain.
#[derive(Serialize, Deserialize, Clone, Copy)]
pub(in super::super) enum How {
    IfUnused,
    Lazy,
    Abort,
}

/// Performs the operations with root's rights.
pub(in super::super) struct Root {
    mountpoint: PathBuf,
    /// Whether farblock chose the mountpoint, because the user named none.
    is_ours: bool,
    name: String,
    own: Own,
}

impl Root {
    pub(in super::super) fn new(folder: &Folder, settings: &Settings) -> Root {
        let mountpoint = mountpoint(folder, settings);
        let own = Own::new(mountpoint.clone(), settings.allow_other);
        Root { mountpoint, is_ours: settings.mountpoint.is_none(), name: folder.name(), own }
    }

    fn make(&self) -> Result<Answer, String> {
        fuse::clean_up(&self.mountpoint).map_err(sentence)?;
        if !self.is_ours {
            return Ok(Answer::Made(false));
        }
        match fs::create_dir(&self.mountpoint) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                let (path, error) =
                    (self.mountpoint.display(), farblock_program::error::os(&error));
                Err(format!("cannot create {path}: {error}"))
            }
            _ => Ok(Answer::Made(true)),
        }
    }

    /// The path of the mounted file. Does not access the mount, whose server may be dead.
    fn file(&self) -> PathBuf {
        self.own.path().join(&self.name)
    }

    /// Whether this loop device is attached to the mounted file.
    fn has(&self, device: &Path) -> bool {
        loop_device::is_below(device, &self.own.path())
    }

    fn change(&self, request: MountRequest) -> Result<Answer, loops::Problem> {
        let other = |device: &Path| {
            loops::Problem::Failed(format!("{} is not on this disk", device.display()))
        };
        match request {
            MountRequest::AttachLoop { block_size, read_only } => {
                loops::attach(&self.file(), block_size, read_only).map(Answer::Attached)
            }
            MountRequest::DetachLoop { device, .. } if !self.has(&device) => Err(other(&device)),
            MountRequest::DetachLoop { device, force } => {
                loops::detach(&device, force).map(|()| Answer::Done)
            }
            MountRequest::Resize { device } => {
                let device = device.filter(|device| self.has(device));
                loops::resize(&self.file(), device.as_deref()).map(|()| Answer::Done)
            }
            _ => Ok(Answer::Done),
        }
    }
}

fn plain(users: Vec<User>) -> Answer {
    let fields = |User { pid, command, what, device }| (pid, command, what, device);
    Answer::Users(users.into_iter().map(fields).collect())
}

impl Privileged for Root {
    type Request = MountRequest;
    type Answer = Answer;

    fn carry_out(&mut self, request: MountRequest, _: Vec<OwnedFd>) -> (Answer, Option<OwnedFd>) {
        let answer = match request {
            MountRequest::Make => self.make(),
            MountRequest::Prepare => self.own.prepare().map(Answer::Prepared).map_err(sentence),
            MountRequest::Mount { read_only } => match self.own.mount(read_only) {
                Ok(connection) => return (Answer::Mounted, Some(connection)),
                Err(error) => Err(sentence(error)),
            },
            MountRequest::Unmount(how) => {
                let way = match how {
                    How::IfUnused => Way::IfUnused,
                    How::Lazy => Way::Lazy,
                    How::Abort => Way::Abort,
                };
                match self.own.unmount(way) {
                    Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                        Ok(Answer::Busy(sentence(error)))
                    }
                    unmounted => unmounted.map(|()| Answer::Done).map_err(sentence),
                }
            }
            MountRequest::Users => Ok(plain(self.own.users())),
            MountRequest::IsOn { device } => Ok(Answer::On(self.has(&device))),
            MountRequest::Elsewhere { device } => Ok(plain(self.own.elsewhere(&device))),
            MountRequest::DetachAll => {
                self.own.detach_loop_devices();
                Ok(Answer::Done)
            }
            about_loop => match self.change(about_loop) {
                Err(loops::Problem::InUse) => Ok(Answer::Busy("it is in use".to_owned())),
                Err(loops::Problem::Failed(sentence)) => Err(sentence),
                Ok(answer) => Ok(answer),
            },
        };
        (answer.unwrap_or_else(Answer::Refused), None)
    }
}

/// Sends requests to [`Root`], which performs them with root's rights.
pub(super) struct Mounts(Rights<Root>);

impl Mounts {
    pub(super) fn new(start: &Start<'_>) -> Mounts {
        Mounts(Rights::new(start.broker.as_ref(), Root::new(start.folder, start.settings)))
    }

    fn ask(&self, request: MountRequest) -> Result<(Answer, Option<OwnedFd>), String> {
        match self.0.ask(request, Vec::new())? {
            (Answer::Refused(sentence), _) => Err(sentence),
            answer => Ok(answer),
        }
    }

    /// Removes what a dead server left behind. Returns true if farblock created the mountpoint.
    pub(super) fn make(&self) -> Result<bool, String> {
        Ok(matches!(self.ask(MountRequest::Make)?.0, Answer::Made(true)))
    }

    /// Creates a loop device on the mounted file.
    pub(super) fn attach(
        &self,
        block_size: u32,
        read_only: bool,
    ) -> Result<PathBuf, loops::Problem> {
        match self.loops(MountRequest::AttachLoop { block_size, read_only })? {
            Answer::Attached(device) => Ok(device),
            _ => Err(loops::Problem::Failed(
                "the privileged operation returned no loop device".to_owned(),
            )),
        }
    }

    pub(super) fn detach(&self, device: &Path, force: bool) -> Result<(), loops::Problem> {
        self.loops(MountRequest::DetachLoop { device: device.to_path_buf(), force }).map(drop)
    }

    /// Makes the kernel read the new size of the mounted file and of its loop device.
    pub(super) fn resize(&self, device: Option<&Path>) -> Result<(), loops::Problem> {
        self.loops(MountRequest::Resize { device: device.map(Path::to_path_buf) }).map(drop)
    }

    /// Whether this loop device is attached to the mounted file. True if the privileged process
    /// does not answer.
    pub(super) fn has(&self, device: &Path) -> bool {
        let request = MountRequest::IsOn { device: device.to_path_buf() };
        !matches!(self.ask(request), Ok((Answer::On(false), _)))
    }

    fn loops(&self, request: MountRequest) -> Result<Answer, loops::Problem> {
        match self.ask(request).map_err(loops::Problem::Failed)?.0 {
            Answer::Busy(_) => Err(loops::Problem::InUse),
            answer => Ok(answer),
        }
    }

    fn who(&self, request: MountRequest) -> Vec<User> {
        match self.ask(request) {
            Ok((Answer::Users(users), _)) => {
                let user = |(pid, command, what, device)| User { pid, command, what, device };
                users.into_iter().map(user).collect()
            }
            Ok(_) => Vec::new(),
            // Without an answer, assume that the mount is in use.
            Err(sentence) => vec![User::kernel(sentence)],
        }
    }
}

impl Mounter for Mounts {
    fn prepare(&self) -> Result<PathBuf, MountError> {
        match self.ask(MountRequest::Prepare).map_err(MountError::Refused)?.0 {
            Answer::Prepared(path) => Ok(path),
            _ => Err(MountError::Refused(
                "the privileged operation returned no mountpoint".to_owned(),
            )),
        }
    }

    fn mount(&self, read_only: bool) -> Result<OwnedFd, MountError> {
        let mounted = self.ask(MountRequest::Mount { read_only }).map_err(MountError::Refused)?;
        let none = || MountError::Refused("the privileged operation returned no mount".to_owned());
        mounted.1.ok_or_else(none)
    }

    fn unmount(&self, way: Way) -> io::Result<()> {
        let how = match way {
            Way::IfUnused => How::IfUnused,
            Way::Lazy => How::Lazy,
            Way::Abort => How::Abort,
        };
        match self.ask(MountRequest::Unmount(how)).map_err(io::Error::other)?.0 {
            Answer::Busy(said) => Err(io::Error::new(io::ErrorKind::ResourceBusy, said)),
            _ => Ok(()),
        }
    }

    fn users(&self) -> Vec<User> {
        self.who(MountRequest::Users)
    }

    fn elsewhere(&self, device: &str) -> Vec<User> {
        self.who(MountRequest::Elsewhere { device: device.to_owned() })
    }

    fn detach_loop_devices(&self) {
        if let Err(sentence) = self.ask(MountRequest::DetachAll) {
            tracing::warn!("{sentence}");
        }
    }
}
