//! The NVMe/TCP host: from a URL to a block device, in user space.
//!
//! ```no_run
//! use farblock_block::blocking::Blocking;
//! use farblock_host::{Controller, Options, Url};
//!
//! let url: Url = "nvme+tcp://storage.example/nqn.2024-01.example:disk?ns=1".parse()?;
//! let controller = Controller::connect_url(&url, &Options::default())?;
//! let namespace = controller.namespace(url.namespace.unwrap_or(1))?;
//! let mut disk = Blocking::new(&namespace)?;
//! let mut block = vec![0; disk.geometry().block_size as usize];
//! disk.read(0, &mut block)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Controller`] has one thread, for its admin queue. A [`RemoteNamespace`] is a
//! [`Namespace`](farblock_block::Namespace) like any other: its queues live on their users' event
//! loops, each with a connection of its own.
//!
//! # Contract
//!
//! **Every operation ends.** If the controller is lost (connection closed, protocol broken, keep
//! alive unanswered, a command not answered in time), everything in flight ends with
//! [`BlockError::Disconnected`](farblock_block::BlockError::Disconnected); whether a write among
//! it was done is not known. What is submitted later ends likewise, at once.
//!
//! **The peer is not trusted.** Whatever it sends ends in data where they were asked for, or in an
//! error.
//!
//! **Nothing is retried** behind the user's back, except opening a queue while the controller has
//! not let go of the previous one.
//!
//! # Not implemented
//!
//! Reconnecting, several paths to one namespace, authentication, TLS, metadata, the limits of
//! Dataset Management and Write Zeroes that controllers may state (DMRSL, WZSL). Resolving a name
//! takes as long as the system's resolver does.

mod admin;
mod controller;
mod discover;
pub mod disk;
mod error;
mod handshake;
pub mod identity;
pub mod limits;
mod link;
mod namespace;
mod options;
mod queue;
mod shared;
mod status;
pub mod url;

pub use controller::Controller;
pub use discover::{discover, discover_all, entry_address};
pub use disk::{Disk, DiskOptions};
pub use error::Error;
pub use identity::{HostId, HostIdentity};
pub use namespace::RemoteNamespace;
pub use options::Options;
pub use url::Url;

/// The commands that [`Controller::admin`] executes, and what controllers say.
pub use farblock_proto::host::{
    Command, ConnectError, ControllerInfo, Data, DiscoveryEntry, InfoError, NamespaceInfo, command,
};
