//! How to connect, as C says it.

use crate::memory::{read_sized, text};
use crate::status::Failure;
use crate::waiting::Waiting;
use farblock_host::disk::{DiskOptions, Policy};
use farblock_host::{HostId, Options, TcpOptions};
use farblock_reactor::{Config, EngineKind, Polling};
use std::ffi::{c_char, c_void};
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

/// Which of several paths an operation takes: a value of `fb_options.policy`. The names are the
/// Linux kernel's; paths that the target calls optimized (ANA) come before others, always.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fb_policy {
    /// The first in the order given, for as long as it is usable.
    Numa = 0,
    /// One after the other.
    RoundRobin = 1,
    /// The one with the fewest operations of the same queue in flight.
    QueueDepth = 2,
}

/// How much processor time waiting may take, for the sake of latency: a value of `fb_options.spin`.
/// The names are those of farblock's --spin.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fb_spin {
    /// Who waits looks for up to 200 us before it sleeps where that makes the load faster.
    Balanced = 0,
    /// It sleeps at once.
    Efficient = 1,
    /// It looks as long as there is I/O, and a millisecond longer: up to a processor under load.
    Latency = 2,
    /// It never sleeps.
    Always = 3,
}

/// How to connect, and how to go on when a connection is lost. Set all to zero, then `size` to
/// `sizeof(fb_options)`, then what you want: zero is the default of everything.
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
    /// How long an operation may take before its connection is given up and it is sent over another
    /// one (30000; or FB_FOREVER).
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
    /// The longest pause between two attempts to reconnect (10000). The first is made at once.
    pub reconnect_delay_ms: u32,
    /// A path is given up when it was lost for this long, and the disk is dead with its last path
    /// (600000; or FB_FOREVER).
    pub ctrl_loss_timeout_ms: u32,
    /// Operations fail when no path was usable for this long, while reconnecting goes on
    /// (FB_FOREVER: they wait for as long as there is hope).
    pub fast_io_fail_timeout_ms: u32,
    /// How soon to know that a path does not answer any more, if that is to be sooner than
    /// `keep_alive_ms` (600 with several paths, else not).
    pub path_timeout_ms: u32,
    /// How long to wait before writes are sent anew that were lost with a controller which no other
    /// can end, as those of the Linux kernel and SPDK (0: two or three times `keep_alive_ms` and
    /// what the controller asks for, after which it must have ended itself by NVMe Base 2.1). With
    /// less, a command that is stuck in such a target for longer can undo what was written after
    /// it; 1 is as good as none. Reads never wait.
    pub quiesce_ms: u32,
    /// An `fb_policy`.
    pub policy: u32,
    /// How long `fb_connect` goes on trying when the target is not there (0: one attempt tells; or
    /// FB_FOREVER).
    pub connect_wait_ms: u32,
    /// Called ten times a second by a blocking call that waits, in the thread of the call: what it
    /// gives is 0 to wait on, or anything else to end the call with FB_STATUS_ABORTED, so that a
    /// program hears of signals (null: calls wait). An operation that a silent target has ends when
    /// its connection is given up (`keep_alive_ms`); a write that was lost with its connection ends
    /// when the target is back or given up (`ctrl_loss_timeout_ms`). It may be called until
    /// `fb_disconnect`.
    pub waiting: Option<unsafe extern "C" fn(user: *mut c_void) -> i32>,
    /// What `waiting` gets.
    pub waiting_user: *mut c_void,
    /// An `fb_spin`.
    pub spin: u32,
    /// Zero.
    pub reserved: u32,
}

/// What options say.
#[derive(Default)]
pub(crate) struct Given {
    pub(crate) disk: DiskOptions,
    /// Whom to ask while a call waits.
    pub(crate) waiting: Waiting,
    /// Of each event loop.
    pub(crate) reactor: Config,
}

