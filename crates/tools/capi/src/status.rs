//! The result of a call: a status, a sentence about it, and never a panic.

use farblock_block::BlockError;
use farblock_host::{ConnectError, Error, InfoError};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The result of a call or an operation. New versions may add values: treat unknown ones as
/// failures.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fb_status {
    /// Success.
    Ok = 0,
    /// An argument is invalid: it is null, unknown, or contradicts another one.
    Argument = -1,
    /// An offset or a length is not a multiple of the block size.
    Alignment = -2,
    /// The range is outside of the disk.
    Range = -3,
    /// The operation is too large: split it.
    TooLarge = -4,
    /// The connection could not be made.
    Connect = -5,
    /// The connection is lost. It is unknown whether a write in flight was executed.
    Lost = -6,
    /// The disk is read-only.
    ReadOnly = -7,
    /// No space is left on the disk's storage.
    NoSpace = -8,
    /// The data could not be read.
    Read = -9,
    /// The data (or, for a flush, earlier data) could not be written.
    Write = -10,
    /// The disk, or this version of the library, cannot do it.
    Unsupported = -11,
    /// The operation was cancelled, for example by `fb_options.waiting`.
    Aborted = -12,
    /// The system is out of memory, descriptors or queues.
    Resources = -13,
    /// The wrong thread (only the one that opened a queue may use it), or a forked process.
    Thread = -14,
    /// Too many operations are in flight on the queue: poll first.
    Busy = -15,
    /// A bug of the library; please report the message.
    Bug = -16,
    /// A reservation of another host forbids the operation.
    Conflict = -17,
    /// The controller or the disk denies access to this host.
    Denied = -18,
    /// The disk cannot be used yet; another attempt may succeed.
    NotReady = -19,
    /// The write is above the disk's limit for atomic writes: split it.
    Atomic = -20,
    /// The controller has no such subsystem, or the subsystem no such namespace.
    Missing = -21,
}

use fb_status as Status;

/// A reservation conflict, as Linux's own host reports it.
#[cfg(any(target_os = "linux", target_os = "android"))]
const EBADE: c_int = libc::EBADE;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const EBADE: c_int = libc::EBUSY;

const ALL: [(Status, &CStr, c_int); 22] = [
    (Status::Ok, c"it is done", 0),
    (Status::Argument, c"an argument makes no sense", libc::EINVAL),
    (Status::Alignment, c"the range is not made of whole blocks", libc::EINVAL),
    (Status::Range, c"the range lies outside of the disk", libc::ENXIO),
    (Status::TooLarge, c"the operation is too large: divide it", libc::E2BIG),
    (Status::Connect, c"the connection could not be made", libc::ECONNREFUSED),
    (Status::Lost, c"the connection to the disk is lost", libc::ENOTCONN),
    (Status::ReadOnly, c"the disk is read-only", libc::EROFS),
    (Status::NoSpace, c"no space is left on the disk's storage", libc::ENOSPC),
    (Status::Read, c"reading failed", libc::EIO),
    (Status::Write, c"writing failed", libc::EIO),
    (Status::Unsupported, c"it is not supported", libc::EOPNOTSUPP),
    (Status::Aborted, c"the operation was aborted", libc::ECANCELED),
    (Status::Resources, c"the system is out of memory, descriptors or queues", libc::ENOMEM),
    (Status::Thread, c"the handle belongs to another thread or process", libc::EPERM),
    (Status::Busy, c"too much is in flight on the queue", libc::EAGAIN),
    (Status::Bug, c"a bug in libfarblock", libc::EIO),
    (Status::Conflict, c"another host has reserved the disk", EBADE),
    (Status::Denied, c"access is denied to this host", libc::EACCES),
    (Status::NotReady, c"the disk is not ready", libc::EBUSY),
    (Status::Atomic, c"the write is larger than what is written atomically", libc::EINVAL),
    (Status::Missing, c"there is no such subsystem or namespace", libc::ENOENT),
];

fn known(code: i32) -> Option<&'static (Status, &'static CStr, c_int)> {
    ALL.iter().find(|(status, ..)| *status as i32 == code)
}

/// A status in plain words; the text stays valid.
#[unsafe(no_mangle)]
pub extern "C" fn fb_status_text(status: i32) -> *const c_char {
    known(status).map_or(c"an unknown status", |(_, text, _)| text).as_ptr()
}

/// The errno that is closest to a status (0 for success), for programs that need one.
#[unsafe(no_mangle)]
pub extern "C" fn fb_status_errno(status: i32) -> c_int {
    known(status).map_or(if status < 0 { libc::EIO } else { 0 }, |&(.., errno)| errno)
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// The failure of the last failed call in this thread: one sentence, in UTF-8. Valid until the next
/// failed call in this thread; empty before the first.
#[unsafe(no_mangle)]
pub extern "C" fn fb_last_error() -> *const c_char {
    // While the thread exits, `LAST` may no longer exist.
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Why a call failed.
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
            "a bug in libfarblock; what standard error says is worth a report",
        )
    }

    /// Stores the sentence for [`fb_last_error`].
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

/// The status of a connection that failed.
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

/// The status of an operation that failed.
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

/// Like `guard`, for a call with its own result.
pub(crate) fn guarded<T>(body: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    // The owner of state that a panic may have left broken marks it.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| Err(Failure::bug()))
}
