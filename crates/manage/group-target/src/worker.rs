//! The worker of one ANA group: opens and closes its disks, and reports its ANA state.

use crate::desk::{Desk, LeadingAnswer, LedNamespace, Sink};
use crate::ledger::Ledger;
use crate::limits::{LOOK, OPEN_AGAIN, OPEN_LIMIT};
use crate::order::Order;
use farblock_block::Namespace;
use farblock_group::MemberEvent;
use farblock_target::{Control, Removal, boot_time};
use farblock_wire::log::AnaState;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// The disks are closed.
    Absent,
    /// The worker must open the disks.
    Opening(u64),
    /// The disks are open, and the group is reported as optimized.
    Serving(u64),
    /// The disks are open, but the permit has ended.
    Lapsed(u64),
}

/// A disk cannot be opened.
struct Trouble {
    since: Instant,
    /// The last error, so that a repeated one is logged once.
    problem: String,
    is_reported: bool,
}

pub(crate) struct Worker {
    group: u32,
    disks: Vec<LedNamespace>,
    desk: Arc<Desk>,
    sink: Sink,
    ledger: Ledger,
    orders: Receiver<Order>,
    /// Orders that arrived before the target ran.
    early: VecDeque<Order>,
    stage: Stage,
    /// The number of disks that are open.
    opened: usize,
    trouble: Option<Trouble>,
}

impl Worker {
    pub(crate) fn new(
        group: u32,
        disks: Vec<LedNamespace>,
        (desk, sink, ledger): (Arc<Desk>, Sink, Ledger),
        orders: Receiver<Order>,
    ) -> Self {
        let (early, stage) = (VecDeque::new(), Stage::Absent);
        Self { group, disks, desk, sink, ledger, orders, early, stage, opened: 0, trouble: None }
    }

    /// Executes orders until the member ends.
    pub(crate) fn run(mut self) {
        let control = loop {
            match self.orders.recv() {
                Ok(Order::Attached) => {
                    if let Some(control) = self.desk.control() {
                        break control;
                    }
                }
                Ok(order) => self.early.push_back(order),
                Err(_) => return,
            }
        };
        while let Some(order) = self.next() {
            if let Some(order) = order {
                self.obey(&control, order);
            }
            self.advance(&control);
        }
    }

