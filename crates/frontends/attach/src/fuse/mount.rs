//! Mounts and unmounts: checks the prerequisites, removes the mount of a killed server, and cleans
//! up.

use super::limits;
use super::loop_device;
use farblock_frontend::users::{self, User};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::net::{SocketFlags, SocketType};
use std::ffi::{CString, OsString};
use std::fmt;
use std::fs;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The source field of farblock's mounts in the kernel's mount table.
pub(super) const SOURCE: &str = "farblock";

const DEVICE: &str = "/dev/fuse";
/// The maximum number of symbolic links in a path, as in the kernel.
const MAX_LINKS: usize = 40;
/// The interval at which [`wait_until`] checks its condition.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The reason why mounting failed. Its text tells the user how to fix the problem.
#[derive(Debug)]
#[non_exhaustive]
pub enum MountError {
    /// The kernel or this container does not support FUSE.
    NoDevice,
    /// This user may not open `/dev/fuse`.
    DeviceDenied,
    /// The helper `fusermount3` is missing. Without it, only root can mount.
    NoHelper,
    /// This container or service may not mount.
    NoRight,
    /// The mountpoint does not exist, is not a directory, or cannot be read.
    NoDirectory(PathBuf, io::Error),
    /// The directory is not empty.
    NotEmpty(PathBuf),
    /// Another file system is mounted on the directory.
    Busy(PathBuf),
    /// The mount on the directory does not answer. Its server is dead or stopped, and another
    /// process keeps the mount.
    Silent(PathBuf),
    /// The mount of a dead server is still there and cannot be removed.
    Stale(PathBuf, io::Error),
    /// `allow_other` needs the line `user_allow_other` in `/etc/fuse.conf`, which is missing.
    OthersNotAllowed,
    /// Another process mounts for this process, and refused for this reason.
    Refused(String),
    /// Another error from the kernel or the helper.
    System(PathBuf, io::Error),
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MountError::NoDevice => write!(
                f,
                "{DEVICE} does not exist: run 'modprobe fuse' as root, or start the container with \
                 '--device {DEVICE}'"
            ),
            MountError::DeviceDenied => {
                write!(
                    f,
                    "this user may not open {DEVICE}: start farblock as root, or run 'chmod 666 \
                     {DEVICE}'"
                )
            }
            MountError::NoHelper => f.write_str(
                "only root can mount without the program fusermount3: install the package fuse3, \
                 or start farblock as root",
            ),
            MountError::NoRight => f.write_str(
                "this container or service may not mount file systems: start it with the \
                 capability CAP_SYS_ADMIN, or choose another --as",
            ),
            MountError::NoDirectory(path, error) => match error.kind() {
                io::ErrorKind::NotFound => write!(
                    f,
                    "the directory {} does not exist: create it, or choose another mountpoint",
                    path.display()
                ),
                io::ErrorKind::NotADirectory => write!(
                    f,
                    "{} is not a directory: choose an empty directory as the mountpoint",
                    path.display()
                ),
                _ => write!(f, "cannot mount at {}: {error}", path.display()),
            },
            MountError::NotEmpty(path) => write!(
                f,
                "{} is not empty, and the mount would hide its files: choose an empty directory",
                path.display()
            ),
            MountError::Busy(path) => write!(
                f,
                "another file system is mounted at {}: unmount it, or choose another directory",
                path.display()
            ),
            MountError::Silent(path) => write!(
                f,
                "the mount at {} is kept for its next server, and does not answer: wait until that \
                 server starts, or detach the disk with `farblock detach --force`",
                path.display()
            ),
            MountError::Stale(path, error) => write!(
                f,
                "the server of the mount at {0} is dead, and the mount cannot be removed \
                 ({error}): run 'umount --lazy {0}' as the user who mounted it",
                path.display()
            ),
            MountError::OthersNotAllowed => f.write_str(
                "this user may not give other users access: add the line 'user_allow_other' to \
                 /etc/fuse.conf, or start farblock as root",
            ),
            MountError::Refused(sentence) => f.write_str(sentence),
            MountError::System(path, error) => {
                write!(f, "cannot mount at {}: {error}", path.display())
            }
        }
    }
}

impl std::error::Error for MountError {}

/// The mount operations that need root's rights or the setuid helper. A server without rights uses
/// a mounter in another process.
pub trait Mounter: Send + Sync {
    /// Checks all prerequisites and removes the mount of a killed server from the mountpoint.
    /// Returns the mountpoint's full path.
    ///
    /// # Errors
    /// Fails if this process cannot mount on the mountpoint.
    fn prepare(&self) -> Result<PathBuf, MountError>;

