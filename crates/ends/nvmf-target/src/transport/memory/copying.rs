//! Tests Copy: its effects, refusals and interruptions.

use super::gate::Gate;
use super::peer::{IDENTITY, NQN, Peer, target};
use crate::limits;
use crate::pace::{Rate, Rates};
use crate::target::Target;
use farblock_backends::fault::{Fault, Rule};
use farblock_backends::mem::Mem;
use farblock_block::{
    BlockError, Command as Operation, Completion, Geometry, Namespace, Op, Queue,
};
use farblock_proto::host::command::{self, Command, Data, Identity};
use farblock_proto::ids::NamespaceId;
use farblock_reactor::{Reactor, TaskId};
use farblock_wire::features::{FeatureId, HostBehavior};
use farblock_wire::nvm::{CopyRange, DsmRange};
use farblock_wire::opcode::NvmOpcode;
use farblock_wire::{IntoBytes, Sqe, Status};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const BLOCK: u32 = 512;
/// The number of blocks of a namespace. A Copy of all blocks takes several steps.
const BLOCKS: u64 = 16 << 10;

fn memory() -> Arc<dyn Namespace> {
    Arc::new(Mem::new(BLOCK, BLOCKS * u64::from(BLOCK)).expect("a size"))
}

struct Host {
    admin: Peer,
    io: Peer,
}

impl Host {
    fn new(target: &Target) -> Self {
        Self::of(target, &IDENTITY)
    }

    fn of(target: &Target, identity: &Identity<'_>) -> Self {
        let (admin, controller) = Peer::admin_of(target, identity);
        let io = Peer::io_of(target, identity, controller, 1, 32);
        Self { admin, io }
    }

    /// Enables these copy descriptor formats with Host Behavior Support.
    fn enable(&mut self, formats: u16) -> Status {
        let feature = command::set_features(FeatureId::HOST_BEHAVIOR_SUPPORT, 0);
        let behavior = HostBehavior { cdfe: formats.into(), ..HostBehavior::zeroed() };
        let command = Command { data: Data::ToController(512), ..feature };
        code(self.admin.run(&command, behavior.as_bytes()).status)
    }

    /// Copies ranges, and returns the status and the result of the Copy.
    fn copy(&mut self, nsid: u32, lba: u64, across: bool, ranges: &[CopyRange]) -> (Status, u64) {
        let answer = self.io.run(&command::copy(nsid, lba, ranges.len(), across), &bytes(ranges));
        (code(answer.status), answer.result)
    }

    /// Fills each block from `lba` on with its number and a letter.
    fn fill(&mut self, nsid: u32, lba: u64, blocks: u64, letter: u8) {
        let data: Vec<u8> = (lba..lba + blocks).flat_map(|lba| block(lba, letter)).collect();
        let write = command::write(nsid, lba, blocks as u32, data.len() as u32, false);
        assert_eq!(self.io.run_with(&write, &data, false).status, Status::SUCCESS);
    }

    fn read(&mut self, nsid: u32, lba: u64) -> [u8; 9] {
        let answer = self.io.run(&command::read(nsid, lba, 1, BLOCK), &[]);
        assert_eq!(answer.status, Status::SUCCESS);
        answer.data[..9].try_into().expect("nine bytes")
    }
}

fn block(lba: u64, letter: u8) -> Vec<u8> {
    let mut block = vec![letter; BLOCK as usize];
    block[..8].copy_from_slice(&lba.to_le_bytes());
    block
}

fn head(lba: u64, letter: u8) -> [u8; 9] {
    block(lba, letter)[..9].try_into().expect("nine bytes")
}

fn range(nsid: u32, lba: u64, blocks: u32) -> CopyRange {
    command::copy_range(nsid, lba, blocks)
}

fn bytes(ranges: &[CopyRange]) -> Vec<u8> {
    ranges.iter().flat_map(|range| range.as_bytes().to_vec()).collect()
}

fn code(status: Status) -> Status {
    Status(status.code())
}

