//! The caller's memory: converts pointers to references, buffers and copies.

use crate::status::{Failure, Outcome, fb_status};
use farblock_reactor::{Buffer, Lender};
use std::ffi::{CStr, c_char};
use std::ptr::NonNull;

/// Bytes that a caller lends to the library until an operation on them completes. No two buffers
/// cover the same bytes, because each buffer owns its bytes.
pub(crate) struct Memory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the caller promises memory that the library may use in any thread until the operation
// completes.
unsafe impl Send for Memory {}

impl Memory {
    /// Wraps `len` bytes of memory from `start` on. Fails if `start` is null, or the memory exceeds
    /// the address space.
    ///
    /// # Safety
    /// The caller must keep the promises of [`Lender::lend`] from now until the buffer made from
    /// this memory is dropped.
    pub(crate) unsafe fn new(start: *mut u8, len: u64) -> Result<Memory, Failure> {
        let Some(start) = NonNull::new(start) else {
            return Err(Failure::argument("the data pointer is null"));
        };
        let len = usize::try_from(len).ok().filter(|&len| isize::try_from(len).is_ok());
        let end = len.and_then(|len| start.addr().get().checked_add(len));
        match (len, end) {
            (Some(len), Some(_)) => Ok(Memory { start, len }),
            _ => Err(Failure::argument("the data does not fit into the address space")),
        }
    }

    pub(crate) fn lend(self, loans: &Loans) -> Buffer {
        // SAFETY: the caller of `new` promises this memory.
        unsafe { loans.0.lend(self.start, self.len) }
    }

    /// Cuts off the first `len` bytes, and returns them.
    pub(crate) fn cut(&mut self, len: usize) -> Memory {
        assert!(len <= self.len, "the cut exceeds the memory");
        let front = Memory { start: self.start, len };
        // SAFETY: the address is within the memory, or at its end.
        self.start = unsafe { self.start.add(len) };
        self.len -= len;
        front
    }
}

/// The callers' memory that the library uses. Drop this value after the event loop, and before a
/// caller learns that its memory is free.
///
/// If the kernel does not release an event loop in time, or its ring fails, buffers remain that the
/// kernel may still write to. No status would be correct then, because the caller would reuse its
/// memory. So the drop aborts the process.
#[derive(Default)]
pub(crate) struct Loans(Lender);

impl Drop for Loans {
    fn drop(&mut self) {
        if !self.0.is_idle() {
            // Write without a logger, because most C programs have none.
            eprintln!(
                "farblock: the kernel has not released the program's memory, and may still write \
                 to it: aborting the process to prevent corruption"
            );
            std::process::abort();
        }
    }
}

/// The object behind a handle.
///
/// # Safety
/// A pointer that is neither null nor misaligned must come from this library, and its object must
/// still exist.
pub(crate) unsafe fn handle<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Failure> {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(Failure::argument(format!("the {what} is {}", wrong(pointer))));
    }
    // SAFETY: the caller promises a valid pointer.
    Ok(unsafe { &*pointer })
}

/// Stores a result at the caller's address.
///
/// # Safety
/// A pointer that is not null must point to memory for a `T`, aligned or not.
pub(crate) unsafe fn give<T>(place: *mut T, value: T, what: &str) -> Outcome {
    if place.is_null() {
        return Err(Failure::argument(format!("the pointer for the {what} is null")));
    }
    // SAFETY: the caller promises a valid pointer.
    unsafe { place.write_unaligned(value) };
    Ok(())
}

fn wrong<T>(pointer: *const T) -> &'static str {
    if pointer.is_null() { "null" } else { "no handle of this library (a misaligned address)" }
}

/// The text at a caller's pointer.
///
/// # Safety
/// A pointer that is not null must point to a text that ends with a zero byte.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if pointer.is_null() {
        return Err(Failure::argument(format!("{what} is null")));
    }
    // SAFETY: the caller promises a valid text.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Failure::argument(format!("{what} is not UTF-8")))
}

