//! Measures one run of one side (a pair of target and host), and the resources that its processes
//! use.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::process::Process;
use super::sides::{Client, Means, Server, Side, Times};
use super::work::{Load, Row};

/// The processor use of other processes, in percent of one processor, above which a run is
/// repeated.
pub(crate) const NOISE_PERCENT: f64 = 4.0;

/// The longest wait until the machine is quiet.
const QUIET_LIMIT: Duration = Duration::from_secs(20);
const QUIET_LOOK: Duration = Duration::from_millis(300);

/// The ticks per second in `/proc/stat`, the same on every architecture that Rust supports.
const TICKS_PER_SECOND: f64 = 100.0;

/// The figures of one run of one side, or the medians of several runs.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Figures {
    pub(crate) iops: f64,
    pub(crate) mib_per_second: f64,
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    pub(crate) p99_9_us: Option<f64>,
    /// The processor time per I/O in µs, including polling.
    pub(crate) host_cpu_us: f64,
    pub(crate) target_cpu_us: Option<f64>,
    /// The processor time in percent of one processor.
    pub(crate) host_cpu_percent: f64,
    pub(crate) target_cpu_percent: Option<f64>,
    pub(crate) host_memory_mib: Option<f64>,
    pub(crate) target_memory_mib: Option<f64>,
    /// The processor use of all other processes, in percent of one processor.
    pub(crate) noise_percent: f64,
}

/// The time, and the processor times of host, target and machine, at one instant.
struct Mark {
    at: Instant,
    host: Duration,
    target: Option<Duration>,
    machine: Duration,
}

/// Runs a side once. If the side has a target, resumes this target only for the run.
pub(crate) fn run(
    means: &Means,
    side: Side,
    row: &Row,
    server: Option<&Server>,
    times: Times,
) -> Result<Figures, String> {
    if let Some(server) = server {
        server.process.resume();
    }
    let figures = run_awake(means, side, row, server, times);
    if let Some(server) = server {
        server.process.pause();
    }
    figures
}

fn run_awake(
    means: &Means,
    side: Side,
    row: &Row,
    server: Option<&Server>,
    times: Times,
) -> Result<Figures, String> {
    if let Some(server) = server {
        means.prepare(side, server, &row.load)?;
    }
    let endpoint = server.map(|server| &server.endpoint);
    let client = means.client(side.host, endpoint, row.backend, &row.load, times);
    let process = server.map(|server| &server.process);
    // Measure processor time only in the middle of the run, because the host may start a little
    // late.
    let window = Window {
        start: times.ramp + times.runtime.mul_f64(0.2),
        length: times.runtime.mul_f64(0.6),
        limit: times.ramp + times.runtime,
    };
    run_client(client, means.host_cpu, process, &row.load, window)
}

/// The window in which processor time is measured, relative to the start of the client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) start: Duration,
    pub(crate) length: Duration,
    /// The total run time of the client.
    pub(crate) limit: Duration,
}

/// Runs a client against a server process, if there is one.
pub(crate) fn run_client(
    client: Client,
    cpu: usize,
    server: Option<&Process>,
    load: &Load,
    window: Window,
) -> Result<Figures, String> {
    let mut host = Process::start(client.command, cpu)?;
    if let Some(begins) = client.begins {
        host.wait_for(|line| line.contains(begins).then_some(()))?;
    }
    thread::sleep(window.start);
    let first = mark(&host, server);
    thread::sleep(window.length);
    let last = mark(&host, server);
    let host_memory = host.memory_bytes();
    let target_memory = server.and_then(Process::memory_bytes);
    let output = host.finish(window.limit)?;
    let measured = (client.parse)(&output, load)?;
    if measured.iops.is_nan() || measured.iops <= 0.0 {
        return Err("no I/O was measured".to_owned());
    }
    let elapsed = (last.at - first.at).as_secs_f64();
    let percent = |used: Duration| used.as_secs_f64() / elapsed * 100.0;
    let per_io = |percent: f64| percent * 1e4 / measured.iops;
    let host_percent = percent(last.host.saturating_sub(first.host));
    let target_percent =
        last.target.zip(first.target).map(|(last, first)| percent(last.saturating_sub(first)));
    let all = percent(last.machine.saturating_sub(first.machine));
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    Ok(Figures {
        iops: measured.iops,
        mib_per_second: measured.mib_per_second,
        p50_us: measured.p50_us,
        p99_us: measured.p99_us,
        p99_9_us: measured.p99_9_us,
        host_cpu_us: per_io(host_percent),
        target_cpu_us: target_percent.map(per_io),
        host_cpu_percent: host_percent,
        target_cpu_percent: target_percent,
        host_memory_mib: host_memory.map(mib),
        target_memory_mib: target_memory.map(mib),
        noise_percent: (all - host_percent - target_percent.unwrap_or(0.0)).max(0.0),
    })
}

