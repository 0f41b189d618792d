//! Steers a running target.
//!
//! **What it is.** [`Steering`] has a running target, the document that says what it shares, and
//! where that is kept; everybody who changes something goes through it. [`serve`] offers it as an
//! HTTP interface on a Unix socket that only its owner can open, with what the target does
//! ([`Status`]) and the counters in Prometheus' format; [`Client`] is the other end.
//! `docs/openapi.json` describes the interface.
//!
//! **Contract.** A change is made whole or not at all, and one after the other. What an answer says
//! has happened, and with a store it is durable. Nothing here runs on a target's cores: they only
//! have their mailboxes.
//!
//! **Not implemented.** Events, users other than the owner, TLS.

#![forbid(unsafe_code)]

mod live;
mod metrics;
mod status;
mod steering;

#[cfg(unix)]
mod api;
#[cfg(unix)]
mod bounded;
#[cfg(unix)]
mod client;
#[cfg(unix)]
mod server;
#[cfg(unix)]
mod socket;

pub use live::{Disks, Open, Opened};
pub use metrics::render as render_metrics;
pub use status::{ControllerStatus, NamespaceStatus, Status, SubsystemStatus};
pub use steering::{Changed, Configured, Refused, Steering};

#[cfg(unix)]
pub use api::openapi;
#[cfg(unix)]
pub use client::{Answer, Client, ClientError};
#[cfg(unix)]
pub use server::{Server, serve};
