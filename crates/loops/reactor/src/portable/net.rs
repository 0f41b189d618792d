//! Streams and listeners of the portable engine: their outstanding operations, their readiness, and
//! *attempts*, which call the system to send, receive or accept.

use std::io::{self, IoSlice, Read};
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Instant;

use crate::batch::{Cursor, SendBatch};
use crate::config::CallBytes;
use crate::context::{ACCEPT_PAUSE, Context, recv_bytes};
use crate::event::Event;
use crate::ids::{StreamId, TaskId};
use crate::slab::Key;
use crate::socket::settle;
use farblock_mem::Buffer;

/// The maximum number of pieces that one system call sends. The next call sends the rest.
const SLICES_PER_WRITE: usize = 128;
/// The maximum number of system calls to send in one attempt of a stream. Then it is the other
/// streams' turn.
const WRITES_PER_RUN: usize = 8;
/// The maximum number of connections that one attempt of a listener accepts. Then it is the other
/// objects' turn.
const ACCEPTS_PER_RUN: usize = 16;
/// Whether the engine may wait for the next readiness event after a read that did not fill the
/// buffer. With IOCP (Windows) it must read again: `mio` sends the next event only after a read has
/// returned `WouldBlock`.
const SHORT_READ_DRAINS: bool = cfg!(unix);

/// The result of an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// No attempt can succeed until the next readiness event or operation.
    Blocked,
    /// Another attempt may succeed.
    More,
    /// The listener pauses until this time.
    Paused(Instant),
}

/// ```text
/// Connecting ──ok──> Open
///      └────error──> Failed
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SocketState {
    /// The handshake is in progress.
    Connecting,
    /// The stream is connected.
    Open,
    /// The handshake failed. The caller can only close the stream.
    Failed,
}

/// The outstanding receive operation.
enum Recv {
    None,
    /// Receives into a buffer of the engine, at most this many bytes. Zero means the buffer's whole
    /// length.
    Any {
        limit: u32,
    },
    Into {
        buffer: Buffer,
        range: Range<usize>,
        done: usize,
    },
}

pub(crate) struct Stream {
    pub(crate) socket: mio::net::TcpStream,
    task: TaskId,
    state: SocketState,
    /// Whether an attempt to receive may succeed.
    readable: bool,
    /// Whether the peer sends no more data: every read returns the end of the stream or an error.
    read_closed: bool,
    /// Whether an attempt to send may succeed.
    writable: bool,
    /// Whether the stream is in the engine's `runnable` list.
    queued: bool,
    recv: Recv,
    send: Option<(SendBatch, Cursor)>,
    pub(super) call_bytes: CallBytes,
}

impl Stream {
    pub(crate) fn open(task: TaskId, socket: mio::net::TcpStream) -> Stream {
        Stream {
            socket,
            task,
            state: SocketState::Open,
            readable: true,
            read_closed: false,
            writable: true,
            queued: false,
            recv: Recv::None,
            send: None,
            call_bytes: CallBytes::default(),
        }
    }

    pub(crate) fn connecting(task: TaskId, socket: mio::net::TcpStream) -> Stream {
        let stream = Stream::open(task, socket);
        Stream { state: SocketState::Connecting, readable: false, writable: false, ..stream }
    }

    /// Records a readiness event. Returns `true` if the caller must add the stream to the
    /// `runnable` list.
    pub(crate) fn became_ready(&mut self, event: &mio::event::Event) -> bool {
        let failed = event.is_error();
        self.read_closed |= event.is_read_closed() || failed;
        self.readable |= event.is_readable() || self.read_closed;
        self.writable |= event.is_writable() || event.is_write_closed() || failed;
        self.may_run()
    }

    /// Whether an attempt may succeed and the stream is not in the `runnable` list. If so, marks
    /// the stream as being in the list.
    pub(crate) fn may_run(&mut self) -> bool {
        if self.queued {
            return false;
        }
        self.queued = self.has_work();
        self.queued
    }

    fn has_work(&self) -> bool {
        match self.state {
            SocketState::Connecting => self.writable,
            SocketState::Open => {
                (self.readable && !matches!(self.recv, Recv::None))
                    || (self.writable && self.send.is_some())
            }
            SocketState::Failed => false,
        }
    }

    fn can_start(&self) -> io::Result<()> {
        match self.state {
            SocketState::Open => Ok(()),
            SocketState::Connecting | SocketState::Failed => {
                Err(io::ErrorKind::NotConnected.into())
            }
        }
    }

    pub(crate) fn start_recv(&mut self, key: Key, cx: &mut Context<'_>, limit: u32) {
        if let Err(error) = self.can_start() {
            let event = Event::Received { stream: StreamId(key), result: Err(error) };
            return cx.deliver(self.task, event);
        }
        assert!(matches!(self.recv, Recv::None), "a receive is outstanding");
        self.recv = Recv::Any { limit };
    }

