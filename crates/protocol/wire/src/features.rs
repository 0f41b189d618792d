//! Features (Base 2.0c, "Get Features command", "Set Features command").

use zerocopy::little_endian::U16;

use crate::Sqe;

open_code! {
    /// Feature Identifier (FID) (Base 2.0c, "Set Features - Feature Identifiers").
    pub struct FeatureId(u8), "feature" {
        ARBITRATION = 0x01, "Arbitration";
        POWER_MANAGEMENT = 0x02, "Power Management";
        LBA_RANGE_TYPE = 0x03, "LBA Range Type";
        TEMPERATURE_THRESHOLD = 0x04, "Temperature Threshold";
        ERROR_RECOVERY = 0x05, "Error Recovery";
        VOLATILE_WRITE_CACHE = 0x06, "Volatile Write Cache";
        NUMBER_OF_QUEUES = 0x07, "Number of Queues";
        INTERRUPT_COALESCING = 0x08, "Interrupt Coalescing";
        INTERRUPT_VECTOR = 0x09, "Interrupt Vector Configuration";
        WRITE_ATOMICITY = 0x0a, "Write Atomicity Normal";
        ASYNC_EVENT_CONFIGURATION = 0x0b, "Asynchronous Event Configuration";
        AUTONOMOUS_POWER_STATE = 0x0c, "Autonomous Power State Transition";
        HOST_MEMORY_BUFFER = 0x0d, "Host Memory Buffer";
        TIMESTAMP = 0x0e, "Timestamp";
        KEEP_ALIVE_TIMER = 0x0f, "Keep Alive Timer";
        THERMAL_MANAGEMENT = 0x10, "Host Controlled Thermal Management";
        NON_OPERATIONAL_POWER = 0x11, "Non-Operational Power State Config";
        READ_RECOVERY_LEVEL = 0x12, "Read Recovery Level Config";
        PREDICTABLE_LATENCY_CONFIG = 0x13, "Predictable Latency Mode Config";
        PREDICTABLE_LATENCY_WINDOW = 0x14, "Predictable Latency Mode Window";
        LBA_STATUS_INTERVAL = 0x15, "LBA Status Information Report Interval";
        HOST_BEHAVIOR_SUPPORT = 0x16, "Host Behavior Support";
        SANITIZE_CONFIG = 0x17, "Sanitize Config";
        ENDURANCE_GROUP_EVENTS = 0x18, "Endurance Group Event Configuration";
        COMMAND_SET_PROFILE = 0x19, "I/O Command Set Profile";
        SPINUP_CONTROL = 0x1a, "Spinup Control";
        ENHANCED_CONTROLLER_METADATA = 0x7d, "Enhanced Controller Metadata";
        CONTROLLER_METADATA = 0x7e, "Controller Metadata";
        NAMESPACE_METADATA = 0x7f, "Namespace Metadata";
        SOFTWARE_PROGRESS = 0x80, "Software Progress Marker";
        HOST_IDENTIFIER = 0x81, "Host Identifier";
        RESERVATION_NOTIFICATION_MASK = 0x82, "Reservation Notification Mask";
        RESERVATION_PERSISTENCE = 0x83, "Reservation Persistence";
        NAMESPACE_WRITE_PROTECTION = 0x84, "Namespace Write Protection Config";
    }
}

open_code! {
    /// Select (SEL) of Get Features: the kind of value (Base 2.0c, "Get Features - Select").
    pub struct FeatureSelect(u8), "feature select" {
        CURRENT = 0x00, "current";
        DEFAULT = 0x01, "default";
        SAVED = 0x02, "saved";
        SUPPORTED = 0x03, "supported capabilities";
    }
}

/// Bit in the result of Get Features with SEL supported capabilities: the controller can save the
/// feature.
pub const CAPABILITY_SAVEABLE: u32 = 1 << 0;
/// Bit in the result of Get Features with SEL supported capabilities: the feature is namespace
/// specific.
pub const CAPABILITY_NAMESPACE: u32 = 1 << 1;
/// Bit in the result of Get Features with SEL supported capabilities: the host can change the
/// feature.
pub const CAPABILITY_CHANGEABLE: u32 = 1 << 2;

/// The parameters of Get Features (Base 2.0c, "Get Features - Command Dword 10").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FeatureGet {
    /// The feature (FID).
    pub fid: FeatureId,
    /// The kind of value (SEL).
    pub select: FeatureSelect,
    /// Feature specific (command dword 11).
    pub cdw11: u32,
}

impl FeatureGet {
    /// Reads the parameters from a submission queue entry.
    pub const fn parse(sqe: &Sqe) -> Self {
        let cdw10 = sqe.cdw10.get();
        Self {
            fid: FeatureId(cdw10 as u8),
            select: FeatureSelect((cdw10 >> 8) as u8 & 0b111),
            cdw11: sqe.cdw11.get(),
        }
    }

    /// Writes the parameters to a submission queue entry.
    pub fn emit(&self, sqe: &mut Sqe) {
        sqe.cdw10.set(u32::from(self.fid.0) | u32::from(self.select.0 & 0b111) << 8);
        sqe.cdw11.set(self.cdw11);
    }
}

/// The parameters of Set Features (Base 2.0c, "Set Features - Command Dword 10").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FeatureSet {
    /// The feature (FID).
    pub fid: FeatureId,
    /// Whether to keep the value across power cycles (SV).
    pub save: bool,
    /// The feature's value, or a part of the value (command dword 11).
    pub cdw11: u32,
}

