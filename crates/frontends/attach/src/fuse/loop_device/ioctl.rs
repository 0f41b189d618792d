//! The `ioctl` calls of Linux's loop driver. All `unsafe` code for loop devices is here.

use linux_raw_sys::loop_device::{
    LO_FLAGS_DIRECT_IO, LO_FLAGS_PARTSCAN, LO_FLAGS_READ_ONLY, LOOP_CLR_FD, LOOP_CONFIGURE,
    LOOP_CTL_ADD, LOOP_CTL_GET_FREE, LOOP_CTL_REMOVE, LOOP_SET_CAPACITY, loop_config, loop_info64,
};
use rustix::ioctl::{self, Ioctl, IoctlOutput, NoArg, Opcode, Setter};
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd;

/// `LOOP_CTL_GET_FREE`: returns the number of a free device. The driver makes a new device if none
/// is free.
struct NextFree;

// SAFETY: LOOP_CTL_GET_FREE takes no argument, writes to no memory, and returns the device's
// number.
unsafe impl Ioctl for NextFree {
    type Output = u32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        LOOP_CTL_GET_FREE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<u32> {
        u32::try_from(out).map_err(|_| rustix::io::Errno::INVAL)
    }
}

/// Returns the number of a free device.
pub(super) fn next_free(control: &File) -> rustix::io::Result<u32> {
    // SAFETY: see `NextFree`. The call fails on any file but the control device.
    unsafe { ioctl::ioctl(control, NextFree) }
}

/// `BLKROSET` of `linux/fs.h`: sets whether a block device is read-only.
const SET_READ_ONLY: Opcode = ioctl::opcode::none(0x12, 93);

/// `LOOP_CTL_ADD` or `LOOP_CTL_REMOVE` for the device with this number. For `LOOP_CTL_ADD`, a
/// negative number stands for any free number.
struct OfNumber {
    opcode: Opcode,
    number: i32,
}

// SAFETY: LOOP_CTL_ADD and LOOP_CTL_REMOVE take a number instead of a pointer, write to no memory,
// and return the device's number.
unsafe impl Ioctl for OfNumber {
    type Output = u32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.number.cast_unsigned() as usize)
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<u32> {
        u32::try_from(out).map_err(|_| rustix::io::Errno::INVAL)
    }
}

/// Makes the device with this number, or with any free number if `None`. Returns the number.
pub(super) fn add(control: &File, number: Option<u32>) -> rustix::io::Result<u32> {
    let number = number.map_or(Ok(-1), i32::try_from).map_err(|_| rustix::io::Errno::INVAL)?;
    // SAFETY: see `OfNumber`. The call fails on any file but the control device.
    unsafe { ioctl::ioctl(control, OfNumber { opcode: LOOP_CTL_ADD, number }) }
}

/// Removes a device that has no backing file and that no process has open.
pub(super) fn remove(control: &File, number: u32) -> rustix::io::Result<()> {
    let number = i32::try_from(number).map_err(|_| rustix::io::Errno::INVAL)?;
    // SAFETY: see `OfNumber`. The call fails on any file but the control device.
    unsafe { ioctl::ioctl(control, OfNumber { opcode: LOOP_CTL_REMOVE, number }) }.map(drop)
}

/// Clears the read-only flag, which a user may have set on a block device (`blockdev --setro`).
pub(crate) fn set_writable(device: &File) -> rustix::io::Result<()> {
    // SAFETY: BLKROSET reads an int and writes to no memory.
    unsafe { ioctl::ioctl(device, Setter::<SET_READ_ONLY, std::ffi::c_int>::new(0)) }
}

/// Attaches the file `backing` to `device`, with direct I/O and a partition scan.
pub(super) fn configure(
    device: &File,
    backing: &File,
    block_size: u32,
    read_only: bool,
) -> rustix::io::Result<()> {
    let read_only = if read_only { LO_FLAGS_READ_ONLY as u32 } else { 0 };
    let flags = LO_FLAGS_DIRECT_IO as u32 | LO_FLAGS_PARTSCAN as u32 | read_only;
    let info = loop_info64 {
        lo_device: 0,
        lo_inode: 0,
        lo_rdevice: 0,
        lo_offset: 0,
        lo_sizelimit: 0,
        lo_number: 0,
        lo_encrypt_type: 0,
        lo_encrypt_key_size: 0,
        lo_flags: flags,
        lo_file_name: [0; 64],
        lo_crypt_name: [0; 64],
        lo_encrypt_key: [0; 32],
        lo_init: [0; 2],
    };
    let fd = backing.as_raw_fd().cast_unsigned();
    let config = loop_config { fd, block_size, info, __reserved: [0; 8] };
    // SAFETY: LOOP_CONFIGURE takes a `struct loop_config` and only reads it. The driver then holds
    // a reference to the file that the structure names, but no pointer to the structure.
    unsafe {
        ioctl::ioctl(device, Setter::<{ LOOP_CONFIGURE as Opcode }, loop_config>::new(config))
    }
}

/// Detaches a device from its file. If the device has users, the driver detaches it when the last
/// user closes it.
pub(super) fn clear(device: &File) -> rustix::io::Result<()> {
    // SAFETY: LOOP_CLR_FD takes no argument and writes to no memory.
    unsafe { ioctl::ioctl(device, NoArg::<{ LOOP_CLR_FD as Opcode }>::new()) }
}

/// Sets a device's size to its backing file's current size.
pub(super) fn set_capacity(device: &File) -> rustix::io::Result<()> {
    // SAFETY: LOOP_SET_CAPACITY takes no argument and writes to no memory.
    unsafe { ioctl::ioctl(device, NoArg::<{ LOOP_SET_CAPACITY as Opcode }>::new()) }
}