    /// Mounts the file system. Returns the only descriptor of the mount's connection to the kernel.
    ///
    /// # Errors
    /// Fails if the kernel or the helper refuses. Then nothing is mounted.
    fn mount(&self, read_only: bool) -> Result<OwnedFd, MountError>;

    /// Unmounts the file system.
    ///
    /// # Errors
    /// Fails if the file system remains mounted.
    fn unmount(&self, way: Way) -> io::Result<()>;

    /// The users of this mount: processes, loop devices on its file, and the users of these loop
    /// devices.
    fn users(&self) -> Vec<User>;

    /// The processes that have this mount, with the device number `major:minor`, in another mount
    /// namespace.
    fn elsewhere(&self, device: &str) -> Vec<User>;

    /// Detaches the loop devices on the mounted file, even if they are in use.
    fn detach_loop_devices(&self);
}

/// A mounter for a process that has the rights to mount.
#[derive(Clone, Debug)]
pub struct Own {
    mountpoint: PathBuf,
    allow_other: bool,
}

impl Own {
    /// Makes a mounter for the mount at this path.
    #[must_use]
    pub fn new(mountpoint: PathBuf, allow_other: bool) -> Own {
        Own { mountpoint, allow_other }
    }

    /// The mountpoint's full path. Does not access the mount itself, whose server may be dead.
    /// `read_link` needs no server: the kernel knows that a mountpoint is not a link.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        let mut path = self.mountpoint.clone();
        for _ in 0..MAX_LINKS {
            let Ok(target) = fs::read_link(&path) else { break };
            path = path.parent().unwrap_or(Path::new("/")).join(target);
        }
        let parent = path.parent().filter(|parent| *parent != Path::new(""));
        let parent = parent.unwrap_or(Path::new(".")).canonicalize();
        match (parent, path.file_name()) {
            (Ok(parent), Some(name)) => parent.join(name),
            _ => path,
        }
    }
}

impl Mounter for Own {
    fn prepare(&self) -> Result<PathBuf, MountError> {
        prepare(&self.mountpoint)
    }

    fn mount(&self, read_only: bool) -> Result<OwnedFd, MountError> {
        let path = prepare(&self.mountpoint)?;
        connect(&path, read_only, self.allow_other).map_err(|error| failed(&path, error))
    }

    fn unmount(&self, way: Way) -> io::Result<()> {
        unmount(&self.path(), way)
    }

    fn users(&self) -> Vec<User> {
        let path = self.path();
        let mut users = users::processes(std::slice::from_ref(&path));
        for device in loop_device::below(&path) {
            let file = loop_device::backing_file(&device).unwrap_or_else(|| path.clone());
            let what = format!("{} is a loop device on {}", device.display(), file.display());
            users.push(User { device: Some(device.clone()), ..User::kernel(what) });
            users.extend(loop_device::users(&device));
        }
        users
    }

    fn elsewhere(&self, device: &str) -> Vec<User> {
        users::elsewhere(device)
    }

    fn detach_loop_devices(&self) {
        for device in loop_device::below(&self.path()) {
            if let Err(error) = loop_device::detach(&device, true) {
                tracing::warn!("{error}");
            }
        }
    }
}

/// Mounts the file system. Returns the mount's connection to the kernel.
fn connect(path: &Path, read_only: bool, allow_other: bool) -> io::Result<OwnedFd> {
    let device = OwnedFd::from(fs::File::options().read(true).write(true).open(DEVICE)?);
    let mut options = format!(
        "fd={},rootmode={:o},user_id={},group_id={}",
        device.as_raw_fd(),
        fs::metadata(path)?.mode(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw()
    );
    if allow_other {
        options.push_str(",allow_other");
    }
    let mut flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC;
    flags.set(MountFlags::RDONLY, read_only);
    let options = CString::new(options).expect("numbers and words");
    match rustix::mount::mount(SOURCE, path, "fuse", flags, options.as_c_str()) {
        Ok(()) => Ok(device),
        Err(Errno::PERM) => connect_by_helper(path, read_only, allow_other),
        Err(error) => Err(error.into()),
    }
}

/// Mounts through the helper `fusermount3`, for users without root. The helper sends the connection
/// back over a socket, which is its standard input.
fn connect_by_helper(path: &Path, read_only: bool, allow_other: bool) -> io::Result<OwnedFd> {
    let writing = if read_only { "ro" } else { "rw" };
    let others = if allow_other { ",allow_other" } else { "" };
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let mut command = Command::new(helper());
    command.arg("-o").arg(format!("fsname={SOURCE},noexec,{writing}{others}")).arg("--").arg(path);
    command.env("_FUSE_COMMFD", "0").stdin(theirs).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn()?;
    // Close this process's copy of the helper's socket.
    drop(command);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = rustix::io::retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(&mut byte)];
        rustix::net::recvmsg(&ours, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    });
    let output = child.wait_with_output()?;
    received?;
    let connection = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let said = || String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
    connection.ok_or_else(|| io::Error::other(said()))
}

