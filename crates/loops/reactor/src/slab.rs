//! [`Slab`]: slots with generations. The key of a removed entry does not find a later entry in the
//! same slot.

/// The index of a slot and the generation of its entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// The number of bits of a generation. With 24 bits, a key fits in 56 bits of io_uring's
/// `user_data`.
pub(crate) const GENERATION_BITS: u32 = 24;

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// A vector whose slots can be freed and reused. The slot that was freed last is reused first, with
/// the next generation. A generation distinguishes a late event of a closed object from an event of
/// the object that now has its slot. The crate `slab` has no generations.
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Slab<T> {
        Slab { slots: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn insert(&mut self, value: T) -> Key {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.value = Some(value);
            return Key { index, generation: slot.generation };
        }
        let index = u32::try_from(self.slots.len()).expect("slab is full");
        self.slots.push(Slot { generation: 0, value: Some(value) });
        Key { index, generation: 0 }
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation != key.generation {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = (slot.generation + 1) & ((1 << GENERATION_BITS) - 1);
        self.free.push(key.index);
        Some(value)
    }

    pub(crate) fn find(&self, key: Key) -> Option<&T> {
        let slot = self.slots.get(key.index as usize)?;
        if slot.generation == key.generation { slot.value.as_ref() } else { None }
    }

    pub(crate) fn find_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation == key.generation { slot.value.as_mut() } else { None }
    }

    /// Returns the current entry of a slot and its key, whatever its generation.
    pub(crate) fn at_mut(&mut self, index: u32) -> Option<(Key, &mut T)> {
        let slot = self.slots.get_mut(index as usize)?;
        let key = Key { index, generation: slot.generation };
        slot.value.as_mut().map(|value| (key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_keys_find_nothing() {
        let mut slab = Slab::new();
        let a = slab.insert("a");
        assert_eq!(slab.remove(a), Some("a"));
        let b = slab.insert("b");
        assert_eq!(a.index, b.index);
        assert_eq!(slab.remove(a), None);
        assert_eq!((slab.find(a), slab.find(b)), (None, Some(&"b")));
        assert_eq!(slab.at_mut(a.index).map(|(key, _)| key), Some(b));
    }

    #[test]
    fn generations_wrap_within_their_bits() {
        let mut slab = Slab::new();
        let first = slab.insert(());
        slab.slots[0].generation = (1 << GENERATION_BITS) - 1;
        slab.remove(Key { index: 0, generation: (1 << GENERATION_BITS) - 1 }).unwrap();
        assert_eq!(slab.insert(()), first);
    }
}
