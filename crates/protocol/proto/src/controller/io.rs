//! Parses I/O commands and checks their fields against the namespace (NVM Command Set Specification
//! 1.0, "NVM Command Set"). Later code does not repeat these checks.

use super::admin::check_pointer;
use super::copy::CopyPlan;
use super::limits;
use super::namespace::{NamespaceInfo, NamespaceTable};
use super::reservations::{AccessKind, ReservationCommand};
use crate::capsule::{DataPointer, RemoteForm};
use crate::ids::{BlockCount, Lba, NamespaceId};
use alloc::vec::Vec;
use farblock_wire::nvm::{
    CopyControl, CopyRange, DSM_RANGES_MAX, DsmCommand, DsmRange, RwCommand, slba,
};
use farblock_wire::opcode::{DataDirection, NvmOpcode};
use farblock_wire::sqe::Sqe;
use farblock_wire::status::Status;

/// A valid command of an I/O queue. Its block range is within the namespace, its transfer is within
/// the limits, and its data pointer has the length of the transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoCommand {
    /// Read blocks and push them to the host.
    Read {
        /// The namespace.
        namespace: NamespaceId,
        /// The first block.
        lba: Lba,
        /// The number of blocks.
        blocks: BlockCount,
        /// Whether the data must come from the medium (FUA). Cached writes must first be written to
        /// the medium.
        fua: bool,
        /// The location and length of the data to push.
        data: DataPointer,
    },
    /// Pull blocks from the host and write them.
    Write {
        /// The namespace.
        namespace: NamespaceId,
        /// The first block.
        lba: Lba,
        /// The number of blocks.
        blocks: BlockCount,
        /// Whether the data must be on the medium before completion (FUA).
        fua: bool,
        /// The location and length of the data to pull.
        data: DataPointer,
    },
    /// Pull blocks from the host and compare them with the stored blocks.
    Compare {
        /// The namespace.
        namespace: NamespaceId,
        /// The first block.
        lba: Lba,
        /// The number of blocks.
        blocks: BlockCount,
        /// Whether to compare with the data on the medium (FUA).
        fua: bool,
        /// The location and length of the data to pull.
        data: DataPointer,
    },
    /// Check that the blocks are readable.
    Verify {
        /// The namespace.
        namespace: NamespaceId,
        /// The first block.
        lba: Lba,
        /// The number of blocks.
        blocks: BlockCount,
        /// Whether to check the data on the medium (FUA).
        fua: bool,
    },
    /// Make blocks read as zeroes.
    WriteZeroes {
        /// The namespace.
        namespace: NamespaceId,
        /// The first block.
        lba: Lba,
        /// The number of blocks.
        blocks: BlockCount,
        /// Whether the zeroes must be on the medium before completion (FUA).
        fua: bool,
        /// Whether the target may free the space (DEAC).
        deallocate: bool,
    },
    /// Pull ranges from the host, read them with [`DeallocateRanges::parse`], and free their space
    /// (Dataset Management with the AD attribute).
    Deallocate {
        /// The namespace.
        namespace: NamespaceId,
        /// The number of ranges, 1 to 256.
        ranges: u16,
        /// The location and length of the data to pull: at least 16 bytes for each range, at most
        /// 4096.
        data: DataPointer,
    },
    /// Pull source ranges from the host and read them with
    /// [`CopyRanges::parse`](super::CopyRanges::parse). Copy the ranges one after the other. If the
    /// copy fails, the completion's result is the number of the lowest range that is not completely
    /// copied.
    Copy {
        /// The destination, and the format of the ranges.
        plan: CopyPlan,
        /// Whether the copy must be on the medium before completion (FUA).
        fua: bool,
        /// The location and length of the data to pull: 32 bytes for each range.
        data: DataPointer,
    },
    /// Hints about future use (Dataset Management without the AD attribute). Complete with success
    /// and do not pull the data.
    Advise {
        /// The namespace.
        namespace: NamespaceId,
    },
    /// Make completed writes durable.
    Flush {
        /// The namespace; [`NamespaceId::ALL`] for all.
        namespace: NamespaceId,
    },
    /// Query or change the reservations. Pull the command's data, add the data's keys with
    /// [`ReservationCommand::with_keys`], and pass the command to
    /// [`Registry::reserve`](super::Registry::reserve).
    Reserve {
        /// The namespace.
        namespace: NamespaceId,
        /// The command, without its keys.
        command: ReservationCommand,
        /// The location and length of the data to pull, or of the report to push.
        data: DataPointer,
    },
    /// A Fabrics command. Pass the entry to
    /// [`Registry::fabrics_on_io_queue`](super::Registry::fabrics_on_io_queue).
    Fabrics,
}

