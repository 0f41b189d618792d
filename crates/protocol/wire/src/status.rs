//! Status of a completed command (Base 2.0c, "Status Field Definition"; NVM 1.0c, "Status Codes").

use core::fmt;

/// The 15-bit Status Field without the phase tag.
///
/// Bits 7:0 Status Code (SC), 10:8 Status Code Type (SCT), 12:11 Command Retry Delay (CRD), 13 More
/// (M), 14 Do Not Retry (DNR). Equality compares all of these bits; use [`Status::code`] to compare
/// only SCT and SC.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Status(pub u16);

/// Declares the named statuses and their names, one line each.
macro_rules! statuses {
    ($($konst:ident = $value:literal, $text:literal;)+) => {
        impl Status {
            $(#[doc = $text] pub const $konst: Self = Self($value);)+

            /// Returns the specification's name; `None` for a code that the specification does not
            /// define. For 180h to 183h, returns the name in the NVM command set. For Connect, see
            /// [`Self::connect_name`].
            pub const fn name(self) -> Option<&'static str> {
                match self.code() {
                    $($value => Some($text),)+
                    0x180 => Some("Conflicting Attributes"),
                    0x181 => Some("Invalid Protection Information"),
                    0x182 => Some("Attempted Write to Read Only Range"),
                    0x183 => Some("Command Size Limit Exceeded"),
                    _ => None,
                }
            }

            /// Returns the name of this code as the status of a Connect command. The fabrics
            /// commands and the NVM command set both number their codes from 180h.
            pub const fn connect_name(self) -> Option<&'static str> {
                match self.code() {
                    0x180 => Some("Connect Incompatible Format"),
                    0x181 => Some("Connect Controller Busy"),
                    0x182 => Some("Connect Invalid Parameters"),
                    0x183 => Some("Connect Restart Discovery"),
                    _ => self.name(),
                }
            }
        }
    };
}

