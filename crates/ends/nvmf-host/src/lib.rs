//! The NVMe/TCP and NVMe/RDMA host: from a URL to a block device, in user space.
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
//! One thread runs the admin queues of all controllers of a process. A [`RemoteNamespace`]
//! implements [`Namespace`](farblock_block::Namespace). Each of its queues runs on the caller's
//! event loop and has its own connection. When a connection is lost, the namespace fails all
//! operations. A [`Disk`] reconnects, over one path or several: use a `Disk` for anything
//! long-lived. See [`disk`].
//!
//! # Three ways to read and write
//!
//! Every namespace supports all three ways.
//!
//! **Blocking**: [`Blocking`](farblock_block::blocking::Blocking), as in the example above.
//!
//! **Async**: [`AsyncNamespace`](farblock_block::nonblocking::AsyncNamespace), with any executor.
//!
//! ```no_run
//! use farblock_block::nonblocking::{AsyncNamespace, Buffer};
//! use farblock_host::{Disk, DiskOptions, Url};
//!
//! # async fn use_it() -> Result<(), Box<dyn std::error::Error>> {
//! let url: Url = "nvme+tcp://storage.example/nqn.2024-01.example:disk?ns=1".parse()?;
//! let disk = Disk::connect(&[url], &DiskOptions::default())?;
//! let disk = AsyncNamespace::new(std::sync::Arc::new(disk))?;
//! let data = disk.read(0, Buffer::new(4096)).await?;
//! disk.write(8, data).await?;
//! disk.flush().await?;
//! # Ok(())
//! # }
//! ```
//!
//! **Submit and poll**: a [`Queue`](farblock_block::Queue) on your own event loop, without another
//! thread, and without a lock or an allocation per operation.
//!
//! ```no_run
//! use farblock_block::{Namespace, Op};
//! use farblock_host::{Disk, DiskOptions, Url};
//! use farblock_reactor::{Config, Reactor};
//!
//! let url: Url = "nvme+tcp://storage.example/nqn.2024-01.example:disk?ns=1".parse()?;
//! let disk = Disk::connect(&[url], &DiskOptions::default())?;
//! let reactor = Reactor::new(&Config::default())?;
//! let task = reactor.add_task();
//! let mut queue = disk.open(&reactor, task)?;
//! let (mut ready, mut done) = (Vec::new(), Vec::new());
//! for token in 0..32 {
//!     let buffer = reactor.buffers().take(4096);
//!     queue.submit(Op::read(token * 8, 8, buffer, token));
//! }
//! while queue.in_flight() > 0 {
//!     queue.poll(&mut done);
//!     for done in done.drain(..) {
//!         done.result?;
//!         // Return the operation's buffer to the pool.
//!         done.buffer.into_iter().for_each(|buffer| reactor.buffers().give(buffer));
//!     }
//!     if queue.in_flight() > 0 {
//!         reactor.poll(None, &mut ready)?;
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `examples/three_ways.rs` shows all three; `docs/library.md` compares them with C and Python.
//!
//! # Contract
//!
//! This contract applies to [`RemoteNamespace`]. The module [`disk`] documents the contract of
//! [`Disk`].
//!
//! **Every operation completes.** The controller is lost if it closes a connection, breaks the
//! protocol, or does not answer a keep alive or a command in time. Operations in flight then fail
//! with [`BlockError::Disconnected`](farblock_block::BlockError::Disconnected). The controller may
//! or may not have executed the failed writes. Later operations fail at once with the same error.
//!
//! **The host does not trust the controller.** Data from it can only fill the requested buffers or
//! cause an error.
//!
//! **The host retries in three cases.** It repeats a connection attempt while the target is still
//! releasing this host's previous queue or controller. It repeats a command up to five times if the
//! controller failed the command without Do Not Retry, or if a digest showed that the data was
//! damaged in transit.
//!
//! # Not implemented
//!
//! This crate does not implement metadata. It sets no time limit for name resolution, which takes
//! as long as the system's resolver takes.

mod admin;
mod association;
mod authentication;
mod control;
mod controller;
mod discover;
pub mod disk;
mod error;
mod exchange;
mod guard;
pub mod identity;
pub mod key_file;
#[cfg(target_os = "linux")]
pub mod keyring;
mod known;
pub mod limits;
mod name;
mod namespace;
mod options;
mod queue;
pub mod readable;
mod shared;
mod status;
mod system_error;
mod tcp_options;
pub mod tls_keys;
mod transport;
pub mod url;

pub use controller::Controller;
pub use discover::{discover, discover_all, entry_address, entry_url, lacks_zone};
pub use disk::{Disk, DiskOptions};
pub use error::Error;
pub use identity::{HostId, HostIdentity};
pub use namespace::RemoteNamespace;
pub use options::Options;
pub use tcp_options::TcpOptions;
pub use url::Url;

/// Control of the threads that all connections of a process share, for programs that fork.
pub mod control_loops {
    pub use crate::control::{Held, hold};
}

/// The in-memory transport for tests: the types behind [`Controller::connect_in_memory`].
#[cfg(feature = "memory")]
pub mod memory {
    pub use crate::transport::memory::{Dial, Region, Wire};
}

/// Values of [`Options::dhchap_hashes`] and [`Options::dhchap_dhgroups`].
pub use farblock_secure::{Group, Hash};

/// Admin commands for [`Controller::admin`], and the parsed answers of controllers.
pub use farblock_proto::host::{
    Command, ConnectError, ControllerInfo, Data, DiscoveryEntry, InfoError, NamespaceInfo, command,
};
pub use farblock_proto::tcp::TcpRefusal;

/// Makes rustdoc compile the examples of `docs/library.md`.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/library.md")]
struct Guide;
