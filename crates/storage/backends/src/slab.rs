//! [`Slab`]: what is in flight, found again by a small number.

/// A vector with holes that are reused, so that a steady load allocates nothing.
///
/// Keys have no generation: every key here is handed to something that gives it back exactly once.
pub(crate) struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Slab<T> {
        Slab { slots: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, value: T) -> u64 {
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
    pub(crate) fn at(&mut self, key: u64) -> &mut T {
        self.slots[key as usize].as_mut().expect("completed twice")
    }

    /// Takes out what is at `key`.
    ///
    /// # Panics
    /// If nothing is: something was completed twice.
    pub(crate) fn remove(&mut self, key: u64) -> T {
        let value = self.slots[key as usize].take().expect("completed twice");
        self.free.push(key as u32);
        value
    }

    /// Takes out everything.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
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
