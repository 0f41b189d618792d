//! Keys for TLS in the kernel's keyrings, which tell nobody that they have changed: they are looked
//! at from time to time.
//!
//! A host with a key that the target does not know is not what has them read: strangers would have
//! the target ask the kernel as often as they like.

use farblock_admin::{AUDIT, Steering};
use farblock_host::key_file::KEYRING;
use farblock_state::Host;
use std::collections::HashMap;
use std::sync::Weak;
use std::thread;
use std::time::Duration;

/// How long a key that was put there waits at most.
const EVERY: Duration = Duration::from_secs(5);

/// Why the keys of hosts could not be read when they were looked at last, by the names of their
/// subsystems and their own.
type Troubles = HashMap<(String, String), String>;

/// Looks for as long as there is a target. Whose keys cannot be read keeps what it has.
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
        tracing::warn!("keys in the kernel's keyring are not looked at again: {error}");
    }
}

/// Looks at each host's keys; gives what is wrong with them, which is said when it is new.
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

/// What the administrator has to know of a key that is not there any more: somebody who has revoked
/// it believes that the host is out.
fn sentence(nqn: &str, host: &str, why: &str) -> String {
    format!(
        "{host} gets in with the key that it had, since there is no other one ({why}): shut it out \
         with farblock ctl disallow-host {nqn} {host}, or put a key there"
    )
}

fn in_keyring(host: &Host) -> bool {
    host.tls_key.as_ref().is_some_and(|key| key.starts_with(KEYRING))
}
