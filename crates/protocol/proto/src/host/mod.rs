//! The host's side, sans I/O: builds commands, brings a controller up, and reads controllers'
//! answers.
//!
//! Contract: this module treats every byte from a controller as hostile. The values that functions
//! return are bounded and consistent; malformed input is an [`InfoError`] or a [`ConnectError`].
//!
//! Not implemented: authentication, reservations, zoned and key-value command sets, metadata.

mod ana;
mod bringup;
pub mod command;
mod discovery;
mod error;
mod info;
mod namespace;

pub use ana::{AnaLog, ana_log_page};
pub use bringup::{Bringup, Parameters, Step};
pub use command::{Command, Data, Identity};
pub use discovery::{DiscoveryEntry, DiscoveryReader, DiscoveryStep};
pub use error::{Accepted, ConnectError, accepted, refused};
pub use info::{ControllerInfo, InfoError};
pub use namespace::{CommandLimits, NamespaceInfo, parse_changed_namespaces, parse_namespace_list};

#[cfg(test)]
mod tests;
