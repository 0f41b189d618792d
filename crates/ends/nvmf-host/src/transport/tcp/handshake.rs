//! The start of a connection over TCP: the byte stream, the IC exchange, and single commands. Once
//! the queue is connected, [`Handshake::finish`] releases the socket for another event loop.

use super::attempts;
use super::carrier::{Carrier, Tcp};
use super::conversation::{Conversation, Progress};
use super::secured::{self, Refusal, Secured};
use crate::control::Local;
use crate::exchange::Exchange;
use crate::system_error::words;
use crate::transport::dial::{Caller, Unreached, from_io};
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

/// A TCP connection during its start; see the module documentation.
pub(crate) struct Handshake<C> {
    local: Local,
    carrier: Secured<C>,
    conversation: Conversation,
    timeout: Duration,
}

/// A connection after the handshake.
pub(crate) struct Connected {
    pub(crate) socket: Socket,
    /// The TLS state, if the connection uses TLS.
    pub(crate) tls: Option<Box<dyn Tls>>,
    pub(crate) end: HostEnd,
    /// The bytes already received, to process first.
    pub(crate) input: Vec<u8>,
}

impl Handshake<Tcp> {
    /// Connects to the first address that answers, and exchanges ICReq and ICResp. If the options
    /// require TLS, the host uses the first key that the controller accepts. If any step fails, the
    /// host tries the next address. The connect timeout of the options applies to each step, also
    /// to steps after this call. `generated` are the TLS keys from an authentication, if any.
    pub(super) async fn connect(
        addresses: &[SocketAddr],
        caller: &Caller<'_>,
        generated: &[TlsPsk],
    ) -> Result<(Handshake<Tcp>, SocketAddr), Unreached> {
        let Caller { local, identity, options, sqsize_z, .. } = caller;
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

    /// Releases the connection. With `resets`, the system discards unsent data and resets the
    /// connection when the socket closes or the process dies. Otherwise the system would continue
    /// to send the data for minutes, including writes that the host has meanwhile repeated on
    /// another path and then overwritten.
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
        const DURING: &str = "the first answer, which an NVMe/TCP target sends at once (the server \
                              may use another protocol, or may require TLS: \
                              give --tls-key FILE)";
        let mut out = Vec::new();
        let conversation = Conversation::new(digests, depth, &mut out);
        let mut handshake = Handshake { local: local.clone(), carrier, conversation, timeout };
        handshake.converse(out, DURING).await?;
        Ok(handshake)
    }

    /// Sends and receives until the conversation has a result.
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
                // If both fail, prefer the fault in the controller's answer, which says more than
                // the failed send.
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

/// Sets up TLS if there are keys. The host reconnects after each key that the controller refuses.
async fn secure(
    local: &Local,
    tcp: Tcp,
    address: SocketAddr,
    psks: Option<&[TlsPsk]>,
    timeout: Duration,
) -> Result<Secured<Tcp>, ConnectError> {
    let Some(psks) = psks else { return Ok(Secured::plain(tcp)) };
    let mut error = ConnectError::Tcp(TcpRefusal::Tls(
        "the NQNs of host and subsystem are too long for TLS".to_owned(),
    ));
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

    /// Starts a server that sends these bytes on each connection and keeps the connection open.
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
                let caller = Caller {
                    local: &local,
                    identity,
                    options: &options,
                    sqsize_z: 31,
                    qid: 0,
                    cntlid: 0,
                };
                let made = Handshake::connect(&addresses, &caller, &[]).await;
                done.send(made.map(|(_, address)| address));
            }
        });
        end.wait().expect("the task runs")
    }

    #[test]
    fn the_next_address_is_tried_after_any_failure_before_icresp() {
        let target = target();
        let http = server(b"HTTP/1.1 400 Bad Request\r\n\r\n".repeat(9));
        for first in [server(Vec::new()), http, closed_port()] {
            assert_eq!(connect_to(vec![first, target]).expect("the second address works"), target);
        }
        let (http, closed) = (server(b"HTTP/1.1 ".repeat(20)), closed_port());
        let Unreached { reason, at } =
            connect_to(vec![closed, http]).expect_err("neither address works");
        assert!(!matches!(reason, ConnectError::Refused), "{reason}");
        let at = at.expect("addresses");
        assert!(at.starts_with(&format!("{http}; {closed}: ")), "{at}");
    }
}
