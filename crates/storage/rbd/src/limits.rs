//! Limits on times and lengths.

use std::time::Duration;

/// Time limit for finding the cluster's monitors and logging in, in seconds.
pub const CONNECT_SECONDS: u32 = 10;
/// Time limit for opening an image. Afterwards the open fails. If librbd opens the image later,
/// farblock closes it.
pub const OPEN: Duration = Duration::from_secs(20);
/// Time limit for closing images at process exit. If an image stays open, the cluster notices after
/// 30 s that its client is dead.
pub const CLOSE: Duration = Duration::from_secs(5);
/// A namespace has at most this many bytes, which is a multiple of every block size. If an image is
/// larger, which Ceph allows, the rest is not visible.
pub const IMAGE_BYTES: u64 = (1 << 63) - (1 << 16);
/// Each component of an image's name has at most this many bytes.
pub const NAME_BYTES: usize = 255;
