//! Messages of in-band authentication (Base 2.0c, "NVMe In-band Authentication"): the common
//! messages and the DH-HMAC-CHAP messages. Newer versions of the specification say KX-HMAC-CHAP.
//!
//! Each message starts with the same six bytes, [`MessageHead`]. Fields of variable length
//! (challenges, responses, Diffie-Hellman values) follow the fixed part. The doc line of each fixed
//! part names these fields in order.

use zerocopy::little_endian::{U16, U32};

/// Security protocol of authentication commands (SECP, "Authentication Send Command").
pub const SECP_NVME: u8 = 0xe9;
/// The value of both security protocol specific bytes (SPSP0 and SPSP1) of authentication commands.
pub const SPSP: u8 = 0x01;

/// Length in bytes of the largest message: DH-HMAC-CHAP_Reply with SHA-512 and an 8192-bit
/// Diffie-Hellman value.
pub const MESSAGE_BYTES_MAX: usize = Reply::LEN + 2 * 64 + 1024;

/// One protocol descriptor has room for this many hash functions (HALEN).
pub const HASHES_MAX: usize = 30;
/// One protocol descriptor has room for this many Diffie-Hellman groups (DHLEN).
pub const GROUPS_MAX: usize = 30;

open_code! {
    /// The type of a message (AUTH_TYPE).
    pub struct MessageType(u8), "authentication type" {
        COMMON = 0x00, "Common";
        DH_HMAC_CHAP = 0x01, "DH-HMAC-CHAP";
    }
}

open_code! {
    /// The common message (AUTH_ID with type [`MessageType::COMMON`]).
    pub struct CommonMessage(u8), "common authentication message" {
        NEGOTIATE = 0x00, "AUTH_Negotiate";
        FAILURE2 = 0xf0, "AUTH_Failure2";
        FAILURE1 = 0xf1, "AUTH_Failure1";
    }
}

open_code! {
    /// The DH-HMAC-CHAP message (AUTH_ID with type [`MessageType::DH_HMAC_CHAP`]).
    pub struct ChapMessage(u8), "DH-HMAC-CHAP message" {
        CHALLENGE = 0x01, "DH-HMAC-CHAP_Challenge";
        REPLY = 0x02, "DH-HMAC-CHAP_Reply";
        SUCCESS1 = 0x03, "DH-HMAC-CHAP_Success1";
        SUCCESS2 = 0x04, "DH-HMAC-CHAP_Success2";
    }
}

open_code! {
    /// Authentication protocol (AuthID of a protocol descriptor).
    pub struct ProtocolId(u8), "authentication protocol" {
        DH_HMAC_CHAP = 0x01, "DH-HMAC-CHAP";
    }
}

open_code! {
    /// Hash function (HashID).
    pub struct HashId(u8), "hash function" {
        SHA256 = 0x01, "SHA-256";
        SHA384 = 0x02, "SHA-384";
        SHA512 = 0x03, "SHA-512";
    }
}

open_code! {
    /// Diffie-Hellman group (DHgID).
    pub struct GroupId(u8), "Diffie-Hellman group" {
        NULL = 0x00, "NULL";
        FFDHE2048 = 0x01, "ffdhe2048";
        FFDHE3072 = 0x02, "ffdhe3072";
        FFDHE4096 = 0x03, "ffdhe4096";
        FFDHE6144 = 0x04, "ffdhe6144";
        FFDHE8192 = 0x05, "ffdhe8192";
    }
}

open_code! {
    /// The reason for a failed authentication transaction: the reason code explanation for reason
    /// code 01h ("AUTH_Failure1 reason code explanations").
    pub struct FailureReason(u8), "reason" {
        FAILED = 0x01, "Authentication failed";
        PROTOCOL_UNUSABLE = 0x02, "Authentication protocol not usable";
        CONCATENATION_MISMATCH = 0x03, "Secure channel concatenation mismatch";
        HASH_UNUSABLE = 0x04, "Hash function not usable";
        GROUP_UNUSABLE = 0x05, "DH group not usable";
        INCORRECT_PAYLOAD = 0x06, "Incorrect payload";
        INCORRECT_MESSAGE = 0x07, "Incorrect protocol message";
    }
}

open_code! {
    /// The use of the session key (SC_C of AUTH_Negotiate; TP 8018).
    pub struct Concatenation(u8), "secure channel concatenation" {
        NONE = 0x00, "None";
        NEW_TLS_PSK = 0x02, "New pre-shared key for TLS";
        REPLACE_TLS_PSK = 0x03, "Replacement of the pre-shared key for TLS";
    }
}

layout! {
    /// The first bytes of every message.
    pub struct MessageHead, 6 {
        0 auth_type: u8, "Authentication type (AUTH_TYPE).";
        1 auth_id: u8, "Message identifier (AUTH_ID).";
        2 rsvd_2: [u8; 2], "Reserved.";
        4 t_id: U16, "Transaction identifier (T_ID), chosen by the host.";
    }
}