statuses! {
    SUCCESS = 0x000, "Successful Completion";
    INVALID_OPCODE = 0x001, "Invalid Command Opcode";
    INVALID_FIELD = 0x002, "Invalid Field in Command";
    COMMAND_ID_CONFLICT = 0x003, "Command ID Conflict";
    DATA_TRANSFER_ERROR = 0x004, "Data Transfer Error";
    ABORTED_POWER_LOSS = 0x005, "Commands Aborted due to Power Loss Notification";
    INTERNAL_ERROR = 0x006, "Internal Error";
    ABORT_REQUESTED = 0x007, "Command Abort Requested";
    ABORTED_SQ_DELETION = 0x008, "Command Aborted due to SQ Deletion";
    ABORTED_FAILED_FUSED = 0x009, "Command Aborted due to Failed Fused Command";
    ABORTED_MISSING_FUSED = 0x00a, "Command Aborted due to Missing Fused Command";
    INVALID_NAMESPACE = 0x00b, "Invalid Namespace or Format";
    COMMAND_SEQUENCE_ERROR = 0x00c, "Command Sequence Error";
    INVALID_SGL_SEGMENT = 0x00d, "Invalid SGL Segment Descriptor";
    INVALID_SGL_COUNT = 0x00e, "Invalid Number of SGL Descriptors";
    DATA_SGL_LENGTH_INVALID = 0x00f, "Data SGL Length Invalid";
    METADATA_SGL_LENGTH_INVALID = 0x010, "Metadata SGL Length Invalid";
    SGL_TYPE_INVALID = 0x011, "SGL Descriptor Type Invalid";
    INVALID_USE_OF_CMB = 0x012, "Invalid Use of Controller Memory Buffer";
    PRP_OFFSET_INVALID = 0x013, "PRP Offset Invalid";
    ATOMIC_WRITE_UNIT_EXCEEDED = 0x014, "Atomic Write Unit Exceeded";
    OPERATION_DENIED = 0x015, "Operation Denied";
    SGL_OFFSET_INVALID = 0x016, "SGL Offset Invalid";
    HOST_ID_INCONSISTENT = 0x018, "Host Identifier Inconsistent Format";
    KEEP_ALIVE_EXPIRED = 0x019, "Keep Alive Timer Expired";
    KEEP_ALIVE_INVALID = 0x01a, "Keep Alive Timeout Invalid";
    ABORTED_PREEMPT = 0x01b, "Command Aborted due to Preempt and Abort";
    SANITIZE_FAILED = 0x01c, "Sanitize Failed";
    SANITIZE_IN_PROGRESS = 0x01d, "Sanitize In Progress";
    SGL_GRANULARITY_INVALID = 0x01e, "SGL Data Block Granularity Invalid";
    NOT_SUPPORTED_IN_CMB = 0x01f, "Command Not Supported for Queue in CMB";
    NAMESPACE_WRITE_PROTECTED = 0x020, "Namespace is Write Protected";
    COMMAND_INTERRUPTED = 0x021, "Command Interrupted";
    TRANSIENT_TRANSPORT_ERROR = 0x022, "Transient Transport Error";
    PROHIBITED_BY_LOCKDOWN = 0x023, "Command Prohibited by Command and Feature Lockdown";
    ADMIN_MEDIA_NOT_READY = 0x024, "Admin Command Media Not Ready";
    LBA_OUT_OF_RANGE = 0x080, "LBA Out of Range";
    CAPACITY_EXCEEDED = 0x081, "Capacity Exceeded";
    NAMESPACE_NOT_READY = 0x082, "Namespace Not Ready";
    RESERVATION_CONFLICT = 0x083, "Reservation Conflict";
    FORMAT_IN_PROGRESS = 0x084, "Format In Progress";

    COMPLETION_QUEUE_INVALID = 0x100, "Completion Queue Invalid";
    INVALID_QUEUE_ID = 0x101, "Invalid Queue Identifier";
    INVALID_QUEUE_SIZE = 0x102, "Invalid Queue Size";
    ABORT_LIMIT_EXCEEDED = 0x103, "Abort Command Limit Exceeded";
    ASYNC_EVENT_LIMIT_EXCEEDED = 0x105, "Asynchronous Event Request Limit Exceeded";
    INVALID_FIRMWARE_SLOT = 0x106, "Invalid Firmware Slot";
    INVALID_FIRMWARE_IMAGE = 0x107, "Invalid Firmware Image";
    INVALID_INTERRUPT_VECTOR = 0x108, "Invalid Interrupt Vector";
    INVALID_LOG_PAGE = 0x109, "Invalid Log Page";
    INVALID_FORMAT = 0x10a, "Invalid Format";
    FIRMWARE_NEEDS_CONVENTIONAL_RESET = 0x10b, "Firmware Activation Requires Conventional Reset";
    INVALID_QUEUE_DELETION = 0x10c, "Invalid Queue Deletion";
    FEATURE_NOT_SAVEABLE = 0x10d, "Feature Identifier Not Saveable";
    FEATURE_NOT_CHANGEABLE = 0x10e, "Feature Not Changeable";
    FEATURE_NOT_NAMESPACE_SPECIFIC = 0x10f, "Feature Not Namespace Specific";
    FIRMWARE_NEEDS_SUBSYSTEM_RESET = 0x110, "Firmware Activation Requires NVM Subsystem Reset";
    FIRMWARE_NEEDS_CONTROLLER_RESET = 0x111, "Firmware Activation Requires Controller Level Reset";
    FIRMWARE_TIME_VIOLATION = 0x112, "Firmware Activation Requires Maximum Time Violation";
    FIRMWARE_PROHIBITED = 0x113, "Firmware Activation Prohibited";
    OVERLAPPING_RANGE = 0x114, "Overlapping Range";
    NAMESPACE_INSUFFICIENT_CAPACITY = 0x115, "Namespace Insufficient Capacity";
    NAMESPACE_ID_UNAVAILABLE = 0x116, "Namespace Identifier Unavailable";
    NAMESPACE_ALREADY_ATTACHED = 0x118, "Namespace Already Attached";
    NAMESPACE_PRIVATE = 0x119, "Namespace Is Private";
    NAMESPACE_NOT_ATTACHED = 0x11a, "Namespace Not Attached";
    THIN_PROVISIONING_UNSUPPORTED = 0x11b, "Thin Provisioning Not Supported";
    CONTROLLER_LIST_INVALID = 0x11c, "Controller List Invalid";
    SELF_TEST_IN_PROGRESS = 0x11d, "Device Self-test In Progress";
    BOOT_PARTITION_PROHIBITED = 0x11e, "Boot Partition Write Prohibited";
    INVALID_CONTROLLER_ID = 0x11f, "Invalid Controller Identifier";
    INVALID_SECONDARY_STATE = 0x120, "Invalid Secondary Controller State";
    INVALID_RESOURCE_COUNT = 0x121, "Invalid Number of Controller Resources";
    INVALID_RESOURCE_ID = 0x122, "Invalid Resource Identifier";
    SANITIZE_PROHIBITED_PMR = 0x123,
        "Sanitize Prohibited While Persistent Memory Region is Enabled";
    ANA_GROUP_ID_INVALID = 0x124, "ANA Group Identifier Invalid";
    ANA_ATTACH_FAILED = 0x125, "ANA Attach Failed";
    INSUFFICIENT_CAPACITY = 0x126, "Insufficient Capacity";
    NAMESPACE_ATTACH_LIMIT = 0x127, "Namespace Attachment Limit Exceeded";
    PROHIBITION_UNSUPPORTED = 0x128, "Prohibition of Command Execution Not Supported";
    COMMAND_SET_UNSUPPORTED = 0x129, "I/O Command Set Not Supported";
    COMMAND_SET_DISABLED = 0x12a, "I/O Command Set Not Enabled";
    COMMAND_SET_COMBINATION_REJECTED = 0x12b, "I/O Command Set Combination Rejected";
    INVALID_COMMAND_SET = 0x12c, "Invalid I/O Command Set";
    IDENTIFIER_UNAVAILABLE = 0x12d, "Identifier Unavailable";
    CROSS_CONTROLLER_RESET_IN_PROGRESS = 0x13f, "Cross-Controller Reset in Progress";
    CROSS_CONTROLLER_RESET_LOG_FULL = 0x140, "Cross-Controller Reset Log Page Full";
    CROSS_CONTROLLER_RESET_LIMIT = 0x141, "Cross-Controller Reset Limit Exceeded";
    CONNECT_INVALID_HOST = 0x184, "Connect Invalid Host";
    INVALID_QUEUE_TYPE = 0x185, "Invalid Queue Type";
    FAST_COPY_NOT_POSSIBLE = 0x186, "Fast Copy Not Possible";
    OVERLAPPING_IO_RANGE = 0x187, "Overlapping I/O Range";
    DISCOVERY_RESTART = 0x190, "Discover Restart";
    AUTHENTICATION_REQUIRED = 0x191, "Authentication Required";

    WRITE_FAULT = 0x280, "Write Fault";
    UNRECOVERED_READ_ERROR = 0x281, "Unrecovered Read Error";
    GUARD_CHECK_ERROR = 0x282, "End-to-end Guard Check Error";
    APPLICATION_TAG_CHECK_ERROR = 0x283, "End-to-end Application Tag Check Error";
    REFERENCE_TAG_CHECK_ERROR = 0x284, "End-to-end Reference Tag Check Error";
    COMPARE_FAILURE = 0x285, "Compare Failure";
    ACCESS_DENIED = 0x286, "Access Denied";
    DEALLOCATED_BLOCK = 0x287, "Deallocated or Unwritten Logical Block";
    STORAGE_TAG_CHECK_ERROR = 0x288, "End-to-End Storage Tag Check Error";

    INTERNAL_PATH_ERROR = 0x300, "Internal Path Error";
    ANA_PERSISTENT_LOSS = 0x301, "Asymmetric Access Persistent Loss";
    ANA_INACCESSIBLE = 0x302, "Asymmetric Access Inaccessible";
    ANA_TRANSITION = 0x303, "Asymmetric Access Transition";
    CONTROLLER_PATHING_ERROR = 0x360, "Controller Pathing Error";
    HOST_PATHING_ERROR = 0x370, "Host Pathing Error";
    ABORTED_BY_HOST = 0x371, "Command Aborted By Host";
}

