//! The command `bench-peers`, the *measuring stand*: compares farblock and other products (its
//! peers) in one run on one machine.
//!
//! **Order.** The stand measures row by row (a load on a kind of disk), and each row in rounds. In
//! a round all *sides* (pairs of target and host) run one after the other. Each round starts with
//! the side that was second in the round before. So a machine that becomes slower during the
//! measurement affects all sides alike. Results are medians of the rounds.
//!
//! **Fairness.** Every target is pinned to one processor, and every host to another. A target is
//! stopped (SIGSTOP) while other targets run, since some targets poll when they are idle. All disks
//! have the same size and contain the same amount of data. Processor time covers the whole process,
//! including polling. It comes from the system's accounting, not from the reports of the peers.
//!
//! **Noise.** The stand also measures the processor use of all other processes. It repeats a run
//! with too much noise, a few times. The results show the noise of the runs.
//!
//! The stand never fails because of a slow result. The report says whether goals are met.

pub(crate) mod across;
pub(crate) mod attach;
mod contest;
pub(crate) mod cost;
pub(crate) mod counters;
mod delay;
mod facts;
mod goals;
mod map;
mod measure;
mod network;
mod process;
mod report;
mod sides;
pub(crate) mod through_fio;
mod work;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;

use measure::Figures;
use report::{RowReport, SideReport};
use sides::{Means, Server, Side, Target, Times};
use work::{Backend, Row};

/// The default size of each disk, in MiB.
const DISK_MIB: u64 = 512;
/// The maximum number of repetitions because of noise.
const REPEATS: u32 = 3;

/// Measure farblock and its peers side by side
///
/// Without options it measures all rows and sides, in about two hours. It names the peers that are
/// not installed.
#[derive(Args)]
pub(crate) struct Options {
    /// Measure only rows and sides whose names contain these words (repeatable); see --list
    #[arg(long, value_name = "WORDS")]
    only: Vec<String>,
    /// Measure the map of block sizes instead: 512 B to 4 MiB, 1 to 128 in flight, a RAM disk
    #[arg(long)]
    map: bool,
    /// List what would be measured, and exit
    #[arg(long)]
    list: bool,
    /// Measure each side for one second
    #[arg(long)]
    quick: bool,
    /// Number of runs of each side
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Measured seconds of each run [default: 3, or 1 with --quick]
    #[arg(long)]
    seconds: Option<f64>,
    /// Write all results as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write each table to a CSV file in this directory
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// farblock's release build [default: beside this program]
    #[arg(long, value_name = "FILE")]
    farblock: Option<PathBuf>,
    /// Directory for the disk file, on a real disk
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    directory: PathBuf,
    /// Size of each disk in MiB
    #[arg(long, default_value_t = DISK_MIB)]
    disk_mib: u64,
    /// Processor for the targets
    #[arg(long, default_value_t = 0)]
    target_cpu: usize,
    /// Processor for the hosts
    #[arg(long, default_value_t = 1)]
    host_cpu: usize,
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let every = if options.map { work::map() } else { work::all() };
    let mut rows = work::choose(every, &options.only);
    if options.list {
        for row in &rows {
            let sides: Vec<&str> = row.sides.iter().map(|side| side.name).collect();
            println!("{}: {}", row.slug(), sides.join(", "));
        }
        if !options.map {
            facts::names().for_each(|name| println!("{name}"));
        }
        return Ok(());
    }
    network::enter();
    allow_many_files();
    let file = DiskFile::create(&options.directory, options.disk_mib)?;
    let means = means(options, &file)?;
    let missing = lacks(&means, &mut rows);
    missing.iter().for_each(|sentence| eprintln!("not measured: {sentence}"));
    let seconds = options.seconds.unwrap_or(if options.quick { 1.0 } else { 3.0 });
    let times = Times {
        ramp: Duration::from_secs_f64(if options.quick { 0.3 } else { 0.7 }),
        runtime: Duration::try_from_secs_f64(seconds).map_err(|_| "--seconds is not a time")?,
    };
    let mut stand = Stand {
        means: &means,
        times,
        rounds: options.rounds.max(1),
        servers: HashMap::new(),
        missing,
        done: 0,
        all: rows.iter().map(|row| row.sides.len()).sum::<usize>() * options.rounds as usize,
        began: Instant::now(),
    };
    let reports = rows.iter().map(|row| stand.measure(row)).collect();
    let missing = std::mem::take(&mut stand.missing);
    drop(stand);
    let facts = if options.map { Vec::new() } else { facts::measure(&means, &options.only) };
    let report = report::Report::new(reports, facts, missing, options.rounds, times);
    if report.is_empty() {
        return Err("no row or side has this name: --list shows the names".to_owned());
    }
    let tables = if options.map { vec![report.map()] } else { report.tables() };
    tables.iter().for_each(|(_, table)| print!("{}", table.report()));
    if let Some(path) = &options.json {
        write(path, &report.json())?;
    }
    match &options.data {
        Some(folder) => tables.iter().try_for_each(|(name, table)| table.write(folder, name)),
        None => Ok(()),
    }
}

/// Raises the limit of open files, because ten thousand connections need as many descriptors.
fn allow_many_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Removes the sides that cannot be measured here. Returns the reasons.
fn lacks(means: &Means, rows: &mut Vec<Row>) -> Vec<String> {
    let mut sentences = Vec::new();
    for row in rows.iter_mut() {
        row.sides.retain(|side| {
            let Some(sentence) = means.lack(*side) else { return true };
            if !sentences.contains(&sentence) {
                sentences.push(sentence);
            }
            false
        });
    }
    rows.retain(|row| !row.sides.is_empty());
    sentences
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("cannot write to {}: {error}", path.display()))
}

