//! A stand-in for `winspd-x64.dll`, for tests without a build of WinSpd. It is a library with the
//! same functions, written from the documentation in `winspd/winspd.h`. Instead of a driver, a test
//! sends requests over a named pipe.
//!
//! The stand-in is stricter than WinSpd. It overwrites a callback's buffer as soon as the callback
//! has returned, and aborts the process if a unit is deleted while one of its threads runs.
//!
//! A request of kind 0xee removes the disk, as WinSpd's driver does when it stops. WinSpd has no
//! such request.
//!
//! `cargo build --example winspd_standin` makes a library from this file, not a program. On systems
//! other than Windows, the library is empty.
#![cfg(windows)]
#![allow(non_snake_case, reason = "the library's names")]

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::{io, ptr, slice};
use windows_sys::Win32::Foundation::{
    ERROR_ALREADY_EXISTS, ERROR_FILE_NOT_FOUND, ERROR_IO_PENDING, ERROR_OPERATION_ABORTED,
    ERROR_PIPE_CONNECTED, HANDLE, INVALID_HANDLE_VALUE, WAIT_OBJECT_0,
};
use windows_sys::Win32::Storage::FileSystem::{
    FILE_FLAG_FIRST_PIPE_INSTANCE, FILE_FLAG_OVERLAPPED, PIPE_ACCESS_DUPLEX, ReadFile, WriteFile,
};
use windows_sys::Win32::System::IO::{CancelIoEx, GetOverlappedResult, OVERLAPPED};
use windows_sys::Win32::System::Pipes::{
    ConnectNamedPipe, CreateNamedPipeW, DisconnectNamedPipe, PIPE_READMODE_MESSAGE,
    PIPE_TYPE_MESSAGE, PIPE_WAIT,
};
use windows_sys::Win32::System::Threading::{
    CreateEventW, INFINITE, SetEvent, WaitForMultipleObjects,
};

const PARAMS_BYTES: usize = 128;
const MESSAGE_BYTES: usize = 48;
const STATUS_BYTES: usize = 32;

type Transfer =
    unsafe extern "C" fn(*mut Unit, *mut u8, u64, u32, u8, *mut [u8; STATUS_BYTES]) -> u8;
type Flush = unsafe extern "C" fn(*mut Unit, u64, u32, *mut [u8; STATUS_BYTES]) -> u8;
type Unmap = unsafe extern "C" fn(*mut Unit, *mut u8, u32, *mut [u8; STATUS_BYTES]) -> u8;

/// The callbacks of a unit.
#[repr(C)]
struct Interface {
    read: Transfer,
    write: Transfer,
    flush: Flush,
    unmap: Unmap,
}

/// The header's structure `SPD_STORAGE_UNIT`, followed by private fields.
#[repr(C)]
struct Unit {
    version: u16,
    user_context: *mut c_void,
    params: [u64; PARAMS_BYTES / 8],
    interface: *const Interface,
    buffer_alloc: *const c_void,
    buffer_free: *const c_void,
    handle: *const c_void,
    btl: u32,
    thread_id: u32,
    thread: *const c_void,
    thread_count: u32,
    error: u32,
    debug_log: u32,
    own: Arc<Own>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Own {
    pipe: OwnedHandle,
    stop: OwnedHandle,
    link: Mutex<Link>,
    /// The number of bytes that each read requested, by the read's hint (identifier).
    reads: Mutex<HashMap<u64, usize>>,
    running: Mutex<usize>,
    ended: Condvar,
}

#[derive(Default)]
struct Link {
    is_connected: bool,
    generation: u64,
}

/// A pointer to a unit that can move to another thread.
struct Handed(*mut Unit);
// SAFETY: several threads use a unit, but they change only fields that have a lock.
unsafe impl Send for Handed {}

#[repr(C)]
struct Context {
    request: *const u8,
    response: *const u8,
    data: *const u8,
}

impl Context {
    const NONE: Context =
        Context { request: ptr::null(), response: ptr::null(), data: ptr::null() };
}

thread_local! {
    /// The request that the callback on this thread handles.
    static CONTEXT: RefCell<Context> = const { RefCell::new(Context::NONE) };
}

/// The GUIDs of all units; a unit's index is its target number.
static UNITS: Mutex<Vec<Option<[u8; 16]>>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn event() -> OwnedHandle {
    // SAFETY: the event has no name and no attributes.
    let event = unsafe { CreateEventW(ptr::null(), 1, 0, ptr::null()) };
    assert!(!event.is_null(), "an event");
    // SAFETY: the handle is new, and nothing else owns it.
    unsafe { OwnedHandle::from_raw_handle(event) }
}

impl Own {
    /// Does one overlapped call on the pipe. Returns the number of bytes, or a Windows error
    /// number.
    fn call(&self, begin: impl FnOnce(HANDLE, *mut OVERLAPPED) -> i32) -> Result<usize, u32> {
        let done = event();
        // SAFETY: zeroes are a valid value of this plain structure.
        let mut overlapped: OVERLAPPED = unsafe { std::mem::zeroed() };
        overlapped.hEvent = done.as_raw_handle();
        let pipe = self.pipe.as_raw_handle();
        if begin(pipe, &mut overlapped) == 0 {
            let error = io::Error::last_os_error().raw_os_error().unwrap_or_default() as u32;
            if error == ERROR_PIPE_CONNECTED {
                return Ok(0);
            } else if error != ERROR_IO_PENDING {
                return Err(error);
            }
        }
        let events = [self.stop.as_raw_handle(), done.as_raw_handle()];
        // SAFETY: both handles are events. The memory of the call lives until the call has ended.
        unsafe {
            let stopped = WaitForMultipleObjects(2, events.as_ptr(), 0, INFINITE) == WAIT_OBJECT_0;
            let mut moved = 0;
            if stopped {
                CancelIoEx(pipe, &overlapped);
            }
            let result = GetOverlappedResult(pipe, &overlapped, &mut moved, 1);
            match (stopped, result) {
                (true, _) => Err(ERROR_OPERATION_ABORTED),
                (false, 0) => {
                    Err(io::Error::last_os_error().raw_os_error().unwrap_or_default() as u32)
                }
                (false, _) => Ok(moved as usize),
            }
        }
    }