/// Codes whose meaning depends on the command.
impl Status {
    /// Connect: Connect Incompatible Format.
    pub const CONNECT_INCOMPATIBLE_FORMAT: Self = Self(0x180);
    /// Connect: Connect Controller Busy.
    pub const CONNECT_CONTROLLER_BUSY: Self = Self(0x181);
    /// Connect: Connect Invalid Parameters; the result locates the parameter.
    pub const CONNECT_INVALID_PARAMETERS: Self = Self(0x182);
    /// Connect: Connect Restart Discovery.
    pub const CONNECT_RESTART_DISCOVERY: Self = Self(0x183);
    /// NVM commands: Conflicting Attributes.
    pub const CONFLICTING_ATTRIBUTES: Self = Self(0x180);
    /// NVM commands: Invalid Protection Information.
    pub const INVALID_PROTECTION_INFORMATION: Self = Self(0x181);
    /// NVM commands: Attempted Write to Read Only Range.
    pub const WRITE_TO_READ_ONLY: Self = Self(0x182);
    /// NVM commands: Command Size Limit Exceeded.
    pub const COMMAND_SIZE_LIMIT_EXCEEDED: Self = Self(0x183);
    /// Copy: Incompatible Namespace or Format. Connect: Invalid Queue Type.
    pub const INCOMPATIBLE_NAMESPACE: Self = Self(0x185);
}

