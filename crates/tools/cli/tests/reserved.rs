//! Tests of reservations on disks without extended attributes. The target stores them in a folder,
//! where they survive kill -9 at any time. Without a folder, the target refuses persistent
//! reservations.

mod support;

#[allow(dead_code, unreachable_pub, reason = "these tests use a part of the module")]
#[path = "../../../ends/nvmf-target/tests/rig/scripted.rs"]
mod scripted;

use farblock_proto::tcp::host_end::Transfer;
use farblock_proto::tcp::{Digests, SlotId};
use farblock_wire::opcode::{AdminOpcode, NvmOpcode};
use farblock_wire::reservation::{
    AcquireAction, REPORT_EXTENDED, RegisterAction, Registrant, ReleaseAction, ReservationControl,
    ReservationStatus, ReservationType,
};
use farblock_wire::{SglDescriptor, Sqe, Status};
use scripted::{BLOCK, NQN, Queue, admin_of, io_of, write};
use std::io::Write;
use support::{Scratch, Server, noise};

/// The offset of the Reservation Capabilities (RESCAP) in Identify Namespace.
const RESCAP: usize = 31;
const PERSISTS: u8 = 1;

struct Host {
    admin: Queue,
    io: Queue,
}

impl Host {
    fn new(number: u8, server: &Server) -> Self {
        let (hostid, address) =
            ([number; 16], server.address.parse().expect("the address is valid"));
        let (admin, controller) = admin_of(hostid, address, Digests::NONE);
        Self { admin, io: io_of(hostid, address, Digests::NONE, controller, true) }
    }

    /// Whether the namespace offers persistent reservations.
    fn is_offered(&mut self) -> bool {
        let sqe =
            Sqe { dptr: SglDescriptor::transport(4096), ..Sqe::new(AdminOpcode::IDENTIFY.0, 0, 1) };
        let answer = self.admin.run(sqe, Transfer::FromController(4096), &[]);
        assert_eq!(answer.status, Status::SUCCESS);
        answer.data[RESCAP] & PERSISTS != 0
    }

    fn send(&mut self, opcode: NvmOpcode, control: ReservationControl, keys: &[u64]) -> Status {
        let (sqe, data) = command(opcode, control, keys);
        self.io.run(sqe, Transfer::InCapsule(data.len() as u32), &data).status
    }

    /// Registers this key persistently, and replaces an earlier key.
    fn register(&mut self, key: u64) -> Status {
        self.send(NvmOpcode::RESERVATION_REGISTER, replaces(), &[0, key])
    }

    /// Like [`register`](Self::register), but does not wait for the answer.
    fn begin_to_register(&mut self, key: u64) {
        let (sqe, data) = command(NvmOpcode::RESERVATION_REGISTER, replaces(), &[0, key]);
        let mut out = Vec::new();
        self.io.end.submit(SlotId(0), &sqe, Transfer::InCapsule(data.len() as u32), &mut out);
        out.extend(data);
        self.io.stream.write_all(&out).expect("the bytes are sent");
    }

    fn acquire(&mut self, key: u64) -> Status {
        let control = ReservationControl::default()
            .with_action(AcquireAction::ACQUIRE.0)
            .with_rtype(ReservationType::WRITE_EXCLUSIVE.0);
        self.send(NvmOpcode::RESERVATION_ACQUIRE, control, &[key, 0])
    }

    /// Returns the type of the reservation, whether it persists, and the registered keys.
    fn report(&mut self) -> (u8, bool, Vec<u64>) {
        const LENGTH: u32 = 4096;
        let mut sqe = Sqe::new(NvmOpcode::RESERVATION_REPORT.0, 0, 1);
        sqe.dptr = SglDescriptor::transport(LENGTH);
        sqe.cdw10 = (LENGTH / 4 - 1).into();
        sqe.cdw11 = REPORT_EXTENDED.into();
        let answer = self.io.run(sqe, Transfer::FromController(LENGTH), &[]);
        assert_eq!(answer.status, Status::SUCCESS);
        let head = ReservationStatus::parse(&answer.data).expect("the structure is complete");
        let entries = answer.data[ReservationStatus::LEN..].chunks(Registrant::LEN);
        let entries = entries.take(head.regctl.get().into());
        let keys = entries
            .map(|entry| Registrant::parse(entry).expect("the entry is complete").rkey.get());
        (head.rtype, head.ptpls == 1, keys.collect())
    }
}

fn command(opcode: NvmOpcode, control: ReservationControl, keys: &[u64]) -> (Sqe, Vec<u8>) {
    let data: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
    let dptr = SglDescriptor::in_capsule(0, data.len() as u32);
    (Sqe { cdw10: control.0.into(), dptr, ..Sqe::new(opcode.0, 0, 1) }, data)
}

