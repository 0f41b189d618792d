//! Identify Controller structures.

use zerocopy::little_endian::{U16, U32, U64, U128};

use crate::nqn::{self, NqnError};

open_code! {
    /// Controller Type (CNTRLTYPE) (Base 2.0c, "Identify Controller Data Structure").
    pub struct ControllerType(u8), "controller type" {
        NOT_REPORTED = 0x00, "not reported";
        IO = 0x01, "I/O controller";
        DISCOVERY = 0x02, "discovery controller";
        ADMINISTRATIVE = 0x03, "administrative controller";
    }
}

layout! {
    /// Power State Descriptor (Base 2.0c, "Power State Descriptor Data Structure").
    pub struct PowerState, 32 {
        0 mp: U16, "Maximum power (MP), in 0.01 W, or 0.0001 W with MXPS.";
        2 rsvd_2: u8, "Reserved.";
        3 flags: u8, "Bit 0 max power scale (MXPS), bit 1 non-operational state (NOPS).";
        4 enlat: U32, "Entry latency in microseconds (ENLAT).";
        8 exlat: U32, "Exit latency in microseconds (EXLAT).";
        12 rrt: u8, "Relative read throughput (RRT).";
        13 rrl: u8, "Relative read latency (RRL).";
        14 rwt: u8, "Relative write throughput (RWT).";
        15 rwl: u8, "Relative write latency (RWL).";
        16 idlp: U16, "Idle power (IDLP).";
        18 ips: u8, "Idle power scale in bits 7:6 (IPS).";
        19 rsvd_19: u8, "Reserved.";
        20 actp: U16, "Active power (ACTP).";
        22 apws: u8, "Active power workload in bits 2:0 (APW), scale in bits 7:6 (APS).";
        23 rsvd_23: [u8; 9], "Reserved.";
    }
}

