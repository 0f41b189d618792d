//! The layout of iSCSI PDUs (RFC 7143, section 11). A basic header segment has 48 bytes. Integers
//! are big-endian. Compile-time assertions check sizes and offsets.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The length of a basic header segment, in bytes.
pub(crate) const BHS_BYTES: usize = 48;
/// The length of a header digest or a data digest, in bytes.
pub(crate) const DIGEST_BYTES: usize = 4;
/// The task tag of a PDU that belongs to no task.
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
    /// Response and Data-In: the command would have transferred more data than expected.
    pub(crate) const OVERFLOW: u8 = 0x04;
    /// Response and Data-In: the command transferred less data than expected.
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

/// Task management functions (RFC 7143, 11.5.1).
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

/// Task management responses (RFC 7143, 11.6.1).
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

/// A basic header segment before its PDU type is known.
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
    let [high, rest @ ..] = u32::try_from(bytes).expect("a length below 4 GiB").to_be_bytes();
    assert!(high == 0, "{bytes} bytes do not fit into a PDU");
    rest
}

pdu! {
    /// The fields that all requests share.
    AnyRequest {
        0 opcode: u8, "The opcode and the immediate bit.";
        1 flags: u8, "Flags whose meaning depends on the opcode.";
        2 reserved: [u8; 2], "Two bytes whose meaning depends on the opcode.";
        4 ahs_words: u8, "The length of the additional header segments, in four-byte words.";
        5 data_length: [u8; 3], "The length of the data segment in bytes, without padding.";
        8 lun: U64, "The logical unit number.";
        16 task_tag: U32, "The initiator task tag.";
        20 specific: U32, "Four bytes whose meaning depends on the opcode.";
        24 cmd_sn: U32, "The command's sequence number (CmdSN).";
        28 exp_stat_sn: U32, "The next status number that the initiator expects (ExpStatSN).";
        32 rest: [u8; 16], "16 bytes whose meaning depends on the opcode.";
    }
}

pdu! {
    /// SCSI Command (RFC 7143, 11.3).
    ScsiCommand {
        0 opcode: u8, "The opcode and the immediate bit.";
        1 flags: u8, "The final, read and write bits, and the task attribute.";
        2 reserved: [u8; 2], "Reserved.";
        4 ahs_words: u8, "The length of the additional header segments, in four-byte words.";
        5 data_length: [u8; 3], "The length of the immediate data in bytes.";
        8 lun: U64, "The logical unit number.";
        16 task_tag: U32, "The initiator task tag.";
        20 expected_bytes: U32, "The expected data transfer length in bytes.";
        24 cmd_sn: U32, "The command's sequence number (CmdSN).";
        28 exp_stat_sn: U32, "The next status number that the initiator expects (ExpStatSN).";
        32 cdb: [u8; 16], "The SCSI command descriptor block.";
    }
}

pdu! {
    /// SCSI Response (RFC 7143, 11.4).
    ScsiResponse {
        0 opcode: u8, "The opcode, 0x21.";
        1 flags: u8, "The final bit, and the residual overflow or underflow bit.";
        2 response: u8, "0: the target completed the command.";
        3 status: u8, "The SCSI status.";
        4 ahs_words: u8, "0: no additional header segments.";
        5 data_length: [u8; 3], "The length of the sense data and its length field, in bytes.";
        8 reserved: U64, "Reserved.";
        16 task_tag: U32, "The initiator task tag.";
        20 snack_tag: U32, "Reserved.";
        24 stat_sn: U32, "The status sequence number (StatSN).";
        28 exp_cmd_sn: U32, "The next command number that the target expects (ExpCmdSN).";
        32 max_cmd_sn: U32, "The highest command number that the target accepts (MaxCmdSN).";
        36 exp_data_sn: U32, "The number of R2T PDUs that the target sent for the command.";
        40 bidi_residual: U32, "Reserved.";
        44 residual: U32, "The residual byte count.";
    }
}

pdu! {
    /// Task Management Function Request (RFC 7143, 11.5).
    TaskRequest {
        0 opcode: u8, "The opcode and the immediate bit.";
        1 function: u8, "The function and the final bit.";
        2 reserved: [u8; 2], "Reserved.";
        4 ahs_words: u8, "0: no additional header segments.";
        5 data_length: [u8; 3], "0: no data segment.";
        8 lun: U64, "The logical unit number.";
        16 task_tag: U32, "The initiator task tag of this request.";
        20 referenced_tag: U32, "The initiator task tag of the task to abort.";
        24 cmd_sn: U32, "The command's sequence number (CmdSN).";
        28 exp_stat_sn: U32, "The next status number that the initiator expects (ExpStatSN).";
        32 ref_cmd_sn: U32, "The command sequence number of the task to abort.";
        36 exp_data_sn: U32, "For task reassignment, which the target does not support.";
        40 reserved2: U64, "Reserved.";
    }
}

