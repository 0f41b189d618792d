//! Passes reservation changes and answers between the member and the target, for the namespaces of
//! the group.
//!
//! The member's thread must not wait for the target's locks. So a separate thread passes the
//! changes on, in order. A worker opens a disk only when the target enforces all changes that the
//! member knows.

use crate::desk::{Desk, LeadingAnswer, LedNamespace, Sink};
use crate::order::Order;
use farblock_group::{MemberEvent, NoticeRecord, Outcome, Proposed, ReservationRecord};
use farblock_proto::controller::{HostId, SharedAnswer, SharedChange, SharedProposal};
use farblock_proto::ids::NamespaceId;
use farblock_target::{Control, SharedReservations};
use farblock_wire::reservation::NotificationType;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// A message to this module's thread.
pub(crate) enum Entry {
    /// The target is running.
    Attached,
    Changed {
        namespace: String,
        record: Box<ReservationRecord>,
    },
    Answered {
        serial: u64,
        outcome: Outcome,
    },
}

/// The shared reservations of one namespace.
pub(crate) struct Account {
    nqn: String,
    nsid: NamespaceId,
    /// The name of the namespace in the group's records.
    namespace: String,
    group: u32,
    sink: Sink,
    worker: Sender<Order>,
    /// The number of the last change that the member knows.
    known: AtomicU64,
    /// The number of the last change that all cores enforce.
    enforced: AtomicU64,
}

impl Account {
    pub(crate) fn new(disk: &LedNamespace, sink: &Sink, worker: &Sender<Order>) -> Self {
        Self {
            nqn: disk.nqn.clone(),
            nsid: disk.nsid,
            namespace: disk.identity.clone(),
            group: disk.sharing.ana_group,
            sink: Arc::clone(sink),
            worker: worker.clone(),
            known: AtomicU64::new(0),
            enforced: AtomicU64::new(0),
        }
    }

    /// Whether all cores enforce the last change that the member knows.
    pub(crate) fn is_enforced(&self) -> bool {
        self.enforced.load(Ordering::Acquire) >= self.known.load(Ordering::Acquire)
    }

    fn send(&self, event: MemberEvent) {
        (self.sink)(LeadingAnswer::Event(event));
    }
}

impl SharedReservations for Account {
    fn consult(&self, serial: u64) {
        let (namespace, group) = (self.namespace.clone(), self.group);
        self.send(MemberEvent::Consult { proposal: serial, namespace, group });
    }

    fn propose(&self, proposal: SharedProposal) {
        let notice = |(host, kind): (HostId, NotificationType)| NoticeRecord {
            host: text_of(&host),
            kind: kind.0,
        };
        self.send(MemberEvent::Propose(Proposed {
            proposal: proposal.serial,
            namespace: self.namespace.clone(),
            group: self.group,
            base: proposal.base,
            state: proposal.text,
            notices: proposal.notices.into_iter().map(notice).collect(),
            aborted: proposal.aborted.iter().map(text_of).collect(),
        }));
    }

    fn applied(&self, index: u64) {
        self.enforced.store(index, Ordering::Release);
        self.send(MemberEvent::Applied { namespace: self.namespace.clone(), index });
        // A worker may wait for this before it opens the disk.
        let _ = self.worker.send(Order::Enforced);
    }
}

fn text_of(host: &HostId) -> String {
    format!("{:032x}", u128::from_be_bytes(*host))
}

fn host_of(text: &str) -> Option<HostId> {
    u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes)
}

pub(crate) type Accounts = BTreeMap<String, Arc<Account>>;

/// Sends messages to this module's thread.
#[derive(Clone)]
pub(crate) struct Ledger {
    accounts: Arc<Accounts>,
    sender: Sender<Entry>,
}

impl Ledger {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub(crate) fn start(accounts: Accounts, desk: &Arc<Desk>) -> io::Result<Self> {
        let (sender, entries) = channel();
        let (accounts, desk) = (Arc::new(accounts), Arc::clone(desk));
        let clerk = Clerk { accounts: Arc::clone(&accounts), seen: BTreeMap::new() };
        std::thread::Builder::new()
            .name("group-reserve".to_owned())
            .spawn(move || clerk.run(&entries, &desk))?;
        Ok(Self { accounts, sender })
    }

    pub(crate) fn post(&self, entry: Entry) {
        if let Entry::Changed { namespace, record } = &entry
            && let Some(account) = self.accounts.get(namespace)
        {
            account.known.fetch_max(record.index, Ordering::AcqRel);
        }
        // The thread ends only together with the member.
        let _ = self.sender.send(entry);
    }

    pub(crate) fn account(&self, disk: &LedNamespace) -> Option<&Arc<Account>> {
        self.accounts.get(&disk.identity)
    }

    /// The shared reservations of the namespaces of a subsystem.
    pub(crate) fn of_subsystem(
        &self,
        nqn: &str,
    ) -> impl Iterator<Item = (NamespaceId, Arc<dyn SharedReservations>)> {
        let its = self.accounts.values().filter(move |account| account.nqn == nqn);
        its.map(|account| (account.nsid, Arc::clone(account) as Arc<dyn SharedReservations>))
    }
}

/// The state of this module's thread.
struct Clerk {
    accounts: Arc<Accounts>,
    /// The number of the last change that the target knows, by namespace.
    seen: BTreeMap<String, u64>,
}

impl Clerk {
    fn run(mut self, entries: &Receiver<Entry>, desk: &Desk) {
        let mut early = Vec::new();
        let control = loop {
            match entries.recv() {
                Ok(Entry::Attached) => {
                    if let Some(control) = desk.control() {
                        break control;
                    }
                }
                Ok(entry) => early.push(entry),
                Err(_) => return,
            }
        };
        // No host was connected at the time of these changes, so no notifications are due.
        early.into_iter().for_each(|entry| self.take(&control, entry, false));
        while let Ok(entry) = entries.recv() {
            self.take(&control, entry, true);
        }
    }

    fn take(&mut self, control: &Control, entry: Entry, notifies: bool) {
        match entry {
            Entry::Attached => {}
            Entry::Answered { serial, outcome } => {
                let answer = match outcome {
                    Outcome::InForce { .. } => SharedAnswer::InForce,
                    Outcome::Conflict => SharedAnswer::Conflict,
                    Outcome::Current { index } => SharedAnswer::Current(index),
                    Outcome::Unreadable => SharedAnswer::Unreadable,
                };
                control.answer_shared_reservations(serial, answer);
            }
            Entry::Changed { namespace, record } => {
                let Some(account) = self.accounts.get(&namespace) else { return };
                let seen = self.seen.insert(namespace, record.index).unwrap_or(0);
                let change = change_of(*record, if notifies { seen } else { u64::MAX });
                let applied = control.apply_shared_reservations(&account.nqn, account.nsid, change);
                if let Err(error) = applied {
                    tracing::error!("cannot apply the group's reservations: {error}");
                }
            }
        }
    }
}

/// Converts a record to a change for the target, with the notifications of all changes after
/// `seen`.
fn change_of(record: ReservationRecord, seen: u64) -> SharedChange {
    let news = || record.log.iter().filter(|change| change.index > seen);
    let notice =
        |notice: &NoticeRecord| Some((host_of(&notice.host)?, NotificationType(notice.kind)));
    let notices = news().flat_map(|change| &change.notices).filter_map(notice).collect();
    let aborted = news().flat_map(|change| &change.aborted).filter_map(|it| host_of(it)).collect();
    SharedChange { index: record.index, text: record.state, notices, aborted }
}
