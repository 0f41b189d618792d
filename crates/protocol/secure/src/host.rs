//! The host's side of an authentication. It proves the host's identity. If the host has the
//! controller's secret, this side also requests the controller's proof ("both ways" in the
//! diagram).
//!
//! ```text
//!            sent                  Challenge         sent            Success1, one way
//!  Opening ------> AwaitsChallenge --------> Replying ---> AwaitsSuccess -------------> Done
//!                      |                                     |     | both ways, good      ^
//!                      | anything else                       |     v            sent      |
//!                      +---------------> Refusing <----------+  Confirming --------------+
//!                      | AUTH_Failure1      | sent           |
//!                      +----------------> Failed <-----------+
//! ```

use crate::controller::{List, usable};
use crate::group::KeyPair;
use crate::hash::Digested;
use crate::message::{self, Message};
use crate::response::{Names, Question};
use crate::{Entropy, Failure, Group, Hash, Party, Secret, TlsPsk};
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use farblock_wire::IntoBytes;
use farblock_wire::auth::{
    Challenge, ChapMessage, CommonMessage, Concatenation, FailureReason, MessageType, Reply,
    Success1,
};
use subtle::ConstantTimeEq;

/// The host's own secret, and its requirements for the controller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostTerms {
    /// The host's name (HOSTNQN).
    pub host_nqn: String,
    /// The subsystem's name (SUBNQN).
    pub subsystem_nqn: String,
    /// The host's secret.
    pub host_secret: Secret,
    /// The controller's secret, if the controller must prove its identity. There are two secrets
    /// while a secret is being replaced.
    pub controller_secrets: Vec<Secret>,
    /// The hash functions to offer.
    pub hashes: Vec<Hash>,
    /// The Diffie-Hellman groups to offer.
    pub groups: Vec<Group>,
    /// The secure channel to request.
    pub concatenation: Concatenation,
}

impl HostTerms {
    /// Returns whether [`Host`] has a hash function and a group to offer. If the host requests a
    /// TLS key, it can offer only functions and groups that can generate such a key.
    #[must_use]
    pub fn has_offer(&self) -> bool {
        let (hashes, groups) = self.offer();
        !hashes.is_empty() && !groups.is_empty()
    }

    /// Returns the hash functions and groups to offer. If the host requests a TLS key, leaves out
    /// the functions and groups that cannot generate such a key.
    fn offer(&self) -> (Vec<Hash>, Vec<Group>) {
        usable(&self.hashes, &self.groups, self.concatenation)
    }
}

/// The parameters that both sides have agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Agreed {
    /// The hash function.
    pub hash: Hash,
    /// The Diffie-Hellman group.
    pub group: Group,
    /// Whether the controller has also proved its identity.
    pub is_mutual: bool,
}

/// The next step for the driver, which is the code that exchanges the messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Send this message (Authentication Send), then call [`Host::handle_sent`].
    Send(Vec<u8>),
    /// Fetch the controller's message (Authentication Receive), then call
    /// [`Host::handle_received`].
    Receive,
    /// The authentication succeeded.
    Done(Agreed),
    /// The authentication failed.
    Failed(Failure),
}

enum HostState {
    Opening,
    AwaitsChallenge,
    Replying { message: Vec<u8>, asked: Vec<Digested>, agreed: Agreed },
    AwaitsSuccess { asked: Vec<Digested>, agreed: Agreed },
    Confirming(Agreed),
    Done(Agreed),
    Refusing(Failure),
    Failed(Failure),
}

/// The host's side of one queue's authentication.
pub struct Host {
    terms: HostTerms,
    transaction: u16,
    state: HostState,
    /// The generated TLS keys.
    psks: Vec<TlsPsk>,
}

impl Host {
    /// The buffer size for the controller's messages, in bytes.
    pub const RECEIVE_BYTES: u32 = 4096;

