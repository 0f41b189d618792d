//! The beginning of a connection as a conversation, without I/O: the IC exchange, and then commands
//! one at a time. Bytes go in and out; the driver has the time.
//!
//! ```text
//!  Initializing -- ICResp --> Idle <--> Executing
//! ```

use farblock_proto::host::{Command, ConnectError};
use farblock_proto::limits::ADMIN_IN_CAPSULE_BYTES;
use farblock_proto::tcp::fault::Fault;
use farblock_proto::tcp::host_end::{Event, Grant, HostEnd, Transfer};
use farblock_proto::tcp::{Digests, SlotId, TcpRefusal, recognise};
use farblock_wire::Cqe;
use farblock_wire::tcp::{FatalErrorStatus, PduType};

/// As much of a stranger's answer is looked at to recognise it.
const HEAD_BYTES: usize = 16;
/// How an ICResp begins: type, flags, header length, data offset, PDU length.
const IC_RESP_START: [u8; 8] = [PduType::IC_RESP.0, 0, 128, 0, 128, 0, 0, 0];

/// See the module's text.
pub(crate) struct Conversation {
    end: HostEnd,
    digests: Digests,
    is_initialized: bool,
    /// Received but not yet looked at.
    input: Vec<u8>,
    /// How the first answer begins, to recognise what is no controller.
    head: Vec<u8>,
    /// What the command moves to the controller.
    data: Vec<u8>,
    /// What the command has moved from the controller.
    received: Vec<u8>,
}

/// What [`Conversation::poll`] came upon.
#[derive(Debug)]
pub(crate) enum Progress {
    NeedsInput,
    /// Commands can be executed.
    Initialized,
    /// The command is over: its completion, and what it moved from the controller.
    Completed(Cqe, Vec<u8>),
}

impl Conversation {
    /// A new one, and what is to be sent first.
    pub(crate) fn new(digests: Digests, depth: u16, out: &mut Vec<u8>) -> Conversation {
        let end = HostEnd::new(digests, depth);
        end.start(out);
        let (input, head, data, received) = Default::default();
        Conversation { end, digests, is_initialized: false, input, head, data, received }
    }

    /// Has a command executed; `data` is what it moves to the controller.
    pub(crate) fn submit(&mut self, command: &Command, data: &[u8], out: &mut Vec<u8>) {
        const SLOT: SlotId = SlotId(0);
        let (sqe, transfer) = command.place(ADMIN_IN_CAPSULE_BYTES);
        self.end.submit(SLOT, &sqe, transfer, out);
        self.data.clear();
        self.received.clear();
        match transfer {
            Transfer::InCapsule(_) => append(&self.end, data, out),
            Transfer::FromController(length) => self.received.resize(length as usize, 0),
            Transfer::ToController(_) => self.data.extend_from_slice(data),
            Transfer::None => {}
        }
    }

    /// Takes what has come.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        let missing = HEAD_BYTES.saturating_sub(self.head.len()).min(bytes.len());
        self.head.extend_from_slice(&bytes[..missing]);
        self.input.extend_from_slice(bytes);
    }

    /// Looks at what has come until there is something to do. `out` is to be sent in any case.
    pub(crate) fn poll(&mut self, out: &mut Vec<u8>) -> Result<Progress, ConnectError> {
        let input = std::mem::take(&mut self.input);
        let mut rest = input.as_slice();
        let progress = match self.is_initialized {
            true => self.execute(&mut rest, out),
            false => self.initialize(&mut rest),
        };
        self.input = rest.to_vec();
        progress
    }

    fn initialize(&mut self, input: &mut &[u8]) -> Result<Progress, ConnectError> {
        match self.end.next(input) {
            Ok(Some(Event::Initialized)) if self.end.digests() != self.digests => {
                Err(TcpRefusal::DigestsRefused.into())
            }
            Ok(Some(Event::Initialized)) => {
                self.is_initialized = true;
                Ok(Progress::Initialized)
            }
            Ok(Some(Event::Terminated { status })) => Err(TcpRefusal::Terminated(status).into()),
            Ok(None) => Ok(Progress::NeedsInput),
            Ok(Some(_)) => unreachable!("nothing was asked for before the ICResp"),
            Err(fault) if self.head.starts_with(&IC_RESP_START) => {
                Err(ConnectError::Protocol(fault.reason))
            }
            // Whatever it is, it is not what an NVMe/TCP controller sends first.
            Err(_) => Err(TcpRefusal::NotNvmeTcp { looks_like: recognise(&self.head) }.into()),
        }
    }

    fn execute(&mut self, input: &mut &[u8], out: &mut Vec<u8>) -> Result<Progress, ConnectError> {
        loop {
            match self.end.next(input) {
                Ok(None) => return Ok(Progress::NeedsInput),
                Ok(Some(Event::Data { offset, bytes, .. })) => {
                    self.received[offset as usize..][..bytes.len()].copy_from_slice(bytes);
                }
                Ok(Some(Event::Wanted(grant))) => self.push(grant, out),
                Ok(Some(Event::Completed { intact: false, .. })) => {
                    return Err(TcpRefusal::DigestMismatch.into());
                }
                Ok(Some(Event::Completed { cqe, .. })) => {
                    return Ok(Progress::Completed(cqe, std::mem::take(&mut self.received)));
                }
                Ok(Some(Event::Terminated { status })) => {
                    return Err(TcpRefusal::Terminated(status).into());
                }
                Ok(Some(Event::Initialized)) => unreachable!("the framer lets one ICResp in"),
                Err(fault) => {
                    // It is told what it did wrong, as far as that still goes.
                    self.end.terminate(&fault, out);
                    return Err(fault_error(&fault));
                }
            }
        }
    }

    fn push(&mut self, mut grant: Grant, out: &mut Vec<u8>) {
        while let Some(range) = self.end.data_header(&mut grant, out) {
            append(&self.end, &self.data[range], out);
        }
    }

    /// The protocol's state, and what has come and was not looked at.
    pub(crate) fn finish(self) -> (HostEnd, Vec<u8>) {
        (self.end, self.input)
    }
}

/// Appends data and its digest.
fn append(end: &HostEnd, bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(bytes);
    out.extend_from_slice(end.data_digest(bytes).as_ref().map_or(&[], |digest| &digest[..]));
}

/// A fault in what the controller sent, as an error for people.
fn fault_error(fault: &Fault) -> ConnectError {
    if fault.status == FatalErrorStatus::HEADER_DIGEST_ERROR {
        return TcpRefusal::DigestMismatch.into();
    }
    ConnectError::Protocol(fault.reason)
}
