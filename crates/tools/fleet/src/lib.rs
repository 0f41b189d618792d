//! A fleet: many hosts against many targets at once, driven from one place.
//!
//! A **controller** ([`run()`]) carries out a [`Plan`] with **agents** ([`agent`]). An agent is a
//! process that shares drives as a target, or drives load as hosts, and does what it is told in
//! lines of JSON ([`message`]). The controller starts agents itself, each in a node that is a
//! network namespace where the machine lets it ([`network`]), or meets those that listen on other
//! machines, with a token ([`listen`]).
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
//! - All hosts begin at the same instant: each agent's clock is measured by round trips first, and
//!   a host that was not ready by then ends the run rather than joining late.
//! - Latencies come as whole histograms and are merged without loss; a percentile of the report is
//!   one of all I/Os.
//! - The first thing that goes wrong ends the run everywhere, and the error names the agent.
//! - A report holds the plan as it was run: `farblock fleet run REPORT.json` repeats it.
//! - What a plan scales down it says.
//!
//! # What it does not do
//!
//! Encrypt what controller and agents say (an agent listens on the loopback unless told otherwise),
//! move agents' files, or know of disks that agents were not told of.

#![forbid(unsafe_code)]

pub mod agent;
mod builtin;
mod clock;
mod controller;
mod descriptors;
mod documents;
mod error;
mod faults;
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
mod process;
mod report;
mod sets;
mod step;
mod storage;
pub mod text;
mod verify;
pub mod versioned;
mod vm;
mod waited;

pub use controller::{Setting, run};
pub use documents::Documents;
pub use error::FleetError;
pub use guests::GuestFiles;
pub use limits::Patience;
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
