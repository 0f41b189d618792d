//! Reports to operators which hosts connect and disconnect.

use super::{Management, TargetShared};
use crate::events::{Event, Visitor};
use crate::notices::NoticeKind;
use farblock_proto::controller::{Teardown, TeardownReason};
use farblock_proto::ids::ControllerId;
use farblock_reactor::os;
use std::net::IpAddr;

#[derive(Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) address: IpAddr,
    /// Whether the target has reported that the host is connected: after its authentication, if the
    /// host must authenticate.
    pub(crate) is_told: bool,
}

impl TargetShared {
    /// Reports that the host of an admin queue is connected and may use its controller.
    pub(crate) fn host_is_in(&self, controller: ControllerId) {
        let mut management = self.lock();
        if let Some(origin) = management.origins.get_mut(&controller)
            && !std::mem::replace(&mut origin.is_told, true)
            && let Some(visitor) = visitor(&management, controller)
        {
            management.visitors.insert(controller, visitor.clone());
            drop(management);
            self.log_visit(visitor.address, &Event::Connected(visitor));
        }
    }

    pub(super) fn host_is_out(&self, management: &mut Management, teardown: &Teardown) {
        // A host that disables its controller stays connected.
        if teardown.reason == TeardownReason::Disabled {
            return;
        }
        if let Some(visitor) = management.visitors.remove(&teardown.controller) {
            self.log_visit(visitor.address, &Event::Ended(visitor, in_words(teardown.reason)));
        }
    }

    /// Passes the event to the observer. Also logs it, unless too many notices from this address
    /// were logged recently.
    fn log_visit(&self, address: IpAddr, event: &Event) {
        if self.visits.say(NoticeKind::Visit, address, os::now(), || tracing::info!("{event}")) {
            // Core 0 logs the number of suppressed notices from a timer, so wake it to set that
            // timer.
            self.mailboxes()[0].wake();
        }
        self.observed.tell(event);
    }
}

/// Returns the event's description of a controller. `None` for discovery controllers, which are
/// short-lived.
fn visitor(management: &Management, controller: ControllerId) -> Option<Visitor> {
    let address = management.origins.get(&controller)?.address;
    let summary = management.registry.controller(controller)?;
    let subsystem = management.registry.subsystem(summary.subsystem?)?.nqn.clone();
    let host = summary.host_nqn.to_owned();
    Some(Visitor { host, address, subsystem, controller: controller.0 })
}

fn in_words(reason: TeardownReason) -> &'static str {
    match reason {
        TeardownReason::AdminQueueClosed => "the host disconnected, or its connection was lost",
        TeardownReason::KeepAliveExpired => {
            "the host was silent for longer than its keep-alive timeout"
        }
        TeardownReason::AssociationExpired => "the host had shut the controller down",
        TeardownReason::Disabled => "the host disabled the controller",
        TeardownReason::Removed => "the operator removed the controller",
        TeardownReason::CrossControllerReset => {
            "the host reset this controller via another one, after a lost connection"
        }
        TeardownReason::SubsystemRemoved => "the subsystem was removed",
        TeardownReason::HostDisallowed => "the operator disallowed the host",
        TeardownReason::IdentifierProved => {
            "another host has authenticated with the same identifier (HOSTID)"
        }
        TeardownReason::TargetStopped => "the target is stopping",
    }
}
