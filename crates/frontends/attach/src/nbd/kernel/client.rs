//! Negotiates as an NBD client on sockets that the kernel then takes over.

use super::Error;
use crate::nbd::Server;
use crate::nbd::wire::{self, Reader, handshake, info, option, reply};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The longest wait for an answer. The server is in this process and normally answers at once.
const WAIT_LIMIT: Duration = Duration::from_secs(10);
/// The kernel's largest block size, in bytes: one page.
pub(super) const MAX_BLOCK_BYTES: u32 = 4096;

/// A disk's properties, as the server describes them in the negotiation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Disk {
    pub(super) bytes: u64,
    pub(super) flags: u16,
    pub(super) block_size: u32,
}

/// Connects to the server and negotiates. Returns a socket that is ready for requests.
pub(super) fn connect(server: &Server) -> Result<(UnixStream, Disk), Error> {
    negotiated(server, true).and_then(|found| match found {
        // Negotiate again, and do not query the block size this time. The server then serves any
        // range, so the kernel can use a block size that it supports.
        (_, disk) if disk.block_size > MAX_BLOCK_BYTES => {
            let (stream, disk) = negotiated(server, false)?;
            Ok((stream, Disk { block_size: MAX_BLOCK_BYTES, ..disk }))
        }
        found => Ok(found),
    })
}

fn negotiated(server: &Server, ask_block_size: bool) -> Result<(UnixStream, Disk), Error> {
    let pair = || -> io::Result<_> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(WAIT_LIMIT))?;
        ours.set_write_timeout(Some(WAIT_LIMIT))?;
        server.adopt(theirs);
        let disk = negotiate(&ours, ask_block_size)?;
        // Remove the timeouts of the negotiation. The kernel has its own.
        ours.set_read_timeout(None)?;
        ours.set_write_timeout(None)?;
        Ok((ours, disk))
    };
    pair().map_err(Error::Server)
}

fn negotiate(mut stream: &UnixStream, ask_block_size: bool) -> io::Result<Disk> {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    let flags = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
    let mut request = u32::from(flags).to_be_bytes().to_vec();
    let wanted: &[u16] = if ask_block_size { &[info::BLOCK_SIZE] } else { &[] };
    request.extend(wire::OPTION_MAGIC.to_be_bytes());
    request.extend(option::GO.to_be_bytes());
    request.extend((6 + 2 * wanted.len() as u32).to_be_bytes());
    // Send an empty name, because the server has only one export.
    request.extend(0_u32.to_be_bytes());
    request.extend((wanted.len() as u16).to_be_bytes());
    wanted.iter().for_each(|kind| request.extend(kind.to_be_bytes()));
    stream.write_all(&request)?;
    let mut disk = Disk { bytes: 0, flags: 0, block_size: 512 };
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    loop {
        let mut header = [0; 20];
        stream.read_exact(&mut header)?;
        let mut reader = Reader(&header[12..]);
        let (kind, length) = reader.u32().zip(reader.u32()).ok_or_else(invalid)?;
        let mut data = vec![0; length as usize];
        stream.read_exact(&mut data)?;
        match kind {
            reply::ACK => return Ok(disk),
            reply::INFO => read_info(&data, &mut disk).ok_or_else(invalid)?,
            _ => return Err(invalid()),
        }
    }
}

fn read_info(data: &[u8], disk: &mut Disk) -> Option<()> {
    let mut reader = Reader(data);
    match reader.u16()? {
        info::EXPORT => (disk.bytes, disk.flags) = (reader.u64()?, reader.u16()?),
        info::BLOCK_SIZE => disk.block_size = reader.u32()?,
        _ => {}
    }
    Some(())
}
