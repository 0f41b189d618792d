//! Why an authentication failed: for the peer a code, for people a sentence.

use alloc::string::String;
use core::fmt;
use farblock_wire::auth::FailureReason;

/// Who ended a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Party {
    /// This side: it did not accept what the peer sent.
    Us,
    /// The peer, with a message that says so.
    Peer,
}

/// Why an authentication failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// What the peer is told, or told us (reason code explanation).
    pub reason: FailureReason,
    /// Who ended it.
    pub by: Party,
    /// One sentence with what was expected and what was offered; never a secret.
    pub sentence: String,
}

impl Failure {
    pub(crate) fn ours(reason: FailureReason, sentence: impl Into<String>) -> Self {
        Self { reason, by: Party::Us, sentence: sentence.into() }
    }

    pub(crate) fn theirs(reason: FailureReason, sentence: impl Into<String>) -> Self {
        Self { reason, by: Party::Peer, sentence: sentence.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl core::error::Error for Failure {}
