//! The commands a host sends, as values: the entry and which way how much data moves.
//!
//! Lengths and block counts are the caller's: it splits by the controller's limits first.

use crate::tcp::host_end::Transfer;
use farblock_wire::fabrics::{
    CATTR_DISABLE_SQ_FLOW, CNTLID_DYNAMIC, ConnectCommand, ConnectData, PropertyGetCommand,
    PropertySetCommand, PropertySize,
};
use farblock_wire::opcode::{AdminOpcode, NvmOpcode};
use farblock_wire::{IDENTIFY_BYTES, NSID_BROADCAST, SglDescriptor, Sqe, U16, U32};

/// Bytes of one range of Dataset Management (NVM 1.0c, "Dataset Management - Range Definition").
pub const DEALLOCATE_RANGE_BYTES: usize = 16;
/// The most blocks that one Read, Write, Write Zeroes or Compare names (NLB has 16 bits, 0's-based).
pub const MAX_COMMAND_BLOCKS: u32 = 1 << 16;
/// CNS of Identify Namespace (NVM command set).
pub const CNS_NAMESPACE: u8 = 0x00;
/// CNS of Identify Controller.
pub const CNS_CONTROLLER: u8 = 0x01;
/// CNS of the list of active namespaces.
pub const CNS_ACTIVE_NAMESPACES: u8 = 0x02;
/// CNS of a namespace's identification descriptors.
pub const CNS_NAMESPACE_DESCRIPTORS: u8 = 0x03;
/// Feature: number of queues.
pub const FEATURE_NUMBER_OF_QUEUES: u8 = 0x07;
/// Feature: asynchronous event configuration.
pub const FEATURE_ASYNC_EVENTS: u8 = 0x0b;
/// Log page: changed namespace list.
pub const LOG_CHANGED_NAMESPACES: u8 = 0x04;
/// Log page: discovery.
pub const LOG_DISCOVERY: u8 = 0x70;

/// Bit 30 of command dword 12 of Write and Write Zeroes: force unit access (FUA).
const FUA: u32 = 1 << 30;
/// Bit 25 of command dword 12 of Write Zeroes: deallocate (DEAC).
const DEAC: u32 = 1 << 25;
/// Bit 2 of command dword 11 of Dataset Management: deallocate (AD).
const DSM_DEALLOCATE: u32 = 1 << 2;

/// Data that a command moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Data {
    /// None.
    None,
    /// This many bytes from the controller.
    FromController(u32),
    /// This many bytes to the controller.
    ToController(u32),
}

/// A command before its data pointer is chosen. The command identifier is the transport's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Command {
    /// The submission queue entry, its data pointer empty.
    pub sqe: Sqe,
    /// What it moves.
    pub data: Data,
}

impl Command {
    /// Any command: for pass-through, and what has no builder here.
    #[must_use]
    pub fn new(sqe: Sqe, data: Data) -> Self {
        let flags = sqe.flags & 0b11 | Sqe::FLAGS_SGL;
        Self { sqe: Sqe { flags, dptr: SglDescriptor::NONE, ..sqe }, data }
    }

    /// The entry with its data pointer for TCP, and what the transport is to expect: data to the
    /// controller goes in the capsule if at most `in_capsule_bytes`.
    #[must_use]
    pub fn place(&self, in_capsule_bytes: u32) -> (Sqe, Transfer) {
        let (dptr, transfer) = match self.data {
            Data::None | Data::ToController(0) | Data::FromController(0) => {
                (SglDescriptor::NONE, Transfer::None)
            }
            Data::FromController(length) => {
                (SglDescriptor::transport(length), Transfer::FromController(length))
            }
            Data::ToController(length) if length <= in_capsule_bytes => {
                (SglDescriptor::in_capsule(0, length), Transfer::InCapsule(length))
            }
            Data::ToController(length) => {
                (SglDescriptor::transport(length), Transfer::ToController(length))
            }
        };
        (Sqe { dptr, ..self.sqe }, transfer)
    }
}

fn admin(opcode: AdminOpcode, nsid: u32, data: Data) -> Command {
    Command { sqe: Sqe::new(opcode.0, 0, nsid), data }
}

fn nvm(opcode: NvmOpcode, nsid: u32, data: Data) -> Command {
    Command { sqe: Sqe::new(opcode.0, 0, nsid), data }
}

