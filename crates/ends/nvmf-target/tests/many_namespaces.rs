//! A thousand namespaces, each with its own limits. The limits change during use.

mod rig;

use farblock_backends::mem::Mem;
use farblock_block::Namespace;
use farblock_proto::ids::NamespaceId;
use farblock_proto::tcp::Digests;
use farblock_proto::tcp::host_end::Transfer;
use farblock_reactor::EngineKind;
use farblock_target::{Export, Rate, Rates};
use farblock_wire::{SglDescriptor, Sqe, Status};
use rig::scripted::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const NAMESPACES: u32 = 1000;
/// The distance between the namespaces that the test reads and writes.
const STEP: usize = 13;

/// Returns a limit on commands per second, without a burst.
fn rates(commands: u64) -> Rates {
    let commands = Rate { all: commands, ..Rate::default() };
    Rates { commands, burst: Duration::from_nanos(1), ..Rates::default() }
}

/// Returns the contents of the first block of namespace `nsid`.
fn contents(nsid: u32) -> Vec<u8> {
    nsid.to_le_bytes().repeat(BLOCK / 4)
}

#[test]
fn the_limits_of_a_thousand_namespaces_change_during_io() {
    let disk = || Arc::new(Mem::new(BLOCK as u32, 1 << 16).expect("a size")) as Arc<dyn Namespace>;
    let disks: Vec<_> = (0..NAMESPACES).map(|_| disk()).collect();
    let target = target_of(EngineKind::Auto, disks, |_| {});
    let control = target.control();
    let set = |nsid, commands| {
        control.set_rates(NQN, NamespaceId(nsid), &rates(commands)).expect("the namespace exists");
    };
    (1..=NAMESPACES).for_each(|nsid| set(nsid, 1_000_000));
    let (_admin, controller) = admin(target.addresses()[0], Digests::NONE);
    let mut queue = io(target.addresses()[0], Digests::NONE, controller, false);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for nsid in (1..=NAMESPACES).cycle().step_by(7) {
                // Set a limit that stops commands for a second. Then set a limit that lets them
                // continue.
                set(nsid, 1);
                set(nsid, 1_000_000);
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let (length, transport) = (BLOCK as u32, SglDescriptor::transport(BLOCK as u32));
        for nsid in (1..NAMESPACES).step_by(STEP) {
            let in_capsule = SglDescriptor::in_capsule(0, length);
            let sqe = Sqe { nsid: nsid.into(), ..blocks(1, 0, 1, in_capsule) };
            let answer = queue.run(sqe, Transfer::InCapsule(length), &contents(nsid));
            assert_eq!(answer.status, Status::SUCCESS, "namespace {nsid}");
        }
        // Iterate backwards, so that the namespace used last is never the next one.
        for nsid in (1..NAMESPACES).step_by(STEP).rev() {
            let sqe = Sqe { nsid: nsid.into(), ..blocks(2, 0, 1, transport) };
            let answer = queue.run(sqe, Transfer::FromController(length), &[]);
            assert_eq!((answer.status, answer.data), (Status::SUCCESS, contents(nsid)));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    target.stop().expect("the target stops");
}

/// The cores receive the lists of a batch when the batch ends or when the caller sends them. The
/// target releases removed stores only then.
#[test]
fn changes_of_a_batch_reach_the_queues_together() {
    let disk = || Arc::new(Mem::new(BLOCK as u32, 1 << 16).expect("a size")) as Arc<dyn Namespace>;
    let target = target_of(EngineKind::Auto, [disk(), disk()], |_| {});
    let (control, address) = (target.control(), target.addresses()[0]);
    let (_admin, controller) = admin(address, Digests::NONE);
    let mut queue = io(address, Digests::NONE, controller, false);
    let mut read = |nsid: u32| {
        let (length, transport) = (BLOCK as u32, SglDescriptor::transport(BLOCK as u32));
        let sqe = Sqe { nsid: nsid.into(), ..blocks(2, 0, 1, transport) };
        queue.run(sqe, Transfer::FromController(length), &[]).status.code()
    };
    let ends = Duration::from_secs(60);
    let batch = control.batch();
    for nsid in 3..=NAMESPACES {
        let export = Export { namespace: disk(), identity: format!("disk {nsid}") };
        control.add_namespace(NQN, NamespaceId(nsid), &export).expect("a free number");
    }
    let removal = control.remove_namespace(NQN, NamespaceId(1)).expect("the namespace exists");
    control.send_changes();
    removal.wait(ends).expect("all cores have the new list");
    let seen = [1, 2, 3, NAMESPACES].map(&mut read);
    let (gone, there) = (Status::INVALID_NAMESPACE.code(), Status::SUCCESS.code());
    assert_eq!(seen, [gone, there, there, there]);
    let removals = [2, 3].map(|nsid| control.remove_namespace(NQN, NamespaceId(nsid)));
    let again = Export { namespace: disk(), identity: "again".to_owned() };
    control.add_namespace(NQN, NamespaceId(3), &again).expect("the number is free again");
    drop(batch);
    for removal in removals {
        removal.expect("the namespace exists").wait(ends).expect("the removals have ended");
    }
    assert_eq!([2, 3, NAMESPACES].map(&mut read), [gone, there, there]);
    target.stop().expect("the target stops");
}
