//! Registered memory for the data of READs and WRITEs. All connections of a core through one device
//! share the memory. The last of these connections frees it.

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
    /// Whether the device was removed. If the device returns under this name, it needs a new
    /// protection domain.
    pub(crate) is_removed: bool,
    /// Tasks of connections that wait for a chunk, in order, so that small transfers do not
    /// overtake a large one forever.
    waiting: VecDeque<TaskId>,
}

impl Staging {
    /// Returns staging without registered memory; the first [`Self::take`] registers some.
    /// `can_invalidate`: whether the device supports Send with Invalidate.
    pub(crate) fn new(verbs: Provider, pd: ProviderPd, can_invalidate: bool) -> Self {
        let sizes = StagingSizes {
            bytes: limits::STAGING_BYTES,
            slab_bytes: limits::STAGING_SLAB_BYTES,
            chunk_bytes: limits::STAGING_CHUNK_BYTES_MIN,
        };
        // Only this target's own requests access the memory: no peer gets its key.
        let memory = Memory::new(verbs, pd, Access::LOCAL_WRITE, sizes);
        Self { memory, can_invalidate, is_removed: false, waiting: VecDeque::new() }
    }

    pub(super) fn pd(&self) -> &ProviderPd {
        self.memory.pd()
    }

    pub(super) fn can_invalidate(&self) -> bool {
        self.can_invalidate
    }

    /// Takes a chunk for the connection of `task`. Returns `None` if the connection must wait for
    /// its turn.
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

    /// Gives back a chunk that no request uses any more.
    pub(super) fn give(&mut self, chunk: Chunk) {
        self.memory.give(chunk);
    }

    /// Returns the task of the connection whose turn it is. The caller wakes this task when memory
    /// may be available.
    pub(super) fn next(&self) -> Option<TaskId> {
        self.waiting.front().copied()
    }

    /// Returns whether connections wait for a chunk.
    pub(crate) fn is_starved(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Removes a closing connection from the list of waiting connections.
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
