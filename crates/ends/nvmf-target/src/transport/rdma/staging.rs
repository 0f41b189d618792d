//! Registered memory of a device, from which READs and WRITEs move data. A core registers it in
//! slabs when it first needs them, and keeps them as long as it has connections of the device.
//!
//! A transfer takes a chunk until its completion. So the device never uses memory that a command's
//! buffer, a namespace or the pool of the reactor owns, at the price of one copy.

use crate::limits;
use farblock_reactor::TaskId;
use farblock_verbs::{Access, Pages, Provider, ProviderMr, ProviderPd, Slice, Verbs, VerbsError};
use std::collections::VecDeque;
use std::sync::Arc;

/// Registered memory, cut into chunks of one size.
struct Slab {
    pages: Arc<Pages>,
    mr: ProviderMr,
    chunk_bytes: usize,
    /// Offsets of the chunks that no transfer uses.
    free: Vec<usize>,
}

/// A part of a slab. It must be given back.
#[derive(Debug)]
pub(super) struct Chunk {
    slab: usize,
    offset: usize,
}

/// The registered memory of one device on one core.
pub(crate) struct Staging {
    verbs: Provider,
    pd: ProviderPd,
    can_invalidate: bool,
    slabs: Vec<Slab>,
    /// Tasks of connections that wait for a chunk.
    waiting: VecDeque<TaskId>,
}

impl Staging {
    /// No memory yet. `can_invalidate`: whether the device can send with Invalidate.
    pub(crate) fn new(verbs: Provider, pd: ProviderPd, can_invalidate: bool) -> Self {
        Self { verbs, pd, can_invalidate, slabs: Vec::new(), waiting: VecDeque::new() }
    }

    pub(super) fn pd(&self) -> &ProviderPd {
        &self.pd
    }

    pub(super) fn can_invalidate(&self) -> bool {
        self.can_invalidate
    }

    /// A chunk of at least `bytes` bytes; `None` if all memory is in use.
    ///
    /// # Errors
    /// If the device registers no memory at all.
    pub(super) fn take(&mut self, bytes: usize) -> Result<Option<Chunk>, VerbsError> {
        let chunk_bytes = class(bytes);
        let is_fit = |slab: &Slab| slab.chunk_bytes == chunk_bytes && !slab.free.is_empty();
        let found = match self.slabs.iter().position(is_fit) {
            Some(slab) => Some(slab),
            None => self.new_slab(chunk_bytes)?,
        };
        Ok(found.map(|slab| {
            let offset = self.slabs[slab].free.pop().expect("it has a free chunk");
            Chunk { slab, offset }
        }))
    }

    /// The index of a slab whose chunks of this size are all free.
    fn new_slab(&mut self, chunk_bytes: usize) -> Result<Option<usize>, VerbsError> {
        if self.slabs.len() < limits::STAGING_BYTES / limits::STAGING_SLAB_BYTES {
            let pages = Arc::new(Pages::new(limits::STAGING_SLAB_BYTES));
            match self.verbs.reg_mr(&self.pd, pages.clone(), Access::LOCAL_WRITE) {
                Ok(mr) => {
                    let free = offsets(chunk_bytes);
                    self.slabs.push(Slab { pages, mr, chunk_bytes, free });
                    return Ok(Some(self.slabs.len() - 1));
                }
                Err(error) if self.slabs.is_empty() => return Err(error),
                // The limit of locked memory: use what there is.
                Err(_) => {}
            }
        }
        let is_unused = |slab: &Slab| slab.free.len() * slab.chunk_bytes == slab.pages_bytes();
        let found = self.slabs.iter().position(is_unused);
        if let Some(slab) = found {
            let slab = &mut self.slabs[slab];
            (slab.chunk_bytes, slab.free) = (chunk_bytes, offsets(chunk_bytes));
        }
        Ok(found)
    }

    /// Returns a chunk that no request uses any more, and the task of a connection that may now
    /// retry.
    pub(super) fn give(&mut self, chunk: Chunk) -> Option<TaskId> {
        self.slabs[chunk.slab].free.push(chunk.offset);
        self.waiting.pop_front()
    }

    /// Notes that a connection waits for a chunk.
    pub(super) fn wait(&mut self, task: TaskId) {
        if !self.waiting.contains(&task) {
            self.waiting.push_back(task);
        }
    }

