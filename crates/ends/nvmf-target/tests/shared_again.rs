//! A target shares disks of another target. If that target does not answer, this does not stall the
//! hosts of other disks.

mod rig;

use farblock_backends::concat::Concat;
use farblock_backends::mem::Mem;
use farblock_backends::stripe::Stripe;
use farblock_block::{Availability, Namespace};
use farblock_host::Disk;
use farblock_host::disk::DiskOptions;
use farblock_proto::ids::NamespaceId;
use farblock_proto::tcp::host_end::Transfer;
use farblock_proto::tcp::{Digests, SlotId};
use farblock_reactor::EngineKind;
use farblock_wire::opcode::NvmOpcode;
use farblock_wire::{SglDescriptor, Sqe, Status};
use rig::proxy::Proxy;
use rig::scripted::*;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn mem() -> Arc<dyn Namespace> {
    Arc::new(Mem::new(BLOCK as u32, BLOCKS * BLOCK as u64).expect("a size"))
}

/// If a part of a disk is lost, commands that access this part fail with a path error, so that
/// hosts try another path. A flush accesses all parts. When the part recovers, the whole disk
/// recovers.
#[test]
fn commands_to_a_lost_part_fail_with_a_path_error_until_it_returns() {
    for &engine in EngineKind::HERE {
        let behind = rig::serve(mem(), &[rig::any()]);
        let proxy = Proxy::new(behind.addresses()[0]);
        let fast_io_fail_timeout = Some(Duration::from_millis(200));
        let options = DiskOptions { fast_io_fail_timeout, ..rig::options(engine) };
        let disk = Disk::connect(&[rig::url(proxy.address)], &options);
        let disk: Arc<dyn Namespace> = Arc::new(disk.expect("the host connects"));
        let whole =
            Arc::new(Concat::new(vec![mem(), Arc::clone(&disk), mem()]).expect("a concatenation"));
        let target = target_of(engine, [Arc::clone(&whole) as Arc<dyn Namespace>], |_| {});
        let address = target.addresses()[0];
        let (_admin, controller) = admin(address, Digests::NONE);
        let mut queue = io(address, Digests::NONE, controller, false);
        let data = pattern(2 * BLOCK, 1);
        // The last range spans two parts.
        let places = [0, BLOCKS, 2 * BLOCKS, BLOCKS - 1];
        let write = |queue: &mut Queue| places.map(|lba| write(queue, lba, &data, true));
        let flush = |queue: &mut Queue| {
            let flush = Sqe::new(NvmOpcode::FLUSH.0, 0, 1);
            queue.run(flush, Transfer::None, &[]).status
        };
        assert_eq!(write(&mut queue), [Status::SUCCESS; 4]);
        assert_eq!(flush(&mut queue), Status::SUCCESS);
        proxy.down();
        rig::until("the disk waits", || whole.availability() == Availability::Waiting);
        let (ok, lost) = (Status::SUCCESS, Status::INTERNAL_PATH_ERROR);
        assert_eq!(write(&mut queue), [ok, lost, ok, lost]);
        assert_eq!(flush(&mut queue), lost);
        assert_eq!(read(&mut queue, 0, BLOCK as u32).status, ok);
        assert_eq!(read(&mut queue, BLOCKS, BLOCK as u32).status, lost);
        proxy.up();
        let until = Instant::now() + Duration::from_secs(60);
        while write(&mut queue) != [ok; 4] {
            assert!(Instant::now() < until, "the disk does not come back");
        }
        assert_eq!(flush(&mut queue), ok);
        for lba in places {
            assert_eq!(read(&mut queue, lba, 2 * BLOCK as u32).data[BLOCK..], data[BLOCK..]);
        }
    }
}

