//! Every bound of the benchmark, with its unit.

use std::time::Duration;

/// The maximum depth of one job: the number of I/Os that an NVMe queue can hold.
pub const MAX_IODEPTH: u32 = 65_535;
/// The most jobs of one pattern.
pub const MAX_NUMJOBS: u32 = 1024;
/// The maximum lag of a job with a fixed rate; it does not catch up on older I/Os.
pub const MAX_RATE_LAG: Duration = Duration::from_millis(10);
/// The wake-up delay of a job with a fixed rate, equal to the timer slack of a Linux thread. A
/// wake-up for every single I/O would cost more than the I/O.
pub const RATE_SLACK: Duration = Duration::from_micros(50);
/// The largest block of a pattern.
pub const MAX_BLOCK_SIZE_BYTES: u32 = 64 << 20;
/// The most memory that the buffers of one pattern may take.
pub const MAX_BUFFER_BYTES: u64 = 4 << 30;
/// The maximum number of averaged runs per pattern.
pub const MAX_RUNS: u32 = 1000;

/// The maximum delay of a run's start after an agreed time.
pub const MAX_LATE: Duration = Duration::from_millis(20);

/// Longer latencies are recorded as this one.
pub const MAX_LATENCY: Duration = Duration::from_secs(3600);
/// Digits of a latency that the histogram keeps.
pub const LATENCY_DIGITS: u8 = 3;

/// The longest text that a histogram is parsed from: the longest that this crate writes is shorter.
pub const MAX_ENCODED_BYTES: usize = 1 << 20;

/// The limit for the last I/Os of a run after its end; then the run counts as hung.
pub const DRAIN_LIMIT: Duration = Duration::from_secs(30);
/// Longer than any run: the runtime of a run that only its size ends.
pub const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// The interval of progress reports, and the longest delay of a cancellation.
pub const TICK: Duration = Duration::from_millis(200);
/// The interval of processor time samples: threads that end between two samples count up to the
/// first.
pub const CPU_SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// The largest I/O of the floor.
pub const FLOOR_MAX_BYTES: u32 = 16 << 20;
/// The maximum size of one receive of the floor.
pub const FLOOR_RECEIVE_BYTES: usize = 256 << 10;
/// The most connections that one thread of the floor's server holds.
pub const FLOOR_MAX_CONNECTIONS: usize = 4096;
/// The most unsent answers of one connection, before its thread stops receiving from it.
pub const FLOOR_MAX_UNSENT: usize = 4096;
/// The timeout of connecting to the floor's server, and of its first answer.
pub const FLOOR_CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// The longest silence of a connection before the server closes it.
pub const FLOOR_IDLE_LIMIT: Duration = Duration::from_secs(60);
/// The time that an idle thread of the floor spins before it starts to sleep.
pub const FLOOR_TIMEOUT: Duration = Duration::from_millis(500);
/// The length of each sleep after that.
pub const FLOOR_NAP: Duration = Duration::from_millis(2);

/// [`most_runs`](crate::Plan::most_runs): runs stop when the 95 % interval of the rates' ratio
/// reaches at most this far on either side.
pub(crate) const KNOWN_WITHIN_PERCENT: f64 = 5.0;
