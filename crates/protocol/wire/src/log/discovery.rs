//! Discovery log page.

use zerocopy::little_endian::{U16, U64};

use crate::nqn::{self, NqnError};

open_code! {
    /// Transport Type (TRTYPE) (Base 2.0c, "Discovery Log Page Entry Data Structure").
    pub struct TransportType(u8), "transport type" {
        RDMA = 0x01, "RDMA";
        FIBRE_CHANNEL = 0x02, "Fibre Channel";
        TCP = 0x03, "TCP";
        LOOP = 0xfe, "loop (intra-host)";
    }
}

open_code! {
    /// Address Family (ADRFAM) (Base 2.0c, "Discovery Log Page Entry Data Structure").
    pub struct AddressFamily(u8), "address family" {
        IPV4 = 0x01, "IPv4";
        IPV6 = 0x02, "IPv6";
        INFINIBAND = 0x03, "InfiniBand";
        FIBRE_CHANNEL = 0x04, "Fibre Channel";
        LOOP = 0xfe, "loop (intra-host)";
    }
}

open_code! {
    /// Subsystem Type (SUBTYPE) (Base 2.0c, "Discovery Log Page Entry Data Structure").
    pub struct SubsystemType(u8), "subsystem type" {
        REFERRAL = 0x01, "referral to another discovery service";
        NVM = 0x02, "NVM subsystem";
        CURRENT_DISCOVERY = 0x03, "current discovery subsystem";
    }
}

layout! {
    /// Header of the Discovery log page (Base 2.0c, "Discovery Log Page"). Entries follow.
    pub struct DiscoveryLogHeader, 1024 {
        0 genctr: U64, "Generation counter: changes whenever the page changes (GENCTR).";
        8 numrec: U64, "Number of entries that follow (NUMREC).";
        16 recfmt: U16, "Record format, 0 (RECFMT).";
        18 rsvd_18: [u8; 1006], "Reserved.";
    }
}

layout! {
    /// One entry of the Discovery log page (Base 2.0c, "Discovery Log Page Entry Data
    /// Structure").
    pub struct DiscoveryLogEntry, 1024 {
        0 trtype: u8, "Transport type (TRTYPE); see `TransportType`.";
        1 adrfam: u8, "Address family (ADRFAM); see `AddressFamily`.";
        2 subtype: u8, "Subsystem type (SUBTYPE); see `SubsystemType`.";
        3 treq: u8, "Transport requirements (TREQ).";
        4 portid: U16, "Port identifier (PORTID).";
        6 cntlid: U16, "Controller ID to connect to, or FFFFh for any (CNTLID).";
        8 asqsz: U16, "Maximum entries of an admin submission queue, at least 32 (ASQSZ).";
        10 eflags: U16, "Entry flags (EFLAGS).";
        12 rsvd_12: [u8; 20], "Reserved.";
        32 trsvcid: [u8; 32], "Transport service identifier, for TCP the port, ASCII (TRSVCID).";
        64 rsvd_64: [u8; 192], "Reserved.";
        256 subnqn: [u8; 256], "NVM subsystem NQN, NUL-terminated (SUBNQN).";
        512 traddr: [u8; 256], "Transport address, ASCII (TRADDR).";
        768 tsas: [u8; 256], "Transport specific address subtype (TSAS); TCP: byte 0 is SECTYPE.";
    }
}

impl DiscoveryLogEntry {
    /// TREQ bits 1:0 as 01b: a secure channel is required.
    pub const TREQ_SECURE_REQUIRED: u8 = 0b01;
    /// TREQ bits 1:0 as 10b: a secure channel is not required.
    pub const TREQ_SECURE_NOT_REQUIRED: u8 = 0b10;
    /// TREQ bit 2: the controller may disable SQ flow control.
    pub const TREQ_DISABLE_SQ_FLOW: u8 = 1 << 2;
    /// EFLAGS: all entries with this flag lead to this discovery subsystem and return the same
    /// information (DUPRETINFO).
    pub const EFLAGS_DUPLICATE: u16 = 1 << 0;
    /// EFLAGS: explicit persistent connections are supported (EPCSD).
    pub const EFLAGS_PERSISTENT: u16 = 1 << 1;
    /// SECTYPE in TSAS of TCP: no transport security.
    pub const SECTYPE_NONE: u8 = 0;
    /// SECTYPE in TSAS of TCP: TLS 1.2 or earlier (obsolete).
    pub const SECTYPE_TLS12: u8 = 1;
    /// SECTYPE in TSAS of TCP: TLS 1.3.
    pub const SECTYPE_TLS13: u8 = 2;

    /// TSAS of RDMA: a reliable connection (RDMA_QPTYPE), no specified provider (RDMA_PRTYPE), and
    /// the RDMA connection manager with IP addresses (RDMA_CMS); RDMA 1.0c, "Transport Specific
    /// Address Subtype". The last field, a partition key, stays zero: it is for InfiniBand without
    /// IP addresses.
    pub const RDMA_SUBTYPE: [u8; 256] = {
        let mut subtype = [0; 256];
        (subtype[0], subtype[1], subtype[2]) = (1, 1, 1);
        subtype
    };

    /// Returns the subsystem's NQN after validation.
    pub fn subsystem_nqn(&self) -> Result<&str, NqnError> {
        nqn::parse_field(&self.subnqn)
    }

    /// Returns the transport address, which is an IP address for TCP; see [`parse_text`].
    pub fn address(&self) -> Option<&str> {
        parse_text(&self.traddr)
    }

    /// Returns the transport service identifier, which is a port number for TCP; see
    /// [`parse_text`].
    pub fn service(&self) -> Option<&str> {
        parse_text(&self.trsvcid)
    }
}

/// Returns an address field: the text, padded with spaces, as the specification requires of ASCII
/// fields. Linux and other implementations pad with NULs instead. [`parse_text`] accepts both.
///
/// # Panics
/// Panics if the text does not fit, or is not printable ASCII.
pub fn text_field<const N: usize>(text: &str) -> [u8; N] {
    assert!(text.len() <= N, "the text is longer than its field");
    assert!(
        text.bytes().all(|byte| matches!(byte, b' '..=b'~')),
        "the text is not printable ASCII"
    );
    let mut field = [b' '; N];
    field[..text.len()].copy_from_slice(text.as_bytes());
    field
}

/// Returns the text of an address field without its padding of spaces or NULs. `None`: the text is
/// not printable ASCII.
pub fn parse_text(field: &[u8]) -> Option<&str> {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    let text = core::str::from_utf8(&field[..end]).ok()?.trim_end_matches(' ');
    text.bytes().all(|byte| matches!(byte, b' '..=b'~')).then_some(text)
}
