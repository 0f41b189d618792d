//! Loads WinSpd's library at run time, and declares its functions, the storage unit, and the
//! callbacks.
//!
//! This module has the crate's only unsafe code. It takes names, arguments and the layout of shared
//! structures from `winspd/winspd.h` of WinSpd 0.10, but contains none of WinSpd's code.
//!
//! # Ownership of memory
//!
//! A callback's buffer belongs to the WinSpd thread that calls the callback. After the callback has
//! returned, that thread reuses the buffer for the next request. So the write callback copies the
//! data before it returns.
//!
//! An answer to a read passes a buffer of this crate. The library uses the buffer only during
//! `SpdStorageUnitSendResponse`. Even for a short read, the library locks as many bytes as the
//! largest transfer has, so the buffer must be that long.

use crate::core::Answer;
use crate::shared::{Command, Fua, Range, SpdRequest, UnitShared};
use crate::uapi::{Params, Response, Status, UnmapDescriptor};
use crate::{limits, status};
use std::ffi::{CStr, OsString, c_void};
use std::mem::offset_of;
use std::os::windows::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::{io, ptr, slice};
use windows_sys::Win32::Foundation::HMODULE;
use windows_sys::Win32::System::LibraryLoader::{
    GetProcAddress, LOAD_LIBRARY_SEARCH_DEFAULT_DIRS, LOAD_WITH_ALTERED_SEARCH_PATH, LoadLibraryExW,
};
use windows_sys::Win32::System::Registry::{
    HKEY_LOCAL_MACHINE, RRF_RT_REG_SZ, RRF_SUBKEY_WOW6432KEY, RegGetValueW,
};

/// The library's file name for 64-bit x86 processes.
pub(crate) const FILE_NAME: &str = "winspd-x64.dll";

/// `SPD_STORAGE_UNIT`. Only these fields are public.
#[repr(C)]
struct StorageUnit {
    version: u16,
    user_context: *mut c_void,
    params: Params,
    interface: *const Interface,
    buffer_alloc: *const c_void,
    buffer_free: *const c_void,
    handle: *mut c_void,
    /// The bus, target and unit numbers. WinSpd uses only the target number.
    btl: u32,
    dispatcher_thread_id: u32,
    dispatcher_thread: *mut c_void,
    dispatcher_thread_count: u32,
    dispatcher_error: u32,
    debug_log: u32,
}

const _: () = {
    assert!(size_of::<StorageUnit>() == 208);
    assert!(offset_of!(StorageUnit, user_context) == 8);
    assert!(offset_of!(StorageUnit, params) == 16);
    assert!(offset_of!(StorageUnit, interface) == 144);
    assert!(offset_of!(StorageUnit, handle) == 168);
    assert!(offset_of!(StorageUnit, btl) == 176);
    assert!(offset_of!(StorageUnit, dispatcher_thread) == 184);
    assert!(offset_of!(StorageUnit, dispatcher_error) == 196);
};

type Transfer = unsafe extern "C" fn(*mut StorageUnit, *mut u8, u64, u32, u8, *mut Status) -> u8;
type Flush = unsafe extern "C" fn(*mut StorageUnit, u64, u32, *mut Status) -> u8;
type Unmap = unsafe extern "C" fn(*mut StorageUnit, *const UnmapDescriptor, u32, *mut Status) -> u8;

/// `SPD_STORAGE_UNIT_INTERFACE`, which always has 16 pointers.
#[repr(C)]
struct Interface {
    read: Transfer,
    write: Transfer,
    flush: Flush,
    unmap: Unmap,
    reserved: [Option<unsafe extern "C" fn() -> u8>; 12],
}

const _: () = assert!(size_of::<Interface>() == 128);

static INTERFACE: Interface = Interface { read, write, flush, unmap, reserved: [None; 12] };

/// `SPD_STORAGE_UNIT_OPERATION_CONTEXT`. This module reads only the hint, which is the request's
/// first field.
#[repr(C)]
struct OperationContext {
    request: *const u64,
    response: *const c_void,
    data_buffer: *const c_void,
}

/// The functions of WinSpd's library.
#[derive(Clone, Copy)]
pub(crate) struct Library {
    create: unsafe extern "C" fn(
        *const u16,
        *const Params,
        *const Interface,
        *mut *mut StorageUnit,
    ) -> u32,
    delete: unsafe extern "C" fn(*mut StorageUnit),
    shutdown: unsafe extern "C" fn(*mut StorageUnit),
    start_dispatcher: unsafe extern "C" fn(*mut StorageUnit, u32) -> u32,
    wait_dispatcher: unsafe extern "C" fn(*mut StorageUnit),
    send_response: unsafe extern "C" fn(*mut StorageUnit, *const Response, *mut u8),
    operation_context: unsafe extern "C" fn() -> *const OperationContext,
    dispatcher_error: unsafe extern "C" fn(*mut StorageUnit, *mut u32),
}

