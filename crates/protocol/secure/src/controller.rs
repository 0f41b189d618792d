//! The controller's side of an authentication. It challenges a host to prove its identity. On the
//! host's request, the controller also proves its own identity.
//!
//! ```text
//!             AUTH_Negotiate            taken             Reply             taken, one way
//!  Idle, Done ------------> Challenging -----> Challenged -----> Succeeding -------------> Done
//!      |                        |                  |                 | taken, both ways     ^
//!      |                        |                  |                 v      Success2        |
//!      |                        |                  |             Proving -------------------+
//!      +------------------------+------------------+-----------------+
//!                               | anything else                      | AUTH_Failure2
//!                               v          taken                     v
//!                            Failing ------------------------------> Failed
//! ```
//! Challenging, Succeeding and Failing hold a message that the host has yet to receive. "Taken"
//! means that the host has received it. "One way" means that only the host proves its identity. A
//! host may restart with AUTH_Negotiate at any time until the authentication fails.

use crate::group::KeyPair;
use crate::hash::Digested;
use crate::message::{self, Message, Offer};
use crate::response::{Names, Question};
use crate::{Entropy, Failure, Group, Hash, Secret, TlsPsk};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use farblock_wire::IntoBytes;
use farblock_wire::auth::{
    Challenge, ChapMessage, CommonMessage, Concatenation, FailureReason, MessageType, Reply,
};
use subtle::ConstantTimeEq;

/// A controller's requirements for a host, and the controller's own secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControllerTerms {
    /// The host's name (HOSTNQN).
    pub host_nqn: String,
    /// The subsystem's name (SUBNQN).
    pub subsystem_nqn: String,
    /// The host's secret. There are two secrets while a secret is being replaced.
    pub host_secrets: Vec<Secret>,
    /// The controller's own secret, if hosts may request the controller's proof of identity.
    pub controller_secret: Option<Secret>,
    /// Hash functions that the controller accepts, best first.
    pub hashes: Vec<Hash>,
    /// Diffie-Hellman groups that the controller accepts, best first.
    pub groups: Vec<Group>,
    /// The further requirement for the host, in addition to authentication.
    pub demand: Demand,
}

/// A requirement that a controller may have for a host in addition to authentication.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Demand {
    /// No further requirement.
    #[default]
    Authentication,
    /// The host must request the controller's proof of identity.
    Mutual,
    /// The host must use TLS, with its own key or with a key that the authentication generates.
    SecureChannel,
}

/// The state of an authentication.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// The host has not proved its identity yet.
    Open,
    /// The host has proved its identity, and has not restarted the authentication.
    Done,
    /// The authentication failed. The target must close the connection once the host has received
    /// the remaining message.
    Failed,
}

/// The cost of [handling](Controller::handle) a message, so that a caller can schedule messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    /// The approximate number of word multiplications, in thousands.
    pub work: u64,
    /// Whether the message starts an authentication (AUTH_Negotiate).
    pub is_beginning: bool,
}

/// The content of the controller's challenge message: the agreed parameters and the challenge
/// itself.
struct Asked {
    hash: Hash,
    keys: KeyPair,
    challenge: Vec<u8>,
    sequence: u32,
}

enum ControllerState {
    Idle,
    Challenging(Asked, Vec<u8>),
    Challenged(Asked),
    Succeeding { message: Vec<u8>, is_mutual: bool },
    Proving,
    Done,
    Failing(Vec<u8>),
    Failed,
}

/// The controller's side of one queue's authentication.
pub struct Controller {
    terms: Arc<ControllerTerms>,
    transaction: u16,
    state: ControllerState,
    failure: Option<Failure>,
    /// The secure channel that the host may request.
    offered: Concatenation,
    /// The secure channel that the host has requested.
    asked: Concatenation,
    /// The generated TLS keys.
    psks: Vec<TlsPsk>,
}

impl Controller {
    /// Returns a controller before its first message.
    #[must_use]
    pub fn new(terms: Arc<ControllerTerms>) -> Self {
        let none = Concatenation::NONE;
        let (transaction, state) = (0, ControllerState::Idle);
        Self {
            terms,
            transaction,
            state,
            failure: None,
            offered: none,
            asked: none,
            psks: Vec::new(),
        }
    }

    /// Sets the secure channel that the host may request. This channel differs between a queue
    /// without TLS and a queue whose TLS key came from an authentication.
    #[must_use]
    pub fn offering(mut self, concatenation: Concatenation) -> Self {
        self.offered = concatenation;
        self
    }

    /// Returns the requirements for the host.
    #[must_use]
    pub fn terms(&self) -> &Arc<ControllerTerms> {
        &self.terms
    }

    /// Sets the requirements for the host's next messages.
    pub fn set_terms(&mut self, terms: Arc<ControllerTerms>) {
        self.terms = terms;
    }

