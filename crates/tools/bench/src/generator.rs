//! Runs a pattern on a namespace once: starts the jobs, watches them, and sums their results.
//!
//! Every job is a thread with its own reactor, queues and buffers (`job`). The thread of this
//! module sleeps, except to report progress and to read the processor clocks at the start and the
//! end of the measured time.
//!
//! Random jobs choose uniformly among all I/Os of the span. Each sequential job loops over its own
//! part of the span, and all parts are equal, as with fio's `offset_increment`. By default, all
//! jobs of fio read the same blocks at about the same time.
//!
//! As with fio, an I/O counts if it *completes* in the measured time. Its latency is the time from
//! just before its submission until its job sees the completion. An I/O that is split
//! ([`Geometry::max_blocks`](farblock_block::Geometry::max_blocks)) completes with its last part.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use farblock_block::Namespace;
use farblock_reactor::{Config, EngineKind};

use crate::addresses::Span;
use crate::cpu::{Meters, Readings};
use crate::error::RunError;
use crate::job::{self, JobOutcome, JobSpec, Message, RunShared, Schedule};
use crate::latency::Latencies;
use crate::limits::{CPU_SAMPLE_INTERVAL, FOREVER, MAX_LATE, TICK};
use crate::pattern::Pattern;
use crate::progress::{Cancel, Phase};

/// The prefix of the names of load threads. A number follows.
pub const THREAD_NAME_PREFIX: &str = "fb-bench-";

#[derive(Debug)]
pub(crate) struct RunSpec<'a> {
    pub(crate) pattern: &'a Pattern,
    pub(crate) span: Span,
    pub(crate) reactor: &'a Config,
    pub(crate) connections: u32,
    pub(crate) seed: u64,
    /// The start time; `None` means as soon as all jobs are ready.
    pub(crate) start: Option<Instant>,
    pub(crate) ramp: Duration,
    /// The measured time; `None` means until `io_size` bytes are done.
    pub(crate) runtime: Option<Duration>,
    /// The number of bytes after which each job ends.
    pub(crate) io_size: Option<u64>,
    /// The time limit for the last I/Os after the end of a run.
    pub(crate) drain_limit: Duration,
    pub(crate) meters: &'a Meters,
}

/// The results of one run.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) latencies: Latencies,
    pub(crate) elapsed: Duration,
    pub(crate) host_cpu: Option<Duration>,
    pub(crate) target_cpu: Option<Duration>,
    /// The number of sleeps of this process's threads in the measured time.
    pub(crate) sleeps: Option<u64>,
    /// The interval to which the processor times refer.
    pub(crate) cpu_elapsed: Duration,
    pub(crate) host_memory_bytes: Option<u64>,
    pub(crate) target_memory_bytes: Option<u64>,
    pub(crate) engine: EngineKind,
}

/// The progress within a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tick {
    pub(crate) phase: Phase,
    pub(crate) elapsed: Duration,
    pub(crate) iops: f64,
}

pub(crate) fn run(
    namespace: &Arc<dyn Namespace>,
    spec: &RunSpec<'_>,
    cancel: &Cancel,
    on_tick: &mut dyn FnMut(Tick),
) -> Result<Sample, RunError> {
    let shared = RunShared::default();
    let (sender, messages) = mpsc::channel();
    thread::scope(|scope| {
        let started = start_jobs(scope, &**namespace, spec, &shared, sender);
        let mut watch = Watch::new(spec, &shared, cancel, messages);
        watch.unfinished = started.starts.len();
        if let Err(error) = started.result {
            watch.fail(error);
        }
        let schedule = watch.wait_until_ready(started.starts);
        if let Some(schedule) = schedule {
            watch.measure(schedule, on_tick);
        }
        watch.wait_until_finished();
        // The scope joins the threads. If a thread has panicked, the scope resumes the panic.
        watch.result()
    })
}

struct Started {
    /// The senders of the schedule, one for each running thread.
    starts: Vec<Sender<Schedule>>,
    result: Result<(), RunError>,
}

