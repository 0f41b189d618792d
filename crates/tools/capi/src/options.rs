//! The options of a connection, in C.

use crate::memory::{read_sized, text};
use crate::status::Failure;
use crate::waiting::Waiting;
use farblock_host::disk::{DiskOptions, Policy};
use farblock_host::{HostId, Options, TcpOptions};
use farblock_reactor::{Config, EngineKind, Polling};
use std::ffi::{c_char, c_void};
use std::time::Duration;

/// A value for the times in the options: no limit.
pub const FB_FOREVER: u32 = u32::MAX;
/// An option flag: protect every header by a CRC.
pub const FB_HEADER_DIGEST: u32 = 1;
/// An option flag: protect all data by a CRC.
pub const FB_DATA_DIGEST: u32 = 2;

/// The event loop that moves the data: a value of `fb_options.engine`.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fb_engine {
    /// io_uring if it works, otherwise the portable event loop.
    Auto = 0,
    /// Linux io_uring.
    Uring = 1,
    /// Readiness notifications: epoll and similar calls.
    Portable = 2,
}

/// The choice of a path for an operation, if there are several: a value of `fb_options.policy`. The
/// Linux kernel uses the same names. Paths that the target reports as optimized (ANA) always come
/// first.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fb_policy {
    /// The first usable path in the order of the URLs.
    Numa = 0,
    /// The usable paths in turn.
    RoundRobin = 1,
    /// The path with the fewest operations of the same queue in flight.
    QueueDepth = 2,
}

/// The processor time that a waiting thread may use to reduce latency: a value of
/// `fb_options.spin`. The names are the same as in farblock's --spin.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fb_spin {
    /// A waiting thread polls for up to 200 us before it sleeps, if that makes the load faster.
    Balanced = 0,
    /// A waiting thread sleeps at once.
    Efficient = 1,
    /// A waiting thread polls while there is I/O, and for a millisecond after it. Under load this
    /// takes up to one processor.
    Latency = 2,
    /// A waiting thread never sleeps.
    Always = 3,
}

/// How to connect, and how to recover a lost connection. Set all fields to zero, then `size` to
/// `sizeof(fb_options)`, and then the fields that you need. Zero is the default of each field;
/// comments give the values of the defaults in brackets.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fb_options {
    /// Set this to `sizeof(fb_options)`. The library then knows your version of the structure.
    pub size: usize,
    /// The host NQN. Null: the NQN of this machine.
    pub hostnqn: *const c_char,
    /// The host identifier (a UUID). Null: the identifier of this machine.
    pub hostid: *const c_char,
    /// The time limit of each step of connecting, in milliseconds (5000).
    pub connect_timeout_ms: u32,
    /// The time limit of an operation, in milliseconds. After it, the library drops the connection
    /// and sends the operation over another connection (30000; or FB_FOREVER).
    pub io_timeout_ms: u32,
    /// The library and the target each drop the connection after this many milliseconds without a
    /// message (5000; or FB_FOREVER).
    pub keep_alive_ms: u32,
    /// Any of FB_HEADER_DIGEST, FB_DATA_DIGEST.
    pub flags: u32,
    /// The event loop: an `fb_engine`.
    pub engine: u32,
    /// The maximum number of commands in flight per queue (128). The controller may allow fewer.
    pub queue_depth: u16,
    /// The maximum number of open queues (64). All blocking calls together use one more queue.
    pub queues: u16,
    /// The longest pause between two attempts to reconnect, in milliseconds (10000). The library
    /// makes the first attempt at once.
    pub reconnect_delay_ms: u32,
    /// The library gives up a path that was lost for this many milliseconds. When no path remains,
    /// the disk is dead (600000; or FB_FOREVER).
    pub ctrl_loss_timeout_ms: u32,
    /// Operations fail when no path was usable for this many milliseconds. The library continues to
    /// reconnect meanwhile (FB_FOREVER: operations wait until the disk is dead).
    pub fast_io_fail_timeout_ms: u32,
    /// A silent path counts as lost after this many milliseconds, if this is shorter than
    /// `keep_alive_ms` (600 with several paths, otherwise unused).
    pub path_timeout_ms: u32,
    /// The wait, in milliseconds, before the library repeats a write that was lost with its
    /// controller. The library waits only at a target where no other controller can reset the lost
    /// one (Linux kernel, SPDK). Reads never wait.
    ///
    /// The default, 0, is two or three times `keep_alive_ms` plus the controller's own time. By
    /// then, as NVMe Base 2.1 requires, the controller executes no more commands. With a shorter
    /// wait, a write that is stuck in such a target for longer can undo later writes. 1 means
    /// practically no wait.
    pub quiesce_ms: u32,
    /// The choice among several paths: an `fb_policy`.
    pub policy: u32,
    /// The time for which `fb_connect` retries while the target is not reachable, in milliseconds
    /// (0: `fb_connect` makes one attempt; or FB_FOREVER).
    pub connect_wait_ms: u32,
    /// A function that a waiting blocking call calls ten times a second, in the thread of the call,
    /// so that a program can react to signals. Null: calls wait. The function returns 0 to
    /// continue, or another value to end the call with FB_STATUS_ABORTED.
    ///
    /// An operation at a silent target ends when the library drops its connection
    /// (`keep_alive_ms`). A write that was lost with its connection ends when the target is
    /// reachable again or given up (`ctrl_loss_timeout_ms`). The library may call the function
    /// until `fb_disconnect`.
    pub waiting: Option<unsafe extern "C" fn(user: *mut c_void) -> i32>,
    /// The argument of `waiting`.
    pub waiting_user: *mut c_void,
    /// The use of processor time: an `fb_spin`.
    pub spin: u32,
    /// Must be zero.
    pub reserved: u32,
}

