//! The target distinguishes hosts by all 128 bits of their identifiers, and recognizes them when
//! they reconnect.

mod rig;

use farblock_backends::mem::Mem;
use farblock_proto::tcp::Digests;
use farblock_proto::tcp::host_end::Transfer;
use farblock_reactor::EngineKind;
use farblock_wire::opcode::NvmOpcode;
use farblock_wire::reservation::{
    AcquireAction, REPORT_EXTENDED, Registrant, ReleaseAction, ReservationControl,
    ReservationStatus, ReservationType,
};
use farblock_wire::{SglDescriptor, Sqe, Status};
use rig::scripted::*;
use std::net::SocketAddr;
use std::sync::Arc;

const CONFLICT: Status = Status::RESERVATION_CONFLICT.with_dnr();
const OK: Status = Status::SUCCESS;

/// Three host identifiers. Two have equal first 64 bits, and two have equal last 64 bits.
const IDS: [u128; 3] = [
    0x1122_3344_5566_7788_99aa_bbcc_ddee_ff00,
    0x1122_3344_5566_7788_99aa_bbcc_ddee_ff01,
    0x9122_3344_5566_7788_99aa_bbcc_ddee_ff00,
];

struct Host {
    _admin: Queue,
    io: Queue,
    key: u64,
}

impl Host {
    fn new(number: usize, address: SocketAddr) -> Self {
        let hostid = IDS[number].to_be_bytes();
        let (admin, controller) = admin_of(hostid, address, Digests::NONE);
        let io = io_of(hostid, address, Digests::NONE, controller, true);
        Self { _admin: admin, io, key: 1 + number as u64 }
    }

    fn send(&mut self, opcode: NvmOpcode, control: ReservationControl, keys: &[u64]) -> Status {
        let data: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
        let length = data.len() as u32;
        let dptr = SglDescriptor::in_capsule(0, length);
        let sqe = Sqe { cdw10: control.0.into(), dptr, ..Sqe::new(opcode.0, 0, 1) };
        self.io.run(sqe, Transfer::InCapsule(length), &data).status
    }

    fn register(&mut self) -> Status {
        let keys = [0, self.key];
        self.send(NvmOpcode::RESERVATION_REGISTER, ReservationControl::default(), &keys)
    }

    fn acquire(&mut self, action: AcquireAction, preempted: u64) -> Status {
        let rtype = ReservationType::EXCLUSIVE_ACCESS_REGISTRANTS;
        let control = ReservationControl::default().with_action(action.0).with_rtype(rtype.0);
        self.send(NvmOpcode::RESERVATION_ACQUIRE, control, &[self.key, preempted])
    }

    fn write(&mut self) -> Status {
        write(&mut self.io, 5, &pattern(BLOCK, self.key as u8), true)
    }

    /// Returns the registrants in any order: identifier, key, and whether the host holds the
    /// reservation.
    fn report(&mut self) -> Vec<(u128, u64, bool)> {
        const LENGTH: u32 = 4096;
        let mut sqe = Sqe::new(NvmOpcode::RESERVATION_REPORT.0, 0, 1);
        sqe.dptr = SglDescriptor::transport(LENGTH);
        sqe.cdw10 = (LENGTH / 4 - 1).into();
        // Without this bit, a report would have 64-bit identifiers, so the target refuses the
        // command.
        let short = self.io.run(sqe, Transfer::FromController(LENGTH), &[]).status;
        assert_eq!(short, Status::HOST_ID_INCONSISTENT.with_dnr());
        sqe.cdw11 = REPORT_EXTENDED.into();
        let answer = self.io.run(sqe, Transfer::FromController(LENGTH), &[]);
        assert_eq!(answer.status, OK);
        let head = ReservationStatus::parse(&answer.data).expect("enough bytes");
        let entries = answer.data[ReservationStatus::LEN..].chunks(Registrant::LEN);
        let registrants = entries.take(head.regctl.get().into()).map(|entry| {
            let entry = Registrant::parse(entry).expect("whole");
            let holds = entry.rcsts & Registrant::RCSTS_HOLDS != 0;
            (u128::from_be_bytes(entry.hostid), entry.rkey.get(), holds)
        });
        let mut registrants: Vec<_> = registrants.collect();
        registrants.sort_unstable();
        registrants
    }
}

#[test]
fn reservations_follow_the_whole_host_identifier_across_reconnects() {
    for &engine in EngineKind::HERE {
        let disk = Arc::new(Mem::new(BLOCK as u32, BLOCKS * BLOCK as u64).expect("a size"));
        let target = target_of(engine, [disk as Arc<_>], |_| {});
        let address = target.addresses()[0];
        let mut hosts = [0, 1, 2].map(|number| Host::new(number, address));
        assert_eq!((hosts[0].register(), hosts[1].register()), (OK, OK));
        assert_eq!(hosts[0].acquire(AcquireAction::ACQUIRE, 0), OK);
        assert_eq!(hosts.each_mut().map(Host::write), [OK, OK, CONFLICT]);
        let both = [(IDS[0], 1, true), (IDS[1], 2, false)];
        assert_eq!(hosts[2].report(), both);

        // A host sends Clear with the holder's key. Only half of its identifier equals the
        // holder's, so the command must fail.
        let clear = ReservationControl::default().with_action(ReleaseAction::CLEAR.0);
        let cleared = hosts[2].send(NvmOpcode::RESERVATION_RELEASE, clear, &[1]);
        assert_eq!(cleared, CONFLICT, "{engine:?}");

        // First each host alone loses its connections, then all hosts lose their connections.
        for gone in [&[0][..], &[1], &[2], &[0, 1, 2]] {
            for &gone in gone {
                hosts[gone] = Host::new(gone, address);
            }
            assert_eq!(hosts.each_mut().map(Host::write), [OK, OK, CONFLICT], "{engine:?}");
            assert_eq!(hosts[0].report(), both);
        }
        // Host 0 is already registered with another key.
        hosts[0].key = 9;
        assert_eq!(hosts[0].register(), CONFLICT);
        hosts[0].key = 1;

        // Host 0 is fenced while it is disconnected, and stays fenced after it reconnects. The
        // other hosts are not fenced.
        drop(std::mem::replace(&mut hosts[0], Host::new(2, address)));
        assert_eq!(hosts[1].acquire(AcquireAction::PREEMPT_ABORT, 1), OK);
        hosts[0] = Host::new(0, address);
        assert_eq!(hosts.each_mut().map(Host::write), [CONFLICT, OK, CONFLICT]);
        assert_eq!(hosts[0].report(), [(IDS[1], 2, true)]);
        // A host with the key of a fenced host is still a different host.
        hosts[2].key = 1;
        assert_eq!((hosts[2].register(), hosts[2].write()), (OK, OK));
        assert_eq!(hosts[0].write(), CONFLICT);
        hosts[2] = Host::new(2, address);
        assert_eq!(hosts.each_mut().map(Host::write), [CONFLICT, OK, OK]);
    }
}
