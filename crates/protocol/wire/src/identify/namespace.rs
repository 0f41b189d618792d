//! Identify Namespace structures.

use zerocopy::little_endian::{U16, U32, U64, U128};

layout! {
    /// LBA Format (NVM 1.0c, "LBA Format Data Structure, NVM Command Set Specific").
    pub struct LbaFormat, 4 {
        0 ms: U16, "Metadata size in bytes (MS).";
        2 lbads: u8, "LBA data size, power of two, at least 9 (LBADS).";
        3 rp: u8, "Relative performance in bits 1:0, 0 is best (RP).";
    }
}

impl LbaFormat {
    /// Returns the block size in bytes. `None`: the size is below 512 (as in an unused format) or
    /// over 2 GiB.
    pub const fn block_bytes(&self) -> Option<u32> {
        if self.lbads < 9 || self.lbads > 31 { None } else { Some(1 << self.lbads) }
    }
}

layout! {
    /// Identify Namespace, NVM command set (CNS 00h) (NVM 1.0c, "Identify Namespace Data
    /// Structure, NVM Command Set Specific").
    pub struct IdentifyNamespace, 4096 {
        0 nsze: U64, "Namespace size in blocks (NSZE).";
        8 ncap: U64, "Namespace capacity in blocks (NCAP).";
        16 nuse: U64, "Namespace utilization in blocks (NUSE).";
        24 nsfeat: u8, "Namespace features (NSFEAT).";
        25 nlbaf_z: u8, "Number of LBA formats, 0's-based (NLBAF).";
        26 flbas: u8, "Formatted LBA size: format index in bits 6:5 and 3:0 (FLBAS).";
        27 mc: u8, "Metadata capabilities (MC).";
        28 dpc: u8, "End-to-end data protection capabilities (DPC).";
        29 dps: u8, "End-to-end data protection type settings (DPS).";
        30 nmic: u8, "Multi-path I/O and namespace sharing capabilities (NMIC).";
        31 rescap: u8, "Reservation capabilities (RESCAP).";
        32 fpi: u8, "Format progress indicator (FPI).";
        33 dlfeat: u8, "Deallocate logical block features (DLFEAT).";
        34 nawun_z: U16, "Namespace atomic write unit normal, 0's-based (NAWUN).";
        36 nawupf_z: U16, "Namespace atomic write unit power fail, 0's-based (NAWUPF).";
        38 nacwu_z: U16, "Namespace atomic compare and write unit, 0's-based (NACWU).";
        40 nabsn_z: U16, "Namespace atomic boundary size normal, 0's-based (NABSN).";
        42 nabo: U16, "Namespace atomic boundary offset (NABO).";
        44 nabspf_z: U16, "Namespace atomic boundary size power fail, 0's-based (NABSPF).";
        46 noiob: U16, "Namespace optimal I/O boundary in blocks (NOIOB).";
        48 nvmcap: U128, "NVM capacity in bytes (NVMCAP).";
        64 npwg_z: U16, "Preferred write granularity in blocks, 0's-based (NPWG).";
        66 npwa_z: U16, "Preferred write alignment in blocks, 0's-based (NPWA).";
        68 npdg_z: U16, "Preferred deallocate granularity in blocks, 0's-based (NPDG).";
        70 npda_z: U16, "Preferred deallocate alignment in blocks, 0's-based (NPDA).";
        72 nows_z: U16, "Optimal write size in blocks, 0's-based (NOWS).";
        74 mssrl: U16, "Maximum single source range length in blocks, of Copy (MSSRL).";
        76 mcl: U32, "Maximum copy length in blocks (MCL).";
        80 msrc_z: u8, "Maximum source range count, 0's-based (MSRC).";
        81 rsvd_81: u8, "Reserved.";
        82 nulbaf: u8, "Number of unique capability LBA formats (NULBAF).";
        83 rsvd_83: [u8; 9], "Reserved.";
        92 anagrpid: U32, "ANA group identifier (ANAGRPID).";
        96 rsvd_96: [u8; 3], "Reserved.";
        99 nsattr: u8, "Namespace attributes: bit 0 write protected (NSATTR).";
        100 nvmsetid: U16, "NVM set identifier (NVMSETID).";
        102 endgid: U16, "Endurance group identifier (ENDGID).";
        104 nguid: [u8; 16], "Namespace globally unique identifier, big-endian (NGUID).";
        120 eui64: [u8; 8], "IEEE extended unique identifier, big-endian (EUI64).";
        128 lbaf: [LbaFormat; 64], "LBA formats (LBAF0 to LBAF63).";
        384 vs: [u8; 3712], "Vendor specific.";
    }
}

