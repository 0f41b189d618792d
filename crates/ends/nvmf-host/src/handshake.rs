//! The beginning of a connection, synchronous: TCP, the IC exchange, and commands one at a time.
//!
//! Everything here has a deadline, so that a silent peer becomes an error in words. Once the queue
//! is connected, [`Handshake::finish`] hands the socket to an event loop.

use crate::options::Options;
use crate::secured::{self, Refusal, Secured};
use farblock_proto::host::{Command, ConnectError, Identity, recognise};
use farblock_proto::limits::ADMIN_IN_CAPSULE_BYTES;
use farblock_proto::tcp::fault::Fault;
use farblock_proto::tcp::host_end::{Event, Grant, HostEnd, Transfer};
use farblock_proto::tcp::{Digests, SlotId};
use farblock_reactor::os::{self, Socket};
use farblock_secure::TlsPsk;
use farblock_wire::Cqe;
use farblock_wire::tcp::{FatalErrorStatus, PduType};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// As much of a stranger's answer is looked at to recognise it.
const HEAD_BYTES: usize = 16;
/// How an ICResp begins: type, flags, header length, data offset, PDU length.
const IC_RESP_START: [u8; 8] = [PduType::IC_RESP.0, 0, 128, 0, 128, 0, 0, 0];

/// A connected socket with the protocol on it; see the module's text.
pub(crate) struct Handshake {
    stream: Secured,
    end: HostEnd,
    /// Received but not yet looked at.
    input: Vec<u8>,
    timeout: Duration,
}

/// What a connection is once the handshake is done.
pub(crate) struct Connected {
    pub(crate) stream: Secured,
    pub(crate) end: HostEnd,
    /// Received already: to be looked at before anything else.
    pub(crate) input: Vec<u8>,
}

impl Handshake {
    /// Connects to the first of `addresses` that answers, with TLS if `psks` has keys for it, of
    /// which the first is used that the controller takes, and exchanges ICReq and ICResp. Each
    /// step, here and later, may take the options' time to connect. `generated` are the keys that
    /// came of an authentication, if any did.
    pub(crate) fn connect(
        addresses: &[SocketAddr],
        identity: &Identity<'_>,
        depth: u16,
        options: &Options,
        generated: &[TlsPsk],
    ) -> Result<(Handshake, SocketAddr), ConnectError> {
        let timeout = options.connect_timeout;
        let psks = secured::psks(identity, options, generated)?;
        let mut error = ConnectError::Unresolved("the name has no address".to_owned());
        for &address in addresses {
            match Socket::connect_timeout(&address, timeout) {
                Ok(socket) => {
                    let secured = secure(socket, address, psks.as_deref(), timeout)?;
                    let digests = options.digests();
                    let mut handshake = Handshake::new(secured, digests, depth, timeout);
                    handshake.initialize(digests)?;
                    return Ok((handshake, address));
                }
                Err(failure) => error = from_io(&failure, "the TCP connection", timeout),
            }
        }
        Err(error)
    }

    fn new(stream: Secured, digests: Digests, depth: u16, timeout: Duration) -> Handshake {
        let end = HostEnd::new(digests, depth);
        Handshake { stream, end, input: Vec::new(), timeout }
    }

    fn initialize(&mut self, digests: Digests) -> Result<(), ConnectError> {
        const DURING: &str = "the first answer, which an NVMe/TCP target gives at once (another \
                              kind of server may be listening there, or one that requires TLS: \
                              give --tls-key FILE)";
        let mut out = Vec::new();
        self.end.start(&mut out);
        self.send(&out, DURING)?;
        let deadline = os::now() + self.timeout;
        // How the answer begins, to recognise what is no controller.
        let mut head = Vec::new();
        loop {
            let mut input = self.input.as_slice();
            let event = match self.end.next(&mut input) {
                Ok(Some(Event::Terminated { status })) => {
                    return Err(ConnectError::Terminated(status));
                }
                Err(fault) if head.starts_with(&IC_RESP_START) => {
                    return Err(ConnectError::Protocol(fault.reason));
                }
                // Whatever it is, it is not what an NVMe/TCP controller sends first.
                Err(_) => return Err(ConnectError::NotNvmeTcp { looks_like: recognise(&head) }),
                Ok(event) => event,
            };
            let initialized = matches!(event, Some(Event::Initialized));
            let used = self.input.len() - input.len();
            self.input.drain(..used);
            if initialized {
                break;
            }
            self.receive(deadline, DURING)?;
            let missing = HEAD_BYTES.saturating_sub(head.len()).min(self.input.len());
            head.extend_from_slice(&self.input[..missing]);
        }
        if self.end.digests() != digests {
            return Err(ConnectError::DigestsRefused);
        }
        Ok(())
    }