/// The settings of a persistent registration that replaces an earlier key.
fn replaces() -> ReservationControl {
    ReservationControl::default()
        .with_action(RegisterAction::REPLACE.0)
        .with_iekey(true)
        .with_cptpl(ReservationControl::CPTPL_SET)
}

/// Creates a stripe set, which has no extended attributes.
fn stripe(scratch: &Scratch) -> String {
    let [one, other] = ["a.img", "b.img"].map(|name| scratch.disk(name, 1 << 20));
    format!("stripe:64KiB,{one},{other}")
}

fn kill(server: Server) {
    server.signal("KILL");
    server.wait();
}

#[test]
fn a_disk_without_attributes_keeps_its_reservations_after_a_kill() {
    let scratch = Scratch::new();
    let disk = stripe(&scratch);
    let start = || scratch.serve(["--nqn", NQN, "--state-dir", "kept", &disk]);
    let server = start();
    let mut host = Host::new(1, &server);
    assert!(host.is_offered());
    assert_eq!(host.register(7), Status::SUCCESS);
    assert_eq!(host.acquire(7), Status::SUCCESS);
    // A second target must not use the same folder.
    let second = scratch.run(["serve", "--listen", "127.0.0.1:0", "--state-dir", "kept", "mem:1M"]);
    second.fails_in_a_line(1, &["another target stores its reservations in kept", "--state-dir"]);
    kill(server);
    let server = start();
    let [mut holder, mut other] = [1, 2].map(|number| Host::new(number, &server));
    assert_eq!(other.report(), (ReservationType::WRITE_EXCLUSIVE.0, true, vec![7]));
    let data = noise(1, BLOCK);
    let conflict = Status::RESERVATION_CONFLICT.with_dnr();
    assert_eq!(write(&mut other.io, 0, &data, true), conflict);
    assert_eq!(write(&mut holder.io, 0, &data, true), Status::SUCCESS);
    // Clearing the reservation must remove its file.
    let clear = ReservationControl::default().with_action(ReleaseAction::CLEAR.0);
    assert_eq!(holder.send(NvmOpcode::RESERVATION_RELEASE, clear, &[7]), Status::SUCCESS);
    kill(server);
    let server = start();
    let mut other = Host::new(2, &server);
    assert!(other.report().2.is_empty());
    assert_eq!(write(&mut other.io, 0, &data, true), Status::SUCCESS);
    drop(other);
    server.stop();
}

#[test]
fn a_killed_target_keeps_every_acknowledged_registration() {
    let scratch = Scratch::new();
    let disk = stripe(&scratch);
    for round in 1..=6 {
        let server = scratch.serve(["--nqn", NQN, "--state-dir", "kept", &disk]);
        let mut host = Host::new(1, &server);
        let first = round << 32;
        if round > 1 {
            let (_, persists, keys) = host.report();
            let kept = scratch.path("answered");
            let answered: u64 = std::fs::read_to_string(kept).unwrap().parse().unwrap();
            // The unanswered registration may also have been saved.
            assert!(persists && [vec![answered], vec![answered + 1]].contains(&keys), "{keys:?}");
        }
        let mut answered = first;
        assert_eq!(host.register(first), Status::SUCCESS);
        for _ in 0..round * 3 {
            assert_eq!(host.register(answered + 1), Status::SUCCESS);
            answered += 1;
        }
        // Kill the target while it saves the next registration.
        host.begin_to_register(answered + 1);
        kill(server);
        scratch.file("answered", answered.to_string().as_bytes());
    }
}

#[test]
fn persistent_reservations_are_refused_without_a_state_folder() {
    let scratch = Scratch::new();
    let (disk, folder) = (stripe(&scratch), scratch.text("kept"));
    for more in [vec![disk.as_str()], vec!["--state-dir", &folder, "mem:1MiB"]] {
        let server = scratch.serve(["--nqn", NQN].iter().chain(&more));
        let mut host = Host::new(1, &server);
        assert!(!host.is_offered(), "{more:?}");
        assert_eq!(host.register(7), Status::INVALID_FIELD.with_dnr());
        assert_eq!(host.report(), (0, false, vec![]));
        drop(host);
        server.stop();
    }
}

#[test]
fn serve_refuses_a_disk_with_a_damaged_reservation_file() {
    let scratch = Scratch::new();
    let disk = stripe(&scratch);
    let start = || scratch.serve(["--nqn", NQN, "--state-dir", "kept", &disk]);
    let server = start();
    assert_eq!(Host::new(1, &server).register(7), Status::SUCCESS);
    kill(server);
    let folder = scratch.path("kept").join("reservations");
    let all = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let kept: Vec<_> = all.filter(|path| !path.ends_with("lock")).collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    std::fs::write(&kept[0], "x").unwrap();
    let name = kept[0].file_name().unwrap().to_str().unwrap();
    let started = scratch.run(["serve", "--listen", "127.0.0.1:0", "--state-dir", "kept", &disk]);
    started.fails_in_a_line(1, &["reservations", name, "is damaged"]);
}
