//! The commands that a host sends: the submission queue entry, and the direction and length of the
//! data.
//!
//! The caller must choose lengths and block counts within the controller's limits.

use crate::tcp::host_end::Transfer;
use farblock_wire::fabrics::{
    AuthenticationCommand, CATTR_DISABLE_SQ_FLOW, CNTLID_DYNAMIC, ConnectCommand, ConnectData,
    PropertyGetCommand, PropertySetCommand, PropertySize,
};
use farblock_wire::features::{FeatureId, FeatureSet, NumberOfQueues};
use farblock_wire::identify::{Cns, IdentifyParameters};
use farblock_wire::log::{LogPageId, LogPageParameters};
use farblock_wire::nvm::{
    CopyControl, CopyRange, DSM_RANGES_MAX, DsmAttributes, DsmCommand, DsmRange, RwCommand,
    RwControl,
};
use farblock_wire::opcode::{AdminOpcode, NvmOpcode};
use farblock_wire::reset::CrossControllerReset;
use farblock_wire::{IDENTIFY_BYTES, NSID_BROADCAST, SglDescriptor, Sqe, U16};

/// The largest number of blocks in one Read, Write, Write Zeroes or Compare (NLB: 16 bits,
/// 0's-based).
pub const MAX_COMMAND_BLOCKS: u32 = 1 << 16;

/// The data that a command transfers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Data {
    /// The command transfers no data.
    None,
    /// The controller sends this many bytes.
    FromController(u32),
    /// The host sends this many bytes.
    ToController(u32),
}

/// A command whose data pointer and command identifier are not set. The transport sets both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Command {
    /// The submission queue entry with an empty data pointer.
    pub sqe: Sqe,
    /// The data that the command transfers.
    pub data: Data,
}

impl Command {
    /// Creates a command from any entry, for pass-through and for commands that have no function
    /// here.
    #[must_use]
    pub fn new(sqe: Sqe, data: Data) -> Self {
        let flags = sqe.flags & 0b11 | Sqe::FLAGS_SGL;
        Self { sqe: Sqe { flags, dptr: SglDescriptor::NONE, ..sqe }, data }
    }

