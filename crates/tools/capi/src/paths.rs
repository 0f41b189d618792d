//! The state of a disk and its paths, for programs that show the state or react to it.

use farblock_host::disk::{DiskState, PathState, PathStatus};
use std::ffi::c_char;
use std::sync::atomic::{AtomicU32, Ordering};

/// The size in bytes of the text in `fb_path_info.error`, including its zero byte.
pub const FB_ERROR_BYTES: usize = 256;

/// The state of a disk as a whole: a value of `fb_info.state`.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fb_disk_state {
    /// Every path is connected.
    Live = 1,
    /// Some paths are connected, and some are not.
    Degraded = 2,
    /// No path is connected, and operations wait.
    Waiting = 3,
    /// The library has given up every path, and operations fail.
    Dead = 4,
}

/// The state of a path: a value of `fb_path_info.state`.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fb_path_state {
    /// The path has never been connected.
    Connecting = 1,
    /// The path is connected.
    Live = 2,
    /// The connection of the path was lost, and the library is reconnecting.
    Reconnecting = 3,
    /// The library has given up the path.
    Dead = 4,
}

/// Describes a path. Set `size` to `sizeof(fb_path_info)` before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fb_path_info {
    /// Set this to `sizeof(fb_path_info)`. The library then knows your version of the structure.
    pub size: usize,
    /// The path's URL. Valid until fb_disconnect.
    pub url: *const c_char,
    /// The time for which the path has been in this state, in milliseconds.
    pub since_ms: u64,
    /// The number of times that the library has reconnected the path.
    pub reconnects: u64,
    /// The state of the path: an `fb_path_state`.
    pub state: u32,
    /// The path's access to the namespace (ANA: 1 optimized, 2 non-optimized, 3 inaccessible, 4
    /// persistent loss, 15 change); 0 if the path is not connected.
    pub access: u32,
    /// The reason why the path was last lost or could not be connected, in UTF-8. Empty if there
    /// was no error.
    pub error: [c_char; FB_ERROR_BYTES],
}

impl fb_path_info {
    pub(crate) fn new(status: &PathStatus, url: *const c_char) -> fb_path_info {
        fb_path_info {
            size: size_of::<fb_path_info>(),
            url,
            since_ms: u64::try_from(status.since.as_millis()).unwrap_or(u64::MAX),
            reconnects: status.reconnects,
            state: fb_path_state::from(status.state) as u32,
            access: status.access.map_or(0, |access| access.0.into()),
            error: array(status.error.as_deref().unwrap_or_default()),
        }
    }
}

impl From<DiskState> for fb_disk_state {
    fn from(state: DiskState) -> fb_disk_state {
        match state {
            DiskState::Live => fb_disk_state::Live,
            DiskState::Degraded => fb_disk_state::Degraded,
            DiskState::Waiting => fb_disk_state::Waiting,
            DiskState::Dead => fb_disk_state::Dead,
        }
    }
}

impl From<PathState> for fb_path_state {
    fn from(state: PathState) -> fb_path_state {
        match state {
            PathState::Connecting => fb_path_state::Connecting,
            PathState::Live => fb_path_state::Live,
            PathState::Reconnecting => fb_path_state::Reconnecting,
            PathState::Dead => fb_path_state::Dead,
        }
    }
}

/// The start of a text, with as many whole characters as fit, padded with zeroes.
fn array(text: &str) -> [c_char; FB_ERROR_BYTES] {
    let mut array = [0; FB_ERROR_BYTES];
    let end = text.floor_char_boundary(FB_ERROR_BYTES - 1);
    for (place, byte) in array.iter_mut().zip(text[..end].bytes()) {
        *place = if byte == 0 { b'?' } else { byte } as c_char;
    }
    array
}

/// The queue limits that the controllers have granted. While no path is connected, the limits that
/// were granted last.
#[derive(Default)]
pub(crate) struct Grants {
    queues: AtomicU32,
    queue_depth: AtomicU32,
}

impl Grants {
    /// The maximum numbers of queues, and of commands in flight on each queue: the smallest limits
    /// of all connected paths.
    pub(crate) fn of(&self, paths: &[PathStatus]) -> (u16, u16) {
        let least = |last: &AtomicU32, number: fn(&PathStatus) -> u16| {
            let live = paths.iter().filter(|path| path.state == PathState::Live);
            if let Some(least) = live.map(number).min() {
                last.store(least.into(), Ordering::Relaxed);
            }
            last.load(Ordering::Relaxed) as u16
        };
        (least(&self.queues, |path| path.queues), least(&self.queue_depth, |path| path.queue_depth))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_errors_are_cut_between_characters() {
        let text = |array: &[c_char]| {
            let bytes: Vec<u8> = array.iter().map(|&byte| byte as u8).collect();
            let end =
                bytes.iter().position(|&byte| byte == 0).expect("the text ends with a zero byte");
            String::from_utf8(bytes[..end].to_vec()).expect("the text is UTF-8")
        };
        assert_eq!(text(&array("")), "");
        assert_eq!(text(&array("no\0thing")), "no?thing");
        let long = text(&array(&"ä".repeat(200)));
        assert_eq!(long, "ä".repeat(127));
    }
}
