//! Limits of the protocol state machines, each with its unit. The tests check the behaviour at each
//! limit.

/// Largest in-capsule data on I/O queues, in bytes. The controller announces it in IOCCSZ.
/// In-capsule data saves a round trip, because the controller need not request it. A 64 KiB write
/// at depth 1 takes 37 us instead of 48 us, a 16 KiB write 17 us instead of 31 us. Above this size
/// the transfer itself takes most of the time, and a queue full of unrequested data would use too
/// much memory.
pub const IN_CAPSULE_BYTES: u32 = 65536;

/// In-capsule data that a controller accepts on its I/O queues over RDMA, in bytes. The controller
/// keeps a receive of this size for each entry of a queue, whether or not a host uses it. Linux
/// nvmet and SPDK have the same size by default.
pub const KEYED_IN_CAPSULE_BYTES: u32 = 4096;

/// Largest in-capsule data on the admin queue, in bytes. The TCP transport specification fixes this
/// value.
pub const ADMIN_IN_CAPSULE_BYTES: u32 = 8192;

/// Largest H2CData payload that a controller requests, in bytes (MAXH2CDATA). A large value saves
/// headers and costs no memory.
pub const MAX_H2C_DATA_BYTES: u32 = 4 << 20;

/// Number of commands that may be in flight on a connection before the controller accepts its
/// Connect command.
pub const UNCONNECTED_DEPTH: u16 = 1;

/// Largest queue depth, in entries (MQES is one less).
pub const MAX_QUEUE_DEPTH: u16 = 1024;

/// Largest data transfer of one command, in bytes (MDTS).
pub const MAX_TRANSFER_BYTES: u32 = 1 << 20;

/// Largest C2HData or H2CData payload that a framer accepts, in bytes. It is much larger than any
/// transfer. The framer checks the length before it allocates memory.
pub const MAX_PDU_DATA_BYTES: u32 = 64 << 20;
