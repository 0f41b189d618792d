//! Logs in to a target, and queries the logical unit. A queue then takes over the session.

use super::{Config, TRANSFER_BYTES};
use crate::limits::{DEFAULT_DATA_SEGMENT_BYTES, MAX_LOGIN_REQUESTS, MAX_TEXT_BYTES};
use crate::wire::{
    self, Bhs, DataIn, LoginRequest, LoginResponse, Response, ScsiCommand, ScsiResponse, flag,
    request, response,
};
use farblock_block::Geometry;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use zerocopy::IntoBytes;

/// The longest wait for the answer to a login or query.
const ANSWER_TIME: Duration = Duration::from_secs(30);
/// The longest data segment that the initiator accepts, in bytes.
pub(super) const SEGMENT_BYTES: u32 = 256 << 10;
/// The flags of the login request: from the operational stage directly to the full feature phase.
const OPERATIONAL: u8 = flag::TRANSIT | 1 << 2 | 3;
/// The SCSI status of a failed command. A unit attention also has this status.
const CHECK_CONDITION: u8 = 2;
/// The maximum number of unit attentions that a new session may receive.
const MOST_NEWS: usize = 16;

/// A connection that has logged in.
pub(super) struct Session {
    pub(super) stream: TcpStream,
    pub(super) agreed: Agreed,
    pub(super) numbers: Numbers,
    pub(super) lun: u64,
}

/// The limits that the login negotiated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Agreed {
    /// The maximum length of the data that the initiator sends with a command, in bytes.
    pub(super) first_bytes: u32,
    /// The maximum length of the data of a PDU to the target, in bytes.
    pub(super) segment_bytes: u32,
}

/// The sequence numbers of a session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    /// The number of the next command.
    pub(super) command: u32,
    /// The last command number that the target accepts.
    pub(super) last: u32,
    /// The number of the next status.
    pub(super) status: u32,
}

impl Numbers {
    /// Moves the end of the command window forward, as a target's answer reports it.
    pub(super) fn heard(&mut self, last: u32) {
        if wire::before(self.last, last) {
            self.last = last;
        }
    }

    /// True if the command window has room for another command.
    pub(super) fn is_open(&self) -> bool {
        !wire::before(self.last, self.command)
    }
}

