//! The layout of iSCSI PDUs (RFC 7143, section 11). A basic header segment has 48 bytes. Integers
//! are big-endian. Compile-time assertions check sizes and offsets.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The length of a basic header segment, in bytes.
pub(crate) const BHS_BYTES: usize = 48;
/// The length of a header digest or a data digest, in bytes.
pub(crate) const DIGEST_BYTES: usize = 4;
/// The task tag that stands for no task.
pub(crate) const NO_TAG: u32 = u32::MAX;

/// The opcodes that an initiator sends.
pub(crate) mod request {
    pub(crate) const NOP_OUT: u8 = 0x00;
    pub(crate) const SCSI_COMMAND: u8 = 0x01;
    pub(crate) const TASK_MANAGEMENT: u8 = 0x02;
    pub(crate) const LOGIN: u8 = 0x03;
    pub(crate) const TEXT: u8 = 0x04;
    pub(crate) const DATA_OUT: u8 = 0x05;
    pub(crate) const LOGOUT: u8 = 0x06;
}

/// The opcodes that a target sends.
pub(crate) mod response {
    pub(crate) const NOP_IN: u8 = 0x20;
    pub(crate) const SCSI: u8 = 0x21;
    pub(crate) const TASK_MANAGEMENT: u8 = 0x22;
    pub(crate) const LOGIN: u8 = 0x23;
    pub(crate) const TEXT: u8 = 0x24;
    pub(crate) const DATA_IN: u8 = 0x25;
    pub(crate) const LOGOUT: u8 = 0x26;
    pub(crate) const R2T: u8 = 0x31;
    pub(crate) const ASYNC: u8 = 0x32;
    pub(crate) const REJECT: u8 = 0x3f;
}

/// Bits of a header's second byte.
pub(crate) mod flag {
    /// The last PDU of a sequence. Also set in PDUs that belong to no sequence.
    pub(crate) const FINAL: u8 = 0x80;
    /// The text continues in the next PDU.
    pub(crate) const CONTINUE: u8 = 0x40;
    /// Login: the session moves to the next stage.
    pub(crate) const TRANSIT: u8 = 0x80;
    /// Command: the initiator receives data.
    pub(crate) const READ: u8 = 0x40;
    /// Command: the initiator sends data.
    pub(crate) const WRITE: u8 = 0x20;
    /// Command: the mask of the task attribute.
    pub(crate) const ATTRIBUTE: u8 = 0x07;
    /// Response and Data-In: the command could have moved more data than expected.
    pub(crate) const OVERFLOW: u8 = 0x04;
    /// Response and Data-In: the command moved less data than expected.
    pub(crate) const UNDERFLOW: u8 = 0x02;
    /// Data-In: the PDU contains the status.
    pub(crate) const STATUS: u8 = 0x01;
}

/// A bit of the first byte: the command is immediate, and takes no command number.
pub(crate) const IMMEDIATE: u8 = 0x40;
/// The mask of the opcode in the first byte.
pub(crate) const OPCODE: u8 = 0x3f;

/// Reasons for rejecting a PDU (RFC 7143, 11.17.1).
pub(crate) mod reject {
    pub(crate) const DATA_DIGEST_ERROR: u8 = 0x02;
    pub(crate) const PROTOCOL_ERROR: u8 = 0x04;
    pub(crate) const NOT_SUPPORTED: u8 = 0x05;
    pub(crate) const TOO_MANY_IMMEDIATE: u8 = 0x06;
    pub(crate) const INVALID_FIELD: u8 = 0x09;
}

/// Functions of task management (RFC 7143, 11.5.1).
pub(crate) mod function {
    pub(crate) const ABORT_TASK: u8 = 1;
    pub(crate) const ABORT_TASK_SET: u8 = 2;
    pub(crate) const CLEAR_ACA: u8 = 3;
    pub(crate) const CLEAR_TASK_SET: u8 = 4;
    pub(crate) const LUN_RESET: u8 = 5;
    pub(crate) const TARGET_WARM_RESET: u8 = 6;
    pub(crate) const TARGET_COLD_RESET: u8 = 7;
    pub(crate) const TASK_REASSIGN: u8 = 8;
}

/// Outcomes of task management (RFC 7143, 11.6.1).
pub(crate) mod outcome {
    pub(crate) const COMPLETE: u8 = 0;
    pub(crate) const NO_TASK: u8 = 1;
    pub(crate) const NO_LUN: u8 = 2;
    pub(crate) const NO_REASSIGNMENT: u8 = 4;
    pub(crate) const NOT_SUPPORTED: u8 = 5;
}

