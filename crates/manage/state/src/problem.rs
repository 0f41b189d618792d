//! Faults in documents, for people.

use std::fmt;

/// A fault in a document, and its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The field: its names from the top, separated by dots.
    pub field: String,
    /// One sentence.
    pub sentence: String,
}

impl Problem {
    /// A problem of `field`.
    pub fn new(field: impl Into<String>, sentence: impl fmt::Display) -> Self {
        Self { field: field.into(), sentence: sentence.to_string() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field.as_str() {
            "" => f.write_str(&self.sentence),
            field => write!(f, "{field}: {}", self.sentence),
        }
    }
}

impl std::error::Error for Problem {}
