//! Two listeners are two ports of one subsystem. Their ANA states change while a disk and a
//! scripted host use them.

mod rig;

use farblock_backends::mem::Mem;
use farblock_block::Op;
use farblock_host::disk::Policy;
use farblock_host::{Disk, Url};
use farblock_proto::controller::PortAccess;
use farblock_proto::ids::NamespaceId;
use farblock_reactor::EngineKind;
use farblock_target::{Export, Sharing, Subsystem, Target, TargetConfig, TlsPolicy};
use farblock_wire::log::AnaState;
use rig::gate::Gate;
use rig::{BLOCK, NQN, User, WAIT_LIMIT, any, live_paths, options, serve, until, url};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

fn mem() -> Arc<Mem> {
    Arc::new(Mem::new(BLOCK as u32, 1 << 20).expect("a size"))
}

fn set(target: &Target, address: SocketAddr, state: AnaState) {
    target.control().set_access(address, &PortAccess::all(state)).expect("a listener");
}

fn connect(addresses: &[SocketAddr]) -> Disk {
    let urls: Vec<Url> = addresses.iter().map(|address| url(*address)).collect();
    let mut options = options(EngineKind::Auto);
    options.policy = Policy::RoundRobin;
    // A path that is slow on a busy machine must not count as lost.
    options.connection.path_timeout = Some(WAIT_LIMIT);
    let disk = Disk::connect(&urls, &options).expect("connected");
    until("every path is live", || live_paths(&disk) == addresses.len());
    disk
}

fn sees(disk: &Disk, path: usize, state: AnaState) {
    until("the host knows the change", || disk.paths()[path].access == Some(state));
}

#[test]
fn a_disk_follows_the_ana_states_of_its_paths() {
    let target = serve(mem(), &[any(), any()]);
    let ports = target.addresses().to_vec();
    set(&target, ports[1], AnaState::INACCESSIBLE);
    let disk = connect(&ports);
    sees(&disk, 1, AnaState::INACCESSIBLE);
    let mut user = User::new(&disk, EngineKind::Auto);
    for round in 0..20_u8 {
        let (from, to) = match round % 2 {
            0 => (ports[0], ports[1]),
            _ => (ports[1], ports[0]),
        };
        let loss = [AnaState::INACCESSIBLE, AnaState::CHANGE, AnaState::PERSISTENT_LOSS];
        for token in 0..16 {
            user.write(token, 1, round + 1, token);
        }
        // Change the listeners in either order. For a moment, either no path works or both do.
        if round % 3 == 0 {
            set(&target, to, AnaState::OPTIMIZED);
        }
        set(&target, from, loss[usize::from(round) % 3]);
        set(&target, to, AnaState::NON_OPTIMIZED);
        let mut done = 0;
        while done < 16 {
            let some = user.turn(Duration::from_secs(60));
            assert!(!some.is_empty(), "no operation completes in time");
            some.iter().for_each(|one| assert_eq!(one.result, Ok(()), "round {round}"));
            done += some.len();
        }
        assert!((0..16).all(|lba| user.value(lba) == round + 1));
    }
    assert_eq!(disk.paths().iter().map(|path| path.reconnects).sum::<u64>(), 0);
}

/// Submitted operations complete. The target fails later operations with an ANA status, and the
/// host repeats them once a path works.
#[test]
fn an_ana_change_does_not_cancel_submitted_operations() {
    let gate = Arc::new(Gate::new(mem()));
    let target = serve(gate.clone(), &[any()]);
    let port = target.addresses()[0];
    let disk = connect(&[port]);
    let mut user = User::new(&disk, EngineKind::Auto);
    gate.keep(1);
    user.write(0, 1, 1, 1);
    until("the host knows the namespace's group", || {
        assert!(user.turn(Duration::from_millis(1)).is_empty(), "the operation waits");
        gate.kept() == 1
    });
    set(&target, port, AnaState::INACCESSIBLE);
    sees(&disk, 0, AnaState::INACCESSIBLE);
    user.write(1, 1, 2, 2);
    user.queue.submit(Op::flush(3));
    gate.open_up();
    let first = user.one();
    assert_eq!((first.token, first.result), (1, Ok(())));
    assert!(user.turn(Duration::from_millis(200)).is_empty(), "no path accepts the operation");
    set(&target, port, AnaState::OPTIMIZED);
    let mut done = Vec::new();
    while done.len() < 2 {
        done.extend(user.turn(Duration::from_secs(60)));
    }
    assert!(done.iter().all(|done| done.result.is_ok()), "{done:?}");
    assert_eq!((user.value(0), user.value(1)), (1, 2));
}

