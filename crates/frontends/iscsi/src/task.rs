//! A *task*: a SCSI command from the arrival of its PDU until its status is sent.
//!
//! ```text
//! Gathering ──> Waiting ──> Asking ──> Running ──answered──> Free
//!     └────────────┴───────────┴──answered early, aborted──────^
//! ```

use crate::limits;
use crate::scsi::{Command, Compare, Extent, Failure, Sense};
use farblock_block::{Command as Access, Completion, Geometry, Op};
use farblock_reactor::{Buffer, BufferPool};
use std::ops::Range;

/// The number of a task in its session's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot(pub(crate) u16);

/// The state of a task; the diagram above shows the transitions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TaskState {
    /// The slot has no task.
    Free,
    /// The task waits for unsolicited data, which the initiator sends without an R2T.
    Gathering,
    /// The task waits in the session's queue for buffers, or for an ordered task.
    Waiting,
    /// The target has requested data by R2Ts.
    Asking,
    /// The namespace executes the task's operations.
    Running,
}

/// The limit against which a task counts until it is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Window {
    /// The command window.
    Numbered,
    /// The limit for immediate tasks.
    Immediate,
    /// None: the task is answered.
    Left,
}

/// The part of a task that one block operation executes. A write with verification takes a second
/// operation, a read.
pub(crate) struct Piece {
    pub(crate) lba: u64,
    pub(crate) blocks: u32,
    /// The data to write, or the data read. `None` while the namespace has the buffer.
    pub(crate) buffer: Option<Buffer>,
    /// True while the namespace reads the written data back for the comparison.
    compares: bool,
}

/// A command in progress.
pub(crate) struct Task {
    pub(crate) state: TaskState,
    /// The initiator's tag for the task.
    pub(crate) tag: u32,
    pub(crate) command: Command,
    /// The reason why the command failed, if it did.
    pub(crate) failure: Option<Failure>,
    /// The limit against which the task counts.
    pub(crate) window: Window,
    /// True for an ordered task, which starts after all earlier tasks of the session have ended.
    /// Later tasks start after it has ended.
    pub(crate) is_ordered: bool,
    /// True if the initiator no longer expects an answer.
    pub(crate) is_aborted: bool,
    /// True while a PDU with data for this task arrives.
    pub(crate) in_payload: bool,
    /// The numbers of the abort requests that wait until this task has ended.
    pub(crate) barriers: Vec<u32>,
    /// The number of bytes that the initiator announced to send or receive.
    pub(crate) expected: u32,
    /// The number of data bytes that the target accepts from the initiator for this task.
    pub(crate) wanted: u32,
    /// The number of bytes received, including all data of the PDU that is arriving.
    pub(crate) received: u32,
    /// True if more unsolicited data will arrive.
    pub(crate) unasked: bool,
    /// The sequence number of the next data PDU.
    pub(crate) data_sn: u32,
    /// The offset of the first byte that the target requests by R2T.
    pub(crate) asked_from: u32,
    /// The offset up to which the target has requested data.
    pub(crate) asked_to: u32,
    /// The number of R2Ts sent.
    pub(crate) r2t_sn: u32,
    pub(crate) pieces: Vec<Piece>,
    /// The length of each piece except the last, in bytes.
    piece_bytes: u32,
    /// Received data that no write operation uses directly: a parameter list, the block of a WRITE
    /// SAME, or the data of a COMPARE AND WRITE.
    pub(crate) parameters: Vec<u8>,
    /// The blocks that a WRITE SAME has not written yet.
    pub(crate) fill: Extent,
    /// The number of block operations in flight.
    pub(crate) operations: usize,
    /// The bytes that this task counts against the session's limit on data buffers.
    pub(crate) held_bytes: usize,
}

impl Task {
    pub(crate) fn free() -> Task {
        Task {
            state: TaskState::Free,
            tag: 0,
            command: Command::Nothing,
            failure: None,
            window: Window::Left,
            is_ordered: false,
            is_aborted: false,
            in_payload: false,
            barriers: Vec::new(),
            expected: 0,
            wanted: 0,
            received: 0,
            unasked: false,
            data_sn: 0,
            asked_from: 0,
            asked_to: 0,
            r2t_sn: 0,
            pieces: Vec::new(),
            piece_bytes: 0,
            parameters: Vec::new(),
            fill: Extent { lba: 0, blocks: 0 },
            operations: 0,
            held_bytes: 0,
        }
    }

    /// Starts a task in this slot. Reuses the slot's vectors.
    pub(crate) fn begin(&mut self, tag: u32, command: Command, expected: u32) {
        let old = std::mem::replace(self, Task::free());
        self.pieces = old.pieces;
        self.parameters = old.parameters;
        self.barriers = old.barriers;
        (self.state, self.tag, self.command) = (TaskState::Gathering, tag, command);
        self.expected = expected;
    }

