//! Asynchronous events of one controller (NVMe Base Specification 2.0, "Asynchronous Event Request
//! command").
//!
//! A controller reports each notice once and then masks it. A host unmasks the notice by reading
//! its log page with Retain Asynchronous Event (RAE) cleared:
//!
//! ```text
//!           raised           reported (an AER completes)
//!    Quiet --------> Pending ---------------------------> Masked
//!      ^                |                                   |
//!      +----------------+-----------------------------------+
//!            the host reads the log page with RAE = 0
//! ```

use super::limits;
use crate::ids::CommandId;
use alloc::collections::VecDeque;
use farblock_wire::event::AsyncEvent;
use farblock_wire::features::AsyncEventConfig;

/// The notices that farblock's controllers send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Notice {
    /// Namespace Attribute Changed (00h). The log page is the Changed Namespace List (04h).
    NamespaceAttribute,
    /// Discovery Log Page Change (F0h). The log page is the discovery log page (70h).
    DiscoveryLog,
    /// Asymmetric Namespace Access Change (03h). The log page is the ANA log page (0Ch).
    AccessChange,
    /// Reservation Log Page Available. The log page is the Reservation Notification log page (80h).
    Reservation,
}

impl Notice {
    const ALL: [Self; 4] =
        [Self::NamespaceAttribute, Self::DiscoveryLog, Self::AccessChange, Self::Reservation];

    /// The bit of this notice in Asynchronous Event Configuration (feature 0Bh) and in OAES of
    /// Identify Controller.
    pub(crate) const fn enable_bit(self) -> u32 {
        let none = AsyncEventConfig(0);
        match self {
            Self::NamespaceAttribute => none.with_namespace_attributes(true).0,
            Self::DiscoveryLog => none.with_discovery_log(true).0,
            Self::AccessChange => none.with_ana_change(true).0,
            // This notice has no bit in Asynchronous Event Configuration. Hosts mask it with
            // Reservation Notification Mask.
            Self::Reservation => 0,
        }
    }

    /// The completion's result: type, information and log page.
    const fn result(self) -> u64 {
        let event = match self {
            Self::NamespaceAttribute => AsyncEvent::NAMESPACE_CHANGED,
            Self::DiscoveryLog => AsyncEvent::DISCOVERY_CHANGED,
            Self::AccessChange => AsyncEvent::ANA_CHANGE,
            Self::Reservation => AsyncEvent::RESERVATION_LOG,
        };
        event.emit() as u64
    }
}

/// The state of one notice in the diagram above.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Delivery {
    /// The notice has nothing to report.
    #[default]
    Quiet,
    /// The notice waits for the next Asynchronous Event Request.
    Pending,
    /// The controller has reported the notice and masks it until the host reads its log page.
    Masked,
}

/// The held Asynchronous Event Requests and the state of each notice.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// The Asynchronous Event Requests that the controller has not completed, oldest first.
    held: VecDeque<CommandId>,
    deliveries: [Delivery; Notice::ALL.len()],
    /// The value of Asynchronous Event Configuration.
    enabled: u32,
}

impl Events {
    /// Returns the value of Asynchronous Event Configuration.
    pub(crate) fn configuration(&self) -> u32 {
        self.enabled
    }

    /// Sets the value of Asynchronous Event Configuration.
    pub(crate) fn configure(&mut self, enabled: u32) {
        self.enabled = enabled;
    }

    /// Holds a request. Returns `false` if the controller already holds the largest allowed number
    /// of requests.
    pub(crate) fn hold(&mut self, command: CommandId) -> bool {
        let fits = self.held.len() < limits::ASYNC_EVENT_REQUESTS;
        if fits {
            self.held.push_back(command);
        }
        fits
    }

    /// Raises `notice` if the host has enabled it.
    pub(crate) fn raise(&mut self, notice: Notice) {
        let delivery = &mut self.deliveries[notice as usize];
        let bit = notice.enable_bit();
        if (bit == 0 || self.enabled & bit != 0) && *delivery == Delivery::Quiet {
            *delivery = Delivery::Pending;
        }
    }

    /// Unmasks a notice whose log page the host has read with Retain Asynchronous Event cleared.
    pub(crate) fn log_was_read(&mut self, notice: Notice) {
        self.deliveries[notice as usize] = Delivery::Quiet;
    }

    /// Returns the next request to complete, with its result.
    pub(crate) fn poll(&mut self) -> Option<(CommandId, u64)> {
        let pending = |notice: &Notice| self.deliveries[*notice as usize] == Delivery::Pending;
        let notice = Notice::ALL.into_iter().find(pending)?;
        let command = self.held.pop_front()?;
        self.deliveries[notice as usize] = Delivery::Masked;
        Some((command, notice.result()))
    }

    /// Removes a held request. Returns `false` if the controller does not hold it.
    pub(crate) fn abort(&mut self, command: CommandId) -> bool {
        let index = self.held.iter().position(|&held| held == command);
        index.and_then(|index| self.held.remove(index)).is_some()
    }

    /// Resets to the initial state. Returns the held requests, which will get no response.
    pub(crate) fn reset(&mut self) -> VecDeque<CommandId> {
        core::mem::take(self).held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMESPACE: Notice = Notice::NamespaceAttribute;

    #[test]
    fn a_notice_waits_for_a_request_and_is_sent_once() {
        let mut events = Events::default();
        events.configure(NAMESPACE.enable_bit());
        events.raise(NAMESPACE);
        events.raise(NAMESPACE);
        assert_eq!(events.poll(), None);
        assert!(events.hold(CommandId(7)));
        assert!(events.hold(CommandId(8)));
        assert_eq!(events.poll(), Some((CommandId(7), 0x0004_0002)));
        assert_eq!(events.poll(), None);
        events.raise(NAMESPACE);
        assert_eq!(events.poll(), None, "events are masked until the log is read");
        events.log_was_read(NAMESPACE);
        assert_eq!(events.poll(), None, "reading the log also acknowledges later events");
        events.raise(NAMESPACE);
        assert_eq!(events.poll(), Some((CommandId(8), 0x0004_0002)));
    }

    #[test]
    fn a_disabled_notice_is_not_sent() {
        let mut events = Events::default();
        assert!(events.hold(CommandId(1)));
        events.raise(NAMESPACE);
        events.configure(NAMESPACE.enable_bit());
        assert_eq!(events.poll(), None);
        events.raise(NAMESPACE);
        assert!(events.poll().is_some());
    }

    #[test]
    fn different_notices_are_sent_independently() {
        let mut events = Events::default();
        events.configure(NAMESPACE.enable_bit() | Notice::DiscoveryLog.enable_bit());
        events.raise(Notice::DiscoveryLog);
        events.raise(NAMESPACE);
        assert!(events.hold(CommandId(1)));
        assert!(events.hold(CommandId(2)));
        assert_eq!(events.poll(), Some((CommandId(1), 0x0004_0002)));
        assert_eq!(events.poll(), Some((CommandId(2), 0x0070_f002)));
    }

    #[test]
    fn event_requests_are_limited_and_can_be_aborted() {
        let mut events = Events::default();
        for id in 0..limits::ASYNC_EVENT_REQUESTS as u16 {
            assert!(events.hold(CommandId(id)));
        }
        assert!(!events.hold(CommandId(99)));
        assert!(events.abort(CommandId(2)));
        assert!(!events.abort(CommandId(2)));
        assert!(events.hold(CommandId(99)));
        let left: alloc::vec::Vec<_> = events.reset().into();
        assert_eq!(left, [0, 1, 3, 99].map(CommandId));
        assert_eq!(events.configuration(), 0);
    }
}
