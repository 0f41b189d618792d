//! Messages between a server, its supervisor and the command that waits for them, as JSON over a
//! [`Channel`](super::system::Channel).

use super::status::Offer;
use serde::{Deserialize, Serialize};

/// From a supervisor to a server: to serve at once, or to end later.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct Order {
    /// Resume the work of a dead server, with the descriptor that the supervisor kept.
    pub(super) resume: bool,
    /// Detach and exit as soon as no process uses the disk.
    #[serde(default)]
    pub(super) end: bool,
}

impl Order {
    pub(super) fn serve(resume: bool) -> Order {
        Order { resume, end: false }
    }

    pub(super) fn end() -> Order {
        Order { resume: false, end: true }
    }
}

/// From a server to its supervisor, and from a supervisor to the command that started it.
#[derive(Serialize, Deserialize, Debug)]
pub(super) enum Report {
    /// The disk can be used. The message carries the descriptor to keep.
    Ready(Offer),
    /// The disk cannot be used, for this reason. The process exits.
    Failed(String),
    /// Only this way to attach failed: the disk was connected, and another way may work.
    WayFailed(String),
    /// A progress line.
    Status(String),
    /// The server was asked to end, and waits for the last user.
    Ending(String),
    /// The disk is detached, and the process exits.
    Detached,
}
