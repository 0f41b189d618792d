//! Tests a disk like a Windows failover cluster. Scripted nodes first run the cluster's validation
//! test "Validate SCSI-3 Persistent Reservation". Then they act like its disk driver.
//!
//! Sources:
//! * The steps of one node: [MS-CSVP] (Failover Cluster: Setup and Validation Protocol).
//! * 3.2.4.16 `CprepDiskPRRegister` creates an arbitrary key and registers, ignoring an existing
//!   key.
//! * 3.4.4.11 `CprepDiskPRPreempt3` preempts with the owner's key and the node's own key.
//! * 3.4.4.13 `CprepDiskIsPRPresent3` looks for a key.
//! * 3.2.4.22 `CprepDiskIsPRPresent` distinguishes three results: no reservation, a reservation of
//!   another node, and a reservation of this node.
//! * 3.2.4.21 `CprepDiskGetArbSectors` returns the two sectors to which the nodes make trial
//!   writes.
//! * The order of the steps (unregister, register, reserve, read): test reports in quantum/esos
//!   issue 62 ("Registering PR key for cluster disk 0 from node ...", "Putting PR reserve on ...",
//!   "Attempting to read PR on ...").
//! * The same order: Microsoft's "Windows 2008 Failover Cluster Validation Fails on 'Validate
//!   SCSI-3 Persistent Reservation'" (askcore, 15 April 2009).
//!
//! This test translates the SCSI commands by meaning: ignoring an existing key becomes IEKEY, APTPL
//! becomes CPTPL, type 5 becomes 3 and type 6 becomes 4. The sources do not state the reservation
//! type, the order of the nodes' steps, or the restarts. This test chooses them. No trace of
//! stornvme was available, so a real cluster may send other commands.

mod rig;

use farblock_backends::mem::Mem;
use farblock_block::Namespace;
use farblock_proto::ids::NamespaceId;
use farblock_proto::tcp::Digests;
use farblock_proto::tcp::host_end::Transfer;
use farblock_reactor::EngineKind;
use farblock_target::{Export, ReservationStore, Subsystem, Target, TargetConfig};
use farblock_wire::opcode::NvmOpcode;
use farblock_wire::reservation::{
    AcquireAction, REPORT_EXTENDED, RegisterAction, Registrant, ReleaseAction, ReservationControl,
    ReservationStatus, ReservationType,
};
use farblock_wire::{SglDescriptor, Sqe, Status};
use rig::scripted::*;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

const CONFLICT: Status = Status::RESERVATION_CONFLICT.with_dnr();
const OK: Status = Status::SUCCESS;
/// With this reservation type, all registered nodes may write.
const SHARED: ReservationType = ReservationType::WRITE_EXCLUSIVE_REGISTRANTS;
/// The sectors for the trial writes of the nodes.
const SECTORS: [u64; 2] = [11, 12];

#[derive(Default)]
struct Kept(Mutex<String>);

impl ReservationStore for Kept {
    fn load(&self) -> io::Result<String> {
        Ok(self.0.lock().expect("not poisoned").clone())
    }

    fn save(&self, text: &str) -> io::Result<()> {
        text.clone_into(&mut self.0.lock().expect("not poisoned"));
        Ok(())
    }
}

/// A disk and its stored reservations, which remain when the target ends.
struct Storage {
    disk: Arc<dyn Namespace>,
    kept: Arc<Kept>,
    engine: EngineKind,
}

impl Storage {
    fn new(engine: EngineKind) -> Self {
        let disk = Arc::new(Mem::new(BLOCK as u32, BLOCKS * BLOCK as u64).expect("a size"));
        Self { disk, kept: Arc::default(), engine }
    }

    fn share(&self) -> Target {
        let mut subsystem = Subsystem::new(NQN);
        subsystem.config.allow_any_host = true;
        let export = Export { namespace: Arc::clone(&self.disk), identity: "shared".to_owned() };
        subsystem.exports.insert(NamespaceId(1), export);
        subsystem.reservations.insert(NamespaceId(1), Arc::clone(&self.kept) as Arc<_>);
        let config = TargetConfig {
            subsystems: vec![subsystem],
            listeners: vec!["127.0.0.1:0".parse().expect("an address")],
            engine: self.engine,
            ..TargetConfig::default()
        };
        Target::start(&config).expect("the target starts")
    }
}

/// The holder of a reservation, as seen by a node ([MS-CSVP] 3.2.4.22).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Present {
    None,
    Others,
    Own,
}

struct Node {
    _admin: Queue,
    io: Queue,
    key: u64,
}

impl Node {
    fn new(number: u8, address: SocketAddr) -> Self {
        let hostid = [number; 16];
        let (admin, controller) = admin_of(hostid, address, Digests::NONE);
        let io = io_of(hostid, address, Digests::NONE, controller, true);
        Self { _admin: admin, io, key: u64::from(number) << 32 | 1 }
    }