    fn send(&self, message: &[u8]) -> Result<usize, u32> {
        let length = message.len() as u32;
        self.call(|pipe, overlapped| {
            // SAFETY: `call` returns only when the system no longer uses the message.
            unsafe { WriteFile(pipe, message.as_ptr(), length, ptr::null_mut(), overlapped) }
        })
    }

    fn receive(&self, message: &mut [u8]) -> Result<usize, u32> {
        let length = message.len() as u32;
        self.call(|pipe, overlapped| {
            // SAFETY: as in `send`.
            unsafe { ReadFile(pipe, message.as_mut_ptr(), length, ptr::null_mut(), overlapped) }
        })
    }

    /// Waits for a client. Returns the client's number.
    fn connect(&self, params: &[u8]) -> Result<u64, u32> {
        let mut link = lock(&self.link);
        if !link.is_connected {
            self.call(|pipe, overlapped| {
                // SAFETY: as in `send`.
                unsafe { ConnectNamedPipe(pipe, overlapped) }
            })?;
            link.is_connected = true;
            link.generation += 1;
            lock(&self.reads).clear();
            self.send(params)?;
        }
        Ok(link.generation)
    }

    fn disconnect(&self, generation: u64) {
        let mut link = lock(&self.link);
        if link.is_connected && link.generation == generation {
            link.is_connected = false;
            // SAFETY: the pipe is open.
            unsafe { DisconnectNamedPipe(self.pipe.as_raw_handle()) };
        }
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// # Safety
/// The caller must fulfil the requirements of the header's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SpdStorageUnitCreate(
    name: *const u16,
    params: *const [u64; PARAMS_BYTES / 8],
    interface: *const c_void,
    made: *mut *mut c_void,
) -> u32 {
    if name.is_null() {
        return ERROR_FILE_NOT_FOUND; // the stand-in has no driver
    }
    // SAFETY: the caller passes the arguments that the header requires.
    let (params, name) = unsafe {
        let length = (0..).take_while(|&at| *name.add(at) != 0).count();
        (*params, String::from_utf16_lossy(slice::from_raw_parts(name, length)))
    };
    // SAFETY: the array consists of plain numbers.
    let bytes: &[u8; PARAMS_BYTES] = unsafe { &*params.as_ptr().cast() };
    let guid: [u8; 16] = bytes[..16].try_into().expect("16 bytes");
    let mut units = lock(&UNITS);
    if units.contains(&Some(guid)) {
        return ERROR_ALREADY_EXISTS;
    }
    let index = units.iter().position(Option::is_none).unwrap_or(units.len());
    let name: Vec<u16> = format!("{name}\\{index}\0").encode_utf16().collect();
    let size = MESSAGE_BYTES as u32 + number(bytes, 56);
    let mode = PIPE_TYPE_MESSAGE | PIPE_READMODE_MESSAGE | PIPE_WAIT;
    let open = PIPE_ACCESS_DUPLEX | FILE_FLAG_FIRST_PIPE_INSTANCE | FILE_FLAG_OVERLAPPED;
    // SAFETY: the name ends with a zero.
    let pipe =
        unsafe { CreateNamedPipeW(name.as_ptr(), open, mode, 1, size, size, 0, ptr::null()) };
    if pipe == INVALID_HANDLE_VALUE {
        return io::Error::last_os_error().raw_os_error().unwrap_or_default() as u32;
    }
    if index == units.len() {
        units.push(None);
    }
    units[index] = Some(guid);
    let own = Own {
        // SAFETY: the handle is new, and nothing else owns it.
        pipe: unsafe { OwnedHandle::from_raw_handle(pipe) },
        stop: event(),
        link: Mutex::default(),
        reads: Mutex::default(),
        running: Mutex::default(),
        ended: Condvar::new(),
    };
    let unit = Unit {
        version: 0,
        user_context: ptr::null_mut(),
        params,
        interface: interface.cast(),
        buffer_alloc: ptr::null(),
        buffer_free: ptr::null(),
        handle: ptr::null(),
        btl: (index as u32) << 8,
        thread_id: 0,
        thread: ptr::null(),
        thread_count: 0,
        error: 0,
        debug_log: 0,
        own: Arc::new(own),
        threads: Mutex::default(),
    };
    // SAFETY: the caller passes a valid pointer for the result.
    unsafe { made.write(Box::into_raw(Box::new(unit)).cast()) };
    0
}

/// The unit that a raw pointer refers to.
///
/// # Safety
/// The pointer must refer to a unit that was created and not deleted.
unsafe fn unit<'a>(raw: *mut c_void) -> &'a Unit {
    // SAFETY: the caller ensures this.
    unsafe { &*raw.cast::<Unit>() }
}

/// # Safety
/// The caller must fulfil the requirements of the header's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SpdStorageUnitShutdown(raw: *mut c_void) {
    // SAFETY: the caller passes a unit, and its event is open.
    unsafe { SetEvent(unit(raw).own.stop.as_raw_handle()) };
}

/// # Safety
/// The caller must fulfil the requirements of the header's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SpdStorageUnitDelete(raw: *mut c_void) {
    // SAFETY: the caller passes a unit that it no longer uses.
    let unit = unsafe { Box::from_raw(raw.cast::<Unit>()) };
    if *lock(&unit.own.running) != 0 {
        eprintln!("a unit is deleted while its threads run");
        std::process::abort();
    }
    lock(&UNITS)[(unit.btl >> 8) as usize] = None;
}

