//! The simulated lifetime of a mirror: load; legs that are unavailable, fail, or lose data; power
//! cuts at any time; and a model of the possible contents of each block.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use farblock_block::conformance::Driver;
use farblock_block::{Command, Completion, Namespace, Op};
use farblock_random::Random;
use farblock_reactor::sim::{DiskFaults, World};
use farblock_reactor::{Buffer, EngineKind};
use farblock_volumes::{LegState, Mirror, MirrorOptions, Taking, limits};

use super::switch::Leg;

const REGION_BLOCKS: u64 = limits::MIN_REGION_BYTES / 512;
const REGIONS: u64 = 6;
const BLOCKS: u64 = REGIONS * REGION_BLOCKS;
const LEG_BLOCKS: u64 = BLOCKS + limits::RESERVED_BYTES / 512;
const DEPTH: usize = 6;
const QUEUES: usize = 2;

/// The present contents of a block, and its possible contents after a power failure.
#[derive(Clone, Debug)]
struct Block {
    now: Vec<u64>,
    fallback: Vec<u64>,
    /// The step of the last change of the block.
    changed: u64,
    /// Whether the block is unchanged since the power failed. Then reads must return the stored
    /// value.
    settled: bool,
    busy: bool,
}

/// An operation in flight.
struct Flying {
    command: Command,
    lba: u64,
    blocks: u64,
    stamp: u64,
    fua: bool,
    begun: u64,
}

/// A run from one seed.
pub(crate) struct Run {
    world: World,
    random: Random,
    legs: Vec<Arc<Leg>>,
    model: Vec<Block>,
    flying: BTreeMap<u64, Flying>,
    /// For each leg, whether it had trouble since all legs were last in sync.
    troubled: Vec<bool>,
    quiet: Duration,
    /// Whether the mirror accepts legs without a record.
    taking: Taking,
    next: u64,
    step: u64,
    pub(crate) events: Events,
}

/// The numbers of events in a run.
#[derive(Default)]
pub(crate) struct Events {
    pub(crate) acknowledged: u64,
    pub(crate) degraded_starts: u64,
    pub(crate) power_cuts: u64,
    pub(crate) went_out: u64,
    pub(crate) refilled: u64,
}

/// The running mirror, between two power cuts.
struct Life {
    // Drop the driver first, because it owns the queues.
    driver: Driver,
    mirror: Arc<Mirror>,
}

type Outcome = Result<(), String>;

impl Run {
    pub(crate) fn new(seed: u64, mistake: Option<&'static str>) -> Run {
        let world = World::enter(seed);
        if let Some(mistake) = mistake {
            world.make_mistake(mistake);
        }
        let mut random = Random::new(seed ^ 0x6d69_7272_6f72);
        let count = 2 + random.index(2);
        let leg = |at: usize| {
            let medium = world.disk(LEG_BLOCKS as usize * 512);
            Leg::new(&format!("leg {at}"), medium, LEG_BLOCKS)
        };
        let legs = (0..count).map(leg).collect();
        let block =
            Block { now: vec![0], fallback: vec![0], changed: 0, settled: true, busy: false };
        Run {
            legs,
            model: vec![block; BLOCKS as usize],
            flying: BTreeMap::new(),
            troubled: vec![false; count],
            quiet: Duration::ZERO,
            taking: Taking::Empty,
            next: 1,
            step: 0,
            events: Events::default(),
            world,
            random,
        }
    }

    /// Runs the mirror several times, each time until a power cut. Checks everything at the end.
    pub(crate) fn run(&mut self) -> Outcome {
        let mut life = self.start()?;
        if self.random.one_in(2) {
            self.heal(&mut life)?;
            self.taking = Taking::Members;
        }
        let lives = 2 + self.random.below(3);
        for _ in 0..lives {
            self.live(&mut life)?;
            life = self.cut_power(life)?;
        }
        self.heal(&mut life)?;
        self.look_at_everything(&mut life)?;
        drop(life);
        Ok(())
    }