/// A command on a range of blocks: SLBA in dwords 10 and 11, NLB in dword 12.
fn ranged(opcode: NvmOpcode, nsid: u32, lba: u64, blocks: u32, data: Data) -> Command {
    assert!((1..=MAX_COMMAND_BLOCKS).contains(&blocks), "{blocks} blocks in one command");
    let mut command = nvm(opcode, nsid, data);
    command.sqe.cdw10 = U32::new(lba as u32);
    command.sqe.cdw11 = U32::new((lba >> 32) as u32);
    command.sqe.cdw12 = U32::new(blocks - 1);
    command
}

/// Reads `blocks` (1 to [`MAX_COMMAND_BLOCKS`]) blocks, `bytes` in all.
#[must_use]
pub fn read(nsid: u32, lba: u64, blocks: u32, bytes: u32) -> Command {
    ranged(NvmOpcode::READ, nsid, lba, blocks, Data::FromController(bytes))
}

/// Writes `blocks` (1 to [`MAX_COMMAND_BLOCKS`]) blocks, `bytes` in all.
#[must_use]
pub fn write(nsid: u32, lba: u64, blocks: u32, bytes: u32, fua: bool) -> Command {
    let mut command = ranged(NvmOpcode::WRITE, nsid, lba, blocks, Data::ToController(bytes));
    set(&mut command.sqe.cdw12, FUA, fua);
    command
}

/// Compares `blocks` (1 to [`MAX_COMMAND_BLOCKS`]) blocks with `bytes` of data.
#[must_use]
pub fn compare(nsid: u32, lba: u64, blocks: u32, bytes: u32) -> Command {
    ranged(NvmOpcode::COMPARE, nsid, lba, blocks, Data::ToController(bytes))
}

/// Zeroes `blocks` (1 to [`MAX_COMMAND_BLOCKS`]) blocks.
#[must_use]
pub fn write_zeroes(nsid: u32, lba: u64, blocks: u32, deallocate: bool, fua: bool) -> Command {
    let mut command = ranged(NvmOpcode::WRITE_ZEROES, nsid, lba, blocks, Data::None);
    set(&mut command.sqe.cdw12, DEAC, deallocate);
    set(&mut command.sqe.cdw12, FUA, fua);
    command
}

fn set(dword: &mut U32, bit: u32, on: bool) {
    if on {
        *dword = U32::new(dword.get() | bit);
    }
}

/// Makes what completed before durable.
#[must_use]
pub fn flush(nsid: u32) -> Command {
    nvm(NvmOpcode::FLUSH, nsid, Data::None)
}

/// Deallocates `ranges` (1 to 256) ranges, which are the data: see [`deallocate_range`].
#[must_use]
pub fn deallocate(nsid: u32, ranges: u32) -> Command {
    assert!((1..=256).contains(&ranges), "{ranges} ranges in one command");
    let data = Data::ToController(ranges * DEALLOCATE_RANGE_BYTES as u32);
    let mut command = nvm(NvmOpcode::DATASET_MANAGEMENT, nsid, data);
    command.sqe.cdw10 = U32::new(ranges - 1);
    command.sqe.cdw11 = U32::new(DSM_DEALLOCATE);
    command
}

/// One range for [`deallocate`]: context attributes, length in blocks, first block.
#[must_use]
pub fn deallocate_range(lba: u64, blocks: u32) -> [u8; DEALLOCATE_RANGE_BYTES] {
    let mut range = [0; DEALLOCATE_RANGE_BYTES];
    range[4..8].copy_from_slice(&blocks.to_le_bytes());
    range[8..16].copy_from_slice(&lba.to_le_bytes());
    range
}

/// Identify with any CNS; 4096 bytes come.
#[must_use]
pub fn identify(cns: u8, nsid: u32) -> Command {
    let mut command =
        admin(AdminOpcode::IDENTIFY, nsid, Data::FromController(IDENTIFY_BYTES as u32));
    command.sqe.cdw10 = U32::new(cns.into());
    command
}

/// Identify Controller.
#[must_use]
pub fn identify_controller() -> Command {
    identify(CNS_CONTROLLER, 0)
}

/// Identify Namespace, of the NVM command set.
#[must_use]
pub fn identify_namespace(nsid: u32) -> Command {
    identify(CNS_NAMESPACE, nsid)
}

/// The identifiers (UUID, NGUID, EUI-64) of a namespace.
#[must_use]
pub fn identify_descriptors(nsid: u32) -> Command {
    identify(CNS_NAMESPACE_DESCRIPTORS, nsid)
}

/// The active namespaces whose identifiers are above `after`, at most 1024 of them.
#[must_use]
pub fn identify_active_namespaces(after: u32) -> Command {
    identify(CNS_ACTIVE_NAMESPACES, after)
}