/// A command's role in a fused operation (Base 2.0, "Fused Operations"). farblock supports only
/// Compare and Write as a fused operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fuse {
    /// Not fused.
    Alone,
    /// The first command, a Compare.
    First,
    /// The second command, a Write.
    Second,
}

impl Fuse {
    /// Returns the role in the entry's FUSE field. The opcode may not allow this role.
    #[must_use]
    pub fn of(sqe: &Sqe) -> Self {
        match sqe.fuse() {
            1 => Self::First,
            2 => Self::Second,
            _ => Self::Alone,
        }
    }

    /// Checks that the opcode is valid for the entry's role in a fused operation.
    ///
    /// # Errors
    /// Invalid Field if no fused operation has this opcode in this role.
    pub fn check(sqe: &Sqe) -> Result<(), Status> {
        let opcode = NvmOpcode(sqe.opcode);
        match sqe.fuse() {
            0 => Ok(()),
            1 if opcode == NvmOpcode::COMPARE => Ok(()),
            2 if opcode == NvmOpcode::WRITE => Ok(()),
            _ => Err(Status::INVALID_FIELD.with_dnr()),
        }
    }
}

/// The command extension type: reserved bits in command dword 12 that later specification versions
/// use.
const EXTENSION_TYPE: u32 = 0xf << 16;

impl IoCommand {
    /// Parses a command of an I/O queue. `remote` is the transport's descriptor type for data
    /// outside capsules.
    ///
    /// # Errors
    /// Returns the status with which to complete the command.
    pub fn parse(sqe: &Sqe, table: &NamespaceTable, remote: RemoteForm) -> Result<Self, Status> {
        let opcode = NvmOpcode(sqe.opcode);
        Fuse::check(sqe)?;
        if opcode == NvmOpcode::FABRICS {
            return Ok(Self::Fabrics);
        }
        check_pointer(sqe)?;
        let namespace = NamespaceId(sqe.nsid.get());
        if opcode == NvmOpcode::FLUSH && namespace == NamespaceId::ALL {
            table.check_reach(namespace)?;
            return Ok(Self::Flush { namespace });
        }
        let is_known = matches!(
            opcode,
            NvmOpcode::READ
                | NvmOpcode::WRITE
                | NvmOpcode::COMPARE
                | NvmOpcode::VERIFY
                | NvmOpcode::WRITE_ZEROES
                | NvmOpcode::DATASET_MANAGEMENT
                | NvmOpcode::COPY
                | NvmOpcode::FLUSH
        );
        if !is_known && !ReservationCommand::is_one(opcode) {
            return Err(Status::INVALID_OPCODE.with_dnr());
        }
        let info = table.find(namespace).ok_or(Status::INVALID_NAMESPACE.with_dnr())?;
        match is_known {
            true => table.check_reach(namespace)?,
            false => table.check_reach_of_reservations(namespace)?,
        }
        let changes = matches!(
            opcode,
            NvmOpcode::WRITE
                | NvmOpcode::WRITE_ZEROES
                | NvmOpcode::DATASET_MANAGEMENT
                | NvmOpcode::COPY
        );
        if changes && info.read_only {
            return Err(Status::NAMESPACE_WRITE_PROTECTED.with_dnr());
        }
        match opcode {
            NvmOpcode::FLUSH => Ok(Self::Flush { namespace }),
            NvmOpcode::DATASET_MANAGEMENT => dataset_management(sqe, namespace, remote),
            NvmOpcode::COPY => copy(sqe, namespace, info, remote),
            _ if !is_known => {
                let command = ReservationCommand::parse(sqe)?;
                if command.data_bytes() > table.max_transfer_bytes() {
                    return Err(Status::INVALID_FIELD.with_dnr());
                }
                let data = data_pointer(sqe, command.data_bytes(), remote)?;
                Ok(Self::Reserve { namespace, command, data })
            }
            _ => Extent::parse(sqe, info)?.command(sqe, table, info, remote),
        }
    }

    /// Whether the two commands can be fused: a Compare and a Write of the same blocks.
    #[must_use]
    pub fn can_be_fused(first: &Self, second: &Self) -> bool {
        let extent = |command: &Self| match *command {
            Self::Compare { namespace, lba, blocks, .. }
            | Self::Write { namespace, lba, blocks, .. } => Some((namespace, lba, blocks)),
            _ => None,
        };
        let kinds = matches!((first, second), (Self::Compare { .. }, Self::Write { .. }));
        kinds && extent(first) == extent(second)
    }

