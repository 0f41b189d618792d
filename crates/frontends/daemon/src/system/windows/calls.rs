//! Windows calls that Rust's standard library lacks, and no well-maintained crate offers: handles
//! for other processes, private folders, and folder owners.

use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io;
use std::os::windows::ffi::{OsStrExt, OsStringExt};
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::path::{Path, PathBuf};
use std::ptr;
use windows_sys::Win32::Foundation::{
    DUPLICATE_SAME_ACCESS, DuplicateHandle, FILETIME, GetHandleInformation, HANDLE,
    HANDLE_FLAG_INHERIT, LocalFree, SetHandleInformation,
};
use windows_sys::Win32::Security::Authorization::{
    ConvertStringSecurityDescriptorToSecurityDescriptorW, GetNamedSecurityInfoW, SDDL_REVISION_1,
    SE_FILE_OBJECT,
};
use windows_sys::Win32::Security::{
    EqualSid, GetTokenInformation, IsWellKnownSid, OWNER_SECURITY_INFORMATION,
    PSECURITY_DESCRIPTOR, PSID, SECURITY_ATTRIBUTES, TOKEN_ELEVATION, TOKEN_QUERY, TOKEN_USER,
    TokenElevation, TokenUser, WinBuiltinAdministratorsSid, WinLocalSystemSid,
};
use windows_sys::Win32::Storage::FileSystem::CreateDirectoryW;
use windows_sys::Win32::System::Com::CoTaskMemFree;
use windows_sys::Win32::System::Console::{
    GetStdHandle, STD_ERROR_HANDLE, STD_INPUT_HANDLE, STD_OUTPUT_HANDLE,
};
use windows_sys::Win32::System::Threading::{
    GetCurrentProcess, GetProcessTimes, OpenProcess, OpenProcessToken,
    PROCESS_QUERY_LIMITED_INFORMATION, PROCESS_TERMINATE, TerminateProcess,
};
use windows_sys::Win32::UI::Shell::{
    FOLDERID_LocalAppData, FOLDERID_ProgramData, KF_FLAG_DEFAULT, SHGetKnownFolderPath,
};

/// Gives the system, administrators and the owner full access, which all content inherits. Other
/// users have no access, whatever the parent folder allows.
const PRIVATE: &str = "D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;OW)";

/// Size of a `TOKEN_USER` with the longest SID, in bytes.
const USER_BYTES: usize = 128;

fn wide(text: impl AsRef<std::ffi::OsStr>) -> Vec<u16> {
    text.as_ref().encode_wide().chain([0]).collect()
}

fn done(result: i32) -> io::Result<()> {
    if result == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A handle's number in another process, for which [`give`] duplicated it. Only the pipe between
/// both processes carries this number, and this value cannot be copied. So the other process takes
/// the handle exactly once.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Given(usize);

/// Duplicates a handle into a child process.
pub(super) fn give(handle: &OwnedHandle, process: &OwnedHandle) -> io::Result<Given> {
    let mut theirs: HANDLE = ptr::null_mut();
    let (handle, process) = (handle.as_raw_handle(), process.as_raw_handle());
    // SAFETY: both handles are open, and the result is in a variable of ours.
    let given = unsafe {
        DuplicateHandle(
            GetCurrentProcess(),
            handle,
            process,
            &raw mut theirs,
            0,
            0,
            DUPLICATE_SAME_ACCESS,
        )
    };
    done(given).map(|()| Given(theirs.addr()))
}

/// Takes a handle that the parent process duplicated into this process.
///
/// # Errors
/// Fails if the number is not a handle of this process.
pub(super) fn take(given: Given) -> io::Result<OwnedHandle> {
    let handle = ptr::with_exposed_provenance_mut(given.0);
    let mut flags = 0;
    // SAFETY: `flags` is our variable; the call refuses a number that is not a handle.
    done(unsafe { GetHandleInformation(handle, &raw mut flags) })?;
    // SAFETY: the handle is open, and `give` made it in this process for the holder of `given`.
    Ok(unsafe { OwnedHandle::from_raw_handle(handle) })
}

/// Keeps child processes from inheriting the standard handles. An inherited handle would keep the
/// other end of a pipe open, and the pipe's reader would wait forever.
pub(in super::super::super) fn keep_own_files() {
    for which in [STD_INPUT_HANDLE, STD_OUTPUT_HANDLE, STD_ERROR_HANDLE] {
        // SAFETY: plain calls, which refuse a value that is not a handle.
        unsafe { SetHandleInformation(GetStdHandle(which), HANDLE_FLAG_INHERIT, 0) };
    }
}

/// The ID and the start time of this process. Windows reuses IDs, so only both together identify a
/// process.
pub(in super::super::super) fn own_process() -> String {
    // SAFETY: a plain call; its pseudo handle need not be closed.
    let started = started(unsafe { GetCurrentProcess() });
    // A start time of 0 matches no process. So [`kill_holder`] cannot kill this one.
    format!("{} {}\n", std::process::id(), started.unwrap_or_default())
}

/// The time at which a process started, in units of 100 ns; `None` if unknown.
fn started(process: HANDLE) -> Option<u64> {
    let none = FILETIME { dwLowDateTime: 0, dwHighDateTime: 0 };
    let (mut created, mut exited, mut kernel, mut user) = (none, none, none, none);
    // SAFETY: the process handle is open, and the times are our variables.
    let told = unsafe {
        GetProcessTimes(process, &raw mut created, &raw mut exited, &raw mut kernel, &raw mut user)
    };
    let time = u64::from(created.dwHighDateTime) << 32 | u64::from(created.dwLowDateTime);
    (told != 0 && time != 0).then_some(time)
}

/// Kills the process that recorded itself as holder of a lock. Returns false if it no longer runs.
pub(in super::super::super) fn kill_holder(_: &Path, record: &str) -> bool {
    let mut words = record.split_whitespace();
    let pid = words.next().and_then(|word| word.parse::<u32>().ok());
    let since = words.next().and_then(|word| word.parse::<u64>().ok());
    let (Some(pid), Some(since)) = (pid, since) else { return false };
    // SAFETY: the handle is ours, and closed once.
    unsafe {
        let process = OpenProcess(PROCESS_TERMINATE | PROCESS_QUERY_LIMITED_INFORMATION, 0, pid);
        if process.is_null() {
            return false;
        }
        let process = OwnedHandle::from_raw_handle(process);
        // Windows does not reuse the ID while the handle is open.
        started(process.as_raw_handle()) == Some(since)
            && TerminateProcess(process.as_raw_handle(), 1) != 0
    }
}

/// Creates a folder that no other user can access, from its creation on.
pub(super) fn make_private(folder: &Path) -> io::Result<()> {
    let mut descriptor: PSECURITY_DESCRIPTOR = ptr::null_mut();
    let (text, path) = (wide(PRIVATE), wide(folder));
    // SAFETY: the texts end with a zero, and the descriptor is freed once, after its use.
    unsafe {
        done(ConvertStringSecurityDescriptorToSecurityDescriptorW(
            text.as_ptr(),
            SDDL_REVISION_1,
            &raw mut descriptor,
            ptr::null_mut(),
        ))?;
        let attributes = SECURITY_ATTRIBUTES {
            nLength: size_of::<SECURITY_ATTRIBUTES>().try_into().expect("a few bytes"),
            lpSecurityDescriptor: descriptor,
            bInheritHandle: 0,
        };
        let made = done(CreateDirectoryW(path.as_ptr(), &raw const attributes));
        LocalFree(descriptor);
        made
    }
}

/// Opens this process's access token.
fn token() -> io::Result<OwnedHandle> {
    let mut token: HANDLE = ptr::null_mut();
    // SAFETY: the call opens the token into our variable, and no one else owns it.
    unsafe {
        done(OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &raw mut token))?;
        Ok(OwnedHandle::from_raw_handle(token))
    }
}