    /// From here on the connection ends with a reset, and what the controller's side has not
    /// taken by then is forgotten, also when it is the end of the process that closes it.
    /// Otherwise the system goes on sending for minutes what a closed socket holds: commands that
    /// were done elsewhere meanwhile, and that others have overwritten.
    pub(crate) fn reset_on_close(&self) -> Result<(), ConnectError> {
        let set = self.stream.socket.reset_on_close();
        set.map_err(|error| ConnectError::Io(crate::error::words(&error)))
    }

    /// Executes one command; `data` is what it moves to the controller. Gives the completion and
    /// what it moved from the controller.
    pub(crate) fn execute(
        &mut self,
        command: &Command,
        data: &[u8],
        during: &'static str,
    ) -> Result<(Cqe, Vec<u8>), ConnectError> {
        const SLOT: SlotId = SlotId(0);
        let (sqe, transfer) = command.place(ADMIN_IN_CAPSULE_BYTES);
        let mut out = Vec::new();
        self.end.submit(SLOT, &sqe, transfer, &mut out);
        let mut received = Vec::new();
        match transfer {
            Transfer::InCapsule(_) => {
                out.extend_from_slice(data);
                out.extend_from_slice(self.end.data_digest(data).as_ref().map_or(&[], |d| &d[..]));
            }
            Transfer::FromController(length) => received.resize(length as usize, 0),
            Transfer::None | Transfer::ToController(_) => {}
        }
        self.send(&out, during)?;
        let deadline = os::now() + self.timeout;
        loop {
            match self.step(&mut received)? {
                Progress::Completed(cqe) => return Ok((cqe, received)),
                Progress::Wanted(grant) => self.send_data(grant, data, during)?,
                Progress::NeedsInput => self.receive(deadline, during)?,
            }
        }
    }

    /// Looks at what was received until there is something to do.
    fn step(&mut self, received: &mut [u8]) -> Result<Progress, ConnectError> {
        let mut input = self.input.as_slice();
        let progress = loop {
            match self.end.next(&mut input) {
                Ok(None) => break Progress::NeedsInput,
                Ok(Some(Event::Data { offset, bytes, .. })) => {
                    received[offset as usize..][..bytes.len()].copy_from_slice(bytes);
                }
                Ok(Some(Event::Wanted(grant))) => break Progress::Wanted(grant),
                Ok(Some(Event::Completed { intact: false, .. })) => {
                    return Err(ConnectError::DigestMismatch);
                }
                Ok(Some(Event::Completed { cqe, .. })) => break Progress::Completed(cqe),
                Ok(Some(Event::Terminated { status })) => {
                    return Err(ConnectError::Terminated(status));
                }
                Ok(Some(Event::Initialized)) => unreachable!("the framer lets one ICResp in"),
                Err(fault) => return Err(self.terminate(&fault)),
            }
        };
        let used = self.input.len() - input.len();
        self.input.drain(..used);
        Ok(progress)
    }

    fn send_data(
        &mut self,
        mut grant: Grant,
        data: &[u8],
        during: &'static str,
    ) -> Result<(), ConnectError> {
        let mut out = Vec::new();
        while let Some(range) = self.end.data_header(&mut grant, &mut out) {
            let piece = &data[range];
            out.extend_from_slice(piece);
            out.extend_from_slice(self.end.data_digest(piece).as_ref().map_or(&[], |d| &d[..]));
        }
        self.send(&out, during)
    }