/// Declares a basic header segment. Each line declares a field by its offset, name, type and
/// documentation.
macro_rules! pdu {
    ($(#[$meta:meta])* $name:ident { $($at:literal $field:ident: $ty:ty, $doc:literal;)+ }) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Default, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
        )]
        #[repr(C)]
        pub(crate) struct $name {
            $(#[doc = $doc] pub(crate) $field: $ty,)+
        }

        const _: () = {
            assert!(size_of::<$name>() == BHS_BYTES && align_of::<$name>() == 1);
            $(assert!(std::mem::offset_of!($name, $field) == $at);)+
        };
    };
}

/// A basic header segment whose PDU type is not known yet.
pub(crate) type Bhs = [u8; BHS_BYTES];

/// Interprets a header as a PDU of type `P`.
pub(crate) fn view<P: FromBytes>(bhs: &Bhs) -> P {
    P::read_from_bytes(bhs).expect("every basic header segment has 48 bytes")
}

/// The length of the PDU's data segment in bytes, from the header's 24-bit field.
pub(crate) fn data_bytes(bhs: &Bhs) -> u32 {
    u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]])
}

/// Encodes a length in bytes for the header's 24-bit field.
pub(crate) fn length(bytes: usize) -> [u8; 3] {
    let [high, rest @ ..] = u32::try_from(bytes).expect("a length of ours").to_be_bytes();
    assert!(high == 0, "{bytes} bytes do not fit into a PDU");
    rest
}

pdu! {
    /// The fields that all requests share.
    AnyRequest {
        0 opcode: u8, "With the immediate bit.";
        1 flags: u8, "As the opcode has it.";
        2 reserved: [u8; 2], "As the opcode has it.";
        4 ahs_words: u8, "Four-byte words of additional header segments.";
        5 data_length: [u8; 3], "Bytes of the data segment, without padding.";
        8 lun: U64, "Logical unit.";
        16 task_tag: U32, "The initiator's name for the task.";
        20 specific: U32, "As the opcode has it.";
        24 cmd_sn: U32, "Its place among the commands.";
        28 exp_stat_sn: U32, "The next status the initiator expects.";
        32 rest: [u8; 16], "As the opcode has it.";
    }
}

pdu! {
    /// SCSI Command (RFC 7143, 11.3).
    ScsiCommand {
        0 opcode: u8, "With the immediate bit.";
        1 flags: u8, "Final, read, write, attribute.";
        2 reserved: [u8; 2], "Reserved.";
        4 ahs_words: u8, "Four-byte words of additional header segments.";
        5 data_length: [u8; 3], "Immediate data, in bytes.";
        8 lun: U64, "Logical unit.";
        16 task_tag: U32, "The initiator's name for the task.";
        20 expected_bytes: U32, "Expected data transfer length.";
        24 cmd_sn: U32, "Its place among the commands.";
        28 exp_stat_sn: U32, "The next status the initiator expects.";
        32 cdb: [u8; 16], "Command descriptor block.";
    }
}

pdu! {
    /// SCSI Response (RFC 7143, 11.4).
    ScsiResponse {
        0 opcode: u8, "0x21";
        1 flags: u8, "Final, residual overflow or underflow.";
        2 response: u8, "0: the command was completed at the target.";
        3 status: u8, "SCSI status.";
        4 ahs_words: u8, "None.";
        5 data_length: [u8; 3], "Sense data and its length.";
        8 reserved: U64, "Reserved.";
        16 task_tag: U32, "The initiator's name for the task.";
        20 snack_tag: U32, "Reserved.";
        24 stat_sn: U32, "Its place among the statuses.";
        28 exp_cmd_sn: U32, "The next command the target expects.";
        32 max_cmd_sn: U32, "The highest CmdSN that the target accepts.";
        36 exp_data_sn: U32, "R2T and Data-In PDUs that were sent for it.";
        40 bidi_residual: U32, "Reserved.";
        44 residual: U32, "Bytes that did not move.";
    }
}

pdu! {
    /// Task Management Function Request (RFC 7143, 11.5).
    TaskRequest {
        0 opcode: u8, "With the immediate bit.";
        1 function: u8, "With the final bit.";
        2 reserved: [u8; 2], "Reserved.";
        4 ahs_words: u8, "None.";
        5 data_length: [u8; 3], "None.";
        8 lun: U64, "Logical unit.";
        16 task_tag: U32, "The initiator's name for this request.";
        20 referenced_tag: U32, "The task to abort.";
        24 cmd_sn: U32, "Its place among the commands.";
        28 exp_stat_sn: U32, "The next status the initiator expects.";
        32 ref_cmd_sn: U32, "The place of the task to abort.";
        36 exp_data_sn: U32, "For reassignments.";
        40 reserved2: U64, "Reserved.";
    }
}