pdu! {
    /// The common layout of task management, logout and text responses, NOP-In and reject (RFC
    /// 7143, 11.6, 11.15, 11.11, 11.19, 11.17).
    Response {
        0 opcode: u8, "The opcode.";
        1 flags: u8, "The final bit.";
        2 code: u8, "The outcome, or the reason of a reject.";
        3 reserved: u8, "Reserved.";
        4 ahs_words: u8, "0: no additional header segments.";
        5 data_length: [u8; 3], "The length of the data segment in bytes, without padding.";
        8 lun: U64, "NOP-In and Text: the logical unit number.";
        16 task_tag: U32, "The initiator task tag.";
        20 target_tag: U32, "The target transfer tag; all ones for none.";
        24 stat_sn: U32, "The status sequence number (StatSN).";
        28 exp_cmd_sn: U32, "The next command number that the target expects (ExpCmdSN).";
        32 max_cmd_sn: U32, "The highest command number that the target accepts (MaxCmdSN).";
        36 data_sn: U32, "Reject of a SNACK: the next DataSN or R2TSN.";
        40 time2wait: U16, "Logout: the seconds that the initiator waits before it reconnects.";
        42 time2retain: U16, "Logout: the seconds for which the target keeps the tasks.";
        44 reserved2: U32, "Reserved.";
    }
}

pdu! {
    /// SCSI Data-Out (RFC 7143, 11.7).
    DataOut {
        0 opcode: u8, "The opcode, 0x05.";
        1 flags: u8, "The final bit.";
        2 reserved: [u8; 2], "Reserved.";
        4 ahs_words: u8, "0: no additional header segments.";
        5 data_length: [u8; 3], "The length of the data segment in bytes, without padding.";
        8 lun: U64, "The logical unit number, if the PDU has a target transfer tag.";
        16 task_tag: U32, "The initiator task tag.";
        20 target_tag: U32, "The R2T's transfer tag; all ones for unsolicited data.";
        24 reserved2: U32, "Reserved.";
        28 exp_stat_sn: U32, "The next status number that the initiator expects (ExpStatSN).";
        32 reserved3: U32, "Reserved.";
        36 data_sn: U32, "The number of this PDU within its data sequence.";
        40 offset: U32, "The offset of this data in the command's data, in bytes.";
        44 reserved4: U32, "Reserved.";
    }
}

pdu! {
    /// SCSI Data-In (RFC 7143, 11.7).
    DataIn {
        0 opcode: u8, "The opcode, 0x25.";
        1 flags: u8, "The final, residual and status bits.";
        2 reserved: u8, "Reserved.";
        3 status: u8, "The SCSI status; valid if the status bit is set.";
        4 ahs_words: u8, "0: no additional header segments.";
        5 data_length: [u8; 3], "The length of the data segment in bytes, without padding.";
        8 lun: U64, "Reserved, because the target requests no acknowledgement.";
        16 task_tag: U32, "The initiator task tag.";
        20 target_tag: U32, "All ones: the target requests no acknowledgement.";
        24 stat_sn: U32, "The status sequence number (StatSN); valid if the status bit is set.";
        28 exp_cmd_sn: U32, "The next command number that the target expects (ExpCmdSN).";
        32 max_cmd_sn: U32, "The highest command number that the target accepts (MaxCmdSN).";
        36 data_sn: U32, "The number of this PDU within its command.";
        40 offset: U32, "The offset of this data in the command's data, in bytes.";
        44 residual: U32, "The residual byte count; valid if the status bit is set.";
    }
}

pdu! {
    /// Ready To Transfer (RFC 7143, 11.8).
    R2t {
        0 opcode: u8, "The opcode, 0x31.";
        1 flags: u8, "The final bit.";
        2 reserved: [u8; 2], "Reserved.";
        4 ahs_words: u8, "0: no additional header segments.";
        5 data_length: [u8; 3], "0: no data segment.";
        8 lun: U64, "The logical unit number.";
        16 task_tag: U32, "The initiator task tag.";
        20 target_tag: U32, "The target transfer tag.";
        24 stat_sn: U32, "The next status sequence number; an R2T does not consume it.";
        28 exp_cmd_sn: U32, "The next command number that the target expects (ExpCmdSN).";
        32 max_cmd_sn: U32, "The highest command number that the target accepts (MaxCmdSN).";
        36 r2t_sn: U32, "The number of this PDU within its command.";
        40 offset: U32, "The offset of the requested data in the command's data, in bytes.";
        44 desired_bytes: U32, "The length of the requested data in bytes.";
    }
}

