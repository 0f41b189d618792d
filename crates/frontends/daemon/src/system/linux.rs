//! The Linux implementation of [`system`](super): a socket pair for messages, `flock` for locks,
//! and a Unix socket for control.

mod holder;

use farblock_program::error::{Failure, Result, os};
use farblock_program::notify;
pub(in super::super) use farblock_program::notify::Notifier;
pub(in super::super) use holder::kill_holder;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, socket_with,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A descriptor that one process passes to another.
pub(in super::super) type Descriptor = OwnedFd;
/// A connection to a [`Listener`].
pub(in super::super) type Stream = UnixStream;

/// Maximum size of a message, in bytes.
const MAX_BYTES: usize = 64 << 10;

/// One end of a socket pair. The other end is the standard input of another process. A packet may
/// carry a descriptor.
#[derive(Debug)]
pub(in super::super) struct Channel(OwnedFd);

impl Channel {
    fn pair() -> io::Result<(Channel, OwnedFd)> {
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (ours, theirs) = rustix::net::socketpair(kind.0, kind.1, kind.2, None)?;
        Ok((Channel(ours), theirs))
    }

    /// Starts a process whose standard input is the other end of a new channel.
    pub(in super::super) fn start(mut command: Command) -> io::Result<(Channel, Child)> {
        let (ours, theirs) = Channel::pair()?;
        command.stdin(theirs).stdout(Stdio::null()).current_dir("/");
        Ok((ours, command.spawn()?))
    }

    /// The channel to the process that started this one.
    pub(in super::super) fn inherited() -> io::Result<Channel> {
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        // Fails unless standard input is a socket, as when a user runs an internal subcommand.
        rustix::net::sockopt::socket_type(&input)?;
        Ok(Channel(input))
    }

