//! A mirror in a simulated world. Other programs and faults change its legs (copies).
//!
//! The mirror has two legs. Each is a file of the mirror's machine, or a disk on the target of
//! another machine. In each round one leg has a [`Fault`]. The other leg is in sync and has no
//! fault. The simulation checks that:
//!
//! - every operation succeeds within [`IO_BOUND`], because the other leg has all data;
//! - a read returns data that the [model](super::model) allows. The mirror notices some changes
//!   only by its regular checks of the legs. After such a change, reads may return the data of the
//!   changed leg for at most [`NOTICE`];
//! - all legs are in sync again after the round. If the mirror puts a leg out (stops using it)
//!   until an operator acts, the test empties the leg, as `docs/mirror.md` says;
//! - the legs then hold the same data.
//!
//! [`stop`] tests mirrors that have lost all legs, and stops their targets. [`plain`] tests disks
//! without a mirror.
//!
//! A mirror cannot detect these changes, so the simulation does not test them:
//!
//! - while a leg is in use, a copy with the leg's current record takes its place;
//! - while a leg's file is open, another file takes its name. The mirror continues to use the old
//!   file;
//! - while a leg is in use, another program changes data blocks of the leg, but not its record.

mod legs;
pub mod plain;
pub mod stop;
mod user;

use super::model::{BLOCK_BYTES, BLOCKS};
use super::{GONE_TIME, MOST_BLOCKS, Named, memory};
use farblock_random::Random;
use farblock_reactor::sim::{DiskFaults, NetFaults, World};
use farblock_reactor::{EngineKind, os};
use farblock_volumes::{LegState, Mirror, MirrorOptions, Taking};
use farblock_wire::log::AnaState;
use legs::{LEG_BYTES, Leg};
use std::sync::Arc;
use std::time::Duration;
use user::{Ended, User};

/// The time limit of operations. It covers the mirror's timeout for a leg, and a remote leg's own
/// timeout.
pub const IO_BOUND: Duration = Duration::from_secs(21);
/// The time within which the mirror detects a change that no read or write detects.
pub const NOTICE: Duration = Duration::from_secs(10);
/// A leg that has returned must be in sync within this time. The mirror tries to add it at least
/// every 60 s.
const HEALS: Duration = Duration::from_secs(300);
/// If the mirror has not taken a leg back after this time, the test replaces the leg by an empty
/// one, as an operator would.
const IS_OUT: Duration = Duration::from_secs(130);
/// The number of rounds of a usual run.
pub const ROUNDS: u64 = 3;
/// The maximum delay of messages and operations while there is no fault.
const QUIET: Duration = Duration::from_millis(50);

/// A fault of a leg.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fault {
    /// The leg's file is truncated while it is idle. The mirror's next write extends it again.
    Cut,
    /// The leg's file is truncated while operations are in flight.
    CutUnderWay,
    /// The leg's file is truncated and extended again at once.
    CutAndGrown,
    /// The leg's file grows.
    Grown,
    /// An older copy overwrites the leg's file, which is in use.
    RolledBack,
    /// The process of the leg's target dies, and restarts within two seconds.
    Restarted,
    /// The process of the leg's target dies and restarts, and an older copy overwrites the file in
    /// between.
    RestartedOlder,
    /// The process of the leg's target dies and restarts, and the file is truncated and extended
    /// again in between.
    RestartedCut,
    /// The process of the leg's target dies and restarts, and another file takes the place of the
    /// leg's file for a while.
    Swapped,
    /// The machine of the leg's target restarts within two seconds.
    Rebooted,
    /// The machine of the leg's target restarts, and an older copy overwrites the file in between.
    RebootedOlder,
    /// The machine of the leg's target restarts, and has lost data that it had reported as flushed.
    LostCache,
    /// The target of the leg is down for so long that the mirror puts the leg out, and returns with
    /// an older copy.
    AwayOlder,
    /// The target of the leg reports the ANA state inaccessible or change.
    Ana,
    /// The target of the leg hides the namespace from the mirror's host.
    Masked,
}

/// All faults.
pub const FAULTS: [Fault; 15] = [
    Fault::Cut,
    Fault::CutUnderWay,
    Fault::CutAndGrown,
    Fault::Grown,
    Fault::RolledBack,
    Fault::Restarted,
    Fault::RestartedOlder,
    Fault::RestartedCut,
    Fault::Swapped,
    Fault::Rebooted,
    Fault::RebootedOlder,
    Fault::LostCache,
    Fault::AwayOlder,
    Fault::Ana,
    Fault::Masked,
];
/// The number of faults, from the start of [`FAULTS`], that are also possible on a leg that is a
/// file of the mirror's machine.
const NEAR_FAULTS: usize = 5;