layout! {
    /// Identify Controller (CNS 01h) (Base 2.0c, "Identify Controller Data Structure").
    pub struct IdentifyController, 4096 {
        0 vid: U16, "PCI vendor ID (VID).";
        2 ssvid: U16, "PCI subsystem vendor ID (SSVID).";
        4 sn: [u8; 20], "Serial number (SN), ASCII.";
        24 mn: [u8; 40], "Model number (MN), ASCII.";
        64 fr: [u8; 8], "Firmware revision (FR), ASCII.";
        72 rab: u8, "Recommended arbitration burst, power of two (RAB).";
        73 ieee: [u8; 3], "IEEE OUI identifier (IEEE).";
        76 cmic: u8, "Controller multi-path and namespace sharing capabilities (CMIC).";
        77 mdts: u8, "Maximum data transfer size: 2^MDTS memory pages, 0 for no limit (MDTS).";
        78 cntlid: U16, "Controller ID (CNTLID).";
        80 ver: U32, "Version (VER).";
        84 rtd3r: U32, "RTD3 resume latency in microseconds (RTD3R).";
        88 rtd3e: U32, "RTD3 entry latency in microseconds (RTD3E).";
        92 oaes: U32, "Optional asynchronous events supported (OAES).";
        96 ctratt: U32, "Controller attributes (CTRATT).";
        100 rrls: U16, "Read recovery levels supported (RRLS).";
        102 rsvd_102: [u8; 9], "Reserved.";
        111 cntrltype: u8, "Controller type (CNTRLTYPE); see `ControllerType`.";
        112 fguid: [u8; 16], "FRU globally unique identifier (FGUID).";
        128 crdt1: U16, "Command retry delay time 1, in units of 100 ms (CRDT1).";
        130 crdt2: U16, "Command retry delay time 2, in units of 100 ms (CRDT2).";
        132 crdt3: U16, "Command retry delay time 3, in units of 100 ms (CRDT3).";
        134 crcap: u8, "Controller reachability capabilities (CRCAP), since 2.1.";
        135 ciu: u8, "Controller instance uniquifier, 0 for none (CIU), since 2.3.";
        136 cirn: U64, "Controller instance random number (CIRN), since 2.3.";
        144 rsvd_144: [u8; 109], "Reserved.";
        253 nvmsr: u8, "NVM subsystem report (NVMSR).";
        254 vwci: u8, "VPD write cycle information (VWCI).";
        255 mec: u8, "Management endpoint capabilities (MEC).";
        256 oacs: U16, "Optional admin command support (OACS).";
        258 acl_z: u8, "Abort command limit, 0's-based (ACL).";
        259 aerl_z: u8, "Asynchronous event request limit, 0's-based (AERL).";
        260 frmw: u8, "Firmware updates (FRMW).";
        261 lpa: u8, "Log page attributes (LPA).";
        262 elpe_z: u8, "Error log page entries, 0's-based (ELPE).";
        263 npss_z: u8, "Number of power states supported, 0's-based (NPSS).";
        264 avscc: u8, "Admin vendor specific command configuration (AVSCC).";
        265 apsta: u8, "Autonomous power state transition attributes (APSTA).";
        266 wctemp: U16, "Warning composite temperature threshold, in kelvin (WCTEMP).";
        268 cctemp: U16, "Critical composite temperature threshold, in kelvin (CCTEMP).";
        270 mtfa: U16, "Maximum time for firmware activation, in units of 100 ms (MTFA).";
        272 hmpre: U32, "Host memory buffer preferred size, in 4 KiB units (HMPRE).";
        276 hmmin: U32, "Host memory buffer minimum size, in 4 KiB units (HMMIN).";
        280 tnvmcap: U128, "Total NVM capacity in bytes (TNVMCAP).";
        296 unvmcap: U128, "Unallocated NVM capacity in bytes (UNVMCAP).";
        312 rpmbs: U32, "Replay protected memory block support (RPMBS).";
        316 edstt: U16, "Extended device self-test time in minutes (EDSTT).";
        318 dsto: u8, "Device self-test options (DSTO).";
        319 fwug: u8, "Firmware update granularity, in 4 KiB units (FWUG).";
        320 kas: U16, "Keep alive support: granularity in units of 100 ms, 0 for none (KAS).";
        322 hctma: U16, "Host controlled thermal management attributes (HCTMA).";
        324 mntmt: U16, "Minimum thermal management temperature, in kelvin (MNTMT).";
        326 mxtmt: U16, "Maximum thermal management temperature, in kelvin (MXTMT).";
        328 sanicap: U32, "Sanitize capabilities (SANICAP).";
        332 hmminds: U32, "Host memory buffer minimum descriptor entry size (HMMINDS).";
        336 hmmaxd: U16, "Host memory maximum descriptors entries (HMMAXD).";
        338 nsetidmax: U16, "NVM set identifier maximum (NSETIDMAX).";
        340 endgidmax: U16, "Endurance group identifier maximum (ENDGIDMAX).";
        342 anatt: u8, "ANA transition time in seconds (ANATT).";
        343 anacap: u8, "Asymmetric namespace access capabilities (ANACAP).";
        344 anagrpmax: U32, "ANA group identifier maximum (ANAGRPMAX).";
        348 nanagrpid: U32, "Number of ANA group identifiers (NANAGRPID).";
        352 pels: U32, "Persistent event log size, in 64 KiB units (PELS).";
        356 did: U16, "Domain identifier.";
        358 rsvd_358: [u8; 10], "Reserved.";
        368 megcap: U128, "Max endurance group capacity in bytes (MEGCAP).";
        384 rsvd_384: [u8; 2], "Reserved.";
        386 cqt: U16, "Command quiesce time in milliseconds, 0 if not reported (CQT), since 2.1.";
        388 rsvd_388: [u8; 124], "Reserved.";
        512 sqes: u8, "SQ entry size: required in bits 3:0, maximum in bits 7:4 (SQES).";
        513 cqes: u8, "CQ entry size: required in bits 3:0, maximum in bits 7:4 (CQES).";
        514 maxcmd: U16, "Maximum outstanding commands per queue (MAXCMD); required over fabrics.";
        516 nn: U32, "Number of namespaces: the largest namespace ID (NN).";
        520 oncs: U16, "Optional NVM command support (ONCS).";
        522 fuses: U16, "Fused operation support (FUSES).";
        524 fna: u8, "Format NVM attributes (FNA).";
        525 vwc: u8, "Volatile write cache (VWC).";
        526 awun_z: U16, "Atomic write unit normal in logical blocks, 0's-based (AWUN).";
        528 awupf_z: U16, "Atomic write unit power fail in logical blocks, 0's-based (AWUPF).";
        530 icsvscc: u8, "I/O command set vendor specific command configuration (ICSVSCC).";
        531 nwpc: u8, "Namespace write protection capabilities (NWPC).";
        532 acwu_z: U16, "Atomic compare and write unit in logical blocks, 0's-based (ACWU).";
        534 ocfs: U16, "Optional copy formats supported (OCFS).";
        536 sgls: U32, "SGL support (SGLS).";
        540 mnan: U32, "Maximum number of allowed namespaces (MNAN).";
        544 maxdna: U128, "Maximum domain namespace attachments (MAXDNA).";
        560 maxcna: U32, "Maximum I/O controller namespace attachments (MAXCNA).";
        564 rsvd_564: [u8; 204], "Reserved.";
        768 subnqn: [u8; 256], "NVM subsystem NQN, NUL-terminated (SUBNQN).";
        1024 rsvd_1024: [u8; 768], "Reserved.";
        1792 ioccsz: U32, "I/O queue command capsule supported size, in 16 byte units (IOCCSZ).";
        1796 iorcsz: U32, "I/O queue response capsule supported size, in 16 byte units (IORCSZ).";
        1800 icdoff: U16, "In-capsule data offset, in 16 byte units (ICDOFF).";
        1802 fcatt: u8, "Fabrics controller attributes: bit 0 static controller model (FCATT).";
        1803 msdbd: u8, "Maximum SGL data block descriptors, 0 for no limit (MSDBD).";
        1804 ofcs: U16, "Optional fabrics commands support: bit 0 Disconnect (OFCS).";
        1806 dctype: u8, "Discovery controller type (DCTYPE), since 2.1.";
        1807 ccrl: u8, "Cross-Controller Resets in progress at once, 0 for none (CCRL), since 2.3.";
        1808 rsvd_1808: [u8; 240], "Reserved.";
        2048 psd: [PowerState; 32], "Power state descriptors (PSD0 to PSD31).";
        3072 vs: [u8; 1024], "Vendor specific.";
    }
}