fn start_jobs<'scope, 'env: 'scope>(
    scope: &'scope Scope<'scope, 'env>,
    namespace: &'env dyn Namespace,
    spec: &'env RunSpec<'env>,
    shared: &'env RunShared,
    messages: Sender<Message>,
) -> Started {
    let mut starts = Vec::new();
    for job in 0..spec.pattern.numjobs {
        let (start, wait) = mpsc::channel();
        let messages = messages.clone();
        let job_spec = JobSpec {
            namespace,
            pattern: spec.pattern,
            span: spec.span,
            reactor: spec.reactor,
            connections: spec.connections,
            seed: spec.seed,
            io_size: spec.io_size,
            job,
            drain_limit: spec.drain_limit,
        };
        let body = move || job::run(job_spec, shared, &messages, &wait);
        let builder = thread::Builder::new().name(format!("{THREAD_NAME_PREFIX}{job}"));
        match builder.spawn_scoped(scope, body) {
            Ok(_) => starts.push(start),
            Err(error) => return Started { starts, result: Err(RunError::Thread { job, error }) },
        }
    }
    Started { starts, result: Ok(()) }
}

/// The readings of the clocks at the start or the end of the measured time.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Instant,
    readings: Readings,
}

/// The state of the thread that watches a run.
struct Watch<'a> {
    spec: &'a RunSpec<'a>,
    shared: &'a RunShared,
    cancel: &'a Cancel,
    messages: Receiver<Message>,
    unfinished: usize,
    unmeasured: usize,
    engine: EngineKind,
    outcomes: Vec<JobOutcome>,
    failure: Option<RunError>,
    first: Option<Mark>,
    last: Option<Mark>,
    memory: MemoryUse,
}

/// The memory in use at the end of the measured time.
#[derive(Clone, Copy, Default)]
struct MemoryUse {
    host_bytes: Option<u64>,
    target_bytes: Option<u64>,
}

