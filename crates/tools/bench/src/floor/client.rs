//! The client of the [floor](super).

use std::collections::VecDeque;
use std::io::{self, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use farblock_reactor::EngineKind;

use super::frame::{ANSWER_BYTES, FloorRequest, parse_answer};
use super::pin::pin;
use super::spin::WaitLimit;
use super::stream::Stream;
use crate::cpu::Meters;
use crate::error::RunError;
use crate::generator::{Sample, Tick};
use crate::latency::Latencies;
use crate::limits::{DRAIN_LIMIT, FLOOR_CONNECT_LIMIT, FLOOR_RECEIVE_BYTES, TICK};
use crate::pattern::Pattern;
use crate::progress::{Cancel, Phase};
use farblock_random::Random;

/// The prefix of the names of client threads. A number follows.
pub const CLIENT_THREAD_PREFIX: &str = "fb-floor-c";

/// The parameters of one run against a server.
#[derive(Clone, Copy)]
pub(crate) struct FloorSpec<'a> {
    pub(crate) address: SocketAddr,
    /// The load. Each job of the pattern is one connection here, or several.
    pub(crate) pattern: &'a Pattern,
    /// The number of connections over which each job distributes its depth.
    pub(crate) connections: u32,
    /// The number of threads that share the connections.
    pub(crate) threads: u32,
    /// The processors to which the threads are pinned, in turn. If empty, the threads are not
    /// pinned.
    pub(crate) cpus: &'a [usize],
    pub(crate) ramp: Duration,
    pub(crate) runtime: Duration,
    pub(crate) seed: u64,
    pub(crate) meters: &'a Meters,
}

/// The schedule of a run. Each thread receives it when all threads are ready.
#[derive(Clone, Copy)]
struct Schedule {
    measure_start: Instant,
    measure_end: Instant,
}

/// The results of a thread.
struct Counted {
    reads: u64,
    writes: u64,
    latencies: Latencies,
}

/// The state that the threads of a run share.
#[derive(Default)]
struct ClientShared {
    completed: AtomicU64,
    /// Whether a thread has failed, so that the measurement ends.
    failed: AtomicBool,
}

/// The depth of each connection: the depth of a job divided by the number of its connections, at
/// least one.
fn depths(spec: &FloorSpec<'_>) -> Vec<usize> {
    let (depth, connections) = (spec.pattern.iodepth, spec.connections.max(1));
    let share = |one: u32| (depth / connections + u32::from(one < depth % connections)) as usize;
    let job: Vec<usize> = (0..connections.min(depth)).map(share).collect();
    job.repeat(spec.pattern.numjobs as usize)
}

pub(crate) fn run(
    spec: &FloorSpec<'_>,
    cancel: &Cancel,
    on_tick: &mut dyn FnMut(Tick),
) -> Result<Sample, RunError> {
    let shared = ClientShared::default();
    let depths = depths(spec);
    let threads = (spec.threads as usize).clamp(1, depths.len());
    let mut askers = Vec::new();
    for thread in 0..threads {
        let mine = depths.iter().copied().skip(thread).step_by(threads);
        askers.push(Asker::connect(spec, thread, mine.collect()).map_err(RunError::Floor)?);
    }
    let measure_start = Instant::now() + spec.ramp;
    let schedule = Schedule { measure_start, measure_end: measure_start + spec.runtime };
    thread::scope(|scope| {
        let (sender, results) = mpsc::channel();
        for (index, asker) in askers.into_iter().enumerate() {
            let cpu = spec.cpus.get(index % spec.cpus.len().max(1)).copied();
            let (sender, shared) = (sender.clone(), &shared);
            let body = move || {
                pin(cpu);
                let outcome = asker.run(schedule, shared, cancel);
                if outcome.is_err() {
                    shared.failed.store(true, Ordering::Relaxed);
                }
                let _ = sender.send(outcome);
            };
            let name = format!("{CLIENT_THREAD_PREFIX}{index}");
            let spawned = thread::Builder::new().name(name).spawn_scoped(scope, body);
            if let Err(error) = spawned {
                shared.failed.store(true, Ordering::Relaxed); // stops the running threads
                return Err(RunError::Thread { job: index as u32, error });
            }
        }
        drop(sender);
        let marks = watch(spec, schedule, &shared, cancel, on_tick);
        let mut sample = marks.sample(spec);
        for _ in 0..threads {
            let Ok(counted) = results.recv() else { break }; // the scope resumes the panic
            let counted = counted?;
            sample.reads += counted.reads;
            sample.writes += counted.writes;
            sample.latencies.merge(&counted.latencies);
        }
        if cancel.is_cancelled() {
            return Err(RunError::Cancelled);
        }
        match sample.reads + sample.writes {
            0 => Err(RunError::NothingMeasured),
            _ => Ok(sample),
        }
    })
}

