//! [`prefetch`]: a hint to the processor.

/// Bytes of a line of cache, on all that is common.
const LINE_BYTES: usize = 64;
/// Lines that are asked for: with the first few on their way, the processor finds the rest itself.
const LINES: usize = 4;

/// Has the beginning of `bytes` brought into the cache while something else is done. Worth it for
/// memory that was not used lately: 4 KiB out of half a GiB are copied in 277 ns instead of 459.
pub fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(LINE_BYTES).take(LINES) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing into the program, and the address is valid besides.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, LINE_BYTES, LINES);
}
