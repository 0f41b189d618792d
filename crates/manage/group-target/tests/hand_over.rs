//! Two targets share one file as members of a group. The test decides which member leads. A host
//! with paths to both reads and writes while the leadership moves and permits end.
#![cfg(target_os = "linux")]

use farblock_backends::file::{FileDisk, FileOptions};
use farblock_block::blocking::Blocking;
use farblock_block::{BlockError, Geometry, Namespace};
use farblock_group::{MemberEvent, Permit, ReservationRecord, Unknown, VERSION};
use farblock_group_target::{Absent, Handle, Leading, LeadingAnswer, LedNamespace};
use farblock_host::disk::DiskOptions;
use farblock_host::{Disk, Options, Url};
use farblock_proto::controller::PortAccess;
use farblock_proto::ids::NamespaceId;
use farblock_target::{Export, Sharing, Subsystem, Target, TargetConfig, boot_time};
use farblock_wire::log::AnaState;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const NQN: &str = "nqn.2026-11.org.farblock:group";
const IDENTITY: &str = "0191d6cc-0000-7000-8000-000000000002";
const BLOCK: u32 = 512;
const BLOCKS: u64 = 2048;
const WAIT_LIMIT: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(3600);

struct Member {
    leading: Leading,
    _handle: Handle,
    answers: Receiver<LeadingAnswer>,
    target: Target,
}

fn shared(path: &Path) -> LedNamespace {
    let path = path.to_owned();
    LedNamespace {
        nqn: NQN.to_owned(),
        nsid: NamespaceId(1),
        sharing: Sharing::default(),
        identity: IDENTITY.to_owned(),
        absent: Absent::new("disk.img", Geometry::new(BLOCK, BLOCKS)),
        open: Box::new(move || {
            let disk = FileDisk::open(&path, &FileOptions::new(BLOCK));
            disk.map(|disk| Arc::new(disk) as Arc<dyn Namespace>).map_err(|it| it.to_string())
        }),
    }
}

impl Member {
    fn start(path: &Path, controller_ids: RangeInclusive<u16>) -> Self {
        let (sender, answers) = channel();
        let sink = Arc::new(move |answer| drop(sender.send(answer)));
        let (leading, handle) = Leading::start(vec![shared(path)], sink).expect("a thread");
        let mut subsystem = Subsystem::new(NQN);
        subsystem.config.allow_any_host = true;
        let namespace = Arc::new(Absent::new("disk.img", Geometry::new(BLOCK, BLOCKS)));
        let export = Export { namespace, identity: IDENTITY.to_owned() };
        subsystem.exports.insert(NamespaceId(1), export);
        let mut subsystems = vec![subsystem];
        handle.share_reservations(&mut subsystems);
        let config = TargetConfig {
            subsystems,
            listeners: vec!["127.0.0.1:0".parse().expect("an address")],
            access: [(0, PortAccess::all(AnaState::INACCESSIBLE))].into(),
            controller_ids,
            permits: handle.permits(),
            ..TargetConfig::default()
        };
        let target = Target::start(&config).expect("the target starts");
        handle.attach(target.control(), target.addresses().to_vec());
        Self { leading, _handle: handle, answers, target }
    }

    fn permit(&mut self, epoch: u64, time: Duration) {
        let until = boot_time().saturating_add(time);
        self.leading.publish(1, Some(Permit { epoch, until }));
    }

    fn lead(&mut self, epoch: u64) {
        self.leading.fence(1, epoch, &[]);
        let placed = MemberEvent::FencePlaced { group: 1, epoch, barrier: None };
        assert_eq!(self.answer(), LeadingAnswer::Event(placed));
        self.leading.enter(1, epoch);
        assert!(
            matches!(self.answer(), LeadingAnswer::Event(MemberEvent::Entered { epoch: it, .. })
            if it == epoch)
        );
        self.leading.begin(1, epoch);
        self.permit(epoch, LONG);
    }

    fn stop(&mut self, epoch: u64) {
        self.leading.publish(1, None);
        self.leading.stop(1, epoch);
        assert_eq!(self.answer(), LeadingAnswer::Event(MemberEvent::Stopped { group: 1, epoch }));
    }

    fn answer(&self) -> LeadingAnswer {
        self.answers.recv_timeout(WAIT_LIMIT).expect("an answer")
    }

    fn url(&self) -> Url {
        let address = self.target.addresses()[0];
        format!("nvme+tcp://{address}/{NQN}?ns=1").parse().expect("a URL")
    }
}

fn connect(members: &[&Member]) -> Arc<Disk> {
    let connection = Options {
        hostnqn: Some("nqn.2014-08.org.example:group".to_owned()),
        path_timeout: Some(WAIT_LIMIT),
        ..Options::default()
    };
    let urls: Vec<_> = members.iter().map(|member| member.url()).collect();
    let options = DiskOptions { connection, ..DiskOptions::default() };
    Arc::new(Disk::connect(&urls, &options).expect("connected"))
}