impl FeatureSet {
    /// Reads the parameters from a submission queue entry.
    pub const fn parse(sqe: &Sqe) -> Self {
        let cdw10 = sqe.cdw10.get();
        Self { fid: FeatureId(cdw10 as u8), save: cdw10 >> 31 != 0, cdw11: sqe.cdw11.get() }
    }

    /// Writes the parameters to a submission queue entry.
    pub fn emit(&self, sqe: &mut Sqe) {
        sqe.cdw10.set(u32::from(self.fid.0) | u32::from(self.save) << 31);
        sqe.cdw11.set(self.cdw11);
    }
}

/// Number of Queues: command dword 11 and the result (Base 2.0c, "Number of Queues").
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NumberOfQueues(pub u32);

bit_fields! { NumberOfQueues(u32) {
    bits 0 15 nsq_z: u16, with_nsq_z "I/O submission queues, 0's-based (NSQR, NSQA).";
    bits 16 31 ncq_z: u16, with_ncq_z "I/O completion queues, 0's-based (NCQR, NCQA).";
} }

impl NumberOfQueues {
    /// Requests equal numbers of submission and completion queues, as fabrics require.
    ///
    /// # Panics
    /// Panics if `queues` is 0, which the 0's-based field cannot express.
    pub const fn pairs(queues: u16) -> Self {
        assert!(queues > 0, "the field cannot express zero queues");
        Self(0).with_nsq_z(queues - 1).with_ncq_z(queues - 1)
    }

    /// Returns the number of queue pairs: the smaller of the two counts.
    pub const fn pair_count(self) -> u32 {
        let smaller = if self.nsq_z() < self.ncq_z() { self.nsq_z() } else { self.ncq_z() };
        smaller as u32 + 1
    }
}

/// Asynchronous Event Configuration: command dword 11 (Base 2.0c, "Asynchronous Event
/// Configuration"). OAES of Identify Controller uses the same bits for the notices.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct AsyncEventConfig(pub u32);

bit_fields! { AsyncEventConfig(u32) {
    bits 0 7 critical_warnings: u8, with_critical_warnings "SMART critical warnings to report.";
    bit 8 namespace_attributes with_namespace_attributes "Namespace attribute notices.";
    bit 9 firmware_activation with_firmware_activation "Firmware activation notices.";
    bit 10 telemetry with_telemetry "Telemetry log notices.";
    bit 11 ana_change with_ana_change "Asymmetric namespace access change notices.";
    bit 12 predictable_latency with_predictable_latency
        "Predictable latency event aggregate log change notices.";
    bit 13 lba_status with_lba_status "LBA status information notices.";
    bit 14 endurance_group with_endurance_group
        "Endurance group event aggregate log change notices.";
    bit 15 subsystem_shutdown with_subsystem_shutdown "Normal NVM subsystem shutdown.";
    bit 31 discovery_log with_discovery_log "Discovery log page change notifications.";
} }

/// Volatile Write Cache, command dword 11: enable (WCE).
pub const VOLATILE_WRITE_CACHE_ENABLE: u32 = 1 << 0;
/// Host Identifier, command dword 11: the identifier has 128 bits (EXHID). Fabrics require this
/// bit.
pub const HOST_IDENTIFIER_EXTENDED: u32 = 1 << 0;

open_code! {
    /// Write Protection State, bits 2:0 of command dword 11 and of the result (Base 2.0c,
    /// "Namespace Write Protection Config").
    pub struct WriteProtection(u8), "write protection state" {
        NONE = 0x00, "no write protect";
        PROTECT = 0x01, "write protect";
        UNTIL_POWER_CYCLE = 0x02, "write protect until power cycle";
        PERMANENT = 0x03, "permanent write protect";
    }
}

layout! {
    /// Host Behavior Support (Base 2.0c, "Host Behavior Support - Data Structure").
    pub struct HostBehavior, 512 {
        0 acre: u8, "Advanced command retry enable (ACRE).";
        1 etdas: u8, "Extended telemetry data area 4 supported (ETDAS).";
        2 lbafee: u8, "LBA format extension enable (LBAFEE).";
        3 hdisns: u8, "Host dispersed namespace support (HDISNS), since 2.1.";
        4 cdfe: U16, "Copy descriptor formats enable, a bit each (CDFE), since 2.1.";
        6 rsvd_6: [u8; 506], "Reserved.";
    }
}

impl HostBehavior {
    /// CDFE: Copy descriptor format 2h.
    pub const CDFE_FORMAT_2: u16 = 1 << 2;
}

layout! {
    /// Timestamp (Base 2.0c, "Timestamp - Data Structure").
    pub struct Timestamp, 8 {
        0 milliseconds: [u8; 6], "Milliseconds since 1970-01-01, little-endian, 48 bits.";
        6 attributes: u8, "In Get Features, bit 0: counting may have stopped; bits 3:1: origin.";
        7 rsvd_7: u8, "Reserved.";
    }
}

impl Timestamp {
    /// Creates a timestamp with the low 48 bits of `ms` (milliseconds since 1970-01-01).
    pub const fn new(ms: u64, attributes: u8) -> Self {
        let [b0, b1, b2, b3, b4, b5, _, _] = ms.to_le_bytes();
        Self { milliseconds: [b0, b1, b2, b3, b4, b5], attributes, rsvd_7: 0 }
    }

    /// Returns the timestamp in milliseconds since 1970-01-01.
    pub const fn unix_ms(&self) -> u64 {
        let [b0, b1, b2, b3, b4, b5] = self.milliseconds;
        u64::from_le_bytes([b0, b1, b2, b3, b4, b5, 0, 0])
    }
}
