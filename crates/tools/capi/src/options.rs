//! Options of a connection, in C.

use crate::memory::{read_sized, text};
use crate::status::Failure;
use crate::waiting::Waiting;
use farblock_host::disk::{DiskOptions, Policy};
use farblock_host::{HostId, Options, TcpOptions};
use farblock_reactor::{Config, EngineKind, Polling};
use std::ffi::{c_char, c_void};
use std::time::Duration;

/// A value for times in the options: no limit.
pub const FB_FOREVER: u32 = u32::MAX;
/// An option: check every header with a CRC.
pub const FB_HEADER_DIGEST: u32 = 1;
/// An option: check all data with a CRC.
pub const FB_DATA_DIGEST: u32 = 2;

/// The event loop that moves the data: a value of `fb_options.engine`.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fb_engine {
    /// io_uring if it works, otherwise the portable one.
    Auto = 0,
    /// Linux io_uring.
    Uring = 1,
    /// Readiness: epoll and the like.
    Portable = 2,
}

/// The choice among several paths for an operation: a value of `fb_options.policy`. The names are
/// the Linux kernel's. Paths that the target calls optimized (ANA) always come first.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fb_policy {
    /// The first usable path in the given order.
    Numa = 0,
    /// The usable paths in turn.
    RoundRobin = 1,
    /// The path with the fewest operations of the same queue in flight.
    QueueDepth = 2,
}

/// How much processor time waiting may take to reduce latency: a value of `fb_options.spin`. The
/// names are the same as in farblock's --spin.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fb_spin {
    /// A waiting thread polls for up to 200 us before it sleeps, if that makes the load faster.
    Balanced = 0,
    /// A waiting thread sleeps at once.
    Efficient = 1,
    /// A waiting thread polls while there is I/O, and a millisecond longer: up to one processor
    /// under load.
    Latency = 2,
    /// A waiting thread never sleeps.
    Always = 3,
}

/// How to connect, and how to recover a lost connection. Set all fields to zero, then `size` to
/// `sizeof(fb_options)`, then the fields you need: zero is the default of each.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fb_options {
    /// `sizeof(fb_options)`, by which the library knows your version of it.
    pub size: usize,
    /// Host NQN, instead of this machine's.
    pub hostnqn: *const c_char,
    /// Host identifier (a UUID), instead of this machine's.
    pub hostid: *const c_char,
    /// Limit for each step of connecting (5000).
    pub connect_timeout_ms: u32,
    /// Limit for an operation. After it, the library drops the connection and sends the operation
    /// over another one (30000; or FB_FOREVER).
    pub io_timeout_ms: u32,
    /// Either side drops the connection after this time without a message (5000; or FB_FOREVER).
    pub keep_alive_ms: u32,
    /// FB_HEADER_DIGEST, FB_DATA_DIGEST.
    pub flags: u32,
    /// An `fb_engine`.
    pub engine: u32,
    /// Commands in flight per queue, if the controller allows as many (128).
    pub queue_depth: u16,
    /// Limit for open queues; all blocking calls together use one more (64).
    pub queues: u16,
    /// The longest pause between two attempts to reconnect (10000). The first attempt is made at
    /// once.
    pub reconnect_delay_ms: u32,
    /// The library gives up a path that was lost for this long; when no path remains, the disk is
    /// dead (600000; or FB_FOREVER).
    pub ctrl_loss_timeout_ms: u32,
    /// Operations fail when no path was usable for this long, while the library keeps reconnecting
    /// (FB_FOREVER: they wait until the disk is dead).
    pub fast_io_fail_timeout_ms: u32,
    /// Time after which a silent path counts as lost, if shorter than `keep_alive_ms` (600 with
    /// several paths, otherwise unused).
    pub path_timeout_ms: u32,
    /// Time to wait before the library repeats a write that was lost with its controller, if no
    /// other controller can reset the lost one (Linux kernel, SPDK). 0: two or three times
    /// `keep_alive_ms` plus the controller's own time; by then the controller must have ended
    /// itself by NVMe Base 2.1. With a shorter time, a write that is stuck in such a target for
    /// longer can undo later writes; 1 means practically no wait. Reads never wait.
    pub quiesce_ms: u32,
    /// An `fb_policy`.
    pub policy: u32,
    /// Time that `fb_connect` retries while the target is not reachable (0: it makes one attempt;
    /// or FB_FOREVER).
    pub connect_wait_ms: u32,
    /// Called ten times a second by a blocking call that waits, in the thread of the call, so that
    /// a program can react to signals (null: calls wait). It returns 0 to continue, or another
    /// value to end the call with FB_STATUS_ABORTED. An operation at a silent target ends when the
    /// library drops its connection (`keep_alive_ms`). A write that was lost with its connection
    /// ends when the target is back or given up (`ctrl_loss_timeout_ms`). It may be called until
    /// `fb_disconnect`.
    pub waiting: Option<unsafe extern "C" fn(user: *mut c_void) -> i32>,
    /// The argument of `waiting`.
    pub waiting_user: *mut c_void,
    /// An `fb_spin`.
    pub spin: u32,
    /// Must be zero.
    pub reserved: u32,
}

/// The parsed options.
#[derive(Default)]
pub(crate) struct Given {
    pub(crate) disk: DiskOptions,
    /// The function to ask while a call waits.
    pub(crate) waiting: Waiting,
    /// The configuration of each event loop.
    pub(crate) reactor: Config,
}

/// The caller's options, over the defaults.
///
/// # Safety
/// A pointer that is not null must point to options, as long as their size says, with texts that
/// end with a zero byte, and with a function that fulfils [`Waiting::new`].
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
/// As for [`text`], for each text.
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

/// The connection options of each path.
///
/// # Safety
/// As for [`text`], for each text.
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
/// As for [`text`].
unsafe fn optional<'a>(pointer: *const c_char, what: &str) -> Result<Option<&'a str>, Failure> {
    // SAFETY: the caller's promise.
    if pointer.is_null() { Ok(None) } else { unsafe { text(pointer, what) }.map(Some) }
}

fn time(given_ms: u32, default: Duration) -> Duration {
    match given_ms {
        0 => default,
        // The value of `farblock-host` for never.
        FB_FOREVER => Duration::ZERO,
        ms => Duration::from_millis(ms.into()),
    }
}

/// A time limit from the options; `None`: no limit.
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
