//! Passes the member's orders to the workers of all ANA groups.

use crate::desk::{Desk, LeadingAnswer, LedNamespace, Sink};
use crate::ledger::{Account, Accounts, Entry, Ledger};
use crate::order::Order;
use crate::worker::Worker;
use farblock_group::{Holder, MemberEvent, Outcome, Permit, ReservationRecord};
use farblock_target::{Control, Permit as Cell, Subsystem, boot_time};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

/// The disks of a member, as the member's thread controls them. No function blocks.
pub struct Leading {
    desk: Arc<Desk>,
    sink: Sink,
    workers: BTreeMap<u32, Sender<Order>>,
    ledger: Ledger,
}

impl Leading {
    /// Starts the workers, one for each ANA group. They execute no order before [`Handle::attach`].
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn start(shared: Vec<LedNamespace>, sink: Sink) -> io::Result<(Self, Handle)> {
        let mut groups: BTreeMap<u32, Vec<LedNamespace>> = BTreeMap::new();
        for one in shared {
            groups.entry(one.sharing.ana_group).or_default().push(one);
        }
        let desk = Arc::new(Desk::new(groups.keys().copied()));
        let (mut workers, mut queues, mut accounts) =
            (BTreeMap::new(), Vec::new(), Accounts::new());
        for (group, disks) in groups {
            let (sender, orders) = channel();
            for disk in &disks {
                let account = Arc::new(Account::new(disk, &sink, &sender));
                accounts.insert(disk.identity.clone(), account);
            }
            queues.push((group, disks, orders));
            workers.insert(group, sender);
        }
        let ledger = Ledger::start(accounts, &desk)?;
        for (group, disks, orders) in queues {
            let shared = (Arc::clone(&desk), Arc::clone(&sink), ledger.clone());
            let worker = Worker::new(group, disks, shared, orders);
            std::thread::Builder::new()
                .name(format!("group-{group}"))
                .spawn(move || worker.run())?;
        }
        let (all, entries) = (workers.clone(), ledger.clone());
        let handle = Handle { desk: Arc::clone(&desk), workers: all, ledger: entries };
        Ok((Self { desk, sink, workers, ledger }, handle))
    }

    fn order(&self, group: u32, order: Order) {
        if let Some(worker) = self.workers.get(&group) {
            // A worker ends only together with the member.
            let _ = worker.send(order);
        }
    }

    /// Executes [`Action::Fence`](farblock_group::Action::Fence).
    pub fn fence(&mut self, group: u32, epoch: u64, victims: &[Holder]) {
        let is_hard = |victim: &Holder| victim.fences.iter().any(|fence| fence.is_complete());
        let cannot = victims.iter().any(is_hard) || !self.workers.contains_key(&group);
        (self.sink)(LeadingAnswer::Event(match cannot {
            true => MemberEvent::FenceFailed { group, epoch },
            false => MemberEvent::FencePlaced { group, epoch, barrier: None },
        }));
    }

    /// Executes [`Action::Enter`](farblock_group::Action::Enter).
    pub fn enter(&mut self, group: u32, epoch: u64) {
        self.order(group, Order::Enter(epoch));
    }

    /// Executes [`Action::Begin`](farblock_group::Action::Begin).
    pub fn begin(&mut self, group: u32, epoch: u64) {
        self.order(group, Order::Begin(epoch));
    }

    /// Executes [`Action::Publish`](farblock_group::Action::Publish).
    pub fn publish(&mut self, group: u32, permit: Option<Permit>) {
        let until = permit.map(|permit| permit.until);
        let before = self.desk.publish(group, until);
        // A worker checks for a new permit when the old one ends. So it needs an order only after a
        // time without a permit.
        let is_gap = before.is_none_or(|before| boot_time() >= before);
        if until.is_some() && is_gap {
            self.order(group, Order::Permitted);
        }
    }

    /// Withdraws the permit of an ANA group shortly before its end. The worker answers with
    /// [`LeadingAnswer::Parked`].
    pub fn park(&mut self, group: u32, epoch: u64) {
        self.desk.publish(group, None);
        self.order(group, Order::Park(epoch));
    }

    /// Closes the connections of all hosts. A member that lost its lease must do this before it
    /// leads again.
    pub fn disconnect_hosts(&self) {
        if let Some(control) = self.desk.control() {
            control.disconnect_hosts();
        }
    }

    /// Executes [`Action::Apply`](farblock_group::Action::Apply).
    pub fn apply(&mut self, namespace: &str, record: ReservationRecord) {
        let (namespace, record) = (namespace.to_owned(), Box::new(record));
        self.ledger.post(Entry::Changed { namespace, record });
    }

    /// Executes [`Action::Answer`](farblock_group::Action::Answer).
    pub fn answer(&mut self, proposal: u64, outcome: Outcome) {
        self.ledger.post(Entry::Answered { serial: proposal, outcome });
    }

    /// Executes [`Action::Stop`](farblock_group::Action::Stop).
    pub fn stop(&mut self, group: u32, epoch: u64) {
        self.order(group, Order::Stop(epoch));
    }
}

/// Connects the workers to the target.
pub struct Handle {
    desk: Arc<Desk>,
    workers: BTreeMap<u32, Sender<Order>>,
    ledger: Ledger,
}

impl Handle {
    /// Lets the target's namespaces share their reservations with the group. Call this before the
    /// target starts.
    pub fn share_reservations(&self, subsystems: &mut [Subsystem]) {
        for subsystem in subsystems {
            let its = self.ledger.of_subsystem(&subsystem.config.nqn);
            subsystem.shared_reservations.extend(its);
        }
    }

    /// Returns the permits for [`TargetConfig::permits`](farblock_target::TargetConfig::permits).
    #[must_use]
    pub fn permits(&self) -> BTreeMap<u32, Arc<Cell>> {
        self.desk.permits()
    }

    /// Connects the running target, which listens on these addresses. From now on, the workers
    /// execute their orders.
    pub fn attach(&self, control: Control, addresses: Vec<SocketAddr>) {
        self.desk.attach(control, addresses);
        self.ledger.post(Entry::Attached);
        for worker in self.workers.values() {
            let _ = worker.send(Order::Attached);
        }
    }
}
