//! A connection's byte stream, with optional TLS.

use super::carrier::Carrier;
use crate::control::{Local, blocking};
use crate::options::Options;
use crate::tls_keys;
use crate::transport::dial::from_io;
use farblock_proto::host::{ConnectError, Identity};
use farblock_proto::tcp::TcpRefusal;
use farblock_reactor::os;
use farblock_secure::TlsPsk;
use farblock_tls::{Tls, TlsError};
use std::io;
use std::time::Duration;

/// The name of this step in error messages.
const DURING: &str = "the TLS handshake";

pub(crate) struct Secured<C> {
    pub(crate) carrier: C,
    pub(crate) tls: Option<Box<dyn Tls>>,
}

/// The reason why a connection with a key failed.
pub(crate) enum Refusal {
    /// Another key may work.
    Key(ConnectError),
    /// No other key will work.
    Connection(ConnectError),
}

/// Returns the pre-shared keys to offer to the controller; `None` without TLS. Each call reads the
/// key file, so that a reconnect uses its current content.
pub(crate) async fn psks(
    identity: &Identity<'_>,
    options: &Options,
    generated: &[TlsPsk],
) -> Result<Option<Vec<TlsPsk>>, ConnectError> {
    if !generated.is_empty() {
        return Ok(Some(generated.to_vec()));
    }
    let Some(path) = options.tcp.tls_key.clone() else { return Ok(None) };
    let (hostnqn, subnqn) = (identity.hostnqn.to_owned(), identity.subnqn.to_owned());
    let hostid = identity.hostid;
    let read = move || {
        tls_keys::psks(
            &path,
            &Identity { hostid, hostnqn: hostnqn.as_str(), subnqn: subnqn.as_str() },
        )
    };
    let psks = blocking(read).await.map_err(|error| ConnectError::Io(error.to_string()))?;
    psks.map(Some).map_err(ConnectError::KeyFile)
}

impl<C: Carrier> Secured<C> {
    pub(crate) fn plain(carrier: C) -> Self {
        Self { carrier, tls: None }
    }

    /// Starts TLS on the connection.
    pub(crate) async fn with(
        local: &Local,
        carrier: C,
        psk: &TlsPsk,
        time: Duration,
    ) -> Result<Self, Refusal> {
        let late = || from_io(&io::ErrorKind::TimedOut.into(), DURING, time);
        let secured = local.until(os::now() + time, Self::shake_hands(carrier, psk, time)).await;
        secured.unwrap_or_else(|| Err(Refusal::Connection(late())))
    }

    async fn shake_hands(carrier: C, psk: &TlsPsk, time: Duration) -> Result<Self, Refusal> {
        let failed = |error: TlsError| {
            let sentence = words(&error, psk);
            match error {
                TlsError::Refused(_) => Refusal::Key(tls_refusal(sentence)),
                _ => Refusal::Connection(tls_refusal(sentence)),
            }
        };
        let io = |error: io::Error| Refusal::Connection(from_io(&error, DURING, time));
        let mut tls = farblock_tls::client(psk.clone()).map_err(failed)?;
        let mut secured = Self::plain(carrier);
        let mut sealed = Vec::new();
        loop {
            let done = tls.handshake();
            let sent = send(&mut secured.carrier, &mut *tls).await;
            if done.map_err(failed)? {
                sent.map_err(io)?;
                break;
            }
            sent.map_err(io)?;
            match secured.carrier.receive(&mut sealed).await {
                Ok(true) => return Err(Refusal::Key(tls_refusal(hung_up(psk)))),
                Ok(false) => tls.feed(&sealed),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(Refusal::Key(tls_refusal(hung_up(psk))));
                }
                Err(error) => return Err(io(error)),
            }
            sealed.clear();
        }
        tracing::debug!(identity = %psk.identity, key = %psk.derivation, "TLS");
        secured.tls = Some(tls);
        Ok(secured)
    }
}

impl<C: Carrier> Carrier for Secured<C> {
    async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return self.carrier.send(bytes).await };
        let mut sealed = vec![0; tls.sealed_bytes(bytes.len())];
        let sealing = tls.seal(&mut std::iter::once(bytes), &mut sealed);
        let length = sealing.map_err(io::Error::other)?;
        self.carrier.send(&sealed[..length]).await
    }

    async fn receive(&mut self, input: &mut Vec<u8>) -> io::Result<bool> {
        let Some(tls) = &mut self.tls else { return self.carrier.receive(input).await };
        let mut sealed = Vec::new();
        let is_end = self.carrier.receive(&mut sealed).await?;
        let opened = open(&mut **tls, &sealed, input);
        let sent = send(&mut self.carrier, &mut **tls).await;
        // If both fail, prefer the fault in the received data, which says more than the failed
        // send.
        opened?;
        sent?;
        Ok(is_end)
    }
}

/// Decrypts all complete records into `input`.
fn open(tls: &mut dyn Tls, sealed: &[u8], input: &mut Vec<u8>) -> io::Result<()> {
    let start = input.len();
    input.resize(start + tls.openable_bytes(sealed.len()), 0);
    let (filled, ended) = tls.open(sealed, &mut input[start..]);
    input.truncate(start + filled);
    match ended {
        // The peer has closed TLS. The data before that is valid, and the end of the TCP stream
        // will follow.
        None | Some(TlsError::Closed) => Ok(()),
        Some(error) => Err(io::Error::other(error)),
    }
}

async fn send(carrier: &mut impl Carrier, tls: &mut dyn Tls) -> io::Result<()> {
    let mut out = vec![0; tls.output_bytes()];
    let length = tls.output(&mut out);
    match length {
        0 => Ok(()),
        _ => carrier.send(&out[..length]).await,
    }
}

/// Returns the error message for users.
fn words(error: &TlsError, psk: &TlsPsk) -> String {
    match error {
        TlsError::NotTls => {
            "the target answers without TLS: give it this host's key (farblock serve --tls-key), \
             or leave --tls-key out here"
                .to_owned()
        }
        TlsError::Refused(reason) => format!(
            "the target refuses TLS: {reason}; compare the output of `farblock keys derive` at \
             both ends (last offered: \"{}\")",
            psk.identity
        ),
        error => error.to_string(),
    }
}

fn tls_refusal(sentence: String) -> ConnectError {
    TcpRefusal::Tls(sentence).into()
}

fn hung_up(psk: &TlsPsk) -> String {
    format!(
        "the target closed the connection during the TLS handshake: it has no TLS, or no key \
         with the identity \"{}\"",
        psk.identity
    )
}
