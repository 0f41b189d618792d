//! Adds and removes listeners while the target runs. Core 0 accepts connections on all listeners.

use super::TargetShared;
use crate::change_error::ChangeError;
use crate::config::TlsPolicy;
use crate::events::Event;
use crate::limits;
use crate::mailbox::{Message, Opening, Scope};
use crate::tls::{TlsTerms, security};
use farblock_proto::capsule::RemoteForm;
use farblock_proto::controller::{
    AddressFamily, Entrance, Listener, PortAccess, PortId, Transport,
};
use farblock_reactor::os;
use farblock_verbs::{Provider, VerbsError};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// The number of controller identifiers for each PORTID of a target.
const IDS_PER_NUMBER: u16 = 16;

/// The current and the initial listeners. Hosts identify the target by the initial listeners; see
/// [`origin`](crate::identity::origin).
#[derive(Default)]
pub(crate) struct Listening {
    /// Locked while a listener is added or removed, which may block the thread for some time.
    all: Mutex<Vec<Listened>>,
    /// A copy for the cores, which must not wait for the lock of `all`.
    entrances: Mutex<Vec<(Entrance, PortId)>>,
    first: OnceLock<Vec<Entrance>>,
    /// The PORTID of the first listener.
    first_number: OnceLock<u16>,
    /// The RDMA devices, once a listener needs them.
    provider: OnceLock<Provider>,
    /// The RDMA listeners whose device was removed or whose address moved, until the target listens
    /// there again.
    lost: Mutex<BTreeSet<Entrance>>,
    /// The TCP ports of removed listeners and the times of removal. A listener's socket may stay
    /// open for some time after the listener's removal.
    given_up: Mutex<Vec<(u16, Instant)>>,
}

#[derive(Clone, Copy)]
struct Listened {
    entrance: Entrance,
    port: PortId,
    since_start: bool,
}

impl Listening {
    pub(crate) fn begin(
        &self,
        entrances: &[Entrance],
        controller_ids: &RangeInclusive<u16>,
        provider: Option<Provider>,
    ) {
        let _ = self.first_number.set(first_number(controller_ids));
        let port = |index| PortId(index as u16 + 1);
        let listened = entrances.iter().enumerate().map(|(index, &entrance)| Listened {
            entrance,
            port: port(index),
            since_start: true,
        });
        let listened: Vec<_> = listened.collect();
        *self.entrances() = listened.iter().map(|it| (it.entrance, it.port)).collect();
        *self.all.lock().expect("no holder panics") = listened;
        let _ = self.first.set(entrances.to_vec());
        if let Some(provider) = provider {
            let _ = self.provider.set(provider);
        }
    }

    fn first_number(&self) -> u16 {
        self.first_number.get().copied().unwrap_or(1)
    }

    /// Returns whether the target started with this address. That stays true if the listener was
    /// removed and added again.
    fn is_from_start(&self, entrance: Entrance) -> bool {
        self.first.get().is_some_and(|all| all.contains(&entrance))
    }

    /// Returns the initial listeners.
    pub(crate) fn first(&self) -> Vec<Entrance> {
        self.first.get().cloned().unwrap_or_default()
    }

    /// Returns the RDMA devices. The first call loads the system's libraries.
    pub(crate) fn provider(&self) -> Result<Provider, VerbsError> {
        if let Some(provider) = self.provider.get() {
            return Ok(provider.clone());
        }
        let provider = Provider::system()?;
        Ok(self.provider.get_or_init(|| provider).clone())
    }

    /// Returns the listener that accepted a connection to `local`.
    pub(crate) fn port_of(&self, form: RemoteForm, local: SocketAddr) -> Option<PortId> {
        let local = Entrance { transport: transport(form), address: local };
        let all = self.entrances();
        all.iter().find(|(entrance, _)| is_entrance(*entrance, local)).map(|(_, port)| *port)
    }

    /// Returns the TCP listener that accepted a connection to the local address `local`.
    pub(crate) fn tcp_port_of(&self, local: SocketAddr) -> Option<PortId> {
        self.port_of(RemoteForm::Transport, local)
    }

    /// Returns how long to retry the bind while a port is in use. If this target has recently
    /// removed a listener on the port, its socket may still be open.
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

