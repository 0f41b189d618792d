//! Registered memory for the data of READs and WRITEs. All connections of a core through one device
//! share it. The last of them frees it.

use crate::limits;
use farblock_reactor::TaskId;
use farblock_verbs::{
    Access, Chunk, Provider, ProviderPd, Slice, Staging as Memory, StagingSizes, VerbsError,
};
use std::collections::VecDeque;

/// The registered memory of one device on one core.
pub(crate) struct Staging {
    memory: Memory<Provider>,
    can_invalidate: bool,
    /// The device was removed: a device that returns with this name needs another domain.
    pub(crate) is_removed: bool,
    /// Tasks of connections that wait for a chunk. The first one gets the next chunk, so that a
    /// large transfer does not wait behind an endless row of small ones.
    waiting: VecDeque<TaskId>,
}

impl Staging {
    /// Registers no memory before the first [`Self::take`]. `can_invalidate`: whether the device
    /// can send with Invalidate.
    pub(crate) fn new(verbs: Provider, pd: ProviderPd, can_invalidate: bool) -> Self {
        let sizes = StagingSizes {
            bytes: limits::STAGING_BYTES,
            slab_bytes: limits::STAGING_SLAB_BYTES,
            chunk_bytes: limits::STAGING_CHUNK_BYTES_MIN,
        };
        // Only requests of this end access the memory: no peer gets its key.
        let memory = Memory::new(verbs, pd, Access::LOCAL_WRITE, sizes);
        Self { memory, can_invalidate, is_removed: false, waiting: VecDeque::new() }
    }

    pub(super) fn pd(&self) -> &ProviderPd {
        self.memory.pd()
    }

    pub(super) fn can_invalidate(&self) -> bool {
        self.can_invalidate
    }

    /// A chunk for the connection of `task`. `None`: the connection now waits for its turn.
    pub(super) fn take(&mut self, task: TaskId, bytes: usize) -> Result<Option<Chunk>, VerbsError> {
        let is_first = self.waiting.front().is_none_or(|first| *first == task);
        let taken = if is_first { self.memory.take(bytes)? } else { None };
        if taken.is_some() {
            self.waiting.pop_front();
        } else if !self.waiting.contains(&task) {
            self.waiting.push_back(task);
        }
        Ok(taken)
    }

    /// Returns a chunk that no request uses any more.
    pub(super) fn give(&mut self, chunk: Chunk) {
        self.memory.give(chunk);
    }

    /// Returns the task of the connection whose turn it is. Wake it when there may be memory.
    pub(super) fn next(&self) -> Option<TaskId> {
        self.waiting.front().copied()
    }

    /// Whether connections wait for a chunk.
    pub(crate) fn is_starved(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Forgets a connection that ends.
    pub(super) fn leave(&mut self, task: TaskId) {
        self.waiting.retain(|waiting| *waiting != task);
    }

    pub(super) fn slice(&self, chunk: &Chunk, bytes: usize) -> Slice {
        self.memory.slice(chunk, bytes)
    }

    pub(super) fn read(&self, chunk: &Chunk, out: &mut [u8]) {
        self.memory.read(chunk, out);
    }

    pub(super) fn write(&self, chunk: &Chunk, at: usize, bytes: &[u8]) {
        self.memory.write(chunk, at, bytes);
    }
}
