//! A loop device on the mounted file. It gives programs a block device even if the kernel has no
//! NVMe, NBD or ublk driver.
//!
//! Attaching a loop device needs root and Linux 5.8. The device uses direct I/O, so that the kernel
//! caches data for the device, but not again for the file. It has the disk's block size and shows
//! the disk's partitions.
//!
//! This process keeps no loop device open. If it did and were killed, the kernel would close the
//! device for it, and the close would wait forever for an answer from the killed process.

pub(crate) mod ioctl;

use super::mount::wait_until;
use farblock_frontend::users::{self, Listed, User, loops};
use farblock_reactor::loop_device::device_number;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

const CONTROL: &str = "/dev/loop-control";
/// The number of attempts to attach. An attempt fails if another process takes the free device
/// first.
const ATTEMPTS: usize = 16;
/// The time for which a detach retries while the device is in use. Some uses are short: for
/// example, a new child process shares an open descriptor of the device until it executes a
/// program.
const LOOKING: Duration = Duration::from_millis(300);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The reason why an operation on a loop device failed. Its text tells the user how to fix the
/// problem.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The kernel has no loop devices, or its module is not loaded.
    NoDriver,
    /// Only root may use the loop driver.
    NotAllowed,
    /// The file cannot be opened.
    File(PathBuf, io::Error),
    /// The kernel does not support this block size for loop devices.
    BlockSize(u32),
    /// The path is not a loop device, or the loop device has no backing file.
    NoDevice(PathBuf),
    /// The device is in use. Lists the users that this process can see.
    InUse(PathBuf, Vec<User>),
    /// Another error of the kernel.
    System(PathBuf, io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoDriver => write!(
                f,
                "{CONTROL} does not exist: run 'modprobe loop' as root, or choose another --as"
            ),
            Error::NotAllowed => f.write_str("only root may create and change loop devices"),
            Error::File(path, error) => write!(f, "cannot open {}: {error}", path.display()),
            Error::BlockSize(bytes) => write!(
                f,
                "loop devices do not support blocks of {bytes} bytes: use Linux 5.8 or later, and \
                 blocks of at most a page"
            ),
            Error::NoDevice(path) => {
                write!(f, "{} is not an attached loop device", path.display())
            }
            Error::InUse(path, users) => {
                write!(f, "{} is in use: {}", path.display(), Listed(users))
            }
            Error::System(path, error) => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for Error {}

/// Attaches a loop device to a file. Returns the device's path.
///
/// # Errors
/// Fails if the kernel refuses. Then no new device remains.
pub fn attach(file: &Path, block_size: u32, read_only: bool) -> Result<PathBuf, Error> {
    let unreadable = |error| Error::File(file.to_path_buf(), error);
    let backing = File::options().read(true).write(!read_only).open(file).map_err(unreadable)?;
    let control = File::options().read(true).write(true).open(CONTROL);
    let control = control.map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => Error::NotAllowed,
        _ => Error::NoDriver,
    })?;
    let mut attempt = 0;
    loop {
        let number =
            ioctl::next_free(&control).map_err(|error| refused(Path::new(CONTROL), error))?;
        let path = path_of(fresh(&control, number));
        if !read_only {
            clear_read_only(&path);
        }
        attempt += 1;
        let device = match open(&path, !read_only, OFlags::empty()) {
            Err(Error::NoDevice(_)) if attempt < ATTEMPTS => continue,
            opened => opened?,
        };
        match ioctl::configure(&device, &backing, block_size, read_only) {
            Ok(()) => return Ok(path),
            Err(Errno::BUSY) if attempt < ATTEMPTS => {}
            Err(Errno::INVAL | Errno::NOTTY) => return Err(Error::BlockSize(block_size)),
            Err(error) => return Err(refused(&path, error)),
        }
    }
}

fn path_of(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/loop{number}"))
}

/// Replaces a free device with a new one, and returns its number. A used device keeps settings of
/// its last user: the read-only flag, partitions, values below `queue/` such as the scheduler, and
/// udev's data about an old file system. A new device with the same number has none of them.
fn fresh(control: &File, number: u32) -> u32 {
    match ioctl::remove(control, number) {
        // If the call fails because another process has made the device again, that device is also
        // new.
        Ok(()) => drop(ioctl::add(control, Some(number))),
        // A process has the device open: make another device instead.
        Err(_) => {
            if let Ok(new) = ioctl::add(control, None) {
                if path_of(new).exists() {
                    return new;
                }
                // In a container, `/dev` gets no node for a new device. Remove the device again.
                let _ = ioctl::remove(control, new);
            }
        }
    }
    number
}

