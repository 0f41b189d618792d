//! A [`Control`]'s changes to subsystems, hosts, listeners and referrals, and its reports.

use crate::change_error::ChangeError;
use crate::config::{Subsystem, TlsPolicy};
use crate::control::Control;
use crate::events::Observer;
use crate::host_keys::HostKeys;
use crate::mailbox::Opening;
use crate::removal::Removal;
use crate::shared::{Report, Stats};
use crate::target;
use farblock_proto::controller::{Entrance, PortAccess, Referral, Transport};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

impl Control {
    /// Offers a subsystem, with its namespaces, on every listener.
    ///
    /// # Errors
    /// Fails if a subsystem with this name exists, or the target cannot offer the subsystem or one
    /// of its namespaces. The target stays unchanged then.
    pub fn add_subsystem(&self, subsystem: &Subsystem) -> Result<(), ChangeError> {
        self.shared.add_subsystem(subsystem)
    }

    /// Removes a subsystem: first its namespaces, like [`Control::remove_namespace`], then the
    /// controllers of its hosts.
    ///
    /// # Errors
    /// Fails if there is no such subsystem.
    pub fn remove_subsystem(&self, nqn: &str) -> Result<Vec<Removal>, ChangeError> {
        self.shared.remove_subsystem(nqn)
    }

    /// Allows a host to use a subsystem.
    ///
    /// # Errors
    /// Fails if there is no such subsystem, or the host name is not valid.
    pub fn allow_host(&self, nqn: &str, host: &str) -> Result<(), ChangeError> {
        self.shared.allow_host(nqn, host)
    }

    /// Removes a host from the allowed hosts of a subsystem. Closes the host's controllers there,
    /// unless the subsystem allows any host.
    ///
    /// # Errors
    /// Fails if there is no such subsystem.
    pub fn disallow_host(&self, nqn: &str, host: &str) -> Result<(), ChangeError> {
        self.shared.disallow_host(nqn, host)
    }

    /// Sets the keys with which a host of a subsystem authenticates and uses TLS. `None`: the host
    /// has no keys. This call does not allow the host, so that a new host's keys can be set before
    /// it is allowed.
    ///
    /// The host's controllers stay if both of these are true; otherwise they close at once:
    ///
    /// - An earlier secret stays valid, or the host no longer needs a secret.
    /// - An earlier TLS key stays valid, or the host had no TLS key and has none now.
    ///
    /// # Errors
    /// Fails if there is no such subsystem, or the keys need TLS and there is no TLS library.
    pub fn set_host_keys(
        &self,
        nqn: &str,
        host: &str,
        keys: Option<&HostKeys>,
    ) -> Result<(), ChangeError> {
        self.shared.set_host_keys(nqn, host, keys)
    }

    /// Sets whether a subsystem allows every host or only the hosts in its list. In the second
    /// case, the target closes the controllers of all other hosts.
    ///
    /// # Errors
    /// Fails if there is no such subsystem.
    pub fn set_allow_any_host(&self, nqn: &str, allow: bool) -> Result<(), ChangeError> {
        self.shared.set_allow_any_host(nqn, allow)
    }

    /// Listens on a further address, and returns the bound address. Port 0 takes a free TCP port.
    /// `access` sets the ANA states of namespaces for hosts that connect there. `tls` sets which of
    /// these hosts must use TLS.
    ///
    /// # Errors
    /// Fails if the target cannot listen there, or cannot apply `access` or `tls`.
    pub fn listen(
        &self,
        entrance: impl Into<Entrance>,
        access: &PortAccess,
        tls: TlsPolicy,
    ) -> Result<SocketAddr, ChangeError> {
        let entrance = entrance.into();
        let address = entrance.address;
        let refused =
            |error: &dyn ToString| ChangeError::Address(entrance.to_string(), error.to_string());
        if entrance.transport == Transport::Rdma {
            let provider = self.shared.listening.provider().map_err(|error| refused(&error))?;
            self.shared.listen(Opening::Rdma(provider), entrance, access, tls)?;
            return Ok(address);
        }
        let patience = self.shared.listening.patience(address.port());
        let others = self.shared.listening.tcp_addresses();
        let socket = target::bind_within(address, &others, patience);
        let socket = socket.map_err(|error| match both_families(address, &others) {
            Some(sentence) => refused(&sentence),
            None => refused(&error),
        })?;
        let bound = socket.local_addr().map_err(|error| refused(&error))?;
        self.shared.listen(Opening::Tcp(socket), bound.into(), access, tls)?;
        Ok(bound)
    }

