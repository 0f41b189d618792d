//! Tests of requests that fail, and of later requests on the same queue pair.

use super::stand::{End, MEMORY_BYTES, Stand};
use crate::request::{Access, Operation, Status};
use crate::verbs::{ConnParam, Verbs};

/// Checks that the request fails with this status, and that the queue pair flushes later requests.
fn assert_fails<V: Verbs>(end: &End<V>, operation: Operation, bytes: u32, status: Status) {
    end.send(1, operation, &[end.slice(0, bytes)]);
    let failed = end.completion();
    assert_eq!((failed.id, failed.status), (1, status));
    assert_eq!(Some(failed.qp_num), end.verbs.qp_num(&end.id));
    end.send(2, Operation::Send, &[end.slice(0, 1)]);
    let flushed = end.completion();
    assert_eq!((flushed.id, flushed.status), (2, Status::WR_FLUSH_ERR));
}

pub(super) fn a_receiver_that_is_not_ready_fails_the_message<V: Verbs + Clone>(stand: &Stand<V>) {
    let param = ConnParam { rnr_retry_count: 0, ..ConnParam::default() };
    let (host, _target) = stand.pair(&param);
    assert_fails(&host, Operation::Send, 1, Status::RNR_RETRY_EXC_ERR);
}

pub(super) fn a_wrong_key_fails_and_flushes<V: Verbs + Clone>(stand: &Stand<V>) {
    let (host, target) = stand.pair(&ConnParam::default());
    target.receive(3, &[target.slice(0, 8)]);
    let (address, rkey) = (target.keys().address(), target.keys().rkey() ^ 0x5555_5500);
    host.fill(0, &[1; 8]);
    assert_fails(&host, Operation::Write { address, rkey }, 8, Status::REM_ACCESS_ERR);
    assert_eq!(target.bytes(0, 8), [0; 8]);
    // The target's queue pair fails, too.
    let flushed = target.completion();
    assert_eq!((flushed.id, flushed.status), (3, Status::WR_FLUSH_ERR));
    // A READ with a wrong key fails with the same status.
    let (host, target) = stand.pair(&ConnParam::default());
    let (address, rkey) = (target.keys().address(), target.keys().rkey() ^ 0x5555_5500);
    assert_fails(&host, Operation::Read { address, rkey }, 8, Status::REM_ACCESS_ERR);
}

pub(super) fn a_range_beyond_the_registration_fails<V: Verbs + Clone>(stand: &Stand<V>) {
    let (host, target) = stand.pair(&ConnParam::default());
    let (address, rkey) = (target.keys().address(), target.keys().rkey());
    host.fill(0, &[1; 8]);
    let last = Operation::Write { address: address + MEMORY_BYTES as u64 - 8, rkey };
    host.send(5, last, &[host.slice(0, 8)]);
    host.success(5);
    assert_eq!(target.bytes(MEMORY_BYTES - 8, 8), [1; 8]);
    let beyond = Operation::Write { address: address + MEMORY_BYTES as u64 - 7, rkey };
    assert_fails(&host, beyond, 8, Status::REM_ACCESS_ERR);
    let (host, target) = stand.pair(&ConnParam::default());
    let (address, rkey) = (target.keys().address() - 1, target.keys().rkey());
    assert_fails(&host, Operation::Read { address, rkey }, 8, Status::REM_ACCESS_ERR);
}

pub(super) fn a_write_without_permission_fails<V: Verbs + Clone>(stand: &Stand<V>) {
    let (host, target) = stand.pair(&ConnParam::default());
    let (verbs, queues) = (&target.verbs, &target.queues);
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let mr = verbs.reg_mr(&queues.pd, queues.memory.clone(), access).expect("a registration");
    let (address, rkey) = (verbs.keys(&mr).address(), verbs.keys(&mr).rkey());
    target.fill(0, &[3; 8]);
    host.send(5, Operation::Read { address, rkey }, &[host.slice(8, 8)]);
    host.success(5);
    assert_eq!(host.bytes(8, 8), [3; 8]);
    assert_fails(&host, Operation::Write { address, rkey }, 8, Status::REM_ACCESS_ERR);
    assert_eq!(target.bytes(0, 8), [3; 8]);
}

pub(super) fn a_dropped_registration_is_inaccessible<V: Verbs + Clone>(stand: &Stand<V>) {
    let (host, target) = stand.pair(&ConnParam::default());
    let (verbs, queues) = (&target.verbs, &target.queues);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mr = verbs.reg_mr(&queues.pd, queues.memory.clone(), access).expect("a registration");
    let (address, rkey) = (verbs.keys(&mr).address(), verbs.keys(&mr).rkey());
    host.send(5, Operation::Write { address, rkey }, &[host.slice(0, 8)]);
    host.success(5);
    drop(mr);
    host.fill(0, &[1; 8]);
    assert_fails(&host, Operation::Write { address, rkey }, 8, Status::REM_ACCESS_ERR);
    assert_eq!(target.bytes(0, 8), [0; 8]);
}

pub(super) fn a_message_longer_than_its_receive_fails<V: Verbs + Clone>(stand: &Stand<V>) {
    let (host, target) = stand.pair(&ConnParam::default());
    target.receive(3, &[target.slice(0, 8)]);
    host.send(1, Operation::Send, &[host.slice(0, 9)]);
    // InfiniBand demands the first of these statuses. Soft-RoCE reports the second.
    let status = host.completion().status;
    assert!([Status::REM_INV_REQ_ERR, Status::REM_OP_ERR].contains(&status), "{status}");
    // Devices report different statuses for the receiver's error.
    let failed = target.completion();
    assert_eq!(failed.id, 3);
    assert!(!failed.status.is_success(), "{failed:?}");
}
