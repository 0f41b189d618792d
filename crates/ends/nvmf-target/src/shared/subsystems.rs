//! Subsystems, hosts and referrals that come and go while the target runs.

use super::{Counters, Management, Shared};
use crate::config::Subsystem;
use crate::control::{ChangeError, Removal};
use farblock_proto::controller::{ConfigError, Referral, Registry, SubsystemId, Teardown};
use farblock_proto::limits::IN_CAPSULE_BYTES;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Shared {
    pub(crate) fn add_subsystem(
        self: &Arc<Self>,
        subsystem: &Subsystem,
    ) -> Result<(), ChangeError> {
        let mut config = subsystem.offered();
        let nqn = config.nqn.clone();
        let wrong = |error| ChangeError::Subsystem(nqn.clone(), error);
        if config.flush_on_shutdown || config.in_capsule_bytes != IN_CAPSULE_BYTES {
            return Err(wrong(ConfigError::OutOfRange("flush_on_shutdown or in_capsule_bytes")));
        }
        // They come one by one, each with its store.
        config.namespaces.clear();
        {
            let mut management = self.lock_running()?;
            let id = management.registry.add_subsystem(config).map_err(wrong)?;
            let counters = Arc::new(Counters::default());
            self.counters.lock().expect("no holder panics").insert(id, counters);
            // Before anybody can have connected.
            self.authenticator.require(subsystem);
            self.act(&mut management);
        }
        for (&nsid, export) in &subsystem.exports {
            if let Err(error) = self.add_namespace(&nqn, nsid, export) {
                // Its stores are closed when their queues are, whoever waits for that.
                let _ = self.remove_subsystem(&nqn);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Hosts hear of the namespaces first, and of the subsystem's end by the end of their
    /// connections.
    pub(crate) fn remove_subsystem(&self, nqn: &str) -> Result<Vec<Removal>, ChangeError> {
        let namespaces: Vec<_> = {
            let management = self.lock_running()?;
            let id = self.subsystem_id(&management, nqn)?;
            let config = management.registry.subsystem(id).expect("it was found");
            config.namespaces.keys().copied().collect()
        };
        let removals = namespaces.into_iter().map(|nsid| self.remove_namespace(nqn, nsid));
        let removals = removals.collect::<Result<Vec<_>, _>>()?;
        let mut gone = None;
        self.change_registry(nqn, |registry, id| {
            gone = Some(id);
            registry.remove_subsystem(id)
        })?;
        if let Some(id) = gone {
            self.counters.lock().expect("no holder panics").remove(&id);
        }
        Ok(removals)
    }

    pub(crate) fn allow_host(&self, nqn: &str, host: &str) -> Result<(), ChangeError> {
        self.change_registry(nqn, |registry, id| registry.allow_host(id, host).map(|()| Vec::new()))
    }

    pub(crate) fn disallow_host(&self, nqn: &str, host: &str) -> Result<(), ChangeError> {
        self.change_registry(nqn, |registry, id| registry.disallow_host(id, host))
    }

    pub(crate) fn set_allow_any_host(&self, nqn: &str, allow: bool) -> Result<(), ChangeError> {
        self.change_registry(nqn, |registry, id| registry.set_allow_any_host(id, allow))
    }

    pub(crate) fn add_referral(&self, referral: &Referral) -> Result<(), ChangeError> {
        let mut management = self.lock_running()?;
        let added = management.registry.add_referral(referral.clone());
        added.map_err(|error| ChangeError::Address(referral.address.clone(), error.to_string()))?;
        self.act(&mut management);
        Ok(())
    }

    pub(crate) fn remove_referral(&self, referral: &Referral) -> Result<(), ChangeError> {
        let mut management = self.lock_running()?;
        let gone = management.registry.remove_referral(referral);
        gone.map_err(|error| ChangeError::Address(referral.address.clone(), error.to_string()))?;
        self.act(&mut management);
        Ok(())
    }

    pub(super) fn lock_running(
        &self,
    ) -> Result<std::sync::MutexGuard<'_, Management>, ChangeError> {
        match self.stopping.load(Ordering::Relaxed) {
            true => Err(ChangeError::Stopping),
            false => Ok(self.lock()),
        }
    }

    fn subsystem_id(&self, management: &Management, nqn: &str) -> Result<SubsystemId, ChangeError> {
        let found = management.registry.find_subsystem(nqn);
        found.ok_or_else(|| ChangeError::NoSubsystem(nqn.to_owned()))
    }

    /// Makes a change, and ends the connections that it leaves no right to be.
    fn change_registry(
        &self,
        nqn: &str,
        change: impl FnOnce(&mut Registry, SubsystemId) -> Result<Vec<Teardown>, ConfigError>,
    ) -> Result<(), ChangeError> {
        let mut management = self.lock_running()?;
        let id = self.subsystem_id(&management, nqn)?;
        let ended = change(&mut management.registry, id)
            .map_err(|error| ChangeError::Subsystem(nqn.to_owned(), error))?;
        for teardown in ended {
            self.tear_down(&mut management, &teardown);
        }
        self.act(&mut management);
        Ok(())
    }
}
