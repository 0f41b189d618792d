//! Messages between a server, its supervisor, and the waiting `farblock attach` command, as JSON
//! over a [`Channel`](super::system::Channel).

use super::status::Offer;
use serde::{Deserialize, Serialize};

/// A supervisor's message to a server: to serve now, or to end later.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct Order {
    /// Resume the work of a dead server. The message carries the descriptor that the supervisor
    /// kept.
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

/// A message from a server to its supervisor, or from a supervisor to the command that started it.
#[derive(Serialize, Deserialize, Debug)]
pub(super) enum Report {
    /// The disk is usable. The message carries the descriptor that the supervisor keeps for the
    /// next server.
    Ready(Offer),
    /// The disk is not usable, for this reason. The sender exits.
    Failed(String),
    /// Only this way to attach failed: the server had connected the disk, so another way may work.
    WayFailed(String),
    /// A progress line.
    Status(String),
    /// The server received a request to end, and waits for the last user.
    Ending(String),
    /// The disk is detached, and the sender exits.
    Detached,
}
