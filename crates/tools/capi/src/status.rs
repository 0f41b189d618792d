//! The result of a call: a status and a sentence. A panic never leaves a call.

use farblock_block::BlockError;
use farblock_host::{ConnectError, Error, InfoError};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The result of a call or an operation. New versions may add values: treat unknown values as
/// failures.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fb_status {
    /// Success.
    Ok = 0,
    /// An argument is invalid: it is null, unknown, or contradicts another argument.
    Argument = -1,
    /// An offset or a length is not a multiple of the block size.
    Alignment = -2,
    /// The range is outside of the disk.
    Range = -3,
    /// The operation is too large: split it.
    TooLarge = -4,
    /// The library could not connect to the target.
    Connect = -5,
    /// The connection is lost. A write in flight may or may not have been executed.
    Lost = -6,
    /// The disk is read-only.
    ReadOnly = -7,
    /// No space is left on the disk's storage.
    NoSpace = -8,
    /// The disk could not read the data.
    Read = -9,
    /// The disk could not write the data (or, for a flush, earlier data).
    Write = -10,
    /// The disk, or this version of the library, does not support the operation.
    Unsupported = -11,
    /// The library or the target cancelled the operation, for example because `fb_options.waiting`
    /// requested this.
    Aborted = -12,
    /// The system is out of memory, descriptors or queues.
    Resources = -13,
    /// A thread used a queue that another thread opened, or a forked process used a handle of its
    /// parent.
    Thread = -14,
    /// Too many operations are in flight on the queue: call `fb_poll` first.
    Busy = -15,
    /// The library has a bug; please report the message.
    Bug = -16,
    /// A reservation of another host forbids the operation.
    Conflict = -17,
    /// The controller or the disk denies access to this host.
    Denied = -18,
    /// The disk is not ready yet; another attempt may succeed.
    NotReady = -19,
    /// The write is longer than the disk's limit for atomic writes: split it.
    Atomic = -20,
    /// The controller has no such subsystem, or the subsystem has no such namespace.
    Missing = -21,
}

use fb_status as Status;

/// The error number of a reservation conflict. On Linux, the kernel's host reports the same number.
/// Other systems have no EBADE.
#[cfg(any(target_os = "linux", target_os = "android"))]
const EBADE: c_int = libc::EBADE;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const EBADE: c_int = libc::EBUSY;

const ALL: [(Status, &CStr, c_int); 22] = [
    (Status::Ok, c"the operation succeeded", 0),
    (Status::Argument, c"an argument is invalid", libc::EINVAL),
    (Status::Alignment, c"the range does not consist of whole blocks", libc::EINVAL),
    (Status::Range, c"the range lies outside of the disk", libc::ENXIO),
    (Status::TooLarge, c"the operation is too large: split it", libc::E2BIG),
    (Status::Connect, c"the connection failed", libc::ECONNREFUSED),
    (Status::Lost, c"the connection to the disk is lost", libc::ENOTCONN),
    (Status::ReadOnly, c"the disk is read-only", libc::EROFS),
    (Status::NoSpace, c"no space is left on the disk's storage", libc::ENOSPC),
    (Status::Read, c"reading failed", libc::EIO),
    (Status::Write, c"writing failed", libc::EIO),
    (Status::Unsupported, c"the operation is not supported", libc::EOPNOTSUPP),
    (Status::Aborted, c"the operation was aborted", libc::ECANCELED),
    (Status::Resources, c"the system is out of memory, descriptors or queues", libc::ENOMEM),
    (Status::Thread, c"the handle belongs to another thread or process", libc::EPERM),
    (Status::Busy, c"too many operations are in flight on the queue", libc::EAGAIN),
    (Status::Bug, c"a bug in libfarblock", libc::EIO),
    (Status::Conflict, c"another host has reserved the disk", EBADE),
    (Status::Denied, c"access is denied to this host", libc::EACCES),
    (Status::NotReady, c"the disk is not ready", libc::EBUSY),
    (Status::Atomic, c"the write exceeds the disk's limit for atomic writes", libc::EINVAL),
    (Status::Missing, c"the subsystem or the namespace does not exist", libc::ENOENT),
];

