//! [`Slab`]: what is in flight in a queue, found again by a small number, which is a token.

/// A vector with holes that are reused, so that a steady load allocates nothing.
///
/// Keys have no generation: every key here is handed to something that gives it back exactly once.
/// Every operation goes through it, so it is not exchanged for the crate `slab` before somebody has
/// measured that.
pub struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab::new()
    }
}

impl<T> Slab<T> {
    /// One that holds nothing.
    #[must_use]
    pub fn new() -> Slab<T> {
        Slab { slots: Vec::new(), free: Vec::new() }
    }

    /// How much is in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts something in; gives its key.
    ///
    /// # Panics
    /// If four billion are in it.
    pub fn insert(&mut self, value: T) -> u64 {
        if let Some(at) = self.free.pop() {
            self.slots[at as usize] = Some(value);
            return u64::from(at);
        }
        let at = u32::try_from(self.slots.len()).expect("four billion operations in flight");
        self.slots.push(Some(value));
        u64::from(at)
    }

    /// What is at `key`.
    ///
    /// # Panics
    /// If nothing is: something was completed twice.
    pub fn at(&mut self, key: u64) -> &mut T {
        self.slots[key as usize].as_mut().expect("completed twice")
    }

    /// Takes out what is at `key`.
    ///
    /// # Panics
    /// If nothing is: something was completed twice.
    pub fn remove(&mut self, key: u64) -> T {
        let value = self.slots[key as usize].take().expect("completed twice");
        self.free.push(key as u32);
        value
    }

    /// The keys of all that `holds` is true of.
    pub fn keys_of(&self, mut holds: impl FnMut(&T) -> bool) -> Vec<u64> {
        let of = |(at, slot): (usize, &Option<T>)| {
            slot.as_ref().is_some_and(&mut holds).then_some(at as u64)
        };
        self.slots.iter().enumerate().filter_map(of).collect()
    }

    /// Takes out everything.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        self.free.clear();
        self.slots.drain(..).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_reused() {
        let mut slab = Slab::new();
        let (a, b) = (slab.insert("a"), slab.insert("b"));
        assert_eq!((slab.len(), slab.remove(a), slab.len()), (2, "a", 1));
        assert_eq!(slab.keys_of(|_| true), [b]);
        assert_eq!(slab.insert("c"), a);
        assert_eq!((*slab.at(a), *slab.at(b)), ("c", "b"));
        assert_eq!(slab.drain().collect::<Vec<_>>(), ["c", "b"]);
        assert_eq!(slab.len(), 0);
    }

    #[test]
    #[should_panic(expected = "completed twice")]
    fn a_key_works_once() {
        let mut slab = Slab::new();
        let key = slab.insert(());
        slab.remove(key);
        slab.remove(key);
    }
}
