//! Limits of the protocol state machines, each with its unit. The tests check the behaviour at each
//! limit.

/// A command of an I/O queue may have at most this many bytes of in-capsule data. The controller
/// announces the limit in IOCCSZ. In-capsule data saves a round trip, because the controller need
/// not request it. At depth 1, a 64 KiB write takes 37 µs instead of 48 µs, and a 16 KiB write
/// takes 17 µs instead of 31 µs. Above this size the transfer itself takes most of the time, and a
/// queue full of unrequested data would use too much memory.
pub const IN_CAPSULE_BYTES: u32 = 65536;

/// In-capsule data that a controller accepts on its I/O queues over RDMA, in bytes. The controller
/// keeps a receive of this size for each entry of a queue, whether or not a host uses it. Linux
/// nvmet and SPDK have the same size by default.
pub const KEYED_IN_CAPSULE_BYTES: u32 = 4096;

/// A command of the admin queue may have at most this many bytes of in-capsule data. The TCP
/// transport specification fixes this value.
pub const ADMIN_IN_CAPSULE_BYTES: u32 = 8192;

/// A host may send at most this many bytes in one H2CData PDU (MAXH2CDATA). A large value saves
/// headers and costs no memory.
pub const MAX_H2C_DATA_BYTES: u32 = 4 << 20;

/// Until the controller has accepted the Connect command of a connection, at most this many
/// commands may be in flight there.
pub const UNCONNECTED_DEPTH: u16 = 1;

/// A queue has at most this many entries (MQES is one less).
pub const MAX_QUEUE_DEPTH: u16 = 1024;

/// A command transfers at most this many bytes (MDTS).
pub const MAX_TRANSFER_BYTES: u32 = 1 << 20;

/// A framer accepts at most this many bytes in one C2HData or H2CData PDU, which is much more than
/// any transfer. A longer PDU ends the connection.
pub const MAX_PDU_DATA_BYTES: u32 = 64 << 20;
