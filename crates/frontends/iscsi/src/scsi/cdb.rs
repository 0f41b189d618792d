//! Parses command descriptor blocks (SBC-3 and SPC-4).

use super::sense::Sense;

/// A command descriptor block. Zeroes pad a shorter block to 16 bytes.
pub(crate) type Cdb = [u8; 16];

/// The blocks that a command reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    pub(crate) lba: u64,
    pub(crate) blocks: u32,
}

/// The data with which a VERIFY command compares the blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Compare {
    /// Nothing: the unit only checks that it can read the blocks.
    Nothing,
    /// The command's data.
    Data,
    /// One block of data, with which the unit compares each block.
    OneBlock,
}

/// An initiator's command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    TestUnitReady,
    RequestSense {
        allocation: u32,
    },
    /// `page` is a page of vital product data; `None` requests the standard data.
    Inquiry {
        page: Option<u8>,
        allocation: u32,
    },
    ReportLuns {
        select: u8,
        allocation: u32,
    },
    ReadCapacity10,
    ReadCapacity16 {
        allocation: u32,
    },
    ModeSense {
        long: bool,
        descriptors: bool,
        control: u8,
        page: u8,
        subpage: u8,
        allocation: u32,
    },
    ModeSelect {
        long: bool,
        length: u32,
    },
    /// A command that has no effect: for example, this unit cannot be started or stopped.
    Nothing,
    ReportOpcodes {
        timeouts: bool,
        options: u8,
        opcode: u8,
        action: u16,
        allocation: u32,
    },
    ReservationIn {
        action: u8,
        allocation: u32,
    },
    ReservationOut {
        action: u8,
        scope: u8,
        kind: u8,
        length: u32,
    },
    Read(Extent),
    Write {
        extent: Extent,
        fua: bool,
    },
    Verify {
        extent: Extent,
        compare: Compare,
    },
    WriteVerify {
        extent: Extent,
        compare: Compare,
    },
    /// Writes the second half of the data if the stored blocks equal the first half.
    CompareWrite {
        extent: Extent,
        fua: bool,
    },
    Flush(Extent),
    WriteSame {
        extent: Extent,
        unmap: bool,
        has_data: bool,
    },
    Unmap {
        length: u32,
    },
}

pub(crate) mod opcode {
    pub(crate) const TEST_UNIT_READY: u8 = 0x00;
    pub(crate) const REQUEST_SENSE: u8 = 0x03;
    pub(crate) const READ_6: u8 = 0x08;
    pub(crate) const WRITE_6: u8 = 0x0a;
    pub(crate) const INQUIRY: u8 = 0x12;
    pub(crate) const MODE_SELECT_6: u8 = 0x15;
    pub(crate) const MODE_SENSE_6: u8 = 0x1a;
    pub(crate) const START_STOP: u8 = 0x1b;
    pub(crate) const PREVENT_REMOVAL: u8 = 0x1e;
    pub(crate) const READ_CAPACITY_10: u8 = 0x25;
    pub(crate) const READ_10: u8 = 0x28;
    pub(crate) const WRITE_10: u8 = 0x2a;
    pub(crate) const WRITE_VERIFY_10: u8 = 0x2e;
    pub(crate) const VERIFY_10: u8 = 0x2f;
    pub(crate) const SYNCHRONIZE_10: u8 = 0x35;
    pub(crate) const WRITE_SAME_10: u8 = 0x41;
    pub(crate) const UNMAP: u8 = 0x42;
    pub(crate) const MODE_SELECT_10: u8 = 0x55;
    pub(crate) const MODE_SENSE_10: u8 = 0x5a;
    pub(crate) const PERSISTENT_IN: u8 = 0x5e;
    pub(crate) const PERSISTENT_OUT: u8 = 0x5f;
    pub(crate) const READ_16: u8 = 0x88;
    pub(crate) const COMPARE_AND_WRITE: u8 = 0x89;
    pub(crate) const WRITE_16: u8 = 0x8a;
    pub(crate) const WRITE_VERIFY_16: u8 = 0x8e;
    pub(crate) const VERIFY_16: u8 = 0x8f;
    pub(crate) const SYNCHRONIZE_16: u8 = 0x91;
    pub(crate) const WRITE_SAME_16: u8 = 0x93;
    /// The service action selects one of several commands with this opcode.
    pub(crate) const SERVICE_IN_16: u8 = 0x9e;
    pub(crate) const REPORT_LUNS: u8 = 0xa0;
    /// The service action selects one of several commands with this opcode.
    pub(crate) const MAINTENANCE_IN: u8 = 0xa3;
    pub(crate) const READ_12: u8 = 0xa8;
    pub(crate) const WRITE_12: u8 = 0xaa;
    pub(crate) const WRITE_VERIFY_12: u8 = 0xae;
    pub(crate) const VERIFY_12: u8 = 0xaf;
}

