//! Tests of whole benchmarks on small namespaces: their I/Os and their reports.

mod namespaces;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use farblock_backends::delay::Delay;
use farblock_backends::fault::{Fault, Rule, When as FaultWhen};
use farblock_backends::mem::Mem;
use farblock_bench::{
    BenchError, Cancel, CpuSource, Meters, Pattern, Phase, Plan, Report, Rw, Side, SideName,
    Silent, Snapshot, compare,
};
use farblock_block::{BlockError, Command, Geometry, Namespace, Queue};
use farblock_reactor::{Config, EngineKind, Reactor, TaskId};

use namespaces::{Fake, When};

/// A runtime so long that only the size ends a run.
const LONG: Duration = Duration::from_secs(3600);

/// A plan whose jobs end after `ios` I/Os of each pattern. All patterns must have the same block
/// size.
fn plan(patterns: Vec<Pattern>, ios: u64) -> Plan {
    let io_size = ios * u64::from(patterns[0].block_size_bytes);
    Plan {
        patterns,
        runtime: LONG,
        ramp: Duration::ZERO,
        io_size: Some(io_size),
        max_jobs: Some(8),
        ..Plan::quick()
    }
}

fn run(plan: &Plan, local: Option<&Side>, remote: Option<&Side>) -> Result<Report, BenchError> {
    compare(plan, local, remote, &Cancel::new(), &mut Silent)
}

fn run_one(plan: &Plan, side: &Side) -> Report {
    let report = run(plan, Some(side), None).expect("the plan is valid");
    assert!(!report.has_errors(), "{:?}", report.patterns);
    report
}

fn mem(bytes: u64) -> Arc<dyn Namespace> {
    Arc::new(Mem::new(512, bytes).expect("the size is valid"))
}

fn fake(geometry: Geometry, when: When) -> (Arc<Fake>, Side) {
    let fake = Arc::new(Fake::new(geometry, when));
    let side = Side::new(Arc::clone(&fake) as Arc<dyn Namespace>).scratch();
    (fake, side)
}

#[test]
fn the_six_patterns_run_on_both_engines() {
    for engine in [EngineKind::Auto, EngineKind::Portable] {
        let (local, remote) = (mem(32 << 20), mem(32 << 20));
        let plan = Plan {
            patterns: Pattern::six(),
            io_size: Some(4 << 20),
            reactor: Config { engine, ..Config::default() },
            max_jobs: Some(2),
            ..plan(Pattern::six(), 1)
        };
        let (local, remote) = (Side::new(local).scratch().fill(), Side::new(remote).scratch());
        let report = run(&plan, Some(&local), Some(&remote)).expect("the plan is valid");
        assert!(!report.has_errors() && !report.interrupted);
        assert_eq!(report.patterns.len(), 6);
        for pattern in &report.patterns {
            let jobs = u64::from(pattern.pattern.numjobs);
            let ios = jobs * (4 << 20) / u64::from(pattern.pattern.block_size_bytes);
            for figures in [&pattern.local, &pattern.remote] {
                let figures = figures.as_ref().expect("the pattern was measured");
                assert_eq!(figures.reads + figures.writes, ios, "{}", pattern.pattern.name);
                assert!(figures.iops > 0.0 && figures.latency.p50_ns > 0);
                assert!(figures.latency.max_ns >= figures.latency.p99_9_ns);
                assert!(figures.host_cpu.is_some() && figures.target_cpu.is_none());
            }
            assert!(pattern.remote_percent_of_local.is_some());
        }
        assert!(["uring", "portable"].contains(&report.engine.as_str()), "{}", report.engine);
    }
}

#[test]
fn the_queue_depth_is_reached_and_never_exceeded() {
    for when in [When::AtOnce, When::Later] {
        let (fake, side) = fake(Geometry::new(512, 8000), when);
        let report = run_one(&plan(vec![Pattern::new(Rw::RandRead, 4096, 3, 7)], 500), &side);
        let figures = report.patterns[0].local.as_ref().expect("the pattern was measured");
        assert_eq!((figures.reads, figures.writes), (1500, 0));
        assert_eq!(fake.seen.queues.load(Relaxed), 3);
        assert_eq!(fake.seen.deepest.load(Relaxed), 7, "{when:?}");
        let addresses = fake.seen.addresses.lock().unwrap();
        assert!(addresses.keys().all(|(write, lba)| !write && lba % 8 == 0));
        assert!(addresses.len() > 500, "the random addresses are not spread");
    }
}

