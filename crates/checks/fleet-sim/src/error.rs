//! The errors of a simulation.

use thiserror::Error;

/// The error of a simulation. Its message is a sentence that names the failed part.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// The settings are invalid.
    #[error("{text}: {why}")]
    Settings {
        /// The settings, as the caller gave them.
        text: String,
        /// Why the settings are invalid. The message prints this after `text` and a colon.
        why: String,
    },
    /// A step failed that must always succeed, so the simulation or the product has a bug.
    #[error("{part}: {why}")]
    Failed {
        /// The target, host or simulated world that failed.
        part: String,
        /// Why that part failed.
        why: String,
    },
    /// The caller cancelled the simulation.
    #[error("interrupted")]
    Cancelled,
}

pub(crate) fn failure(part: &str, why: impl ToString) -> SimulationError {
    SimulationError::Failed { part: part.to_owned(), why: why.to_string() }
}
