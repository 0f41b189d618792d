//! The start of a connection, without I/O: the IC exchange, then single commands. The caller passes
//! received bytes in, sends the output bytes, and handles timeouts.
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

/// The host keeps this many bytes of a peer's first answer: enough to recognise another protocol,
/// such as HTTP.
const HEAD_BYTES: usize = 16;
/// The start of an ICResp: type, flags, header length, data offset, PDU length.
const IC_RESP_START: [u8; 8] = [PduType::IC_RESP.0, 0, 128, 0, 128, 0, 0, 0];

pub(crate) struct Conversation {
    end: HostEnd,
    digests: Digests,
    is_initialized: bool,
    /// Received bytes that are not processed yet.
    input: Vec<u8>,
    /// The start of the first answer, to recognise peers that are not controllers.
    head: Vec<u8>,
    /// The command's data for the controller.
    data: Vec<u8>,
    /// The command's data from the controller.
    received: Vec<u8>,
}

/// The result of [`Conversation::poll`].
#[derive(Debug)]
pub(crate) enum Progress {
    NeedsInput,
    /// The conversation can execute commands.
    Initialized,
    /// The command has completed, with this completion and the controller's data.
    Completed(Cqe, Vec<u8>),
}

impl Conversation {
    /// Starts a conversation and appends its first message to `out`.
    pub(crate) fn new(digests: Digests, depth: u16, out: &mut Vec<u8>) -> Conversation {
        let end = HostEnd::new(digests, depth);
        end.start(out);
        let (input, head, data, received) = Default::default();
        Conversation { end, digests, is_initialized: false, input, head, data, received }
    }

    /// Starts a command. The host sends `data` to the controller.
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

    /// Adds received bytes.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        let missing = HEAD_BYTES.saturating_sub(self.head.len()).min(bytes.len());
        self.head.extend_from_slice(&bytes[..missing]);
        self.input.extend_from_slice(bytes);
    }

    /// Processes received bytes up to the next result. The caller must send `out`, even after an
    /// error.
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
            Ok(Some(_)) => unreachable!("the host sends no command before the ICResp"),
            Err(fault) if self.head.starts_with(&IC_RESP_START) => {
                Err(ConnectError::Protocol(fault.reason))
            }
            // The answer does not begin like an ICResp, so the peer is not an NVMe/TCP controller.
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
                Ok(Some(Event::Completed { cqe, received, .. })) => {
                    let mut data = std::mem::take(&mut self.received);
                    data.truncate(received as usize);
                    return Ok(Progress::Completed(cqe, data));
                }
                Ok(Some(Event::Terminated { status })) => {
                    return Err(TcpRefusal::Terminated(status).into());
                }
                Ok(Some(Event::Initialized)) => unreachable!("the framer accepts only one ICResp"),
                Err(fault) => {
                    // Report the fault to the controller with a terminate PDU, if the ICResp has
                    // arrived.
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

    /// Returns the protocol's state and the received bytes that are not processed yet.
    pub(crate) fn finish(self) -> (HostEnd, Vec<u8>) {
        (self.end, self.input)
    }
}

/// Appends data and its digest.
fn append(end: &HostEnd, bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(bytes);
    out.extend_from_slice(end.data_digest(bytes).as_ref().map_or(&[], |digest| &digest[..]));
}

/// Returns the error to report for a fault in the controller's data.
fn fault_error(fault: &Fault) -> ConnectError {
    if fault.status == FatalErrorStatus::HEADER_DIGEST_ERROR {
        return TcpRefusal::DigestMismatch.into();
    }
    ConnectError::Protocol(fault.reason)
}
