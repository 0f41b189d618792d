//! [`Slab`]: the operations of a queue that are in flight. The key of each is a small number, which
//! serves as its token.

/// The table of the crate `slab`, with tokens as keys. A steady load allocates nothing. Keys have
/// no generation, so callers must remove each key exactly once. Decision 3 (in `docs/decisions`)
/// explains why some of farblock's tables do not use this type.
pub struct Slab<T>(slab::Slab<T>);

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab::new()
    }
}

impl<T> Slab<T> {
    /// Creates an empty slab.
    #[must_use]
    pub fn new() -> Slab<T> {
        Slab(slab::Slab::new())
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the slab has no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Inserts an entry and returns its key.
    pub fn insert(&mut self, value: T) -> u64 {
        self.0.insert(value) as u64
    }

    /// Returns the entry at `key`.
    ///
    /// # Panics
    /// Panics if there is no entry, because an operation was completed twice.
    pub fn at(&mut self, key: u64) -> &mut T {
        self.0.get_mut(key as usize).expect("an operation completed twice")
    }

    /// Removes and returns the entry at `key`.
    ///
    /// # Panics
    /// Panics if there is no entry, because an operation was completed twice.
    pub fn remove(&mut self, key: u64) -> T {
        self.0.try_remove(key as usize).expect("an operation completed twice")
    }

    /// Returns the keys of all entries for which `holds` returns true.
    pub fn keys_of(&self, mut holds: impl FnMut(&T) -> bool) -> Vec<u64> {
        let of = |(key, value): (usize, &T)| holds(value).then_some(key as u64);
        self.0.iter().filter_map(of).collect()
    }

    /// Removes and returns all entries.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        self.0.drain()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_keys_are_reused() {
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
    #[should_panic(expected = "an operation completed twice")]
    fn removing_a_key_twice_panics() {
        let mut slab = Slab::new();
        let key = slab.insert(());
        slab.remove(key);
        slab.remove(key);
    }
}
