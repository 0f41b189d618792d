//! Loop devices, and the files and devices that they are made of.
//!
//! Only the loop driver knows the file of a device for certain. The path in sysfs may name another
//! file: after a rename, or if another mount namespace made the device. To ask the driver, a
//! process opens the device. Both may wait for the disk below, and then no signal ends the process.
//! So a process that serves a disk asks through another process ([`ask_apart`]).

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

/// A loop device that has a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoopDevice {
    /// Such as `/dev/loop3`.
    pub device: PathBuf,
    /// The device's own number.
    pub number: u64,
    /// The file or device below; `None` if the driver did not answer in time.
    pub backing: Option<Backing>,
    /// The file's path in sysfs.
    pub path: PathBuf,
}

impl LoopDevice {
    /// Whether the device is made of this block device. The name decides if the driver did not
    /// answer.
    #[must_use]
    pub fn is_on_device(&self, number: u64, device: &Path) -> bool {
        match self.backing {
            Some(backing) => backing == Backing::Device(number),
            None => self.path == device,
        }
    }

    /// Whether the device is made of this file. The path decides if the driver did not answer.
    #[must_use]
    pub fn is_on_file(&self, file: Backing, path: &Path) -> bool {
        match self.backing {
            Some(backing) => backing == file,
            None => self.path == path,
        }
    }

    /// Whether the device is made of a file in the file system with this number, mounted at `at` if
    /// it is mounted here. The path decides if the driver did not answer.
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
    /// The file or device below it.
    On(Backing),
    /// This process may not ask.
    Refused,
    /// There was no answer in time.
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

/// How to ask the driver about loop devices in another process.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// Returns an answer for each device.
    pub backings: fn(&[PathBuf]) -> Vec<DriverAnswer>,
    /// Whether a process only asks, and so is no user of the device that it has open.
    pub only_asks: fn(u32) -> bool,
}

static ASK: OnceLock<Ask> = OnceLock::new();

/// Makes [`all`] ask the driver. Without a call of this, paths alone tell the files.
pub fn ask_apart(ask: Ask) {
    let _ = ASK.set(ask);
}

/// Whether a process has devices open only to ask about them.
pub(super) fn only_asks(pid: u32) -> bool {
    ASK.get().is_some_and(|ask| (ask.only_asks)(pid))
}

/// Answers by device, with the device's sequence number at the time of the question.
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

/// A number that changes whenever a device gets or loses its file (Linux 5.15).
#[must_use]
pub fn sequence(device: &Path) -> Option<u64> {
    let folder = Path::new(super::BLOCK_DEVICES).join(device.file_name()?);
    fs::read_to_string(folder.join("diskseq")).ok()?.trim().parse().ok()
}

/// The loop devices of sysfs, without their backing.
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

/// A device number as the kernel writes it: `7:3`.
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
    fn the_driver_decides_and_not_the_path() {
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
        assert!(within(None, Some(makedev(8, 2))), "only its path is known");
        assert!(device(Some(file)).is_in(Some(makedev(8, 1)), None), "mounted elsewhere");
        assert!(!within(Some(Backing::Device(5)), Some(5)), "a device is no file");
    }

    #[test]
    fn a_device_on_a_device_is_found() {
        let on = |backing| device(backing).is_on_device(makedev(7, 0), Path::new("/dev/loop0"));
        assert!(on(Some(Backing::Device(makedev(7, 0)))));
        assert!(!on(Some(Backing::Device(makedev(7, 1)))) && !on(None));
        assert!(device(None).is_on_device(1, Path::new("/srv/disk")), "only its path is known");
    }
}
