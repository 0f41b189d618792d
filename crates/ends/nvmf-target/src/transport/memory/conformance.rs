//! Runs the namespace conformance suite on farblock's host, which uses a farblock target over the
//! memory transport.

use super::Wire;
use super::peer::NQN;
use super::scripted::target;
use crate::target::Target;
use farblock_block::conformance::Suite;
use farblock_block::{Backed, Namespace};
use farblock_host::{Controller, Options};
use farblock_reactor::EngineKind;
use std::sync::Arc;

const BYTES: u64 = 64 << 20;

/// Connects to a namespace of a target in this process.
fn near(block_size: u32) -> Arc<dyn Namespace> {
    let target = Arc::new(target(block_size, BYTES));
    let namespace = connect(&target).namespace(1).expect("namespace 1 exists");
    Arc::new(Backed { namespace, backing: target })
}

/// Connects farblock's host to a controller of `target`, without keeping the target alive.
fn connect(target: &Arc<Target>) -> Controller {
    let target = Arc::downgrade(target);
    let dial = move || {
        let wire = Arc::new(Wire::default());
        match target.upgrade() {
            Some(target) => target.join(Arc::clone(&wire)),
            None => wire.close(),
        }
        wire
    };
    // The queue is so small that operations must wait and large commands are split.
    let options = Options { queue_depth: 16, ..Options::default() };
    Controller::connect_in_memory(Arc::new(dial), NQN, &options).expect("the target accepts")
}

fn run(engine: EngineKind) {
    Suite::new(engine).run(&near);
}

#[test]
fn a_namespace_over_the_memory_transport_conforms() {
    for &engine in EngineKind::HERE {
        run(engine);
    }
}