layout! {
    /// AUTH_Negotiate ("AUTH_Negotiate Message"), followed by NAPD [`ProtocolDescriptor`]s.
    pub struct Negotiate, 8 {
        0 auth_type: u8, "Authentication type (AUTH_TYPE), 00h.";
        1 auth_id: u8, "Message identifier (AUTH_ID), 00h.";
        2 rsvd_2: [u8; 2], "Reserved.";
        4 t_id: U16, "Transaction identifier (T_ID).";
        6 sc_c: u8, "Secure channel concatenation (SC_C); see [`Concatenation`].";
        7 napd: u8, "Number of protocol descriptors (NAPD).";
    }
}

layout! {
    /// Protocol descriptor of DH-HMAC-CHAP ("Authentication Protocol Descriptor").
    pub struct ProtocolDescriptor, 64 {
        0 auth_id: u8, "Authentication protocol (AuthID), 01h.";
        1 rsvd_1: u8, "Reserved.";
        2 halen: u8, "Number of hash functions (HALEN).";
        3 dhlen: u8, "Number of Diffie-Hellman groups (DHLEN).";
        4 hashes: [u8; 30], "Identifiers of the hash functions (HashIDList).";
        34 groups: [u8; 30], "Identifiers of the Diffie-Hellman groups (DHgIDList).";
    }
}

layout! {
    /// DH-HMAC-CHAP_Challenge, followed by HL bytes of challenge C1 and DHVLEN bytes of the
    /// Diffie-Hellman value.
    pub struct Challenge, 16 {
        0 auth_type: u8, "Authentication type (AUTH_TYPE), 01h.";
        1 auth_id: u8, "Message identifier (AUTH_ID), 01h.";
        2 rsvd_2: [u8; 2], "Reserved.";
        4 t_id: U16, "Transaction identifier (T_ID).";
        6 hl: u8, "Length of a hash in bytes (HL).";
        7 rsvd_7: u8, "Reserved.";
        8 hash_id: u8, "Hash function (HashID).";
        9 dhg_id: u8, "Diffie-Hellman group (DHgID).";
        10 dhvlen: U16, "Length of the Diffie-Hellman value in bytes (DHVLEN).";
        12 seqnum: U32, "Sequence number S1 (SEQNUM).";
    }
}

layout! {
    /// DH-HMAC-CHAP_Reply, followed by HL bytes of response R1, HL bytes of challenge C2 and DHVLEN
    /// bytes of the Diffie-Hellman value.
    pub struct Reply, 16 {
        0 auth_type: u8, "Authentication type (AUTH_TYPE), 01h.";
        1 auth_id: u8, "Message identifier (AUTH_ID), 02h.";
        2 rsvd_2: [u8; 2], "Reserved.";
        4 t_id: U16, "Transaction identifier (T_ID).";
        6 hl: u8, "Length of a hash in bytes (HL).";
        7 rsvd_7: u8, "Reserved.";
        8 cvalid: u8, "01h if the controller must authenticate as well (CVALID).";
        9 rsvd_9: u8, "Reserved.";
        10 dhvlen: U16, "Length of the Diffie-Hellman value in bytes (DHVLEN).";
        12 seqnum: U32, "Sequence number S2 (SEQNUM).";
    }
}

layout! {
    /// DH-HMAC-CHAP_Success1, followed by HL bytes of response R2 if RVALID is set.
    pub struct Success1, 16 {
        0 auth_type: u8, "Authentication type (AUTH_TYPE), 01h.";
        1 auth_id: u8, "Message identifier (AUTH_ID), 03h.";
        2 rsvd_2: [u8; 2], "Reserved.";
        4 t_id: U16, "Transaction identifier (T_ID).";
        6 hl: u8, "Length of a hash in bytes (HL).";
        7 rsvd_7: u8, "Reserved.";
        8 rvalid: u8, "01h if the message contains the response (RVALID).";
        9 rsvd_9: [u8; 7], "Reserved.";
    }
}

layout! {
    /// DH-HMAC-CHAP_Success2.
    pub struct Success2, 16 {
        0 auth_type: u8, "Authentication type (AUTH_TYPE), 01h.";
        1 auth_id: u8, "Message identifier (AUTH_ID), 04h.";
        2 rsvd_2: [u8; 2], "Reserved.";
        4 t_id: U16, "Transaction identifier (T_ID).";
        6 rsvd_6: [u8; 10], "Reserved.";
    }
}

layout! {
    /// AUTH_Failure1 (from the controller) and AUTH_Failure2 (from the host).
    pub struct Failure, 8 {
        0 auth_type: u8, "Authentication type (AUTH_TYPE), 00h.";
        1 auth_id: u8, "Message identifier (AUTH_ID), F1h or F0h.";
        2 rsvd_2: [u8; 2], "Reserved.";
        4 t_id: U16, "Transaction identifier (T_ID).";
        6 rcode: u8, "Reason code, 01h: authentication failure.";
        7 rcode_exp: u8, "Reason code explanation; see [`FailureReason`].";
    }
}

impl Failure {
    /// The only reason code: authentication failure.
    pub const REASON_FAILURE: u8 = 0x01;
}
