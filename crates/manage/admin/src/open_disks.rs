//! The open storage of all namespaces, with indexes: a change may open ten thousand disks, and must
//! not compare each with all others.

use crate::live::{Disks, Opened};
use farblock_backends::file::FileDisk;
use farblock_block::Namespace as Store;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A namespace: its subsystem and its ID.
type Place = (String, u32);

#[derive(Default)]
pub(crate) struct OpenDisks {
    all: Disks,
    /// The places of each plain file, by its absolute path.
    files: HashMap<PathBuf, BTreeSet<Place>>,
    /// How many namespaces have each identity.
    identities: HashMap<String, usize>,
    /// How many namespaces share each store, by its address in memory.
    stores: HashMap<usize, usize>,
    /// Storage that earlier steps of the current change removed.
    parked: Vec<Opened>,
    /// The plain files among it, by their absolute paths.
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

    /// Sets the storage of a namespace. Returns the previous one.
    pub(crate) fn insert(&mut self, place: Place, opened: Opened) -> Option<Opened> {
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
    pub(crate) fn of_file(&self, path: &Path) -> impl Iterator<Item = (&Place, &Arc<FileDisk>)> {
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

/// A file's absolute path, from the working directory.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The address of a store. It identifies the store while a namespace has it open.
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