    /// Whether the command changes stored data.
    #[must_use]
    pub fn changes(&self) -> bool {
        matches!(
            self,
            Self::Write { .. }
                | Self::WriteZeroes { .. }
                | Self::Deallocate { .. }
                | Self::Copy { .. }
        )
    }

    /// Returns the command's kind of access, for reservations ("Command Behavior in the Presence of
    /// a Reservation"). `None`: no reservation can block the command. For a Copy, this is the
    /// access to the destination. The caller must check read access to the sources.
    #[must_use]
    pub fn access(&self) -> Option<AccessKind> {
        match self {
            Self::Read { .. } | Self::Compare { .. } | Self::Verify { .. } => {
                Some(AccessKind::Read)
            }
            Self::Write { .. }
            | Self::WriteZeroes { .. }
            | Self::Deallocate { .. }
            | Self::Copy { .. }
            | Self::Advise { .. }
            | Self::Flush { .. } => Some(AccessKind::Write),
            Self::Reserve { .. } | Self::Fabrics => None,
        }
    }

    /// Returns the same command with FUA: its writes are durable before it completes. Use it for
    /// hosts that disable the volatile write cache.
    #[must_use]
    pub fn written_through(mut self) -> Self {
        if let Self::Write { fua, .. } | Self::WriteZeroes { fua, .. } | Self::Copy { fua, .. } =
            &mut self
        {
            *fua = true;
        }
        self
    }

    /// Returns the namespace of the command; `None` for Fabrics commands.
    #[must_use]
    pub fn namespace(&self) -> Option<NamespaceId> {
        match *self {
            Self::Read { namespace, .. }
            | Self::Write { namespace, .. }
            | Self::Compare { namespace, .. }
            | Self::Verify { namespace, .. }
            | Self::WriteZeroes { namespace, .. }
            | Self::Deallocate { namespace, .. }
            | Self::Reserve { namespace, .. }
            | Self::Advise { namespace }
            | Self::Flush { namespace }
            | Self::Copy { plan: CopyPlan { namespace, .. }, .. } => Some(namespace),
            Self::Fabrics => None,
        }
    }

    /// Returns the data to pull from the host before the target can execute the command; `None` if
    /// there is no such data.
    #[must_use]
    pub fn data_from_host(&self) -> Option<DataPointer> {
        match *self {
            Self::Write { data, .. } | Self::Compare { data, .. } => Some(data),
            Self::Deallocate { data, .. } | Self::Copy { data, .. } => Some(data),
            Self::Reserve { command: ReservationCommand::Report { .. }, .. } => None,
            Self::Reserve { data, .. } => Some(data),
            _ => None,
        }
    }

    /// Returns the data to push to the host; `None` if there is no such data.
    #[must_use]
    pub fn data_to_host(&self) -> Option<DataPointer> {
        match *self {
            Self::Read { data, .. } => Some(data),
            Self::Reserve { command: ReservationCommand::Report { .. }, data, .. } => Some(data),
            _ => None,
        }
    }
}

/// Returns the data pointer of a command that transfers exactly `bytes`.
///
/// # Errors
/// Data SGL Length Invalid for a different length. SGL Descriptor Type Invalid for a descriptor
/// that does not match the direction of the transfer. Also the errors of [`DataPointer::parse`].
pub fn data_pointer(sqe: &Sqe, bytes: u32, remote: RemoteForm) -> Result<DataPointer, Status> {
    let data = usable_pointer(sqe, remote)?;
    if data.length() != bytes {
        return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
    }
    Ok(data)
}

/// Returns the data pointer, of any length. Checks that its type matches the direction of the
/// transfer: a capsule can only carry data to the controller.
fn usable_pointer(sqe: &Sqe, remote: RemoteForm) -> Result<DataPointer, Status> {
    let data = DataPointer::parse(sqe, remote)?;
    let to_host = DataDirection::of_command(sqe) == DataDirection::ControllerToHost;
    if to_host && data.is_in_capsule() {
        return Err(Status::SGL_TYPE_INVALID.with_dnr());
    }
    Ok(data)
}

fn dataset_management(
    sqe: &Sqe,
    namespace: NamespaceId,
    remote: RemoteForm,
) -> Result<IoCommand, Status> {
    let command = DsmCommand::parse(sqe);
    if command.range_count() > usize::from(limits::DATASET_RANGES) {
        return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED.with_dnr());
    }
    if !command.attributes.ad() {
        return Ok(IoCommand::Advise { namespace });
    }
    let data = usable_pointer(sqe, remote)?;
    // Linux hosts always send 256 ranges (4096 bytes), because some devices read that many.
    let lengths = command.data_bytes()..=DSM_RANGES_MAX * DsmRange::LEN;
    if !lengths.contains(&(data.length() as usize)) {
        return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
    }
    Ok(IoCommand::Deallocate { namespace, ranges: command.range_count() as u16, data })
}

