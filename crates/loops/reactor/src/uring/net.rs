//! Streams and listeners of the io_uring engine.

use std::io;
use std::mem;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Instant;

use io_uring::opcode;
use io_uring::squeue::Flags;
use io_uring::types::Fd;
use rustix::net::SendFlags;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::keys::{CompletionKind, pack};
use super::provided::{Group, ProvidedBuffers};
use super::{Completion, Uring};
use crate::batch::{Cursor, SendBatch};
use crate::context::{ACCEPT_PAUSE, Context, recv_bytes};
use crate::event::Event;
use crate::ids::{ListenerId, StreamId, TaskId};
use crate::slab::Key;
use crate::socket::{settle, tune};
use farblock_mem::Buffer;

/// The maximum number of pieces in one `sendmsg` (`UIO_MAXIOV`). Further calls send the rest.
const SLICES_PER_MESSAGE: usize = 1024;
/// The maximum number of bytes that one system call transfers. Further calls transfer the rest.
const BYTES_PER_CALL: usize = 1 << 30;
/// `IORING_RECVSEND_POLL_FIRST`: the kernel waits for readiness before the first attempt.
const RECV_POLL_FIRST: u16 = 1;
/// The number of gather lists to keep for reuse.
const KEPT_MESSAGES: usize = 256;

/// ```text
/// Connecting ──ok──> Open ────┐
///      ├────error──> Failed ──┤
///      └──────────────────────┴──close──> Closing ──last completion──> (gone)
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SocketState {
    /// The handshake is in progress.
    Connecting,
    /// The stream is connected.
    Open,
    /// The handshake failed. The caller can only close the stream.
    Failed,
    /// The engine is cancelling the operations in flight. No new operations start.
    Closing,
}

/// The outstanding receive operation.
pub(super) enum Recv {
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

/// The outstanding send operation.
pub(super) struct Send {
    pub(super) batch: SendBatch,
    pub(super) cursor: Cursor,
    pub(super) message: Box<Message>,
}

/// A gather list (`struct msghdr` and its pieces), as `sendmsg` requires it.
pub(super) struct Message {
    pub(super) header: libc::msghdr,
    pub(super) slices: Vec<libc::iovec>,
}

impl Message {
    fn new() -> Box<Message> {
        // SAFETY: an all-zero header is valid. It has no address, no slices and no control data.
        Box::new(Message { header: unsafe { mem::zeroed() }, slices: Vec::new() })
    }

    /// Fills the gather list with the remaining pieces of a batch, up to the limits of one system
    /// call.
    pub(super) fn fill(&mut self, batch: &SendBatch, cursor: Cursor) {
        self.slices.clear();
        let mut room = BYTES_PER_CALL;
        for slice in batch.slices_from(cursor).take(SLICES_PER_MESSAGE) {
            let len = slice.len().min(room);
            self.slices
                .push(libc::iovec { iov_base: slice.as_ptr().cast_mut().cast(), iov_len: len });
            room -= len;
            if room == 0 {
                break;
            }
        }
        self.header.msg_iov = self.slices.as_mut_ptr();
        self.header.msg_iovlen = self.slices.len();
    }
}

pub(super) struct Stream {
    pub(super) socket: TcpStream,
    pub(super) task: TaskId,
    state: SocketState,
    /// The number of outstanding operations. The slot exists until they have completed.
    in_flight: u8,
    /// Whether the last receive emptied the socket.
    pub(super) drained: bool,
    /// The number of direct attempts at this receive that found no data
    /// ([`direct`](super::direct)).
    pub(super) looks: u16,
    pub(super) recv: Recv,
    pub(super) send: Option<Send>,
    /// The peer's address during the handshake.
    address: Option<Box<SockAddr>>,
}

impl Stream {
    fn new(task: TaskId, socket: TcpStream, state: SocketState) -> Stream {
        let (recv, send, address) = (Recv::None, None, None);
        let (in_flight, drained, looks) = (0, false, 0);
        Stream { socket, task, state, in_flight, drained, looks, recv, send, address }
    }

    fn fd(&self) -> Fd {
        Fd(self.socket.as_raw_fd())
    }

