//! Commands to the control device of Linux's ublk driver, which creates, starts, stops and removes
//! block devices.

use super::kernel::Control;
use super::limits;
use super::uapi::{self, INFO_BYTES, Info, PARAMS_BYTES, Params, control, feature};
use farblock_frontend::modules;
use rustix::io::Errno;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

const CONTROL: &str = "/dev/ublk-control";
const MODULE: &str = "ublk_drv";
/// The interval at which [`wait_for`] retries.
const STEP: Duration = Duration::from_millis(20);

/// The reason why the driver refused. Its text tells the user how to fix the problem.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The kernel does not support ublk, or its module is not loaded.
    NoDriver,
    /// The kernel's version of ublk is too old.
    TooOld,
    /// On this machine, only root may use ublk.
    NotAllowed,
    /// The device does not exist.
    NoDevice(u32),
    /// A device with this number already exists.
    Exists(u32),
    /// This kernel cannot change the size of a ublk device.
    NoResize,
    /// Another error of the kernel, and the command that failed.
    System(&'static str, io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoDriver => write!(
                f,
                "the kernel's ublk driver is not loaded: run 'modprobe {MODULE}' as root, or \
                 choose another --as if the module does not exist"
            ),
            Error::TooOld => f.write_str(
                "the kernel's ublk driver is too old: use Linux 6.5 or later, or choose another \
                 --as",
            ),
            Error::NotAllowed => write!(
                f,
                "only root may create ublk devices on this machine: start farblock as root, or let \
                 this user open {CONTROL} and add a udev rule that gives users their devices"
            ),
            Error::NoDevice(id) => write!(f, "the device {} does not exist", path(*id).display()),
            Error::Exists(id) => {
                write!(f, "{} already exists: choose another number", path(*id).display())
            }
            Error::NoResize => f.write_str(
                "this kernel cannot resize a ublk device, which needs Linux 6.16: detach the disk \
                 and attach it again to see its new size",
            ),
            Error::System(what, error) => write!(f, "the kernel refused to {what}: {error}"),
        }
    }
}

impl std::error::Error for Error {}

/// The path of the block device with this number.
pub(super) fn path(id: u32) -> PathBuf {
    format!("/dev/ublkb{id}").into()
}

/// The path of the character device for the server of the block device with this number.
fn node(id: u32) -> PathBuf {
    format!("/dev/ublkc{id}").into()
}

/// A connection to the driver's control device.
pub(super) struct Driver {
    control: Control,
    features: u64,
    /// True if this process is not root. It then makes devices that belong to its own user.
    unprivileged: bool,
}