    /// Returns a host before its first message.
    #[must_use]
    pub fn new(terms: HostTerms, entropy: &mut dyn Entropy) -> Self {
        let mut transaction = [0; 2];
        entropy.fill(&mut transaction);
        let transaction = u16::from_le_bytes(transaction);
        Self { terms, transaction, state: HostState::Opening, psks: Vec::new() }
    }

    /// Removes and returns the generated TLS keys: one for each derivation that controllers may
    /// use. Returns an empty list if the authentication is unfinished or has generated no key.
    pub fn take_psks(&mut self) -> Vec<TlsPsk> {
        match self.state {
            HostState::Done(_) => core::mem::take(&mut self.psks),
            _ => Vec::new(),
        }
    }

    /// Returns the next step. Until the driver reports the step, repeated calls return the same
    /// step.
    #[must_use]
    pub fn step(&self) -> Step {
        match &self.state {
            HostState::Opening => {
                let (hashes, groups) = self.terms.offer();
                let hashes: Vec<u8> = hashes.iter().map(|hash| hash.id()).collect();
                let groups: Vec<u8> = groups.iter().map(|group| group.id()).collect();
                let concatenation = self.terms.concatenation;
                Step::Send(message::negotiate(self.transaction, concatenation, &hashes, &groups))
            }
            HostState::AwaitsChallenge | HostState::AwaitsSuccess { .. } => Step::Receive,
            HostState::Replying { message, .. } => Step::Send(message.clone()),
            HostState::Confirming(_) => Step::Send(message::success2(self.transaction)),
            HostState::Done(agreed) => Step::Done(*agreed),
            HostState::Refusing(failure) => {
                let id = CommonMessage::FAILURE2;
                Step::Send(message::failure(id, self.transaction, failure.reason))
            }
            HostState::Failed(failure) => Step::Failed(failure.clone()),
        }
    }

    /// Returns whether the controller's next message accepts or rejects the host's proof.
    #[must_use]
    pub fn awaits_judgement(&self) -> bool {
        matches!(self.state, HostState::Replying { .. } | HostState::AwaitsSuccess { .. })
    }

    /// Reports that the driver has sent the message of [`Step::Send`] and the command has
    /// succeeded.
    ///
    /// # Panics
    /// Panics if the step was not [`Step::Send`].
    pub fn handle_sent(&mut self) {
        self.state = match core::mem::replace(&mut self.state, HostState::Opening) {
            HostState::Opening => HostState::AwaitsChallenge,
            HostState::Replying { asked, agreed, .. } => HostState::AwaitsSuccess { asked, agreed },
            HostState::Confirming(agreed) => HostState::Done(agreed),
            HostState::Refusing(failure) => HostState::Failed(failure),
            _ => panic!("the host has no message to send"),
        };
    }

    /// Handles the message that [`Step::Receive`] requested.
    ///
    /// # Panics
    /// Panics if the step was not [`Step::Receive`].
    pub fn handle_received(&mut self, bytes: &[u8], entropy: &mut dyn Entropy) {
        let state = core::mem::replace(&mut self.state, HostState::Opening);
        let next = match (state, self.parse(bytes)) {
            (_, Err(failure)) => Err(failure),
            (HostState::AwaitsChallenge, Ok(Message::Challenge { head, challenge, value })) => {
                self.reply(&head, challenge, value, entropy)
            }
            (
                HostState::AwaitsSuccess { asked, agreed },
                Ok(Message::Success1 { head, response }),
            ) => self.succeed(&asked, agreed, &head, response),
            (HostState::AwaitsChallenge | HostState::AwaitsSuccess { .. }, Ok(_)) => {
                Err(Failure::ours(
                    FailureReason::INCORRECT_MESSAGE,
                    "the controller sent a message out of sequence",
                ))
            }
            _ => panic!("the host expects no message"),
        };
        self.state = match next {
            Ok(state) => state,
            Err(failure) if failure.by == Party::Peer => HostState::Failed(failure),
            Err(failure) => HostState::Refusing(failure),
        };
    }

