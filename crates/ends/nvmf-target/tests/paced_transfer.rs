//! Scripted hosts write to a namespace with a rate limit. Some of their writes wait.

mod rig;

use farblock_backends::mem::Mem;
use farblock_block::Namespace;
use farblock_proto::ids::NamespaceId;
use farblock_proto::tcp::host_end::Transfer;
use farblock_proto::tcp::{Digests, SlotId};
use farblock_reactor::EngineKind;
use farblock_target::{Rate, Rates, Target};
use farblock_wire::opcode::NvmOpcode;
use farblock_wire::reservation::{
    AcquireAction, RegisterAction, ReservationControl, ReservationType,
};
use farblock_wire::{SglDescriptor, Status};
use rig::scripted::*;
use rig::turns::*;
use std::io::Write;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn host(target: &Target) -> (Queue, Queue) {
    let address = target.addresses()[0];
    let (admin, controller) = admin(address, Digests::NONE);
    (admin, io(address, Digests::NONE, controller, true))
}

/// Limits writes to this many bytes per second, without a burst.
fn limit(target: &Target, writes: u64) {
    let bytes = Rate { writes, ..Rate::default() };
    let rates = Rates { bytes, burst: Duration::from_nanos(1), ..Rates::default() };
    target.control().set_rates(NQN, NamespaceId(1), &rates).expect("the namespace exists");
}

/// Like [`limit`], but returns only after this queue's core has applied the limit.
fn limit_for(queue: &mut Queue, target: &Target, writes: u64) {
    limit(target, writes);
    assert_eq!(read(queue, 0, 512).status, Status::SUCCESS);
}

#[test]
fn the_target_does_not_request_data_in_transit_again_after_a_new_limit() {
    let target = target(EngineKind::Auto, |_| {});
    let (_admin, mut queue) = host(&target);
    (0..3).for_each(|slot| ask(&mut queue, slot, 4096));
    let grants = [(); 3].map(|()| wanted(&mut queue));
    limit(&target, 1);
    // Execute a command on the new queue: after it, the core has applied the limit.
    let (_other_admin, mut other) = host(&target);
    assert_eq!(read(&mut other, 0, 512).status, Status::SUCCESS);
    grants.into_iter().for_each(|grant| give(&mut queue, grant, &[7; 4096]));
    (0..3).for_each(|_| assert_eq!(status(&mut queue), Status::SUCCESS));
    // The target requests the data of the next write only when that write may start.
    ask(&mut queue, 0, 512);
    let grant = wanted(&mut queue);
    ask(&mut queue, 1, 512);
    give(&mut queue, grant, &[8; 512]);
    assert_eq!(status(&mut queue), Status::SUCCESS);
    limit(&target, 0);
    let grant = wanted(&mut queue);
    give(&mut queue, grant, &[9; 512]);
    assert_eq!(status(&mut queue), Status::SUCCESS);
    assert_eq!(read(&mut other, 0, 512).data, [9; 512]);
}

#[test]
fn a_waiting_command_keeps_its_start_time_when_other_limits_change() {
    let disk = || Arc::new(Mem::new(BLOCK as u32, 1 << 20).expect("a size")) as Arc<dyn Namespace>;
    let target = target_of(EngineKind::Auto, [disk(), disk()], |_| {});
    let (_admin, mut queue) = host(&target);
    limit_for(&mut queue, &target, 4096);
    (0..2).for_each(|slot| ask(&mut queue, slot, 4096));
    let grant = wanted(&mut queue);
    give(&mut queue, grant, &[1; 4096]);
    assert_eq!(status(&mut queue), Status::SUCCESS);
    // The second write may start one second later, even if another namespace changes in the
    // meantime.
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                let control = target.control();
                control.set_rates(NQN, NamespaceId(2), &Rates::default()).expect("a namespace");
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let heard = std::panic::catch_unwind(AssertUnwindSafe(|| wanted(&mut queue)));
        ended.store(true, Ordering::Relaxed);
        give(&mut queue, heard.expect("the target sends R2T"), &[2; 4096]);
    });
    assert_eq!(status(&mut queue), Status::SUCCESS);
}

