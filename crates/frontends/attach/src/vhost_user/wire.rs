//! The messages of the vhost-user protocol, which may carry file descriptors, on a Unix socket.
//!
//! The `vhost` crate also implements the protocol. But its back end cannot notify the monitor of a
//! changed configuration, such as a disk's new size. The tests use the front end of that crate as
//! the monitor.

use super::limits;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Requests that a monitor sends (`VhostUserRequest`).
pub(super) mod code {
    pub(crate) const GET_FEATURES: u32 = 1;
    pub(crate) const SET_FEATURES: u32 = 2;
    pub(crate) const SET_OWNER: u32 = 3;
    pub(crate) const RESET_OWNER: u32 = 4;
    pub(crate) const SET_MEM_TABLE: u32 = 5;
    pub(crate) const SET_VRING_NUM: u32 = 8;
    pub(crate) const SET_VRING_ADDR: u32 = 9;
    pub(crate) const SET_VRING_BASE: u32 = 10;
    pub(crate) const GET_VRING_BASE: u32 = 11;
    pub(crate) const SET_VRING_KICK: u32 = 12;
    pub(crate) const SET_VRING_CALL: u32 = 13;
    pub(crate) const SET_VRING_ERR: u32 = 14;
    pub(crate) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(crate) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(crate) const GET_QUEUE_NUM: u32 = 17;
    pub(crate) const SET_VRING_ENABLE: u32 = 18;
    pub(crate) const SET_BACKEND_REQ_FD: u32 = 21;
    pub(crate) const GET_CONFIG: u32 = 24;
    pub(crate) const SET_CONFIG: u32 = 25;
    pub(crate) const GET_INFLIGHT_FD: u32 = 31;
    pub(crate) const SET_INFLIGHT_FD: u32 = 32;
    pub(crate) const GET_MAX_MEM_SLOTS: u32 = 36;
    pub(crate) const ADD_MEM_REG: u32 = 37;
    pub(crate) const REM_MEM_REG: u32 = 38;
}

/// `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`, the only request that the back end sends.
const CONFIG_CHANGE: u32 = 2;

/// `VHOST_USER_F_PROTOCOL_FEATURES`, which is a bit of the device's features.
pub(super) const F_PROTOCOL_FEATURES: u64 = 1 << 30;

/// Protocol features (`VHOST_USER_PROTOCOL_F_...`).
pub(super) mod protocol {
    pub(crate) const MQ: u64 = 1 << 0;
    pub(crate) const REPLY_ACK: u64 = 1 << 3;
    pub(crate) const BACKEND_REQ: u64 = 1 << 5;
    pub(crate) const CONFIG: u64 = 1 << 9;
    pub(crate) const INFLIGHT_SHMFD: u64 = 1 << 12;
    pub(crate) const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
    pub(crate) const ALL: u64 =
        MQ | REPLY_ACK | BACKEND_REQ | CONFIG | INFLIGHT_SHMFD | CONFIGURE_MEM_SLOTS;
}

const HEADER_BYTES: usize = 12;
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

pub(super) struct Message {
    pub(super) code: u32,
    pub(super) need_reply: bool,
    pub(super) body: Vec<u8>,
    pub(super) descriptors: Vec<OwnedFd>,
}

fn malformed(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Reads the next message; blocks until one arrives. Returns `None` at the end of the connection.
pub(super) fn receive(stream: &UnixStream) -> io::Result<Option<Message>> {
    let mut header = [0; HEADER_BYTES];
    let mut descriptors = Vec::new();
    let first = receive_with_descriptors(stream, &mut header, &mut descriptors)?;
    if first == 0 {
        return Ok(None);
    }
    (&*stream).read_exact(&mut header[first..])?;
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("4 bytes"));
    let (code, flags, size) = (word(0), word(4), word(8) as usize);
    if flags & VERSION_MASK != VERSION || flags & REPLY != 0 {
        return Err(malformed("the peer uses another version of the protocol"));
    }
    if size > limits::MAX_MESSAGE_BYTES {
        return Err(malformed("a message is too long"));
    }
    let mut body = vec![0; size];
    (&*stream).read_exact(&mut body)?;
    Ok(Some(Message { code, need_reply: flags & NEED_REPLY != 0, body, descriptors }))
}

/// Reads bytes, and the descriptors that are attached to a message's first byte.
fn receive_with_descriptors(
    stream: &UnixStream,
    bytes: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(limits::MAX_REGIONS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let slices = &mut [IoSliceMut::new(bytes)];
        match rustix::net::recvmsg(stream, slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            result => break result?,
        }
    };
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.flags.contains(rustix::net::ReturnFlags::CTRUNC) {
        return Err(malformed("a message has too many descriptors"));
    }
    Ok(received.bytes)
}

/// Sends the answer to a request, with a descriptor if there is one.
pub(super) fn reply(
    stream: &UnixStream,
    code: u32,
    body: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    send(stream, code, VERSION | REPLY, body, descriptor)
}

/// Asks the monitor over the back-end channel to read the configuration again. The monitor does not
/// answer.
pub(super) fn notify_config_change(channel: &UnixStream) -> io::Result<()> {
    send(channel, CONFIG_CHANGE, VERSION, &[], None)
}

/// Sends a request to a back end, as a monitor does. With `need_reply`, the back end always
/// answers.
pub(super) fn ask(
    stream: &UnixStream,
    code: u32,
    need_reply: bool,
    body: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    send(stream, code, VERSION | if need_reply { NEED_REPLY } else { 0 }, body, descriptor)
}

/// Reads the back end's answer to a request.
pub(super) fn answer(mut stream: &UnixStream, asked: u32) -> io::Result<Vec<u8>> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header)?;
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("4 bytes"));
    let (code, flags, size) = (word(0), word(4), word(8) as usize);
    if code != asked || flags & (VERSION_MASK | REPLY) != VERSION | REPLY {
        return Err(malformed("the answer does not match the request"));
    }
    if size > limits::MAX_MESSAGE_BYTES {
        return Err(malformed("an answer is too long"));
    }
    let mut body = vec![0; size];
    stream.read_exact(&mut body)?;
    Ok(body)
}

fn send(
    stream: &UnixStream,
    code: u32,
    flags: u32,
    body: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend(code.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(body);
    let rights = descriptor.map(|descriptor| [descriptor]);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if let Some(rights) = &rights {
        assert!(
            ancillary.push(SendAncillaryMessage::ScmRights(rights)),
            "the buffer has space for one message"
        );
    }
    // A message is so short that the kernel sends it to an empty socket completely or not at all.
    let slices = &[IoSlice::new(&bytes)];
    let sent = rustix::net::sendmsg(stream.as_fd(), slices, &mut ancillary, SendFlags::NOSIGNAL)?;
    if sent < bytes.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    Ok(())
}

/// A reader of a message's body, field by field.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or("a message is too short")?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(super) fn u16(&mut self) -> Result<u16, String> {
        self.take().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, String> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, String> {
        self.take().map(u64::from_le_bytes)
    }
}
