//! Every limit of TLS, with its unit.

use std::time::Duration;

/// What a peer may send before the handshake is done, in bytes: some kilobytes are usual.
pub const HANDSHAKE_BYTES: usize = 32 << 10;

/// Plain bytes in a record (RFC 8446, section 5.1).
pub const RECORD_BYTES: usize = 16 << 10;

/// How much more the sealed body of a record may have (RFC 8446, section 5.2), in bytes.
pub const EXPANSION_BYTES: usize = 256;

/// Room for whatever a record has, in bytes.
pub const OPENED_BYTES: usize = RECORD_BYTES + EXPANSION_BYTES;

/// A whole record of ours that is full, in bytes.
pub const SEALED_BYTES: usize = 16 << 10;

/// Records in a row that bring no data: tickets, updates of keys, and empty ones.
pub const RECORDS_WITHOUT_DATA: usize = 32;

/// What is to be sent and was not written, in bytes: answers to key updates. Whoever has more of
/// them made than it takes is done with.
pub const UNASKED_BYTES: usize = 16 << 10;

/// Keys of one host for one subsystem: of a file two while one takes the other's place, and an
/// identity may stand for either, made in either of two ways. A keyring has one for each form of an
/// identity, of each key, and some for discovery.
pub const KEYS_PER_HOST: usize = 8;

/// Keys of one host that are tried at a time for discovery, where those for any subsystem are good,
/// when the identity has no digest and so may stand for each of them. One with a digest finds its
/// own.
pub const DISCOVERY_KEYS: usize = 8;

/// Identities of a client that are looked at.
pub const IDENTITIES: usize = 8;

/// Identities of a peer that a message names.
pub const NAMED_IDENTITIES: usize = 4;

/// Characters of an identity in a message.
pub const NAMED_CHARACTERS: usize = 600;

/// Records that a client has sealed or opened with a key when it asks for new ones: half of what
/// RFC 8446 (section 5.5) advises for AES-GCM, 2^24.5.
pub const RECORDS_PER_KEY: u64 = 1 << 23;

/// The same for a server, which begins with those that do not by themselves, as late as is good: a
/// client that knows no updates is lost by that. What comes until it answers is room enough.
pub const SERVER_RECORDS_PER_KEY: u64 = 23_000_000;

/// Hosts that were lost when they were asked for new keys, and are remembered.
pub const UNABLE_HOSTS: usize = 1024;

/// Keys that came of the authentications of one host for one subsystem: one for each of its
/// controllers, of which a host has some by several paths.
pub const GENERATED_KEYS: usize = 32;

/// How long after it was made a key that came of an authentication opens connections when none has
/// it: the host's queues come at once, and a host that reconnects later authenticates anew.
pub const GENERATED_TIME: Duration = Duration::from_secs(120);

/// Bytes of data that are sealed into one buffer and sent before more are: full records of 16,362,
/// as many as 256 KiB hold with what they have besides. The buffer is then in the processor's cache
/// when it is sent, and again when the next one is sealed into it. Half as much costs more sends,
/// twice as much gains nothing (decision 26).
pub const PORTION_BYTES: usize = 15 * (SEALED_BYTES - 22);
