//! What else than namespaces a [`Control`] changes, and what it tells.

use crate::authentication::HostKeys;
use crate::config::{Subsystem, TlsPolicy};
use crate::control::{ChangeError, Control, Removal};
use crate::events::Observer;
use crate::shared::{Report, Stats};
use crate::target;
use farblock_proto::controller::{PortAccess, Referral};
use std::net::SocketAddr;

impl Control {
    /// Offers a subsystem, with its namespaces, on every listener.
    ///
    /// # Errors
    /// If its name is taken, or it or one of its namespaces cannot be offered; then nothing is.
    pub fn add_subsystem(&self, subsystem: &Subsystem) -> Result<(), ChangeError> {
        self.shared.add_subsystem(subsystem)
    }

    /// Takes a subsystem away: its namespaces as [`Control::remove_namespace`] does, then the
    /// controllers that hosts have there.
    ///
    /// # Errors
    /// If there is no such subsystem.
    pub fn remove_subsystem(&self, nqn: &str) -> Result<Vec<Removal>, ChangeError> {
        self.shared.remove_subsystem(nqn)
    }

    /// Lets a host use a subsystem.
    ///
    /// # Errors
    /// If there is no such subsystem, or the name is none.
    pub fn allow_host(&self, nqn: &str, host: &str) -> Result<(), ChangeError> {
        self.shared.allow_host(nqn, host)
    }

    /// Lets a host use a subsystem no more, unless any may: its controllers there end at once.
    ///
    /// # Errors
    /// If there is no such subsystem.
    pub fn disallow_host(&self, nqn: &str, host: &str) -> Result<(), ChangeError> {
        self.shared.disallow_host(nqn, host)
    }

    /// Has a host of a subsystem authenticate and use TLS with these keys from now on, or not at
    /// all; whether it is allowed is another matter, so that a new one gets its keys first. Its
    /// controllers stay if one of its secrets was good before, too (one takes another's place), or
    /// if none is asked for any more, and if one of its keys for TLS was good before, or it had and
    /// has none; otherwise they end at once.
    ///
    /// # Errors
    /// If there is no such subsystem, or no library for TLS.
    pub fn set_host_keys(
        &self,
        nqn: &str,
        host: &str,
        keys: Option<&HostKeys>,
    ) -> Result<(), ChangeError> {
        self.shared.set_host_keys(nqn, host, keys)
    }

    /// Lets every host use a subsystem, or only those that are listed: the others' controllers
    /// there end at once.
    ///
    /// # Errors
    /// If there is no such subsystem.
    pub fn set_allow_any_host(&self, nqn: &str, allow: bool) -> Result<(), ChangeError> {
        self.shared.set_allow_any_host(nqn, allow)
    }

    /// Listens on one more address; port 0 takes a free one. Gives the address. `access` says how
    /// namespaces can be reached there, and `tls` who has to use TLS.
    ///
    /// # Errors
    /// If that is not possible.
    pub fn listen(
        &self,
        address: SocketAddr,
        access: &PortAccess,
        tls: TlsPolicy,
    ) -> Result<SocketAddr, ChangeError> {
        let refused =
            |error: &dyn ToString| ChangeError::Address(address.to_string(), error.to_string());
        let patience = self.shared.listening.patience(address.port());
        let others = self.shared.listening.addresses();
        let socket = target::bind_within(address, &others, patience);
        let socket = socket.map_err(|error| match both_families(address, &others) {
            Some(sentence) => refused(&sentence),
            None => refused(&error),
        })?;
        let bound = socket.local_addr().map_err(|error| refused(&error))?;
        self.shared.listen(socket, bound, access, tls)?;
        Ok(bound)
    }

    /// Says who has to use TLS where a listener is from now on. Once everybody has to, who came in
    /// there without is disconnected.
    ///
    /// # Errors
    /// If the target does not listen there, or there is no library for TLS.
    pub fn set_tls(&self, address: SocketAddr, tls: TlsPolicy) -> Result<(), ChangeError> {
        self.shared.set_tls(address, tls)
    }

    /// Says how namespaces can be reached by a listener from now on (ANA), and tells the hosts that
    /// came in there. What was handed to a namespace runs to its end and is answered.
    ///
    /// # Errors
    /// If the target does not listen there, or there is no such group.
    pub fn set_access(&self, address: SocketAddr, access: &PortAccess) -> Result<(), ChangeError> {
        self.shared.set_access(address, access)
    }

    /// Listens on an address no more. The connections that came in there are closed.
    ///
    /// # Errors
    /// If the target does not listen there, or it is the last address of those that it was started
    /// with: hosts that lost a controller know by these whether its process has ended, so another
    /// process must not get all of them while this one runs.
    pub fn unlisten(&self, address: SocketAddr) -> Result<(), ChangeError> {
        self.shared.unlisten(address)
    }

    /// Points hosts to another discovery service.
    ///
    /// # Errors
    /// If its fields do not fit the discovery log page, or it is there already.
    pub fn add_referral(&self, referral: &Referral) -> Result<(), ChangeError> {
        self.shared.add_referral(referral)
    }

    /// Points them there no more.
    ///
    /// # Errors
    /// If there is no such referral.
    pub fn remove_referral(&self, referral: &Referral) -> Result<(), ChangeError> {
        self.shared.remove_referral(referral)
    }

    /// What the target does at the moment.
    #[must_use]
    pub fn report(&self) -> Report {
        self.shared.report()
    }

    /// What the target has counted.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Has `observer` told of everything that happens from now on, and nobody else; or nobody.
    pub fn observe(&self, observer: Option<Observer>) {
        self.shared.observed.set(observer);
    }

    /// Has it measured how long commands take, which costs a look at the clock for each; or not.
    pub fn measure_latency(&self, measure: bool) {
        self.shared.meters.measure_latency(measure);
    }
}

/// Why an address of IPv4 cannot be listened on beside one that has the connections of IPv4, too.
fn both_families(address: SocketAddr, others: &[SocketAddr]) -> Option<String> {
    let is_any = |it: &&SocketAddr| it.is_ipv6() && it.ip().is_unspecified();
    let any = others.iter().filter(is_any).find(|it| it.port() == address.port())?;
    address.is_ipv4().then(|| {
        format!(
            "{any} has the connections of IPv4, too: remove that listener, add {address}, and then \
             add {any} again"
        )
    })
}
