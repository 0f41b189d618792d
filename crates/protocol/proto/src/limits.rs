//! Every limit of the protocol machines, with its unit. What happens at each is tested.

/// In-capsule data that a controller accepts on its I/O queues, in bytes (what IOCCSZ announces).
/// What is in the capsule need not be asked for, which takes a round trip: a 64 KiB write at depth
/// 1 takes 37 us instead of 48, one of 16 KiB 17 instead of 31. Beyond that the transfer itself
/// takes most of the time, and a queue's worth of data that nobody asked for would be a lot.
pub const IN_CAPSULE_BYTES: u32 = 65536;

/// In-capsule data on the admin queue, in bytes: fixed by the TCP transport specification.
pub const ADMIN_IN_CAPSULE_BYTES: u32 = 8192;

/// Largest H2CData payload that a controller asks for, in bytes (MAXH2CDATA).
/// A large value saves headers; the host splits, so no memory hangs on it.
pub const MAX_H2C_DATA_BYTES: u32 = 4 << 20;

/// Commands that a connection may have before its Connect command was accepted.
pub const UNCONNECTED_DEPTH: u16 = 1;

/// Largest queue depth, in entries (MQES is one less).
pub const MAX_QUEUE_DEPTH: u16 = 1024;

/// Largest data transfer of one command, in bytes (MDTS).
pub const MAX_TRANSFER_BYTES: u32 = 1 << 20;

/// Largest C2HData or H2CData payload that a framer lets in, in bytes: far above any transfer, so
/// that a length is refused before anything is reserved for it.
pub const MAX_PDU_DATA_BYTES: u32 = 64 << 20;
