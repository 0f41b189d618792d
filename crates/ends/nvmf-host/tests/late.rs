//! A target that cannot close lost controllers delays some writes, and executes them after their
//! connection is lost. The disk waits for `quiesce` before it repeats such writes. Even with two
//! faults in a row, no delayed write may undo an acknowledged write. `LATE_SEED=n` repeats a run,
//! `LATE_SECONDS=n` extends it.

mod peer;
mod stage;

use farblock_block::{Completion, Op};
use farblock_host::Disk;
use farblock_host::disk::{DiskOptions, Predecessor};
use farblock_random::Random;
use farblock_reactor::Buffer;
use farblock_wire::log::AnaState;
use farblock_wire::opcode::NvmOpcode;
use peer::{Capsule, Connection, Handled, Peer};
use stage::*;
use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const BLOCKS: u64 = 32;
const BLOCK_BYTES: usize = 512;
const DEPTH: usize = 12;
/// The longest time in which the target may execute a command after its connection was lost.
const LONGEST: Duration = Duration::from_millis(300);
/// The `quiesce` time in the host's options. It is much longer than [`LONGEST`], because a busy
/// machine may be slow to read the remaining data of a cut connection.
const QUIESCE: Duration = Duration::from_millis(1500);
const RUN_SECONDS: u64 = 6;
/// A run without a late write continues for at most this long after its planned end.
const LONGEST_RUN: Duration = Duration::from_secs(60);

/// The contents of the disk that all paths share: the number of the last write of each block.
struct Store {
    stage: Arc<Stage>,
    blocks: Mutex<Vec<u64>>,
    random: Mutex<Random>,
    holds: AtomicBool,
    /// The number of writes that the target executed after their connection was lost.
    late: Mutex<u64>,
}

impl Store {
    fn peer(self: &Arc<Store>) -> Peer {
        let store = Arc::clone(self);
        Peer::with_hook(move |connection, qid, capsule| match NvmOpcode(capsule.sqe.opcode) {
            NvmOpcode::WRITE if qid > 0 => store.write(connection, capsule),
            NvmOpcode::READ if qid > 0 => store.read(connection, capsule),
            _ => store.stage.handle(connection, qid, capsule),
        })
    }

    fn read(&self, to: &mut Connection, capsule: &Capsule) -> io::Result<Handled> {
        let lba = capsule.sqe.cdw10.get() as usize;
        let value = self.blocks.lock().unwrap()[lba];
        let data = value.to_le_bytes().repeat(BLOCK_BYTES / 8);
        to.push_all(capsule.cid(), &data, BLOCK_BYTES, true)?;
        Ok(Handled::Yes)
    }

    /// Executes and answers a write, or sends no answer and executes the write after the connection
    /// is lost.
    fn write(self: &Arc<Store>, to: &mut Connection, capsule: &Capsule) -> io::Result<Handled> {
        let lba = capsule.sqe.cdw10.get() as usize;
        let value = u64::from_le_bytes(capsule.data[..8].try_into().expect("eight bytes"));
        let held = {
            let mut random = self.random.lock().unwrap();
            let holds = random.below(150) == 0 && self.holds.load(Ordering::SeqCst);
            holds.then(|| LONGEST * random.below(100) as u32 / 100)
        };
        let Some(held) = held else {
            self.blocks.lock().unwrap()[lba] = value;
            to.succeed(capsule.cid())?;
            return Ok(Handled::Yes);
        };
        let (store, stream) = (Arc::clone(self), to.stream.try_clone()?);
        std::thread::spawn(move || {
            // The host may have sent more data before the connection ended.
            while matches!(stream.peek(&mut [0]), Ok(1..)) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let lost = Instant::now();
            std::thread::sleep(held);
            let mut blocks = store.blocks.lock().unwrap();
            // On a busy machine, more than `LONGEST` may have passed. Then drop the write.
            if lost.elapsed() < LONGEST {
                blocks[lba] = value;
                *store.late.lock().unwrap() += 1;
            }
        });
        Ok(Handled::Yes)
    }
}

#[derive(Clone, Default)]
struct Known {
    acknowledged: u64,
    /// Writes with an unknown result that no later acknowledged write has replaced.
    maybe: BTreeSet<u64>,
    busy: bool,
}

/// A client that knows the possible contents of each block.
struct Client {
    user: Option<User>,
    known: Vec<Known>,
    /// Operations in flight by token: the block, and for a write its number.
    flights: Vec<Option<(u64, Option<u64>)>>,
    next: u64,
    random: Random,
    writes: u64,
}

impl Client {
    fn user(&mut self) -> &mut User {
        self.user.as_mut().expect("a user")
    }

    fn submit(&mut self) {
        let lba = self.random.below(BLOCKS);
        let Some(token) = self.flights.iter().position(Option::is_none) else { return };
        let known = &mut self.known[lba as usize];
        if std::mem::replace(&mut known.busy, true) {
            return;
        }
        let mut buffer = Buffer::new(BLOCK_BYTES);
        let write = (self.random.below(3) > 0).then_some(self.next);
        self.flights[token] = Some((lba, write));
        match write {
            Some(number) => {
                self.next += 1;
                known.maybe.insert(number);
                buffer.copy_from_slice(&number.to_le_bytes().repeat(BLOCK_BYTES / 8));
                self.user().queue.submit(Op::write(lba, 1, buffer, token as u64));
            }
            None => self.user().queue.submit(Op::read(lba, 1, buffer, token as u64)),
        }
    }

