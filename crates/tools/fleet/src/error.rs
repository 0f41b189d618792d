//! The errors of a run.

use thiserror::Error;

/// The error of a run. Its message is a sentence that names the failed part.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FleetError {
    /// The plan is invalid.
    #[error("the plan {name}: {why}")]
    Plan {
        /// The name or file of the plan.
        name: String,
        /// The problem. The message prints it after the name and a colon.
        why: String,
    },
    /// An agent failed, or its connection was lost.
    #[error("{agent}: {why}")]
    Agent {
        /// The name of the agent.
        agent: String,
        /// The reason.
        why: String,
    },
    /// The network of the nodes could not be created.
    #[error("cannot create the network of the nodes: {0}")]
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