fn copy(
    sqe: &Sqe,
    namespace: NamespaceId,
    info: &NamespaceInfo,
    remote: RemoteForm,
) -> Result<IoCommand, Status> {
    let control = CopyControl(sqe.cdw12.get());
    let across = match control.format() {
        CopyControl::FORMAT_SAME_NAMESPACE => false,
        CopyControl::FORMAT_ANY_NAMESPACE => true,
        _ => return Err(Status::INVALID_FIELD.with_dnr()),
    };
    if control.dtype() != 0 || control.cetype() != 0 || sqe.mptr.get() != 0 {
        return Err(Status::INVALID_FIELD.with_dnr());
    }
    if control.prinfor() != 0 || control.prinfow() != 0 || control.stcr() || control.stcw() {
        return Err(Status::INVALID_PROTECTION_INFORMATION.with_dnr());
    }
    let (ranges, lba) = (control.range_count(), Lba(slba(sqe)));
    if ranges > limits::COPY_RANGES {
        return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED.with_dnr());
    }
    // Check one block for now: a Copy writes at least one. The target learns the exact number of
    // blocks later, from the ranges.
    check_end(lba.0.checked_add(1), info)?;
    let data = data_pointer(sqe, u32::from(ranges) * CopyRange::LEN as u32, remote)?;
    let plan = CopyPlan { namespace, lba, ranges, across };
    Ok(IoCommand::Copy { plan, fua: control.fua(), data })
}

/// A command's range of blocks, checked against the namespace.
#[derive(Clone, Copy)]
struct Extent {
    namespace: NamespaceId,
    lba: Lba,
    blocks: BlockCount,
    fua: bool,
}

