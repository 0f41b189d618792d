//! Reservations (Base 2.0c, "Reservation Acquire command", "Reservation Register command",
//! "Reservation Release command", "Reservation Report command"). Comments cite figures by name.

use zerocopy::little_endian::{U16, U32, U64};

open_code! {
    /// Reservation Type (RTYPE) (Base 2.0c, "Reservation Type Encoding").
    pub struct ReservationType(u8), "reservation type" {
        NONE = 0x00, "no reservation";
        WRITE_EXCLUSIVE = 0x01, "Write Exclusive";
        EXCLUSIVE_ACCESS = 0x02, "Exclusive Access";
        WRITE_EXCLUSIVE_REGISTRANTS = 0x03, "Write Exclusive - Registrants Only";
        EXCLUSIVE_ACCESS_REGISTRANTS = 0x04, "Exclusive Access - Registrants Only";
        WRITE_EXCLUSIVE_ALL = 0x05, "Write Exclusive - All Registrants";
        EXCLUSIVE_ACCESS_ALL = 0x06, "Exclusive Access - All Registrants";
    }
}

open_code! {
    /// Action of Reservation Register (RREGA).
    pub struct RegisterAction(u8), "register action" {
        REGISTER = 0x00, "Register Reservation Key";
        UNREGISTER = 0x01, "Unregister Reservation Key";
        REPLACE = 0x02, "Replace Reservation Key";
    }
}

open_code! {
    /// Action of Reservation Acquire (RACQA).
    pub struct AcquireAction(u8), "acquire action" {
        ACQUIRE = 0x00, "Acquire";
        PREEMPT = 0x01, "Preempt";
        PREEMPT_ABORT = 0x02, "Preempt and Abort";
    }
}

open_code! {
    /// Action of Reservation Release (RRELA).
    pub struct ReleaseAction(u8), "release action" {
        RELEASE = 0x00, "Release";
        CLEAR = 0x01, "Clear";
    }
}

/// Command dword 10 of Reservation Register, Acquire and Release.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ReservationControl(pub u32);

bit_fields! { ReservationControl(u32) {
    bits 0 2 action: u8, with_action "Action (RREGA, RACQA, RRELA).";
    bit 3 iekey with_iekey "Ignore existing key (IEKEY).";
    bits 8 15 rtype: u8, with_rtype "Acquire and Release: reservation type (RTYPE).";
    bits 30 31 cptpl: u8, with_cptpl
        "Register: change the persist through power loss state: 0 keep, 2 clear, 3 set (CPTPL).";
} }

/// CPTPL of Reservation Register (Base 2.0c, "Reservation Register - Command Dword 10").
impl ReservationControl {
    /// CPTPL: the state remains unchanged.
    pub const CPTPL_KEEP: u8 = 0b00;
    /// CPTPL: a power loss ends reservations and removes registrants.
    pub const CPTPL_CLEAR: u8 = 0b10;
    /// CPTPL: reservations and registrants persist through a power loss.
    pub const CPTPL_SET: u8 = 0b11;
}

/// Reservation Report, command dword 11: extended data structure (EDS). Fabrics require this bit.
pub const REPORT_EXTENDED: u32 = 1 << 0;

/// Reservation Persistence (feature 83h), command dword 11 and result: reservations persist through
/// power loss (PTPL) (Base 2.0c, "Reservation Persistence").
pub const PERSISTENCE_PTPL: u32 = 1 << 0;

open_code! {
    /// Reservation Notification Log Page Type (Base 2.0c, "Reservation Notification Log Page"). The
    /// value is also the number of the bit that masks the notification in Reservation Notification
    /// Mask (feature 82h).
    pub struct NotificationType(u8), "reservation notification" {
        EMPTY = 0x00, "empty log page";
        REGISTRATION_PREEMPTED = 0x01, "registration preempted";
        RESERVATION_RELEASED = 0x02, "reservation released";
        RESERVATION_PREEMPTED = 0x03, "reservation preempted";
    }
}

impl NotificationType {
    /// Returns the notification's bit in Reservation Notification Mask (REGPRE, RESREL, RESPRE).
    pub const fn mask_bit(self) -> u32 {
        1 << self.0
    }