pdu! {
    /// Asynchronous Message (RFC 7143, 11.9).
    AsyncMessage {
        0 opcode: u8, "The opcode, 0x32.";
        1 flags: u8, "The final bit.";
        2 reserved: [u8; 2], "Reserved.";
        4 ahs_words: u8, "0: no additional header segments.";
        5 data_length: [u8; 3], "0: no data segment.";
        8 lun: U64, "Reserved for the events that this target sends.";
        16 task_tag: U32, "All ones: the message belongs to no task.";
        20 reserved2: U32, "Reserved.";
        24 stat_sn: U32, "The status sequence number (StatSN).";
        28 exp_cmd_sn: U32, "The next command number that the target expects (ExpCmdSN).";
        32 max_cmd_sn: U32, "The highest command number that the target accepts (MaxCmdSN).";
        36 event: u8, "The event code.";
        37 vendor_code: u8, "0: no vendor code.";
        38 parameter1: U16, "Reserved, or the connection that the event concerns.";
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
        0 opcode: u8, "The opcode, 0x43: a login is always immediate.";
        1 flags: u8, "The transit and continue bits, the current stage and the next stage.";
        2 version_max: u8, "The highest supported version.";
        3 version_min: u8, "The lowest supported version.";
        4 ahs_words: u8, "0: no additional header segments.";
        5 data_length: [u8; 3], "The length of the text keys in bytes, without padding.";
        8 isid: [u8; 6], "The initiator's part of the session identifier (ISID).";
        14 tsih: U16, "The target's part (TSIH) of the session to join; 0 for a new session.";
        16 task_tag: U32, "The initiator task tag of the login.";
        20 cid: U16, "The connection identifier within the session (CID).";
        22 reserved: U16, "Reserved.";
        24 cmd_sn: U32, "The sequence number of the first command (CmdSN).";
        28 exp_stat_sn: U32, "The next status number that the initiator expects (ExpStatSN).";
        32 reserved2: [U64; 2], "Reserved.";
    }
}

pdu! {
    /// Login Response (RFC 7143, 11.13).
    LoginResponse {
        0 opcode: u8, "The opcode, 0x23.";
        1 flags: u8, "The transit and continue bits, the current stage and the next stage.";
        2 version_max: u8, "The highest supported version.";
        3 version_active: u8, "The version in use.";
        4 ahs_words: u8, "0: no additional header segments.";
        5 data_length: [u8; 3], "The length of the text keys in bytes, without padding.";
        8 isid: [u8; 6], "The ISID of the request.";
        14 tsih: U16, "The target's part of the session identifier (TSIH).";
        16 task_tag: U32, "The initiator task tag of the login.";
        20 reserved: U32, "Reserved.";
        24 stat_sn: U32, "The status sequence number (StatSN).";
        28 exp_cmd_sn: U32, "The next command number that the target expects (ExpCmdSN).";
        32 max_cmd_sn: U32, "The highest command number that the target accepts (MaxCmdSN).";
        36 status: U16, "The status class and the status detail.";
        38 reserved2: U16, "Reserved.";
        40 reserved3: U64, "Reserved.";
    }
}

pdu! {
    /// Logout Request (RFC 7143, 11.14).
    LogoutRequest {
        0 opcode: u8, "The opcode and the immediate bit.";
        1 reason: u8, "The reason and the final bit.";
        2 reserved: [u8; 2], "Reserved.";
        4 ahs_words: u8, "0: no additional header segments.";
        5 data_length: [u8; 3], "0: no data segment.";
        8 reserved2: U64, "Reserved.";
        16 task_tag: U32, "The initiator task tag.";
        20 cid: U16, "The identifier of the connection to close (CID).";
        22 reserved3: U16, "Reserved.";
        24 cmd_sn: U32, "The command's sequence number (CmdSN).";
        28 exp_stat_sn: U32, "The next status number that the initiator expects (ExpStatSN).";
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

    /// The test sets all bytes to nonzero values first, so that it notices a field that was not
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
