//! The portable engine: readiness events from `mio` (epoll, kqueue, IOCP), non-blocking sockets,
//! and a thread pool for files.
//!
//! Readiness is edge-triggered. The system reports once that a stream has become readable or
//! writable. The stream's flag then stays set until an *attempt* (a call to send or receive) would
//! block. `runnable` lists the streams and listeners for which an attempt may succeed. Each turn of
//! the loop makes a bounded number of attempts, before and after it gets events from the system.
//! Results always go to the tasks' mailboxes. So starting an operation never calls back into the
//! caller.

mod files;
mod net;
#[cfg(windows)]
pub(crate) mod windows;

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use mio::{Events, Interest, Poll, Token};

use crate::batch::SendBatch;
use crate::config::{CallBytes, Config};
use crate::context::{Context, Wait};
use crate::event::Event;
use crate::file_op::FileOp;
use crate::ids::{ListenerId, TaskId};
use crate::slab::{Key, Slab};
use crate::socket::{settle, tune};
use crate::waker::{Alarm, WakerShared};
use farblock_mem::Buffer;

use files::{FilePool, Job};
use net::{Listener, Progress, Stream};

/// The number of readiness events that one call gets from the system.
const EVENTS_PER_TURN: usize = 1024;
/// The maximum number of attempts before the loop gets events from the system again.
const ATTEMPTS_PER_RUN: usize = 256;

const WAKER: Token = Token(usize::MAX);

/// An object for which a call to send, receive or accept may succeed.
#[derive(Clone, Copy)]
enum Runnable {
    Stream(Key),
    Listener(Key),
}

pub(crate) struct Portable {
    poll: Poll,
    events: Events,
    streams: Slab<Stream>,
    listeners: Slab<Listener>,
    runnable: VecDeque<Runnable>,
    /// Listeners that pause after an error, and when the pause ends.
    paused: Vec<(Instant, Key)>,
    files: Slab<Arc<File>>,
    #[cfg(unix)]
    watches: Slab<Watch>,
    call_bytes: CallBytes,
    file_threads: usize,
    file_pool: Option<FilePool>,
    shared: Arc<WakerShared>,
}

impl Alarm for mio::Waker {
    fn ring(&self) {
        // A failure means that the pipe is full, so the loop will wake up anyway.
        let _ = self.wake();
    }
}

/// The kind of object of a readiness event.
#[derive(Clone, Copy)]
enum Source {
    Stream = 0,
    Listener = 1,
    #[cfg(unix)]
    Watch = 2,
}

const SOURCES: usize = 3;

/// Returns `mio`'s token for an object. A new object may reuse the token of a removed one. A late
/// event for the removed object then only causes an unnecessary attempt for the new one.
fn token(key: Key, source: Source) -> Token {
    Token(key.index as usize * SOURCES + source as usize)
}

/// A watched descriptor.
#[cfg(unix)]
struct Watch {
    task: TaskId,
    descriptor: std::os::fd::OwnedFd,
}

impl Portable {
    pub(crate) fn new(config: &Config, shared: &Arc<WakerShared>) -> io::Result<Portable> {
        let poll = Poll::new()?;
        shared.set_alarm(Box::new(mio::Waker::new(poll.registry(), WAKER)?));
        Ok(Portable {
            poll,
            events: Events::with_capacity(EVENTS_PER_TURN),
            streams: Slab::new(),
            listeners: Slab::new(),
            runnable: VecDeque::new(),
            paused: Vec::new(),
            files: Slab::new(),
            #[cfg(unix)]
            watches: Slab::new(),
            call_bytes: config.call_bytes,
            file_threads: config.file_threads,
            file_pool: None,
            shared: Arc::clone(shared),
        })
    }

    pub(crate) fn turn(&mut self, cx: &mut Context<'_>, wait: Wait) -> io::Result<()> {
        self.run(cx);
        let timeout = match wait {
            Wait::Until(until) if self.runnable.is_empty() && !cx.tasks.has_ready() => {
                until.map(|until| until.saturating_duration_since(Instant::now()))
            }
            _ => Some(std::time::Duration::ZERO),
        };
        match self.poll.poll(&mut self.events, timeout) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        self.take_readiness(cx);
        self.resume_listeners();
        self.run(cx);
        Ok(())
    }

    /// Returns `true`: only a system call could show that there is no work.
    pub(crate) fn has_work(&self) -> bool {
        true
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.paused.iter().map(|&(until, _)| until).min()
    }