    fn is_closing(&self) -> bool {
        self.state == SocketState::Closing
    }
}

/// Whether this error means that the call had no effect, so that the engine must repeat it.
pub(super) fn is_transient(errno: Option<i32>) -> bool {
    matches!(errno, Some(libc::EINTR | libc::EAGAIN))
}

/// Returns the error to report for an operation on a stream. For a cancelled operation, this is the
/// error that all engines report.
fn stream_error(error: io::Error, closing: bool) -> io::Error {
    if closing || error.raw_os_error() == Some(libc::ECANCELED) {
        return io::ErrorKind::ConnectionAborted.into();
    }
    error
}

impl Uring {
    pub(crate) fn connect(&mut self, task: TaskId, address: SocketAddr) -> io::Result<Key> {
        let domain = Domain::for_address(address);
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        tune(&socket, Some(address));
        let mut stream = Stream::new(task, socket.into(), SocketState::Connecting);
        stream.in_flight = 1;
        let address = Box::new(SockAddr::from(address));
        let connect = opcode::Connect::new(stream.fd(), address.as_ptr().cast(), address.len());
        stream.address = Some(address);
        let key = self.streams.insert(stream);
        // SAFETY: the address is boxed, and is freed only after the completion.
        unsafe { self.ring.push(connect.build().user_data(pack(CompletionKind::Connect, key))) };
        Ok(key)
    }

    pub(crate) fn add_stream(&mut self, task: TaskId, stream: TcpStream) -> io::Result<Key> {
        // On a non-blocking socket, the kernel would complete operations with `EAGAIN` instead of
        // waiting.
        stream.set_nonblocking(false)?;
        tune(&stream, stream.peer_addr().ok());
        settle(&stream);
        Ok(self.streams.insert(Stream::new(task, stream, SocketState::Open)))
    }

    pub(crate) fn recv(&mut self, cx: &mut Context<'_>, key: Key, limit: u32) {
        let Some(stream) = self.streams.find_mut(key) else { return };
        match stream.state {
            SocketState::Closing => {}
            SocketState::Open => {
                assert!(matches!(stream.recv, Recv::None), "a receive is outstanding");
                stream.recv = Recv::Any { limit };
                stream.in_flight += 1;
                self.unreceived.push(key);
            }
            SocketState::Connecting | SocketState::Failed => {
                let result = Err(io::ErrorKind::NotConnected.into());
                cx.deliver(stream.task, Event::Received { stream: StreamId(key), result });
            }
        }
    }

    pub(crate) fn recv_into(
        &mut self,
        cx: &mut Context<'_>,
        key: Key,
        buffer: Buffer,
        range: Range<usize>,
    ) {
        let Some(stream) = self.streams.find_mut(key) else { return cx.pool.give(buffer) };
        match stream.state {
            SocketState::Closing => cx.pool.give(buffer),
            SocketState::Open => {
                assert!(matches!(stream.recv, Recv::None), "a receive is outstanding");
                stream.recv = Recv::Into { buffer, range, done: 0 };
                stream.in_flight += 1;
                self.unreceived.push(key);
            }
            SocketState::Connecting | SocketState::Failed => {
                let result = Err(io::ErrorKind::NotConnected.into());
                let stream_id = StreamId(key);
                let event = Event::ReceivedInto { stream: stream_id, buffer, result };
                cx.deliver(stream.task, event);
            }
        }
    }

    /// Submits the receive in the slot.
    pub(super) fn submit_recv(&mut self, cx: &mut Context<'_>, key: Key) {
        let stream =
            self.streams.find_mut(key).expect("the stream is open while a receive is outstanding");
        stream.looks = 0;
        let fd = stream.fd();
        // If the last receive emptied the socket, wait for data before the first attempt.
        let priority = if stream.drained { RECV_POLL_FIRST } else { 0 };
        let entry = match &mut stream.recv {
            Recv::None => unreachable!("a receive is pending"),
            Recv::Any { limit } => {
                let group = Group::of(recv_bytes(*limit));
                let provided = match group {
                    Group::Small => &mut self.provided,
                    Group::Large => &mut self.large_provided,
                };
                provided.prepare(cx.pool);
                let recv = opcode::Recv::new(fd, std::ptr::null_mut(), *limit);
                let recv = recv.buf_group(group.id()).ioprio(priority);
                recv.build().flags(Flags::BUFFER_SELECT)
            }
            Recv::Into { buffer, range, done } => {
                let into = &mut buffer[range.start + *done..range.end];
                let len = into.len().min(BYTES_PER_CALL) as u32;
                // With `MSG_WAITALL`, the kernel receives until the buffer is full, instead of
                // waking the loop for every segment.
                let recv = opcode::Recv::new(fd, into.as_mut_ptr(), len);
                recv.ioprio(priority).flags(libc::MSG_WAITALL).build()
            }
        };
        // SAFETY: the memory is a provided buffer, or a buffer that the slot owns. No other code
        // accesses it until the completion.
        unsafe { self.ring.push(entry.user_data(pack(CompletionKind::Recv, key))) };
    }

