//! The current step of a fleet, for observers.

use std::fmt;

/// A step of a run, and its progress.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Step<'a> {
    /// The name of the step. A log has one line for each step.
    pub what: &'a str,
    /// The current part of the step, for example a load; empty if the step has no parts.
    pub part: &'a str,
    /// The I/Os per second now; 0 if the step does no measured I/O.
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