/// # Safety
/// The caller must fulfil the requirements of the header's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SpdStorageUnitStartDispatcher(raw: *mut c_void, threads: u32) -> u32 {
    // SAFETY: the caller passes a unit.
    let unit = unsafe { unit(raw) };
    for _ in 0..threads.max(1) {
        *lock(&unit.own.running) += 1;
        let handed = Handed(raw.cast());
        let thread = std::thread::spawn(move || {
            let handed = handed;
            dispatch(&handed);
        });
        lock(&unit.threads).push(thread);
    }
    0
}

/// # Safety
/// The caller must fulfil the requirements of the header's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SpdStorageUnitWaitDispatcher(raw: *mut c_void) {
    // SAFETY: the caller passes a unit.
    let unit = unsafe { unit(raw) };
    let running = unit.own.ended.wait_while(lock(&unit.own.running), |running| *running > 0);
    drop(running.unwrap_or_else(PoisonError::into_inner));
    for thread in std::mem::take(&mut *lock(&unit.threads)) {
        let _ = thread.join();
    }
}

/// # Safety
/// The caller must fulfil the requirements of the header's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SpdStorageUnitSendResponse(
    raw: *mut c_void,
    response: *const [u8; MESSAGE_BYTES],
    data: *const u8,
) {
    // SAFETY: the caller passes the arguments that the header requires.
    let (unit, response) = unsafe { (unit(raw), *response) };
    let mut message = response.to_vec();
    if response[8] == 1 && !data.is_null() {
        let length = lock(&unit.own.reads).remove(&long(&response, 0)).unwrap_or_default();
        // SAFETY: the caller's buffer has room for the largest transfer, and no read is longer.
        message.extend_from_slice(unsafe { slice::from_raw_parts(data, length) });
    }
    let generation = lock(&unit.own.link).generation;
    if unit.own.send(&message).is_err() {
        unit.own.disconnect(generation);
    }
}

