//! In-band authentication of NVMe over Fabrics, as state machines without I/O.
//!
//! **Overview.** This crate implements both sides of DH-HMAC-CHAP (Base 2.0c, "DH-HMAC-CHAP
//! Protocol"). Newer versions of the specification call the protocol KX-HMAC-CHAP. [`Controller`]
//! and [`Host`] answer each message with the next. [`Secret`] is the key in its text form
//! (`DHHC-1:…:`).
//!
//! ```text
//!  host                                        controller
//!  AUTH_Negotiate(hashes, groups)      --->
//!                                      <---    DH-HMAC-CHAP_Challenge(hash, group, S1, C1, g^x)
//!  DH-HMAC-CHAP_Reply(R1, S2, C2, g^y) --->
//!                                      <---    DH-HMAC-CHAP_Success1(R2)
//!  DH-HMAC-CHAP_Success2               --->    (only if the host requested R2)
//! ```
//!
//! **Contract.** Every invalid message of a peer causes the failure that the specification names,
//! and never a panic. A side that has failed stays failed.
//!
//! Secrets and the values derived from them are zeroized when dropped, never printed, and compared
//! in constant time. The time of an exponentiation does not depend on the private exponent.
//!
//! A side uses only hash functions and groups that it has offered itself. An attacker can change
//! the messages that choose among them, so each side should offer only those that it trusts.
//!
//! **Secure channel concatenation** (TP 8018, Base 2.1): a host may request a TLS key from its
//! authentication ([`Concatenation`]). Both sides then have the same [`TlsPsk`]. All further
//! commands use a new TLS connection with this key.
//!
//! The caller supplies random bytes ([`Entropy`]) and enforces timeouts, because this crate has no
//! clock.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod controller;
mod failure;
mod form;
mod group;
mod hash;
mod host;
mod message;
mod response;
mod secret;
mod tls_key;

pub use controller::{Controller, ControllerTerms, Cost, Demand, Progress};
pub use failure::{Failure, Party};
pub use farblock_wire::auth::Concatenation;
pub use group::Group;
pub use hash::Hash;
pub use host::{Agreed, Host, HostTerms, Step};
pub use secret::{Secret, SecretError};
pub use tls_key::{Derivation, IdentityForm, TlsKey, TlsKeyError, TlsPsk};

/// A source of random bytes.
pub trait Entropy {
    /// Fills `bytes` with unpredictable values.
    fn fill(&mut self, bytes: &mut [u8]);
}

impl<F: FnMut(&mut [u8])> Entropy for F {
    fn fill(&mut self, bytes: &mut [u8]) {
        self(bytes);
    }
}

/// Returns a random sequence number. It is never 0, since 0 means that a host requests no proof.
fn sequence(entropy: &mut dyn Entropy) -> u32 {
    let mut bytes = [0; 4];
    entropy.fill(&mut bytes);
    u32::from_le_bytes(bytes).max(1)
}
