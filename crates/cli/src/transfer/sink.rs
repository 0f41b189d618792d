//! Where a transfer's bytes go: a namespace, a file or a pipe.

use super::{Chunk, DEPTH, piece_bytes};
use crate::error::{Failure, Result};
use farblock_block::{Completion, Geometry, Namespace, Op, Queue};
use farblock_reactor::{Buffer, EngineKind, Reactor, TaskId};
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::time::Duration;

/// Takes chunks in order.
pub(super) enum Sink {
    Namespace(Box<NamespaceSink>),
    File(FileSink),
    /// A pipe, a terminal, a character device.
    Stream {
        output: Box<dyn Write>,
        name: String,
        written: u64,
    },
}

impl Sink {
    /// Takes a chunk. Memory that is free again is handed to `free`.
    pub(super) fn write(&mut self, chunk: Chunk, free: &mut dyn FnMut(Buffer)) -> Result<()> {
        match self {
            Sink::Namespace(sink) => sink.write(chunk, free)?,
            Sink::File(sink) => {
                sink.write(chunk.bytes())?;
                free(chunk.buffer);
            }
            Sink::Stream { output, name, written } => {
                let wrote = output.write_all(chunk.bytes());
                wrote.map_err(|error| stream_failure(&error, name, *written))?;
                *written += chunk.range.len() as u64;
                free(chunk.buffer);
            }
        }
        Ok(())
    }

    /// Goes on with what is under way, without waiting. To be called while no chunk comes.
    pub(super) fn poll(&mut self, free: &mut dyn FnMut(Buffer)) -> Result<()> {
        match self {
            Sink::Namespace(sink) => sink.poll(Some(Duration::ZERO), free),
            Sink::File(_) | Sink::Stream { .. } => Ok(()),
        }
    }

    /// Returns when everything is stored, and durable where that means something.
    pub(super) fn finish(&mut self) -> Result<()> {
        match self {
            Sink::Namespace(sink) => sink.finish(),
            Sink::File(sink) => sink.finish(),
            Sink::Stream { output, name, written } => {
                output.flush().map_err(|error| stream_failure(&error, name, *written))
            }
        }
    }
}

fn stream_failure(error: &io::Error, name: &str, written: u64) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::run(format_args!(
            "{name} was closed by its reader after about {written} bytes, before everything was \
             written"
        )),
        _ => {
            let error = crate::error::os(error);
            Failure::run(format_args!("cannot write to {name}: {error}"))
        }
    }
}

/// Writes to a namespace, with [`DEPTH`] operations in flight.
///
/// Chunks that are whole blocks go out as they are. All others pass through `staging`, which
/// always begins at a block: what lies before the first byte and behind the last is read first.
pub(super) struct NamespaceSink {
    // The queue goes before the reactor that it belongs to.
    queue: Box<dyn Queue>,
    reactor: Reactor,
    geometry: Geometry,
    name: String,
    /// Where the next byte goes.
    position: u64,
    /// A piece that is not full yet, and how much of it is.
    staging: Option<(Buffer, usize)>,
    done: Vec<Completion>,
    ready: Vec<TaskId>,
}

/// Operations other than the writes, which have their position as a token. No position is so large.
const SINGLE: u64 = u64::MAX;

impl NamespaceSink {
    pub(super) fn open(
        namespace: &dyn Namespace,
        engine: EngineKind,
        name: String,
        position: u64,
    ) -> Result<NamespaceSink> {
        let (reactor, _, queue) = super::open_queue(namespace, engine)?;
        Ok(NamespaceSink {
            queue,
            reactor,
            geometry: namespace.geometry(),
            name,
            position,
            staging: None,
            done: Vec::new(),
            ready: Vec::new(),
        })
    }

    fn block(&self) -> u64 {
        u64::from(self.geometry.block_size)
    }

    fn write(&mut self, chunk: Chunk, free: &mut dyn FnMut(Buffer)) -> Result<()> {
        let whole = chunk.range == (0..chunk.buffer.len());
        let fits = chunk.buffer.len() <= piece_bytes(&self.geometry);
        let blocks = (self.position | chunk.range.len() as u64).is_multiple_of(self.block());
        if whole && fits && blocks && self.staging.is_none() {
            let position = self.position;
            self.position += chunk.buffer.len() as u64;
            return self.submit(position, chunk.buffer, free);
        }
        self.copy(chunk.bytes(), free)?;
        free(chunk.buffer);
        Ok(())
    }

    /// Takes bytes through the staging buffer.
    fn copy(&mut self, mut bytes: &[u8], free: &mut dyn FnMut(Buffer)) -> Result<()> {
        while !bytes.is_empty() {
            let (mut buffer, filled) = match self.staging.take() {
                Some(staging) => staging,
                None => self.stage()?,
            };
            let length = bytes.len().min(buffer.len() - filled);
            buffer[filled..filled + length].copy_from_slice(&bytes[..length]);
            bytes = &bytes[length..];
            self.position += length as u64;
            if filled + length == buffer.len() {
                let start = self.position - buffer.len() as u64;
                self.submit(start, buffer, &mut |buffer| free(buffer))?;
            } else {
                self.staging = Some((buffer, filled + length));
            }
        }
        Ok(())
    }

