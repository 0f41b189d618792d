//! Protects the program's memory before it holds a key.

use std::sync::OnceLock;

/// The function that protects the program's memory before it holds a key.
static GUARD: OnceLock<fn()> = OnceLock::new();

/// Sets a function to call before every read of a key; later calls have no effect. Without such a
/// function the library changes nothing about its process.
pub fn guard_by(guard: fn()) {
    let _ = GUARD.set(guard);
}

/// Call this before reading a key.
pub(crate) fn guard() {
    if let Some(guard) = GUARD.get() {
        guard();
    }
}
