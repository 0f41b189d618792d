//! Asynchronous events (Base 2.0c, "Asynchronous Event Request command").

use crate::log::LogPageId;

open_code! {
    /// Asynchronous Event Type (Base 2.0c, "Asynchronous Event Request - Completion Queue Entry
    /// Dword 0").
    pub struct EventType(u8), "event type" {
        ERROR = 0x00, "Error status";
        SMART_HEALTH = 0x01, "SMART / Health status";
        NOTICE = 0x02, "Notice";
        IMMEDIATE = 0x03, "Immediate";
        ONE_SHOT = 0x04, "One-Shot (Base 2.1)";
        COMMAND_SET = 0x06, "I/O Command specific status";
        VENDOR = 0x07, "Vendor specific";
    }
}

/// Completion dword 0 of an Asynchronous Event Request: the event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AsyncEvent {
    /// Asynchronous event type, 3 bits.
    pub event_type: EventType,
    /// Asynchronous event information; its meaning depends on the type.
    pub info: u8,
    /// The log page that explains the event. Reading the page also clears the event.
    pub log_page: LogPageId,
}

impl AsyncEvent {
    /// Notice: Namespace Attribute Changed.
    pub const NAMESPACE_CHANGED: Self =
        Self::new(EventType::NOTICE, 0x00, LogPageId::CHANGED_NAMESPACES);
    /// Notice: Firmware Activation Starting.
    pub const FIRMWARE_ACTIVATION: Self =
        Self::new(EventType::NOTICE, 0x01, LogPageId::FIRMWARE_SLOT);
    /// Notice: Asymmetric Namespace Access Change.
    pub const ANA_CHANGE: Self = Self::new(EventType::NOTICE, 0x03, LogPageId::ANA);
    /// Notice: Discovery Log Page Change.
    pub const DISCOVERY_CHANGED: Self = Self::new(EventType::NOTICE, 0xf0, LogPageId::DISCOVERY);
    /// Error: Persistent Internal Error.
    pub const PERSISTENT_INTERNAL_ERROR: Self =
        Self::new(EventType::ERROR, 0x03, LogPageId::ERROR_INFORMATION);
    /// Error: Transient Internal Error.
    pub const TRANSIENT_INTERNAL_ERROR: Self =
        Self::new(EventType::ERROR, 0x04, LogPageId::ERROR_INFORMATION);
    /// SMART / Health: NVM subsystem reliability.
    pub const RELIABILITY: Self = Self::new(EventType::SMART_HEALTH, 0x00, LogPageId::SMART_HEALTH);
    /// I/O Command specific: Reservation Log Page Available.
    pub const RESERVATION_LOG: Self =
        Self::new(EventType::COMMAND_SET, 0x00, LogPageId::RESERVATION_NOTIFICATION);

    /// Creates an event from its type, its information and its log page.
    pub const fn new(event_type: EventType, info: u8, log_page: LogPageId) -> Self {
        Self { event_type, info, log_page }
    }

    /// Reads completion dword 0.
    pub const fn parse(dw0: u32) -> Self {
        Self::new(EventType(dw0 as u8 & 0b111), (dw0 >> 8) as u8, LogPageId((dw0 >> 16) as u8))
    }

    /// Returns completion dword 0 for this event.
    pub const fn emit(self) -> u32 {
        (self.event_type.0 & 0b111) as u32
            | (self.info as u32) << 8
            | (self.log_page.0 as u32) << 16
    }
}