    pub(crate) fn shut_down(&mut self, _: &mut Context<'_>) {
        self.file_pool = None;
    }

    #[cfg_attr(not(unix), expect(unused_variables, reason = "this system has no watches"))]
    fn take_readiness(&mut self, cx: &mut Context<'_>) {
        for event in &self.events {
            if event.token() == WAKER {
                continue;
            }
            let index = (event.token().0 / SOURCES) as u32;
            let source = event.token().0 % SOURCES;
            #[cfg(unix)]
            if source == Source::Watch as usize {
                if let Some((_, watch)) = self.watches.at_mut(index) {
                    cx.tasks.mark_ready(watch.task);
                }
                continue;
            }
            if source == Source::Listener as usize {
                if let Some((key, listener)) = self.listeners.at_mut(index)
                    && listener.became_ready()
                {
                    self.runnable.push_back(Runnable::Listener(key));
                }
            } else if let Some((key, stream)) = self.streams.at_mut(index)
                && stream.became_ready(event)
            {
                self.runnable.push_back(Runnable::Stream(key));
            }
        }
        self.events.clear();
    }

    fn resume_listeners(&mut self) {
        if self.paused.is_empty() {
            return;
        }
        let now = Instant::now();
        let (listeners, runnable) = (&mut self.listeners, &mut self.runnable);
        self.paused.retain(|&(until, key)| {
            if until <= now
                && let Some(listener) = listeners.find_mut(key)
                && listener.resume()
            {
                runnable.push_back(Runnable::Listener(key));
            }
            until > now
        });
    }

    /// Makes one attempt for each runnable object.
    fn run(&mut self, cx: &mut Context<'_>) {
        for _ in 0..self.runnable.len().min(ATTEMPTS_PER_RUN) {
            let runnable = self.runnable.pop_front().expect("the list has the counted entries");
            let again = match runnable {
                Runnable::Stream(key) => match self.streams.find_mut(key) {
                    Some(stream) => stream.run(key, cx) == Progress::More,
                    None => false,
                },
                Runnable::Listener(key) => self.accept(key, cx),
            };
            if again {
                self.runnable.push_back(runnable);
            }
        }
    }

    /// Accepts connections. Returns `true` if more connections may be waiting.
    fn accept(&mut self, key: Key, cx: &mut Context<'_>) -> bool {
        let Some(listener) = self.listeners.find_mut(key) else { return false };
        let task = listener.task;
        let progress = listener.run(|result| {
            let result = result.map(|(stream, peer)| (stream.into(), peer));
            cx.deliver(task, Event::Accepted { listener: ListenerId(key), result });
        });
        if let Progress::Paused(until) = progress {
            self.paused.push((until, key));
        }
        progress == Progress::More
    }

    fn schedule(&mut self, key: Key) {
        if let Some(stream) = self.streams.find_mut(key)
            && stream.may_run()
        {
            self.runnable.push_back(Runnable::Stream(key));
        }
    }

    pub(crate) fn listen(&mut self, task: TaskId, listener: TcpListener) -> io::Result<Key> {
        listener.set_nonblocking(true)?;
        let socket = mio::net::TcpListener::from_std(listener);
        let key = self.listeners.insert(Listener::new(task, socket));
        let listener = self.listeners.find_mut(key).expect("the listener was inserted just now");
        let registry = self.poll.registry();
        let result = registry.register(
            &mut listener.socket,
            token(key, Source::Listener),
            Interest::READABLE,
        );
        if let Err(error) = result {
            self.listeners.remove(key);
            return Err(error);
        }
        self.runnable.push_back(Runnable::Listener(key));
        Ok(key)
    }

    pub(crate) fn close_listener(&mut self, key: Key) {
        if let Some(mut listener) = self.listeners.remove(key) {
            // The socket is closed even if this fails.
            let _ = self.poll.registry().deregister(&mut listener.socket);
        }
    }

    pub(crate) fn connect(&mut self, task: TaskId, address: SocketAddr) -> io::Result<Key> {
        let socket = mio::net::TcpStream::connect(address)?;
        tune(&socket, Some(address));
        self.insert(Stream::connecting(task, socket))
    }

    pub(crate) fn add_stream(&mut self, task: TaskId, stream: TcpStream) -> io::Result<Key> {
        stream.set_nonblocking(true)?;
        tune(&stream, stream.peer_addr().ok());
        settle(&stream);
        let stream = Stream::open(task, mio::net::TcpStream::from_std(stream));
        self.insert(stream)
    }

