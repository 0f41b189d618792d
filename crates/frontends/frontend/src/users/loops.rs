//! Finds loop devices and the files or devices below them.
//!
//! Only the loop driver reports the file of a device reliably. The path in sysfs may name another
//! file: after a rename, or if another mount namespace made the device. A process that asks the
//! driver must open the loop device. The open and the question may both wait for the disk below,
//! and then no signal ends the process. So a process that serves a disk asks through another
//! process ([`ask_apart`]).

use rustix::fs::makedev;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The file or device below a loop device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backing {
    /// A file: its file system (`st_dev`) and inode number.
    File {
        /// The device number of the file system.
        device: u64,
        /// The inode number.
        inode: u64,
    },
    /// A block device, by its number (`st_rdev`).
    Device(u64),
}

impl From<farblock_reactor::loop_device::Backing> for Backing {
    fn from(found: farblock_reactor::loop_device::Backing) -> Backing {
        match found.block_device {
            Some(number) => Backing::Device(number),
            None => Backing::File { device: found.device, inode: found.inode },
        }
    }
}

/// A loop device that has a file or device below.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoopDevice {
    /// The path of the loop device, such as `/dev/loop3`.
    pub device: PathBuf,
    /// The loop device's own device number.
    pub number: u64,
    /// The file or device below; `None` if the driver did not answer in time.
    pub backing: Option<Backing>,
    /// The path of the file below, as sysfs reports it.
    pub path: PathBuf,
}

impl LoopDevice {
    /// True if this loop device is on that block device. Compares paths if the driver did not
    /// answer.
    #[must_use]
    pub fn is_on_device(&self, number: u64, device: &Path) -> bool {
        match self.backing {
            Some(backing) => backing == Backing::Device(number),
            None => self.path == device,
        }
    }

    /// True if this loop device is on that file. Compares paths if the driver did not answer.
    #[must_use]
    pub fn is_on_file(&self, file: Backing, path: &Path) -> bool {
        match self.backing {
            Some(backing) => backing == file,
            None => self.path == path,
        }
    }

    /// True if this loop device is on a file in the file system with the number `file_system`,
    /// mounted at `at` in this mount namespace. Compares paths if the driver did not answer.
    #[must_use]
    pub fn is_in(&self, file_system: Option<u64>, at: Option<&Path>) -> bool {
        match (self.backing, file_system) {
            (Some(Backing::File { device, .. }), Some(number)) => device == number,
            (Some(Backing::Device(_)), _) => false,
            (_, _) => at.is_some_and(|at| self.path.starts_with(at)),
        }
    }
}

/// The driver's answer about a loop device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DriverAnswer {
    /// The file or device below the loop device.
    On(Backing),
    /// The driver refused this process.
    Refused,
    /// The driver did not answer in time.
    Silent,
}

impl DriverAnswer {
    fn backing(self) -> Option<Backing> {
        match self {
            DriverAnswer::On(backing) => Some(backing),
            DriverAnswer::Refused | DriverAnswer::Silent => None,
        }
    }
}

/// Functions that ask the driver about loop devices from another process.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// Returns an answer for each device.
    pub backings: fn(&[PathBuf]) -> Vec<DriverAnswer>,
    /// True if the process with this id has the device open only to ask the driver. Such a process
    /// is no user of the device.
    pub only_asks: fn(u32) -> bool,
}

static ASK: OnceLock<Ask> = OnceLock::new();

/// Makes [`all`] ask the driver. Without this call, [`all`] identifies files by their paths alone.
pub fn ask_apart(ask: Ask) {
    let _ = ASK.set(ask);
}

/// True if the process has devices open only to ask the driver about them.
pub(super) fn only_asks(pid: u32) -> bool {
    ASK.get().is_some_and(|ask| (ask.only_asks)(pid))
}

/// The driver's answers by device, each with the device's sequence number when the driver answered.
static KNOWN: Mutex<BTreeMap<PathBuf, (u64, DriverAnswer)>> = Mutex::new(BTreeMap::new());

