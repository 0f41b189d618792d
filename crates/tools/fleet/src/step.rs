//! What a fleet does now, for whoever follows it.

use std::fmt;

/// One of the few things that a fleet does, and how far it is with that.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Step<'a> {
    /// What is done. It stays the same for a while: where each line stays, it is worth one.
    pub what: &'a str,
    /// Which part of it; empty where it has none.
    pub part: &'a str,
    /// I/Os per second, 0 when none are counted.
    pub iops: f64,
}

impl fmt::Display for Step<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.part {
            "" => f.write_str(self.what),
            part => write!(f, "{}: {part}", self.what),
        }
    }
}