    /// Returns the entry with its data pointer for TCP, and the transfer to submit with it. Data to
    /// the controller goes into the capsule if it has at most `in_capsule_bytes` bytes.
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

/// Creates a command on a range of blocks.
fn ranged(
    opcode: NvmOpcode,
    nsid: u32,
    lba: u64,
    blocks: u32,
    flags: RwControl,
    data: Data,
) -> Command {
    let mut range = RwCommand::new(lba, blocks).expect("1 to 65536 blocks in one command");
    range.control.0 |= flags.0;
    Command { sqe: range.to_sqe(opcode, 0, nsid, SglDescriptor::NONE), data }
}

/// Creates a Read of `blocks` (1 to [`MAX_COMMAND_BLOCKS`]) blocks, `bytes` bytes in total.
#[must_use]
pub fn read(nsid: u32, lba: u64, blocks: u32, bytes: u32) -> Command {
    let data = Data::FromController(bytes);
    ranged(NvmOpcode::READ, nsid, lba, blocks, RwControl::default(), data)
}

/// Creates a Write of `blocks` (1 to [`MAX_COMMAND_BLOCKS`]) blocks, `bytes` bytes in total.
#[must_use]
pub fn write(nsid: u32, lba: u64, blocks: u32, bytes: u32, fua: bool) -> Command {
    let flags = RwControl::default().with_fua(fua);
    ranged(NvmOpcode::WRITE, nsid, lba, blocks, flags, Data::ToController(bytes))
}

/// Creates a Compare of `blocks` (1 to [`MAX_COMMAND_BLOCKS`]) blocks with `bytes` bytes of data.
#[must_use]
pub fn compare(nsid: u32, lba: u64, blocks: u32, bytes: u32) -> Command {
    let data = Data::ToController(bytes);
    ranged(NvmOpcode::COMPARE, nsid, lba, blocks, RwControl::default(), data)
}

/// Creates a Write Zeroes of `blocks` (1 to [`MAX_COMMAND_BLOCKS`]) blocks.
#[must_use]
pub fn write_zeroes(nsid: u32, lba: u64, blocks: u32, deallocate: bool, fua: bool) -> Command {
    let flags = RwControl::default().with_deac(deallocate).with_fua(fua);
    ranged(NvmOpcode::WRITE_ZEROES, nsid, lba, blocks, flags, Data::None)
}

/// Creates a Flush, which makes all completed writes durable.
#[must_use]
pub fn flush(nsid: u32) -> Command {
    nvm(NvmOpcode::FLUSH, nsid, Data::None)
}

/// Creates a Dataset Management that deallocates `ranges` (1 to 256) ranges. The command's data is
/// the ranges; see [`deallocate_range`].
#[must_use]
pub fn deallocate(nsid: u32, ranges: usize) -> Command {
    assert!((1..=DSM_RANGES_MAX).contains(&ranges), "{ranges} ranges in one command");
    let data = Data::ToController((ranges * DsmRange::LEN) as u32);
    let mut command = nvm(NvmOpcode::DATASET_MANAGEMENT, nsid, data);
    let attributes = DsmAttributes::default().with_ad(true);
    DsmCommand { nr_z: (ranges - 1) as u8, attributes }.emit(&mut command.sqe);
    command
}

/// Creates one range for [`deallocate`].
#[must_use]
pub fn deallocate_range(lba: u64, blocks: u32) -> DsmRange {
    DsmRange::new(lba, blocks)
}

/// Creates a Copy of `ranges` (1 to 256) ranges, one after the other, to the blocks from `lba` on.
/// The command's data is the ranges; see [`copy_range`]. With `across`, each range contains a
/// namespace identifier. The host must first enable this format with Host Behavior Support.
#[must_use]
pub fn copy(nsid: u32, lba: u64, ranges: usize, across: bool) -> Command {
    assert!((1..=256).contains(&ranges), "{ranges} ranges in one command");
    let data = Data::ToController((ranges * CopyRange::LEN) as u32);
    let mut command = nvm(NvmOpcode::COPY, nsid, data);
    let format = match across {
        true => CopyControl::FORMAT_ANY_NAMESPACE,
        false => CopyControl::FORMAT_SAME_NAMESPACE,
    };
    let control = CopyControl(0).with_nr_z((ranges - 1) as u8).with_format(format);
    command.sqe.cdw10.set(lba as u32);
    command.sqe.cdw11.set((lba >> 32) as u32);
    command.sqe.cdw12.set(control.0);
    command
}

/// Creates one range (1 to [`MAX_COMMAND_BLOCKS`] blocks) for [`copy`].
#[must_use]
pub fn copy_range(nsid: u32, lba: u64, blocks: u32) -> CopyRange {
    CopyRange::new(nsid, lba, blocks).expect("1 to 65536 blocks in one range")
}

/// Creates an Identify command with any CNS. The controller returns 4096 bytes.
#[must_use]
pub fn identify(cns: Cns, nsid: u32) -> Command {
    let data = Data::FromController(IDENTIFY_BYTES as u32);
    let mut command = admin(AdminOpcode::IDENTIFY, nsid, data);
    IdentifyParameters::new(cns).emit(&mut command.sqe);
    command
}

/// Creates an Identify Controller command.
#[must_use]
pub fn identify_controller() -> Command {
    identify(Cns::CONTROLLER, 0)
}

/// Creates an Identify Namespace command of the NVM command set.
#[must_use]
pub fn identify_namespace(nsid: u32) -> Command {
    identify(Cns::NAMESPACE, nsid)
}

/// Creates an Identify command for the identifiers (UUID, NGUID, EUI-64) of a namespace.
#[must_use]
pub fn identify_descriptors(nsid: u32) -> Command {
    identify(Cns::NAMESPACE_ID_DESCRIPTORS, nsid)
}

/// Creates an Identify command for the first 1024 active namespaces with identifiers above `after`.
#[must_use]
pub fn identify_active_namespaces(after: u32) -> Command {
    identify(Cns::ACTIVE_NAMESPACES, after)
}

/// A part of a log page, the argument of [`log_page`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogPage {
    /// Log page identifier (LID).
    pub page: LogPageId,
    /// Namespace, or [`NSID_BROADCAST`] for the controller's page.
    pub nsid: u32,
    /// Offset in bytes: a multiple of 4.
    pub offset: u64,
    /// Length in bytes: a multiple of 4, at least 4.
    pub bytes: u32,
    /// Whether the read leaves the asynchronous event of this log page uncleared (RAE).
    pub retain_event: bool,
    /// Log specific parameter (LSP).
    pub specific: u8,
}

impl LogPage {
    /// The first `bytes` bytes of the controller's `page`.
    #[must_use]
    pub fn new(page: LogPageId, bytes: u32) -> Self {
        Self { page, nsid: NSID_BROADCAST, offset: 0, bytes, retain_event: false, specific: 0 }
    }
}

