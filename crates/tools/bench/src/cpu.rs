//! Processor time and memory of the processes and threads of a measurement.
//!
//! The kernel's threads for an io_uring (`iou-wrk-N`, `iou-sqp-N`; N is the thread that created the
//! ring) are threads of the process. Their time counts for whole processes, and for a thread group
//! that contains N. In a PID namespace a worker's name has the N of the outer namespace, so there
//! workers count for the process only. As in any accounting, time in interrupts and in the kernel's
//! network threads is charged to no process.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cpu_time::ProcessTime;
use serde::{Deserialize, Serialize};

pub use crate::cpu_source::CpuSource;
#[cfg(target_os = "linux")]
pub use crate::proc_fs::{OtherProcess, ThreadGroup, resident_memory_bytes};
#[cfg(windows)]
pub use crate::windows::{OtherProcess, ThreadGroup, resident_memory_bytes};

/// This process with all threads, including those that have ended. Works on every system.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThisProcess;

impl CpuSource for ThisProcess {
    fn cpu_time(&self) -> Duration {
        ProcessTime::try_now().map_or(Duration::ZERO, |time| time.as_duration())
    }
}

/// A source minus a part of it: the process without the threads of its target.
#[derive(Clone)]
pub struct Without {
    whole: Arc<dyn CpuSource>,
    part: Arc<dyn CpuSource>,
}

impl Without {
    /// `whole` without `part`.
    pub fn new(whole: Arc<dyn CpuSource>, part: Arc<dyn CpuSource>) -> Without {
        Without { whole, part }
    }
}

impl CpuSource for Without {
    fn cpu_time(&self) -> Duration {
        // Read the part first: its work in between then counts for the rest, so the difference is
        // never negative.
        let part = self.part.cpu_time();
        self.whole.cpu_time().saturating_sub(part)
    }
}

/// Measurements beside the I/Os of one side. All are optional and cheap.
#[derive(Clone)]
pub struct Meters {
    /// The host: load generator, initiator, and the rest of this side without the target.
    pub host_cpu: Option<Arc<dyn CpuSource>>,
    /// The target of this side, if it runs on this machine.
    pub target_cpu: Option<Arc<dyn CpuSource>>,
    /// The host's process, for its resident memory.
    pub host_process: Option<u32>,
    /// The target's process, for its resident memory, if it is a separate process.
    pub target_process: Option<u32>,
}

impl Default for Meters {
    /// The host is this process, without a target.
    fn default() -> Meters {
        Meters {
            host_cpu: Some(Arc::new(ThisProcess)),
            target_cpu: None,
            host_process: Some(std::process::id()),
            target_process: None,
        }
    }
}

impl Meters {
    /// The target is part of this process: `target` reads its threads, and the host has all others.
    pub fn embedded(target: Arc<dyn CpuSource>) -> Meters {
        let host = Without::new(Arc::new(ThisProcess), Arc::clone(&target));
        Meters { host_cpu: Some(Arc::new(host)), target_cpu: Some(target), ..Meters::default() }
    }

    /// The target is a separate process on this machine.
    #[cfg(any(target_os = "linux", windows))]
    pub fn separate(target_process: u32) -> std::io::Result<Meters> {
        let target = OtherProcess::new(target_process)?;
        Ok(Meters {
            target_cpu: Some(Arc::new(target)),
            target_process: Some(target_process),
            ..Meters::default()
        })
    }

    pub(crate) fn read(&self) -> Readings {
        let read = |source: &Option<Arc<dyn CpuSource>>| source.as_ref().map(|s| s.cpu_time());
        let (host, target) = (read(&self.host_cpu), read(&self.target_cpu));
        Readings { host, target, sleeps: sleeps() }
    }

    pub(crate) fn host_memory_bytes(&self) -> Option<u64> {
        self.host_process.and_then(resident_memory_bytes)
    }

    pub(crate) fn target_memory_bytes(&self) -> Option<u64> {
        self.target_process.and_then(resident_memory_bytes)
    }
}

impl fmt::Debug for Meters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meters")
            .field("host_cpu", &self.host_cpu.is_some())
            .field("target_cpu", &self.target_cpu.is_some())
            .field("host_process", &self.host_process)
            .field("target_process", &self.target_process)
            .finish()
    }
}

/// All clocks of [`Meters`], read at nearly the same time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Readings {
    pub(crate) host: Option<Duration>,
    pub(crate) target: Option<Duration>,
    pub(crate) sleeps: Option<u64>,
}

/// Voluntary sleeps of this process's threads, where the system reports them.
fn sleeps() -> Option<u64> {
    #[cfg(target_os = "linux")]
    return crate::proc_fs::sleeps();
    #[cfg(not(target_os = "linux"))]
    None
}

/// Processor use of a host or target in one run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuUse {
    /// In percent of one core: 200 is two busy cores.
    pub percent_of_core: f64,
    /// Processor time per I/O in microseconds.
    pub us_per_io: f64,
}

impl CpuUse {
    /// Converts processor time `used` in `elapsed`, at this rate of I/Os per second; `None` if
    /// nothing ran.
    pub fn new(used: Duration, elapsed: Duration, iops: f64) -> Option<CpuUse> {
        if elapsed.is_zero() || iops <= 0.0 {
            return None;
        }
        let cores = used.as_secs_f64() / elapsed.as_secs_f64();
        Some(CpuUse { percent_of_core: cores * 100.0, us_per_io: cores * 1e6 / iops })
    }
}

/// Resident memory of a process, where the system reports it.
#[cfg(not(any(target_os = "linux", windows)))]
pub fn resident_memory_bytes(_process: u32) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(u64);

    impl CpuSource for Fixed {
        fn cpu_time(&self) -> Duration {
            Duration::from_millis(self.0)
        }
    }

    #[test]
    fn use_is_relative_to_time_and_work() {
        let half = CpuUse::new(Duration::from_millis(500), Duration::from_secs(1), 100_000.0);
        assert_eq!(half, Some(CpuUse { percent_of_core: 50.0, us_per_io: 5.0 }));
        assert_eq!(CpuUse::new(Duration::from_secs(1), Duration::ZERO, 1.0), None);
        assert_eq!(CpuUse::new(Duration::from_secs(1), Duration::from_secs(1), 0.0), None);
    }

    #[test]
    fn a_part_is_taken_out_of_the_whole() {
        let without =
            |whole, part| Without::new(Arc::new(Fixed(whole)), Arc::new(Fixed(part))).cpu_time();
        assert_eq!(without(30, 10), Duration::from_millis(20));
        assert_eq!(without(10, 30), Duration::ZERO);
    }

    #[test]
    fn this_process_uses_time() {
        let before = ThisProcess.cpu_time();
        while ThisProcess.cpu_time() == before {
            std::hint::black_box(0);
        }
    }

    #[test]
    fn embedded_meters_read_both() {
        let readings = Meters::embedded(Arc::new(Fixed(0))).read();
        assert_eq!(readings.target, Some(Duration::ZERO));
        assert!(readings.host.is_some());
    }
}
