//! The kinds of log notices about peers. The number of notices of each kind is limited.

use farblock_proto::ids::NamespaceId;
use farblock_reactor::notices;
pub(crate) use farblock_reactor::notices::origin;
use std::time::Duration;

pub(crate) type Notices = notices::Notices<NoticeKind>;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum NoticeKind {
    /// The target could not accept or serve a connection.
    NotServed,
    /// The target refused or closed a connection to make room for others.
    NoRoom,
    /// The target refused a queue.
    Refused,
    /// The peer violated the protocol, or reported that the target did.
    Fault,
    /// A peer exceeded a timeout.
    Late,
    /// A namespace's store failed.
    Storage(NamespaceId),
    /// A host connected or disconnected.
    Visit,
}

/// The maximum number of log lines per [`VISITS_PERIOD`] about hosts of one address that connect
/// and disconnect. The limit is needed because a host that cannot use a namespace may reconnect
/// forever.
const VISIT_LINES: u32 = 30;

/// The period of [`VISIT_LINES`].
const VISITS_PERIOD: Duration = Duration::from_secs(600);

impl notices::LoggedKind for NoticeKind {
    fn plural(self) -> &'static str {
        match self {
            NoticeKind::NotServed => "connections that the target could not serve",
            NoticeKind::NoRoom => "connections refused or closed for lack of room",
            NoticeKind::Refused => "queues refused",
            NoticeKind::Fault => "protocol errors",
            NoticeKind::Late => "connections that exceeded a timeout",
            NoticeKind::Storage(_) => "operations that failed in the storage",
            NoticeKind::Visit => "connects and disconnects of hosts",
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
