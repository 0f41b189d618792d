//! Newtypes for the protocol's numbers, so that the compiler detects mix-ups.

use core::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// Command identifier (CID): chosen by the host, unique among a queue's commands in flight.
    CommandId(u16)
);
id!(
    /// Namespace identifier (NSID): 1-based; `0xffff_ffff` means all.
    NamespaceId(u32)
);
id!(
    /// Queue identifier (QID): 0 is the admin queue.
    QueueId(u16)
);
id!(
    /// Controller identifier (CNTLID), unique in its subsystem.
    ControllerId(u16)
);
id!(
    /// Logical block address.
    Lba(u64)
);
id!(
    /// A number of logical blocks, 1-based.
    BlockCount(u32)
);

impl NamespaceId {
    /// The broadcast value: all namespaces.
    pub const ALL: Self = Self(0xffff_ffff);
}