pub(crate) mod action {
    pub(crate) const READ_CAPACITY_16: u8 = 0x10;
    pub(crate) const REPORT_OPCODES: u8 = 0x0c;
}

pub(super) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

pub(super) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from(be16(bytes, at)) << 16 | u32::from(be16(bytes, at + 2))
}

pub(super) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4))
}

/// The length of a command block in bytes, which the opcode's group determines. The PDU's field for
/// it always has 16 bytes.
pub(crate) fn length(opcode: u8) -> usize {
    match opcode >> 5 {
        0 => 6,
        1 | 2 => 10,
        5 => 12,
        _ => 16,
    }
}

/// The blocks that a command addresses. The positions of these fields depend only on the command's
/// length.
fn extent(cdb: &Cdb) -> Extent {
    match length(cdb[0]) {
        6 => Extent {
            lba: u64::from(be32(cdb, 0) & 0x1f_ffff),
            blocks: if cdb[4] == 0 { 256 } else { cdb[4].into() },
        },
        10 => Extent { lba: be32(cdb, 2).into(), blocks: be16(cdb, 7).into() },
        12 => Extent { lba: be32(cdb, 2).into(), blocks: be32(cdb, 6) },
        _ => Extent { lba: be64(cdb, 2), blocks: be32(cdb, 10) },
    }
}

impl Command {
    /// Parses a command descriptor block. Refuses fields that request unsupported features
    /// (protection information, linked commands). Ignores reserved fields, because old initiators
    /// use some of them.
    pub(crate) fn parse(cdb: &Cdb) -> Result<Command, Sense> {
        const NACA: u8 = 4;
        let control = cdb[length(cdb[0]) - 1];
        if cdb[0] == opcode::READ_6 || cdb[0] == opcode::WRITE_6 {
            // Ignore the control byte of these commands, in which old initiators set a flag.
        } else if control & NACA != 0 {
            return Err(Sense::in_cdb(length(cdb[0]) as u16 - 1));
        }
        match cdb[0] {
            opcode::TEST_UNIT_READY => Ok(Command::TestUnitReady),
            opcode::REQUEST_SENSE if cdb[1] & 1 != 0 => Err(Sense::in_cdb(1)),
            opcode::REQUEST_SENSE => Ok(Command::RequestSense { allocation: cdb[4].into() }),
            opcode::INQUIRY => Self::parse_inquiry(cdb),
            opcode::REPORT_LUNS => {
                Ok(Command::ReportLuns { select: cdb[2], allocation: be32(cdb, 6) })
            }
            opcode::READ_CAPACITY_10 => Ok(Command::ReadCapacity10),
            opcode::SERVICE_IN_16 if cdb[1] & 0x1f == action::READ_CAPACITY_16 => {
                Ok(Command::ReadCapacity16 { allocation: be32(cdb, 10) })
            }
            opcode::MAINTENANCE_IN if cdb[1] & 0x1f == action::REPORT_OPCODES => {
                Ok(Command::ReportOpcodes {
                    timeouts: cdb[2] & 0x80 != 0,
                    options: cdb[2] & 7,
                    opcode: cdb[3],
                    action: be16(cdb, 4),
                    allocation: be32(cdb, 6),
                })
            }
            opcode::SERVICE_IN_16 | opcode::MAINTENANCE_IN => Err(Sense::in_cdb(1)),
            opcode::MODE_SENSE_6 | opcode::MODE_SENSE_10 => Ok(Self::parse_mode_sense(cdb)),
            opcode::MODE_SELECT_6 | opcode::MODE_SELECT_10 => Self::parse_mode_select(cdb),
            // The unit has no medium to load or eject.
            opcode::START_STOP if cdb[4] & 2 != 0 => Err(Sense::in_cdb(4)),
            opcode::START_STOP => Ok(Command::Nothing),
            opcode::PREVENT_REMOVAL if cdb[4] & 3 > 1 => Err(Sense::in_cdb(4)),
            opcode::PREVENT_REMOVAL => Ok(Command::Nothing),
            opcode::PERSISTENT_IN => Ok(Command::ReservationIn {
                action: cdb[1] & 0x1f,
                allocation: be16(cdb, 7).into(),
            }),
            opcode::PERSISTENT_OUT => Ok(Command::ReservationOut {
                action: cdb[1] & 0x1f,
                scope: cdb[2] >> 4,
                kind: cdb[2] & 0xf,
                length: be32(cdb, 5),
            }),
            _ => Self::parse_medium(cdb),
        }
    }

