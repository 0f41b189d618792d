//! What is left of a host's queues that ended, and what has to wait for it.
//!
//! An operation that a namespace has cannot be taken back. If its queue ends (lost, reset, or with
//! its controller), the host does not learn what became of it, and sends it again through another
//! queue: then the first attempt must not be carried out after the second. So a queue that a host
//! connects while changes of its earlier queues are under way is *fenced*: its commands for the
//! blocks that those change wait, reads too, and all others go on. The host sees slow blocks, which
//! they are, and not a refused Connect. See decision 14.
//!
//! ```text
//!   open --- torn down ---> ending, changes unknown --- closed --> changes known --- ended -->
//! gone
//!     \__________________ the host closed it ________________________/   (or none at all)
//! ```
//!
//! All fenced queues share what is known of an earlier one, and a command that waits is looked at
//! again only when the queue that it waits for has news: a host may have thousands of each.

use crate::shared::Route;
use farblock_proto::capsule::SlotId;
use farblock_proto::controller::{Instance, IoCommand};
use farblock_proto::ids::{ControllerId, NamespaceId};
use farblock_wire::fabrics::ConnectData;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Blocks that an operation under way changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Change {
    namespace: NamespaceId,
    blocks: Range<u64>,
}

impl Change {
    /// What a command changes, if anything.
    pub(crate) fn of(command: &IoCommand) -> Option<Self> {
        let (namespace, blocks) = blocks_of(command)?;
        command.changes().then_some(Self { namespace, blocks })
    }
}

/// The blocks that a command is about: of a deallocation, which names many, all that there are.
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
        IoCommand::Flush { .. } | IoCommand::Advise { .. } | IoCommand::Fabrics => None,
    }
}

/// What the operations of a queue change that are under way: cheap to share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Changes(Arc<[Change]>);

impl Changes {
    /// These, in rising order; what overlaps or adjoins is one.
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

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn overlap(&self, namespace: NamespaceId, blocks: &Range<u64>) -> bool {
        let is_before =
            |change: &Change| (change.namespace, change.blocks.end) <= (namespace, blocks.start);
        let next = self.0.get(self.0.partition_point(is_before));
        next.is_some_and(|next| next.namespace == namespace && next.blocks.start < blocks.end)
    }
}

/// What a fenced queue waits for.
pub(crate) struct Fence {
    /// Queues of the host that ended before, by serial number in rising order, and what they still
    /// change; `None` as long as that is not known.
    before: Vec<(u64, Option<Changes>)>,
    /// Commands that wait, in order, and for which of those queues.
    held: VecDeque<(SlotId, IoCommand, u64)>,
}

impl Fence {
    /// Whether a command has to wait: then it is held.
    pub(crate) fn holds_back(&mut self, slot: SlotId, command: &IoCommand) -> bool {
        let obstacle = self.obstacle(command, 0);
        obstacle.into_iter().for_each(|serial| self.held.push_back((slot, *command, serial)));
        obstacle.is_some()
    }

    /// The first queue from this serial number on that a command has to wait for. Those before it
    /// can be left out once they were none: what a queue changes only becomes less.
    fn obstacle(&self, command: &IoCommand, from: u64) -> Option<u64> {
        let (namespace, blocks) = blocks_of(command)?;
        let first = self.before.partition_point(|(serial, _)| *serial < from);
        let is_obstacle = |changes: &Option<Changes>| {
            changes.as_ref().is_none_or(|changes| changes.overlap(namespace, &blocks))
        };
        let found = self.before[first..].iter().find(|(_, changes)| is_obstacle(changes))?;
        Some(found.0)
    }

