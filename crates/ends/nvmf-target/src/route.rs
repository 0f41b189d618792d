//! Identifiers of connections and of their commands, for messages between cores.

use farblock_proto::capsule::SlotId;

/// The number of a connection on its core. The core reuses the number of a closed connection for
/// another connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ConnectionKey(pub(crate) u32);

/// The number of low bits of a block operation's token that hold the slot. The other bits hold the
/// connection.
const TOKEN_SLOT_BITS: u32 = 16;

/// Returns the token for the operations of `slot` of connection `key`.
pub(crate) fn token(key: ConnectionKey, slot: SlotId) -> u64 {
    u64::from(key.0) << TOKEN_SLOT_BITS | u64::from(slot.0)
}

pub(crate) fn token_owner(token: u64) -> (ConnectionKey, SlotId) {
    (ConnectionKey((token >> TOKEN_SLOT_BITS) as u32), SlotId(token as u16))
}

/// The address of a connection. The serial number distinguishes the connection from a later one
/// with the same key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Route {
    pub(crate) core: usize,
    pub(crate) key: ConnectionKey,
    pub(crate) serial: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking {
    pub(crate) route: Route,
    pub(crate) slot: SlotId,
}
