//! The Windows system calls of the file threads.
//!
//! Every call has its own `OVERLAPPED` and uses the event of its thread, so it works with and
//! without `FILE_FLAG_OVERLAPPED`. With this flag, the calls of several threads run in parallel.
//! Without it, Windows runs them one after the other. Do not use the standard library's calls on
//! the same handle: such a call may return when another call on the handle ends.

use std::cell::OnceCell;
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::ptr;

use windows_sys::Win32::Foundation::{
    ERROR_HANDLE_EOF, ERROR_INVALID_FUNCTION, ERROR_IO_PENDING, ERROR_NOT_SUPPORTED, HANDLE,
};
use windows_sys::Win32::Storage::FileSystem::{ReadFile, WriteFile};
use windows_sys::Win32::System::IO::{DeviceIoControl, GetOverlappedResult, OVERLAPPED};
use windows_sys::Win32::System::Ioctl::{FILE_ZERO_DATA_INFORMATION, FSCTL_SET_ZERO_DATA};
use windows_sys::Win32::System::Threading::CreateEventW;

thread_local! {
    /// The Windows event that signals the end of this thread's current call.
    static EVENT: OnceCell<OwnedHandle> = const { OnceCell::new() };
}

/// Reads with one system call. Returns zero at the end of the file.
pub(super) fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let result = call(file, offset, |handle, count, overlapped| {
        // SAFETY: `bytes` is writable, and `call` returns only when the system no longer uses it.
        unsafe { ReadFile(handle, bytes.as_mut_ptr(), length, count, overlapped) }
    });
    match result {
        Err(error) if is(&error, ERROR_HANDLE_EOF) => Ok(0),
        result => result,
    }
}

/// Writes with one system call. Returns the number of written bytes.
pub(super) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    call(file, offset, |handle, count, overlapped| {
        // SAFETY: `bytes` is readable, and `call` returns only when the system no longer uses it.
        unsafe { WriteFile(handle, bytes.as_ptr(), length, count, overlapped) }
    })
}

/// Zeroes the range, and frees its space if the file is sparse.
pub(super) fn punch_hole(file: &File, offset: u64, len: u64) -> io::Result<()> {
    zero_range(file, offset, len)
}

pub(super) fn zero_range(file: &File, offset: u64, len: u64) -> io::Result<()> {
    // The engine has checked that the offset and the end fit in signed 64-bit numbers.
    let range = FILE_ZERO_DATA_INFORMATION {
        FileOffset: offset as i64,
        BeyondFinalZero: (offset + len) as i64,
    };
    let result = call(file, 0, |handle, count, overlapped| {
        let input = (&raw const range).cast::<c_void>();
        let size = size_of::<FILE_ZERO_DATA_INFORMATION>() as u32;
        // SAFETY: `input` points to `size` readable bytes that outlive the call. There is no
        // output.
        unsafe {
            let (code, none) = (FSCTL_SET_ZERO_DATA, ptr::null_mut());
            DeviceIoControl(handle, code, input, size, none, 0, count, overlapped)
        }
    });
    match result {
        // These error codes mean that the device does not support the call. The standard library
        // does not map them to an error kind.
        Err(error) if is(&error, ERROR_INVALID_FUNCTION) || is(&error, ERROR_NOT_SUPPORTED) => {
            Err(io::ErrorKind::Unsupported.into())
        }
        result => result.map(drop),
    }
}

fn is(error: &io::Error, code: u32) -> bool {
    error.raw_os_error() == Some(code as i32)
}

/// Starts a call at a file offset and waits for its end. Returns the number of transferred bytes.
pub(crate) fn call(
    file: &File,
    offset: u64,
    start: impl FnOnce(HANDLE, *mut u32, *mut OVERLAPPED) -> i32,
) -> io::Result<usize> {
    EVENT.with(|event| {
        let event = match event.get() {
            Some(event) => event,
            None => {
                let made = new_event()?;
                event.get_or_init(|| made)
            }
        };
        let mut overlapped = OVERLAPPED::default();
        overlapped.Anonymous.Anonymous.Offset = offset as u32;
        overlapped.Anonymous.Anonymous.OffsetHigh = (offset >> 32) as u32;
        overlapped.hEvent = event.as_raw_handle();
        let (handle, mut count) = (file.as_raw_handle(), 0);
        if start(handle, &mut count, &mut overlapped) != 0 {
            return Ok(count as usize);
        }
        let error = io::Error::last_os_error();
        if !is(&error, ERROR_IO_PENDING) {
            return Err(error);
        }
        // SAFETY: the system uses `overlapped` and the buffers until the call ends. This function
        // waits for that end, so it frees none of them earlier.
        if unsafe { GetOverlappedResult(handle, &overlapped, &mut count, 1) } == 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(count as usize)
    })
}

fn new_event() -> io::Result<OwnedHandle> {
    // SAFETY: the event has no name and no attributes. If the call succeeds, only this code owns
    // the handle.
    unsafe {
        let event = CreateEventW(ptr::null(), 1, 0, ptr::null());
        if event.is_null() {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedHandle::from_raw_handle(event))
    }
}