/// Status Code Type (SCT), bits 10:8 (Base 2.0c, "Status Code Type").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatusType {
    /// Generic Command Status (0h).
    Generic,
    /// Command Specific Status (1h).
    CommandSpecific,
    /// Media and Data Integrity Errors (2h).
    Media,
    /// Path Related Status (3h).
    Path,
    /// Vendor Specific (7h).
    Vendor,
    /// A type that the specification reserves (4h to 6h).
    Reserved(u8),
}

impl Status {
    const MORE: u16 = 1 << 13;
    const DNR: u16 = 1 << 14;

    /// Creates a status from its type (3 bits) and its code.
    ///
    /// # Panics
    /// Panics if `status_type` is above 7.
    pub const fn new(status_type: u8, code: u8) -> Self {
        assert!(status_type <= 7, "status code type has 3 bits");
        Self((status_type as u16) << 8 | code as u16)
    }

    /// Returns the Status Code Type and the Status Code together, without the retry bits.
    pub const fn code(self) -> u16 {
        self.0 & 0x7ff
    }

    /// Status Code Type (SCT).
    pub const fn status_type(self) -> StatusType {
        match (self.0 >> 8) & 7 {
            0 => StatusType::Generic,
            1 => StatusType::CommandSpecific,
            2 => StatusType::Media,
            3 => StatusType::Path,
            7 => StatusType::Vendor,
            other => StatusType::Reserved(other as u8),
        }
    }

    /// Whether the command succeeded.
    pub const fn is_success(self) -> bool {
        self.code() == 0
    }

    /// Returns this status with Do Not Retry set: the same command would fail again.
    pub const fn with_dnr(self) -> Self {
        Self(self.0 | Self::DNR)
    }

    /// Returns this status with More set: the Error Information log page has details.
    pub const fn with_more(self) -> Self {
        Self(self.0 | Self::MORE)
    }

    /// Returns this status with Command Retry Delay `index` (0 to 3).
    ///
    /// # Panics
    /// Panics if `index` is above 3.
    pub const fn with_retry_delay(self, index: u8) -> Self {
        assert!(index <= 3, "command retry delay has 2 bits");
        Self((self.0 & !(3 << 11)) | (index as u16) << 11)
    }

    /// Do Not Retry (DNR).
    pub const fn is_dnr(self) -> bool {
        self.0 & Self::DNR != 0
    }

    /// More (M).
    pub const fn has_more(self) -> bool {
        self.0 & Self::MORE != 0
    }

    /// Command Retry Delay (CRD). The value 0 means no delay; 1 to 3 select CRDT1 to CRDT3 of
    /// Identify Controller.
    pub const fn retry_delay(self) -> u8 {
        ((self.0 >> 11) & 3) as u8
    }
}

/// Shows the name if the code has a name. Adds the number in the alternate form (`{:#}`) and for a
/// code without a name.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) if !f.alternate() => return f.write_str(name),
            Some(name) => f.write_str(name)?,
            None => f.write_str(match self.status_type() {
                StatusType::Generic => "unknown generic status",
                StatusType::CommandSpecific => "unknown command specific status",
                StatusType::Media => "unknown media status",
                StatusType::Path => "unknown path status",
                StatusType::Vendor => "vendor specific status",
                StatusType::Reserved(_) => "reserved status",
            })?,
        }
        write!(f, " ({:#05x}", self.code())?;
        if self.is_dnr() {
            f.write_str(", do not retry")?;
        }
        if self.has_more() {
            f.write_str(", more in error log")?;
        }
        f.write_str(")")
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({self:#})")
    }
}
