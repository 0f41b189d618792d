//! The reasons for a failed authentication: a code for the peer, and a sentence for the operator.

use alloc::string::String;
use core::fmt;
use farblock_wire::auth::FailureReason;

/// The party that ended a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Party {
    /// This side: it rejected a message of the peer.
    Us,
    /// The peer: it sent a failure message.
    Peer,
}

/// The reason why an authentication failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The reason for the failure, as this side sent it to the peer or received it.
    pub reason: FailureReason,
    /// The party that ended the transaction.
    pub by: Party,
    /// One sentence with the expected and the offered values. It never contains a secret.
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
