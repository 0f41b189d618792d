//! The huge pages from which the disk cuts chunks.
//!
//! The disk reuses a freed chunk, of any page, before it allocates a new page. Otherwise, a user
//! who always frees all but one chunk of every page could make the disk grow without bound: a page
//! with one chunk in use cannot be freed. The disk frees a page whose chunks are all free, unless
//! it is the only page with free chunks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use farblock_block::BlockError;
use farblock_reactor::{Buffer, HUGE_PAGE_BYTES, SharedBuffer};

use super::CHUNK_BYTES;

const PAGE_CHUNKS: usize = HUGE_PAGE_BYTES / CHUNK_BYTES;

/// The pages of one disk; see the [module](self).
#[derive(Default)]
pub(super) struct Pages(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// All pages, by the address of the first byte.
    pages: BTreeMap<usize, Page>,
    /// The addresses of the pages with free chunks.
    partly: BTreeSet<usize>,
}

struct Page {
    /// The part of the page that no chunk has used yet: all zeroes.
    rest: Buffer,
    /// The freed chunks of the page.
    free: Vec<SharedBuffer>,
}

impl Page {
    fn free_chunks(&self) -> usize {
        self.rest.len() / CHUNK_BYTES + self.free.len()
    }

    /// Takes a free chunk. Also returns whether the chunk is all zeroes.
    fn take(&mut self) -> (SharedBuffer, bool) {
        match self.free.pop() {
            Some(chunk) => (chunk, false),
            None => (SharedBuffer::new(self.rest.split_to(CHUNK_BYTES)), true),
        }
    }
}

impl Inner {
    fn add_page(&mut self) -> Result<usize, BlockError> {
        let rest = Buffer::huge(1).ok_or(BlockError::NoSpace)?;
        let address = rest.as_ptr().addr();
        self.pages.insert(address, Page { rest, free: Vec::new() });
        self.partly.insert(address);
        Ok(address)
    }

    fn take(&mut self) -> Result<(SharedBuffer, bool), BlockError> {
        // Take the page with the lowest address, so that other pages become empty.
        let address = match self.partly.first() {
            Some(&address) => address,
            None => self.add_page()?,
        };
        let page = self.pages.get_mut(&address).expect("the page is listed");
        let taken = page.take();
        if page.free_chunks() == 0 {
            self.partly.remove(&address);
        }
        Ok(taken)
    }

    /// Adds a freed chunk to its page. Returns the page of the chunk if the caller should free the
    /// page.
    fn give(&mut self, chunk: SharedBuffer) -> Option<Page> {
        let (&address, page) = self
            .pages
            .range_mut(..=chunk.as_ptr().addr())
            .next_back()
            .expect("each chunk belongs to a page");
        page.free.push(chunk);
        self.partly.insert(address);
        if page.free_chunks() < PAGE_CHUNKS || self.partly.len() == 1 {
            return None;
        }
        self.partly.remove(&address);
        self.pages.remove(&address)
    }
}

impl Pages {
    /// Allocates a chunk, of zeroes if `zeroed`, else with arbitrary contents. Returns an error if
    /// the system refuses memory.
    pub(super) fn take(&self, zeroed: bool) -> Result<SharedBuffer, BlockError> {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (mut chunk, is_zero) = taken?;
        if zeroed && !is_zero {
            chunk.exclusive().expect("a freed chunk has no readers").fill(0);
        }
        Ok(chunk)
    }

    /// Frees a chunk that has no readers.
    pub(super) fn give(&self, chunk: SharedBuffer) {
        let page = self.0.lock().unwrap_or_else(PoisonError::into_inner).give(chunk);
        // Freeing may be slow, so free the page outside of the lock.
        drop(page);
    }

    /// The memory of all pages, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        let pages = self.0.lock().unwrap_or_else(PoisonError::into_inner).pages.len();
        (pages * HUGE_PAGE_BYTES) as u64
    }
}
