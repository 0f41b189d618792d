//! Resumes a mount whose server was killed.
//!
//! The kernel ends a mount when the last descriptor of its connection is closed. So a process that
//! holds a duplicate descriptor ([`Server::connection`](super::Server::connection)) keeps the mount
//! after the server died. New requests wait, and the next server reads them from this descriptor.
//! The dead server may have read requests without answering them. The next server asks the kernel
//! to send these requests again (`FUSE_NOTIFY_RESEND`, Linux 6.9).
//!
//! The library (fuser) starts every session with the kernel's greeting (`FUSE_INIT`). The kernel
//! sends this greeting only once, when the mount is made. So we start the session on one end of a
//! socket pair and send a greeting from the other end. Then we replace the session's end with the
//! kernel's connection (`dup3`).

use fuser::{Config, Filesystem, Session};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::DupFlags;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;
use std::mem::ManuallyDrop;

/// The sizes of `struct fuse_in_header` and `struct fuse_init_in` of `linux/fuse.h`, in bytes.
const HEADER_BYTES: usize = 40;
const INIT_BYTES: usize = 64;
const OPCODE_INIT: u32 = 26;
const MAJOR: u32 = 7;
const MINOR: u32 = 40;
/// `FUSE_INIT_EXT`: the message has a second word of flags, which contains `FUSE_HAS_RESEND`.
const FLAGS: u32 = 1 << 30;
const MORE_FLAGS: u32 = 1 << (39 - 32);
const MAX_READAHEAD_BYTES: u32 = 128 << 10;
/// `FUSE_NOTIFY_RESEND`, which the error field of a notification contains.
const NOTIFY_RESEND: u32 = 7;
/// The size of the buffer for the answer to the greeting, in bytes. Larger than any answer.
const ANSWER_BYTES: usize = 256;

/// Makes a session on the connection of a killed server's mount. The caller must run the session at
/// once, because the kernel sends the unanswered requests again.
pub(super) fn session<F: Filesystem>(
    filesystem: F,
    connection: &OwnedFd,
    config: Config,
) -> io::Result<Session<F>> {
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::net::send(&theirs, &greeting(), SendFlags::NOSIGNAL)?;
    let session = Session::from_fd(filesystem, ours, config.acl, config)?;
    let mut answer = [0; ANSWER_BYTES];
    let (received, _) = rustix::net::recv(&theirs, &mut answer, RecvFlags::DONTWAIT)?;
    if received == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    exchange(session.as_fd(), connection)?;
    rustix::io::write(connection, &resend())?;
    Ok(session)
}

/// Makes `descriptor` a duplicate of `file` (`dup3`).
fn exchange(descriptor: BorrowedFd<'_>, file: &OwnedFd) -> io::Result<()> {
    // SAFETY: the descriptor stays open while it is borrowed, and `ManuallyDrop` does not close it.
    // Afterwards its owner, the session, uses the new file.
    let mut target = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(descriptor.as_raw_fd()) });
    Ok(rustix::io::dup3(file, &mut target, DupFlags::CLOEXEC)?)
}

/// A `FUSE_INIT` message like the kernel's, with the fields that the library reads.
fn greeting() -> [u8; HEADER_BYTES + INIT_BYTES] {
    let mut bytes = [0; HEADER_BYTES + INIT_BYTES];
    let mut put = |at: usize, value: u32| {
        bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    };
    put(0, (HEADER_BYTES + INIT_BYTES) as u32);
    put(4, OPCODE_INIT);
    // The request's identifier may be any number but zero, so its byte order does not matter.
    put(8, 1);
    put(HEADER_BYTES, MAJOR);
    put(HEADER_BYTES + 4, MINOR);
    put(HEADER_BYTES + 8, MAX_READAHEAD_BYTES);
    put(HEADER_BYTES + 12, FLAGS);
    put(HEADER_BYTES + 16, MORE_FLAGS);
    bytes
}

/// A `FUSE_NOTIFY_RESEND` notification: a `struct fuse_out_header` without a body.
fn resend() -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&16_u32.to_ne_bytes());
    bytes[4..8].copy_from_slice(&NOTIFY_RESEND.to_ne_bytes());
    bytes
}
