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
    /// Tasks of connections that wait for a chunk.
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
        Self { memory, can_invalidate, waiting: VecDeque::new() }
    }

    pub(super) fn pd(&self) -> &ProviderPd {
        self.memory.pd()
    }

    pub(super) fn can_invalidate(&self) -> bool {
        self.can_invalidate
    }

    pub(super) fn take(&mut self, bytes: usize) -> Result<Option<Chunk>, VerbsError> {
        self.memory.take(bytes)
    }

    /// Returns a chunk that no request uses any more, and the task of a connection that may now
    /// retry.
    pub(super) fn give(&mut self, chunk: Chunk) -> Option<TaskId> {
        self.memory.give(chunk);
        self.waiting.pop_front()
    }

    /// Notes that a connection waits for a chunk.
    pub(super) fn wait(&mut self, task: TaskId) {
        if !self.waiting.contains(&task) {
            self.waiting.push_back(task);
        }
    }

    /// Forgets a connection that ends. Returns the task of a waiting connection, which may now
    /// retry: the ended connection may have been woken instead.
    pub(super) fn leave(&mut self, task: TaskId) -> Option<TaskId> {
        self.waiting.retain(|waiting| *waiting != task);
        self.waiting.pop_front()
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
