//! What was tried, and what the floor does as a result.

/// Sizes and thresholds of either end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tuning {
    /// Most bytes of one receive.
    pub(super) receive_bytes: usize,
    pub(super) min_batch: usize,
    pub(super) flush_every: usize,
    pub(super) sndbuf: usize,
    pub(super) rcvbuf: usize,
}

impl Tuning {
    pub(super) fn get() -> Tuning {
        let v = |name: &str, default: usize| {
            std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(default)
        };
        Tuning {
            receive_bytes: v("FL_RECV", 256 << 10),
            min_batch: v("FL_BATCH", 1),
            flush_every: v("FL_FLUSH", 1 << 20),
            sndbuf: v("FL_SNDBUF", 0),
            rcvbuf: v("FL_RCVBUF", 0),
        }
    }
}
