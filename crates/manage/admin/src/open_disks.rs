//! The open storage of all namespaces, with indexes. A change may open ten thousand disks, and must
//! not compare each disk with all others.

use crate::opener::{Disks, Opened};
use farblock_backends::file::FileDisk;
use farblock_block::Namespace as Store;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A namespace, by its subsystem and its ID.
type DiskPlace = (String, u32);

#[derive(Default)]
pub(crate) struct OpenDisks {
    all: Disks,
    /// For each plain file, by absolute path, the namespaces that use it.
    files: HashMap<PathBuf, BTreeSet<DiskPlace>>,
    /// The number of namespaces with each identity, a text that is unique to the disk.
    identities: HashMap<String, usize>,
    /// The number of namespaces that share each store, by the address of the store in memory.
    stores: HashMap<usize, usize>,
    /// The storage that earlier steps of the current change have removed.
    parked: Vec<Opened>,
    /// The plain files in `parked`, by absolute path.
    parked_files: HashMap<PathBuf, Vec<Arc<FileDisk>>>,
}

impl OpenDisks {
    pub(crate) fn new(disks: Disks) -> Self {
        let mut this = Self::default();
        for (place, opened) in disks {
            this.insert(place, opened);
        }
        this
    }

    pub(crate) fn get(&self, nqn: &str, nsid: u32) -> Option<&Opened> {
        self.all.get(&(nqn.to_owned(), nsid))
    }

    /// Sets the storage of a namespace. Returns its previous storage.
    pub(crate) fn insert(&mut self, place: DiskPlace, opened: Opened) -> Option<Opened> {
        let old = self.remove(&place.0, place.1);
        if let Some(file) = &opened.file {
            self.files.entry(absolute(file.path())).or_default().insert(place.clone());
        }
        *self.identities.entry(opened.identity.clone()).or_default() += 1;
        *self.stores.entry(address(&opened.namespace)).or_default() += 1;
        self.all.insert(place, opened);
        old
    }

    pub(crate) fn remove(&mut self, nqn: &str, nsid: u32) -> Option<Opened> {
        let place = (nqn.to_owned(), nsid);
        let opened = self.all.remove(&place)?;
        if let Some(file) = &opened.file {
            let path = absolute(file.path());
            if let Some(places) = self.files.get_mut(&path) {
                places.remove(&place);
                if places.is_empty() {
                    self.files.remove(&path);
                }
            }
        }
        decrease(&mut self.identities, &opened.identity);
        decrease(&mut self.stores, &address(&opened.namespace));
        Some(opened)
    }

    /// The namespaces whose storage is the plain file with this absolute path.
    pub(crate) fn of_file(
        &self,
        path: &Path,
    ) -> impl Iterator<Item = (&DiskPlace, &Arc<FileDisk>)> {
        let places = self.files.get(path).into_iter().flatten();
        places.filter_map(|place| Some((place, self.all.get(place)?.file.as_ref()?)))
    }

    /// Keeps the storage of a removed namespace until the end of the change.
    pub(crate) fn park(&mut self, opened: Opened) {
        if let Some(file) = &opened.file {
            self.parked_files.entry(absolute(file.path())).or_default().push(Arc::clone(file));
        }
        self.parked.push(opened);
    }

    pub(crate) fn parked_files(&self, path: &Path) -> impl Iterator<Item = &Arc<FileDisk>> {
        self.parked_files.get(path).into_iter().flatten()
    }

    pub(crate) fn take_parked(&mut self) -> Vec<Opened> {
        self.parked_files.clear();
        std::mem::take(&mut self.parked)
    }

    pub(crate) fn has_identity(&self, identity: &str) -> bool {
        self.identities.contains_key(identity)
    }

    pub(crate) fn has_store(&self, store: &Arc<dyn Store>) -> bool {
        self.stores.contains_key(&address(store))
    }
}

/// The absolute path of a file. A relative `path` starts at the working directory.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The address of a store. It identifies the store as long as a namespace has the store open.
fn address(store: &Arc<dyn Store>) -> usize {
    Arc::as_ptr(store).cast::<()>().addr()
}

fn decrease<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opener::Open;
    use crate::trial::Opener;
    use farblock_state::Namespace;

    #[test]
    fn the_indexes_contain_exactly_the_open_disks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        std::fs::write(&path, [0; 4096]).unwrap();
        let opened = |spec: &str| Opener.open(&Namespace::new(spec)).unwrap();
        let (memory, file) = (opened("mem:1MiB"), opened(&format!("file:{}", path.display())));
        let other = opened("mem:1MiB");
        assert_eq!(memory.identity, other.identity);
        let mut disks = OpenDisks::new([(("a".to_owned(), 1), memory.clone())].into());
        assert!(disks.insert(("a".to_owned(), 2), file.clone()).is_none());
        assert!(disks.insert(("b".to_owned(), 1), other.clone()).is_none());
        let places = |disks: &OpenDisks| {
            disks.of_file(&path).map(|((nqn, nsid), _)| format!("{nqn} {nsid}")).collect::<Vec<_>>()
        };
        assert_eq!(places(&disks), ["a 2"]);
        assert!(disks.has_store(&memory.namespace) && disks.has_store(&other.namespace));
        let old = disks.insert(("a".to_owned(), 1), file.clone()).expect("an open disk");
        assert!(Arc::ptr_eq(&old.namespace, &memory.namespace));
        assert!(!disks.has_store(&memory.namespace) && disks.has_identity(&memory.identity));
        assert_eq!(places(&disks), ["a 1", "a 2"]);
        disks.park(disks.get("a", 2).unwrap().clone());
        for (nqn, nsid) in [("a", 1), ("a", 2), ("b", 1)] {
            assert!(disks.remove(nqn, nsid).is_some());
            assert!(disks.remove(nqn, nsid).is_none());
        }
        assert!(places(&disks).is_empty() && !disks.has_store(&file.namespace));
        assert!(!disks.has_identity(&memory.identity) && !disks.has_identity(&file.identity));
        assert_eq!((disks.parked_files(&path).count(), disks.take_parked().len()), (1, 1));
        assert_eq!(disks.parked_files(&path).count(), 0);
    }
}
