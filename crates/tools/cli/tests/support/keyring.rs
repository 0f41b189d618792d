//! Puts TLS keys into the kernel's keyring, in the form of `nvme check-tls-key --insert`.

use farblock_secure::{Derivation, IdentityForm, TlsKey};
use linux_keyutils::{Key, KeyRing, KeyRingIdentifier};

/// A key in the session keyring. Dropping it removes the key.
pub struct Kept(Key);

/// Adds the key in a file to the session keyring, for a host and a subsystem.
pub fn put(file: &str, host: &str, subsystem: &str) -> Kept {
    let text = std::fs::read_to_string(file).expect("the key file is readable");
    let key = TlsKey::parse(text.trim()).expect("a key for TLS");
    let psk = key.psk(host, subsystem, IdentityForm::Digest, Derivation::Specified);
    let psk = psk.expect("the names are valid");
    let session = KeyRing::from_special_id(KeyRingIdentifier::Session, false)
        .expect("the session keyring exists");
    Kept(session.add_key(&psk.identity, &psk.key[..]).expect("room for a key"))
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.0.invalidate();
    }
}