/// All loop devices that have a file. Asks the driver only about devices that changed since the
/// last call.
#[must_use]
pub fn all() -> Vec<LoopDevice> {
    let mut found = in_folder(Path::new(super::BLOCK_DEVICES));
    let Some(ask) = ASK.get() else { return found };
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|device, _| found.iter().any(|it| it.device == *device));
    let now: Vec<Option<u64>> = found.iter().map(|it| sequence(&it.device)).collect();
    let is_known = |at: usize| {
        let known: Option<&(u64, DriverAnswer)> = known.get(&found[at].device);
        known.is_some_and(|(sequence, _)| now[at] == Some(*sequence))
    };
    let unknown: Vec<usize> = (0..found.len()).filter(|&at| !is_known(at)).collect();
    let devices: Vec<PathBuf> = unknown.iter().map(|&at| found[at].device.clone()).collect();
    let answers = if devices.is_empty() { Vec::new() } else { (ask.backings)(&devices) };
    for (at, answer) in unknown.into_iter().zip(answers) {
        let device = &mut found[at];
        device.backing = answer.backing();
        known.remove(&device.device);
        if let Some(sequence) = now[at].filter(|_| answer != DriverAnswer::Silent) {
            known.insert(device.device.clone(), (sequence, answer));
        }
    }
    for device in &mut found {
        let answer = known.get(&device.device).map(|(_, answer)| answer.backing());
        device.backing = answer.unwrap_or(device.backing);
    }
    found
}

/// The device's sequence number, which changes whenever the device gets or loses its file (Linux
/// 5.15).
#[must_use]
pub fn sequence(device: &Path) -> Option<u64> {
    let folder = Path::new(super::BLOCK_DEVICES).join(device.file_name()?);
    fs::read_to_string(folder.join("diskseq")).ok()?.trim().parse().ok()
}

/// The loop devices in sysfs, without the driver's answers.
pub(super) fn in_folder(block_devices: &Path) -> Vec<LoopDevice> {
    let entries = fs::read_dir(block_devices).into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let path = fs::read(entry.path().join("loop/backing_file")).ok()?;
        let path = PathBuf::from(OsStr::from_bytes(path.strip_suffix(b"\n").unwrap_or(&path)));
        let number = number(&super::number_of(&entry.path())).unwrap_or_default();
        let device = super::device_of(&entry.path())?;
        Some(LoopDevice { device, number, backing: None, path })
    });
    found.collect()
}

/// Parses a device number in the kernel's notation: `7:3`.
#[must_use]
pub fn number(text: &str) -> Option<u64> {
    let (major, minor) = text.trim().split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(backing: Option<Backing>) -> LoopDevice {
        let (device, path) = (PathBuf::from("/dev/loop7"), PathBuf::from("/srv/disk"));
        LoopDevice { device, number: makedev(7, 7), backing, path }
    }

    #[test]
    fn the_loop_driver_decides_about_the_backing_file_and_not_the_path() {
        let file = Backing::File { device: makedev(8, 1), inode: 12 };
        let other = Backing::File { device: makedev(8, 1), inode: 13 };
        let (path, at) = (Path::new("/srv/disk"), Some(Path::new("/srv")));
        let on = |backing| device(backing).is_on_file(file, path);
        assert!(on(Some(file)) && !on(Some(other)) && !on(Some(Backing::Device(1))));
        assert!(on(None) && !device(None).is_on_file(file, Path::new("/srv/other")));

        let within = |backing, number| device(backing).is_in(number, at);
        assert!(
            within(Some(file), Some(makedev(8, 1))) && !within(Some(file), Some(makedev(8, 2)))
        );
        assert!(within(None, Some(makedev(8, 2))), "only the path is known");
        assert!(device(Some(file)).is_in(Some(makedev(8, 1)), None), "mounted elsewhere");
        assert!(!within(Some(Backing::Device(5)), Some(5)), "a device is not a file");
    }

    #[test]
    fn a_loop_device_on_a_device_is_found() {
        let on = |backing| device(backing).is_on_device(makedev(7, 0), Path::new("/dev/loop0"));
        assert!(on(Some(Backing::Device(makedev(7, 0)))));
        assert!(!on(Some(Backing::Device(makedev(7, 1)))) && !on(None));
        assert!(device(None).is_on_device(1, Path::new("/srv/disk")), "only the path is known");
    }
}