/// The readings of the clocks at the start and at the end of the measured time.
struct Marks {
    at: [Instant; 2],
    readings: [crate::cpu::Readings; 2],
}

fn watch(
    spec: &FloorSpec<'_>,
    schedule: Schedule,
    shared: &ClientShared,
    cancel: &Cancel,
    on_tick: &mut dyn FnMut(Tick),
) -> Marks {
    let completed = &shared.completed;
    let mut wait_until = |end: Instant, phase: Phase| {
        let start = Instant::now();
        let (mut last, mut before) = (start, completed.load(Ordering::Relaxed));
        while !cancel.is_cancelled() && !shared.failed.load(Ordering::Relaxed) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            thread::sleep(left.min(TICK));
            let (now, count) = (Instant::now(), completed.load(Ordering::Relaxed));
            let iops = (count - before) as f64 / (now - last).as_secs_f64();
            on_tick(Tick { phase, elapsed: now - start, iops });
            (last, before) = (now, count);
        }
        (Instant::now(), spec.meters.read())
    };
    let first = wait_until(schedule.measure_start, Phase::Ramp);
    let last = wait_until(schedule.measure_end, Phase::Measure);
    Marks { at: [first.0, last.0], readings: [first.1, last.1] }
}

impl Marks {
    fn sample(&self, spec: &FloorSpec<'_>) -> Sample {
        let [first, last] = &self.readings;
        let used = |last: Option<Duration>, first| Some(last?.saturating_sub(first?));
        Sample {
            reads: 0,
            writes: 0,
            latencies: Latencies::new(),
            elapsed: spec.runtime,
            host_cpu: used(last.host, first.host),
            target_cpu: used(last.target, first.target),
            sleeps: last.sleeps.zip(first.sleeps).map(|(last, first)| last - first),
            cpu_elapsed: self.at[1] - self.at[0],
            host_memory_bytes: spec.meters.host_memory_bytes(),
            target_memory_bytes: spec.meters.target_memory_bytes(),
            engine: EngineKind::Auto,
        }
    }
}

/// The maximum number of answers per receive.
const ANSWERS: usize = 64;

/// One connection and its unanswered requests, the oldest first.
///
/// Answers arrive in the order of the requests, so the client knows the purpose of every byte
/// beforehand. It receives data directly into the buffer of the request.
struct Lane {
    stream: Stream,
    depth: usize,
    asked: VecDeque<(FloorRequest, Instant)>,
    /// The index of the buffer of the oldest request.
    place: usize,
    /// The number of received bytes of the oldest request's answer.
    received: usize,
    heads: [u8; ANSWERS * ANSWER_BYTES],
    destination: Vec<u8>,
}

/// A client thread with its connections.
struct Asker {
    lanes: Vec<Lane>,
    load: Load,
}

/// The load of a thread, and its results.
struct Load {
    pattern: Pattern,
    /// The data to write, with a part for each request.
    source: Vec<u8>,
    random: Random,
    counted: Counted,
}

