//! Shared helpers of the tests.

#![allow(dead_code, reason = "no test uses all helpers")]

pub(crate) mod legs;
pub(crate) mod life;
pub(crate) mod switch;
pub(crate) mod wire;

use std::sync::Arc;
use std::time::{Duration, Instant};

use farblock_block::Namespace;
use farblock_volumes::{LegSource, LegState, Mirror};

/// The source of a leg that is already open.
pub(crate) struct Fixed {
    name: String,
    namespace: Arc<dyn Namespace>,
}

impl Fixed {
    pub(crate) fn new(name: &str, namespace: Arc<dyn Namespace>) -> Fixed {
        Fixed { name: name.to_owned(), namespace }
    }
}

impl LegSource for Fixed {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn open(&self) -> Result<Arc<dyn Namespace>, String> {
        Ok(Arc::clone(&self.namespace))
    }
}

/// The source of a leg that is unavailable.
pub(crate) struct FailsToOpen;

impl LegSource for FailsToOpen {
    fn name(&self) -> String {
        "the lost leg".to_owned()
    }

    fn open(&self) -> Result<Arc<dyn Namespace>, String> {
        Err("it is lost".to_owned())
    }
}

pub(crate) fn is_whole(mirror: &Mirror) -> bool {
    mirror.status().legs.iter().all(|leg| leg.state == LegState::InSync)
}

#[track_caller]
pub(crate) fn wait_until(mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "the condition did not become true in time");
        std::thread::sleep(Duration::from_millis(2));
    }
}
