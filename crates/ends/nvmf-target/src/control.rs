//! Changes to a running target. Any thread except the target's cores may request them.

use crate::change_error::ChangeError;
use crate::config::Export;
use crate::pace::Rates;
use crate::quiet::Quiet;
use crate::removal::Removal;
use crate::reservations::ReservationStore;
use crate::shared::TargetShared;
use crate::sharing::Sharing;
use farblock_proto::controller::{SharedAnswer, SharedChange};
use farblock_proto::ids::NamespaceId;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Changes a running target, from any thread except the target's cores. The target notifies hosts
/// of a change by the asynchronous events that they have enabled.
///
/// Once a call has returned, each new Connect command and each query sees the change. Each core
/// receives the change as a message. Commands that arrive at the core before this message execute
/// with the old state.
#[derive(Clone)]
pub struct Control {
    pub(crate) shared: Arc<TargetShared>,
}

/// A batch of namespace changes. The cores receive the changes together when the batch is dropped.
#[must_use = "the batch ends when this is dropped"]
pub struct Batch(Arc<TargetShared>);

impl Drop for Batch {
    fn drop(&mut self) {
        self.0.end_batch();
    }
}

impl Control {
    /// Starts a batch. Until the batch ends, the target delays sending changes of namespaces to the
    /// cores, unless a host's command needs them. Queries and Connect see each change at once.
    /// Without a batch, each change sends the whole list of namespaces to every core, so the time
    /// for thousands of changes grows with the square of their number.
    ///
    /// A [`Removal`] completes only after the batch has ended or [`Control::send_changes`] was
    /// called: the cores learn of the removal only then.
    pub fn batch(&self) -> Batch {
        self.shared.begin_batch();
        Batch(Arc::clone(&self.shared))
    }

    /// Sends the cores the changes that the open batch has collected so far.
    pub fn send_changes(&self) {
        self.shared.send_changes();
    }

    /// Shares a namespace as number `nsid` of the subsystem named `nqn`.
    ///
    /// # Errors
    /// Fails if there is no such subsystem, the number is taken, or the namespace cannot be shared.
    pub fn add_namespace(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        export: &Export,
    ) -> Result<(), ChangeError> {
        self.shared.add_namespace(nqn, nsid, export, &Sharing::default(), None)
    }

    /// Adds a namespace that has the settings `sharing` from the start.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Control::add_namespace`], and if the settings are not valid.
    pub fn add_namespace_as(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        export: &Export,
        sharing: &Sharing,
    ) -> Result<(), ChangeError> {
        self.shared.add_namespace(nqn, nsid, export, sharing, None)
    }

    /// Adds a namespace like [`Self::add_namespace_as`], and keeps its reservations in `store`. The
    /// reservations that the store already contains apply from the start.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Control::add_namespace_as`], and if the target cannot use
    /// the stored reservations.
    pub fn add_namespace_kept(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        export: &Export,
        sharing: &Sharing,
        store: Option<&Arc<dyn ReservationStore>>,
    ) -> Result<(), ChangeError> {
        self.shared.add_namespace(nqn, nsid, export, sharing, store)
    }

    /// Changes how a namespace is shared, atomically. No host sees a part of the change, or gains
    /// access from a mix of old and new settings.
    ///
    /// # Errors
    /// Fails if there is no such subsystem or namespace, or the settings are not valid. The
    /// namespace then stays unchanged.
    pub fn set_sharing(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        sharing: &Sharing,
    ) -> Result<(), ChangeError> {
        self.shared.set_sharing(nqn, nsid, sharing)
    }

    /// Sets the hosts, by name, that see a namespace. `None`: all allowed hosts see it. For all
    /// other hosts the namespace is inactive. Operations that they have already submitted complete.
    ///
    /// # Errors
    /// Fails if there is no such subsystem or namespace, or a host name is not valid.
    pub fn set_visible_to(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        hosts: Option<&BTreeSet<String>>,
    ) -> Result<(), ChangeError> {
        self.shared.set_visible_to(nqn, nsid, hosts)
    }

    /// Moves a namespace to another ANA group.
    ///
    /// # Errors
    /// Fails if there is no such subsystem, namespace or group.
    pub fn set_ana_group(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        ana_group: u32,
    ) -> Result<(), ChangeError> {
        self.shared.set_ana_group(nqn, nsid, ana_group)
    }