impl Session {
    pub(super) fn log_in(config: &Config) -> io::Result<Session> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let stream = TcpStream::connect_timeout(&config.address, ANSWER_TIME)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_TIME))?;
        stream.set_write_timeout(Some(ANSWER_TIME))?;
        let agreed = Agreed { first_bytes: 0, segment_bytes: DEFAULT_DATA_SEGMENT_BYTES };
        let numbers = Numbers { command: 1, last: 1, status: 0 };
        let lun = u64::from(config.lun) << 48;
        let mut session = Session { stream, agreed, numbers, lun };
        let number = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let [.., high, low] = std::process::id().to_be_bytes();
        let isid = [0x80, high, low, number[1], number[2], number[3]];
        let text = keys(&config.target);
        let mut said = Vec::new();
        let mut asked: &[u8] = &text;
        for _ in 0..MAX_LOGIN_REQUESTS {
            let (answer, more) = session.ask_to_log_in(isid, asked)?;
            asked = &[];
            said.extend(more);
            if said.len() > MAX_TEXT_BYTES {
                return Err(nonsense("too many login answers"));
            }
            if answer.status.get() != 0 {
                let status = answer.status.get();
                return Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    format!("the target refused the login (status {status:#06x})"),
                ));
            }
            if answer.flags & flag::TRANSIT != 0 {
                session.numbers.heard(answer.max_cmd_sn.get());
                session.agreed = agree(&said)?;
                session.clear()?;
                return Ok(session);
            }
        }
        Err(nonsense("too many login answers"))
    }

    fn ask_to_log_in(
        &mut self,
        isid: [u8; 6],
        text: &[u8],
    ) -> io::Result<(LoginResponse, Vec<u8>)> {
        let ask = LoginRequest {
            opcode: wire::IMMEDIATE | request::LOGIN,
            flags: OPERATIONAL,
            data_length: wire::length(text.len()),
            isid,
            task_tag: 1.into(),
            cmd_sn: self.numbers.command.into(),
            exp_stat_sn: self.numbers.status.into(),
            ..LoginRequest::default()
        };
        let padding = [0; 3];
        let all = [ask.as_bytes(), text, &padding[..wire::padding(text.len())]].concat();
        self.stream.write_all(&all)?;
        let (bhs, said) = self.take()?;
        if bhs[0] != response::LOGIN {
            return Err(nonsense("another PDU instead of a login answer"));
        }
        let answer: LoginResponse = wire::view(&bhs);
        self.numbers.status = answer.stat_sn.get().wrapping_add(1);
        Ok((answer, said))
    }

    /// Sends commands until the target reports no more unit attentions.
    fn clear(&mut self) -> io::Result<()> {
        for _ in 0..MOST_NEWS {
            if self.call([0; 16], 0)?.0 != CHECK_CONDITION {
                return Ok(());
            }
        }
        Err(io::Error::other("the logical unit does not become ready"))
    }

    /// Queries the unit's size.
    pub(super) fn geometry(&mut self) -> io::Result<Geometry> {
        const ASKED: u32 = 32;
        let mut capacity = [0; 16];
        // READ CAPACITY (16)
        (capacity[0], capacity[1], capacity[13]) = (0x9e, 0x10, ASKED as u8);
        let (status, said) = self.call(capacity, ASKED)?;
        let Some((last, rest)) = said.split_first_chunk::<8>().filter(|_| status == 0) else {
            return Err(nonsense("no capacity of the logical unit"));
        };
        let last = u64::from_be_bytes(*last);
        let block_size = rest.first_chunk().map_or(0, |size| u32::from_be_bytes(*size));
        let blocks = last.checked_add(1).filter(|blocks| {
            let bytes = blocks.checked_mul(u64::from(block_size));
            bytes.is_some_and(|bytes| i64::try_from(bytes).is_ok())
        });
        match blocks.filter(|_| Geometry::is_block_size(block_size)) {
            Some(blocks) => Ok(Geometry {
                volatile_cache: true,
                max_blocks: TRANSFER_BYTES / block_size,
                ..Geometry::new(block_size, blocks)
            }),
            None => Err(nonsense("an impossible capacity of the logical unit")),
        }
    }

    /// Executes a command that reads a small amount of data. Returns the command's status and data.
    fn call(&mut self, cdb: [u8; 16], expected: u32) -> io::Result<(u8, Vec<u8>)> {
        let ask = command(cdb, flag::READ, expected, 0, self.lun, &mut self.numbers, 1);
        self.stream.write_all(ask.as_bytes())?;
        let mut data = Vec::new();
        loop {
            let (bhs, said) = self.take()?;
            match bhs[0] {
                response::DATA_IN => {
                    let part: DataIn = wire::view(&bhs);
                    data.extend(said);
                    if part.flags & flag::STATUS != 0 {
                        self.numbers.status = part.stat_sn.get().wrapping_add(1);
                        self.numbers.heard(part.max_cmd_sn.get());
                        return Ok((part.status, data));
                    }
                }
                response::SCSI => {
                    let answer: ScsiResponse = wire::view(&bhs);
                    self.numbers.status = answer.stat_sn.get().wrapping_add(1);
                    self.numbers.heard(answer.max_cmd_sn.get());
                    return Ok((answer.status, data));
                }
                response::NOP_IN if wire::view::<Response>(&bhs).target_tag == wire::NO_TAG => {}
                _ => return Err(nonsense("another PDU instead of the command's answer")),
            }
        }
    }

    fn take(&mut self) -> io::Result<(Bhs, Vec<u8>)> {
        let mut bhs: Bhs = [0; wire::BHS_BYTES];
        self.stream.read_exact(&mut bhs)?;
        let length = wire::data_bytes(&bhs) as usize;
        if length > SEGMENT_BYTES as usize || bhs[4] != 0 {
            return Err(nonsense("an answer that is too long"));
        }
        let mut data = vec![0; length + wire::padding(length)];
        self.stream.read_exact(&mut data)?;
        data.truncate(length);
        Ok((bhs, data))
    }
}

fn nonsense(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the target sent {what}"))
}

