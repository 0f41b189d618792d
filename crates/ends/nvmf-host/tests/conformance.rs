//! Runs the conformance suite of namespaces over a scripted target, for each way in which a target
//! may move data.

mod peer;

use farblock_block::conformance::Suite;
use farblock_block::{Backed, Namespace};
use farblock_host::{Controller, Options};
use peer::{Peer, SUBSYSTEM, Script, digests, engines, options};
use std::sync::Arc;

fn remote(script: Script, options: &Options) -> Arc<dyn Namespace> {
    let peer = Peer::new(script);
    let controller = Controller::connect(&peer.address(), SUBSYSTEM, options).expect("connected");
    let namespace = controller.namespace(1).expect("a namespace");
    Arc::new(Backed { namespace, backing: peer })
}

/// Runs the suite on both engines over targets with scripts that `script` adapts.
fn conforms(block_sizes: &[u32], script: impl Fn(Script) -> Script, options: &Options) {
    for engine in engines() {
        Suite::new(engine).block_sizes(block_sizes).run(&|block_size| {
            let blocks = (16 << 20) / u64::from(block_size);
            let script = script(Script { block_size, blocks, ..Script::default() });
            remote(script, options)
        });
    }
}

#[test]
fn a_namespace_conforms_with_default_options() {
    conforms(&[512, 4096], |script| script, &options());
}

#[test]
fn a_namespace_conforms_with_digests_and_small_pdus() {
    let options = Options { tcp: digests(true, true), ..options() };
    conforms(
        &[512],
        |script| Script { max_h2c_bytes: 8192, c2h_bytes: 12288, r2t_bytes: 40960, ..script },
        &options,
    );
}

#[test]
fn a_namespace_conforms_without_optional_features() {
    let script = |script| Script { ioccsz: 4, oncs: 0, success_flag: false, ..script };
    conforms(&[4096], script, &options());
}

#[test]
fn a_namespace_conforms_with_a_short_queue_and_small_transfers() {
    let options = Options { queue_depth: 3, ..options() };
    conforms(&[512], |script| Script { mdts: 4, mqes_z: 2, vwc: false, ..script }, &options);
}

#[test]
fn a_read_only_namespace_conforms() {
    for engine in engines() {
        Suite::new(engine).run_read_only(&|block_size| {
            let blocks = (16 << 20) / u64::from(block_size);
            let script = Script { block_size, blocks, read_only: true, ..Script::default() };
            remote(script, &options())
        });
    }
}
