//! Reads TLS keys from the kernel's keyrings for a process that dropped the right to read them.

use super::{Broker, Message};
use crate::error::Result;
use crate::sandbox;
use farblock_host::keyring;
use farblock_proto::host::Identity;
use farblock_secure::TlsPsk;
use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use zeroize::Zeroizing;

/// The subcommand of this broker. Its arguments are the NQNs of the subsystems whose keys it may
/// return. Without arguments, it returns the keys of all subsystems.
pub const PART: &str = "keys";

/// The first byte of an answer with keys.
const KEYS: u8 = 0;
const REFUSED: u8 = 1;

#[derive(Serialize, Deserialize)]
struct Wanted {
    name: String,
    hostnqn: String,
    subnqn: String,
}

/// Makes this process read keyring keys only through `broker`.
pub fn ask_by(broker: Arc<Broker>) {
    keyring::read_by(Box::new(move |name, identity| ask(&broker, name, identity)));
}

/// Whether [`refuse`] forbade this process to read keyrings.
static NOBODY_ASKS: AtomicBool = AtomicBool::new(false);

/// Whether this process can read keys from keyrings.
pub fn may_ask() -> bool {
    !NOBODY_ASKS.load(Ordering::Relaxed)
}

/// Refuses all later reads of keyrings, with `why` as the reason.
pub fn refuse(why: &'static str) {
    NOBODY_ASKS.store(true, Ordering::Relaxed);
    keyring::read_by(Box::new(move |_, _| Err(why.to_owned())));
}

fn ask(broker: &Broker, name: &str, identity: &Identity<'_>) -> Result<Vec<TlsPsk>, String> {
    let wanted = Wanted {
        name: name.to_owned(),
        hostnqn: identity.hostnqn.to_owned(),
        subnqn: identity.subnqn.to_owned(),
    };
    let wanted = serde_json::to_vec(&wanted).expect("our own types can be written as JSON");
    let gone = |_| {
        "the helper process that reads the kernel's keyring has exited: restart this process"
            .to_owned()
    };
    let answer = broker.ask(&wanted, &[]).map_err(gone)?;
    parse(&answer.bytes)
        .unwrap_or_else(|| Err("the answer with the keyring's keys is malformed".to_owned()))
}

/// Runs the broker process, which returns keys of these subsystems, or of all if the list is empty.
pub fn run(subsystems: &[String]) -> Result<()> {
    sandbox::holds_keys();
    stay_in_memory();
    super::run(|request| {
        let read = match serde_json::from_slice::<Wanted>(&request.bytes) {
            Ok(wanted) => read(&wanted, subsystems),
            Err(_) => Err("this is not a request for a key".to_owned()),
        };
        Message { bytes: emit(&read), ..Message::default() }
    })
}

/// Locks this process's memory, so that the kernel writes no key to swap. Does nothing if a limit
/// on locked memory applies, because later allocations could fail.
fn stay_in_memory() {
    use rustix::mm::{MlockAllFlags, mlockall};
    let is_unlimited = getrlimit(Resource::Memlock).current.is_none();
    if !is_unlimited && !rustix::process::geteuid().is_root() {
        return;
    }
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    if let Err(error) = mlockall(all) {
        tracing::debug!("swap may contain keys: {error}");
    }
}

fn read(wanted: &Wanted, subsystems: &[String]) -> Result<Vec<TlsPsk>, String> {
    let Wanted { name, hostnqn, subnqn } = wanted;
    if !subsystems.is_empty() && !subsystems.contains(subnqn) {
        return Err(format!("the server of another disk may not read keys for {subnqn}"));
    }
    // The two NQNs alone identify a key, so the host identifier can be zero.
    keyring::read(name, &Identity { hostnqn, subnqn, hostid: [0; 16] })
}

/// Serializes an answer: a byte for its kind, then an error sentence or the keys. Each key has the
/// lengths of its identity and its secret (two bytes each), the identity, and the secret. No
/// intermediate buffer holds a copy of a secret.
fn emit(read: &Result<Vec<TlsPsk>, String>) -> Zeroizing<Vec<u8>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(super::MESSAGE_BYTES_MAX));
    match read {
        Err(sentence) => {
            bytes.push(REFUSED);
            bytes.extend(sentence.bytes().take(super::MESSAGE_BYTES_MAX - 1));
        }
        Ok(keys) => {
            bytes.push(KEYS);
            for key in keys {
                let parts = [key.identity.as_bytes(), &key.key[..]];
                let needed = parts.iter().map(|part| 2 + part.len()).sum::<usize>();
                // Drop the keys that do not fit in a message: no real host has so many.
                if bytes.len() + needed > super::MESSAGE_BYTES_MAX {
                    break;
                }
                for part in parts {
                    bytes.extend((part.len() as u16).to_le_bytes());
                }
                parts.iter().for_each(|part| bytes.extend_from_slice(part));
            }
        }
    }
    bytes
}

/// Parses the output of [`emit`]. Returns `None` if it is malformed.
fn parse(bytes: &[u8]) -> Option<Result<Vec<TlsPsk>, String>> {
    let (kind, mut rest) = bytes.split_first()?;
    if *kind != KEYS {
        return Some(Err(String::from_utf8_lossy(rest).into_owned()));
    }
    let mut take = |count: usize| {
        let (part, after) = rest.split_at_checked(count)?;
        rest = after;
        Some(part)
    };
    let mut keys = Vec::new();
    while let Some(lengths) = take(4) {
        let length = |at: usize| usize::from(u16::from_le_bytes([lengths[at], lengths[at + 1]]));
        let identity = std::str::from_utf8(take(length(0))?).ok()?;
        keys.push(TlsPsk::given(identity, take(length(2))?)?);
    }
    rest.is_empty().then_some(Ok(keys))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serialized_keys_parse_to_the_same_keys() {
        let psk = |identity: &str, bytes| {
            TlsPsk::given(identity, &vec![7; bytes]).expect("the key is valid")
        };
        for keys in [
            vec![],
            vec![psk("NVMe0R01 h s", 32)],
            vec![psk("NVMe1R02 h s d", 48), psk("NVMe0R01 h s", 32)],
        ] {
            let bytes = emit(&Ok(keys.clone()));
            assert_eq!(parse(&bytes), Some(Ok(keys.clone())));
            for cut in 0..bytes.len() {
                let cut = parse(&bytes[..cut]);
                assert!(cut.is_none_or(|it| it.is_ok_and(|it| it.len() < keys.len())));
            }
        }
        assert_eq!(parse(&emit(&Err("no".to_owned()))), Some(Err("no".to_owned())));
    }

    #[test]
    fn keys_of_other_subsystems_are_refused() {
        let wanted = |subnqn: &str| Wanted {
            name: String::new(),
            hostnqn: "nqn.2026-11.h:broker".to_owned(),
            subnqn: subnqn.to_owned(),
        };
        let only = ["nqn.2026-11.s:one".to_owned()];
        let refused = read(&wanted("nqn.2026-11.s:two"), &only).unwrap_err();
        assert!(refused.contains("another disk"), "{refused}");
        for (subsystem, given) in [("nqn.2026-11.s:one", &only[..]), ("nqn.2026-11.s:two", &[])] {
            let missing = read(&wanted(subsystem), given).unwrap_err();
            assert!(missing.contains("no key of nqn.2026-11.h:broker"), "{missing}");
        }
    }
}
