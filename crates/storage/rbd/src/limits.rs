//! Time limits and length limits.

use std::time::Duration;

/// Time to find the cluster's monitors and log in, in seconds.
pub const CONNECT_SECONDS: u32 = 10;
/// Time to open an image. After that the open fails; a late image is closed.
pub const OPEN: Duration = Duration::from_secs(20);
/// Time to close images at process exit. The cluster notices after 30 s that a client of an
/// unclosed image is dead.
pub const CLOSE: Duration = Duration::from_secs(5);
/// The largest namespace, a multiple of every block size; the rest of a larger image is not
/// visible. Ceph's own limit is larger, and an image takes no space until it is written.
pub const IMAGE_BYTES: u64 = (1 << 63) - (1 << 16);
/// The longest part of an image's name, in bytes.
pub const NAME_BYTES: usize = 255;