pdu! {
    /// Most responses: task management, logout, text, NOP-In, reject (RFC 7143, 11.6, 11.15,
    /// 11.11, 11.19, 11.17).
    Response {
        0 opcode: u8, "Which.";
        1 flags: u8, "Final.";
        2 code: u8, "Outcome or reason.";
        3 reserved: u8, "Reserved.";
        4 ahs_words: u8, "None.";
        5 data_length: [u8; 3], "Bytes of the data segment, without padding.";
        8 lun: U64, "NOP-In and Text: logical unit.";
        16 task_tag: U32, "The initiator's name for the task.";
        20 target_tag: U32, "The target's name for a transfer.";
        24 stat_sn: U32, "Its place among the statuses.";
        28 exp_cmd_sn: U32, "The next command the target expects.";
        32 max_cmd_sn: U32, "The highest CmdSN that the target accepts.";
        36 data_sn: U32, "Reject: of the PDU.";
        40 time2wait: U16, "Logout: seconds before the initiator should be back.";
        42 time2retain: U16, "Logout: seconds that tasks are kept.";
        44 reserved2: U32, "Reserved.";
    }
}

pdu! {
    /// SCSI Data-Out (RFC 7143, 11.7).
    DataOut {
        0 opcode: u8, "0x05";
        1 flags: u8, "Final.";
        2 reserved: [u8; 2], "Reserved.";
        4 ahs_words: u8, "None.";
        5 data_length: [u8; 3], "Bytes of the data segment, without padding.";
        8 lun: U64, "Logical unit, if the target named the transfer.";
        16 task_tag: U32, "The initiator's name for the task.";
        20 target_tag: U32, "The target's name for the transfer; none: nobody asked for it.";
        24 reserved2: U32, "Reserved.";
        28 exp_stat_sn: U32, "The next status the initiator expects.";
        32 reserved3: U32, "Reserved.";
        36 data_sn: U32, "Its place in the sequence.";
        40 offset: U32, "Where in the command's data it belongs.";
        44 reserved4: U32, "Reserved.";
    }
}

pdu! {
    /// SCSI Data-In (RFC 7143, 11.7).
    DataIn {
        0 opcode: u8, "0x25";
        1 flags: u8, "Final, residual, status.";
        2 reserved: u8, "Reserved.";
        3 status: u8, "SCSI status, with the status bit.";
        4 ahs_words: u8, "None.";
        5 data_length: [u8; 3], "Bytes of the data segment, without padding.";
        8 lun: U64, "Reserved without acknowledgement.";
        16 task_tag: U32, "The initiator's name for the task.";
        20 target_tag: U32, "None.";
        24 stat_sn: U32, "With the status bit: its place among the statuses.";
        28 exp_cmd_sn: U32, "The next command the target expects.";
        32 max_cmd_sn: U32, "The highest CmdSN that the target accepts.";
        36 data_sn: U32, "Its place among the command's.";
        40 offset: U32, "Where in the command's data it belongs.";
        44 residual: U32, "With the status bit: bytes that did not move.";
    }
}

pdu! {
    /// Ready To Transfer (RFC 7143, 11.8).
    R2t {
        0 opcode: u8, "0x31";
        1 flags: u8, "Final.";
        2 reserved: [u8; 2], "Reserved.";
        4 ahs_words: u8, "None.";
        5 data_length: [u8; 3], "None.";
        8 lun: U64, "Logical unit.";
        16 task_tag: U32, "The initiator's name for the task.";
        20 target_tag: U32, "The target's name for the transfer.";
        24 stat_sn: U32, "The next status.";
        28 exp_cmd_sn: U32, "The next command the target expects.";
        32 max_cmd_sn: U32, "The highest CmdSN that the target accepts.";
        36 r2t_sn: U32, "Its place among the command's.";
        40 offset: U32, "Where in the command's data it begins.";
        44 desired_bytes: U32, "How much is asked for.";
    }
}

pdu! {
    /// Asynchronous Message (RFC 7143, 11.9).
    AsyncMessage {
        0 opcode: u8, "0x32";
        1 flags: u8, "Final.";
        2 reserved: [u8; 2], "Reserved.";
        4 ahs_words: u8, "None.";
        5 data_length: [u8; 3], "None.";
        8 lun: U64, "Reserved for the events used here.";
        16 task_tag: U32, "None.";
        20 reserved2: U32, "Reserved.";
        24 stat_sn: U32, "Its place among the statuses.";
        28 exp_cmd_sn: U32, "The next command the target expects.";
        32 max_cmd_sn: U32, "The highest CmdSN that the target accepts.";
        36 event: u8, "What happened.";
        37 vendor_code: u8, "None.";
        38 parameter1: U16, "Reserved, or which connection.";
        40 parameter2: U16, "Reserved, or a time in seconds.";
        42 parameter3: U16, "A time in seconds.";
        44 reserved3: U32, "Reserved.";
    }
}

