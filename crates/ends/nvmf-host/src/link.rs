//! A connection on an event loop: batches go out, what comes in is taken apart, and its owner is
//! told through [`Commands`]. Used by the admin queue and by I/O queues alike.
//!
//! ```text
//!         fault                    sent, or too late
//!  Open --------> Ending(PDU) ---------------------> Closing -----> Closed
//!    |                                                  ^  Closed event
//!    +--------------------------------------------------+
//!      end of stream, error, terminated, owner's wish
//! ```

use crate::handshake::Connected;
use crate::limits;
use farblock_proto::tcp::fault::Fault;
use farblock_proto::tcp::host_end::{Event as Protocol, Grant, HostEnd};
use farblock_proto::tcp::{Sink, SlotId};
use farblock_reactor::{Buffer, Event, Reactor, SendBatch, StreamId, TaskId, os};
use farblock_tls::{Tls, TlsError};
use farblock_wire::Cqe;
use farblock_wire::tcp::FatalErrorStatus;
use std::fmt;
use std::io;
use std::ops::Range;
use std::time::Instant;

/// Why a connection is over.
#[derive(Clone, Debug)]
pub(crate) enum Loss {
    /// The controller closed it.
    Closed,
    /// The network failed.
    Io(String),
    /// The controller broke the protocol.
    Fault(Fault),
    /// The controller says that we broke it.
    Terminated(FatalErrorStatus),
    /// A command took too long.
    Timeout,
    /// The controller's keep alive went unanswered.
    KeepAlive,
    /// The controller that the queue belongs to is lost.
    Controller,
    /// On purpose.
    Shutdown,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::Closed => f.write_str("the controller closed the connection"),
            Loss::Io(reason) => write!(f, "the connection failed: {reason}"),
            Loss::Fault(fault) => write!(f, "the controller broke the protocol: {fault}"),
            Loss::Terminated(status) => write!(f, "the controller ended the connection: {status}"),
            Loss::Timeout => f.write_str("a command was not answered in time"),
            Loss::KeepAlive => f.write_str("the controller did not answer the keep alive"),
            Loss::Controller => f.write_str("the connection of the admin queue is lost"),
            Loss::Shutdown => f.write_str("it was shut down"),
        }
    }
}

/// What the owner of a [`Link`] does with what happens on it.
pub(crate) trait Commands {
    /// Data of a command came.
    fn data(&mut self, slot: SlotId, offset: u32, bytes: &[u8]);
    /// Much data of a command is about to come: lends its buffer, and where in it the command's
    /// data at `offset` goes; or `None` to have it copied.
    fn lend(&mut self, slot: SlotId, offset: u32) -> Option<(Buffer, usize)>;
    /// The lent buffer is back.
    fn lent(&mut self, slot: SlotId, buffer: Buffer);
    /// The controller asks for data.
    fn wanted(&mut self, grant: Grant, out: &mut Outgoing);
    /// A command is over.
    fn completed(&mut self, slot: SlotId, cqe: &Cqe, received: u32, intact: bool);
    /// A payload buffer is back from being sent.
    fn returned(&mut self, tag: u64, buffer: Buffer);
}

/// The protocol's state and what is to be sent next.
pub(crate) struct Outgoing {
    pub(crate) end: HostEnd,
    pub(crate) batch: SendBatch,
    /// Counts batches, so that an owner knows whether a buffer is in the one being filled.
    pub(crate) number: u64,
}

/// Lets the protocol write into a batch.
pub(crate) struct Inline<'a>(pub(crate) &'a mut SendBatch);

impl Sink for Inline<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.0.bytes(bytes);
    }
}

/// Life of a connection; see the module's diagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// In use.
    Open,
    /// A terminate PDU is being sent.
    Ending,
    /// The reactor was told to close.
    Closing,
    /// Nothing is outstanding any more.
    Closed,
}

/// See the module's text.
pub(crate) struct Link {
    reactor: Reactor,
    stream: StreamId,
    pub(crate) out: Outgoing,
    spare: SendBatch,
    sending: bool,
    /// Where a lent buffer is being filled.
    lent: Option<(SlotId, Range<usize>)>,
    /// The last payload was a large one: the next will be, too.
    expects_large: bool,
    state: State,
    loss: Option<Loss>,
    ending_since: Option<Instant>,
    /// What comes and goes is sealed, if that was agreed on.
    tls: Option<Box<dyn Tls>>,
    /// What is being sent in records.
    sealed: Option<SendBatch>,
}

