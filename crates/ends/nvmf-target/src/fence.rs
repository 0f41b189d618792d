//! Fences: a host's new commands wait for operations of its closed queues that still change the
//! same blocks.
//!
//! The target cannot cancel an operation that it has submitted to a namespace. A queue may close
//! while such an operation is under way: the connection is lost or reset, or the controller closes.
//! The host then does not learn the result, and resends the command on another queue. The old
//! operation must not overwrite the data of the resent command.
//!
//! So the target *fences* a queue if its host connects it while changes of the host's earlier
//! queues are under way. On a fenced queue, reads and writes of the affected blocks wait, and all
//! other commands proceed. The alternative was to refuse Connect; see decision 14.
//!
//! ```text
//!   open -- torn down --> ending, changes unknown -- closed --> changes known -- ended --> gone
//!     \________________ the host closed it ______________________/   (or none at all)
//! ```
//!
//! A host may have thousands of closed and fenced queues. So all queues of a host share one list of
//! the changes of its closed queues. The target notifies only fenced queues with waiting commands.
//! If a command conflicts with several closed queues, it first waits for the one that closed last,
//! since the operations of that queue usually end last.

use crate::route::Route;
use farblock_proto::capsule::SlotId;
use farblock_proto::controller::{Instance, IoCommand};
use farblock_proto::ids::{ControllerId, NamespaceId};
use farblock_wire::fabrics::ConnectData;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Change {
    pub(crate) namespace: NamespaceId,
    pub(crate) blocks: Range<u64>,
}

impl Change {
    /// Returns the blocks that a command changes; `None` if it changes none.
    pub(crate) fn of(command: &IoCommand) -> Option<Self> {
        let (namespace, blocks) = blocks_of(command)?;
        command.changes().then_some(Self { namespace, blocks })
    }
}

/// Returns the blocks that a command accesses. For a deallocation, which has many ranges, returns
/// all blocks of the namespace. For a Copy, returns its destination.
fn blocks_of(command: &IoCommand) -> Option<(NamespaceId, Range<u64>)> {
    match *command {
        IoCommand::Read { namespace, lba, blocks, .. }
        | IoCommand::Write { namespace, lba, blocks, .. }
        | IoCommand::Compare { namespace, lba, blocks, .. }
        | IoCommand::Verify { namespace, lba, blocks, .. }
        | IoCommand::WriteZeroes { namespace, lba, blocks, .. } => {
            Some((namespace, lba.0..lba.0 + u64::from(blocks.0)))
        }
        IoCommand::Deallocate { namespace, .. } => Some((namespace, 0..u64::MAX)),
        IoCommand::Copy { plan, .. } => Some((plan.namespace, 0..u64::MAX)),
        IoCommand::Flush { .. }
        | IoCommand::Advise { .. }
        | IoCommand::Reserve { .. }
        | IoCommand::Fabrics => None,
    }
}

/// The blocks that the unfinished operations of a closed queue change.
#[derive(PartialEq, Eq, Debug)]
struct Changes(Box<[Change]>);

impl Changes {
    /// Sorts `changes`, and joins ranges that overlap or adjoin.
    fn new(mut changes: Vec<Change>) -> Self {
        changes.sort_unstable_by_key(|change| (change.namespace, change.blocks.start));
        changes.dedup_by(|next, first| {
            let joined = next.namespace == first.namespace && next.blocks.start <= first.blocks.end;
            if joined {
                first.blocks.end = first.blocks.end.max(next.blocks.end);
            }
            joined
        });
        Self(changes.into())
    }

    fn overlap(&self, namespace: NamespaceId, blocks: &Range<u64>) -> bool {
        let is_before =
            |change: &Change| (change.namespace, change.blocks.end) <= (namespace, blocks.start);
        let next = self.0.get(self.0.partition_point(is_before));
        next.is_some_and(|next| next.namespace == namespace && next.blocks.start < blocks.end)
    }
}

/// Identifies a closed queue of a host. Identifiers are ordered by the time of close.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct EndingId(u64);

/// A queue that is closing or closed, and whose changes may be under way.
struct Ending {
    /// The blocks that the queue's operations still change; `None` until the queue has closed.
    changes: Option<Changes>,
    /// The fenced queues with commands that wait for these changes.
    waiters: Vec<Route>,
}

impl Ending {
    fn is_obstacle(&self, namespace: NamespaceId, blocks: &Range<u64>) -> bool {
        self.changes.as_ref().is_none_or(|changes| changes.overlap(namespace, blocks))
    }
}

