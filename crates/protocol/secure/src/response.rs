//! The proof that a side knows its secret (Base 2.0c, "DH-HMAC-CHAP_Reply Message" and
//! "DH-HMAC-CHAP_Success1 Message").

use crate::hash::{Digested, Hash};
use crate::secret::Secret;

/// The names of host and subsystem.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names<'a> {
    pub(crate) host: &'a str,
    pub(crate) subsystem: &'a str,
}

/// A challenge, and the other inputs of the response to the challenge.
#[derive(Clone, Copy)]
pub(crate) struct Question<'a> {
    pub(crate) hash: Hash,
    /// The challenge: C1 or C2.
    pub(crate) challenge: &'a [u8],
    /// The shared Diffie-Hellman secret, padded to the group's length; `None` for the NULL group.
    pub(crate) shared: Option<&'a [u8]>,
    /// The sequence number: S1 or S2.
    pub(crate) sequence: u32,
    pub(crate) transaction: u16,
    /// The SC_C field that the host sent.
    pub(crate) concatenation: u8,
}

impl Question<'_> {
    /// Returns R1, the host's response.
    pub(crate) fn of_host(&self, secret: &Secret, names: Names<'_>) -> Digested {
        let key = secret.transformed(names.host);
        self.answer(&key, b"HostHost", names.host, names.subsystem)
    }

    /// Returns R2, the controller's response.
    pub(crate) fn of_controller(&self, secret: &Secret, names: Names<'_>) -> Digested {
        let key = secret.transformed(names.subsystem);
        self.answer(&key, b"Controller", names.subsystem, names.host)
    }

    /// Returns KS, the hash of the shared Diffie-Hellman secret.
    pub(crate) fn session_key(&self) -> Option<Digested> {
        self.shared.map(|shared| self.hash.digest(shared))
    }

    /// Returns HMAC(key, Ca ‖ S ‖ T_ID ‖ SC_C ‖ role ‖ own name ‖ 0 ‖ other name).
    fn answer(&self, key: &[u8], role: &[u8], own: &str, other: &str) -> Digested {
        let augmented = self.augmented();
        self.hash.hmac(
            key,
            &[
                &augmented,
                &self.sequence.to_le_bytes(),
                &self.transaction.to_le_bytes(),
                &[self.concatenation],
                role,
                own.as_bytes(),
                &[0],
                other.as_bytes(),
            ],
        )
    }

    /// Returns Ca. This is HMAC(KS, challenge) with a Diffie-Hellman exchange, and otherwise the
    /// challenge.
    fn augmented(&self) -> Digested {
        match self.session_key() {
            None => Digested::new(self.challenge.to_vec()),
            Some(session_key) => self.hash.hmac(&session_key, &[self.challenge]),
        }
    }
}
