//! TLS keys in the kernel's keyrings. nvme-cli stores TLS keys in the keyring `.nvme` for the
//! kernel's own host. The description of each key in the kernel is the PSK identity.
//!
//! A name for keys is `keyring:` followed by an identity or a key's serial number
//! (`keyctl show %:.nvme` shows both). `keyring:` alone stands for all keys of the host and
//! subsystem.
//!
//! The kernel controls access to keys. Keys in `.nvme` belong to root, and a process can read them
//! if it possesses the keyring. So the host first links the keyring to its own process keyring. It
//! ignores readable keys of users other than root and its own user, because any user can create a
//! key with the name of any host.
//!
//! A sandboxed process, which may not read the kernel's keys, asks another process to [`read`] them
//! ([`read_by`]).

use crate::guard::guard;
use crate::system_error::words;
use farblock_proto::host::Identity;
use farblock_secure::TlsPsk;
use linux_keyutils::{Key, KeyError, KeyRing, KeyRingIdentifier, KeySerialId};
use std::fs;
use std::sync::OnceLock;
use zeroize::Zeroizing;

/// The kernel's list of keys visible to this process.
const LIST: &str = "/proc/keys";
const NVME: &str = ".nvme";
/// Key types whose payload is bytes: NVMe's own type, and the type of `keyctl add user`.
const TYPES: [&str; 2] = ["psk", "user"];
/// The user whose keys the host trusts besides its own user.
const ROOT: u32 = 0;
/// The host accepts keys of at most this many bytes. A longer payload is not a valid key.
const KEY_BYTES_MAX: usize = 64;

#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    serial: i32,
    owner: u32,
    kind: String,
    description: String,
}

/// A function that reads the keys that a name selects for a host and a subsystem, like [`read`].
pub type Reader = dyn Fn(&str, &Identity<'_>) -> Result<Vec<TlsPsk>, String> + Send + Sync;

/// The function that [`read_by`] has set.
static READER: OnceLock<Box<Reader>> = OnceLock::new();

/// Sets the function that reads keys from now on. Later calls have no effect.
pub fn read_by(reader: Box<Reader>) {
    let _ = READER.set(reader);
}

/// Reads keys with the function that [`read_by`] has set, or else with [`read`].
pub(crate) fn ask(name: &str, identity: &Identity<'_>) -> Result<Vec<TlsPsk>, String> {
    guard();
    READER.get().map_or_else(|| read(name, identity), |reader| reader(name, identity))
}

/// Reads the keys of `name`, the part after `keyring:`.
///
/// # Errors
/// Returns one sentence with the cause and the remedy. It never contains a part of a key.
pub fn read(name: &str, identity: &Identity<'_>) -> Result<Vec<TlsPsk>, String> {
    let text = fs::read_to_string(LIST);
    let text = text.map_err(|error| {
        let error = words(&error);
        format!("cannot list the kernel's keyrings ({LIST}: {error}): use a file")
    })?;
    let own = KeyRing::from_special_id(KeyRingIdentifier::Process, true);
    let us = own.and_then(|own| own.metadata()).map(|metadata| metadata.get_uid()).ok();
    let is_trusted = |one: &Entry| one.owner == ROOT || Some(one.owner) == us;
    let all: Vec<Entry> = text.lines().filter_map(entry).filter(is_trusted).collect();
    if let Some(nvme) = all.iter().find(|one| one.kind == "keyring" && one.description == NVME) {
        // Ignore a failure: if the process then cannot read a key, that read reports the error.
        let _ = own.and_then(|own| own.link_key(Key::from_id(KeySerialId(nvme.serial))));
    }
    let found = meant(&all, name, identity)?;
    readable(found.into_iter().map(|entry| key(entry, identity)))
}

/// Returns the readable keys, or, if there are none, the first error. Unreadable keys are ignored,
/// because the kernel still lists expired keys.
fn readable(keys: impl Iterator<Item = Result<TlsPsk, String>>) -> Result<Vec<TlsPsk>, String> {
    let (mut found, mut problem) = (Vec::new(), None);
    for key in keys {
        match key {
            Ok(key) => found.push(key),
            Err(reason) => problem = problem.or(Some(reason)),
        }
    }
    match problem {
        Some(problem) if found.is_empty() => Err(problem),
        Some(problem) => {
            tracing::debug!("{problem}");
            Ok(found)
        }
        None => Ok(found),
    }
}

/// Returns the keys for a name, with the newest form of identity first.
fn meant<'a>(
    all: &'a [Entry],
    name: &str,
    identity: &Identity<'_>,
) -> Result<Vec<&'a Entry>, String> {
    let Identity { hostnqn, subnqn, .. } = identity;
    let keys = all.iter().filter(|entry| TYPES.contains(&entry.kind.as_str()));
    let mut found: Vec<_> = match name.parse::<i32>() {
        Ok(serial) => keys.filter(|entry| entry.serial == serial).collect(),
        Err(_) if name.is_empty() => {
            keys.filter(|entry| TlsPsk::is_for(&entry.description, hostnqn, subnqn)).collect()
        }
        Err(_) => keys.filter(|entry| entry.description == name).collect(),
    };
    if found.is_empty() {
        let what = match name {
            "" => format!("no key of {hostnqn} for {subnqn}"),
            name => format!("no key {name}"),
        };
        return Err(format!(
            "the readable keyrings have {what}: list the existing keys with `keyctl show \
             %:.nvme`, or add a key with `nvme check-tls-key --insert` (as root)"
        ));
    }
    // Identities of the form NVMe1 come before identities of the form NVMe0.
    found.sort_by(|one, other| other.description.cmp(&one.description));
    Ok(found)
}