/// # Safety
/// The caller must fulfil the requirements of the header's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SpdStorageUnitGetOperationContext() -> *const c_void {
    CONTEXT.with(|context| context.as_ptr().cast_const().cast())
}

/// # Safety
/// The caller must fulfil the requirements of the header's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SpdStorageUnitGetDispatcherErrorF(raw: *mut c_void, error: *mut u32) {
    // SAFETY: the caller passes a unit, and a valid pointer for the error.
    unsafe { error.write(unit(raw).error) };
}

/// The main function of a thread that receives requests.
fn dispatch(handed: &Handed) {
    // SAFETY: the unit is deleted only after its threads have ended.
    let unit = unsafe { &*handed.0 };
    let own = Arc::clone(&unit.own);
    // SAFETY: the array consists of plain numbers.
    let params: &[u8; PARAMS_BYTES] = unsafe { &*unit.params.as_ptr().cast() };
    let (block_bytes, max_bytes) = (number(params, 24), number(params, 56) as usize);
    let mut message = vec![0; MESSAGE_BYTES + max_bytes];
    // The 64-bit elements align the data for unmap descriptors.
    let mut data = vec![0_u64; max_bytes / 8];
    loop {
        let received = own.connect(params).and_then(|generation| {
            own.receive(&mut message).inspect_err(|&error| {
                // When the unit is removed, keep the connection: the client may not have read the
                // last answers.
                if error != ERROR_OPERATION_ABORTED {
                    own.disconnect(generation);
                }
            })
        });
        match received {
            Ok(length) if length >= MESSAGE_BYTES => {
                serve(handed, &mut message[..length], &mut data, block_bytes as usize);
            }
            Err(ERROR_OPERATION_ABORTED) => break,
            _ => {}
        }
    }
    // At its end, WinSpd's library calls the flush callback without a request.
    let request = [0_u8; MESSAGE_BYTES];
    CONTEXT.with(|context| context.borrow_mut().request = request.as_ptr());
    let mut status = [0; STATUS_BYTES];
    // SAFETY: the arguments are those that the header requires.
    unsafe { ((*unit.interface).flush)(handed.0, 0, 0, &mut status) };
    let mut running = lock(&own.running);
    *running -= 1;
    own.ended.notify_all();
}

/// Calls the callback for a request. Answers the request if the callback completes it at once.
fn serve(handed: &Handed, message: &mut [u8], data: &mut [u64], block_bytes: usize) {
    // SAFETY: the unit exists while its threads run.
    let (unit, interface) = unsafe { (&*handed.0, &*(*handed.0).interface) };
    let (request, theirs) = message.split_at(MESSAGE_BYTES);
    let (hint, kind) = (long(request, 0), request[8]);
    let (lba, blocks, fua) = (long(request, 16), number(request, 24), request[28] & 1);
    let bytes = blocks as usize * block_bytes;
    // SAFETY: the slice covers the same memory, as bytes.
    let buffer =
        unsafe { slice::from_raw_parts_mut(data.as_mut_ptr().cast::<u8>(), data.len() * 8) };
    buffer[..theirs.len()].copy_from_slice(theirs);
    let pointer = buffer.as_mut_ptr();
    CONTEXT.with(|context| context.borrow_mut().request = request.as_ptr());
    let mut status = [0; STATUS_BYTES];
    // SAFETY: the arguments are those that the header requires.
    let done = unsafe {
        match kind {
            1 => {
                lock(&unit.own.reads).insert(hint, bytes.min(buffer.len()));
                (interface.read)(handed.0, pointer, lba, blocks, fua, &mut status)
            }
            2 => (interface.write)(handed.0, pointer, lba, blocks, fua, &mut status),
            3 => (interface.flush)(handed.0, lba, blocks, &mut status),
            4 => (interface.unmap)(handed.0, pointer, number(request, 16), &mut status),
            0xee => {
                SpdStorageUnitShutdown(handed.0.cast());
                0
            }
            _ => {
                status[..4].copy_from_slice(&[2, 5, 0x20, 0]);
                1
            }
        }
    };
    // Overwrite the buffer, so that a test notices a callback that still uses it.
    buffer.fill(0xa5);
    if done != 0 {
        let mut response = [0; MESSAGE_BYTES];
        response[..9].copy_from_slice(&request[..9]);
        response[16..].copy_from_slice(&status);
        // SAFETY: the arguments are a unit, a response, and a buffer of the size of the largest
        // transfer.
        unsafe { SpdStorageUnitSendResponse(handed.0.cast(), &response, pointer) };
    }
}
