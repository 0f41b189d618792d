//! REPORT SUPPORTED OPERATION CODES: lists the supported commands and the bits that they use
//! (SPC-4, 6.35).

use super::cdb::{action, length, opcode};
use super::sense::Sense;

/// A supported command: its opcode, its service action if it has one, and the bits that it uses.
type Supported = (u8, Option<u8>, &'static [u8]);

const ALL: &[Supported] = &[
    (opcode::TEST_UNIT_READY, None, &[0, 0, 0, 0, 0, 4]),
    (opcode::REQUEST_SENSE, None, &[0, 1, 0, 0, 255, 4]),
    (opcode::READ_6, None, &[0, 31, 255, 255, 255, 0]),
    (opcode::WRITE_6, None, &[0, 31, 255, 255, 255, 0]),
    (opcode::INQUIRY, None, &[0, 1, 255, 255, 255, 4]),
    (opcode::MODE_SELECT_6, None, &[0, 17, 0, 0, 255, 4]),
    (opcode::MODE_SENSE_6, None, &[0, 8, 255, 255, 255, 4]),
    (opcode::START_STOP, None, &[0, 1, 15, 0, 247, 4]),
    (opcode::PREVENT_REMOVAL, None, &[0, 0, 0, 0, 3, 4]),
    (opcode::READ_CAPACITY_10, None, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 4]),
    (opcode::READ_10, None, &[0, 248, 255, 255, 255, 255, 0, 255, 255, 4]),
    (opcode::WRITE_10, None, &[0, 248, 255, 255, 255, 255, 0, 255, 255, 4]),
    (opcode::WRITE_VERIFY_10, None, &[0, 246, 255, 255, 255, 255, 0, 255, 255, 4]),
    (opcode::VERIFY_10, None, &[0, 246, 255, 255, 255, 255, 0, 255, 255, 4]),
    (opcode::SYNCHRONIZE_10, None, &[0, 2, 255, 255, 255, 255, 0, 255, 255, 4]),
    (opcode::WRITE_SAME_10, None, &[0, 254, 255, 255, 255, 255, 0, 255, 255, 4]),
    (opcode::UNMAP, None, &[0, 1, 0, 0, 0, 0, 0, 255, 255, 4]),
    (opcode::MODE_SELECT_10, None, &[0, 17, 0, 0, 0, 0, 0, 255, 255, 4]),
    (opcode::MODE_SENSE_10, None, &[0, 8, 255, 255, 0, 0, 0, 255, 255, 4]),
    (opcode::PERSISTENT_IN, Some(0), &PERSISTENT_IN),
    (opcode::PERSISTENT_IN, Some(1), &PERSISTENT_IN),
    (opcode::PERSISTENT_IN, Some(2), &PERSISTENT_IN),
    (opcode::PERSISTENT_IN, Some(3), &PERSISTENT_IN),
    (opcode::PERSISTENT_OUT, Some(0), &PERSISTENT_OUT),
    (opcode::PERSISTENT_OUT, Some(1), &PERSISTENT_OUT),
    (opcode::PERSISTENT_OUT, Some(2), &PERSISTENT_OUT),
    (opcode::PERSISTENT_OUT, Some(3), &PERSISTENT_OUT),
    (opcode::PERSISTENT_OUT, Some(4), &PERSISTENT_OUT),
    (opcode::PERSISTENT_OUT, Some(6), &PERSISTENT_OUT),
    (opcode::READ_16, None, &READ_16),
    (
        opcode::COMPARE_AND_WRITE,
        None,
        &[0, 248, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 255, 0, 4],
    ),
    (opcode::WRITE_16, None, &READ_16),
    (opcode::WRITE_VERIFY_16, None, &VERIFY_16),
    (opcode::VERIFY_16, None, &VERIFY_16),
    (
        opcode::SYNCHRONIZE_16,
        None,
        &[0, 2, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0, 4],
    ),
    (
        opcode::WRITE_SAME_16,
        None,
        &[0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0, 4],
    ),
    (
        opcode::SERVICE_IN_16,
        Some(action::READ_CAPACITY_16),
        &[0, 31, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 4],
    ),
    (opcode::REPORT_LUNS, None, &[0, 0, 255, 0, 0, 0, 255, 255, 255, 255, 0, 4]),
    (
        opcode::MAINTENANCE_IN,
        Some(action::REPORT_OPCODES),
        &[0, 31, 135, 255, 255, 255, 255, 255, 255, 255, 0, 4],
    ),
    (opcode::READ_12, None, &[0, 248, 255, 255, 255, 255, 255, 255, 255, 255, 0, 4]),
    (opcode::WRITE_12, None, &[0, 248, 255, 255, 255, 255, 255, 255, 255, 255, 0, 4]),
    (opcode::WRITE_VERIFY_12, None, &[0, 246, 255, 255, 255, 255, 255, 255, 255, 255, 0, 4]),
    (opcode::VERIFY_12, None, &[0, 246, 255, 255, 255, 255, 255, 255, 255, 255, 0, 4]),
];

const PERSISTENT_IN: [u8; 10] = [0, 31, 0, 0, 0, 0, 0, 255, 255, 4];
const PERSISTENT_OUT: [u8; 10] = [0, 31, 255, 0, 0, 255, 255, 255, 255, 4];
const READ_16: [u8; 16] =
    [0, 248, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0, 4];
