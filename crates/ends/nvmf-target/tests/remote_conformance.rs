//! A remote namespace passes the conformance suite for backends. farblock's host reaches a target
//! on loopback, with each event-loop engine and each kind of digest.

use farblock_backends::mem::Mem;
use farblock_block::conformance::Suite;
use farblock_block::{Backed, Namespace};
use farblock_host::{Controller, Options, TcpOptions};
use farblock_proto::ids::NamespaceId;
use farblock_reactor::EngineKind;
use farblock_target::{Export, Subsystem, Target, TargetConfig};
use std::sync::Arc;

const NQN: &str = "nqn.2026-11.org.farblock:conformance";

fn remote(block_size: u32, engine: EngineKind, digests: (bool, bool)) -> Arc<dyn Namespace> {
    let mut subsystem = Subsystem::new(NQN);
    subsystem.config.allow_any_host = true;
    let namespace = Arc::new(Mem::new(block_size, 64 << 20).expect("a size"));
    let export = Export { namespace, identity: "mem".to_owned() };
    subsystem.exports.insert(NamespaceId(1), export);
    let target = Target::start(&TargetConfig {
        subsystems: vec![subsystem],
        listeners: vec!["127.0.0.1:0".parse().expect("an address")],
        engine,
        ..TargetConfig::default()
    })
    .expect("the target starts");
    let options = Options {
        tcp: TcpOptions {
            header_digest: digests.0,
            data_digest: digests.1,
            ..TcpOptions::default()
        },
        engine,
        queue_depth: 64,
        ..Options::default()
    };
    let address = target.addresses()[0].to_string();
    let controller = Controller::connect(&address, NQN, &options).expect("the host connects");
    let namespace = controller.namespace(1).expect("namespace 1 exists");
    Arc::new(Backed { namespace, backing: (controller, target) })
}

fn run(engine: EngineKind, digests: (bool, bool)) {
    Suite::new(engine).run(&|block_size| remote(block_size, engine, digests));
}

#[test]
#[cfg(target_os = "linux")]
fn a_remote_namespace_conforms_on_io_uring() {
    run(EngineKind::Uring, (false, false));
}

#[test]
#[cfg(target_os = "linux")]
fn a_remote_namespace_conforms_on_io_uring_with_digests() {
    run(EngineKind::Uring, (true, true));
}

#[test]
fn a_remote_namespace_conforms_on_the_portable_engine() {
    run(EngineKind::Portable, (false, false));
}

#[test]
fn a_remote_namespace_conforms_on_the_portable_engine_with_digests() {
    run(EngineKind::Portable, (true, true));
}
