//! One job of a pattern: a thread with its own reactor and queues that keeps its I/Os in flight.
//!
//! ```text
//!  starting --schedule--> ramp --time--> measure --time, or size--> drain --all complete--> done
//!                           |                |                         |
//!                           +-- a failure, or stop: drain, report      +-- drain limit: hung
//! ```
//!
//! The loop blocks in [`Reactor::poll`] whenever all of its I/Os are in flight, or its rate allows
//! no more I/Os yet. It does not allocate after the start.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use farblock_block::{Command, Completion, Namespace};
use farblock_reactor::{Config, EngineKind, Reactor, TaskId, Waker};

use crate::addresses::{Addresses, Span};
use crate::error::RunError;
use crate::latency::Latencies;
use crate::limits::{MAX_RATE_LAG, RATE_SLACK};
use crate::pattern::Pattern;
use crate::slots::{Failed, Slots};
use crate::spread::Spread;
use farblock_random::Random;

#[derive(Clone, Copy)]
pub(crate) struct JobSpec<'a> {
    pub(crate) namespace: &'a dyn Namespace,
    pub(crate) pattern: &'a Pattern,
    pub(crate) span: Span,
    pub(crate) reactor: &'a Config,
    /// The number of queues of the namespace. For a remote namespace, these are connections.
    pub(crate) connections: u32,
    pub(crate) seed: u64,
    /// The number of measured bytes after which the job ends, regardless of the time.
    pub(crate) io_size: Option<u64>,
    pub(crate) job: u32,
    /// The time limit for the last I/Os after the end of the run.
    pub(crate) drain_limit: Duration,
}

/// The start times of the phases, which are the same for all jobs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    pub(crate) measure_start: Instant,
    pub(crate) measure_end: Instant,
}

/// The state that the jobs of a run share with the watching thread.
#[derive(Debug, Default)]
pub(crate) struct RunShared {
    stop: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
    /// The number of I/Os completed since the start, for progress only.
    pub(crate) completed: AtomicU64,
}

impl RunShared {
    /// Makes every job drain and finish.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        for waker in self.wakers.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            waker.wake();
        }
    }

    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Registers a waker for [`stop`](RunShared::stop) to wake. The job itself checks whether an
    /// earlier `stop` missed this waker.
    fn register(&self, waker: Waker) {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner).push(waker);
    }
}

/// A message of a job to the watching thread. `Finished` or `Panicked` is always the last message.
#[derive(Debug)]
pub(crate) enum Message {
    /// The queue and the buffers are ready, and the job waits for the schedule.
    Ready(EngineKind),
    /// The measured time is over, or all bytes to measure are done.
    Measured,
    /// All I/Os are complete.
    Finished(Result<JobOutcome, RunError>),
    /// The thread of the job has panicked.
    Panicked,
}

#[derive(Debug)]
pub(crate) struct JobOutcome {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) latencies: Box<Latencies>,
    /// The length of the measured phase.
    pub(crate) elapsed: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The job does not count I/Os yet.
    Ramp,
    /// The job counts the I/Os that complete.
    Measure,
    /// The job submits no more I/Os.
    Drain,
}

struct Job<'a> {
    // Drop the queues first, because the drop may deregister them from the reactor.
    queues: Spread,
    reactor: Reactor,
    task: TaskId,
    pace: Option<Pace>,
    shared: &'a RunShared,
    messages: &'a Sender<Message>,
    spec: JobSpec<'a>,
    slots: Slots,
    addresses: Addresses,
    random: Random,
    phase: Phase,
    schedule: Schedule,
    drain_deadline: Instant,
    measured_until: Option<Instant>,
    completed: u64,
    outcome: JobOutcome,
    failed: Option<RunError>,
    done: Vec<Completion>,
    ready: Vec<TaskId>,
}

/// On drop, reports to the watching thread if the job's thread panics.
struct Farewell<'a>(&'a Sender<Message>);

impl Drop for Farewell<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.0.send(Message::Panicked);
        }
    }
}

/// The body of the thread of a job.
pub(crate) fn run(
    spec: JobSpec<'_>,
    shared: &RunShared,
    messages: &Sender<Message>,
    start: &Receiver<Schedule>,
) {
    let _farewell = Farewell(messages);
    let result = run_job(spec, shared, messages, start);
    // The send fails only if the watching thread has panicked.
    let _ = messages.send(Message::Finished(result));
}

