//! Tests reservations with two hosts and a namespace that one of them reserves.

use super::gate::Gate;
use super::peer::{IDENTITY, NQN, Peer};
use crate::config::{Export, Subsystem, TargetConfig};
use crate::pace::{Rate, Rates};
use crate::reservations::ReservationStore;
use crate::sharing::Sharing;
use crate::target::Target;
use farblock_backends::mem::Mem;
use farblock_block::Command as Operation;
use farblock_proto::host::command::{self, Command, Data, Identity, LogPage};
use farblock_proto::ids::NamespaceId;
use farblock_wire::features::FeatureId;
use farblock_wire::log::LogPageId;
use farblock_wire::opcode::NvmOpcode;
use farblock_wire::reservation::{
    AcquireAction, RegisterAction, Registrant, ReleaseAction, ReservationControl,
    ReservationStatus, ReservationType,
};
use farblock_wire::{Sqe, Status};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const BLOCK: u32 = 512;
const OTHER: Identity<'_> = Identity { hostid: [9; 16], ..IDENTITY };
const CONFLICT: Status = Status::RESERVATION_CONFLICT.with_dnr();
const ABORTED: Status = Status::ABORTED_PREEMPT.with_dnr();
const WRITE_EXCLUSIVE: ReservationType = ReservationType::WRITE_EXCLUSIVE;
const REGISTRANTS_WRITE: ReservationType = ReservationType::WRITE_EXCLUSIVE_REGISTRANTS;
/// The number of blocks of a disk. A Verify of all blocks takes several steps.
const VERIFIED: u32 = 8192;

/// A reservation store that keeps its text in memory.
#[derive(Default)]
struct Kept {
    text: Mutex<String>,
    /// Whether the next save fails.
    fails: Mutex<bool>,
}

impl ReservationStore for Kept {
    fn load(&self) -> io::Result<String> {
        Ok(self.text.lock().unwrap().clone())
    }

    fn save(&self, text: &str) -> io::Result<()> {
        if std::mem::take(&mut *self.fails.lock().unwrap()) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        text.clone_into(&mut self.text.lock().unwrap());
        Ok(())
    }
}

fn gated() -> Arc<Gate> {
    Arc::new(Gate::new(Arc::new(Mem::new(BLOCK, 1 << 20).expect("a size"))))
}

/// Returns a disk that can hold back reads, with enough blocks for a Verify in several steps.
fn gated_reads() -> Arc<Gate> {
    let disk = Mem::new(BLOCK, u64::from(VERIFIED) * u64::from(BLOCK)).expect("a size");
    Arc::new(Gate::of(Operation::Read, Arc::new(disk)))
}

fn target_of(gate: &Arc<Gate>, store: Option<Arc<Kept>>) -> Result<Target, crate::StartError> {
    let mut subsystem = Subsystem::new(NQN);
    subsystem.config.allow_any_host = true;
    let namespace = Arc::clone(gate) as Arc<dyn farblock_block::Namespace>;
    subsystem.exports.insert(NamespaceId(1), Export { namespace, identity: "gate".to_owned() });
    if let Some(store) = store {
        subsystem.reservations.insert(NamespaceId(1), store);
    }
    Target::start(&TargetConfig {
        subsystems: vec![subsystem],
        listeners: vec!["127.0.0.1:0".parse().expect("an address")],
        ..TargetConfig::default()
    })
}

/// A host's two queues. They are on different cores if there are several cores.
struct Host {
    admin: Peer,
    io: Peer,
    key: u64,
}

impl Host {
    fn new(target: &Target, identity: &Identity<'_>) -> Self {
        let (admin, controller) = Peer::admin_of(target, identity);
        let io = Peer::io_of(target, identity, controller, 1, 32);
        Self { admin, io, key: identity.hostid[0].into() }
    }

    fn reserve(&mut self, command: (Command, Vec<u8>)) -> Status {
        self.io.run(&command.0, &command.1).status
    }

    fn register(&mut self) -> Status {
        let control = ReservationControl::default().with_action(RegisterAction::REGISTER.0);
        self.reserve(keyed(NvmOpcode::RESERVATION_REGISTER, control, &[0, self.key]))
    }

    fn acquire(&mut self, rtype: ReservationType) -> Status {
        self.reserve(take(AcquireAction::ACQUIRE, rtype, self.key, 0))
    }

