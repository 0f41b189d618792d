//! Sense data, which reports why a command failed, in fixed format (SPC-4, 4.5.3).

use farblock_block::BlockError;

/// The length of the sense data, in bytes.
pub(crate) const SENSE_BYTES: usize = 18;

/// SCSI status codes (SAM-5, 5.3).
pub(crate) mod status {
    pub(crate) const GOOD: u8 = 0x00;
    pub(crate) const CHECK_CONDITION: u8 = 0x02;
    pub(crate) const BUSY: u8 = 0x08;
    pub(crate) const RESERVATION_CONFLICT: u8 = 0x18;
}

/// A sense key with its additional sense code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sense {
    key: u8,
    code: u16,
    /// The offset of the invalid byte: in the command block if the flag is true, otherwise in the
    /// parameter list.
    field: Option<(bool, u16)>,
    /// The offset of the data byte at which the command failed.
    offset: Option<u32>,
}

/// The reason why a command failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// The command ends with CHECK CONDITION and this sense data.
    Check(Sense),
    /// The target lacks resources. The initiator may retry.
    Busy,
    /// Another initiator has reserved the unit.
    Conflict,
}

impl From<Sense> for Failure {
    fn from(sense: Sense) -> Failure {
        Failure::Check(sense)
    }
}

const fn sense(key: u8, code: u16) -> Sense {
    Sense { key, code, field: None, offset: None }
}

impl Sense {
    pub(crate) const NONE: Sense = sense(0, 0x0000);
    pub(crate) const BECOMING_READY: Sense = sense(2, 0x0401);
    pub(crate) const NO_MEDIUM: Sense = sense(2, 0x3a00);
    pub(crate) const WRITE_ERROR: Sense = sense(3, 0x0c00);
    pub(crate) const READ_ERROR: Sense = sense(3, 0x1100);
    pub(crate) const PARAMETER_LENGTH: Sense = sense(5, 0x1a00);
    pub(crate) const INVALID_OPCODE: Sense = sense(5, 0x2000);
    pub(crate) const ACCESS_DENIED: Sense = sense(5, 0x2002);
    pub(crate) const OUT_OF_RANGE: Sense = sense(5, 0x2100);
    pub(crate) const INVALID_FIELD: Sense = sense(5, 0x2400);
    pub(crate) const NO_SUCH_UNIT: Sense = sense(5, 0x2500);
    pub(crate) const INVALID_PARAMETER: Sense = sense(5, 0x2600);
    pub(crate) const INVALID_RELEASE: Sense = sense(5, 0x2604);
    pub(crate) const SAVING: Sense = sense(5, 0x3900);
    pub(crate) const NO_REGISTRATION_RESOURCES: Sense = sense(5, 0x5504);
    pub(crate) const POWER_ON: Sense = sense(6, 0x2900);
    pub(crate) const UNIT_RESET: Sense = sense(6, 0x2903);
    pub(crate) const CAPACITY_CHANGED: Sense = sense(6, 0x2a09);
    pub(crate) const RESERVATIONS_PREEMPTED: Sense = sense(6, 0x2a03);
    pub(crate) const RESERVATIONS_RELEASED: Sense = sense(6, 0x2a04);
    pub(crate) const REGISTRATIONS_PREEMPTED: Sense = sense(6, 0x2a05);
    pub(crate) const WRITE_PROTECTED: Sense = sense(7, 0x2700);
    pub(crate) const NO_SPACE: Sense = sense(7, 0x2707);
    pub(crate) const ABORTED: Sense = sense(0xb, 0x0000);
    pub(crate) const DATA_PHASE: Sense = sense(0xb, 0x4b00);
    pub(crate) const MISCOMPARE: Sense = sense(0xe, 0x1d00);

    /// Sense data for an invalid field at this byte of the command.
    pub(crate) const fn in_cdb(byte: u16) -> Sense {
        Sense { field: Some((true, byte)), ..Sense::INVALID_FIELD }
    }