    pub(crate) fn start_recv_into(
        &mut self,
        key: Key,
        cx: &mut Context<'_>,
        buffer: Buffer,
        range: Range<usize>,
    ) {
        if let Err(error) = self.can_start() {
            let event = Event::ReceivedInto { stream: StreamId(key), buffer, result: Err(error) };
            return cx.deliver(self.task, event);
        }
        assert!(matches!(self.recv, Recv::None), "a receive is outstanding");
        self.recv = Recv::Into { buffer, range, done: 0 };
    }

    pub(crate) fn start_send(&mut self, key: Key, cx: &mut Context<'_>, batch: SendBatch) {
        if let Err(error) = self.can_start() {
            let event = Event::Sent { stream: StreamId(key), batch, result: Err(error) };
            return cx.deliver(self.task, event);
        }
        assert!(self.send.is_none(), "a send is outstanding");
        self.send = Some((batch, Cursor::default()));
    }

    pub(crate) fn send_final(&self, bytes: &[u8]) {
        if self.state == SocketState::Open && self.send.is_none() {
            // The caller closes the stream anyway, so bytes that do not fit in the socket's buffer
            // are lost.
            let _ = write(&self.socket, &[IoSlice::new(bytes)]);
        }
    }

    /// Whether the stream is open and has no outstanding operations.
    pub(crate) fn is_idle(&self) -> bool {
        let has_none = matches!(self.recv, Recv::None) && self.send.is_none();
        self.state == SocketState::Open && has_none
    }

    /// Makes an attempt for each outstanding operation.
    pub(crate) fn run(&mut self, key: Key, cx: &mut Context<'_>) -> Progress {
        self.queued = false;
        if self.state == SocketState::Connecting {
            self.run_connect(key, cx);
        } else {
            if self.writable && self.send.is_some() {
                self.run_send(key, cx);
            }
            if self.readable {
                self.run_recv(key, cx);
            }
        }
        if self.may_run() { Progress::More } else { Progress::Blocked }
    }

    fn run_connect(&mut self, key: Key, cx: &mut Context<'_>) {
        let result = match self.socket.take_error() {
            Ok(Some(error)) | Err(error) => Err(error),
            Ok(None) => match self.socket.peer_addr() {
                Err(error) if error.kind() == io::ErrorKind::NotConnected => {
                    self.writable = false;
                    return;
                }
                result => result.map(drop),
            },
        };
        if result.is_ok() {
            settle(&self.socket);
        }
        self.state = if result.is_ok() { SocketState::Open } else { SocketState::Failed };
        self.readable = true;
        cx.deliver(self.task, Event::Connected { stream: StreamId(key), result });
    }

    fn run_send(&mut self, key: Key, cx: &mut Context<'_>) {
        let (batch, cursor) = self.send.as_mut().expect("a send is outstanding");
        let mut result = Ok(());
        let mut all = batch.is_empty();
        let mut writes = 0;
        while !all && result.is_ok() && writes < WRITES_PER_RUN {
            let mut slices = [IoSlice::new(&[]); SLICES_PER_WRITE];
            let (mut count, mut left) = (0, self.call_bytes.send);
            for (slot, slice) in slices.iter_mut().zip(batch.slices_from(*cursor)) {
                *slot = IoSlice::new(&slice[..slice.len().min(left)]);
                left -= slot.len();
                count += 1;
                if left == 0 {
                    break;
                }
            }
            match write(&self.socket, &slices[..count]) {
                Ok(0) => result = Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => all = batch.advance(cursor, sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.writable = false;
                    return;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => result = Err(error),
            }
            writes += 1;
        }
        if all || result.is_err() {
            let (batch, _) = self.send.take().expect("the send is outstanding");
            cx.deliver(self.task, Event::Sent { stream: StreamId(key), batch, result });
        }
    }

    fn run_recv(&mut self, key: Key, cx: &mut Context<'_>) {
        let stream = StreamId(key);
        match std::mem::replace(&mut self.recv, Recv::None) {
            Recv::None => {}
            Recv::Any { limit } => {
                let mut buffer = cx.pool.take(recv_bytes(limit));
                let result = match self.read(&mut buffer) {
                    None => {
                        cx.pool.give(buffer);
                        self.recv = Recv::Any { limit };
                        return;
                    }
                    Some(Ok(count)) => {
                        buffer.truncate(count);
                        Ok(buffer)
                    }
                    Some(Err(error)) => {
                        cx.pool.give(buffer);
                        Err(error)
                    }
                };
                cx.deliver(self.task, Event::Received { stream, result });
            }
            Recv::Into { mut buffer, range, mut done } => {
                let result = match self.read(&mut buffer[range.start + done..range.end]) {
                    None => None,
                    Some(Ok(0)) => Some(Ok(done)),
                    Some(Ok(count)) => {
                        done += count;
                        (done == range.len()).then_some(Ok(done))
                    }
                    Some(Err(error)) => Some(Err(error)),
                };
                match result {
                    None => self.recv = Recv::Into { buffer, range, done },
                    Some(result) => {
                        cx.deliver(self.task, Event::ReceivedInto { stream, buffer, result });
                    }
                }
            }
        }
    }

    /// Reads as much as is available. Calls the system once, unless a benchmark limits the bytes
    /// per call. `None`: no data is available.
    fn read(&mut self, into: &mut [u8]) -> Option<io::Result<usize>> {
        let most = self.call_bytes.receive;
        if into.len() <= most {
            return self.read_once(into);
        }
        let mut done = 0;
        while done < into.len() && self.readable {
            let end = into.len().min(done + most);
            match self.read_once(&mut into[done..end]) {
                Some(Ok(count)) if count > 0 => done += count,
                // Return the bytes now. The next read reports the end or the error again.
                _ if done > 0 => break,
                result => return result,
            }
        }
        Some(Ok(done))
    }

    fn read_once(&mut self, into: &mut [u8]) -> Option<io::Result<usize>> {
        loop {
            match self.socket.read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.readable = false;
                    return None;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(count) if SHORT_READ_DRAINS && count < into.len() && count > 0 => {
                    self.readable = self.read_closed;
                    return Some(Ok(count));
                }
                result => return Some(result),
            }
        }
    }