#[test]
fn copy_executes_its_ranges_in_order_in_any_number_of_steps() {
    let target = target([memory()]);
    let mut host = Host::new(&target);
    (0..4).for_each(|part| host.fill(1, part * 1024, 1024, b'a'));
    let ranges = [range(0, 4000, 5), range(0, 0, 3000), range(0, 2, 1)];
    assert_eq!(host.copy(1, 5001, false, &ranges), (Status::SUCCESS, 0));
    let copied = (4000..4005).chain(0..3000).chain([2]);
    for (to, from) in (5001..).zip(copied).filter(|(to, _)| to % 37 == 0 || *to < 5010) {
        assert_eq!(host.read(1, to), head(from, b'a'), "block {to}");
    }
    assert_eq!(host.read(1, 5001 + 3005), head(2, b'a'), "the last copied block");
    assert_eq!(host.read(1, 5000), [0; 9]);
    assert_eq!(host.read(1, 5001 + 3006), [0; 9]);
}

#[test]
fn copy_reads_other_namespaces_only_if_the_host_enabled_it() {
    let gate: Arc<Gate> = Arc::new(Gate::new(memory()));
    let read_only: Arc<dyn Namespace> =
        Arc::new(Mem::new(BLOCK, BLOCKS * u64::from(BLOCK)).expect("a size").read_only());
    let large: Arc<dyn Namespace> = Arc::new(Mem::new(4096, 1 << 20).expect("a size"));
    let target = target([memory(), gate.clone(), read_only, large]);
    let mut host = Host::new(&target);
    host.fill(1, 10, 8, b'a');
    let ranges = [range(1, 10, 8), range(2, 10, 1), range(3, 0, 1)];
    assert_eq!(host.copy(2, 100, true, &ranges), (Status::INVALID_FIELD, 0));
    assert_eq!(host.enable(1 << 3), Status::INVALID_FIELD, "format 3");
    assert_eq!(host.enable(HostBehavior::CDFE_FORMAT_2), Status::SUCCESS);
    assert_eq!(host.copy(2, 100, true, &ranges), (Status::SUCCESS, 0));
    assert_eq!((host.read(2, 100), host.read(2, 107)), (head(10, b'a'), head(17, b'a')));
    assert_eq!((host.read(2, 108), host.read(2, 109)), ([0; 9], [0; 9]));
    let refused = [
        (2, range(4, 0, 1), Status::INCOMPATIBLE_NAMESPACE),
        (2, range(9, 0, 1), Status::INVALID_NAMESPACE),
        (2, range(1, BLOCKS, 1), Status::LBA_OUT_OF_RANGE),
        (3, range(1, 0, 1), Status::NAMESPACE_WRITE_PROTECTED),
    ];
    for (nsid, range, status) in refused {
        assert_eq!(host.copy(nsid, 0, true, &[range]), (status, 0));
    }
    let fast = CopyRange { sopt: CopyRange::SOPT_FAST_ONLY.into(), ..range(1, 0, 1) };
    assert_eq!(host.copy(2, 0, true, &[fast]), (Status::FAST_COPY_NOT_POSSIBLE, 0));
    // A Copy makes its data durable only with FUA.
    let durable = gate.durable();
    let mut fua = command::copy(2, 0, 1, true);
    fua.sqe.cdw12.set(fua.sqe.cdw12.get() | 1 << 30);
    assert_eq!(host.io.run(&fua, &bytes(&[range(1, 10, 8)])).status, Status::SUCCESS);
    assert_eq!(gate.durable(), durable + 1);
    assert_eq!(host.enable(0), Status::SUCCESS);
    assert_eq!(host.copy(2, 0, true, &[range(1, 0, 1)]).0, Status::INVALID_FIELD);
}