#[test]
fn new_listeners_and_namespaces_have_their_ana_states_and_groups() {
    let target = serve(mem(), &[any()]);
    let control = target.control();
    let groups = [(2, AnaState::INACCESSIBLE)].into();
    let access = PortAccess { usual: AnaState::OPTIMIZED, groups };
    let port = control.listen(any(), &access, TlsPolicy::Allowed).expect("a free port");
    let second = Export { namespace: mem(), identity: "second".to_owned() };
    let sharing = Sharing { ana_group: 2, ..Sharing::default() };
    control.add_namespace_as(NQN, NamespaceId(2), &second, &sharing).expect("a free number");
    let disk_of = |nsid: u32| {
        let url: Url = format!("nvme+tcp://{port}/{NQN}?ns={nsid}").parse().expect("a URL");
        Disk::connect(&[url], &options(EngineKind::Auto)).expect("connected")
    };
    let (first, other) = (disk_of(1), disk_of(2));
    sees(&first, 0, AnaState::OPTIMIZED);
    sees(&other, 0, AnaState::INACCESSIBLE);
    control.set_ana_group(NQN, NamespaceId(2), 1).expect("the group exists");
    sees(&other, 0, AnaState::OPTIMIZED);
    let error = control.set_ana_group(NQN, NamespaceId(2), 129).expect_err("no such group");
    assert!(error.to_string().contains("ANA group"), "{error}");
    let error = control.set_access(any(), &access).expect_err("no server listens");
    assert!(error.to_string().contains("does not listen"), "{error}");
}

/// Starts a target with these controller identifiers, which hosts see as a separate process.
fn start(store: Arc<Mem>, ids: RangeInclusive<u16>, state: AnaState) -> Target {
    let mut subsystem = Subsystem::new(NQN);
    subsystem.config.allow_any_host = true;
    let identity = "0191d6cc-0000-7000-8000-000000000001".to_owned();
    subsystem.exports.insert(NamespaceId(1), Export { namespace: store, identity });
    let config = TargetConfig {
        subsystems: vec![subsystem],
        listeners: vec![any()],
        access: [(0, PortAccess::all(state))].into(),
        controller_ids: ids,
        ..TargetConfig::default()
    };
    Target::start(&config).expect("the target starts")
}

/// The host detects that a second target is a clone of the first, even if their controllers have
/// different identifiers.
#[test]
#[cfg(target_os = "linux")]
fn a_cloned_target_is_refused_as_a_second_path() {
    let (original, clone) =
        (start(mem(), 1..=999, AnaState::OPTIMIZED), start(mem(), 1..=999, AnaState::OPTIMIZED));
    // These connections use up controller identifiers, so that the clone gives the host another
    // identifier than the original does.
    let _others = [connect(clone.addresses()), connect(clone.addresses())];
    let urls = [url(original.addresses()[0]), url(clone.addresses()[0])];
    let error = Disk::connect(&urls, &options(EngineKind::Auto)).expect_err("a clone");
    assert!(
        error.to_string().contains("both may give controllers the identifiers 1 to 999"),
        "{error}"
    );
    let disk = connect(original.addresses());
    let error = disk.add_path(&urls[1]).expect_err("a clone");
    assert!(error.to_string().contains("not two paths to one disk"), "{error}");
}

/// Two targets with the same data are two ports of one subsystem if their controller identifiers
/// are disjoint.
#[test]
fn two_targets_with_disjoint_controller_identifiers_are_two_paths() {
    let store = mem();
    let here = start(Arc::clone(&store), 1..=999, AnaState::OPTIMIZED);
    let there = start(store, 1000..=1999, AnaState::INACCESSIBLE);
    let ports = [here.addresses()[0], there.addresses()[0]];
    let disk = connect(&ports);
    sees(&disk, 1, AnaState::INACCESSIBLE);
    let paths = disk.paths();
    let id = |path: usize| paths[path].controller.expect("live").1;
    assert!(id(0) < 1000 && id(1) > 999);
    let mut user = User::new(&disk, EngineKind::Auto);
    user.write(0, 8, 1, 1);
    assert_eq!(user.one().result, Ok(()));
    set(&here, ports[0], AnaState::INACCESSIBLE);
    set(&there, ports[1], AnaState::OPTIMIZED);
    sees(&disk, 1, AnaState::OPTIMIZED);
    assert_eq!(user.value(7), 1);
    drop(here);
    assert_eq!(user.value(6), 1);
}