/// Checks all prerequisites, and removes the mount of a killed server from the mountpoint. Returns
/// the mountpoint's full path.
pub(super) fn prepare(mountpoint: &Path) -> Result<PathBuf, MountError> {
    available()?;
    clean_up(mountpoint)?;
    let wrong = |error| MountError::NoDirectory(mountpoint.to_path_buf(), error);
    let path = mountpoint.canonicalize().map_err(wrong)?;
    let mut entries = fs::read_dir(&path).map_err(wrong)?;
    if is_mounted(&path) {
        return Err(MountError::Busy(path));
    }
    match entries.next() {
        None => Ok(path),
        Some(_) => Err(MountError::NotEmpty(path)),
    }
}

/// Checks whether this user can mount.
///
/// # Errors
/// Fails if this user cannot mount. The error states the reason.
pub fn available() -> Result<(), MountError> {
    match fs::File::options().read(true).write(true).open(DEVICE) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Err(MountError::DeviceDenied);
        }
        Err(_) => return Err(MountError::NoDevice),
    }
    if is_administrator() {
        return Ok(());
    }
    // The helper is setuid root, which has no effect if this process may not gain privileges.
    let no_new_rights = of_this_process("NoNewPrivs").as_deref() == Some("1");
    if no_new_rights || !has_right("CapBnd") {
        return Err(MountError::NoRight);
    }
    if has_helper() { Ok(()) } else { Err(MountError::NoHelper) }
}

/// True if this process may mount and make devices, because it has `CAP_SYS_ADMIN`. Root has this
/// capability, unless a container or service removed it.
#[must_use]
pub fn is_administrator() -> bool {
    has_right("CapEff")
}

/// True if this set of capabilities of this process contains `CAP_SYS_ADMIN`.
fn has_right(set: &str) -> bool {
    const SYS_ADMIN: u64 = 1 << 21;
    let mask = of_this_process(set).and_then(|mask| u64::from_str_radix(&mask, 16).ok());
    // If the kernel does not report the set, only a mount attempt shows whether mounting is
    // allowed.
    mask.is_none_or(|mask| mask & SYS_ADMIN != 0)
}

/// The value of a line in `/proc/self/status`.
fn of_this_process(name: &str) -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let value = |line: &str| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned());
    status.lines().find_map(value)
}

/// Unmounts the file system that a killed farblock server left on the mountpoint, and detaches its
/// loop devices. Does nothing if there is no such file system.
///
/// # Errors
/// Fails if another file system is mounted on the mountpoint, the mount cannot be unmounted, or
/// another process keeps the mount for a later server (see [`end`]).
pub fn clean_up(mountpoint: &Path) -> Result<(), MountError> {
    let is_gone = || is_gone(mountpoint).ok_or_else(|| MountError::Silent(mountpoint.to_owned()));
    if !is_gone()? {
        return Ok(());
    }
    let stale = |error| MountError::Stale(mountpoint.to_path_buf(), error);
    let path = beside(mountpoint).map_err(stale)?;
    if !is_ours(&path) {
        return Err(MountError::Busy(path));
    }
    for device in loop_device::below(&path) {
        tracing::warn!("detaching {}, which a killed server left behind", device.display());
        if let Err(error) = loop_device::detach(&device, true) {
            tracing::warn!("{error}");
        }
    }
    tracing::warn!("removing the mount at {}, whose server is dead", path.display());
    unmount(&path, Way::Lazy).map_err(stale)?;
    if is_gone()? { Err(stale(io::ErrorKind::ResourceBusy.into())) } else { Ok(()) }
}

/// Like [`clean_up`], but also removes a mount that another process keeps. Reads and writes through
/// the mount then fail.
///
/// # Errors
/// Returns the errors of [`clean_up`], but a kept mount is no error.
pub fn end(mountpoint: &Path) -> Result<(), MountError> {
    let stale = |error| MountError::Stale(mountpoint.to_path_buf(), error);
    if let Ok(path) = beside(mountpoint)
        && is_ours(&path)
    {
        let devices = loop_device::below(&path);
        minor(&path).into_iter().for_each(abort);
        unmount(&path, Way::Abort).map_err(stale)?;
        // Detaching a loop device writes its cached data. Detach only now that the mount is
        // aborted, so that these writes fail at once instead of waiting.
        for device in devices {
            if let Err(error) = loop_device::detach(&device, true) {
                tracing::warn!("{error}");
            }
        }
    }
    clean_up(mountpoint)
}