    fn send(&mut self, opcode: NvmOpcode, control: ReservationControl, keys: &[u64]) -> Status {
        reservation(&mut self.io, opcode, control, keys)
    }

    /// Executes a persistent REGISTER AND IGNORE EXISTING KEY, which works whether or not the node
    /// is registered.
    fn register(&mut self) -> Status {
        let control = ReservationControl::default()
            .with_action(RegisterAction::REPLACE.0)
            .with_iekey(true)
            .with_cptpl(ReservationControl::CPTPL_SET);
        self.send(NvmOpcode::RESERVATION_REGISTER, control, &[0, self.key])
    }

    /// Like [`Node::register`], but with the key 0.
    fn unregister(&mut self) -> Status {
        let control = ReservationControl::default()
            .with_action(RegisterAction::UNREGISTER.0)
            .with_iekey(true);
        self.send(NvmOpcode::RESERVATION_REGISTER, control, &[0, 0])
    }

    fn acquire(&mut self, rtype: ReservationType) -> Status {
        let control =
            ReservationControl::default().with_action(AcquireAction::ACQUIRE.0).with_rtype(rtype.0);
        self.send(NvmOpcode::RESERVATION_ACQUIRE, control, &[self.key, 0])
    }

    fn preempt(&mut self, owner: u64, rtype: ReservationType) -> Status {
        let control =
            ReservationControl::default().with_action(AcquireAction::PREEMPT.0).with_rtype(rtype.0);
        self.send(NvmOpcode::RESERVATION_ACQUIRE, control, &[self.key, owner])
    }

    fn release(&mut self, rtype: ReservationType) -> Status {
        let control =
            ReservationControl::default().with_action(ReleaseAction::RELEASE.0).with_rtype(rtype.0);
        self.send(NvmOpcode::RESERVATION_RELEASE, control, &[self.key])
    }

    fn clear(&mut self) -> Status {
        let control = ReservationControl::default().with_action(ReleaseAction::CLEAR.0);
        self.send(NvmOpcode::RESERVATION_RELEASE, control, &[self.key])
    }

    /// Executes PERSISTENT RESERVE IN. Returns the type, whether the reservation persists, and the
    /// keys of the registrants. Each key has a flag that tells whether its registrant holds the
    /// reservation.
    fn report(&mut self) -> (u8, bool, Vec<(u64, bool)>) {
        const LENGTH: u32 = 4096;
        let mut sqe = Sqe::new(NvmOpcode::RESERVATION_REPORT.0, 0, 1);
        sqe.dptr = SglDescriptor::transport(LENGTH);
        sqe.cdw10 = (LENGTH / 4 - 1).into();
        sqe.cdw11 = REPORT_EXTENDED.into();
        let answer = self.io.run(sqe, Transfer::FromController(LENGTH), &[]);
        assert_eq!(answer.status, OK);
        let head = ReservationStatus::parse(&answer.data).expect("enough bytes");
        let entries = answer.data[ReservationStatus::LEN..].chunks(Registrant::LEN);
        let registrants = entries.take(head.regctl.get().into()).map(|entry| {
            let entry = Registrant::parse(entry).expect("whole");
            (entry.rkey.get(), entry.rcsts & Registrant::RCSTS_HOLDS != 0)
        });
        (head.rtype, head.ptpls == 1, registrants.collect())
    }

    /// Executes PERSISTENT RESERVE IN with READ KEYS.
    fn keys(&mut self) -> Vec<u64> {
        self.report().2.into_iter().map(|(key, _)| key).collect()
    }

    fn present(&mut self) -> Present {
        let (rtype, _, registrants) = self.report();
        let own = (self.key, true);
        match rtype {
            0 => Present::None,
            _ if registrants.contains(&own) => Present::Own,
            _ => Present::Others,
        }
    }

    fn write(&mut self, byte: u8) -> Status {
        let writes = SECTORS.map(|sector| write(&mut self.io, sector, &[byte; BLOCK], true));
        assert_eq!(writes[0], writes[1]);
        writes[0]
    }

    fn read(&mut self) -> Result<u8, Status> {
        let [one, two] = SECTORS.map(|sector| read(&mut self.io, sector, BLOCK as u32));
        assert_eq!((one.status, &one.data), (two.status, &two.data));
        if one.status == OK { Ok(one.data[0]) } else { Err(one.status) }
    }
}

/// Makes every node remove the reservations that an earlier validation left.
fn tidy(nodes: &mut [Node]) {
    for node in nodes {
        assert_eq!(node.register(), OK);
        assert_eq!(node.clear(), OK);
        assert_eq!((node.present(), node.keys()), (Present::None, vec![]));
    }
}