    pub(super) fn complete_recv(&mut self, cx: &mut Context<'_>, completion: Completion) {
        let key = completion.key;
        let stream =
            self.streams.find_mut(key).expect("the stream is open while an operation is in flight");
        stream.drained = !completion.has_more_bytes();
        let (task, closing, stream_id) = (stream.task, stream.is_closing(), StreamId(key));
        let again = match mem::replace(&mut stream.recv, Recv::None) {
            Recv::None => unreachable!("the completion belongs to a receive"),
            Recv::Any { limit } => match self.received_any(cx, &completion, limit, closing) {
                Some(result) => {
                    cx.deliver(task, Event::Received { stream: stream_id, result });
                    None
                }
                None => Some(Recv::Any { limit }),
            },
            Recv::Into { buffer, range, mut done } => {
                match received_into(&completion, range.len(), &mut done, closing) {
                    Some(result) => {
                        let event = Event::ReceivedInto { stream: stream_id, buffer, result };
                        cx.deliver(task, event);
                        None
                    }
                    None => Some(Recv::Into { buffer, range, done }),
                }
            }
        };
        match again {
            Some(recv) => {
                self.streams.find_mut(key).expect("the stream was found above").recv = recv;
                self.submit_recv(cx, key);
            }
            None => self.end_operation(cx, key),
        }
    }

    /// Returns the group of buffers from which the kernel takes the buffer of a receive with this
    /// limit.
    fn provided_for(&mut self, limit: u32) -> &mut ProvidedBuffers {
        match Group::of(recv_bytes(limit)) {
            Group::Small => &mut self.provided,
            Group::Large => &mut self.large_provided,
        }
    }

    /// Returns the result of a receive into a provided buffer. `None`: the engine must repeat the
    /// receive.
    fn received_any(
        &mut self,
        cx: &mut Context<'_>,
        completion: &Completion,
        limit: u32,
        closing: bool,
    ) -> Option<io::Result<Buffer>> {
        let provided = self.provided_for(limit);
        match (completion.result(), completion.buffer_id()) {
            (Ok(count @ 1..), Some(id)) => Some(Ok(provided.take(id, count, cx.pool))),
            (result, id) => {
                if let Some(id) = id {
                    provided.give_back(id);
                }
                let errno = completion.errno();
                if !closing && errno == Some(libc::ENOBUFS) {
                    provided.grow(cx.pool);
                    return None;
                }
                if !closing && is_transient(errno) {
                    return None;
                }
                match result {
                    Ok(0) => Some(Ok(Buffer::new(0))),
                    Ok(_) => unreachable!("received without a buffer"),
                    Err(error) => Some(Err(stream_error(error, closing))),
                }
            }
        }
    }

    pub(crate) fn send(&mut self, cx: &mut Context<'_>, key: Key, mut batch: SendBatch) {
        let state = self.streams.find(key).map_or(SocketState::Closing, |stream| stream.state);
        if state == SocketState::Closing {
            return batch.take_payloads().for_each(|(_, buffer)| cx.pool.give(buffer));
        }
        let stream = self.streams.find_mut(key).expect("the stream was found above");
        let refuse = match state {
            SocketState::Open if batch.is_empty() => Some(Ok(())),
            SocketState::Open => None,
            _ => Some(Err(io::ErrorKind::NotConnected.into())),
        };
        assert!(stream.send.is_none(), "a send is outstanding");
        if let Some(result) = refuse {
            let event = Event::Sent { stream: StreamId(key), batch, result };
            return cx.deliver(stream.task, event);
        }
        let message = self.messages.pop().unwrap_or_else(Message::new);
        stream.send = Some(Send { batch, cursor: Cursor::default(), message });
        stream.in_flight += 1;
        self.unsent.push(key);
    }

    /// Submits the remaining data of the batch in the slot.
    pub(super) fn submit_send(&mut self, key: Key) {
        let stream =
            self.streams.find_mut(key).expect("the stream is open while a send is outstanding");
        let fd = stream.fd();
        let Send { batch, cursor, message } = stream.send.as_mut().expect("a send is pending");
        message.fill(batch, *cursor);
        // With `MSG_WAITALL`, the kernel itself continues a partial send.
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        let entry = match message.slices[..] {
            [one] => {
                opcode::Send::new(fd, one.iov_base.cast(), one.iov_len as u32).flags(flags).build()
            }
            _ => opcode::SendMsg::new(fd, &raw const message.header).flags(flags as u32).build(),
        };
        // SAFETY: the slot owns the batch and the gather list that points into it. No other code
        // accesses them until the completion.
        unsafe { self.ring.push(entry.user_data(pack(CompletionKind::Send, key))) };
    }

