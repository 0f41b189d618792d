//! Writers use a disk while its network is cut, stalls and recovers, and its target restarts, at
//! random. No acknowledged write is lost, and no write executes late.
//!
//! Every block contains its version. A writer has at most one operation in flight on each of its
//! blocks. So the writer knows which version a block must contain. `DISK_SEED=n` repeats a run.

mod rig;

use farblock_backends::delay::Delay;
use farblock_backends::mem::Mem;
use farblock_block::{Command, Completion, Namespace, Op};
use farblock_host::Disk;
use farblock_host::disk::{DiskOptions, Policy};
use farblock_random::Random;
use farblock_reactor::{Buffer, EngineKind};
use rig::dirt::Dirt;
use rig::proxy::Proxy;
use rig::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WRITERS: u64 = 3;
const BLOCKS: u64 = 64;
const DEPTH: usize = 16;
/// The default duration of a run. `DISK_SECONDS=n` makes it longer.
const RUN: Duration = Duration::from_secs(4);
/// A run with too few faults continues for at most this long. A busy machine recovers slowly from
/// each fault.
const LONGEST_RUN: Duration = Duration::from_secs(60);
const RECONNECTS: u64 = 4;
/// The number of damaged PDUs that a run needs in each direction.
const DAMAGED: u64 = 100;
/// One PDU in this many is damaged. If all six attempts of an operation are damaged, the operation
/// fails. When one PDU in 12 was damaged, this happened in one run of two hundred.
const ONE_IN: u64 = 24;
/// After this many faults without a completed operation, the test pauses the faults until one
/// completes.
const HARMS_IN_VAIN: u64 = 4;

/// Fills a block with its version. A block of zeroes has version 0.
fn fill(block: &mut [u8], lba: u64, version: u64) {
    for chunk in block.chunks_exact_mut(16) {
        chunk[..8].copy_from_slice(&version.to_le_bytes());
        chunk[8..].copy_from_slice(&(if version == 0 { 0 } else { lba }).to_le_bytes());
    }
}

fn version(block: &[u8], lba: u64) -> u64 {
    let version = u64::from_le_bytes(block[..8].try_into().expect("8 bytes"));
    let mut expected = vec![0; block.len()];
    fill(&mut expected, lba, version);
    assert_eq!(block, expected, "block {lba} is torn or has another block's data");
    version
}

/// A thread that writes its own blocks and no others.
struct Writer {
    user: User,
    first: u64,
    /// The acknowledged version of each block.
    versions: Vec<u64>,
    busy: Vec<bool>,
    /// The operations in flight, by token: command, first block, number of blocks, version.
    flights: Vec<Option<(Command, u64, u32, u64)>>,
    next_version: u64,
    random: Random,
    seed: u64,
    slowest: Duration,
}

impl Writer {
    fn new(disk: &Disk, engine: EngineKind, number: u64, seed: u64) -> Writer {
        Writer {
            user: User::new(disk, engine),
            first: number * BLOCKS,
            versions: vec![0; BLOCKS as usize],
            busy: vec![false; BLOCKS as usize],
            flights: vec![None; DEPTH],
            next_version: 1,
            random: Random::new(seed ^ (number + 1) << 32),
            seed,
            slowest: Duration::ZERO,
        }
    }

    fn submit(&mut self, token: usize) {
        let blocks = 1 + self.random.below(4);
        let at = self.random.below(BLOCKS - blocks + 1);
        let range = at as usize..(at + blocks) as usize;
        if self.busy[range.clone()].iter().any(|busy| *busy) {
            return;
        }
        self.busy[range].fill(true);
        let (lba, count) = (self.first + at, blocks as u32);
        let command = match self.random.below(16) {
            0 => Command::WriteZeroes { deallocate: true },
            1 => Command::Flush,
            2..8 => Command::Read,
            _ => Command::Write,
        };
        let version = self.next_version;
        self.next_version += 1;
        let buffer = command.moves_data().then(|| self.buffer(command, lba, count, version));
        self.flights[token] = Some((command, at, count, version));
        let fua = self.random.below(8) == 0;
        let op = Op::with(command, lba, count, buffer, token as u64);
        self.user.queue.submit(Op { fua, ..op });
    }

    fn buffer(&mut self, command: Command, lba: u64, blocks: u32, version: u64) -> Buffer {
        let mut buffer = self.user.reactor.buffers().take(blocks as usize * BLOCK);
        for (index, block) in buffer.chunks_exact_mut(BLOCK).enumerate() {
            match command {
                Command::Write => fill(block, lba + index as u64, version),
                _ => block.fill(0xee),
            }
        }
        buffer
    }

