//! Tests of Cross-Controller Reset: a host resets one of its controllers through another
//! controller.

mod controller_fixture;

use controller_fixture::*;
use farblock_proto::controller::{
    Action, AdminOutcome, Instance, Registry, Teardown, TeardownReason,
};
use farblock_proto::ids::QueueId;
use farblock_wire::Status;
use farblock_wire::identify::IdentifyController;
use farblock_wire::opcode::AdminOpcode;
use farblock_wire::reset::CrossControllerReset;

/// Returns the name of a controller instance, as the host reads it.
fn name(registry: &mut Registry, host: &Host) -> CrossControllerReset {
    let mut sqe = command(AdminOpcode::IDENTIFY, 0);
    sqe.cdw10 = 1.into();
    let page = host.fetch(registry, sqe, 4096).expect("a readable page");
    let identify = IdentifyController::parse(&page).expect("4096 bytes");
    assert!(identify.ccrl > 0 && identify.ciu > 0);
    let (icid, ciu, cirn) = (identify.cntlid.get(), identify.ciu, identify.cirn.get());
    CrossControllerReset { icid, ciu, cirn }
}

fn reset(registry: &mut Registry, host: &Host, name: CrossControllerReset) -> AdminOutcome {
    host.admin(registry, &name.emit(), at(1))
}

fn invalid() -> AdminOutcome {
    AdminOutcome::Respond { status: Status::INVALID_FIELD.with_dnr(), result: 0 }
}

#[test]
fn a_host_can_reset_its_other_controller() {
    let (mut registry, _) = registry();
    registry.set_instance_key([0xff; 16]);
    let (lost, new) = (Host::ready(&mut registry), Host::ready(&mut registry));
    let instance = lost.io_queue(&mut registry, 1).expect("a queue").instance;
    let name = name(&mut registry, &lost);
    assert_eq!(reset(&mut registry, &new, name), AdminOutcome::Reset { instance });
    let (controller, queues) = (lost.id, vec![QueueId(0), QueueId(1)]);
    let reason = TeardownReason::CrossControllerReset;
    assert_eq!(drain(&mut registry), [Action::Close(Teardown { controller, queues, reason })]);
    assert!(registry.controllers().all(|controller| controller.controller != lost.id));
    // A repeated reset returns the same instance and closes no more queues.
    assert_eq!(reset(&mut registry, &new, name), AdminOutcome::Reset { instance });
    assert!(drain(&mut registry).is_empty());
}

#[test]
fn controller_names_are_never_reused() {
    let (mut registry, _) = registry();
    registry.set_controller_ids(1..=2).expect("a valid range");
    let observer = Host::ready(&mut registry);
    let first = Host::ready(&mut registry);
    let old = name(&mut registry, &first);
    let _ = registry.queue_closed(first.id, QueueId(0));
    let second = Host::ready(&mut registry);
    assert_eq!(second.id, first.id, "the new controller has the same identifier");
    assert_ne!(name(&mut registry, &second), old);
    let outcome = reset(&mut registry, &observer, old);
    assert_eq!(outcome, AdminOutcome::Reset { instance: Instance(1) });
    assert!(
        drain(&mut registry).is_empty(),
        "the old host's traffic does not reach the new controller"
    );
}

#[test]
fn controller_names_cannot_be_guessed_from_others() {
    let (mut registry, _) = registry();
    registry.set_instance_key(*b"nobody knows it!");
    let friend = Host::ready(&mut registry);
    let known: Vec<_> = (0..8)
        .map(|_| {
            let host = Host::ready(&mut registry);
            name(&mut registry, &host)
        })
        .collect();
    let victim = Host::ready(&mut registry);
    let victims = name(&mut registry, &victim);
    for pair in known.windows(2) {
        let step = pair[1].cirn.wrapping_sub(pair[0].cirn);
        for guess in [pair[1].cirn.wrapping_add(step), pair[1].cirn.wrapping_add(1)] {
            assert_ne!(guess, victims.cirn);
        }
        assert!(step.count_ones() > 8, "{pair:?} are too similar");
    }
    // Guesses that would succeed if names were counters: numbers close to a known name, with any
    // CIU.
    for distance in -32..=32 {
        let cirn = known[7].cirn.wrapping_add_signed(distance);
        for ciu in 1..=u8::MAX {
            let guess = CrossControllerReset { icid: victim.id.0, ciu, cirn };
            if !known.iter().any(|known| (known.ciu, known.cirn) == (ciu, cirn)) {
                assert_eq!(reset(&mut registry, &friend, guess), invalid(), "{guess:?}");
            }
        }
    }
    assert!(registry.controllers().any(|controller| controller.controller == victim.id));
}

#[test]
fn a_host_can_reset_only_its_own_controllers() {
    let (mut registry, subsystem) = registry();
    let victim = Host::ready(&mut registry);
    let victims = name(&mut registry, &victim);
    assert_eq!(
        reset(&mut registry, &victim, victims),
        invalid(),
        "no reset of the asking controller"
    );
    registry.allow_host(subsystem, OTHER_HOST_NQN).expect("a name");
    let mut connect = Connect::admin(SUBSYSTEM_NQN);
    connect.data.hostnqn = farblock_wire::nqn::nqn_field(OTHER_HOST_NQN);
    let stranger = Host::of(&connect.send(&mut registry, at(0)).expect("an allowed host"));
    stranger.write_cc(&mut registry, enabling(), at(0));
    let status = Status::OPERATION_DENIED.with_dnr();
    let denied = AdminOutcome::Respond { status, result: 0 };
    assert_eq!(
        reset(&mut registry, &stranger, victims),
        denied,
        "another host's live controller is protected"
    );
    let friend = Host::ready(&mut registry);
    for unknown in [
        CrossControllerReset { cirn: victims.cirn ^ 1 << 63, ..victims },
        CrossControllerReset { ciu: victims.ciu ^ 0x80, ..victims },
        CrossControllerReset { icid: 0, ciu: 0, cirn: u64::MAX },
    ] {
        assert_eq!(reset(&mut registry, &friend, unknown), invalid(), "{unknown:?}");
    }
    assert!(registry.controllers().any(|controller| controller.controller == victim.id));
}

#[test]
fn the_ended_controllers_of_other_targets_need_no_reset() {
    let (mut registry, _) = registry();
    registry.set_controller_ids(1..=9).expect("a valid range");
    let (host, own) = (Host::ready(&mut registry), Host::ready(&mut registry));
    let own = name(&mut registry, &own);
    let foreign = CrossControllerReset { icid: 17, ..own };
    let unknown = CrossControllerReset { icid: 27, cirn: own.cirn ^ 1 << 40, ..own };
    registry.set_ended_controllers(vec![10..=19]);
    let outcome = reset(&mut registry, &host, foreign);
    assert_eq!(outcome, AdminOutcome::Reset { instance: Instance(u64::MAX) });
    assert!(drain(&mut registry).is_empty(), "no controller of this target ends");
    assert_eq!(reset(&mut registry, &host, unknown), invalid(), "the other target may be alive");
    registry.set_ended_controllers(Vec::new());
    let unknown = CrossControllerReset { icid: 17, ..unknown };
    assert_eq!(reset(&mut registry, &host, unknown), invalid(), "the other target runs again");
}
