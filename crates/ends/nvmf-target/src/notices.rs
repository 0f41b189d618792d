//! Kinds of things that the target logs about its peers, so many of each.

use farblock_proto::ids::NamespaceId;
use farblock_reactor::notices;
pub(crate) use farblock_reactor::notices::origin;
use std::time::Duration;

/// What is logged about peers, and counted.
pub(crate) type Notices = notices::Notices<NoticeKind>;

/// A kind of thing that is logged about a peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum NoticeKind {
    /// A connection could not be accepted or served.
    NotServed,
    /// A connection was refused or given up since others need its place.
    NoRoom,
    /// A queue was refused.
    Refused,
    /// A peer broke the protocol, or says that we did.
    Fault,
    /// A peer took too long.
    Late,
    /// A namespace's storage failed.
    Storage(NamespaceId),
    /// A host has come, or gone.
    Visit,
}

/// Lines about hosts of one address that come and go, in a [`VISITS_PERIOD`]: one that cannot use
/// what it finds comes again and again.
const VISIT_LINES: u32 = 30;

/// See [`VISIT_LINES`].
const VISITS_PERIOD: Duration = Duration::from_secs(600);

impl notices::LoggedKind for NoticeKind {
    fn plural(self) -> &'static str {
        match self {
            NoticeKind::NotServed => "connections that could not be served",
            NoticeKind::NoRoom => "connections for which there was no room",
            NoticeKind::Refused => "queues refused",
            NoticeKind::Fault => "protocol errors",
            NoticeKind::Late => "connections that were too slow",
            NoticeKind::Storage(_) => "operations that the storage failed",
            NoticeKind::Visit => "times that a host came or went",
        }
    }

    fn lines(self) -> u32 {
        match self {
            NoticeKind::Storage(_) => 1,
            NoticeKind::Visit => VISIT_LINES,
            _ => notices::LOGGED_LINES,
        }
    }

    fn period(self) -> Duration {
        if self == NoticeKind::Visit { VISITS_PERIOD } else { notices::LOG_PERIOD }
    }

    fn is_trouble(self) -> bool {
        self != NoticeKind::Visit
    }
}
