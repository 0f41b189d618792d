//! Reasons for a failed authentication: a code for the peer, a sentence for the operator.

use alloc::string::String;
use core::fmt;
use farblock_wire::auth::FailureReason;

/// The party that ended a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Party {
    /// This side, which rejected a message of the peer.
    Us,
    /// The peer, with a failure message.
    Peer,
}

/// The reason why an authentication failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The reason code explanation that this side sent or received.
    pub reason: FailureReason,
    /// The party that ended the transaction.
    pub by: Party,
    /// One sentence with the expected and the offered values; never a secret.
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
