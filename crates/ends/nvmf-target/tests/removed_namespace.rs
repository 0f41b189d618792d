//! A namespace that is removed while a host's data for it are on their way.

mod rig;

use farblock_backends::mem::Mem;
use farblock_block::Namespace;
use farblock_proto::ids::NamespaceId;
use farblock_proto::tcp::host_end::{Event, Transfer};
use farblock_proto::tcp::{Digests, SlotId};
use farblock_reactor::EngineKind;
use farblock_wire::{SglDescriptor, Status};
use rig::gate::Gate;
use rig::scripted::*;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

const LENGTH: u32 = 256 << 10;

#[test]
fn data_that_come_for_a_removed_namespace_are_taken_and_refused() {
    for &engine in EngineKind::HERE {
        let disk = || Mem::new(BLOCK as u32, BLOCKS * BLOCK as u64).expect("a size");
        let gate = Arc::new(Gate::new(Arc::new(disk())));
        let other = Arc::new(disk());
        let target = target_of(engine, [Arc::clone(&gate) as Arc<dyn Namespace>, other], |_| {});
        let address = target.addresses()[0];
        let (_admin, controller) = admin(address, Digests::NONE);
        let mut queue = io(address, Digests::NONE, controller, false);
        let sqe = blocks(1, 0, LENGTH / BLOCK as u32, SglDescriptor::transport(LENGTH));
        let mut out = Vec::new();
        queue.end.submit(SlotId(0), &sqe, Transfer::ToController(LENGTH), &mut out);
        queue.stream.write_all(&out).expect("sent");
        let mut grant = wanted(&mut queue);
        let removal = target.control().remove_namespace(NQN, NamespaceId(1)).expect("it is there");
        // Nothing of it is with the namespace.
        removal.wait(Duration::from_secs(60)).expect("it drains");
        assert_eq!(Arc::strong_count(&gate), 1, "it is given back");
        let data = vec![1; LENGTH as usize];
        let mut out = Vec::new();
        while let Some(range) = queue.end.data_header(&mut grant, &mut out) {
            out.extend_from_slice(&data[range]);
        }
        queue.stream.write_all(&out).expect("sent");
        assert_eq!(refused(&mut queue).code(), Status::INVALID_NAMESPACE.code());
        assert!(gate.seen().is_empty());
        // The queue goes on with what there is.
        let mut sqe = blocks(1, 0, 8, SglDescriptor::in_capsule(0, 4096));
        sqe.nsid = 2.into();
        let answer = queue.run(sqe, Transfer::InCapsule(4096), &data[..4096]);
        assert_eq!(answer.status, Status::SUCCESS);
    }
}

/// What the target wants of a write's data.
fn wanted(queue: &mut Queue) -> farblock_proto::tcp::host_end::Grant {
    loop {
        assert!(queue.receive(), "closed");
        let pending = std::mem::take(&mut queue.pending);
        let mut input = &pending[..];
        if let Some(Event::Wanted(grant)) = queue.end.next(&mut input).expect("well formed") {
            return grant;
        }
    }
}

/// The status of the only command.
fn refused(queue: &mut Queue) -> Status {
    loop {
        assert!(queue.receive(), "closed");
        let pending = std::mem::take(&mut queue.pending);
        let mut input = &pending[..];
        if let Some(Event::Completed { cqe, .. }) = queue.end.next(&mut input).expect("well formed")
        {
            return cqe.status();
        }
    }
}