#[test]
fn a_copy_beyond_a_limit_copies_nothing() {
    let large: Arc<dyn Namespace> = Arc::new(Mem::new(BLOCK, 512 << 20).expect("a size"));
    let target = target([large]);
    let mut host = Host::new(&target);
    let page = host.admin.run(&command::identify_namespace(1), &[]).data;
    let mssrl = u32::from(u16::from_le_bytes(page[74..76].try_into().expect("two bytes")));
    let mcl = u32::from_le_bytes(page[76..80].try_into().expect("four bytes"));
    let msrc = usize::from(page[80]) + 1;
    let whole = vec![range(0, 0, 1); msrc];
    assert_eq!(host.copy(1, 500, false, &whole), (Status::SUCCESS, 0));
    let more = vec![range(0, 0, 1); msrc + 1];
    assert_eq!(host.copy(1, 500, false, &more).0, Status::COMMAND_SIZE_LIMIT_EXCEEDED);
    assert_eq!(host.copy(1, 100_000, false, &[range(0, 0, mssrl)]), (Status::SUCCESS, 0));
    let longer = [range(0, 0, mssrl + 1)];
    assert_eq!(host.copy(1, 100_000, false, &longer).0, Status::COMMAND_SIZE_LIMIT_EXCEEDED);
    let (full, rest) = (mcl / mssrl, mcl % mssrl);
    let mut most = vec![range(0, 0, mssrl); full as usize];
    most.extend((rest > 0).then(|| range(0, 0, rest)));
    assert_eq!(host.copy(1, 600_000, false, &most), (Status::SUCCESS, 0));
    most.push(range(0, 0, 1));
    assert_eq!(host.copy(1, 600_000, false, &most).0, Status::COMMAND_SIZE_LIMIT_EXCEEDED);
    let end = (512 << 20) / u64::from(BLOCK);
    assert_eq!(host.copy(1, end - 1, false, &[range(0, 0, 2)]).0, Status::LBA_OUT_OF_RANGE);
    assert_eq!(host.copy(1, end, false, &[range(0, 0, 1)]).0, Status::LBA_OUT_OF_RANGE);
    assert_eq!(host.copy(1, u64::MAX, false, &[range(0, 0, 1)]).0, Status::LBA_OUT_OF_RANGE);
    let beyond = [range(0, 5, 1), range(0, u64::MAX, 1)];
    assert_eq!(host.copy(1, 0, false, &beyond), (Status::LBA_OUT_OF_RANGE, 0));
    // First the last source block is the first destination block. Then the first source block is
    // the last destination block.
    for from in [91, 109] {
        let overlapping = [range(0, 0, 1), range(0, from, 10)];
        assert_eq!(host.copy(1, 100, false, &overlapping).0, Status::OVERLAPPING_IO_RANGE);
    }
    assert_eq!(host.copy(1, 101, false, &[range(0, 91, 10)]), (Status::SUCCESS, 0));
}

#[test]
fn a_copy_with_unsupported_fields_is_refused() {
    let target = target([memory()]);
    let mut host = Host::new(&target);
    let mut bent = |bits: u32| {
        let mut copy = command::copy(1, 0, 1, false);
        copy.sqe.cdw12.set(copy.sqe.cdw12.get() | bits);
        code(host.io.run(&copy, &bytes(&[range(0, 100, 1)])).status)
    };
    assert_eq!([1, 3, 4, 15].map(|format| bent(format << 8)), [Status::INVALID_FIELD; 4]);
    assert_eq!([bent(1 << 16), bent(1 << 20)], [Status::INVALID_FIELD; 2]);
    let protected = [1 << 12, 1 << 24, 1 << 25, 1 << 26].map(&mut bent);
    assert_eq!(protected, [Status::INVALID_PROTECTION_INFORMATION; 4]);
    assert_eq!(bent(1 << 31), Status::SUCCESS, "the target ignores limited retry");
    let short = command::copy(1, 0, 2, false);
    let status = host.io.run(&Command { data: Data::ToController(32), ..short }, &[0; 32]).status;
    assert_eq!(code(status), Status::DATA_SGL_LENGTH_INVALID);
}