    fn complete(&mut self, done: Completion) {
        let flight = self.flights[done.token as usize].take();
        let (command, at, blocks, new) = flight.expect("an operation completes once");
        assert_eq!(done.result, Ok(()), "seed {}: {command:?}", self.seed);
        let range = at as usize..at as usize + blocks as usize;
        self.busy[range.clone()].fill(false);
        match command {
            Command::Write => self.versions[range].fill(new),
            Command::WriteZeroes { .. } => self.versions[range].fill(0),
            Command::Read => {
                let buffer = done.buffer.expect("the buffer of the read");
                for (index, block) in buffer.chunks_exact(BLOCK).enumerate() {
                    let lba = self.first + at + index as u64;
                    let found = version(block, lba);
                    let expected = self.versions[at as usize + index];
                    assert_eq!(found, expected, "seed {}: block {lba} is wrong", self.seed);
                }
                return self.user.reactor.buffers().give(buffer);
            }
            _ => {}
        }
        done.buffer.into_iter().for_each(|buffer| self.user.reactor.buffers().give(buffer));
    }

    fn run(&mut self, stop: &AtomicBool, count: &AtomicU64) {
        let mut progress = Instant::now();
        loop {
            let stopping = stop.load(Ordering::Relaxed);
            for token in (0..DEPTH).filter(|_| !stopping) {
                if self.flights[token].is_none() {
                    self.submit(token);
                }
            }
            if stopping && self.user.queue.in_flight() == 0 {
                return;
            }
            let done = self.user.turn(Duration::from_millis(100));
            if !done.is_empty() {
                self.slowest = self.slowest.max(progress.elapsed());
                progress = Instant::now();
            }
            assert!(
                progress.elapsed() < Duration::from_secs(30),
                "seed {}: no progress",
                self.seed
            );
            count.fetch_add(done.len() as u64, Ordering::Relaxed);
            done.into_iter().for_each(|done| self.complete(done));
        }
    }

    /// Reads all blocks once more and checks them.
    fn verify(&mut self) {
        for at in 0..BLOCKS {
            self.busy[at as usize] = true;
            self.flights[0] = Some((Command::Read, at, 1, 0));
            self.user.read(self.first + at, 1, 0);
            let done = self.user.one();
            self.complete(done);
        }
    }
}

fn seed() -> u64 {
    match std::env::var("DISK_SEED") {
        Ok(text) => text.parse().expect("DISK_SEED is a number"),
        Err(_) => std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.subsec_nanos().into()),
    }
}

fn run_time() -> Duration {
    let text = std::env::var("DISK_SECONDS").ok();
    text.map_or(RUN, |text| Duration::from_secs(text.parse().expect("DISK_SECONDS is a number")))
}

/// Runs writers while `harm` injects faults, until the disk has reconnected [`RECONNECTS`] times.
fn stress(disk: &Disk, engine: EngineKind, seed: u64, harm: impl FnMut(&mut Random)) {
    stress_until(|| reconnects(disk) >= RECONNECTS, disk, engine, seed, harm);
}

/// Like [`stress`], but runs until `is_enough` returns true.
fn stress_until(
    is_enough: impl Fn() -> bool,
    disk: &Disk,
    engine: EngineKind,
    seed: u64,
    mut harm: impl FnMut(&mut Random),
) {
    let stop = AtomicBool::new(false);
    let count = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| {
                let (stop, count) = (&stop, &count);
                let disk = disk.clone();
                scope.spawn(move || {
                    let mut writer = Writer::new(&disk, engine, number, seed);
                    writer.run(stop, count);
                    writer.verify();
                    writer.slowest
                })
            })
            .collect();
        let mut random = Random::new(seed);
        let start = Instant::now();
        let (mut harms, mut in_vain, mut done) = (0, 0, 0);
        let goes_on = |time| time < run_time() || (time < LONGEST_RUN && !is_enough());
        while goes_on(start.elapsed()) && writers.iter().all(|writer| !writer.is_finished()) {
            std::thread::sleep(Duration::from_millis(random.below(150)));
            // If no operation has completed since the last faults, wait for one: a slow machine
            // might never recover before the next fault.
            let before = std::mem::replace(&mut done, count.load(Ordering::Relaxed));
            in_vain = if done == before { in_vain + 1 } else { 0 };
            if in_vain > HARMS_IN_VAIN {
                continue;
            }
            harm(&mut random);
            harms += 1;
        }
        stop.store(true, Ordering::Relaxed);
        let slowest = writers.into_iter().map(|writer| writer.join().expect("no write is lost"));
        println!(
            "seed {seed}, {engine}: {} operations, {harms} faults, slowest {:?}, {:?}",
            count.load(Ordering::Relaxed),
            slowest.max(),
            disk.paths().iter().map(|path| path.reconnects).collect::<Vec<_>>()
        );
    });
    assert!(is_enough(), "seed {seed}: hardly any fault occurred");
}

