//! The target's logical unit, which all sessions share: its properties, the checks of commands, and
//! the answers that do not need the namespace.

use crate::limits;
use crate::login::Initiator;
use crate::scsi::inquiry::{self, Identity};
use crate::scsi::reservation::{Notice, Reservations};
use crate::scsi::{Command, Failure, Sense, mode, opcodes};
use farblock_block::{Command as Access, Geometry};

/// The logical unit of a target.
pub(crate) struct Unit {
    pub(crate) geometry: Geometry,
    pub(crate) identity: Identity,
    pub(crate) reservations: Reservations,
    /// True if the last operation failed because the namespace is disconnected.
    pub(crate) is_lost: bool,
}

/// The unit that a command addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lun {
    /// Unit 0, the only one.
    Zero,
    /// Another unit.
    Other,
}

impl Lun {
    /// Parses a PDU's LUN field. In every encoding of unit 0, all bits except the addressing method
    /// are zero.
    pub(crate) fn parse(lun: u64) -> Lun {
        const METHOD: u64 = 3 << 62;
        if lun & !METHOD == 0 && lun & METHOD != METHOD { Lun::Zero } else { Lun::Other }
    }
}

impl Unit {
    /// Checks whether the unit may execute a command. Does not consider pending unit attentions.
    pub(crate) fn check(&self, who: &Initiator, command: &Command) -> Result<(), Failure> {
        if self.reservations.conflicts(who, command) {
            return Err(Failure::Conflict);
        }
        let geometry = &self.geometry;
        if command.writes() && geometry.read_only {
            return Err(Sense::WRITE_PROTECTED.into());
        }
        if let Some(extent) = command.extent() {
            // Ignore the namespace's limit on one operation: the target splits a longer command.
            let all = Geometry { max_blocks: 0, read_only: false, ..*geometry };
            all.check(Access::Read, extent.lba, extent.blocks.into())?;
            let bytes = u64::from(extent.blocks) * u64::from(geometry.block_size);
            let too_much = match command {
                Command::Flush(_) => false,
                Command::WriteSame { .. } => {
                    extent.blocks == 0 || extent.blocks > limits::MAX_WRITE_SAME_BLOCKS
                }
                Command::CompareWrite { .. } => extent.blocks > inquiry::most_compared(geometry),
                // This also limits a VERIFY with one block of data, which reads all the blocks that
                // it compares.
                _ => bytes > limits::MAX_TRANSFER_BYTES.into(),
            };
            if too_much {
                return Err(Sense::INVALID_FIELD.into());
            }
        }
        match *command {
            // Without deallocation the unit is not thinly provisioned, and has no UNMAP.
            Command::Unmap { .. } if !geometry.deallocate => Err(Sense::INVALID_OPCODE.into()),
            Command::WriteSame { unmap: true, .. } if !geometry.deallocate => {
                Err(Sense::in_cdb(1).into())
            }
            Command::Unmap { length } | Command::ModeSelect { length, .. }
                if length > limits::MAX_PARAMETER_BYTES =>
            {
                Err(Sense::in_cdb(7).into())
            }
            Command::ReservationOut { length, .. } if length > limits::MAX_PARAMETER_BYTES => {
                Err(Sense::in_cdb(5).into())
            }
            _ => Ok(()),
        }
    }

    /// The answer to a command for this unit, before truncation to the allocation length. `None` if
    /// the command needs the namespace.
    pub(crate) fn answer(&self, command: &Command) -> Result<Option<Vec<u8>>, Sense> {
        let geometry = &self.geometry;
        let (data, allocation) = match *command {
            Command::TestUnitReady if !self.is_lost => {
                if geometry.blocks == 0 {
                    return Err(Sense::NO_MEDIUM);
                }
                (Vec::new(), 0)
            }
            Command::Nothing => (Vec::new(), 0),
            Command::Inquiry { page: None, allocation } => (inquiry::standard(), allocation),
            Command::Inquiry { page: Some(page), allocation } => {
                (inquiry::page(page, &self.identity, geometry)?, allocation)
            }
            Command::ReportLuns { select, allocation } => (luns(select, allocation)?, allocation),
            Command::ReadCapacity10 => (inquiry::capacity_10(geometry)?, 8),
            Command::ReadCapacity16 { allocation } => (inquiry::capacity_16(geometry)?, allocation),
            Command::ModeSense { long, descriptors, control, page, subpage, allocation } => {
                let found = mode::sense(geometry, long, descriptors, control, (page, subpage))?;
                (found, allocation)
            }
            Command::ReportOpcodes { timeouts, options, opcode, action, allocation } => {
                let can_unmap = geometry.deallocate;
                (opcodes::report(can_unmap, timeouts, options, opcode, action)?, allocation)
            }
            Command::ReservationIn { action, allocation } => {
                (self.reservations.report(action)?, allocation)
            }
            _ => return Ok(None),
        };
        let mut data = data;
        data.truncate(allocation as usize);
        Ok(Some(data))
    }

