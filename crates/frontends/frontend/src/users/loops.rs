//! Finds loop devices and their backing files or devices.
//!
//! Only the loop driver reports a device's backing file reliably. The path in sysfs may name
//! another file: after a rename, or if another mount namespace made the device. To query the
//! driver, a process must open the loop device. The open and the query may wait for the disk below
//! it, and then even SIGKILL does not end the process. So a process that serves a disk makes
//! queries through another process ([`ask_apart`]).

use farblock_reactor::loop_device::{self, Underlying};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

/// A loop device that has a backing file or device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoopDevice {
    /// The path of the loop device, such as `/dev/loop3`.
    pub device: PathBuf,
    /// The loop device's own device number.
    pub number: u64,
    /// The backing file or device. `None` if the driver was not queried, refused, or did not answer
    /// in time.
    pub backing: Option<Underlying>,
    /// The path of the backing file, as sysfs reports it.
    pub path: PathBuf,
}

impl LoopDevice {
    /// True if this loop device is on the block device with this number and path. Compares only
    /// paths if `backing` is `None`.
    #[must_use]
    pub fn is_on_device(&self, number: u64, device: &Path) -> bool {
        match self.backing {
            Some(backing) => backing == Underlying::Device(number),
            None => self.path == device,
        }
    }

    /// True if this loop device is on `file`. Compares paths if `backing` is `None`.
    #[must_use]
    pub fn is_on_file(&self, file: Underlying, path: &Path) -> bool {
        match self.backing {
            Some(backing) => backing == file,
            None => self.path == path,
        }
    }

    /// True if this loop device is on a file in the file system with the number `file_system`,
    /// mounted at `at` in this mount namespace. Compares paths if `backing` or `file_system` is
    /// `None`.
    #[must_use]
    pub fn is_in(&self, file_system: Option<u64>, at: Option<&Path>) -> bool {
        match (self.backing, file_system) {
            (Some(Underlying::File { device, .. }), Some(number)) => device == number,
            (Some(Underlying::Device(_)), _) => false,
            (_, _) => at.is_some_and(|at| self.path.starts_with(at)),
        }
    }
}

/// The driver's answer about a loop device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DriverAnswer {
    /// The backing file or device.
    On(Underlying),
    /// The driver refused this process.
    Refused,
    /// The driver did not answer in time.
    Silent,
}

impl DriverAnswer {
    fn backing(self) -> Option<Underlying> {
        match self {
            DriverAnswer::On(backing) => Some(backing),
            DriverAnswer::Refused | DriverAnswer::Silent => None,
        }
    }
}

/// Functions that query the loop driver through another process.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// Returns an answer for each device.
    pub backings: fn(&[PathBuf]) -> Vec<DriverAnswer>,
    /// True if the process with this ID has the device open only to query the driver. Such a
    /// process does not count as a user of the device.
    pub only_asks: fn(u32) -> bool,
}

static ASK: OnceLock<Ask> = OnceLock::new();

/// Makes [`all`] query the driver with these functions. Otherwise [`all`] knows only paths from
/// sysfs.
pub fn ask_apart(ask: Ask) {
    let _ = ASK.set(ask);
}

/// True if the process has loop devices open only to query the driver.
pub(super) fn only_asks(pid: u32) -> bool {
    ASK.get().is_some_and(|ask| (ask.only_asks)(pid))
}

/// The driver's answers by device, each with the device's sequence number at that time.
static KNOWN: Mutex<BTreeMap<PathBuf, (u64, DriverAnswer)>> = Mutex::new(BTreeMap::new());

/// All loop devices that have a backing file. Queries the driver only about devices that have
/// changed since the last call.
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

/// The device's sequence number, which changes whenever its backing file changes (Linux 5.15).
#[must_use]
pub fn sequence(device: &Path) -> Option<u64> {
    let folder = Path::new(super::BLOCK_DEVICES).join(device.file_name()?);
    fs::read_to_string(folder.join("diskseq")).ok()?.trim().parse().ok()
}

/// The loop devices in sysfs, without the driver's answers.
pub(super) fn in_folder(block_devices: &Path) -> Vec<LoopDevice> {
    let found = loop_device::listed(block_devices).into_iter().map(|listed| LoopDevice {
        device: Path::new("/dev").join(&listed.name),
        number: listed.number.unwrap_or_default(),
        backing: None,
        path: listed.path,
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::makedev;

    fn device(backing: Option<Underlying>) -> LoopDevice {
        let (device, path) = (PathBuf::from("/dev/loop7"), PathBuf::from("/srv/disk"));
        LoopDevice { device, number: makedev(7, 7), backing, path }
    }

    #[test]
    fn the_backing_file_comes_from_the_loop_driver_and_not_from_the_path() {
        let file = Underlying::File { device: makedev(8, 1), inode: 12 };
        let other = Underlying::File { device: makedev(8, 1), inode: 13 };
        let (path, at) = (Path::new("/srv/disk"), Some(Path::new("/srv")));
        let on = |backing| device(backing).is_on_file(file, path);
        assert!(on(Some(file)) && !on(Some(other)) && !on(Some(Underlying::Device(1))));
        assert!(on(None) && !device(None).is_on_file(file, Path::new("/srv/other")));

        let within = |backing, number| device(backing).is_in(number, at);
        assert!(
            within(Some(file), Some(makedev(8, 1))) && !within(Some(file), Some(makedev(8, 2)))
        );
        assert!(within(None, Some(makedev(8, 2))), "the loop device is not found by its path");
        assert!(
            device(Some(file)).is_in(Some(makedev(8, 1)), None),
            "the loop device is not found by its device number"
        );
        assert!(!within(Some(Underlying::Device(5)), Some(5)), "a backing device counts as a file");
    }

    #[test]
    fn a_loop_device_on_a_device_is_found() {
        let on = |backing| device(backing).is_on_device(makedev(7, 0), Path::new("/dev/loop0"));
        assert!(on(Some(Underlying::Device(makedev(7, 0)))));
        assert!(!on(Some(Underlying::Device(makedev(7, 1)))) && !on(None));
        assert!(
            device(None).is_on_device(1, Path::new("/srv/disk")),
            "the loop device is not found by its path"
        );
    }
}
