//! The trait for sources of processor time.

use std::time::Duration;

/// A source of processor time, which never decreases.
pub trait CpuSource: Send + Sync {
    /// The processor time used so far, by user code and by the kernel on its behalf.
    fn cpu_time(&self) -> Duration;
}
