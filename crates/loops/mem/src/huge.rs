//! Memory in huge pages, if the kernel supports them. 512 MiB consist of 131,072 ordinary pages,
//! many more than a processor's TLB (its cache of page addresses) holds. In a virtual machine, a
//! TLB miss takes as long as copying a page.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ptr::{NonNull, null_mut};

use crate::buffer::HUGE_PAGE_BYTES as PAGE_BYTES;

/// Maps zeroed memory that is aligned to huge pages. The kernel allocates the huge pages when the
/// program first touches them. `None` if memory is exhausted.
pub(crate) fn map(len: usize) -> Option<NonNull<u8>> {
    debug_assert!(
        len.is_multiple_of(PAGE_BYTES) && len > 0,
        "{len} bytes are not a whole number of huge pages"
    );
    // The kernel aligns the mapping only to ordinary pages. With one huge page more, it contains a
    // part that is aligned to huge pages.
    let room = len.checked_add(PAGE_BYTES)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: this creates a mapping at an address that the kernel chooses.
    let mapped =
        unsafe { mmap_anonymous(null_mut(), room, ProtFlags::READ | ProtFlags::WRITE, flags) };
    let all = mapped.ok()?.cast::<u8>();
    let before = all.align_offset(PAGE_BYTES);
    let after = room - before - len;
    // SAFETY: `before`, `len` and `after` are the three parts of the new mapping, to which nothing
    // refers yet. This unmaps the first and the last part.
    unsafe {
        let start = all.add(before);
        unmap(all, before);
        unmap(start.add(len), after);
        // Ignore an error: a system without huge pages uses ordinary pages.
        let _ = madvise(start.cast(), len, Advice::LinuxHugepage);
        NonNull::new(start)
    }
}

/// Maps zeroed memory in ordinary pages, which take memory when the program first touches them.
/// `None` if memory is exhausted.
#[cfg(not(miri))]
pub(crate) fn map_pages(len: usize) -> Option<NonNull<u8>> {
    debug_assert!(len > 0, "the length is zero");
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: this creates a mapping at an address that the kernel chooses.
    let mapped = unsafe { mmap_anonymous(null_mut(), len, protection, MapFlags::PRIVATE) };
    NonNull::new(mapped.ok()?.cast())
}

/// Unmaps a part of a mapping.
///
/// # Safety
///
/// Nothing may refer to this part any more.
pub(crate) unsafe fn unmap(start: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: the caller guarantees that nothing refers to this part.
        let result = unsafe { munmap(start.cast(), len) };
        debug_assert!(result.is_ok(), "munmap failed: {result:?}");
    }
}
