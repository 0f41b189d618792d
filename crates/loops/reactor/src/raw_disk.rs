//! Queries the size and the sector size of a raw disk (`\\.\PhysicalDrive1`) or a volume on
//! Windows. No crate offers these queries without `unsafe`.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ptr;

use crate::portable::windows::call;
use windows_sys::Win32::System::IO::DeviceIoControl;
use windows_sys::Win32::System::Ioctl::{
    DISK_GEOMETRY, GET_LENGTH_INFORMATION, IOCTL_DISK_GET_DRIVE_GEOMETRY,
    IOCTL_DISK_GET_LENGTH_INFO,
};

/// Returns the capacity in bytes.
pub fn size_bytes(disk: &File) -> io::Result<u64> {
    let length: GET_LENGTH_INFORMATION = ask(disk, IOCTL_DISK_GET_LENGTH_INFO)?;
    u64::try_from(length.Length).map_err(io::Error::other)
}

/// Returns the sector size in bytes, which is the unit of reads and writes.
pub fn sector_bytes(disk: &File) -> io::Result<u32> {
    let geometry: DISK_GEOMETRY = ask(disk, IOCTL_DISK_GET_DRIVE_GEOMETRY)?;
    Ok(geometry.BytesPerSector)
}

/// A structure that a device control call fills. It consists of plain numbers, for which all bit
/// patterns are valid.
trait Numbers: Default {}
impl Numbers for GET_LENGTH_INFORMATION {}
impl Numbers for DISK_GEOMETRY {}

fn ask<T: Numbers>(disk: &File, code: u32) -> io::Result<T> {
    let (mut answer, size) = (T::default(), size_of::<T>());
    // `call` waits for this call's own event. A wait on the handle could return when another call
    // ends, and the system could later write this call's result to freed memory.
    let count = call(disk, 0, |handle, count, overlapped| {
        let (output, none) = ((&raw mut answer).cast::<c_void>(), ptr::null_mut());
        // SAFETY: the output is `size` writable bytes of plain numbers, and there is no input.
        // `call` returns only when the system no longer uses the output.
        unsafe { DeviceIoControl(handle, code, none, 0, output, size as u32, count, overlapped) }
    })?;
    if count < size {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(answer)
}
