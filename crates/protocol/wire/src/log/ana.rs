//! Asymmetric Namespace Access log page.

use zerocopy::little_endian::{U16, U32, U64};

open_code! {
    /// ANA State, bits 3:0 (Base 2.0c, "ANA Group Descriptor format").
    pub struct AnaState(u8), "ANA state" {
        OPTIMIZED = 0x01, "ANA Optimized";
        NON_OPTIMIZED = 0x02, "ANA Non-Optimized";
        INACCESSIBLE = 0x03, "ANA Inaccessible";
        PERSISTENT_LOSS = 0x04, "ANA Persistent Loss";
        CHANGE = 0x0f, "ANA Change";
    }
}

layout! {
    /// Header of the ANA log page (Base 2.0c, "Asymmetric Namespace Access Log Page"). Group
    /// descriptors follow.
    pub struct AnaLogHeader, 16 {
        0 chgcnt: U64, "Change count: grows whenever the page changes.";
        8 ngrps: U16, "Number of group descriptors that follow.";
        10 rsvd_10: [u8; 6], "Reserved.";
    }
}

impl AnaLogHeader {
    /// Log specific parameter bit 0: return groups without their namespaces (RGO).
    pub const LSP_GROUPS_ONLY: u8 = 1 << 0;
}

layout! {
    /// One ANA group (Base 2.0c, "ANA Group Descriptor format"). `nnsids` namespace identifiers
    /// of 4 bytes follow, ascending.
    pub struct AnaGroupDescriptor, 32 {
        0 grpid: U32, "ANA group ID, not 0.";
        4 nnsids: U32, "Number of namespace identifiers that follow.";
        8 chgcnt: U64, "Change count of this group, 0 when not reported.";
        16 state: u8, "Asymmetric namespace access state in bits 3:0; see `AnaState`.";
        17 rsvd_17: [u8; 15], "Reserved.";
    }
}

impl AnaGroupDescriptor {
    /// Returns the access state of the group.
    pub const fn ana_state(&self) -> AnaState {
        AnaState(self.state & 0xf)
    }
}
