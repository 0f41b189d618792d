//! Finds Linux loop devices and their backing files.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// `LOOP_GET_STATUS64` of `linux/loop.h`.
const GET_STATUS: libc::Ioctl = 0x4C05;
/// The size of `struct loop_info64` (232 bytes), in words of 8 bytes.
const STATUS_WORDS: usize = 29;

/// The backing file or device of a loop device, and the range that the loop device uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backing {
    /// The device number of the file's file system (`st_dev`).
    pub device: u64,
    /// The file's inode number.
    pub inode: u64,
    /// The number of the backing device, if it is a block device (`st_rdev`).
    pub block_device: Option<u64>,
    /// Offset in bytes of the loop device's first byte in the backing file.
    pub offset_bytes: u64,
    /// Size limit of the loop device in bytes; 0: no limit.
    pub limit_bytes: u64,
}

impl Backing {
    /// Returns the backing file or device, without the range.
    #[must_use]
    pub fn underlying(&self) -> Underlying {
        match self.block_device {
            Some(number) => Underlying::Device(number),
            None => Underlying::File { device: self.device, inode: self.inode },
        }
    }
}

/// A file, or a block device, without regard to its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Underlying {
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

impl Underlying {
    /// Returns the file or block device with these metadata.
    #[must_use]
    pub fn of(found: &Metadata) -> Underlying {
        match found.file_type().is_block_device() {
            true => Underlying::Device(found.rdev()),
            false => Underlying::of_inode(found),
        }
    }

    /// Returns the file with these metadata, even for a device: its node in `/dev`.
    #[must_use]
    pub fn of_inode(found: &Metadata) -> Underlying {
        Underlying::File { device: found.dev(), inode: found.ino() }
    }
}

/// A loop device with a backing file, as sysfs lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedLoop {
    /// The folder in sysfs.
    pub sysfs: PathBuf,
    /// The device's name, such as `loop3`.
    pub name: OsString,
    /// The loop device's own device number. `None` if sysfs does not report it.
    pub number: Option<u64>,
    /// The path of the backing file in the mount namespace that created the loop device.
    pub path: PathBuf,
}

/// Lists the loop devices that have a backing file. `block_devices` is a folder in sysfs with an
/// entry for each block device.
#[must_use]
pub fn listed(block_devices: &Path) -> Vec<ListedLoop> {
    let entries = fs::read_dir(block_devices).into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let sysfs = entry.path();
        let path = fs::read(sysfs.join("loop/backing_file")).ok()?;
        let path = PathBuf::from(OsStr::from_bytes(path.strip_suffix(b"\n").unwrap_or(&path)));
        let number = fs::read_to_string(sysfs.join("dev")).ok();
        let number = number.and_then(|text| device_number(&text));
        Some(ListedLoop { name: entry.file_name(), number, path, sysfs })
    });
    found.collect()
}

/// Parses a device number in the kernel's notation: `7:3`.
#[must_use]
pub fn device_number(text: &str) -> Option<u64> {
    let (major, minor) = text.trim().split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// Returns the backing file of an open loop device. The kernel queries the file system of the
/// backing file, so the call hangs if that file system hangs (network, FUSE).
///
/// # Errors
/// Returns `ENXIO` if the device has no backing file, `ENOTTY` if it is not a loop device.
pub fn backing(device: &File) -> io::Result<Backing> {
    let mut status = [0_u64; STATUS_WORDS];
    // SAFETY: the call writes one `struct loop_info64`, which has the size and alignment of
    // `status`, and keeps no pointer to it.
    if unsafe { libc::ioctl(device.as_raw_fd(), GET_STATUS, status.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let [device, inode, block_device, offset_bytes, limit_bytes, ..] = status;
    // For a regular file, old kernels also store `device` in the field for the block device.
    let is_block_device = block_device != 0 && block_device != device;
    Ok(Backing {
        device: decoded(device),
        inode,
        block_device: is_block_device.then(|| decoded(block_device)),
        offset_bytes,
        limit_bytes,
    })
}

/// Converts a device number from the kernel's encoding (`new_encode_dev`) to the number that `stat`
/// reports.
fn decoded(number: u64) -> u64 {
    let (major, minor) = ((number >> 8) & 0xfff, (number & 0xff) | ((number >> 12) & 0xf_ff00));
    rustix::fs::makedev(major as u32, minor as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_decoded() {
        assert_eq!(decoded(0x0801), rustix::fs::makedev(8, 1));
        assert_eq!(decoded(0x1010_3702), rustix::fs::makedev(0x37, 0x1_0102));
    }
}
