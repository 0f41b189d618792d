//! Memory that its owner may take away while it is mapped here: a monitor that truncates the file
//! that it has lent. Whoever touches it then gets SIGBUS, which would end the process and with it
//! all other disks.
//!
//! So what is lent is listed, and the signal's handler puts empty memory in its place and marks it
//! as [lost](Lent::is_lost), in the other order. Whoever has read something looks at the mark
//! before it believes it. A fault anywhere else goes to whom it would have gone before.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use vm_memory::MmapRegion;

/// Mappings that can be lent at once, by all monitors.
const PLACES: usize = 4096;
/// The end of a place that is being written.
const CLAIMED: usize = 1;

/// A mapping; free when its end is 0.
struct LentPlace {
    start: AtomicUsize,
    end: AtomicUsize,
    lost: AtomicBool,
}

static LIST: [LentPlace; PLACES] = [const {
    LentPlace { start: AtomicUsize::new(0), end: AtomicUsize::new(0), lost: AtomicBool::new(false) }
}; PLACES];
/// Mappings that were ever lost: until then nobody looks any further.
static LOST: AtomicUsize = AtomicUsize::new(0);
/// Whose the signal was; `None` if it cannot be handled.
static BEFORE: OnceLock<Option<libc::sigaction>> = OnceLock::new();

/// Says of a mapping whether it was taken away. It has a share of it, so that what is listed is
/// there: the mapping's users reach it with volatile accesses, which may find anything.
#[derive(Debug)]
pub(super) struct Lent {
    index: usize,
    region: Arc<MmapRegion<()>>,
}

impl Lent {
    /// Lists a mapping.
    pub(super) fn new(region: Arc<MmapRegion<()>>) -> Result<Lent, String> {
        if BEFORE.get_or_init(install).is_none() {
            return Err("the system does not let SIGBUS be handled".to_owned());
        }
        let claim = |place: &LentPlace| {
            let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
            place.end.compare_exchange(0, CLAIMED, success, failure).is_ok()
        };
        let index = LIST.iter().position(claim);
        let index = index.ok_or_else(|| format!("{PLACES} regions of memory are lent already"))?;
        let place = &LIST[index];
        place.lost.store(false, Ordering::Relaxed);
        // After the claim, for whoever sees it: see `range`.
        let start = region.as_ptr().addr();
        place.start.store(start, Ordering::Release);
        place.end.store(start + region.size(), Ordering::Release);
        Ok(Lent { index, region })
    }

    /// Where the mapping begins.
    pub(super) fn start(&self) -> usize {
        self.region.as_ptr().addr()
    }

    /// Whether what was read of it may be anything.
    pub(super) fn is_lost(&self) -> bool {
        LOST.load(Ordering::Acquire) > 0 && LIST[self.index].lost.load(Ordering::Acquire)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // The mapping goes after this.
        LIST[self.index].end.store(0, Ordering::Release);
    }
}

fn install() -> Option<libc::sigaction> {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    let handler: unsafe extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = handle;
    // SAFETY: the structures are plain numbers, for which zeroes will do, and the handler does
    // nothing but atomics and system calls. Nobody faults on purpose before this returns.
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

/// The instruction is tried again when this returns.
///
/// # Safety
/// To be called by the kernel only, with what it says of a signal.
unsafe extern "C" fn handle(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's, for the length of the call.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    let replaced = code == libc::BUS_ADRERR && LIST.iter().any(|place| replace(place, address));
    if !replaced && let Some(Some(before)) = BEFORE.get() {
        // SAFETY: what was there before. It gets the same fault.
        unsafe { libc::sigaction(libc::SIGBUS, ptr::from_ref(before), ptr::null_mut()) };
    }
}

/// Where a mapping is, from its beginning to its end; none if it changes at the moment, so that it
/// is not the one that was touched. Of two mappings that have a place one after the other, the
/// beginning of the second and the end of the first would be neither.
fn range(place: &LentPlace) -> Option<(usize, usize)> {
    let end = place.end.load(Ordering::Acquire);
    let start = place.start.load(Ordering::Acquire);
    (place.end.load(Ordering::Relaxed) == end).then_some((start, end))
}

/// Puts empty memory where a mapping is, if the address is in it.
fn replace(place: &LentPlace, address: usize) -> bool {
    let Some((start, end)) = range(place) else { return false };
    if !(start..end).contains(&address) {
        return false;
    }
    // First, so that nobody reads the zeroes without it.
    place.lost.store(true, Ordering::SeqCst);
    LOST.fetch_add(1, Ordering::SeqCst);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let at = ptr::with_exposed_provenance_mut(start);
    // SAFETY: a mapping that is listed, so that it is still there; whoever uses it reaches it with
    // volatile accesses that may find anything.
    let mapped = unsafe { libc::mmap(at, end - start, protection, flags, -1, 0) };
    mapped != libc::MAP_FAILED
}