    /// The next order; `Some(None)`: it is time to check the permit or the disks. `None`: the
    /// member has ended.
    fn next(&mut self) -> Option<Option<Order>> {
        if let Some(order) = self.early.pop_front() {
            return Some(Some(order));
        }
        let timeout = match self.stage {
            Stage::Absent | Stage::Lapsed(_) => None,
            Stage::Opening(_) => Some(OPEN_AGAIN),
            Stage::Serving(_) => {
                let until = self.desk.until(self.group);
                Some(until.map_or(Duration::ZERO, |it| it.saturating_duration_since(boot_time())))
            }
        };
        let Some(timeout) = timeout else { return self.orders.recv().ok().map(Some) };
        match self.orders.recv_timeout(timeout) {
            Ok(order) => Some(Some(order)),
            Err(RecvTimeoutError::Timeout) => Some(None),
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    fn obey(&mut self, control: &Control, order: Order) {
        let group = self.group;
        match order {
            Order::Attached | Order::Permitted | Order::Enforced => {}
            Order::Enter(epoch) => {
                let identity = format!("epoch-{epoch}");
                (self.sink)(LeadingAnswer::Event(MemberEvent::Entered { group, epoch, identity }));
            }
            Order::Begin(epoch) => self.stage = Stage::Opening(epoch),
            Order::Stop(epoch) => {
                self.close(control);
                (self.sink)(LeadingAnswer::Event(MemberEvent::Stopped { group, epoch }));
            }
            Order::Park(epoch) => self.park(control, epoch),
        }
    }

    /// Moves to the next stage, if the disks and the permit allow it.
    fn advance(&mut self, control: &Control) {
        match self.stage {
            Stage::Absent => {}
            Stage::Opening(epoch) => {
                if self.open(control, epoch) {
                    self.stage = Stage::Lapsed(epoch);
                    self.advance(control);
                }
            }
            Stage::Lapsed(epoch) if self.desk.until(self.group).is_some() => {
                self.desk.report(self.group, AnaState::OPTIMIZED);
                self.stage = Stage::Serving(epoch);
            }
            Stage::Serving(epoch) if self.desk.until(self.group).is_none() => {
                self.desk.report(self.group, AnaState::INACCESSIBLE);
                self.stage = Stage::Lapsed(epoch);
                // The permit may have been renewed just now.
                self.advance(control);
            }
            Stage::Lapsed(_) | Stage::Serving(_) => {}
        }
    }

    /// Opens the disks that are still closed. Returns whether all are open.
    fn open(&mut self, control: &Control, epoch: u64) -> bool {
        while let Some(disk) = self.disks.get_mut(self.opened) {
            // Wait until the cores know the reservations: until then, an excluded host could write.
            if self.ledger.account(disk).is_some_and(|account| !account.is_enforced()) {
                return false;
            }
            let opened = (disk.open)();
            let replaced = opened.and_then(|namespace| {
                disk.absent = disk.absent.with(namespace.geometry());
                replace(control, disk, &namespace)
            });
            match replaced {
                Ok(removal) => {
                    // Do not wait: the cores close their queues of an absent namespace at once.
                    drop(removal);
                    self.opened += 1;
                    self.trouble = None;
                }
                Err(problem) => {
                    self.fail(epoch, problem);
                    return false;
                }
            }
        }
        true
    }

    /// Notes that a disk cannot be opened. Reports it to the member after [`OPEN_LIMIT`], so that
    /// another member can lead.
    fn fail(&mut self, epoch: u64, problem: String) {
        let fresh = Trouble { since: Instant::now(), problem: String::new(), is_reported: false };
        let trouble = self.trouble.get_or_insert(fresh);
        if trouble.problem != problem {
            tracing::error!(group = self.group, "cannot lead: {problem}");
            trouble.problem.clone_from(&problem);
        }
        if trouble.since.elapsed() >= OPEN_LIMIT && !trouble.is_reported {
            trouble.is_reported = true;
            let event = MemberEvent::OpenFailed { group: self.group, epoch, problem };
            (self.sink)(LeadingAnswer::Event(event));
        }
    }

    /// Waits until no operation is in flight, and reports this. The group is inaccessible until
    /// then, even if its permit is renewed.
    fn park(&mut self, control: &Control, epoch: u64) {
        if let Stage::Serving(epoch) = self.stage {
            self.desk.report(self.group, AnaState::INACCESSIBLE);
            self.stage = Stage::Lapsed(epoch);
        }
        self.wait_until_quiet(control);
        (self.sink)(LeadingAnswer::Parked { group: self.group, epoch });
    }

    /// Stops the I/O and closes the disks. The permit has been withdrawn.
    fn close(&mut self, control: &Control) {
        self.desk.report(self.group, AnaState::INACCESSIBLE);
        self.wait_until_quiet(control);
        for disk in self.disks.iter().take(std::mem::take(&mut self.opened)) {
            let absent: Arc<dyn Namespace> = Arc::new(disk.absent.clone());
            match replace(control, disk, &absent) {
                Ok(removal) => wait(removal),
                Err(problem) => tracing::warn!(group = self.group, "{problem}"),
            }
        }
        (self.stage, self.trouble) = (Stage::Absent, None);
    }

    /// Waits until no operation is in flight at any core.
    fn wait_until_quiet(&self, control: &Control) {
        for disk in self.disks.iter().take(self.opened) {
            // The namespace is missing only after an operator has removed it, or the target stops.
            let Ok(mut quiet) = control.quiet(&disk.nqn, disk.nsid) else { continue };
            while let Err(again) = quiet.wait(LOOK) {
                quiet = again;
            }
        }
    }
}

fn replace(
    control: &Control,
    disk: &LedNamespace,
    namespace: &Arc<dyn Namespace>,
) -> Result<Removal, String> {
    let export = disk.export(namespace);
    control
        .replace_namespace_as(&disk.nqn, disk.nsid, &export, &disk.sharing)
        .map_err(|error| format!("cannot share {}: {error}", namespace.describe()))
}

/// Waits until the target has closed a disk.
fn wait(mut removal: Removal) {
    while let Err(again) = removal.wait(LOOK) {
        removal = again;
    }
}