    fn parse<'a>(&self, bytes: &'a [u8]) -> Result<Message<'a>, Failure> {
        let (transaction, message) = Message::parse(bytes).map_err(|reason| {
            Failure::ours(reason, "the controller's message is too short, or of an unknown type")
        })?;
        if let Message::Failure1(reason) = message {
            return Err(Failure::theirs(reason, self.refusal(reason)));
        }
        if transaction != self.transaction {
            let what = format!(
                "the controller answered transaction {transaction} instead of {}",
                self.transaction
            );
            return Err(Failure::ours(FailureReason::INCORRECT_MESSAGE, what));
        }
        Ok(message)
    }

    /// Returns a text that explains the controller's failure reason to the host's operator.
    fn refusal(&self, reason: FailureReason) -> String {
        let HostTerms { host_nqn, controller_secrets, .. } = &self.terms;
        let (hashes, groups) = self.terms.offer();
        match reason {
            FailureReason::FAILED if !controller_secrets.is_empty() => format!(
                "the controller refused this host's proof, or has no secret to authenticate \
                 itself: compare the secrets of {host_nqn} and of the controller at both ends"
            ),
            FailureReason::FAILED => format!(
                "the controller refused this host's proof, or requires mutual authentication: \
                 compare the secrets of {host_nqn} at both ends, or give --dhchap-ctrl-secret for \
                 mutual authentication"
            ),
            FailureReason::HASH_UNUSABLE => format!(
                "the controller accepts none of the offered hash functions: {}",
                List(hashes.iter().copied().map(Some).collect())
            ),
            FailureReason::GROUP_UNUSABLE => format!(
                "the controller accepts none of the offered Diffie-Hellman groups: {}",
                List(groups.iter().copied().map(Some).collect())
            ),
            FailureReason::CONCATENATION_MISMATCH
                if self.terms.concatenation == Concatenation::NONE =>
            {
                "the controller requires TLS concatenation: give --concat (or a TLS key, with \
                 --tls-key)"
                    .to_owned()
            }
            FailureReason::CONCATENATION_MISMATCH => {
                "the controller does not offer TLS concatenation, at least not on this listener or \
                 queue: omit --concat, and use --tls-key"
                    .to_owned()
            }
            reason => format!("the controller ended the authentication: {reason}"),
        }
    }

    fn reply(
        &mut self,
        head: &Challenge,
        challenge: &[u8],
        value: &[u8],
        entropy: &mut dyn Entropy,
    ) -> Result<HostState, Failure> {
        let (hashes, groups) = self.terms.offer();
        let hash = Hash::from_id(head.hash_id).filter(|hash| hashes.contains(hash));
        let hash = hash.ok_or_else(|| {
            let offered = hashes.iter().copied().map(Some).collect();
            let what = chose("the hash function", Hash::from_id(head.hash_id), offered);
            Failure::ours(FailureReason::HASH_UNUSABLE, what)
        })?;
        if hash.bytes() != usize::from(head.hl) {
            let what = format!("the controller sent a wrong length for {hash}: {}", head.hl);
            return Err(Failure::ours(FailureReason::HASH_UNUSABLE, what));
        }
        let group = Group::from_id(head.dhg_id).filter(|group| groups.contains(group));
        let group = group.ok_or_else(|| {
            let offered = groups.iter().copied().map(Some).collect();
            let what = chose("the Diffie-Hellman group", Group::from_id(head.dhg_id), offered);
            Failure::ours(FailureReason::GROUP_UNUSABLE, what)
        })?;
        let keys = KeyPair::generate(group, entropy);
        let shared = keys.shared(value).map_err(|_| {
            let what = "the controller's Diffie-Hellman value does not belong to the group";
            Failure::ours(FailureReason::INCORRECT_PAYLOAD, what)
        })?;
        let shared = shared.as_ref().map(|shared| shared.as_slice());
        let sequence = head.seqnum.get();
        let transaction = self.transaction;
        let concatenation = self.terms.concatenation.0;
        let question = Question { hash, challenge, shared, sequence, transaction, concatenation };
        let names = Names { host: &self.terms.host_nqn, subsystem: &self.terms.subsystem_nqn };
        let response = question.of_host(&self.terms.host_secret, names);
        let is_mutual = !self.terms.controller_secrets.is_empty();
        let (mut own, mut own_sequence) = (alloc::vec![0; hash.bytes()], 0);
        let has_channel = self.terms.concatenation != Concatenation::NONE;
        if is_mutual || has_channel {
            entropy.fill(&mut own);
        }
        if is_mutual {
            own_sequence = crate::sequence(entropy);
        }
        let counter = Question { challenge: &own, sequence: own_sequence, ..question };
        let asked = self.expected(&counter, names);
        if let Some(session_key) = question.session_key().filter(|_| has_channel) {
            let Names { host, subsystem } = names;
            self.psks = TlsPsk::generated(hash, &session_key, [challenge, &own], host, subsystem);
        }
        let head = Reply {
            auth_type: MessageType::DH_HMAC_CHAP.0,
            auth_id: ChapMessage::REPLY.0,
            t_id: transaction.into(),
            hl: hash.bytes() as u8,
            cvalid: (is_mutual || has_channel).into(),
            dhvlen: (keys.public().len() as u16).into(),
            seqnum: own_sequence.into(),
            ..Reply::zeroed()
        };
        let message = [head.as_bytes(), &response, &own, keys.public()].concat();
        Ok(HostState::Replying { message, asked, agreed: Agreed { hash, group, is_mutual } })
    }

    /// Returns the acceptable proofs of the controller. There are two, because the Linux target
    /// leaves the secure channel (SC_C) out of the controller's proof. This is safe: the host's
    /// proof contains SC_C, so an attacker cannot remove the channel unnoticed.
    fn expected(&self, counter: &Question<'_>, names: Names<'_>) -> Vec<Digested> {
        let without = Question { concatenation: Concatenation::NONE.0, ..*counter };
        let secrets = self.terms.controller_secrets.iter();
        let of = |secret| [counter, &without].map(|it| it.of_controller(secret, names));
        secrets.flat_map(of).collect()
    }

    fn succeed(
        &self,
        asked: &[Digested],
        agreed: Agreed,
        head: &Success1,
        response: &[u8],
    ) -> Result<HostState, Failure> {
        if usize::from(head.hl) != agreed.hash.bytes() || head.rvalid > 1 {
            let what =
                "the length of the controller's proof does not match the chosen hash function";
            return Err(Failure::ours(FailureReason::INCORRECT_PAYLOAD, what));
        }
        if !agreed.is_mutual {
            return Ok(HostState::Done(agreed));
        }
        let failed = |what| Failure::ours(FailureReason::FAILED, what);
        if head.rvalid == 0 {
            return Err(failed(
                "the controller did not authenticate itself, although this host requested it",
            ));
        }
        let none = subtle::Choice::from(0);
        if !bool::from(asked.iter().fold(none, |any, proof| any | proof.ct_eq(response))) {
            return Err(failed(
                "the controller's proof does not match the secret that this host has for it: \
                 another controller answered, or the controller has another secret",
            ));
        }
        Ok(HostState::Confirming(agreed))
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Host(transaction {})", self.transaction)
    }
}

/// Returns the sentence about a parameter that the host did not offer.
fn chose<T: fmt::Display>(what: &str, chosen: Option<T>, offered: Vec<Option<T>>) -> String {
    let chosen = List(Vec::from([chosen]));
    let offered = List(offered);
    format!("the controller chose {what} {chosen}; this host offered {offered}")
}
