//! Writes a transfer's data to a namespace.

use super::chunk::is_zero;
use super::{Chunk, DEPTH, GRACE, TICK, piece_bytes};
use crate::error::{Failure, Result};
use crate::signals::Stop;
use farblock_block::{BlockError, Completion, Geometry, Namespace, Op, Queue};
use farblock_reactor::{Buffer, EngineKind, Reactor, TaskId};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The maximum number of bytes that one operation zeroes.
const ZEROES_BYTES: u64 = 8 << 20;
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// The token (the number that identifies a completion) of a read or flush with nothing else in
/// flight. The token of a write is its offset, which never has this value.
const SINGLE: u64 = u64::MAX;
/// The token of a flush that runs concurrently with writes.
const CHECKPOINT: u64 = u64::MAX - 1;

/// A namespace as a destination, with up to [`DEPTH`] operations in flight. The token of a write is
/// the offset of its first byte.
///
/// The sink writes chunks of whole blocks directly. It collects other chunks in `staging`, a buffer
/// that begins at a block boundary. If the range starts or ends inside a block, the sink first
/// reads the rest of that block.
pub(super) struct NamespaceSink {
    // Declared first: the queue must be dropped before its reactor.
    queue: Box<dyn Queue>,
    namespace: Arc<dyn Namespace>,
    reactor: Reactor,
    geometry: Geometry,
    pub(super) name: String,
    stop: Stop,
    /// The time at which the sink gives up after a failure or a signal; `None` until then.
    deadline: Option<Instant>,
    /// The offset of the transfer's first byte.
    start: u64,
    /// The offset of the next byte to write.
    position: u64,
    /// The partly filled buffer of the next write, and the number of its filled bytes.
    staging: Option<(Buffer, usize)>,
    /// The writes in order of submission, starting with the oldest incomplete one: the offset of
    /// each write, and whether it is complete.
    window: VecDeque<(u64, bool)>,
    /// The offset up to which the flush in flight makes data durable.
    flushing: Option<u64>,
    /// Everything before this offset is durable.
    durable: u64,
    /// The failed operation with the lowest offset, until `poll` returns the failure.
    failed: Option<(u64, BlockError)>,
    done: Vec<Completion>,
    ready: Vec<TaskId>,
}

impl NamespaceSink {
    /// Opens the sink of a transfer that begins at offset `start`. An earlier attempt has written
    /// the first `done` bytes, so the next byte goes to `start + done`.
    pub(super) fn open(
        namespace: &Arc<dyn Namespace>,
        engine: EngineKind,
        name: String,
        (start, done): (u64, u64),
        stop: Stop,
    ) -> Result<NamespaceSink> {
        let (reactor, _, queue) = super::open_queue(&**namespace, engine)?;
        Ok(NamespaceSink {
            queue,
            namespace: Arc::clone(namespace),
            reactor,
            geometry: namespace.geometry(),
            name,
            stop,
            deadline: None,
            start,
            position: start + done,
            staging: None,
            window: VecDeque::with_capacity(DEPTH + 1),
            flushing: None,
            durable: start + done,
            failed: None,
            done: Vec::new(),
            ready: Vec::new(),
        })
    }

    /// The number of the transfer's bytes that are durable.
    pub(super) fn durable(&self) -> u64 {
        self.durable.saturating_sub(self.start)
    }

    fn block(&self) -> u64 {
        u64::from(self.geometry.block_size)
    }

    pub(super) fn write(&mut self, chunk: Chunk, free: &mut dyn FnMut(Buffer)) -> Result<()> {
        let (buffer, range) = match chunk {
            Chunk::Hole(length) => return self.write_hole(length, free),
            Chunk::Data(buffer, range) => (buffer, range),
        };
        let whole = range == (0..buffer.len());
        let fits = buffer.len() <= piece_bytes(&self.geometry);
        let blocks = (self.position | range.len() as u64).is_multiple_of(self.block());
        if whole && fits && blocks && self.staging.is_none() {
            if is_zero(&buffer) {
                let length = buffer.len() as u64;
                free(buffer);
                return self.write_hole(length, free);
            }
            let position = self.position;
            self.position += buffer.len() as u64;
            return self.submit_write(position, buffer, free);
        }
        self.copy(&buffer[range], free)?;
        free(buffer);
        Ok(())
    }