    fn entrances(&self) -> MutexGuard<'_, Vec<(Entrance, PortId)>> {
        self.entrances.lock().expect("no holder panics")
    }

    pub(crate) fn policies(&self, tls: &TlsTerms) -> BTreeMap<Entrance, TlsPolicy> {
        let all = self.all.lock().expect("no holder panics");
        all.iter().map(|one| (one.entrance, tls.policy(one.port))).collect()
    }

    pub(crate) fn all(&self) -> Vec<Entrance> {
        let all = self.all.lock().expect("no holder panics");
        all.iter().map(|listened| listened.entrance).collect()
    }

    /// The listeners that accept connections now.
    pub(crate) fn alive(&self) -> Vec<Entrance> {
        let lost = self.lost();
        self.all().into_iter().filter(|entrance| !lost.contains(entrance)).collect()
    }

    /// The listeners that accept no connections until the target listens there again.
    pub(crate) fn lost(&self) -> BTreeSet<Entrance> {
        self.lost.lock().expect("no holder panics").clone()
    }

    /// Records whether a listener is lost.
    pub(crate) fn set_lost(&self, entrance: Entrance, is_lost: bool) {
        let mut lost = self.lost.lock().expect("no holder panics");
        if is_lost {
            lost.insert(entrance);
        } else {
            lost.remove(&entrance);
        }
    }

    pub(crate) fn tcp_addresses(&self) -> Vec<SocketAddr> {
        self.all().into_iter().filter_map(Entrance::tcp_address).collect()
    }
}

/// Returns the transport whose remote data have this form.
pub(crate) fn transport(form: RemoteForm) -> Transport {
    match form {
        RemoteForm::Keyed => Transport::Rdma,
        RemoteForm::Transport => Transport::Tcp,
    }
}

/// The error for a listener that requires TLS and uses RDMA.
const NO_TLS: &str = "NVMe/RDMA has no TLS, so this listener cannot require it: allow hosts \
                      without a key there, or use a TCP listener";

/// Returns the first PORTID of a target that assigns these controller identifiers. Targets that
/// share a subsystem have disjoint ranges of controller identifiers, so their PORTIDs differ, too.
pub(crate) fn first_number(controller_ids: &RangeInclusive<u16>) -> u16 {
    1 + controller_ids.start().saturating_sub(1) / IDS_PER_NUMBER
}

/// Returns the listener of a target whose first PORTID is `first`.
pub(crate) fn numbered(port: PortId, entrance: Entrance, first: u16) -> Listener {
    let number = first.saturating_add(port.0 - 1);
    Listener { number: (number != port.0).then_some(number), ..entry(port, entrance) }
}

pub(crate) fn entry(port: PortId, Entrance { transport, address }: Entrance) -> Listener {
    Listener {
        port,
        number: None,
        transport: transport.kind(),
        family: if address.is_ipv4() { AddressFamily::V4 } else { AddressFamily::V6 },
        address: address.ip().to_string(),
        service: address.port().to_string(),
    }
}

/// Returns the policy that a listener can follow. Fails for [`TlsPolicy::Required`] if the
/// transport has no TLS, or if there is no TLS library: the target would refuse every host.
fn possible(entrance: Entrance, policy: TlsPolicy) -> Result<TlsPolicy, ChangeError> {
    match policy {
        TlsPolicy::Required if !entrance.transport.has_tls() => Err(refused(entrance, NO_TLS)),
        _ if !entrance.transport.has_tls() => Ok(TlsPolicy::Plain),
        TlsPolicy::Required => {
            farblock_tls::available().map_err(ChangeError::Tls)?;
            Ok(policy)
        }
        TlsPolicy::Allowed | TlsPolicy::Plain => Ok(policy),
    }
}

fn refused(entrance: Entrance, sentence: impl ToString) -> ChangeError {
    ChangeError::Address(entrance.to_string(), sentence.to_string())
}

impl TargetShared {
    pub(crate) fn set_access(
        &self,
        entrance: Entrance,
        access: &PortAccess,
    ) -> Result<(), ChangeError> {
        let all = self.listening.all.lock().expect("no holder panics");
        let found = all.iter().find(|listened| listened.entrance == entrance);
        let port = found
            .ok_or_else(|| refused(entrance, "the target does not listen on this address"))?
            .port;
        let mut management = self.lock_running()?;
        let before = management.registry.port_access(Some(port));
        let changed = management.registry.set_port_access(port, access.clone());
        changed.map_err(|error| refused(entrance, error))?;
        if before != *access {
            self.ana_changes.fetch_add(1, Ordering::Relaxed);
        }
        self.act(&mut management);
        Ok(())
    }

    /// Sets which hosts must use TLS on a listener. If all hosts must, closes the connections
    /// without TLS.
    pub(crate) fn set_tls(&self, entrance: Entrance, policy: TlsPolicy) -> Result<(), ChangeError> {
        let policy = possible(entrance, policy)?;
        let all = self.listening.all.lock().expect("no holder panics");
        let found = all.iter().find(|listened| listened.entrance == entrance);
        let port = found
            .ok_or_else(|| refused(entrance, "the target does not listen on this address"))?
            .port;
        let mut management = self.lock_running()?;
        let before = self.tls.set_policy(port, policy);
        management.registry.set_security(port, security(policy));
        self.act(&mut management);
        if policy == TlsPolicy::Required && before != Some(policy) {
            for mailbox in self.mailboxes() {
                mailbox.post(Message::CloseAt(entrance, Scope::WithoutTls));
            }
        }
        Ok(())
    }