/// Whether this process has an administrator's rights.
pub(super) fn is_elevated() -> bool {
    let Ok(token) = token() else { return false };
    let mut elevation = TOKEN_ELEVATION { TokenIsElevated: 0 };
    let (mut length, size) = (0, size_of::<TOKEN_ELEVATION>());
    // SAFETY: the variable has the requested type, and its size is given.
    let asked = unsafe {
        GetTokenInformation(
            token.as_raw_handle(),
            TokenElevation,
            (&raw mut elevation).cast(),
            size.try_into().expect("a few bytes"),
            &raw mut length,
        )
    };
    asked != 0 && elevation.TokenIsElevated != 0
}

/// Returns the data folder of the machine or of the user. Asks Windows instead of the environment,
/// which differs in a service.
pub(super) fn data_folder(machine: bool) -> io::Result<PathBuf> {
    let id = if machine { FOLDERID_ProgramData } else { FOLDERID_LocalAppData };
    let mut text: *mut u16 = ptr::null_mut();
    // SAFETY: the text is Windows', ends with a zero, and is freed once, after it was copied.
    unsafe {
        let flags = KF_FLAG_DEFAULT.cast_unsigned();
        let result = SHGetKnownFolderPath(&raw const id, flags, ptr::null_mut(), &raw mut text);
        let found = if result >= 0 {
            let length = (0..).take_while(|&at| *text.add(at) != 0).count();
            Ok(OsString::from_wide(std::slice::from_raw_parts(text, length)).into())
        } else {
            Err(io::Error::from_raw_os_error(result))
        };
        CoTaskMemFree(text.cast());
        found
    }
}

/// Whether an administrator, the system or this user owns a folder.
pub(super) fn is_trusted(folder: &Path) -> io::Result<bool> {
    let path = wide(folder);
    let (mut owner, mut descriptor): (PSID, PSECURITY_DESCRIPTOR) =
        (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the path ends with a zero; `owner` points into the descriptor, which is freed once,
    // after the last use of `owner`.
    unsafe {
        let error = GetNamedSecurityInfoW(
            path.as_ptr(),
            SE_FILE_OBJECT,
            OWNER_SECURITY_INFORMATION,
            &raw mut owner,
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut(),
            &raw mut descriptor,
        );
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error.cast_signed()));
        }
        let trusted = IsWellKnownSid(owner, WinBuiltinAdministratorsSid) != 0
            || IsWellKnownSid(owner, WinLocalSystemSid) != 0
            || is_this_user(owner)?;
        LocalFree(descriptor);
        Ok(trusted)
    }
}

/// Whether this process runs as the user `owner`.
///
/// # Safety
/// `owner` must be a valid SID.
unsafe fn is_this_user(owner: PSID) -> io::Result<bool> {
    let token = token()?;
    let mut user = [0_u64; USER_BYTES / 8];
    let mut length = 0;
    // SAFETY: the buffer's size is given, it is aligned for pointers, and it starts with the user,
    // whose SID lies in it.
    unsafe {
        done(GetTokenInformation(
            token.as_raw_handle(),
            TokenUser,
            user.as_mut_ptr().cast(),
            USER_BYTES.try_into().expect("a few bytes"),
            &raw mut length,
        ))?;
        let user = user.as_ptr().cast::<TOKEN_USER>();
        Ok(EqualSid(owner, (*user).User.Sid) != 0)
    }
}
