//! Keys for TLS in the kernel's keyrings, as nvme-cli puts them into `.nvme` for the kernel's own
//! host: the pre-shared key itself, and its identity as its name.
//!
//! A name is `keyring:` and then nothing (the keys of the host and subsystem that are connected),
//! an identity, or a key's number (`keyctl show %:.nvme` has both). Who may see and read a key is
//! the kernel's to say; those in `.nvme` are root's, and read by whoever has that keyring, so it is
//! linked to the process first. Keys of other users are passed over, whoever may read them: anybody
//! can make one with the name of any host.
//!
//! A process that gave up asking the kernel has another one ask ([`read_by`], [`read`]).

use farblock_proto::host::Identity;
use farblock_secure::TlsPsk;
use linux_keyutils::{Key, KeyError, KeyRing, KeyRingIdentifier, KeySerialId};
use std::fs;
use std::sync::OnceLock;
use zeroize::Zeroizing;

/// What the kernel lists of the keys that this process may see.
const LIST: &str = "/proc/keys";
/// The keyring of NVMe.
const NVME: &str = ".nvme";
/// Types of keys with a payload of bytes: NVMe's own, and what `keyctl add user` makes.
const TYPES: [&str; 2] = ["psk", "user"];
/// The user whose keys everybody believes.
const ROOT: u32 = 0;
/// Bytes of the longest payload that is a key.
const KEY_BYTES_MAX: usize = 64;

/// A key as the kernel lists it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    serial: i32,
    owner: u32,
    kind: String,
    description: String,
}

/// Who reads the keys of a name for a host and a subsystem, as [`read`] does.
pub type Reader = dyn Fn(&str, &Identity<'_>) -> Result<Vec<TlsPsk>, String> + Send + Sync;

/// Who reads in the place of this process.
static READER: OnceLock<Box<Reader>> = OnceLock::new();

/// Has somebody else read keys from now on, for the process's life; the first one who is named.
pub fn read_by(reader: Box<Reader>) {
    let _ = READER.set(reader);
}

/// [`read`], by whoever is to do that.
pub(crate) fn ask(name: &str, identity: &Identity<'_>) -> Result<Vec<TlsPsk>, String> {
    crate::key_file::guard();
    READER.get().map_or_else(|| read(name, identity), |reader| reader(name, identity))
}

/// Reads the keys that `name`, what comes behind `keyring:`, stands for.
///
/// # Errors
/// One sentence that says what is wrong and what to do; never with a part of a key.
pub fn read(name: &str, identity: &Identity<'_>) -> Result<Vec<TlsPsk>, String> {
    let text = fs::read_to_string(LIST);
    let text = text.map_err(|error| {
        let error = crate::error::words(&error);
        format!("the kernel has no keyrings that can be looked at ({LIST}: {error}): use a file")
    })?;
    let own = KeyRing::from_special_id(KeyRingIdentifier::Process, true);
    let us = own.and_then(|own| own.metadata()).map(|metadata| metadata.get_uid()).ok();
    let is_trusted = |one: &Entry| one.owner == ROOT || Some(one.owner) == us;
    let all: Vec<Entry> = text.lines().filter_map(entry).filter(is_trusted).collect();
    if let Some(nvme) = all.iter().find(|one| one.kind == "keyring" && one.description == NVME) {
        // Without that its keys can be seen, and perhaps not read, which is said then.
        let _ = own.and_then(|own| own.link_key(Key::from_id(KeySerialId(nvme.serial))));
    }
    let found = meant(&all, name, identity)?;
    readable(found.into_iter().map(|entry| key(entry, identity)))
}

/// Those that can be read: one that has expired, or is about to go, is listed still, and does not
/// keep the others away. If there are none, why not.
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

/// The keys that a name stands for, those first that say most.
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
            "the keyrings that can be looked at here have {what}: `keyctl show %:.nvme` lists what \
             there is, `nvme check-tls-key --insert` adds one (as root)"
        ));
    }
    // NVMe1 is ahead of NVMe0.
    found.sort_by(|one, other| other.description.cmp(&one.description));
    Ok(found)
}

/// Reads a key.
fn key(entry: &Entry, identity: &Identity<'_>) -> Result<TlsPsk, String> {
    let Entry { serial, description, .. } = entry;
    if !TlsPsk::is_for(description, identity.hostnqn, identity.subnqn) {
        return Err(format!(
            "the key {serial} in the keyring is called \"{}\", which is not an identity of {} for \
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
            KeyError::AccessDenied => "it is root's, or another user's",
            KeyError::KeyExpired => "it has expired: put it there again, or another one",
            KeyError::KeyRevoked => "it was revoked",
            _ => "the kernel does not give it",
        };
        format!("cannot read the key {serial} in the keyring: {reason}")
    })?;
    // More than there is room for is told all the same.
    let payload = payload.get(..length).unwrap_or(&[]);
    TlsPsk::given(description, payload).ok_or_else(|| {
        format!(
            "the key {serial} in the keyring has {length} bytes, which is not what its identity \
             says: it has to be the pre-shared key itself, as nvme-cli puts it there"
        )
    })
}