    /// Parses the commands that access blocks.
    fn parse_medium(cdb: &Cdb) -> Result<Command, Sense> {
        let extent = extent(cdb);
        let fua = cdb[1] & 8 != 0;
        let unprotected = || if cdb[1] >> 5 == 0 { Ok(()) } else { Err(Sense::in_cdb(1)) };
        match cdb[0] {
            opcode::READ_6 => Ok(Command::Read(extent)),
            opcode::WRITE_6 => Ok(Command::Write { extent, fua: false }),
            opcode::READ_10 | opcode::READ_12 | opcode::READ_16 => {
                unprotected()?;
                Ok(Command::Read(extent))
            }
            opcode::WRITE_10 | opcode::WRITE_12 | opcode::WRITE_16 => {
                unprotected()?;
                Ok(Command::Write { extent, fua })
            }
            opcode::COMPARE_AND_WRITE => {
                unprotected()?;
                // The block count of this command has only one byte.
                let extent = Extent { blocks: cdb[13].into(), ..extent };
                Ok(Command::CompareWrite { extent, fua })
            }
            opcode::VERIFY_10 | opcode::VERIFY_12 | opcode::VERIFY_16 => {
                unprotected()?;
                let compare = match cdb[1] >> 1 & 3 {
                    0 => Compare::Nothing,
                    1 => Compare::Data,
                    3 => Compare::OneBlock,
                    _ => return Err(Sense::in_cdb(1)),
                };
                Ok(Command::Verify { extent, compare })
            }
            opcode::WRITE_VERIFY_10 | opcode::WRITE_VERIFY_12 | opcode::WRITE_VERIFY_16 => {
                unprotected()?;
                let compare = match cdb[1] >> 1 & 3 {
                    0 => Compare::Nothing,
                    1 => Compare::Data,
                    _ => return Err(Sense::in_cdb(1)),
                };
                Ok(Command::WriteVerify { extent, compare })
            }
            opcode::SYNCHRONIZE_10 | opcode::SYNCHRONIZE_16 => Ok(Command::Flush(extent)),
            opcode::WRITE_SAME_10 | opcode::WRITE_SAME_16 => {
                const ANCHOR: u8 = 0x10;
                const LOGICAL_OR_PHYSICAL: u8 = 6;
                unprotected()?;
                if cdb[1] & (ANCHOR | LOGICAL_OR_PHYSICAL) != 0 {
                    return Err(Sense::in_cdb(1));
                }
                let unmap = fua;
                let has_data = cdb[0] == opcode::WRITE_SAME_10 || cdb[1] & 1 == 0;
                Ok(Command::WriteSame { extent, unmap, has_data })
            }
            // The unit does not support anchored blocks.
            opcode::UNMAP if cdb[1] & 1 != 0 => Err(Sense::in_cdb(1)),
            opcode::UNMAP => Ok(Command::Unmap { length: be16(cdb, 7).into() }),
            _ => Err(Sense::INVALID_OPCODE),
        }
    }

