//! Detects the protocol of a server, before doctor opens an NVMe/TCP connection.
//!
//! A target answers an ICReq at once. Other servers may not: a web server waits for the end of a
//! line, and a TLS server closes the connection. So if no answer arrives, this module tries other
//! protocols.

use crate::error::os;
use farblock_proto::tcp::Digests;
use farblock_proto::tcp::host_end::HostEnd;
use farblock_proto::tcp::recognise;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The first bytes of an ICResp: type, flags, header length.
const IC_RESP: [u8; 3] = [1, 0, 128];
/// The number of bytes at the start of an answer that this module examines.
const HEAD_BYTES: usize = 16;
/// The time limit for each other protocol. It is short, because the server has accepted a
/// connection.
const PROBE_TIME: Duration = Duration::from_secs(2);

const HTTP: &[u8] = b"GET / HTTP/1.0\r\n\r\n";

/// A TLS 1.3 ClientHello with an empty key share. Every TLS server answers it, at least with an
/// alert.
const CLIENT_HELLO: &[u8] = &[
    // Record: handshake, 78 bytes.
    22, 3, 1, 0, 78, //
    // ClientHello, 74 bytes, with the legacy version of TLS 1.3.
    1, 0, 0, 74, 3, 3, //
    // Random bytes of the hello. They are constant here, because no secret depends on them.
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    // No session, two cipher suites, no compression.
    0, 0, 4, 0x13, 1, 0x13, 2, 1, 0, //
    // Extensions, 29 bytes: supported versions, groups, signature algorithms, an empty key share.
    0, 29, 0, 43, 0, 3, 2, 3, 4, 0, 10, 0, 4, 0, 2, 0, 29, 0, 13, 0, 4, 0, 2, 4, 3, 0, 51, 0, 2, 0,
    0,
];

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum FirstAnswer {
    /// An NVMe/TCP target answered after this time.
    Target(Duration),
    /// The server uses TLS: it is a target that requires TLS, or another server.
    Tls,
    /// The server uses another known protocol. The text describes the server.
    Other(&'static str),
    /// The server uses an unknown protocol.
    Strange,
    /// The server closed the connection without an answer.
    Closed,
    /// The server did not answer in time.
    Silence,
    /// The connection failed, with the system's message.
    Failed(String),
}

/// Connects and classifies the server's first answer.
pub(super) fn ask(address: SocketAddr, time: Duration) -> FirstAnswer {
    let mut request = Vec::new();
    HostEnd::new(Digests::NONE, 2).start(&mut request);
    let begin = Instant::now();
    let answer = match exchange(address, &request, time) {
        Ok(answer) if answer.starts_with(&IC_RESP) => {
            return FirstAnswer::Target(begin.elapsed());
        }
        Ok(answer) => judge(&answer).unwrap_or(FirstAnswer::Closed),
        Err(error) if is_timeout(error.kind()) => FirstAnswer::Silence,
        Err(error) if is_hang_up(error.kind()) => FirstAnswer::Closed,
        Err(error) => return FirstAnswer::Failed(os(&error)),
    };
    match answer {
        FirstAnswer::Closed | FirstAnswer::Silence => other_words(address, time).unwrap_or(answer),
        recognised => recognised,
    }
}

/// Tries the other protocols, and returns the first one that the server answers.
fn other_words(address: SocketAddr, time: Duration) -> Option<FirstAnswer> {
    let time = time.min(PROBE_TIME);
    let answers = [CLIENT_HELLO, HTTP].into_iter().filter_map(|words| {
        let answer = judge(&exchange(address, words, time).ok()?)?;
        matches!(answer, FirstAnswer::Tls | FirstAnswer::Other(_)).then_some(answer)
    });
    // The iterator is lazy: it tries the second protocol only if the first one has no result.
    let mut answers = answers;
    answers.next()
}

/// Classifies an answer; `None` if the answer is empty.
fn judge(answer: &[u8]) -> Option<FirstAnswer> {
    Some(match answer {
        [] => return None,
        [0x15 | 0x16, 0x03, ..] => FirstAnswer::Tls,
        answer => match recognise(answer) {
            Some(name) => FirstAnswer::Other(name),
            None => FirstAnswer::Strange,
        },
    })
}

/// Sends `words`, and returns the first bytes of the answer. The answer is empty if the server
/// closes the connection.
fn exchange(address: SocketAddr, words: &[u8], time: Duration) -> std::io::Result<Vec<u8>> {
    let deadline = Instant::now() + time;
    let mut stream = TcpStream::connect_timeout(&address, time)?;
    stream.set_write_timeout(Some(time))?;
    stream.write_all(words)?;
    let mut answer = Vec::new();
    while answer.len() < HEAD_BYTES {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        stream.set_read_timeout(Some(left))?;
        let mut chunk = [0; HEAD_BYTES];
        match stream.read(&mut chunk) {
            Ok(0) => return Ok(answer),
            Ok(count) => answer.extend_from_slice(&chunk[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // Use the bytes that arrived before the error.
            Err(_) if !answer.is_empty() => return Ok(answer),
            Err(error) => return Err(error),
        }
    }
    match answer.is_empty() {
        true => Err(ErrorKind::TimedOut.into()),
        false => Ok(answer),
    }
}

fn is_timeout(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::TimedOut | ErrorKind::WouldBlock)
}

fn is_hang_up(kind: ErrorKind) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    matches!(kind, ConnectionReset | ConnectionAborted | BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_fields_of_the_client_hello_are_correct() {
        let record = &CLIENT_HELLO[5..];
        assert_eq!(usize::from(CLIENT_HELLO[4]), record.len());
        assert_eq!(usize::from(record[3]), record.len() - 4);
        // Version, random bytes, session, suites, compression.
        let extensions = &record[4 + 2 + 32 + 1 + 6 + 2..];
        assert_eq!(usize::from(extensions[1]), extensions.len() - 2);
    }

    #[test]
    fn the_first_bytes_identify_the_protocol_of_the_peer() {
        assert_eq!(judge(b""), None);
        assert_eq!(judge(&[0x15, 3, 3, 0, 2]), Some(FirstAnswer::Tls));
        assert_eq!(judge(b"SSH-2.0-x"), Some(FirstAnswer::Other("an SSH server")));
        assert_eq!(judge(b"hello"), Some(FirstAnswer::Strange));
    }
}
