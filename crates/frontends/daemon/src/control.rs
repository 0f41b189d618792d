//! The control socket of a disk's server, for `farblock list` and `farblock detach`. A request and
//! an answer are one line of JSON each. Only users who can open the attachment's folder can use the
//! socket.

use super::folder::Folder;
use super::status::{Offer, Status};
use super::system::{self, Listener, Stream};
use super::ways::StopError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::time::Duration;

/// Maximum size of a request or an answer, in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// Time limit for a client to send its request. The same limit applies to reading the answer.
pub(super) const WAIT_LIMIT: Duration = Duration::from_secs(5);
const SOCKET: &str = "control";

#[derive(Serialize, Deserialize, Debug)]
pub(super) enum ControlRequest {
    Status,
    /// The status without the disk's users. To find users, the server would search the open files
    /// of all processes.
    Paths,
    /// The whole status. The server also measures latencies from now on.
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
    /// Makes the client the server's supervisor. The answer is a channel (see
    /// [`messages`](super::messages)), not a line.
    #[cfg(target_os = "linux")]
    Adopt,
}

#[derive(Serialize, Deserialize, Debug)]
pub(super) enum Answer {
    Status(Box<Status>),
    /// The URL of each path, and the error if the authentication on that path failed.
    Authenticated(Vec<(String, Option<String>)>),
    Detached,
    PathAdded(Offer),
    /// The address leads to another namespace.
    OtherNamespace,
    Refused(StopError),
}

/// Listens on the control socket in this folder.
pub(super) fn listen(folder: &Folder) -> io::Result<Listener> {
    Listener::bind(&folder.path(SOCKET))
}

/// Sends a request or an answer.
pub(super) fn send(mut stream: &Stream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message).expect("requests and answers serialize to JSON");
    line.push(b'\n');
    stream.write_all(&line)
}

/// Receives a request or an answer.
pub(super) fn receive<T: DeserializeOwned>(stream: &Stream) -> io::Result<T> {
    let mut line = Vec::new();
    BufReader::new(stream.take(MAX_BYTES)).read_until(b'\n', &mut line)?;
    Ok(serde_json::from_slice(&line)?)
}

/// Asks a server for its status. An older server closes the connection on an unknown request. This
/// function then sends the oldest status request, but not after a timeout.
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

/// Sends a request and waits for the answer, for at most `patience`; `None` waits forever.
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
    fn a_request_is_repeated_only_after_a_closed_connection() {
        for (kind, is_asked) in [
            (io::ErrorKind::UnexpectedEof, true),
            (io::ErrorKind::ConnectionReset, true),
            (io::ErrorKind::WouldBlock, false),
            (io::ErrorKind::TimedOut, false),
            (io::ErrorKind::NotFound, false),
        ] {
            assert_eq!(is_hung_up_on(&io::Error::from(kind)), is_asked, "{kind}");
        }
        // The answer is empty if the server exits before it answers.
        let nothing = serde_json::from_slice::<Answer>(b"").unwrap_err();
        assert!(is_hung_up_on(&io::Error::from(nothing)));
    }
}