/// The reason why the library cannot be used.
#[derive(Debug)]
pub(crate) enum LoadError {
    /// The library was not found. Holds the last path that was tried.
    Missing(PathBuf, io::Error),
    /// The library lacks this function.
    Without(&'static str),
}

impl Library {
    /// Loads the library from `folder`. Without a folder, loads it from WinSpd's installation
    /// folder, or else from the system's search path. The library stays loaded until the process
    /// ends, because threads of the library may still run.
    pub(crate) fn load(folder: Option<&Path>) -> Result<Library, LoadError> {
        let module = match folder {
            Some(folder) => {
                // This flag requires an absolute path.
                let path = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
                load_from(&path.join(FILE_NAME), LOAD_WITH_ALTERED_SEARCH_PATH)
            }
            None => installed()
                .ok_or(())
                .and_then(|path| load_from(&path, LOAD_WITH_ALTERED_SEARCH_PATH).map_err(drop))
                // Do not search the working directory, where another user may have put a library.
                .or_else(|()| load_from(Path::new(FILE_NAME), LOAD_LIBRARY_SEARCH_DEFAULT_DIRS)),
        }?;
        // SAFETY: the header declares these types for these names.
        unsafe {
            Ok(Library {
                create: function(module, c"SpdStorageUnitCreate")?,
                delete: function(module, c"SpdStorageUnitDelete")?,
                shutdown: function(module, c"SpdStorageUnitShutdown")?,
                start_dispatcher: function(module, c"SpdStorageUnitStartDispatcher")?,
                wait_dispatcher: function(module, c"SpdStorageUnitWaitDispatcher")?,
                send_response: function(module, c"SpdStorageUnitSendResponse")?,
                operation_context: function(module, c"SpdStorageUnitGetOperationContext")?,
                dispatcher_error: function(module, c"SpdStorageUnitGetDispatcherErrorF")?,
            })
        }
    }
}

fn wide(text: impl AsRef<std::ffi::OsStr>) -> Vec<u16> {
    text.as_ref().encode_wide().chain([0]).collect()
}

fn load_from(path: &Path, flags: u32) -> Result<HMODULE, LoadError> {
    let name = wide(path);
    // SAFETY: `name` ends with a zero. Loading runs the library's own initialisation code, which is
    // trusted: the user installed or named this library.
    let module = unsafe { LoadLibraryExW(name.as_ptr(), ptr::null_mut(), flags) };
    match module.is_null() {
        true => Err(LoadError::Missing(path.to_owned(), io::Error::last_os_error())),
        false => Ok(module),
    }
}

/// The installation folder that WinSpd's installer has written to the registry.
fn installed() -> Option<PathBuf> {
    let (key, value) = (wide("SOFTWARE\\WinSpd"), wide("InstallDir"));
    let mut text = [0_u16; 1024];
    let mut bytes = size_of_val(&text) as u32;
    let flags = RRF_RT_REG_SZ | RRF_SUBKEY_WOW6432KEY;
    // SAFETY: the names end with zeroes, and `bytes` is the size of `text`.
    let error = unsafe {
        let text = text.as_mut_ptr().cast();
        let (key, value) = (key.as_ptr(), value.as_ptr());
        RegGetValueW(HKEY_LOCAL_MACHINE, key, value, flags, ptr::null_mut(), text, &mut bytes)
    };
    let text = text.split(|&unit| unit == 0).next().filter(|_| error == 0)?;
    Some(PathBuf::from(OsString::from_wide(text)).join("bin").join(FILE_NAME))
}

/// Looks up a function of the library.
///
/// # Safety
/// `F` must be a function pointer with the type of the library's function of this name.
unsafe fn function<F>(module: HMODULE, name: &'static CStr) -> Result<F, LoadError> {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    // SAFETY: the module stays loaded.
    let found = unsafe { GetProcAddress(module, name.as_ptr().cast()) };
    let address = found.ok_or_else(|| LoadError::Without(name.to_str().unwrap_or_default()))?;
    // SAFETY: both values are function pointers, and the caller ensures the type.
    Ok(unsafe { std::mem::transmute_copy(&address) })
}

/// The data of a unit for its callbacks.
struct Context {
    shared: Arc<UnitShared>,
    library: Library,
    block_length: u32,
}

/// A WinSpd storage unit. Dropping it waits for the dispatcher threads and then deletes the unit.
pub(crate) struct Unit {
    library: Library,
    raw: *mut StorageUnit,
    /// The unit's `user_context` points to this value.
    context: Box<Context>,
    /// True if threads of the library may be running.
    is_started: AtomicBool,
    /// The error with which the library's threads exited; 0 for none.
    end: OnceLock<u32>,
}

// SAFETY: any thread may call the library's functions. The fields of the unit that this module
// reads do not change after `create`.
unsafe impl Send for Unit {}
// SAFETY: as for `Send`.
unsafe impl Sync for Unit {}

impl Unit {
    /// Creates a disk at `device`: a pipe, or WinSpd's driver if `None`. The disk does not answer
    /// requests before [`Unit::start`]. The error is a Windows error number.
    pub(crate) fn create(
        library: Library,
        device: Option<&str>,
        params: &Params,
        shared: Arc<UnitShared>,
    ) -> Result<Unit, u32> {
        let device = device.map(wide);
        let name = device.as_ref().map_or(ptr::null(), |name| name.as_ptr());
        let mut raw = ptr::null_mut();
        // SAFETY: the name ends with a zero, the library copies the parameters, and the interface
        // is static.
        let error = unsafe { (library.create)(name, params, &INTERFACE, &mut raw) };
        if error != 0 {
            return Err(error);
        }
        let context = Box::new(Context { shared, library, block_length: params.block_length });
        // SAFETY: this function owns the unit, and no thread of the unit runs yet.
        unsafe { (*raw).user_context = ptr::from_ref(&*context).cast_mut().cast() };
        let (is_started, end) = (AtomicBool::new(false), OnceLock::new());
        Ok(Unit { library, raw, context, is_started, end })
    }

