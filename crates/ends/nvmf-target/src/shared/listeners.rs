//! Adds and removes listeners while the target runs. Core 0 accepts connections on all listeners.

use super::TargetShared;
use crate::change_error::ChangeError;
use crate::config::TlsPolicy;
use crate::events::Event;
use crate::limits;
use crate::mailbox::{Message, Scope};
use crate::tls::{TlsTerms, security};
use farblock_proto::capsule::RemoteForm;
use farblock_proto::controller::{AddressFamily, Listener, PortAccess, PortId};
use farblock_reactor::os::{self, ListenSocket};
use farblock_wire::log::TransportType;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// The current and the initial listeners. Hosts identify the target by the initial listeners; see
/// [`origin`](crate::identity::origin).
#[derive(Default)]
pub(crate) struct Listening {
    /// Locked while a listener is added or removed. The holder may block.
    all: Mutex<Vec<Listened>>,
    /// The same listeners for the cores, which must not wait for the lock of `all`.
    entrances: Mutex<Vec<(SocketAddr, PortId)>>,
    first: OnceLock<Vec<SocketAddr>>,
    /// RDMA listeners, which stay as long as the target.
    rdma: OnceLock<Vec<(SocketAddr, PortId)>>,
    /// The ports of removed listeners, and when they were removed. Their sockets may stay open for
    /// some time after that.
    given_up: Mutex<Vec<(u16, Instant)>>,
}

#[derive(Clone, Copy)]
struct Listened {
    address: SocketAddr,
    port: PortId,
    since_start: bool,
}

impl Listening {
    pub(crate) fn begin(&self, addresses: &[SocketAddr]) {
        let port = |index| PortId(index as u16 + 1);
        let listened = addresses.iter().enumerate().map(|(index, &address)| Listened {
            address,
            port: port(index),
            since_start: true,
        });
        let listened: Vec<_> = listened.collect();
        *self.entrances() = listened.iter().map(|it| (it.address, it.port)).collect();
        *self.all.lock().expect("no holder panics") = listened;
        let _ = self.first.set(addresses.to_vec());
    }

    /// Returns whether the address is an initial one, even if its listener was removed and added
    /// again.
    fn is_from_start(&self, address: SocketAddr) -> bool {
        self.first.get().is_some_and(|all| all.contains(&address))
    }

    pub(crate) fn begin_rdma(&self, listeners: &[(SocketAddr, PortId)]) {
        let _ = self.rdma.set(listeners.to_vec());
    }

    /// The addresses of the RDMA listeners.
    pub(crate) fn rdma_addresses(&self) -> Vec<SocketAddr> {
        self.rdma.get().into_iter().flatten().map(|(address, _)| *address).collect()
    }

    fn is_rdma_port(&self, port: PortId) -> bool {
        self.rdma.get().is_some_and(|all| all.iter().any(|(_, other)| *other == port))
    }

    /// Returns the listener that accepted a connection to the local address `local`. RDMA listeners
    /// have their own port numbers.
    pub(crate) fn port_of(&self, form: RemoteForm, local: SocketAddr) -> Option<PortId> {
        let find = |all: &[(SocketAddr, PortId)]| {
            all.iter().find(|(address, _)| is_entrance(*address, local)).map(|(_, port)| *port)
        };
        match form {
            RemoteForm::Keyed => self.rdma.get().and_then(|all| find(all)),
            RemoteForm::Transport => find(&self.entrances()),
        }
    }

    /// Returns the TCP listener that accepted a connection to the local address `local`.
    pub(crate) fn tcp_port_of(&self, local: SocketAddr) -> Option<PortId> {
        self.port_of(RemoteForm::Transport, local)
    }

    /// Returns how long to retry while a port is in use. If this target has recently removed a
    /// listener on the port, its socket may still be open.
    pub(crate) fn patience(&self, port: u16) -> Duration {
        let is_ours = self.given_up().iter().any(|(given_up, _)| *given_up == port);
        if is_ours { limits::LISTEN_TIME } else { Duration::ZERO }
    }

