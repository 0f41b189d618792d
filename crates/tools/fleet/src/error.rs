//! Why a plan was not carried out.

use thiserror::Error;

/// Each a sentence that names what it is about.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FleetError {
    /// The plan makes no sense.
    #[error("the plan {name}: {why}")]
    Plan {
        /// The plan's name or file.
        name: String,
        /// What is wrong with it, as the end of a sentence.
        why: String,
    },
    /// An agent failed, or is gone.
    #[error("{agent}: {why}")]
    Agent {
        /// Which.
        agent: String,
        /// What happened.
        why: String,
    },
    /// The nodes' network could not be made.
    #[error("the network of the nodes: {0}")]
    Network(String),
    /// It was called off.
    #[error("interrupted")]
    Cancelled,
}

impl FleetError {
    pub(crate) fn plan(name: &str, why: impl Into<String>) -> FleetError {
        FleetError::Plan { name: name.to_owned(), why: why.into() }
    }

    pub(crate) fn agent(agent: &str, why: impl Into<String>) -> FleetError {
        FleetError::Agent { agent: agent.to_owned(), why: why.into() }
    }
}
