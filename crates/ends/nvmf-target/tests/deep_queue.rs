//! A host sends more in-capsule data than the target holds for a connection. The disk does not
//! respond.

mod rig;

use farblock_backends::mem::Mem;
use farblock_host::Disk;
use farblock_proto::ids::NamespaceId;
use farblock_proto::limits::MAX_QUEUE_DEPTH;
use farblock_reactor::EngineKind;
use farblock_target::{Export, Subsystem, Target, TargetConfig};
use rig::gate::Gate;
use rig::*;
use std::sync::Arc;
use std::time::Duration;

/// The number of writes, each with 64 KiB in its capsule: 50 MiB in all.
const WRITES: u64 = 800;
const WRITE_BLOCKS: u32 = (64 << 10) / BLOCK as u32;
/// The target may hold the data of at most this many writes for one connection.
const HELD: usize = (32 << 20) / (64 << 10);
/// The limit of the test: [`HELD`], plus the writes that arrive in the same receive of 256 KiB.
const MOST: usize = HELD + (256 << 10) / (64 << 10);

fn serve_deep(gate: Arc<Gate>, engine: EngineKind) -> Target {
    let mut subsystem = Subsystem::new(NQN);
    subsystem.config.allow_any_host = true;
    subsystem.config.max_queue_depth = MAX_QUEUE_DEPTH;
    let export = Export { namespace: gate, identity: "disk".to_owned() };
    subsystem.exports.insert(NamespaceId(1), export);
    let config = TargetConfig {
        subsystems: vec![subsystem],
        listeners: vec![any()],
        engine,
        ..TargetConfig::default()
    };
    Target::start(&config).expect("the target starts")
}

#[test]
fn in_capsule_data_wait_in_the_network_while_memory_is_full() {
    for (engine, data_digest) in engines().into_iter().flat_map(|e| [(e, false), (e, true)]) {
        let gate = Arc::new(Gate::new(Arc::new(Mem::new(BLOCK as u32, 64 << 20).expect("a size"))));
        let target = serve_deep(gate.clone(), engine);
        let mut options = options(engine);
        options.connection.queue_depth = MAX_QUEUE_DEPTH - 1;
        options.connection.tcp.data_digest = data_digest;
        let disk = Disk::connect(&[url(target.addresses()[0])], &options).expect("connected");
        let mut user = User::new(&disk, engine);
        gate.keep(usize::MAX);
        for number in 0..WRITES {
            let value = number as u8;
            user.write(number * u64::from(WRITE_BLOCKS), WRITE_BLOCKS, value, number);
        }
        until("the queue is full", || {
            assert!(user.turn(Duration::from_millis(10)).is_empty());
            gate.kept() >= HELD
        });
        assert!(user.turn(Duration::from_millis(300)).is_empty());
        assert!(gate.kept() <= MOST, "{engine}: the target holds {} writes", gate.kept());

        gate.open_up();
        let mut done = 0;
        while done < WRITES as usize {
            let completions = user.turn(Duration::from_secs(60));
            assert!(!completions.is_empty(), "{done} of {WRITES} on {engine}");
            completions.iter().for_each(|completion| assert_eq!(completion.result, Ok(())));
            done += completions.len();
        }
        for number in [0, 512, WRITES - 1] {
            assert_eq!(user.value(number * u64::from(WRITE_BLOCKS)), number as u8);
        }
    }
}
