//! Why a plan failed.

use thiserror::Error;

/// The message of each is a sentence that names its subject.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FleetError {
    /// The plan is invalid.
    #[error("the plan {name}: {why}")]
    Plan {
        /// The plan's name or file.
        name: String,
        /// The fault in the plan, as the end of a sentence.
        why: String,
    },
    /// An agent failed, or its connection was lost.
    #[error("{agent}: {why}")]
    Agent {
        /// The agent's name.
        agent: String,
        /// The cause.
        why: String,
    },
    /// The nodes' network could not be made.
    #[error("the network of the nodes: {0}")]
    Network(String),
    /// The run was cancelled.
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
