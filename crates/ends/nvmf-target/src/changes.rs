//! What else than namespaces a [`Control`] changes, and what it tells.

use crate::config::Subsystem;
use crate::control::{ChangeError, Control, Removal};
use crate::shared::Report;
use crate::target;
use farblock_proto::controller::Referral;
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

    /// Lets every host use a subsystem, or only those that are listed: the others' controllers
    /// there end at once.
    ///
    /// # Errors
    /// If there is no such subsystem.
    pub fn set_allow_any_host(&self, nqn: &str, allow: bool) -> Result<(), ChangeError> {
        self.shared.set_allow_any_host(nqn, allow)
    }

    /// Listens on one more address; port 0 takes a free one. Gives the address.
    ///
    /// # Errors
    /// If that is not possible.
    pub fn listen(&self, address: SocketAddr) -> Result<SocketAddr, ChangeError> {
        let refused =
            |error: &dyn ToString| ChangeError::Address(address.to_string(), error.to_string());
        let socket = target::bind_now(address).map_err(|error| refused(&error))?;
        let bound = socket.local_addr().map_err(|error| refused(&error))?;
        self.shared.listen(socket, bound)?;
        Ok(bound)
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
}