    /// Writes zeroes: with a Write Zeroes operation for whole blocks, and as data in the others.
    fn write_hole(&mut self, mut length: u64, free: &mut dyn FnMut(Buffer)) -> Result<()> {
        let block = self.block();
        while length > 0 {
            let whole = length / block * block;
            let aligned = self.staging.is_none() && self.position.is_multiple_of(block);
            let part = if aligned && whole > 0 {
                let part = whole.min(ZEROES_BYTES);
                let (lba, blocks) = (self.position / block, (part / block) as u32);
                let op = Op::write_zeroes(lba, blocks, true, self.position);
                self.position += part;
                self.submit(op, free)?;
                part
            } else {
                let part = length.min(ZEROES.len() as u64);
                self.copy(&ZEROES[..part as usize], free)?;
                part
            };
            length -= part;
        }
        Ok(())
    }

    /// Copies bytes into the staging buffer, and writes it when full.
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
                self.submit_write(start, buffer, free)?;
            } else {
                self.staging = Some((buffer, filled + length));
            }
        }
        Ok(())
    }

    /// Returns a new staging buffer. If the position is inside a block, the buffer starts with the
    /// old bytes of this block.
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

    /// Starts a flush of the completed writes, unless one is in flight.
    pub(super) fn checkpoint(&mut self) {
        let staged = self.staging.as_ref().map_or(0, |(_, filled)| *filled as u64);
        // `max`: the staging buffer may start with old bytes from before the transfer's start.
        let unsent = self.position.saturating_sub(staged).max(self.durable);
        let complete = self.window.front().map_or(unsent, |(first, _)| *first);
        if self.flushing.is_none() && complete > self.durable {
            self.flushing = Some(complete);
            self.queue.submit(Op::flush(CHECKPOINT));
        }
    }

    /// Writes the staged data and makes everything durable.
    pub(super) fn finish(&mut self) -> Result<()> {
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
            self.submit_write(start, buffer, &mut drop)?;
        }
        self.drain()?;
        self.queue.submit(Op::flush(SINGLE));
        self.drain()?;
        self.durable = self.position;
        Ok(())
    }

    /// Like [`finish`](Self::finish) with a short deadline, after a failure or a signal.
    pub(super) fn wind_up(&mut self) {
        self.deadline = Some(Instant::now() + GRACE);
        // Ignore failures: they only mean that the sink reports fewer durable bytes.
        self.settle();
        if self.window.is_empty() {
            let _ = self.finish();
        } else {
            self.checkpoint();
            self.settle();
        }
    }

    /// Waits until nothing is in flight, or until the deadline. Ignores failures.
    fn settle(&mut self) {
        while self.queue.in_flight() > 0 {
            if let Err(Failure::Interrupted(_)) = self.wait(&mut drop) {
                return;
            }
        }
    }

    /// Reads the block at an edge of the range. Waits first until nothing else is in flight.
    fn read_block(&mut self, start: u64) -> Result<Buffer> {
        self.drain()?;
        let buffer = self.reactor.buffers().take(self.geometry.block_size as usize);
        self.queue.submit(Op::read(start / self.block(), 1, buffer, SINGLE));
        let buffer = self.drain()?;
        Ok(buffer.expect("a read has a buffer"))
    }

    fn submit_write(
        &mut self,
        position: u64,
        buffer: Buffer,
        free: &mut dyn FnMut(Buffer),
    ) -> Result<()> {
        let block = self.block();
        let blocks = (buffer.len() as u64 / block) as u32;
        self.submit(Op::write(position / block, blocks, buffer, position), free)
    }

    fn submit(&mut self, op: Op, free: &mut dyn FnMut(Buffer)) -> Result<()> {
        self.window.push_back((op.token.value(), false));
        self.queue.submit(op);
        // Poll even with fewer than `DEPTH` operations: the queue starts operations when it is
        // polled.
        self.poll(Duration::ZERO, free)?;
        while self.queue.in_flight() >= DEPTH {
            self.wait(free)?;
        }
        Ok(())
    }

    /// Waits until nothing is in flight. Returns the last buffer that a completion returned.
    fn drain(&mut self) -> Result<Option<Buffer>> {
        let mut last = None;
        while self.queue.in_flight() > 0 {
            self.wait(&mut |buffer| last = Some(buffer))?;
        }
        Ok(last)
    }

    /// Processes events for at most one [`TICK`]. Fails after a signal or the deadline.
    fn wait(&mut self, free: &mut dyn FnMut(Buffer)) -> Result<()> {
        match self.is_over() {
            true => Err(Failure::Interrupted(String::new())),
            false => self.poll(TICK, free),
        }
    }

    /// Whether the sink must stop: at the deadline if there is one, and otherwise after a signal.
    fn is_over(&self) -> bool {
        match self.deadline {
            Some(deadline) => Instant::now() >= deadline,
            None => self.stop.requested(),
        }
    }

    /// Processes events. Of several failures, reports the one with the lowest offset, after all
    /// writes before it have completed.
    pub(super) fn poll(&mut self, time: Duration, free: &mut dyn FnMut(Buffer)) -> Result<()> {
        self.poll_once(time, free)?;
        while self.failed.is_some_and(|(at, _)| self.awaits_before(at)) && !self.is_over() {
            self.poll_once(TICK, free)?;
        }
        match self.failed.take() {
            Some((token, error)) => Err(self.failure(token, error)),
            None => Ok(()),
        }
    }

    /// Whether a write before offset `at` may be in flight.
    fn awaits_before(&self, at: u64) -> bool {
        self.queue.in_flight() > 0 && self.window.front().is_some_and(|(first, _)| *first < at)
    }

    fn poll_once(&mut self, time: Duration, free: &mut dyn FnMut(Buffer)) -> Result<()> {
        let before = self.queue.in_flight();
        self.collect(free);
        // Return without sleeping if an operation has completed.
        if self.queue.in_flight() < before && !time.is_zero() {
            return Ok(());
        }
        let polled = self.reactor.poll(Some(time), &mut self.ready);
        polled.map_err(|error| super::event_loop_failed(&error))?;
        self.ready.clear();
        self.collect(free);
        Ok(())
    }

    fn collect(&mut self, free: &mut dyn FnMut(Buffer)) {
        let mut done = std::mem::take(&mut self.done);
        self.queue.poll(&mut done);
        for completion in done.drain(..) {
            match completion.result {
                Ok(()) => self.completed(completion.token),
                Err(error) if self.failed.is_none_or(|(lowest, _)| completion.token < lowest) => {
                    self.failed = Some((completion.token, error));
                }
                Err(_) => {}
            }
            completion.buffer.into_iter().for_each(&mut *free);
        }
        self.done = done;
    }

    fn completed(&mut self, token: u64) {
        match token {
            SINGLE => {}
            CHECKPOINT => self.durable = self.flushing.take().unwrap_or(self.durable),
            at => {
                if let Ok(index) = self.window.binary_search_by_key(&at, |(first, _)| *first) {
                    self.window[index].1 = true;
                }
                while self.window.pop_front_if(|(_, complete)| *complete).is_some() {}
            }
        }
    }

    fn failure(&self, token: u64, error: BlockError) -> Failure {
        let (name, error) = (&self.name, super::reason(error, &*self.namespace));
        Failure::run(match token {
            SINGLE | CHECKPOINT => {
                format!("making {name} durable, or reading from it, failed: {error}")
            }
            at => format!("writing to {name} at byte {at} failed: {error}"),
        })
    }
}