    fn parse_inquiry(cdb: &Cdb) -> Result<Command, Sense> {
        let page = (cdb[1] & 1 != 0).then_some(cdb[2]);
        if page.is_none() && cdb[2] != 0 {
            return Err(Sense::in_cdb(2));
        }
        Ok(Command::Inquiry { page, allocation: be16(cdb, 3).into() })
    }

    fn parse_mode_sense(cdb: &Cdb) -> Command {
        let long = cdb[0] == opcode::MODE_SENSE_10;
        Command::ModeSense {
            long,
            descriptors: cdb[1] & 8 == 0,
            control: cdb[2] >> 6,
            page: cdb[2] & 0x3f,
            subpage: cdb[3],
            allocation: if long { be16(cdb, 7).into() } else { cdb[4].into() },
        }
    }

    fn parse_mode_select(cdb: &Cdb) -> Result<Command, Sense> {
        let long = cdb[0] == opcode::MODE_SELECT_10;
        // The unit cannot save pages, and the page format bit must be set.
        const SAVE_PAGES: u8 = 1;
        const PAGE_FORMAT: u8 = 0x10;
        if cdb[1] & SAVE_PAGES != 0 || cdb[1] & PAGE_FORMAT == 0 {
            return Err(Sense::in_cdb(1));
        }
        let length = if long { be16(cdb, 7).into() } else { cdb[4].into() };
        Ok(Command::ModeSelect { long, length })
    }

    /// The blocks that the command addresses. `None` for a command without blocks.
    pub(crate) fn extent(&self) -> Option<Extent> {
        match *self {
            Command::Read(extent) | Command::Flush(extent) => Some(extent),
            Command::Write { extent, .. }
            | Command::Verify { extent, .. }
            | Command::WriteVerify { extent, .. }
            | Command::CompareWrite { extent, .. }
            | Command::WriteSame { extent, .. } => Some(extent),
            _ => None,
        }
    }

    /// The number of bytes that the initiator must send.
    pub(crate) fn wants_bytes(&self, block_size: u32) -> u64 {
        let blocks = |blocks: u32| u64::from(blocks) * u64::from(block_size);
        match *self {
            Command::Write { extent, .. }
            | Command::WriteVerify { extent, .. }
            | Command::Verify { extent, compare: Compare::Data } => blocks(extent.blocks),
            Command::Verify { extent, compare: Compare::OneBlock } => blocks(extent.blocks.min(1)),
            Command::CompareWrite { extent, .. } => 2 * blocks(extent.blocks),
            Command::WriteSame { has_data, .. } => blocks(has_data.into()),
            Command::ModeSelect { length, .. }
            | Command::ReservationOut { length, .. }
            | Command::Unmap { length } => length.into(),
            _ => 0,
        }
    }

    /// True if the command may change blocks, so that a read-only unit refuses it.
    pub(crate) fn writes(&self) -> bool {
        matches!(
            self,
            Command::Write { .. }
                | Command::WriteVerify { .. }
                | Command::CompareWrite { .. }
                | Command::WriteSame { .. }
                | Command::Unmap { .. }
        )
    }