    pub(super) fn complete_send(&mut self, cx: &mut Context<'_>, completion: Completion) {
        let key = completion.key;
        let stream =
            self.streams.find_mut(key).expect("the stream is open while an operation is in flight");
        let closing = stream.is_closing();
        let send = stream.send.as_mut().expect("the send was in flight until now");
        let result = match completion.result() {
            Ok(0) => Some(Err(io::ErrorKind::WriteZero.into())),
            Ok(sent) if send.batch.advance(&mut send.cursor, sent) => Some(Ok(())),
            Ok(_) if closing => Some(Err(io::ErrorKind::ConnectionAborted.into())),
            Ok(_) => None,
            Err(_) if !closing && is_transient(completion.errno()) => None,
            Err(error) => Some(Err(stream_error(error, closing))),
        };
        match result {
            Some(result) => self.end_send(cx, key, result),
            None => self.submit_send(key),
        }
    }

    pub(super) fn end_send(&mut self, cx: &mut Context<'_>, key: Key, result: io::Result<()>) {
        let stream =
            self.streams.find_mut(key).expect("the stream is open while a send is outstanding");
        let Send { batch, message, .. } = stream.send.take().expect("the send completes here");
        if self.messages.len() < KEPT_MESSAGES {
            self.messages.push(message);
        }
        cx.deliver(stream.task, Event::Sent { stream: StreamId(key), batch, result });
        self.end_operation(cx, key);
    }

    pub(super) fn complete_connect(&mut self, cx: &mut Context<'_>, completion: Completion) {
        let key = completion.key;
        let stream =
            self.streams.find_mut(key).expect("the stream is open while an operation is in flight");
        stream.address = None;
        let closing = stream.is_closing();
        let result = completion.result().map(drop).map_err(|error| stream_error(error, closing));
        if !closing {
            stream.state = if result.is_ok() { SocketState::Open } else { SocketState::Failed };
        }
        if result.is_ok() {
            settle(&stream.socket);
        }
        cx.deliver(stream.task, Event::Connected { stream: StreamId(key), result });
        self.end_operation(cx, key);
    }

    /// Removes a stream without outstanding operations, and returns its socket.
    pub(crate) fn take_stream(&mut self, key: Key) -> Option<TcpStream> {
        let stream = self.streams.find(key)?;
        let is_idle = stream.state == SocketState::Open && stream.in_flight == 0;
        is_idle.then(|| self.streams.remove(key)).flatten().map(|stream| stream.socket)
    }

    pub(crate) fn send_final(&mut self, key: Key, bytes: &[u8]) {
        let Some(stream) = self.streams.find(key) else { return };
        if stream.state == SocketState::Open && stream.send.is_none() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            // The caller closes the stream anyway, so bytes that do not fit are lost.
            let _ = rustix::net::send(&stream.socket, bytes, flags);
        }
    }

    pub(crate) fn close(&mut self, cx: &mut Context<'_>, key: Key) {
        let Some(stream) = self.streams.find_mut(key) else { return };
        if stream.is_closing() {
            return;
        }
        // Submit recorded operations first: a cancellation finds only submitted ones.
        self.submit_stream(cx, key);
        let stream = self.streams.find_mut(key).expect("the stream was found above");
        let connecting = stream.state == SocketState::Connecting;
        stream.state = SocketState::Closing;
        let (receiving, sending) = (!matches!(stream.recv, Recv::None), stream.send.is_some());
        for (outstanding, kind) in [
            (connecting, CompletionKind::Connect),
            (receiving, CompletionKind::Recv),
            (sending, CompletionKind::Send),
        ] {
            if outstanding {
                self.cancel(kind, key);
            }
        }
        self.finish_close(cx, key);
    }

    /// Records that an operation has ended and its event was delivered.
    pub(super) fn end_operation(&mut self, cx: &mut Context<'_>, key: Key) {
        let stream = self
            .streams
            .find_mut(key)
            .expect("the stream is open while an operation is outstanding");
        stream.in_flight -= 1;
        self.finish_close(cx, key);
    }

    /// Frees the slot of a closing stream if no operation is in flight any more.
    fn finish_close(&mut self, cx: &mut Context<'_>, key: Key) {
        let stream = self.streams.find(key).expect("the closing stream has a slot");
        if stream.is_closing() && stream.in_flight == 0 {
            let Stream { socket, task, .. } =
                self.streams.remove(key).expect("the stream was found just now");
            drop(socket);
            cx.deliver(task, Event::Closed { stream: StreamId(key) });
        }
    }
}

