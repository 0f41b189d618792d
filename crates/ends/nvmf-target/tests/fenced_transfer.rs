//! A host reserves the disk while a write of another host still waits for its data.

mod rig;

use farblock_proto::tcp::Digests;
use farblock_reactor::EngineKind;
use farblock_wire::Status;
use farblock_wire::opcode::NvmOpcode;
use farblock_wire::reservation::{
    AcquireAction, RegisterAction, ReservationControl, ReservationType,
};
use rig::scripted::*;
use rig::turns::*;

#[test]
fn a_preempt_does_not_wait_for_outstanding_data_and_discards_them() {
    for &engine in EngineKind::HERE {
        let target = target(engine, |_| {});
        let address = target.addresses()[0];
        let (_admin, controller) = admin(address, Digests::NONE);
        let mut one = io(address, Digests::NONE, controller, true);
        let (_others_admin, mut late) = another_host(address);
        ask(&mut late, 3, 4096);
        let grant = wanted(&mut late);
        let plain = ReservationControl::default();
        let register = plain.with_action(RegisterAction::REGISTER.0);
        reserve(&mut one, NvmOpcode::RESERVATION_REGISTER, register, [0, 7]);
        let exclusive = ReservationType::WRITE_EXCLUSIVE.0;
        let acquire = plain.with_action(AcquireAction::ACQUIRE.0).with_rtype(exclusive);
        reserve(&mut one, NvmOpcode::RESERVATION_ACQUIRE, acquire, [7, 0]);
        assert_eq!(write(&mut one, 0, &[1; 4096], true), Status::SUCCESS);
        give(&mut late, grant, &[2; 4096]);
        assert_eq!(status(&mut late), Status::RESERVATION_CONFLICT.with_dnr());
        assert!(read(&mut one, 0, 4096).data == [1; 4096], "{engine}");
    }
}
