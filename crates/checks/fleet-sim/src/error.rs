//! Why a simulation failed.

use thiserror::Error;

/// The message of each is a sentence that names its subject.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// The settings are wrong.
    #[error("{text}: {why}")]
    Settings {
        /// The settings as the caller gave them.
        text: String,
        /// The fault in the settings, as the end of a sentence.
        why: String,
    },
    /// An action failed that cannot fail in a simulation.
    #[error("{part}: {why}")]
    Failed {
        /// The target, host or world that failed.
        part: String,
        /// The cause.
        why: String,
    },
    /// The caller cancelled the simulation.
    #[error("interrupted")]
    Cancelled,
}

pub(crate) fn failure(part: &str, why: impl ToString) -> SimulationError {
    SimulationError::Failed { part: part.to_owned(), why: why.to_string() }
}
