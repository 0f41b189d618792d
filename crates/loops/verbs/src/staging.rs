//! [`Staging`]: registered memory for transfers, in slabs that are registered when they are first
//! needed.
//!
//! Each transfer uses a [`Chunk`] of a slab until its completion. The caller copies the bytes into
//! or out of the chunk, so the device never accesses other memory.

use std::sync::Arc;

use crate::error::VerbsError;
use crate::memory::{Pages, Slice};
use crate::request::Access;
use crate::verbs::Verbs;

/// The sizes of a [`Staging`], in bytes. All are powers of two.
#[derive(Clone, Copy, Debug)]
pub struct StagingSizes {
    /// The maximum amount of registered memory of a [`Staging`].
    pub bytes: usize,
    /// The size of a slab: the unit of registration, and the largest chunk.
    pub slab_bytes: usize,
    /// The size of the smallest chunk.
    pub chunk_bytes: usize,
}

/// The registered memory for the transfers of one protection domain.
pub struct Staging<V: Verbs> {
    verbs: V,
    pd: V::Pd,
    access: Access,
    sizes: StagingSizes,
    slabs: Vec<Slab<V>>,
}

/// A slab of registered memory, divided into chunks of one size.
struct Slab<V: Verbs> {
    pages: Arc<Pages>,
    mr: V::Mr,
    chunk_bytes: usize,
    /// Offsets of the chunks that no transfer uses.
    free: Vec<usize>,
}

/// A part of registered memory, for one transfer. Return it to its [`Staging`].
#[derive(Debug)]
pub struct Chunk {
    slab: usize,
    offset: usize,
}

impl<V: Verbs> Staging<V> {
    /// Makes a staging that has not registered memory yet. Its registrations will permit `access`.
    ///
    /// # Panics
    /// Panics if a size is not a power of two, a chunk exceeds a slab, or a slab exceeds `bytes`.
    #[must_use]
    pub fn new(verbs: V, pd: V::Pd, access: Access, sizes: StagingSizes) -> Self {
        let StagingSizes { bytes, slab_bytes, chunk_bytes } = sizes;
        assert!([bytes, slab_bytes, chunk_bytes].iter().all(|size| size.is_power_of_two()));
        assert!(chunk_bytes <= slab_bytes && slab_bytes <= bytes);
        Self { verbs, pd, access, sizes, slabs: Vec::new() }
    }

    /// The protection domain.
    pub fn pd(&self) -> &V::Pd {
        &self.pd
    }

    /// Takes a chunk of at least `bytes` bytes. `None` if all memory is in use.
    ///
    /// # Errors
    /// Fails if the device refuses the first registration.
    ///
    /// # Panics
    /// Panics if `bytes` exceeds a slab.
    pub fn take(&mut self, bytes: usize) -> Result<Option<Chunk>, VerbsError> {
        let chunk_bytes = bytes.next_power_of_two().max(self.sizes.chunk_bytes);
        assert!(chunk_bytes <= self.sizes.slab_bytes, "no transfer has {bytes} bytes");
        let is_fit = |slab: &Slab<V>| slab.chunk_bytes == chunk_bytes && !slab.free.is_empty();
        let found = match self.slabs.iter().position(is_fit) {
            Some(slab) => Some(slab),
            None => self.new_slab(chunk_bytes)?,
        };
        Ok(found.map(|slab| {
            let offset = self.slabs[slab].free.pop().expect("the slab has a free chunk");
            Chunk { slab, offset }
        }))
    }

    /// Returns the index of an unused slab, divided into chunks of this size.
    fn new_slab(&mut self, chunk_bytes: usize) -> Result<Option<usize>, VerbsError> {
        let slab_bytes = self.sizes.slab_bytes;
        let free = || (0..slab_bytes).step_by(chunk_bytes).rev().collect();
        if self.slabs.len() < self.sizes.bytes / slab_bytes {
            let pages = Arc::new(Pages::new(slab_bytes));
            match self.verbs.reg_mr(&self.pd, pages.clone(), self.access) {
                Ok(mr) => {
                    self.slabs.push(Slab { pages, mr, chunk_bytes, free: free() });
                    return Ok(Some(self.slabs.len() - 1));
                }
                Err(error) if self.slabs.is_empty() => return Err(error),
                // The process is at its limit of locked memory, so use only the existing slabs.
                Err(_) => {}
            }
        }
        let is_unused = |slab: &Slab<V>| slab.free.len() * slab.chunk_bytes == slab_bytes;
        let found = self.slabs.iter().position(is_unused);
        if let Some(slab) = found {
            let slab = &mut self.slabs[slab];
            (slab.chunk_bytes, slab.free) = (chunk_bytes, free());
        }
        Ok(found)
    }

