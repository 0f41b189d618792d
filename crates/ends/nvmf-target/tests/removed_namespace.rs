//! The target removes a namespace while a host sends data for it.

mod rig;

use farblock_backends::mem::Mem;
use farblock_block::Namespace;
use farblock_proto::ids::NamespaceId;
use farblock_proto::tcp::Digests;
use farblock_proto::tcp::host_end::Transfer;
use farblock_reactor::EngineKind;
use farblock_wire::{SglDescriptor, Status};
use rig::gate::Gate;
use rig::scripted::*;
use rig::turns::*;
use std::sync::Arc;
use std::time::Duration;

const LENGTH: u32 = 256 << 10;

#[test]
fn data_for_a_removed_namespace_are_received_and_the_write_fails() {
    for &engine in EngineKind::HERE {
        let disk = || Mem::new(BLOCK as u32, BLOCKS * BLOCK as u64).expect("a size");
        let gate = Arc::new(Gate::new(Arc::new(disk())));
        let other = Arc::new(disk());
        let target = target_of(engine, [Arc::clone(&gate) as Arc<dyn Namespace>, other], |_| {});
        let address = target.addresses()[0];
        let (_admin, controller) = admin(address, Digests::NONE);
        let mut queue = io(address, Digests::NONE, controller, false);
        ask(&mut queue, 0, LENGTH);
        let grant = wanted(&mut queue);
        let removal = target.control().remove_namespace(NQN, NamespaceId(1)).expect("a namespace");
        // The namespace has not received any of the data.
        removal.wait(Duration::from_secs(60)).expect("all commands end");
        assert_eq!(Arc::strong_count(&gate), 1, "the gate is released");
        let data = vec![1; LENGTH as usize];
        give(&mut queue, grant, &data);
        assert_eq!(status(&mut queue).code(), Status::INVALID_NAMESPACE.code());
        assert!(gate.seen().is_empty());
        // The queue continues with the other namespace.
        let mut sqe = blocks(1, 0, 8, SglDescriptor::in_capsule(0, 4096));
        sqe.nsid = 2.into();
        let answer = queue.run(sqe, Transfer::InCapsule(4096), &data[..4096]);
        assert_eq!(answer.status, Status::SUCCESS);
    }
}
