//! The table of a thread's connections.

use farblock_reactor::{TaskId, TaskMap};

/// Names a connection in its thread's table; another may have the name after it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnectionKey(pub u32);

/// Connections by their keys, and by the tasks whose events are theirs.
pub struct Connections<C> {
    entries: Vec<Option<Box<C>>>,
    free: Vec<ConnectionKey>,
    by_task: TaskMap<ConnectionKey>,
}

impl<C> Default for Connections<C> {
    fn default() -> Connections<C> {
        Connections { entries: Vec::new(), free: Vec::new(), by_task: TaskMap::default() }
    }
}

impl<C> Connections<C> {
    /// Takes a connection in, which is made with its key.
    pub fn insert(&mut self, task: TaskId, make: impl FnOnce(ConnectionKey) -> C) -> ConnectionKey {
        let key = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            ConnectionKey(self.entries.len() as u32 - 1)
        });
        self.by_task.insert(task, key);
        self.entries[key.0 as usize] = Some(Box::new(make(key)));
        key
    }

    /// Lets a connection go.
    pub fn remove(&mut self, key: ConnectionKey, task: TaskId) {
        self.by_task.remove(task);
        if self.entries[key.0 as usize].take().is_some() {
            self.free.push(key);
        }
    }

    /// Whose events a task has.
    #[must_use]
    pub fn of_task(&self, task: TaskId) -> Option<ConnectionKey> {
        self.by_task.get(task).copied()
    }

    /// A connection, unless it is gone.
    #[must_use]
    pub fn get(&self, key: ConnectionKey) -> Option<&C> {
        self.entries[key.0 as usize].as_deref()
    }

    /// A connection, unless it is gone.
    pub fn get_mut(&mut self, key: ConnectionKey) -> Option<&mut C> {
        self.entries[key.0 as usize].as_deref_mut()
    }

    /// A connection that has events or operations, so that it is there.
    ///
    /// # Panics
    /// If it is gone.
    pub fn alive(&mut self, key: ConnectionKey) -> &mut C {
        self.get_mut(key).expect("a connection outlives its events and operations")
    }

    /// All that are there, with their keys.
    pub fn iter(&self) -> impl Iterator<Item = (ConnectionKey, &C)> {
        let all = self.entries.iter().enumerate();
        all.filter_map(|(index, entry)| Some((ConnectionKey(index as u32), entry.as_deref()?)))
    }

    /// All that are there, with their keys.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (ConnectionKey, &mut C)> {
        let all = self.entries.iter_mut().enumerate();
        all.filter_map(|(index, entry)| Some((ConnectionKey(index as u32), entry.as_deref_mut()?)))
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}
