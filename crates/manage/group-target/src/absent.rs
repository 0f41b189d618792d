//! The stand-in for a disk at a member that does not lead the disk's ANA group.

use farblock_block::{Availability, BlockError, Completion, Geometry, Namespace, Op, Queue};
use farblock_reactor::{Reactor, TaskId};

/// A namespace with the size of a disk, whose operations all fail. The target submits none to it,
/// because its ANA group is inaccessible.
#[derive(Clone, Debug)]
pub struct Absent {
    geometry: Geometry,
    name: String,
}

impl Absent {
    /// Creates the stand-in for a disk with this name and geometry.
    #[must_use]
    pub fn new(name: &str, geometry: Geometry) -> Self {
        Self { geometry, name: name.to_owned() }
    }

    /// Returns the same stand-in with another geometry.
    pub(crate) fn with(&self, geometry: Geometry) -> Self {
        Self { geometry, name: self.name.clone() }
    }
}

impl Namespace for Absent {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn describe(&self) -> String {
        format!("{} (closed: another member of the group leads it)", self.name)
    }

    fn availability(&self) -> Availability {
        Availability::Ready
    }

    fn open(&self, _: &Reactor, _: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        Ok(Box::new(AbsentQueue::default()))
    }
}

#[derive(Default)]
struct AbsentQueue {
    done: Vec<Completion>,
}

impl Queue for AbsentQueue {
    fn submit(&mut self, op: Op) {
        // After a path error, a host sends the command again on another path.
        self.done.push(op.complete(Err(BlockError::Disconnected)));
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.done);
    }

    fn in_flight(&self) -> usize {
        self.done.len()
    }
}
