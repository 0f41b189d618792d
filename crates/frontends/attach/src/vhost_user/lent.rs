//! Protects this process from a monitor that truncates the memory files that it shares. An access
//! beyond the new end of a mapped file raises SIGBUS. The signal would end the process, and with it
//! all other disks.
//!
//! So this module lists these mappings and handles the signal. The handler marks the mapping as
//! [lost](Lent::is_lost), and then replaces it with zeroed memory. Readers check the mark before
//! they trust the data that they read. For a fault at another address, the handler reinstates the
//! previous handler.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use vm_memory::MmapRegion;

/// The maximum number of mappings in the list, for all monitors together.
const PLACES: usize = 4096;
/// The value of `LentPlace::end` while a thread fills the place.
const CLAIMED: usize = 1;

/// A place in the list for one mapping. The place is free if `end` is 0.
struct LentPlace {
    start: AtomicUsize,
    end: AtomicUsize,
    lost: AtomicBool,
}

static LIST: [LentPlace; PLACES] = [const {
    LentPlace { start: AtomicUsize::new(0), end: AtomicUsize::new(0), lost: AtomicBool::new(false) }
}; PLACES];
/// The number of mappings lost so far. While it is 0, no mapping needs a check.
static LOST: AtomicUsize = AtomicUsize::new(0);
/// The previous handler of the signal. `None` if this process cannot handle the signal.
static BEFORE: OnceLock<Option<libc::sigaction>> = OnceLock::new();

/// A guest's memory mapping, with its entry in [`LIST`]. The entry shows whether the guest's
/// monitor has truncated the mapping. Owns the mapping jointly, so that no mapping is unmapped
/// while it is in the list. All code accesses the mapping by volatile reads and writes, for which
/// any content is valid.
#[derive(Debug)]
pub(super) struct Lent {
    index: usize,
    region: Arc<MmapRegion<()>>,
}

impl Lent {
    /// Adds a mapping to the list.
    pub(super) fn new(region: Arc<MmapRegion<()>>) -> Result<Lent, String> {
        if BEFORE.get_or_init(install).is_none() {
            return Err("the system does not allow a handler for SIGBUS".to_owned());
        }
        let claim = |place: &LentPlace| {
            let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
            place.end.compare_exchange(0, CLAIMED, success, failure).is_ok()
        };
        let index = LIST.iter().position(claim);
        let index = index.ok_or_else(|| {
            format!("the server is at its limit of {PLACES} shared memory regions")
        })?;
        let place = &LIST[index];
        place.lost.store(false, Ordering::Relaxed);
        // Store the start after claiming the place, and the end last: `range` relies on this order.
        let start = region.as_ptr().addr();
        place.start.store(start, Ordering::Release);
        place.end.store(start + region.size(), Ordering::Release);
        Ok(Lent { index, region })
    }

    /// The address of the mapping.
    pub(super) fn start(&self) -> usize {
        self.region.as_ptr().addr()
    }

    /// True if the monitor has truncated the mapping's file, so that data read from the mapping may
    /// be wrong.
    pub(super) fn is_lost(&self) -> bool {
        LOST.load(Ordering::Acquire) > 0 && LIST[self.index].lost.load(Ordering::Acquire)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // The mapping may only be unmapped after its entry is free.
        LIST[self.index].end.store(0, Ordering::Release);
    }
}

fn install() -> Option<libc::sigaction> {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    let handler: unsafe extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = handle;
    // SAFETY: the structures consist of plain numbers, for which zeroes are valid. The handler does
    // only atomic operations and system calls. No thread accesses shared memory before this
    // function returns.
    unsafe {
        if libc::sigaction(libc::SIGBUS, ptr::null(), before.as_mut_ptr()) != 0 {
            return None;
        }
        let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        (libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) == 0)
            .then(|| before.assume_init())
    }
}

/// Handles SIGBUS. When the handler returns, the kernel retries the instruction that raised the
/// signal.
///
/// # Safety
/// Only the kernel may call this function, with its description of a signal.
unsafe extern "C" fn handle(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes the structure, which is valid during the call.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    let replaced = code == libc::BUS_ADRERR && LIST.iter().any(|place| replace(place, address));
    if !replaced && let Some(Some(before)) = BEFORE.get() {
        // SAFETY: `before` is the previous action for this signal. The instruction then faults
        // again, and that action handles the signal.
        unsafe { libc::sigaction(libc::SIGBUS, ptr::from_ref(before), ptr::null_mut()) };
    }
}

/// The start and end of a mapping. `None` if a thread is changing the place: the faulting thread
/// uses a mapping whose place does not change. The second load of `end` detects a change, so that
/// the start and the end belong to the same mapping.
fn range(place: &LentPlace) -> Option<(usize, usize)> {
    let end = place.end.load(Ordering::Acquire);
    let start = place.start.load(Ordering::Acquire);
    (place.end.load(Ordering::Relaxed) == end).then_some((start, end))
}

/// Replaces a mapping with zeroed memory if the mapping contains the address. Returns true if it
/// was replaced.
fn replace(place: &LentPlace, address: usize) -> bool {
    let Some((start, end)) = range(place) else { return false };
    if !(start..end).contains(&address) {
        return false;
    }
    // Set the mark first, so that a thread that reads the zeroes also sees the mark.
    place.lost.store(true, Ordering::SeqCst);
    LOST.fetch_add(1, Ordering::SeqCst);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let at = ptr::with_exposed_provenance_mut(start);
    // SAFETY: no mapping in the list is unmapped. All code accesses it by volatile reads and
    // writes, for which any content is valid.
    let mapped = unsafe { libc::mmap(at, end - start, protection, flags, -1, 0) };
    mapped != libc::MAP_FAILED
}
