//! Error, health and firmware log pages.

use zerocopy::little_endian::{U16, U32, U64, U128};

layout! {
    /// One entry of the Error Information log page (Base 2.0c, "Error Information Log Entry Data
    /// Structure").
    pub struct ErrorLogEntry, 64 {
        0 error_count: U64, "Unique number of this error, 0 for an unused entry.";
        8 sqid: U16, "Submission queue ID.";
        10 cid: U16, "Command ID.";
        12 status: U16, "Status field in bits 15:1, as in a completion.";
        14 parameter_error_location: U16, "Byte (bits 7:0) and bit (bits 10:8) in the command.";
        16 lba: U64, "First LBA that had the error.";
        24 nsid: U32, "Namespace.";
        28 vendor_log_page: u8, "Vendor specific log page with more information, 0 for none.";
        29 trtype: u8, "Transport type (TRTYPE).";
        30 rsvd_30: [u8; 2], "Reserved.";
        32 command_specific: U64, "Command specific information.";
        40 transport_specific: U16, "Transport type specific information.";
        42 rsvd_42: [u8; 22], "Reserved.";
    }
}

layout! {
    /// SMART / Health Information (Base 2.0c, "SMART / Health Information Log Page").
    pub struct SmartLog, 512 {
        0 critical_warning: u8, "Critical warnings.";
        1 composite_temperature: U16, "Composite temperature in kelvin.";
        3 available_spare: u8, "Available spare in percent.";
        4 available_spare_threshold: u8, "Available spare threshold in percent.";
        5 percentage_used: u8, "Percentage used; may exceed 100.";
        6 endurance_group_warnings: u8, "Endurance group critical warning summary.";
        7 rsvd_7: [u8; 25], "Reserved.";
        32 data_units_read: U128, "Data read, in units of 1000 times 512 bytes, rounded up.";
        48 data_units_written: U128, "Data written, in units of 1000 times 512 bytes, rounded up.";
        64 host_read_commands: U128, "Read commands completed.";
        80 host_write_commands: U128, "Write commands completed.";
        96 controller_busy_time: U128, "Time the controller was busy, in minutes.";
        112 power_cycles: U128, "Power cycles.";
        128 power_on_hours: U128, "Power on hours.";
        144 unsafe_shutdowns: U128, "Unsafe shutdowns.";
        160 media_errors: U128, "Media and data integrity errors.";
        176 error_log_entries: U128, "Error log entries over the controller's lifetime.";
        192 warning_temperature_time: U32, "Minutes above the warning temperature.";
        196 critical_temperature_time: U32, "Minutes above the critical temperature.";
        200 temperature_sensors: [U16; 8], "Temperature sensors 1 to 8 in kelvin, 0 for none.";
        216 tmt1_transitions: U32, "Transitions to thermal management temperature 1.";
        220 tmt2_transitions: U32, "Transitions to thermal management temperature 2.";
        224 tmt1_time: U32, "Seconds in thermal management temperature 1.";
        228 tmt2_time: U32, "Seconds in thermal management temperature 2.";
        232 rsvd_232: [u8; 280], "Reserved.";
    }
}

impl SmartLog {
    /// Critical warning: available spare is below the threshold.
    pub const WARNING_SPARE: u8 = 1 << 0;
    /// Critical warning: a temperature is above or below its threshold.
    pub const WARNING_TEMPERATURE: u8 = 1 << 1;
    /// Critical warning: reliability is degraded.
    pub const WARNING_RELIABILITY: u8 = 1 << 2;
    /// Critical warning: all media are read only.
    pub const WARNING_READ_ONLY: u8 = 1 << 3;
    /// Critical warning: the volatile memory backup failed.
    pub const WARNING_BACKUP: u8 = 1 << 4;
}

layout! {
    /// Firmware Slot Information (Base 2.0c, "Firmware Slot Information Log Page").
    pub struct FirmwareSlotLog, 512 {
        0 afi: u8, "Active firmware info: active slot in bits 2:0, next in bits 6:4 (AFI).";
        1 rsvd_1: [u8; 7], "Reserved.";
        8 frs: [[u8; 8]; 7], "Firmware revisions of slots 1 to 7, ASCII (FRS1 to FRS7).";
        64 rsvd_64: [u8; 448], "Reserved.";
    }
}