impl Link {
    /// Puts a connection on an event loop.
    pub(crate) fn new(
        reactor: &Reactor,
        task: TaskId,
        connected: Connected,
        commands: &mut impl Commands,
    ) -> io::Result<Link> {
        let Connected { socket, tls, end, input } = connected;
        let stream = reactor.add_stream(task, socket)?;
        let mut link = Link {
            reactor: reactor.clone(),
            stream,
            out: Outgoing { end, batch: SendBatch::new(), number: 0 },
            spare: SendBatch::new(),
            sending: false,
            lent: None,
            expects_large: false,
            state: State::Open,
            loss: None,
            ending_since: None,
            tls,
            sealed: None,
        };
        link.take_apart(&input, commands);
        link.receive(commands);
        Ok(link)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Nothing that was given to the reactor is outstanding any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Why the connection is over, if it is.
    pub(crate) fn loss(&self) -> Option<&Loss> {
        self.loss.as_ref()
    }

    /// Takes in what happened.
    pub(crate) fn handle(&mut self, event: Event, commands: &mut impl Commands) {
        match event {
            Event::Received { result: Ok(buffer), .. } => {
                if buffer.is_empty() {
                    self.fail(Loss::Closed, commands);
                } else if self.tls.is_some() {
                    self.unseal(&buffer, commands);
                } else {
                    self.take_apart(&buffer, commands);
                    self.receive(commands);
                }
                self.reactor.buffers().give(buffer);
            }
            Event::Received { result: Err(error), .. } => self.fail(from_io(&error), commands),
            Event::ReceivedInto { buffer, result, .. } => {
                self.received_into(buffer, result, commands);
            }
            Event::Sent { batch, result, .. } => self.sent(batch, result, commands),
            Event::Closed { .. } => self.state = State::Closed,
            Event::Timer
            | Event::Accepted { .. }
            | Event::Connected { .. }
            | Event::File { .. } => {}
        }
    }

    /// Sends what was gathered, if nothing is being sent.
    pub(crate) fn flush(&mut self) {
        let is_silent = self.tls.as_ref().is_none_or(|tls| tls.output_bytes() == 0);
        if self.sending || self.state != State::Open || (self.out.batch.is_empty() && is_silent) {
            return;
        }
        self.send();
    }

    fn send(&mut self) {
        let batch = std::mem::replace(&mut self.out.batch, std::mem::take(&mut self.spare));
        self.out.number += 1;
        self.sending = true;
        let batch = if self.tls.is_some() { self.seal(batch) } else { batch };
        self.reactor.send(self.stream, batch);
    }

    /// Puts what a batch says, in records, in front of it, and keeps it for when that is sent. A
    /// connection that has failed sends what there is: the end of it is on its way.
    fn seal(&mut self, plain: SendBatch) -> SendBatch {
        let mut sealed = SendBatch::new();
        if let Some(tls) = &mut self.tls {
            let written = plain.slices().try_for_each(|slice| tls.write(slice));
            let _ = written.and_then(|()| tls.flush());
            let mut records = self.reactor.buffers().take(tls.output_bytes());
            let length = tls.output(&mut records);
            records.truncate(length);
            sealed.payload(0, records, 0..length);
        }
        self.sealed = Some(plain);
        sealed
    }

    /// Takes what came through TLS.
    fn unseal(&mut self, bytes: &[u8], commands: &mut impl Commands) {
        let Some(tls) = &mut self.tls else { return };
        tls.feed(bytes);
        let mut plain = self.reactor.buffers().take(tls.readable_bytes());
        let mut filled = 0;
        let ended = loop {
            match tls.read(&mut plain[filled..]) {
                Ok(0) => break None,
                Ok(count) => filled += count,
                Err(TlsError::Closed) => break Some(Loss::Closed),
                Err(error) => break Some(Loss::Io(error.to_string())),
            }
        };
        self.take_apart(&plain[..filled], commands);
        self.reactor.buffers().give(plain);
        match ended {
            Some(loss) => self.fail(loss, commands),
            None => self.receive(commands),
        }
        self.flush();
    }

    /// Ends the connection. What was not sent yet is not sent.
    pub(crate) fn fail(&mut self, loss: Loss, commands: &mut impl Commands) {
        if self.state != State::Open {
            return;
        }
        for (tag, buffer) in self.out.batch.take_payloads() {
            commands.returned(tag, buffer);
        }
        self.state = State::Closing;
        if let Loss::Fault(fault) = &loss
            && !self.sending
        {
            self.out.end.terminate(fault, &mut Inline(&mut self.out.batch));
            self.state = State::Ending;
            self.ending_since = Some(os::now());
            self.send();
        } else {
            self.reactor.close(self.stream);
        }
        self.loss = Some(loss);
    }

    /// Closes a connection whose terminate PDU takes too long.
    pub(crate) fn handle_time(&mut self, now: Instant) {
        let late = |since| now.saturating_duration_since(since) >= limits::TERMINATE_TIME;
        if self.state == State::Ending && self.ending_since.is_some_and(late) {
            self.state = State::Closing;
            self.reactor.close(self.stream);
        }
    }

    /// Gives back what was gathered after the connection was lost.
    pub(crate) fn discard(&mut self, commands: &mut impl Commands) {
        assert!(!self.is_open(), "discarding what can be sent");
        for (tag, buffer) in self.out.batch.take_payloads() {
            commands.returned(tag, buffer);
        }
    }

    /// Closes at once, for an owner that goes away.
    pub(crate) fn abandon(&mut self) {
        if matches!(self.state, State::Open | State::Ending) {
            self.state = State::Closing;
            self.reactor.close(self.stream);
        }
        for (_, buffer) in self.out.batch.take_payloads() {
            self.reactor.buffers().give(buffer);
        }
    }

    fn take_apart(&mut self, bytes: &[u8], commands: &mut impl Commands) {
        let mut input = bytes;
        while self.state == State::Open {
            match self.out.end.next(&mut input) {
                Ok(None) => return,
                Ok(Some(Protocol::Data { slot, offset, bytes })) => {
                    commands.data(slot, offset, bytes);
                }
                Ok(Some(Protocol::Wanted(grant))) => commands.wanted(grant, &mut self.out),
                Ok(Some(Protocol::Completed { slot, cqe, received, intact })) => {
                    commands.completed(slot, &cqe, received, intact);
                }
                Ok(Some(Protocol::Terminated { status })) => {
                    self.fail(Loss::Terminated(status), commands);
                }
                Ok(Some(Protocol::Initialized)) => unreachable!("the framer lets one ICResp in"),
                Err(fault) => self.fail(Loss::Fault(fault), commands),
            }
        }
    }

    /// Asks for more: the rest of a large payload straight into its place, else whatever comes.
    fn receive(&mut self, commands: &mut impl Commands) {
        if self.state != State::Open {
            return;
        }
        if self.tls.is_some() {
            self.reactor.recv(self.stream);
            return;
        }
        if let Some((slot, offset, left)) = self.out.end.data_wanted()
            && left >= limits::DIRECT_RECEIVE_BYTES
            && let Some((buffer, start)) = commands.lend(slot, offset)
        {
            let range = start..start + left as usize;
            self.lent = Some((slot, range.clone()));
            self.expects_large = true;
            self.reactor.recv_into(self.stream, buffer, range);
            return;
        }
        // Little more than the next header, so that its payload is not in two places.
        if std::mem::take(&mut self.expects_large) {
            self.reactor.recv_at_most(self.stream, limits::HEADER_RECEIVE_BYTES);
        } else {
            self.reactor.recv(self.stream);
        }
    }

    fn received_into(
        &mut self,
        buffer: Buffer,
        result: io::Result<usize>,
        commands: &mut impl Commands,
    ) {
        let (slot, range) = self.lent.take().expect("a buffer was lent");
        let received = *result.as_ref().unwrap_or(&0);
        if self.state == State::Open && received > 0 {
            self.out.end.data_received(&buffer[range.start..][..received]);
        }
        commands.lent(slot, buffer);
        match result {
            Ok(0) => self.fail(Loss::Closed, commands),
            Ok(_) => {
                // Without digests the payload's end needs no more bytes to be seen.
                self.take_apart(&[], commands);
                self.receive(commands);
            }
            Err(error) => self.fail(from_io(&error), commands),
        }
    }

    fn sent(&mut self, mut batch: SendBatch, result: io::Result<()>, commands: &mut impl Commands) {
        self.sending = false;
        if let Some(plain) = self.sealed.take() {
            let records = std::mem::replace(&mut batch, plain).take_payloads().next();
            records.into_iter().for_each(|(_, buffer)| self.reactor.buffers().give(buffer));
        }
        for (tag, buffer) in batch.take_payloads() {
            commands.returned(tag, buffer);
        }
        self.spare = batch;
        if self.state == State::Ending {
            self.state = State::Closing;
            self.reactor.close(self.stream);
        }
        if let Err(error) = result {
            self.fail(from_io(&error), commands);
        }
    }
}

fn from_io(error: &io::Error) -> Loss {
    Loss::Io(crate::error::words(error))
}
