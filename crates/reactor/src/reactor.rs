//! [`Reactor`]: the public face over the tasks and one engine.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::batch::SendBatch;
use crate::buffer::Buffer;
use crate::config::{Config, EngineKind};
use crate::event::{Event, FileId, FileOp, ListenerId, StreamId, TaskId};
use crate::pool::BufferPool;
use crate::waker::Waker;

/// An event loop of one thread. Clones are the same loop.
#[derive(Clone)]
pub struct Reactor {
    inner: Rc<Inner>,
}

struct Inner {
    pool: BufferPool,
    kind: EngineKind,
}

#[allow(unused_variables, clippy::todo, reason = "replaced within the hour")]
impl Reactor {
    /// A loop as configured. `Auto` falls back to the portable engine and says why through `tracing`.
    pub fn new(config: &Config) -> io::Result<Reactor> {
        Ok(Reactor { inner: Rc::new(Inner { pool: BufferPool::new(), kind: config.engine }) })
    }
    /// `Uring` or `Portable`: what was chosen.
    pub fn engine(&self) -> EngineKind {
        self.inner.kind
    }
    /// The reactor's buffers.
    pub fn buffers(&self) -> &BufferPool {
        &self.inner.pool
    }
    /// A new task.
    pub fn add_task(&self) -> TaskId {
        todo!()
    }
    /// A task with a mailbox of its own whose readiness is reported as its root's.
    pub fn add_child(&self, parent: TaskId) -> TaskId {
        todo!()
    }
    /// Removes a task.
    pub fn remove_task(&self, task: TaskId) {
        todo!()
    }
    /// Marks ready.
    pub fn notify(&self, task: TaskId) {
        todo!()
    }
    /// A waker.
    pub fn waker(&self, task: TaskId) -> Waker {
        todo!()
    }
    /// The one timer of a task.
    pub fn set_timer(&self, task: TaskId, deadline: Option<Instant>) {
        todo!()
    }
    /// Appends and empties the mailbox.
    pub fn take_events(&self, task: TaskId, events: &mut Vec<Event>) {
        todo!()
    }
    /// Submits and waits.
    pub fn poll(&self, timeout: Option<Duration>, ready: &mut Vec<TaskId>) -> io::Result<()> {
        todo!()
    }
    /// Listens.
    pub fn listen(&self, task: TaskId, listener: TcpListener) -> io::Result<ListenerId> {
        todo!()
    }
    /// Closes a listener.
    pub fn close_listener(&self, id: ListenerId) {
        todo!()
    }
    /// Connects.
    pub fn connect(&self, task: TaskId, address: SocketAddr) -> io::Result<StreamId> {
        todo!()
    }
    /// Takes a connection over.
    pub fn add_stream(&self, task: TaskId, stream: TcpStream) -> io::Result<StreamId> {
        todo!()
    }
    /// Receives into a pool buffer.
    pub fn recv(&self, stream: StreamId) {
        todo!()
    }
    /// Receives into a given buffer.
    pub fn recv_into(&self, stream: StreamId, buffer: Buffer, range: Range<usize>) {
        todo!()
    }
    /// Sends.
    pub fn send(&self, stream: StreamId, batch: SendBatch) {
        todo!()
    }
    /// Closes.
    pub fn close(&self, stream: StreamId) {
        todo!()
    }
    /// Takes a file over.
    pub fn add_file(&self, file: std::fs::File) -> io::Result<FileId> {
        todo!()
    }
    /// Gives a file up.
    pub fn remove_file(&self, file: FileId) {
        todo!()
    }
    /// Starts a file operation.
    pub fn file(&self, task: TaskId, file: FileId, op: FileOp, user_data: u64) {
        todo!()
    }
}