    /// Answers a command for a unit that does not exist.
    pub(crate) fn answer_for_nobody(command: &Command) -> Result<Vec<u8>, Sense> {
        let (mut data, allocation) = match *command {
            Command::Inquiry { page: None, allocation } => {
                let mut data = inquiry::standard();
                data[0] = inquiry::NO_UNIT;
                (data, allocation)
            }
            Command::ReportLuns { select, allocation } => (luns(select, allocation)?, allocation),
            Command::RequestSense { allocation } => {
                (Sense::NO_SUCH_UNIT.bytes().to_vec(), allocation)
            }
            _ => return Err(Sense::NO_SUCH_UNIT),
        };
        data.truncate(allocation as usize);
        Ok(data)
    }

    /// Executes MODE SELECT or PERSISTENT RESERVE OUT. Returns the unit attentions for other
    /// initiators.
    pub(crate) fn obey(
        &mut self,
        who: &Initiator,
        command: &Command,
        parameters: &[u8],
    ) -> Result<Vec<Notice>, Failure> {
        match *command {
            Command::ModeSelect { long, .. } => {
                mode::select(&self.geometry, long, parameters)?;
                Ok(Vec::new())
            }
            Command::ReservationOut { action, scope, kind, .. } => {
                self.reservations.change(who, (action, scope, kind), parameters)
            }
            _ => unreachable!("{command:?} needs the medium"),
        }
    }

    /// The first block and the block count of each range in an UNMAP's parameter list.
    pub(crate) fn unmap_ranges(&self, list: &[u8]) -> Result<Vec<(u64, u32)>, Sense> {
        const HEADER: usize = 8;
        const DESCRIPTOR: usize = 16;
        if list.is_empty() {
            return Ok(Vec::new());
        }
        let header = list.get(..HEADER).ok_or(Sense::PARAMETER_LENGTH)?;
        let said = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let bytes = said.min(list.len() - HEADER);
        let descriptors = &list[HEADER..HEADER + bytes / DESCRIPTOR * DESCRIPTOR];
        if descriptors.len() / DESCRIPTOR > limits::MAX_UNMAP_DESCRIPTORS as usize {
            return Err(Sense::in_parameters(2));
        }
        let mut ranges = Vec::new();
        for (index, descriptor) in descriptors.chunks_exact(DESCRIPTOR).enumerate() {
            let lba = u64::from_be_bytes(descriptor[..8].try_into().expect("8 bytes"));
            let blocks = u32::from_be_bytes(descriptor[8..12].try_into().expect("4 bytes"));
            let check = self.geometry.check(Access::Deallocate, lba, blocks.into());
            if check.is_err() {
                tracing::debug!("descriptor {index} of an UNMAP is out of range");
                return Err(Sense::OUT_OF_RANGE);
            }
            if blocks > 0 {
                ranges.push((lba, blocks));
            }
        }
        Ok(ranges)
    }
}