/// A line of [`LIST`]: number, flags, uses, timeout, permissions, user, group, type, then the
/// description and what the type adds to it.
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
    fn lines_of_the_kernel() {
        let line = "0c7b6e1d I--Q---     1 perm 3f010000     0     0 psk       NVMe1R01 a b c=: 32";
        let expected = Entry {
            serial: 0x0c7b_6e1d,
            owner: 0,
            kind: "psk".to_owned(),
            description: "NVMe1R01 a b c=".to_owned(),
        };
        assert_eq!(entry(line), Some(expected));
        let ring = "14050052 I------     1 perm 0f0b0000     0     0 keyring   .nvme: empty";
        assert_eq!(entry(ring).expect("it is one").description, NVME);
        for cut in 0..line.len() - 4 {
            assert!(entry(&line[..cut]).is_none(), "{}", &line[..cut]);
        }
        assert_eq!(entry(&line.replace("0c7b", "zzzz")), None);
        let theirs = line.replace("     0     0", "  1000     0");
        assert_eq!(entry(&theirs).expect("it is one").owner, 1000);
    }

    #[test]
    fn a_name_stands_for_the_right_keys() {
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
        // A number that is somebody else's.
        let refused = key(&all[2], &identity()).unwrap_err();
        assert!(refused.contains("not an identity"), "{refused}");
        let refused = key(&all[4], &identity()).unwrap_err();
        assert!(refused.contains("something"), "{refused}");
    }

    #[test]
    fn keys_that_cannot_be_read_keep_no_others_away() {
        let psk = TlsPsk::given("NVMe0R01 h s", &[1; 32]).expect("a key");
        let refused = |why: &str| Err(why.to_owned());
        let mixed = [refused("expired"), Ok(psk.clone())];
        assert_eq!(readable(mixed.into_iter()), Ok(vec![psk]));
        let none = [refused("expired"), refused("another")];
        assert_eq!(readable(none.into_iter()), Err("expired".to_owned()));
    }

    /// A key in this process's keyring, gone with it.
    fn put(description: &str, payload: &[u8]) -> i32 {
        let own = KeyRing::from_special_id(KeyRingIdentifier::Process, true).expect("a keyring");
        own.add_key(description, payload).expect("room for a key").get_id().0
    }

    /// An expired key is passed over while there is a good one, and said to be expired by its
    /// number; the kernel lists it for a while, or not any more.
    fn expire_one_after_the_other(host: &str, disk: &str, all: Vec<TlsPsk>) {
        let identity = Identity { hostnqn: host, hostid: [1; 16], subnqn: disk };
        let is_gone = |error: &str| error.contains("it has expired") || error.contains("no key");
        let [expires, stays] = <[TlsPsk; 2]>::try_from(all).expect("there are two");
        let serial = put(&expires.identity, &expires.key);
        Key::from_id(KeySerialId(serial)).set_timeout(1).expect("it is ours");
        let deadline = Instant::now() + Duration::from_secs(60);
        while let Ok(found) = read(&serial.to_string(), &identity) {
            assert!(found == [expires.clone()] && Instant::now() < deadline, "it stays");
            std::thread::sleep(Duration::from_millis(50));
        }
        let refused = read(&serial.to_string(), &identity).unwrap_err();
        assert!(is_gone(&refused), "{refused}");
        assert_eq!(read("", &identity), Ok(vec![stays.clone()]));
        let last = Key::from_id(KeySerialId(put(&stays.identity, &stays.key)));
        last.invalidate().expect("it is ours");
        let refused = read("", &identity).unwrap_err();
        assert!(is_gone(&refused), "{refused}");
    }

    #[test]
    fn keys_are_read_as_they_were_put_there() {
        // Names that no other test has.
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
        let all = read("", &identity).expect("there are two");
        assert!(all[0].identity.starts_with("NVMe1R02") && all.len() == 2, "{all:?}");
        expire_one_after_the_other(host, disk, all);
        // Neither one that is too short nor too long for what it says it is.
        for length in [1, 31, 33, 48, 64, 65, 1000] {
            let serial = put(&format!("NVMe1R01 {host} {disk} {length}"), &vec![1; length]);
            let refused = read(&serial.to_string(), &identity).unwrap_err();
            assert!(refused.contains(&format!("has {length} bytes")), "{refused}");
        }
    }
}