    pub(crate) fn listen(
        &self,
        opening: Opening,
        entrance: Entrance,
        access: &PortAccess,
        policy: TlsPolicy,
    ) -> Result<(), ChangeError> {
        let policy = possible(entrance, policy)?;
        let mut all = self.listening.all.lock().expect("no holder panics");
        let free = |port: &u16| all.iter().all(|listened| listened.port.0 != *port);
        let port = PortId((1..u16::MAX).find(free).expect("fewer listeners than ports exist"));
        {
            let mut management = self.lock_running()?;
            let listener = numbered(port, entrance, self.listening.first_number());
            let added = management.registry.add_listener(listener);
            added.map_err(|error| refused(entrance, error))?;
            if let Err(error) = management.registry.set_port_access(port, access.clone()) {
                let _ = management.registry.remove_listener(port);
                self.act(&mut management);
                return Err(refused(entrance, error));
            }
        }
        self.tls.set_policy(port, policy);
        self.listening.entrances().push((entrance, port));
        let (sender, receiver) = mpsc::channel();
        self.mailboxes()[0].post(Message::Listen(opening, entrance.address, sender));
        // The receive fails if the core has ended, since the message with the sender is then
        // dropped.
        let heard = os::recv(&receiver);
        let mut management = self.lock();
        match heard {
            Ok(Ok(())) => {
                let since_start = self.listening.is_from_start(entrance);
                all.push(Listened { entrance, port, since_start });
                management.registry.set_security(port, security(policy));
                self.act(&mut management);
                self.observed.log_change(&Event::ListenerAdded(entrance));
                Ok(())
            }
            other => {
                self.listening.entrances().retain(|(_, other)| *other != port);
                self.tls.forget_port(port);
                let _ = management.registry.remove_listener(port);
                self.act(&mut management);
                match other {
                    Ok(Err(error)) => Err(refused(entrance, error)),
                    _ => Err(ChangeError::Stopping),
                }
            }
        }
    }

    /// Closes a listener, and closes the connections that it accepted.
    pub(crate) fn unlisten(&self, entrance: Entrance) -> Result<(), ChangeError> {
        let mut all = self.listening.all.lock().expect("no holder panics");
        let Some(index) = all.iter().position(|listened| listened.entrance == entrance) else {
            return Err(refused(entrance, "the target does not listen on this address"));
        };
        let started = all.iter().filter(|listened| listened.since_start).count();
        if all[index].since_start && started == 1 {
            let sentence = "this is the last address that the target was started with, and hosts \
                know the target by these addresses: keep it, or restart the target without it";
            return Err(refused(entrance, sentence));
        }
        let Listened { port, .. } = all.remove(index);
        let mut management = self.lock_running()?;
        let gone = management.registry.remove_listener(port);
        gone.map_err(|error| refused(entrance, error))?;
        self.act(&mut management);
        self.listening.entrances().retain(|(_, other)| *other != port);
        self.tls.forget_port(port);
        if let Some(address) = entrance.tcp_address() {
            self.listening.given_up().push((address.port(), os::now()));
        }
        self.mailboxes()[0].post(Message::Unlisten(entrance));
        self.observed.log_change(&Event::ListenerRemoved(entrance));
        Ok(())
    }
}

/// Returns whether a listener at `entrance` accepted a connection to `local`. A connection has its
/// listener's address family: an IPv4 wildcard listener accepts no IPv6 connections.
pub(crate) fn is_entrance(entrance: Entrance, local: Entrance) -> bool {
    if entrance.transport != local.transport {
        return false;
    }
    let (address, local) = (entrance.address, local.address);
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

    /// An IPv4 and an IPv6 listener on one port may have different TLS policies, so the target must
    /// not confuse their connections.
    #[test]
    fn a_connection_matches_only_a_listener_of_its_family() {
        let at = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let tcp = ["0.0.0.0:1", "[::1]:1", "[::]:2", "127.0.0.1:2", "[::]:3"];
        let tcp = tcp.map(|text| Entrance::from(at(text)));
        let listening = Listening::default();
        listening.begin(&[&tcp[..], &[Entrance::rdma(at("127.0.0.1:4"))]].concat(), &(1..=9), None);
        let rdma = |local| listening.port_of(RemoteForm::Keyed, at(local));
        assert_eq!((rdma("127.0.0.1:4"), rdma("127.0.0.1:1")), (Some(PortId(6)), None));
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
