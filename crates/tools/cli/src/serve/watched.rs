//! Keys for TLS in the kernel's keyrings, which tell nobody that they have changed: they are looked
//! at from time to time.
//!
//! A host with a key that the target does not know is not what has them read: strangers would have
//! the target ask the kernel as often as they like.

use farblock_admin::{AUDIT, Refused, Reread, Steering};
use farblock_host::key_file::KEYRING;
use farblock_state::Document;
use std::sync::Weak;
use std::thread;
use std::time::Duration;

/// How long a key that was put there waits at most.
const EVERY: Duration = Duration::from_secs(5);

/// Looks for as long as there is a target. Whose keys cannot be read keeps what it has.
pub(super) fn watch(steering: Weak<Steering>) {
    let look = move || {
        loop {
            thread::sleep(EVERY);
            let Some(steering) = steering.upgrade() else { return };
            for (nqn, host) in in_keyring(&steering.document().0) {
                look_again(&steering, nqn, host);
            }
        }
    };
    if let Err(error) = thread::Builder::new().name("fb-keyring".to_owned()).spawn(look) {
        tracing::warn!("keys in the kernel's keyring are not looked at again: {error}");
    }
}

fn look_again(steering: &Steering, nqn: String, host: String) {
    let reread = Reread::Host(nqn, host);
    match steering.change(None, &reread, |now| Ok(now.clone())) {
        Ok(changed) if changed.steps.is_empty() => {}
        Ok(changed) => {
            let steps = changed.steps.join("; ");
            tracing::info!(target: AUDIT, who = "keyring", "changed: {steps}");
        }
        // A key that was taken out is gone when its host is disallowed.
        Err(Refused::Configuration(sentence)) => tracing::debug!("{sentence}"),
        Err(refused) => tracing::warn!("the key in the kernel's keyring is not taken: {refused}"),
    }
}

/// The hosts whose keys are there, by subsystem.
fn in_keyring(document: &Document) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (nqn, subsystem) in &document.subsystems {
        for (host, entry) in &subsystem.hosts {
            if entry.tls_key.as_ref().is_some_and(|key| key.starts_with(KEYRING)) {
                found.push((nqn.clone(), host.clone()));
            }
        }
    }
    found
}
