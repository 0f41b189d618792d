//! A model of how the IOPS of the target would grow with its cores. The output says that it is a
//! model.
//!
//! The model takes the processor time of an I/O from the tables of `bench-peers`. It measures by
//! how much a write becomes slower if another processor writes to the same cache line (the bounce).
//! The bandwidths of the network and of the memory are assumptions; all cores share both.
//!
//! ```text
//! time of an I/O on a core      its processor time + shared writes × bounce × (n - 1) / n
//! I/Os per second of n cores    the least of  n / that time             (processors)
//!                                             1 / (shared writes × bounce)   (the cache line)
//!                                             memory / bytes moved in memory
//!                                             network / bytes on the wire
//! ```

use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;

use crate::data::{Data, Head};

const CORES: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
const WRITES: u64 = 2_000_000;
/// The overhead of packet headers with an MTU of 1,500, in percent of the payload.
const FRAMING_PERCENT: f64 = 5.0;

/// Calculate how the target's I/Os per second would grow from 1 to 64 cores (a model)
#[derive(Args)]
pub(crate) struct Options {
    /// Directory with the stand's peers-mem.csv, for the model's scaling.csv
    #[arg(long, value_name = "DIR", default_value = "docs/performance")]
    data: PathBuf,
    /// Print the table, and write no file
    #[arg(long)]
    print: bool,
    /// Network bandwidth in gigabits per second
    #[arg(long, default_value_t = 200.0)]
    network_gbit: f64,
    /// Memory bandwidth of all cores together, in gigabytes per second
    #[arg(long, default_value_t = 200.0)]
    memory_gb: f64,
    /// Writes per I/O to cache lines that other cores also write
    #[arg(long, default_value_t = 0.0)]
    shared_writes: f64,
}

/// A load in the tables of `bench-peers` to which the model applies.
struct Load {
    /// The name of the load in the tables.
    name: &'static str,
    bytes: f64,
    /// The number of times that each byte of data crosses the memory bus of the target. For a read:
    /// twice for the kernel's copy, and once for the network card. For a write: once for the card,
    /// and twice for each of two copies.
    passes: f64,
}

const LOADS: [Load; 6] = [
    Load { name: "4k randread, QD 32, 1 connection", bytes: 4096.0, passes: 3.0 },
    Load { name: "4k randwrite, QD 32, 1 connection", bytes: 4096.0, passes: 5.0 },
    Load { name: "64k randread, QD 32, 1 connection", bytes: 65_536.0, passes: 3.0 },
    Load { name: "64k randwrite, QD 32, 1 connection", bytes: 65_536.0, passes: 5.0 },
    Load { name: "1M randread, QD 8, 1 connection", bytes: 1_048_576.0, passes: 3.0 },
    Load { name: "1M randwrite, QD 8, 1 connection", bytes: 1_048_576.0, passes: 5.0 },
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Limit {
    Processors,
    SharedLine,
    Memory,
    Network,
}

impl Limit {
    fn name(self) -> &'static str {
        match self {
            Limit::Processors => "processors",
            Limit::SharedLine => "a shared line",
            Limit::Memory => "memory",
            Limit::Network => "the network",
        }
    }
}

/// The assumptions about a machine, in seconds and bytes.
struct Assumed {
    bounce_seconds: f64,
    shared_writes: f64,
    network_bytes: f64,
    memory_bytes: f64,
}

impl Assumed {
    /// The IOPS with this number of cores, and the bottleneck.
    fn scale(&self, load: &Load, seconds: f64, cores: u32) -> (f64, Limit) {
        let cores = f64::from(cores);
        let shared = self.shared_writes * self.bounce_seconds;
        let on_a_core = seconds + shared * (cores - 1.0) / cores;
        let wire = load.bytes * (1.0 + FRAMING_PERCENT / 100.0);
        let mut limits = vec![
            (cores / on_a_core, Limit::Processors),
            (self.memory_bytes / (load.bytes * load.passes), Limit::Memory),
            (self.network_bytes / wire, Limit::Network),
        ];
        if shared > 0.0 {
            limits.push((1.0 / shared, Limit::SharedLine));
        }
        limits
            .into_iter()
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .expect("the list of limits is not empty")
    }
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let measured = Data::read(&options.data.join("peers-mem.csv"))?;
    let [alone, shared] = [1, 2].map(write_time);
    let assumed = Assumed {
        bounce_seconds: shared.saturating_sub(alone).as_secs_f64(),
        shared_writes: options.shared_writes,
        network_bytes: options.network_gbit * 1e9 / 8.0,
        memory_bytes: options.memory_gb * 1e9,
    };
    let table = table(&measured, options, &assumed)?;
    print!("{}", table.report());
    if options.print { Ok(()) } else { table.write(&options.data, "scaling") }
}