#[test]
fn a_failed_copy_reports_its_first_incomplete_range() {
    for (rule, letter) in [
        (Rule::new(BlockError::ReadFailed).command(Operation::Read).blocks(3000..3001), b'r'),
        (Rule::new(BlockError::WriteFailed).command(Operation::Write).blocks(8512..8513), b'w'),
    ] {
        let fault: Arc<dyn Namespace> = Arc::new(Fault::new(memory(), vec![rule], 1));
        let target = target([fault]);
        let mut host = Host::new(&target);
        host.fill(1, 0, 2048, letter);
        // Two ranges complete, and the third fails after its first step.
        let ranges = [range(0, 0, 4), range(0, 1000, 4), range(0, 2488, 1024), range(0, 0, 1)];
        let (status, result) = host.copy(1, 7992, false, &ranges);
        let expected = match letter {
            b'r' => Status::UNRECOVERED_READ_ERROR,
            _ => Status::WRITE_FAULT,
        };
        assert_eq!((status, result), (expected, 2));
        assert_eq!((host.read(1, 7992), host.read(1, 7999)), (head(0, letter), head(1003, letter)));
    }
}

#[test]
fn a_copy_obeys_reservations_on_source_and_destination() {
    let target = target([memory(), memory()]);
    let other = Identity { hostid: [9; 16], ..IDENTITY };
    let (mut holder, mut host) = (Host::new(&target), Host::of(&target, &other));
    assert_eq!(host.enable(HostBehavior::CDFE_FORMAT_2), Status::SUCCESS);
    for (rtype, may_read) in [(1, true), (2, false)] {
        reserve(&mut holder, 2, rtype);
        let into = host.copy(2, 0, true, &[range(1, 0, 1)]);
        assert_eq!(into, (Status::RESERVATION_CONFLICT, 0));
        let from = host.copy(1, 0, true, &[range(2, 0, 1)]).0;
        assert_eq!(from, if may_read { Status::SUCCESS } else { Status::RESERVATION_CONFLICT });
        assert_eq!(host.copy(1, 0, true, &[range(1, 9, 1)]), (Status::SUCCESS, 0));
        release(&mut holder, 2, rtype);
    }
}

/// Registers and acquires a reservation.
fn reserve(host: &mut Host, nsid: u32, rtype: u32) {
    let key = 7u64.to_le_bytes();
    let ignoring = 1 << 3;
    let register = [(ignoring, [[0; 8], key].concat())];
    let acquire = [(rtype << 8, [key, [0; 8]].concat())];
    let opcodes = [NvmOpcode::RESERVATION_REGISTER, NvmOpcode::RESERVATION_ACQUIRE];
    for (opcode, (cdw10, data)) in opcodes.into_iter().zip(register.into_iter().chain(acquire)) {
        let sqe = Sqe { cdw10: cdw10.into(), ..Sqe::new(opcode.0, 0, nsid) };
        let command = Command::new(sqe, Data::ToController(16));
        assert_eq!(host.io.run(&command, &data).status, Status::SUCCESS);
    }
}

fn release(host: &mut Host, nsid: u32, rtype: u32) {
    let sqe = Sqe::new(NvmOpcode::RESERVATION_RELEASE.0, 0, nsid);
    let command = Command::new(Sqe { cdw10: (rtype << 8).into(), ..sqe }, Data::ToController(8));
    assert_eq!(host.io.run(&command, &7u64.to_le_bytes()).status, Status::SUCCESS);
}

/// Returns a host that may copy from the first namespace into the second. The first gate holds back
/// the first read.
fn held_copy() -> (Arc<Gate>, Arc<Gate>, Target, Host) {
    let from = Arc::new(Gate::of(Operation::Read, memory()));
    let into = Arc::new(Gate::new(memory()));
    let target = target([from.clone() as Arc<dyn Namespace>, into.clone()]);
    let mut host = Host::new(&target);
    assert_eq!(host.enable(HostBehavior::CDFE_FORMAT_2), Status::SUCCESS);
    from.keep(1);
    (from, into, target, host)
}

