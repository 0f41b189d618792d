//! Measures the benefit of moving all waiting PDUs with one system call, instead of one call for
//! each PDU. The load is 4k reads and writes of a RAM disk over loopback through the portable
//! engine.
//!
//! `cargo run --release -p farblock --example calls [SECONDS [ROUNDS [STAT]]]` prints a table with
//! the medians of the rounds. Target and host share this process and its processor time. STAT is
//! the path of the file `/proc/PID/stat` of another process whose time also counts.
//! `interop/windows/calls.sh` passes that file of Wine's server, which executes all of these calls.
//!
//! Every PDU of these loads has the same size, so a limit in bytes can enforce one PDU per call.

use std::collections::BTreeMap;
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use farblock_backends::Spec;
use farblock_bench::{
    Cancel, CpuSource, Figures, Meters, Pattern, Plan, Rw, Side, Silent, compare,
};
use farblock_block::blocking::Blocking;
use farblock_host::{Controller, Options};
use farblock_proto::ids::NamespaceId;
use farblock_reactor::{CallBytes, Config, EngineKind};
use farblock_target::{Export, Subsystem, Target, TargetConfig};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const NQN: &str = "nqn.2026-11.org.farblock:calls";
const BLOCK: usize = 4096;
/// The sizes of PDUs without their data, in bytes. `DATA` is C2HData with the success flag.
const COMMAND: usize = 72;
const DATA: usize = 24;
const RESPONSE: usize = 24;
/// The number of clock ticks per second in /proc.
const TICKS: u64 = 100;

/// Returns the processor time of a Linux process from its `stat` file.
struct Stat(PathBuf);

impl CpuSource for Stat {
    fn cpu_time(&self) -> Duration {
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        // Skip the name, which may contain spaces. State is the third field, and utime the
        // fourteenth.
        let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
        let numbers = fields.split_whitespace().skip(11).take(2);
        let ticks: u64 = numbers.filter_map(|number| number.parse::<u64>().ok()).sum();
        Duration::from_millis(ticks * 1000 / TICKS)
    }
}

/// The byte limits of one system call, for the host and for the target.
fn limits(rw: Rw, is_gathered: bool) -> [CallBytes; 2] {
    let (down, up) = match rw {
        _ if is_gathered => return [CallBytes::default(); 2],
        Rw::RandRead => (COMMAND, DATA + BLOCK),
        _ => (COMMAND + BLOCK, RESPONSE),
    };
    [CallBytes { send: down, receive: up }, CallBytes { send: up, receive: down }]
}

fn run(rw: Rw, is_gathered: bool, time: Duration, beside: Option<&PathBuf>) -> Result<Figures> {
    let engine = EngineKind::Portable;
    let [host, target] = limits(rw, is_gathered);
    let mut subsystem = Subsystem::new(NQN);
    subsystem.config.allow_any_host = true;
    let namespace = "mem:64MiB".parse::<Spec>()?.open(512, false)?;
    // The first write allocates the RAM disk's memory, so do not measure it.
    let filling = vec![1; namespace.geometry().capacity_bytes() as usize];
    Blocking::with_engine(&*namespace, engine)?.write(0, &filling)?;
    let export = Export { namespace, identity: "calls".to_owned() };
    subsystem.exports = BTreeMap::from([(NamespaceId(1), export)]);
    let target = Target::start(&TargetConfig {
        subsystems: vec![subsystem],
        listeners: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))],
        engine,
        call_bytes: target,
        ..TargetConfig::default()
    })?;
    let options = Options { engine, ..Options::default() };
    let address = target.addresses()[0].to_string();
    let disk = Controller::connect(&address, NQN, &options)?.namespace(1)?;
    let beside = beside.map(|path| Arc::new(Stat(path.clone())) as Arc<dyn CpuSource>);
    let meters = Meters { target_cpu: beside, ..Meters::default() };
    let side = Side::new(Arc::new(disk)).scratch().meters(meters);
    let plan = Plan {
        patterns: vec![Pattern::new(rw, BLOCK as u32, 1, 32)],
        runtime: time,
        ramp: Duration::from_millis(500),
        reactor: Config { engine, call_bytes: host, ..Config::default() },
        ..Plan::quick()
    };
    let report = compare(&plan, None, Some(&side), &Cancel::new(), &mut Silent)?;
    let pattern = report.patterns.into_iter().next().ok_or("nothing was measured")?;
    if let Some(failure) = pattern.errors.first() {
        return Err(failure.message.clone().into());
    }
    Ok(pattern.remote.ok_or("nothing was measured")?)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let seconds: f64 = words.next().map_or(Ok(3.0), |word| word.parse())?;
    let rounds: usize = words.next().map_or(Ok(3), |word| word.parse())?;
    let beside = words.next().map(PathBuf::from);
    println!("| load | a call moves | IOPS | process µs/IO | Wine's server µs/IO | together |");
    println!("| --- | --- | ---: | ---: | ---: | ---: |");
    for rw in [Rw::RandRead, Rw::RandWrite] {
        let mut all = [Vec::new(), Vec::new()];
        for _ in 0..rounds.max(1) {
            for (figures, is_gathered) in all.iter_mut().zip([true, false]) {
                let time = Duration::from_secs_f64(seconds);
                figures.push(run(rw, is_gathered, time, beside.as_ref())?);
            }
        }
        for (figures, what) in all.iter().zip(["all there is", "one PDU"]) {
            let of = |value: fn(&Figures) -> f64| median(figures.iter().map(value));
            let iops = of(|figures| figures.iops);
            let own = of(|figures| figures.host_cpu.map_or(0.0, |cpu| cpu.us_per_io));
            let other = of(|figures| figures.target_cpu.map_or(0.0, |cpu| cpu.us_per_io));
            let shown = if beside.is_some() { format!("{other:.1}") } else { "–".to_owned() };
            let load = format!("4k {rw}, QD 32");
            let sum = own + other;
            println!("| {load} | {what} | {iops:.0} | {own:.1} | {shown} | {sum:.1} |");
        }
    }
    Ok(())
}
