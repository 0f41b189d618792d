//! NVM command set: parameters of the I/O commands (NVM 1.0c, "NVM Commands").

use zerocopy::little_endian::{U16, U32, U64};

use crate::Sqe;
use crate::opcode::NvmOpcode;
use crate::sgl::SglDescriptor;

/// Command dword 12 of Read, Write, Compare, Verify, Write Zeroes and Write Uncorrectable (NVM
/// 1.0c, "Read - Command Dword 12", "Write - Command Dword 12", ...).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RwControl(pub u32);

bit_fields! { RwControl(u32) {
    bits 0 15 nlb_z: u16, with_nlb_z "Number of logical blocks, 0's-based (NLB).";
    bits 20 23 dtype: u8, with_dtype "Directive type of a write (DTYPE).";
    bit 24 stc with_stc "Storage tag check (STC).";
    bit 25 deac with_deac "Write Zeroes: deallocate (DEAC).";
    bits 26 29 prinfo: u8, with_prinfo "Protection information field (PRINFO).";
    bit 30 fua with_fua "Force unit access (FUA).";
    bit 31 lr with_lr "Limited retry (LR).";
} }

/// A command on a range of blocks. Read, Write, Compare, Verify, Write Zeroes and Write
/// Uncorrectable all have this range in command dwords 10 to 13.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RwCommand {
    /// Starting LBA (SLBA).
    pub slba: u64,
    /// Block count and flags (command dword 12).
    pub control: RwControl,
    /// Dataset management hints and directive (command dword 13).
    pub cdw13: u32,
}

impl RwCommand {
    /// Creates a range of `block_count` blocks from `slba`. `None`: the count is 0 or above 65536,
    /// which NLB cannot express.
    pub const fn new(slba: u64, block_count: u32) -> Option<Self> {
        if block_count == 0 || block_count > 1 << 16 {
            return None;
        }
        let control = RwControl(0).with_nlb_z((block_count - 1) as u16);
        Some(Self { slba, control, cdw13: 0 })
    }

    /// Reads command dwords 10 to 13 of an entry.
    pub const fn parse(sqe: &Sqe) -> Self {
        Self { slba: slba(sqe), control: RwControl(sqe.cdw12.get()), cdw13: sqe.cdw13.get() }
    }

    /// Writes command dwords 10 to 13 of an entry.
    pub fn emit(&self, sqe: &mut Sqe) {
        sqe.cdw10.set(self.slba as u32);
        sqe.cdw11.set((self.slba >> 32) as u32);
        sqe.cdw12.set(self.control.0);
        sqe.cdw13.set(self.cdw13);
    }

    /// Creates a submission queue entry with this range.
    pub fn to_sqe(&self, opcode: NvmOpcode, cid: u16, nsid: u32, dptr: SglDescriptor) -> Sqe {
        let mut sqe = Sqe { dptr, ..Sqe::new(opcode.0, cid, nsid) };
        self.emit(&mut sqe);
        sqe
    }

    /// Number of blocks in the range: 1 to 65536.
    pub const fn block_count(&self) -> u32 {
        self.control.nlb_z() as u32 + 1
    }

    /// Returns the first LBA after the range; `None` if the LBA does not fit in 64 bits.
    pub const fn end_lba(&self) -> Option<u64> {
        self.slba.checked_add(self.block_count() as u64)
    }
}

/// Returns the starting LBA from command dwords 10 and 11.
pub const fn slba(sqe: &Sqe) -> u64 {
    sqe.cdw10.get() as u64 | (sqe.cdw11.get() as u64) << 32
}

/// One Dataset Management command has at most this many ranges.
pub const DSM_RANGES_MAX: usize = 256;

/// Dataset Management (NVM 1.0c, "Dataset Management command"). Its data is a list of
/// [`DsmRange`]s.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DsmCommand {
    /// Number of ranges, 0's-based (NR).
    pub nr_z: u8,
    /// Attributes (command dword 11).
    pub attributes: DsmAttributes,
}

/// Command dword 11 of Dataset Management (NVM 1.0c, "Dataset Management - Command Dword 11").
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DsmAttributes(pub u32);

bit_fields! { DsmAttributes(u32) {
    bit 0 idr with_idr "Integral dataset for read (IDR).";
    bit 1 idw with_idw "Integral dataset for write (IDW).";
    bit 2 ad with_ad "Deallocate (AD).";
} }

impl DsmCommand {
    /// Reads command dwords 10 and 11 of an entry.
    pub const fn parse(sqe: &Sqe) -> Self {
        Self { nr_z: sqe.cdw10.get() as u8, attributes: DsmAttributes(sqe.cdw11.get()) }
    }

    /// Writes command dwords 10 and 11 of an entry.
    pub fn emit(&self, sqe: &mut Sqe) {
        sqe.cdw10.set(u32::from(self.nr_z));
        sqe.cdw11.set(self.attributes.0);
    }