    /// Sense data for an invalid field at this byte of the parameters.
    pub(crate) const fn in_parameters(byte: u16) -> Sense {
        Sense { field: Some((false, byte)), ..Sense::INVALID_PARAMETER }
    }

    /// Sense data for a comparison that failed at this byte of the command's data.
    pub(crate) const fn miscompare(offset: u32) -> Sense {
        Sense { offset: Some(offset), ..Sense::MISCOMPARE }
    }

    /// Encodes the sense data for the wire.
    pub(crate) fn bytes(self) -> [u8; SENSE_BYTES] {
        let mut bytes = [0; SENSE_BYTES];
        bytes[0] = 0x70; // current error, fixed format
        bytes[2] = self.key;
        if let Some(offset) = self.offset {
            bytes[0] |= 0x80; // the information field is valid
            bytes[3..7].copy_from_slice(&offset.to_be_bytes());
        }
        bytes[7] = SENSE_BYTES as u8 - 8;
        bytes[12..14].copy_from_slice(&self.code.to_be_bytes());
        if let Some((in_cdb, byte)) = self.field {
            bytes[15] = 0x80 | u8::from(in_cdb) << 6;
            bytes[16..18].copy_from_slice(&byte.to_be_bytes());
        }
        bytes
    }
}

impl From<BlockError> for Failure {
    fn from(error: BlockError) -> Failure {
        Failure::Check(match error {
            BlockError::OutOfRange => Sense::OUT_OF_RANGE,
            BlockError::ReadOnly => Sense::WRITE_PROTECTED,
            BlockError::NoSpace => Sense::NO_SPACE,
            BlockError::ReadFailed => Sense::READ_ERROR,
            BlockError::WriteFailed => Sense::WRITE_ERROR,
            BlockError::Conflict => return Failure::Conflict,
            BlockError::Denied => Sense::ACCESS_DENIED,
            BlockError::TooLarge | BlockError::AtomicExceeded | BlockError::Unsupported => {
                Sense::INVALID_FIELD
            }
            BlockError::NotReady | BlockError::Disconnected => Sense::BECOMING_READY,
            BlockError::NoResources => return Failure::Busy,
            // Aborted operations, and errors that later versions of `BlockError` may add.
            _ => Sense::ABORTED,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sense_data_have_the_fixed_format() {
        let bytes = Sense::in_cdb(0x102).bytes();
        let expected = [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xc0, 0x01, 0x02];
        assert_eq!(bytes, expected);
        assert_eq!(Sense::miscompare(0x102).bytes()[..8], [0xf0, 0, 14, 0, 0, 1, 2, 10]);
        assert_eq!(Sense::in_parameters(3).bytes()[12..], [0x26, 0, 0, 0x80, 0, 3]);
        assert_eq!(
            Sense::NO_SPACE.bytes()[2..],
            [7, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x27, 7, 0, 0, 0, 0]
        );
    }

    #[test]
    fn namespace_errors_become_sense_codes() {
        let said = |error| match Failure::from(error) {
            Failure::Check(sense) => (sense.key, sense.code),
            other => panic!("{other:?}"),
        };
        assert_eq!(said(BlockError::OutOfRange), (5, 0x2100));
        assert_eq!(said(BlockError::ReadOnly), (7, 0x2700));
        assert_eq!(said(BlockError::NoSpace), (7, 0x2707));
        assert_eq!(said(BlockError::ReadFailed), (3, 0x1100));
        assert_eq!(said(BlockError::WriteFailed), (3, 0x0c00));
        assert_eq!(said(BlockError::Disconnected), (2, 0x0401));
        assert_eq!(said(BlockError::NotReady), (2, 0x0401));
        assert_eq!(said(BlockError::Denied), (5, 0x2002));
        assert_eq!(said(BlockError::AtomicExceeded), (5, 0x2400));
        assert_eq!(said(BlockError::Aborted), (0xb, 0));
        assert_eq!(Failure::from(BlockError::Conflict), Failure::Conflict);
        assert_eq!(Failure::from(BlockError::NoResources), Failure::Busy);
    }
}