/// The closed queues of a host whose changes may be under way.
#[derive(Default)]
struct Endings {
    next: u64,
    by_id: BTreeMap<EndingId, Ending>,
}

impl Endings {
    /// Among the closed queues in the range `among`, returns the last one that `command` must wait
    /// for.
    fn obstacle(
        &self,
        among: impl std::ops::RangeBounds<EndingId>,
        command: &IoCommand,
    ) -> Option<EndingId> {
        let (namespace, blocks) = blocks_of(command)?;
        // A Copy may read any block.
        let reads_any = matches!(command, IoCommand::Copy { .. });
        let mut endings = self.by_id.range(among).rev();
        let is_obstacle = |ending: &Ending| reads_any || ending.is_obstacle(namespace, &blocks);
        let (id, _) = endings.find(|(_, ending)| is_obstacle(ending))?;
        Some(*id)
    }
}

/// The [`Endings`] that all queues of a host share, with one lock per host. I/O takes the lock only
/// on fenced queues: for writing if the command must wait, otherwise for reading.
#[derive(Clone, Default)]
struct SharedEndings(Arc<RwLock<Endings>>);

impl SharedEndings {
    fn read(&self) -> RwLockReadGuard<'_, Endings> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Endings> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a queue that the target is closing. Its remaining changes are still unknown.
    fn begin(&self) -> EndingId {
        let mut endings = self.write();
        let id = EndingId(endings.next);
        endings.next += 1;
        endings.by_id.insert(id, Ending { changes: None, waiters: Vec::new() });
        id
    }

    /// Records the changes that a closed queue still has under way. Returns the fenced queues to
    /// notify.
    fn know(&self, id: EndingId, changes: Changes) -> Vec<Route> {
        let mut endings = self.write();
        let ending = endings.by_id.get_mut(&id).expect("a fence in progress is listed");
        ending.changes = Some(changes);
        std::mem::take(&mut ending.waiters)
    }

    /// Removes a closed queue whose changes have ended. Returns the fenced queues to notify.
    fn end(&self, id: EndingId) -> Vec<Route> {
        self.write().by_id.remove(&id).map_or_else(Vec::new, |ending| ending.waiters)
    }
}

/// The result of checking a command on a fenced queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FenceAnswer {
    /// The command must wait, and the fence keeps it.
    Held,
    /// The command proceeds.
    Free,
    /// The command proceeds. None of the host's closed queues has changes under way any more, so
    /// the caller can remove the fence.
    Open,
}

/// The waiting commands of a fenced queue.
pub(crate) struct Fence {
    route: Route,
    endings: SharedEndings,
    /// The commands wait only for closed queues with lower identifiers than this: those queues
    /// closed before this queue connected.
    before: EndingId,
    /// The waiting commands in order, by the closed queue that they wait for.
    held: BTreeMap<EndingId, Vec<(SlotId, IoCommand)>>,
}

impl Fence {
    /// Checks a command, and holds the command if it must wait.
    pub(crate) fn admit(&mut self, slot: SlotId, command: &IoCommand) -> FenceAnswer {
        let endings = self.endings.read();
        if endings.obstacle(..self.before, command).is_some() {
            drop(endings);
            return self.hold(slot, command);
        }
        let is_over = endings.by_id.range(..self.before).next().is_none();
        if is_over && self.held.is_empty() { FenceAnswer::Open } else { FenceAnswer::Free }
    }

    /// Holds a command, unless the changes that it must wait for have ended in the meantime.
    fn hold(&mut self, slot: SlotId, command: &IoCommand) -> FenceAnswer {
        let endings = self.endings.clone();
        let mut endings = endings.write();
        let Some(id) = endings.obstacle(..self.before, command) else { return FenceAnswer::Free };
        self.wait(&mut endings, id, (slot, *command));
        FenceAnswer::Held
    }

    /// Stores a command that waits for the closed queue `id`. When the state of `id` changes, the
    /// fenced queue gets one notice for all commands that wait for `id`.
    fn wait(&mut self, endings: &mut Endings, id: EndingId, command: (SlotId, IoCommand)) {
        let held = self.held.entry(id).or_insert_with(|| {
            let ending = endings.by_id.get_mut(&id).expect("found just now");
            ending.waiters.push(self.route);
            Vec::new()
        });
        held.push(command);
    }

    /// Removes a command that no longer waits, for example because it was aborted. The fenced queue
    /// stays registered as a waiter: otherwise each further wait would register it again.
    pub(crate) fn withdraw(&mut self, slot: SlotId) {
        self.held.values_mut().for_each(|held| held.retain(|(waits, _)| *waits != slot));
    }