    fn release(&mut self, rtype: ReservationType) -> Status {
        let control =
            ReservationControl::default().with_action(ReleaseAction::RELEASE.0).with_rtype(rtype.0);
        self.reserve(keyed(NvmOpcode::RESERVATION_RELEASE, control, &[self.key]))
    }

    fn write(&mut self, lba: u64, byte: u8) -> Status {
        self.io.run(&command::write(1, lba, 1, BLOCK, false), &[byte; BLOCK as usize]).status
    }

    fn read(&mut self, lba: u64) -> Result<u8, Status> {
        let answer = self.io.run(&command::read(1, lba, 1, BLOCK), &[]);
        if answer.status.is_success() { Ok(answer.data[0]) } else { Err(answer.status) }
    }

    /// Returns the reservation's type, generation, persistence and registrants. Each registrant has
    /// a flag that tells whether it holds the reservation.
    fn report(&mut self) -> (u8, u32, u8, Vec<(u8, bool)>) {
        let (answer, bytes) = (self.io.run(&report(8192, true), &[]), 8192);
        assert_eq!((answer.status, answer.data.len()), (Status::SUCCESS, bytes));
        let head = ReservationStatus::parse(&answer.data).expect("long enough");
        let entries = answer.data[ReservationStatus::LEN..].chunks(Registrant::LEN);
        let registrants = entries.take(head.regctl.get().into()).map(|entry| {
            let entry = Registrant::parse(entry).expect("the chunk has the size of an entry");
            assert_eq!(u64::from(entry.hostid[0]), entry.rkey.get());
            assert_eq!(entry.cntlid.get(), Registrant::CNTLID_DYNAMIC);
            (entry.hostid[0], entry.rcsts & Registrant::RCSTS_HOLDS != 0)
        });
        (head.rtype, head.gen_count.get(), head.ptpls, registrants.collect())
    }
}

fn keyed(opcode: NvmOpcode, control: ReservationControl, keys: &[u64]) -> (Command, Vec<u8>) {
    let data: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
    let sqe = Sqe { cdw10: control.0.into(), ..Sqe::new(opcode.0, 0, 1) };
    (Command::new(sqe, Data::ToController(data.len() as u32)), data)
}

fn take(action: AcquireAction, rtype: ReservationType, key: u64, out: u64) -> (Command, Vec<u8>) {
    let control = ReservationControl::default().with_action(action.0).with_rtype(rtype.0);
    keyed(NvmOpcode::RESERVATION_ACQUIRE, control, &[key, out])
}

fn report(bytes: u32, extended: bool) -> Command {
    let sqe = Sqe {
        cdw10: (bytes / 4 - 1).into(),
        cdw11: u32::from(extended).into(),
        ..Sqe::new(NvmOpcode::RESERVATION_REPORT.0, 0, 1)
    };
    Command::new(sqe, Data::FromController(bytes))
}

fn two_hosts() -> (Target, Arc<Gate>, Host, Host) {
    two_hosts_of(gated())
}

fn two_hosts_of(gate: Arc<Gate>) -> (Target, Arc<Gate>, Host, Host) {
    let target = target_of(&gate, None).expect("the target starts");
    let (one, other) = (Host::new(&target, &IDENTITY), Host::new(&target, &OTHER));
    (target, gate, one, other)
}

#[test]
fn a_reservation_excludes_other_hosts_until_its_release() {
    let (target, _gate, mut one, mut other) = two_hosts();
    assert_eq!(one.acquire(WRITE_EXCLUSIVE), CONFLICT, "the host is not registered");
    assert_eq!((one.register(), one.acquire(WRITE_EXCLUSIVE)), (Status::SUCCESS, Status::SUCCESS));
    assert_eq!((one.write(0, 1), other.write(0, 2)), (Status::SUCCESS, CONFLICT));
    assert_eq!(other.read(0), Ok(1));
    let zeroes = command::write_zeroes(1, 0, 1, false, false);
    assert_eq!(other.io.run(&zeroes, &[]).status, CONFLICT);
    assert_eq!(other.io.run(&command::flush(1), &[]).status, CONFLICT);
    assert_eq!(other.io.run(&command::flush(u32::MAX), &[]).status, CONFLICT);
    let large = vec![2; 256 << 10];
    let write = command::write(1, 0, 512, 256 << 10, false);
    assert_eq!(other.io.run_with(&write, &large, false).status, CONFLICT);
    // The reservation also applies to queues that connect later.
    let mut late = Host::new(&target, &OTHER);
    assert_eq!(late.write(0, 3), CONFLICT);
    assert_eq!(late.report(), (1, 1, 0, vec![(7, true)]));
    assert_eq!(one.release(WRITE_EXCLUSIVE), Status::SUCCESS);
    assert_eq!((other.write(0, 2), late.write(1, 3)), (Status::SUCCESS, Status::SUCCESS));
    assert_eq!(one.read(0), Ok(2));
    let exclusive = ReservationType::EXCLUSIVE_ACCESS_REGISTRANTS;
    assert_eq!(one.acquire(exclusive), Status::SUCCESS);
    assert_eq!(other.read(0), Err(CONFLICT));
    assert_eq!(other.register(), Status::SUCCESS);
    assert_eq!((other.read(0), late.write(1, 4)), (Ok(2), Status::SUCCESS));
    assert_eq!(late.report(), (4, 2, 0, vec![(7, true), (9, false)]));
}

