//! Fixed data for the tests of all output formats.

use crate::cpu::CpuUse;
use crate::latency::LatencySummary;
use crate::machine::Machine;
use crate::pattern::Pattern;
use crate::progress::SideName;
use crate::result::{Failure, Figures, Method, PatternReport, Percent, Report, RunFigures, SCHEMA};

/// The figures of one run with a plausible shape. `cpu` is the µs per I/O of host and target.
pub(crate) fn figures(
    iops: f64,
    block_size_bytes: u32,
    mean_ns: f64,
    cpu: Option<(f64, Option<f64>)>,
) -> Figures {
    let mib_per_second = iops * f64::from(block_size_bytes) / f64::from(1 << 20);
    let scaled = |factor: f64| (mean_ns * factor) as u64;
    let latency = LatencySummary {
        mean_ns,
        p50_ns: scaled(0.94),
        p99_ns: scaled(2.2),
        p99_9_ns: scaled(4.1),
        max_ns: scaled(19.0),
    };
    let used = |us_per_io: f64| CpuUse { us_per_io, percent_of_core: us_per_io * iops / 1e4 };
    let host_cpu = cpu.map(|(host, _)| used(host));
    let target_cpu = cpu.and_then(|(_, target)| target).map(used);
    let run = RunFigures {
        seconds: 30.0,
        iops,
        mib_per_second,
        latency,
        host_cpu,
        target_cpu,
        sleeps_per_io: None,
    };
    Figures {
        iops,
        mib_per_second,
        latency,
        host_cpu,
        target_cpu,
        sleeps_per_io: None,
        host_memory_bytes: Some(48 << 20),
        target_memory_bytes: None,
        reads: (iops * 30.0) as u64,
        writes: 0,
        runs: vec![run],
    }
}

/// A report on both sides of a pattern.
pub(crate) fn compared(pattern: Pattern, local: Figures, remote: Figures) -> PatternReport {
    PatternReport {
        pattern,
        remote_percent_of_local: Percent::new(&local, &remote),
        remote_percent_of_floor: None,
        local: Some(local),
        remote: Some(remote),
        floor: None,
        errors: Vec::new(),
    }
}

fn machine() -> Machine {
    Machine {
        cpu_model: "Intel(R) Xeon(R) Platinum 8380 CPU @ 2.30GHz".to_owned(),
        cores: 2,
        memory_bytes: Some(24 << 30),
        kernel: "Linux 6.18.44".to_owned(),
        architecture: "x86_64".to_owned(),
    }
}

/// A report on the six patterns, with scaled-down figures of one drive from the published
/// documents, and a failure in the last pattern.
pub(crate) fn report() -> Report {
    let rows = [
        ((712_000.0, 359_000.0, 1.4), (692_610.0, 369_000.0, 2.3, 2.05)),
        ((195_992.0, 81_000.0, 1.6), (197_787.0, 80_400.0, 2.6, 2.4)),
        ((101_000.0, 632_000.0, 3.1), (93_203.0, 686_000.0, 10.2, 9.7)),
        ((14_315.0, 139_000.0, 4.0), (14_431.0, 138_000.0, 13.4, 12.9)),
        ((6_348.0, 1_259_000.0, 28.0), (5_358.9, 1_484_000.0, 131.0, 118.5)),
    ];
    let mut patterns: Vec<PatternReport> = Pattern::six()
        .iter()
        .zip(rows)
        .map(|(pattern, (local, remote))| {
            let block_size = pattern.block_size_bytes;
            let local = figures(local.0, block_size, local.1, Some((local.2, None)));
            let cpu = Some((remote.2, Some(remote.3)));
            let remote = figures(remote.0, block_size, remote.1, cpu);
            compared(pattern.scaled_to(2), local, remote)
        })
        .collect();
    patterns.push(PatternReport {
        pattern: Pattern::six()[5].clone(),
        local: Some(figures(3_290.0, 1 << 20, 1_215_000.0, None)),
        remote: None,
        floor: None,
        remote_percent_of_local: None,
        remote_percent_of_floor: None,
        errors: vec![Failure {
            side: SideName::Remote,
            run: 0,
            message: "job 0: a write of 2048 blocks at LBA 6144 failed after 17 good I/Os: the \
                      connection to the namespace is lost"
                .to_owned(),
        }],
    });
    Report {
        schema: SCHEMA,
        tool: "farblock-bench 0.1.0".to_owned(),
        date: "2026-11-21T05:06:13Z".to_owned(),
        command_line: "farblock bench disk.img nvme+tcp://[::1]:4420/nqn.test --full".to_owned(),
        machine: machine(),
        engine: "uring".to_owned(),
        method: Method {
            runtime_seconds: 30.0,
            ramp_seconds: 5.0,
            warm_up_seconds: 30.0,
            runs: 3,
            spin: "balanced".to_owned(),
            size_bytes: None,
            io_size_bytes: None,
            notes: vec!["One side right after the other.".to_owned()],
        },
        local: Some("file disk.img (1 GiB, 512-byte blocks)".to_owned()),
        remote: Some("nqn.test namespace 1 at [::1]:4420 (1 GiB, 512-byte blocks)".to_owned()),
        floor: None,
        patterns,
        remarks: Vec::new(),
        interrupted: false,
    }
}

/// Adds figures of the floor (bare sockets) to a report. The remote side has four fifths of them.
pub(crate) fn with_floor(mut report: Report) -> Report {
    report.floor = Some("bare sockets to [::1]:4422, no protocol and no disk".to_owned());
    for pattern in &mut report.patterns {
        let Some(remote) = &pattern.remote else { continue };
        let (iops, mean_ns) = (remote.iops / 0.8, remote.latency.mean_ns * 0.8);
        let cpu = Some((0.9, Some(0.7)));
        let floor = figures(iops, pattern.pattern.block_size_bytes, mean_ns, cpu);
        pattern.remote_percent_of_floor = Percent::new(&floor, remote);
        pattern.floor = Some(floor);
    }
    report
}