/// The event of an [`AsyncMessage`] that requests a logout.
pub(crate) const EVENT_LOGOUT: u8 = 1;

pdu! {
    /// Login Request (RFC 7143, 11.12).
    LoginRequest {
        0 opcode: u8, "0x43: always immediate.";
        1 flags: u8, "Transit, continue, current stage, next stage.";
        2 version_max: u8, "The highest version.";
        3 version_min: u8, "The lowest.";
        4 ahs_words: u8, "None.";
        5 data_length: [u8; 3], "Bytes of keys.";
        8 isid: [u8; 6], "The initiator's part of the session's name.";
        14 tsih: U16, "The target's, of a session to join.";
        16 task_tag: U32, "The initiator's name for the login.";
        20 cid: U16, "Connection within the session.";
        22 reserved: U16, "Reserved.";
        24 cmd_sn: U32, "The first command's number.";
        28 exp_stat_sn: U32, "The next status the initiator expects.";
        32 reserved2: [U64; 2], "Reserved.";
    }
}

pdu! {
    /// Login Response (RFC 7143, 11.13).
    LoginResponse {
        0 opcode: u8, "0x23";
        1 flags: u8, "Transit, continue, current stage, next stage.";
        2 version_max: u8, "The highest version.";
        3 version_active: u8, "The one in use.";
        4 ahs_words: u8, "None.";
        5 data_length: [u8; 3], "Bytes of keys.";
        8 isid: [u8; 6], "As in the request.";
        14 tsih: U16, "The target's part of the session's name.";
        16 task_tag: U32, "The initiator's name for the login.";
        20 reserved: U32, "Reserved.";
        24 stat_sn: U32, "Its place among the statuses.";
        28 exp_cmd_sn: U32, "The next command the target expects.";
        32 max_cmd_sn: U32, "The highest CmdSN that the target accepts.";
        36 status: U16, "Class and detail.";
        38 reserved2: U16, "Reserved.";
        40 reserved3: U64, "Reserved.";
    }
}

pdu! {
    /// Logout Request (RFC 7143, 11.14).
    LogoutRequest {
        0 opcode: u8, "With the immediate bit.";
        1 reason: u8, "With the final bit.";
        2 reserved: [u8; 2], "Reserved.";
        4 ahs_words: u8, "None.";
        5 data_length: [u8; 3], "None.";
        8 reserved2: U64, "Reserved.";
        16 task_tag: U32, "The initiator's name for the task.";
        20 cid: U16, "Which connection.";
        22 reserved3: U16, "Reserved.";
        24 cmd_sn: U32, "Its place among the commands.";
        28 exp_stat_sn: U32, "The next status the initiator expects.";
        32 reserved4: [U64; 2], "Reserved.";
    }
}

/// True if sequence number `a` comes before `b` (serial number arithmetic, RFC 1982).
pub(crate) fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// The number of bytes that pad a data segment to a multiple of four.
pub(crate) fn padding(bytes: usize) -> usize {
    bytes.wrapping_neg() % 4
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills the memory with nonzero bytes first, so that the test detects a field that was not
    /// set.
    #[test]
    fn a_scsi_command_is_parsed() {
        let mut bytes: Bhs = [0xa5; BHS_BYTES];
        bytes[0] = IMMEDIATE | request::SCSI_COMMAND;
        bytes[5..8].copy_from_slice(&[1, 2, 3]);
        bytes[16..20].copy_from_slice(&7_u32.to_be_bytes());
        bytes[20..24].copy_from_slice(&4096_u32.to_be_bytes());
        let command: ScsiCommand = view(&bytes);
        assert_eq!(command.opcode & OPCODE, request::SCSI_COMMAND);
        assert_eq!(data_bytes(&bytes), 0x01_0203);
        assert_eq!((command.task_tag.get(), command.expected_bytes.get()), (7, 4096));
        assert_eq!((command.cmd_sn.get(), command.cdb), (0xa5a5_a5a5, [0xa5; 16]));
        assert_eq!(length(0x01_0203), [1, 2, 3]);
    }

    #[test]
    fn sequence_numbers_wrap_around() {
        assert!(before(1, 2) && !before(2, 2) && !before(3, 2));
        assert!(before(u32::MAX, 0) && !before(0, u32::MAX));
    }

    #[test]
    fn padding_fills_up_to_four_bytes() {
        assert_eq!([0, 1, 2, 3, 4, 8191].map(padding), [0, 3, 2, 1, 0, 1]);
    }
}