    /// Prepares the pieces for `wanted` bytes of data, or for the blocks to read.
    pub(crate) fn prepare(&mut self, geometry: &Geometry) {
        let block_size = geometry.block_size;
        match self.command {
            Command::Read(extent) | Command::Verify { extent, compare: Compare::Nothing } => {
                self.cut(extent, geometry);
            }
            Command::Verify { extent, compare: Compare::OneBlock } => {
                self.parameters.resize(self.wanted as usize, 0);
                self.cut(extent, geometry);
            }
            // A write changes only blocks whose data the initiator has announced completely.
            Command::Write { extent, .. }
            | Command::WriteVerify { extent, .. }
            | Command::Verify { extent, compare: Compare::Data } => {
                self.cut(Extent { blocks: self.wanted / block_size, ..extent }, geometry);
                self.wanted -= self.wanted % block_size;
            }
            _ => self.parameters.resize(self.wanted as usize, 0),
        }
    }

    fn cut(&mut self, extent: Extent, geometry: &Geometry) {
        let most = farblock_frontend::pieces::piece_blocks(geometry);
        self.piece_bytes = geometry.bytes(most) as u32;
        let Extent { mut lba, mut blocks } = extent;
        while blocks > 0 {
            let count = blocks.min(most);
            self.push(lba, count, None);
            lba += u64::from(count);
            blocks -= count;
        }
    }

    /// Adds a piece.
    pub(crate) fn push(&mut self, lba: u64, blocks: u32, buffer: Option<Buffer>) {
        self.pieces.push(Piece { lba, blocks, buffer, compares: false });
    }

    /// The memory that the task's buffers will take, in bytes.
    pub(crate) fn needs_bytes(&self, geometry: &Geometry) -> usize {
        let bytes: usize = self.pieces.iter().map(|piece| geometry.bytes(piece.blocks)).sum();
        match self.command {
            Command::WriteVerify { .. } | Command::Verify { compare: Compare::Data, .. } => {
                2 * bytes
            }
            Command::WriteSame { .. } => limits::PIECE_BYTES as usize,
            Command::CompareWrite { .. } => self.wanted as usize,
            _ => bytes,
        }
    }

    /// The index of the piece that contains `offset`, and the range in its buffer from there to its
    /// end.
    fn place(&self, offset: u32, geometry: &Geometry) -> (usize, Range<usize>) {
        let index = (offset / self.piece_bytes) as usize;
        let start = (offset % self.piece_bytes) as usize;
        (index, start..geometry.bytes(self.pieces[index].blocks))
    }

    /// Stores received data in the pieces. Discards data beyond `wanted`.
    pub(crate) fn store(
        &mut self,
        mut offset: u32,
        mut data: &[u8],
        geometry: &Geometry,
        pool: &BufferPool,
    ) {
        data = &data[..data.len().min(self.wanted.saturating_sub(offset) as usize)];
        if !self.parameters.is_empty() {
            self.parameters[offset as usize..][..data.len()].copy_from_slice(data);
            return;
        }
        while !data.is_empty() {
            let (index, range) = self.place(offset, geometry);
            let piece = &mut self.pieces[index];
            let buffer =
                piece.buffer.get_or_insert_with(|| pool.take(geometry.bytes(piece.blocks)));
            let (now, later) = data.split_at(data.len().min(range.len()));
            buffer[range.start..][..now.len()].copy_from_slice(now);
            (data, offset) = (later, offset + now.len() as u32);
        }
    }

    /// Lends the caller a piece's buffer, to receive up to `most` bytes of data at `offset` into
    /// it. Returns the piece's index, its buffer, and the range to fill.
    pub(crate) fn lend(
        &mut self,
        offset: u32,
        most: usize,
        geometry: &Geometry,
        pool: &BufferPool,
    ) -> Option<(Buffer, Range<usize>)> {
        if self.pieces.is_empty() || offset >= self.wanted || !self.parameters.is_empty() {
            return None;
        }
        let (index, range) = self.place(offset, geometry);
        let range = range.start..range.end.min(range.start + most);
        if range.len() < limits::DIRECT_RECEIVE_BYTES {
            return None;
        }
        let piece = &mut self.pieces[index];
        let buffer = piece.buffer.take();
        Some((buffer.unwrap_or_else(|| pool.take(geometry.bytes(piece.blocks))), range))
    }

    /// Takes back the buffer that [`Self::lend`] returned for `offset`, and returns the received
    /// data.
    pub(crate) fn take_back(
        &mut self,
        offset: u32,
        count: usize,
        buffer: Buffer,
        geometry: &Geometry,
    ) -> &[u8] {
        let (index, range) = self.place(offset, geometry);
        let buffer = self.pieces[index].buffer.insert(buffer);
        &buffer[range.start..][..count]
    }