    /// What is known of an earlier queue now. Gives the commands that need not wait any more.
    pub(crate) fn hear(&mut self, news: &News) -> Vec<(SlotId, IoCommand)> {
        let mut released = Vec::new();
        let place = self.before.binary_search_by_key(&news.serial, |(serial, _)| *serial);
        let Ok(place) = place else { return released };
        if news.changes.is_empty() {
            self.before.remove(place);
        } else {
            self.before[place].1 = Some(news.changes.clone());
        }
        let mut held = std::mem::take(&mut self.held);
        held.retain_mut(|(slot, command, serial)| {
            if *serial != news.serial {
                return true;
            }
            let next = self.obstacle(command, news.serial);
            match next {
                Some(next) => *serial = next,
                None => released.push((*slot, *command)),
            }
            next.is_some()
        });
        self.held = held;
        released
    }

    /// Nothing is left to wait for.
    pub(crate) fn is_down(&self) -> bool {
        self.before.is_empty()
    }
}

/// What became of a queue that ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct News {
    /// Which queue.
    serial: u64,
    /// What it still changes: nothing when that is over.
    changes: Changes,
}

/// A host at a subsystem: names as they are in the Connect command's data.
#[derive(PartialEq, Eq)]
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

/// One life of a controller.
struct Life {
    host: HostKey,
    /// Its queues, those included that were closed but have operations left with a namespace.
    queues: usize,
}

/// A queue that ended and may have changes under way.
struct Ending {
    instance: Instance,
    controller: ControllerId,
    changes: Option<Changes>,
}

/// Every queue of the target, by its route's serial number.
#[derive(Default)]
pub(crate) struct Queues {
    lives: HashMap<Instance, Life>,
    open: HashMap<u64, (ControllerId, Instance)>,
    ending: HashMap<u64, Ending>,
    /// Queues that were connected fenced and are not closed.
    fenced: HashMap<u64, (Instance, Route)>,
}

impl Queues {
    /// A queue was connected. An I/O queue may be fenced.
    pub(crate) fn connected(
        &mut self,
        host: HostKey,
        controller: (ControllerId, Instance),
        route: Route,
        is_io: bool,
    ) -> Option<Box<Fence>> {
        self.open.insert(route.serial, controller);
        let mut before = Vec::new();
        for (&serial, ending) in self.ending.iter().filter(|_| is_io) {
            if self.lives.get(&ending.instance).is_some_and(|life| life.host == host) {
                before.push((serial, ending.changes.clone()));
            }
        }
        before.sort_unstable_by_key(|(serial, _)| *serial);
        if !before.is_empty() {
            self.fenced.insert(route.serial, (controller.1, route));
        }
        self.lives.entry(controller.1).or_insert(Life { host, queues: 0 }).queues += 1;
        (!before.is_empty()).then(|| Box::new(Fence { before, held: VecDeque::new() }))
    }

    /// A queue is to be closed: whether it has changes under way is not known before it is.
    pub(crate) fn torn_down(&mut self, serial: u64) {
        self.fenced.remove(&serial);
        if let Some((controller, instance)) = self.open.remove(&serial) {
            let ending = Ending { instance, controller, changes: None };
            self.ending.insert(serial, ending);
        }
    }

    /// A queue is closed, and has these changes under way. Gives what others are to be told.
    pub(crate) fn closed(
        &mut self,
        serial: u64,
        changes: Vec<Change>,
    ) -> Option<(Vec<Route>, News)> {
        self.torn_down(serial);
        if changes.is_empty() {
            return self.ended(serial);
        }
        let changes = Changes::new(changes);
        let ending = self.ending.get_mut(&serial)?;
        ending.changes = Some(changes.clone());
        let instance = ending.instance;
        Some((self.waiters(instance), News { serial, changes }))
    }

    /// The fenced queues of the host whose controller's life this is or was.
    fn waiters(&self, instance: Instance) -> Vec<Route> {
        let Some(life) = self.lives.get(&instance) else { return Vec::new() };
        let is_its =
            |other: &Instance| self.lives.get(other).is_some_and(|other| other.host == life.host);
        let fenced = self.fenced.values();
        fenced.filter(|(other, _)| is_its(other)).map(|(_, route)| *route).collect()
    }