    /// Tells the controller what it did wrong, as far as that still goes.
    fn terminate(&mut self, fault: &Fault) -> ConnectError {
        let mut out = Vec::new();
        self.end.terminate(fault, &mut out);
        let _ = self.stream.write_all(&out);
        fault_error(fault)
    }

    fn send(&mut self, bytes: &[u8], during: &'static str) -> Result<(), ConnectError> {
        self.stream.write_all(bytes).map_err(|error| from_io(&error, during, self.timeout))
    }

    fn receive(&mut self, deadline: Instant, during: &'static str) -> Result<(), ConnectError> {
        if deadline <= os::now() {
            return Err(ConnectError::TimedOut { during, after: self.timeout });
        }
        match self.stream.read(&mut self.input, deadline) {
            Ok(true) => Err(ConnectError::Closed { during }),
            Ok(false) => Ok(()),
            Err(error) => Err(from_io(&error, during, self.timeout)),
        }
    }

    /// Hands the connection over.
    pub(crate) fn finish(self) -> Result<Connected, ConnectError> {
        let Handshake { stream, end, input, .. } = self;
        let socket = &stream.socket;
        let reset = socket.set_read_timeout(None).and_then(|()| socket.set_write_timeout(None));
        reset.map_err(|error| ConnectError::Io(crate::error::words(&error)))?;
        Ok(Connected { stream, end, input })
    }
}

/// Prepares a socket, with TLS if there are keys for it. For each key that the controller does not
/// take it is connected anew.
fn secure(
    socket: Socket,
    address: SocketAddr,
    psks: Option<&[TlsPsk]>,
    timeout: Duration,
) -> Result<Secured, ConnectError> {
    let prepare = |socket: &Socket| {
        let set = socket.set_nodelay(true).and_then(|()| socket.set_write_timeout(Some(timeout)));
        set.map_err(|error| ConnectError::Io(crate::error::words(&error)))
    };
    prepare(&socket)?;
    let Some(psks) = psks else { return Ok(Secured::plain(socket)) };
    let mut error = ConnectError::Tls("the names are too long for TLS".to_owned());
    let mut first = Some(socket);
    for psk in psks {
        let socket = match first.take() {
            Some(socket) => socket,
            None => Socket::connect_timeout(&address, timeout)
                .map_err(|error| from_io(&error, "the TCP connection", timeout))?,
        };
        prepare(&socket)?;
        match Secured::with(socket, psk, timeout) {
            Ok(secured) => return Ok(secured),
            Err(Refusal::Connection(error)) => return Err(error),
            Err(Refusal::Key(refusal)) => error = refusal,
        }
    }
    Err(error)
}

/// What [`Handshake::step`] came upon.
enum Progress {
    NeedsInput,
    Wanted(Grant),
    Completed(Cqe),
}

/// A fault in what the controller sent, as an error for people.
pub(crate) fn fault_error(fault: &Fault) -> ConnectError {
    if fault.status == FatalErrorStatus::HEADER_DIGEST_ERROR {
        return ConnectError::DigestMismatch;
    }
    ConnectError::Protocol(fault.reason)
}

pub(crate) fn from_io(error: &io::Error, during: &'static str, after: Duration) -> ConnectError {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::ConnectionRefused => ConnectError::Refused,
        // A read that times out is "would block" on Unix and "timed out" on Windows.
        Kind::TimedOut | Kind::WouldBlock => ConnectError::TimedOut { during, after },
        Kind::ConnectionReset | Kind::ConnectionAborted | Kind::BrokenPipe => {
            ConnectError::Closed { during }
        }
        Kind::NetworkUnreachable | Kind::HostUnreachable | Kind::NetworkDown => {
            ConnectError::Unreachable(crate::error::words(error))
        }
        _ => ConnectError::Io(crate::error::words(error)),
    }
}