/// True if the server of a mount is dead and no other process keeps the mount. Reads and writes
/// through the mount then fail, and no server can resume it.
#[must_use]
pub fn is_broken(mountpoint: &Path) -> bool {
    is_gone(mountpoint) == Some(true)
}

/// Whether the server of the mount at this path is dead. `None` if the mount does not answer in
/// time.
fn is_gone(path: &Path) -> Option<bool> {
    let (sender, answer) = mpsc::channel();
    let path = path.to_path_buf();
    // This call may block for as long as this process runs, so make it on another thread.
    let ask = move || {
        // Query the server instead of the kernel's cache.
        let found = rustix::fs::statx(CWD, &path, AtFlags::STATX_FORCE_SYNC, StatxFlags::TYPE);
        let _ = sender.send(found.is_err_and(|error| error == Errno::NOTCONN));
    };
    std::thread::Builder::new().name("mount".to_owned()).spawn(ask).ok()?;
    answer.recv_timeout(limits::ANSWER_TIMEOUT).ok()
}

/// The full path of a mountpoint whose mount may not answer. Accesses only its parent directory.
fn beside(mountpoint: &Path) -> io::Result<PathBuf> {
    let name = mountpoint.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let parent = match mountpoint.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    Ok(parent.canonicalize()?.join(name))
}

/// True if the topmost mount at the path is a farblock mount.
fn is_ours(path: &Path) -> bool {
    let mounts = users::mounts();
    let top = mounts.iter().rev().find(|mount| mount.mountpoint == path);
    top.is_some_and(|mount| mount.source == Path::new(SOURCE))
}

/// Converts an error of the library or the kernel to a specific [`MountError`] if possible.
pub(super) fn failed(mountpoint: &Path, error: io::Error) -> MountError {
    if error.to_string().contains("user_allow_other") {
        return MountError::OthersNotAllowed;
    }
    MountError::System(mountpoint.to_path_buf(), error)
}

/// A kind of unmount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Unmount only if the mount has no users.
    IfUnused,
    /// Remove the mount from the directory tree at once. The kernel ends the mount when its last
    /// user closes it.
    Lazy,
    /// Like `Lazy`, but reads and writes through the mount fail at once.
    Abort,
}

/// Unmounts directly as root, or else through the helper.
pub(super) fn unmount(path: &Path, way: Way) -> io::Result<()> {
    let flags = match way {
        Way::IfUnused => UnmountFlags::empty(),
        Way::Lazy => UnmountFlags::DETACH,
        Way::Abort => UnmountFlags::FORCE | UnmountFlags::DETACH,
    } | UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(path, flags) {
        Err(Errno::PERM) => {}
        result => return Ok(result?),
    }
    let mut command = Command::new(helper());
    command.arg("-u").args((way != Way::IfUnused).then_some("-z")).arg("--").arg(path);
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
    let busy = said.contains("busy");
    let kind = if busy { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
    Err(io::Error::new(kind, said))
}

/// Aborts a connection through the control file system, if that is mounted. Callers that wait for
/// an answer get an error, and the threads that read requests exit.
pub(super) fn abort(minor: u32) {
    let _ = fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1");
}

pub(super) fn is_mounted(path: &Path) -> bool {
    users::mounts().iter().any(|mount| mount.mountpoint == path)
}

/// The number of the mount's connection in `/sys/fs/fuse/connections`.
pub(super) fn minor(path: &Path) -> Option<u32> {
    let mounts = users::mounts();
    let mount = mounts.iter().rev().find(|mount| mount.mountpoint == path)?;
    mount.device.split_once(':')?.1.parse().ok()
}

fn has_helper() -> bool {
    found_helper().is_some()
}

/// The helper program that mounts and unmounts for users without root.
fn helper() -> OsString {
    found_helper().unwrap_or_else(|| "fusermount3".into())
}

fn found_helper() -> Option<OsString> {
    if let Some(named) = std::env::var_os("FUSERMOUNT_PATH") {
        return Some(named);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> =
        std::env::split_paths(&path).chain(["/sbin".into(), "/bin".into()]).collect();
    let names = ["fusermount3", "fusermount"];
    let mut all = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    all.find(|program| program.exists()).map(PathBuf::into_os_string)
}

/// Waits until the condition is true, at most [`limits::RELEASE_TIMEOUT`]. Returns false on
/// timeout.
pub(super) fn wait_until(mut is_so: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limits::RELEASE_TIMEOUT;
    loop {
        if is_so() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
