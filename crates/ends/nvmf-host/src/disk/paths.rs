//! The paths of a disk, which may get more while it is used. None is ever taken away, so that a
//! path's number stays its own.

use super::path::Path;
use crate::limits;
use std::ops::Index;
use std::sync::OnceLock;

/// As many as there may be. Those that are there come first.
pub(super) struct Paths([OnceLock<Path>; limits::PATHS]);

impl Paths {
    /// These, of which there are not more than there may be.
    pub(super) fn new(paths: Vec<Path>) -> Paths {
        let all = Paths([const { OnceLock::new() }; limits::PATHS]);
        for path in paths {
            assert!(all.add(path).is_some(), "the caller has counted them");
        }
        all
    }

    /// Adds one. Its number; `None` if there are as many as there may be.
    pub(super) fn add(&self, path: Path) -> Option<usize> {
        let mut path = Some(path);
        self.0.iter().position(|slot| {
            if slot.get().is_some() {
                return false;
            }
            match slot.set(path.take().expect("it was not set")) {
                Ok(()) => true,
                Err(refused) => {
                    // Another thread was faster.
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
