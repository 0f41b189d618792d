//! The list of the hosts that are connected to this member, as a record in etcd.
//!
//! An operator reads it before stopping the member, to check that these hosts have other paths.
//! etcd removes the record when the lease of the member ends.

use farblock_group::limits::MAX_HOSTS;
use farblock_group::store::{Compare, Txn, Write};
use farblock_group::{HostsRecord, Key, KeySpace, Member, Record, VERSION};
use farblock_proto::time::Instant;
use std::time::Duration;

/// The pause between two writes: many hosts may connect at once.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum ListState {
    /// The target is not ready for hosts.
    #[default]
    NotReady,
    /// etcd does not have the current list.
    Changed,
    /// A write is in progress; `again`: the list has changed since, so another write follows.
    Writing { again: bool },
    /// etcd has the current list.
    Written,
}

/// The list of connected hosts, and whether etcd has it.
#[derive(Default)]
pub(crate) struct HostList {
    hosts: Vec<String>,
    state: ListState,
    last: Option<Instant>,
}

impl HostList {
    pub(crate) fn set(&mut self, mut hosts: Vec<String>) {
        hosts.truncate(MAX_HOSTS);
        if hosts != self.hosts || self.state == ListState::NotReady {
            self.hosts = hosts;
            self.lost();
            if self.state == ListState::NotReady {
                self.state = ListState::Changed;
            }
        }
    }

    /// Notes that etcd does not have the current list.
    pub(crate) fn lost(&mut self) {
        self.state = match self.state {
            ListState::NotReady => ListState::NotReady,
            ListState::Writing { .. } => ListState::Writing { again: true },
            ListState::Changed | ListState::Written => ListState::Changed,
        };
    }

    pub(crate) fn written(&mut self, is_done: bool) {
        let is_current = is_done && self.state == ListState::Writing { again: false };
        self.state = if is_current { ListState::Written } else { ListState::Changed };
    }

    /// The transaction that writes the list, if a write is due.
    pub(crate) fn due(&mut self, member: &Member, keys: &KeySpace, now: Instant) -> Option<Txn> {
        let is_early = self.last.is_some_and(|last| now < last.saturating_add(PAUSE));
        if self.state != ListState::Changed || is_early {
            return None;
        }
        let (lease, incarnation) = (member.lease()?, member.incarnation()?);
        let name = &member.config().name;
        let own = Key::Member(name.clone());
        let hosts = self.hosts.clone();
        let value = HostsRecord { version: VERSION, incarnation, hosts }.to_value();
        let key = keys.name(&Key::Hosts(name.clone()));
        self.state = ListState::Writing { again: false };
        self.last = Some(now);
        // Write only if the record of this member has not changed: another process with its name
        // must not get this list.
        let compare = Compare { key: keys.name(&own), revision: member.view().revision(&own) };
        let write = Write::Put { key, value, lease: Some(lease) };
        Some(Txn { compares: vec![compare], writes: vec![write], ..Txn::default() })
    }
}
