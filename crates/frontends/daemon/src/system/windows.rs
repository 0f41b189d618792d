//! The Windows implementation of [`system`](super): pipes for messages, exclusively opened files
//! for locks, and a port of 127.0.0.1 with a secret for control.
//!
//! **The control socket is a TCP port of 127.0.0.1.** A file holds the port number and 32 random
//! bytes that a client must send first. Only users who can open the folder can read that file. A
//! named pipe would need its own security descriptor and timeouts. Unix sockets need Windows 1803,
//! and Rust's standard library does not support them on Windows.

mod calls;

pub(in super::super) use calls::{keep_own_files, kill_holder, own_process};
use farblock_program::error::{Failure, Result, os};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::windows::fs::OpenOptionsExt;
use std::os::windows::io::{AsHandle, OwnedHandle};
use std::os::windows::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use windows_sys::Win32::Foundation::ERROR_SHARING_VIOLATION;
use windows_sys::Win32::System::Threading::{
    CREATE_NEW_PROCESS_GROUP, CREATE_NO_WINDOW, DETACHED_PROCESS,
};

/// A handle that one process passes to another.
pub(in super::super) type Descriptor = OwnedHandle;
/// A connection to a [`Listener`].
pub(in super::super) type Stream = TcpStream;

/// Maximum size of a message, in bytes.
const MAX_BYTES: u64 = 64 << 10;
/// Length of the secret that clients must send, in bytes.
const SECRET_BYTES: usize = 32;
/// Flags of `CreateFile`.
const GENERIC_WRITE: u32 = 0x4000_0000;
const DELETE: u32 = 0x0001_0000;
const FILE_FLAG_DELETE_ON_CLOSE: u32 = 0x0400_0000;
/// Number of attempts to lock a file that another process has open for a moment.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// Two pipes to another process: its standard input and output. A message is a line of JSON. A
/// message to a child process may carry a handle.
pub(in super::super) struct Channel {
    from: Mutex<BufReader<Box<dyn Read + Send>>>,
    to: Mutex<Box<dyn Write + Send>>,
    /// The child process, which can receive handles. `None` in the child.
    peer: Option<OwnedHandle>,
}

#[derive(Serialize, Deserialize)]
struct Packet<T> {
    message: T,
    handle: Option<calls::Given>,
}

impl Channel {
    fn new(from: impl Read + Send + 'static, to: impl Write + Send + 'static) -> Channel {
        let from: Box<dyn Read + Send> = Box::new(from);
        Channel { from: Mutex::new(BufReader::new(from)), to: Mutex::new(Box::new(to)), peer: None }
    }

    /// Starts a process with the other ends of two new pipes.
    pub(in super::super) fn start(mut command: Command) -> io::Result<(Channel, Child)> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // Windows cannot remove a directory in which a process runs, so run the child in one that
        // stays.
        if let Some(root) = std::env::var_os("SystemRoot") {
            command.current_dir(root);
        }
        let mut child = command.spawn()?;
        let (from, to) = (child.stdout.take(), child.stdin.take());
        let mut channel = Channel::new(from.expect("a pipe"), to.expect("a pipe"));
        channel.peer = Some(child.as_handle().try_clone_to_owned()?);
        Ok((channel, child))
    }

    /// The channel to the process that started this one.
    pub(in super::super) fn inherited() -> io::Result<Channel> {
        if io::stdin().is_terminal() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let from = File::from(io::stdin().as_handle().try_clone_to_owned()?);
        let to = File::from(io::stdout().as_handle().try_clone_to_owned()?);
        Ok(Channel::new(from, to))
    }

    pub(in super::super) fn send(
        &self,
        message: &impl Serialize,
        descriptor: Option<&Descriptor>,
    ) -> io::Result<()> {
        let handle = match (&self.peer, descriptor) {
            (Some(peer), Some(descriptor)) => Some(calls::give(descriptor, peer)?),
            (None, Some(_)) => return Err(io::ErrorKind::Unsupported.into()),
            (_, None) => None,
        };
        let packet = Packet { message, handle };
        let mut line = serde_json::to_vec(&packet).expect("the message serializes to JSON");
        line.push(b'\n');
        let mut to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        to.write_all(&line)?;
        to.flush()
    }

    /// Receives the next message; `None` after the other process has exited.
    pub(in super::super) fn receive<T: DeserializeOwned>(
        &self,
    ) -> io::Result<Option<(T, Option<Descriptor>)>> {
        let mut line = Vec::new();
        let mut from = self.from.lock().unwrap_or_else(PoisonError::into_inner);
        (&mut *from).take(MAX_BYTES).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(None);
        }
        let packet: Packet<T> = serde_json::from_slice(&line)?;
        // Only a parent duplicates handles into its child. A handle number from a child is invalid.
        if packet.handle.is_some() && self.peer.is_some() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Some((packet.message, packet.handle.map(calls::take).transpose()?)))
    }
}