    /// Completes all outstanding operations with an error and reports the stream as closed.
    pub(crate) fn abort(self, key: Key, cx: &mut Context<'_>) {
        let stream = StreamId(key);
        let aborted = || io::Error::from(io::ErrorKind::ConnectionAborted);
        if self.state == SocketState::Connecting {
            cx.deliver(self.task, Event::Connected { stream, result: Err(aborted()) });
        }
        match self.recv {
            Recv::None => {}
            Recv::Any { .. } => {
                cx.deliver(self.task, Event::Received { stream, result: Err(aborted()) })
            }
            Recv::Into { buffer, .. } => {
                let result = Err(aborted());
                cx.deliver(self.task, Event::ReceivedInto { stream, buffer, result });
            }
        }
        if let Some((batch, _)) = self.send {
            cx.deliver(self.task, Event::Sent { stream, batch, result: Err(aborted()) });
        }
        drop(self.socket);
        cx.deliver(self.task, Event::Closed { stream });
    }
}

/// Sends without `SIGPIPE`. The default action of this signal would kill the process if the peer
/// has closed the connection.
#[cfg(target_os = "linux")]
fn write(socket: &mio::net::TcpStream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
    let mut no_control = SendAncillaryBuffer::default();
    Ok(sendmsg(socket, slices, &mut no_control, SendFlags::NOSIGNAL)?)
}

#[cfg(not(target_os = "linux"))]
fn write(mut socket: &mio::net::TcpStream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    io::Write::write_vectored(&mut socket, slices)
}

pub(crate) struct Listener {
    pub(crate) socket: mio::net::TcpListener,
    pub(crate) task: TaskId,
    ready: bool,
    paused: bool,
    queued: bool,
}

impl Listener {
    /// Creates a listener that counts as being in the `runnable` list.
    pub(crate) fn new(task: TaskId, socket: mio::net::TcpListener) -> Listener {
        Listener { socket, task, ready: true, paused: false, queued: true }
    }

    /// Records a readiness event. Returns `true` if the caller must add the listener to the
    /// `runnable` list.
    pub(crate) fn became_ready(&mut self) -> bool {
        self.ready = true;
        self.may_run()
    }

    /// Ends the pause. Returns `true` if the caller must add the listener to the `runnable` list.
    pub(crate) fn resume(&mut self) -> bool {
        self.paused = false;
        self.may_run()
    }

    fn may_run(&mut self) -> bool {
        if self.queued || self.paused || !self.ready {
            return false;
        }
        self.queued = true;
        true
    }

    /// Accepts up to [`ACCEPTS_PER_RUN`] connections.
    pub(crate) fn run(
        &mut self,
        mut deliver: impl FnMut(io::Result<(std::net::TcpStream, SocketAddr)>),
    ) -> Progress {
        self.queued = false;
        for _ in 0..ACCEPTS_PER_RUN {
            match self.socket.accept() {
                Ok((stream, address)) => deliver(Ok((stream.into(), address))),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => {
                        self.ready = false;
                        return Progress::Blocked;
                    }
                    // The peer has already closed this connection, so accept the next.
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => {
                        deliver(Err(error));
                        self.paused = true;
                        return Progress::Paused(Instant::now() + ACCEPT_PAUSE);
                    }
                },
            }
        }
        if self.may_run() { Progress::More } else { Progress::Blocked }
    }
}