    fn start(&mut self) -> Result<Life, String> {
        // Start without a leg only if the mirror may fill that leg anew, in case it refuses the leg
        // later.
        if self.taking == Taking::Members {
            self.legs.iter().filter(|leg| leg.is_away()).for_each(|leg| leg.set_away(false));
        }
        let away = self.legs.iter().any(|leg| leg.is_away());
        self.events.degraded_starts += u64::from(away);
        let options = MirrorOptions {
            taking: self.taking,
            degraded: away,
            engine: EngineKind::Sim,
            ..MirrorOptions::default()
        };
        let mut sources: Vec<Arc<dyn farblock_volumes::LegSource>> =
            self.legs.iter().map(|leg| Arc::clone(leg) as _).collect();
        if self.taking == Taking::Members && self.random.one_in(3) {
            sources.reverse();
        }
        let mirror = Mirror::open(sources, options).map_err(|error| error.to_string())?;
        let mirror = Arc::new(mirror);
        let namespace: Arc<dyn Namespace> = Arc::clone(&mirror) as _;
        let mut driver = Driver::new(EngineKind::Sim);
        for _ in 0..QUEUES {
            driver.open(&namespace);
        }
        Ok(Life { driver, mirror })
    }

    fn live(&mut self, life: &mut Life) -> Outcome {
        let steps = 50 + self.random.below(400);
        for _ in 0..steps {
            self.step += 1;
            match self.random.below(100) {
                0..60 => self.submit(life),
                60 => self.trouble(life),
                61 => self.end_trouble(life),
                62 => self.pass(life, Duration::from_secs(3))?,
                63 => self.pass(life, Duration::from_secs(12))?,
                _ => self.pass(life, Duration::from_micros(300))?,
            }
        }
        Ok(())
    }

    /// Causes trouble on one leg, if another leg is in sync and without trouble.
    fn trouble(&mut self, life: &Life) {
        let status = life.mirror.status();
        let state = |leg: &Arc<Leg>| {
            let found = status.legs.iter().find(|found| found.name == leg_name(leg));
            found.expect("the status lists the leg").state
        };
        let all_well = self.legs.iter().all(|leg| state(leg) == LegState::InSync);
        if all_well && self.world.elapsed() > self.quiet + Duration::from_secs(5) {
            self.troubled.fill(false);
        }
        let at = self.random.index(self.legs.len());
        let is_well =
            |other: usize| state(&self.legs[other]) == LegState::InSync && !self.troubled[other];
        if !(0..self.legs.len()).any(|other| other != at && is_well(other)) {
            return;
        }
        self.troubled[at] = true;
        self.quiet = Duration::MAX - Duration::from_secs(5);
        let leg = Arc::clone(&self.legs[at]);
        match self.random.below(4) {
            0 => leg.set_away(true),
            1 => {
                let faults = DiskFaults { fail_one_in: 30, ..self.slow() };
                self.world.set_disk_faults(leg.medium(), faults);
            }
            2 => self.world.set_disk_faults(leg.medium(), self.slow()),
            _ => {
                let medium = self.world.cut_power(leg.medium());
                let away = self.random.one_in(2);
                leg.replace(medium, away);
            }
        }
    }

    fn slow(&self) -> DiskFaults {
        DiskFaults { late_one_in: 20, late: Duration::from_millis(50), ..DiskFaults::default() }
    }

    fn end_trouble(&mut self, life: &Life) {
        let out = life.mirror.status().legs.iter().any(|leg| leg.state == LegState::Out);
        self.events.went_out += u64::from(out);
        self.quiet = self.world.elapsed();
        for leg in &self.legs {
            self.world.set_disk_faults(leg.medium(), DiskFaults::default());
            if leg.is_away() {
                leg.set_away(false);
            }
        }
    }

