//! The server's control socket, for `farblock list` and `farblock detach`: one line of JSON each
//! way. Every user who may open the folder may use it.

use super::folder::Folder;
use super::server::DaemonShared;
use super::status::{Offer, Status};
use super::system::{self, Listener, Stream};
use super::ways::StopError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Maximum size of a request or an answer.
const MAX_BYTES: u64 = 1 << 20;
/// Timeout for a client to send its request and to read the answer.
const WAIT_LIMIT: Duration = Duration::from_secs(5);
/// Pause after an accept error, for example when no descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const SOCKET: &str = "control";

#[derive(Serialize, Deserialize, Debug)]
pub(super) enum ControlRequest {
    Status,
    /// Status without the users, whose search reads all processes.
    Paths,
    /// Like [`ControlRequest::Status`]; also starts measuring latencies.
    Measure,
    /// Authenticates this host again on all paths.
    Authenticate,
    Detach {
        force: bool,
    },
    /// Adds another address of the same namespace as a path.
    AddPath {
        url: String,
    },
    /// Makes the client the supervisor. The answer is a channel instead of a line.
    #[cfg(target_os = "linux")]
    Adopt,
}

#[derive(Serialize, Deserialize, Debug)]
pub(super) enum Answer {
    Status(Box<Status>),
    /// All paths, each with its error if the authentication failed.
    Authenticated(Vec<(String, Option<String>)>),
    Detached,
    PathAdded(Offer),
    /// The address leads to another namespace.
    OtherNamespace,
    Refused(StopError),
}

/// Serves the socket until the process ends.
pub(super) fn serve(folder: &Folder, shared: &Arc<DaemonShared>) -> io::Result<()> {
    let listener = Arc::new(Listener::bind(&folder.path(SOCKET))?);
    let shared = Arc::clone(shared);
    thread::Builder::new().name("control".to_owned()).spawn(move || {
        loop {
            let answered = listener.accept().and_then(|stream| {
                let (listener, shared) = (Arc::clone(&listener), Arc::clone(&shared));
                // One thread per client: a detach may take long.
                let thread = thread::Builder::new().name("control-client".to_owned());
                thread.spawn(move || answer(&listener, &stream, &shared)).map(drop)
            });
            if let Err(error) = answered {
                tracing::warn!("cannot serve a client of the control socket: {error}");
                thread::sleep(ACCEPT_PAUSE);
            }
        }
    })?;
    Ok(())
}

fn answer(listener: &Listener, stream: &Stream, shared: &DaemonShared) {
    let answered = stream
        .set_read_timeout(Some(WAIT_LIMIT))
        .and_then(|()| stream.set_write_timeout(Some(WAIT_LIMIT)))
        .and_then(|()| listener.admit(stream))
        .and_then(|()| receive(stream))
        .and_then(|request| {
            #[cfg(target_os = "linux")]
            if matches!(request, ControlRequest::Adopt) {
                return system::send_channel(stream).map(|channel| shared.adopt(channel));
            }
            let answer = match request {
                ControlRequest::Status => Answer::Status(Box::new(shared.status())),
                ControlRequest::Paths => Answer::Status(Box::new(shared.status_without_users())),
                ControlRequest::Measure => {
                    shared.measure();
                    Answer::Status(Box::new(shared.status()))
                }
                ControlRequest::AddPath { url } => shared.add_path(&url),
                #[cfg(target_os = "linux")]
                ControlRequest::Adopt => unreachable!("it was answered"),
                ControlRequest::Authenticate => Answer::Authenticated(shared.authenticate()),
                ControlRequest::Detach { force } => match shared.detach(force) {
                    Ok(()) => Answer::Detached,
                    Err(error) => Answer::Refused(error),
                },
            };
            let ends = matches!(answer, Answer::Detached);
            let sent = send(stream, &answer);
            if ends {
                // End only after the answer is sent: exiting earlier would lose it.
                shared.end();
            }
            sent
        });
    if let Err(error) = answered {
        tracing::debug!("cannot answer a client of the control socket: {error}");
    }
}

fn send(mut stream: &Stream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message).expect("our own types are JSON");
    line.push(b'\n');
    stream.write_all(&line)
}

fn receive<T: DeserializeOwned>(stream: &Stream) -> io::Result<T> {
    let mut line = Vec::new();
    BufReader::new(stream.take(MAX_BYTES)).read_until(b'\n', &mut line)?;
    Ok(serde_json::from_slice(&line)?)
}

/// Asks a server for its status. An older server hangs up on an unknown request; then this asks for
/// a plain status. After a timeout this does not ask again.
pub(super) fn status(
    folder: &Folder,
    request: &ControlRequest,
    patience: Duration,
) -> Option<Status> {
    match ask(folder, request, Some(patience)) {
        Ok(Answer::Status(status)) => Some(*status),
        Err(error) if !matches!(request, ControlRequest::Status) && is_hung_up_on(&error) => {
            status(folder, &ControlRequest::Status, patience)
        }
        _ => None,
    }
}

/// Whether the server closed the connection instead of answering.
fn is_hung_up_on(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, InvalidData, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | InvalidData | UnexpectedEof)
}

/// Sends a request and waits for the answer, at most for `patience`; `None`: without limit.
pub(super) fn ask(
    folder: &Folder,
    request: &ControlRequest,
    patience: Option<Duration>,
) -> io::Result<Answer> {
    receive(&self::request(folder, request, patience)?)
}

/// Sends a request. The caller reads the answer from the stream.
pub(super) fn request(
    folder: &Folder,
    request: &ControlRequest,
    patience: Option<Duration>,
) -> io::Result<Stream> {
    let stream = system::connect(&folder.path(SOCKET))?;
    stream.set_read_timeout(patience)?;
    stream.set_write_timeout(Some(WAIT_LIMIT))?;
    send(&stream, request)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_hangs_up_is_asked_again() {
        for (kind, is_asked) in [
            (io::ErrorKind::UnexpectedEof, true),
            (io::ErrorKind::ConnectionReset, true),
            (io::ErrorKind::WouldBlock, false),
            (io::ErrorKind::TimedOut, false),
            (io::ErrorKind::NotFound, false),
        ] {
            assert_eq!(is_hung_up_on(&io::Error::from(kind)), is_asked, "{kind}");
        }
        // An empty answer, as from a server that exits.
        let nothing = serde_json::from_slice::<Answer>(b"").unwrap_err();
        assert!(is_hung_up_on(&io::Error::from(nothing)));
    }
}