/// Locks a folder through a file in it, which Windows removes on unlock. `None` if another process
/// holds the lock, or on another failure.
pub(in super::super) fn lock_folder(folder: &Path) -> Option<Descriptor> {
    let mut options = File::options();
    options.create(true).truncate(false).write(true).share_mode(0);
    options.access_mode(GENERIC_WRITE | DELETE).custom_flags(FILE_FLAG_DELETE_ON_CLOSE);
    options.open(folder.join(".lock")).ok().map(OwnedHandle::from)
}

/// Creates and locks a file. `None` if another process holds the lock, or on another failure.
pub(in super::super) fn lock(path: &Path) -> Option<Descriptor> {
    for attempt in 0..LOCK_TRIES {
        let mut options = File::options();
        match options.create(true).truncate(false).write(true).share_mode(0).open(path) {
            Ok(file) => return Some(file.into()),
            // Retry, because is_locked() and virus scanners open the file only for a moment.
            Err(error) if is_sharing(&error) && attempt + 1 < LOCK_TRIES => {
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(_) => break,
        }
    }
    None
}

/// Whether a process has locked a file.
pub(in super::super) fn is_locked(path: &Path) -> bool {
    File::open(path).is_err_and(|error| is_sharing(&error))
}

fn is_sharing(error: &io::Error) -> bool {
    error.raw_os_error() == Some(ERROR_SHARING_VIOLATION.cast_signed())
}

/// Creates a folder and its parents. Only this user and administrators can access them.
pub(in super::super) fn make_private(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    if let Some(parent) = folder.parent() {
        make_private(parent)?;
    }
    match calls::make_private(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
        made => made,
    }
}

/// Checks nothing: [`base`] ensures that the default folders are private, and the user is
/// responsible for folders that the user names.
pub(in super::super) fn check_private(_: &Path, _: bool) -> Result<(), String> {
    Ok(())
}

/// Returns false: farblock does not check this on Windows.
pub(in super::super) fn is_full(_: &Path) -> bool {
    false
}

/// Opens a file for appending. The permissions of the folder determine who can read it.
pub(in super::super) fn append(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).open(path)
}

/// The base directory for attachments: the machine's for an administrator, otherwise the user's.
pub(in super::super) fn base() -> Result<PathBuf> {
    let elevated = calls::is_elevated();
    let place = calls::data_folder(elevated).map_err(|error| {
        Failure::run(format_args!(
            "Windows reports no directory for attachments: {}; give --runtime-dir",
            os(&error)
        ))
    })?;
    let base = place.join("farblock");
    // Any user may have created this folder in %ProgramData%, and would then own it.
    if elevated && base.exists() {
        let trusted = calls::is_trusted(&base).map_err(|error| {
            Failure::run(format_args!(
                "cannot read the owner of {}: {}",
                base.display(),
                os(&error)
            ))
        })?;
        if !trusted {
            return Err(Failure::run(format_args!(
                "{} belongs neither to you nor to an administrator: remove it",
                base.display()
            )));
        }
    }
    Ok(base)
}

/// The default runtime directory.
pub(in super::super) fn runtime() -> Result<PathBuf> {
    Ok(base()?.join("run"))
}

/// The folder with the configuration files for `--restore`.
pub(in super::super) fn configurations() -> Result<PathBuf> {
    Ok(base()?.join("attach.d"))
}

/// The server's control socket.
pub(in super::super) struct Listener {
    listener: TcpListener,
    secret: String,
}