    /// The first `bytes` of a chunk, for a request.
    pub(super) fn slice(&self, chunk: &Chunk, bytes: usize) -> Slice {
        let slab = &self.slabs[chunk.slab];
        assert!(bytes <= slab.chunk_bytes, "{bytes} bytes of a chunk of {}", slab.chunk_bytes);
        let keys = self.verbs.keys(&slab.mr);
        keys.slice(chunk.offset, bytes as u32).expect("a chunk is inside its slab")
    }

    /// Copies the start of a chunk out, after the completion of its READ.
    pub(super) fn read(&self, chunk: &Chunk, out: &mut [u8]) {
        let slab = &self.slabs[chunk.slab];
        assert!(out.len() <= slab.chunk_bytes);
        slab.pages.read(chunk.offset, out);
    }

    /// Copies bytes into a chunk, before its WRITE.
    pub(super) fn write(&self, chunk: &Chunk, at: usize, bytes: &[u8]) {
        let slab = &self.slabs[chunk.slab];
        assert!(at + bytes.len() <= slab.chunk_bytes);
        slab.pages.write(chunk.offset + at, bytes);
    }
}

impl Slab {
    fn pages_bytes(&self) -> usize {
        farblock_verbs::Memory::bytes(&*self.pages)
    }
}

/// The size of the chunk for a transfer: a power of two, so that a slab has whole chunks.
fn class(bytes: usize) -> usize {
    let chunk_bytes = bytes.next_power_of_two().max(limits::STAGING_CHUNK_BYTES_MIN);
    assert!(chunk_bytes <= limits::STAGING_SLAB_BYTES, "no transfer has {bytes} bytes");
    chunk_bytes
}

fn offsets(chunk_bytes: usize) -> Vec<usize> {
    (0..limits::STAGING_SLAB_BYTES).step_by(chunk_bytes).rev().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_verbs::{CmEventType, Network};

    /// Memory of a device without a connection.
    fn staging() -> Staging {
        let node = Network::new().node("192.0.2.1".parse().expect("an address"));
        let verbs = Provider::Memory(node);
        let channel = verbs.create_event_channel().expect("a channel");
        let address = "192.0.2.1:4420".parse().expect("an address");
        let id = verbs.resolve_addr(&channel, None, address, 1000).expect("an attempt");
        let event = verbs.get_cm_event(&channel).expect("a channel").expect("an event");
        assert_eq!(event.event, CmEventType::AddrResolved);
        let pd = verbs.alloc_pd(&id).expect("a domain");
        Staging::new(verbs, pd, true)
    }

    #[test]
    fn chunks_do_not_overlap_and_are_limited() {
        let mut staging = staging();
        let mut taken = Vec::new();
        while let Some(chunk) = staging.take(64 << 10).expect("memory") {
            taken.push(chunk);
        }
        assert_eq!(taken.len(), limits::STAGING_BYTES / (64 << 10));
        for (index, chunk) in taken.iter().enumerate() {
            staging.write(chunk, 0, &[index as u8; 64 << 10]);
        }
        let mut out = vec![0; 64 << 10];
        for (index, chunk) in taken.iter().enumerate() {
            staging.read(chunk, &mut out);
            assert!(out.iter().all(|byte| *byte == index as u8));
        }
    }

    #[test]
    fn an_unused_slab_is_cut_again() {
        let mut staging = staging();
        let mut taken = Vec::new();
        while let Some(chunk) = staging.take(4096).expect("memory") {
            taken.push(chunk);
        }
        assert!(staging.take(1 << 20).expect("memory").is_none());
        // All chunks of one slab, and one of another.
        for chunk in taken.drain(..257) {
            staging.give(chunk);
        }
        let large = staging.take(1 << 20).expect("memory").expect("one slab is unused");
        assert!(staging.take(1 << 20).expect("memory").is_none());
        staging.give(large);
        assert!(staging.take(4097).expect("memory").is_some());
    }

    #[test]
    fn a_returned_chunk_names_who_waits_for_it() {
        let reactor = farblock_reactor::Reactor::new(&farblock_reactor::Config::default())
            .expect("a reactor");
        let (first, second) = (reactor.add_task(), reactor.add_task());
        let mut staging = staging();
        let (a, b) = (staging.take(1).unwrap().unwrap(), staging.take(1).unwrap().unwrap());
        staging.wait(first);
        staging.wait(first);
        staging.wait(second);
        assert_eq!(staging.give(a), Some(first));
        assert_eq!(staging.give(b), Some(second));
    }
}