fn run_job(
    spec: JobSpec<'_>,
    shared: &RunShared,
    messages: &Sender<Message>,
    start: &Receiver<Schedule>,
) -> Result<JobOutcome, RunError> {
    let job = spec.job;
    let reactor = Reactor::new(spec.reactor).map_err(|error| RunError::Reactor { job, error })?;
    let task = reactor.add_task();
    shared.register(reactor.waker(task));
    let queues = Spread::open(spec.namespace, &reactor, spec.connections)
        .map_err(|error| RunError::Open { job, error })?;
    let mut random = Random::new(Random::mix(&[spec.seed, u64::from(job)]));
    let block_size = spec.namespace.geometry().block_size;
    let slots = Slots::new(spec.pattern, spec.span, block_size, &mut random);
    let addresses = Addresses::new(spec.pattern, &spec.span, job);
    let outcome =
        JobOutcome { reads: 0, writes: 0, latencies: Box::default(), elapsed: Duration::ZERO };
    let ops = spec.pattern.iodepth as usize * spec.span.ops_per_io() as usize;
    let _ = messages.send(Message::Ready(reactor.engine()));
    let Ok(schedule) = start.recv() else {
        return Err(RunError::Cancelled); // another job could not start
    };
    let job = Job {
        queues,
        reactor,
        task,
        pace: spec.pattern.rate_iops.map(Pace::new),
        shared,
        messages,
        spec,
        slots,
        addresses,
        random,
        phase: Phase::Ramp,
        schedule,
        drain_deadline: schedule.measure_end + spec.drain_limit,
        measured_until: None,
        completed: 0,
        outcome,
        failed: None,
        done: Vec::with_capacity(ops),
        ready: Vec::with_capacity(8),
    };
    job.run()
}

/// Spreads I/Os evenly over time.
#[derive(Debug)]
struct Pace {
    interval: Duration,
    next: Option<Instant>,
}

impl Pace {
    fn new(rate_iops: u32) -> Pace {
        Pace { interval: Duration::from_secs(1) / rate_iops, next: None }
    }

    /// Whether an I/O may start now. If so, this counts the I/O.
    fn take(&mut self, now: Instant) -> bool {
        let next = self.next.unwrap_or(now);
        if now < next {
            return false;
        }
        // The job catches up on missed I/Os, within a limit.
        let oldest = now.checked_sub(MAX_RATE_LAG).unwrap_or(now);
        self.next = Some(next.max(oldest) + self.interval);
        true
    }

    /// The time to wake up if no event wakes the job: a little after the next I/O is due, so that
    /// one wake-up starts several I/Os.
    fn look_again(&self) -> Option<Instant> {
        Some(self.next? + RATE_SLACK)
    }
}