/// The results of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// A digest of the whole run.
    pub trace: u64,
    /// The number of operations that succeeded.
    pub succeeded: u64,
    /// The number of rounds with a fault.
    pub faults: u64,
    /// The number of rounds in which the mirror reported the leg as out.
    pub noticed: u64,
    /// The number of operations that failed while no leg was available.
    pub failed: u64,
    /// The number of reads that returned data of the changed leg, within [`NOTICE`] of the change.
    pub stale: u64,
}

/// Runs the mirror of a seed.
///
/// # Panics
/// Panics if a check fails. The message contains the seed.
pub fn run(seed: u64) -> Outcome {
    let _named = Named { seed, test: "mirrors_survive_random_faults" };
    run_as(seed, None)
}

/// Runs the mirror of a seed. If `only` is set, all faults are of this kind.
///
/// # Panics
/// Panics if a check fails.
pub fn run_as(seed: u64, only: Option<Fault>) -> Outcome {
    let world = World::enter(seed);
    let mut random = Random::new(Random::mix(&[seed, 35]));
    let legs = add_legs(&world, &mut random, true);
    let mut run = Run::new(&world, random, legs);
    for _ in 0..ROUNDS {
        run.round(only);
    }
    let (outcome, machines) = run.finish();
    memory::check_end(machines);
    assert_eq!(world.threads(), Vec::<String>::new(), "threads are left");
    outcome
}

struct Run<'a> {
    world: &'a World,
    random: Random,
    legs: Vec<Leg>,
    mirror: Arc<Mirror>,
    user: User<'a>,
    fault: Option<Fault>,
    /// Until this time, the mirror may not have detected a changed leg.
    blind_until: Duration,
    /// Whether operations may fail, because no leg is available, or none was available recently.
    may_fail: bool,
    outcome: Outcome,
}

/// Opens or creates a mirror of these legs.
fn assemble(legs: &[Leg]) -> Arc<Mirror> {
    let options = MirrorOptions {
        taking: Taking::Empty,
        engine: EngineKind::Sim,
        ..MirrorOptions::default()
    };
    let sources = legs.iter().map(Leg::source).collect();
    Arc::new(Mirror::open(sources, options).expect("no fault occurs yet"))
}

fn add_legs(world: &World, random: &mut Random, may_be_near: bool) -> Vec<Leg> {
    let delay = |random: &mut Random, most: u64| Duration::from_micros(random.below(most + 1));
    let (net, disk) = (delay(random, 1_000), delay(random, 2_000));
    world.set_net_faults(NetFaults { delay: net, ..NetFaults::default() });
    let faults = DiskFaults { delay: disk, ..DiskFaults::default() };
    let has_near = random.one_in(3) && may_be_near;
    // Reboot a machine once: only from then on, the world counts the boots of each machine
    // separately.
    world.reboot(0);
    (0..2).map(|at| Leg::new(world, at, has_near && at == 0, faults)).collect()
}