    /// Number of ranges in the data: 1 to 256.
    pub const fn range_count(&self) -> usize {
        self.nr_z as usize + 1
    }

    /// Length of the data in bytes.
    pub const fn data_bytes(&self) -> usize {
        self.range_count() * DsmRange::LEN
    }
}

layout! {
    /// One range of Dataset Management (NVM 1.0c, "Dataset Management - Range Definition").
    pub struct DsmRange, 16 {
        0 cattr: U32, "Context attributes (CATTR): hints.";
        4 nlb: U32, "Length in logical blocks, not 0's-based.";
        8 slba: U64, "Starting LBA (SLBA).";
    }
}

impl DsmRange {
    /// Creates a range without hints.
    pub const fn new(slba: u64, block_count: u32) -> Self {
        Self { cattr: U32::ZERO, nlb: U32::new(block_count), slba: U64::new(slba) }
    }

    /// Returns the first LBA after the range; `None` if the LBA does not fit in 64 bits.
    pub const fn end_lba(&self) -> Option<u64> {
        self.slba.get().checked_add(self.nlb.get() as u64)
    }
}

/// Command dword 12 of Copy (NVM 1.0c, "Copy - Command Dword 12"). Command dwords 10 and 11 contain
/// the destination's starting LBA. The data is a list of [`CopyRange`]s. The field names are as in
/// NVM 1.1.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CopyControl(pub u32);

bit_fields! { CopyControl(u32) {
    bits 0 7 nr_z: u8, with_nr_z "Number of source ranges, 0's-based (NR).";
    bits 8 11 format: u8, with_format "Descriptor format (CDFT); `CopyRange` has formats 0 and 2.";
    bits 12 15 prinfor: u8, with_prinfor "Protection information field, read (PRINFOR).";
    bits 16 19 cetype: u8, with_cetype "Command extension type (CETYPE).";
    bits 20 23 dtype: u8, with_dtype "Directive type (DTYPE).";
    bit 24 stcw with_stcw "Storage tag check, write (STCW).";
    bit 25 stcr with_stcr "Storage tag check, read (STCR).";
    bits 26 29 prinfow: u8, with_prinfow "Protection information field, write (PRINFOW).";
    bit 30 fua with_fua "Force unit access (FUA).";
    bit 31 lr with_lr "Limited retry (LR).";
} }

impl CopyControl {
    /// Descriptor format 0: all source ranges are in the command's own namespace.
    pub const FORMAT_SAME_NAMESPACE: u8 = 0;
    /// Descriptor format 2: each source range contains a namespace identifier (NVM 1.1).
    pub const FORMAT_ANY_NAMESPACE: u8 = 2;

    /// Number of source ranges in the data: 1 to 256.
    pub const fn range_count(self) -> u16 {
        self.nr_z() as u16 + 1
    }
}

layout! {
    /// One source range of Copy, descriptor formats 0 and 2 (NVM 1.1, "Copy - Source Range Entries
    /// Copy Descriptor Format 0h", "... 2h").
    pub struct CopyRange, 32 {
        0 snsid: U32, "Source namespace identifier; format 2 only (SNSID).";
        4 rsvd_4: [u8; 4], "Reserved.";
        8 slba: U64, "Starting LBA (SLBA).";
        16 nlb_z: U16, "Number of logical blocks, 0's-based (NLB).";
        18 rsvd_18: [u8; 4], "Reserved.";
        22 sopt: U16, "Source options; format 2 only (SOPT).";
        24 eilbrt: U32, "Expected initial logical block reference tag (EILBRT).";
        28 elbat: U16, "Expected logical block application tag (ELBAT).";
        30 elbatm: U16, "Expected logical block application tag mask (ELBATM).";
    }
}

impl CopyRange {
    /// SOPT: the controller fails the command if the copy would not be fast (FCO).
    pub const SOPT_FAST_ONLY: u16 = 1 << 15;

    /// Creates a range of `block_count` blocks. `None`: the count is 0 or above 65536, which NLB
    /// cannot express. Only format 2 uses `snsid`.
    pub const fn new(snsid: u32, slba: u64, block_count: u32) -> Option<Self> {
        if block_count == 0 || block_count > 1 << 16 {
            return None;
        }
        Some(Self {
            snsid: U32::new(snsid),
            rsvd_4: [0; 4],
            slba: U64::new(slba),
            nlb_z: U16::new((block_count - 1) as u16),
            rsvd_18: [0; 4],
            sopt: U16::ZERO,
            eilbrt: U32::ZERO,
            elbat: U16::ZERO,
            elbatm: U16::ZERO,
        })
    }

    /// Number of blocks in the range: 1 to 65536.
    pub const fn block_count(&self) -> u32 {
        self.nlb_z.get() as u32 + 1
    }

    /// Returns the first LBA after the range; `None` if the LBA does not fit in 64 bits.
    pub const fn end_lba(&self) -> Option<u64> {
        self.slba.get().checked_add(self.block_count() as u64)
    }
}