impl Listener {
    pub(in super::super) fn bind(path: &Path) -> io::Result<Listener> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let mut secret = [0; SECRET_BYTES];
        getrandom::fill(&mut secret).map_err(io::Error::other)?;
        let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        let port = listener.local_addr()?.port();
        let new = path.with_extension("new");
        fs::write(&new, format!("{port} {secret}"))?;
        farblock_program::replace::put_over(&new, path)?;
        Ok(Listener { listener, secret })
    }

    pub(in super::super) fn accept(&self) -> io::Result<Stream> {
        Ok(self.listener.accept()?.0)
    }

    /// Admits a client that sends the secret.
    pub(in super::super) fn admit(&self, mut stream: &Stream) -> io::Result<()> {
        let mut said = vec![0; self.secret.len()];
        stream.read_exact(&mut said)?;
        // A comparison in constant time does not reveal how many bytes of a guess are right.
        let pairs = said.iter().zip(self.secret.as_bytes());
        match pairs.fold(0, |differs, (said, right)| differs | (said ^ right)) {
            0 => Ok(()),
            _ => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}

/// Connects to a [`Listener`] bound to this path.
pub(in super::super) fn connect(path: &Path) -> io::Result<Stream> {
    let text = fs::read_to_string(path)?;
    let (port, secret) = text.split_once(' ').ok_or(io::ErrorKind::InvalidData)?;
    let port: u16 = port.parse().map_err(|_| io::ErrorKind::InvalidData)?;
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.write_all(secret.as_bytes())?;
    Ok(stream)
}

/// Prepares a command that outlives this process and its console.
pub(in super::super) fn make_daemon(command: &mut Command) {
    command.creation_flags(DETACHED_PROCESS | CREATE_NEW_PROCESS_GROUP);
}

/// Makes this process independent of its parent. Windows needs no action.
pub(in super::super) fn begin_daemon() -> io::Result<()> {
    Ok(())
}

/// Detaches a command from this process's console. Ctrl-C then reaches only the supervisor, which
/// asks the server to exit.
pub(in super::super) fn make_server(command: &mut Command) {
    command.creation_flags(CREATE_NO_WINDOW);
}

/// Returns the path of this program. Windows does not remove the file of a running program.
pub(in super::super) fn program(path: &Path) -> &Path {
    path
}

/// Stands in for the connection to systemd.
pub(in super::super) struct Notifier;

impl Notifier {
    pub(in super::super) fn from_environment() -> Notifier {
        Notifier
    }

    pub(in super::super) fn ready(&self, _: &str) {}

    pub(in super::super) fn status(&self, _: &str) {}

    pub(in super::super) fn stopping(&self, _: &str) {}

    pub(in super::super) fn store(&self, _: &str, _: &Descriptor) {}

    pub(in super::super) fn forget(&self, _: &str) {}
}

/// Returns `None`: Windows keeps no descriptors for the next supervisor.
pub(in super::super) fn handed_over(_: &str) -> Option<Descriptor> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_exclusive_and_can_be_handed_over() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lock");
        assert!(!is_locked(&path));
        let held = lock(&path).expect("the lock is free");
        assert!(is_locked(&path));
        assert!(lock(&path).is_none());
        let other = held.try_clone().expect("a copy");
        drop(held);
        assert!(is_locked(&path), "a copy of the handle does not hold the lock");
        drop(other);
        assert!(!is_locked(&path));
    }

    #[test]
    fn a_private_folder_is_trusted() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a").join("b");
        make_private(&path).expect("the file is private");
        make_private(&path).expect("the file exists");
        assert!(calls::is_trusted(&path).expect("an owner"));
        append(&path.join("log")).expect("a writable folder");
        assert!(calls::data_folder(true).expect("a folder of the system").is_dir());
        assert!(calls::data_folder(false).expect("a folder of the user").is_dir());
    }

    #[test]
    fn a_client_without_the_secret_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("control");
        let listener = Listener::bind(&path).expect("a port");
        let _client = connect(&path).expect("the client connects");
        listener.admit(&listener.accept().expect("a client")).expect("the client knows the secret");
        let (port, secret) = (
            listener.listener.local_addr().expect("the listener has an address").port(),
            &listener.secret,
        );
        let last = if secret.ends_with('0') { '1' } else { '0' };
        let wrong = format!("{}{last}", &secret[..secret.len() - 1]);
        let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("a port");
        client.write_all(wrong.as_bytes()).expect("the bytes are sent");
        let error =
            listener.admit(&listener.accept().expect("a client")).expect_err("the secret is wrong");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }
}