    /// Starts this many threads of the library, which call the callbacks.
    pub(crate) fn start(&self, threads: u32) -> Result<(), u32> {
        // SAFETY: the unit exists until `self` is dropped. The same holds for the calls below.
        match unsafe { (self.library.start_dispatcher)(self.raw, threads) } {
            0 => {
                self.is_started.store(true, Ordering::Relaxed);
                Ok(())
            }
            error => Err(error),
        }
    }

    /// The number of the unit's SCSI target.
    pub(crate) fn target(&self) -> u32 {
        // SAFETY: the unit exists, and the field does not change after `create`.
        unsafe { (*self.raw).btl >> 8 & 0xff }
    }

    /// Removes the disk. Requests in progress fail, and the library's threads end.
    pub(crate) fn shut_down(&self) {
        // SAFETY: as in `start`.
        unsafe { (self.library.shutdown)(self.raw) }
    }

    /// Waits until the library's threads have exited, and returns their error. The library's wait
    /// function may be called only once, so the first caller calls it, and all other callers wait
    /// for the first.
    pub(crate) fn wait(&self) -> u32 {
        *self.end.get_or_init(|| {
            let mut error = 0;
            // SAFETY: as in `start`. The library closes the handles of its threads, and this is the
            // only call.
            unsafe {
                (self.library.wait_dispatcher)(self.raw);
                (self.library.dispatcher_error)(self.raw, &mut error);
            }
            error
        })
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        if *self.is_started.get_mut() && self.end.get().is_none() {
            self.shut_down();
            self.wait();
        }
        // SAFETY: no other thread uses the unit: each would hold a reference to this value. The
        // library's threads have exited.
        unsafe { (self.library.delete)(self.raw) }
    }
}

impl Answer for Arc<Unit> {
    fn answer(&mut self, response: &Response, data: Option<&mut [u8]>) {
        let whole = self.context.max_bytes();
        assert!(
            data.as_ref().is_none_or(|data| data.len() as u64 >= whole),
            "the buffer is too short"
        );
        let data = data.map_or(ptr::null_mut(), |bytes| bytes.as_mut_ptr());
        // SAFETY: the data is null or, as checked above, has at least the size of the largest
        // transfer. The library copies at most this size.
        unsafe { (self.library.send_response)(self.raw, response, data) }
    }
}

/// The context of a unit.
///
/// # Safety
/// Only callbacks may call this function, with their own argument. While a thread of the library
/// runs, the unit and its context exist.
unsafe fn context<'a>(unit: *mut StorageUnit) -> &'a Context {
    // SAFETY: `create` set the pointer before the library's first thread started.
    unsafe { &*(*unit).user_context.cast::<Context>() }
}

impl Context {
    /// The hint (identifier) of the request that the calling library thread handles. 0 if the
    /// thread handles no request.
    fn hint(&self) -> u64 {
        // SAFETY: during a callback, the library has a context, and its request starts with the
        // hint.
        unsafe { (*(self.library.operation_context)()).request.read() }
    }

