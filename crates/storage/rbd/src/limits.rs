//! Limits of times and lengths.

use std::time::Duration;

/// Time limit for finding the cluster's monitors and logging in, in seconds.
pub const CONNECT_SECONDS: u32 = 10;
/// Time limit for opening an image. Afterwards the open fails, and an image that opens later is
/// closed.
pub const OPEN: Duration = Duration::from_secs(20);
/// Time limit for closing images at process exit. If an image stays open, the cluster notices after
/// 30 s that its client is dead.
pub const CLOSE: Duration = Duration::from_secs(5);
/// The largest namespace in bytes, a multiple of every block size. The rest of a larger image is
/// not visible. Ceph's own limit is larger, because an image takes no space before it is written.
pub const IMAGE_BYTES: u64 = (1 << 63) - (1 << 16);
/// The longest component of an image's name, in bytes.
pub const NAME_BYTES: usize = 255;
