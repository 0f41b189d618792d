//! Problems of documents, described for people.

use std::fmt;

/// A problem of a document, and its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The path of the field: names from the top level down, separated by dots.
    pub field: String,
    /// The problem, as one sentence.
    pub sentence: String,
}

impl Problem {
    /// A problem of the field `field`.
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