    /// Handles a message from the host (Authentication Send). [`Self::take_message`] then returns
    /// the reply.
    pub fn handle(&mut self, bytes: &[u8], entropy: &mut dyn Entropy) {
        if self.progress() == Progress::Failed {
            return;
        }
        if let Err(failure) = self.advance(bytes, entropy) {
            self.fail(failure);
        }
    }

    /// Returns the cost of handling a message from the host.
    #[must_use]
    pub fn cost(&self, bytes: &[u8]) -> Cost {
        let of = |group: Option<Group>| group.unwrap_or(Group::Null).cost();
        match (Message::parse(bytes), &self.state) {
            (Ok((_, Message::Negotiate { descriptors, .. })), _) => {
                let offer = message::offer(descriptors).ok().flatten();
                let is_offered = |group: &&Group| {
                    offer.as_ref().is_some_and(|offer| offer.groups.contains(&group.id()))
                };
                let group = self.terms.groups.iter().find(is_offered).copied();
                Cost { work: of(group), is_beginning: true }
            }
            (Ok((_, Message::Reply { .. })), ControllerState::Challenged(asked)) => {
                Cost { work: of(Some(asked.keys.group())), is_beginning: false }
            }
            _ => Cost { work: of(None), is_beginning: false },
        }
    }

    /// Returns the length in bytes of the message that waits for the host. `None`: no message
    /// waits.
    #[must_use]
    pub fn message_bytes(&self) -> Option<usize> {
        match &self.state {
            ControllerState::Challenging(_, message)
            | ControllerState::Succeeding { message, .. }
            | ControllerState::Failing(message) => Some(message.len()),
            _ => None,
        }
    }

    /// Removes and returns the message that waits for the host (Authentication Receive).
    pub fn take_message(&mut self) -> Option<Vec<u8>> {
        let (state, message) = match core::mem::replace(&mut self.state, ControllerState::Failed) {
            ControllerState::Challenging(asked, message) => {
                (ControllerState::Challenged(asked), message)
            }
            ControllerState::Succeeding { message, is_mutual: true } => {
                (ControllerState::Proving, message)
            }
            ControllerState::Succeeding { message, is_mutual: false } => {
                (ControllerState::Done, message)
            }
            ControllerState::Failing(message) => (ControllerState::Failed, message),
            other => {
                self.state = other;
                return None;
            }
        };
        self.state = state;
        Some(message)
    }

    /// Returns the state of the authentication.
    #[must_use]
    pub fn progress(&self) -> Progress {
        match self.state {
            ControllerState::Done => Progress::Done,
            ControllerState::Failing(_) | ControllerState::Failed => Progress::Failed,
            _ => Progress::Open,
        }
    }

    /// Returns whether the host has requested a secure channel. If so, the target must reject all
    /// other commands on a connection without TLS.
    #[must_use]
    pub fn has_concatenated(&self) -> bool {
        self.asked != Concatenation::NONE
    }

    /// Removes and returns the generated TLS keys: one for each derivation that hosts may use.
    /// Returns an empty list if the authentication is unfinished or has generated no key.
    pub fn take_psks(&mut self) -> Vec<TlsPsk> {
        match self.progress() {
            Progress::Done => core::mem::take(&mut self.psks),
            Progress::Open | Progress::Failed => Vec::new(),
        }
    }