#[test]
fn sequential_jobs_keep_to_their_regions() {
    let (fake, side) = fake(Geometry::new(512, 80), When::Later);
    run_one(&plan(vec![Pattern::new(Rw::Write, 4096, 2, 2)], 10), &side);
    let addresses = fake.seen.addresses.lock().unwrap();
    let lbas: Vec<u64> = addresses.keys().map(|(_, lba)| *lba).collect();
    assert_eq!(lbas, [0, 8, 16, 24, 32, 40, 48, 56, 64, 72]);
    assert!(addresses.values().all(|count| (2..=3).contains(count)), "{addresses:?}");
}

#[test]
fn mixed_patterns_have_the_requested_share_of_reads() {
    let (_, side) = fake(Geometry::new(512, 8000), When::AtOnce);
    let pattern = Pattern { rwmixread: 70, ..Pattern::new(Rw::RandRw, 4096, 1, 4) };
    let report = run_one(&plan(vec![pattern], 10_000), &side);
    let figures = report.patterns[0].local.as_ref().expect("the pattern was measured");
    assert_eq!(figures.reads + figures.writes, 10_000);
    assert!((6_700..7_300).contains(&figures.reads), "{}", figures.reads);
}

#[test]
fn large_ios_are_split_to_the_namespace_limit() {
    let geometry = Geometry { max_blocks: 3, ..Geometry::new(512, 8000) };
    let (fake, side) = fake(geometry, When::Later);
    let report = run_one(&plan(vec![Pattern::new(Rw::RandRead, 4096, 1, 2)], 100), &side);
    assert_eq!(report.patterns[0].local.as_ref().expect("the pattern was measured").reads, 100);
    let ops = fake.seen.ops.load(Relaxed);
    assert!((300..=306).contains(&ops), "not three operations for each I/O: {ops}");
    assert_eq!(fake.seen.deepest.load(Relaxed), 6);
}

#[test]
fn a_job_sleeps_while_its_ios_are_in_flight() {
    let (fake, side) = fake(Geometry::new(512, 8000), When::AtOnce);
    let slow: Arc<dyn Namespace> = Arc::new(Delay::new(fake.clone(), Duration::from_millis(2)));
    run_one(
        &plan(vec![Pattern::new(Rw::RandRead, 4096, 1, 1)], 50),
        &Side { namespace: slow, ..side },
    );
    let (ops, polls) = (fake.seen.ops.load(Relaxed), fake.seen.polls.load(Relaxed));
    assert!(polls <= ops * 10, "a busy loop: {polls} polls for {ops} operations");
}

#[test]
fn an_error_ends_only_its_own_run() {
    let rule = Rule::new(BlockError::ReadFailed).command(Command::Read).when(FaultWhen::Every(20));
    let broken: Arc<dyn Namespace> = Arc::new(Fault::new(mem(1 << 20), vec![rule], 1));
    let plan = Plan {
        runs: 3,
        ..plan(
            vec![Pattern::new(Rw::RandRead, 4096, 2, 4), Pattern::new(Rw::RandWrite, 4096, 2, 4)],
            100,
        )
    };
    let (local, remote) = (Side::new(mem(1 << 20)).scratch(), Side::new(broken).scratch());
    let report = run(&plan, Some(&local), Some(&remote)).expect("the plan is valid");
    assert!(report.has_errors() && !report.interrupted);
    let [reads, writes] = &report.patterns[..] else { panic!("not two patterns") };
    let failure = &reads.errors[0];
    assert_eq!((reads.errors.len(), failure.side, failure.run), (1, SideName::Remote, 0));
    assert!(failure.message.contains("a read of 8 blocks at LBA"), "{}", failure.message);
    assert!(failure.message.ends_with("reading failed"), "{}", failure.message);
    assert_eq!(reads.local.as_ref().map(|figures| figures.runs.len()), Some(3));
    assert!(reads.remote.is_none() && reads.remote_percent_of_local.is_none());
    assert!(writes.errors.is_empty() && writes.remote.is_some(), "the next pattern did not run");
}

#[test]
fn writes_without_permission_are_refused() {
    let plan = plan(vec![Pattern::new(Rw::Read, 4096, 1, 1), Pattern::new(Rw::Rw, 4096, 1, 1)], 10);
    let precious = Side::new(mem(1 << 20));
    let error =
        run(&plan, Some(&precious), None).expect_err("a disk that may hold data was written");
    assert!(matches!(error, BenchError::WritesRefused { .. }));
    let text = error.to_string();
    assert!(text.contains("--allow-writes") && text.contains("4k sequential mixed"), "{text}");
    assert!(run(&Plan { allow_writes: true, ..plan.clone() }, Some(&precious), None).is_ok());
    assert!(run(&plan, Some(&precious.clone().scratch()), None).is_ok());
    let scratch = precious.clone().scratch();
    let error =
        run(&plan, Some(&scratch), Some(&precious)).expect_err("the second disk was written");
    assert!(matches!(error, BenchError::WritesRefused { .. }));
    let reads = Plan { patterns: vec![plan.patterns[0].clone()], ..plan };
    assert!(run(&reads, Some(&precious), None).is_ok());
    let error = run(&reads, Some(&precious.fill()), None).expect_err("the disk was filled");
    assert!(error.to_string().starts_with("filling it with data would overwrite"), "{error}");
}

