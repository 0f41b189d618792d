//! The simulated engine: the streams, listeners and files of an event loop in a simulation.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::batch::{Cursor, SendBatch};
use crate::context::{Context, Wait, recv_bytes};
use crate::event::Event;
use crate::file_op::FileOp;
use crate::ids::{ListenerId, StreamId, TaskId};
use crate::os::Socket;
use crate::sim::{
    Listener, Medium, Stream, WaitsFor, block_until, is_entered, pass, try_with_state, with_state,
};
use crate::slab::{Key, Slab};
use crate::waker::{Alarm, WakerShared};
use farblock_mem::Buffer;

/// After this many polls without waiting, the engine lets other threads run. A loop that never
/// waits would otherwise stop the whole simulation.
const POLLS_PER_PASS: u32 = 8;

enum Recv {
    None,
    Any { limit: u32 },
    Into { buffer: Buffer, range: Range<usize>, done: usize },
}

/// Wakes the engine when another thread has work for it.
struct Ring(u64);

impl Alarm for Ring {
    fn ring(&self) {
        try_with_state(|state| state.wake_engine(self.0));
    }
}

struct Open {
    stream: Stream,
    /// The stream's number. Later streams have higher numbers.
    live: u64,
    task: TaskId,
    is_connecting: bool,
    has_failed: bool,
    recv: Recv,
    send: Option<(SendBatch, Cursor)>,
}

pub(crate) struct Sim {
    number: u64,
    shared: Arc<WakerShared>,
    streams: Slab<Open>,
    /// The streams in the order of their creation. Their slots have another order.
    live: BTreeMap<u64, Key>,
    next_live: u64,
    listeners: Slab<(TaskId, Listener)>,
    listening: Vec<Key>,
    media: Slab<Medium>,
    polls: u32,
}

/// The number of the next engine. The numbers only distinguish the engines of a process.
static NEXT_ENGINE: AtomicU64 = AtomicU64::new(0);

impl Sim {
    pub(crate) fn new(shared: &Arc<WakerShared>) -> io::Result<Sim> {
        if !is_entered() {
            return Err(io::Error::new(
                ErrorKind::Unsupported,
                "the thread does not run in a simulation",
            ));
        }
        let number = NEXT_ENGINE.fetch_add(1, Ordering::Relaxed);
        shared.set_alarm(Box::new(Ring(number)));
        Ok(Sim {
            number,
            shared: Arc::clone(shared),
            streams: Slab::new(),
            live: BTreeMap::new(),
            next_live: 0,
            listeners: Slab::new(),
            listening: Vec::new(),
            media: Slab::new(),
            polls: 0,
        })
    }

    pub(crate) fn turn(&mut self, cx: &mut Context<'_>, wait: Wait) {
        self.attempt(cx);
        let Wait::Until(until) = wait else {
            self.polls += 1;
            if self.polls.is_multiple_of(POLLS_PER_PASS) {
                pass();
            }
            return;
        };
        if !cx.tasks.has_ready() {
            let shared = Arc::clone(&self.shared);
            block_until(until, WaitsFor::Engine(self.number), || {
                self.attempt(cx);
                cx.tasks.has_ready() || shared.is_notified()
            });
        }
    }

    /// Executes the operations that can make progress now, a bounded amount for each stream. Skips
    /// streams without an event since the last call.
    fn attempt(&mut self, cx: &mut Context<'_>) {
        let number = self.number;
        for finished in with_state(|state| state.take_finished(number)) {
            let flying = finished.flying;
            cx.deliver_file(flying.task, flying.user_data, flying.op, finished.result);
        }
        for &key in &self.listening {
            let Some((task, listener)) = self.listeners.find(key) else { continue };
            while let Some((stream, peer)) = with_state(|state| state.accept(listener)) {
                let result = Ok((Socket::from(stream), peer));
                cx.deliver(*task, Event::Accepted { listener: ListenerId(key), result });
            }
        }
        let mut next = 0;
        while let Some(live) = with_state(|state| state.take_stream(number, next)) {
            next = live + 1;
            let Some(&key) = self.live.get(&live) else { continue };
            let stream = self.streams.find_mut(key).expect("a living stream is listed");
            stream.attempt(key, cx);
        }
    }

