//! OpenSSL's random numbers out of a simulation, for whoever is in one.
//!
//! All that two handshakes with the same key differ by comes of them: with them out of a seed, the
//! same run has the same bytes on the wire. Everything else is OpenSSL as it is. Whoever is in no
//! simulation has OpenSSL's own numbers, also in a program that knows simulations.

use super::library::symbol;
use std::ffi::{c_int, c_uchar, c_void};
use std::sync::OnceLock;

type Bytes = unsafe extern "C" fn(*mut c_uchar, c_int) -> c_int;

/// `RAND_METHOD`
#[repr(C)]
struct RandMethod {
    seed: Option<unsafe extern "C" fn(*const c_void, c_int) -> c_int>,
    bytes: Option<Bytes>,
    cleanup: Option<unsafe extern "C" fn()>,
    add: Option<unsafe extern "C" fn(*const c_void, c_int, f64) -> c_int>,
    pseudorand: Option<Bytes>,
    status: Option<unsafe extern "C" fn() -> c_int>,
}

/// Fills bytes if the calling thread is in a simulation; false if it is in none.
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

/// Has OpenSSL draw from here wherever this gives anything.
///
/// # Errors
/// If there is no library.
pub fn draw_from(source: fn(&mut [u8]) -> bool) -> Result<(), crate::TlsError> {
    let _ = SOURCE.set(source);
    // What is drawn once for a process is drawn now, and not in somebody's simulation.
    super::available()
}

/// Has the library ask here.
pub(super) fn install(libraries: &[libloading::Library]) -> Result<(), String> {
    // SAFETY: the types are those of OpenSSL 3's headers, where they are stable; its own method is
    // static, and so is ours.
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
/// There are so many bytes, which nobody else has.
unsafe extern "C" fn fill(bytes: *mut c_uchar, count: c_int) -> c_int {
    let length = usize::try_from(count).unwrap_or_default();
    if length == 0 {
        return 1;
    }
    // SAFETY: by this function's contract; whatever they hold is bytes.
    let slice = unsafe {
        bytes.write_bytes(0, length);
        std::slice::from_raw_parts_mut(bytes, length)
    };
    match (SOURCE.get(), OWN.get()) {
        (Some(source), _) if source(slice) => 1,
        // SAFETY: it is OpenSSL's, and asks for the same.
        (_, Some(own)) => unsafe { own(bytes, count) },
        (_, None) => 0,
    }
}

unsafe extern "C" fn is_ready() -> c_int {
    1
}