/// Which part of which log page, for [`log_page`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogPage {
    /// Log page identifier (LID).
    pub page: u8,
    /// Namespace, or [`NSID_BROADCAST`] for the controller's.
    pub nsid: u32,
    /// Where to start, in bytes: a multiple of 4.
    pub offset: u64,
    /// How much, in bytes: a multiple of 4, at least 4.
    pub bytes: u32,
    /// Leave the asynchronous event that points here pending (RAE).
    pub retain_event: bool,
}

impl LogPage {
    /// `bytes` of the controller's `page` from its start.
    #[must_use]
    pub fn new(page: u8, bytes: u32) -> Self {
        Self { page, nsid: NSID_BROADCAST, offset: 0, bytes, retain_event: false }
    }
}

/// Get Log Page.
///
/// # Panics
/// If offset or length is no multiple of 4, or the length is 0.
#[must_use]
pub fn log_page(log: LogPage) -> Command {
    assert!(log.bytes >= 4 && log.bytes.is_multiple_of(4), "{} bytes of log page", log.bytes);
    assert!(log.offset.is_multiple_of(4), "log page from byte {}", log.offset);
    let mut command =
        admin(AdminOpcode::GET_LOG_PAGE, log.nsid, Data::FromController(log.bytes));
    let dwords_z = log.bytes / 4 - 1;
    let retain = u32::from(log.retain_event) << 15;
    command.sqe.cdw10 = U32::new(u32::from(log.page) | retain | (dwords_z & 0xffff) << 16);
    command.sqe.cdw11 = U32::new(dwords_z >> 16);
    command.sqe.cdw12 = U32::new(log.offset as u32);
    command.sqe.cdw13 = U32::new((log.offset >> 32) as u32);
    command
}

/// Set Features, for features without data.
#[must_use]
pub fn set_features(feature: u8, value: u32) -> Command {
    let mut command = admin(AdminOpcode::SET_FEATURES, 0, Data::None);
    command.sqe.cdw10 = U32::new(feature.into());
    command.sqe.cdw11 = U32::new(value);
    command
}

/// Asks for `count` (1 to 65535) I/O queue pairs.
#[must_use]
pub fn set_number_of_queues(count: u16) -> Command {
    let count_z = u32::from(count.saturating_sub(1));
    set_features(FEATURE_NUMBER_OF_QUEUES, count_z << 16 | count_z)
}

/// The queue pairs that the result of [`set_number_of_queues`] grants.
#[must_use]
pub fn granted_queues(result: u32) -> u16 {
    let (submission_z, completion_z) = (result as u16, (result >> 16) as u16);
    submission_z.min(completion_z).saturating_add(1)
}

/// Async Event Request.
#[must_use]
pub fn async_event_request() -> Command {
    admin(AdminOpcode::ASYNC_EVENT_REQUEST, 0, Data::None)
}

/// Keep Alive.
#[must_use]
pub fn keep_alive() -> Command {
    admin(AdminOpcode::KEEP_ALIVE, 0, Data::None)
}

/// Connect queue `qid`, whose data is [`connect_data`]. SQ flow control is always disabled, so
/// that the controller may end a read with its last data.
#[must_use]
pub fn connect(qid: u16, sqsize_z: u16, keep_alive_ms: u32) -> Command {
    let mut command = ConnectCommand::new(0, qid, sqsize_z, keep_alive_ms);
    command.cattr = CATTR_DISABLE_SQ_FLOW;
    Command { sqe: command.to_sqe(), data: Data::ToController(ConnectData::LEN as u32) }
}

/// Who connects to what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity<'a> {
    /// Host identifier.
    pub hostid: [u8; 16],
    /// Host NQN.
    pub hostnqn: &'a str,
    /// Subsystem NQN.
    pub subnqn: &'a str,
}

/// The data of [`connect`]: for the admin queue `controller` is `None`.
#[must_use]
pub fn connect_data(identity: &Identity<'_>, controller: Option<u16>) -> ConnectData {
    let cntlid = controller.unwrap_or(CNTLID_DYNAMIC);
    let data = ConnectData::new(identity.hostid, cntlid, identity.subnqn, identity.hostnqn);
    ConnectData { cntlid: U16::new(cntlid), ..data }
}

/// Reads a property.
#[must_use]
pub fn property(offset: u32, size: PropertySize) -> Command {
    Command { sqe: PropertyGetCommand::new(0, offset, size).to_sqe(), data: Data::None }
}

/// Writes a 4-byte property.
#[must_use]
pub fn set_property(offset: u32, value: u32) -> Command {
    let command = PropertySetCommand::new(0, offset, PropertySize::Four, value.into());
    Command { sqe: command.to_sqe(), data: Data::None }
}