impl<'a> Run<'a> {
    fn new(world: &'a World, random: Random, legs: Vec<Leg>) -> Run<'a> {
        let mirror = assemble(&legs);
        let user = User::new(world, &*mirror);
        let mut run = Run {
            world,
            random,
            legs,
            mirror,
            user,
            may_fail: false,
            fault: None,
            blind_until: Duration::ZERO,
            outcome: Outcome::default(),
        };
        run.heal(0);
        // The first copy to a new leg does not count as a detected fault.
        run.outcome.noticed = 0;
        run
    }

    /// Injects a fault into one leg, and repairs the leg.
    fn round(&mut self, only: Option<Fault>) {
        for leg in &mut self.legs {
            leg.copy(self.world);
        }
        let calm = Duration::from_millis(500 + self.random.below(12_000));
        self.load(calm);
        if self.random.one_in(2) {
            self.legs.iter_mut().for_each(|leg| leg.copy(self.world));
            let more = Duration::from_millis(self.random.below(3_000));
            self.load(more);
        }
        let mut victim = self.random.index(self.legs.len());
        let needs_target = only.is_some_and(|only| !FAULTS[..NEAR_FAULTS].contains(&only));
        if needs_target && self.legs[victim].is_near() {
            victim = 1 - victim;
        }
        let many = if self.legs[victim].is_near() { NEAR_FAULTS } else { FAULTS.len() };
        let drawn = FAULTS[self.random.index(many)];
        let fault = only.unwrap_or(drawn);
        self.fault = Some(fault);
        self.outcome.faults += 1;
        self.inflict(victim, fault);
        self.load_with(Duration::from_secs(3), 4);
        self.heal(victim);
        self.sweep();
        self.compare();
        self.fault = None;
    }

    fn inflict(&mut self, victim: usize, fault: Fault) {
        // In most cases, truncate the file within the data, not within the reserved part.
        let most = if self.random.one_in(4) { (LEG_BYTES / BLOCK_BYTES) as u64 } else { BLOCKS };
        let size = self.random.below(most) as usize * BLOCK_BYTES;
        match fault {
            Fault::Cut => {
                self.settle();
                self.turn_for(QUIET);
                self.legs[victim].set_size(self.world, size);
            }
            Fault::CutUnderWay => {
                // Operations in flight may extend the file again at once, so the mirror may not
                // detect the truncation.
                self.be_blind();
                self.legs[victim].set_size(self.world, size);
            }
            Fault::CutAndGrown => {
                self.be_blind();
                self.legs[victim].set_size(self.world, size);
                self.legs[victim].set_size(self.world, LEG_BYTES);
            }
            Fault::Grown => {
                self.legs[victim].set_size(self.world, LEG_BYTES + (1 << 16));
                self.load(Duration::from_secs(3));
                self.legs[victim].set_size(self.world, LEG_BYTES);
            }
            Fault::RolledBack => {
                let older = self.legs[victim].older_copy(self.world);
                self.be_blind();
                older.into_iter().for_each(|it| self.legs[victim].replace(self.world, &it));
            }
            Fault::Ana | Fault::Masked => self.hide(victim, fault),
            _ => self.restart(victim, fault, size),
        }
    }

    /// Allows reads to return the data of the changed leg for [`NOTICE`].
    fn be_blind(&mut self) {
        self.blind_until = self.world.elapsed() + NOTICE;
    }

    fn hide(&mut self, victim: usize, fault: Fault) {
        let leg = &self.legs[victim];
        match fault {
            Fault::Masked => leg.set_masked(true),
            _ if self.random.one_in(2) => leg.set_access(AnaState::CHANGE),
            _ => leg.set_access(AnaState::INACCESSIBLE),
        }
        let time = Duration::from_millis(self.random.below(30_000));
        self.load(time);
        match fault {
            Fault::Masked => self.legs[victim].set_masked(false),
            _ => self.legs[victim].set_access(AnaState::OPTIMIZED),
        }
    }

    fn restart(&mut self, victim: usize, fault: Fault, size: usize) {
        let older = self.legs[victim].older_copy(self.world);
        let is_power = matches!(fault, Fault::Rebooted | Fault::RebootedOlder | Fault::LostCache);
        self.legs[victim].die(self.world, is_power);
        match fault {
            Fault::RestartedOlder | Fault::RebootedOlder | Fault::AwayOlder => {
                older.iter().for_each(|it| self.legs[victim].replace(self.world, it));
            }
            Fault::RestartedCut => {
                self.legs[victim].set_size(self.world, size);
                self.legs[victim].set_size(self.world, LEG_BYTES);
            }
            Fault::LostCache => self.lose_cache(victim),
            _ => {}
        }
        // The mirror puts out a leg that is unavailable for two seconds, and all queues notice this
        // within one more second. So `AwayOlder` lasts at least three seconds, and the other faults
        // less than two.
        let (least, most) = if fault == Fault::AwayOlder { (3_000, 8_000) } else { (0, 1_500) };
        let pause = Duration::from_millis(least + self.random.below(most));
        self.load(pause);
        if fault == Fault::Swapped {
            let contents = older.filter(|_| self.random.one_in(2));
            let contents = contents.unwrap_or_else(|| vec![0; LEG_BYTES]);
            let other = self.legs[victim].other_file(self.world, &contents);
            self.legs[victim].serve_as(other, "another file");
            let pause = Duration::from_millis(self.random.below(6_000));
            self.load(pause);
            self.legs[victim].die(self.world, false);
        }
        self.legs[victim].serve();
    }

    /// Reverts some blocks to their contents at the last copy.
    fn lose_cache(&mut self, victim: usize) {
        let mut contents = self.legs[victim].contents(self.world);
        let Some(copy) = self.legs[victim].latest_copy() else { return };
        let data = BLOCKS as usize * BLOCK_BYTES;
        let blocks = contents[..data].chunks_mut(BLOCK_BYTES).zip(copy.chunks(BLOCK_BYTES));
        for (now, before) in blocks {
            if self.random.one_in(2) {
                now.copy_from_slice(before);
            }
        }
        self.legs[victim].replace(self.world, &contents);
    }

    fn state(&self, leg: usize) -> LegState {
        let status = self.mirror.status();
        let found = status.legs.iter().find(|found| found.name == self.legs[leg].name());
        found.expect("a known leg").state
    }

    fn is_whole(&self) -> bool {
        (0..self.legs.len()).all(|leg| self.state(leg) == LegState::InSync)
    }

    /// Waits until all legs are in sync. Empties the leg, like an operator, if it stays out.
    fn heal(&mut self, victim: usize) {
        let begun = self.world.elapsed();
        // Wait until the mirror must have detected all changes.
        let blind = self.blind_until.saturating_sub(begun);
        let (mut was_out, mut is_empty) = (false, false);
        self.load(blind);
        while !was_out || !self.is_whole() {
            let is_whole = self.is_whole();
            let time = self.world.elapsed() - begun;
            if is_whole && time > blind + Duration::from_secs(4) {
                break;
            }
            was_out |= !is_whole;
            let is_out = self.state(victim) == LegState::Out;
            if is_out && !is_empty && time > IS_OUT {
                self.legs[victim].make_empty(self.world);
                is_empty = true;
            }
            assert!(
                time < HEALS,
                "the legs are not in sync {time:?} after the fault {:?}: {:?}",
                self.fault,
                self.mirror.status().legs
            );
            let pause = if time > Duration::from_secs(8) { 500 } else { 50 };
            self.load_with(Duration::from_millis(pause), 60);
        }
        self.outcome.noticed += u64::from(was_out);
        assert!(self.legs.iter().all(Leg::is_served), "a target was not started again");
    }

    /// Reads all blocks repeatedly, so that the mirror reads from each leg.
    fn sweep(&mut self) {
        self.settle();
        for lba in (0..BLOCKS).step_by(MOST_BLOCKS as usize).cycle().take(30) {
            self.user.read(lba);
            self.settle();
        }
    }

    /// Checks that the legs in sync hold the same data.
    fn compare(&mut self) {
        self.settle();
        self.turn_for(QUIET);
        let [one, other] = [0, 1].map(|leg| self.legs[leg].data(self.world));
        let differing = one.chunks(BLOCK_BYTES).zip(other.chunks(BLOCK_BYTES));
        let differing = differing.filter(|(one, other)| one != other).count();
        assert!(
            differing == 0 && one.len() == other.len(),
            "the legs are in sync, but {differing} blocks differ after the fault {:?}",
            self.fault
        );
    }

    fn load(&mut self, time: Duration) {
        self.load_with(time, 12);
    }

    /// Uses the mirror for some time. A higher `calm` means fewer operations.
    fn load_with(&mut self, time: Duration, calm: u64) {
        let until = self.world.elapsed() + time;
        while self.world.elapsed() < until {
            if self.random.one_in(calm) {
                self.user.submit(&mut self.random);
            }
            let left = until.saturating_sub(self.world.elapsed());
            let wait = Duration::from_micros(self.random.below(20_000));
            self.turn(wait.min(left));
        }
    }

    /// Waits until no operation is in flight.
    fn settle(&mut self) {
        while self.user.in_flight() > 0 {
            self.turn(QUIET);
        }
    }

    fn turn_for(&mut self, time: Duration) {
        let until = self.world.elapsed() + time;
        while self.world.elapsed() < until {
            self.turn(until - self.world.elapsed());
        }
    }

    /// Lets virtual time pass, and checks the completions.
    fn turn(&mut self, wait: Duration) {
        for Ended { token, result, wrong } in self.user.turn(wait) {
            let (now, fault) = (self.world.elapsed(), self.fault);
            if let Some(wrong) = wrong {
                let is_blind = now < self.blind_until;
                let legs = self.mirror.status().legs;
                assert!(is_blind, "at {now:?}, in {fault:?}, legs {legs:?}: {wrong}");
                self.outcome.stale += 1;
            }
            match result {
                Ok(()) => self.outcome.succeeded += 1,
                Err(_) if self.may_fail => self.outcome.failed += 1,
                Err(error) => panic!("operation {token} failed in {fault:?}: {error}"),
            }
        }
        let now = self.world.elapsed();
        if let Some((token, begun)) = self.user.older_than(now.saturating_sub(IO_BOUND)) {
            panic!(
                "operation {token} has taken {:?} in {:?}; legs: {:?}",
                now - begun,
                self.fault,
                self.mirror.status().legs
            );
        }
    }

    fn finish(self) -> (Outcome, Vec<u32>) {
        let Run { world, mut legs, mirror, user, mut outcome, .. } = self;
        drop(user);
        drop(mirror);
        legs.iter_mut().for_each(Leg::stop);
        // Give threads that are still closing connections or checking files the time to end.
        os::sleep(GONE_TIME);
        outcome.trace = world.trace();
        (outcome, legs.iter().filter_map(Leg::machine).chain([0]).collect())
    }
}