    pub(crate) fn shut_down(&mut self) {
        let number = self.number;
        try_with_state(|state| state.forget_engine(number));
    }

    pub(crate) fn listen(&mut self, task: TaskId, listener: Listener) -> Key {
        with_state(|state| state.set_accepting(&listener, self.number));
        let key = self.listeners.insert((task, listener));
        self.listening.push(key);
        key
    }

    pub(crate) fn close_listener(&mut self, key: Key) {
        self.listeners.remove(key);
        self.listening.retain(|other| *other != key);
    }

    pub(crate) fn connect(&mut self, task: TaskId, address: SocketAddr) -> Key {
        self.insert(task, Stream::start(address), true)
    }

    pub(crate) fn add_stream(&mut self, task: TaskId, stream: Stream) -> Key {
        self.insert(task, stream, false)
    }

    fn insert(&mut self, task: TaskId, stream: Stream, is_connecting: bool) -> Key {
        let (recv, send) = (Recv::None, None);
        let live = self.next_live;
        with_state(|state| state.set_owner(&stream, Some((self.number, live))));
        let open = Open { stream, live, task, is_connecting, has_failed: false, recv, send };
        let key = self.streams.insert(open);
        self.live.insert(live, key);
        self.next_live += 1;
        self.look_at(live);
        key
    }

    fn look_at(&self, live: u64) {
        with_state(|state| state.wake_stream((self.number, live)));
    }

    pub(crate) fn recv(&mut self, cx: &mut Context<'_>, key: Key, limit: u32) {
        let Some(stream) = self.streams.find_mut(key) else { return };
        if stream.is_connecting || stream.has_failed {
            let result = Err(ErrorKind::NotConnected.into());
            return cx.deliver(stream.task, Event::Received { stream: StreamId(key), result });
        }
        assert!(matches!(stream.recv, Recv::None), "a receive is outstanding");
        stream.recv = Recv::Any { limit };
        let live = stream.live;
        self.look_at(live);
    }

    pub(crate) fn recv_into(
        &mut self,
        cx: &mut Context<'_>,
        key: Key,
        buffer: Buffer,
        range: Range<usize>,
    ) {
        let Some(stream) = self.streams.find_mut(key) else { return cx.pool.give(buffer) };
        if stream.is_connecting || stream.has_failed {
            let (stream, task) = (StreamId(key), stream.task);
            let result = Err(ErrorKind::NotConnected.into());
            return cx.deliver(task, Event::ReceivedInto { stream, buffer, result });
        }
        assert!(matches!(stream.recv, Recv::None), "a receive is outstanding");
        stream.recv = Recv::Into { buffer, range, done: 0 };
        let live = stream.live;
        self.look_at(live);
    }

    pub(crate) fn send(&mut self, cx: &mut Context<'_>, key: Key, mut batch: SendBatch) {
        let Some(stream) = self.streams.find_mut(key) else {
            return batch.take_payloads().for_each(|(_, buffer)| cx.pool.give(buffer));
        };
        if stream.is_connecting || stream.has_failed {
            let (stream, task) = (StreamId(key), stream.task);
            let result = Err(ErrorKind::NotConnected.into());
            return cx.deliver(task, Event::Sent { stream, batch, result });
        }
        assert!(stream.send.is_none(), "a send is outstanding");
        stream.send = Some((batch, Cursor::default()));
        let live = stream.live;
        self.look_at(live);
    }

    /// Removes a stream without outstanding operations, and returns its socket.
    pub(crate) fn take_stream(&mut self, key: Key) -> Option<Stream> {
        let stream = self.streams.find(key)?;
        let has_none = matches!(stream.recv, Recv::None) && stream.send.is_none();
        if !has_none || stream.is_connecting || stream.has_failed {
            return None;
        }
        let Open { stream, live, .. } = self.streams.remove(key)?;
        self.live.remove(&live);
        with_state(|state| state.set_owner(&stream, None));
        Some(stream)
    }

