//! The state of a live controller between commands.

use super::config::{PortId, SubsystemId};
use super::events::Events;
use super::features::FeatureValues;
use super::identifiers::HostMark;
use super::limits;
use super::logs::{ChangedNamespaces, ErrorLog};
use super::properties::{Circumstances, Lifecycle};
use super::reservations::Notifications;
use super::reset::Instance;
use crate::capsule::RemoteForm;
use crate::ids::{CommandId, ControllerId, QueueId};
use crate::time::Instant;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use farblock_wire::property::{Cc, Csts};

/// Records whether a controller has received a command since the last check of its keep-alive timer
/// (NVMe Base Specification 2.0, "Traffic Based Keep Alive"). Also holds the features that affect
/// I/O commands.
///
/// All queues of a controller share one value. I/O queues mark it once for each batch of commands,
/// without the registry's lock.
#[derive(Debug, Default)]
pub struct Traffic {
    seen: AtomicBool,
    write_through: AtomicBool,
    copies_across: AtomicBool,
}

impl Traffic {
    /// Records that a command arrived.
    pub fn mark(&self) {
        // Load first: while the flag is set, the cores only read it and can share its cache line.
        // Relaxed ordering is enough, because the flag does not order other accesses.
        if !self.seen.load(Ordering::Relaxed) {
            self.seen.store(true, Ordering::Relaxed);
        }
    }

    /// Whether writes must be durable before they complete, as if FUA were set: the host disabled
    /// the volatile write cache ("Volatile Write Cache").
    #[must_use]
    pub fn is_write_through(&self) -> bool {
        self.write_through.load(Ordering::Relaxed)
    }

    pub(crate) fn set_write_through(&self, write_through: bool) {
        self.write_through.store(write_through, Ordering::Relaxed);
    }

    /// Whether the host enabled Copy descriptor format 2, with ranges in any namespace ("Host
    /// Behavior Support").
    #[must_use]
    pub fn copies_across(&self) -> bool {
        self.copies_across.load(Ordering::Relaxed)
    }

    pub(crate) fn set_copies_across(&self, copies_across: bool) {
        self.copies_across.store(copies_across, Ordering::Relaxed);
    }

    /// Returns whether a command arrived since the last call, and clears the flag.
    fn take(&self) -> bool {
        self.seen.swap(false, Ordering::Relaxed)
    }
}

/// A lower bound for the time at which the first timer of any controller expires. With it, the
/// target need not check the timers of thousands of controllers after every event, but only when
/// one may have expired.
#[derive(Debug)]
pub(crate) struct Soonest(AtomicU64);

impl Default for Soonest {
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

impl Soonest {
    /// Lowers the bound to the new deadline of a timer, if the deadline is earlier.
    pub(crate) fn note(&self, deadline: Instant) {
        // Every caller that changes a timer has exclusive access to the registry, so relaxed
        // ordering is enough.
        self.0.fetch_min(deadline.0, Ordering::Relaxed);
    }

    /// Resets the bound. The caller then calls [`Self::note`] for all timers.
    pub(crate) fn forget(&self) {
        self.0.store(u64::MAX, Ordering::Relaxed);
    }

    /// Returns the bound; `None`: no timer is running.
    pub(crate) fn get(&self) -> Option<Instant> {
        Some(self.0.load(Ordering::Relaxed)).filter(|at| *at < u64::MAX).map(Instant)
    }
}

/// The timer that ends a controller (NVMe Base Specification 2.0, "Keep Alive").
#[derive(Debug)]
pub(crate) struct KeepAlive {
    /// KATO in milliseconds, rounded up, as the host can read it. 0: no timeout.
    timeout_ms: u32,
    /// The timeout that applies if the host requested no timeout.
    fallback: Option<Duration>,
    deadline: Option<Instant>,
    /// Whether the association ends at the deadline even if commands arrive.
    is_final: bool,
    traffic: Arc<Traffic>,
    /// The bound that all timers of the registry share.
    soonest: Arc<Soonest>,
}

impl KeepAlive {
    fn new(
        timeout_ms: u32,
        fallback: Option<Duration>,
        soonest: &Arc<Soonest>,
        now: Instant,
    ) -> Self {
        let mut this = Self {
            timeout_ms: 0,
            fallback,
            deadline: None,
            is_final: false,
            traffic: Arc::new(Traffic::default()),
            soonest: Arc::clone(soonest),
        };
        this.set(timeout_ms, now);
        this
    }

    /// Returns KATO in milliseconds, rounded up to the granularity. 0: no timeout.
    pub(crate) fn timeout_ms(&self) -> u32 {
        self.timeout_ms
    }

