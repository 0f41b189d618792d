//! The addresses of other targets that offer the same subsystems. The discovery log page lists
//! them.

use super::TargetShared;
use super::listeners::entry;
use crate::change_error::ChangeError;
use crate::mailbox::{Message, Scope};
use crate::tls::security;
use farblock_proto::controller::{Entrance, Listener, PortId};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::RangeInclusive;

/// The first port identifier of other targets. The target's own listeners have lower identifiers.
const FIRST: u16 = 0x8000;

/// Returns whether an entry of the discovery log page is the address of another target.
pub(super) fn is_peer(listener: &Listener) -> bool {
    listener.port.0 >= FIRST
}

impl TargetShared {
    /// Sets the identifiers of controllers of other targets that have ended.
    pub(crate) fn set_ended_controllers(&self, ended: Vec<RangeInclusive<u16>>) {
        self.lock().registry.set_ended_controllers(ended);
    }

    /// Closes the connections of all hosts.
    pub(crate) fn disconnect_hosts(&self) {
        for entrance in self.listening.all() {
            for mailbox in self.mailboxes() {
                mailbox.post(Message::CloseAt(entrance, Scope::All));
            }
        }
    }

    /// Replaces the listed addresses of other targets. Notifies hosts if the page changes.
    pub(crate) fn set_peers(&self, peers: &BTreeMap<SocketAddr, u16>) -> Result<(), ChangeError> {
        let mut management = self.lock_running()?;
        let registry = &mut management.registry;
        let peer = |port, (address, number): (&SocketAddr, &u16)| Listener {
            number: Some(*number),
            ..entry(port, Entrance::from(*address))
        };
        let is_at = |listener: &Listener, one| *listener == peer(listener.port, one);
        let listed: Vec<_> =
            registry.listeners().iter().filter(|it| is_peer(it)).cloned().collect();
        for listener in &listed {
            if !peers.iter().any(|one| is_at(listener, one)) {
                let _ = registry.remove_listener(listener.port);
            }
        }
        let mut refused = None;
        for one in peers.iter().filter(|it| !listed.iter().any(|listed| is_at(listed, *it))) {
            let used: BTreeSet<_> = registry.listeners().iter().map(|it| it.port.0).collect();
            let free = (FIRST..u16::MAX).find(|port| !used.contains(port));
            let port = PortId(free.expect("fewer listeners than ports exist"));
            match registry.add_listener(peer(port, one)) {
                Ok(()) => registry.set_security(port, security(self.tls.policy(PortId(1)))),
                Err(error) => {
                    refused = Some(ChangeError::Address(one.0.to_string(), error.to_string()));
                }
            }
        }
        self.act(&mut management);
        refused.map_or(Ok(()), Err)
    }
}