#[test]
fn a_closed_connection_returns_the_budget_of_its_waiting_commands() {
    let target = target(EngineKind::Auto, |_| {});
    limit(&target, 4096);
    let (other_admin, mut other) = host(&target);
    assert_eq!(write(&mut other, 0, &[1; 4096], true), Status::SUCCESS);
    // This write would take four minutes, so it does not start.
    ask(&mut other, 9, 1 << 20);
    assert_eq!(read(&mut other, 1024, 512).status, Status::SUCCESS);
    drop((other, other_admin));
    wait_for_connections(&target, 0);
    let (_admin, mut queue) = host(&target);
    assert_eq!(write(&mut queue, 0, &[2; 4096], true), Status::SUCCESS);
}

/// A host preempts another host. The preempt completes, and the other host gets a conflict. The
/// other host's waiting commands then end without reaching the disk.
#[test]
fn a_preempt_ends_commands_that_wait_for_a_limit() {
    let target = target(EngineKind::Auto, |_| {});
    let (_admin, mut one) = host(&target);
    let (_other_admin, mut other) = another_host(target.addresses()[0]);
    let plain = ReservationControl::default();
    let register = plain.with_action(RegisterAction::REGISTER.0);
    reserve(&mut one, NvmOpcode::RESERVATION_REGISTER, register, [0, 7]);
    reserve(&mut other, NvmOpcode::RESERVATION_REGISTER, register, [0, 9]);
    let exclusive = ReservationType::WRITE_EXCLUSIVE.0;
    let acquire = plain.with_action(AcquireAction::ACQUIRE.0).with_rtype(exclusive);
    reserve(&mut other, NvmOpcode::RESERVATION_ACQUIRE, acquire, [9, 0]);
    limit_for(&mut other, &target, 1);
    assert_eq!(write(&mut other, 0, &[1; 512], true), Status::SUCCESS);
    ask(&mut other, 20, 4096);
    let sqe = blocks(NvmOpcode::WRITE.0, 0, 1, SglDescriptor::in_capsule(0, 512));
    let mut out = Vec::new();
    other.end.submit(SlotId(21), &sqe, Transfer::InCapsule(512), &mut out);
    out.extend_from_slice(&[2; 512]);
    other.stream.write_all(&out).expect("sent");
    assert_eq!(read(&mut other, 0, 512).data, [1; 512], "a waiting write reached the disk");
    let preempt = acquire.with_action(AcquireAction::PREEMPT_ABORT.0);
    reserve(&mut one, NvmOpcode::RESERVATION_ACQUIRE, preempt, [7, 9]);
    for _ in 0..2 {
        assert_eq!(status(&mut other), Status::ABORTED_PREEMPT.with_dnr());
    }
    limit(&target, 0);
    assert_eq!(read(&mut one, 0, 512).data, [1; 512]);
}

#[test]
fn waiting_commands_fail_when_their_namespace_is_removed() {
    let target = target(EngineKind::Auto, |_| {});
    let (_admin, mut queue) = host(&target);
    limit_for(&mut queue, &target, 1);
    assert_eq!(write(&mut queue, 0, &[1; 512], true), Status::SUCCESS);
    (20..23).for_each(|slot| ask(&mut queue, slot, 4096));
    assert_eq!(read(&mut queue, 0, 512).status, Status::SUCCESS);
    let removal = target.control().remove_namespace(NQN, NamespaceId(1)).expect("a namespace");
    (0..3).for_each(|_| assert_eq!(status(&mut queue), Status::INVALID_NAMESPACE.with_dnr()));
    removal.wait(Duration::from_secs(60)).expect("no command is in flight");
}

#[test]
fn a_stopping_target_finishes_waiting_commands() {
    let target = target(EngineKind::Auto, |_| {});
    let (_admin, mut queue) = host(&target);
    limit_for(&mut queue, &target, 1);
    assert_eq!(write(&mut queue, 0, &[1; 512], true), Status::SUCCESS);
    ask(&mut queue, 20, 512);
    assert_eq!(read(&mut queue, 0, 512).status, Status::SUCCESS, "reads have no limit");
    std::thread::scope(|scope| {
        scope.spawn(|| target.stop().expect("a clean stop"));
        let grant = wanted(&mut queue);
        give(&mut queue, grant, &[2; 512]);
        assert_eq!(status(&mut queue), Status::SUCCESS);
    });
}