/// Bits of the fields above. Each constant's name starts with its field's name.
impl IdentifyController {
    /// CMIC: the NVM subsystem may have more than one port.
    pub const CMIC_MULTI_PORT: u8 = 1 << 0;
    /// CMIC: the NVM subsystem may have more than one controller.
    pub const CMIC_MULTI_CONTROLLER: u8 = 1 << 1;
    /// CMIC: the controller reports asymmetric namespace access.
    pub const CMIC_ANA: u8 = 1 << 3;

    /// CTRATT: 128-bit host identifier.
    pub const CTRATT_HOST_ID_128: u32 = 1 << 0;
    /// CTRATT: traffic based keep alive.
    pub const CTRATT_TRAFFIC_KEEP_ALIVE: u32 = 1 << 6;
    /// CTRATT: extended LBA formats.
    pub const CTRATT_EXTENDED_LBA_FORMATS: u32 = 1 << 15;

    /// OACS: Security Send and Receive.
    pub const OACS_SECURITY: u16 = 1 << 0;
    /// OACS: Format NVM.
    pub const OACS_FORMAT: u16 = 1 << 1;
    /// OACS: Firmware Commit and Image Download.
    pub const OACS_FIRMWARE: u16 = 1 << 2;
    /// OACS: Namespace Management and Attachment.
    pub const OACS_NAMESPACE_MANAGEMENT: u16 = 1 << 3;
    /// OACS: Device Self-test.
    pub const OACS_SELF_TEST: u16 = 1 << 4;

    /// LPA: SMART log page per namespace.
    pub const LPA_SMART_PER_NAMESPACE: u8 = 1 << 0;
    /// LPA: Commands Supported and Effects log page.
    pub const LPA_COMMAND_EFFECTS: u8 = 1 << 1;
    /// LPA: extended data for Get Log Page (32-bit length, offset).
    pub const LPA_EXTENDED_DATA: u8 = 1 << 2;
    /// LPA: Supported Log Pages log page, and the other pages that the specification ties to this
    /// bit.
    pub const LPA_SUPPORTED_LOG_PAGES: u8 = 1 << 5;

    /// FRMW: the first slot is read only.
    pub const FRMW_SLOT1_READ_ONLY: u8 = 1 << 0;
    /// FRMW: one firmware slot, in the field of bits 3:1.
    pub const FRMW_ONE_SLOT: u8 = 1 << 1;

    /// ONCS: Compare.
    pub const ONCS_COMPARE: u16 = 1 << 0;
    /// ONCS: Write Uncorrectable.
    pub const ONCS_WRITE_UNCORRECTABLE: u16 = 1 << 1;
    /// ONCS: Dataset Management.
    pub const ONCS_DATASET_MANAGEMENT: u16 = 1 << 2;
    /// ONCS: Write Zeroes.
    pub const ONCS_WRITE_ZEROES: u16 = 1 << 3;
    /// ONCS: save and select fields of Set and Get Features.
    pub const ONCS_FEATURE_SAVE_SELECT: u16 = 1 << 4;
    /// ONCS: reservations.
    pub const ONCS_RESERVATIONS: u16 = 1 << 5;
    /// ONCS: Timestamp feature.
    pub const ONCS_TIMESTAMP: u16 = 1 << 6;
    /// ONCS: Verify.
    pub const ONCS_VERIFY: u16 = 1 << 7;
    /// ONCS: Copy.
    pub const ONCS_COPY: u16 = 1 << 8;

