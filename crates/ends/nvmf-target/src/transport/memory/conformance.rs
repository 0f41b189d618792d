//! The suite that every namespace passes, through a session that memory carries.

use super::disk::MemoryDisk;
use super::scripted::target;
use farblock_backends::mem::Mem;
use farblock_block::Namespace;
use farblock_block::conformance::Suite;
use farblock_reactor::EngineKind;
use std::sync::Arc;

const BYTES: u64 = 64 << 20;

fn run(engine: EngineKind) {
    Suite::new(engine).run(&|block_size| {
        let geometry = Mem::new(block_size, BYTES).expect("a size").geometry();
        Arc::new(MemoryDisk::new(target(block_size, BYTES), geometry))
    });
}

#[test]
fn conforms() {
    for &engine in EngineKind::HERE {
        run(engine);
    }
}