/// A host of the second target gets the status that the first target returned. The second target's
/// disk reports the refusal.
#[test]
fn a_status_passes_through_a_shared_remote_disk() {
    use farblock_backends::fault::{Fault, Rule};
    use farblock_block::BlockError as E;
    let statuses = [
        (E::Conflict, Status::RESERVATION_CONFLICT.with_dnr(), true),
        (E::Denied, Status::ACCESS_DENIED.with_dnr(), true),
        (E::ReadOnly, Status::NAMESPACE_WRITE_PROTECTED.with_dnr(), true),
        (E::NoSpace, Status::CAPACITY_EXCEEDED.with_dnr(), true),
        (E::NotReady, Status::NAMESPACE_NOT_READY, true),
        (E::AtomicExceeded, Status::ATOMIC_WRITE_UNIT_EXCEEDED.with_dnr(), false),
        (E::OutOfRange, Status::LBA_OUT_OF_RANGE.with_dnr(), false),
    ];
    let engine = EngineKind::Portable;
    for (error, status, is_refusal) in statuses {
        let fault = Arc::new(Fault::new(mem(), vec![Rule::new(error)], 1));
        let behind = rig::serve(Arc::clone(&fault) as Arc<dyn Namespace>, &[rig::any()]);
        let urls = [rig::url(behind.addresses()[0])];
        let disk =
            Arc::new(Disk::connect(&urls, &rig::options(engine)).expect("the host connects"));
        let target = target_of(engine, [Arc::clone(&disk) as Arc<dyn Namespace>], |_| {});
        let address = target.addresses()[0];
        let (_admin, controller) = admin(address, Digests::NONE);
        let mut queue = io(address, Digests::NONE, controller, false);
        let data = pattern(BLOCK, 1);
        assert_eq!(write(&mut queue, 0, &data, true), status, "{error}");
        let told = disk.refusal();
        assert_eq!(told.is_some_and(|it| it.contains(&error.to_string())), is_refusal, "{error}");
        fault.set_enabled(false);
        assert_eq!(write(&mut queue, 0, &data, true), Status::SUCCESS, "{error}");
        assert_eq!(disk.refusal(), None, "{error}");
    }
}

/// A store reports a lost write once, but the loss may affect any host.
#[test]
#[cfg(target_os = "linux")]
fn every_host_gets_a_failed_flush_once() {
    use farblock_backends::fault::{Fault, Rule};
    use farblock_block::{BlockError, Command};
    use rig::stranger::Peer;
    for &engine in EngineKind::HERE {
        let rules = vec![Rule::new(BlockError::WriteFailed).command(Command::Flush)];
        let fault = Arc::new(Fault::new(mem(), rules, 1));
        fault.set_enabled(false);
        let disk = Arc::clone(&fault) as Arc<dyn Namespace>;
        let target = rig::serve_as(disk, "disk", &[rig::any()], engine);
        let connect = |name: &str| {
            let (address, host) =
                (target.addresses()[0], format!("nqn.2026-11.org.example:{name}"));
            let (admin, controller) = Peer::admin(address, rig::NQN, &host);
            let mut queue = Peer::new(address);
            queue.connect(rig::NQN, &host, 1, controller);
            (admin, queue)
        };
        let flush_of = |host: &mut (Peer, Peer), nsid: u32| {
            assert!(host.1.send(Sqe::new(NvmOpcode::FLUSH.0, 0, nsid), Transfer::None, &[]));
            host.1.status().expect("an answer").0
        };
        let flush = |host: &mut (Peer, Peer)| flush_of(host, 1);
        let (ok, lost) = (Status::SUCCESS, Status::WRITE_FAULT);
        let [mut one, mut other] = ["one", "other"].map(connect);
        assert_eq!([flush(&mut one), flush(&mut other)], [ok, ok]);
        let lose = |by: &mut (Peer, Peer), nsid: u32| {
            fault.set_enabled(true);
            assert_eq!(flush_of(by, nsid), lost);
            fault.set_enabled(false);
        };
        lose(&mut one, 1);
        assert_eq!([flush(&mut one), flush(&mut one)], [ok, ok]);
        assert_eq!([flush(&mut other), flush(&mut other)], [lost, ok]);
        // A flush of all namespaces also reports the loss, even on a new connection. A host that
        // first connected after the loss gets no error.
        lose(&mut one, u32::MAX);
        drop(other);
        let [mut other, mut later] = ["other", "later"].map(connect);
        assert_eq!([flush(&mut later), flush(&mut one)], [ok, ok]);
        assert_eq!([flush_of(&mut other, u32::MAX), flush(&mut other)], [lost, ok]);
    }
}

/// Both namespaces are in use on the same queue, and therefore on the same core.
#[test]
fn a_silent_target_behind_one_namespace_does_not_stall_others() {
    for &engine in EngineKind::HERE {
        let behind = rig::serve(mem(), &[rig::any()]);
        let proxy = Proxy::new(behind.addresses()[0]);
        let disk = Disk::connect(&[rig::url(proxy.address)], &rig::options(engine));
        let disk: Arc<dyn Namespace> = Arc::new(disk.expect("the host connects"));
        // Stall the proxy before any queue is open, so that all queues wait in the handshake.
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
        let removal = target.control().remove_namespace(NQN, NamespaceId(1)).expect("a namespace");
        let removal = removal.wait(Duration::from_millis(1)).expect_err("a read is in flight");
        proxy.resume();
        // Started commands complete. Then the target releases the namespace.
        assert_eq!(queue.completions(1), length as usize);
        removal.wait(Duration::from_secs(60)).expect("all commands end");
    }
}