    /// Returns the reason why the authentication failed.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    fn fail(&mut self, failure: Failure) {
        self.state = match failure.by {
            crate::Party::Peer => ControllerState::Failed,
            crate::Party::Us => {
                let (id, reason) = (CommonMessage::FAILURE1, failure.reason);
                ControllerState::Failing(message::failure(id, self.transaction, reason))
            }
        };
        self.failure = Some(failure);
    }

    fn advance(&mut self, bytes: &[u8], entropy: &mut dyn Entropy) -> Result<(), Failure> {
        let (transaction, message) = Message::parse(bytes).map_err(|reason| {
            Failure::ours(reason, "the host's message is too short, or of an unknown type")
        })?;
        if let Message::Negotiate { head, descriptors } = message {
            self.transaction = transaction;
            // Drop the keys of an earlier authentication on this queue. If the new authentication
            // does not finish, no key must remain.
            self.psks.clear();
            self.asked = self.concatenation(Concatenation(head.sc_c))?;
            let offer = message::offer(descriptors).map_err(bad_offer)?.ok_or_else(no_offer)?;
            return self.challenge(&offer, entropy);
        }
        let is_expected = matches!(
            (&self.state, &message),
            (ControllerState::Challenged(_), Message::Reply { .. })
                | (ControllerState::Proving, Message::Success2)
                | (_, Message::Failure2(_))
        );
        if !is_expected {
            let reason = FailureReason::INCORRECT_MESSAGE;
            return Err(Failure::ours(reason, "the host sent a message out of sequence"));
        }
        if transaction != self.transaction {
            let (reason, expected) = (FailureReason::INCORRECT_PAYLOAD, self.transaction);
            let sentence =
                format!("the host answered transaction {transaction} instead of {expected}");
            return Err(Failure::ours(reason, sentence));
        }
        match (core::mem::replace(&mut self.state, ControllerState::Failed), message) {
            (
                ControllerState::Challenged(asked),
                Message::Reply { head, response, challenge, value },
            ) => self.reply(&asked, &head, response, challenge, value),
            (_, Message::Failure2(reason)) => {
                let sentence = format!(
                    "the host ended the authentication: {reason} (it refused the target's \
                     challenge or proof)"
                );
                Err(Failure::theirs(reason, sentence))
            }
            _ => {
                self.state = ControllerState::Done;
                Ok(())
            }
        }
    }

    /// Checks that the controller offers the requested secure channel, and that the channel fulfils
    /// the requirements.
    fn concatenation(&self, asked: Concatenation) -> Result<Concatenation, Failure> {
        let mismatch = |sentence| {
            let reason = FailureReason::CONCATENATION_MISMATCH;
            Err(Failure::ours(reason, sentence))
        };
        if asked == Concatenation::NONE {
            let has_to = self.offered == Concatenation::NEW_TLS_PSK
                && self.terms.demand == Demand::SecureChannel;
            return if has_to {
                mismatch(
                    "this controller requires TLS concatenation, and the host did not request it",
                )
            } else {
                Ok(asked)
            };
        }
        match self.offered {
            offered if offered == asked => Ok(asked),
            Concatenation::NONE => mismatch(
                "the host requested TLS concatenation, which is available only on admin queues, \
                 and only where the listener has TLS",
            ),
            _ => mismatch("the host requested a secure channel that this queue does not support"),
        }
    }

    /// Chooses a hash and a group from the host's offer, and challenges the host.
    fn challenge(&mut self, offer: &Offer, entropy: &mut dyn Entropy) -> Result<(), Failure> {
        let terms = &self.terms;
        let (hashes, groups) = usable(&terms.hashes, &terms.groups, self.asked);
        let hash = hashes.iter().copied().find(|hash| offer.hashes.contains(&hash.id()));
        let hash = hash.ok_or_else(|| {
            let theirs = List(offer.hashes.iter().map(|&id| Hash::from_id(id)).collect());
            let sentence = format!(
                "the host offers the hash functions {theirs}, but this controller accepts {}",
                List(hashes.iter().copied().map(Some).collect())
            );
            Failure::ours(FailureReason::HASH_UNUSABLE, sentence)
        })?;
        let group = groups.iter().copied().find(|group| offer.groups.contains(&group.id()));
        let group = group.ok_or_else(|| {
            let theirs = List(offer.groups.iter().map(|&id| Group::from_id(id)).collect());
            let sentence = format!(
                "the host offers the Diffie-Hellman groups {theirs}, but this controller accepts \
                 {}",
                List(groups.iter().copied().map(Some).collect())
            );
            Failure::ours(FailureReason::GROUP_UNUSABLE, sentence)
        })?;
        let keys = KeyPair::generate(group, entropy);
        let mut challenge = alloc::vec![0; hash.bytes()];
        entropy.fill(&mut challenge);
        let asked = Asked { hash, keys, challenge, sequence: crate::sequence(entropy) };
        let head = Challenge {
            auth_type: MessageType::DH_HMAC_CHAP.0,
            auth_id: ChapMessage::CHALLENGE.0,
            t_id: self.transaction.into(),
            hl: hash.bytes() as u8,
            hash_id: hash.id(),
            dhg_id: group.id(),
            dhvlen: (asked.keys.public().len() as u16).into(),
            seqnum: asked.sequence.into(),
            ..Challenge::zeroed()
        };
        let message = [head.as_bytes(), &asked.challenge, asked.keys.public()].concat();
        self.state = ControllerState::Challenging(asked, message);
        Ok(())
    }

    /// Checks the host's proof. Adds the controller's proof if the host requests it.
    fn reply(
        &mut self,
        asked: &Asked,
        head: &Reply,
        response: &[u8],
        challenge: &[u8],
        value: &[u8],
    ) -> Result<(), Failure> {
        let wrong = |what| Failure::ours(FailureReason::INCORRECT_PAYLOAD, what);
        if usize::from(head.hl) != asked.hash.bytes() || head.cvalid > 1 {
            return Err(wrong(
                "the length of the host's reply does not match the chosen hash function",
            ));
        }
        let is_mutual = self.is_mutual(head)?;
        let shared = asked.keys.shared(value);
        let shared = shared.map_err(|_| wrong("the host's Diffie-Hellman value is not valid"))?;
        let shared = shared.as_ref().map(|shared| shared.as_slice());
        let question = Question {
            hash: asked.hash,
            challenge: &asked.challenge,
            shared,
            sequence: asked.sequence,
            transaction: self.transaction,
            concatenation: self.asked.0,
        };
        if !self.is_hosts(&question, response) {
            let sentence = format!(
                "the host's proof does not match any secret that this target has for the host ({} \
                 secrets): compare the secret and the host NQN at both ends",
                self.terms.host_secrets.len()
            );
            return Err(Failure::ours(FailureReason::FAILED, sentence));
        }
        let proof = is_mutual.then(|| {
            let sequence = head.seqnum.get();
            self.own_proof(&Question { challenge, sequence, ..question })
        });
        let proof = proof.transpose()?;
        let proof = proof.as_ref().map(|proof| proof.as_slice());
        if let Some(session_key) = question.session_key().filter(|_| self.has_concatenated()) {
            let challenges = [question.challenge, challenge];
            let Names { host, subsystem } = self.names();
            self.psks = TlsPsk::generated(asked.hash, &session_key, challenges, host, subsystem);
        }
        let message = message::success1(self.transaction, asked.hash.bytes(), proof);
        self.state = ControllerState::Succeeding { message, is_mutual };
        Ok(())
    }

    /// Returns whether the host requests the controller's proof. A host that requests a secure
    /// channel always sends a challenge. In this case, the sequence number 0 means that the host
    /// requests no proof.
    fn is_mutual(&self, head: &Reply) -> Result<bool, Failure> {
        let wrong = |what: &str| Failure::ours(FailureReason::INCORRECT_PAYLOAD, what);
        let has_sequence = head.seqnum.get() != 0;
        let is_mutual = match (self.has_concatenated(), head.cvalid == 1) {
            (true, false) => {
                return Err(wrong(
                    "the host requested a secure channel, but did not challenge the controller",
                ));
            }
            (false, true) if !has_sequence => {
                return Err(wrong("the host's challenge has the sequence number 0"));
            }
            (_, has_challenge) => has_challenge && has_sequence,
        };
        if self.terms.demand == Demand::Mutual && !is_mutual {
            let sentence = "this controller requires mutual authentication, and the host did not \
                request it";
            return Err(Failure::ours(FailureReason::FAILED, sentence));
        }
        Ok(is_mutual)
    }

    fn names(&self) -> Names<'_> {
        Names { host: &self.terms.host_nqn, subsystem: &self.terms.subsystem_nqn }
    }

    /// Returns whether one of the host's secrets matches the response. Tries all secrets, so that
    /// the time does not reveal which secret matched.
    fn is_hosts(&self, question: &Question<'_>, response: &[u8]) -> bool {
        let fits = |secret| question.of_host(secret, self.names()).ct_eq(response);
        let none = subtle::Choice::from(0);
        self.terms.host_secrets.iter().fold(none, |any, secret| any | fits(secret)).into()
    }

    fn own_proof(&self, question: &Question<'_>) -> Result<Digested, Failure> {
        let secret = self.terms.controller_secret.as_ref().ok_or_else(|| {
            let sentence = "the host requested mutual authentication, but the target has no secret \
                for the controller: configure one";
            Failure::ours(FailureReason::FAILED, sentence)
        })?;
        Ok(question.of_controller(secret, self.names()))
    }
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Controller({:?})", self.progress())
    }
}

