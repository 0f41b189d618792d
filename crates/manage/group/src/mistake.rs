//! Deliberate mistakes: a test makes one and checks that the simulation finds it.

#[cfg(test)]
thread_local! {
    static MISTAKE: std::cell::Cell<Option<&'static str>> = const { std::cell::Cell::new(None) };
}

/// Whether this thread runs with this deliberate mistake.
#[cfg(test)]
pub(crate) fn has_mistake(mistake: &str) -> bool {
    MISTAKE.get() == Some(mistake)
}

/// Always `false` outside of tests.
#[cfg(not(test))]
pub(crate) const fn has_mistake(_mistake: &str) -> bool {
    false
}

/// Sets the mistake of this thread.
#[cfg(test)]
pub(crate) fn make_mistake(mistake: Option<&'static str>) {
    MISTAKE.set(mistake);
}
