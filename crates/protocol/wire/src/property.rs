//! Controller properties (Base 2.0c, "Controller Properties").

use core::fmt;

/// Offsets of the properties that fabrics controllers have (Base 2.0c, "Property Definition").
pub mod offset {
    /// Controller Capabilities, 8 bytes.
    pub const CAP: u32 = 0x00;
    /// Version, 4 bytes.
    pub const VS: u32 = 0x08;
    /// Controller Configuration, 4 bytes.
    pub const CC: u32 = 0x14;
    /// Controller Status, 4 bytes.
    pub const CSTS: u32 = 0x1c;
    /// NVM Subsystem Reset, 4 bytes.
    pub const NSSR: u32 = 0x20;
    /// NVM Subsystem Shutdown, 4 bytes.
    pub const NSSD: u32 = 0x64;
    /// Controller Ready Timeouts, 4 bytes.
    pub const CRTO: u32 = 0x68;
}

/// The value "NVMe": a host writes it to NSSR to reset the subsystem.
pub const NSSR_RESET: u32 = 0x4e56_4d65;

/// Controller Capabilities (CAP) (Base 2.0c, "Controller Capabilities").
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Cap(pub u64);

impl Cap {
    /// CSS bit: the controller supports the NVM command set.
    pub const CSS_NVM: u8 = 1 << 0;
    /// CSS bit: the controller supports one or more I/O command sets, which the host selects with
    /// CC.CSS 110b.
    pub const CSS_MULTIPLE: u8 = 1 << 6;
    /// CSS bit: the controller supports no I/O command set (administrative and discovery
    /// controllers).
    pub const CSS_ADMIN_ONLY: u8 = 1 << 7;
}

bit_fields! { Cap(u64) {
    bits 0 15 mqes_z: u16, with_mqes_z "Maximum queue entries supported, 0's-based (MQES).";
    bit 16 cqr with_cqr "Contiguous queues required (CQR); 1 over fabrics.";
    bits 17 18 ams: u8, with_ams "Arbitration mechanisms supported (AMS).";
    bits 24 31 to: u8, with_to "Timeout of ready transitions, in units of 500 ms (TO).";
    bits 32 35 dstrd: u8, with_dstrd "Doorbell stride (DSTRD); 0 over fabrics.";
    bit 36 nssrs with_nssrs "NVM subsystem reset supported (NSSRS).";
    bits 37 44 css: u8, with_css "Command sets supported (CSS).";
    bit 45 bps with_bps "Boot partition support (BPS).";
    bits 46 47 cps: u8, with_cps "Controller power scope (CPS).";
    bits 48 51 mpsmin: u8, with_mpsmin "Smallest memory page: 2^(12 + MPSMIN) bytes.";
    bits 52 55 mpsmax: u8, with_mpsmax "Largest memory page: 2^(12 + MPSMAX) bytes.";
    bit 56 pmrs with_pmrs "Persistent memory region supported (PMRS).";
    bit 57 cmbs with_cmbs "Controller memory buffer supported (CMBS).";
    bit 58 nsss with_nsss "NVM subsystem shutdown supported (NSSS).";
    bits 59 60 crms: u8, with_crms "Controller ready modes supported (CRMS).";
} }

/// Controller Configuration (CC) (Base 2.0c, "Controller Configuration").
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Cc(pub u32);

impl Cc {
    /// CSS: the NVM command set.
    pub const CSS_NVM: u8 = 0b000;
    /// CSS: all supported I/O command sets.
    pub const CSS_ALL: u8 = 0b110;
    /// CSS: admin commands only.
    pub const CSS_ADMIN_ONLY: u8 = 0b111;
    /// SHN: no notification.
    pub const SHN_NONE: u8 = 0b00;
    /// SHN: normal shutdown.
    pub const SHN_NORMAL: u8 = 0b01;
    /// SHN: abrupt shutdown.
    pub const SHN_ABRUPT: u8 = 0b10;
    /// IOSQES over fabrics: 2^6 = 64 bytes.
    pub const IOSQES_64: u8 = 6;
    /// IOCQES over fabrics: 2^4 = 16 bytes.
    pub const IOCQES_16: u8 = 4;
}

bit_fields! { Cc(u32) {
    bit 0 en with_en "Enable (EN).";
    bits 4 6 css: u8, with_css "I/O command set selected (CSS).";
    bits 7 10 mps: u8, with_mps "Memory page size: 2^(12 + MPS) bytes.";
    bits 11 13 ams: u8, with_ams "Arbitration mechanism selected (AMS).";
    bits 14 15 shn: u8, with_shn "Shutdown notification (SHN).";
    bits 16 19 iosqes: u8, with_iosqes "I/O submission queue entry size, power of two (IOSQES).";
    bits 20 23 iocqes: u8, with_iocqes "I/O completion queue entry size, power of two (IOCQES).";
    bit 24 crime with_crime "Controller ready independent of media enable (CRIME).";
} }

/// Controller Status (CSTS) (Base 2.0c, "Controller Status").
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Csts(pub u32);

impl Csts {
    /// SHST: no shutdown.
    pub const SHST_NORMAL: u8 = 0b00;
    /// SHST: shutdown in progress.
    pub const SHST_OCCURRING: u8 = 0b01;
    /// SHST: shutdown complete.
    pub const SHST_COMPLETE: u8 = 0b10;
}

bit_fields! { Csts(u32) {
    bit 0 rdy with_rdy "Ready (RDY).";
    bit 1 cfs with_cfs "Controller fatal status (CFS).";
    bits 2 3 shst: u8, with_shst "Shutdown status (SHST).";
    bit 4 nssro with_nssro "NVM subsystem reset occurred (NSSRO).";
    bit 5 pp with_pp "Processing paused (PP).";
    bit 6 st with_st "Shutdown type: set if the whole subsystem shuts down (ST).";
} }

/// Controller Ready Timeouts (CRTO) (Base 2.0c, "Controller Ready Timeouts").
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Crto(pub u32);

bit_fields! { Crto(u32) {
    bits 0 15 crwmt: u16, with_crwmt "Ready with media timeout, in units of 500 ms (CRWMT).";
    bits 16 31 crimt: u16, with_crimt
        "Ready independent of media timeout, in units of 500 ms (CRIMT).";
} }

/// Version (VS) (Base 2.0c, "Version"); also VER of Identify Controller.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Version(pub u32);

impl Version {
    /// NVM Express 1.3.0.
    pub const V1_3: Self = Self::new(1, 3, 0);
    /// NVM Express 1.4.0.
    pub const V1_4: Self = Self::new(1, 4, 0);
    /// NVM Express 2.0.0.
    pub const V2_0: Self = Self::new(2, 0, 0);

    /// Creates a version from its three parts.
    pub const fn new(major: u16, minor: u8, tertiary: u8) -> Self {
        Self((major as u32) << 16 | (minor as u32) << 8 | tertiary as u32)
    }
}

bit_fields! { Version(u32) {
    bits 0 7 tertiary: u8, with_tertiary "Tertiary version number (TER).";
    bits 8 15 minor: u8, with_minor "Minor version number (MNR).";
    bits 16 31 major: u16, with_major "Major version number (MJR).";
} }

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major(), self.minor(), self.tertiary())
    }
}