impl Extent {
    fn parse(sqe: &Sqe, info: &NamespaceInfo) -> Result<Self, Status> {
        let command = RwCommand::parse(sqe);
        let control = command.control;
        let deallocates = control.deac() && sqe.opcode != NvmOpcode::WRITE_ZEROES.0;
        let is_extended = control.0 & EXTENSION_TYPE != 0 || control.dtype() != 0;
        // Namespaces have no metadata, so a metadata pointer is invalid.
        if deallocates || is_extended || sqe.mptr.get() != 0 {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        if control.prinfo() != 0 || control.stc() {
            return Err(Status::INVALID_PROTECTION_INFORMATION.with_dnr());
        }
        check_end(command.end_lba(), info)?;
        let (lba, blocks) = (Lba(command.slba), BlockCount(command.block_count()));
        let namespace = NamespaceId(sqe.nsid.get());
        Ok(Self { namespace, lba, blocks, fua: control.fua() })
    }

    fn command(
        self,
        sqe: &Sqe,
        table: &NamespaceTable,
        info: &NamespaceInfo,
        remote: RemoteForm,
    ) -> Result<IoCommand, Status> {
        let Self { namespace, lba, blocks, fua } = self;
        match NvmOpcode(sqe.opcode) {
            NvmOpcode::VERIFY | NvmOpcode::WRITE_ZEROES if self.exceeds_in_place(info) => {
                Err(Status::INVALID_FIELD.with_dnr())
            }
            NvmOpcode::VERIFY => Ok(IoCommand::Verify { namespace, lba, blocks, fua }),
            NvmOpcode::WRITE_ZEROES => {
                let deallocate = RwCommand::parse(sqe).control.deac() && info.deallocate;
                Ok(IoCommand::WriteZeroes { namespace, lba, blocks, fua, deallocate })
            }
            _ if sqe.fuse() != 0 && blocks.0 > limits::FUSED_BLOCKS => {
                Err(Status::INVALID_FIELD.with_dnr())
            }
            opcode => {
                let data = data_pointer(sqe, self.transfer_bytes(table, info)?, remote)?;
                Ok(match opcode {
                    NvmOpcode::READ => IoCommand::Read { namespace, lba, blocks, fua, data },
                    NvmOpcode::WRITE => IoCommand::Write { namespace, lba, blocks, fua, data },
                    NvmOpcode::COMPARE => IoCommand::Compare { namespace, lba, blocks, fua, data },
                    _ => unreachable!("the caller passes only known commands"),
                })
            }
        }
    }

    /// Whether the range is larger than VSL and WZSL allow.
    fn exceeds_in_place(self, info: &NamespaceInfo) -> bool {
        u64::from(self.blocks.0) * u64::from(info.block_size) > u64::from(limits::IN_PLACE_BYTES)
    }

    fn transfer_bytes(self, table: &NamespaceTable, info: &NamespaceInfo) -> Result<u32, Status> {
        let too_many = info.max_blocks != 0 && self.blocks.0 > info.max_blocks;
        let bytes = u64::from(self.blocks.0) * u64::from(info.block_size);
        match u32::try_from(bytes) {
            Ok(bytes) if bytes <= table.max_transfer_bytes() && !too_many => Ok(bytes),
            _ => Err(Status::INVALID_FIELD.with_dnr()),
        }
    }
}

/// Checks that a range is within a namespace. `end` is the first block after the range; `None` if
/// it does not fit in 64 bits.
fn check_end(end: Option<u64>, info: &NamespaceInfo) -> Result<(), Status> {
    match end {
        Some(end) if end <= info.blocks => Ok(()),
        _ => Err(Status::LBA_OUT_OF_RANGE.with_dnr()),
    }
}

/// The ranges of a Dataset Management command in ascending order, without empty ranges. Overlapping
/// and adjacent ranges are merged. All ranges are within the namespace ("Dataset Management
/// command").
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct DeallocateRanges {
    /// The ranges in descending order.
    ranges: Vec<(Lba, BlockCount)>,
}

impl DeallocateRanges {
    /// Reads the first `ranges` ranges in `data`. `data` may contain more bytes.
    ///
    /// # Errors
    /// LBA Out of Range if a range exceeds the namespace. Command Size Limit Exceeded if the ranges
    /// exceed DMRL, DMRSL or DMSL. Data SGL Length Invalid if `data` is too short.
    pub fn parse(data: &[u8], ranges: u16, info: &NamespaceInfo) -> Result<Self, Status> {
        let bytes = data
            .get(..usize::from(ranges) * DsmRange::LEN)
            .ok_or(Status::DATA_SGL_LENGTH_INVALID.with_dnr())?;
        let parsed = || bytes.chunks_exact(DsmRange::LEN).map(parse_range);
        parsed().try_for_each(|range| check_end(range.end_lba(), info))?;
        let total: u64 = parsed().map(|range| u64::from(range.nlb.get())).sum();
        if ranges > limits::DATASET_RANGES || total > u64::from(limits::DATASET_BLOCKS) {
            return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED.with_dnr());
        }
        let filled = parsed().filter(|range| range.nlb.get() != 0);
        let mut sorted: Vec<_> =
            filled.map(|range| (range.slba.get(), u64::from(range.nlb.get()))).collect();
        sorted.sort_unstable();
        sorted.dedup_by(|(next, next_blocks), (first, blocks)| {
            let joined = *next <= *first + *blocks;
            if joined {
                *blocks = (*blocks).max(*next + *next_blocks - *first);
            }
            joined
        });
        // The number of blocks fits in 32 bits, because a merged range has at most as many blocks
        // as all ranges together.
        let merged = |(lba, blocks)| (Lba(lba), BlockCount(blocks as u32));
        Ok(Self { ranges: sorted.into_iter().rev().map(merged).collect() })
    }

    /// Checks that the remaining ranges are still within the namespace, whose size may have changed
    /// in the meantime.
    ///
    /// # Errors
    /// LBA Out of Range if a range exceeds the namespace.
    pub fn check(&self, info: &NamespaceInfo) -> Result<(), Status> {
        let ends = self.ranges.iter().map(|(lba, blocks)| lba.0.checked_add(blocks.0.into()));
        ends.into_iter().try_for_each(|end| check_end(end, info))
    }

    /// Removes and returns the next blocks, at most `most` (at least one); `None` if no blocks
    /// remain.
    pub fn next_part(&mut self, most: u32) -> Option<(Lba, BlockCount)> {
        let (lba, blocks) = self.ranges.pop()?;
        let part = blocks.0.min(most.max(1));
        if part < blocks.0 {
            self.ranges.push((Lba(lba.0 + u64::from(part)), BlockCount(blocks.0 - part)));
        }
        Some((lba, BlockCount(part)))
    }

    /// Whether no blocks remain.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

impl Iterator for DeallocateRanges {
    type Item = (Lba, BlockCount);

    fn next(&mut self) -> Option<Self::Item> {
        self.next_part(u32::MAX)
    }
}

fn parse_range(bytes: &[u8]) -> DsmRange {
    DsmRange::parse(bytes).expect("each chunk has the length of a range")
}
