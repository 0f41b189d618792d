//! A map from namespace numbers. Most subsystems have a few namespaces; some have a thousand.

use farblock_proto::ids::NamespaceId;

/// A vector of entries, sorted by namespace number.
#[derive(Clone, Debug)]
pub(crate) struct ByNamespace<T>(Vec<(NamespaceId, T)>);

impl<T> Default for ByNamespace<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> ByNamespace<T> {
    fn place(&self, nsid: NamespaceId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&nsid, |(id, _)| *id)
    }

    pub(crate) fn find(&self, nsid: NamespaceId) -> Option<&T> {
        self.place(nsid).ok().map(|place| &self.0[place].1)
    }

    /// Returns the entry of `nsid`, and inserts it if absent.
    pub(crate) fn find_or_insert(&mut self, nsid: NamespaceId, make: impl FnOnce() -> T) -> &T {
        let place = self.place(nsid).unwrap_or_else(|place| {
            self.0.insert(place, (nsid, make()));
            place
        });
        &self.0[place].1
    }

    pub(crate) fn set(&mut self, nsid: NamespaceId, value: T) {
        match self.place(nsid) {
            Ok(place) => self.0[place].1 = value,
            Err(place) => self.0.insert(place, (nsid, value)),
        }
    }

    pub(crate) fn remove(&mut self, nsid: NamespaceId) {
        if let Ok(place) = self.place(nsid) {
            self.0.remove(place);
        }
    }

    pub(crate) fn retain(&mut self, stays: impl Fn(NamespaceId) -> bool) {
        self.0.retain(|(nsid, _)| stays(*nsid));
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(NamespaceId, T)> {
        self.0.iter()
    }
}

impl<T> FromIterator<(NamespaceId, T)> for ByNamespace<T> {
    fn from_iter<I: IntoIterator<Item = (NamespaceId, T)>>(all: I) -> Self {
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_by_key(|(nsid, _)| *nsid);
        Self(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_in_any_insertion_order() {
        let id = NamespaceId;
        let mut all: ByNamespace<u32> =
            [9, 1, 5].map(|nsid| (id(nsid), nsid)).into_iter().collect();
        assert_eq!(*all.find_or_insert(id(7), || 7), 7);
        assert_eq!(*all.find_or_insert(id(7), || unreachable!("the entry exists")), 7);
        all.set(id(3), 3);
        all.set(id(9), 10);
        all.remove(id(5));
        all.remove(id(6));
        let found: Vec<_> = (0..11).filter_map(|nsid| all.find(id(nsid)).copied()).collect();
        assert_eq!(found, [1, 3, 7, 10]);
        all.retain(|nsid| nsid > id(3));
        assert!(all.iter().map(|(_, value)| *value).eq([7, 10]));
        all.clear();
        assert_eq!(all.iter().count(), 0);
    }
}