fn mark(host: &Process, server: Option<&Process>) -> Mark {
    Mark {
        at: Instant::now(),
        host: host.cpu_time(),
        target: server.map(Process::cpu_time),
        machine: machine_busy(),
    }
}

/// Waits until other processes use little processor time, up to a time limit.
pub(crate) fn wait_for_quiet() {
    let deadline = Instant::now() + QUIET_LIMIT;
    while Instant::now() < deadline {
        let before = machine_busy();
        thread::sleep(QUIET_LOOK);
        let used = machine_busy().saturating_sub(before);
        if used.as_secs_f64() * 100.0 <= QUIET_LOOK.as_secs_f64() * NOISE_PERCENT {
            return;
        }
    }
}

/// The processor time of all processes on the machine.
fn machine_busy() -> Duration {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    Duration::from_secs_f64(busy_ticks(&stat) as f64 / TICKS_PER_SECOND)
}

/// The user, nice, system and interrupt times. Idle time and I/O wait do not count. Guest time is
/// part of user time.
fn busy_ticks(stat: &str) -> u64 {
    let line = stat.lines().next().and_then(|line| line.strip_prefix("cpu "));
    let ticks = line.unwrap_or_default().split_whitespace().map(|field| field.parse().unwrap_or(0));
    let ticks: Vec<u64> = ticks.collect();
    [0, 1, 2, 5, 6].iter().filter_map(|&field| ticks.get(field)).sum()
}

/// The median of each field. For an even number of runs, this is the mean of the two middle values.
pub(crate) fn median(runs: &[Figures]) -> Option<Figures> {
    let of = |field: fn(&Figures) -> f64| middle(runs.iter().map(field).collect());
    let maybe = |field: fn(&Figures) -> Option<f64>| {
        let values: Option<Vec<f64>> = runs.iter().map(field).collect();
        middle(values?)
    };
    Some(Figures {
        iops: of(|f| f.iops)?,
        mib_per_second: of(|f| f.mib_per_second)?,
        p50_us: maybe(|f| f.p50_us),
        p99_us: maybe(|f| f.p99_us),
        p99_9_us: maybe(|f| f.p99_9_us),
        host_cpu_us: of(|f| f.host_cpu_us)?,
        target_cpu_us: maybe(|f| f.target_cpu_us),
        host_cpu_percent: of(|f| f.host_cpu_percent)?,
        target_cpu_percent: maybe(|f| f.target_cpu_percent),
        host_memory_mib: maybe(|f| f.host_memory_mib),
        target_memory_mib: maybe(|f| f.target_memory_mib),
        noise_percent: of(|f| f.noise_percent)?,
    })
}

fn middle(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[half]),
        _ => Some((values[half - 1] + values[half]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_medians_of_the_runs() {
        assert_eq!(middle(vec![]), None);
        assert_eq!(middle(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(middle(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
        let run = |iops, p50_us| Figures { iops, p50_us, ..Figures::default() };
        let runs = [run(1.0, Some(9.0)), run(3.0, Some(7.0)), run(2.0, Some(8.0))];
        let median = median(&runs).expect("there are runs");
        assert_eq!((median.iops, median.p50_us), (2.0, Some(8.0)));
        let some_lack_it = [run(1.0, Some(9.0)), run(3.0, None)];
        assert_eq!(super::median(&some_lack_it).expect("there are runs").p50_us, None);
    }

    #[test]
    fn busy_time_excludes_idle_and_guest_time() {
        let stat = "cpu  1 2 4 1000 2000 8 16 4000 8000 9000\ncpu0 5 5 5 5\n";
        assert_eq!(busy_ticks(stat), 1 + 2 + 4 + 8 + 16);
        assert_eq!(busy_ticks(""), 0);
    }
}
