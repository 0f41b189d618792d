//! Reads the TLS keys in the kernel's keyrings at intervals, because the kernel does not report
//! changes.
//!
//! A connection with an unknown key does not trigger a poll: otherwise unauthenticated peers could
//! make the target query the kernel as often as they like.

use farblock_admin::{AUDIT, Steering};
use farblock_host::key_file::KEYRING;
use farblock_state::Host;
use std::collections::HashMap;
use std::sync::Weak;
use std::thread;
use std::time::Duration;

/// The interval between polls, and so the longest delay until a new key works.
const EVERY: Duration = Duration::from_secs(5);

/// The last error of each host whose keys could not be read, by the NQNs of subsystem and host.
type Troubles = HashMap<(String, String), String>;

/// Polls until the target is dropped. A host whose keys cannot be read keeps its old keys.
pub(super) fn watch(steering: Weak<Steering>) {
    let look = move || {
        let mut troubles = Troubles::new();
        loop {
            thread::sleep(EVERY);
            let Some(steering) = steering.upgrade() else { return };
            troubles = look_again(&steering, &troubles);
        }
    };
    if let Err(error) = thread::Builder::new().name("fb-keyring".to_owned()).spawn(look) {
        tracing::warn!("cannot watch the keys in the kernel's keyring: {error}");
    }
}

/// Reads each host's keys again, logs the errors that are not in `before`, and returns all errors.
fn look_again(steering: &Steering, before: &Troubles) -> Troubles {
    let mut troubles = Troubles::new();
    for names in steering.hosts(in_keyring) {
        let (nqn, host) = &names;
        match steering.read_keys(nqn, host) {
            Ok(changed) => {
                if let Some(step) = changed {
                    tracing::info!(target: AUDIT, who = "keyring", "changed: {step}");
                } else if before.contains_key(&names) {
                    tracing::info!("{nqn}: {host} has a key in the kernel's keyring again");
                }
            }
            Err(refused) => {
                let why = refused.to_string();
                if before.get(&names) != Some(&why) {
                    tracing::warn!("{nqn}: {}", sentence(nqn, host, &why));
                }
                troubles.insert(names, why);
            }
        }
    }
    troubles
}

/// Returns the warning for a key that can no longer be read. An administrator may have removed it
/// to lock the host out, but the target keeps the old key.
fn sentence(nqn: &str, host: &str, why: &str) -> String {
    format!(
        "{host} can still connect with its old key, because its key could not be read again \
         ({why}): block the host with farblock ctl disallow-host {nqn} {host}, or add a key"
    )
}

fn in_keyring(host: &Host) -> bool {
    host.tls_key.as_ref().is_some_and(|key| key.starts_with(KEYRING))
}