#[test]
fn a_read_only_namespace_is_never_written() {
    let (_, side) = fake(Geometry { read_only: true, ..Geometry::new(512, 800) }, When::AtOnce);
    let plan = Plan { allow_writes: true, ..plan(vec![Pattern::new(Rw::Write, 4096, 1, 1)], 1) };
    let error = run(&plan, Some(&side), None).expect_err("a read-only disk was accepted");
    assert!(matches!(error, BenchError::ReadOnly { .. }), "{error}");
}

#[test]
fn invalid_plans_are_refused_before_any_io() {
    let (fake, side) = fake(Geometry::new(512, 800), When::AtOnce);
    let good = plan(vec![Pattern::new(Rw::Read, 4096, 1, 1)], 1);
    let refused =
        |plan: Plan| run(&plan, Some(&side), None).expect_err("the plan was accepted").to_string();
    assert!(
        run(&good, None, None).expect_err("the plan was accepted").to_string().contains("neither")
    );
    assert!(refused(Plan { patterns: Vec::new(), ..good.clone() }).contains("it has no patterns"));
    assert!(refused(Plan { runs: 0, ..good.clone() }).contains("number of runs"));
    let no_time = Plan { runtime: Duration::ZERO, io_size: None, ..good.clone() };
    assert!(refused(no_time).contains("no measuring time"));
    assert!(refused(Plan { size: Some(1 << 30), ..good.clone() }).contains("does not fit"));
    let huge = Pattern::new(Rw::Read, 64 << 20, 8, 1024);
    assert!(refused(Plan { patterns: vec![huge], ..good.clone() }).contains("buffers take more"));
    let odd = Pattern::new(Rw::Read, 100, 1, 1);
    assert!(refused(Plan { patterns: vec![odd], ..good }).contains("not a whole number"));
    assert_eq!(fake.seen.queues.load(Relaxed), 0);
}

#[test]
fn filling_covers_the_whole_size() {
    let disk = Arc::new(Mem::new(512, 3 << 20).expect("the size is valid"));
    let side = Side::new(disk.clone() as Arc<dyn Namespace>).scratch().fill();
    run_one(&plan(vec![Pattern::new(Rw::RandRead, 4096, 1, 1)], 1), &side);
    assert_eq!(disk.allocated_bytes(), 3 << 20);
}

#[test]
fn every_address_is_within_the_size() {
    let (fake, side) = fake(Geometry::new(512, 8000), When::AtOnce);
    let plan = plan(vec![Pattern::new(Rw::RandWrite, 4096, 2, 4)], 500);
    run_one(&Plan { size: Some(64 << 10), ..plan }, &side.fill());
    let addresses = fake.seen.addresses.lock().unwrap();
    assert!(addresses.keys().all(|(_, lba)| *lba < 128), "{addresses:?}");
}

#[test]
fn a_cancelled_run_keeps_the_results_of_finished_patterns() {
    let reads = Pattern::new(Rw::RandRead, 4096, 2, 4);
    let endless = Pattern::new(Rw::RandRead, 8192, 2, 4);
    let plan = Plan {
        runtime: Duration::from_millis(500),
        io_size: None,
        ..plan(vec![reads, endless], 1)
    };
    let (_, side) = fake(Geometry::new(512, 8000), When::Later);
    let cancel = Cancel::new();
    let mut progress = |snapshot: &Snapshot<'_>| {
        if snapshot.pattern_index == 1 {
            cancel.cancel();
        }
    };
    let report =
        compare(&plan, Some(&side), None, &cancel, &mut progress).expect("the benchmark runs");
    assert!(report.interrupted && !report.has_errors());
    assert_eq!(report.patterns.len(), 1);
    let mut at_once = |_: &Snapshot<'_>| cancel.cancel();
    let error = compare(&plan, Some(&side), None, &cancel, &mut at_once)
        .expect_err("a plan without a run was accepted");
    assert!(matches!(error, BenchError::Cancelled));
}

