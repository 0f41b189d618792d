//! A write whose data are still to come when somebody else reserves the disk.

mod rig;

use farblock_proto::tcp::host_end::{Event, Transfer};
use farblock_proto::tcp::{Digests, SlotId};
use farblock_reactor::EngineKind;
use farblock_wire::fabrics::{ConnectCommand, ConnectData, PropertySetCommand, PropertySize};
use farblock_wire::opcode::NvmOpcode;
use farblock_wire::property::offset;
use farblock_wire::reservation::{
    AcquireAction, RegisterAction, ReservationControl, ReservationType,
};
use farblock_wire::{SglDescriptor, Sqe, Status};
use rig::scripted::*;
use std::io::Write;
use std::net::SocketAddr;

/// Another host's queues: what has the same name and another identifier.
fn other(address: SocketAddr) -> (Queue, Queue) {
    let data = |cntlid| ConnectData { hostid: [9; 16], ..connect_data(cntlid) };
    let mut admin = Queue::new(address, Digests::NONE);
    let answer = admin.connect(ConnectCommand::new(0, 0, 31, 0), data(0xffff));
    let cc = 1 | 6 << 16 | 4 << 20;
    let set = PropertySetCommand::new(0, offset::CC, PropertySize::Four, cc);
    assert_eq!(admin.run(set.to_sqe(), Transfer::None, &[]).status, Status::SUCCESS);
    let mut io = Queue::new(address, Digests::NONE);
    let connected = io.connect(ConnectCommand::new(0, 1, 63, 0), data(answer.result as u16));
    assert_eq!(connected.status, Status::SUCCESS);
    (admin, io)
}

fn reserve(queue: &mut Queue, opcode: NvmOpcode, control: ReservationControl, keys: [u64; 2]) {
    let data: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
    let dptr = SglDescriptor::in_capsule(0, 16);
    let sqe = Sqe { cdw10: control.0.into(), dptr, ..Sqe::new(opcode.0, 0, 1) };
    assert_eq!(queue.run(sqe, Transfer::InCapsule(16), &data).status, Status::SUCCESS);
}

#[test]
fn data_that_come_after_the_fence_are_not_written_and_it_does_not_wait_for_them() {
    for &engine in EngineKind::HERE {
        let target = target(engine, |_| {});
        let address = target.addresses()[0];
        let (_admin, controller) = admin(address, Digests::NONE);
        let mut one = io(address, Digests::NONE, controller, true);
        let (_others_admin, mut late) = other(address);
        let sqe = blocks(NvmOpcode::WRITE.0, 0, 8, SglDescriptor::transport(4096));
        let mut out = Vec::new();
        late.end.submit(SlotId(3), &sqe, Transfer::ToController(4096), &mut out);
        late.stream.write_all(&out).expect("sent");
        let mut grant = loop {
            assert!(late.receive(), "an R2T");
            let pending = std::mem::take(&mut late.pending);
            let mut input = &pending[..];
            match late.end.next(&mut input).expect("well formed") {
                Some(Event::Wanted(grant)) => break grant,
                _ => late.pending = input.to_vec(),
            }
        };
        let plain = ReservationControl::default();
        let register = plain.with_action(RegisterAction::REGISTER.0);
        reserve(&mut one, NvmOpcode::RESERVATION_REGISTER, register, [0, 7]);
        let exclusive = ReservationType::WRITE_EXCLUSIVE.0;
        let acquire = plain.with_action(AcquireAction::ACQUIRE.0).with_rtype(exclusive);
        reserve(&mut one, NvmOpcode::RESERVATION_ACQUIRE, acquire, [7, 0]);
        assert_eq!(write(&mut one, 0, &[1; 4096], true), Status::SUCCESS);
        let mut out = Vec::new();
        late.end.data_header(&mut grant, &mut out).expect("all of it");
        out.extend_from_slice(&[2; 4096]);
        late.stream.write_all(&out).expect("sent");
        let status = loop {
            assert!(late.receive(), "an answer");
            let pending = std::mem::take(&mut late.pending);
            let mut input = &pending[..];
            match late.end.next(&mut input).expect("well formed") {
                Some(Event::Completed { cqe, .. }) => break cqe.status(),
                _ => late.pending = input.to_vec(),
            }
        };
        assert_eq!(status, Status::RESERVATION_CONFLICT.with_dnr());
        assert!(read(&mut one, 0, 4096).data == [1; 4096], "{engine}");
    }
}