    /// Returns the ports of listeners that were removed so recently that their sockets may still be
    /// open.
    fn given_up(&self) -> MutexGuard<'_, Vec<(u16, Instant)>> {
        let mut all = self.given_up.lock().expect("no holder panics");
        all.retain(|(_, at)| os::elapsed(*at) < limits::LISTEN_TIME);
        all
    }

    fn entrances(&self) -> MutexGuard<'_, Vec<(SocketAddr, PortId)>> {
        self.entrances.lock().expect("no holder panics")
    }

    pub(crate) fn policies(&self, tls: &TlsTerms) -> BTreeMap<SocketAddr, TlsPolicy> {
        let all = self.all.lock().expect("no holder panics");
        all.iter().map(|one| (one.address, tls.policy(one.port))).collect()
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        let all = self.all.lock().expect("no holder panics");
        all.iter().map(|listened| listened.address).collect()
    }
}

pub(crate) fn entry(port: PortId, transport: TransportType, address: SocketAddr) -> Listener {
    Listener {
        port,
        transport,
        family: if address.is_ipv4() { AddressFamily::V4 } else { AddressFamily::V6 },
        address: address.ip().to_string(),
        service: address.port().to_string(),
    }
}

/// Checks that there is a TLS library if the policy requires TLS. Without a library, the target
/// would refuse every host.
fn has_library(policy: TlsPolicy) -> Result<(), ChangeError> {
    match policy {
        TlsPolicy::Required => farblock_tls::available().map_err(ChangeError::Tls),
        TlsPolicy::Allowed | TlsPolicy::Plain => Ok(()),
    }
}

fn refused(address: SocketAddr, sentence: impl ToString) -> ChangeError {
    ChangeError::Address(address.to_string(), sentence.to_string())
}

impl TargetShared {
    pub(crate) fn set_access(
        &self,
        address: SocketAddr,
        access: &PortAccess,
    ) -> Result<(), ChangeError> {
        let all = self.listening.all.lock().expect("no holder panics");
        let found = all.iter().find(|listened| listened.address == address);
        let port = found
            .ok_or_else(|| refused(address, "the target does not listen on this address"))?
            .port;
        let mut management = self.lock_running()?;
        let before = management.registry.port_access(Some(port));
        let changed = management.registry.set_port_access(port, access.clone());
        changed.map_err(|error| refused(address, error))?;
        if before != *access {
            self.ana_changes.fetch_add(1, Ordering::Relaxed);
        }
        self.act(&mut management);
        Ok(())
    }

    /// Sets which hosts must use TLS on a listener. If all hosts must, closes the connections
    /// without TLS.
    pub(crate) fn set_tls(
        &self,
        address: SocketAddr,
        policy: TlsPolicy,
    ) -> Result<(), ChangeError> {
        has_library(policy)?;
        let all = self.listening.all.lock().expect("no holder panics");
        let found = all.iter().find(|listened| listened.address == address);
        let port = found
            .ok_or_else(|| refused(address, "the target does not listen on this address"))?
            .port;
        let mut management = self.lock_running()?;
        let before = self.tls.set_policy(port, policy);
        management.registry.set_security(port, security(policy));
        self.act(&mut management);
        if policy == TlsPolicy::Required && before != Some(policy) {
            for mailbox in self.mailboxes() {
                mailbox.post(Message::CloseAt(address, Scope::WithoutTls));
            }
        }
        Ok(())
    }

