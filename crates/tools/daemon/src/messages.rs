//! What a server, its supervisor and the command that waits for them tell each other, as JSON over
//! a [`Channel`](super::system::Channel).

use super::status::Offer;
use serde::{Deserialize, Serialize};

/// What a supervisor tells a server: at once to serve, and later to end.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct Order {
    /// A predecessor died, whose work is to be gone on with. With what was kept of it.
    pub(super) resume: bool,
    /// Detach and end, when nobody uses the disk any more.
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

/// What a server tells its supervisor, and a supervisor who started it.
#[derive(Serialize, Deserialize, Debug)]
pub(super) enum Report {
    /// The disk can be used. With what is to be kept in case that the server dies.
    Ready(Offer),
    /// It cannot be, and this is why. The process ends.
    Failed(String),
    /// The same, of the way alone: the disk was connected, and another way may do.
    WayFailed(String),
    /// How it is going, in a line.
    Status(String),
    /// It is to end, and does when nobody uses the disk any more.
    Ending(String),
    /// The disk is detached, and the process ends.
    Detached,
}
