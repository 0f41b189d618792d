//! A scripted host that follows path states like SPDK's initiator: its bdev module in multipath
//! mode.
//!
//! The source is `module/bdev/nvme/bdev_nvme.c` of spdk/spdk (2022). The test follows these
//! functions:
//!
//! - `nvme_ctrlr_create` reads the ANA log page if CMIC reports one.
//! - `nvme_ctrlr_init_ana_log_page` computes the page's size from NANAGRPID and MNAN.
//! - `aer_cb` reads the page again after an ANA event.
//! - `bdev_nvme_io_complete_nvme_status` also reads the page after a command fails with one of the
//!   three ANA statuses, unless the status has Do Not Retry. It queues the command again while
//!   `any_io_path_may_become_available` returns true.
//! - `bdev_nvme_find_io_path` takes the first path whose namespace is optimized. Without such a
//!   path, it takes the first non-optimized one.
//! - `nvme_ctrlr_set_ana_states` applies the states.
//! - `bdev_nvme_check_multipath` permits a second controller.
//!
//! Unlike SPDK, this host sends one command at a time, and does not reconnect. SPDK itself was not
//! available for this test.

mod rig;

use farblock_backends::mem::Mem;
use farblock_block::Namespace;
use farblock_proto::controller::PortAccess;
use farblock_proto::ids::NamespaceId;
use farblock_proto::tcp::host_end::{Event, Transfer};
use farblock_proto::tcp::{Digests, SlotId};
use farblock_target::{Export, Subsystem, Target, TargetConfig};
use farblock_wire::identify::{IdentifyController, IdentifyNamespace};
use farblock_wire::log::{AnaGroupDescriptor, AnaLogHeader, AnaState};
use farblock_wire::opcode::AdminOpcode;
use farblock_wire::{SglDescriptor, Sqe, Status};
use rig::scripted::*;
use rig::{any, until};
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

const LOG: u32 = 0x0c;
const EVENT: u64 = 0x000c_0302;
/// The slot of the event request. The host's current command has another slot.
const EVENT_SLOT: SlotId = SlotId(1);
const ANA_ERRORS: [Status; 3] =
    [Status::ANA_PERSISTENT_LOSS, Status::ANA_INACCESSIBLE, Status::ANA_TRANSITION];

/// A controller and its namespace 1.
struct Path {
    admin: Queue,
    io: Queue,
    identify: IdentifyController,
    nguid: [u8; 16],
    state: AnaState,
    is_connected: bool,
    /// The number of log reads after an event.
    events: usize,
    /// The number of log reads after an ANA status.
    errors: usize,
}

fn page(queue: &mut Queue, sqe: Sqe, bytes: u32) -> Vec<u8> {
    let sqe = Sqe { dptr: SglDescriptor::transport(bytes), ..sqe };
    let answer = queue.run(sqe, Transfer::FromController(bytes), &[]);
    assert_eq!(answer.status, Status::SUCCESS);
    answer.data
}

impl Path {
    /// Follows the steps of `nvme_ctrlr_create` and of the library below it.
    fn new(address: SocketAddr) -> Path {
        let (mut admin, controller) = admin(address, Digests::NONE);
        let identify = |cns: u32, nsid| Sqe {
            cdw10: cns.into(),
            ..Sqe::new(AdminOpcode::IDENTIFY.0, 0, nsid)
        };
        let of_controller = page(&mut admin, identify(1, 0), 4096);
        let of_namespace = page(&mut admin, identify(0, 1), 4096);
        let namespace = IdentifyNamespace::parse(&of_namespace).expect("a page");
        let io = io(address, Digests::NONE, controller, true);
        let mut path = Path {
            admin,
            io,
            identify: IdentifyController::parse(&of_controller).expect("a page"),
            nguid: namespace.nguid,
            state: AnaState::OPTIMIZED,
            is_connected: true,
            events: 0,
            errors: 0,
        };
        // Enable ANA event notices, which OAES must offer.
        assert_eq!(path.identify.oaes.get() >> 11 & 1, 1);
        let feature = Sqe { cdw10: 0x0b.into(), cdw11: (1 << 11).into(), ..Sqe::new(0x09, 0, 0) };
        assert_eq!(path.admin.run(feature, Transfer::None, &[]).status, Status::SUCCESS);
        path.wait_for_event();
        assert_eq!(path.identify.cmic & 0b1010, 0b1010, "CMIC: several controllers, and ANA");
        path.read_log();
        path
    }