/// Answers REPORT LUNS with unit 0, the only unit. The target has no well-known logical units.
fn luns(select: u8, allocation: u32) -> Result<Vec<u8>, Sense> {
    if allocation < 16 {
        return Err(Sense::in_cdb(6));
    }
    match select {
        0 | 2 => Ok([8_u64 << 32, 0].map(u64::to_be_bytes).concat()),
        1 => Ok(vec![0; 8]),
        _ => Err(Sense::in_cdb(2)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scsi::Extent;

    fn unit() -> Unit {
        Unit {
            geometry: Geometry { deallocate: true, ..Geometry::new(512, 1 << 24) },
            identity: Identity { target: "iqn.x".to_owned(), serial: "1".to_owned() },
            reservations: Reservations::default(),
            is_lost: false,
        }
    }

    #[test]
    fn logical_unit_numbers_are_parsed() {
        assert_eq!(Lun::parse(0), Lun::Zero);
        assert_eq!(Lun::parse(0x4000 << 48), Lun::Zero, "unit 0 with flat addressing");
        assert_eq!(Lun::parse(1 << 48), Lun::Other);
        assert_eq!(Lun::parse(0xc101 << 48), Lun::Other, "a well-known unit is another unit");
    }

    #[test]
    fn ranges_and_transfer_limits_are_checked() {
        let (unit, who) = (unit(), Initiator::default());
        let read = |lba, blocks| unit.check(&who, &Command::Read(Extent { lba, blocks }));
        assert_eq!(read(1 << 24, 0), Ok(()));
        assert_eq!(read((1 << 24) - 1, 2), Err(Sense::OUT_OF_RANGE.into()));
        assert_eq!(read(u64::MAX, 1), Err(Sense::OUT_OF_RANGE.into()));
        let most = limits::MAX_TRANSFER_BYTES / 512;
        assert_eq!(read(0, most), Ok(()));
        assert_eq!(read(0, most + 1), Err(Sense::INVALID_FIELD.into()));
        let fill = |blocks| {
            let extent = Extent { lba: 0, blocks };
            unit.check(&who, &Command::WriteSame { extent, unmap: true, has_data: true })
        };
        assert_eq!(fill(limits::MAX_WRITE_SAME_BLOCKS), Ok(()));
        assert_eq!(fill(limits::MAX_WRITE_SAME_BLOCKS + 1), Err(Sense::INVALID_FIELD.into()));
        assert_eq!(fill(0), Err(Sense::INVALID_FIELD.into()));
        let length = limits::MAX_PARAMETER_BYTES;
        assert_eq!(unit.check(&who, &Command::Unmap { length }), Ok(()));
        let length = length + 1;
        assert!(unit.check(&who, &Command::Unmap { length }).is_err());
        assert!(unit.check(&who, &Command::ModeSelect { long: true, length }).is_err());
    }

    #[test]
    fn a_read_only_unit_refuses_writes() {
        let mut unit = unit();
        unit.geometry.read_only = true;
        let extent = Extent { lba: 0, blocks: 1 };
        let check = |command| unit.check(&Initiator::default(), &command);
        let protected = Err(Sense::WRITE_PROTECTED.into());
        assert_eq!(check(Command::Write { extent, fua: false }), protected);
        assert_eq!(check(Command::WriteSame { extent, unmap: false, has_data: true }), protected);
        assert_eq!(check(Command::Unmap { length: 8 }), protected);
        assert_eq!(check(Command::Read(extent)), Ok(()));
        assert_eq!(check(Command::Flush(extent)), Ok(()));
    }

    #[test]
    fn unmap_lists_are_parsed() {
        let unit = unit();
        let list = |ranges: &[(u64, u32)]| {
            let mut list = vec![0; 8];
            for (lba, blocks) in ranges {
                list.extend(lba.to_be_bytes());
                list.extend(blocks.to_be_bytes());
                list.extend([0; 4]);
            }
            let bytes = list.len() as u16 - 8;
            list[2..4].copy_from_slice(&bytes.to_be_bytes());
            list
        };
        let two = [(5, 1), (9, 0), (1 << 23, 1 << 23)];
        assert_eq!(unit.unmap_ranges(&list(&two)), Ok(vec![two[0], two[2]]));
        assert_eq!(unit.unmap_ranges(&[]), Ok(Vec::new()));
        assert_eq!(unit.unmap_ranges(&[0; 7]), Err(Sense::PARAMETER_LENGTH));
        assert_eq!(unit.unmap_ranges(&list(&[(1 << 24, 1)])), Err(Sense::OUT_OF_RANGE));
        let many = vec![(0, 1); limits::MAX_UNMAP_DESCRIPTORS as usize];
        assert_eq!(unit.unmap_ranges(&list(&many)).map(|ranges| ranges.len()), Ok(many.len()));
        let more = [many, vec![(0, 1)]].concat();
        assert!(unit.unmap_ranges(&list(&more)).is_err());
        // The list is shorter than its header announces.
        let mut short = list(&[(1, 1)]);
        short[3] = 200;
        assert_eq!(unit.unmap_ranges(&short), Ok(vec![(1, 1)]));
    }
}
