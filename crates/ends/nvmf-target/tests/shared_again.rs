//! Remote disks that are shared again: a target behind them that says nothing stalls nobody else.

mod rig;

use farblock_backends::mem::Mem;
use farblock_backends::stripe::Stripe;
use farblock_block::Namespace;
use farblock_host::Disk;
use farblock_proto::ids::NamespaceId;
use farblock_proto::tcp::host_end::Transfer;
use farblock_proto::tcp::{Digests, SlotId};
use farblock_reactor::EngineKind;
use farblock_wire::{SglDescriptor, Status};
use rig::proxy::Proxy;
use rig::scripted::{BLOCK, BLOCKS, NQN, admin, blocks, io, target_of};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

fn mem() -> Arc<dyn Namespace> {
    Arc::new(Mem::new(BLOCK as u32, BLOCKS * BLOCK as u64).expect("a size"))
}

/// Through the same queue, and so on the same core.
#[test]
fn a_silent_target_behind_a_namespace_stalls_no_other() {
    for &engine in EngineKind::HERE {
        let behind = rig::serve(mem(), &[rig::any()]);
        let proxy = Proxy::new(behind.addresses()[0]);
        let disk = Disk::connect(&[rig::url(proxy.address)], &rig::options(engine));
        let disk: Arc<dyn Namespace> = Arc::new(disk.expect("it is there"));
        // Before any queue was opened: all of them shake hands with nobody.
        proxy.stall();
        let stripe = Arc::new(Stripe::new(vec![disk, mem()], 64 << 10).expect("a stripe set"));
        let target = target_of(engine, [stripe as Arc<dyn Namespace>, mem()], |_| {});
        let address = target.addresses()[0];
        let (_admin, controller) = admin(address, Digests::NONE);
        let mut queue = io(address, Digests::NONE, controller, false);
        let length = BLOCK as u32;
        let read = blocks(2, 0, 1, SglDescriptor::transport(length));
        let mut out = Vec::new();
        queue.end.submit(SlotId(1), &read, Transfer::FromController(length), &mut out);
        queue.stream.write_all(&out).expect("sent");
        for _ in 0..100 {
            let mut other = read;
            other.nsid = 2.into();
            let answer = queue.run(other, Transfer::FromController(length), &[]);
            assert_eq!(answer.status, Status::SUCCESS);
        }
        let removal = target.control().remove_namespace(NQN, NamespaceId(1)).expect("it is there");
        let removal = removal.wait(Duration::from_millis(1)).expect_err("a read is under way");
        proxy.resume();
        // What was begun is answered, and then nothing is left of it.
        assert_eq!(queue.completions(1), length as usize);
        removal.wait(Duration::from_secs(60)).expect("it drains");
    }
}
