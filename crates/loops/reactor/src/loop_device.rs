//! Finds the backing file of a Linux loop device.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `LOOP_GET_STATUS64` of `linux/loop.h`.
const GET_STATUS: libc::Ioctl = 0x4C05;
/// `struct loop_info64` has 232 bytes.
const STATUS_WORDS: usize = 29;

/// The file or device that a loop device uses, and the range that it uses.
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

/// Returns the backing file of an open loop device. The kernel queries the file system of the
/// backing file. The call may therefore hang if a network or FUSE file system hangs.
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
    // If the backing file is a regular file, old kernels put `device` in the field for the block
    // device, too.
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
