//! Connects farblock's host and target over RDMA on a network in memory. Runs the namespace
//! conformance suite, and tests how each side handles errors of the other.

use super::host::{DISK_BYTES, NQN, Stand, ip};
use crate::config::Export;
use farblock_backends::mem::Mem;
use farblock_block::conformance::Suite;
use farblock_block::{Backed, Namespace};
use farblock_host::{Controller, Options};
use farblock_proto::ids::NamespaceId;
use farblock_reactor::EngineKind;
use farblock_verbs::Provider;
use std::sync::Arc;

const HOST: &str = "192.0.2.1";
const BYTES: u64 = 64 << 20;

fn connect(stand: &Stand, options: &Options) -> Controller {
    let provider = Provider::Memory(stand.network.node(ip(HOST)));
    let address = stand.target.rdma_addresses()[0];
    Controller::connect_by_rdma(provider, address, NQN, options).expect("the target answers")
}

/// Connects to a namespace of a target in this process.
fn near(block_size: u32) -> Arc<dyn Namespace> {
    let stand = Stand::with(|config| {
        let namespace = Arc::new(Mem::new(block_size, BYTES).expect("a size"));
        let export = Export { namespace, identity: "disk".to_owned() };
        config.subsystems[0].exports.insert(NamespaceId(1), export);
    });
    // The queue is so small that operations must wait and large commands are split.
    let options = Options { queue_depth: 16, ..Options::default() };
    let namespace = connect(&stand, &options).namespace(1).expect("the target shares namespace 1");
    Arc::new(Backed { namespace, backing: Arc::new(stand) })
}

#[test]
fn a_namespace_over_rdma_conforms() {
    for &engine in EngineKind::HERE {
        Suite::new(engine).run(&near);
    }
}

#[test]
fn a_host_without_in_capsule_data_conforms() {
    let near = |block_size: u32| -> Arc<dyn Namespace> {
        let stand = Stand::with(|config| {
            let namespace = Arc::new(Mem::new(block_size, BYTES).expect("a size"));
            let export = Export { namespace, identity: "disk".to_owned() };
            config.subsystems[0].exports.insert(NamespaceId(1), export);
        });
        let options = Options { in_capsule: false, ..Options::default() };
        let namespace =
            connect(&stand, &options).namespace(1).expect("the target shares namespace 1");
        Arc::new(Backed { namespace, backing: Arc::new(stand) })
    };
    Suite::new(EngineKind::default()).run(&near);
}

#[test]
fn the_target_removes_a_host_that_drops_its_controller() {
    let stand = Stand::new();
    let controller = connect(&stand, &Options::default());
    let namespace = controller.namespace(1).expect("the target shares namespace 1");
    assert_eq!(namespace.geometry().capacity_bytes(), DISK_BYTES);
    drop((controller, namespace));
    stand.expect_connections(0);
}

#[test]
fn a_host_notices_that_its_target_has_stopped() {
    let stand = Stand::new();
    let controller = connect(&stand, &Options::default());
    stand.target.stop().expect("no loop failed");
    super::host::wait_for("the loss", || controller.lost());
}

#[test]
fn a_failed_connect_reports_the_reason() {
    let stand = Stand::new();
    let provider = Provider::Memory(stand.network.node(ip(HOST)));
    let connect = |address: &str| {
        let address = address.parse().expect("an address");
        let made = Controller::connect_by_rdma(provider.clone(), address, NQN, &Options::default());
        made.expect_err("nothing is there").to_string()
    };
    assert!(connect("192.0.2.2:4421").contains("nothing listens"), "no listener");
    let unresolved = connect("203.0.113.9:4420");
    assert!(unresolved.contains("waiting for the RDMA address"), "no such node: {unresolved}");
}

#[test]
fn digests_and_tls_are_refused() {
    let stand = Stand::new();
    let provider = Provider::Memory(stand.network.node(ip(HOST)));
    let mut options = Options::default();
    options.tcp.data_digest = true;
    let address = stand.target.rdma_addresses()[0];
    let made = Controller::connect_by_rdma(provider, address, NQN, &options);
    let refused = made.expect_err("RDMA has no digests").to_string();
    assert!(refused.contains("neither digests nor TLS"), "{refused}");
}