    pub(crate) fn send_final(&mut self, key: Key, bytes: &[u8]) {
        let Some(stream) = self.streams.find(key) else { return };
        if stream.send.is_none() && !stream.is_connecting && !stream.has_failed {
            // The caller closes the stream anyway, so bytes that do not fit are lost.
            let _ = with_state(|state| state.write(&stream.stream, bytes));
        }
    }

    pub(crate) fn close(&mut self, cx: &mut Context<'_>, key: Key) {
        if let Some(stream) = self.streams.remove(key) {
            self.live.remove(&stream.live);
            stream.abort(key, cx);
        }
    }

    pub(crate) fn add_file(&mut self, medium: Medium) -> Key {
        self.media.insert(medium)
    }

    pub(crate) fn remove_file(&mut self, key: Key) {
        self.media.remove(key);
    }

    pub(crate) fn file(
        &mut self,
        cx: &mut Context<'_>,
        task: TaskId,
        key: Key,
        op: FileOp,
        user_data: u64,
    ) {
        let Some(&medium) = self.media.find(key) else {
            return cx.deliver_file(task, user_data, op, Err(ErrorKind::NotFound.into()));
        };
        let number = self.number;
        with_state(|state| state.start_file_op(number, medium, task, op, user_data));
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

impl Open {
    fn attempt(&mut self, key: Key, cx: &mut Context<'_>) {
        if self.is_connecting {
            let Some(result) = with_state(|state| state.connected(&self.stream)) else { return };
            self.is_connecting = false;
            self.has_failed = result.is_err();
            cx.deliver(self.task, Event::Connected { stream: StreamId(key), result });
        }
        self.attempt_send(key, cx);
        self.attempt_recv(key, cx);
    }

    fn attempt_send(&mut self, key: Key, cx: &mut Context<'_>) {
        let Some((batch, cursor)) = &mut self.send else { return };
        let mut result = Ok(());
        let mut all = batch.is_empty();
        while !all && result.is_ok() {
            let slice = batch.slices_from(*cursor).next().expect("the cursor is inside the batch");
            match with_state(|state| state.write(&self.stream, slice)) {
                Ok(sent) => all = batch.advance(cursor, sent),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => result = Err(error),
            }
        }
        let (batch, _) = self.send.take().expect("the send is outstanding");
        cx.deliver(self.task, Event::Sent { stream: StreamId(key), batch, result });
    }

    fn attempt_recv(&mut self, key: Key, cx: &mut Context<'_>) {
        let stream = StreamId(key);
        let read = |into: &mut [u8]| match with_state(|state| state.read(&self.stream, into)) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            result => Some(result),
        };
        match std::mem::replace(&mut self.recv, Recv::None) {
            Recv::None => {}
            Recv::Any { limit } => {
                let mut buffer = cx.pool.take(recv_bytes(limit));
                let Some(result) = read(&mut buffer) else {
                    cx.pool.give(buffer);
                    self.recv = Recv::Any { limit };
                    return;
                };
                let result = result.map(|count| {
                    buffer.truncate(count);
                    buffer
                });
                cx.deliver(self.task, Event::Received { stream, result });
            }
            Recv::Into { mut buffer, range, mut done } => {
                let result = match read(&mut buffer[range.start + done..range.end]) {
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

    /// Completes all outstanding operations with an error and reports the stream as closed.
    fn abort(self, key: Key, cx: &mut Context<'_>) {
        let stream = StreamId(key);
        let aborted = || io::Error::from(ErrorKind::ConnectionAborted);
        if self.is_connecting {
            cx.deliver(self.task, Event::Connected { stream, result: Err(aborted()) });
        }
        match self.recv {
            Recv::None => {}
            Recv::Any { .. } => {
                cx.deliver(self.task, Event::Received { stream, result: Err(aborted()) });
            }
            Recv::Into { buffer, .. } => {
                let result = Err(aborted());
                cx.deliver(self.task, Event::ReceivedInto { stream, buffer, result });
            }
        }
        if let Some((batch, _)) = self.send {
            cx.deliver(self.task, Event::Sent { stream, batch, result: Err(aborted()) });
        }
        drop(self.stream);
        cx.deliver(self.task, Event::Closed { stream });
    }
}