fn key(entry: &Entry, identity: &Identity<'_>) -> Result<TlsPsk, String> {
    let Entry { serial, description, .. } = entry;
    if !TlsPsk::is_for(description, identity.hostnqn, identity.subnqn) {
        return Err(format!(
            "the key {serial} in the keyring is named \"{}\", which is not an identity of {} for \
             {}",
            description.escape_default(),
            identity.hostnqn,
            identity.subnqn
        ));
    }
    let mut payload = Zeroizing::new([0; KEY_BYTES_MAX]);
    let length = Key::from_id(KeySerialId(*serial)).read(&mut *payload);
    let length = length.map_err(|error| {
        let reason = match error {
            KeyError::AccessDenied => "it belongs to root or another user",
            KeyError::KeyExpired => "it has expired: add it or another key again",
            KeyError::KeyRevoked => "it was revoked",
            _ => "the kernel refuses access",
        };
        format!("cannot read the key {serial} in the keyring: {reason}")
    })?;
    // The kernel returns the true length even if it exceeds the buffer.
    let payload = payload.get(..length).unwrap_or(&[]);
    TlsPsk::given(description, payload).ok_or_else(|| {
        format!(
            "the key {serial} in the keyring has {length} bytes, but its identity requires another \
             length: the key must be the pre-shared key itself, as nvme-cli stores it"
        )
    })
}