    pub(crate) fn listen(
        &self,
        socket: ListenSocket,
        address: SocketAddr,
        access: &PortAccess,
        policy: TlsPolicy,
    ) -> Result<(), ChangeError> {
        has_library(policy)?;
        let mut all = self.listening.all.lock().expect("no holder panics");
        let free = |port: &u16| {
            let is_tcp = all.iter().any(|listened| listened.port.0 == *port);
            !is_tcp && !self.listening.is_rdma_port(PortId(*port))
        };
        let port = PortId((1..u16::MAX).find(free).expect("fewer listeners than ports exist"));
        {
            let mut management = self.lock_running()?;
            let added = management.registry.add_listener(entry(port, TransportType::TCP, address));
            added.map_err(|error| refused(address, error))?;
            if let Err(error) = management.registry.set_port_access(port, access.clone()) {
                let _ = management.registry.remove_listener(port);
                self.act(&mut management);
                return Err(refused(address, error));
            }
        }
        self.tls.set_policy(port, policy);
        self.listening.entrances().push((address, port));
        let (sender, receiver) = mpsc::channel();
        self.mailboxes()[0].post(Message::Listen(socket, address, sender));
        // The receive fails if the core has ended, since the message with the sender is then
        // dropped.
        let heard = os::recv(&receiver);
        let mut management = self.lock();
        match heard {
            Ok(Ok(())) => {
                let since_start = self.listening.is_from_start(address);
                all.push(Listened { address, port, since_start });
                management.registry.set_security(port, security(policy));
                self.act(&mut management);
                self.observed.log_change(&Event::ListenerAdded(address));
                Ok(())
            }
            other => {
                self.listening.entrances().retain(|(_, other)| *other != port);
                self.tls.forget_port(port);
                let _ = management.registry.remove_listener(port);
                self.act(&mut management);
                match other {
                    Ok(Err(error)) => Err(refused(address, error)),
                    _ => Err(ChangeError::Stopping),
                }
            }
        }
    }

    /// Stops listening on `address`, and closes the connections that were accepted there.
    pub(crate) fn unlisten(&self, address: SocketAddr) -> Result<(), ChangeError> {
        let mut all = self.listening.all.lock().expect("no holder panics");
        let Some(index) = all.iter().position(|listened| listened.address == address) else {
            return Err(refused(address, "the target does not listen on this address"));
        };
        let started = all.iter().filter(|listened| listened.since_start).count();
        if all[index].since_start && started == 1 {
            let sentence = "this is the last address that the target was started with, and hosts \
                know the target by these addresses: keep it, or restart the target without it";
            return Err(refused(address, sentence));
        }
        let Listened { port, .. } = all.remove(index);
        let mut management = self.lock_running()?;
        let gone = management.registry.remove_listener(port);
        gone.map_err(|error| refused(address, error))?;
        self.act(&mut management);
        self.listening.entrances().retain(|(_, other)| *other != port);
        self.tls.forget_port(port);
        self.listening.given_up().push((address.port(), os::now()));
        self.mailboxes()[0].post(Message::Unlisten(address));
        self.observed.log_change(&Event::ListenerRemoved(address));
        Ok(())
    }
}

/// Returns whether a listener on `address` accepted a connection to `local`. An accepted socket has
/// its listener's address family: an IPv4 wildcard listener accepts no IPv6 connections.
pub(crate) fn is_entrance(address: SocketAddr, local: SocketAddr) -> bool {
    let is_any = address.ip().is_unspecified() && address.is_ipv4() == local.is_ipv4();
    // Two interfaces may have the same link-local address, so compare the zones too.
    let zones = match (address, local) {
        (SocketAddr::V6(one), SocketAddr::V6(other)) => [one.scope_id(), other.scope_id()],
        _ => [0, 0],
    };
    let is_zone = zones.contains(&0) || zones[0] == zones[1];
    address.port() == local.port()
        && is_zone
        && (is_any || address.ip().to_canonical() == local.ip().to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Listeners of different families have separate TLS policies. One policy must not apply to the
    /// other listener's connections.
    #[test]
    fn a_connection_matches_only_a_listener_of_its_family() {
        let at = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let listening = Listening::default();
        listening.begin(&[
            at("0.0.0.0:1"),
            at("[::1]:1"),
            at("[::]:2"),
            at("127.0.0.1:2"),
            at("[::]:3"),
        ]);
        for (local, port) in [
            ("127.0.0.1:1", Some(1)),
            ("[::1]:1", Some(2)),
            ("[::2]:1", None),
            ("[::1]:2", Some(3)),
            ("127.0.0.1:2", Some(4)),
            ("127.0.0.2:2", None),
            // An IPv4 connection to a socket that accepts both families.
            ("[::ffff:127.0.0.1]:3", Some(5)),
            ("127.0.0.1:4", None),
        ] {
            assert_eq!(listening.tcp_port_of(at(local)), port.map(PortId), "{local}");
        }
    }
}