    pub(in super::super) fn send(
        &self,
        message: &impl Serialize,
        descriptor: Option<&Descriptor>,
    ) -> io::Result<()> {
        let bytes = serde_json::to_vec(message).expect("the message serializes to JSON");
        if bytes.len() > MAX_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = descriptor.map(|descriptor| [descriptor.as_fd()]);
        if let Some(descriptors) = &descriptors {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        rustix::net::sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Receives the next message; `None` after the other process has exited.
    pub(in super::super) fn receive<T: DeserializeOwned>(
        &self,
    ) -> io::Result<Option<(T, Option<Descriptor>)>> {
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

/// Makes a new channel, and sends its other end to the client.
pub(in super::super) fn send_channel(stream: &Stream) -> io::Result<Channel> {
    let (ours, theirs) = Channel::pair()?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [theirs.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    rustix::net::sendmsg(stream, &[IoSlice::new(b"\n")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(ours)
}

pub(in super::super) fn receive_channel(stream: &Stream) -> io::Result<Channel> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    rustix::net::recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
    let end = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    end.map(Channel).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Creates and locks a file. `None` if another process holds the lock, or on another failure.
pub(in super::super) fn lock(path: &Path) -> Option<Descriptor> {
    let mut options = File::options();
    let file = options.create(true).truncate(false).write(true).mode(0o600).open(path).ok()?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    // Another process may have removed this file before it was locked.
    path.exists().then(|| file.into())
}

/// Locks a folder itself, without a lock file. Returns `None` if another process has locked it, or
/// if the folder cannot be opened.
pub(in super::super) fn lock_folder(folder: &Path) -> Option<Descriptor> {
    let folder = File::open(folder).ok()?;
    rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(folder.into())
}

/// Whether a process has locked a file. Returns false if the file cannot be opened.
pub(in super::super) fn is_locked(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_err()
}

/// Creates a folder and its parents. Only this user can access them.
pub(in super::super) fn make_private(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Checks that no other user can change the folder or, with `closed`, read it. The error states the
/// problem and what to do.
pub(in super::super) fn check_private(folder: &Path, closed: bool) -> Result<(), String> {
    // Check a link itself, not its target: another user may change the link.
    let found = fs::symlink_metadata(folder).map_err(|error| os(&error))?;
    let (ours, mode) = (rustix::process::geteuid().as_raw(), found.mode() & 0o777);
    if found.is_symlink() {
        return Err("this is a symbolic link: use the folder itself".to_owned());
    }
    if !found.is_dir() {
        return Err("this is not a folder: use a folder".to_owned());
    }
    if found.uid() != ours {
        let owner = found.uid();
        return Err(format!("this belongs to another user ({owner}, not {ours}): remove it"));
    }
    if mode & if closed { 0o077 } else { 0o022 } != 0 {
        return Err(format!("other users have access (mode {mode:04o}): run chmod 700 on it"));
    }
    if closed {
        // The caller has checked the runtime directory, which contains this folder.
        return Ok(());
    }
    match farblock_admin_api::step_of_others(folder).map_err(|error| os(&error))? {
        None => Ok(()),
        Some(step) => Err(step.to_string()),
    }
}

/// Whether the folder's file system is full.
pub(in super::super) fn is_full(folder: &Path) -> bool {
    let room = rustix::fs::statvfs(folder);
    // Ignore the free files of file systems that report a total of 0 files: they have no limit.
    room.is_ok_and(|room| room.f_bavail == 0 || room.f_files > 0 && room.f_favail == 0)
}

/// Opens a file for appending. Only its owner can read a new file.
pub(in super::super) fn append(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).mode(0o600).open(path)
}

/// The default runtime directory.
pub(in super::super) fn runtime() -> Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok("/run/farblock".into());
    }
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let own = own.filter(|path| path.is_absolute());
    own.map(|path| path.join("farblock")).ok_or_else(|| {
        Failure::usage(
            "attachments need a directory, but $XDG_RUNTIME_DIR is not set: give --runtime-dir",
        )
    })
}

/// The folder with the configuration files for `--restore`.
pub(in super::super) fn configurations() -> Result<PathBuf> {
    Ok("/etc/farblock/attach.d".into())
}

/// The server's control socket.
pub(in super::super) struct Listener(UnixListener);

impl Listener {
    pub(in super::super) fn bind(path: &Path) -> io::Result<Listener> {
        // This process holds the server's lock, so an existing socket file is from a dead server.
        let _ = fs::remove_file(path);
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        Ok(Listener(listener))
    }

    pub(in super::super) fn accept(&self) -> io::Result<Stream> {
        Ok(self.0.accept()?.0)
    }

    /// Admits every client: the socket file's mode limits who can connect.
    pub(in super::super) fn admit(&self, _: &Stream) -> io::Result<()> {
        Ok(())
    }
}

/// Connects to the [`Listener`] at this path. Fails at once if the listener's queue is full.
pub(in super::super) fn connect(path: &Path) -> io::Result<Stream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // A blocking connect would hang while the server is stopped (SIGSTOP).
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?).map_err(|error| match error {
        Errno::AGAIN => io::ErrorKind::TimedOut.into(),
        _ => io::Error::from(error),
    })?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Prepares a command that outlives this process and its terminal. On Linux, [`begin_daemon`] does
/// the work.
pub(in super::super) fn make_daemon(_: &mut Command) {}

/// Makes this process independent of its parent and its terminal. A daemon must call this first.
pub(in super::super) fn begin_daemon() -> io::Result<()> {
    // Leave the terminal, so that its signals no longer arrive.
    rustix::process::setsid()?;
    Ok(())
}

/// Keeps systemd's notification socket from a command: only the supervisor may notify systemd.
pub(in super::super) fn make_server(command: &mut Command) {
    Notifier::hide_from(command);
}

/// Returns the descriptor that an earlier supervisor gave systemd under this name, if it is still
/// usable. See [`notify::handed_over`] for when to call this.
pub(in super::super) fn handed_over(name: &str) -> Option<Descriptor> {
    let taken = notify::handed_over().into_iter().filter(|(its_name, _)| its_name == name);
    taken.map(|(_, descriptor)| descriptor).find(notify::lives)
}

/// Keeps child processes from inheriting this process's standard files. On Linux, that needs no
/// action.
pub(in super::super) fn keep_own_files() {}

/// The ID of this process, for users.
pub(in super::super) fn own_process() -> String {
    format!("{}\n", std::process::id())
}

/// A path of this program that works even if its file was removed.
pub(in super::super) fn program(path: &Path) -> &Path {
    // A newer version of the file is usable, too.
    if path.exists() { path } else { Path::new("/proc/self/exe") }
}

#[cfg(test)]
mod tests {
    use super::super::super::messages::Order;
    use super::*;
    use std::io::{Read, Seek, Write};

    #[test]
    fn connecting_to_a_listener_that_does_not_accept_times_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("control");
        let listener = Listener::bind(&path).expect("the socket listens");
        rustix::net::listen(&listener.0, 1).expect("the listener gets a short queue");
        let mut waiting = Vec::new();
        let error = loop {
            match connect(&path) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
        };
        assert!(error.kind() == io::ErrorKind::TimedOut && !waiting.is_empty(), "{error}");
        waiting.iter().for_each(|_| drop(listener.accept().expect("a waiting client")));
        connect(&path).expect("the queue has room again");
    }

    #[test]
    fn messages_carry_descriptors() {
        let (ours, theirs) = Channel::pair().expect("a pair");
        let theirs = Channel(theirs);
        ours.send(&Order::serve(false), None).expect("the bytes are sent");
        let mut file = tempfile::tempfile().expect("a file");
        let copy = OwnedFd::from(file.try_clone().expect("a copy"));
        ours.send(&Order::serve(true), Some(&copy)).expect("the bytes are sent");
        let (order, descriptor) =
            theirs.receive::<Order>().expect("a message").expect("the channel is open");
        assert!(!order.resume && descriptor.is_none());
        let (order, descriptor) =
            theirs.receive::<Order>().expect("a message").expect("the channel is open");
        assert!(order.resume);
        let mut other = File::from(descriptor.expect("a descriptor"));
        file.write_all(b"the same").expect("the data is written");
        other.rewind().expect("a seekable file");
        let mut text = String::new();
        other.read_to_string(&mut text).expect("the file is read");
        assert_eq!(text, "the same");
        drop(ours);
        assert!(theirs.receive::<Order>().expect("an end").is_none());
    }
}
