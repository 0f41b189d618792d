//! [`Engine`]: the event loop behind a [`Reactor`](crate::Reactor).

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use crate::batch::SendBatch;
use crate::config::{Config, EngineKind};
use crate::context::{Context, Wait};
use crate::file_op::FileOp;
use crate::ids::TaskId;
use crate::os::{File, Inner as SocketKind, ListenSocket, Socket};
use crate::portable::Portable;
#[cfg(feature = "sim")]
use crate::sim_engine::Sim;
use crate::slab::Key;
#[cfg(target_os = "linux")]
use crate::uring::Uring;
use crate::waker::WakerShared;
use farblock_mem::Buffer;

/// The event loop that the configuration has selected.
pub(crate) enum Engine {
    #[cfg(target_os = "linux")]
    Uring(Box<Uring>),
    Portable(Box<Portable>),
    #[cfg(feature = "sim")]
    Sim(Box<Sim>),
}

macro_rules! dispatch {
    ($self:expr, $engine:ident => $call:expr) => {
        match $self {
            #[cfg(target_os = "linux")]
            Engine::Uring($engine) => $call,
            Engine::Portable($engine) => $call,
            #[cfg(feature = "sim")]
            Engine::Sim($engine) => $call,
        }
    };
}

/// Passes a handle (socket or file) of the system to a real engine, and a simulated one to the
/// simulated engine. Any other combination is an error.
macro_rules! dispatch_handle {
    ($self:expr, $handle:expr, $system:path, $sim:path,
     ($engine:ident, $own:ident) => $call:expr, $simulated:expr) => {
        match ($self, $handle) {
            #[cfg(target_os = "linux")]
            (Engine::Uring($engine), $system($own)) => $call,
            (Engine::Portable($engine), $system($own)) => $call,
            #[cfg(feature = "sim")]
            (Engine::Sim($engine), $sim($own)) => Ok($simulated),
            #[cfg(feature = "sim")]
            _ => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the simulated engine needs a simulated thread",
            )),
        }
    };
}

impl Engine {
    pub(crate) fn new(config: &Config, shared: &Arc<WakerShared>) -> io::Result<Engine> {
        let portable = || Portable::new(config, shared).map(|p| Engine::Portable(Box::new(p)));
        match config.engine {
            EngineKind::Uring => Engine::uring(shared),
            EngineKind::Portable => portable(),
            #[cfg(feature = "sim")]
            EngineKind::Sim => Sim::new(shared).map(|sim| Engine::Sim(Box::new(sim))),
            EngineKind::Auto => Engine::uring(shared).or_else(|error| {
                tracing::info!(%error, "using the portable engine");
                portable()
            }),
        }
    }

    #[cfg(target_os = "linux")]
    fn uring(shared: &Arc<WakerShared>) -> io::Result<Engine> {
        Uring::new(shared).map(|uring| Engine::Uring(Box::new(uring)))
    }