#[test]
fn a_preempt_completes_after_the_last_write_of_the_fenced_host() {
    for action in [AcquireAction::PREEMPT, AcquireAction::PREEMPT_ABORT] {
        let (_target, gate, mut one, mut other) = two_hosts();
        assert_eq!((one.register(), other.register()), (Status::SUCCESS, Status::SUCCESS));
        assert_eq!(other.acquire(WRITE_EXCLUSIVE), Status::SUCCESS);
        gate.keep(1);
        let data = [1; BLOCK as usize];
        let late = other.io.send(&command::write(1, 0, 1, BLOCK, false), &data, true);
        while gate.kept() == 0 {
            std::thread::yield_now();
        }
        let preempt = take(action, WRITE_EXCLUSIVE, one.key, other.key);
        let pending = one.io.send(&preempt.0, &preempt.1, true);
        // Once the preempt has started, new writes of the other host fail.
        while other.write(1, 1) != CONFLICT {
            std::thread::yield_now();
        }
        assert!(one.io.wire.take_answers().is_empty(), "the preempt completed too early");
        gate.open_up();
        assert_eq!(one.io.answer(pending).expect("an answer").status, Status::SUCCESS);
        assert_eq!(one.read(0), Ok(1), "the write that had started has completed");
        assert_eq!(one.write(0, 2), Status::SUCCESS);
        assert_eq!(other.io.answer(late).expect("an answer").status, Status::SUCCESS);
        assert_eq!((other.write(0, 3), other.read(0)), (CONFLICT, Ok(2)));
        assert_eq!(one.report().3, [(7, true)]);
        assert_eq!(gate.seen().iter().filter(|lba| **lba == 0).count(), 2);
    }
}

/// Returns two registered hosts. The first one holds a Write Exclusive - Registrants Only
/// reservation, under which unregistered hosts may read.
fn two_readers(gate: Arc<Gate>) -> (Target, Arc<Gate>, Host, Host) {
    let (target, gate, mut one, mut other) = two_hosts_of(gate);
    assert_eq!((one.register(), other.register()), (Status::SUCCESS, Status::SUCCESS));
    assert_eq!(one.acquire(REGISTRANTS_WRITE), Status::SUCCESS);
    (target, gate, one, other)
}