fn table(measured: &Data, options: &Options, assumed: &Assumed) -> Result<Data, String> {
    let what = "a model: thousands of I/Os per second of 1 to 64 cores";
    let method = "processor time of an I/O: the target's in peers-mem.csv".to_owned();
    let cores = CORES.iter().map(|cores| format!("kIOPS, cores: {cores}"));
    let mut columns = vec!["load".to_owned(), "target µs/IO".to_owned()];
    columns.extend(cores);
    columns.extend(["cores at the limit", "limit"].map(str::to_owned));
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut table = Data::new(Head::of_this_run(what, method), &columns);
    table.remarks = vec![
        format!(
            "A write to a cache line that another processor also writes takes {:.0} ns more, \
             measured on this machine. Each I/O makes {} such writes.",
            assumed.bounce_seconds * 1e9,
            assumed.shared_writes,
        ),
        format!(
            "The model assumes a network of {} Gbit/s, and memory that moves {} GB/s.",
            options.network_gbit, options.memory_gb,
        ),
    ];
    for load in &LOADS {
        let us = target_us(measured, load.name)?;
        table.push(row(load, us, assumed));
    }
    Ok(table)
}

fn row(load: &Load, us: f64, assumed: &Assumed) -> Vec<String> {
    let at = |cores| assumed.scale(load, us / 1e6, cores);
    let name = load.name.split(',').next().unwrap_or_default();
    let mut row = vec![name.to_owned(), format!("{us:.2}")];
    row.extend(CORES.map(|cores| format!("{:.0}", at(cores).0 / 1e3)));
    let stop = (1..=CORES[CORES.len() - 1]).find(|&cores| at(cores).1 != Limit::Processors);
    if let Some(cores) = stop {
        row.extend([cores.to_string(), at(cores).1.name().to_owned()]);
    }
    row
}

/// The target's processor time per I/O in µs, from farblock's row for this load.
fn target_us(measured: &Data, load: &str) -> Result<f64, String> {
    let row = measured.row(&[("load", load), ("side", "farblock")])?;
    measured.number(row, "target µs/IO")
}

/// The time of one write while this number of threads write to the same cache line.
fn write_time(threads: u64) -> Duration {
    let (line, begin) = (AtomicU64::new(0), Barrier::new(threads as usize));
    let write = || {
        begin.wait();
        let begun = Instant::now();
        for _ in 0..WRITES / threads {
            line.fetch_add(1, Ordering::Relaxed);
        }
        begun.elapsed()
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..threads).map(|_| scope.spawn(write)).collect();
        let times =
            writers.into_iter().map(|writer| writer.join().expect("a writer does not panic"));
        times.max().unwrap_or_default()
            / u32::try_from(WRITES / threads).expect("the number of writes fits")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assumed(shared_writes: f64) -> Assumed {
        Assumed { bounce_seconds: 100e-9, shared_writes, network_bytes: 25e9, memory_bytes: 200e9 }
    }

    #[test]
    fn without_shared_writes_the_network_limits_the_scaling() {
        let (iops, limit) = assumed(0.0).scale(&LOADS[0], 1e-6, 4);
        assert!((iops - 4e6).abs() < 1.0 && limit == Limit::Processors, "{iops} {limit:?}");
        let (iops, limit) = assumed(0.0).scale(&LOADS[0], 1e-6, 64);
        assert!((iops - 25e9 / 4300.8).abs() < 1.0 && limit == Limit::Network, "{iops} {limit:?}");
    }

    #[test]
    fn a_shared_cache_line_limits_the_scaling() {
        let (iops, limit) = assumed(2.0).scale(&LOADS[0], 1e-6, 64);
        assert!((iops - 5e6).abs() < 1.0 && limit == Limit::SharedLine, "{iops} {limit:?}");
    }

    #[test]
    fn the_processor_time_is_read_from_the_row_of_farblock() {
        let text = "# w | m | d | me | c\nload,side,target µs/IO\n\
            \"4k randread, QD 32, 1 connection\",SPDK,2.46\n\
            \"4k randread, QD 32, 1 connection\",farblock,1.23\n";
        let measured = Data::parse(text).expect("the table is valid");
        assert_eq!(target_us(&measured, LOADS[0].name), Ok(1.23));
        assert!(target_us(&measured, LOADS[1].name).is_err());
    }
}
