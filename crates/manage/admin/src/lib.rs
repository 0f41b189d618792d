//! Manages a running target.
//!
//! **Purpose.** [`Steering`] holds a running target, its document (the settings of everything it
//! shares) and the store of the document. All changes go through [`Steering`]. [`serve`] provides
//! an HTTP interface to it, on a Unix socket that only its owner can open. The interface also has
//! the target's status, and its counters in Prometheus' format. `farblock-admin-client` is the
//! client side, and `docs/openapi.json` describes the interface. [`Remote`] is the interface on
//! TCP, for clients with a token, over HTTPS with a [`Certificate`]. [`Ui`] is the dashboard: a
//! page and the interface behind a token, on TCP. Its sources are in `dashboard/`, its build output
//! in `ui/`.
//!
//! **Contract.** Each change is atomic, and changes are serialized. A client gets the answer after
//! the target has changed. If there is a store, the change is then durable. No code of this crate
//! runs in a target's event loops: it only sends messages to them.
//!
//! **Not implemented.** Users other than the owner and the token holders; client certificates.

#![forbid(unsafe_code)]

mod legs;
mod live;
mod metrics;
mod open_disks;
mod opener;
mod stats;
mod status;
mod steering;

#[cfg(unix)]
mod api;
#[cfg(unix)]
mod attached;
#[cfg(unix)]
mod audit;
#[cfg(unix)]
mod blame;
#[cfg(unix)]
mod bounded;
#[cfg(unix)]
mod busy;
#[cfg(unix)]
mod callers;
#[cfg(unix)]
mod certificate;
#[cfg(unix)]
mod cluster;
#[cfg(unix)]
mod events;
#[cfg(unix)]
mod fleet;
#[cfg(unix)]
mod forward;
#[cfg(unix)]
mod gather;
#[cfg(unix)]
mod group_orders;
#[cfg(unix)]
mod grouped;
#[cfg(unix)]
mod guard;
#[cfg(unix)]
mod history;
#[cfg(unix)]
mod in_group;
#[cfg(unix)]
mod nodes;
#[cfg(unix)]
mod problems;
#[cfg(unix)]
mod remote;
#[cfg(unix)]
mod server;
#[cfg(unix)]
mod serving;
#[cfg(unix)]
mod tls_listener;
#[cfg(any(test, feature = "trial"))]
pub mod trial;
#[cfg(unix)]
mod ui;

pub use legs::{Legs, Mirrored};
pub use live::{access, rates, sharing, tls_policy};
pub use metrics::{as_plain_text, render as render_metrics};
pub use opener::{Announcement, Cause, Disks, Keys, NotOpened, Open, Opened};
pub use status::warnings;
pub use steering::{Changed, Configured, Confined, Refused, Reread, Steering};

#[cfg(unix)]
pub use api::openapi;
#[cfg(unix)]
pub use audit::AUDIT;
#[cfg(unix)]
pub use bounded::{Activity, Asked, Bounded, Connection};
#[cfg(unix)]
pub use certificate::{Certificate, Pem, ReadPem};
#[cfg(unix)]
pub use events::Happening;
#[cfg(unix)]
pub use fleet::{ReadFleet, serve_fleet};
#[cfg(unix)]
pub use gather::Beside;
#[cfg(unix)]
pub use group_orders::Grouped;
#[cfg(unix)]
pub use guard::Token;
#[cfg(unix)]
pub use nodes::{MAX_NODES, Node, NodePlace};
#[cfg(unix)]
pub use remote::{Remote, Role, Tokens};
#[cfg(unix)]
pub use server::{OnTcp, serve, serve_cluster};
#[cfg(unix)]
pub use serving::Server;
#[cfg(unix)]
pub use ui::Ui;