    fn wait_for_event(&mut self) {
        let sqe = Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, EVENT_SLOT.0, 0);
        let mut out = Vec::new();
        self.admin.end.submit(EVENT_SLOT, &sqe, Transfer::None, &mut out);
        self.admin.stream.write_all(&out).expect("sent");
    }

    /// Like `nvme_ctrlr_read_ana_log_page`, reads the whole page at once, without retaining the
    /// event.
    fn read_log(&mut self) {
        let groups = self.identify.nanagrpid.get() as usize;
        let namespaces = self.identify.mnan.get() as usize;
        let length = AnaLogHeader::LEN + groups * AnaGroupDescriptor::LEN + namespaces * 4;
        let dwords_z = length as u32 / 4 - 1;
        let sqe = Sqe {
            cdw10: (LOG | dwords_z << 16).into(),
            cdw11: (dwords_z >> 16).into(),
            ..Sqe::new(AdminOpcode::GET_LOG_PAGE.0, 0, u32::MAX)
        };
        let page = page(&mut self.admin, sqe, length as u32);
        let header = AnaLogHeader::parse(&page).expect("enough bytes");
        let mut rest = &page[AnaLogHeader::LEN..];
        for _ in 0..header.ngrps.get() {
            let group = AnaGroupDescriptor::parse(rest).expect("enough bytes");
            let count = group.nnsids.get() as usize;
            rest = &rest[AnaGroupDescriptor::LEN..];
            for nsid in rest[..count * 4].chunks(4) {
                assert_eq!(nsid, 1_u32.to_le_bytes(), "an inactive namespace is listed");
                self.state = AnaState(group.state & 0xf);
            }
            rest = &rest[count * 4..];
        }
    }

    /// Polls for an event, and handles it like `aer_cb`.
    fn poll_admin(&mut self) {
        let stream = self.admin.stream.try_clone().expect("a handle");
        stream.set_nonblocking(true).expect("a socket");
        let mut byte = [0];
        let there = stream.peek(&mut byte).is_ok_and(|count| count > 0);
        stream.set_nonblocking(false).expect("a socket");
        if there {
            self.admin.receive();
        }
        let pending = std::mem::take(&mut self.admin.pending);
        let mut input = &pending[..];
        while let Some(event) = self.admin.end.next(&mut input).expect("well formed") {
            let Event::Completed { cqe, .. } = event else { panic!("{event:?}") };
            self.admin.told.push(cqe);
        }
        for cqe in std::mem::take(&mut self.admin.told) {
            assert_eq!((cqe.status(), cqe.result()), (Status::SUCCESS, EVENT));
            self.events += 1;
            self.wait_for_event();
            self.read_log();
        }
    }
}

/// All paths of a disk, in the order in which they were attached. In SPDK, this is `nvme_bdev`.
struct Multipath(Vec<Path>);

impl Multipath {
    fn attach(addresses: &[SocketAddr]) -> Multipath {
        let mut paths = Vec::<Path>::new();
        for address in addresses {
            let path = Path::new(*address);
            for other in &paths {
                let [one, two] = [&path, other].map(|path| path.identify.cntlid.get());
                assert_ne!(one, two, "a second controller has the same number");
                assert_eq!(path.nguid, other.nguid, "the paths lead to different namespaces");
            }
            paths.push(path);
        }
        Multipath(paths)
    }

    fn find(&self) -> Option<usize> {
        let first = |state| self.0.iter().position(|path| path.is_connected && path.state == state);
        first(AnaState::OPTIMIZED).or_else(|| first(AnaState::NON_OPTIMIZED))
    }

    /// Executes a command, and queues it again after ANA errors. Returns the index of the path on
    /// which it completed. With `heeds`, the host polls for events before each attempt.
    fn submit(&mut self, heeds: bool, command: impl Fn(&mut Queue) -> Option<Status>) -> usize {
        let mut done = None;
        until("the operation completes", || {
            if heeds {
                self.poll();
            }
            let Some(at) = self.find() else {
                assert!(self.0.iter().any(|path| path.is_connected), "no path is connected");
                return false;
            };
            let path = &mut self.0[at];
            match command(&mut path.io) {
                Some(Status::SUCCESS) => done = Some(at),
                Some(status) => {
                    // With Do Not Retry or another status, SPDK would report a disk error.
                    assert!(ANA_ERRORS.contains(&status), "{status:?}");
                    path.errors += 1;
                    path.read_log();
                }
                None => path.is_connected = false,
            }
            done.is_some()
        });
        done.expect("a completion")
    }

    fn poll(&mut self) {
        self.0.iter_mut().filter(|path| path.is_connected).for_each(Path::poll_admin);
    }

    fn write(&mut self, heeds: bool, lba: u64, value: u8) -> usize {
        let data = [value; BLOCK];
        self.submit(heeds, |queue| {
            let length = BLOCK as u32;
            let sqe = blocks(1, lba, 1, SglDescriptor::in_capsule(0, length));
            Some(queue.try_run(sqe, Transfer::InCapsule(length), &data)?.status)
        })
    }

    fn read(&mut self, lba: u64) -> u8 {
        let found = std::cell::Cell::new(0);
        self.submit(true, |queue| {
            let length = BLOCK as u32;
            let sqe = blocks(2, lba, 1, SglDescriptor::transport(length));
            let answer = queue.try_run(sqe, Transfer::FromController(length), &[])?;
            found.set(answer.data[0]);
            Some(answer.status)
        });
        found.get()
    }