/// Parses a line of [`LIST`]: number, flags, uses, timeout, permissions, user, group, type,
/// description and details of the type.
fn entry(line: &str) -> Option<Entry> {
    const BEFORE_OWNER: usize = 5;
    let mut rest = line;
    let mut word = || {
        let (word, after) = rest.trim_start().split_once(' ')?;
        rest = after;
        Some(word)
    };
    let serial = i32::from_str_radix(word()?, 16).ok()?;
    for _ in 1..BEFORE_OWNER {
        word()?;
    }
    let owner = word()?.parse().ok()?;
    let _group = word()?;
    let kind = word()?.to_owned();
    let (description, _) = rest.trim_start().rsplit_once(": ")?;
    Some(Entry { serial, owner, kind, description: description.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_secure::{Derivation, Hash, IdentityForm, TlsKey};
    use std::time::{Duration, Instant};

    const HOST: &str = "nqn.2026-11.h:one";
    const DISK: &str = "nqn.2026-11.s:disk";

    fn identity() -> Identity<'static> {
        Identity { hostnqn: HOST, hostid: [1; 16], subnqn: DISK }
    }

    #[test]
    fn keyring_listings_of_the_kernel_are_parsed() {
        let line = "0c7b6e1d I--Q---     1 perm 3f010000     0     0 psk       NVMe1R01 a b c=: 32";
        let expected = Entry {
            serial: 0x0c7b_6e1d,
            owner: 0,
            kind: "psk".to_owned(),
            description: "NVMe1R01 a b c=".to_owned(),
        };
        assert_eq!(entry(line), Some(expected));
        let ring = "14050052 I------     1 perm 0f0b0000     0     0 keyring   .nvme: empty";
        assert_eq!(entry(ring).expect("an entry").description, NVME);
        for cut in 0..line.len() - 4 {
            assert!(entry(&line[..cut]).is_none(), "{}", &line[..cut]);
        }
        assert_eq!(entry(&line.replace("0c7b", "zzzz")), None);
        let theirs = line.replace("     0     0", "  1000     0");
        assert_eq!(entry(&theirs).expect("an entry").owner, 1000);
    }

    #[test]
    fn a_key_name_selects_the_keys_of_this_host_and_subsystem() {
        let of = |serial, kind: &str, description: String| Entry {
            serial,
            owner: 0,
            kind: kind.to_owned(),
            description,
        };
        let all = [
            of(1, "psk", format!("NVMe0R01 {HOST} {DISK}")),
            of(2, "psk", format!("NVMe1R01 {HOST} {DISK} digest=")),
            of(3, "psk", format!("NVMe1R01 {HOST} {DISK}:more digest=")),
            of(4, "logon", format!("NVMe0R01 {HOST} {DISK}")),
            of(5, "user", "something".to_owned()),
        ];
        let found = |name: &str| {
            let found = meant(&all, name, &identity());
            found.map(|found| found.iter().map(|entry| entry.serial).collect::<Vec<_>>())
        };
        assert_eq!(found(""), Ok(vec![2, 1]));
        assert_eq!(found(&all[0].description), Ok(vec![1]));
        assert_eq!(found("3"), Ok(vec![3]));
        for missing in ["4", "77", "NVMe0R02", "-1"] {
            assert!(found(missing).unwrap_err().contains("nvme check-tls-key"), "{missing}");
        }
        // The serial number of a key for another host or subsystem is refused.
        let refused = key(&all[2], &identity()).unwrap_err();
        assert!(refused.contains("not an identity"), "{refused}");
        let refused = key(&all[4], &identity()).unwrap_err();
        assert!(refused.contains("something"), "{refused}");
    }

    #[test]
    fn unreadable_keys_are_skipped_if_another_key_is_readable() {
        let psk = TlsPsk::given("NVMe0R01 h s", &[1; 32]).expect("a key");
        let refused = |why: &str| Err(why.to_owned());
        let mixed = [refused("expired"), Ok(psk.clone())];
        assert_eq!(readable(mixed.into_iter()), Ok(vec![psk]));
        let none = [refused("expired"), refused("another")];
        assert_eq!(readable(none.into_iter()), Err("expired".to_owned()));
    }

    /// Creates a key in this process's keyring. The kernel removes that keyring when the process
    /// ends.
    fn put(description: &str, payload: &[u8]) -> i32 {
        let own = KeyRing::from_special_id(KeyRingIdentifier::Process, true).expect("a keyring");
        own.add_key(description, payload).expect("room for a key").get_id().0
    }

    /// Lets the keys expire one after the other. A read without a serial number skips an expired
    /// key; a read by serial number reports the expiry.
    fn expire_one_after_the_other(host: &str, disk: &str, all: Vec<TlsPsk>) {
        let identity = Identity { hostnqn: host, hostid: [1; 16], subnqn: disk };
        let is_gone = |error: &str| error.contains("it has expired") || error.contains("no key");
        let [expires, stays] = <[TlsPsk; 2]>::try_from(all).expect("two keys");
        let serial = put(&expires.identity, &expires.key);
        Key::from_id(KeySerialId(serial)).set_timeout(1).expect("our own key");
        let deadline = Instant::now() + Duration::from_secs(60);
        while let Ok(found) = read(&serial.to_string(), &identity) {
            assert!(
                found == [expires.clone()] && Instant::now() < deadline,
                "the key never expires"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        let refused = read(&serial.to_string(), &identity).unwrap_err();
        assert!(is_gone(&refused), "{refused}");
        assert_eq!(read("", &identity), Ok(vec![stays.clone()]));
        let last = Key::from_id(KeySerialId(put(&stays.identity, &stays.key)));
        last.invalidate().expect("our own key");
        let refused = read("", &identity).unwrap_err();
        assert!(is_gone(&refused), "{refused}");
    }

    #[test]
    fn keys_are_read_unchanged_from_the_keyring() {
        // Names that no other test uses.
        let (host, disk) = ("nqn.2026-11.h:keyring", "nqn.2026-11.s:keyring");
        let identity = Identity { hostnqn: host, hostid: [1; 16], subnqn: disk };
        assert!(read("", &identity).unwrap_err().contains("no key of nqn.2026-11.h:keyring"));
        for (hash, form) in
            [(Hash::Sha256, IdentityForm::Names), (Hash::Sha384, IdentityForm::Digest)]
        {
            let configured = TlsKey::generate(hash, &mut |out: &mut [u8]| out.fill(7)).unwrap();
            let psk = configured.psk(host, disk, form, Derivation::Specified).unwrap();
            let serial = put(&psk.identity, &psk.key);
            for name in [psk.identity.clone(), serial.to_string()] {
                assert_eq!(read(&name, &identity), Ok(vec![psk.clone()]));
            }
        }
        let all = read("", &identity).expect("two keys");
        assert!(all[0].identity.starts_with("NVMe1R02") && all.len() == 2, "{all:?}");
        expire_one_after_the_other(host, disk, all);
        // These payloads are shorter or longer than their identity requires.
        for length in [1, 31, 33, 48, 64, 65, 1000] {
            let serial = put(&format!("NVMe1R01 {host} {disk} {length}"), &vec![1; length]);
            let refused = read(&serial.to_string(), &identity).unwrap_err();
            assert!(refused.contains(&format!("has {length} bytes")), "{refused}");
        }
    }
}