impl Asker {
    fn connect(spec: &FloorSpec<'_>, thread: usize, depths: Vec<usize>) -> io::Result<Asker> {
        let bytes = spec.pattern.block_size_bytes as usize;
        let size = |wanted, depth: usize| if wanted { depth * bytes } else { 0 };
        let deepest = depths.iter().copied().max().unwrap_or(0);
        let lane = |depth| {
            let socket = TcpStream::connect_timeout(&spec.address, FLOOR_CONNECT_LIMIT)?;
            Ok(Lane {
                stream: Stream::new(socket)?,
                depth,
                asked: VecDeque::with_capacity(depth),
                place: 0,
                received: 0,
                heads: [0; ANSWERS * ANSWER_BYTES],
                destination: vec![0; size(spec.pattern.rw.reads(), depth)],
            })
        };
        let load = Load {
            pattern: spec.pattern.clone(),
            source: vec![0x5a; size(spec.pattern.rw.writes(), deepest)],
            random: Random::new(Random::mix(&[spec.seed, thread as u64])),
            counted: Counted { reads: 0, writes: 0, latencies: Latencies::new() },
        };
        Ok(Asker { lanes: depths.into_iter().map(lane).collect::<io::Result<_>>()?, load })
    }

    fn run(
        mut self,
        schedule: Schedule,
        shared: &ClientShared,
        cancel: &Cancel,
    ) -> Result<Counted, RunError> {
        let mut patience = WaitLimit::new();
        let start = Instant::now();
        for lane in &mut self.lanes {
            (0..lane.depth).for_each(|_| self.load.ask(lane, start));
            lane.stream.flush(&self.load.source).map_err(RunError::Floor)?;
        }
        let mut heard = start;
        loop {
            let mut answered = 0;
            for lane in &mut self.lanes {
                answered += self.load.turn(lane, schedule).map_err(RunError::Floor)?;
            }
            patience.after_a_round(answered > 0);
            if answered > 0 {
                heard = patience.now();
                shared.completed.fetch_add(answered, Ordering::Relaxed);
            }
            if patience.now_and_then() {
                let now = patience.now();
                let failed = shared.failed.load(Ordering::Relaxed);
                if now >= schedule.measure_end || cancel.is_cancelled() || failed {
                    return Ok(self.load.counted);
                }
                if now.saturating_duration_since(heard) > DRAIN_LIMIT {
                    return Err(RunError::Floor(io::ErrorKind::TimedOut.into()));
                }
            }
        }
    }
}

impl Load {
    /// Appends a request to the send queue of the connection.
    fn ask(&mut self, lane: &mut Lane, now: Instant) {
        let (rw, bytes) = (self.pattern.rw, self.pattern.block_size_bytes);
        let read = match (rw.reads(), rw.writes()) {
            (true, true) => self.random.below(100) < u64::from(self.pattern.rwmixread),
            (reads, _) => reads,
        };
        let request =
            if read { FloorRequest::Read { bytes } } else { FloorRequest::Write { bytes } };
        let place = (lane.place + lane.asked.len()) % lane.depth;
        let data_at = if read { 0 } else { place * bytes as usize };
        lane.stream.push(&request.emit(), data_at, request.data_bytes());
        lane.asked.push_back((request, now));
    }

    /// Handles the available answers. Sends the same number of new requests with one send. Returns
    /// the number of answers.
    fn turn(&mut self, lane: &mut Lane, schedule: Schedule) -> io::Result<u64> {
        let answers = lane.receive(self.pattern.block_size_bytes as usize)?;
        if answers == 0 {
            if lane.stream.unsent() > 0 {
                lane.stream.flush(&self.source)?;
            }
            return Ok(0);
        }
        let now = Instant::now();
        let counts = now >= schedule.measure_start && now < schedule.measure_end;
        for _ in 0..answers {
            let (request, asked) = lane.next();
            if counts {
                self.counted.latencies.record(now - asked);
                match request {
                    FloorRequest::Read { .. } => self.counted.reads += 1,
                    FloorRequest::Write { .. } => self.counted.writes += 1,
                }
            }
            lane.place = (lane.place + 1) % lane.depth;
            self.ask(lane, now);
        }
        lane.stream.flush(&self.source)?;
        Ok(answers)
    }
}

