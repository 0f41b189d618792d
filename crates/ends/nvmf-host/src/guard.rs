//! Lets the program protect its memory (from core dumps, for example) before it reads a key.

use std::sync::OnceLock;

/// The function that [`guard_by`] has set.
static GUARD: OnceLock<fn()> = OnceLock::new();

/// Sets a function that the library calls before every read of a key. Later calls have no effect.
/// Without such a function the library changes no setting of its process.
pub fn guard_by(guard: fn()) {
    let _ = GUARD.set(guard);
}

/// Calls the function that [`guard_by`] has set. Call this before every read of a key.
pub(crate) fn guard() {
    if let Some(guard) = GUARD.get() {
        guard();
    }
}
