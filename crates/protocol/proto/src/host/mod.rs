//! The host side, sans I/O: creates commands, brings a controller up, and reads the controller's
//! data.
//!
//! Contract: this module treats every byte from a controller as hostile. The returned values are
//! bounded and consistent. Malformed input causes an [`InfoError`] or a [`ConnectError`].
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