    /// True if the unit executes the command despite a pending unit attention (SAM-5, 5.14).
    pub(crate) fn ignores_attention(&self) -> bool {
        matches!(
            self,
            Command::Inquiry { .. } | Command::ReportLuns { .. } | Command::RequestSense { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cdb(bytes: &[u8]) -> Cdb {
        let mut cdb = [0; 16];
        cdb[..bytes.len()].copy_from_slice(bytes);
        cdb
    }

    fn parse(bytes: &[u8]) -> Result<Command, Sense> {
        Command::parse(&cdb(bytes))
    }

    #[test]
    fn extents_of_every_command_length_are_parsed() {
        let read = |bytes: &[u8]| match parse(bytes) {
            Ok(Command::Read(extent)) => (extent.lba, extent.blocks),
            other => panic!("{other:?}"),
        };
        assert_eq!(read(&[0x08, 0xff, 1, 2, 0]), (0x1f_0102, 256));
        assert_eq!(read(&[0x08, 0, 0, 7, 3]), (7, 3));
        assert_eq!(read(&[0x28, 0, 1, 2, 3, 4, 0, 5, 6]), (0x0102_0304, 0x0506));
        assert_eq!(read(&[0xa8, 0, 1, 2, 3, 4, 5, 6, 7, 8]), (0x0102_0304, 0x0506_0708));
        let long = [0x88, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        assert_eq!(read(&long), (0x0102_0304_0506_0708, 0x090a_0b0c));
    }

    #[test]
    fn command_flags_are_parsed() {
        let extent = Extent { lba: 0, blocks: 0 };
        assert_eq!(parse(&[0x2a, 0x18]), Ok(Command::Write { extent, fua: true }));
        assert_eq!(parse(&[0x2a, 0x20]), Err(Sense::in_cdb(1)), "protection");
        let compare = Compare::OneBlock;
        assert_eq!(parse(&[0x2f, 6]), Ok(Command::Verify { extent, compare }));
        assert_eq!(parse(&[0x2f, 4]), Err(Sense::in_cdb(1)));
        assert_eq!(parse(&[0x2e, 6]), Err(Sense::in_cdb(1)));
        let fill = |unmap, has_data| Ok(Command::WriteSame { extent, unmap, has_data });
        assert_eq!(parse(&[0x93, 9]), fill(true, false));
        assert_eq!(parse(&[0x41, 8]), fill(true, true));
        assert_eq!(parse(&[0x41, 0x10]), Err(Sense::in_cdb(1)), "anchored");
        assert_eq!(parse(&[0x28, 0, 0, 0, 0, 0, 0, 0, 0, 4]), Err(Sense::in_cdb(9)), "linked");
        assert_eq!(parse(&[0x12, 0, 0x80]), Err(Sense::in_cdb(2)));
        assert_eq!(parse(&[0x9e, 0x12]), Err(Sense::in_cdb(1)));
        assert_eq!(parse(&[0xc0]), Err(Sense::INVALID_OPCODE));
        let mut compare_write = [0x89, 8, 0, 0, 0, 0, 0, 0, 0, 5, 9, 9, 9, 3];
        let extent = Extent { lba: 5, blocks: 3 };
        assert_eq!(parse(&compare_write), Ok(Command::CompareWrite { extent, fua: true }));
        compare_write[1] = 0x20;
        assert_eq!(parse(&compare_write), Err(Sense::in_cdb(1)), "protection");
    }

    #[test]
    fn commands_report_the_data_that_they_need() {
        let wants = |bytes: &[u8]| parse(bytes).expect("a command").wants_bytes(512);
        assert_eq!(wants(&[0x8a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255]), 0xffff_ffff << 9);
        assert_eq!(wants(&[0x2f, 2, 0, 0, 0, 0, 0, 0, 3]), 1536);
        assert_eq!(wants(&[0x2f, 6, 0, 0, 0, 0, 0, 0, 3]), 512);
        assert_eq!(wants(&[0x93, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]), 0);
        assert_eq!(wants(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24]), 24);
        assert_eq!(wants(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1]), 0);
        assert_eq!(wants(&[0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3]), 3072);
    }
}