    /// Makes the first operation of a piece.
    pub(crate) fn begin_piece(
        &mut self,
        index: usize,
        geometry: &Geometry,
        pool: &BufferPool,
        token: u64,
    ) -> Op {
        let piece = &mut self.pieces[index];
        let (lba, blocks) = (piece.lba, piece.blocks);
        let read = || Op::read(lba, blocks, pool.take(geometry.bytes(blocks)), token);
        match self.command {
            Command::Write { fua, .. } => {
                let data = piece.buffer.take().expect("the data of the piece has arrived");
                let op = Op::write(lba, blocks, data, token);
                if fua { op.durable() } else { op }
            }
            Command::WriteVerify { .. } => {
                let data = piece.buffer.take().expect("the data of the piece has arrived");
                Op::write(lba, blocks, data, token).durable()
            }
            Command::WriteSame { unmap, .. } => match piece.buffer.take() {
                Some(pattern) => Op::write(lba, blocks, pattern, token),
                None => Op::write_zeroes(lba, blocks, unmap, token),
            },
            Command::Flush(_) => Op::flush(token),
            Command::Unmap { .. } => Op::with(Access::Deallocate, lba, blocks, None, token),
            Command::Verify { .. } | Command::CompareWrite { .. } => {
                piece.compares = true;
                read()
            }
            _ => read(),
        }
    }

    /// True if the piece's current operation counts as a change in flight for
    /// [`Alone`](crate::alone::Alone).
    pub(crate) fn is_changing(&self, index: usize) -> bool {
        match self.command {
            // COMPARE AND WRITE is exclusive, and is not counted.
            Command::CompareWrite { .. } => false,
            command => command.writes() && !self.pieces[index].compares,
        }
    }

    /// Compares the blocks that a COMPARE AND WRITE has read with the expected data. Returns the
    /// write operation if they are equal.
    fn compared(&mut self, index: usize, mut found: Buffer, token: u64) -> Result<Op, Buffer> {
        let (expected, new) = self.parameters.split_at(found.len());
        if let Some(at) = expected.iter().zip(&found[..]).position(|(one, other)| one != other) {
            self.failure.get_or_insert(Sense::miscompare(at as u32).into());
            return Err(found);
        }
        found.copy_from_slice(new);
        let piece = &mut self.pieces[index];
        piece.compares = false;
        let op = Op::write(piece.lba, piece.blocks, found, token);
        Ok(if matches!(self.command, Command::CompareWrite { fua: true, .. }) {
            op.durable()
        } else {
            op
        })
    }

    /// Handles a completed operation. Returns the piece's next operation, if it needs another.
    pub(crate) fn end_piece(
        &mut self,
        index: usize,
        done: Completion,
        geometry: &Geometry,
        pool: &BufferPool,
    ) -> Option<Op> {
        if let Err(error) = done.result {
            done.buffer.into_iter().for_each(|buffer| pool.give(buffer));
            self.failure.get_or_insert(error.into());
            return None;
        }
        let piece = &mut self.pieces[index];
        let mut buffer = done.buffer?;
        if piece.compares && matches!(self.command, Command::CompareWrite { .. }) {
            let next = self.compared(index, buffer, done.token);
            return next.map_err(|buffer| pool.give(buffer)).ok();
        }
        if piece.compares {
            let same = match &piece.buffer {
                Some(data) => **data == *buffer,
                None => buffer
                    .chunks_exact(geometry.block_size as usize)
                    .all(|block| self.parameters.is_empty() || *block == *self.parameters),
            };
            pool.give(buffer);
            if !same {
                self.failure.get_or_insert(Sense::MISCOMPARE.into());
            }
            return None;
        }
        match self.command {
            Command::WriteVerify { .. } => {
                piece.buffer = Some(buffer);
                piece.compares = true;
                let into = pool.take(geometry.bytes(piece.blocks));
                Some(Op::read(piece.lba, piece.blocks, into, done.token))
            }
            Command::WriteSame { .. } if self.fill.blocks > 0 && self.failure.is_none() => {
                let blocks = self.fill.blocks.min(piece.blocks);
                let lba = self.fill.lba;
                self.fill =
                    Extent { lba: lba + u64::from(blocks), blocks: self.fill.blocks - blocks };
                buffer.truncate(geometry.bytes(blocks));
                Some(Op::write(lba, blocks, buffer, done.token))
            }
            _ => {
                piece.buffer = Some(buffer);
                None
            }
        }
    }

    /// Returns all buffers of the task to the pool.
    pub(crate) fn give_buffers(&mut self, pool: &BufferPool) {
        for piece in self.pieces.drain(..) {
            piece.buffer.into_iter().for_each(|buffer| pool.give(buffer));
        }
        self.parameters.clear();
    }
}
