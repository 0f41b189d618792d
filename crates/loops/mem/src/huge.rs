//! Memory in huge pages, where the kernel has them. Half a gibibyte has 131,072 ordinary pages, far
//! more than a processor's TLB holds, and in a virtual machine a page walk takes as long as copying
//! the page.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ptr::{NonNull, null_mut};

use crate::buffer::HUGE_PAGE_BYTES as PAGE_BYTES;

/// Maps zeroes, aligned to huge pages. The kernel allocates huge pages when the memory is touched.
/// `None` if memory is exhausted.
pub(crate) fn map(len: usize) -> Option<NonNull<u8>> {
    debug_assert!(len.is_multiple_of(PAGE_BYTES) && len > 0, "{len} bytes in huge pages");
    // The mapping is aligned to ordinary pages only, but contains an aligned part.
    let room = len.checked_add(PAGE_BYTES)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let mapped =
        unsafe { mmap_anonymous(null_mut(), room, ProtFlags::READ | ProtFlags::WRITE, flags) };
    let all = mapped.ok()?.cast::<u8>();
    let before = all.align_offset(PAGE_BYTES);
    let after = room - before - len;
    // SAFETY: `before`, `len` and `after` are the parts of the mapping made above, which nothing
    // refers to yet; this unmaps the first and the last.
    unsafe {
        let start = all.add(before);
        unmap(all, before);
        unmap(start.add(len), after);
        // Fails on systems without huge pages.
        let _ = madvise(start.cast(), len, Advice::LinuxHugepage);
        NonNull::new(start)
    }
}

/// Maps zeroes in ordinary pages, which take memory when touched. `None` if memory is exhausted.
#[cfg(not(miri))]
pub(crate) fn map_pages(len: usize) -> Option<NonNull<u8>> {
    debug_assert!(len > 0, "nothing is to be mapped");
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let mapped = unsafe { mmap_anonymous(null_mut(), len, protection, MapFlags::PRIVATE) };
    NonNull::new(mapped.ok()?.cast())
}

/// Unmaps a part of a mapping.
///
/// # Safety
///
/// Nothing may refer to the part any more.
pub(crate) unsafe fn unmap(start: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: by the contract.
        let result = unsafe { munmap(start.cast(), len) };
        debug_assert!(result.is_ok(), "memory is given back: {result:?}");
    }
}