    fn until(&mut self, path: usize, state: AnaState) {
        until("the state is reported", || {
            self.poll();
            self.0[path].state == state
        });
    }
}

fn set(target: &Target, state: AnaState) {
    set_at(target, target.addresses()[0], state);
}

fn set_at(target: &Target, address: SocketAddr, state: AnaState) {
    target.control().set_access(address, &PortAccess::all(state)).expect("a listener");
}

fn start(disk: &Arc<Mem>, ids: std::ops::RangeInclusive<u16>, listeners: usize) -> Target {
    let mut subsystem = Subsystem::new(NQN);
    subsystem.config.allow_any_host = true;
    let namespace = Arc::clone(disk) as Arc<dyn Namespace>;
    let identity = "0191d6cc-0000-7000-8000-000000000002".to_owned();
    subsystem.exports.insert(NamespaceId(1), Export { namespace, identity });
    let config = TargetConfig {
        subsystems: vec![subsystem],
        listeners: vec![any(); listeners],
        controller_ids: ids,
        ..TargetConfig::default()
    };
    Target::start(&config).expect("the target starts")
}

fn disk() -> Arc<Mem> {
    Arc::new(Mem::new(BLOCK as u32, BLOCKS * BLOCK as u64).expect("a size"))
}

#[test]
fn an_spdk_host_follows_ana_events() {
    let target = start(&disk(), 1..=999, 2);
    let ports = target.addresses().to_vec();
    set_at(&target, ports[1], AnaState::INACCESSIBLE);
    let mut host = Multipath::attach(&ports);
    assert_eq!(host.0[1].state, AnaState::INACCESSIBLE);
    for round in 0..10_u8 {
        let (from, to) = (usize::from(round % 2), usize::from(round % 2 == 0));
        assert_eq!(host.write(true, u64::from(round), round + 1), from);
        set_at(&target, ports[from], AnaState::NON_OPTIMIZED);
        set_at(&target, ports[to], AnaState::OPTIMIZED);
        host.until(to, AnaState::OPTIMIZED);
        assert_eq!(host.write(true, 100, round), to, "the write uses the better path");
        set_at(&target, ports[from], AnaState::INACCESSIBLE);
        host.until(from, AnaState::INACCESSIBLE);
    }
    assert!((0..10).all(|round| host.read(u64::from(round)) == round + 1));
    assert!(host.0.iter().all(|path| path.events > 0 && path.errors == 0));
}

/// The host learns of a new ANA state from a command's status, before it polls for the event.
#[test]
fn an_spdk_host_follows_the_ana_statuses_of_commands() {
    let loss = [AnaState::INACCESSIBLE, AnaState::CHANGE, AnaState::PERSISTENT_LOSS];
    for (value, state) in (1..).zip(loss) {
        let target = start(&disk(), 1..=999, 2);
        let ports = target.addresses().to_vec();
        let mut host = Multipath::attach(&ports);
        assert_eq!(host.write(false, 0, 77), 0, "the first of two equal paths");
        set_at(&target, ports[0], state);
        // The target's core may not have applied the change yet.
        until("the write uses the other path", || host.write(false, 1, value) == 1);
        assert_eq!((host.0[0].errors, host.0[0].events, host.0[0].state), (1, 0, state));
        assert_eq!((host.read(0), host.read(1)), (77, value));
        host.poll();
        assert!(host.0.iter().all(|path| path.is_connected), "every path stays connected");
    }
}

/// The host queues commands while no path is usable, and they complete when a path is usable again.
/// No command fails or executes twice.
#[test]
fn an_spdk_host_queues_commands_while_no_path_works() {
    let target = start(&disk(), 1..=999, 2);
    let ports = target.addresses().to_vec();
    let mut host = Multipath::attach(&ports);
    for port in &ports {
        set_at(&target, *port, AnaState::CHANGE);
    }
    (0..2).for_each(|path| host.until(path, AnaState::CHANGE));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            set_at(&target, ports[1], AnaState::OPTIMIZED);
        });
        assert_eq!(host.write(true, 3, 9), 1);
    });
    assert_eq!(host.read(3), 9);
}

/// Two targets share one disk, and one of them stops.
#[test]
fn an_spdk_host_fails_over_to_the_other_target() {
    let disk = disk();
    let (here, there) = (start(&disk, 1..=999, 1), start(&disk, 1000..=1999, 1));
    set(&there, AnaState::NON_OPTIMIZED);
    let mut host = Multipath::attach(&[here.addresses()[0], there.addresses()[0]]);
    assert_eq!(host.write(true, 5, 1), 0);
    drop(here);
    host.0[0].is_connected = host.0[0].io.try_run(Sqe::new(0, 0, 1), Transfer::None, &[]).is_some();
    assert!(!host.0[0].is_connected, "the path is disconnected");
    assert_eq!((host.write(true, 6, 2), host.read(5), host.read(6)), (1, 1, 2));
}