/// Returns the result of a receive into the caller's buffer. `None`: the receive must continue.
fn received_into(
    completion: &Completion,
    len: usize,
    done: &mut usize,
    closing: bool,
) -> Option<io::Result<usize>> {
    match completion.result() {
        Ok(count) => {
            *done += count;
            if *done == len || count == 0 {
                return Some(Ok(*done));
            }
            closing.then(|| Err(io::ErrorKind::ConnectionAborted.into()))
        }
        Err(_) if !closing && is_transient(completion.errno()) => None,
        // Deliver the bytes that arrived before the error, which may explain it. The next receive
        // reports the error.
        Err(_) if *done > 0 && !closing => Some(Ok(*done)),
        Err(error) => Some(Err(stream_error(error, closing))),
    }
}

/// ```text
/// Accepting <──error / pause over──> Paused
///      └──close──> Closing ──last completion──> (gone)
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ListenerState {
    /// A multishot accept is in flight.
    Accepting,
    /// The listener pauses after an error. No accept is in flight.
    Paused,
    /// The engine is cancelling the accept.
    Closing,
}

pub(super) struct Listener {
    socket: TcpListener,
    task: TaskId,
    state: ListenerState,
}

impl Uring {
    pub(crate) fn listen(&mut self, task: TaskId, listener: TcpListener) -> io::Result<Key> {
        listener.set_nonblocking(false)?;
        let state = ListenerState::Accepting;
        let key = self.listeners.insert(Listener { socket: listener, task, state });
        self.submit_accept(key);
        Ok(key)
    }

    fn submit_accept(&mut self, key: Key) {
        let listener = self.listeners.find_mut(key).expect("the listener is open");
        listener.state = ListenerState::Accepting;
        let fd = Fd(listener.socket.as_raw_fd());
        let accept = opcode::AcceptMulti::new(fd).flags(libc::SOCK_CLOEXEC);
        // SAFETY: a multishot accept refers to no memory.
        unsafe { self.ring.push(accept.build().user_data(pack(CompletionKind::Accept, key))) };
    }

    pub(super) fn complete_accept(&mut self, cx: &mut Context<'_>, completion: Completion) {
        let key = completion.key;
        let listener = self.listeners.find_mut(key).expect("the listener is open while it accepts");
        let closing = listener.state == ListenerState::Closing;
        // Take ownership at once, so that the descriptor is closed even if no task receives the
        // event. SAFETY: the kernel has just created this descriptor for us, and no other code owns
        // it.
        let result = completion.result().map(|fd| unsafe { own_socket(fd) });
        let errno = completion.errno();
        let aborted = matches!(errno, Some(libc::EINTR | libc::EAGAIN | libc::ECONNABORTED));
        if !closing && !aborted {
            deliver_accepted(cx, listener.task, key, result);
        }
        if completion.more() {
            return;
        }
        if closing {
            self.listeners.remove(key);
        } else if errno.is_none() || aborted {
            self.submit_accept(key);
        } else {
            listener.state = ListenerState::Paused;
            self.paused.push((Instant::now() + ACCEPT_PAUSE, key));
        }
    }

    pub(super) fn resume_listeners(&mut self) {
        if self.paused.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some(place) = self.paused.iter().position(|&(until, _)| until <= now) {
            let (_, key) = self.paused.swap_remove(place);
            if self.listeners.find(key).is_some() {
                self.submit_accept(key);
            }
        }
    }

    pub(crate) fn close_listener(&mut self, key: Key) {
        let Some(listener) = self.listeners.find_mut(key) else { return };
        match mem::replace(&mut listener.state, ListenerState::Closing) {
            ListenerState::Accepting => self.cancel(CompletionKind::Accept, key),
            ListenerState::Paused => drop(self.listeners.remove(key)),
            ListenerState::Closing => {}
        }
    }
}

/// # Safety
/// `fd` must be the descriptor of a connection, and no other code may own it.
unsafe fn own_socket(fd: usize) -> TcpStream {
    let fd = RawFd::try_from(fd).expect("a descriptor");
    // SAFETY: the caller guarantees the ownership of `fd`.
    TcpStream::from(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn deliver_accepted(cx: &mut Context<'_>, task: TaskId, key: Key, result: io::Result<TcpStream>) {
    let result = match result {
        Err(error) => Err(error),
        Ok(stream) => match stream.peer_addr() {
            Ok(address) => Ok((stream.into(), address)),
            // The peer has already closed this connection.
            Err(_) => return,
        },
    };
    cx.deliver(task, Event::Accepted { listener: ListenerId(key), result });
}
