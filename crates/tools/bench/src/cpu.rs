//! Processor time and memory of the processes and threads of a measurement.
//!
//! The kernel's threads for an io_uring (`iou-wrk-N`, `iou-sqp-N`) are threads of the process. N is
//! the number of the thread that created the ring. Their time counts for whole processes, and for a
//! thread group that contains thread N. In a PID namespace, N is a number of the outer namespace,
//! so there these threads count for the process only. As in any accounting, no process is charged
//! for the time in interrupts and in the kernel's network threads.

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

/// This process with all of its threads, including finished threads. Works on every system.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThisProcess;

impl CpuSource for ThisProcess {
    fn cpu_time(&self) -> Duration {
        ProcessTime::try_now().map_or(Duration::ZERO, |time| time.as_duration())
    }
}

/// The processor time of a source without a part of the source, such as a process without the
/// threads of its target.
#[derive(Clone)]
pub struct Without {
    whole: Arc<dyn CpuSource>,
    part: Arc<dyn CpuSource>,
}

impl Without {
    /// Creates a source for `whole` without `part`.
    pub fn new(whole: Arc<dyn CpuSource>, part: Arc<dyn CpuSource>) -> Without {
        Without { whole, part }
    }
}

impl CpuSource for Without {
    fn cpu_time(&self) -> Duration {
        // Read the part first, so that the difference is never negative. Time that the part uses
        // between the two readings is not subtracted.
        let part = self.part.cpu_time();
        self.whole.cpu_time().saturating_sub(part)
    }
}

/// The sources of one side's processor time and memory use. Each is optional, and cheap to read.
#[derive(Clone)]
pub struct Meters {
    /// The processor time of the host: load generator, initiator, and all else except for the
    /// target.
    pub host_cpu: Option<Arc<dyn CpuSource>>,
    /// The processor time of the target, if it runs on this machine.
    pub target_cpu: Option<Arc<dyn CpuSource>>,
    /// The process ID of the host, for its resident memory.
    pub host_process: Option<u32>,
    /// The process ID of the target, for its resident memory, if it is a separate process.
    pub target_process: Option<u32>,
}

impl Default for Meters {
    /// The meters for a host that is this process, without a target.
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
    /// The meters for a target in this process. `target` reads the target's threads, and all other
    /// threads count for the host.
    pub fn embedded(target: Arc<dyn CpuSource>) -> Meters {
        let host = Without::new(Arc::new(ThisProcess), Arc::clone(&target));
        Meters { host_cpu: Some(Arc::new(host)), target_cpu: Some(target), ..Meters::default() }
    }

    /// The meters for a target that is a separate process on this machine.
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

/// The readings of all [`Meters`] at nearly the same time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Readings {
    pub(crate) host: Option<Duration>,
    pub(crate) target: Option<Duration>,
    pub(crate) sleeps: Option<u64>,
}

/// The number of voluntary sleeps of this process's threads; `None` if the system does not report
/// it.
fn sleeps() -> Option<u64> {
    #[cfg(target_os = "linux")]
    return crate::proc_fs::sleeps();
    #[cfg(not(target_os = "linux"))]
    None
}

/// The processor use of a host or target in one run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuUse {
    /// The utilization in percent of one core: 200 means two busy cores.
    pub percent_of_core: f64,
    /// The processor time per I/O, in microseconds.
    pub us_per_io: f64,
}

impl CpuUse {
    /// Computes the use from the processor time `used` in `elapsed`, at `iops`. `None` if there
    /// were no I/Os.
    pub fn new(used: Duration, elapsed: Duration, iops: f64) -> Option<CpuUse> {
        if elapsed.is_zero() || iops <= 0.0 {
            return None;
        }
        let cores = used.as_secs_f64() / elapsed.as_secs_f64();
        Some(CpuUse { percent_of_core: cores * 100.0, us_per_io: cores * 1e6 / iops })
    }
}

/// The resident memory of a process, in bytes; `None` if the system does not report it.
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
    fn processor_use_is_relative_to_time_and_ios() {
        let half = CpuUse::new(Duration::from_millis(500), Duration::from_secs(1), 100_000.0);
        assert_eq!(half, Some(CpuUse { percent_of_core: 50.0, us_per_io: 5.0 }));
        assert_eq!(CpuUse::new(Duration::from_secs(1), Duration::ZERO, 1.0), None);
        assert_eq!(CpuUse::new(Duration::from_secs(1), Duration::from_secs(1), 0.0), None);
    }

    #[test]
    fn the_time_of_a_part_is_subtracted_from_the_whole() {
        let without =
            |whole, part| Without::new(Arc::new(Fixed(whole)), Arc::new(Fixed(part))).cpu_time();
        assert_eq!(without(30, 10), Duration::from_millis(20));
        assert_eq!(without(10, 30), Duration::ZERO);
    }

    #[test]
    fn the_processor_time_of_this_process_grows() {
        let before = ThisProcess.cpu_time();
        while ThisProcess.cpu_time() == before {
            std::hint::black_box(0);
        }
    }

    #[test]
    fn embedded_meters_report_host_and_target() {
        let readings = Meters::embedded(Arc::new(Fixed(0))).read();
        assert_eq!(readings.target, Some(Duration::ZERO));
        assert!(readings.host.is_some());
    }
}