/// The parsed options.
#[derive(Default)]
pub(crate) struct Given {
    pub(crate) disk: DiskOptions,
    /// The function that the library calls while a call waits.
    pub(crate) waiting: Waiting,
    /// The configuration of each event loop.
    pub(crate) reactor: Config,
}

/// Reads the caller's options. Zero fields get the defaults.
///
/// # Safety
/// A pointer that is not null must point to options that are as long as their size says. Their
/// texts must end with a zero byte, and their function must fulfil [`Waiting::new`].
pub(crate) unsafe fn read(pointer: *const fb_options) -> Result<Given, Failure> {
    if pointer.is_null() {
        return Ok(Given::default());
    }
    // SAFETY: the caller promises valid options. The structure consists of numbers and pointers.
    let given = unsafe { read_sized(pointer, "fb_options") }?;
    if given.reserved != 0 {
        return Err(Failure::argument("the reserved field of the options is not 0: set it to 0"));
    }
    let reactor = Config::new(engine(given.engine)?, spin(given.spin)?);
    // SAFETY: the caller promises valid texts and a valid function.
    let (disk, waiting) =
        unsafe { (disk(&given)?, Waiting::new(given.waiting, given.waiting_user)) };
    Ok(Given { disk, waiting, reactor })
}

/// # Safety
/// The caller must fulfil the requirements of [`text`], for each text.
unsafe fn disk(given: &fb_options) -> Result<DiskOptions, Failure> {
    let default = DiskOptions::default();
    Ok(DiskOptions {
        // SAFETY: the caller promises valid texts.
        connection: unsafe { connection(given) }?,
        reconnect_delay: match given.reconnect_delay_ms {
            FB_FOREVER => {
                return Err(Failure::argument(
                    "reconnect_delay_ms cannot be FB_FOREVER: choose a time",
                ));
            }
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
/// The caller must fulfil the requirements of [`text`], for each text.
unsafe fn connection(given: &fb_options) -> Result<Options, Failure> {
    let default = Options::default();
    let unknown = given.flags & !(FB_HEADER_DIGEST | FB_DATA_DIGEST);
    if unknown != 0 {
        return Err(Failure::argument(format!(
            "the library does not support the options' flags {unknown:#x}"
        )));
    }
    if given.connect_timeout_ms == FB_FOREVER {
        return Err(Failure::argument("connect_timeout_ms cannot be FB_FOREVER: choose a time"));
    }
    // SAFETY: the caller promises valid texts.
    let (hostnqn, hostid) =
        unsafe { (optional(given.hostnqn, "hostnqn")?, optional(given.hostid, "hostid")?) };
    let hostid = hostid.map(|text| {
        let parsed = text.parse::<HostId>();
        parsed.map_err(|error| Failure::argument(format!("hostid {text:?} is invalid: {error}")))
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
/// The caller must fulfil the requirements of [`text`].
unsafe fn optional<'a>(pointer: *const c_char, what: &str) -> Result<Option<&'a str>, Failure> {
    // SAFETY: the caller promises a valid text.
    if pointer.is_null() { Ok(None) } else { unsafe { text(pointer, what) }.map(Some) }
}

fn time(given_ms: u32, default: Duration) -> Duration {
    match given_ms {
        0 => default,
        // `farblock-host` uses the value zero for no limit.
        FB_FOREVER => Duration::ZERO,
        ms => Duration::from_millis(ms.into()),
    }
}

/// A time limit from the options. `None` means no limit.
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
    .ok_or_else(|| Failure::argument(format!("engine is {given}, which is no fb_engine")))
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
    spin.ok_or_else(|| Failure::argument(format!("no spin mode has the number {given}")))
}

fn policy(given: u32) -> Result<Policy, Failure> {
    [
        (fb_policy::Numa, Policy::Numa),
        (fb_policy::RoundRobin, Policy::RoundRobin),
        (fb_policy::QueueDepth, Policy::QueueDepth),
    ]
    .into_iter()
    .find_map(|(name, policy)| (name as u32 == given).then_some(policy))
    .ok_or_else(|| Failure::argument(format!("policy is {given}, which is no fb_policy")))
}