fn has(path: &Path, value: u8) -> bool {
    std::fs::read(path).expect("the disk file is readable")[..BLOCK as usize]
        .iter()
        .all(|byte| *byte == value)
}

#[test]
fn a_host_follows_the_leader_and_waits_while_no_member_has_a_permit() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = &folder.path().join("disk.img");
    std::fs::File::create(path).and_then(|it| it.set_len(BLOCKS * 512)).expect("a disk");
    let mut members = [Member::start(path, 1..=999), Member::start(path, 1000..=1999)];
    members[0].lead(1);
    let disk = connect(&[&members[0], &members[1]]);
    let mut user = Blocking::new(&*disk).expect("a queue");
    user.write(0, &[1; BLOCK as usize]).expect("the leader writes");
    assert!(has(path, 1));

    // The leadership moves back and forth. The file's lock shows that only one member has it open.
    let mut value = 1;
    for epoch in 2..6 {
        let (from, to) = (epoch % 2, 1 - epoch % 2);
        members[from].stop(epoch as u64 - 1);
        members[to].lead(epoch as u64);
        value += 1;
        user.write(0, &[value; BLOCK as usize]).expect("the new leader writes");
        assert!(has(path, value));
    }

    // A permit ends and is renewed: the write waits.
    let leader = &mut members[0];
    leader.permit(5, Duration::ZERO);
    let renewed = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut user = Blocking::new(&*disk).expect("a queue");
            user.write(0, &[77; BLOCK as usize]).expect("the write waits");
        });
        std::thread::sleep(Duration::from_millis(300));
        let waited = !writer.is_finished() && has(path, value);
        leader.permit(5, LONG);
        writer.join().expect("the write ends");
        waited
    });
    assert!(renewed && has(path, 77));

    // A parked leader confirms, and continues with the next permit.
    leader.leading.park(1, 5);
    assert_eq!(leader.answer(), LeadingAnswer::Parked { group: 1, epoch: 5 });
    leader.permit(5, LONG);
    user.write(0, &[78; BLOCK as usize]).expect("the leader continues");
    assert!(has(path, 78));
    leader.stop(5);
}

#[test]
fn a_worker_reports_a_disk_that_it_cannot_open_and_opens_it_later() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = &folder.path().join("disk.img");
    let mut member = Member::start(path, 1..=999);
    member.lead(1);
    let LeadingAnswer::Event(MemberEvent::OpenFailed { group: 1, epoch: 1, problem }) =
        member.answer()
    else {
        panic!("the disk does not exist")
    };
    assert!(problem.contains("disk.img"), "{problem}");
    member.stop(1);
    std::fs::File::create(path).and_then(|it| it.set_len(BLOCKS * 512)).expect("a disk");
    member.lead(2);
    let disk = connect(&[&member]);
    let mut user = Blocking::new(&*disk).expect("a queue");
    user.write(0, &[1; BLOCK as usize]).expect("the leader writes");
    assert!(has(path, 1));
    member.stop(2);
}

/// A state of the group's reservations in which only a host that never connects may read and write.
fn reserved_by_another_host(index: u64) -> ReservationRecord {
    let host = "0".repeat(31) + "9";
    let state = format!(
        "persist 0\nfarblock reservations 1\ngeneration 1\nreservation 2 {host}\nhost {host} 7\n"
    );
    let (log, unknown) = (Vec::new(), Unknown::new());
    ReservationRecord { version: VERSION, group: 1, index, state, log, unknown }
}

#[test]
fn a_leader_enforces_the_reservations_that_it_knew_before_it_led() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = &folder.path().join("disk.img");
    std::fs::File::create(path).and_then(|it| it.set_len(BLOCKS * 512)).expect("a disk");
    let mut member = Member::start(path, 1..=999);
    let free = ReservationRecord {
        state: "persist 0\nfarblock reservations 1\ngeneration 0\n".to_owned(),
        ..reserved_by_another_host(2)
    };
    for record in [reserved_by_another_host(1), free] {
        let index = record.index;
        member.leading.apply(IDENTITY, record);
        let applied = MemberEvent::Applied { namespace: IDENTITY.to_owned(), index };
        assert_eq!(member.answer(), LeadingAnswer::Event(applied));
        member.lead(index);
        let disk = connect(&[&member]);
        let mut user = Blocking::new(&*disk).expect("a queue");
        let written = user.write(0, &[index as u8; BLOCK as usize]);
        let expected = if index == 1 { Err(BlockError::Conflict) } else { Ok(()) };
        assert_eq!(written, expected);
        assert_eq!(has(path, index as u8), index == 2);
        member.stop(index);
    }
}
