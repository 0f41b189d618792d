//! The beginning of a connection over TCP: what carries it, the IC exchange, and commands one at a
//! time. Once the queue is connected, [`Handshake::finish`] gives the socket up, for another event
//! loop.

use super::attempts;
use super::carrier::{Carrier, Tcp};
use super::conversation::{Conversation, Progress};
use super::secured::{self, Refusal, Secured};
use crate::control::Local;
use crate::error::words;
use crate::transport::dial::{Caller, Exchange, Unreached, from_io};
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
    /// first key that the controller takes, and exchanges ICReq and ICResp. Where any of this
    /// fails, the next address is tried. Each step, here and later, may take the options' time to
    /// connect. `generated` are the keys that came of an authentication, if any did.
    pub(super) async fn connect(
        addresses: &[SocketAddr],
        caller: &Caller<'_>,
        generated: &[TlsPsk],
    ) -> Result<(Handshake<Tcp>, SocketAddr), Unreached> {
        let Caller { local, identity, options, sqsize_z } = caller;
        let timeout = options.connect_timeout;
        let psks = secured::psks(identity, options, generated).await?;
        let (psks, digests) = (psks.as_deref(), options.tcp.digests());
        let attempt = async |address| {
            let tcp = connect(local, address, timeout).await?;
            let secured = secure(local, tcp, address, psks, timeout).await?;
            Handshake::initialize(local, secured, digests, *sqsize_z, timeout).await
        };
        attempts::first_of(local, addresses, attempt).await
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{Control, reply};
    use crate::options::Options;
    use farblock_proto::host::Identity;
    use farblock_reactor::EngineKind;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// A server that gives each connection these bytes and keeps it open.
    fn server(answer: Vec<u8>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let answer = answer.clone();
                std::thread::spawn(move || {
                    let _ = stream.write_all(&answer);
                    while stream.read(&mut [0; 512]).is_ok_and(|count| count > 0) {}
                });
            }
        });
        address
    }

    fn closed_port() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 1))
    }

    fn target() -> SocketAddr {
        let mut icresp = vec![0; 128];
        icresp[..8].copy_from_slice(&[1, 0, 128, 0, 128, 0, 0, 0]);
        icresp[12..16].copy_from_slice(&65536_u32.to_le_bytes());
        server(icresp)
    }

    fn connect_to(addresses: Vec<SocketAddr>) -> Result<SocketAddr, Unreached> {
        let control = Control::shared(EngineKind::Portable).expect("a loop");
        let (done, end) = reply();
        control.spawn(move |local| {
            let local = local.clone();
            async move {
                let options = Options::default();
                let (hostnqn, subnqn) = ("nqn.2026-11.org.example:h", "nqn.2026-11.org.example:s");
                let identity = Identity { hostid: [1; 16], hostnqn, subnqn };
                let caller = Caller { local: &local, identity, options: &options, sqsize_z: 31 };
                let made = Handshake::connect(&addresses, &caller, &[]).await;
                done.send(made.map(|(_, address)| address));
            }
        });
        end.wait().expect("it ran")
    }

    #[test]
    fn whatever_the_first_address_does_before_icresp_the_next_one_is_tried() {
        let target = target();
        let http = server(b"HTTP/1.1 400 Bad Request\r\n\r\n".repeat(9));
        for first in [server(Vec::new()), http, closed_port()] {
            assert_eq!(connect_to(vec![first, target]).expect("the second"), target);
        }
        let (http, closed) = (server(b"HTTP/1.1 ".repeat(20)), closed_port());
        let Unreached { reason, at } = connect_to(vec![closed, http]).expect_err("neither");
        assert!(!matches!(reason, ConnectError::Refused), "{reason}");
        let at = at.expect("addresses");
        assert!(at.starts_with(&format!("{http}; {closed}: ")), "{at}");
    }
}