const VERIFY_16: [u8; 16] =
    [0, 246, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0, 4];

/// A command timeouts descriptor without values.
const TIMEOUTS: [u8; 12] = [0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Answers REPORT SUPPORTED OPERATION CODES. `can_unmap` states whether the unit supports
/// deallocation.
pub(crate) fn report(
    can_unmap: bool,
    timeouts: bool,
    options: u8,
    wanted: u8,
    service: u16,
) -> Result<Vec<u8>, Sense> {
    let there = |code: u8| can_unmap || code != opcode::UNMAP;
    let mut of_wanted = ALL.iter().filter(|(code, ..)| *code == wanted && there(*code));
    let has_actions = of_wanted.clone().any(|(_, action, _)| action.is_some());
    let found = match options {
        0 => return Ok(every(timeouts, there)),
        1 if has_actions => return Err(Sense::in_cdb(2)),
        2 if !has_actions && of_wanted.next().is_some() => return Err(Sense::in_cdb(2)),
        1 => of_wanted.next(),
        2 | 3 => of_wanted.find(|(_, action, _)| action.is_none_or(|a| u16::from(a) == service)),
        _ => return Err(Sense::in_cdb(2)),
    };
    let Some((_, action, usage)) = found else {
        return Ok(vec![0, 1, 0, 0]); // the unit does not support this command
    };
    let mut data = vec![0, 3 | u8::from(timeouts) << 7];
    data.extend((usage.len() as u16).to_be_bytes());
    data.push(wanted);
    data.extend(&usage[1..]);
    if let Some(action) = action {
        // The field with the service action contains the action itself instead of a mask.
        data[5] = usage[1] & !31 | action;
    }
    if timeouts {
        data.extend(TIMEOUTS);
    }
    Ok(data)
}

fn every(timeouts: bool, there: impl Fn(u8) -> bool) -> Vec<u8> {
    let mut data = vec![0; 4];
    for (code, action, _) in ALL.iter().filter(|(code, ..)| there(*code)) {
        let flags = u8::from(timeouts) << 1 | u8::from(action.is_some());
        let bytes = length(*code) as u8;
        data.extend([*code, 0, 0, action.unwrap_or(0), 0, flags, 0, bytes]);
        if timeouts {
            data.extend(TIMEOUTS);
        }
    }
    let length = data.len() as u32 - 4;
    data[..4].copy_from_slice(&length.to_be_bytes());
    data
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scsi::Command;
    use crate::scsi::cdb::Cdb;

    /// The table lists exactly the commands that the parser accepts, with the length of their
    /// opcode group.
    #[test]
    fn the_opcode_table_lists_exactly_the_parsed_commands() {
        for code in 0..=u8::MAX {
            for service in 0..32 {
                let mut cdb: Cdb = [0; 16];
                (cdb[0], cdb[1]) = (code, service);
                let listed = |&&(listed, action, _): &&Supported| {
                    listed == code && action.is_some_and(|action| action == service)
                };
                let by_action = ALL.iter().any(|entry| entry.0 == code && entry.1.is_some());
                let known = match by_action {
                    true => ALL.iter().find(listed).is_some(),
                    false => ALL.iter().any(|entry| entry.0 == code),
                };
                let parsed = Command::parse(&cdb) != Err(Sense::INVALID_OPCODE);
                let reserves = [opcode::PERSISTENT_IN, opcode::PERSISTENT_OUT].contains(&code);
                assert!(parsed == known || by_action && (reserves || !known), "{code:#x}");
            }
        }
        for (code, _, usage) in ALL {
            assert_eq!(usage.len(), length(*code), "{code:#x}");
        }
    }

    #[test]
    fn supported_commands_are_reported_singly_and_together() {
        let all = report(true, false, 0, 0, 0).expect("a list");
        assert_eq!(all.len(), 4 + 8 * ALL.len());
        let with_timeouts = report(false, true, 0, 0, 0).expect("a list");
        assert_eq!(with_timeouts.len(), 4 + 20 * (ALL.len() - 1), "UNMAP is listed");
        let read = report(true, false, 1, opcode::READ_10, 0).expect("a command");
        assert_eq!(read[..5], [0, 3, 0, 10, opcode::READ_10]);
        assert_eq!(report(true, false, 1, 0xc1, 0), Ok(vec![0, 1, 0, 0]));
        assert_eq!(report(false, false, 1, opcode::UNMAP, 0), Ok(vec![0, 1, 0, 0]));
        let capacity =
            |options, service| report(true, true, options, opcode::SERVICE_IN_16, service);
        assert_eq!(capacity(1, 0x10), Err(Sense::in_cdb(2)));
        assert_eq!(capacity(2, 0x10).expect("a command").len(), 4 + 16 + 12);
        assert_eq!(capacity(3, 0x11), Ok(vec![0, 1, 0, 0]));
        assert_eq!(report(true, false, 2, opcode::READ_10, 0), Err(Sense::in_cdb(2)));
        assert_eq!(report(true, false, 4, 0, 0), Err(Sense::in_cdb(2)));
    }
}