/// Commands that wait for a rate limit have no operations under way, so the preempt completes at
/// once. After a plain Preempt, the commands that the reservation still permits execute.
#[test]
fn only_preempt_and_abort_ends_commands_that_wait_for_a_limit() {
    for (action, read, written) in [
        (AcquireAction::PREEMPT, Status::SUCCESS, CONFLICT),
        (AcquireAction::PREEMPT_ABORT, ABORTED, ABORTED),
    ] {
        let (target, gate, mut one, mut other) = two_readers(gated_reads());
        let bytes = Rate { all: 1, ..Rate::default() };
        let crawl = Rates { bytes, burst: Duration::from_nanos(1), ..Rates::default() };
        let control = target.control();
        control.set_rates(NQN, NamespaceId(1), &crawl).expect("the namespace exists");
        other.io.is_heard();
        assert_eq!(other.read(0), Ok(0), "the budget is unused");
        let reads = [1, 2].map(|lba| other.io.send(&command::read(1, lba, 1, BLOCK), &[], true));
        other.io.is_heard();
        let preempt = take(action, REGISTRANTS_WRITE, one.key, other.key);
        assert_eq!(one.reserve(preempt), Status::SUCCESS);
        control.set_rates(NQN, NamespaceId(1), &Rates::default()).expect("the namespace exists");
        for cid in reads {
            assert_eq!(other.io.answer(cid).expect("an answer").status, read, "{action:?}");
        }
        let begun = gate.seen().len();
        assert_eq!(begun, if read == Status::SUCCESS { 3 } else { 1 }, "{action:?}");
        // Repeat the test with a write.
        assert_eq!((other.register(), other.write(0, 1)), (Status::SUCCESS, Status::SUCCESS));
        control.set_rates(NQN, NamespaceId(1), &crawl).expect("the namespace exists");
        other.io.is_heard();
        assert_eq!(other.write(0, 1), Status::SUCCESS, "the budget is unused");
        let late = other.io.send(&command::write(1, 0, 1, BLOCK, false), &[2; 512], true);
        other.io.is_heard();
        let preempt = take(action, REGISTRANTS_WRITE, one.key, other.key);
        assert_eq!(one.reserve(preempt), Status::SUCCESS);
        assert_eq!(other.io.answer(late).expect("an answer").status, written, "{action:?}");
        control.set_rates(NQN, NamespaceId(1), &Rates::default()).expect("the namespace exists");
        assert_eq!(one.read(0), Ok(1), "{action:?}: the write executed");
    }
}

/// A Preempt and Abort stops a Verify after the step under way, and completes after this step.
#[test]
fn only_preempt_and_abort_ends_a_command_of_several_steps() {
    for action in [AcquireAction::PREEMPT, AcquireAction::PREEMPT_ABORT] {
        let aborts = action == AcquireAction::PREEMPT_ABORT;
        let (_target, gate, mut one, mut other) = two_readers(gated_reads());
        gate.keep(1);
        let zeroes = command::write_zeroes(1, 0, VERIFIED, false, false).sqe;
        let sqe = Sqe { opcode: NvmOpcode::VERIFY.0, cdw12: (VERIFIED - 1).into(), ..zeroes };
        let verify = other.io.send(&Command::new(sqe, Data::None), &[], true);
        while gate.kept() == 0 {
            std::thread::yield_now();
        }
        let preempt = take(action, REGISTRANTS_WRITE, one.key, other.key);
        let pending = one.io.send(&preempt.0, &preempt.1, true);
        // Once the other host may no longer write, its queue has applied the change.
        while other.write(1, 1) != CONFLICT {
            std::thread::yield_now();
        }
        if aborts {
            assert!(one.io.wire.take_answers().is_empty(), "the preempt completed before the step");
        }
        gate.open_up();
        assert_eq!(one.io.answer(pending).expect("an answer").status, Status::SUCCESS);
        let expected = if aborts { ABORTED } else { Status::SUCCESS };
        assert_eq!(other.io.answer(verify).expect("an answer").status, expected, "{action:?}");
        assert_eq!(gate.seen().len() > 1, !aborts, "{action:?}: {:?}", gate.seen());
    }
}

#[test]
fn a_preempt_waits_for_the_writes_of_a_lost_queue() {
    let (_target, gate, mut one, mut other) = two_hosts();
    assert_eq!((one.register(), other.register()), (Status::SUCCESS, Status::SUCCESS));
    assert_eq!(other.acquire(WRITE_EXCLUSIVE), Status::SUCCESS);
    gate.keep(1);
    other.io.send(&command::write(1, 0, 1, BLOCK, false), &[1; BLOCK as usize], true);
    while gate.kept() == 0 {
        std::thread::yield_now();
    }
    other.admin.wire.leave();
    assert!(other.io.wire.wait().is_none(), "the controller has closed");
    let preempt = take(AcquireAction::PREEMPT, WRITE_EXCLUSIVE, one.key, other.key);
    let pending = one.io.send(&preempt.0, &preempt.1, true);
    // Other queues of the same host still complete commands.
    let log = LogPage::new(LogPageId::SMART_HEALTH, 512);
    assert_eq!(one.admin.run(&command::log_page(log), &[]).status, Status::SUCCESS);
    assert!(one.io.wire.take_answers().is_empty(), "the preempt completed too early");
    gate.open_up();
    assert_eq!(one.io.answer(pending).expect("an answer").status, Status::SUCCESS);
}

