//! A claim on blocks. See [`crate::claims`].

use crate::backings::BackingId;
use crate::route::Route;
use farblock_proto::controller::SubsystemId;
use farblock_proto::ids::NamespaceId;
use std::ops::Range;

/// A range of blocks that only the connection `route` may change while the claim is granted.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Claim {
    pub(crate) id: u64,
    pub(crate) backing: BackingId,
    pub(crate) subsystem: SubsystemId,
    pub(crate) namespace: NamespaceId,
    pub(crate) blocks: Range<u64>,
    pub(crate) route: Route,
}