    /// Changes KATO and restarts the timer.
    pub(crate) fn set(&mut self, timeout_ms: u32, now: Instant) {
        const STEP: u32 = limits::KEEP_ALIVE_GRANULARITY_MS;
        const LONGEST: u32 = u32::MAX / STEP * STEP;
        self.timeout_ms = timeout_ms.min(LONGEST).next_multiple_of(STEP);
        self.restart(now);
    }

    /// Restarts the timer when the controller starts and at each Keep Alive.
    pub(crate) fn restart(&mut self, now: Instant) {
        self.run_until(self.period().map(|period| now.saturating_add(period)));
        self.is_final = false;
    }

    fn run_until(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
        deadline.into_iter().for_each(|at| self.soonest.note(at));
    }

    /// Sets a final deadline: the controller ends after `linger`, even if commands arrive.
    fn finish(&mut self, now: Instant, linger: Duration) {
        self.run_until(Some(now.saturating_add(linger)));
        self.is_final = true;
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    pub(crate) fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }

    /// Whether the timer has expired at `now`. If commands arrived since the last check, restarts
    /// the timer instead.
    pub(crate) fn is_expired(&mut self, now: Instant) -> bool {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return false;
        }
        if self.traffic.take() && !self.is_final {
            self.restart(now);
            return false;
        }
        true
    }

    fn period(&self) -> Option<Duration> {
        match self.timeout_ms {
            0 => self.fallback,
            timeout_ms => Some(Duration::from_millis(u64::from(timeout_ms))),
        }
    }
}

/// A controller, from the Connect of its admin queue to the end of the association.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) id: ControllerId,
    pub(crate) instance: Instance,
    /// The controller's subsystem; `None` on a discovery controller.
    pub(crate) subsystem: Option<SubsystemId>,
    pub(crate) host_nqn: String,
    pub(crate) host_id: [u8; 16],
    /// The hash of the host's name, if the host has proved the name.
    pub(crate) proved: Option<HostMark>,
    /// The address to which the host connected, for the discovery log page.
    pub(crate) local_address: String,
    /// The listener that accepted the admin queue, if known.
    pub(crate) port: Option<PortId>,
    /// The type of SGL descriptor that the transport uses for data outside capsules.
    pub(crate) remote: RemoteForm,
    /// The connected queues and their depths, in entries.
    pub(crate) queues: BTreeMap<QueueId, u16>,
    pub(crate) lifecycle: Lifecycle,
    /// Whether closed I/O queues still execute commands that change data.
    pub(crate) unfinished: bool,
    pub(crate) cc: Cc,
    pub(crate) keep_alive: KeepAlive,
    pub(crate) events: Events,
    pub(crate) errors: ErrorLog,
    pub(crate) changed: ChangedNamespaces,
    /// The number of changes of the Asymmetric Namespace Access log page since the last reset.
    pub(crate) access_changes: u64,
    pub(crate) notifications: Notifications,
    pub(crate) features: FeatureValues,
}

/// The values that a new controller gets from its Connect command and its subsystem.
pub(crate) struct Beginning<'a> {
    pub(crate) id: ControllerId,
    pub(crate) instance: Instance,
    pub(crate) subsystem: Option<SubsystemId>,
    pub(crate) host_nqn: &'a str,
    pub(crate) host_id: [u8; 16],
    pub(crate) local_address: &'a str,
    pub(crate) port: Option<PortId>,
    pub(crate) remote: RemoteForm,
    pub(crate) keep_alive_ms: u32,
    pub(crate) soonest: &'a Arc<Soonest>,
    pub(crate) admin_depth: u16,
}

impl Controller {
    /// Creates the controller when its admin queue connects.
    pub(crate) fn new(beginning: &Beginning<'_>, now: Instant) -> Self {
        // The timer already runs while the controller is not enabled, because the host may fail at
        // this stage, too.
        let fallback = match beginning.subsystem {
            Some(_) => None,
            None => Some(limits::DISCOVERY_KEEP_ALIVE),
        };
        Self {
            id: beginning.id,
            instance: beginning.instance,
            subsystem: beginning.subsystem,
            host_nqn: beginning.host_nqn.into(),
            host_id: beginning.host_id,
            proved: None,
            local_address: beginning.local_address.into(),
            port: beginning.port,
            remote: beginning.remote,
            queues: [(QueueId(0), beginning.admin_depth)].into(),
            lifecycle: Lifecycle::default(),
            unfinished: false,
            cc: Cc::default(),
            keep_alive: KeepAlive::new(beginning.keep_alive_ms, fallback, beginning.soonest, now),
            events: Events::default(),
            errors: ErrorLog::default(),
            changed: ChangedNamespaces::default(),
            access_changes: 0,
            notifications: Notifications::default(),
            features: FeatureValues::new(now),
        }
    }

