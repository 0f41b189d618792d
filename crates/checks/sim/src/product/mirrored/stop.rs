//! Mirrors that lose all legs during I/O, or while their target stops.
//!
//! Operations on a mirror without legs must fail within [`IO_BOUND`]. After the legs have returned,
//! they must be in sync again. A target that is ordered to stop must stop within [`STOP_BOUND`],
//! even if its mirror waits for a leg.

use super::legs::Leg;
use super::user::User;
use super::{GONE_TIME, HEALS, IO_BOUND, Named, Outcome, Run, add_legs, assemble, memory};
use farblock_block::Namespace;
use farblock_host::disk::DiskOptions;
use farblock_host::{Disk, HostId, Options, Url};
use farblock_proto::ids::NamespaceId;
use farblock_random::Random;
use farblock_reactor::sim::{World, on_machine};
use farblock_reactor::{EngineKind, os};
use farblock_target::{Export, Subsystem, Target, TargetConfig};
use farblock_wire::log::AnaState;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The time limit for the stop of a target. Operations in flight may take [`IO_BOUND`]. Then the
/// target closes the mirror and its connections.
pub const STOP_BOUND: Duration = Duration::from_secs(40);
/// The number of the machine whose host uses the target.
const HOST: u32 = 1;
const NQN: &str = "nqn.2026-11.org.farblock:mirror";

/// Runs the mirror of a seed while its legs are unavailable.
///
/// # Panics
/// Panics if a check fails. The message contains the seed.
pub fn run(seed: u64) -> Outcome {
    let _named = Named { seed, test: "mirrors_without_legs_fail_in_time_and_stop" };
    let world = World::enter(seed);
    let mut random = Random::new(Random::mix(&[seed, 53]));
    let legs = add_legs(&world, &mut random, false);
    let (outcome, machines) = match random.one_in(2) {
        true => wait(&world, random, legs),
        false => stop(&world, random, legs),
    };
    memory::check_end(machines);
    assert_eq!(world.threads(), Vec::<String>::new(), "threads are left");
    outcome
}

/// The reason why the legs are unavailable.
#[derive(Clone, Copy, Debug)]
enum Away {
    /// The processes of the legs' targets are dead.
    Dead,
    /// The legs' targets report this ANA state.
    Ana(AnaState),
    /// The legs' targets hide the namespaces.
    Masked,
    /// For this long, no data from the machines of the legs arrives.
    Cut(Duration),
}

fn any_away(random: &mut Random) -> Away {
    match random.below(6) {
        0 | 1 => Away::Dead,
        2 => Away::Ana(AnaState::INACCESSIBLE),
        3 => Away::Ana(AnaState::CHANGE),
        4 => Away::Masked,
        _ => Away::Cut(Duration::from_secs(60)),
    }
}

fn hide(world: &World, legs: &mut [Leg], away: Away) {
    for leg in legs {
        match away {
            Away::Dead => leg.die(world, false),
            Away::Ana(state) => leg.set_access(state),
            Away::Masked => leg.set_masked(true),
            Away::Cut(time) => {
                let machine = leg.machine().expect("the leg has a machine");
                world.cut(machine..machine + 1, time);
            }
        }
    }
}

fn show(legs: &mut [Leg]) {
    for leg in legs {
        leg.serve();
        leg.set_access(AnaState::OPTIMIZED);
        leg.set_masked(false);
    }
}

/// Checks that operations fail while the legs are unavailable, and that the mirror recovers later.
fn wait(world: &World, random: Random, legs: Vec<Leg>) -> (Outcome, Vec<u32>) {
    let mut run = Run::new(world, random, legs);
    run.load(Duration::from_secs(3));
    let away = any_away(&mut run.random);
    run.may_fail = true;
    hide(world, &mut run.legs, away);
    let time = Duration::from_millis(run.random.below(60_000));
    run.load(time);
    show(&mut run.legs);
    if let Away::Cut(longest) = away {
        // TCP retransmits lost data within twice the time for which data was lost.
        run.load((longest * 2).saturating_sub(time));
    }
    run.load(IO_BOUND);
    let until = world.elapsed() + HEALS;
    while !run.is_whole() {
        assert!(world.elapsed() < until, "not in sync after {away:?}: {:?}", run.mirror.status());
        run.load(Duration::from_secs(1));
    }
    run.settle();
    run.may_fail = false;
    run.sweep();
    run.compare();
    run.finish()
}

/// Checks that the target of a mirror without legs stops on request.
fn stop(world: &World, mut random: Random, mut legs: Vec<Leg>) -> (Outcome, Vec<u32>) {
    let mirror = assemble(&legs);
    let address = SocketAddr::from(([10, 0, 2, 1], 4420));
    let target = serve(Arc::clone(&mirror) as _, address);
    let disk = connect(address);
    let mut user = User::new(world, &disk);
    let pass = |user: &mut User<'_>, time: Duration, random: &mut Random| {
        let until = world.elapsed() + time;
        while world.elapsed() < until {
            user.submit(random);
            let _ = user.turn(Duration::from_millis(20));
        }
    };
    pass(&mut user, Duration::from_secs(3), &mut random);
    let away = any_away(&mut random);
    hide(world, &mut legs, away);
    let is_used = random.one_in(2);
    let time = Duration::from_millis(random.below(30_000));
    match is_used {
        true => pass(&mut user, time, &mut random),
        false => os::sleep(time),
    }
    let ordered = world.elapsed();
    let has_ended = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&has_ended);
    let end = move || {
        target.stop().expect("the target stops");
        drop(mirror);
        ended.store(true, Ordering::SeqCst);
    };
    drop(os::spawn("stopping".to_owned(), end).expect("a thread"));
    while !has_ended.load(Ordering::SeqCst) {
        let time = world.elapsed() - ordered;
        assert!(
            time < STOP_BOUND,
            "the target has not ended {time:?} after the order; legs away: {away:?}, in use: \
             {is_used}, under way: {}",
            user.in_flight()
        );
        let _ = user.turn(Duration::from_millis(50));
    }
    drop(user);
    drop(disk);
    legs.iter_mut().for_each(Leg::stop);
    os::sleep(GONE_TIME);
    let outcome = Outcome { trace: world.trace(), faults: 1, ..Outcome::default() };
    (outcome, legs.iter().filter_map(Leg::machine).chain([0, HOST]).collect())
}

fn serve(namespace: Arc<dyn Namespace>, address: SocketAddr) -> Target {
    let mut subsystem = Subsystem::new(NQN);
    subsystem.config.allow_any_host = true;
    let export = Export { namespace, identity: "mirror".to_owned() };
    subsystem.exports.insert(NamespaceId(1), export);
    let config = TargetConfig {
        subsystems: vec![subsystem],
        listeners: vec![address],
        cores: vec![0],
        engine: EngineKind::Sim,
        ..TargetConfig::default()
    };
    Target::start(&config).expect("a free address")
}

fn connect(address: SocketAddr) -> Disk {
    let url: Url = format!("nvme+tcp://{address}/{NQN}?ns=1").parse().expect("a URL");
    let connection = Options {
        hostnqn: Some("nqn.2014-08.org.example:user".to_owned()),
        hostid: Some(HostId(*b"farblock-testing")),
        queues: 2,
        queue_depth: 16,
        engine: EngineKind::Sim,
        ..Options::default()
    };
    let options = DiskOptions { connection, ..DiskOptions::default() };
    on_machine(HOST, || Disk::connect(&[url], &options)).expect("the host connects")
}