impl Job<'_> {
    fn run(mut self) -> Result<JobOutcome, RunError> {
        let mut collected = None;
        loop {
            // Right after completions, `collected` is the current time.
            let now = collected.unwrap_or_else(Instant::now);
            self.advance(now);
            if self.phase == Phase::Drain {
                if self.slots.in_flight() == 0 {
                    break;
                }
                if now >= self.drain_deadline {
                    return Err(self.hung());
                }
            }
            self.submit(now);
            self.collect();
            let timeout = self.timeout(now);
            if let Err(error) = self.reactor.poll(Some(timeout), &mut self.ready) {
                return Err(RunError::Reactor { job: self.spec.job, error });
            }
            for &task in &self.ready {
                self.queues.ready(task);
            }
            collected = self.collect();
        }
        self.reactor.remove_task(self.task);
        match self.failed.take() {
            Some(error) => Err(error),
            None if self.measured_until.is_none() => Err(RunError::Cancelled),
            None => Ok(self.outcome),
        }
    }

    /// Starts the next phase if the time of the current phase is over, or if the run must stop.
    fn advance(&mut self, now: Instant) {
        if self.phase == Phase::Ramp && now >= self.schedule.measure_start {
            self.phase = Phase::Measure;
        }
        if self.phase == Phase::Measure && now >= self.schedule.measure_end {
            self.end_measuring(self.schedule.measure_end, now);
        }
        if self.phase != Phase::Drain && self.shared.stopped() {
            self.drain(now);
        }
    }

    fn end_measuring(&mut self, end: Instant, now: Instant) {
        self.measured_until = Some(end);
        self.outcome.elapsed = end.saturating_duration_since(self.schedule.measure_start);
        let _ = self.messages.send(Message::Measured);
        self.drain(now);
    }

    fn drain(&mut self, now: Instant) {
        self.phase = Phase::Drain;
        self.drain_deadline = now + self.spec.drain_limit;
    }

    fn submit(&mut self, now: Instant) {
        while self.phase != Phase::Drain && self.slots.has_idle() {
            if self.pace.as_mut().is_some_and(|pace| !pace.take(now)) {
                return;
            }
            let command = self.next_command();
            let io = self.addresses.next(&mut self.random);
            let queues = &mut self.queues;
            self.slots.submit(&mut |op| queues.submit(op), command, io, &mut self.random, now);
        }
    }

    fn next_command(&mut self) -> Command {
        let rw = self.spec.pattern.rw;
        let read = match (rw.reads(), rw.writes()) {
            (true, true) => self.random.below(100) < u64::from(self.spec.pattern.rwmixread),
            (reads, _) => reads,
        };
        if read { Command::Read } else { Command::Write }
    }

    /// The time to sleep: zero if an I/O can start, otherwise until an I/O is due or the phase
    /// ends.
    fn timeout(&self, now: Instant) -> Duration {
        let phase_end = match self.phase {
            Phase::Ramp => self.schedule.measure_start,
            _ => self.schedule.measure_end,
        };
        let until = match self.phase {
            Phase::Drain if self.slots.in_flight() == 0 => return Duration::ZERO,
            Phase::Drain => self.drain_deadline,
            _ if self.slots.has_idle() => match &self.pace {
                None => return Duration::ZERO,
                Some(pace) => pace.look_again().map_or(phase_end, |time| time.min(phase_end)),
            },
            _ => phase_end,
        };
        until.saturating_duration_since(now)
    }

    /// Handles completions. Returns the time if there were any.
    fn collect(&mut self) -> Option<Instant> {
        let mut done = std::mem::take(&mut self.done);
        self.queues.poll(&mut done);
        let now = (!done.is_empty()).then(Instant::now);
        if let Some(now) = now {
            let before = self.completed;
            for completion in done.drain(..) {
                self.complete(completion, now);
            }
            self.shared.completed.fetch_add(self.completed - before, Ordering::Relaxed);
        }
        self.done = done;
        now
    }

    fn complete(&mut self, completion: Completion, now: Instant) {
        let finished = match self.slots.complete(completion) {
            Ok(Some(finished)) => finished,
            Ok(None) => return,
            Err(failed) => return self.fail(&failed, now),
        };
        self.completed += 1;
        let in_time = now >= self.schedule.measure_start && now < self.schedule.measure_end;
        if !in_time || self.measured_until.is_some() {
            return;
        }
        let outcome = &mut self.outcome;
        outcome.latencies.record(now.saturating_duration_since(finished.submitted));
        match finished.command {
            Command::Write => outcome.writes += 1,
            _ => outcome.reads += 1,
        }
        let bytes = (outcome.reads + outcome.writes).saturating_mul(self.slots.io_bytes());
        if self.spec.io_size.is_some_and(|limit| bytes >= limit) {
            self.end_measuring(now, now);
        }
    }

    /// Reports the first failure. Later failures may be its consequences.
    fn fail(&mut self, failed: &Failed, now: Instant) {
        if self.failed.is_none() {
            self.failed = Some(RunError::Io {
                job: self.spec.job,
                command: failed.command,
                lba: failed.lba,
                blocks: failed.blocks,
                completed: self.completed,
                error: failed.error,
            });
        }
        if self.phase != Phase::Drain {
            self.drain(now);
        }
    }

    fn hung(&mut self) -> RunError {
        self.failed.take().unwrap_or(RunError::Hung {
            job: self.spec.job,
            in_flight: self.slots.in_flight(),
            limit: self.spec.drain_limit,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_rate_spreads_ios_and_catches_up_within_limits() {
        let start = Instant::now();
        let mut pace = Pace::new(1000);
        let at = |us| start + Duration::from_micros(us);
        assert!(pace.take(at(0)) && !pace.take(at(999)));
        assert!(pace.take(at(3500)), "the second operation is not due");
        assert!(pace.take(at(3500)) && pace.take(at(3500)), "two missed operations are not due");
        assert!(!pace.take(at(3500)));
        assert_eq!(pace.look_again(), Some(at(4000) + RATE_SLACK));
        let late = (0..100).filter(|_| pace.take(at(1_000_000))).count();
        assert_eq!(late, 11, "the operations within the lag, and the one that is due");
    }
}