#[test]
fn cluster_validation_of_three_nodes_passes() {
    for &engine in EngineKind::HERE {
        let storage = Storage::new(engine);
        let target = storage.share();
        let address = target.addresses()[0];
        let mut nodes = [1, 2, 3].map(|number| Node::new(number, address));
        tidy(&mut nodes);
        // Use each type in turn, as disk array test suites do.
        for rtype in [SHARED, ReservationType::EXCLUSIVE_ACCESS_REGISTRANTS] {
            validate(&mut nodes, rtype);
        }
    }
}

fn validate(nodes: &mut [Node; 3], rtype: ReservationType) {
    let [first, second, third] = nodes;
    let reads_are_refused = rtype == ReservationType::EXCLUSIVE_ACCESS_REGISTRANTS;
    // The first node registers twice and reserves. The other nodes see the reservation.
    assert_eq!((first.register(), first.keys()), (OK, vec![first.key]));
    first.key += 1 << 16;
    assert_eq!(
        (first.register(), first.keys()),
        (OK, vec![first.key]),
        "only the node's key is registered"
    );
    assert_eq!(second.acquire(rtype), CONFLICT, "a host that is not registered");
    assert_eq!(first.acquire(rtype), OK);
    assert_eq!(first.acquire(rtype), OK, "the holder may acquire the reservation again");
    assert_eq!(first.report(), (rtype.0, true, vec![(first.key, true)]));
    assert_eq!([first.present(), third.present()], [Present::Own, Present::Others]);
    // The second node registers and writes. The third node is refused.
    assert_eq!((second.register(), second.write(2)), (OK, OK));
    assert_eq!(first.read(), Ok(2));
    assert_eq!(second.acquire(rtype), CONFLICT, "the first host holds the reservation");
    assert_eq!(second.release(rtype), OK, "a host that holds nothing may release");
    assert_eq!(second.present(), Present::Others);
    assert_eq!(third.write(3), CONFLICT);
    assert_eq!(third.read(), if reads_are_refused { Err(CONFLICT) } else { Ok(2) });
    assert_eq!(third.preempt(first.key, rtype), CONFLICT, "a host that is not registered");
    assert_eq!(second.preempt(first.key, rtype), OK);
    assert_eq!(second.report(), (rtype.0, true, vec![(second.key, true)]));
    assert_eq!(first.write(1), CONFLICT);
    assert_eq!((first.release(rtype), first.acquire(rtype)), (CONFLICT, CONFLICT));
    assert_eq!(second.preempt(first.key, rtype), CONFLICT, "no host has this key");
    // The first node registers again. Then all nodes release and unregister.
    assert_eq!((first.register(), first.write(1)), (OK, OK));
    assert_eq!(second.release(rtype), OK);
    assert_eq!([first.present(), second.present()], [Present::None; 2]);
    assert_eq!(third.write(3), OK);
    assert_eq!((first.unregister(), first.keys()), (OK, vec![second.key]));
    assert_eq!(second.clear(), OK);
    assert_eq!(third.report(), (0, true, vec![]), "the persistence setting changed");
}

#[test]
fn a_challenge_for_a_disk_works_across_a_restart_of_the_target() {
    for &engine in EngineKind::HERE {
        let storage = Storage::new(engine);
        let target = storage.share();
        let address = target.addresses()[0];
        let mut owner = Node::new(1, address);
        assert_eq!((owner.register(), owner.acquire(SHARED), owner.write(1)), (OK, OK, OK));
        drop(owner);
        drop(target);

        // The target restarts. The node that defends the reservation does not reconnect at once.
        let target = storage.share();
        let mut challenger = Node::new(2, target.addresses()[0]);
        assert_eq!(challenger.write(2), CONFLICT);
        assert_eq!(challenger.read(), Ok(1));
        assert_eq!(challenger.present(), Present::Others);
        let owner = challenger.keys()[0];
        assert_eq!(challenger.register(), OK);
        assert_eq!(challenger.preempt(owner, SHARED), OK);
        assert_eq!(challenger.write(2), OK);
        drop(challenger);
        drop(target);

        let target = storage.share();
        let address = target.addresses()[0];
        let [mut late, mut challenger] = [1, 2].map(|number| Node::new(number, address));
        assert_eq!(late.write(1), CONFLICT, "{engine}: the preempted host writes");
        assert_eq!(challenger.report(), (SHARED.0, true, vec![(challenger.key, true)]));
        assert_eq!(challenger.read(), Ok(2));
        // The defender has lost the reservation, so every node may use the disk again.
        assert_eq!((challenger.unregister(), late.write(1)), (OK, OK));
        assert_eq!(late.present(), Present::None);
    }
}
