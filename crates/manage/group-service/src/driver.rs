//! The member's thread: it connects the state machine, the client of etcd and the disks.

use crate::change::{ATTEMPTS, Change};
use crate::changes::Changes;
use crate::clock;
use crate::disks::Disks;
use crate::folder::FolderLock;
use crate::guard::Guard;
use crate::history::History;
use crate::host_list::HostList;
use crate::input::Input;
use crate::status::{GroupStatus, StoreStatus};
use crate::store::EtcdStore;
use farblock_group::store::{StoreEvent, StoreReply, StoreRequest, Ticket};
use farblock_group::{Action, FenceKind, KeySpace, Member, MemberEvent, Permit, Report};
use farblock_proto::time::Instant;
use std::collections::BTreeMap;
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::task::{JoinHandle, spawn_local};

/// The longest sleep: timers of the runtime do not count the time while the machine is suspended.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// The ANA groups of this member's disks.
pub(crate) struct Declared {
    pub(crate) fences: BTreeMap<u32, Vec<FenceKind>>,
    pub(crate) namespaces: BTreeMap<u32, Vec<String>>,
}

/// The progress of the member's departure from its group.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Departure {
    is_ordered: bool,
    /// Whether the member has ended its lease in order to leave.
    is_done: bool,
    /// Whether the member leaves because its watchdog has ended.
    has_no_watchdog: bool,
}

pub(crate) struct Driver {
    member: Member,
    keys: KeySpace,
    store: EtcdStore,
    disks: Box<dyn Disks>,
    guard: Guard,
    sender: UnboundedSender<Input>,
    /// The number and the task of the current etcd watch.
    watch: (u64, Option<JoinHandle<()>>),
    /// The ANA groups that this member's disks need.
    declared: Declared,
    history: History,
    hosts: HostList,
    departure: Departure,
    _lock: Option<FolderLock>,
}

impl Driver {
    pub(crate) fn new(
        member: Member,
        store: EtcdStore,
        disks: Box<dyn Disks>,
        guard: Guard,
        sender: UnboundedSender<Input>,
        declared: Declared,
        lock: Option<FolderLock>,
    ) -> Self {
        Self {
            keys: KeySpace::new(&member.config().group),
            member,
            store,
            disks,
            guard,
            sender,
            watch: (0, None),
            declared,
            history: History::default(),
            hosts: HostList::default(),
            departure: Departure::default(),
            _lock: lock,
        }
    }

    /// Runs until [`Input::Stop`], or until all senders have ended.
    pub(crate) async fn run(mut self, mut inputs: UnboundedReceiver<Input>, changes: &Changes) {
        self.tick();
        let mut counted = None;
        loop {
            let now = Some(self.fingerprint());
            if counted != now {
                counted = now;
                changes.count();
            }
            let deadline = [self.member.deadline(), self.guard.deadline()];
            let next = deadline.into_iter().flatten().min();
            let wait = next.map(|at| at.saturating_duration_since(clock::now()));
            let wait = wait.unwrap_or(LONGEST_SLEEP).min(LONGEST_SLEEP);
            tokio::select! {
                input = inputs.recv() => match input {
                    Some(Input::Stop) | None => break,
                    Some(input) => self.take(input),
                },
                () = tokio::time::sleep(wait) => self.tick(),
            }
            self.look_after_watchdog();
        }
        let groups: Vec<u32> = self.member.view().leaders.keys().copied().collect();
        groups.into_iter().for_each(|group| self.disks.publish(group, None));
    }

    /// Leaves the group when the watchdog has ended: nothing would stop a suspended process at the
    /// end of its permit. A sandbox may forbid starting another watchdog.
    fn look_after_watchdog(&mut self) {
        if self.guard.is_lost() && !self.departure.has_no_watchdog {
            self.departure.has_no_watchdog = true;
            self.report(&Report::WatchdogLost);
            self.take(Input::Member(MemberEvent::Leave));
        }
    }

    fn tick(&mut self) {
        let now = self.now();
        self.member.tick(now);
        self.carry_out();
        self.publish_hosts();
    }