    /// Handles the notice that the changes of a closed queue are known or have ended. Returns the
    /// commands that may proceed.
    pub(crate) fn on_notice(&mut self, news: EndingId) -> Vec<(SlotId, IoCommand)> {
        let mut released = Vec::new();
        let Some(held) = self.held.remove(&news) else { return released };
        let endings = self.endings.clone();
        let mut endings = endings.write();
        for (slot, command) in held {
            // Check only `news` and older queues. Queues that closed later did not block these
            // commands at the last check, and a closed queue starts no new changes.
            match endings.obstacle(..=news, &command) {
                Some(id) => self.wait(&mut endings, id, (slot, command)),
                None => released.push((slot, command)),
            }
        }
        released
    }
}

/// Identifies a host of a subsystem by the names and the host identifier in its Connect data.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct HostKey {
    subsystem: [u8; 256],
    nqn: [u8; 256],
    id: [u8; 16],
}

impl HostKey {
    pub(crate) fn of(data: &ConnectData) -> Self {
        Self { subsystem: data.subnqn, nqn: data.hostnqn, id: data.hostid }
    }
}

/// A host's closed queues and its number of controllers.
struct Host {
    endings: SharedEndings,
    lives: usize,
}

/// The queue counts of one controller instance, kept until the operations of its last queue have
/// ended.
struct Life {
    host: Arc<HostKey>,
    /// The number of queues, including closed queues with operations still under way.
    queues: usize,
    /// The number of closed queues that may have changes under way.
    ending: usize,
}

/// Every queue of the target, by the serial number of its route.
#[derive(Default)]
pub(crate) struct Queues {
    hosts: HashMap<Arc<HostKey>, Host>,
    lives: HashMap<Instance, Life>,
    open: HashMap<u64, (ControllerId, Instance)>,
    ending: HashMap<u64, (ControllerId, Instance, EndingId)>,
}

/// The fenced queues to notify, and the closed queue whose changes have become known or have ended.
pub(crate) type News = (Vec<Route>, EndingId);

impl Queues {
    /// Adds a connected queue. Returns a fence if it is an I/O queue and its host's earlier queues
    /// may have changes under way.
    pub(crate) fn connected(
        &mut self,
        host: HostKey,
        controller: (ControllerId, Instance),
        route: Route,
        is_io: bool,
    ) -> Option<Box<Fence>> {
        self.open.insert(route.serial, controller);
        let host = self.hosts.get_key_value(&host).map_or_else(|| Arc::new(host), own_key);
        let entry = self.hosts.entry(Arc::clone(&host));
        let entry = entry.or_insert_with(|| Host { endings: SharedEndings::default(), lives: 0 });
        let life = self.lives.entry(controller.1).or_insert_with(|| {
            entry.lives += 1;
            Life { host, queues: 0, ending: 0 }
        });
        life.queues += 1;
        let endings = entry.endings.read();
        let (before, is_fenced) = (EndingId(endings.next), is_io && !endings.by_id.is_empty());
        drop(endings);
        is_fenced.then(|| {
            let endings = entry.endings.clone();
            Box::new(Fence { route, endings, before, held: BTreeMap::new() })
        })
    }

    /// Returns a controller instance that has queues, and its host.
    fn life(&mut self, instance: Instance) -> (&mut Life, &mut Host) {
        let life = self.lives.get_mut(&instance).expect("an instance with queues is listed");
        let host = self.hosts.get_mut(&life.host).expect("a host with controllers is listed");
        (life, host)
    }

    /// Notes that the target is closing a queue. The target learns which changes are still under
    /// way only when the queue has closed.
    pub(crate) fn torn_down(&mut self, serial: u64) {
        if let Some((controller, instance)) = self.open.remove(&serial) {
            let (life, host) = self.life(instance);
            life.ending += 1;
            let id = host.endings.begin();
            self.ending.insert(serial, (controller, instance, id));
        }
    }

    /// Notes that a queue has closed while `changes` are under way. Returns the queues to notify.
    pub(crate) fn closed(&mut self, serial: u64, changes: Vec<Change>) -> Option<News> {
        self.torn_down(serial);
        if changes.is_empty() {
            return self.ended(serial);
        }
        let &(_, instance, id) = self.ending.get(&serial)?;
        Some((self.life(instance).1.endings.know(id, Changes::new(changes)), id))
    }

    /// Notes that the last change of a closed queue has ended. Returns the queues to notify.
    fn ended(&mut self, serial: u64) -> Option<News> {
        let (_, instance, id) = self.ending.remove(&serial)?;
        let (life, host) = self.life(instance);
        life.ending -= 1;
        Some((host.endings.end(id), id))
    }

