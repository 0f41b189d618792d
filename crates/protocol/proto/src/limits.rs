//! Every limit of the protocol machines, with its unit. Tests cover the behaviour at each limit.

/// In-capsule data that a controller accepts on its I/O queues, in bytes (IOCCSZ announces it). The
/// controller need not request in-capsule data, which saves a round trip: a 64 KiB write at depth 1
/// takes 37 us instead of 48, a 16 KiB write 17 us instead of 31. Above this size the transfer
/// itself takes most of the time, and a queue full of unrequested data would use too much memory.
pub const IN_CAPSULE_BYTES: u32 = 65536;

/// In-capsule data on the admin queue, in bytes: fixed by the TCP transport specification.
pub const ADMIN_IN_CAPSULE_BYTES: u32 = 8192;

/// Largest H2CData payload that a controller requests, in bytes (MAXH2CDATA). A large value saves
/// headers and costs no memory.
pub const MAX_H2C_DATA_BYTES: u32 = 4 << 20;

/// Commands in flight that a connection may have before its Connect command is accepted.
pub const UNCONNECTED_DEPTH: u16 = 1;

/// Largest queue depth, in entries (MQES is one less).
pub const MAX_QUEUE_DEPTH: u16 = 1024;

/// Largest data transfer of one command, in bytes (MDTS).
pub const MAX_TRANSFER_BYTES: u32 = 1 << 20;

/// Largest C2HData or H2CData payload that a framer accepts, in bytes. This is far above any
/// transfer. The framer checks the length before it reserves memory.
pub const MAX_PDU_DATA_BYTES: u32 = 64 << 20;
