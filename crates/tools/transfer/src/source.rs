//! Reads a transfer's source on a thread that reads ahead and delivers chunks in order.
//!
//! At most [`DEPTH`] chunks are in flight or wait for the receiver. The thread that reads a
//! namespace never blocks until the receiver takes a chunk: meanwhile it could not process
//! completions, and they would look like timeouts. It sleeps in its event loop, and the receiver
//! wakes it.

use super::{Chunk, DEPTH, PIECE_BYTES};
use crate::error::{Failure, Result};
use crate::replace::cannot;
use farblock_block::{Completion, Geometry, Namespace, Op, Queue};
use farblock_reactor::{Buffer, EngineKind, Reactor, TaskId, Waker};
use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{
    self, Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError, TrySendError,
};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The receiving end of a source.
pub(super) struct Source {
    chunks: Receiver<Result<Chunk>>,
    used: Sender<Buffer>,
    waker: Option<Waker>,
    thread: Option<JoinHandle<()>>,
}

pub(super) enum Next {
    Chunk(Chunk),
    /// No chunk arrived yet.
    Waiting,
    /// The source has no more chunks.
    End,
}

impl Source {
    /// Starts reading a byte range of a namespace.
    pub(super) fn namespace(
        namespace: &Arc<dyn Namespace>,
        name: String,
        engine: EngineKind,
        range: Range<u64>,
    ) -> Result<Source> {
        let (chunk_sender, chunks) = mpsc::sync_channel(DEPTH);
        let (used, used_receiver) = mpsc::channel();
        let (ready_sender, ready) = mpsc::sync_channel(1);
        let namespace = Arc::clone(namespace);
        let thread = spawn(move || {
            match Reader::open(&namespace, engine, range, chunk_sender, used_receiver) {
                Ok((mut reader, waker)) => {
                    reader.name = name;
                    let _ = ready_sender.send(Ok(waker));
                    reader.run();
                }
                Err(failure) => {
                    let _ = ready_sender.send(Err(failure));
                }
            }
        })?;
        let opened = ready.recv().unwrap_or_else(|_| Err(Failure::run("a thread ended early")));
        Ok(Source { chunks, used, waker: Some(opened?), thread: Some(thread) })
    }

    /// Starts reading a file or pipe, up to its end or `limit` bytes. `name` is for error messages.
    pub(super) fn stream(
        mut input: impl Read + Send + 'static,
        name: String,
        limit: Option<u64>,
    ) -> Result<Source> {
        let (sender, chunks) = mpsc::sync_channel(DEPTH);
        let (used, buffers) = mpsc::channel::<Buffer>();
        let thread = spawn(move || {
            let mut left = limit.unwrap_or(u64::MAX);
            let mut ended = false;
            // Stop after the first end of input: a terminal would prompt for more.
            while left > 0 && !ended {
                let mut buffer = buffers.try_recv().unwrap_or_else(|_| Buffer::new(PIECE_BYTES));
                let want = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                let read = fill(&mut input, &mut buffer[..want]);
                let length = match read {
                    Ok(0) => return,
                    Ok(length) => length,
                    Err(error) => {
                        let error = crate::error::os(&error);
                        let _ = sender
                            .send(Err(Failure::run(format_args!("cannot read {name}: {error}"))));
                        return;
                    }
                };
                ended = length < want;
                left -= length as u64;
                if sender.send(Ok(Chunk::Data(buffer, 0..length))).is_err() {
                    return;
                }
            }
        })?;
        Ok(Source { chunks, used, waker: None, thread: Some(thread) })
    }

    /// Starts reading `range` of a regular file or block device. Skips holes.
    pub(super) fn file(file: &File, name: String, range: Range<u64>) -> Result<Source> {
        let file = file.try_clone().map_err(|error| cannot("read", &name, &error))?;
        let (sender, chunks) = mpsc::sync_channel(DEPTH);
        let (used, buffers) = mpsc::channel::<Buffer>();
        let thread = spawn(move || {
            let mut place = range.start;
            while place < range.end {
                let take = || buffers.try_recv().unwrap_or_else(|_| Buffer::new(PIECE_BYTES));
                let chunk = match read_chunk(&file, place..range.end, take) {
                    Ok(chunk) if chunk.len() == 0 => return,
                    Ok(chunk) => Ok(chunk),
                    Err(error) => {
                        let error = crate::error::os(&error);
                        Err(Failure::run(format_args!(
                            "cannot read {name} at byte {place}: {error}"
                        )))
                    }
                };
                let failed = chunk.is_err();
                place += chunk.as_ref().map_or(0, Chunk::len);
                if sender.send(chunk).is_err() || failed {
                    return;
                }
            }
        })?;
        Ok(Source { chunks, used, waker: None, thread: Some(thread) })
    }