    /// Removes a closed queue whose last operation has ended. Returns the queues to notify.
    pub(crate) fn gone(&mut self, instance: Instance, serial: u64) -> Option<News> {
        let news = self.ended(serial);
        let (life, host) = self.life(instance);
        life.queues -= 1;
        if life.queues == 0 {
            host.lives -= 1;
            let is_last = host.lives == 0;
            let life = self.lives.remove(&instance).expect("found just now");
            if is_last {
                self.hosts.remove(&life.host);
            }
        }
        news
    }

    /// Returns whether a controller instance has no queues left.
    pub(crate) fn is_gone(&self, instance: Instance) -> bool {
        !self.lives.contains_key(&instance)
    }

    /// Returns the controller of a closed queue.
    pub(crate) fn controller_of(&self, serial: u64) -> Option<(ControllerId, Instance)> {
        let (controller, instance, _) = self.ending.get(&serial)?;
        Some((*controller, *instance))
    }

    /// Returns whether closed queues of a controller instance may have changes under way.
    pub(crate) fn has_changes(&self, instance: Instance) -> bool {
        self.lives.get(&instance).is_some_and(|life| life.ending > 0)
    }
}

fn own_key((key, _): (&Arc<HostKey>, &Host)) -> Arc<HostKey> {
    Arc::clone(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::ConnectionKey;
    use farblock_proto::ids::{BlockCount, Lba};

    fn change(namespace: u32, blocks: Range<u64>) -> Change {
        Change { namespace: NamespaceId(namespace), blocks }
    }

    fn command(namespace: u32, lba: u64) -> IoCommand {
        let namespace = NamespaceId(namespace);
        IoCommand::Verify { namespace, lba: Lba(lba), blocks: BlockCount(2), fua: false }
    }

    #[test]
    fn changes_are_merged_and_found_in_any_order() {
        let changes = [change(2, 10..12), change(1, 6..9), change(1, 2..4), change(1, 3..7)];
        let changes = Changes::new(changes.to_vec());
        assert_eq!(*changes.0, [change(1, 2..9), change(2, 10..12)]);
        let overlaps =
            |namespace, lba: u64| changes.overlap(NamespaceId(namespace), &(lba..lba + 2));
        let found = |namespace| (0..14).filter(|lba| overlaps(namespace, *lba)).collect::<Vec<_>>();
        assert_eq!(found(1), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(found(2), [9, 10, 11]);
        assert!(found(0).is_empty() && found(3).is_empty());
    }

    const LIFE: (ControllerId, Instance) = (ControllerId(1), Instance(1));

    fn route(serial: u64) -> Route {
        Route { core: 0, key: ConnectionKey(serial as u32), serial }
    }

    /// Connects an I/O queue of the test's only host.
    fn connect(queues: &mut Queues, serial: u64) -> Option<Box<Fence>> {
        let host = HostKey { subsystem: [1; 256], nqn: [2; 256], id: [3; 16] };
        queues.connected(host, LIFE, route(serial), true)
    }

    fn ids(released: Vec<(SlotId, IoCommand)>) -> Vec<u16> {
        released.into_iter().map(|(slot, _)| slot.0).collect()
    }

    #[test]
    fn a_command_waits_for_all_closed_queues_that_change_its_blocks() {
        let mut queues = Queues::default();
        for serial in 0..3 {
            assert!(connect(&mut queues, serial).is_none());
        }
        queues.closed(0, vec![change(1, 0..9)]);
        queues.closed(1, vec![change(1, 20..30)]);
        queues.torn_down(2);
        let mut fence = connect(&mut queues, 3).expect("changes are in flight");
        assert_eq!(
            fence.admit(SlotId(0), &command(1, 4)),
            FenceAnswer::Held,
            "the changes are unknown"
        );
        assert_eq!(fence.admit(SlotId(1), &command(1, 40)), FenceAnswer::Held);
        let (told, id) = queues.closed(2, vec![change(1, 90..91)]).expect("a fenced queue waits");
        assert_eq!(told, [route(3)], "one notice for both commands");
        assert_eq!(ids(fence.on_notice(id)), [1], "no queue changes block 40");
        assert_eq!(fence.admit(SlotId(1), &command(1, 40)), FenceAnswer::Free);
        assert_eq!(fence.admit(SlotId(2), &command(1, 88)), FenceAnswer::Free);
        assert_eq!(fence.admit(SlotId(2), &command(1, 90)), FenceAnswer::Held);
        let (told, id) = queues.gone(LIFE.1, 1).expect("there is a queue to notify");
        assert!(told.is_empty() && fence.on_notice(id).is_empty(), "no command waits");
        let (told, id) = queues.gone(LIFE.1, 2).expect("there is a queue to notify");
        assert_eq!((told, ids(fence.on_notice(id))), (vec![route(3)], vec![2]));
        let (told, id) = queues.gone(LIFE.1, 0).expect("there is a queue to notify");
        assert_eq!(fence.admit(SlotId(3), &command(1, 5)), FenceAnswer::Free, "no changes remain");
        assert_eq!((told, ids(fence.on_notice(id))), (vec![route(3)], vec![0]));
        assert_eq!(fence.admit(SlotId(3), &command(1, 5)), FenceAnswer::Open);
    }

    #[test]
    fn a_withdrawn_command_is_not_released() {
        let mut queues = Queues::default();
        assert!(connect(&mut queues, 0).is_none());
        queues.closed(0, vec![change(1, 0..9)]);
        let mut fence = connect(&mut queues, 1).expect("changes are in flight");
        assert_eq!(fence.admit(SlotId(0), &command(1, 4)), FenceAnswer::Held);
        assert_eq!(fence.admit(SlotId(1), &command(1, 4)), FenceAnswer::Held);
        fence.withdraw(SlotId(0));
        for slot in 2..9 {
            fence.withdraw(SlotId(1));
            assert_eq!(fence.admit(SlotId(slot), &command(1, 4)), FenceAnswer::Held);
            fence.withdraw(SlotId(slot));
            assert_eq!(fence.admit(SlotId(1), &command(1, 4)), FenceAnswer::Held);
        }
        let (told, id) = queues.gone(LIFE.1, 0).expect("there is a queue to notify");
        assert_eq!((told, ids(fence.on_notice(id))), (vec![route(1)], vec![1]), "one notice");
        assert_eq!(fence.admit(SlotId(0), &command(1, 4)), FenceAnswer::Open);
    }

    #[test]
    fn a_command_does_not_wait_for_queues_that_close_later() {
        let mut queues = Queues::default();
        (0..2).for_each(|serial| assert!(connect(&mut queues, serial).is_none()));
        queues.closed(0, vec![change(1, 0..1)]);
        let mut fence = connect(&mut queues, 2).expect("changes are in flight");
        queues.closed(1, vec![change(1, 4..5)]);
        assert_eq!(fence.admit(SlotId(0), &command(1, 4)), FenceAnswer::Free);
        queues.gone(LIFE.1, 0);
        assert_eq!(fence.admit(SlotId(0), &command(1, 4)), FenceAnswer::Open);
    }

    #[test]
    fn only_queues_with_waiting_commands_are_notified() {
        const ENDED: u64 = 3000;
        const FENCED: u64 = 400;
        let mut queues = Queues::default();
        (0..ENDED).for_each(|serial| assert!(connect(&mut queues, serial).is_none()));
        (0..ENDED).for_each(|serial| queues.torn_down(serial));
        let mut fences: Vec<_> =
            (0..FENCED).map(|at| connect(&mut queues, ENDED + at).expect("fenced")).collect();
        // All closed queues change the same block. Half of the new queues access that block. The
        // other half access another block.
        let mut messages = 0;
        let mut tell = |fences: &mut Vec<Box<Fence>>, news: Option<News>| {
            let (told, id) = news.expect("an open queue");
            messages += told.len();
            for route in told {
                for (slot, command) in fences[(route.serial - ENDED) as usize].on_notice(id) {
                    assert_eq!((slot, command), (SlotId(0), command_of(route.serial)));
                }
            }
        };
        fn command_of(serial: u64) -> IoCommand {
            command(1, serial % 2 * 50)
        }
        for (fence, serial) in fences.iter_mut().zip(ENDED..) {
            assert_eq!(fence.admit(SlotId(0), &command_of(serial)), FenceAnswer::Held);
        }
        for serial in 0..ENDED {
            tell(&mut fences, queues.closed(serial, vec![change(1, 0..1)]));
        }
        for serial in 0..ENDED {
            tell(&mut fences, queues.gone(LIFE.1, serial));
        }
        // Each fenced queue gets a message when the changes of the last closed queue are known. The
        // half that still waits gets a second message.
        assert_eq!(messages as u64, FENCED + FENCED / 2);
        assert!(fences.iter().all(|fence| fence.held.is_empty()));
        for at in 0..FENCED {
            queues.closed(ENDED + at, Vec::new());
            queues.gone(LIFE.1, ENDED + at);
        }
        assert!(queues.hosts.is_empty() && queues.lives.is_empty() && queues.ending.is_empty());
    }
}
