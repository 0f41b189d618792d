//! What a server, its supervisor and who waits for them tell each other: JSON in packets of a pair
//! of sockets, one end of which is the other process's standard input. A packet may carry a
//! descriptor.

use super::status::Offer;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

/// More than any message has.
const MAX_BYTES: usize = 64 << 10;

/// What a supervisor tells a server that it has started, at once.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct Order {
    /// A predecessor died, whose work is to be gone on with. With what was kept of it.
    pub(super) resume: bool,
}

/// What a server tells its supervisor, and a supervisor who started it.
#[derive(Serialize, Deserialize, Debug)]
pub(super) enum Report {
    /// The disk can be used. With what is to be kept in case that the server dies.
    Ready(Offer),
    /// It cannot be, and this is why. The process ends.
    Failed(String),
    /// How it is going, in a line.
    Status(String),
    /// It is to end, and does when nobody uses the disk any more.
    Ending(String),
}

/// One end of a pair.
#[derive(Debug)]
pub(super) struct Channel(OwnedFd);

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Channel {
    /// One end, and another process's standard input.
    pub(super) fn pair() -> io::Result<(Channel, OwnedFd)> {
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (ours, theirs) = rustix::net::socketpair(kind.0, kind.1, kind.2, None)?;
        Ok((Channel(ours), theirs))
    }

    /// The end that this process was started with.
    pub(super) fn inherited() -> io::Result<Channel> {
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        // Anything else is not what a process of ours starts us with.
        rustix::net::sockopt::socket_type(&input)?;
        Ok(Channel(input))
    }

    pub(super) fn send(
        &self,
        message: &impl Serialize,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let bytes = serde_json::to_vec(message).expect("our own types are JSON");
        if bytes.len() > MAX_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = descriptor.map(|descriptor| [descriptor]);
        if let Some(descriptors) = &descriptors {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        rustix::net::sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// The next message; `None` when the other process has ended.
    pub(super) fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Option<OwnedFd>)>> {
        let mut bytes = vec![0; MAX_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::net::recvmsg(
            &self.0,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        );
        let received = match received {
            Err(rustix::io::Errno::CONNRESET) => return Ok(None),
            received => received?,
        };
        if received.bytes == 0 {
            return Ok(None);
        }
        let descriptor = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        let message = serde_json::from_slice(&bytes[..received.bytes])?;
        Ok(Some((message, descriptor)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Seek, Write};

    #[test]
    fn messages_carry_descriptors() {
        let (ours, theirs) = Channel::pair().expect("a pair");
        let theirs = Channel(theirs);
        ours.send(&Order { resume: false }, None).expect("it is sent");
        let mut file = tempfile::tempfile().expect("a file");
        ours.send(&Order { resume: true }, Some(file.as_fd())).expect("it is sent");
        let (order, descriptor) = theirs.receive::<Order>().expect("a message").expect("one");
        assert!(!order.resume && descriptor.is_none());
        let (order, descriptor) = theirs.receive::<Order>().expect("a message").expect("one");
        assert!(order.resume);
        let mut other = File::from(descriptor.expect("a descriptor"));
        file.write_all(b"the same").expect("it is written");
        other.rewind().expect("it rewinds");
        let mut text = String::new();
        other.read_to_string(&mut text).expect("it is read");
        assert_eq!(text, "the same");
        drop(ours);
        assert!(theirs.receive::<Order>().expect("an end").is_none());
    }
}
