//! All limits of TLS, with their units.

use std::time::Duration;

/// The maximum number of bytes from a peer before the handshake is done. A usual handshake needs
/// some kilobytes.
pub const HANDSHAKE_BYTES: usize = 32 << 10;

/// The maximum number of content bytes of a record (RFC 8446, section 5.1).
pub const RECORD_BYTES: usize = 16 << 10;

/// The maximum number of bytes that encryption adds to a record (RFC 8446, section 5.2).
pub const EXPANSION_BYTES: usize = 256;

/// The room that `open` needs to decrypt the content of any record, in bytes.
pub const OPENED_BYTES: usize = RECORD_BYTES + EXPANSION_BYTES;

/// The size of the full records that this crate sends, in bytes.
pub const SEALED_BYTES: usize = 16 << 10;

/// The maximum number of consecutive records without data: tickets, key updates, and empty records.
pub const RECORDS_WITHOUT_DATA: usize = 32;

/// The maximum size of pending answers to key updates, in bytes. This end closes the connection if
/// the peer requests more answers without receiving the pending ones.
pub const UNASKED_BYTES: usize = 16 << 10;

/// The maximum number of keys of one host for one subsystem. A key file has two keys while one
/// replaces the other. An identity may stand for either key, with either of two derivations. The
/// kernel's keyring has an entry for each form of each key's identity, and some entries for
/// discovery.
pub const KEYS_PER_HOST: usize = 8;

/// For discovery, the server tries this many keys of a host at a time. All keys of the host, for
/// any subsystem, are valid for discovery. The limit applies to an identity without a digest, which
/// may stand for each of these keys. An identity with a digest selects one key.
pub const DISCOVERY_KEYS: usize = 8;

/// The server checks at most this many of the identities that a client offers.
pub const IDENTITIES: usize = 8;

/// An error message lists at most this many of the identities that a peer offers.
pub const NAMED_IDENTITIES: usize = 4;

/// An error message shows at most this many characters of an identity.
pub const NAMED_CHARACTERS: usize = 600;

/// After this many records with one key, a client asks for a key update. This is about a third of
/// the limit that RFC 8446 (section 5.5) states for AES-GCM, 2^24.5.
pub const RECORDS_PER_KEY: u64 = 1 << 23;

/// After this many records with one key, a server asks for a key update if the client has not
/// asked. A client without support for updates drops the connection, so the server asks as late as
/// is safe. The remaining records, up to RFC 8446's limit, may arrive before the client answers.
pub const SERVER_RECORDS_PER_KEY: u64 = 23_000_000;

/// The server remembers at most this many hosts that have dropped a connection after a request for
/// a key update.
pub const UNABLE_HOSTS: usize = 1024;

/// The server keeps at most this many generated keys of one host for one subsystem. Each controller
/// of the host has one key, and a host with several paths has several controllers.
pub const GENERATED_KEYS: usize = 32;

/// A generated key that no connection uses remains valid for this time. This time suffices, because
/// a host connects all of its queues at once, and authenticates again if it reconnects later.
pub const GENERATED_TIME: Duration = Duration::from_secs(120);

/// Each end encrypts at most this many data bytes into one buffer before it sends the buffer. The
/// data fills as many full records of 16,362 bytes as fit into 256 KiB with their headers. The
/// buffer is still in the processor's cache when it is sent, and when the next data is sealed into
/// it. Half this size would need more sends, and twice this size was not faster (decision 26).
pub const PORTION_BYTES: usize = 15 * (SEALED_BYTES - 22);
