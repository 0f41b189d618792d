//! Log pages about supported commands and pages.

use zerocopy::little_endian::U32;

/// One command's entry (Base 2.0c, "Commands Supported and Effects Data Structure").
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CommandEffects(pub u32);

bit_fields! { CommandEffects(u32) {
    bit 0 csupp with_csupp "Command supported (CSUPP).";
    bit 1 lbcc with_lbcc "Logical block content change: the command may write data (LBCC).";
    bit 2 ncc with_ncc "Namespace capability change (NCC).";
    bit 3 nic with_nic "Namespace inventory change (NIC).";
    bit 4 ccc with_ccc "Controller capability change (CCC).";
    bits 16 18 cse: u8, with_cse "Command submission and execution restriction (CSE).";
    bit 19 uuid_selection with_uuid_selection "UUID selection supported.";
    bits 20 31 csp: u16, with_csp "Command scope (CSP).";
} }

impl CommandEffects {
    /// The controller supports the command, which has no effect to report.
    pub const SUPPORTED: Self = Self(1);
    /// The controller supports the command, which may change data.
    pub const SUPPORTED_WRITES: Self = Self(0b11);
    /// CSE: the command has no restriction.
    pub const CSE_NONE: u8 = 0b000;
    /// CSE: during the command, the host must not send another command to the same namespace.
    pub const CSE_SAME_NAMESPACE: u8 = 0b001;
    /// CSE: during the command, the host must not send another command to any namespace.
    pub const CSE_ANY_NAMESPACE: u8 = 0b010;
}

layout! {
    /// Commands Supported and Effects (Base 2.0c, "Commands Supported and Effects Log Page").
    pub struct CommandEffectsLog, 4096 {
        0 acs: [U32; 256], "Admin commands by opcode, each a `CommandEffects` (ACS).";
        1024 iocs: [U32; 256], "I/O commands by opcode, each a `CommandEffects` (IOCS).";
        2048 rsvd_2048: [u8; 2048], "Reserved.";
    }
}

layout! {
    /// Supported Log Pages (Base 2.0c, "Supported Log Pages Log Page").
    pub struct SupportedLogPages, 1024 {
        0 lids: [U32; 256], "By log page identifier: bit 0 supported, bit 1 index offset (IOS).";
    }
}

impl SupportedLogPages {
    /// LSUPP: the controller supports the log page.
    pub const LSUPP: u32 = 1 << 0;
    /// IOS: the offset of the log page may be an index.
    pub const IOS: u32 = 1 << 1;
}
