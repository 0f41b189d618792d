//! The paths of a disk. Paths may be added during use but never removed, so path numbers are
//! stable.

use super::path::Path;
use crate::limits;
use std::ops::Index;
use std::sync::OnceLock;

/// The paths of a disk, without gaps.
pub(super) struct Paths([OnceLock<Path>; limits::PATHS]);

impl Paths {
    /// Stores the first paths. Panics if there are more than [`limits::PATHS`].
    pub(super) fn new(paths: Vec<Path>) -> Paths {
        let all = Paths([const { OnceLock::new() }; limits::PATHS]);
        for path in paths {
            assert!(all.add(path).is_some(), "the caller has limited the number of paths");
        }
        all
    }

    /// Adds a path and returns its number. Returns `None` if the disk has the maximum number of
    /// paths.
    pub(super) fn add(&self, path: Path) -> Option<usize> {
        let mut path = Some(path);
        self.0.iter().position(|slot| {
            if slot.get().is_some() {
                return false;
            }
            match slot.set(path.take().expect("the path is not stored yet")) {
                Ok(()) => true,
                Err(refused) => {
                    // Another thread has just filled this slot, so try the next one.
                    path = Some(refused);
                    false
                }
            }
        })
    }

    pub(super) fn len(&self) -> usize {
        self.iter().count()
    }

    pub(super) fn get(&self, index: usize) -> Option<&Path> {
        self.0.get(index)?.get()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map_while(OnceLock::get)
    }
}

impl Index<usize> for Paths {
    type Output = Path;

    fn index(&self, index: usize) -> &Path {
        self.0[index].get().expect("a path is there before its number is known")
    }
}
