//! [`Timers`]: one deadline per task, in a binary heap with an index of each task's position. So
//! moving a deadline, for example for every command, allocates nothing and leaves no stale entry.

use std::time::Instant;

/// The heap position of a task without a deadline.
const NOWHERE: u32 = u32::MAX;

#[derive(Default)]
pub(crate) struct Timers {
    /// Pairs of deadline and task index. They form a binary heap: the deadline of entry
    /// `(i - 1) / 2` is never later than the deadline of entry `i`.
    heap: Vec<(Instant, u32)>,
    /// The heap position of each task, by task index.
    places: Vec<u32>,
}

impl Timers {
    /// Returns the earliest deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.first().map(|&(deadline, _)| deadline)
    }

    /// Sets, moves or removes a task's deadline.
    pub(crate) fn set(&mut self, task: u32, deadline: Option<Instant>) {
        if self.places.len() <= task as usize {
            if deadline.is_none() {
                return;
            }
            self.places.resize(task as usize + 1, NOWHERE);
        }
        let place = self.places[task as usize];
        match (deadline, place) {
            (None, NOWHERE) => {}
            (None, place) => self.remove_at(place as usize),
            (Some(deadline), NOWHERE) => {
                self.heap.push((deadline, task));
                self.sift(self.heap.len() - 1);
            }
            (Some(deadline), place) => {
                self.heap[place as usize].0 = deadline;
                self.sift(place as usize);
            }
        }
    }

    /// Removes and returns a task whose deadline has passed.
    pub(crate) fn pop_expired(&mut self, now: Instant) -> Option<u32> {
        let &(deadline, task) = self.heap.first()?;
        if deadline > now {
            return None;
        }
        self.remove_at(0);
        Some(task)
    }

    fn remove_at(&mut self, place: usize) {
        let (_, task) = self.heap.swap_remove(place);
        self.places[task as usize] = NOWHERE;
        if place < self.heap.len() {
            self.sift(place);
        }
    }

    /// Moves the entry at `place` up or down to its position.
    fn sift(&mut self, mut place: usize) {
        while place > 0 && self.heap[place].0 < self.heap[(place - 1) / 2].0 {
            self.swap(place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
        loop {
            let left = 2 * place + 1;
            let Some(&(left_deadline, _)) = self.heap.get(left) else { break };
            let right = left + 1;
            let least = match self.heap.get(right) {
                Some(&(right_deadline, _)) if right_deadline < left_deadline => right,
                _ => left,
            };
            if self.heap[place].0 <= self.heap[least].0 {
                break;
            }
            self.swap(place, least);
            place = least;
        }
        self.places[self.heap[place].1 as usize] = place as u32;
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.places[self.heap[a].1 as usize] = a as u32;
        self.places[self.heap[b].1 as usize] = b as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_random::Random;
    use std::collections::HashMap;
    use std::time::Duration;

    #[test]
    fn timers_expire_in_order_like_a_sorted_map() {
        let (mut timers, mut model) = (Timers::default(), HashMap::new());
        let start = Instant::now();
        let mut random = Random::new(1);
        let mut now = start;
        for _ in 0..20_000 {
            let task = random.below(50) as u32;
            match random.below(4) {
                0 => {
                    timers.set(task, None);
                    model.remove(&task);
                }
                1 | 2 => {
                    let deadline = now + Duration::from_millis(random.below(100));
                    timers.set(task, Some(deadline));
                    model.insert(task, deadline);
                }
                _ => {
                    now += Duration::from_millis(random.below(5));
                    let mut last = start;
                    while let Some(task) = timers.pop_expired(now) {
                        let deadline =
                            model.remove(&task).expect("the model has the expired timer");
                        assert!(deadline <= now && last <= deadline);
                        last = deadline;
                    }
                    assert!(model.values().all(|&deadline| deadline > now));
                }
            }
            assert_eq!(timers.next(), model.values().min().copied());
        }
    }
}
