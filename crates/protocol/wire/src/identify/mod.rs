//! Identify (Base 2.0c, "Identify command"; NVM 1.0c, "Identify Command").

mod controller;
mod lists;
mod namespace;

pub use controller::{ControllerType, IdentifyController, IdentifyControllerNvm, PowerState};
pub use lists::{
    CommandSetVector, ControllerList, NamespaceIdDescriptor, NamespaceIdType, NamespaceList,
};
pub use namespace::{
    IdentifyNamespace, IdentifyNamespaceIndependent, IdentifyNamespaceNvm, LbaFormat,
};

use crate::Sqe;

open_code! {
    /// Controller or Namespace Structure (CNS) (Base 2.0c, "CNS Values").
    pub struct Cns(u8), "CNS" {
        NAMESPACE = 0x00, "Identify Namespace (NVM command set)";
        CONTROLLER = 0x01, "Identify Controller";
        ACTIVE_NAMESPACES = 0x02, "Active Namespace ID list";
        NAMESPACE_ID_DESCRIPTORS = 0x03, "Namespace Identification Descriptor list";
        NVM_SETS = 0x04, "NVM Set List";
        COMMAND_SET_NAMESPACE = 0x05, "I/O Command Set specific Identify Namespace";
        COMMAND_SET_CONTROLLER = 0x06, "I/O Command Set specific Identify Controller";
        COMMAND_SET_ACTIVE_NAMESPACES = 0x07, "I/O Command Set specific Active Namespace ID list";
        INDEPENDENT_NAMESPACE = 0x08, "I/O Command Set independent Identify Namespace";
        NAMESPACE_FORMAT = 0x09, "Identify Namespace for a Format Index";
        COMMAND_SET_NAMESPACE_FORMAT = 0x0a,
            "I/O Command Set specific Identify Namespace for a Format Index";
        ALLOCATED_NAMESPACES = 0x10, "Allocated Namespace ID list";
        ALLOCATED_NAMESPACE = 0x11, "Identify Namespace for an allocated Namespace ID";
        ATTACHED_CONTROLLERS = 0x12, "Controller List of a namespace";
        CONTROLLERS = 0x13, "Controller List of the NVM subsystem";
        PRIMARY_CAPABILITIES = 0x14, "Primary Controller Capabilities";
        SECONDARY_CONTROLLERS = 0x15, "Secondary Controller list";
        NAMESPACE_GRANULARITY = 0x16, "Namespace Granularity List";
        UUIDS = 0x17, "UUID List";
        DOMAINS = 0x18, "Domain List";
        ENDURANCE_GROUPS = 0x19, "Endurance Group List";
        COMMAND_SET_ALLOCATED_NAMESPACES = 0x1a,
            "I/O Command Set specific Allocated Namespace ID list";
        COMMAND_SET_ALLOCATED_NAMESPACE = 0x1b,
            "I/O Command Set specific Identify Namespace for an allocated Namespace ID";
        COMMAND_SETS = 0x1c, "Identify I/O Command Set";
        CONTROLLER_STATE_FORMATS = 0x20, "Supported Controller State Formats (Base 2.1)";
    }
}

open_code! {
    /// Command Set Identifier (CSI) (Base 2.0c, "Command Set Identifiers").
    pub struct CommandSet(u8), "command set" {
        NVM = 0x00, "NVM Command Set";
        KEY_VALUE = 0x01, "Key Value Command Set";
        ZONED = 0x02, "Zoned Namespace Command Set";
    }
}

/// The parameters of an Identify command (Base 2.0c, "Identify - Command Dword 10", 11 and 14).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IdentifyParameters {
    /// The structure (CNS).
    pub cns: Cns,
    /// Controller identifier (CNTID).
    pub cntid: u16,
    /// CNS specific identifier (CNSSID).
    pub cnssid: u16,
    /// Command set (CSI).
    pub csi: CommandSet,
    /// UUID Index.
    pub uuid_index: u8,
}

impl IdentifyParameters {
    /// Creates parameters that request `cns`. All other fields are zero.
    pub const fn new(cns: Cns) -> Self {
        Self { cns, cntid: 0, cnssid: 0, csi: CommandSet::NVM, uuid_index: 0 }
    }

    /// Reads the parameters from a submission queue entry.
    pub const fn parse(sqe: &Sqe) -> Self {
        let (cdw10, cdw11) = (sqe.cdw10.get(), sqe.cdw11.get());
        Self {
            cns: Cns(cdw10 as u8),
            cntid: (cdw10 >> 16) as u16,
            cnssid: cdw11 as u16,
            csi: CommandSet((cdw11 >> 24) as u8),
            uuid_index: sqe.cdw14.get() as u8 & 0x7f,
        }
    }

    /// Writes the parameters to a submission queue entry.
    pub fn emit(&self, sqe: &mut Sqe) {
        sqe.cdw10.set(u32::from(self.cns.0) | u32::from(self.cntid) << 16);
        sqe.cdw11.set(u32::from(self.cnssid) | u32::from(self.csi.0) << 24);
        sqe.cdw14.set(u32::from(self.uuid_index & 0x7f));
    }
}

/// Returns an ASCII field: the text, padded with spaces. Truncates longer text and replaces
/// non-ASCII or unprintable characters by `?`.
pub fn ascii_field<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (byte, character) in field.iter_mut().zip(text.chars()) {
        *byte = if matches!(character, ' '..='~') { character as u8 } else { b'?' };
    }
    field
}

/// Returns the text of an ASCII field without its padding. Stops at the first unprintable byte.
pub fn parse_ascii(field: &[u8]) -> &str {
    let end = field.iter().position(|byte| !matches!(byte, b' '..=b'~')).unwrap_or(field.len());
    // The slice contains only printable ASCII, so the conversion cannot fail.
    core::str::from_utf8(&field[..end]).unwrap_or_default().trim_end_matches(' ')
}