    fn complete(&mut self, done: &Completion) {
        let (lba, write) = self.flights[done.token as usize].take().expect("one completion");
        assert_eq!(done.result, Ok(()));
        let known = &mut self.known[lba as usize];
        known.busy = false;
        if let Some(number) = write {
            self.writes += 1;
            *known = Known { acknowledged: number, ..Known::default() };
            return;
        }
        let data = done.buffer.as_ref().expect("the buffer of the read");
        let found = u64::from_le_bytes(data[..8].try_into().expect("eight"));
        assert!(
            found == known.acknowledged || known.maybe.contains(&found),
            "block {lba} holds {found}, not {} or one of {:?}",
            known.acknowledged,
            known.maybe
        );
    }

    fn turn(&mut self, time: Duration) {
        (0..DEPTH).for_each(|_| self.submit());
        for done in self.user().turn(time) {
            self.complete(&done);
        }
    }

    /// Drops the client's queue with all operations in flight.
    fn forget(&mut self) {
        self.user = None;
        self.flights.fill(None);
        self.known.iter_mut().for_each(|known| known.busy = false);
    }

    /// Waits until the operations in flight have completed, then reads and checks every block.
    fn finish(&mut self) {
        while self.user().queue.in_flight() > 0 {
            let done = self.user().turn(Duration::from_secs(60));
            assert!(!done.is_empty(), "no operation completes in time");
            done.iter().for_each(|done| self.complete(done));
        }
        // After this time, the target executes no more late writes.
        std::thread::sleep(LONGEST);
        for lba in 0..BLOCKS {
            self.flights[0] = Some((lba, None));
            self.user().queue.submit(Op::read(lba, 1, Buffer::new(BLOCK_BYTES), 0));
            let done = self.user().turn(Duration::from_secs(60));
            self.complete(&done[0]);
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

fn options() -> DiskOptions {
    let mut options = DiskOptions { quiesce: Some(QUIESCE), ..usual() };
    options.reconnect_delay = Duration::from_millis(20);
    // Use a deep queue, so that a delayed write does not block other commands.
    options.connection.queue_depth = 32;
    options
}

/// Simulates the death of the host's process. Its successor starts with the recorded state.
fn succeed(
    client: &mut Client,
    disk: &mut Option<Disk>,
    before: Predecessor,
    begin: impl Fn(Predecessor) -> Disk,
) {
    client.forget();
    drop(disk.take());
    let successor = begin(before);
    client.user = Some(User::new(&successor));
    *disk = Some(successor);
}

#[test]
fn a_delayed_write_never_overwrites_a_newer_one() {
    let time = std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.subsec_nanos().into());
    let seed = number("LATE_SEED").unwrap_or(time);
    println!("seed {seed}");
    let run = Duration::from_secs(number("LATE_SECONDS").unwrap_or(RUN_SECONDS));
    for paths in [1, 2] {
        let mut random = Random::new(seed);
        let store = Arc::new(Store {
            stage: Stage::new(AnaState::OPTIMIZED),
            blocks: Mutex::new(vec![0; BLOCKS as usize]),
            random: Mutex::new(Random::new(!seed)),
            holds: AtomicBool::new(true),
            late: Mutex::default(),
        });
        let peers: Vec<Peer> = (0..paths).map(|_| store.peer()).collect();
        let urls = urls(&peers.iter().collect::<Vec<_>>());
        let notes = Notes::default();
        let begin = |before: Predecessor| {
            Disk::succeed(&urls, &options(), before, notes.clone()).expect("connected")
        };
        let first = begin(Predecessor::default());
        let mut client = Client {
            user: Some(User::new(&first)),
            known: vec![Known::default(); BLOCKS as usize],
            flights: vec![None; DEPTH],
            next: 1,
            random: Random::new(seed + 1),
            writes: 0,
        };
        let mut disk = Some(first);
        let cut = |random: &mut Random| peers[random.below(paths) as usize].cut();
        let start = Instant::now();
        let mut faults = 0;
        // On a slow machine, the first late write may happen only after `run`.
        let enough = || start.elapsed() >= run && *store.late.lock().unwrap() > 0;
        while !enough() && start.elapsed() < run + LONGEST_RUN {
            let until = Instant::now() + Duration::from_millis(random.below(1500));
            while Instant::now() < until {
                client.turn(Duration::from_millis(5));
            }
            cut(&mut random);
            faults += 1;
            // Cause the second fault of the pair, at once or during the wait after the first.
            let pause = [0, 0, 50, 300, 700][random.below(5) as usize];
            client.turn(Duration::from_millis(pause));
            match random.below(6) {
                0 => {
                    client.forget();
                    client.user = Some(User::new(disk.as_ref().expect("a disk")));
                }
                1 => succeed(&mut client, &mut disk, notes.read(), begin),
                2 => peers.iter().for_each(Peer::cut),
                _ => cut(&mut random),
            }
            faults += 1;
        }
        // From now on the target delays no more commands. It never answers the delayed ones.
        store.holds.store(false, Ordering::SeqCst);
        peers.iter().for_each(Peer::cut);
        client.finish();
        let late = *store.late.lock().unwrap();
        println!("{paths} paths: {} writes, {faults} faults, {late} late", client.writes);
        assert!(late > 0, "no write was delayed");
    }
}
