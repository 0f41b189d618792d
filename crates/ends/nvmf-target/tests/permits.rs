//! If a group of targets shares a namespace, its commands execute only while the permit is valid.

mod rig;

use farblock_backends::mem::Mem;
use farblock_host::Disk;
use farblock_proto::controller::PortAccess;
use farblock_proto::ids::NamespaceId;
use farblock_reactor::EngineKind;
use farblock_target::{Export, Permit, Subsystem, Target, TargetConfig, boot_time};
use farblock_wire::log::AnaState;
use rig::gate::Gate;
use rig::{BLOCK, NQN, User, WAIT_LIMIT, any, options, url};
use std::sync::Arc;
use std::time::Duration;

/// Starts a target whose namespace needs the permit. The returned gate can hold back the
/// namespace's operations.
fn start(permit: &Arc<Permit>) -> (Target, Arc<Gate>) {
    let store = Arc::new(Mem::new(BLOCK as u32, 1 << 20).expect("a size"));
    let gate = Arc::new(Gate::new(store));
    let mut subsystem = Subsystem::new(NQN);
    subsystem.config.allow_any_host = true;
    let export = Export { namespace: gate.clone(), identity: "led".to_owned() };
    subsystem.exports.insert(NamespaceId(1), export);
    let config = TargetConfig {
        subsystems: vec![subsystem],
        listeners: vec![any()],
        permits: [(1, Arc::clone(permit))].into(),
        ..TargetConfig::default()
    };
    (Target::start(&config).expect("the target starts"), gate)
}

fn permit_for(permit: &Permit, time: Duration) {
    permit.publish(Some(boot_time().saturating_add(time)));
}

#[test]
fn commands_wait_while_there_is_no_permit_and_operations_in_flight_are_reported() {
    let permit = Arc::new(Permit::default());
    let (target, gate) = start(&permit);
    let (control, port) = (target.control(), target.addresses()[0]);
    let access = |state| control.set_access(port, &PortAccess::all(state)).expect("a listener");
    permit_for(&permit, WAIT_LIMIT * 10);
    let disk = Disk::connect(&[url(port)], &options(EngineKind::Auto)).expect("connected");
    let mut user = User::new(&disk, EngineKind::Auto);
    gate.keep(1);
    user.write(0, 1, 1, 1);
    rig::until("the write is in flight", || {
        assert!(user.turn(Duration::from_millis(1)).is_empty());
        gate.kept() == 1
    });
    permit.publish(None);
    access(AnaState::INACCESSIBLE);
    user.write(1, 1, 2, 2);
    let quiet = control.quiet(NQN, NamespaceId(1)).expect("the namespace exists");
    let quiet = quiet.wait(Duration::from_millis(50)).expect_err("a write is in flight");
    gate.open_up();
    let first = user.one();
    assert_eq!((first.token, first.result), (1, Ok(())));
    quiet.wait(WAIT_LIMIT).expect("no operation is in flight");
    let seen = gate.seen().len();
    assert!(user.turn(Duration::from_millis(100)).is_empty(), "no command executes");
    assert_eq!(gate.seen().len(), seen);
    permit_for(&permit, WAIT_LIMIT * 10);
    access(AnaState::OPTIMIZED);
    let second = user.one();
    assert_eq!((second.token, second.result), (2, Ok(())));
}

/// A permit may expire before the ANA state changes.
#[test]
fn a_command_without_a_permit_is_not_submitted_even_if_the_namespace_is_optimized() {
    let permit = Arc::new(Permit::default());
    let (target, gate) = start(&permit);
    permit_for(&permit, WAIT_LIMIT * 10);
    let disk = Disk::connect(&[url(target.addresses()[0])], &options(EngineKind::Auto));
    let disk = disk.expect("connected");
    let mut user = User::new(&disk, EngineKind::Auto);
    user.write(0, 1, 1, 1);
    assert_eq!(user.one().result, Ok(()));
    let seen = gate.seen().len();
    permit_for(&permit, Duration::ZERO);
    user.write(0, 1, 2, 2);
    user.read(0, 1, 3);
    assert!(user.turn(Duration::from_millis(300)).is_empty(), "the commands wait for a path");
    assert_eq!(gate.seen().len(), seen, "a command was submitted");
    permit_for(&permit, WAIT_LIMIT * 10);
    let mut done = 0;
    while done < 2 {
        let some = user.turn(WAIT_LIMIT);
        assert!(!some.is_empty() && some.iter().all(|one| one.result == Ok(())), "{some:?}");
        done += some.len();
    }
}