fn known(code: i32) -> Option<&'static (Status, &'static CStr, c_int)> {
    ALL.iter().find(|(status, ..)| *status as i32 == code)
}

/// Describes a status in plain words. The text stays valid.
#[unsafe(no_mangle)]
pub extern "C" fn fb_status_text(status: i32) -> *const c_char {
    known(status).map_or(c"an unknown status", |(_, text, _)| text).as_ptr()
}

/// The errno that is closest to a status (0 for success), for programs that need an errno.
#[unsafe(no_mangle)]
pub extern "C" fn fb_status_errno(status: i32) -> c_int {
    known(status).map_or(if status < 0 { libc::EIO } else { 0 }, |&(.., errno)| errno)
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Describes the last failed call in this thread by one sentence, in UTF-8. The text is valid until
/// the next failed call in this thread. It is empty before the first failed call.
#[unsafe(no_mangle)]
pub extern "C" fn fb_last_error() -> *const c_char {
    // While the thread exits, `LAST` may no longer exist.
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// The reason why a call failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    text: String,
}

/// The result of most calls.
pub(crate) type Outcome = Result<(), Failure>;

impl Failure {
    pub(crate) fn new(status: Status, text: impl ToString) -> Failure {
        Failure { status, text: text.to_string() }
    }

    pub(crate) fn argument(text: impl ToString) -> Failure {
        Failure::new(Status::Argument, text)
    }

    pub(crate) fn bug() -> Failure {
        Failure::new(
            Status::Bug,
            "a bug in libfarblock: please report the message on the standard error",
        )
    }

    /// Stores the sentence for [`fb_last_error`], and returns the status.
    pub(crate) fn leave(self) -> Status {
        let text = CString::new(self.text.replace('\0', "?")).unwrap_or_default();
        let _ = LAST.try_with(|last| *last.borrow_mut() = text);
        self.status
    }
}

impl From<BlockError> for Failure {
    fn from(error: BlockError) -> Failure {
        Failure::new(block_status(error), error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let status = match &error {
            Error::Url(_) | Error::Options(_) => Status::Argument,
            Error::Lost(_) => Status::Lost,
            Error::System(_) | Error::Busy => Status::Resources,
            Error::Answer { reason: InfoError::NoSuchNamespace, .. } => Status::Missing,
            Error::Connect { reason, .. } | Error::Authentication { reason, .. } => {
                connect_status(reason)
            }
            _ => Status::Connect,
        };
        Failure::new(status, error)
    }
}

/// The status that the caller gets for a failed connection.
fn connect_status(reason: &ConnectError) -> Status {
    use ConnectError as E;
    match reason {
        E::NoSuchSubsystem => Status::Missing,
        E::HostNotAllowed
        | E::IdentifierNotAllowed
        | E::AuthenticationRequired
        | E::AuthenticationFailed(_) => Status::Denied,
        _ => Status::Connect,
    }
}

/// The status that the caller gets for a failed operation.
pub(crate) fn block_status(error: BlockError) -> Status {
    match error {
        BlockError::OutOfRange => Status::Range,
        BlockError::TooLarge => Status::TooLarge,
        BlockError::ReadOnly => Status::ReadOnly,
        BlockError::NoSpace => Status::NoSpace,
        BlockError::Conflict => Status::Conflict,
        BlockError::Denied => Status::Denied,
        BlockError::NotReady => Status::NotReady,
        BlockError::AtomicExceeded => Status::Atomic,
        BlockError::ReadFailed => Status::Read,
        BlockError::WriteFailed => Status::Write,
        BlockError::Unsupported => Status::Unsupported,
        BlockError::Disconnected => Status::Lost,
        BlockError::Aborted => Status::Aborted,
        BlockError::NoResources => Status::Resources,
        // `BlockError` may get variants that this interface does not have yet.
        _ => Status::Read,
    }
}

/// Runs the body of a call, and catches panics.
pub(crate) fn guard(body: impl FnOnce() -> Outcome) -> Status {
    match guarded(body) {
        Ok(()) => Status::Ok,
        Err(failure) => failure.leave(),
    }
}

/// Like `guard`, for a call that returns a value.
pub(crate) fn guarded<T>(body: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    // A panic may leave a queue in an inconsistent state. The queue marks itself as broken.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| Err(Failure::bug()))
}