/// The largest size, in bytes, of a structure that grows with the versions of the library.
const MAX_STRUCTURE_BYTES: usize = 4096;

/// Reads a structure that starts with its size in the caller's version of the header. Fields that
/// an older version lacks are zero. Fields that a newer version adds must be zero.
///
/// # Safety
/// The pointer must point to a `size_t`, and to as many bytes as this value states. `T` must
/// consist of numbers and pointers, so that any bytes are a valid value.
pub(crate) unsafe fn read_sized<T: Copy>(pointer: *const T, what: &str) -> Result<T, Failure> {
    // SAFETY: the caller promises a valid pointer.
    let given = unsafe { pointer.cast::<usize>().read_unaligned() };
    if !(size_of::<usize>()..=MAX_STRUCTURE_BYTES).contains(&given) {
        let advice = format!("the field `size` of {what} is {given}: set it to sizeof({what})");
        return Err(Failure::argument(advice));
    }
    // SAFETY: the caller promises this many bytes. C programs set all bytes of a structure by `=
    // {0}` or memset.
    let bytes = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), given) };
    if bytes.iter().skip(size_of::<T>()).any(|&byte| byte != 0) {
        let text = format!("{what} uses a field that this version of the library does not support");
        return Err(Failure::new(fb_status::Unsupported, text));
    }
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    let known = given.min(size_of::<T>());
    // SAFETY: `known` bytes fit into both structures. By the caller's promise, zeroes and any bytes
    // are a valid value.
    unsafe {
        value.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), known);
        Ok(value.assume_init())
    }
}

/// Writes the part of a structure that exists in the caller's version of the header.
///
/// # Safety
/// The caller must fulfil the requirements of [`read_sized`]. The bytes must also be writable.
pub(crate) unsafe fn write_sized<T: Copy>(place: *mut T, value: &T, what: &str) -> Outcome {
    if place.is_null() {
        return Err(Failure::argument(format!("the pointer for {what} is null")));
    }
    // SAFETY: the caller promises a valid pointer.
    let given = unsafe { place.cast::<usize>().read_unaligned() };
    if !(size_of::<usize>()..=MAX_STRUCTURE_BYTES).contains(&given) {
        let advice = format!("the field `size` of {what} is {given}: set it to sizeof({what})");
        return Err(Failure::argument(advice));
    }
    let known = given.min(size_of::<T>());
    let bytes = std::ptr::from_ref(value).cast::<u8>();
    // SAFETY: the place has `given` bytes. The size at its start does not change.
    unsafe {
        let skip = size_of::<usize>();
        let (place, bytes) = (place.cast::<u8>().add(skip), bytes.add(skip));
        place.copy_from_nonoverlapping(bytes, known - skip);
        place.add(known - skip).write_bytes(0, given - known);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If `Loans` is dropped before one of its buffers, the process aborts. So this test runs in
    /// its own process.
    #[test]
    fn dropping_loans_with_lent_memory_aborts_the_process() {
        const CHILD: &str = "FARBLOCK_TEST_KEEPS_A_LOAN";
        if std::env::var_os(CHILD).is_some() {
            let (loans, mut memory) = (Loans::default(), [0_u8; 16]);
            // SAFETY: this process ends while `memory` exists.
            let memory = unsafe { Memory::new(memory.as_mut_ptr(), 16) };
            let kept = memory.unwrap_or_else(|_| panic!("enough memory")).lend(&loans);
            drop(loans);
            drop(kept);
            return;
        }
        let test = "memory::tests::dropping_loans_with_lent_memory_aborts_the_process";
        let mut child = std::process::Command::new(
            std::env::current_exe().expect("the test knows its program"),
        );
        child.args(["--exact", test, "--nocapture"]).env(CHILD, "1");
        let ended = child.output().expect("the program runs");
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!ended.status.success() && told.contains("may still write to it"), "{told}");
        // Without such a buffer, dropping `Loans` does not abort.
        drop(Loans::default());
    }
}
