//! What a raw disk of Windows (`\\.\PhysicalDrive1`) or a volume says about itself: no crate offers
//! these questions without `unsafe`.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::windows::io::AsRawHandle;
use std::ptr;

use windows_sys::Win32::Foundation::ERROR_IO_PENDING;
use windows_sys::Win32::System::IO::{DeviceIoControl, GetOverlappedResult, OVERLAPPED};
use windows_sys::Win32::System::Ioctl::{
    DISK_GEOMETRY, GET_LENGTH_INFORMATION, IOCTL_DISK_GET_DRIVE_GEOMETRY,
    IOCTL_DISK_GET_LENGTH_INFO,
};

/// The capacity.
pub fn size_bytes(disk: &File) -> io::Result<u64> {
    let length: GET_LENGTH_INFORMATION = ask(disk, IOCTL_DISK_GET_LENGTH_INFO)?;
    u64::try_from(length.Length).map_err(io::Error::other)
}

/// The unit of what it reads and writes.
pub fn sector_bytes(disk: &File) -> io::Result<u32> {
    let geometry: DISK_GEOMETRY = ask(disk, IOCTL_DISK_GET_DRIVE_GEOMETRY)?;
    Ok(geometry.BytesPerSector)
}

/// Numbers that a device control fills in: any bytes are a value.
trait Numbers: Default {}
impl Numbers for GET_LENGTH_INFORMATION {}
impl Numbers for DISK_GEOMETRY {}

/// Nothing else may be under way on the handle.
fn ask<T: Numbers>(disk: &File, code: u32) -> io::Result<T> {
    let (mut answer, mut count, mut overlapped) = (T::default(), 0, OVERLAPPED::default());
    let (handle, none, size) = (disk.as_raw_handle(), ptr::null_mut(), size_of::<T>() as u32);
    let output = (&raw mut answer).cast::<c_void>();
    // SAFETY: the answer is `size` writable bytes of plain numbers, and there is no input. A call
    // that is not done at once is waited for below: neither it nor `overlapped` goes before.
    let started = unsafe {
        DeviceIoControl(handle, code, none, 0, output, size, &mut count, &mut overlapped)
    };
    if started == 0 {
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(ERROR_IO_PENDING as i32) {
            return Err(error);
        }
        // SAFETY: the call was started with these just now.
        if unsafe { GetOverlappedResult(handle, &overlapped, &mut count, 1) } == 0 {
            return Err(io::Error::last_os_error());
        }
    }
    if count < size {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(answer)
}