fn means(options: &Options, file: &DiskFile) -> Result<Means, String> {
    let xtask = std::env::current_exe()
        .map_err(|error| format!("cannot find the path of xtask: {error}"))?;
    let farblock = options.farblock.clone().unwrap_or_else(|| xtask.with_file_name("farblock"));
    if !farblock.is_file() {
        return Err(format!(
            "{} does not exist: build it with `cargo build --release -p farblock`, or name it with \
             --farblock",
            farblock.display()
        ));
    }
    let cpus = std::thread::available_parallelism().map_or(1, |count| count.get());
    if options.target_cpu == options.host_cpu || cpus < 2 {
        return Err("the target and the host need different processors".to_owned());
    }
    Ok(Means {
        farblock,
        xtask,
        spdk: std::env::var_os("FARBLOCK_SPDK").filter(|path| !path.is_empty()).map(PathBuf::from),
        file: file.0.clone(),
        disk_bytes: options.disk_mib << 20,
        target_cpu: options.target_cpu,
        host_cpu: options.host_cpu,
    })
}

/// The disk file, full of random data. Dropping this removes the file and its copies.
struct DiskFile(PathBuf);

impl DiskFile {
    fn create(directory: &Path, mib: u64) -> Result<DiskFile, String> {
        let path = directory.join(format!("farblock-bench-peers-{}.img", std::process::id()));
        let fill = || {
            let mut random = File::open("/dev/urandom")?;
            let mut file = File::create_new(&path)?;
            let mut chunk = vec![0; 1 << 20];
            for _ in 0..mib {
                random.read_exact(&mut chunk)?;
                file.write_all(&chunk)?;
            }
            file.sync_all()
        };
        let made = DiskFile(path.clone());
        fill().map_err(|error| format!("cannot create {}: {error}", path.display()))?;
        Ok(made)
    }
}

impl Drop for DiskFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
        let _ = fs::remove_file(sides::key_of(&self.0));
        for copy in sides::FILE_COPIES {
            let _ = fs::remove_file(sides::copy_of(&self.0, copy));
            let _ = fs::remove_file(sides::memory_copy_of(&self.0, copy));
        }
    }
}

struct Stand<'a> {
    means: &'a Means,
    times: Times,
    rounds: u32,
    /// The targets that were started, or the reason why one could not start. `None` for a side
    /// without a target.
    servers: HashMap<(Target, Backend), Result<Option<Server>, String>>,
    missing: Vec<String>,
    done: usize,
    all: usize,
    began: Instant,
}

impl Stand<'_> {
    fn measure(&mut self, row: &Row) -> RowReport {
        self.servers.retain(|(_, backend), _| *backend == row.backend);
        let mut sides: Vec<SideReport> = row.sides.iter().map(SideReport::new).collect();
        for round in 0..self.rounds {
            for turn in 0..sides.len() {
                let index = (turn + round as usize) % sides.len();
                let side = row.sides[index];
                let result = match &sides[index].error {
                    Some(_) => None, // the next round would fail, too
                    None => Some(self.run_quietly(side, row)),
                };
                self.done += 1;
                self.tell(row, side, round, result.as_ref());
                match result {
                    Some(Ok(figures)) => sides[index].runs.push(figures),
                    Some(Err(sentence)) => sides[index].error = Some(sentence),
                    None => {}
                }
            }
        }
        for side in &mut sides {
            side.median = measure::median(&side.runs);
        }
        RowReport::new(row, sides)
    }

    /// Runs a side, and repeats the run if there was too much noise. Returns the run with the least
    /// noise.
    fn run_quietly(&mut self, side: Side, row: &Row) -> Result<Figures, String> {
        let key = (side.target, row.backend);
        if !self.servers.contains_key(&key) {
            let server = self.means.serve(side.target, row.backend);
            if let Ok(Some(server)) = &server {
                server.process.pause();
            }
            if let Err(sentence) = &server
                && !self.missing.contains(sentence)
            {
                self.missing.push(sentence.clone());
            }
            self.servers.insert(key, server);
        }
        let server = self.servers[&key].as_ref().map_err(String::clone)?.as_ref();
        let mut best = measure::run(self.means, side, row, server, self.times)?;
        for _ in 1..REPEATS {
            if best.noise_percent <= measure::NOISE_PERCENT {
                break;
            }
            measure::wait_for_quiet();
            let again = measure::run(self.means, side, row, server, self.times)?;
            if again.noise_percent < best.noise_percent {
                best = again;
            }
        }
        Ok(best)
    }

    fn tell(&self, row: &Row, side: Side, round: u32, result: Option<&Result<Figures, String>>) {
        let said = match result {
            Some(Ok(figures)) => {
                let p50 = figures.p50_us.map_or(String::new(), |us| format!(", p50 {us:.1} µs"));
                let noise = match figures.noise_percent {
                    noise if noise > measure::NOISE_PERCENT => {
                        format!(" (NOISE: other processes used {noise:.0} % of a processor)")
                    }
                    _ => String::new(),
                };
                format!("{:.0} IOPS{p50}{noise}", figures.iops)
            }
            Some(Err(sentence)) => sentence.clone(),
            None => "an earlier run failed".to_owned(),
        };
        let each = self.began.elapsed().div_f64(self.done as f64);
        let left = each.mul_f64((self.all - self.done) as f64);
        eprintln!(
            "[{}/{}, {} min left] {} {}, round {}: {said}",
            self.done,
            self.all,
            left.as_secs().div_ceil(60),
            row.slug(),
            side.name,
            round + 1,
        );
    }
}
