//! Encodes and decodes messages. Decoding checks lengths, but not values.

use alloc::vec::Vec;
use farblock_wire::IntoBytes;
use farblock_wire::auth::{
    Challenge, ChapMessage, CommonMessage, Concatenation, Failure, FailureReason, GROUPS_MAX,
    HASHES_MAX, MessageHead, MessageType, Negotiate, ProtocolDescriptor, ProtocolId, Reply,
    Success1, Success2,
};

/// The lists of hashes and groups in one descriptor of AUTH_Negotiate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Offer {
    pub(crate) hashes: Vec<u8>,
    pub(crate) groups: Vec<u8>,
}

/// A received message, with undecoded variable parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Message<'a> {
    Negotiate { head: Negotiate, descriptors: &'a [u8] },
    Challenge { head: Challenge, challenge: &'a [u8], value: &'a [u8] },
    Reply { head: Reply, response: &'a [u8], challenge: &'a [u8], value: &'a [u8] },
    Success1 { head: Success1, response: &'a [u8] },
    Success2,
    Failure1(FailureReason),
    Failure2(FailureReason),
}

impl<'a> Message<'a> {
    /// Decodes a message. Returns its transaction identifier and content. Ignores bytes behind the
    /// message, which are padding.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<(u16, Self), FailureReason> {
        const SHORT: FailureReason = FailureReason::INCORRECT_PAYLOAD;
        let head = MessageHead::parse(bytes).ok_or(SHORT)?;
        let message = match MessageType(head.auth_type) {
            MessageType::COMMON => Self::common(CommonMessage(head.auth_id), bytes)?,
            MessageType::DH_HMAC_CHAP => Self::chap(ChapMessage(head.auth_id), bytes)?,
            _ => return Err(FailureReason::INCORRECT_MESSAGE),
        }
        .ok_or(SHORT)?;
        Ok((head.t_id.get(), message))
    }

    fn common(id: CommonMessage, bytes: &'a [u8]) -> Result<Option<Self>, FailureReason> {
        let failure = || Failure::parse(bytes).map(|failure| FailureReason(failure.rcode_exp));
        Ok(match id {
            CommonMessage::NEGOTIATE => Negotiate::parse(bytes).and_then(|head| {
                let length = usize::from(head.napd) * ProtocolDescriptor::LEN;
                let descriptors = bytes.get(Negotiate::LEN..)?.get(..length)?;
                Some(Self::Negotiate { head, descriptors })
            }),
            CommonMessage::FAILURE1 => failure().map(Self::Failure1),
            CommonMessage::FAILURE2 => failure().map(Self::Failure2),
            _ => return Err(FailureReason::INCORRECT_MESSAGE),
        })
    }

    fn chap(id: ChapMessage, bytes: &'a [u8]) -> Result<Option<Self>, FailureReason> {
        Ok(match id {
            ChapMessage::CHALLENGE => Challenge::parse(bytes).and_then(|head| {
                let rest = &bytes[Challenge::LEN..];
                let (challenge, rest) = rest.split_at_checked(head.hl.into())?;
                let value = rest.get(..usize::from(head.dhvlen.get()))?;
                Some(Self::Challenge { head, challenge, value })
            }),
            ChapMessage::REPLY => Reply::parse(bytes).and_then(|head| {
                let rest = &bytes[Reply::LEN..];
                let (response, rest) = rest.split_at_checked(head.hl.into())?;
                let (challenge, rest) = rest.split_at_checked(head.hl.into())?;
                let value = rest.get(..usize::from(head.dhvlen.get()))?;
                Some(Self::Reply { head, response, challenge, value })
            }),
            ChapMessage::SUCCESS1 => Success1::parse(bytes).and_then(|head| {
                let length = if head.rvalid == 0 { 0 } else { head.hl.into() };
                let response = bytes[Success1::LEN..].get(..length)?;
                Some(Self::Success1 { head, response })
            }),
            ChapMessage::SUCCESS2 => Success2::parse(bytes).map(|_| Self::Success2),
            _ => return Err(FailureReason::INCORRECT_MESSAGE),
        })
    }
}

/// Returns the lists in the DH-HMAC-CHAP descriptor of AUTH_Negotiate. `None` if there is no such
/// descriptor.
pub(crate) fn offer(descriptors: &[u8]) -> Result<Option<Offer>, FailureReason> {
    for bytes in descriptors.chunks_exact(ProtocolDescriptor::LEN) {
        let descriptor =
            ProtocolDescriptor::parse(bytes).expect("the chunk has the length of a descriptor");
        if descriptor.auth_id != ProtocolId::DH_HMAC_CHAP.0 {
            continue;
        }
        let hashes = descriptor.hashes.get(..descriptor.halen.into());
        let groups = descriptor.groups.get(..descriptor.dhlen.into());
        let (Some(hashes), Some(groups)) = (hashes, groups) else {
            return Err(FailureReason::INCORRECT_PAYLOAD);
        };
        return Ok(Some(Offer { hashes: hashes.to_vec(), groups: groups.to_vec() }));
    }
    Ok(None)
}

/// Encodes AUTH_Negotiate with a single descriptor, for DH-HMAC-CHAP.
pub(crate) fn negotiate(
    transaction: u16,
    concatenation: Concatenation,
    hashes: &[u8],
    groups: &[u8],
) -> Vec<u8> {
    assert!(
        hashes.len() <= HASHES_MAX && groups.len() <= GROUPS_MAX,
        "more groups than the message can list"
    );
    let (t_id, sc_c) = (transaction.into(), concatenation.0);
    let head = Negotiate { t_id, sc_c, napd: 1, ..Negotiate::zeroed() };
    let mut descriptor = ProtocolDescriptor {
        auth_id: ProtocolId::DH_HMAC_CHAP.0,
        halen: hashes.len() as u8,
        dhlen: groups.len() as u8,
        ..ProtocolDescriptor::zeroed()
    };
    descriptor.hashes[..hashes.len()].copy_from_slice(hashes);
    descriptor.groups[..groups.len()].copy_from_slice(groups);
    [head.as_bytes(), descriptor.as_bytes()].concat()
}

/// Encodes AUTH_Failure1 of a controller or AUTH_Failure2 of a host.
pub(crate) fn failure(id: CommonMessage, transaction: u16, reason: FailureReason) -> Vec<u8> {
    let failure = Failure {
        auth_type: MessageType::COMMON.0,
        auth_id: id.0,
        t_id: transaction.into(),
        rcode: Failure::REASON_FAILURE,
        rcode_exp: reason.0,
        ..Failure::zeroed()
    };
    failure.as_bytes().to_vec()
}

/// Encodes DH-HMAC-CHAP_Success1, with the controller's response if the host requested it.
pub(crate) fn success1(transaction: u16, hash_bytes: usize, response: Option<&[u8]>) -> Vec<u8> {
    let head = Success1 {
        auth_type: MessageType::DH_HMAC_CHAP.0,
        auth_id: ChapMessage::SUCCESS1.0,
        t_id: transaction.into(),
        hl: hash_bytes as u8,
        rvalid: response.is_some().into(),
        ..Success1::zeroed()
    };
    [head.as_bytes(), response.unwrap_or_default()].concat()
}

/// Encodes DH-HMAC-CHAP_Success2.
pub(crate) fn success2(transaction: u16) -> Vec<u8> {
    let message = Success2 {
        auth_type: MessageType::DH_HMAC_CHAP.0,
        auth_id: ChapMessage::SUCCESS2.0,
        t_id: transaction.into(),
        ..Success2::zeroed()
    };
    message.as_bytes().to_vec()
}