    /// Sets which hosts must use TLS on a listener. With [`TlsPolicy::Required`], the target closes
    /// the listener's connections that do not use TLS.
    ///
    /// # Errors
    /// Fails if the target does not listen there. [`TlsPolicy::Required`] also fails on an RDMA
    /// listener, and without a TLS library.
    pub fn set_tls(
        &self,
        entrance: impl Into<Entrance>,
        tls: TlsPolicy,
    ) -> Result<(), ChangeError> {
        self.shared.set_tls(entrance.into(), tls)
    }

    /// Sets the ANA states of namespaces on a listener, and notifies the hosts connected there.
    /// Submitted operations complete and get their responses.
    ///
    /// # Errors
    /// Fails if the target does not listen there, or an ANA group does not exist.
    pub fn set_access(
        &self,
        entrance: impl Into<Entrance>,
        access: &PortAccess,
    ) -> Result<(), ChangeError> {
        self.shared.set_access(entrance.into(), access)
    }

    /// Stops listening on an address and closes the connections accepted there.
    ///
    /// # Errors
    /// Fails if the target does not listen there, or the address is the last one left of the
    /// target's initial addresses. If a host reconnects to a target with the initial addresses of
    /// its lost controller, it concludes that the old process has ended. So this process must keep
    /// one of them: then no other process can listen on all of them.
    pub fn unlisten(&self, entrance: impl Into<Entrance>) -> Result<(), ChangeError> {
        self.shared.unlisten(entrance.into())
    }

    /// Adds a referral, which points hosts to another discovery service.
    ///
    /// # Errors
    /// Fails if the fields of `referral` do not fit the discovery log page, or the referral exists
    /// already.
    pub fn add_referral(&self, referral: &Referral) -> Result<(), ChangeError> {
        self.shared.add_referral(referral)
    }

    /// Removes a referral.
    ///
    /// # Errors
    /// Fails if there is no such referral.
    pub fn remove_referral(&self, referral: &Referral) -> Result<(), ChangeError> {
        self.shared.remove_referral(referral)
    }

    /// Lists these addresses of other targets, with their PORTIDs, in the discovery log page, and
    /// no others besides the target's own. These targets offer the same subsystems. Notifies hosts
    /// if the page changes.
    ///
    /// # Errors
    /// Fails if the page has no room for all addresses. The page then lists some of them.
    pub fn set_peers(&self, peers: &BTreeMap<SocketAddr, u16>) -> Result<(), ChangeError> {
        self.shared.set_peers(peers)
    }

    /// Returns the PORTID of the first listener of a target that assigns these controller
    /// identifiers.
    #[must_use]
    pub fn first_port_number(controller_ids: &RangeInclusive<u16>) -> u16 {
        crate::shared::first_number(controller_ids)
    }

    /// Sets the identifiers of ended controllers of other targets that offer the same subsystems.
    /// If a host that lost such a controller sends a Cross-Controller Reset to this target, this
    /// target answers that the controller executes no more commands.
    pub fn set_ended_controllers(&self, ended: Vec<RangeInclusive<u16>>) {
        self.shared.set_ended_controllers(ended);
    }

    /// Closes the connections of all hosts, so that the target does not execute commands in
    /// transit. Hosts may connect again at once.
    pub fn disconnect_hosts(&self) {
        self.shared.disconnect_hosts();
    }

    /// Returns a report of the target's current state.
    #[must_use]
    pub fn report(&self) -> Report {
        self.shared.report()
    }

    /// Returns the names of the hosts that have I/O queues, each once, in order.
    #[must_use]
    pub fn hosts(&self) -> Vec<String> {
        self.shared.hosts()
    }

    /// Returns a snapshot of the target's counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Replaces the function that observes all events. `None` removes the observer.
    pub fn observe(&self, observer: Option<Observer>) {
        self.shared.observed.set(observer);
    }

    /// Turns latency measurement on or off. Measurement costs one clock read per command.
    pub fn measure_latency(&self, measure: bool) {
        self.shared.meters.measure_latency(measure);
    }
}

/// Returns why the target cannot listen on `address`, if it is an IPv4 address and a `[::]`
/// listener already accepts IPv4 connections on its port.
fn both_families(address: SocketAddr, others: &[SocketAddr]) -> Option<String> {
    let is_any = |it: &&SocketAddr| it.is_ipv6() && it.ip().is_unspecified();
    let any = others.iter().filter(is_any).find(|it| it.port() == address.port())?;
    address.is_ipv4().then(|| {
        format!(
            "the listener {any} also accepts IPv4 connections on this port: remove it, add \
             {address}, and then add {any} again"
        )
    })
}