    #[cfg(not(target_os = "linux"))]
    fn uring(_: &Arc<WakerShared>) -> io::Result<Engine> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "io_uring exists only on Linux"))
    }

    pub(crate) fn kind(&self) -> EngineKind {
        match self {
            #[cfg(target_os = "linux")]
            Engine::Uring(_) => EngineKind::Uring,
            Engine::Portable(_) => EngineKind::Portable,
            #[cfg(feature = "sim")]
            Engine::Sim(_) => EngineKind::Sim,
        }
    }

    /// Submits queued operations, waits, and delivers a bounded number of events.
    pub(crate) fn turn(&mut self, cx: &mut Context<'_>, wait: Wait) -> io::Result<()> {
        match self {
            #[cfg(target_os = "linux")]
            Engine::Uring(engine) => engine.turn(cx, wait),
            Engine::Portable(engine) => engine.turn(cx, wait),
            #[cfg(feature = "sim")]
            Engine::Sim(engine) => {
                engine.turn(cx, wait);
                Ok(())
            }
        }
    }

    /// Returns false if a turn would find no events now. This check is cheaper than a turn.
    pub(crate) fn has_work(&mut self) -> bool {
        match self {
            #[cfg(target_os = "linux")]
            Engine::Uring(engine) => engine.has_work(),
            Engine::Portable(engine) => engine.has_work(),
            #[cfg(feature = "sim")]
            Engine::Sim(_) => true,
        }
    }

    /// Sends and receives with direct system calls, without a turn. Cheap if there is nothing to
    /// send or receive.
    #[cfg_attr(
        not(target_os = "linux"),
        expect(unused_variables, reason = "only io_uring uses it")
    )]
    pub(crate) fn look(&mut self, cx: &mut Context<'_>) {
        match self {
            #[cfg(target_os = "linux")]
            Engine::Uring(engine) => engine.look(cx),
            Engine::Portable(_) => {}
            #[cfg(feature = "sim")]
            Engine::Sim(_) => {}
        }
    }

    /// Delivers the results of file operations that the engine's file threads have executed.
    pub(crate) fn collect(&mut self, cx: &mut Context<'_>) {
        match self {
            #[cfg(target_os = "linux")]
            Engine::Uring(_) => {}
            Engine::Portable(engine) => engine.collect(cx),
            #[cfg(feature = "sim")]
            Engine::Sim(_) => {}
        }
    }

    /// Returns the time at which the engine needs a turn even if no event arrives. `None`: the
    /// engine needs no turn before the next event.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        dispatch!(self, engine => engine.next_deadline())
    }

    /// Ends all outstanding operations, so that the caller may free their memory.
    pub(crate) fn shut_down(&mut self, cx: &mut Context<'_>) {
        match self {
            #[cfg(target_os = "linux")]
            Engine::Uring(engine) => engine.shut_down(cx),
            Engine::Portable(engine) => engine.shut_down(cx),
            #[cfg(feature = "sim")]
            Engine::Sim(engine) => engine.shut_down(),
        }
    }

    pub(crate) fn listen(&mut self, task: TaskId, listener: ListenSocket) -> io::Result<Key> {
        dispatch_handle!(self, listener, ListenSocket::Tcp, ListenSocket::Sim,
            (engine, own) => engine.listen(task, own), engine.listen(task, own))
    }

    pub(crate) fn close_listener(&mut self, key: Key) {
        dispatch!(self, engine => engine.close_listener(key));
    }

    pub(crate) fn connect(&mut self, task: TaskId, address: SocketAddr) -> io::Result<Key> {
        match self {
            #[cfg(target_os = "linux")]
            Engine::Uring(engine) => engine.connect(task, address),
            Engine::Portable(engine) => engine.connect(task, address),
            #[cfg(feature = "sim")]
            Engine::Sim(engine) => Ok(engine.connect(task, address)),
        }
    }

    pub(crate) fn add_stream(&mut self, task: TaskId, socket: Socket) -> io::Result<Key> {
        dispatch_handle!(self, socket.0, SocketKind::Tcp, SocketKind::Sim,
            (engine, own) => engine.add_stream(task, own), engine.add_stream(task, own))
    }

    pub(crate) fn take_stream(&mut self, key: Key) -> Option<Socket> {
        match self {
            #[cfg(target_os = "linux")]
            Engine::Uring(engine) => engine.take_stream(key).map(Socket::from),
            Engine::Portable(engine) => engine.take_stream(key).map(Socket::from),
            #[cfg(feature = "sim")]
            Engine::Sim(engine) => engine.take_stream(key).map(Socket::from),
        }
    }

    pub(crate) fn recv(&mut self, cx: &mut Context<'_>, key: Key, limit: u32) {
        dispatch!(self, engine => engine.recv(cx, key, limit));
    }

    pub(crate) fn recv_into(
        &mut self,
        cx: &mut Context<'_>,
        key: Key,
        buffer: Buffer,
        range: Range<usize>,
    ) {
        dispatch!(self, engine => engine.recv_into(cx, key, buffer, range));
    }

    pub(crate) fn send(&mut self, cx: &mut Context<'_>, key: Key, batch: SendBatch) {
        dispatch!(self, engine => engine.send(cx, key, batch));
    }

    pub(crate) fn send_final(&mut self, key: Key, bytes: &[u8]) {
        dispatch!(self, engine => engine.send_final(key, bytes));
    }

    pub(crate) fn close(&mut self, cx: &mut Context<'_>, key: Key) {
        dispatch!(self, engine => engine.close(cx, key));
    }

    pub(crate) fn add_file(&mut self, file: File) -> io::Result<Key> {
        dispatch_handle!(self, file, File::System, File::Sim,
            (engine, own) => engine.add_file(own), engine.add_file(own))
    }

    pub(crate) fn remove_file(&mut self, key: Key) {
        dispatch!(self, engine => engine.remove_file(key));
    }

    #[cfg(unix)]
    pub(crate) fn watch(
        &mut self,
        task: TaskId,
        descriptor: std::os::fd::OwnedFd,
    ) -> io::Result<Key> {
        match self {
            #[cfg(target_os = "linux")]
            Engine::Uring(engine) => engine.watch(task, descriptor),
            Engine::Portable(engine) => engine.watch(task, descriptor),
            #[cfg(feature = "sim")]
            Engine::Sim(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    #[cfg(unix)]
    pub(crate) fn unwatch(&mut self, key: Key) {
        match self {
            #[cfg(target_os = "linux")]
            Engine::Uring(engine) => engine.unwatch(key),
            Engine::Portable(engine) => engine.unwatch(key),
            #[cfg(feature = "sim")]
            Engine::Sim(_) => {}
        }
    }

    pub(crate) fn file(
        &mut self,
        cx: &mut Context<'_>,
        task: TaskId,
        key: Key,
        op: FileOp,
        user_data: u64,
    ) {
        if !op.range_is_valid() {
            return cx.deliver_file(task, user_data, op, Err(io::ErrorKind::InvalidInput.into()));
        }
        dispatch!(self, engine => engine.file(cx, task, key, op, user_data));
    }
}
