//! All limits of the benchmark, with their units.

use std::time::Duration;

/// The maximum depth of one job: the number of I/Os that an NVMe queue can hold.
pub const MAX_IODEPTH: u32 = 65_535;
/// The maximum number of jobs of one pattern.
pub const MAX_NUMJOBS: u32 = 1024;
/// The maximum lag of a job with a fixed rate. The job does not catch up on older I/Os.
pub const MAX_RATE_LAG: Duration = Duration::from_millis(10);
/// The wake-up delay of a job with a fixed rate, equal to the timer slack of a Linux thread. If a
/// wake-up served only one I/O, it would cost more than the I/O.
pub const RATE_SLACK: Duration = Duration::from_micros(50);
/// The largest block size of a pattern, in bytes.
pub const MAX_BLOCK_SIZE_BYTES: u32 = 64 << 20;
/// The maximum memory for the buffers of one pattern, in bytes.
pub const MAX_BUFFER_BYTES: u64 = 4 << 30;
/// The maximum number of averaged runs per pattern.
pub const MAX_RUNS: u32 = 1000;

/// A run fails if its jobs are ready later than this after the given start time.
pub const MAX_LATE: Duration = Duration::from_millis(20);

/// The largest recorded latency. Longer latencies count as this one.
pub const MAX_LATENCY: Duration = Duration::from_secs(3600);
/// The number of significant digits of a latency in the histogram.
pub const LATENCY_DIGITS: u8 = 3;

/// The maximum length of a text to parse a histogram from. This crate writes only shorter texts.
pub const MAX_ENCODED_BYTES: usize = 1 << 20;

/// The time limit for the last I/Os after the end of a run. After this time the run counts as hung.
pub const DRAIN_LIMIT: Duration = Duration::from_secs(30);
/// A time longer than any run: the runtime of a run that ends only by its size.
pub const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// The interval of progress reports, and the maximum delay of a cancellation.
pub const TICK: Duration = Duration::from_millis(200);
/// The interval of processor time samples. If a thread ends between two samples, its time counts up
/// to the first of them.
pub const CPU_SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// The largest I/O of the [floor](crate::floor) (bare sockets), in bytes.
pub const FLOOR_MAX_BYTES: u32 = 16 << 20;
/// The maximum size of one receive of the floor, in bytes.
pub const FLOOR_RECEIVE_BYTES: usize = 256 << 10;
/// The maximum number of connections of one thread of the floor's server.
pub const FLOOR_MAX_CONNECTIONS: usize = 4096;
/// The maximum number of unsent answers of one connection. Above it, the thread stops receiving
/// from the connection.
pub const FLOOR_MAX_UNSENT: usize = 4096;
/// The timeout for the connect to the floor's server, and for its first answer.
pub const FLOOR_CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// The time without data after which the server closes a connection.
pub const FLOOR_IDLE_LIMIT: Duration = Duration::from_secs(60);
/// The time for which an idle thread of the floor spins before it starts to sleep.
pub const FLOOR_TIMEOUT: Duration = Duration::from_millis(500);
/// The duration of each sleep of an idle thread.
pub const FLOOR_NAP: Duration = Duration::from_millis(2);

/// The precision at which [`most_runs`](crate::Plan::most_runs) stops the runs. The 95 % interval
/// of the ratio of the rates then reaches at most this far on either side.
pub(crate) const KNOWN_WITHIN_PERCENT: f64 = 5.0;