    /// All defined bits of Reservation Notification Mask.
    pub const MASK: u32 = 0b1110;
}

layout! {
    /// Header of Reservation Report without EDS, for hosts with 64-bit identifiers (Base 2.0c,
    /// "Reservation Status Data Structure"). Registrants follow.
    pub struct ReservationStatusShort, 24 {
        0 gen_count: U32, "Generation: counts registrations and preemptions (GEN).";
        4 rtype: u8, "Reservation type (RTYPE).";
        5 regctl: U16, "Number of registrants that follow (REGCTL).";
        7 rsvd_7: [u8; 2], "Reserved.";
        9 ptpls: u8, "Persist through power loss state (PTPLS).";
        10 rsvd_10: [u8; 14], "Reserved.";
    }
}

layout! {
    /// One registrant with a 64-bit identifier (Base 2.0c, "Registered Controller Data Structure").
    pub struct RegistrantShort, 24 {
        0 cntlid: U16, "Controller ID (CNTLID).";
        2 rcsts: u8, "Reservation status: bit 0 holds the reservation (RCSTS).";
        3 rsvd_3: [u8; 5], "Reserved.";
        8 hostid: [u8; 8], "Host identifier (HOSTID).";
        16 rkey: U64, "Reservation key (RKEY).";
    }
}

layout! {
    /// Data of Reservation Register (Base 2.0c, "Reservation Register Data Structure").
    pub struct RegisterData, 16 {
        0 crkey: U64, "Current reservation key (CRKEY).";
        8 nrkey: U64, "New reservation key (NRKEY).";
    }
}

layout! {
    /// Data of Reservation Acquire (Base 2.0c, "Reservation Acquire Data Structure").
    pub struct AcquireData, 16 {
        0 crkey: U64, "Current reservation key (CRKEY).";
        8 prkey: U64, "Preempt reservation key (PRKEY).";
    }
}

layout! {
    /// Data of Reservation Release (Base 2.0c, "Reservation Release Data Structure").
    pub struct ReleaseData, 8 {
        0 crkey: U64, "Current reservation key (CRKEY).";
    }
}

layout! {
    /// Header of Reservation Report with EDS (Base 2.0c, "Reservation Status Extended Data
    /// Structure"). Registrants follow.
    pub struct ReservationStatus, 64 {
        0 gen_count: U32, "Generation: counts registrations and preemptions (GEN).";
        4 rtype: u8, "Reservation type (RTYPE).";
        5 regctl: U16, "Number of registrants that follow (REGCTL).";
        7 rsvd_7: [u8; 2], "Reserved.";
        9 ptpls: u8, "Persist through power loss state (PTPLS).";
        10 rsvd_10: [u8; 54], "Reserved.";
    }
}

layout! {
    /// One registrant (Base 2.0c, "Registered Controller Extended Data Structure").
    pub struct Registrant, 64 {
        0 cntlid: U16, "Controller ID (CNTLID).";
        2 rcsts: u8, "Reservation status: bit 0 holds the reservation (RCSTS).";
        3 rsvd_3: [u8; 5], "Reserved.";
        8 rkey: U64, "Reservation key (RKEY).";
        16 hostid: [u8; 16], "Host identifier (HOSTID).";
        32 rsvd_32: [u8; 32], "Reserved.";
    }
}

impl Registrant {
    /// RCSTS: the host holds a reservation.
    pub const RCSTS_HOLDS: u8 = 1 << 0;
    /// CNTLID of a registration that does not belong to a single controller of the host.
    pub const CNTLID_DYNAMIC: u16 = 0xffff;
}

layout! {
    /// Reservation Notification log page (Base 2.0c, "Reservation Notification Log Page").
    pub struct ReservationNotificationLog, 64 {
        0 log_page_count: U64, "Notification counter, 0 for an empty page.";
        8 notification_type: u8,
            "0 empty, 1 registration preempted, 2 reservation released, 3 reservation preempted.";
        9 available_log_pages: u8, "Number of further unread notifications, at most 255.";
        10 rsvd_10: [u8; 2], "Reserved.";
        12 nsid: U32, "Namespace.";
        16 rsvd_16: [u8; 48], "Reserved.";
    }
}
