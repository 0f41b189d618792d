//! Opcodes (Base 2.0c, "Admin Command Set", "Fabrics Command Set"; NVM 1.0c, "I/O Commands").

open_code! {
    /// Opcode on the admin queue (Base 2.0c, "Opcodes for Admin Commands").
    pub struct AdminOpcode(u8), "admin opcode" {
        DELETE_SQ = 0x00, "Delete I/O Submission Queue";
        CREATE_SQ = 0x01, "Create I/O Submission Queue";
        GET_LOG_PAGE = 0x02, "Get Log Page";
        DELETE_CQ = 0x04, "Delete I/O Completion Queue";
        CREATE_CQ = 0x05, "Create I/O Completion Queue";
        IDENTIFY = 0x06, "Identify";
        ABORT = 0x08, "Abort";
        SET_FEATURES = 0x09, "Set Features";
        GET_FEATURES = 0x0a, "Get Features";
        ASYNC_EVENT_REQUEST = 0x0c, "Asynchronous Event Request";
        NAMESPACE_MANAGEMENT = 0x0d, "Namespace Management";
        FIRMWARE_COMMIT = 0x10, "Firmware Commit";
        FIRMWARE_DOWNLOAD = 0x11, "Firmware Image Download";
        DEVICE_SELF_TEST = 0x14, "Device Self-test";
        NAMESPACE_ATTACHMENT = 0x15, "Namespace Attachment";
        KEEP_ALIVE = 0x18, "Keep Alive";
        DIRECTIVE_SEND = 0x19, "Directive Send";
        DIRECTIVE_RECEIVE = 0x1a, "Directive Receive";
        VIRTUALIZATION_MANAGEMENT = 0x1c, "Virtualization Management";
        NVME_MI_SEND = 0x1d, "NVMe-MI Send";
        NVME_MI_RECEIVE = 0x1e, "NVMe-MI Receive";
        CAPACITY_MANAGEMENT = 0x20, "Capacity Management";
        LOCKDOWN = 0x24, "Lockdown";
        CROSS_CONTROLLER_RESET = 0x38, "Cross-Controller Reset";
        DOORBELL_BUFFER_CONFIG = 0x7c, "Doorbell Buffer Config";
        FABRICS = 0x7f, "Fabrics Commands";
        FORMAT_NVM = 0x80, "Format NVM";
        SECURITY_SEND = 0x81, "Security Send";
        SECURITY_RECEIVE = 0x82, "Security Receive";
        SANITIZE = 0x84, "Sanitize";
        LBA_STATUS = 0x86, "Get LBA Status";
    }
}

open_code! {
    /// Opcode on an I/O queue (NVM 1.0c, "Opcodes for NVM Commands"; Base 2.0c, "I/O Commands").
    pub struct NvmOpcode(u8), "NVM opcode" {
        FLUSH = 0x00, "Flush";
        WRITE = 0x01, "Write";
        READ = 0x02, "Read";
        WRITE_UNCORRECTABLE = 0x04, "Write Uncorrectable";
        COMPARE = 0x05, "Compare";
        WRITE_ZEROES = 0x08, "Write Zeroes";
        DATASET_MANAGEMENT = 0x09, "Dataset Management";
        VERIFY = 0x0c, "Verify";
        RESERVATION_REGISTER = 0x0d, "Reservation Register";
        RESERVATION_REPORT = 0x0e, "Reservation Report";
        RESERVATION_ACQUIRE = 0x11, "Reservation Acquire";
        RESERVATION_RELEASE = 0x15, "Reservation Release";
        COPY = 0x19, "Copy";
        FABRICS = 0x7f, "Fabrics Commands";
    }
}

open_code! {
    /// Fabrics Command Type (Base 2.0c, "Opcodes for Fabrics Commands"), byte 4 of the entry.
    pub struct FabricsCommandType(u8), "fabrics command type" {
        PROPERTY_SET = 0x00, "Property Set";
        CONNECT = 0x01, "Connect";
        PROPERTY_GET = 0x04, "Property Get";
        AUTHENTICATION_SEND = 0x05, "Authentication Send";
        AUTHENTICATION_RECEIVE = 0x06, "Authentication Receive";
        DISCONNECT = 0x08, "Disconnect";
    }
}

/// The direction of a command's data, encoded in the low two bits of its opcode (or of its fabrics
/// command type) (Base 2.0c, "Data Transfer").
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DataDirection {
    /// No data (00b).
    None,
    /// From host to controller (01b).
    HostToController,
    /// From controller to host (10b).
    ControllerToHost,
    /// In both directions (11b).
    Bidirectional,
}

impl DataDirection {
    /// Returns the direction that an opcode or a fabrics command type encodes.
    pub const fn of(code: u8) -> Self {
        match code & 0b11 {
            0b00 => Self::None,
            0b01 => Self::HostToController,
            0b10 => Self::ControllerToHost,
            _ => Self::Bidirectional,
        }
    }

    /// Returns the direction of a whole entry. Fabrics commands encode it in the command type,
    /// other commands in the opcode.
    pub const fn of_command(sqe: &crate::Sqe) -> Self {
        Self::of(if sqe.opcode == AdminOpcode::FABRICS.0 { sqe.fctype() } else { sqe.opcode })
    }
}
