//! The beginning of a connection over TCP: what carries it, the IC exchange, and commands one at a
//! time. Once the queue is connected, [`Handshake::finish`] gives the socket up, for another event
//! loop.

use super::carrier::{Carrier, Tcp};
use super::conversation::{Conversation, Progress};
use super::secured::{self, Refusal, Secured};
use crate::control::Local;
use crate::error::words;
use crate::transport::dial::{Caller, Exchange, from_io};
use farblock_proto::host::{Command, ConnectError};
use farblock_proto::tcp::host_end::HostEnd;
use farblock_proto::tcp::{Digests, TcpRefusal};
use farblock_reactor::os::{self, Socket};
use farblock_secure::TlsPsk;
use farblock_tls::Tls;
use farblock_wire::Cqe;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A connection with the protocol on it; see the module's text.
pub(crate) struct Handshake<C> {
    local: Local,
    carrier: Secured<C>,
    conversation: Conversation,
    timeout: Duration,
}

/// What a connection is once the handshake is done.
pub(crate) struct Connected {
    pub(crate) socket: Socket,
    /// What comes and goes is sealed, if that was agreed on.
    pub(crate) tls: Option<Box<dyn Tls>>,
    pub(crate) end: HostEnd,
    /// Received already: to be looked at before anything else.
    pub(crate) input: Vec<u8>,
}

impl Handshake<Tcp> {
    /// Connects to the first of `addresses` that answers, with TLS if the options say so, with the
    /// first key that the controller takes, and exchanges ICReq and ICResp. Each step, here and
    /// later, may take the options' time to connect. `generated` are the keys that came of an
    /// authentication, if any did.
    pub(super) async fn connect(
        addresses: &[SocketAddr],
        caller: &Caller<'_>,
        generated: &[TlsPsk],
    ) -> Result<(Handshake<Tcp>, SocketAddr), ConnectError> {
        let Caller { local, identity, options, sqsize_z } = caller;
        let timeout = options.connect_timeout;
        let psks = secured::psks(identity, options, generated).await?;
        let mut error = ConnectError::Unresolved("the name has no address".to_owned());
        for &address in addresses {
            match connect(local, address, timeout).await {
                Ok(tcp) => {
                    let secured = secure(local, tcp, address, psks.as_deref(), timeout).await?;
                    let digests = options.tcp.digests();
                    let made = Handshake::initialize(local, secured, digests, *sqsize_z, timeout);
                    return Ok((made.await?, address));
                }
                Err(failure) => error = failure,
            }
        }
        Err(error)
    }

    /// Hands the connection over. From here on it ends with a reset, and what the controller's
    /// side has not taken by then is forgotten, also when it is the end of the process that closes
    /// it. Otherwise the system goes on sending for minutes what a closed socket holds: commands
    /// that were done elsewhere meanwhile, and that others have overwritten.
    pub(crate) fn finish(self, resets: bool) -> Result<Connected, ConnectError> {
        let Secured { carrier, tls } = self.carrier;
        let (end, input) = self.conversation.finish();
        let taken = carrier.take().and_then(|socket| {
            if resets {
                socket.reset_on_close()?;
            }
            Ok(Connected { socket, tls, end, input })
        });
        taken.map_err(|error| ConnectError::Io(words(&error)))
    }
}

impl<C: Carrier> Handshake<C> {
    /// Exchanges ICReq and ICResp.
    async fn initialize(
        local: &Local,
        carrier: Secured<C>,
        digests: Digests,
        depth: u16,
        timeout: Duration,
    ) -> Result<Handshake<C>, ConnectError> {
        const DURING: &str = "the first answer, which an NVMe/TCP target gives at once (another \
                              kind of server may be listening there, or one that requires TLS: \
                              give --tls-key FILE)";
        let mut out = Vec::new();
        let conversation = Conversation::new(digests, depth, &mut out);
        let mut handshake = Handshake { local: local.clone(), carrier, conversation, timeout };
        handshake.converse(out, DURING).await?;
        Ok(handshake)
    }

    /// Goes on until something is reached.
    async fn converse(
        &mut self,
        mut out: Vec<u8>,
        during: &'static str,
    ) -> Result<Progress, ConnectError> {
        let deadline = os::now() + self.timeout;
        loop {
            let progress = self.conversation.poll(&mut out);
            if !out.is_empty() {
                let sent = self.local.until(deadline, self.carrier.send(&out)).await;
                let sent = self.in_time(sent, during);
                // What the controller did wrong tells more than that it did not hear of it.
                if progress.is_ok() {
                    sent?;
                }
                out.clear();
            }
            match progress? {
                Progress::NeedsInput => self.receive(deadline, during).await?,
                progress => return Ok(progress),
            }
        }
    }

    async fn receive(
        &mut self,
        deadline: Instant,
        during: &'static str,
    ) -> Result<(), ConnectError> {
        let mut input = Vec::new();
        let received = self.carrier.receive(&mut input);
        let result = self.local.until(deadline, received).await;
        let is_end = self.in_time(result, during)?;
        self.conversation.feed(&input);
        if is_end { Err(ConnectError::Closed { during }) } else { Ok(()) }
    }

    fn in_time<T>(
        &self,
        result: Option<io::Result<T>>,
        during: &'static str,
    ) -> Result<T, ConnectError> {
        let result = result.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()));
        result.map_err(|error| from_io(&error, during, self.timeout))
    }
}

impl<C: Carrier> Exchange for Handshake<C> {
    async fn execute(
        &mut self,
        command: &Command,
        data: &[u8],
        during: &'static str,
    ) -> Result<(Cqe, Vec<u8>), ConnectError> {
        let mut out = Vec::new();
        self.conversation.submit(command, data, &mut out);
        match self.converse(out, during).await? {
            Progress::Completed(cqe, data) => Ok((cqe, data)),
            progress => unreachable!("a command does not end as {progress:?}"),
        }
    }
}

async fn connect(
    local: &Local,
    address: SocketAddr,
    timeout: Duration,
) -> Result<Tcp, ConnectError> {
    let connected = local.until(os::now() + timeout, Tcp::connect(local, address)).await;
    let connected = connected.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()));
    connected.map_err(|error| from_io(&error, "the TCP connection", timeout))
}

/// Puts TLS on a connection if there are keys for it. For each key that the controller does not
/// take it is connected anew.
async fn secure(
    local: &Local,
    tcp: Tcp,
    address: SocketAddr,
    psks: Option<&[TlsPsk]>,
    timeout: Duration,
) -> Result<Secured<Tcp>, ConnectError> {
    let Some(psks) = psks else { return Ok(Secured::plain(tcp)) };
    let mut error = ConnectError::Tcp(TcpRefusal::Tls("the names are too long for TLS".to_owned()));
    let mut first = Some(tcp);
    for psk in psks {
        let tcp = match first.take() {
            Some(tcp) => tcp,
            None => connect(local, address, timeout).await?,
        };
        match Secured::with(local, tcp, psk, timeout).await {
            Ok(secured) => return Ok(secured),
            Err(Refusal::Connection(error)) => return Err(error),
            Err(Refusal::Key(refusal)) => error = refusal,
        }
    }
    Err(error)
}