    /// Removes a namespace. Submitted operations complete, and their hosts get the responses. All
    /// other commands fail with Invalid Namespace or Format, even if another namespace gets the
    /// number at once.
    ///
    /// # Errors
    /// Fails if there is no such subsystem or namespace.
    pub fn remove_namespace(&self, nqn: &str, nsid: NamespaceId) -> Result<Removal, ChangeError> {
        self.shared.remove_namespace(nqn, nsid)
    }

    /// Replaces a namespace by another under the same number. Hosts see a new namespace unless the
    /// identity is the same. Commands for the old namespace complete or fail as described for
    /// [`Control::remove_namespace`]. The new namespace does not inherit the configured size or
    /// write protection.
    ///
    /// # Errors
    /// Fails if there is no such subsystem or namespace, or the target cannot share the new
    /// namespace. The old namespace then stays.
    pub fn replace_namespace(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        export: &Export,
    ) -> Result<Removal, ChangeError> {
        self.shared.replace_namespace(nqn, nsid, export, None)
    }

    /// Replaces a namespace by one that has the settings `sharing` from the start.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Control::replace_namespace`] and [`Control::set_sharing`].
    pub fn replace_namespace_as(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        export: &Export,
        sharing: &Sharing,
    ) -> Result<Removal, ChangeError> {
        self.shared.replace_namespace(nqn, nsid, export, Some(sharing))
    }

    /// Returns the operations that are in flight at a namespace now. The caller first prevents new
    /// ones, for example by withdrawing the [`Permit`](crate::Permit).
    ///
    /// # Errors
    /// Fails if there is no such subsystem or namespace.
    pub fn quiet(&self, nqn: &str, nsid: NamespaceId) -> Result<Quiet, ChangeError> {
        self.shared.quiet(nqn, nsid)
    }

    /// Shares only the first `blocks` blocks of a namespace; `None`: all blocks.
    ///
    /// # Errors
    /// Fails if there is no such subsystem or namespace, or the namespace has fewer blocks.
    pub fn resize_namespace(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        blocks: Option<u64>,
    ) -> Result<(), ChangeError> {
        self.shared.resize_namespace(nqn, nsid, blocks)
    }

    /// Sets or clears a namespace's write protection. Writes that were already submitted complete.
    ///
    /// # Errors
    /// Fails if there is no such subsystem or namespace.
    pub fn set_read_only(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        read_only: bool,
    ) -> Result<(), ChangeError> {
        self.shared.set_read_only(nqn, nsid, read_only)
    }

    /// Limits the rates of one host over all namespaces and controllers of a subsystem. The limits
    /// of each namespace apply as well. [`Rates::default`] has no limit.
    ///
    /// # Errors
    /// Fails if there is no such subsystem.
    pub fn set_host_rates(&self, nqn: &str, host: &str, rates: &Rates) -> Result<(), ChangeError> {
        self.shared.set_host_rates(nqn, host, rates)
    }

    /// Limits the rates of a namespace over all hosts. [`Rates::default`] has no limit. The target
    /// schedules waiting commands again under the new limits. If the new limits equal the old ones,
    /// nothing changes: commands do not get another burst.
    ///
    /// # Errors
    /// Fails if there is no such subsystem or namespace.
    pub fn set_rates(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        rates: &Rates,
    ) -> Result<(), ChangeError> {
        self.shared.set_rates(nqn, nsid, rates)
    }

    /// Applies a change of reservations that other targets share. The cores enforce it before any
    /// later change of the namespace. Changes that are not newer than the last one have no effect.
    ///
    /// # Errors
    /// Fails if there is no such subsystem.
    pub fn apply_shared_reservations(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        change: SharedChange,
    ) -> Result<(), ChangeError> {
        self.shared.apply_shared(nqn, nsid, change)
    }

    /// Delivers the group's answer to call number `serial` of
    /// [`SharedReservations::consult`](crate::SharedReservations::consult) or
    /// [`SharedReservations::propose`](crate::SharedReservations::propose).
    pub fn answer_shared_reservations(&self, serial: u64, answer: SharedAnswer) {
        self.shared.answer_shared(serial, answer);
    }

    /// Rereads a namespace's size and supported commands, and notifies hosts of changes.
    ///
    /// # Errors
    /// Fails if there is no such subsystem or namespace, or the target cannot share the namespace
    /// with its new properties.
    pub fn refresh_namespace(&self, nqn: &str, nsid: NamespaceId) -> Result<(), ChangeError> {
        self.shared.refresh_namespace(nqn, nsid)
    }
}