    /// The size of this many blocks, in bytes. `None` if it exceeds the largest transfer.
    fn bytes(&self, blocks: u32) -> Option<usize> {
        let bytes = u64::from(blocks) * u64::from(self.block_length);
        usize::try_from(bytes).ok().filter(|_| bytes <= self.max_bytes())
    }

    fn max_bytes(&self) -> u64 {
        u64::from(self.shared.max_transfer_bytes())
    }

    /// Accepts a request. An error is the status to answer at once.
    fn accept(&self, command: Command) -> Result<(), Status> {
        let request = SpdRequest { hint: self.hint(), command };
        if self.shared.accept(request) { Ok(()) } else { Err(status::GONE) }
    }
}

/// The return value of a callback. 0: an answer follows later. 1: the request is done with
/// `status`.
///
/// # Safety
/// `status` must be the callback's argument.
unsafe fn outcome(result: Result<(), Status>, status: *mut Status) -> u8 {
    match result {
        Ok(()) => 0,
        Err(failure) => {
            // SAFETY: the pointer is the callback's argument, which the library provides for the
            // status.
            unsafe { status.write(failure) };
            1
        }
    }
}

unsafe extern "C" fn read(
    unit: *mut StorageUnit,
    _buffer: *mut u8,
    lba: u64,
    blocks: u32,
    _fua: u8,
    status: *mut Status,
) -> u8 {
    // SAFETY: `unit` is the callback's argument.
    let context = unsafe { context(unit) };
    let result = match context.bytes(blocks) {
        Some(_) => context.accept(Command::Read(Range { lba, blocks })),
        None => Err(status::INVALID_FIELD),
    };
    // SAFETY: `status` is the callback's argument.
    unsafe { outcome(result, status) }
}

unsafe extern "C" fn write(
    unit: *mut StorageUnit,
    buffer: *mut u8,
    lba: u64,
    blocks: u32,
    fua: u8,
    status: *mut Status,
) -> u8 {
    // SAFETY: `unit` is the callback's argument.
    let context = unsafe { context(unit) };
    let result = match context.bytes(blocks) {
        Some(bytes) => {
            // SAFETY: the library's buffer has the size of the largest transfer, and `bytes` is at
            // most that.
            let theirs = unsafe { slice::from_raw_parts(buffer, bytes) };
            let mut ours = context.shared.take_buffer();
            ours[..bytes].copy_from_slice(theirs);
            context.accept(Command::Write(Range { lba, blocks }, ours, Fua(fua != 0)))
        }
        None => Err(status::INVALID_FIELD),
    };
    // SAFETY: `status` is the callback's argument.
    unsafe { outcome(result, status) }
}

unsafe extern "C" fn flush(
    unit: *mut StorageUnit,
    _lba: u64,
    _blocks: u32,
    status: *mut Status,
) -> u8 {
    // SAFETY: `unit` is the callback's argument.
    let context = unsafe { context(unit) };
    // At its end, WinSpd's library calls this callback without a request. Ignore it: the worker
    // itself flushes at the end.
    if context.hint() == 0 {
        return 1;
    }
    // SAFETY: `status` is the callback's argument.
    unsafe { outcome(context.accept(Command::Flush), status) }
}

unsafe extern "C" fn unmap(
    unit: *mut StorageUnit,
    descriptors: *const UnmapDescriptor,
    count: u32,
    status: *mut Status,
) -> u8 {
    // SAFETY: `unit` is the callback's argument.
    let context = unsafe { context(unit) };
    let bytes = u64::from(count) * size_of::<UnmapDescriptor>() as u64;
    let result = if bytes > context.max_bytes() {
        Err(status::INVALID_FIELD)
    } else {
        // SAFETY: the descriptors are in the library's buffer, which has the size of the largest
        // transfer. Heap memory is aligned for any type.
        let theirs = unsafe { slice::from_raw_parts(descriptors, count as usize) };
        let range = |d: &UnmapDescriptor| Range { lba: d.block_address, blocks: d.block_count };
        context.accept(Command::Unmap(theirs.iter().map(range).collect()))
    };
    // SAFETY: `status` is the callback's argument.
    unsafe { outcome(result, status) }
}

/// The number of library threads that receive requests. Few are enough, because they only copy
/// data.
pub(crate) fn dispatchers() -> u32 {
    let processors = farblock_reactor::allowance::loops();
    processors.min(limits::MAX_DISPATCHERS) as u32
}
