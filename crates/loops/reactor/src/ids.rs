//! Identifiers of tasks, streams, listeners, files and watched descriptors.

use crate::slab::Key;

macro_rules! identifiers {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub struct $name(pub(crate) Key);
    )*};
}

identifiers! {
    /// A task: a mailbox of events with a "ready" flag. Calls with a removed task do nothing.
    TaskId
    /// A TCP connection. Calls with a closed stream do nothing and return their buffers to the
    /// pool.
    StreamId
    /// A listening socket. Calls with a closed listener do nothing.
    ListenerId
    /// A file or block device. An operation on a removed file fails with
    /// [`io::ErrorKind::NotFound`].
    FileId
    /// A watched descriptor. Calls after `unwatch` do nothing.
    WatchId
}
