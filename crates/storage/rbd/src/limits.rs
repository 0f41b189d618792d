//! Time limits and length limits.

use std::time::Duration;

/// Time to find the cluster's monitors and log in, in seconds.
pub const CONNECT_SECONDS: u32 = 10;
/// Time to open an image. We give up a slower one, and close it when the open call returns.
pub const OPEN: Duration = Duration::from_secs(20);
/// Time to close images when the process ends. The cluster notices an unclosed one after 30 s.
pub const CLOSE: Duration = Duration::from_secs(5);
/// The visible part of an image: the largest namespace, in whole blocks of any size. Ceph's own
/// limit is larger, and an image takes no space until it is written.
pub const IMAGE_BYTES: u64 = (1 << 63) - (1 << 16);
/// The length of a part of an image's name, in bytes.
pub const NAME_BYTES: usize = 255;