/// Makes a command PDU with the next command number.
pub(super) fn command(
    cdb: [u8; 16],
    direction: u8,
    expected: u32,
    along: usize,
    lun: u64,
    numbers: &mut Numbers,
    tag: u32,
) -> ScsiCommand {
    const SIMPLE: u8 = 1;
    let cmd_sn = numbers.command;
    numbers.command = cmd_sn.wrapping_add(1);
    ScsiCommand {
        opcode: request::SCSI_COMMAND,
        flags: flag::FINAL | direction | SIMPLE,
        data_length: wire::length(along),
        lun: lun.into(),
        task_tag: tag.into(),
        expected_bytes: expected.into(),
        cmd_sn: cmd_sn.into(),
        exp_stat_sn: numbers.status.into(),
        cdb,
        ..ScsiCommand::default()
    }
}

/// The login keys, with values for the best performance.
fn keys(target: &str) -> Vec<u8> {
    let burst = TRANSFER_BYTES;
    [
        "InitiatorName=iqn.2026-11.org.farblock:load".to_owned(),
        format!("TargetName={target}"),
        "SessionType=Normal".to_owned(),
        "HeaderDigest=None".to_owned(),
        "DataDigest=None".to_owned(),
        "ImmediateData=Yes".to_owned(),
        "InitialR2T=Yes".to_owned(),
        format!("MaxBurstLength={burst}"),
        format!("FirstBurstLength={SEGMENT_BYTES}"),
        format!("MaxRecvDataSegmentLength={SEGMENT_BYTES}"),
        "MaxOutstandingR2T=1".to_owned(),
        "MaxConnections=1".to_owned(),
        "ErrorRecoveryLevel=0".to_owned(),
        "DataPDUInOrder=Yes".to_owned(),
        "DataSequenceInOrder=Yes".to_owned(),
    ]
    .iter()
    .flat_map(|key| [key.as_bytes(), &[0]].concat())
    .collect()
}

/// Parses the limits in the target's answer.
fn agree(said: &[u8]) -> io::Result<Agreed> {
    let text = String::from_utf8_lossy(said);
    let value = |key: &str| {
        let mut pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
        pairs.find(|(name, _)| *name == key).map(|(_, value)| value.to_owned())
    };
    let number = |key: &str, default: u32| match value(key) {
        None => Ok(default),
        Some(text) => text
            .parse()
            .ok()
            .filter(|&it| (512..1 << 24).contains(&it))
            .ok_or_else(|| nonsense(&format!("{key}={text}, which is not a valid number"))),
    };
    // These are the defaults of RFC 7143, section 13.
    let segment_bytes = number("MaxRecvDataSegmentLength", DEFAULT_DATA_SEGMENT_BYTES)?;
    let first = number("FirstBurstLength", 65_536)?.min(number("MaxBurstLength", 262_144)?);
    let is_immediate = value("ImmediateData").is_none_or(|value| value == "Yes");
    // Use multiples of 512 bytes, so that the data needs no padding.
    let first_bytes = if is_immediate { first.min(segment_bytes) & !511 } else { 0 };
    Ok(Agreed { first_bytes, segment_bytes: segment_bytes & !511 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_initiator_parses_negotiated_parameters() {
        let of = |text: &str| agree(text.replace(' ', "\0").as_bytes());
        let agreed = of("MaxRecvDataSegmentLength=8192 FirstBurstLength=65536 ImmediateData=Yes ");
        assert_eq!(agreed.unwrap().first_bytes, 8192);
        assert_eq!(of("ImmediateData=No ").unwrap().first_bytes, 0);
        let defaults = of("").unwrap();
        assert_eq!((defaults.first_bytes, defaults.segment_bytes), (8192, 8192));
        assert!(of("MaxRecvDataSegmentLength=0 ").is_err());
        assert!(of("MaxRecvDataSegmentLength=many ").is_err());
    }

    #[test]
    fn the_command_window_wraps_around() {
        let mut numbers = Numbers { command: u32::MAX, last: u32::MAX, status: 0 };
        assert!(numbers.is_open());
        numbers.command = 0;
        assert!(!numbers.is_open());
        numbers.heard(5);
        numbers.heard(2);
        assert!(numbers.is_open() && numbers.last == 5);
    }
}
