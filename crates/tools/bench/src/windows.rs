//! Processor time and memory on Windows.

use std::collections::HashMap;
use std::io;
use std::os::windows::ffi::OsStrExt;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use windows_sys::Win32::Foundation::{FILETIME, HANDLE, INVALID_HANDLE_VALUE, LocalFree};
use windows_sys::Win32::Storage::FileSystem::GetDiskFreeSpaceExW;
use windows_sys::Win32::System::Diagnostics::ToolHelp::{
    CreateToolhelp32Snapshot, TH32CS_SNAPTHREAD, THREADENTRY32, Thread32First, Thread32Next,
};
use windows_sys::Win32::System::ProcessStatus::{K32GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS};
use windows_sys::Win32::System::SystemInformation::{GlobalMemoryStatusEx, MEMORYSTATUSEX};
use windows_sys::Win32::System::Threading::{
    GetProcessTimes, GetThreadDescription, GetThreadTimes, OpenProcess, OpenThread,
    PROCESS_QUERY_LIMITED_INFORMATION, THREAD_QUERY_LIMITED_INFORMATION,
};

use crate::cpu_source::CpuSource;

/// Another process with all of its threads, including finished threads.
#[derive(Debug)]
pub struct OtherProcess {
    /// The handle stays valid after the process has ended.
    handle: OwnedHandle,
}

impl OtherProcess {
    /// The process with this ID.
    pub fn new(process: u32) -> io::Result<OtherProcess> {
        let process = OtherProcess { handle: open_process(process)? };
        times(&process.handle, GetProcessTimes)?;
        Ok(process)
    }
}

impl CpuSource for OtherProcess {
    fn cpu_time(&self) -> Duration {
        times(&self.handle, GetProcessTimes).unwrap_or_default()
    }
}

/// The threads of this process that are selected by name prefix. The group also finds threads that
/// start later, and finished threads continue to count.
#[derive(Debug)]
pub struct ThreadGroup {
    prefixes: Vec<String>,
    /// The members by thread ID, which Windows does not reuse while the handle is open. The time is
    /// the largest reading, because Wine forgets the time of a thread when the thread ends.
    members: Mutex<HashMap<u32, (OwnedHandle, Duration)>>,
}

impl ThreadGroup {
    /// The threads of this process whose names start with one of `prefixes`.
    pub fn named(prefixes: &[&str]) -> io::Result<ThreadGroup> {
        threads()?;
        let prefixes = prefixes.iter().map(|&prefix| prefix.to_owned()).collect();
        Ok(ThreadGroup { prefixes, members: Mutex::default() })
    }

    fn is_member(&self, thread: &OwnedHandle) -> bool {
        let name = name(thread);
        self.prefixes.iter().any(|prefix| name.starts_with(prefix))
    }
}

impl CpuSource for ThreadGroup {
    fn cpu_time(&self) -> Duration {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        for number in threads().unwrap_or_default() {
            if !members.contains_key(&number)
                && let Ok(thread) = open_thread(number)
                && self.is_member(&thread)
            {
                members.insert(number, (thread, Duration::ZERO));
            }
        }
        let mut total = Duration::ZERO;
        for (thread, used) in members.values_mut() {
            *used = times(thread, GetThreadTimes).unwrap_or_default().max(*used);
            total += *used;
        }
        total
    }
}

/// The resident memory of a process, in bytes.
pub fn resident_memory_bytes(process: u32) -> Option<u64> {
    let handle = open_process(process).ok()?;
    let mut found = PROCESS_MEMORY_COUNTERS::default();
    let size = size_of_val(&found) as u32;
    // SAFETY: the handle is open, and `found` has the given size.
    let done = unsafe { K32GetProcessMemoryInfo(handle.as_raw_handle(), &mut found, size) };
    (done != 0).then_some(found.WorkingSetSize as u64)
}

/// The space in a folder that this user may still use, in bytes.
pub(crate) fn available_bytes(folder: &Path) -> io::Result<u64> {
    let path: Vec<u16> = folder.as_os_str().encode_wide().chain([0]).collect();
    let mut found = 0;
    let nowhere = std::ptr::null_mut();
    // SAFETY: the path ends with a zero, and `found` is a local variable.
    let done = unsafe { GetDiskFreeSpaceExW(path.as_ptr(), &mut found, nowhere, nowhere) };
    if done == 0 { Err(io::Error::last_os_error()) } else { Ok(found) }
}

/// The size of the main memory of this machine, in bytes.
pub(crate) fn memory_bytes() -> Option<u64> {
    let mut found = MEMORYSTATUSEX::default();
    found.dwLength = size_of_val(&found) as u32;
    // SAFETY: `found` has the size that it states.
    (unsafe { GlobalMemoryStatusEx(&mut found) } != 0).then_some(found.ullTotalPhys)
}