impl Driver {
    pub(super) fn open() -> Result<Driver, Error> {
        modules::load_for(Path::new(CONTROL), MODULE);
        let file = File::options().read(true).write(true).open(CONTROL);
        let file = file.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::NoDriver,
            io::ErrorKind::PermissionDenied => Error::NotAllowed,
            _ => Error::System("open the ublk control device", error),
        })?;
        let control =
            Control::new(file).map_err(|error| Error::System("create an io_uring", error))?;
        let unprivileged = !rustix::process::geteuid().is_root();
        let mut driver = Driver { control, features: 0, unprivileged };
        let features = driver.control.call(control::GET_FEATURES, &of(u32::MAX), vec![0; 8]);
        // Older kernels lack this query, and return various errors.
        let features = features.map_err(|_| Error::TooOld)?;
        driver.features = u64::from_ne_bytes(features.try_into().expect("8 bytes"));
        Ok(driver)
    }

    /// The features to request for a new device. Omits features that the kernel lacks.
    pub(super) fn flags(&self, recoverable: bool) -> u64 {
        let mut flags = feature::CMD_IOCTL_ENCODE | feature::UPDATE_SIZE;
        if recoverable {
            flags |= feature::USER_RECOVERY | feature::USER_RECOVERY_REISSUE;
        }
        if self.unprivileged {
            flags |= feature::UNPRIVILEGED_DEV;
        }
        flags & self.features
    }

    /// Executes a command about a device. Passes `buffer` to the driver. `what` describes the
    /// command in the error message.
    fn call(
        &mut self,
        operation: u32,
        id: u32,
        data: u64,
        buffer: &[u8],
        what: &'static str,
    ) -> Result<Vec<u8>, Error> {
        let mut command = uapi::Control { data, ..of(id) };
        let mut all = Vec::new();
        // For users other than root, the driver checks the permissions of the character device at
        // this path.
        if self.unprivileged || operation == control::GET_DEV_INFO2 {
            all.extend(node(id).into_os_string().into_encoded_bytes());
            all.push(0);
            command.path_length = all.len() as u16;
        }
        all.extend(buffer);
        let result = self.control.call(operation, &command, all);
        let mut all = result.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::PERM | Errno::ACCESS) => Error::NotAllowed,
            Some(Errno::NODEV | Errno::NOENT) => Error::NoDevice(id),
            _ => Error::System(what, error),
        })?;
        Ok(all.split_off(usize::from(command.path_length)))
    }

    /// Creates a device. Returns its properties, some of which the driver may have changed.
    pub(super) fn add(&mut self, info: &Info) -> Result<Info, Error> {
        let result = self.control.call(control::ADD_DEV, &of(info.id), info.emit().into());
        let info = result.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::PERM | Errno::ACCESS) => Error::NotAllowed,
            Some(Errno::EXIST) => Error::Exists(info.id),
            _ => Error::System("create a ublk device", error),
        })?;
        Ok(parse_info(&info))
    }

    pub(super) fn info(&mut self, id: u32) -> Result<Info, Error> {
        let what = "describe a ublk device";
        Ok(parse_info(&self.call(control::GET_DEV_INFO2, id, 0, &[0; INFO_BYTES], what)?))
    }

    pub(super) fn set_params(&mut self, id: u32, params: &Params) -> Result<(), Error> {
        let what = "accept the disk's geometry";
        self.call(control::SET_PARAMS, id, 0, &params.emit(), what).map(drop)
    }

    pub(super) fn params(&mut self, id: u32) -> Result<Params, Error> {
        let mut bytes = [0; PARAMS_BYTES];
        bytes[..4].copy_from_slice(&(PARAMS_BYTES as u32).to_ne_bytes());
        let bytes = self.call(control::GET_PARAMS, id, 0, &bytes, "report the disk's geometry")?;
        Ok(Params::parse(&bytes.try_into().expect("the length is unchanged")))
    }

    /// Starts the block device. The kernel then reads the partition table, so a server must already
    /// handle requests.
    pub(super) fn start(&mut self, id: u32) -> Result<(), Error> {
        let pid = u64::from(std::process::id());
        self.call(control::START_DEV, id, pid, &[], "start a ublk device").map(drop)
    }

    /// Stops the block device. The kernel fails requests that no server has received, and waits for
    /// requests that a server has received.
    pub(super) fn stop(&mut self, id: u32) -> Result<(), Error> {
        self.call(control::STOP_DEV, id, 0, &[], "stop a ublk device").map(drop)
    }

    /// Removes a device. Waits until no process has the block device or its character device open.
    pub(super) fn delete(&mut self, id: u32) -> Result<(), Error> {
        self.call(control::DEL_DEV, id, 0, &[], "remove a ublk device").map(drop)
    }

    /// Removes a device without waiting. The number becomes free when no process has the device
    /// open.
    pub(super) fn delete_soon(&mut self, id: u32) -> Result<(), Error> {
        let what = "remove a ublk device";
        match self.call(control::DEL_DEV_ASYNC, id, 0, &[], what) {
            // Kernels before 6.9 only have the removal that waits.
            Err(Error::System(_, error)) => {
                tracing::debug!("the kernel cannot remove a device without waiting: {error}");
                self.delete(id)
            }
            result => result.map(drop),
        }
    }

    /// Prepares the device of a dead server for a new server.
    pub(super) fn start_recovery(&mut self, id: u32) -> Result<(), Error> {
        let what = "start the recovery of a ublk device";
        self.call(control::START_USER_RECOVERY, id, 0, &[], what).map(drop)
    }

    /// Completes the recovery. The kernel first sends the waiting requests to the new server.
    pub(super) fn end_recovery(&mut self, id: u32) -> Result<(), Error> {
        let pid = u64::from(std::process::id());
        self.call(
            control::END_USER_RECOVERY,
            id,
            pid,
            &[],
            "complete the recovery of a ublk device",
        )
        .map(drop)
    }

    pub(super) fn update_size(&mut self, id: u32, sectors: u64) -> Result<(), Error> {
        let what = "resize a ublk device";
        self.call(control::UPDATE_SIZE, id, sectors, &[], what).map(drop)
    }
}

/// Makes a command about a device, without parameters.
fn of(device: u32) -> uapi::Control {
    uapi::Control { device, length: 0, address: 0, data: 0, path_length: 0 }
}

fn parse_info(bytes: &[u8]) -> Info {
    Info::parse(bytes.try_into().expect("the length is unchanged"))
}

/// Calls `attempt` until it succeeds, `worth_waiting` returns false for its error, or `timeout` has
/// passed. Returns the last result.
pub(super) fn wait_for<T, E>(
    timeout: Duration,
    mut attempt: impl FnMut() -> Result<T, E>,
    worth_waiting: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let deadline = Instant::now() + timeout;
    loop {
        match attempt() {
            Err(error) if worth_waiting(&error) && Instant::now() < deadline => thread::sleep(STEP),
            result => return result,
        }
    }
}

/// Opens a device's character device. Waits until udev has created it.
pub(super) fn open_node(id: u32) -> Result<File, Error> {
    let open = || File::options().read(true).write(true).open(node(id));
    let file = wait_for(limits::NODE_TIMEOUT, open, |error| {
        matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::ResourceBusy
        )
    });
    file.map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => Error::NotAllowed,
        _ => Error::System("open a ublk device", error),
    })
}
