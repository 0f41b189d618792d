//! In-band authentication of NVMe over Fabrics, as state machines without I/O.
//!
//! **What it is.** DH-HMAC-CHAP (Base 2.0c, "DH-HMAC-CHAP Protocol"; newer texts say KX-HMAC-CHAP)
//! from both sides: [`Controller`] and [`Host`] turn one message into the next. [`Secret`] is the
//! key in the form that people pass on (`DHHC-1:…:`).
//!
//! ```text
//!  host                                        controller
//!  AUTH_Negotiate(hashes, groups)      --->
//!                                      <---    DH-HMAC-CHAP_Challenge(hash, group, S1, C1, g^x)
//!  DH-HMAC-CHAP_Reply(R1, S2, C2, g^y) --->
//!                                      <---    DH-HMAC-CHAP_Success1(R2)
//!  DH-HMAC-CHAP_Success2               --->    (only if the host asked for R2)
//! ```
//!
//! **Contract.** Whatever a peer sends ends in the failure that the specification names, never in
//! a panic; a side that has failed stays failed. Secrets, and what is made of them, are zeroized
//! when they are dropped, never printed, and compared in constant time. Exponentiation is in
//! constant time for the private exponent. A side uses only what it offered itself: the messages
//! that agree on hash and group are not protected, so each side's own list is its policy.
//!
//! **Secure channel concatenation** (TP 8018, Base 2.1): a host may ask for a key for TLS to come
//! of its authentication ([`Concatenation`]). Both sides then have the same [`TlsPsk`], and what
//! follows goes over another connection, in TLS with that key.
//!
//! It takes random bytes from its caller ([`Entropy`]), and has no clock: time is limited by whom
//! it works for.
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

/// Where random bytes come from.
pub trait Entropy {
    /// Fills `bytes` with numbers that nobody can foretell.
    fn fill(&mut self, bytes: &mut [u8]);
}

impl<F: FnMut(&mut [u8])> Entropy for F {
    fn fill(&mut self, bytes: &mut [u8]) {
        self(bytes);
    }
}

/// A sequence number: random, and not 0, which means something else.
fn sequence(entropy: &mut dyn Entropy) -> u32 {
    let mut bytes = [0; 4];
    entropy.fill(&mut bytes);
    u32::from_le_bytes(bytes).max(1)
}
