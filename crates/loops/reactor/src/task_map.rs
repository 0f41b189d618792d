//! [`TaskMap`]: a map from tasks to values, for a loop that looks up the value of every ready task.

use crate::ids::TaskId;

/// A map from tasks to values. A reactor numbers its tasks from zero, and reuses the numbers of
/// removed tasks. So the map uses a task's number as an index, and needs no hashing. All tasks must
/// belong to one reactor.
#[derive(Debug)]
pub struct TaskMap<V> {
    places: Vec<Option<(TaskId, V)>>,
    len: usize,
}

impl<V> Default for TaskMap<V> {
    fn default() -> TaskMap<V> {
        TaskMap { places: Vec::new(), len: 0 }
    }
}

impl<V> TaskMap<V> {
    /// Sets a task's value. Replaces the value of a removed task with the same number.
    pub fn insert(&mut self, task: TaskId, value: V) {
        let index = task.0.index as usize;
        if index >= self.places.len() {
            self.places.resize_with(index + 1, || None);
        }
        if self.places[index].replace((task, value)).is_none() {
            self.len += 1;
        }
    }

    /// Returns a task's value.
    #[must_use]
    pub fn get(&self, task: TaskId) -> Option<&V> {
        let (of, value) = self.places.get(task.0.index as usize)?.as_ref()?;
        (*of == task).then_some(value)
    }

    /// Removes and returns a task's value.
    pub fn remove(&mut self, task: TaskId) -> Option<V> {
        self.get(task)?;
        let (_, value) = self.places[task.0.index as usize].take()?;
        self.len -= 1;
        self.give_back();
        Some(value)
    }

    /// Whether no task has a value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Frees memory if most of the map is unused.
    fn give_back(&mut self) {
        while let Some(None) = self.places.last() {
            self.places.pop();
        }
        if self.places.len() < self.places.capacity() / 4 {
            self.places.shrink_to(self.places.len() * 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::Key;

    fn task(index: u32, generation: u32) -> TaskId {
        TaskId(Key { index, generation })
    }

    #[test]
    fn a_value_is_found_only_for_its_own_task() {
        let mut map = TaskMap::default();
        map.insert(task(2, 0), 'a');
        assert_eq!(map.get(task(2, 0)), Some(&'a'));
        assert_eq!(
            (map.get(task(2, 1)), map.get(task(0, 0)), map.get(task(9, 0))),
            (None, None, None)
        );
        map.insert(task(2, 1), 'b');
        assert_eq!(map.get(task(2, 0)), None);
        assert_eq!(map.remove(task(2, 0)), None);
        assert_eq!(map.remove(task(2, 1)), Some('b'));
        assert!(map.is_empty() && map.remove(task(2, 1)).is_none());
    }

    #[test]
    fn removing_many_values_releases_memory() {
        let mut map = TaskMap::default();
        for index in 0..10_000 {
            map.insert(task(index, 0), index);
        }
        for index in 1..10_000 {
            assert_eq!(map.remove(task(index, 0)), Some(index));
        }
        assert!(!map.is_empty() && map.places.capacity() < 100, "{}", map.places.capacity());
        assert_eq!(map.get(task(0, 0)), Some(&0));
    }
}