    fn insert(&mut self, mut stream: Stream) -> io::Result<Key> {
        stream.call_bytes = self.call_bytes;
        let key = self.streams.insert(stream);
        let socket =
            &mut self.streams.find_mut(key).expect("the stream was inserted just now").socket;
        let interest = Interest::READABLE | Interest::WRITABLE;
        match self.poll.registry().register(socket, token(key, Source::Stream), interest) {
            Ok(()) => Ok(key),
            Err(error) => {
                self.streams.remove(key);
                Err(error)
            }
        }
    }

    pub(crate) fn recv(&mut self, cx: &mut Context<'_>, key: Key, limit: u32) {
        if let Some(stream) = self.streams.find_mut(key) {
            stream.start_recv(key, cx, limit);
            self.schedule(key);
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
        stream.start_recv_into(key, cx, buffer, range);
        self.schedule(key);
    }

    pub(crate) fn send(&mut self, cx: &mut Context<'_>, key: Key, mut batch: SendBatch) {
        let Some(stream) = self.streams.find_mut(key) else {
            return batch.take_payloads().for_each(|(_, buffer)| cx.pool.give(buffer));
        };
        stream.start_send(key, cx, batch);
        self.schedule(key);
    }

    /// Removes a stream that has no outstanding operations, and returns its socket.
    pub(crate) fn take_stream(&mut self, key: Key) -> Option<TcpStream> {
        if !self.streams.find(key)?.is_idle() {
            return None;
        }
        let mut stream = self.streams.remove(key)?;
        // Another loop can register the socket only after this deregistration.
        self.poll.registry().deregister(&mut stream.socket).ok()?;
        Some(stream.socket.into())
    }

    pub(crate) fn send_final(&self, key: Key, bytes: &[u8]) {
        self.streams.find(key).into_iter().for_each(|stream| stream.send_final(bytes));
    }

    pub(crate) fn close(&mut self, cx: &mut Context<'_>, key: Key) {
        if let Some(mut stream) = self.streams.remove(key) {
            // The socket is closed even if this fails.
            let _ = self.poll.registry().deregister(&mut stream.socket);
            stream.abort(key, cx);
        }
    }

    #[cfg(unix)]
    pub(crate) fn watch(
        &mut self,
        task: TaskId,
        descriptor: std::os::fd::OwnedFd,
    ) -> io::Result<Key> {
        use std::os::fd::AsRawFd;
        let fd = descriptor.as_raw_fd();
        let key = self.watches.insert(Watch { task, descriptor });
        let mut source = mio::unix::SourceFd(&fd);
        let token = token(key, Source::Watch);
        if let Err(error) = self.poll.registry().register(&mut source, token, Interest::READABLE) {
            self.watches.remove(key);
            return Err(error);
        }
        Ok(key)
    }

    #[cfg(unix)]
    pub(crate) fn unwatch(&mut self, key: Key) {
        use std::os::fd::AsRawFd;
        if let Some(watch) = self.watches.remove(key) {
            let fd = watch.descriptor.as_raw_fd();
            // The descriptor is closed even if this fails.
            let _ = self.poll.registry().deregister(&mut mio::unix::SourceFd(&fd));
        }
    }

    pub(crate) fn add_file(&mut self, file: Arc<File>) -> io::Result<Key> {
        Ok(self.files.insert(file))
    }

    /// Removes a file. Outstanding operations keep the file open.
    pub(crate) fn remove_file(&mut self, key: Key) {
        self.files.remove(key);
    }

    pub(crate) fn file(
        &mut self,
        cx: &mut Context<'_>,
        task: TaskId,
        key: Key,
        op: FileOp,
        user_data: u64,
    ) {
        let Some(file) = self.files.find(key) else {
            return cx.deliver_file(task, user_data, op, Err(io::ErrorKind::NotFound.into()));
        };
        if self.file_pool.is_none() {
            match FilePool::new(self.file_threads, &self.shared) {
                Ok(pool) => self.file_pool = Some(pool),
                Err(error) => return cx.deliver_file(task, user_data, op, Err(error)),
            }
        }
        let job = Job { task, user_data, file: Arc::clone(file), op, result: Ok(()) };
        self.file_pool.as_ref().expect("the pool was started just now").submit(job);
    }

    pub(crate) fn collect(&mut self, cx: &mut Context<'_>) {
        let Some(pool) = &mut self.file_pool else { return };
        for job in pool.collect() {
            cx.deliver_file(job.task, job.user_data, job.op, job.result);
        }
    }
}
