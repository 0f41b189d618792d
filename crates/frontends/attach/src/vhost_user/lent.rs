//! Memory that its owner may take away while it is mapped here: a monitor that truncates the file
//! that it has lent. Whoever touches it then gets SIGBUS, which would end the process and with it
//! all other disks.
//!
//! So what is lent is listed, and the signal's handler puts empty memory in its place and marks it
//! as [lost](Lent::is_lost), in the other order. Whoever has read something looks at the mark
//! before it believes it. A fault anywhere else goes to whom it would have gone before.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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

/// A mapping that may be taken away. It is dropped before that is unmapped.
#[derive(Debug)]
pub(super) struct Lent(usize);

impl Lent {
    /// Lists a mapping of ours.
    pub(super) fn new(start: *const u8, length: usize) -> Result<Lent, String> {
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
        place.start.store(start.addr(), Ordering::Relaxed);
        place.end.store(start.addr() + length, Ordering::Release);
        Ok(Lent(index))
    }

    /// Where the mapping begins.
    pub(super) fn start(&self) -> usize {
        LIST[self.0].start.load(Ordering::Relaxed)
    }

    /// Whether what was read of it may be anything.
    pub(super) fn is_lost(&self) -> bool {
        LOST.load(Ordering::Acquire) > 0 && LIST[self.0].lost.load(Ordering::Acquire)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        LIST[self.0].end.store(0, Ordering::Release);
    }
}

fn install() -> Option<libc::sigaction> {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = handle;
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
extern "C" fn handle(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's, for the length of the call.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    let replaced = code == libc::BUS_ADRERR && LIST.iter().any(|place| replace(place, address));
    if !replaced && let Some(Some(before)) = BEFORE.get() {
        // SAFETY: what was there before. It gets the same fault.
        unsafe { libc::sigaction(libc::SIGBUS, ptr::from_ref(before), ptr::null_mut()) };
    }
}

/// Puts empty memory where a mapping is, if the address is in it.
fn replace(place: &LentPlace, address: usize) -> bool {
    let end = place.end.load(Ordering::Acquire);
    let start = place.start.load(Ordering::Relaxed);
    if !(start..end).contains(&address) {
        return false;
    }
    // First, so that nobody reads the zeroes without it.
    place.lost.store(true, Ordering::SeqCst);
    LOST.fetch_add(1, Ordering::SeqCst);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let at = ptr::with_exposed_provenance_mut(start);
    // SAFETY: a mapping of ours that is listed, so that it is still there; whoever uses it reaches
    // it with volatile accesses that may find anything.
    let mapped = unsafe { libc::mmap(at, end - start, protection, flags, -1, 0) };
    mapped != libc::MAP_FAILED
}