/// Waits until the gate holds an operation.
fn until_kept(gate: &Gate) {
    while gate.kept() == 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_copy_ends_without_more_writes_when_a_namespace_is_removed() {
    for gone in [1, 2] {
        let (from, into, target, mut host) = held_copy();
        let copy = command::copy(2, 0, 1, true);
        let cid = host.io.send(&copy, &bytes(&[range(1, 0, 4096)]), true);
        until_kept(&from);
        let removal = target.control().remove_namespace(NQN, NamespaceId(gone)).expect("there");
        host.io.is_heard();
        from.open_up();
        let answer = host.io.answer(cid).expect("the connection is open");
        assert_eq!((code(answer.status), answer.result), (Status::INVALID_NAMESPACE, 0));
        assert_eq!(into.seen(), [], "nothing was written");
        removal.wait(Duration::from_secs(60)).expect("the last operation has ended");
    }
}

#[test]
fn a_copy_into_a_shrunken_namespace_writes_nothing() {
    let (from, into, target, mut host) = held_copy();
    let ranges = bytes(&[range(1, 0, 64)]);
    let cid = host.io.send(&command::copy(2, 1000, 1, true), &ranges, true);
    until_kept(&from);
    target
        .control()
        .resize_namespace(NQN, NamespaceId(2), Some(1063))
        .expect("the namespace exists");
    host.io.is_heard();
    from.open_up();
    assert_eq!(
        code(host.io.answer(cid).expect("the connection is open").status),
        Status::LBA_OUT_OF_RANGE
    );
    assert_eq!(into.seen(), [], "nothing was written");
}

#[test]
fn a_deallocation_in_a_shrunken_namespace_stops_at_its_end() {
    let gate = Arc::new(Gate::of(Operation::Deallocate, memory()));
    let target = target([gate.clone() as Arc<dyn Namespace>]);
    let mut host = Host::new(&target);
    gate.keep(usize::MAX);
    // Deallocate more ranges than one step covers, far apart.
    let ranges = (0..20).flat_map(|at| DsmRange::new(at * 100, 1).as_bytes().to_vec());
    let ranges: Vec<_> = ranges.collect();
    let cid = host.io.send(&command::deallocate(1, 20), &ranges, true);
    until_kept(&gate);
    target
        .control()
        .resize_namespace(NQN, NamespaceId(1), Some(1900))
        .expect("the namespace exists");
    host.io.is_heard();
    let begun = gate.seen().len();
    gate.open_up();
    assert_eq!(
        code(host.io.answer(cid).expect("the connection is open").status),
        Status::LBA_OUT_OF_RANGE
    );
    assert_eq!(gate.seen().len(), begun, "no further step started");
}

/// Records the memory addresses into which reads write their data.
struct Places {
    inner: Arc<dyn Namespace>,
    seen: Arc<Mutex<BTreeSet<usize>>>,
}

impl Namespace for Places {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn describe(&self) -> String {
        "places".to_owned()
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        let inner = self.inner.open(reactor, parent)?;
        Ok(Box::new(PlacesQueue { inner, seen: Arc::clone(&self.seen) }))
    }
}

struct PlacesQueue {
    inner: Box<dyn Queue>,
    seen: Arc<Mutex<BTreeSet<usize>>>,
}

impl Queue for PlacesQueue {
    fn submit(&mut self, op: Op) {
        if let (Operation::Read, Some(buffer)) = (op.command, op.buffer.as_deref()) {
            self.seen.lock().expect("no holder panics").insert(buffer.as_ptr() as usize);
        }
        self.inner.submit(op);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.inner.poll(done);
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }
}

/// A command that executes in several steps holds buffers only for the step under way.
#[test]
fn a_command_that_waits_for_its_next_step_holds_no_memory() {
    const COMMANDS: usize = 28;
    let seen = Arc::default();
    let places = Arc::new(Places { inner: memory(), seen: Arc::clone(&seen) });
    let gate = Arc::new(Gate::of(Operation::Read, places));
    let target = target([gate.clone() as Arc<dyn Namespace>]);
    let mut host = Host::new(&target);
    let zeroes = command::write_zeroes(1, 0, 2048, false, false);
    let sqe = Sqe { opcode: NvmOpcode::VERIFY.0, ..zeroes.sqe };
    let verify = Command::new(sqe, Data::None);
    for (command, data) in
        [(verify, vec![]), (command::copy(1, 8000, 1, false), bytes(&[range(0, 0, 2048)]))]
    {
        gate.keep(usize::MAX);
        let sent: Vec<_> = (0..COMMANDS).map(|_| host.io.send(&command, &data, true)).collect();
        host.io.is_heard();
        gate.open_up();
        for _ in sent {
            assert_eq!(
                host.io.wire.wait().expect("the connection is open").status(),
                Status::SUCCESS
            );
        }
        let at_once = limits::IN_PLACE_BYTES / limits::STEP_BYTES;
        let places = std::mem::take(&mut *seen.lock().expect("no holder panics"));
        assert!(places.len() <= 2 * at_once, "{} buffers", places.len());
    }
}

#[test]
fn a_copy_writes_nothing_more_after_its_host_disconnects() {
    let (from, into, target, mut host) = held_copy();
    host.io.send(&command::copy(2, 0, 1, true), &bytes(&[range(1, 0, 4096)]), true);
    until_kept(&from);
    host.admin.wire.leave();
    assert!(host.io.wire.wait().is_none(), "the connection has closed");
    // The new queue of the same host waits for the pending writes of the Copy.
    let mut again = Host::new(&target);
    let write = command::write(2, 9000, 1, BLOCK, false);
    let cid = again.io.send(&write, &[5; BLOCK as usize], true);
    again.io.is_heard();
    from.open_up();
    assert_eq!(again.io.answer(cid).expect("the connection is open").status, Status::SUCCESS);
    assert_eq!(into.seen(), [9000]);
    target.stop().expect("the target stops");
}

#[test]
fn copy_steps_wait_for_the_limits_of_source_and_destination() {
    let target = target([memory(), memory()]);
    let mut host = Host::new(&target);
    assert_eq!(host.enable(HostBehavior::CDFE_FORMAT_2), Status::SUCCESS);
    host.fill(1, 0, 2048, b'a');
    let set = |nsid, rates: &Rates| {
        target.control().set_rates(NQN, NamespaceId(nsid), rates).expect("the namespace exists");
    };
    let burst = Duration::from_nanos(1);
    let crawl = |rate| Rates { bytes: rate, burst, ..Rates::default() };
    let reads = crawl(Rate { reads: 1, ..Rate::default() });
    let writes = crawl(Rate { writes: 1, ..Rate::default() });
    for (nsid, rates) in [(1, reads), (2, writes)] {
        set(nsid, &rates);
        // Wait until the queue's core has applied the change.
        host.io.is_heard();
        let data = bytes(&[range(1, 0, 2048)]);
        let cid = host.io.send(&command::copy(2, 0, 1, true), &data, true);
        // The budget is unused, so the first step starts. The second step must wait. Other commands
        // proceed.
        host.io.is_heard();
        assert_eq!(host.io.wire.take_answers().len(), 0, "the Copy waits");
        set(nsid, &Rates::default());
        assert_eq!(host.io.answer(cid).expect("the connection is open").status, Status::SUCCESS);
        assert_eq!(host.read(2, 2047), head(2047, b'a'));
    }
    // A stopping target completes its waiting commands.
    set(2, &writes);
    host.io.is_heard();
    let cid = host.io.send(&command::copy(2, 0, 1, true), &bytes(&[range(1, 0, 2048)]), true);
    host.io.is_heard();
    target.stop().expect("the target stops");
    assert_eq!(host.io.answer(cid).expect("the target responds").status, Status::SUCCESS);
}