    /// Waits at most `time` for the next chunk.
    pub(super) fn next(&mut self, time: Duration) -> Result<Next> {
        match self.chunks.recv_timeout(time) {
            Ok(chunk) => {
                // Wake the thread, because the channel has room for another chunk now.
                self.wake();
                chunk.map(Next::Chunk)
            }
            Err(RecvTimeoutError::Timeout) => Ok(Next::Waiting),
            Err(RecvTimeoutError::Disconnected) => {
                if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
                    std::panic::resume_unwind(panic);
                }
                Ok(Next::End)
            }
        }
    }

    /// Returns a chunk's buffer to the thread for reuse.
    pub(super) fn give_back(&self, buffer: Buffer) {
        let _ = self.used.send(buffer);
    }

    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        // Dropping the receiver stops the thread. Join only a thread with a waker: one without may
        // block on a pipe.
        (_, self.chunks) = mpsc::sync_channel(0);
        (self.used, _) = mpsc::channel();
        self.wake();
        if self.waker.is_some()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

fn spawn(run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let thread = thread::Builder::new().name("transfer-source".to_owned()).spawn(run);
    thread.map_err(|error| {
        let error = crate::error::os(&error);
        Failure::run(format_args!("cannot start a thread: {error}"))
    })
}

/// Reads the hole or the data at the start of a range. Returns an empty chunk at the file's end.
fn read_chunk(
    file: &File,
    range: Range<u64>,
    take: impl FnOnce() -> Buffer,
) -> std::io::Result<Chunk> {
    if let Some(length) = hole(file, &range) {
        return Ok(Chunk::Hole(length));
    }
    let mut buffer = take();
    let length = (range.end - range.start).min(buffer.len() as u64) as usize;
    let mut filled = 0;
    while filled < length {
        match read_at(file, &mut buffer[filled..length], range.start + filled as u64) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Chunk::Data(buffer, 0..filled))
}

/// Returns the length of a hole at the start of a range. Returns `None` for data, and for a hole
/// that is too short for its own chunk.
#[cfg(target_os = "linux")]
fn hole(file: &File, range: &Range<u64>) -> Option<u64> {
    use rustix::fs::SeekFrom;
    let data = match rustix::fs::seek(file, SeekFrom::Data(range.start)) {
        Ok(data) => data.min(range.end),
        // ENXIO: no data follows, so the hole extends to the file's end.
        Err(rustix::io::Errno::NXIO) => file.metadata().ok()?.len().min(range.end),
        // This is a device, or a file system that does not report holes.
        Err(_) => return None,
    };
    let length = data.saturating_sub(range.start);
    (length >= PIECE_BYTES as u64 || (length > 0 && data == range.end)).then_some(length)
}

#[cfg(not(target_os = "linux"))]
fn hole(_: &File, _: &Range<u64>) -> Option<u64> {
    None
}

#[cfg(unix)]
fn read_at(file: &File, buffer: &mut [u8], place: u64) -> std::io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, place)
}

#[cfg(windows)]
fn read_at(file: &File, buffer: &mut [u8], place: u64) -> std::io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buffer, place)
}

