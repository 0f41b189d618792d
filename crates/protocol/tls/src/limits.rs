//! Every limit of TLS, with its unit.

use std::time::Duration;

/// Most bytes from a peer before the handshake is done. A usual handshake needs some kilobytes.
pub const HANDSHAKE_BYTES: usize = 32 << 10;

/// Most content bytes of a record (RFC 8446, section 5.1).
pub const RECORD_BYTES: usize = 16 << 10;

/// The most bytes by which encryption may lengthen a record (RFC 8446, section 5.2).
pub const EXPANSION_BYTES: usize = 256;

/// Room for the content of any record while `open` decrypts it, in bytes.
pub const OPENED_BYTES: usize = RECORD_BYTES + EXPANSION_BYTES;

/// The size of the full records that this crate sends, in bytes.
pub const SEALED_BYTES: usize = 16 << 10;

/// Most consecutive records without data: tickets, key updates, and empty ones.
pub const RECORDS_WITHOUT_DATA: usize = 32;

/// Most bytes of pending answers to key updates. An end closes the connection if the peer requests
/// more answers without receiving them.
pub const UNASKED_BYTES: usize = 16 << 10;

/// Most keys of one host for one subsystem. A file has two keys while one replaces the other, and
/// an identity may stand for either, with either of two derivations. A keyring has a key for each
/// form of each key's identity, and some for discovery.
pub const KEYS_PER_HOST: usize = 8;

/// Keys of one host that the server tries at a time for discovery, where the host's keys for all
/// subsystems are valid. The limit applies to an identity without a digest, which may stand for
/// each of these keys. An identity with a digest selects one key.
pub const DISCOVERY_KEYS: usize = 8;

/// Most identities of a client that the server checks.
pub const IDENTITIES: usize = 8;

/// Most identities of a peer in an error message.
pub const NAMED_IDENTITIES: usize = 4;

/// Most characters of an identity in an error message.
pub const NAMED_CHARACTERS: usize = 600;

/// Records with one key after which a client asks for a key update: half of the limit that RFC 8446
/// (section 5.5) recommends for AES-GCM, 2^24.5.
pub const RECORDS_PER_KEY: u64 = 1 << 23;

/// Records with one key after which a server asks a client that has not asked itself. It asks as
/// late as is safe, because a client without support for updates drops the connection. The rest, up
/// to RFC 8446's limit, is for records that arrive before the client answers.
pub const SERVER_RECORDS_PER_KEY: u64 = 23_000_000;

/// Most hosts that the server remembers for dropping a connection after a request for a key update.
pub const UNABLE_HOSTS: usize = 1024;

/// Most generated keys of one host for one subsystem. Each controller of the host has one, and a
/// host with several paths has several controllers.
pub const GENERATED_KEYS: usize = 32;

/// The time for which a generated key remains valid without a connection. A host connects its
/// queues at once, and a host that reconnects later authenticates again.
pub const GENERATED_TIME: Duration = Duration::from_secs(120);

/// Bytes of data that are sealed into one buffer and sent before more are sealed: full records of
/// 16,362 bytes, as many as 256 KiB hold with their headers. The buffer is then still in the
/// processor's cache when it is sent, and when the next data is sealed into it. Half this size
/// costs more sends, twice this size gains nothing (decision 26).
pub const PORTION_BYTES: usize = 15 * (SEALED_BYTES - 22);