#[test]
fn progress_reports_each_phase_and_the_sides_alternate() {
    let plan = Plan {
        ramp: Duration::from_millis(10),
        warm_up: Duration::from_millis(250),
        runs: 2,
        ..plan(vec![Pattern::new(Rw::RandRead, 4096, 1, 4)], 100)
    };
    let (_, local) = fake(Geometry::new(512, 8000), When::Later);
    let (_, remote) = fake(Geometry::new(512, 8000), When::AtOnce);
    let (mut order, mut fractions) = (Vec::new(), Vec::new());
    let mut progress = |snapshot: &Snapshot<'_>| {
        let step = (snapshot.run, snapshot.side, snapshot.phase);
        if order.last() != Some(&step) {
            order.push(step);
        }
        fractions.push(snapshot.plan_fraction);
    };
    let (local, remote) = (local.fill(), remote);
    let report = compare(&plan, Some(&local), Some(&remote), &Cancel::new(), &mut progress);
    let report = report.expect("the plan is valid");
    assert!(!report.has_errors(), "{:?}", report.patterns[0].errors);
    let drained: Vec<_> = order
        .iter()
        .filter(|(.., phase)| *phase == Phase::Drain)
        .map(|(run, side, _)| (*run, side.name()))
        .collect();
    assert_eq!(drained, [(0, "local"), (0, "remote"), (1, "remote"), (1, "local")]);
    assert_eq!(order[0], (0, SideName::Local, Phase::Fill));
    assert!(order.contains(&(0, SideName::Local, Phase::WarmUp)));
    assert!(!order.contains(&(1, SideName::Local, Phase::WarmUp)), "warm-up before a later run");
    assert!(fractions.is_sorted(), "{fractions:?}");
    assert!(fractions.last().is_some_and(|last| (0.99..=1.0).contains(last)), "{fractions:?}");
}

#[test]
fn a_run_without_a_size_ends_after_its_time() {
    let plan = Plan {
        runtime: Duration::from_secs(1),
        io_size: None,
        ..plan(vec![Pattern::new(Rw::Read, 4096, 2, 2)], 1)
    };
    let (_, side) = fake(Geometry::new(512, 8000), When::Later);
    let report = run_one(&plan, &side);
    let figures = report.patterns[0].local.as_ref().expect("the pattern was measured");
    assert!((figures.runs[0].seconds - 1.0).abs() < 1e-9);
    assert!((figures.iops - figures.reads as f64).abs() < 0.01, "{figures:?}");
}

#[test]
fn processor_time_is_measured_for_host_and_target() {
    /// A clock that advances by a second at each reading.
    #[derive(Default)]
    struct Ticking(AtomicU64);
    impl CpuSource for Ticking {
        fn cpu_time(&self) -> Duration {
            Duration::from_secs(self.0.fetch_add(1, Relaxed))
        }
    }
    let (_, side) = fake(Geometry::new(512, 8000), When::Later);
    let meters = Meters { target_cpu: Some(Arc::new(Ticking::default())), ..Meters::default() };
    let plan = plan(vec![Pattern::new(Rw::RandRead, 4096, 1, 1)], 5000);
    let report = run_one(&plan, &side.meters(meters));
    let figures = report.patterns[0].local.as_ref().expect("the pattern was measured");
    let target = figures.target_cpu.expect("the processor time of the target");
    let per_second_us = target.us_per_io * figures.iops;
    assert!(target.percent_of_core > 0.0);
    assert!((per_second_us / 1e4 / target.percent_of_core - 1.0).abs() < 1e-9, "{target:?}");
    assert!(figures.host_cpu.is_some());
    assert_eq!(figures.host_memory_bytes.is_some(), cfg!(any(target_os = "linux", windows)));
}

#[test]
fn a_queue_that_does_not_open_is_reported() {
    struct Closed;
    impl Namespace for Closed {
        fn geometry(&self) -> Geometry {
            Geometry::new(512, 800)
        }
        fn describe(&self) -> String {
            "closed".to_owned()
        }
        fn open(&self, _: &Reactor, _: TaskId) -> Result<Box<dyn Queue>, BlockError> {
            Err(BlockError::Disconnected)
        }
    }
    let plan = plan(vec![Pattern::new(Rw::Read, 4096, 4, 1)], 1);
    let report = run(&plan, None, Some(&Side::new(Arc::new(Closed)))).expect("the plan is valid");
    let message = &report.patterns[0].errors[0].message;
    assert!(message.contains("cannot open a queue: the connection"), "{message}");
}

#[test]
fn a_namespace_that_breaks_its_contract_hangs_no_run() {
    struct Wild(Fake);
    impl Namespace for Wild {
        fn geometry(&self) -> Geometry {
            self.0.geometry
        }
        fn describe(&self) -> String {
            "wild".to_owned()
        }
        fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
            if std::thread::current().name() == Some("fb-bench-1") {
                panic!("a bug");
            }
            self.0.open(reactor, parent)
        }
    }
    let plan = plan(vec![Pattern::new(Rw::Read, 4096, 3, 1)], 1);
    let side = Side::new(Arc::new(Wild(Fake::new(Geometry::new(512, 800), When::Later))));
    let outcome =
        std::panic::catch_unwind(AssertUnwindSafe(|| run(&plan, None, Some(&side)).is_ok()));
    assert!(outcome.is_err(), "a panic of the bench was hidden");
}
