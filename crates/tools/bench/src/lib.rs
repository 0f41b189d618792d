//! The benchmark: compares a remote disk with a local one.
//!
//! [`compare()`] runs the same load on a local [`Namespace`](farblock_block::Namespace) and on a
//! remote one, and returns a [`Report`]. The report contains I/Os per second, throughput, latency
//! percentiles, and processor time per I/O of host and target. It also has the figures of the
//! remote side as a percentage of the local side. A plan with a [`floor`] (bare sockets) also
//! measures the limit that the network sets for any block server. The report can be converted to
//! JSON ([`Report::to_json`]), a text table ([`table::render`]) or a self-contained page
//! ([`html::render`]). [`verdict`] compares two reports.
//!
//! ```no_run
//! # fn open(_: &str) -> std::sync::Arc<dyn farblock_block::Namespace> { unimplemented!() }
//! use farblock_bench::{Cancel, Plan, Side, Snapshot, compare, table};
//!
//! let local = Side::new(open("disk.img"));
//! let remote = Side::new(open("nvme+tcp://server/nqn.2026-11.io.farblock:disk"));
//! let plan = Plan { allow_writes: true, ..Plan::quick() };
//! let mut progress = |s: &Snapshot<'_>| eprintln!("{}: {:.0} IOPS", s.pattern.name, s.iops);
//! let report = compare(&plan, Some(&local), Some(&remote), &Cancel::new(), &mut progress)?;
//! print!("{}", table::render(&report));
//! # Ok::<(), farblock_bench::BenchError>(())
//! ```
//!
//! # Contract
//!
//! - A job is a thread with one reactor. It keeps its depth in flight on one or several queues,
//!   sleeps in the reactor when it cannot submit an I/O, and does not allocate per I/O.
//! - The benchmark writes to a namespace only if [`Plan::allow_writes`] is set or the namespace is
//!   marked as [made for the benchmark](Side::scratch).
//! - An I/O error ends its run and appears in the report. A benchmark never ignores errors.
//! - The benchmark checks ranges, sizes and memory before the first I/O.
//!
//! # Limits
//!
//! The benchmark does not verify data, trim, set think times, use several namespaces per side, or
//! start jobs on other machines. It does not pin its threads. Processor time per thread is
//! available on Linux and Windows only. On other systems it is the time of the whole process.

#![cfg_attr(not(windows), forbid(unsafe_code))]
#![cfg_attr(windows, deny(unsafe_code))]

mod addresses;
mod bottleneck;
mod compare;
pub mod cpu;
mod cpu_source;
mod error;
pub mod floor;
mod format;
mod generator;
pub mod html;
mod job;
mod latency;
pub mod limits;
pub mod load;
mod machine;
mod pattern;
mod plan;
#[cfg(target_os = "linux")]
mod proc_fs;
mod progress;
#[cfg(feature = "recorded")]
mod recorded;
mod result;
mod slots;
mod spread;
pub mod table;
#[cfg(test)]
mod testing;
mod times;
pub mod verdict;
#[cfg(windows)]
#[allow(unsafe_code, reason = "no crate with few dependencies offers these calls of Windows")]
mod windows;
mod wrap;

pub use compare::compare;
pub use cpu::{CpuSource, CpuUse, Meters};
pub use error::{BenchError, RunError};
pub use format::{group, iops, jobs_and_depth, seconds, tenths, us, whole};
pub use generator::THREAD_NAME_PREFIX;
pub use latency::{Latencies, LatencySummary};
pub use machine::{Machine, available_bytes, command_line, cores, utc};
pub use pattern::{Pattern, Rw};
pub use plan::{Plan, Side};
pub use progress::{Cancel, Phase, Progress, SideName, Silent, Snapshot};
#[cfg(feature = "recorded")]
pub use recorded::RecordedLatencies;
pub use result::{Failure, Figures, Method, PatternReport, Percent, Report, RunFigures, SCHEMA};