    fn now(&mut self) -> Instant {
        self.member.set_wall_ms(clock::wall_ms());
        clock::now()
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Member(event) => {
                if let MemberEvent::Stopped { group, epoch } = event {
                    self.guard.stopped(group, epoch);
                }
                self.departure.is_ordered |= event == MemberEvent::Leave;
                self.handle(event);
            }
            Input::Parked { group, epoch } => self.guard.parked(group, epoch),
            Input::Reply(ticket, reply) => {
                let is_apart = self.departure.is_ordered && !self.member.is_joined();
                self.departure.is_done |= is_apart && reply == StoreReply::Revoked;
                self.handle(MemberEvent::Store(StoreEvent::Reply(ticket, reply)));
            }
            Input::Watch(number, event) if number == self.watch.0 => {
                self.handle(MemberEvent::Store(StoreEvent::Watch(event)));
            }
            Input::Watch(..) | Input::Stop => {}
            Input::Snapshot(answer) => {
                let _ = answer.try_send(self.snapshot());
            }
            Input::Change { change, attempts, answer } => self.change(change, attempts, answer),
            Input::Changed(input, reply) => self.changed(*input, &reply),
            Input::Hosts(hosts) => {
                self.hosts.set(hosts);
                self.publish_hosts();
            }
            Input::HostsWritten(is_done) => self.hosts.written(is_done),
        }
    }

    fn handle(&mut self, event: MemberEvent) {
        let now = self.now();
        self.member.handle(now, event);
        self.carry_out();
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.member.poll_action() {
            match action {
                Action::Store(ticket, request) => self.send(ticket, request),
                Action::Fence { group, epoch, victims } => self.disks.fence(group, epoch, victims),
                Action::Enter { group, epoch, barrier } => self.disks.enter(group, epoch, barrier),
                Action::Begin { group, epoch } => self.disks.begin(group, epoch),
                Action::Publish { group, permit } => self.publish(group, permit),
                Action::Stop { group, epoch } => self.disks.stop(group, epoch),
                Action::Apply { namespace, record } => self.disks.apply(&namespace, *record),
                Action::Answer { proposal, outcome } => self.disks.answer(proposal, outcome),
                Action::Report(report) => self.report(&report),
            }
        }
        self.history.look(self.member.view());
        for (group, epoch) in self.guard.due(clock::now()) {
            self.disks.park(group, epoch);
        }
    }

    fn send(&mut self, ticket: Ticket, request: StoreRequest) {
        let (store, sender) = (self.store.clone(), self.sender.clone());
        let StoreRequest::Watch { prefix, from } = request else {
            spawn_local(async move {
                let reply = store.request(request).await;
                let _ = sender.send(Input::Reply(ticket, reply));
            });
            return;
        };
        if let Some(task) = self.watch.1.take() {
            task.abort();
        }
        self.watch.0 += 1;
        let number = self.watch.0;
        let report = move |event| {
            let _ = sender.send(Input::Watch(number, event));
        };
        self.watch.1 = Some(spawn_local(async move { store.watch(prefix, from, report).await }));
    }

    fn publish(&mut self, group: u32, permit: Option<Permit>) {
        let needs_watchdog = self.needs_watchdog(group);
        let permit = permit.filter(|permit| !needs_watchdog || self.guard.permit(group, *permit));
        self.disks.publish(group, permit);
    }

    /// Whether a disk of the group cannot refuse all operations of an earlier leader.
    fn needs_watchdog(&self, group: u32) -> bool {
        let view = self.member.view();
        let its = view.groups.get(&group).into_iter().flat_map(|seen| &seen.record.fences);
        let holder = view.leaders.get(&group).and_then(|seen| seen.record.holder.as_ref());
        let mut all = its.chain(holder.into_iter().flat_map(|holder| &holder.fences));
        all.any(|kind| !kind.is_complete())
    }

    fn report(&mut self, report: &Report) {
        self.history.report(report, clock::wall_ms());
        if matches!(report, Report::Joined { .. }) {
            // etcd removed the host list together with the earlier lease.
            self.hosts.lost();
            for (group, fences) in &self.declared.fences {
                self.declare(*group, fences.clone());
            }
        }
        self.disks.report(report);
    }

    /// Writes the list of hosts to etcd, unless etcd has it.
    fn publish_hosts(&mut self) {
        let Some(txn) = self.hosts.due(&self.member, &self.keys, clock::now()) else { return };
        let (store, sender) = (self.store.clone(), self.sender.clone());
        spawn_local(async move {
            let reply = store.request(StoreRequest::Txn(txn)).await;
            let is_done = matches!(&reply, StoreReply::Done(done) if done.succeeded);
            let _ = sender.send(Input::HostsWritten(is_done));
        });
    }

    fn declare(&self, ana_group: u32, fences: Vec<FenceKind>) {
        let namespaces = self.declared.namespaces.get(&ana_group).cloned().unwrap_or_default();
        let member = self.member.config().name.clone();
        let change = Change::Declare { ana_group, fences, namespaces, member };
        let _ = self.sender.send(Input::Change { change, attempts: ATTEMPTS, answer: None });
    }

    fn change(
        &mut self,
        change: Change,
        attempts: u32,
        answer: Option<SyncSender<Result<(), String>>>,
    ) {
        let reply = |result| {
            if let Some(answer) = &answer {
                let _ = answer.try_send(result);
            }
        };
        if !self.member.is_joined() {
            return reply(Err("this member has not joined the group yet; try again".to_owned()));
        }
        let txn = match change.txn(self.member.view(), &self.keys) {
            Ok(None) => return reply(Ok(())),
            Ok(Some(txn)) => txn,
            Err(reason) => return reply(Err(reason)),
        };
        let (store, sender) = (self.store.clone(), self.sender.clone());
        let input = Input::Change { change, attempts: attempts.saturating_sub(1), answer };
        spawn_local(async move {
            let reply = store.request(StoreRequest::Txn(txn)).await;
            if !matches!(&reply, StoreReply::Done(done) if done.succeeded) {
                // Meanwhile the watch reports the change that came first.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            let _ = sender.send(Input::Changed(Box::new(input), reply));
        });
    }

    fn changed(&mut self, input: Input, reply: &StoreReply) {
        let Input::Change { change, attempts, answer } = input else { return };
        let result = match reply {
            StoreReply::Done(done) if done.succeeded => Ok(()),
            // Another change came first, or etcd executed this one twice.
            _ if attempts > 0 => return self.change(change, attempts, answer),
            StoreReply::Done(_) => Err("other changes came first; try again".to_owned()),
            _ => Err("etcd does not answer, or has no quorum; the change may still happen".into()),
        };
        if let Some(answer) = answer {
            let _ = answer.try_send(result);
        }
    }

    /// Returns a value that differs after each change of the group that other threads should
    /// notice.
    fn fingerprint(&self) -> (u64, bool, bool, Departure) {
        let store = self.store.status(self.member.config().timing.hold);
        let (view, is_joined) = (self.member.view(), self.member.is_joined());
        (view.changes(), is_joined, store.reachable, self.departure)
    }

    fn snapshot(&self) -> GroupStatus {
        let now = clock::now();
        let store: StoreStatus = self.store.status(self.member.config().timing.hold);
        let mut status = GroupStatus::of(&self.member, now, store);
        status.left = self.departure.is_done;
        status.has_no_watchdog = self.departure.has_no_watchdog;
        status.history = self.history.entries();
        status
    }
}