#[test]
fn the_preempted_host_is_notified() {
    let (_target, _gate, mut one, mut other) = two_hosts();
    let event = Sqe { cid: 77.into(), ..command::async_event_request().sqe };
    other.admin.wire.send(event, &[]);
    assert_eq!((one.register(), other.register()), (Status::SUCCESS, Status::SUCCESS));
    assert_eq!(one.acquire(WRITE_EXCLUSIVE), Status::SUCCESS);
    let preempt = take(AcquireAction::PREEMPT, WRITE_EXCLUSIVE, one.key, other.key);
    assert_eq!(one.reserve(preempt), Status::SUCCESS);
    let told = other.admin.wire.wait().expect("an event");
    assert_eq!((told.cid.get(), told.result()), (77, 0x0080_0006));
    let mut read = || {
        let log = LogPage::new(LogPageId::RESERVATION_NOTIFICATION, 64);
        let page = other.admin.run(&command::log_page(log), &[]).data;
        (page[0], page[8], page[9], page[12])
    };
    assert_eq!(read(), (1, 1, 0, 1), "registration preempted, of namespace 1");
    assert_eq!(read(), (0, 0, 0, 0), "the page is empty");
}

#[test]
fn only_persistent_reservations_survive_a_restart() {
    let (gate, store) = (gated(), Arc::new(Kept::default()));
    let target = target_of(&gate, Some(Arc::clone(&store))).expect("the target starts");
    let mut one = Host::new(&target, &IDENTITY);
    let control = ReservationControl::default().with_cptpl(ReservationControl::CPTPL_SET);
    let persisting = || keyed(NvmOpcode::RESERVATION_REGISTER, control, &[0, 7]);
    *store.fails.lock().unwrap() = true;
    assert_eq!(one.reserve(persisting()), Status::INTERNAL_ERROR, "the store fails");
    assert_eq!(one.report(), (0, 0, 0, vec![]), "the host is not registered");
    assert_eq!(one.reserve(persisting()), Status::SUCCESS);
    assert_eq!(one.acquire(WRITE_EXCLUSIVE), Status::SUCCESS);
    target.stop().expect("the target stops");
    let target = target_of(&gate, Some(Arc::clone(&store))).expect("the target starts");
    let (mut one, mut other) = (Host::new(&target, &IDENTITY), Host::new(&target, &OTHER));
    assert_eq!((other.write(0, 1), one.write(0, 2)), (CONFLICT, Status::SUCCESS));
    assert_eq!(one.report(), (1, 1, 1, vec![(7, true)]));
    let feature = command::set_features(FeatureId::RESERVATION_PERSISTENCE, 0);
    let of_it = Command { sqe: Sqe { nsid: 1.into(), ..feature.sqe }, ..feature };
    assert_eq!(one.admin.run(&of_it, &[]).status, Status::SUCCESS);
    assert_eq!(*store.text.lock().unwrap(), "");
    assert_eq!(other.write(0, 1), CONFLICT, "the reservation holds while the target runs");
    target.stop().expect("the target stops");
    "rubbish".clone_into(&mut store.text.lock().unwrap());
    let refused =
        target_of(&gate, Some(store)).err().expect("the target refuses to start").to_string();
    assert!(refused.contains("damaged") && refused.contains("namespace 1"), "{refused}");
}