fn reconnects(disk: &Disk) -> u64 {
    disk.paths().iter().map(|path| path.reconnects).sum()
}

fn backend(seed: u64) -> Arc<dyn Namespace> {
    let mem = Arc::new(Mem::new(BLOCK as u32, 1 << 20).expect("a size"));
    let delay = Delay::new(mem, Duration::from_micros(100));
    Arc::new(delay.jitter(Duration::from_millis(8), seed))
}

fn patient(engine: EngineKind, policy: Policy) -> DiskOptions {
    let mut options = DiskOptions { policy, ..options(engine) };
    options.connection.path_timeout = Some(Duration::from_millis(400));
    options
}

fn harm_one(proxy: &Proxy, random: &mut Random) {
    match random.below(5) {
        0 => {
            proxy.down();
            std::thread::sleep(Duration::from_millis(random.below(60)));
        }
        1 => {
            proxy.stall();
            proxy.detain();
            proxy.resume();
            std::thread::sleep(Duration::from_millis(random.below(300)));
        }
        2 if random.below(4) == 0 => {
            proxy.stall();
            std::thread::sleep(Duration::from_millis(random.below(900)));
        }
        3 => proxy.delay(Duration::from_micros(random.below(500))),
        _ => proxy.cut(),
    }
    proxy.up();
}

#[test]
fn a_disk_survives_faults_of_one_path() {
    for engine in engines() {
        let seed = seed();
        println!("seed {seed}");
        let target = serve(backend(seed), &[any()]);
        let proxy = Proxy::new(target.addresses()[0]);
        let options = patient(engine, Policy::Numa);
        let disk = Disk::connect(&[url(proxy.address)], &options).expect("connected");
        stress(&disk, engine, seed, |random| harm_one(&proxy, random));
    }
}

#[test]
fn a_disk_survives_faults_of_two_paths() {
    for engine in engines() {
        let seed = seed();
        println!("seed {seed}");
        let target = serve(backend(seed), &[any(), any()]);
        let proxies: Vec<_> =
            target.addresses().iter().map(|&address| Proxy::new(address)).collect();
        let urls: Vec<_> = proxies.iter().map(|proxy| url(proxy.address)).collect();
        let disk = Disk::connect(&urls, &patient(engine, Policy::RoundRobin)).expect("connected");
        stress(&disk, engine, seed, |random| {
            let one = random.below(2) as usize;
            harm_one(&proxies[one], random);
        });
    }
}

#[test]
fn a_disk_survives_restarts_of_its_target() {
    for engine in engines() {
        let seed = seed();
        println!("seed {seed}");
        let backend = backend(seed);
        let mut target = Some(serve(backend.clone(), &[any()]));
        let address = target.as_ref().expect("a running target").addresses()[0];
        let proxy = Proxy::new(address);
        let options = patient(engine, Policy::QueueDepth);
        let disk = Disk::connect(&[url(proxy.address)], &options).expect("connected");
        stress(&disk, engine, seed, |random| {
            if random.below(2) == 0 {
                proxy.down();
            }
            drop(target.take());
            std::thread::sleep(Duration::from_millis(random.below(100)));
            target = Some(serve(backend.clone(), &[address]));
            proxy.up();
        });
        drop(disk);
    }
}

/// Digests detect all damage. The host repeats the command and uses the data of the repetition.
#[test]
fn digests_detect_and_repair_damaged_data() {
    for engine in engines() {
        for paths in [1, 2] {
            let seed = seed();
            println!("seed {seed}");
            let target = serve(backend(seed), &vec![any(); paths]);
            let dirt: Vec<_> = target
                .addresses()
                .iter()
                .map(|&address| Dirt::new(address, ONE_IN, seed))
                .collect();
            let urls: Vec<_> = dirt.iter().map(|dirt| url(dirt.address)).collect();
            let mut options = patient(engine, Policy::RoundRobin);
            options.connection.tcp.data_digest = true;
            let disk = loop {
                // The commands that enable a controller may be damaged, and the host does not
                // repeat them. So retry the connect.
                match Disk::connect(&urls, &options) {
                    Ok(disk) => break disk,
                    Err(error) => println!("{error}"),
                }
            };
            let count = |dirt: &Dirt, direction: usize| dirt.damaged()[direction];
            let damaged = |at: usize| dirt.iter().map(|dirt| count(dirt, at)).sum::<u64>();
            let is_enough = || damaged(0) > DAMAGED && damaged(1) > DAMAGED;
            stress_until(is_enough, &disk, engine, seed, |_| {});
            println!("damaged: {} from the host, {} from the target", damaged(0), damaged(1));
            dirt.iter().for_each(Dirt::clean);
        }
    }
}