    /// OCFS: Copy descriptor format 0h.
    pub const OCFS_FORMAT_0: u16 = 1 << 0;
    /// OCFS: Copy descriptor format 2h.
    pub const OCFS_FORMAT_2: u16 = 1 << 2;

    /// FUSES: fused Compare and Write.
    pub const FUSES_COMPARE_WRITE: u16 = 1 << 0;

    /// VWC: a volatile write cache is present.
    pub const VWC_PRESENT: u8 = 1 << 0;
    /// VWC bits 2:1 as 10b: Flush of all namespaces (FFFFFFFFh) is not supported.
    pub const VWC_FLUSH_ALL_UNSUPPORTED: u8 = 0b10 << 1;
    /// VWC bits 2:1 as 11b: Flush of all namespaces (FFFFFFFFh) is supported.
    pub const VWC_FLUSH_ALL_SUPPORTED: u8 = 0b11 << 1;

    /// SGLS bits 1:0 as 01b: SGLs are supported, without alignment requirements.
    pub const SGLS_SUPPORTED: u32 = 0b01;
    /// SGLS bits 1:0 as 10b: SGLs are supported, aligned and sized to dwords.
    pub const SGLS_SUPPORTED_DWORD: u32 = 0b10;
    /// SGLS: keyed SGL data block descriptors.
    pub const SGLS_KEYED: u32 = 1 << 2;
    /// SGLS: the address field of an SGL descriptor may be an offset, which in-capsule data needs.
    pub const SGLS_OFFSET: u32 = 1 << 20;
    /// SGLS: transport SGL data block descriptors.
    pub const SGLS_TRANSPORT: u32 = 1 << 21;

    /// ANACAP: reports ANA Optimized.
    pub const ANACAP_OPTIMIZED: u8 = 1 << 0;
    /// ANACAP: reports ANA Non-Optimized.
    pub const ANACAP_NON_OPTIMIZED: u8 = 1 << 1;
    /// ANACAP: reports ANA Inaccessible.
    pub const ANACAP_INACCESSIBLE: u8 = 1 << 2;
    /// ANACAP: reports ANA Persistent Loss.
    pub const ANACAP_PERSISTENT_LOSS: u8 = 1 << 3;
    /// ANACAP: reports ANA Change.
    pub const ANACAP_CHANGE: u8 = 1 << 4;
    /// ANACAP: a namespace keeps its ANAGRPID while attached to any controller.
    pub const ANACAP_GROUP_ID_FIXED: u8 = 1 << 6;

    /// OFCS: Disconnect.
    pub const OFCS_DISCONNECT: u16 = 1 << 0;

    /// Returns the subsystem's NQN after validation.
    pub fn subsystem_nqn(&self) -> Result<&str, NqnError> {
        nqn::parse_field(&self.subnqn)
    }

    /// The controller type.
    pub const fn controller_type(&self) -> ControllerType {
        ControllerType(self.cntrltype)
    }

    /// Returns the largest transfer of one command in bytes, with memory pages of `page_bytes`.
    /// `None`: the controller has no limit, or the limit exceeds every length that a command can
    /// express.
    pub const fn max_transfer_bytes(&self, page_bytes: u32) -> Option<u64> {
        // A limit of 2^32 pages or more exceeds every length that a command can express.
        if self.mdts == 0 || self.mdts >= 32 {
            None
        } else {
            Some((page_bytes as u64) << self.mdts)
        }
    }

    /// Returns the largest in-capsule data of an I/O command, in bytes: IOCCSZ less the 64-byte
    /// entry and the ICDOFF gap.
    pub const fn in_capsule_data_bytes(&self) -> u64 {
        let capsule_bytes = self.ioccsz.get() as u64 * 16;
        capsule_bytes.saturating_sub(64 + self.icdoff.get() as u64 * 16)
    }
}

layout! {
    /// I/O Command Set specific Identify Controller, NVM (CNS 06h, CSI 00h) (NVM 1.0c, "I/O Command
    /// Set Specific Identify Controller data structure"). The size limits are powers of two in
    /// units of the minimum memory page. The value 0 means no limit.
    pub struct IdentifyControllerNvm, 4096 {
        0 vsl: u8, "Verify size limit (VSL).";
        1 wzsl: u8, "Write Zeroes size limit (WZSL).";
        2 wusl: u8, "Write Uncorrectable size limit (WUSL).";
        3 dmrl: u8, "Dataset Management ranges limit, 0 for none (DMRL).";
        4 dmrsl: U32, "Dataset Management range size limit in blocks, 0 for none (DMRSL).";
        8 dmsl: U64, "Dataset Management size limit in blocks, 0 for none (DMSL).";
        16 rsvd_16: [u8; 4080], "Reserved.";
    }
}
