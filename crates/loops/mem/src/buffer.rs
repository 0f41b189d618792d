//! [`Buffer`]: memory with one owner. The owner reads and writes it, and may lend it to the kernel.

use std::alloc::{self, Layout};
use std::cell::Cell;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

#[cfg(all(target_os = "linux", not(miri)))]
use crate::limits;

/// Alignment of every allocation in bytes. It is enough for direct I/O on all common devices.
pub const ALIGNMENT_BYTES: usize = 4096;

/// The unit of [`Buffer::huge`]'s allocations, in bytes.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// One block of memory. Buffers refer to disjoint parts of the block, or are read-only views of it.
/// Dropping the last buffer frees the block. Empty buffers and the buffers of a [`Lender`] refer to
/// an allocation of capacity 0, which owns no memory.
struct Allocation {
    base: NonNull<u8>,
    capacity_bytes: usize,
    /// An allocation that must outlive this one: the mapping that contains this allocation's
    /// memory. An allocation without memory counts the references to a part of `whole`.
    whole: Option<Arc<Allocation>>,
    /// Whether the memory is a mapping. Otherwise it is from the heap.
    #[cfg(target_os = "linux")]
    is_mapped: bool,
    #[cfg(feature = "sim")]
    _counted: Option<crate::tally::Counted>,
}

// SAFETY: an `Allocation` is plain memory without thread affinity.
unsafe impl Send for Allocation {}
// SAFETY: the allocation itself gives no access to its bytes. Only buffers give access: to disjoint
// parts, or to parts that no code changes.
unsafe impl Sync for Allocation {}

impl Allocation {
    fn layout(capacity_bytes: usize) -> Option<Layout> {
        Layout::from_size_align(capacity_bytes, ALIGNMENT_BYTES).ok()
    }

    fn new(capacity_bytes: usize) -> Allocation {
        let layout = Allocation::layout(capacity_bytes).expect("buffer size overflows");
        Allocation::try_new(capacity_bytes).unwrap_or_else(|| alloc::handle_alloc_error(layout))
    }

    fn try_new(capacity_bytes: usize) -> Option<Allocation> {
        let layout = Allocation::layout(capacity_bytes)?;
        #[cfg(all(target_os = "linux", not(miri)))]
        if capacity_bytes >= limits::MAPPED_BYTES {
            let base = crate::huge::map_pages(capacity_bytes)?;
            return Some(Allocation::mapped(base, capacity_bytes));
        }
        let base = if capacity_bytes == 0 {
            std::ptr::without_provenance_mut(ALIGNMENT_BYTES)
        } else {
            // SAFETY: the size of the layout is not zero.
            unsafe { alloc::alloc_zeroed(layout) }
        };
        Some(Allocation {
            base: NonNull::new(base)?,
            capacity_bytes,
            whole: None,
            #[cfg(target_os = "linux")]
            is_mapped: false,
            #[cfg(feature = "sim")]
            _counted: crate::tally::Counted::new(capacity_bytes),
        })
    }

    #[cfg(target_os = "linux")]
    fn mapped(base: NonNull<u8>, capacity_bytes: usize) -> Allocation {
        Allocation {
            base,
            capacity_bytes,
            whole: None,
            is_mapped: true,
            #[cfg(feature = "sim")]
            _counted: crate::tally::Counted::new(capacity_bytes),
        }
    }

    #[cfg(target_os = "linux")]
    fn try_huge(capacity_bytes: usize) -> Option<Allocation> {
        let base = crate::huge::map(capacity_bytes)?;
        Some(Allocation::mapped(base, capacity_bytes))
    }

    #[cfg(not(target_os = "linux"))]
    fn try_huge(capacity_bytes: usize) -> Option<Allocation> {
        Allocation::try_new(capacity_bytes)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        if self.is_mapped {
            // SAFETY: this code mapped the memory at creation, with this size, and nothing refers
            // to it any more.
            return unsafe { crate::huge::unmap(self.base.as_ptr(), self.capacity_bytes) };
        }
        if self.capacity_bytes > 0 && self.whole.is_none() {
            let layout = Allocation::layout(self.capacity_bytes)
                .expect("the layout was valid at the allocation");
            // SAFETY: `try_new` allocated the memory with this layout, and nothing refers to it any
            // more.
            unsafe { alloc::dealloc(self.base.as_ptr(), layout) };
        }
    }
}

