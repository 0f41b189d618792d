//! Converts the 28-byte header of a request to a block operation, and an operation's error to an
//! NBD error number.

use super::negotiate::{Agreement, max_payload_bytes};
use super::wire::{self, Reader, command, command_flag, errno};
use farblock_block::{BlockError, Command, Geometry};

/// The header of a client's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) flags: u16,
    pub(super) code: u16,
    /// The number with which the client identifies the request.
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) length: u32,
}

impl Header {
    /// Parses a header. Returns `None` if the magic number is wrong; the server then cannot find
    /// the start of the next request.
    pub(super) fn parse(bytes: &[u8; wire::REQUEST_BYTES]) -> Option<Header> {
        let mut reader = Reader(bytes);
        if reader.u32()? != wire::REQUEST_MAGIC {
            return None;
        }
        Some(Header {
            flags: reader.u16()?,
            code: reader.u16()?,
            cookie: reader.u64()?,
            offset: reader.u64()?,
            length: reader.u32()?,
        })
    }

    /// The number of bytes that follow the header, whether the request is valid or not.
    pub(super) fn payload_bytes(&self) -> u32 {
        if self.code == command::WRITE { self.length } else { 0 }
    }

    pub(super) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Returns the block command of the request, or the reason for refusing the request.
    pub(super) fn check(
        &self,
        geometry: &Geometry,
        agreement: Agreement,
    ) -> Result<Command, Refusal> {
        let command = match self.code {
            command::READ => Command::Read,
            command::WRITE => Command::Write,
            command::FLUSH => Command::Flush,
            command::TRIM => Command::Deallocate,
            command::WRITE_ZEROES => {
                Command::WriteZeroes { deallocate: !self.has(command_flag::NO_HOLE) }
            }
            _ => return Err(Refusal::invalid("the command is unknown")),
        };
        if self.flags & !known_flags(command, agreement) != 0 {
            return Err(Refusal::invalid("the command has an invalid flag"));
        }
        if command == Command::Flush {
            return Ok(command);
        }
        if geometry.read_only && command.writes() {
            return Err(Refusal::of(command, BlockError::ReadOnly));
        }
        let end = self.offset.checked_add(u64::from(self.length));
        if end.is_none_or(|end| end > geometry.capacity_bytes()) {
            return Err(Refusal::of(command, BlockError::OutOfRange));
        }
        if command.moves_data() && self.length > max_payload_bytes(geometry) {
            return Err(Refusal::of(command, BlockError::TooLarge));
        }
        let mask = u64::from(geometry.block_size) - 1;
        let is_unaligned = (self.offset | u64::from(self.length)) & mask != 0;
        // Allow unaligned trims: a trim is only a hint, and QEMU forwards a guest's trims
        // unaligned.
        if is_unaligned && agreement.knows_block_sizes && command != Command::Deallocate {
            return Err(Refusal::invalid("the request is not aligned to the minimum block size"));
        }
        if self.has(command_flag::FAST_ZERO) && !zeroes_fast(command, geometry) {
            return Err(Refusal {
                errno: errno::ENOTSUP,
                text: "zeroing may be slow on this disk",
            });
        }
        Ok(command)
    }
}

impl Header {
    /// Checks whether the client may query the allocation of this range.
    pub(super) fn check_status(
        &self,
        geometry: &Geometry,
        agreement: Agreement,
    ) -> Result<(), Refusal> {
        if !agreement.allocation {
            return Err(Refusal::invalid("the client did not negotiate a metadata context"));
        }
        if self.flags & !(command_flag::FUA | command_flag::REQ_ONE) != 0 {
            return Err(Refusal::invalid("the command has an invalid flag"));
        }
        if self.length == 0 {
            return Err(Refusal::invalid("the range is empty"));
        }
        // A client may query every range that it may read, even a range longer than the largest
        // read.
        let like = Header { code: command::READ, flags: 0, ..*self };
        match like.check(geometry, agreement) {
            Err(refusal) if refusal != Refusal::of(Command::Read, BlockError::TooLarge) => {
                Err(refusal)
            }
            _ => Ok(()),
        }
    }
}

