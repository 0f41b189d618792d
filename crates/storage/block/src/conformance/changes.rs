//! Checks of the notifications of a namespace.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use farblock_reactor::EngineKind;

use super::{Context, Driver, Random, Suite, WAIT_LIMIT};
use crate::{Availability, Change, Namespace, Watch};

/// A namespace, and a function that increases its capacity.
pub struct Growing {
    /// The namespace.
    pub namespace: Arc<dyn Namespace>,
    /// Grows the namespace to this many blocks. The geometry may also change some time after the
    /// function returns.
    pub grow: Box<dyn Fn(u64)>,
}

impl Suite {
    /// Runs the checks for a namespace that grows during its use.
    pub fn run_growing(&self, make: &dyn Fn(u32) -> Growing) {
        for &block_size in &self.block_sizes {
            let _story = self.story("growth_is_reported_once", block_size);
            growth_is_reported_once(&make(block_size), self.engine, self.seed);
        }
    }
}

/// Watches a namespace. The receiver gets the namespace's number of blocks at each notification.
fn listen(namespace: &Arc<dyn Namespace>) -> (Watch, Receiver<u64>) {
    let (tell, told) = channel();
    let (tell, seen) = (Mutex::new(tell), Arc::downgrade(namespace));
    let changes = namespace.changes().expect("a namespace that grows reports changes");
    let watch = changes.watch(move |change| {
        if let (Change::Geometry, Some(namespace)) = (change, seen.upgrade()) {
            let _ = tell.lock().unwrap().send(namespace.geometry().blocks);
        }
    });
    (watch, told)
}

fn growth_is_reported_once(growing: &Growing, engine: EngineKind, seed: u64) {
    let Growing { namespace, grow } = growing;
    let before = namespace.geometry();
    let mut driver = Driver::with(namespace, engine);
    let (watch, told) = listen(namespace);
    grow(before.blocks * 2);
    let blocks = told.recv_timeout(WAIT_LIMIT).expect("the watch reports the growth");
    assert_eq!(blocks, before.blocks * 2, "the growth was reported before the geometry changed");
    let after = namespace.geometry();
    assert_eq!(after, crate::Geometry { blocks, ..before }, "another field changed");
    // The change applies to an open queue and to a new queue.
    let mut data = vec![0; after.bytes(2)];
    Random::new(seed).fill(&mut data);
    let another = driver.open(namespace);
    driver.write(0, after, blocks - 2, &data);
    assert!(
        driver.read(another, after, blocks - 2, 2) == data,
        "the new last blocks differ from the written data"
    );
    assert!(
        driver.read(0, after, blocks - 2, 2) == data,
        "the new last blocks differ from the written data"
    );
    drop(watch);
    grow(before.blocks * 3);
    let deadline = Instant::now() + WAIT_LIMIT;
    while namespace.geometry().blocks != before.blocks * 3 {
        assert!(Instant::now() < deadline, "the namespace does not grow a second time");
        driver.turn(std::time::Duration::from_millis(5));
    }
    assert!(told.try_recv().is_err(), "the growth was reported twice, or to a dropped watch");
}

pub(super) fn writes_do_not_notify_watchers(context: &mut Context<'_>) {
    let namespace = context.namespace();
    assert_eq!(namespace.availability(), Availability::Ready);
    if namespace.changes().is_none() {
        return;
    }
    let (_watch, told) = listen(&namespace);
    let geometry = namespace.geometry();
    let mut driver = context.driver_of(&namespace);
    let data = context.filled(geometry, 8).to_vec();
    for lba in [0, geometry.blocks - 8] {
        driver.write(0, geometry, lba, &data);
    }
    driver.close(0);
    assert_eq!(namespace.geometry(), geometry);
    assert!(told.try_recv().is_err(), "a change was reported without a change of geometry");
}