    fn submit(&mut self, life: &mut Life) {
        if self.flying.len() >= DEPTH {
            return;
        }
        let most = if self.random.one_in(8) { 200 } else { 8 };
        let blocks = 1 + self.random.below(most);
        let lba = self.random.below(BLOCKS - blocks);
        let mut range = (lba..lba + blocks).map(|at| at as usize);
        let kind = self.random.below(20);
        if kind != 0 && range.any(|at| self.model[at].busy) {
            return;
        }
        let (stamp, token) = (self.next, self.next);
        self.next += 1;
        let buffer = |stamp: u64| {
            let mut buffer = Buffer::new(blocks as usize * 512);
            buffer.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&stamp.to_le_bytes()));
            buffer
        };
        let op = match kind {
            0 => Op::flush(token),
            1..8 => Op::read(lba, blocks as u32, buffer(u64::MAX), token),
            8 => Op::write_zeroes(lba, blocks as u32, true, token),
            9 => Op::write(lba, blocks as u32, buffer(stamp), token).durable(),
            _ => Op::write(lba, blocks as u32, buffer(stamp), token),
        };
        let stamp = if kind == 8 { 0 } else { stamp };
        let (command, fua) = (op.command, op.fua);
        if command != Command::Flush {
            self.each(lba, blocks, |block| block.busy = true);
        }
        let flying = Flying { command, lba, blocks, stamp, fua, begun: self.step };
        self.flying.insert(token, flying);
        life.driver.submit(self.random.index(QUEUES), op);
    }

    fn each(&mut self, lba: u64, blocks: u64, change: impl FnMut(&mut Block)) {
        self.model[lba as usize..(lba + blocks) as usize].iter_mut().for_each(change);
    }

    /// Lets virtual time pass, and checks the completions.
    fn pass(&mut self, life: &mut Life, time: Duration) -> Outcome {
        let until = self.world.elapsed() + time;
        let mut done = Vec::new();
        loop {
            (0..QUEUES).for_each(|queue| life.driver.queue(queue).poll(&mut done));
            for done in done.drain(..) {
                self.complete(done)?;
            }
            let left = until.saturating_sub(self.world.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            life.driver.turn(left);
        }
    }

    fn complete(&mut self, done: Completion) -> Outcome {
        let flying = self.flying.remove(&done.token).ok_or("a completion without an operation")?;
        let (step, stamp) = (self.step, flying.stamp);
        let ok = done.result.is_ok();
        self.events.acknowledged += u64::from(ok);
        match flying.command {
            Command::Read if ok => return self.check_read(&flying, &done),
            Command::Read => self.each(flying.lba, flying.blocks, |block| block.busy = false),
            Command::Flush if ok => {
                for block in self.model.iter_mut().filter(|block| block.changed < flying.begun) {
                    if !block.busy {
                        block.fallback.clone_from(&block.now);
                    }
                }
            }
            Command::Flush => {}
            _ => self.each(flying.lba, flying.blocks, |block| {
                (block.busy, block.settled, block.changed) = (false, false, step);
                if ok {
                    block.now.clear();
                }
                if ok && flying.fua {
                    block.fallback.clear();
                }
                block.now.push(stamp);
                block.fallback.push(stamp);
            }),
        }
        Ok(())
    }

    fn check_read(&mut self, flying: &Flying, done: &Completion) -> Outcome {
        let data = done.buffer.as_deref().ok_or("a read without its buffer")?;
        for (at, bytes) in data.chunks_exact(512).enumerate() {
            let lba = flying.lba + at as u64;
            let block = &mut self.model[lba as usize];
            block.busy = false;
            let value =
                u64::from_le_bytes(bytes[..8].try_into().expect("the slice has the right length"));
            let whole = bytes.chunks_exact(8).all(|part| *part == value.to_le_bytes());
            if !whole || !block.now.contains(&value) {
                return Err(format!("block {lba} reads {value}, and may be {:?}", block.now));
            }
            // From now on, reads must return the value of this read. If the value was written
            // before the last power failure, they must return it even after the next one.
            if block.settled {
                block.fallback = vec![value];
            }
            block.now = vec![value];
        }
        Ok(())
    }

    /// Cuts the power of all machines. The next run starts with the remaining data.
    fn cut_power(&mut self, life: Life) -> Result<Life, String> {
        self.events.power_cuts += 1;
        for leg in &self.legs {
            let away = leg.is_away() && self.random.one_in(2);
            leg.replace(self.world.cut_power(leg.medium()), away);
        }
        drop(life);
        for flying in std::mem::take(&mut self.flying).into_values() {
            let writes = flying.command.writes();
            self.each(flying.lba, flying.blocks, |block| {
                if writes {
                    block.now.push(flying.stamp);
                    block.fallback.push(flying.stamp);
                }
            });
        }
        for block in &mut self.model {
            (block.busy, block.settled) = (false, true);
            block.now.clone_from(&block.fallback);
        }
        for leg in &self.legs {
            self.world.set_disk_faults(leg.medium(), DiskFaults::default());
        }
        match self.start() {
            Ok(life) => Ok(life),
            // No available leg has all data. The legs with the missing data are unavailable, so
            // this failure is correct.
            Err(error) if error.contains("none of the available legs") => {
                self.legs.iter().for_each(|leg| leg.set_away(false));
                self.start()
            }
            Err(error) => Err(error),
        }
    }

    /// Ends all trouble, and gives the mirror the time that it needs to recover.
    fn heal(&mut self, life: &mut Life) -> Outcome {
        self.end_trouble(life);
        for _ in 0..30 {
            self.pass(life, Duration::from_secs(10))?;
            let status = life.mirror.status();
            let whole = status.legs.iter().all(|leg| leg.state == LegState::InSync);
            if whole && status.dirty_bytes == 0 && self.flying.is_empty() {
                return Ok(());
            }
            self.replace_diverged(life);
        }
        Err(format!("the mirror does not recover: {:?}", life.mirror.status()))
    }

    /// If a mirror was started without a leg, that leg may have a record that no other leg has.
    /// That looks like a split history, so the mirror refuses the leg, and the test empties the
    /// leg.
    fn replace_diverged(&mut self, life: &Life) {
        if self.taking == Taking::Members || self.events.degraded_starts == 0 {
            return;
        }
        for found in life.mirror.status().legs {
            let diverged = found.reason.is_some_and(|reason| reason.contains("were each written"));
            let leg = self.legs.iter().find(|leg| leg_name(leg) == found.name);
            if diverged && let Some(leg) = leg {
                leg.replace(self.world.disk(LEG_BLOCKS as usize * 512), false);
                self.events.refilled += 1;
            }
        }
    }

    fn look_at_everything(&mut self, life: &mut Life) -> Outcome {
        life.mirror.verify();
        self.pass(life, Duration::from_secs(10))?;
        let status = life.mirror.status();
        let unlike = status.differing_bytes + status.uncompared_bytes;
        if status.verifying || unlike != 0 || status.verified_bytes != BLOCKS * 512 {
            return Err(format!("verify: {status:?}"));
        }
        let geometry = life.mirror.geometry();
        for region in 0..REGIONS {
            let lba = region * REGION_BLOCKS;
            let data = life.driver.read(0, geometry, lba, REGION_BLOCKS as u32);
            for (at, bytes) in data.chunks_exact(512).enumerate() {
                let block = &self.model[lba as usize + at];
                let value = u64::from_le_bytes(
                    bytes[..8].try_into().expect("the slice has the right length"),
                );
                if !block.now.contains(&value) {
                    return Err(format!("at the end block {lba}+{at} has {value}: {block:?}"));
                }
            }
        }
        let contents = |leg: &Arc<Leg>| {
            let mut bytes = self.world.contents(leg.medium());
            bytes.truncate(BLOCKS as usize * 512);
            bytes
        };
        let first = contents(&self.legs[0]);
        match self.legs.iter().all(|leg| contents(leg) == first) {
            true => Ok(()),
            false => Err("legs differ at the end".to_owned()),
        }
    }

    /// A digest of the whole run.
    pub(crate) fn trace(&self) -> u64 {
        self.world.trace()
    }
}

fn leg_name(leg: &Arc<Leg>) -> String {
    farblock_volumes::LegSource::name(&**leg)
}