/// True if the namespace zeroes the range faster than by writing zeroes. Used for
/// `NBD_CMD_FLAG_FAST_ZERO`.
fn zeroes_fast(command: Command, geometry: &Geometry) -> bool {
    command == Command::WriteZeroes { deallocate: true } && geometry.deallocate
}

fn known_flags(command: Command, agreement: Agreement) -> u16 {
    let own = match command {
        Command::Read if agreement.structured => command_flag::DF,
        Command::WriteZeroes { .. } => command_flag::NO_HOLE | command_flag::FAST_ZERO,
        _ => 0,
    };
    // The protocol allows FUA with every command, even where it has no effect.
    own | command_flag::FUA
}

/// The reason why the server refuses a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Refusal {
    pub(super) errno: u32,
    pub(super) text: &'static str,
}

impl Refusal {
    fn invalid(text: &'static str) -> Refusal {
        Refusal { errno: errno::EINVAL, text }
    }

    /// The error number and text that the server sends for a block operation's error.
    pub(super) fn of(command: Command, error: BlockError) -> Refusal {
        let (errno, text) = match error {
            BlockError::OutOfRange if command == Command::Write => {
                (errno::ENOSPC, "the range reaches beyond the end of the disk")
            }
            BlockError::OutOfRange => {
                (errno::EINVAL, "the range reaches beyond the end of the disk")
            }
            BlockError::TooLarge => (errno::EINVAL, "the request transfers too much data"),
            BlockError::ReadOnly => (errno::EPERM, "the disk is read-only"),
            BlockError::NoSpace => (errno::ENOSPC, "no space is left on the disk's storage"),
            BlockError::Conflict => (errno::EPERM, "another host has reserved the disk"),
            BlockError::Denied => (errno::EPERM, "the disk denies access to this host"),
            BlockError::NotReady => (errno::EIO, "the disk is not ready"),
            BlockError::AtomicExceeded => {
                (errno::EINVAL, "the write exceeds the disk's atomic write size")
            }
            BlockError::Unsupported => (errno::ENOTSUP, "the disk does not support the operation"),
            BlockError::NoResources => (errno::ENOMEM, "the server is out of resources"),
            BlockError::Disconnected => (errno::EIO, "the connection to the disk is lost"),
            BlockError::ReadFailed => (errno::EIO, "reading failed"),
            BlockError::WriteFailed => (errno::EIO, "writing failed"),
            _ => (errno::EIO, "the operation was aborted"),
        };
        Refusal { errno, text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_frontend::pieces::cut;

    #[test]
    fn a_request_header_is_parsed() {
        let mut bytes = [0; wire::REQUEST_BYTES];
        bytes[..4].copy_from_slice(&[0x25, 0x60, 0x95, 0x13]);
        bytes[4..].copy_from_slice(&(1..=24).collect::<Vec<u8>>());
        let found = Header::parse(&bytes).expect("a request");
        let expected = Header {
            flags: 0x0102,
            code: 0x0304,
            cookie: 0x0506_0708_090a_0b0c,
            offset: 0x0d0e_0f10_1112_1314,
            length: 0x1516_1718,
        };
        assert_eq!(found, expected);
        bytes[0] = 0;
        assert_eq!(Header::parse(&bytes), None);
    }

    /// For any piece size, the number of pieces of the largest request fits the 16-bit field in an
    /// operation's token.
    #[test]
    fn the_largest_request_has_few_enough_pieces() {
        for (block_size, max_blocks) in [(512, 1), (512, 0), (4096, 1), (65_536, 1)] {
            let geometry = Geometry { max_blocks, ..Geometry::new(block_size, 1 << 40) };
            let most = max_payload_bytes(&geometry);
            assert!(most.is_multiple_of(block_size) && most >= 1 << 20);
            let mut pieces = Vec::new();
            cut(Command::Read, 1, most, &geometry, &mut pieces);
            assert!(pieces.len() <= 1 << 16, "the largest request has {} pieces", pieces.len());
        }
    }
}
