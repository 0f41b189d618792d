//! The remote namespaces of which a disk consists, and the local namespaces of which it is a part.
//! The disk must not be used while one of these is in both.

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
    /// Stores the parts that the disk's target reports, which stay while the disk is disconnected.
    /// Returns true if users must be notified: not if the only part, before and after, is the
    /// namespace itself.
    pub(super) fn consists_of(&self, uuids: Uuids) -> bool {
        let before = std::mem::replace(&mut *lock(&self.contents), uuids.clone());
        before != uuids && before.len().max(uuids.len()) > 1
    }

    /// # Errors
    /// If the disk contains a namespace that it is a part of.
    pub(super) fn check(&self) -> Result<(), Error> {
        let wholes = lock(&self.wholes).clone();
        if lock(&self.contents).iter().any(|uuid| wholes.contains(uuid)) {
            return Err(Error::Namespace(
                "this remote disk contains the very disk that it is a part of here, so reads would \
                 never end: take one of them out of the other"
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
        // Let the keepers check again: a connected path may lead to a namespace that contains this
        // one.
        self.keepers.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_must_not_contain_its_whole() {
        let nesting = Nesting::default();
        assert!(!nesting.consists_of(vec![[1; 16]]));
        assert!(nesting.consists_of(vec![[1; 16], [2; 16]]));
        assert!(!nesting.consists_of(vec![[1; 16], [2; 16]]));
        lock(&nesting.wholes).push([3; 16]);
        nesting.check().expect("no whole is in it");
        assert!(nesting.consists_of(vec![[1; 16], [3; 16]]));
        let error = nesting.check().expect_err("it contains its whole").to_string();
        assert!(error.contains("reads would never end"), "{error}");
    }
}