/// What the caller wants, over the defaults.
///
/// # Safety
/// A pointer that is not null is one to options, as long as their size says, with texts that end in
/// a zero byte, and with a function as [`Waiting::new`] wants it.
pub(crate) unsafe fn read(pointer: *const fb_options) -> Result<Given, Failure> {
    if pointer.is_null() {
        return Ok(Given::default());
    }
    // SAFETY: the caller's promise; the structure is numbers and pointers.
    let given = unsafe { read_sized(pointer, "fb_options") }?;
    if given.reserved != 0 {
        return Err(Failure::argument("the options' reserved field is not 0: set it to zero"));
    }
    let reactor = Config::new(engine(given.engine)?, spin(given.spin)?);
    // SAFETY: the caller's promises.
    let (disk, waiting) =
        unsafe { (disk(&given)?, Waiting::new(given.waiting, given.waiting_user)) };
    Ok(Given { disk, waiting, reactor })
}

/// # Safety
/// As [`text`], of the texts.
unsafe fn disk(given: &fb_options) -> Result<DiskOptions, Failure> {
    let default = DiskOptions::default();
    Ok(DiskOptions {
        // SAFETY: the caller's promise.
        connection: unsafe { connection(given) }?,
        reconnect_delay: match given.reconnect_delay_ms {
            FB_FOREVER => return Err(Failure::argument("reconnecting needs a time: choose one")),
            ms => time(ms, default.reconnect_delay),
        },
        connect_wait: match given.connect_wait_ms {
            FB_FOREVER => Duration::MAX,
            ms => Duration::from_millis(ms.into()),
        },
        ctrl_loss_timeout: limit(given.ctrl_loss_timeout_ms, default.ctrl_loss_timeout),
        fast_io_fail_timeout: limit(given.fast_io_fail_timeout_ms, default.fast_io_fail_timeout),
        policy: policy(given.policy)?,
        quiesce: match given.quiesce_ms {
            0 => default.quiesce,
            FB_FOREVER => Some(Duration::MAX),
            ms => Some(Duration::from_millis(ms.into())),
        },
        ..default
    })
}

/// How each path is connected.
///
/// # Safety
/// As [`text`], of the texts.
unsafe fn connection(given: &fb_options) -> Result<Options, Failure> {
    let default = Options::default();
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
        parsed.map_err(|error| Failure::argument(format!("hostid {text:?} is of no use: {error}")))
    });
    Ok(Options {
        tcp: TcpOptions {
            header_digest: given.flags & FB_HEADER_DIGEST != 0,
            data_digest: given.flags & FB_DATA_DIGEST != 0,
            ..default.tcp
        },
        hostnqn: hostnqn.map(str::to_owned),
        hostid: hostid.transpose()?,
        keep_alive: time(given.keep_alive_ms, default.keep_alive),
        path_timeout: limit(given.path_timeout_ms, default.path_timeout),
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

/// A time after which something is given up, if it ever is.
fn limit(given_ms: u32, default: Option<Duration>) -> Option<Duration> {
    match given_ms {
        0 => default,
        FB_FOREVER => None,
        ms => Some(Duration::from_millis(ms.into())),
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

fn spin(given: u32) -> Result<Polling, Failure> {
    let name = [
        (fb_spin::Balanced, "balanced"),
        (fb_spin::Efficient, "efficient"),
        (fb_spin::Latency, "latency"),
        (fb_spin::Always, "always"),
    ]
    .into_iter()
    .find_map(|(mode, name)| (mode as u32 == given).then_some(name));
    let spin = name.and_then(|name| name.parse().ok());
    spin.ok_or_else(|| Failure::argument(format!("no way to spin has the number {given}")))
}

fn policy(given: u32) -> Result<Policy, Failure> {
    [
        (fb_policy::Numa, Policy::Numa),
        (fb_policy::RoundRobin, Policy::RoundRobin),
        (fb_policy::QueueDepth, Policy::QueueDepth),
    ]
    .into_iter()
    .find_map(|(name, policy)| (name as u32 == given).then_some(policy))
    .ok_or_else(|| Failure::argument(format!("no policy has the number {given}")))
}