fn fill(input: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match input.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(length) => filled += length,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Reads a namespace on the source's own thread.
struct Reader {
    // Declared first: the queue must be dropped before its reactor.
    queue: Box<dyn Queue>,
    namespace: Arc<dyn Namespace>,
    reactor: Reactor,
    geometry: Geometry,
    name: String,
    /// The requested range in bytes.
    range: Range<u64>,
    /// The offset of the next operation in bytes, a multiple of the block size.
    position: u64,
    /// The chunks in order; `None` while a read is in flight. The first chunk has number `first`. A
    /// failure also takes a slot, so that the receiver gets it after all earlier chunks.
    slots: VecDeque<Option<Result<Chunk>>>,
    first: u64,
    /// True after a failed read: the reader submits no more reads.
    failed: bool,
    chunks: SyncSender<Result<Chunk>>,
    used: Receiver<Buffer>,
}

impl Reader {
    fn open(
        namespace: &Arc<dyn Namespace>,
        engine: EngineKind,
        range: Range<u64>,
        chunks: SyncSender<Result<Chunk>>,
        used: Receiver<Buffer>,
    ) -> Result<(Reader, Waker)> {
        let (reactor, task, queue) = super::open_queue(&**namespace, engine)?;
        let waker = reactor.waker(task);
        let geometry = namespace.geometry();
        let block = u64::from(geometry.block_size);
        let position = range.start / block * block;
        let slots = VecDeque::with_capacity(DEPTH);
        let reader = Reader {
            queue,
            namespace: Arc::clone(namespace),
            reactor,
            geometry,
            name: String::new(),
            range,
            position,
            slots,
            first: 0,
            failed: false,
            chunks,
            used,
        };
        Ok((reader, waker))
    }

    fn run(&mut self) {
        let mut done = Vec::new();
        let mut ready: Vec<TaskId> = Vec::new();
        loop {
            if !self.take_back() {
                return;
            }
            self.submit();
            self.queue.poll(&mut done);
            done.drain(..).for_each(|completion| self.complete(completion));
            match self.deliver() {
                Delivery::Done => return,
                Delivery::Progress => continue,
                Delivery::Waiting => {}
            }
            if let Err(error) = self.reactor.poll(None, &mut ready) {
                let _ = self.chunks.send(Err(super::event_loop_failed(&error)));
                return;
            }
            ready.clear();
        }
    }

    /// Collects the buffers that the [`Source`] has given back. Returns false if the `Source` has
    /// been dropped: the thread then stops without waiting for the reads in flight.
    fn take_back(&self) -> bool {
        loop {
            match self.used.try_recv() {
                Ok(buffer) => self.reactor.buffers().give(buffer),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn submit(&mut self) {
        let block = u64::from(self.geometry.block_size);
        while !self.failed && self.position < self.range.end && self.slots.len() < DEPTH {
            let piece = super::piece_bytes(&self.geometry) as u64;
            let length = (self.range.end - self.position).next_multiple_of(block).min(piece);
            let buffer = self.reactor.buffers().take(length as usize);
            let number = self.first + self.slots.len() as u64;
            let blocks = (length / block) as u32;
            self.queue.submit(Op::read(self.position / block, blocks, buffer, number));
            self.slots.push_back(None);
            self.position += length;
        }
    }

    fn complete(&mut self, completion: Completion) {
        let piece = super::piece_bytes(&self.geometry) as u64;
        let block = u64::from(self.geometry.block_size);
        let start = self.range.start / block * block + completion.token * piece;
        let slot = (completion.token - self.first) as usize;
        let read = completion.result.map(|()| {
            let buffer = completion.buffer.expect("a read has a buffer");
            let skip = self.range.start.saturating_sub(start) as usize;
            let end = (self.range.end - start).min(buffer.len() as u64) as usize;
            Chunk::Data(buffer, skip..end)
        });
        self.failed |= read.is_err();
        self.slots[slot] = Some(read.map_err(|error| {
            let (name, error) = (&self.name, super::reason(error, &*self.namespace));
            Failure::run(format_args!("reading {name} at byte {start} failed: {error}"))
        }));
    }

    /// Sends finished chunks to the receiver in order, while the channel has room.
    fn deliver(&mut self) -> Delivery {
        let mut delivered = false;
        while let Some(front) = self.slots.front_mut() {
            let Some(chunk) = front.take() else { break };
            let failed = chunk.is_err();
            match self.chunks.try_send(chunk) {
                Ok(()) if failed => return Delivery::Done,
                Ok(()) => {
                    self.slots.pop_front();
                    self.first += 1;
                    delivered = true;
                }
                Err(TrySendError::Full(chunk)) => {
                    *front = Some(chunk);
                    break;
                }
                Err(TrySendError::Disconnected(_)) => return Delivery::Done,
            }
        }
        let all_read = self.position >= self.range.end && self.slots.is_empty();
        match (all_read, delivered) {
            (true, _) => Delivery::Done,
            (false, true) => Delivery::Progress,
            (false, false) => Delivery::Waiting,
        }
    }
}

enum Delivery {
    /// A chunk was delivered, so the reader can submit more reads.
    Progress,
    /// The reader has nothing to do until the next event.
    Waiting,
    /// The reader delivered everything up to the end or a failure, or the receiver is dropped.
    Done,
}
