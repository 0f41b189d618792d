//! The load of an agent: all of its clients at once.

use crate::clock::Clock;
use crate::descriptors;
use crate::limits::{CLIENTS, LOAD_KEEP_ALIVE};
use crate::memory::{self, Held, Memory};
use crate::message::{Client, Load, Measured};
use farblock_bench::cpu::{CpuSource, ThisProcess};
use farblock_bench::load::{LoadSpec, run};
use farblock_bench::{Cancel, Latencies, RecordedLatencies, RunError};
use farblock_block::Namespace;
use farblock_host::{Controller, Options, Url};
use farblock_iscsi::initiator::{self, Initiator};
use farblock_reactor::Config;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The maximum duration of a load with its ramp.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// The connected clients, by name, and the memory that they use.
#[derive(Default)]
pub(crate) struct Clients(Vec<(String, Arc<dyn Namespace>)>, Option<Held>);

impl Clients {
    pub(crate) fn connect(&mut self, clients: &[Client], memory: &Memory) -> Result<(), String> {
        self.0.clear();
        self.1 = None;
        if clients.len() > CLIENTS {
            return Err(format!("an agent has at most {CLIENTS} clients"));
        }
        descriptors::check(clients)?;
        self.1 = Some(memory.take(memory::of_clients(clients), "the clients' rings")?);
        for client in clients {
            let url = &client.url;
            let namespace = connect(client, url).and_then(|namespace| match client.vm {
                Some(vm) => crate::vm::disk(namespace, vm, client.queues),
                None => Ok(namespace),
            });
            let namespace =
                namespace.map_err(|why| format!("{}, to {url}: {why}", client.hostnqn))?;
            self.0.push((client.hostnqn.clone(), namespace));
        }
        Ok(())
    }
}

/// Connects over iSCSI. `unit` is `ADDRESS:PORT/NAME/LUN`.
fn log_in(client: &Client, unit: &str) -> Result<Arc<dyn Namespace>, String> {
    let parts: Option<[&str; 3]> = unit.split('/').collect::<Vec<_>>().try_into().ok();
    let wrong = || "the URL of an iSCSI disk must be iscsi://ADDRESS:PORT/NAME/LUN".to_owned();
    let [address, target, lun] = parts.ok_or_else(wrong)?;
    let config = initiator::Config {
        address: address.parse().map_err(|_| wrong())?,
        target: target.to_owned(),
        lun: lun.parse().map_err(|_| wrong())?,
        sessions: client.queues.into(),
        depth: client.depth,
    };
    Ok(Arc::new(Initiator::connect(&config).map_err(|error| error.to_string())?))
}

fn connect(client: &Client, url: &str) -> Result<Arc<dyn Namespace>, String> {
    if let Some(unit) = url.strip_prefix("iscsi://") {
        return log_in(client, unit);
    }
    let url: Url = url.parse().map_err(|error: farblock_host::url::UrlError| error.to_string())?;
    let options = Options {
        hostnqn: Some(client.hostnqn.clone()),
        queue_depth: client.depth,
        queues: client.queues,
        keep_alive: LOAD_KEEP_ALIVE,
        ..Options::default()
    };
    let controller = Controller::connect_url(&url, &options).map_err(|error| error.to_string())?;
    let namespace = controller.namespace(url.namespace.unwrap_or(1));
    Ok(Arc::new(namespace.map_err(|error| error.to_string())?))
}

impl Clients {
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }
}

/// The current speed, summed over all clients.
#[derive(Debug, Default)]
pub(crate) struct Tick(AtomicU64);

impl Tick {
    pub(crate) fn iops(&self) -> f64 {
        self.0.load(Ordering::Relaxed) as f64
    }

    /// Replaces the last value of a client in the sum by a new value.
    fn tell(&self, last: &mut u64, iops: f64) {
        let now = iops as u64;
        self.0.fetch_add(now.wrapping_sub(*last), Ordering::Relaxed);
        *last = now;
    }
}