    /// A closed queue's last change ended.
    fn ended(&mut self, serial: u64) -> Option<(Vec<Route>, News)> {
        let ending = self.ending.remove(&serial)?;
        let none = Changes::new(Vec::new());
        Some((self.waiters(ending.instance), News { serial, changes: none }))
    }

    /// Nothing is left of a closed queue, and of what it had handed to namespaces.
    pub(crate) fn gone(&mut self, instance: Instance, serial: u64) -> Option<(Vec<Route>, News)> {
        // While its host is known.
        let news = self.ended(serial);
        let life = self.lives.get_mut(&instance).expect("counted when it was connected");
        life.queues -= 1;
        if life.queues == 0 {
            self.lives.remove(&instance);
        }
        news
    }

    /// Whether nothing is left of any queue of a controller's life.
    pub(crate) fn is_gone(&self, instance: Instance) -> bool {
        !self.lives.contains_key(&instance)
    }

    /// The controller of a queue that ended.
    pub(crate) fn controller_of(&self, serial: u64) -> Option<(ControllerId, Instance)> {
        let ending = self.ending.get(&serial)?;
        Some((ending.controller, ending.instance))
    }

    /// Whether closed queues of a controller's life have changes under way.
    pub(crate) fn has_changes(&self, instance: Instance) -> bool {
        self.ending.values().any(|ending| ending.instance == instance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::ConnectionKey;
    use farblock_proto::ids::{BlockCount, Lba};

    fn change(namespace: u32, blocks: Range<u64>) -> Change {
        Change { namespace: NamespaceId(namespace), blocks }
    }

    fn command(namespace: u32, lba: u64) -> IoCommand {
        let namespace = NamespaceId(namespace);
        IoCommand::Verify { namespace, lba: Lba(lba), blocks: BlockCount(2), fua: false }
    }

    #[test]
    fn changes_are_found_whatever_their_order() {
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

    #[test]
    fn a_command_waits_for_one_queue_after_the_other() {
        let known = |blocks| Some(Changes::new(vec![change(1, blocks)]));
        let before = vec![(3, None), (5, known(0..9)), (7, known(20..30))];
        let mut fence = Fence { before, held: VecDeque::new() };
        let (near, far) = ((SlotId(0), command(1, 4)), (SlotId(1), command(1, 40)));
        assert!(fence.holds_back(near.0, &near.1) && fence.holds_back(far.0, &far.1));
        let news = |serial, changes| News { serial, changes: Changes::new(changes) };
        assert!(fence.hear(&news(4, vec![])).is_empty(), "not one of its queues");
        assert!(fence.hear(&news(7, vec![])).is_empty());
        assert_eq!(fence.hear(&news(3, vec![change(1, 90..91)])), [far]);
        assert!(fence.hear(&news(3, vec![])).is_empty() && !fence.is_down());
        assert_eq!(fence.hear(&news(5, vec![])), [near]);
        assert!(fence.is_down());
    }

    #[test]
    fn thousands_of_fenced_queues_share_what_they_wait_for() {
        let host = || HostKey { subsystem: [1; 256], nqn: [2; 256], id: [3; 16] };
        let life = (ControllerId(1), Instance(1));
        let route = |serial| Route { core: 0, key: ConnectionKey(0), serial };
        let mut queues = Queues::default();
        assert!(queues.connected(host(), life, route(0), true).is_none());
        queues.closed(0, vec![change(1, 0..1); 9]);
        let fences: Vec<_> =
            (1..9).map(|serial| queues.connected(host(), life, route(serial), true)).collect();
        let shared = &queues.ending[&0].changes.as_ref().expect("known").0;
        assert_eq!(Arc::strong_count(shared), 1 + fences.iter().flatten().count());
        // What is closed is not told.
        queues.closed(1, Vec::new());
        assert_eq!(queues.ended(0).map(|(waiters, _)| waiters.len()), Some(7));
    }
}
