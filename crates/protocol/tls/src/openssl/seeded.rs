//! Makes OpenSSL use the random numbers of a simulation.
//!
//! Two handshakes with the same key differ only in their random numbers. So if the numbers come
//! from a seed, each run with this seed sends the same bytes. Nothing else in OpenSSL changes. A
//! thread outside a simulation gets OpenSSL's own numbers, even in a program with simulations.

use super::library::symbol;
use std::ffi::{c_int, c_uchar, c_void};
use std::sync::OnceLock;

type Bytes = unsafe extern "C" fn(*mut c_uchar, c_int) -> c_int;

/// OpenSSL's table of functions that deliver random numbers: the C structure `RAND_METHOD`.
#[repr(C)]
struct RandMethod {
    seed: Option<unsafe extern "C" fn(*const c_void, c_int) -> c_int>,
    bytes: Option<Bytes>,
    cleanup: Option<unsafe extern "C" fn()>,
    add: Option<unsafe extern "C" fn(*const c_void, c_int, f64) -> c_int>,
    pseudorand: Option<Bytes>,
    status: Option<unsafe extern "C" fn() -> c_int>,
}

/// If the calling thread is in a simulation, fills the bytes and returns true. Otherwise returns
/// false.
type Source = fn(&mut [u8]) -> bool;

static METHOD: RandMethod = RandMethod {
    seed: None,
    bytes: Some(fill),
    cleanup: None,
    add: None,
    pseudorand: Some(fill),
    status: Some(is_ready),
};
static SOURCE: OnceLock<Source> = OnceLock::new();
static OWN: OnceLock<Bytes> = OnceLock::new();

/// Makes OpenSSL get its random numbers from `source`, on threads where `source` returns true.
///
/// # Errors
/// Fails if there is no library.
pub fn draw_from(source: fn(&mut [u8]) -> bool) -> Result<(), crate::TlsError> {
    let _ = SOURCE.set(source);
    // Initialize OpenSSL now: it must get its own seed from the system, outside any simulation.
    super::available()
}

/// Installs this module's functions in OpenSSL.
pub(super) fn install(libraries: &[libloading::Library]) -> Result<(), String> {
    // SAFETY: the types match OpenSSL 3's headers, where they are stable. OpenSSL's own method and
    // `METHOD` are static.
    unsafe {
        let own: unsafe extern "C" fn() -> *const RandMethod = symbol(libraries, "RAND_OpenSSL")?;
        let set: unsafe extern "C" fn(*const RandMethod) -> c_int =
            symbol(libraries, "RAND_set_rand_method")?;
        if let Some(bytes) = own().as_ref().and_then(|own| own.bytes) {
            let _ = OWN.set(bytes);
            set(&raw const METHOD);
        }
    }
    Ok(())
}

/// # Safety
/// `bytes` is valid for writes of `count` bytes, and nothing else uses them.
unsafe extern "C" fn fill(bytes: *mut c_uchar, count: c_int) -> c_int {
    let length = usize::try_from(count).unwrap_or_default();
    if length == 0 {
        return 1;
    }
    // SAFETY: by this function's contract; any content is valid bytes.
    let slice = unsafe {
        bytes.write_bytes(0, length);
        std::slice::from_raw_parts_mut(bytes, length)
    };
    match (SOURCE.get(), OWN.get()) {
        (Some(source), _) if source(slice) => 1,
        // SAFETY: this is OpenSSL's own function, with the same contract.
        (_, Some(own)) => unsafe { own(bytes, count) },
        (_, None) => 0,
    }
}

unsafe extern "C" fn is_ready() -> c_int {
    1
}