/// Returns the hash functions and groups that can generate a TLS key if `asked` requests one.
/// Otherwise returns all.
pub(crate) fn usable(
    hashes: &[Hash],
    groups: &[Group],
    asked: Concatenation,
) -> (Vec<Hash>, Vec<Group>) {
    let is_any = asked == Concatenation::NONE;
    let hashes = hashes.iter().copied().filter(|hash| is_any || Hash::OF_SUITES.contains(hash));
    let groups = groups.iter().copied().filter(|group| is_any || *group != Group::Null);
    (hashes.collect(), groups.collect())
}

fn bad_offer(reason: FailureReason) -> Failure {
    Failure::ours(reason, "the host lists more hash functions or groups than the message can hold")
}

fn no_offer() -> Failure {
    let sentence = "the host does not offer DH-HMAC-CHAP";
    Failure::ours(FailureReason::PROTOCOL_UNUSABLE, sentence)
}

/// The offer of one side, for error messages.
pub(crate) struct List<T>(pub(crate) Vec<Option<T>>);

impl<T: fmt::Display> fmt::Display for List<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("(none)");
        }
        for (index, item) in self.0.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { ", " })?;
            match item {
                Some(item) => item.fmt(f)?,
                None => f.write_str("(unknown)")?,
            }
        }
        Ok(())
    }
}