impl<'a> Watch<'a> {
    fn new(
        spec: &'a RunSpec<'a>,
        shared: &'a RunShared,
        cancel: &'a Cancel,
        messages: Receiver<Message>,
    ) -> Watch<'a> {
        Watch {
            spec,
            shared,
            cancel,
            messages,
            unfinished: 0,
            unmeasured: spec.pattern.numjobs as usize,
            engine: EngineKind::Auto,
            outcomes: Vec::new(),
            failure: None,
            first: None,
            last: None,
            memory: MemoryUse::default(),
        }
    }

    /// Stores the first failure, and stops the other jobs.
    fn fail(&mut self, error: RunError) {
        self.failure.get_or_insert(error);
        self.shared.stop();
    }

    /// Waits for all jobs, and then starts them together. `None` if a job could not start, or if
    /// [`wait_for_start`](Watch::wait_for_start) fails.
    fn wait_until_ready(&mut self, starts: Vec<Sender<Schedule>>) -> Option<Schedule> {
        let mut waiting = starts.len();
        while waiting > 0 && self.failure.is_none() && self.unfinished == starts.len() {
            match self.messages.recv() {
                Ok(Message::Ready(engine)) => {
                    self.engine = engine;
                    waiting -= 1;
                }
                Ok(other) => self.take(other),
                Err(_) => break,
            }
        }
        if waiting > 0 || self.failure.is_some() {
            return None;
        }
        let measure_start = self.wait_for_start()? + self.spec.ramp;
        let runtime = self.spec.runtime.unwrap_or(FOREVER).min(FOREVER);
        let schedule = Schedule { measure_start, measure_end: measure_start + runtime };
        for start in starts {
            // The send fails if the job has ended. The job then reports the reason.
            let _ = start.send(schedule);
        }
        Some(schedule)
    }

    /// Sleeps until the start time, if there is one. `None` if that time has passed already, or if
    /// the run is cancelled meanwhile.
    fn wait_for_start(&mut self) -> Option<Instant> {
        let Some(start) = self.spec.start else { return Some(Instant::now()) };
        if let Some(late) = Instant::now().checked_duration_since(start).filter(|it| *it > MAX_LATE)
        {
            self.fail(RunError::Late(late));
            return None;
        }
        loop {
            let left = start.saturating_duration_since(Instant::now());
            if self.cancel.is_cancelled() {
                self.fail(RunError::Cancelled);
                return None;
            }
            if left.is_zero() {
                return Some(start);
            }
            thread::sleep(left.min(TICK));
        }
    }

    /// Watches the ramp and the measured phase.
    fn measure(&mut self, schedule: Schedule, on_tick: &mut dyn FnMut(Tick)) {
        let mut rate = Rate::new();
        let mut next_sample = schedule.measure_start + CPU_SAMPLE_INTERVAL;
        while self.unmeasured > 0 && self.unfinished > 0 && self.failure.is_none() {
            let now = Instant::now();
            if self.first.is_none() && now >= schedule.measure_start {
                self.first = Some(self.mark());
            } else if now >= next_sample {
                self.spec.meters.read();
                next_sample = now + CPU_SAMPLE_INTERVAL;
            }
            let (phase, phase_start) = match self.first {
                None => (Phase::Ramp, schedule.measure_start - self.spec.ramp),
                Some(_) => (Phase::Measure, schedule.measure_start),
            };
            let completed = self.shared.completed.load(Ordering::Relaxed);
            let elapsed = now.saturating_duration_since(phase_start);
            on_tick(Tick { phase, elapsed, iops: rate.update(now, completed) });
            if self.cancel.is_cancelled() {
                return self.fail(RunError::Cancelled);
            }
            let wake = match self.first {
                None => (now + TICK).min(schedule.measure_start),
                Some(_) => now + TICK,
            };
            self.take_until(wake);
        }
        self.last = Some(self.mark());
        self.memory = MemoryUse {
            host_bytes: self.spec.meters.host_memory_bytes(),
            target_bytes: self.spec.meters.target_memory_bytes(),
        };
        let elapsed = Duration::ZERO;
        on_tick(Tick { phase: Phase::Drain, elapsed, iops: 0.0 });
    }

    fn mark(&self) -> Mark {
        Mark { at: Instant::now(), readings: self.spec.meters.read() }
    }

    /// Handles messages until `time`, the first failure, or the end of the last job's measurement.
    fn take_until(&mut self, time: Instant) {
        while self.unmeasured > 0 && self.unfinished > 0 && self.failure.is_none() {
            let left = time.saturating_duration_since(Instant::now());
            match self.messages.recv_timeout(left) {
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn wait_until_finished(&mut self) {
        while self.unfinished > 0 {
            match self.messages.recv() {
                Ok(message) => self.take(message),
                Err(_) => return,
            }
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Ready(_) => {}
            Message::Measured => self.unmeasured -= 1,
            Message::Finished(Ok(outcome)) => {
                self.unfinished -= 1;
                self.outcomes.push(outcome);
            }
            Message::Finished(Err(error)) => {
                self.unfinished -= 1;
                self.fail(error);
            }
            Message::Panicked => {
                self.unfinished -= 1;
                self.fail(RunError::Cancelled); // never returned, because the panic replaces it
            }
        }
    }

    fn result(self) -> Result<Sample, RunError> {
        if let Some(error) = self.failure {
            return Err(error);
        }
        let mut sample = Sample {
            reads: 0,
            writes: 0,
            latencies: Latencies::new(),
            elapsed: Duration::ZERO,
            host_cpu: None,
            target_cpu: None,
            sleeps: None,
            cpu_elapsed: Duration::ZERO,
            host_memory_bytes: self.memory.host_bytes,
            target_memory_bytes: self.memory.target_bytes,
            engine: self.engine,
        };
        for outcome in &self.outcomes {
            sample.reads += outcome.reads;
            sample.writes += outcome.writes;
            sample.latencies.merge(&outcome.latencies);
            sample.elapsed = sample.elapsed.max(outcome.elapsed);
        }
        if sample.reads + sample.writes == 0 {
            return Err(RunError::NothingMeasured);
        }
        if let (Some(first), Some(last)) = (self.first, self.last) {
            let used = |last: Option<Duration>, first| Some(last?.saturating_sub(first?));
            sample.cpu_elapsed = last.at - first.at;
            sample.sleeps = last.readings.sleeps.zip(first.readings.sleeps).map(|(l, f)| l - f);
            sample.host_cpu = used(last.readings.host, first.readings.host);
            sample.target_cpu = used(last.readings.target, first.readings.target);
        }
        Ok(sample)
    }
}

/// Computes the I/Os per second between two readings of a counter.
struct Rate {
    at: Instant,
    completed: u64,
    iops: f64,
}

impl Rate {
    fn new() -> Rate {
        Rate { at: Instant::now(), completed: 0, iops: 0.0 }
    }

    fn update(&mut self, now: Instant, completed: u64) -> f64 {
        let seconds = now.saturating_duration_since(self.at).as_secs_f64();
        // Two readings in quick succession give no meaningful rate.
        if seconds >= TICK.as_secs_f64() / 4.0 {
            self.iops = (completed - self.completed) as f64 / seconds;
            (self.at, self.completed) = (now, completed);
        }
        self.iops
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::Rw;
    use farblock_block::{BlockError, Completion, Geometry, Op, Queue};
    use farblock_reactor::{Reactor, TaskId};

    /// A queue that accepts operations and never completes them.
    struct Silent(Vec<Op>);

    impl Queue for Silent {
        fn submit(&mut self, op: Op) {
            self.0.push(op);
        }
        fn poll(&mut self, _done: &mut Vec<Completion>) {}
        fn in_flight(&self) -> usize {
            self.0.len()
        }
    }

    impl Drop for Silent {
        fn drop(&mut self) {
            self.0.drain(..).for_each(|op| drop(op.abandon()));
        }
    }

    struct Hangs;

    impl Namespace for Hangs {
        fn geometry(&self) -> Geometry {
            Geometry::new(512, 800)
        }
        fn describe(&self) -> String {
            "hangs".to_owned()
        }
        fn open(&self, _: &Reactor, _: TaskId) -> Result<Box<dyn Queue>, BlockError> {
            Ok(Box::new(Silent(Vec::new())))
        }
    }

    fn run_hanging(runtime: Duration, cancel: &Cancel) -> RunError {
        let pattern = Pattern::new(Rw::RandRead, 4096, 2, 3);
        let meters = Meters::default();
        let spec = RunSpec {
            pattern: &pattern,
            span: Span { io_blocks: 8, op_blocks: 8, ios: 100 },
            reactor: &Config::default(),
            connections: 1,
            seed: 1,
            start: None,
            ramp: Duration::ZERO,
            runtime: Some(runtime),
            io_size: None,
            drain_limit: Duration::from_millis(5),
            meters: &meters,
        };
        let namespace: Arc<dyn Namespace> = Arc::new(Hangs);
        run(&namespace, &spec, cancel, &mut |_| {})
            .expect_err("the run succeeded without completions")
    }

    #[test]
    fn ios_that_never_complete_end_the_run_with_an_error() {
        // On a busy machine the run may end before the first I/O. Then retry with a longer time.
        let mut runtime = Duration::from_millis(5);
        let error = loop {
            match run_hanging(runtime, &Cancel::new()) {
                RunError::NothingMeasured if runtime < Duration::from_secs(60) => runtime *= 4,
                error => break error,
            }
        };
        let text = error.to_string();
        assert!(text.ends_with("3 I/Os did not complete within 5ms of the end"), "{text}");
    }

    #[test]
    fn a_cancelled_run_ends_before_its_time() {
        let cancel = Cancel::new();
        cancel.cancel();
        assert!(matches!(run_hanging(FOREVER, &cancel), RunError::Cancelled));
    }

    #[test]
    fn a_start_time_in_the_past_is_an_error() {
        let pattern = Pattern::new(Rw::RandRead, 4096, 1, 1);
        let meters = Meters::default();
        let spec = RunSpec {
            pattern: &pattern,
            span: Span { io_blocks: 8, op_blocks: 8, ios: 100 },
            reactor: &Config::default(),
            connections: 1,
            seed: 1,
            start: Some(Instant::now() - MAX_LATE * 2),
            ramp: Duration::ZERO,
            runtime: Some(FOREVER),
            io_size: None,
            drain_limit: Duration::from_millis(5),
            meters: &meters,
        };
        let namespace: Arc<dyn Namespace> = Arc::new(Hangs);
        let error = run(&namespace, &spec, &Cancel::new(), &mut |_| {})
            .expect_err("the run started after its start time");
        assert!(matches!(error, RunError::Late(_)), "{error}");
    }

    #[test]
    fn a_rate_covers_the_time_since_the_last_update() {
        let mut rate = Rate::new();
        let start = rate.at;
        assert_eq!(rate.update(start + Duration::from_secs(2), 1000), 500.0);
        assert_eq!(rate.update(start + Duration::from_secs(3), 1100), 100.0);
        let soon = start + Duration::from_secs(3) + Duration::from_millis(1);
        assert_eq!(
            rate.update(soon, 9999),
            100.0,
            "a second update within moments changed the rate"
        );
    }
}
