//! Log pages (Base 2.0c, "Get Log Page command").

mod ana;
mod discovery;
mod health;
mod support;

pub use ana::{AnaGroupDescriptor, AnaLogHeader, AnaState};
pub use discovery::{
    AddressFamily, DiscoveryLogEntry, DiscoveryLogHeader, SubsystemType, TransportType, parse_text,
    text_field,
};
pub use health::{ErrorLogEntry, FirmwareSlotLog, SmartLog};
pub use support::{CommandEffects, CommandEffectsLog, SupportedLogPages};

use crate::Sqe;

open_code! {
    /// Log Page Identifier (LID) (Base 2.0c, "Get Log Page - Log Page Identifiers").
    pub struct LogPageId(u8), "log page" {
        SUPPORTED_LOG_PAGES = 0x00, "Supported Log Pages";
        ERROR_INFORMATION = 0x01, "Error Information";
        SMART_HEALTH = 0x02, "SMART / Health Information";
        FIRMWARE_SLOT = 0x03, "Firmware Slot Information";
        CHANGED_NAMESPACES = 0x04, "Changed Namespace List";
        COMMAND_EFFECTS = 0x05, "Commands Supported and Effects";
        SELF_TEST = 0x06, "Device Self-test";
        TELEMETRY_HOST = 0x07, "Telemetry Host-Initiated";
        TELEMETRY_CONTROLLER = 0x08, "Telemetry Controller-Initiated";
        ENDURANCE_GROUP = 0x09, "Endurance Group Information";
        PREDICTABLE_LATENCY = 0x0a, "Predictable Latency Per NVM Set";
        PREDICTABLE_LATENCY_EVENTS = 0x0b, "Predictable Latency Event Aggregate";
        ANA = 0x0c, "Asymmetric Namespace Access";
        PERSISTENT_EVENT = 0x0d, "Persistent Event Log";
        LBA_STATUS = 0x0e, "LBA Status Information";
        ENDURANCE_GROUP_EVENTS = 0x0f, "Endurance Group Event Aggregate";
        MEDIA_UNIT_STATUS = 0x10, "Media Unit Status";
        CAPACITY_CONFIGURATIONS = 0x11, "Supported Capacity Configuration List";
        FEATURE_EFFECTS = 0x12, "Feature Identifiers Supported and Effects";
        MI_COMMAND_EFFECTS = 0x13, "NVMe-MI Commands Supported and Effects";
        LOCKDOWN = 0x14, "Command and Feature Lockdown";
        BOOT_PARTITION = 0x15, "Boot Partition";
        ROTATIONAL_MEDIA = 0x16, "Rotational Media Information";
        DISCOVERY = 0x70, "Discovery";
        RESERVATION_NOTIFICATION = 0x80, "Reservation Notification";
        SANITIZE_STATUS = 0x81, "Sanitize Status";
    }
}

/// The parameters of Get Log Page (Base 2.0c, "Get Log Page - Command Dword 10" to 14).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogPageParameters {
    /// The page (LID).
    pub lid: LogPageId,
    /// Log specific parameter (LSP), 7 bits.
    pub lsp: u8,
    /// Retain Asynchronous Event (RAE): reading the page does not clear the event.
    pub rae: bool,
    /// Number of dwords to return, 0's-based (NUMDU and NUMDL).
    pub numd_z: u32,
    /// Log specific identifier (LSI).
    pub lsi: u16,
    /// Offset in bytes (LPOU and LPOL). With `ot`, an index into a list.
    pub lpo: u64,
    /// UUID Index, 7 bits.
    pub uuid_index: u8,
    /// Offset type: `lpo` is an index into a list (OT).
    pub ot: bool,
    /// Command set (CSI).
    pub csi: u8,
}

impl LogPageParameters {
    /// Creates parameters that read `length_bytes` of a page from `offset_bytes`.
    ///
    /// # Panics
    /// Panics if the length is 0, not a multiple of 4, or too long for NUMD.
    pub fn new(lid: LogPageId, offset_bytes: u64, length_bytes: u64) -> Self {
        assert!(
            length_bytes > 0 && length_bytes.is_multiple_of(4),
            "the length is not a whole number of dwords"
        );
        let numd_z = u32::try_from(length_bytes / 4 - 1).expect("the length fits NUMD");
        Self {
            lid,
            lsp: 0,
            rae: false,
            numd_z,
            lsi: 0,
            lpo: offset_bytes,
            uuid_index: 0,
            ot: false,
            csi: 0,
        }
    }

    /// The number of bytes that the host requests.
    pub const fn length_bytes(&self) -> u64 {
        (self.numd_z as u64 + 1) * 4
    }

    /// Reads the parameters from a submission queue entry.
    pub const fn parse(sqe: &Sqe) -> Self {
        let (cdw10, cdw11, cdw14) = (sqe.cdw10.get(), sqe.cdw11.get(), sqe.cdw14.get());
        Self {
            lid: LogPageId(cdw10 as u8),
            lsp: (cdw10 >> 8) as u8 & 0x7f,
            rae: cdw10 & (1 << 15) != 0,
            numd_z: cdw10 >> 16 | (cdw11 & 0xffff) << 16,
            lsi: (cdw11 >> 16) as u16,
            lpo: sqe.cdw12.get() as u64 | (sqe.cdw13.get() as u64) << 32,
            uuid_index: cdw14 as u8 & 0x7f,
            ot: cdw14 & (1 << 23) != 0,
            csi: (cdw14 >> 24) as u8,
        }
    }

    /// Writes the parameters to a submission queue entry.
    pub fn emit(&self, sqe: &mut Sqe) {
        sqe.cdw10.set(
            u32::from(self.lid.0)
                | u32::from(self.lsp & 0x7f) << 8
                | u32::from(self.rae) << 15
                | self.numd_z << 16,
        );
        sqe.cdw11.set(self.numd_z >> 16 | u32::from(self.lsi) << 16);
        sqe.cdw12.set(self.lpo as u32);
        sqe.cdw13.set((self.lpo >> 32) as u32);
        sqe.cdw14.set(
            u32::from(self.uuid_index & 0x7f)
                | u32::from(self.ot) << 23
                | u32::from(self.csi) << 24,
        );
    }
}