/// The model name of the processor.
pub(crate) fn cpu_model() -> Option<String> {
    let path = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0";
    let name = windows_registry::LOCAL_MACHINE.open(path).ok()?.get_string("ProcessorNameString");
    Some(name.ok()?.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The name and version of the system.
pub(crate) fn system() -> Option<String> {
    let path = r"SOFTWARE\Microsoft\Windows NT\CurrentVersion";
    let key = windows_registry::LOCAL_MACHINE.open(path).ok()?;
    let text = |name| key.get_string(name).ok();
    Some(format!("{} build {}", text("ProductName")?, text("CurrentBuildNumber")?))
}

fn owned(handle: HANDLE) -> io::Result<OwnedHandle> {
    if handle.is_null() || handle == INVALID_HANDLE_VALUE {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the callers have just received this handle, and it has no other owner.
    Ok(unsafe { OwnedHandle::from_raw_handle(handle) })
}

fn open_process(number: u32) -> io::Result<OwnedHandle> {
    // SAFETY: all arguments are numbers.
    owned(unsafe { OpenProcess(PROCESS_QUERY_LIMITED_INFORMATION, 0, number) })
}

fn open_thread(number: u32) -> io::Result<OwnedHandle> {
    // SAFETY: all arguments are numbers.
    owned(unsafe { OpenThread(THREAD_QUERY_LIMITED_INFORMATION, 0, number) })
}

type Times = unsafe extern "system" fn(
    HANDLE,
    *mut FILETIME,
    *mut FILETIME,
    *mut FILETIME,
    *mut FILETIME,
) -> i32;

/// The user and kernel time of a process or thread.
fn times(of: &OwnedHandle, ask: Times) -> io::Result<Duration> {
    let [mut created, mut ended, mut kernel, mut user] = [FILETIME::default(); 4];
    // SAFETY: the handle is open and of the kind that `ask` expects. The times are local variables.
    let done = unsafe { ask(of.as_raw_handle(), &mut created, &mut ended, &mut kernel, &mut user) };
    if done == 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(duration(kernel) + duration(user))
}

/// Converts a time from units of 100 ns.
fn duration(time: FILETIME) -> Duration {
    let units = u64::from(time.dwHighDateTime) << 32 | u64::from(time.dwLowDateTime);
    Duration::from_nanos(units.saturating_mul(100))
}

/// The IDs of this process's threads.
fn threads() -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    let mut entry =
        THREADENTRY32 { dwSize: size_of::<THREADENTRY32>() as u32, ..Default::default() };
    // SAFETY: the arguments are numbers, the handle that this block creates, and an entry that
    // states its size.
    unsafe {
        let snapshot = owned(CreateToolhelp32Snapshot(TH32CS_SNAPTHREAD, 0))?;
        let mut more = Thread32First(snapshot.as_raw_handle(), &mut entry);
        while more != 0 {
            if entry.th32OwnerProcessID == std::process::id() {
                found.push(entry.th32ThreadID);
            }
            more = Thread32Next(snapshot.as_raw_handle(), &mut entry);
        }
    }
    Ok(found)
}

/// The name of a thread; empty if it has no name.
fn name(thread: &OwnedHandle) -> String {
    let mut text = std::ptr::null_mut();
    // SAFETY: the handle is open. The function returns a text that ends with a zero and that the
    // caller must free.
    unsafe {
        if GetThreadDescription(thread.as_raw_handle(), &mut text) < 0 || text.is_null() {
            return String::new();
        }
        let length = (0..).take_while(|&at| *text.add(at) != 0).count();
        let name = String::from_utf16_lossy(std::slice::from_raw_parts(text, length));
        LocalFree(text.cast());
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::TryRecvError;
    use std::time::Instant;

    fn work(time: Duration) {
        let begin = std::time::Instant::now();
        while begin.elapsed() < time {
            std::hint::black_box(0);
        }
    }

    #[test]
    fn threads_are_found_by_name_and_ended_threads_still_count() {
        let group = ThreadGroup::named(&["farblock-busy"]).unwrap();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let named = std::thread::Builder::new().name("farblock-busy-1".to_owned());
        let busy = named.spawn(move || while wait.try_recv() == Err(TryRecvError::Empty) {});
        // On a busy machine the thread gets less processor time than elapsed time.
        let begin = Instant::now();
        while group.cpu_time() < Duration::from_millis(50) {
            assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", group.cpu_time());
            std::thread::sleep(Duration::from_millis(10));
        }
        let used = group.cpu_time();
        assert!(used < begin.elapsed() + Duration::from_secs(1), "{used:?}");
        drop(go);
        busy.unwrap().join().unwrap();
        assert!(group.cpu_time() >= used);
    }

    #[test]
    fn processes_are_read_by_their_id() {
        let this = OtherProcess::new(std::process::id()).unwrap();
        work(Duration::from_millis(50));
        assert!(this.cpu_time() > Duration::ZERO);
        assert!(resident_memory_bytes(std::process::id()).is_some_and(|bytes| bytes > 1 << 20));
        assert!(OtherProcess::new(4_000_000_000).is_err());
        assert!(memory_bytes().is_some_and(|bytes| bytes > 1 << 26));
    }
}
