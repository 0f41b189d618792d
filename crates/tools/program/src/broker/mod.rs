//! A helper process, the broker, for a process that drops its rights (docs/decisions/0035). The
//! broker keeps these rights and performs the few operations that need them. Its only peer is the
//! process that started it.
//!
//! A process starts its broker before it drops any right. The standard input of the broker is one
//! end of a socket pair. The broker answers requests one after the other. It exits when the other
//! end closes, even if the process was killed. A compromised process may send any request, so each
//! kind of broker acts only on the disk of that process.

pub mod keys;

use crate::error::{Failure, Result, os};
use crate::signals;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use std::ffi::OsStr;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use zeroize::Zeroizing;

const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// The maximum number of file descriptors in a message: one for each connection of an attached
/// disk.
const DESCRIPTORS_MAX: usize = 64;

/// A request or an answer over the socket pair.
#[derive(Default)]
pub struct Message {
    /// The contents, which may include a key: cleared when dropped.
    pub bytes: Zeroizing<Vec<u8>>,
    /// File descriptors that the other end receives as copies.
    pub descriptors: Vec<OwnedFd>,
}

impl Message {
    /// Creates a message without descriptors.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Message {
        Message { bytes: Zeroizing::new(bytes.into()), descriptors: Vec::new() }
    }
}

/// A connection to a broker. Dropping it stops the broker.
pub struct Broker {
    socket: OwnedFd,
    /// A lock that serializes requests.
    turn: Mutex<()>,
}

impl Broker {
    /// Starts a broker: the subcommand `part` of `farblock attachment`, with its arguments.
    ///
    /// # Errors
    /// The broker cannot be started. The error is a sentence for the user.
    pub fn start<S: AsRef<OsStr>>(part: impl IntoIterator<Item = S>) -> Result<Broker, String> {
        let failed = |error: io::Error| {
            format!("cannot start the helper process that keeps the rights: {}", os(&error))
        };
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let pair = rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.map_err(|error| failed(error.into()))?;
        let program = std::env::current_exe().map_err(failed)?;
        // An update may have removed the program's file.
        let program = if program.exists() { &program } else { Path::new("/proc/self/exe") };
        let mut command = Command::new(program);
        command.arg("attachment").args(part);
        command.stdin(theirs).stdout(Stdio::null()).current_dir("/");
        command.spawn().map_err(failed)?;
        Ok(Broker { socket: ours, turn: Mutex::default() })
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    /// Fails if the broker has exited.
    pub fn ask(&self, request: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<Message> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        send(self.socket.as_fd(), request, descriptors)?;
        receive(self.socket.as_fd())?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Waits until the broker exits.
    pub fn wait_for_end(&self) {
        // `poll` reports a hang-up even without requested events.
        let mut polled = [PollFd::new(&self.socket, PollFlags::empty())];
        while !matches!(rustix::event::poll(&mut polled, None), Ok(ready) if ready > 0) {}
    }
}

fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    if bytes.is_empty() || bytes.len() > MESSAGE_BYTES_MAX || descriptors.len() > DESCRIPTORS_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let send =
        || rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
    rustix::io::retry_on_intr(send)?;
    Ok(())
}

/// Receives the next message. Returns `None` when the other end is closed.
fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<Message>> {
    let mut bytes = Zeroizing::new(vec![0; MESSAGE_BYTES_MAX]);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    });
    let received = match received {
        Err(rustix::io::Errno::CONNRESET) => return Ok(None),
        received => received?.bytes,
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            descriptors.extend(some);
        }
    }
    bytes.truncate(received);
    Ok((received > 0).then_some(Message { bytes, descriptors }))
}

/// Runs the main loop of a broker, which answers requests until the other end closes. Ignores
/// signals, because the other process decides when both stop.
pub fn run(mut answer: impl FnMut(Message) -> Message) -> Result<()> {
    let input = io::stdin();
    let is_pair = rustix::net::sockopt::socket_type(&input) == Ok(SocketType::SEQPACKET);
    if !is_pair {
        return Err(Failure::usage("only farblock itself runs this command"));
    }
    signals::on_each(|| {}).map_err(|error| Failure::run(os(&error)))?;
    let failed = |error: io::Error| {
        Failure::run(format_args!(
            "cannot use the socket pair to the other process: {}",
            os(&error)
        ))
    };
    while let Some(request) = receive(input.as_fd()).map_err(failed)? {
        let Message { bytes, descriptors } = answer(request);
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        match send(input.as_fd(), &bytes, &descriptors) {
            // The other process has closed its end, and needs no answer.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            sent => sent.map_err(failed)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .expect("the socket pair is created")
    }

    #[test]
    fn a_message_carries_the_maximum_number_of_descriptors() {
        let (ours, theirs) = pair();
        let files =
            [(); DESCRIPTORS_MAX].map(|()| tempfile::tempfile().expect("the file is created"));
        let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        send(ours.as_fd(), b"some", &borrowed).expect("the bytes are sent");
        let received =
            receive(theirs.as_fd()).expect("a message arrives").expect("the other end is open");
        assert_eq!((&received.bytes[..], received.descriptors.len()), (&b"some"[..], 64));
        drop(ours);
        assert!(receive(theirs.as_fd()).expect("the other end has closed").is_none());
    }

    #[test]
    fn empty_and_too_large_messages_are_refused() {
        let (ours, _theirs) = pair();
        for bytes in [&[][..], &vec![0; MESSAGE_BYTES_MAX + 1]] {
            let refused = send(ours.as_fd(), bytes, &[]).expect_err("the message is invalid");
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        }
        let many = vec![ours.as_fd(); DESCRIPTORS_MAX + 1];
        assert!(send(ours.as_fd(), b"x", &many).is_err());
    }

    #[test]
    fn a_request_fails_and_a_wait_ends_after_the_broker_exited() {
        let (ours, theirs) = pair();
        let broker = Broker { socket: ours, turn: Mutex::default() };
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| broker.wait_for_end());
            drop(theirs);
            waits.join().expect("the call returns");
        });
        assert!(broker.ask(b"x", &[]).is_err());
    }
}
