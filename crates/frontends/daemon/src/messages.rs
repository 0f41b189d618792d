//! Messages between an attachment's server, its supervisor, and the `farblock attach` command that
//! waits for the disk. They are JSON over a [`Channel`](super::system::Channel).

use super::status::Offer;
use serde::{Deserialize, Serialize};

/// A supervisor's message to a server: serve the disk, or exit later.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct Order {
    /// Resume the work of a dead server. Attached to the message is the descriptor that the
    /// supervisor has kept for this.
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
    /// The disk is usable. The supervisor keeps the descriptor attached to the message, for the
    /// next server.
    Ready(Offer),
    /// The disk is not usable, for this reason. The sender exits.
    Failed(String),
    /// The server connected to the disk, but this way to attach failed. Another way may work.
    WayFailed(String),
    /// A line about progress, for the user.
    Status(String),
    /// A request to exit has arrived, and the server waits for the disk's last user.
    Ending(String),
    /// The disk is detached, and the sender exits.
    Detached,
}
