//! Clients that check their data. Each block contains its address and a version. Clients read a
//! block back after each write, and all blocks at the end. A client's disk reconnects after a lost
//! connection.

use crate::limits::{CLIENTS, KEEP_ALIVE, PATHS, WRITERS};
use crate::message::{Client, Looked};
use crate::versioned::{Tally, Versioned};
use farblock_host::disk::{DiskOptions, PathState};
use farblock_host::url::UrlError;
use farblock_host::{Disk, Options, Url};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The maximum number of blocks of one writer. A writer reads all of its blocks at the end, which
/// would take long on a large disk.
const MOST_BLOCKS: u64 = 4096;
const RECONNECT_DELAY: Duration = Duration::from_millis(500);
/// The time after which a client gives up a lost path.
const GIVEN_UP: Duration = Duration::from_secs(300);

/// The clients that write and verify blocks.
pub(crate) struct Verify {
    found: Arc<Found>,
    disks: Vec<Disk>,
    threads: Vec<JoinHandle<()>>,
}

/// The state that the writers share.
struct Found {
    stop: AtomicBool,
    began: Instant,
    reads: AtomicU64,
    tally: Tally,
    /// The longest duration of an operation that completed since the last check, in µs.
    longest: AtomicU64,
    /// The time of the last check, in µs since the start.
    looked: AtomicU64,
    /// For each writer, the start of its current operation, in µs since the start; 0 if it has
    /// none.
    since: Vec<AtomicU64>,
}

impl Verify {
    pub(crate) fn start(clients: &[Client], writers: usize) -> Result<Verify, String> {
        if clients.iter().any(|client| client.part[0] >= client.part[1]) {
            return Err("the part of the disk does not exist".to_owned());
        }
        if clients.iter().any(|client| client.others.len() >= PATHS as usize) {
            return Err(format!("a client has at most {PATHS} paths"));
        }
        if clients.is_empty() || clients.len() > CLIENTS || !(1..=WRITERS).contains(&writers) {
            return Err(format!(
                "a verification needs 1 to {CLIENTS} clients with 1 to {WRITERS} writers"
            ));
        }
        let disks = clients
            .iter()
            .map(|client| connect(client).map_err(|why| format!("{}: {why}", client.hostnqn)));
        let disks = disks.collect::<Result<Vec<_>, _>>()?;
        let found = Arc::new(Found::new(disks.len() * writers));
        let mut verify = Verify { found, disks: disks.clone(), threads: Vec::new() };
        for (client, disk) in disks.into_iter().enumerate() {
            let [own, parts] = clients[client].part.map(|part| part as usize);
            for part in own * writers..(own + 1) * writers {
                let (disk, found) = (disk.clone(), Arc::clone(&verify.found));
                let number = client * writers + part - own * writers;
                let parts = parts * writers;
                let body = move || write_and_compare(&disk, number, (part, parts), &found);
                let thread = std::thread::Builder::new().name(format!("fb-verify-{number}"));
                let thread = thread
                    .spawn(body)
                    .map_err(|error| format!("cannot start a thread: {error}"))?;
                verify.threads.push(thread);
            }
        }
        Ok(verify)
    }

    /// The results so far.
    pub(crate) fn look(&self) -> Looked {
        let paths: Vec<_> = self.disks.iter().flat_map(Disk::paths).collect();
        let live = paths.iter().filter(|path| path.state == PathState::Live).count();
        Looked { live: live as u64, paths: paths.len() as u64, ..self.found.look() }
    }

    /// Stops the writers, which then read all of their blocks once more. Returns the final results.
    pub(crate) fn end(mut self) -> Result<Looked, String> {
        self.found.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| "a writer panicked".to_owned())?;
        }
        Ok(self.look())
    }
}

impl Drop for Verify {
    fn drop(&mut self) {
        self.found.stop.store(true, Relaxed);
        // Do not join the threads: an operation may wait for a path until the process exits.
    }
}

impl Found {
    fn new(writers: usize) -> Found {
        let zero = || AtomicU64::new(0);
        Found {
            stop: AtomicBool::new(false),
            began: Instant::now(),
            reads: zero(),
            tally: Tally::default(),
            longest: zero(),
            looked: zero(),
            since: (0..writers).map(|_| zero()).collect(),
        }
    }

    /// The time since the start in µs, which is never 0.
    fn now_us(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX).max(1)
    }

    fn look(&self) -> Looked {
        let (now, before) = (self.now_us(), self.looked.load(Relaxed));
        let since = || self.since.iter().map(|since| since.load(Relaxed)).filter(|it| *it > 0);
        let waited = since().map(|since| now.saturating_sub(since)).max().unwrap_or(0);
        self.looked.store(now, Relaxed);
        Looked {
            reads: self.reads.load(Relaxed),
            writes: self.tally.writes.load(Relaxed),
            failed: self.tally.failed.load(Relaxed),
            lost: self.tally.lost.load(Relaxed),
            longest_us: self.longest.swap(0, Relaxed).max(waited),
            waiting: since().filter(|since| *since < before).count() as u64,
            live: 0,
            paths: 0,
            wrong: self.tally.wrong(),
        }
    }
}

/// Connects a client to its disk, which reconnects after a lost connection.
pub(crate) fn connect(client: &Client) -> Result<Disk, String> {
    let urls = std::iter::once(&client.url).chain(&client.others).map(|url| url.parse());
    let urls: Vec<Url> =
        urls.collect::<Result<_, _>>().map_err(|error: UrlError| error.to_string())?;
    let mut connection = Options { hostnqn: Some(client.hostnqn.clone()), ..Options::default() };
    if urls.len() > 1 {
        connection.keep_alive = KEEP_ALIVE;
    }
    let options = DiskOptions {
        connection,
        reconnect_delay: RECONNECT_DELAY,
        ctrl_loss_timeout: Some(GIVEN_UP),
        ..DiskOptions::default()
    };
    Disk::connect(&urls, &options).map_err(|error| error.to_string())
}

/// Runs one writer, which has its own equal part of its client's disk.
fn write_and_compare(disk: &Disk, number: usize, part: (usize, usize), found: &Found) {
    let mut blocks = match Versioned::new(disk, part, MOST_BLOCKS, false) {
        Ok(blocks) => blocks,
        Err(why) => return found.tally.fail(why),
    };
    let mut turn: u64 = 0;
    while !found.stop.load(Relaxed) {
        turn += 1;
        let at = blocks.scattered(turn);
        found.tally.wrote(timed(found, number, || blocks.write(at, turn)));
        // Read a block that one of the last 32 turns wrote.
        let at = blocks.scattered((turn - turn % 32).max(1));
        let read = timed(found, number, || blocks.compare(at..at + 1));
        found.tally.compared(read, &found.reads);
    }
    for range in blocks.sweep() {
        let read = timed(found, number, || blocks.compare(range));
        found.tally.compared(read, &found.reads);
    }
}

/// Executes an operation and measures its duration. [`Verify::look`] already counts the time that
/// an unfinished operation has taken.
fn timed<T>(found: &Found, number: usize, operation: impl FnOnce() -> T) -> T {
    let began = found.now_us();
    found.since[number].store(began, Relaxed);
    let done = operation();
    found.longest.fetch_max(found.now_us().saturating_sub(began), Relaxed);
    found.since[number].store(0, Relaxed);
    done
}
