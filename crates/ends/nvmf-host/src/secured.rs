//! A socket, with TLS on it if that is asked for; synchronous, as the beginning of a connection.

use crate::key_file;
use crate::options::Options;
use farblock_proto::host::{ConnectError, Identity};
use farblock_reactor::os::{self, Socket};
use farblock_secure::TlsPsk;
use farblock_tls::{Tls, TlsError};
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

/// Most bytes received at once.
const CHUNK_BYTES: usize = 16 << 10;
/// What is waited for during the handshake.
const DURING: &str = "the handshake of TLS";

/// See the module's text.
pub(crate) struct Secured {
    pub(crate) socket: Socket,
    pub(crate) tls: Option<Box<dyn Tls>>,
}

/// Why there is no connection with a key.
pub(crate) enum Refusal {
    /// Another key may do.
    Key(ConnectError),
    /// None does.
    Connection(ConnectError),
}

/// Every pre-shared key that may be the one that the controller has; none without TLS. The file is
/// read each time, so that whoever reconnects uses what is in it then.
pub(crate) fn psks(
    identity: &Identity<'_>,
    options: &Options,
    generated: &[TlsPsk],
) -> Result<Option<Vec<TlsPsk>>, ConnectError> {
    if !generated.is_empty() {
        return Ok(Some(generated.to_vec()));
    }
    let Some(path) = &options.tls_key else { return Ok(None) };
    let in_keyring = path.to_str().and_then(|text| text.strip_prefix(key_file::KEYRING));
    if let Some(name) = in_keyring {
        return in_kernel(name, identity).map(Some).map_err(ConnectError::KeyFile);
    }
    let keys = key_file::read_tls(path).map_err(ConnectError::KeyFile)?;
    let psks = keys.iter().flat_map(|key| key.psks(identity.hostnqn, identity.subnqn)).collect();
    Ok(Some(psks))
}

/// The keys in the kernel's keyrings.
#[cfg(target_os = "linux")]
fn in_kernel(name: &str, identity: &Identity<'_>) -> Result<Vec<TlsPsk>, String> {
    crate::keyring::read(name, identity)
}

#[cfg(not(target_os = "linux"))]
fn in_kernel(_: &str, _: &Identity<'_>) -> Result<Vec<TlsPsk>, String> {
    Err("there are no keyrings on this system: name a file".to_owned())
}

impl Secured {
    pub(crate) fn plain(socket: Socket) -> Self {
        Self { socket, tls: None }
    }

    /// Has everything that follows go through TLS.
    pub(crate) fn with(socket: Socket, psk: &TlsPsk, time: Duration) -> Result<Self, Refusal> {
        let failed = |error: TlsError| {
            let sentence = words(&error, psk);
            match error {
                TlsError::Refused(_) => Refusal::Key(ConnectError::Tls(sentence)),
                _ => Refusal::Connection(ConnectError::Tls(sentence)),
            }
        };
        let io =
            |error: io::Error| Refusal::Connection(crate::handshake::from_io(&error, DURING, time));
        let mut tls = farblock_tls::client(psk.clone()).map_err(failed)?;
        let mut secured = Self::plain(socket);
        let deadline = os::now() + time;
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let done = tls.handshake();
            let sent = send(&mut secured.socket, &mut *tls);
            if done.map_err(failed)? {
                sent.map_err(io)?;
                break;
            }
            sent.map_err(io)?;
            let left = deadline.saturating_duration_since(os::now());
            if left.is_zero() {
                return Err(io(io::ErrorKind::TimedOut.into()));
            }
            secured.socket.set_read_timeout(Some(left)).map_err(io)?;
            match secured.socket.read(&mut chunk) {
                Ok(0) => return Err(Refusal::Key(ConnectError::Tls(hung_up(psk)))),
                Ok(count) => tls.feed(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(Refusal::Key(ConnectError::Tls(hung_up(psk))));
                }
                Err(error) => return Err(io(error)),
            }
        }
        tracing::debug!(identity = %psk.identity, key = %psk.derivation, "TLS");
        secured.tls = Some(tls);
        Ok(secured)
    }

    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return self.socket.write_all(bytes) };
        tls.write(bytes).and_then(|()| tls.flush()).map_err(broken)?;
        send(&mut self.socket, &mut **tls)
    }

    /// Appends what comes to `input`; until `deadline`. True at the end of the stream.
    pub(crate) fn read(&mut self, input: &mut Vec<u8>, deadline: Instant) -> io::Result<bool> {
        let left = deadline.saturating_duration_since(os::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.socket.set_read_timeout(Some(left))?;
        let start = input.len();
        input.resize(start + CHUNK_BYTES, 0);
        let result = self.socket.read(&mut input[start..]);
        let count = *result.as_ref().unwrap_or(&0);
        match &mut self.tls {
            None => input.truncate(start + count),
            Some(tls) => {
                let sealed = input.split_off(start);
                tls.feed(&sealed[..count]);
                open(&mut **tls, input)?;
                send(&mut self.socket, &mut **tls)?;
            }
        }
        match result {
            Ok(count) => Ok(count == 0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Appends all that can be read.
fn open(tls: &mut dyn Tls, input: &mut Vec<u8>) -> io::Result<()> {
    loop {
        let start = input.len();
        input.resize(start + tls.readable_bytes(), 0);
        let read = tls.read(&mut input[start..]);
        input.truncate(start + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            // What came before it counts, and the socket's end says the rest.
            Err(TlsError::Closed) => return Ok(()),
            Err(error) => return Err(broken(error)),
        }
    }
}

fn send(socket: &mut Socket, tls: &mut dyn Tls) -> io::Result<()> {
    let mut out = vec![0; tls.output_bytes()];
    let length = tls.output(&mut out);
    socket.write_all(&out[..length])
}

pub(crate) fn broken(error: TlsError) -> io::Error {
    io::Error::other(error)
}

/// The sentence for people.
fn words(error: &TlsError, psk: &TlsPsk) -> String {
    match error {
        TlsError::NotTls => {
            "the target answers without TLS: give it this host's key (farblock serve --tls-key), \
             or leave --tls-key out here"
                .to_owned()
        }
        TlsError::Refused(reason) => format!(
            "the target refuses TLS: {reason}; compare what `farblock keys derive` lists at both \
             ends (last offered: \"{}\")",
            psk.identity
        ),
        error => error.to_string(),
    }
}

fn hung_up(psk: &TlsPsk) -> String {
    format!(
        "the target hung up during the handshake of TLS: it has no TLS, or does not know the \
         identity \"{}\"",
        psk.identity
    )
}