/// A block of bytes with one owner, which the owner may lend to the kernel or pass to another
/// thread.
///
/// Allocations are aligned to [`ALIGNMENT_BYTES`]. They are zeroed only when they are created.
/// Callers can split a buffer in two ([`split_to`](Buffer::split_to)) and join the parts again
/// ([`unsplit`](Buffer::unsplit)) without copying. Mutable access to a [view](SharedBuffer::view),
/// which is read-only, first copies its bytes.
pub struct Buffer {
    /// The first byte of this buffer's part of `owner`.
    start: NonNull<u8>,
    len: usize,
    owner: Arc<Allocation>,
    /// Whether this buffer is a view. Other buffers may read the same bytes.
    is_view: bool,
    /// The number of the [`Lender::lend`] call that made this buffer; 0 for other buffers.
    loan: u32,
}

// SAFETY: a buffer has exclusive access to its part of the allocation, like a `Box<[u8]>`. A view
// only reads bytes, like an `Arc<[u8]>`, and no code changes the bytes while the view exists.
unsafe impl Send for Buffer {}
// SAFETY: shared access only reads, like `&Box<[u8]>`.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates `len` zero bytes.
    pub fn new(len: usize) -> Buffer {
        Buffer::whole(Allocation::new(len))
    }

    fn whole(allocation: Allocation) -> Buffer {
        let (start, len) = (allocation.base, allocation.capacity_bytes);
        Buffer { start, len, owner: Arc::new(allocation), is_view: false, loan: 0 }
    }

    /// Allocates `pages` times [`HUGE_PAGE_BYTES`] zero bytes, in huge pages if the system supports
    /// them. Use this for large, long-lived memory with random access. A page takes memory only
    /// once it is first touched. `None` if memory is exhausted.
    pub fn huge(pages: usize) -> Option<Buffer> {
        let len = pages.checked_mul(HUGE_PAGE_BYTES).filter(|len| *len > 0)?;
        Allocation::try_huge(len).map(Buffer::whole)
    }

    /// Allocates several small buffers of `len` bytes as parts of one mapping. Dropping the last of
    /// them unmaps the memory. For large buffers, and on systems without mappings, allocates one
    /// buffer.
    pub(crate) fn several(len: usize) -> Vec<Buffer> {
        #[cfg(all(target_os = "linux", not(miri)))]
        if len > 0 && len < limits::MAPPED_BYTES && len.is_multiple_of(ALIGNMENT_BYTES) {
            let whole = Arc::new(Allocation::new(limits::CARVED_BYTES));
            let part = |index: usize| Allocation {
                // SAFETY: the part is inside the mapping, because `index` counts only whole parts.
                base: unsafe { whole.base.add(index * len) },
                capacity_bytes: len,
                whole: Some(Arc::clone(&whole)),
                is_mapped: false,
                #[cfg(feature = "sim")]
                _counted: None,
            };
            return (0..limits::CARVED_BYTES / len)
                .map(|index| Buffer::whole(part(index)))
                .collect();
        }
        vec![Buffer::new(len)]
    }

    /// Allocates a copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::new(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Shortens the buffer to `len` bytes. Does nothing if the buffer is already that short. The
    /// bytes after the new end stay allocated, so that a pool can reuse the whole allocation.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Splits off the first `at` bytes and returns them. `self` keeps the remaining bytes.
    ///
    /// # Panics
    ///
    /// Panics if `at` is beyond the end.
    pub fn split_to(&mut self, at: usize) -> Buffer {
        assert!(at <= self.len, "split at {at} of a buffer of {} bytes", self.len);
        let owner = Arc::clone(&self.owner);
        let front = Buffer { len: at, owner, ..*self };
        // SAFETY: `at` is at most the length of this buffer's part, so the result is in bounds or
        // one past the end.
        self.start = unsafe { self.start.add(at) };
        self.len -= at;
        front
    }

    /// Joins `next`, which must start at the end of `self` in the same allocation.
    ///
    /// # Panics
    ///
    /// Panics if the two buffers are not adjacent parts of one allocation.
    pub fn unsplit(&mut self, next: Buffer) {
        // All buffers of a lender have the same owner. But two calls of `lend` may have lent
        // different memory.
        let is_same = Arc::ptr_eq(&self.owner, &next.owner) && self.loan == next.loan;
        assert!(is_same, "unsplit: parts of different allocations");
        let end = self.start.as_ptr().addr() + self.len;
        assert!(end == next.start.as_ptr().addr(), "unsplit: the parts are not adjacent");
        self.len += next.len;
    }

    /// Whether the first byte's address is a multiple of `alignment_bytes`.
    pub fn is_aligned(&self, alignment_bytes: usize) -> bool {
        assert!(alignment_bytes > 0, "alignment of zero");
        self.start.as_ptr().addr().is_multiple_of(alignment_bytes)
    }

    /// Returns the size of the buffer's allocation in bytes.
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.owner.capacity_bytes
    }

    /// Grows the buffer to its whole allocation. If other parts of the allocation still exist, or
    /// for a view, drops this part and returns `None`.
    pub(crate) fn into_whole(mut self) -> Option<Buffer> {
        if self.is_view {
            return None;
        }
        let owner = Arc::get_mut(&mut self.owner)?;
        self.start = owner.base;
        self.len = owner.capacity_bytes;
        Some(self)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start..start + len` is inside the live allocation and initialised. Only this
        // buffer accesses it, or no code changes it while this view exists.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        if self.is_view {
            *self = Buffer::copy_of(self);
        }
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// Creates buffers from memory that this crate did not allocate. So callers of a C interface can
/// read into their own memory, and write from it, without a copy.
///
/// A buffer pool never keeps such a buffer, and dropping the buffer does not free the memory.
#[derive(Debug, Default)]
pub struct Lender {
    owner: Buffer,
    /// The number of calls of `lend` so far. It wraps around after four billion.
    loans: Cell<u32>,
}

impl Lender {
    /// Creates a lender that has lent nothing.
    pub fn new() -> Lender {
        Lender::default()
    }

    /// Creates a buffer of the `len` bytes at `start`. Allocates nothing.
    ///
    /// # Safety
    ///
    /// Until the buffer is dropped, on any thread, the memory must stay valid, and no other code
    /// may access it. If the buffer is only read (for a send or a file write), the memory need not
    /// be writable, and other code may read it.
    pub unsafe fn lend(&self, start: NonNull<u8>, len: usize) -> Buffer {
        assert!(isize::try_from(len).is_ok(), "no allocation can have {len} bytes");
        let loan = self.loans.get().wrapping_add(1);
        self.loans.set(loan);
        Buffer { start, len, owner: Arc::clone(&self.owner.owner), is_view: false, loan }
    }

    /// Whether all lent buffers have been dropped.
    pub fn is_idle(&self) -> bool {
        let idle = Arc::strong_count(&self.owner.owner) == 1;
        // The accesses through the dropped buffers must happen before the caller's next accesses.
        fence(Ordering::Acquire);
        idle
    }
}

/// Bytes with one owner and any number of read-only *views*, which other code may hold. While views
/// exist, the owner cannot change the bytes ([`exclusive`](SharedBuffer::exclusive) checks this),
/// but can replace the buffer. So no view sees a change.
#[derive(Debug)]
pub struct SharedBuffer(Buffer);

impl SharedBuffer {
    /// Makes `buffer` shared. It has no views yet.
    pub fn new(mut buffer: Buffer) -> SharedBuffer {
        // Other parts of the same allocation must not count as views of this buffer.
        let whole = std::mem::replace(&mut buffer.owner, Arc::new(Allocation::new(0)));
        Arc::get_mut(&mut buffer.owner).expect("no other handle exists yet").whole = Some(whole);
        SharedBuffer(buffer)
    }

    /// Returns a read-only view of a part of the bytes, without a copy. The view keeps the bytes
    /// alive, even after `self` is dropped.
    ///
    /// # Panics
    ///
    /// Panics if the range is not inside the buffer.
    pub fn view(&self, range: Range<usize>) -> Buffer {
        let start = NonNull::from(&self.0[range.clone()]).cast();
        Buffer { start, len: range.len(), owner: Arc::clone(&self.0.owner), is_view: true, loan: 0 }
    }

    /// Returns mutable access to the bytes; `None` while views exist.
    pub fn exclusive(&mut self) -> Option<&mut [u8]> {
        if Arc::strong_count(&self.0.owner) > 1 {
            return None;
        }
        // The reads of the last view must happen before the caller's changes.
        fence(Ordering::Acquire);
        Some(&mut self.0)
    }
}

impl Deref for SharedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Default for Buffer {
    /// Returns an empty buffer.
    fn default() -> Buffer {
        Buffer::new(0)
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes at {:p})", self.len, self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_buffers_are_zeroed_aligned_and_splittable() {
        assert!(Buffer::huge(0).is_none());
        assert!(Buffer::huge(usize::MAX / HUGE_PAGE_BYTES).is_none());
        for pages in [1, 3] {
            let mut buffer = Buffer::huge(pages).expect("memory");
            assert_eq!(buffer.len(), pages * HUGE_PAGE_BYTES);
            assert!(buffer.is_aligned(ALIGNMENT_BYTES));
            assert!(!cfg!(target_os = "linux") || buffer.is_aligned(HUGE_PAGE_BYTES));
            assert!(buffer.iter().all(|&byte| byte == 0));
            let mut front = buffer.split_to(4096);
            front.fill(1);
            buffer.fill(2);
            assert!(front.iter().all(|&byte| byte == 1));
            // The other part of the allocation stays valid.
            drop(buffer);
            assert_eq!(front[4095], 1);
        }
    }

    #[test]
    fn new_buffers_are_zeroed_and_aligned() {
        for len in [0, 1, 4095, 4096, 100_000] {
            let buffer = Buffer::new(len);
            assert_eq!(buffer.len(), len);
            assert!(buffer.is_aligned(ALIGNMENT_BYTES));
            assert!(buffer.iter().all(|&b| b == 0));
        }
    }

    #[test]
    fn a_split_buffer_can_be_joined_again() {
        let mut rest = Buffer::copy_of(&(0..100).collect::<Vec<u8>>());
        let mut front = rest.split_to(30);
        assert_eq!((front.len(), rest.len()), (30, 70));
        assert_eq!((front[0], front[29], rest[0]), (0, 29, 30));
        front[29] = 200;
        rest[0] = 201;
        front.unsplit(rest);
        assert_eq!(front.len(), 100);
        assert_eq!(&front[28..32], &[28, 200, 201, 31]);
    }

    #[test]
    fn a_buffer_can_be_split_at_its_edges() {
        let mut rest = Buffer::new(10);
        let empty = rest.split_to(0);
        assert!(empty.is_empty());
        let all = rest.split_to(10);
        assert_eq!((all.len(), rest.len()), (10, 0));
    }

    #[test]
    #[should_panic(expected = "not adjacent")]
    fn joining_parts_that_are_not_adjacent_panics() {
        let mut c = Buffer::new(30);
        let mut a = c.split_to(10);
        let _b = c.split_to(10);
        a.unsplit(c);
    }

    #[test]
    #[should_panic(expected = "different allocations")]
    fn joining_two_allocations_panics() {
        Buffer::new(10).unsplit(Buffer::new(10));
    }

    #[test]
    #[should_panic(expected = "different allocations")]
    fn joining_two_borrowed_buffers_panics() {
        let mut memory = [0_u8; 200];
        let (front, back) = memory.split_at_mut(100);
        let lender = Lender::new();
        let lend = |part: &mut [u8]| {
            // SAFETY: the memory outlives the buffer, and no other code accesses it before the
            // buffer is dropped.
            unsafe { lender.lend(NonNull::new(part.as_mut_ptr()).unwrap(), part.len()) }
        };
        let mut first = lend(front);
        // Parts of one lent buffer can be joined. Adjacent lent buffers cannot.
        let mut whole = first.split_to(40);
        whole.unsplit(first);
        whole.unsplit(lend(back));
    }

    #[test]
    fn parts_of_a_buffer_may_be_on_different_threads() {
        let mut rest = Buffer::new(8192);
        let mut front = rest.split_to(4096);
        let thread = std::thread::spawn(move || {
            front.fill(1);
            front
        });
        rest.fill(2);
        let mut front = thread.join().unwrap();
        front.unsplit(rest);
        assert!(front[..4096].iter().all(|&b| b == 1));
        assert!(front[4096..].iter().all(|&b| b == 2));
    }

    #[test]
    fn borrowed_memory_is_used_in_place_and_never_pooled() {
        let mut memory = vec![7_u8; 10_000];
        let start = NonNull::new(memory.as_mut_ptr()).unwrap();
        let lender = Lender::new();
        // SAFETY: `memory` outlives the buffer, and no other code accesses it before the buffer is
        // dropped.
        let mut buffer = unsafe { lender.lend(start, 8192) };
        assert_eq!((buffer.as_ptr(), buffer.len()), (start.as_ptr().cast_const(), 8192));
        assert!(!lender.is_idle());
        buffer[8191] = 9;
        let pool = crate::BufferPool::new();
        pool.give(buffer);
        assert!(lender.is_idle());
        assert_eq!((pool.retained_bytes(), &memory[8190..8193]), (0, &[7, 9, 7][..]));
    }

    #[test]
    fn a_view_does_not_change_and_outlives_its_buffer() {
        let mut all = Buffer::new(8192);
        all.fill(1);
        // The other part of the allocation is not a view.
        let mut shared = SharedBuffer::new(all.split_to(4096));
        shared.exclusive().expect("no view exists")[..512].fill(2);
        let mut view = shared.view(256..768);
        assert_eq!((view.len(), view[255], view[256]), (512, 2, 1));
        assert!(shared.exclusive().is_none());
        // A part of a view is a view.
        let front = view.split_to(256);
        drop(view);
        assert!(shared.exclusive().is_none());
        drop((shared, all));
        assert!(front.iter().all(|&byte| byte == 2));
    }

    #[test]
    fn writing_to_a_view_copies_it() {
        let mut shared = SharedBuffer::new(Buffer::copy_of(&[3; 100]));
        let mut view = shared.view(10..20);
        view[0] = 9;
        assert_eq!((view[0], view[9], view.len(), shared[10]), (9, 3, 10, 3));
        assert!(shared.exclusive().is_some());
    }

    #[test]
    fn a_pool_does_not_keep_a_view() {
        let pool = crate::BufferPool::new();
        let shared = SharedBuffer::new(Buffer::new(4096));
        let view = shared.view(0..4096);
        drop(shared);
        pool.give(view);
        assert_eq!(pool.retained_bytes(), 0);
    }

    #[test]
    fn several_buffers_of_one_mapping_are_independent() {
        for len in [4096, 8192, 32 << 10, 64 << 10] {
            let mut made = Buffer::several(len);
            for (index, buffer) in (1..).zip(&mut made) {
                assert!(buffer.len() == len && buffer.is_aligned(ALIGNMENT_BYTES));
                assert!(buffer.iter().all(|byte| *byte == 0), "two buffers share memory");
                buffer.fill(index);
            }
            // The mapping stays until the last part is dropped.
            let last = made.pop().expect("at least one buffer");
            let of_last = made.len() as u8 + 1;
            made.into_iter().for_each(|buffer| {
                drop(buffer.into_whole().expect("no other part of the buffer exists"))
            });
            assert!(last.iter().all(|byte| *byte == of_last));
        }
    }

    #[test]
    fn only_the_last_part_gives_back_the_whole_buffer() {
        let mut rest = Buffer::new(100);
        let front = rest.split_to(10);
        assert!(front.into_whole().is_none());
        rest.truncate(3);
        assert_eq!(rest.into_whole().unwrap().len(), 100);
    }
}
