//! Memory that an RDMA device reads and writes.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Memory that can be registered. Its registration owns it (through an [`Arc`](std::sync::Arc)), so
/// the memory exists until the device no longer has access.
///
/// # Safety
/// `address` and `bytes` stay the same, and name readable and writable memory, as long as the value
/// lives. The device reads and writes this memory without Rust's knowledge. So the value's owner
/// must hold no reference to bytes that a posted request or a peer with the key may change.
pub unsafe trait Memory: Send + Sync {
    /// Address of the first byte.
    fn address(&self) -> NonNull<u8>;

    /// Length in bytes.
    fn bytes(&self) -> usize;
}

/// Pages of memory, initially zero. Callers copy bytes in and out, because the device may change
/// the pages at any time.
pub struct Pages {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the pages are a plain allocation that only this value frees.
unsafe impl Send for Pages {}
// SAFETY: shared access copies bytes and makes no references.
unsafe impl Sync for Pages {}

impl Pages {
    /// Alignment in bytes.
    pub const ALIGNMENT: usize = 4096;

    /// Allocates `bytes` of zeroes; `bytes` must not be 0.
    ///
    /// # Panics
    /// Panics if `bytes` is 0 or exceeds the address space.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let layout = Self::layout(bytes);
        // SAFETY: the layout has a size above 0.
        let address = unsafe { alloc_zeroed(layout) };
        let address = NonNull::new(address).unwrap_or_else(|| handle_alloc_error(layout));
        Self { address, bytes }
    }

    fn layout(bytes: usize) -> Layout {
        assert!(bytes > 0, "the length is zero");
        Layout::from_size_align(bytes, Self::ALIGNMENT).expect("the length fits the address space")
    }

    fn check(&self, offset: usize, bytes: usize) {
        let end = offset.checked_add(bytes).expect("the range fits the address space");
        assert!(end <= self.bytes, "bytes {offset}..{end} of {}", self.bytes);
    }

    /// Copies bytes out. Call this after the request that wrote the bytes has completed.
    ///
    /// # Panics
    /// Panics if the range exceeds the pages.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        self.check(offset, out.len());
        // SAFETY: the range is inside the pages, and `out` is separate memory.
        unsafe {
            let from = self.address.as_ptr().add(offset);
            from.copy_to_nonoverlapping(out.as_mut_ptr(), out.len());
        }
    }

    /// Copies bytes in. Call this before posting the request that reads the bytes.
    ///
    /// # Panics
    /// Panics if the range exceeds the pages.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        // SAFETY: the range is inside the pages, and `bytes` is separate memory.
        unsafe {
            let to = self.address.as_ptr().add(offset);
            to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `new` allocated these bytes with this layout, and only this value frees them.
        unsafe { dealloc(self.address.as_ptr(), Self::layout(self.bytes)) }
    }
}

// SAFETY: address and length never change, and this type makes no references to the bytes.
unsafe impl Memory for Pages {
    fn address(&self) -> NonNull<u8> {
        self.address
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The address, length and keys of a registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keys {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

impl Keys {
    /// The remote address of the first byte, for a peer.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The key for a peer (`rkey`).
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// The part of the registration that starts at `offset`, for a request of this process. `None`
    /// if the part exceeds the registration.
    #[must_use]
    pub fn slice(&self, offset: usize, bytes: u32) -> Option<Slice> {
        let end = (offset as u64).checked_add(bytes.into())?;
        let address = self.address.checked_add(offset as u64)?;
        (end <= self.bytes).then_some(Slice { address, bytes, lkey: self.lkey })
    }
}

/// A part of registered memory, for a work request. It has the layout of `struct ibv_sge`.
///
/// A slice may outlive its registration. The device then refuses its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Slice {
    pub(crate) address: u64,
    pub(crate) bytes: u32,
    pub(crate) lkey: u32,
}

impl Slice {
    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_stays_inside_its_registration() {
        let keys = Keys { address: 4096, bytes: 100, lkey: 1, rkey: 2 };
        assert_eq!(keys.slice(10, 90), Some(Slice { address: 4106, bytes: 90, lkey: 1 }));
        assert_eq!(keys.slice(10, 91), None);
        assert_eq!(keys.slice(usize::MAX, 1), None);
    }

    #[test]
    fn pages_keep_their_bytes() {
        let pages = Pages::new(5000);
        pages.write(4999, &[7]);
        let mut out = [1; 2];
        pages.read(4998, &mut out);
        assert_eq!(out, [0, 7]);
        assert_eq!(pages.address().as_ptr() as usize % Pages::ALIGNMENT, 0);
    }

    #[test]
    #[should_panic(expected = "bytes 4999..5001 of 5000")]
    fn pages_refuse_bytes_beyond_their_end() {
        Pages::new(5000).write(4999, &[7, 7]);
    }
}