/// Runs the load on all clients at once.
pub(crate) fn on_all(
    clients: &Clients,
    load: &Load,
    clock: Clock,
    cancel: &Cancel,
    tick: &Tick,
) -> Result<Measured, String> {
    if clients.0.is_empty() {
        return Err("no client is connected".to_owned());
    }
    let start = load.start_ns.map(|ns| clock.instant(ns).ok_or("the start time is out of range"));
    let start = start.transpose()?;
    let begin = start.unwrap_or_else(Instant::now);
    thread::scope(|scope| {
        let cpu = scope.spawn(|| cpu_of(begin, load, cancel));
        let client = |(index, (name, namespace)): (usize, &'_ (String, Arc<dyn Namespace>))| {
            let (name, namespace) = (name.clone(), Arc::clone(namespace));
            scope.spawn(move || {
                let seed = load.seed.wrapping_add(index as u64);
                let measured = one(&namespace, load, seed, start, cancel, tick);
                // Cancel the other clients, since their results would be useless.
                measured.inspect_err(|_| cancel.cancel()).map_err(|why| (name, why))
            })
        };
        let running: Vec<_> = clients.0.iter().enumerate().map(client).collect();
        let joined = running.into_iter().map(|thread| match thread.join() {
            Ok(measured) => measured,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        let measured = add_up(joined.collect());
        let cpu_ns = cpu.join().unwrap_or(0);
        Ok(Measured { cpu_ns, ..measured? })
    })
}

/// Runs the load on a drive of this agent, without a network.
pub(crate) fn on_one(
    drive: &Arc<dyn Namespace>,
    load: &Load,
    cancel: &Cancel,
    tick: &Tick,
) -> Result<Measured, String> {
    let measured = one(drive, load, load.seed, None, cancel, tick);
    add_up(vec![measured.map_err(|why| ("the drive".to_owned(), why))])
}

fn spec<'a>(
    load: &'a Load,
    reactor: &'a Config,
    seed: u64,
    start: Option<Instant>,
) -> LoadSpec<'a> {
    LoadSpec {
        pattern: &load.pattern,
        reactor,
        seed,
        start,
        ramp: Duration::from_millis(load.ramp_ms).min(LONGEST),
        runtime: Duration::from_millis(load.runtime_ms).min(LONGEST),
    }
}

/// The results of one client, or its failure. A cancelled load is not a failure.
fn one(
    namespace: &Arc<dyn Namespace>,
    load: &Load,
    seed: u64,
    start: Option<Instant>,
    cancel: &Cancel,
    tick: &Tick,
) -> Result<farblock_bench::load::Measured, Option<String>> {
    let reactor = Config::default();
    let mut last = 0;
    let measured = run(namespace, &spec(load, &reactor, seed, start), cancel, &mut |iops| {
        tick.tell(&mut last, iops);
    });
    tick.tell(&mut last, 0.0);
    match measured {
        Ok(Ok(measured)) => Ok(measured),
        Ok(Err(RunError::Cancelled)) => Err(None),
        Ok(Err(error)) => Err(Some(error.to_string())),
        Err(error) => Err(Some(error.to_string())),
    }
}

/// The processor time of this process during the measured time of the load, in nanoseconds.
fn cpu_of(begin: Instant, load: &Load, cancel: &Cancel) -> u64 {
    let sleep = |until: Instant| {
        while !cancel.is_cancelled() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(Duration::from_millis(100)));
        }
    };
    let measured = begin + Duration::from_millis(load.ramp_ms).min(LONGEST);
    sleep(measured);
    let before = ThisProcess.cpu_time();
    sleep(measured + Duration::from_millis(load.runtime_ms).min(LONGEST));
    let used = ThisProcess.cpu_time().saturating_sub(before);
    u64::try_from(used.as_nanos()).unwrap_or(u64::MAX)
}

type Outcome = Result<farblock_bench::load::Measured, (String, Option<String>)>;

/// The sum of all results, or the first failure.
fn add_up(outcomes: Vec<Outcome>) -> Result<Measured, String> {
    let complaint = outcomes.iter().find_map(|outcome| match outcome {
        Err((name, Some(why))) => Some(format!("{name}: {why}")),
        _ => None,
    });
    if let Some(complaint) = complaint {
        return Err(complaint);
    }
    let mut latencies = Latencies::new();
    let (mut reads, mut writes, mut iops, mut seconds) = (0, 0, 0.0, 0.0_f64);
    for outcome in outcomes {
        let measured = outcome.map_err(|_| "the load was cancelled".to_owned())?;
        let elapsed = measured.elapsed.as_secs_f64();
        reads += measured.reads;
        writes += measured.writes;
        iops += (measured.reads + measured.writes) as f64 / elapsed.max(f64::MIN_POSITIVE);
        seconds = seconds.max(elapsed);
        latencies.merge(&measured.latencies);
    }
    let latencies = RecordedLatencies::of(&latencies);
    Ok(Measured { reads, writes, iops, latencies, cpu_ns: 0, seconds })
}