    pub(crate) fn is_discovery(&self) -> bool {
        self.subsystem.is_none()
    }

    /// Returns the connected I/O queues.
    pub(crate) fn io_queues(&self) -> impl Iterator<Item = QueueId> {
        self.queues.keys().copied().filter(|&queue| queue != QueueId(0))
    }

    /// Returns CSTS. It reports a reset or a shutdown as complete only when the connections of the
    /// I/O queues are closed and their commands have ended. The host may then send these commands
    /// again through another controller.
    pub(crate) fn csts(&self) -> Csts {
        let csts = self.lifecycle.csts(self.cc.en());
        if !self.unfinished && self.io_queues().next().is_none() {
            return csts;
        }
        match self.lifecycle {
            Lifecycle::Disabled => csts.with_rdy(true),
            Lifecycle::ShutDown => csts.with_shst(Csts::SHST_OCCURRING),
            Lifecycle::Ready | Lifecycle::ShuttingDown | Lifecycle::Failed => csts,
        }
    }

    /// Applies a write to CC. Returns the held Asynchronous Event Requests if the controller left
    /// [`Lifecycle::Ready`]: they get no response.
    pub(crate) fn write_cc(
        &mut self,
        cc: Cc,
        must_flush: bool,
        now: Instant,
    ) -> VecDeque<CommandId> {
        let circumstances = Circumstances { discovery: self.is_discovery(), must_flush };
        let before = self.lifecycle;
        self.lifecycle = before.after_cc(self.cc, cc, circumstances);
        self.cc = cc;
        if before == self.lifecycle {
            return VecDeque::new();
        }
        match self.lifecycle {
            Lifecycle::Ready => self.keep_alive.restart(now),
            Lifecycle::Disabled => {
                self.keep_alive.restart(now);
                self.features = FeatureValues::new(now);
                self.keep_alive.traffic().set_write_through(false);
                self.keep_alive.traffic().set_copies_across(false);
                self.changed = ChangedNamespaces::default();
                self.access_changes = 0;
                self.notifications = Notifications::default();
            }
            Lifecycle::ShutDown => self.keep_alive.finish(now, limits::ASSOCIATION_LINGER),
            Lifecycle::ShuttingDown | Lifecycle::Failed => {}
        }
        match before {
            Lifecycle::Ready => self.events.reset(),
            _ => VecDeque::new(),
        }
    }

    /// Completes the shutdown after the flush that it waited for.
    pub(crate) fn flushed(&mut self, now: Instant) {
        let before = self.lifecycle;
        self.lifecycle = before.after_flush();
        if before != self.lifecycle {
            self.keep_alive.finish(now, limits::ASSOCIATION_LINGER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::default().saturating_add(Duration::from_secs(seconds))
    }

    #[test]
    fn the_keep_alive_timeout_is_rounded_up_to_seconds() {
        let mut timer = KeepAlive::new(1, None, &Arc::default(), at(0));
        assert_eq!((timer.timeout_ms(), timer.deadline()), (1000, Some(at(1))));
        timer.set(5001, at(10));
        assert_eq!((timer.timeout_ms(), timer.deadline()), (6000, Some(at(16))));
        timer.set(u32::MAX, at(0));
        assert_eq!(timer.timeout_ms(), 4_294_967_000);
        timer.set(0, at(0));
        assert_eq!((timer.timeout_ms(), timer.deadline()), (0, None));
        assert!(!timer.is_expired(at(u32::MAX.into())));
    }

    #[test]
    fn traffic_extends_the_keep_alive_deadline_once() {
        let mut timer = KeepAlive::new(5000, None, &Arc::default(), at(0));
        assert!(!timer.is_expired(at(4)));
        timer.traffic().mark();
        timer.traffic().mark();
        assert!(!timer.is_expired(at(5)));
        assert_eq!(timer.deadline(), Some(at(10)));
        assert!(timer.is_expired(at(10)));
    }

    #[test]
    fn traffic_after_shutdown_does_not_extend_the_deadline() {
        let mut timer = KeepAlive::new(5000, None, &Arc::default(), at(0));
        timer.finish(at(1), limits::ASSOCIATION_LINGER);
        timer.traffic().mark();
        assert!(!timer.is_expired(at(120)));
        assert!(timer.is_expired(at(121)));
    }

    #[test]
    fn a_discovery_session_without_a_timeout_gets_a_default() {
        let fallback = Some(limits::DISCOVERY_KEEP_ALIVE);
        let mut timer = KeepAlive::new(0, fallback, &Arc::default(), at(0));
        assert_eq!(timer.timeout_ms(), 0);
        assert!(!timer.is_expired(at(119)));
        assert!(timer.is_expired(at(120)));
    }
}
