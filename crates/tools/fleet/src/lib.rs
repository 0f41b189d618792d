//! A fleet: many hosts against many targets at once, controlled from one place.
//!
//! A **controller** ([`run()`]) runs a [`Plan`] with **agents** ([`agent`]). An agent is a process
//! that shares drives as a target, or generates load as hosts. It receives its requests as lines of
//! JSON ([`message`]). The controller can start agents itself. It runs each agent in a node, which
//! is a network namespace if the machine supports that ([`network`]). Or the controller connects to
//! agents that listen on other machines, with a token ([`listen`]).
//!
//! ```text
//!                    controller
//!          lines of JSON |  clock, start at T, histograms
//!       +----------------+------------------+
//!   node 1           node 2             node 3          each with its own address
//!   hosts            hosts              target: drives, stripe sets
//! ```
//!
//! # Contract
//!
//! - All hosts start at the same instant. The controller first measures each agent's clock with
//!   round trips. A host that is not ready in time ends the run; it never joins late.
//! - Agents send latencies as whole histograms, and the controller merges them without loss. So a
//!   percentile in the report covers all I/Os.
//! - The first failure ends the run everywhere, and the error names the agent.
//! - A report contains the plan of the run. `farblock fleet run REPORT.json` repeats the run.
//! - A report lists how the plan was scaled down for the machine.
//!
//! # Not implemented
//!
//! Encryption between controller and agents (an agent listens on loopback by default), copying
//! files to agents, and finding disks for which agents were not configured.

#![forbid(unsafe_code)]

pub mod agent;
mod builtin;
mod clock;
mod controller;
mod descriptors;
mod documents;
mod error;
mod faults;
mod fleet;
mod guest_files;
mod guests;
pub mod html;
mod iscsi;
pub mod limits;
mod lines;
pub mod listen;
mod live;
mod load;
mod memory;
pub mod message;
pub mod network;
mod node;
mod peer;
mod plan;
mod plan_text;
mod process;
mod report;
mod sets;
mod step;
mod storage;
mod sum;
mod temporary;
pub mod text;
mod tgt;
mod verify;
pub mod versioned;
mod vm;
mod waited;

pub use controller::run;
pub use documents::Documents;
pub use error::FleetError;
pub use fleet::Setting;
pub use guest_files::GuestFiles;
pub use limits::FleetTimeouts;
pub use listen::Listener;
pub use live::{Board, Live, LiveHost};
pub use memory::Memory;
pub use node::Launcher;
pub use peer::Secret;
pub use plan::{Action, Fault, IscsiTarget, Place, Plan, Wanted};
pub use report::{
    ActionReport, FaultReport, GuestsReport, IscsiReport, IscsiTotal, NodeReport, Report, SCHEMA,
    SetReport, SetsReport, Total, Verified,
};
pub use step::Step;
pub use storage::Allowed;
