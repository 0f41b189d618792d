//! Where processor time is read.

use std::time::Duration;

/// A source of processor time, which never decreases.
pub trait CpuSource: Send + Sync {
    /// Processor time used so far, by user code and by the kernel on its behalf.
    fn cpu_time(&self) -> Duration;
}