impl Lane {
    /// Handles received bytes. Returns the number of answers that they complete.
    fn receive(&mut self, bytes: usize) -> io::Result<u64> {
        let mut pieces: [IoSliceMut<'_>; 2 * ANSWERS] =
            std::array::from_fn(|_| IoSliceMut::new(&mut []));
        let mut count = 0;
        let at = (self.place * bytes).min(self.destination.len());
        let (before, after) = self.destination.split_at_mut(at);
        let mut places = after.chunks_exact_mut(bytes).chain(before.chunks_exact_mut(bytes));
        let mut heads = &mut self.heads[..];
        let mut skip = self.received;
        let mut run = 0; // bytes of adjacent headers
        let mut wanted = 0;
        for (request, _) in self.asked.iter().take(ANSWERS) {
            let place = places.next();
            run += ANSWER_BYTES;
            wanted += ANSWER_BYTES + request.answer_bytes() as usize;
            if let (true, Some(place)) = (request.answer_bytes() > 0, place) {
                let (now, rest) = std::mem::take(&mut heads).split_at_mut(run);
                heads = rest;
                run = 0;
                let head_skip = skip.min(now.len());
                if head_skip < now.len() {
                    pieces[count] = IoSliceMut::new(&mut now[head_skip..]);
                    count += 1;
                }
                pieces[count] = IoSliceMut::new(&mut place[skip - head_skip..]);
                count += 1;
                skip = 0;
            }
            if wanted - self.received >= FLOOR_RECEIVE_BYTES {
                break;
            }
        }
        if run > 0 {
            pieces[count] = IoSliceMut::new(&mut heads[skip..run]);
            count += 1;
        }
        let received = self.stream.receive_scattered(&mut pieces[..count])?;
        self.complete(received)
    }

    /// Counts the answers that these bytes complete, and checks their headers.
    fn complete(&mut self, received: usize) -> io::Result<u64> {
        let mut left = self.received + received;
        let mut answers = 0;
        let heads = self.heads.chunks_exact(ANSWER_BYTES);
        for ((request, _), head) in self.asked.iter().zip(heads) {
            let data = request.answer_bytes();
            if left < ANSWER_BYTES {
                break;
            }
            if parse_answer(head, data) != Some(data) {
                return Err(io::ErrorKind::InvalidData.into());
            }
            if left < ANSWER_BYTES + data as usize {
                break;
            }
            left -= ANSWER_BYTES + data as usize;
            answers += 1;
        }
        // Move a partial header to the front.
        let at = answers * ANSWER_BYTES;
        if at > 0 && left > 0 {
            self.heads.copy_within(at..at + ANSWER_BYTES.min(left), 0);
        }
        self.received = left;
        Ok(answers as u64)
    }

    /// Removes the oldest request, whose answer is complete.
    fn next(&mut self) -> (FloorRequest, Instant) {
        self.asked.pop_front().expect("each answer belongs to a request")
    }
}

/// Sends one small request. Returns an error if the peer is not a floor server.
pub(super) fn probe(address: SocketAddr) -> io::Result<()> {
    let mut socket = TcpStream::connect_timeout(&address, FLOOR_CONNECT_LIMIT)?;
    socket.set_read_timeout(Some(FLOOR_CONNECT_LIMIT))?;
    socket.set_write_timeout(Some(FLOOR_CONNECT_LIMIT))?;
    let request = FloorRequest::Read { bytes: 0 };
    socket.write_all(&request.emit())?;
    let mut answer = [0; ANSWER_BYTES];
    socket.read_exact(&mut answer).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(), // as Unix reports timeouts
        _ => error,
    })?;
    match parse_answer(&answer, 0) {
        Some(_) => Ok(()),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::Rw;

    #[test]
    fn a_job_divides_its_depth_among_its_connections() {
        let depths = |numjobs, iodepth, connections| {
            let pattern = Pattern::new(Rw::RandRead, 4096, numjobs, iodepth);
            depths(&FloorSpec {
                address: SocketAddr::from(([127, 0, 0, 1], 0)),
                pattern: &pattern,
                connections,
                threads: 1,
                cpus: &[],
                ramp: Duration::ZERO,
                runtime: Duration::ZERO,
                seed: 0,
                meters: &Meters::default(),
            })
        };
        assert_eq!(depths(1, 32, 1), [32]);
        assert_eq!(depths(2, 8, 3), [3, 3, 2, 3, 3, 2]);
        assert_eq!(depths(2, 2, 4), [1; 4], "the depths of four connections of one job");
    }
}
