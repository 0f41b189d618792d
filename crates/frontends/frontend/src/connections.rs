//! A thread's table of connections.

use farblock_reactor::{TaskId, TaskMap};
use slab::Slab;

/// The number of a connection in its thread's table. A later connection may reuse the number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnectionKey(pub u32);

/// A table of connections. Finds a connection by its key, or by the task that receives its events.
pub struct Connections<C> {
    entries: Slab<Box<C>>,
    by_task: TaskMap<ConnectionKey>,
}

impl<C> Default for Connections<C> {
    fn default() -> Connections<C> {
        Connections { entries: Slab::new(), by_task: TaskMap::default() }
    }
}

impl<C> Connections<C> {
    /// Calls `make` with a new key, and adds the connection that `make` returns.
    pub fn insert(&mut self, task: TaskId, make: impl FnOnce(ConnectionKey) -> C) -> ConnectionKey {
        let entry = self.entries.vacant_entry();
        let key = ConnectionKey(entry.key() as u32);
        self.by_task.insert(task, key);
        entry.insert(Box::new(make(key)));
        key
    }

    /// Removes a connection.
    pub fn remove(&mut self, key: ConnectionKey, task: TaskId) {
        self.by_task.remove(task);
        self.entries.try_remove(key.0 as usize);
    }

    /// The key of the connection whose events this task receives.
    #[must_use]
    pub fn of_task(&self, task: TaskId) -> Option<ConnectionKey> {
        self.by_task.get(task).copied()
    }

    /// The connection with this key; `None` if the connection was removed.
    #[must_use]
    pub fn get(&self, key: ConnectionKey) -> Option<&C> {
        self.entries.get(key.0 as usize).map(|entry| &**entry)
    }

    /// The connection with this key, mutable; `None` if the connection was removed.
    pub fn get_mut(&mut self, key: ConnectionKey) -> Option<&mut C> {
        self.entries.get_mut(key.0 as usize).map(|entry| &mut **entry)
    }

    /// The connection with this key. The caller must handle an event or operation of this
    /// connection: a connection exists until its last event and operation.
    ///
    /// # Panics
    /// Panics if there is no such connection.
    pub fn alive(&mut self, key: ConnectionKey) -> &mut C {
        self.get_mut(key).expect("a connection outlives its events and operations")
    }

    /// All connections, with their keys.
    pub fn iter(&self) -> impl Iterator<Item = (ConnectionKey, &C)> {
        self.entries.iter().map(|(index, entry)| (ConnectionKey(index as u32), &**entry))
    }

    /// All connections, mutable, with their keys.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (ConnectionKey, &mut C)> {
        self.entries.iter_mut().map(|(index, entry)| (ConnectionKey(index as u32), &mut **entry))
    }

    /// The number of connections.
    #[must_use]
    pub fn count(&self) -> usize {
        self.entries.len()
    }
}
