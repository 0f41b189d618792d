//! How to connect, as C says it.

use crate::memory::{read_sized, text};
use crate::status::Failure;
use farblock_host::{HostId, Options};
use farblock_reactor::EngineKind;
use std::ffi::c_char;
use std::time::Duration;

/// A time in the options that never comes.
pub const FB_FOREVER: u32 = u32::MAX;
/// An option: check every header with a CRC.
pub const FB_HEADER_DIGEST: u32 = 1;
/// An option: check all data with a CRC.
pub const FB_DATA_DIGEST: u32 = 2;

/// Which event loop moves the data: a value of `fb_options.engine`.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fb_engine {
    /// io_uring where it works, else the portable one.
    Auto = 0,
    /// Linux io_uring.
    Uring = 1,
    /// Readiness: epoll and the like.
    Portable = 2,
}

/// How to connect. Set all to zero, then `size` to `sizeof(fb_options)`, then what you want: zero
/// is the default of everything.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fb_options {
    /// `sizeof(fb_options)`, by which the library knows your version of it.
    pub size: usize,
    /// Host NQN, instead of this machine's.
    pub hostnqn: *const c_char,
    /// Host identifier (a UUID), instead of this machine's.
    pub hostid: *const c_char,
    /// How long each step of connecting may take (5000).
    pub connect_timeout_ms: u32,
    /// How long an operation may take before the connection is given up (30000; or FB_FOREVER).
    pub io_timeout_ms: u32,
    /// After this long without a sign of life either side gives up (5000; or FB_FOREVER).
    pub keep_alive_ms: u32,
    /// FB_HEADER_DIGEST, FB_DATA_DIGEST.
    pub flags: u32,
    /// An `fb_engine`.
    pub engine: u32,
    /// Commands in flight per queue, if the controller allows as many (128).
    pub queue_depth: u16,
    /// How many queues can be open at once; blocking calls together use one more (64).
    pub queues: u16,
}

/// What the caller wants, over the defaults.
///
/// # Safety
/// A pointer that is not null is one to options, as long as their size says, with texts that end in
/// a zero byte.
pub(crate) unsafe fn read(pointer: *const fb_options) -> Result<Options, Failure> {
    let default = Options::default();
    if pointer.is_null() {
        return Ok(default);
    }
    // SAFETY: the caller's promise; the structure is numbers and pointers.
    let given = unsafe { read_sized(pointer, "fb_options") }?;
    let unknown = given.flags & !(FB_HEADER_DIGEST | FB_DATA_DIGEST);
    if unknown != 0 {
        return Err(Failure::argument(format!("the options' flags {unknown:#x} are unknown")));
    }
    if given.connect_timeout_ms == FB_FOREVER {
        return Err(Failure::argument("connecting cannot take for ever: choose a time"));
    }
    // SAFETY: the caller's promise.
    let (hostnqn, hostid) =
        unsafe { (optional(given.hostnqn, "hostnqn")?, optional(given.hostid, "hostid")?) };
    let hostid = hostid.map(|text| {
        let parsed = text.parse::<HostId>();
        parsed.map_err(|error| Failure::argument(format!("hostid {text:?} is no use: {error}")))
    });
    Ok(Options {
        header_digest: given.flags & FB_HEADER_DIGEST != 0,
        data_digest: given.flags & FB_DATA_DIGEST != 0,
        hostnqn: hostnqn.map(str::to_owned),
        hostid: hostid.transpose()?,
        keep_alive: time(given.keep_alive_ms, default.keep_alive),
        connect_timeout: time(given.connect_timeout_ms, default.connect_timeout),
        io_timeout: time(given.io_timeout_ms, default.io_timeout),
        queue_depth: count(given.queue_depth, default.queue_depth),
        queues: count(given.queues, default.queues).saturating_add(1),
        engine: engine(given.engine)?,
        ..default
    })
}

/// # Safety
/// As [`text`].
unsafe fn optional<'a>(pointer: *const c_char, what: &str) -> Result<Option<&'a str>, Failure> {
    // SAFETY: the caller's promise.
    if pointer.is_null() { Ok(None) } else { unsafe { text(pointer, what) }.map(Some) }
}

fn time(given_ms: u32, default: Duration) -> Duration {
    match given_ms {
        0 => default,
        // The host's word for never.
        FB_FOREVER => Duration::ZERO,
        ms => Duration::from_millis(ms.into()),
    }
}

fn count(given: u16, default: u16) -> u16 {
    if given == 0 { default } else { given }
}

fn engine(given: u32) -> Result<EngineKind, Failure> {
    [
        (fb_engine::Auto, EngineKind::Auto),
        (fb_engine::Uring, EngineKind::Uring),
        (fb_engine::Portable, EngineKind::Portable),
    ]
    .into_iter()
    .find_map(|(name, kind)| (name as u32 == given).then_some(kind))
    .ok_or_else(|| Failure::argument(format!("no engine has the number {given}")))
}