    /// A new staging buffer, with what the first block holds before the position.
    fn stage(&mut self) -> Result<(Buffer, usize)> {
        let block = self.block();
        let start = self.position / block * block;
        let left = self.geometry.capacity_bytes() - start;
        let length = left.min(piece_bytes(&self.geometry) as u64) as usize;
        let mut buffer = self.reactor.buffers().take(length);
        let head = (self.position - start) as usize;
        if head > 0 {
            let old = self.read_block(start)?;
            buffer[..head].copy_from_slice(&old[..head]);
            self.reactor.buffers().give(old);
        }
        Ok((buffer, head))
    }

    fn finish(&mut self) -> Result<()> {
        if let Some((mut buffer, filled)) = self.staging.take() {
            let block = self.block();
            let start = self.position - filled as u64;
            let end = filled.next_multiple_of(block as usize);
            if filled < end {
                let old = self.read_block(start + end as u64 - block)?;
                let rest = end - filled;
                buffer[filled..end].copy_from_slice(&old[block as usize - rest..]);
                self.reactor.buffers().give(old);
            }
            buffer.truncate(end);
            self.submit(start, buffer, &mut drop)?;
        }
        self.drain()?;
        self.queue.submit(Op::flush(SINGLE));
        self.drain().map(drop)
    }

    /// Reads one block, with nothing else in flight: it is one of the two at the edges.
    fn read_block(&mut self, start: u64) -> Result<Buffer> {
        self.drain()?;
        let buffer = self.reactor.buffers().take(self.geometry.block_size as usize);
        self.queue.submit(Op::read(start / self.block(), 1, buffer, SINGLE));
        let buffer = self.drain()?;
        Ok(buffer.expect("a read has a buffer"))
    }

    fn submit(
        &mut self,
        position: u64,
        buffer: Buffer,
        free: &mut dyn FnMut(Buffer),
    ) -> Result<()> {
        let block = self.block();
        let blocks = (buffer.len() as u64 / block) as u32;
        self.queue.submit(Op::write(position / block, blocks, buffer, position));
        // Also when there is room: what is queued starts with the next poll.
        self.poll(Some(Duration::ZERO), free)?;
        while self.queue.in_flight() >= DEPTH {
            self.poll(None, free)?;
        }
        Ok(())
    }

    /// Waits until nothing is in flight; gives the buffer of the last operation that had one.
    fn drain(&mut self) -> Result<Option<Buffer>> {
        let mut last = None;
        while self.queue.in_flight() > 0 {
            self.poll(None, &mut |buffer| last = Some(buffer))?;
        }
        Ok(last)
    }

    fn poll(&mut self, time: Option<Duration>, free: &mut dyn FnMut(Buffer)) -> Result<()> {
        let before = self.queue.in_flight();
        self.collect(free)?;
        // Something completed meanwhile: whoever waits looks again before it sleeps.
        if self.queue.in_flight() < before && time != Some(Duration::ZERO) {
            return Ok(());
        }
        let polled = self.reactor.poll(time, &mut self.ready);
        polled.map_err(|error| super::event_loop_failed(&error))?;
        self.ready.clear();
        self.collect(free)
    }

    fn collect(&mut self, free: &mut dyn FnMut(Buffer)) -> Result<()> {
        self.queue.poll(&mut self.done);
        let mut outcome = Ok(());
        for completion in self.done.drain(..) {
            if let (Err(error), Ok(())) = (completion.result, &outcome) {
                let (name, error) = (&self.name, super::reason(error));
                let what = match completion.token {
                    SINGLE => format!("making {name} durable, or reading from it, failed: {error}"),
                    at => format!("writing to {name} at byte {at} failed: {error}"),
                };
                outcome = Err(Failure::Run(what));
            }
            completion.buffer.into_iter().for_each(&mut *free);
        }
        outcome
    }
}

/// Writes to a regular file or block device.
pub(super) struct FileSink {
    file: File,
    name: String,
    position: u64,
    /// A new regular file: zeroes need not be written.
    sparse: bool,
}

impl FileSink {
    pub(super) fn new(file: File, name: String, sparse: bool) -> FileSink {
        FileSink { file, name, position: 0, sparse }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let hole = self.sparse && is_zero(bytes);
        let done = if hole {
            self.file.seek(SeekFrom::Current(bytes.len() as i64)).map(drop)
        } else {
            self.file.write_all(bytes)
        };
        done.map_err(|error| self.failure(&error))?;
        self.position += bytes.len() as u64;
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let length = if self.sparse { self.file.set_len(self.position) } else { Ok(()) };
        length.and_then(|()| self.file.sync_all()).map_err(|error| self.failure(&error))
    }

    fn failure(&self, error: &io::Error) -> Failure {
        let hint = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                ": make room, or choose another place"
            }
            io::ErrorKind::FileTooLarge => ": the system limits how large files may be",
            _ => "",
        };
        let (name, at, error) = (&self.name, self.position, crate::error::os(error));
        Failure::run(format_args!("cannot write to {name} at byte {at}: {error}{hint}"))
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    // In pieces, so that the compiler compares many bytes at once.
    let (chunks, rest) = bytes.as_chunks::<64>();
    chunks.iter().all(|chunk| *chunk == [0; 64]) && rest.iter().all(|&byte| byte == 0)
}