    /// Takes back a chunk that no request and no peer uses any more.
    pub fn give(&mut self, chunk: Chunk) {
        self.slabs[chunk.slab].free.push(chunk.offset);
    }

    /// The first `bytes` bytes of a chunk, for a request.
    ///
    /// # Panics
    /// Panics if `bytes` exceeds the chunk.
    pub fn slice(&self, chunk: &Chunk, bytes: usize) -> Slice {
        let slab = &self.slabs[chunk.slab];
        assert!(bytes <= slab.chunk_bytes, "{bytes} bytes of a chunk of {}", slab.chunk_bytes);
        let keys = self.verbs.keys(&slab.mr);
        keys.slice(chunk.offset, bytes as u32).expect("a chunk is inside its slab")
    }

    /// The address and key of a chunk, for a peer.
    pub fn remote(&self, chunk: &Chunk) -> (u64, u32) {
        let keys = self.verbs.keys(&self.slabs[chunk.slab].mr);
        (keys.address() + chunk.offset as u64, keys.rkey())
    }

    /// Copies the start of a chunk out, after the completion of the request that wrote it.
    ///
    /// # Panics
    /// Panics if `out` exceeds the chunk.
    pub fn read(&self, chunk: &Chunk, out: &mut [u8]) {
        let slab = &self.slabs[chunk.slab];
        assert!(out.len() <= slab.chunk_bytes);
        slab.pages.read(chunk.offset, out);
    }

    /// Copies bytes into a chunk at an offset, before the request that reads them.
    ///
    /// # Panics
    /// Panics if they exceed the chunk.
    pub fn write(&self, chunk: &Chunk, at: usize, bytes: &[u8]) {
        let slab = &self.slabs[chunk.slab];
        assert!(at + bytes.len() <= slab.chunk_bytes);
        slab.pages.write(chunk.offset + at, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CmEventType, Network, Node};

    const SIZES: StagingSizes =
        StagingSizes { bytes: 4 << 20, slab_bytes: 1 << 20, chunk_bytes: 4096 };

    /// A staging on a device, without an established connection.
    fn staging() -> Staging<Node> {
        let verbs = Network::new().node("192.0.2.1".parse().expect("an address"));
        let channel = verbs.create_event_channel().expect("a channel");
        let address = "192.0.2.1:4420".parse().expect("an address");
        let id = verbs.resolve_addr(&channel, None, address, 1000).expect("an attempt");
        let event = verbs.get_cm_event(&channel).expect("a channel").expect("an event");
        assert_eq!(event.event, CmEventType::AddrResolved);
        let pd = verbs.alloc_pd(&id).expect("a domain");
        Staging::new(verbs, pd, Access::LOCAL_WRITE, SIZES)
    }

    #[test]
    fn chunks_do_not_overlap_and_are_limited() {
        let mut staging = staging();
        let mut taken = Vec::new();
        while let Some(chunk) = staging.take(64 << 10).expect("memory") {
            taken.push(chunk);
        }
        assert_eq!(taken.len(), SIZES.bytes / (64 << 10));
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
    fn an_unused_slab_is_cut_into_chunks_of_another_size() {
        let mut staging = staging();
        let mut taken = Vec::new();
        while let Some(chunk) = staging.take(4096).expect("memory") {
            taken.push(chunk);
        }
        assert!(staging.take(1 << 20).expect("memory").is_none());
        // Return all chunks of one slab, and one of another.
        for chunk in taken.drain(..257) {
            staging.give(chunk);
        }
        let large = staging.take(1 << 20).expect("memory").expect("one slab is unused");
        assert!(staging.take(1 << 20).expect("memory").is_none());
        staging.give(large);
        assert!(staging.take(4097).expect("memory").is_some());
    }

    #[test]
    #[should_panic(expected = "no transfer has 1048577 bytes")]
    fn a_chunk_larger_than_a_slab_panics() {
        let _ = staging().take((1 << 20) + 1);
    }
}