/// Creates a Get Log Page command.
///
/// # Panics
/// Panics if offset or length is not a multiple of 4, or the length is 0.
#[must_use]
pub fn log_page(log: LogPage) -> Command {
    assert!(log.offset.is_multiple_of(4), "log page from byte {}", log.offset);
    let parameters = LogPageParameters {
        rae: log.retain_event,
        lsp: log.specific,
        ..LogPageParameters::new(log.page, log.offset, log.bytes.into())
    };
    let data = Data::FromController(log.bytes);
    let mut command = admin(AdminOpcode::GET_LOG_PAGE, log.nsid, data);
    parameters.emit(&mut command.sqe);
    command
}

/// Creates a Set Features command for a feature without data.
#[must_use]
pub fn set_features(feature: FeatureId, value: u32) -> Command {
    let mut command = admin(AdminOpcode::SET_FEATURES, 0, Data::None);
    FeatureSet { fid: feature, save: false, cdw11: value }.emit(&mut command.sqe);
    command
}

/// Creates a command that requests `count` (1 to 65535) I/O queue pairs.
///
/// # Panics
/// Panics if the count is 0, which the 0's-based field cannot express.
#[must_use]
pub fn set_number_of_queues(count: u16) -> Command {
    set_features(FeatureId::NUMBER_OF_QUEUES, NumberOfQueues::pairs(count).0)
}

/// Returns the number of queue pairs that the result of [`set_number_of_queues`] grants.
#[must_use]
pub fn granted_queues(result: u32) -> u16 {
    u16::try_from(NumberOfQueues(result).pair_count()).unwrap_or(u16::MAX)
}

/// Creates an Asynchronous Event Request.
#[must_use]
pub fn async_event_request() -> Command {
    admin(AdminOpcode::ASYNC_EVENT_REQUEST, 0, Data::None)
}

/// Creates a Keep Alive.
#[must_use]
pub fn keep_alive() -> Command {
    admin(AdminOpcode::KEEP_ALIVE, 0, Data::None)
}

/// Creates a Cross-Controller Reset, which ends another controller of this host in the same
/// subsystem.
#[must_use]
pub fn cross_controller_reset(impacted: CrossControllerReset) -> Command {
    Command::new(impacted.emit(), Data::None)
}

/// Creates a Connect of queue `qid`. Its data is [`connect_data`]. It always disables SQ flow
/// control, so the controller may end a read with the SUCCESS flag.
#[must_use]
pub fn connect(qid: u16, sqsize_z: u16, keep_alive_ms: u32) -> Command {
    let mut command = ConnectCommand::new(0, qid, sqsize_z, keep_alive_ms);
    command.cattr = CATTR_DISABLE_SQ_FLOW;
    Command { sqe: command.to_sqe(), data: Data::ToController(ConnectData::LEN as u32) }
}

/// Creates an Authentication Send with a message of `length` bytes.
#[must_use]
pub fn authentication_send(length: u32) -> Command {
    let sqe = AuthenticationCommand::send(0, length).to_sqe();
    Command { sqe, data: Data::ToController(length) }
}

/// Creates an Authentication Receive with room for a message of `length` bytes.
#[must_use]
pub fn authentication_receive(length: u32) -> Command {
    let sqe = AuthenticationCommand::receive(0, length).to_sqe();
    Command { sqe, data: Data::FromController(length) }
}

/// The names of the host and of the requested subsystem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity<'a> {
    /// Host identifier.
    pub hostid: [u8; 16],
    /// Host NQN.
    pub hostnqn: &'a str,
    /// Subsystem NQN.
    pub subnqn: &'a str,
}

/// The data of [`connect`]. `controller` is `None` for the admin queue.
#[must_use]
pub fn connect_data(identity: &Identity<'_>, controller: Option<u16>) -> ConnectData {
    let cntlid = controller.unwrap_or(CNTLID_DYNAMIC);
    let data = ConnectData::new(identity.hostid, cntlid, identity.subnqn, identity.hostnqn);
    ConnectData { cntlid: U16::new(cntlid), ..data }
}

/// Creates a Property Get.
#[must_use]
pub fn property(offset: u32, size: PropertySize) -> Command {
    Command { sqe: PropertyGetCommand::new(0, offset, size).to_sqe(), data: Data::None }
}

/// Creates a Property Set of a 4-byte property.
#[must_use]
pub fn set_property(offset: u32, value: u32) -> Command {
    let command = PropertySetCommand::new(0, offset, PropertySize::Four, value.into());
    Command { sqe: command.to_sqe(), data: Data::None }
}