#[test]
fn persistent_reservations_hold_when_a_namespace_is_added_again() {
    let (gate, store) = (gated(), Arc::new(Kept::default()));
    let target = target_of(&gate, Some(Arc::clone(&store))).expect("the target starts");
    let (mut one, mut other) = (Host::new(&target, &IDENTITY), Host::new(&target, &OTHER));
    let control = ReservationControl::default().with_cptpl(ReservationControl::CPTPL_SET);
    let persisting = keyed(NvmOpcode::RESERVATION_REGISTER, control, &[0, 7]);
    assert_eq!(one.reserve(persisting), Status::SUCCESS);
    assert_eq!(one.acquire(WRITE_EXCLUSIVE), Status::SUCCESS);
    let namespace = Arc::clone(&gate) as Arc<dyn farblock_block::Namespace>;
    let export = Export { namespace, identity: "gate".to_owned() };
    let changes = target.control();
    let (nsid, kept) = (NamespaceId(1), Arc::clone(&store) as Arc<dyn ReservationStore>);
    let add = |kept: Option<&Arc<dyn ReservationStore>>| {
        changes.add_namespace_kept(NQN, nsid, &export, &Sharing::default(), kept)
    };
    let remove = || drop(changes.remove_namespace(NQN, nsid).expect("the namespace exists"));
    // The host's core may not have received the namespace yet.
    let once_there = |host: &mut Host| loop {
        let status = host.write(0, 1);
        if status.code() != Status::INVALID_NAMESPACE.code() {
            return status;
        }
    };
    for _ in 0..50 {
        remove();
        add(Some(&kept)).expect("the namespace can be shared");
        assert_eq!(once_there(&mut other), CONFLICT, "the host may not write");
        assert_eq!(once_there(&mut one), Status::SUCCESS);
    }
    assert_eq!(one.report(), (1, 1, 1, vec![(7, true)]));
    assert_eq!(one.release(WRITE_EXCLUSIVE), Status::SUCCESS);
    assert_eq!(other.write(0, 1), Status::SUCCESS, "after the release the other host may write");
    remove();
    add(Some(&kept)).expect("the namespace can be shared");
    assert_eq!(once_there(&mut other), Status::SUCCESS);
    remove();
    "rubbish".clone_into(&mut store.text.lock().unwrap());
    let refused = add(Some(&kept)).expect_err("a fenced host could write").to_string();
    assert!(refused.contains("damaged") && refused.contains("namespace 1"), "{refused}");
    // A namespace that was added without a reservation store can be added again with a store.
    add(None).expect("the namespace needs no stored reservations");
    assert_eq!(once_there(&mut other), Status::SUCCESS);
    remove();
    String::new().clone_into(&mut store.text.lock().unwrap());
    add(Some(&kept)).expect("the namespace can be shared");
    assert_eq!(once_there(&mut one), Status::SUCCESS);
    let persisting = keyed(NvmOpcode::RESERVATION_REGISTER, control, &[0, 7]);
    assert_eq!(one.reserve(persisting), Status::SUCCESS);
    assert_ne!(*store.text.lock().unwrap(), "");
    target.stop().expect("the target stops");
}

#[test]
fn unsupported_reservation_fields_are_refused() {
    let (target, _gate, mut one, _other) = two_hosts();
    let status = |command: &(Command, Vec<u8>), host: &mut Host| {
        Status(host.io.run(&command.0, &command.1).status.code())
    };
    // The namespace has no store.
    let control = ReservationControl::default().with_cptpl(ReservationControl::CPTPL_SET);
    let persisting = keyed(NvmOpcode::RESERVATION_REGISTER, control, &[0, 7]);
    assert_eq!(status(&persisting, &mut one), Status::INVALID_FIELD);
    let short = (report(4096, false), vec![]);
    assert_eq!(status(&short, &mut one), Status::HOST_ID_INCONSISTENT);
    let mut nobody = Host::new(&target, &Identity { hostid: [0; 16], ..IDENTITY });
    nobody.key = 5;
    assert_eq!(Status(nobody.register().code()), Status::COMMAND_SEQUENCE_ERROR);
    // The report has exactly the requested number of bytes.
    assert_eq!(one.io.run(&report(4, true), &[]).data.len(), 4);
}

#[test]
fn a_flush_of_all_namespaces_ignores_invisible_ones() {
    let (gate, second) = (gated(), gated());
    let target = target_of(&gate, None).expect("the target starts");
    let control = target.control();
    let export = Export { namespace: second, identity: "second".to_owned() };
    control.add_namespace(NQN, NamespaceId(2), &export).expect("the number is free");
    let other = Identity { hostnqn: "nqn.2026-11.org.farblock:other", ..OTHER };
    let (mut holder, mut host) = (Host::new(&target, &IDENTITY), Host::new(&target, &other));
    assert_eq!(holder.register(), Status::SUCCESS);
    assert_eq!(holder.acquire(WRITE_EXCLUSIVE), Status::SUCCESS);
    let all = command::flush(u32::MAX);
    assert_eq!(host.io.run(&all, &[]).status, CONFLICT);
    let seen_by = [IDENTITY.hostnqn.to_owned()].into();
    control.set_visible_to(NQN, NamespaceId(1), Some(&seen_by)).expect("the namespace exists");
    // Once the host no longer sees the namespace, its core has applied the change.
    while host.write(0, 1) == CONFLICT {}
    assert_eq!(host.write(0, 1), Status::INVALID_NAMESPACE.with_dnr());
    assert_eq!(host.io.run(&all, &[]).status, Status::SUCCESS);
    assert_eq!(holder.io.run(&all, &[]).status, Status::SUCCESS);
}