/// Clears the read-only flag that `blockdev --setro` set. Attaching a file does not clear this
/// flag.
fn clear_read_only(path: &Path) {
    let cleared = open(path, false, OFlags::empty())
        .and_then(|device| ioctl::set_writable(&device).map_err(|error| refused(path, error)));
    if let Err(error) = cleared {
        tracing::debug!("cannot make {} writable again: {error}", path.display());
    }
}

/// Detaches a loop device from its file if the device has no users. With `force`, existing users
/// keep the device until they close it, and no new users can open it.
///
/// # Errors
/// Fails if the device is in use, or the kernel refuses.
pub fn detach(device: &Path, force: bool) -> Result<(), Error> {
    if backing_file(device).is_none() {
        return Err(Error::NoDevice(device.to_path_buf()));
    }
    let in_use = || Error::InUse(device.to_path_buf(), users(device));
    let deadline = Instant::now() + LOOKING;
    while !force && !users(device).is_empty() {
        if Instant::now() >= deadline {
            return Err(in_use());
        }
        thread::sleep(LOOK_EVERY);
    }
    // While the device is open exclusively, no process can mount it. The open fails if the device
    // is mounted in a mount namespace that this process cannot see.
    let exclusive = if force { OFlags::empty() } else { OFlags::EXCL };
    let file = match open(device, false, exclusive) {
        Err(Error::System(_, error)) if error.kind() == io::ErrorKind::ResourceBusy => {
            return Err(in_use());
        }
        opened => opened?,
    };
    ioctl::clear(&file).map_err(|error| refused(device, error))?;
    drop(file);
    if force || wait_until(|| backing_file(device).is_none()) { Ok(()) } else { Err(in_use()) }
}

/// Sets a loop device's size to its backing file's current size.
///
/// # Errors
/// Fails if the kernel refuses.
pub fn resize(device: &Path) -> Result<(), Error> {
    let Some(file) = backing_file(device) else {
        return Err(Error::NoDevice(device.to_path_buf()));
    };
    // Kernels before 6.17 use a cached file size. This call makes the kernel read the size again.
    fs::metadata(&file).map_err(|error| Error::File(file, error))?;
    let file = open(device, false, OFlags::empty())?;
    ioctl::set_capacity(&file).map_err(|error| refused(device, error))
}

/// The users of a loop device and of its partitions.
#[must_use]
pub fn users(device: &Path) -> Vec<User> {
    users::of_block_device(device)
}

/// The loop devices whose backing file is on the file system mounted at `path`. If the loop driver
/// does not report a device's file system, compares paths instead. Does not access the file system,
/// whose server may be dead.
#[must_use]
pub fn below(path: &Path) -> Vec<PathBuf> {
    let mounts = users::mounts();
    let mount = mounts.iter().rev().find(|mount| mount.mountpoint == path);
    let number = mount.and_then(|mount| device_number(&mount.device));
    let found = loops::all().into_iter().filter(|it| it.is_in(number, Some(path)));
    found.map(|it| it.device).collect()
}

/// True if the loop device's backing file is on the file system mounted at `path`.
#[must_use]
pub fn is_below(device: &Path, path: &Path) -> bool {
    backing_file(device).is_some() && below(path).iter().any(|it| it == device)
}

/// The backing file of a loop device. `None` if the device has no backing file or is not a loop
/// device.
#[must_use]
pub fn backing_file(device: &Path) -> Option<PathBuf> {
    let system = Path::new("/sys/block").join(device.file_name()?);
    let text = fs::read_to_string(system.join("loop/backing_file")).ok()?;
    Some(text.strip_suffix('\n').unwrap_or(&text).into())
}

/// Opens a device. Only attaching a file needs a device that is open for writing; `write` must then
/// match the configuration. For all other calls `write` is false, because a read-only device cannot
/// be opened for writing.
fn open(path: &Path, write: bool, flags: OFlags) -> Result<File, Error> {
    let flags = flags.bits().cast_signed();
    let opened = File::options().read(true).write(write).custom_flags(flags).open(path);
    opened.map_err(|error| refused_io(path, error))
}

fn refused(path: &Path, error: Errno) -> Error {
    refused_io(path, error.into())
}

fn refused_io(path: &Path, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::PermissionDenied => Error::NotAllowed,
        io::ErrorKind::NotFound => Error::NoDevice(path.to_path_buf()),
        _ if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {
            Error::NoDevice(path.to_path_buf())
        }
        _ => Error::System(path.to_path_buf(), error),
    }
}
