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
        /// The problem, as the end of a sentence.
        why: String,
    },
    /// An action failed that never fails in a correct simulation.
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
