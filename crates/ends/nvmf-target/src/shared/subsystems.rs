//! Adds and removes subsystems, hosts and referrals while the target runs.

use super::{Management, TargetShared};
use crate::change_error::ChangeError;
use crate::config::Subsystem;
use crate::events::Event;
use crate::host_keys::HostKeys;
use crate::removal::Removal;
use farblock_proto::controller::{
    ConfigError, ControllerSummary, HostChannel, Referral, Registry, SubsystemConfig, SubsystemId,
    Teardown,
};
use farblock_proto::limits::IN_CAPSULE_BYTES;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Warns if two subsystems have the same serial number. The target allows this, but hosts
/// distinguish disks by their serial numbers.
pub(crate) fn warn_of_same_serial(registry: &Registry, added: &SubsystemConfig) {
    let mut others = registry.subsystems().map(|(_, config)| config);
    if let Some(other) = others.find(|config| config.serial == added.serial) {
        tracing::warn!(
            "the subsystems {} and {} both have the serial number {}, by which hosts and \
             /dev/disk/by-id distinguish disks: give one of them another serial number",
            other.nqn,
            added.nqn,
            added.serial
        );
    }
}

impl TargetShared {
    pub(crate) fn add_subsystem(
        self: &Arc<Self>,
        subsystem: &Subsystem,
    ) -> Result<(), ChangeError> {
        has_library(subsystem.keys.values())?;
        let mut config = subsystem.offered();
        let nqn = config.nqn.clone();
        let wrong = |error| ChangeError::Subsystem(nqn.clone(), error);
        if config.flush_on_shutdown || config.in_capsule_bytes != IN_CAPSULE_BYTES {
            return Err(wrong(ConfigError::OutOfRange("flush_on_shutdown or in_capsule_bytes")));
        }
        // Add the namespaces below one by one, each with its store.
        config.namespaces.clear();
        {
            let mut management = self.lock_running()?;
            warn_of_same_serial(&management.registry, &config);
            let id = management.registry.add_subsystem(config).map_err(wrong)?;
            for (host, keys) in &subsystem.keys {
                management.registry.set_host_channel(Some(id), host, keys.channel());
            }
            management.exports.limit_hosts(id, &subsystem.host_rates);
            // Set the keys before any host can connect.
            self.authenticator.require(subsystem);
            for (host, keys) in &subsystem.keys {
                self.tls.set_keys(&nqn, host, &keys.tls);
            }
            self.act(&mut management);
            self.observed.log_change(&Event::SubsystemAdded(nqn.clone()));
        }
        self.begin_batch();
        let added = subsystem.exports.iter().try_for_each(|(&nsid, export)| {
            let (sharing, store) = (subsystem.sharing(nsid), subsystem.reservations.get(&nsid));
            self.add_namespace(&nqn, nsid, export, &sharing, store)
        });
        self.end_batch();
        added.inspect_err(|_| {
            // Ignore the returned removals. The stores close with the cores' queues.
            let _ = self.remove_subsystem(&nqn);
        })
    }

    /// Removes a subsystem: first notifies hosts that its namespaces are removed, then closes the
    /// hosts' controllers.
    pub(crate) fn remove_subsystem(&self, nqn: &str) -> Result<Vec<Removal>, ChangeError> {
        let namespaces: Vec<_> = {
            let management = self.lock_running()?;
            let id = self.subsystem_id(&management, nqn)?;
            let config =
                management.registry.subsystem(id).expect("the lookup above found the subsystem");
            config.namespaces.keys().copied().collect()
        };
        self.begin_batch();
        let removals = namespaces.into_iter().map(|nsid| self.remove_namespace(nqn, nsid));
        let removals = removals.collect::<Result<Vec<_>, _>>();
        self.end_batch();
        // During a batch of the caller, the cores would otherwise get the new lists only after the
        // subsystem's removal.
        self.send_changes();
        let removals = removals?;
        let mut gone = None;
        self.change_registry(nqn, |registry, id| {
            gone = Some(id);
            registry.remove_subsystem(id)
        })?;
        if let Some(id) = gone {
            self.lock().exports.forget_hosts(id);
            self.meters.forget_subsystem(id);
            self.store_errors.forget_subsystem(id);
            self.observed.log_change(&Event::SubsystemRemoved(nqn.to_owned()));
        }
        self.authenticator.forget(nqn);
        self.tls.forget(nqn);
        Ok(removals)
    }

    pub(crate) fn allow_host(&self, nqn: &str, host: &str) -> Result<(), ChangeError> {
        self.change_registry(nqn, |registry, id| registry.allow_host(id, host).map(|()| Vec::new()))
    }

    pub(crate) fn disallow_host(&self, nqn: &str, host: &str) -> Result<(), ChangeError> {
        self.change_registry(nqn, |registry, id| registry.disallow_host(id, host))
    }

    pub(crate) fn set_host_keys(
        &self,
        nqn: &str,
        host: &str,
        keys: Option<&HostKeys>,
    ) -> Result<(), ChangeError> {
        has_library(keys)?;
        self.change_registry(nqn, |registry, id| {
            let stays = self.authenticator.change(nqn, host, keys);
            if !stays {
                self.tls.forget_generated(host, nqn);
            }
            let stay = self.tls.set_keys(nqn, host, keys.map_or(&[], |keys| &keys.tls));
            let channel = keys.map_or(HostChannel::Plain, HostKeys::channel);
            registry.set_host_channel(Some(id), host, channel);
            let is_its = |one: &ControllerSummary<'_>| {
                if one.subsystem.is_none() {
                    return !stay.at_discovery && one.host_nqn == host;
                }
                let is_lost = !(stays && stay.at_subsystem) && one.host_nqn == host;
                let is_other = !self.authenticator.may_be(nqn, one.host_nqn, one.host_id);
                one.subsystem == Some(id) && (is_lost || is_other)
            };
            let found = registry.controllers().filter(is_its).map(|one| one.controller);
            let found: Vec<_> = found.collect();
            Ok(found.into_iter().filter_map(|id| registry.remove_controller(id)).collect())
        })
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

    /// Makes a change in the registry, and closes the connections that the change no longer allows.
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

/// Checks that there is a TLS library if a host has TLS keys.
fn has_library<'a>(keys: impl IntoIterator<Item = &'a HostKeys>) -> Result<(), ChangeError> {
    match keys.into_iter().any(|keys| !keys.tls.is_empty()) {
        true => farblock_tls::available().map_err(ChangeError::Tls),
        false => Ok(()),
    }
}
