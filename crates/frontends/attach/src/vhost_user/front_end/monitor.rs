//! The role of the virtual machine monitor: sends the vhost-user messages that share memory and
//! start rings.

use super::super::blk::feature;
use super::super::wire::{self, F_PROTOCOL_FEATURES, code, protocol};
use super::queue::Ring;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// The longest wait for an answer of the back end.
const ANSWER_TIME: Duration = Duration::from_secs(30);
/// The address at which the monitor claims to have mapped the shared memory. Messages give ring
/// addresses relative to such a mapping.
const HERE: u64 = 0x7000_0000_0000;
/// The features that this driver accepts, as Linux's driver does.
const WANTED: u64 = feature::SIZE_MAX
    | feature::SEG_MAX
    | feature::RO
    | feature::BLK_SIZE
    | feature::FLUSH
    | feature::CONFIG_WCE
    | feature::MQ
    | feature::WRITE_ZEROES
    | feature::INDIRECT_DESC
    | feature::EVENT_IDX
    | feature::VERSION_1;
/// The features without which this driver refuses a disk.
const NEEDED: u64 = feature::INDIRECT_DESC | feature::EVENT_IDX | feature::VERSION_1;
/// The number of bytes that this driver reads from the configuration space.
const SPACE_BYTES: u32 = 60;

/// A connection to a back end.
pub(super) struct Monitor {
    stream: UnixStream,
    /// True if the back end must acknowledge requests (`VHOST_USER_PROTOCOL_F_REPLY_ACK`).
    is_answered: bool,
}

impl Monitor {
    pub(super) fn connect(socket: &Path) -> io::Result<Monitor> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(ANSWER_TIME))?;
        stream.set_write_timeout(Some(ANSWER_TIME))?;
        Ok(Monitor { stream, is_answered: false })
    }

    /// Negotiates the features. Returns those that both sides support.
    pub(super) fn begin(&mut self) -> io::Result<u64> {
        self.order(code::SET_OWNER, &[], None)?;
        let offered = self.number(code::GET_FEATURES)?;
        let missing = (NEEDED | F_PROTOCOL_FEATURES) & !offered;
        if missing != 0 {
            return Err(unsupported(&format!("the disk lacks the features {missing:#x}")));
        }
        let features = offered & (WANTED | F_PROTOCOL_FEATURES);
        self.order(code::SET_FEATURES, &features.to_le_bytes(), None)?;
        let offered = self.number(code::GET_PROTOCOL_FEATURES)?;
        let known = protocol::MQ | protocol::REPLY_ACK | protocol::CONFIG;
        if offered & known != known {
            return Err(unsupported(&format!(
                "the disk offers only the protocol features {offered:#x}"
            )));
        }
        self.order(code::SET_PROTOCOL_FEATURES, &known.to_le_bytes(), None)?;
        self.is_answered = true;
        Ok(features)
    }

    /// Shares the memory file with the back end.
    pub(super) fn lend(&mut self, file: &File, bytes: u64) -> io::Result<()> {
        // The number of regions, then the only region: guest address, size, monitor address, file
        // offset.
        let mut body = 1_u64.to_le_bytes().to_vec();
        [0, bytes, HERE, 0].iter().for_each(|word| body.extend(word.to_le_bytes()));
        self.order(code::SET_MEM_TABLE, &body, Some(file.as_fd()))
    }

    /// Starts a ring with these addresses of its descriptors, available ring and used ring.
    pub(super) fn start_ring(
        &mut self,
        index: usize,
        size: u16,
        [descriptors, available, used]: [u64; 3],
        ring: &Ring,
    ) -> io::Result<()> {
        let index = u32::try_from(index).map_err(io::Error::other)?;
        let pair = |value: u32| [index.to_le_bytes(), value.to_le_bytes()].concat();
        self.order(code::SET_VRING_NUM, &pair(u32::from(size)), None)?;
        self.order(code::SET_VRING_BASE, &pair(0), None)?;
        let mut body = pair(0);
        let addresses = [HERE + descriptors, HERE + used, HERE + available, 0];
        addresses.iter().for_each(|address| body.extend(address.to_le_bytes()));
        self.order(code::SET_VRING_ADDR, &body, None)?;
        let number = u64::from(index).to_le_bytes();
        self.order(code::SET_VRING_CALL, &number, Some(ring.call.as_fd()))?;
        self.order(code::SET_VRING_KICK, &number, Some(ring.kick.as_fd()))?;
        self.order(code::SET_VRING_ENABLE, &pair(1), None)
    }

    pub(super) fn config_space(&mut self) -> io::Result<Vec<u8>> {
        let mut body = [0, SPACE_BYTES, 0].map(u32::to_le_bytes).concat();
        body.resize(body.len() + SPACE_BYTES as usize, 0);
        wire::ask(&self.stream, code::GET_CONFIG, false, &body, None)?;
        let answer = wire::answer(&self.stream, code::GET_CONFIG)?;
        let space = answer.get(12..).filter(|space| space.len() == SPACE_BYTES as usize);
        Ok(space.ok_or_else(|| unsupported("the disk does not report its size"))?.to_vec())
    }

    fn number(&mut self, code: u32) -> io::Result<u64> {
        wire::ask(&self.stream, code, false, &[], None)?;
        let answer = wire::answer(&self.stream, code)?;
        let number = answer
            .try_into()
            .map_err(|_| unsupported("the back end's answer is not a 64-bit number"))?;
        Ok(u64::from_le_bytes(number))
    }

    /// Sends a request to which the back end answers at most with an acknowledgement.
    fn order(&mut self, code: u32, body: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        wire::ask(&self.stream, code, self.is_answered, body, file)?;
        let is_done = !self.is_answered || wire::answer(&self.stream, code)? == 0_u64.to_le_bytes();
        let refused = || io::Error::other(format!("the disk refused the request {code}"));
        if is_done { Ok(()) } else { Err(refused()) }
    }
}

fn unsupported(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, why)
}
