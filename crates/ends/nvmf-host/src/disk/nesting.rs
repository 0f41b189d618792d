//! The remote namespaces of which a disk consists, and the local namespaces of which it is a part.
//! If a namespace were in both lists, the disk would contain itself, and reads would never end.

use super::hub::Hub;
use crate::error::Error;
use farblock_block::Part;
use std::sync::{Mutex, MutexGuard, PoisonError};

type Uuids = Vec<[u8; 16]>;

#[derive(Default)]
pub(super) struct Nesting {
    contents: Mutex<Uuids>,
    wholes: Mutex<Uuids>,
}

fn lock(uuids: &Mutex<Uuids>) -> MutexGuard<'_, Uuids> {
    uuids.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Nesting {
    /// Stores the UUIDs of the disk's parts, as its target reports them. Returns whether to notify
    /// users: if the UUIDs changed, and the old or the new list has more than the namespace itself.
    pub(super) fn consists_of(&self, uuids: Uuids) -> bool {
        let before = std::mem::replace(&mut *lock(&self.contents), uuids.clone());
        before != uuids && before.len().max(uuids.len()) > 1
    }

    /// Checks that the disk does not contain itself.
    ///
    /// # Errors
    /// Fails if the disk contains a namespace that it is a part of.
    pub(super) fn check(&self) -> Result<(), Error> {
        let wholes = lock(&self.wholes).clone();
        if lock(&self.contents).iter().any(|uuid| wholes.contains(uuid)) {
            return Err(Error::Namespace(
                "this remote disk contains the local disk of which it is a part, so reads would \
                 never end: remove one of the two disks from the other"
                    .to_owned(),
            ));
        }
        Ok(())
    }
}

impl Part for Hub {
    fn contents(&self) -> Uuids {
        lock(&self.nesting.contents).clone()
    }

    fn add_whole(&self, uuid: [u8; 16]) {
        lock(&self.nesting.wholes).push(uuid);
        // Let the keepers repeat the check: a connected path may lead to a namespace that contains
        // this one.
        self.keepers.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_contains_itself_is_refused() {
        let nesting = Nesting::default();
        assert!(!nesting.consists_of(vec![[1; 16]]));
        assert!(nesting.consists_of(vec![[1; 16], [2; 16]]));
        assert!(!nesting.consists_of(vec![[1; 16], [2; 16]]));
        lock(&nesting.wholes).push([3; 16]);
        nesting.check().expect("the disk does not contain itself");
        assert!(nesting.consists_of(vec![[1; 16], [3; 16]]));
        let error = nesting.check().expect_err("the disk contains itself").to_string();
        assert!(error.contains("reads would never end"), "{error}");
    }
}