/// Bits of the fields above. Each constant's name starts with its field's name.
impl IdentifyNamespace {
    /// NSFEAT, thin provisioning: NCAP may be below NSZE.
    pub const NSFEAT_THIN: u8 = 1 << 0;
    /// NSFEAT: the namespace's atomic write fields are valid (NSABP).
    pub const NSFEAT_ATOMICS: u8 = 1 << 1;
    /// NSFEAT: reads of deallocated blocks fail if the host enables this error (DAE).
    pub const NSFEAT_DEALLOCATED_ERROR: u8 = 1 << 2;
    /// NSFEAT: NGUID and EUI64 are never reused (UIDREUSE).
    pub const NSFEAT_IDS_NOT_REUSED: u8 = 1 << 3;
    /// NSFEAT: NPWG, NPWA, NPDG, NPDA and NOWS are valid (OPTPERF).
    pub const NSFEAT_OPTIMAL_IO: u8 = 1 << 4;
    /// NMIC: the namespace may be attached to more than one controller.
    pub const NMIC_SHARED: u8 = 1 << 0;
    /// NSATTR: the namespace is write protected.
    pub const NSATTR_WRITE_PROTECTED: u8 = 1 << 0;
    /// DLFEAT bits 2:0 as 001b: deallocated blocks read as zeroes.
    pub const DLFEAT_READ_ZEROES: u8 = 0b001;
    /// DLFEAT: the controller obeys the deallocate bit of Write Zeroes.
    pub const DLFEAT_WRITE_ZEROES_DEALLOCATE: u8 = 1 << 3;
    /// RESCAP: reservations can persist through power loss.
    pub const RESCAP_PERSIST: u8 = 1 << 0;
    /// RESCAP: the namespace supports all six reservation types.
    pub const RESCAP_ALL_TYPES: u8 = 0b0111_1110;
    /// RESCAP: Ignore Existing Key is as defined in revision 1.3 and later.
    pub const RESCAP_IGNORE_KEY_1_3: u8 = 1 << 7;

    /// Returns the index of the current LBA format.
    pub const fn format_index(&self) -> u8 {
        // Bits 6:5 of FLBAS, the high bits of the index, are valid only if there are more than 16
        // formats.
        let low = self.flbas & 0xf;
        if self.nlbaf_z as u16 + self.nulbaf as u16 >= 16 {
            low | (self.flbas >> 1) & 0x30
        } else {
            low
        }
    }

    /// Returns the current LBA format.
    pub const fn format(&self) -> LbaFormat {
        self.lbaf[self.format_index() as usize]
    }
}

layout! {
    /// I/O Command Set specific Identify Namespace, NVM (CNS 05h, CSI 00h) (NVM 1.0c, "NVM
    /// Command Set I/O Command Set Specific Identify Namespace Data Structure").
    pub struct IdentifyNamespaceNvm, 4096 {
        0 lbstm: U64, "Logical block storage tag mask (LBSTM).";
        8 pic: u8, "Protection information capabilities (PIC).";
        9 rsvd_9: [u8; 3], "Reserved.";
        12 elbaf: [U32; 64], "Extended LBA formats (ELBAF0 to ELBAF63).";
        268 rsvd_268: [u8; 3828], "Reserved.";
    }
}

layout! {
    /// I/O Command Set Independent Identify Namespace (CNS 08h) (Base 2.0c, "I/O Command Set
    /// Independent Identify Namespace Data Structure").
    pub struct IdentifyNamespaceIndependent, 4096 {
        0 nsfeat: u8, "Common namespace features (NSFEAT); bits differ from CNS 00h.";
        1 nmic: u8, "Multi-path I/O and namespace sharing capabilities (NMIC).";
        2 rescap: u8, "Reservation capabilities (RESCAP).";
        3 fpi: u8, "Format progress indicator (FPI).";
        4 anagrpid: U32, "ANA group identifier (ANAGRPID).";
        8 nsattr: u8, "Namespace attributes: bit 0 write protected (NSATTR).";
        9 rsvd_9: u8, "Reserved.";
        10 nvmsetid: U16, "NVM set identifier (NVMSETID).";
        12 endgid: U16, "Endurance group identifier (ENDGID).";
        14 nstat: u8, "Namespace status: bit 0 ready (NSTAT).";
        15 rsvd_15: [u8; 4081], "Reserved.";
    }
}

impl IdentifyNamespaceIndependent {
    /// NSFEAT: NGUID and EUI64 are never reused (UIDREUSE).
    pub const NSFEAT_IDS_NOT_REUSED: u8 = 1 << 3;
    /// NSTAT: the namespace is ready (NRDY).
    pub const NSTAT_READY: u8 = 1 << 0;
}
