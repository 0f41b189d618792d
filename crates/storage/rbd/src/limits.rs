//! How long things may take, and how long names may be.

use std::time::Duration;

/// For the cluster's monitors to be found and to let us in, in seconds.
pub const CONNECT_SECONDS: u32 = 10;
/// For opening an image as a whole. What takes longer is given up, and closed when it ends.
pub const OPEN: Duration = Duration::from_secs(20);
/// For images to be closed when the process ends. The cluster finds out about one that was not
/// after 30 s.
pub const CLOSE: Duration = Duration::from_secs(5);
/// What is seen of an image: what a namespace may have, in whole blocks of any size. Ceph's own
/// limit is larger, and an image takes no space until it is written.
pub const IMAGE_BYTES: u64 = (1 << 63) - (1 << 16);
/// A part of an image's name, in bytes.
pub const NAME_BYTES: usize = 255;
