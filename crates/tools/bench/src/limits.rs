//! Every bound of the benchmark, with its unit.

use std::time::Duration;

/// The deepest queue of one job, as many I/Os as NVMe lets one queue hold.
pub const MAX_IODEPTH: u32 = 65_535;
/// The most jobs of one pattern.
pub const MAX_NUMJOBS: u32 = 1024;
/// How far a job with a fixed rate may be behind before it gives up catching up.
pub const MAX_RATE_LAG: Duration = Duration::from_millis(10);
/// How late a job with a fixed rate wakes up, as any sleeping thread of Linux may be: a wake-up for
/// each single I/O would cost more than the I/O.
pub const RATE_SLACK: Duration = Duration::from_micros(50);
/// The largest block of a pattern.
pub const MAX_BLOCK_SIZE_BYTES: u32 = 64 << 20;
/// The most memory that the buffers of one pattern may take.
pub const MAX_BUFFER_BYTES: u64 = 4 << 30;
/// The most runs of one pattern that are averaged.
pub const MAX_RUNS: u32 = 1000;

/// How much after an agreed start a run may begin.
pub const MAX_LATE: Duration = Duration::from_millis(20);

/// What a latency is recorded as if it was longer.
pub const MAX_LATENCY: Duration = Duration::from_secs(3600);
/// Digits of a latency that the histogram keeps.
pub const LATENCY_DIGITS: u8 = 3;

/// The longest text that a histogram is read from: with every count at its largest, ours has less.
pub const MAX_ENCODED_BYTES: usize = 1 << 20;

/// How long the last I/Os of a run may take after its end, before the run counts as hung.
pub const DRAIN_LIMIT: Duration = Duration::from_secs(30);
/// Longer than any run: the runtime of one that only its size ends.
pub const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Time between two reports of progress, and the longest that a cancellation goes unseen.
pub const TICK: Duration = Duration::from_millis(200);
/// Time between two looks at the processor time, so that threads that end meanwhile are counted.
pub const CPU_SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// The largest I/O of the floor.
pub const FLOOR_MAX_BYTES: u32 = 16 << 20;
/// The most that one receive of the floor asks for.
pub const FLOOR_RECEIVE_BYTES: usize = 256 << 10;
/// The most connections that one thread of the floor's server holds.
pub const FLOOR_MAX_CONNECTIONS: usize = 4096;
/// The most answers that wait for one of them to take them, before it is not listened to.
pub const FLOOR_MAX_UNSENT: usize = 4096;
/// How long connecting to the floor's server may take, and its first answer.
pub const FLOOR_CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How long one of them may be silent before it is disconnected.
pub const FLOOR_IDLE_LIMIT: Duration = Duration::from_secs(60);
/// How long a thread of the floor looks for work without finding any before it begins to sleep.
pub const FLOOR_PATIENCE: Duration = Duration::from_millis(500);
/// How long it then sleeps between two looks.
pub const FLOOR_NAP: Duration = Duration::from_millis(2);

/// [`most_runs`](crate::Plan::most_runs): enough is known when the 95 % interval of the rates'
/// ratio reaches so far on either side.
pub(crate) const KNOWN_WITHIN_PERCENT: f64 = 5.0;
