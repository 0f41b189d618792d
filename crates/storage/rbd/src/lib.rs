//! Images of a Ceph cluster (RBD) as namespaces.
//!
//! [`Image::open`] connects to the cluster of a [`Name`] and opens the image; an
//! [`Rbd`] is a [`Namespace`](farblock_block::Namespace) over it.
//!
//! ```text
//!   core ---submit: rbd_aio_*---> librbd ===> OSDs
//!   core <--inbox and waker------ librbd's threads
//!   keeper: one thread an image, for whatever of librbd blocks (opening, sizes, closing)
//! ```
//!
//! **The library** is the system's librbd (`librbd.so.1`, of Ceph 14 or newer). The process loads
//! it when it first opens an image. Missing newer functions are replaced: without
//! `rbd_aio_write_zeroes`, we write a block of zeroes repeatedly. librbd then frees the space of
//! whole objects, requested or not.
//!
//! **Contract.** The contract of [`farblock_block`]. An operation, its buffer and its image belong
//! to librbd from submission to completion, even if the queue, the namespace or the event loop is
//! dropped meanwhile. The client has no cache: a completed write is on the OSDs, and two processes
//! that share an image read each other's writes. A missing OSD is not an error: operations wait
//! until the cluster can do them.
//!
//! **Exclusive lock.** We never lock the image as a whole. For an image with the feature
//! `exclusive-lock`, librbd passes the lock to each writer, which is safe with two writers, but
//! slow.
//!
//! **At exit** the process waits up to [5 seconds](limits::CLOSE) until its images are closed.
//!
//! **Not implemented.** Making, resizing or removing images, snapshots or clones. Encryption.
//! Reconnecting after the cluster has put this client on its block list: operations then fail with
//! [`Disconnected`](farblock_block::BlockError::Disconnected).

mod closing;
mod error;
mod flight;
mod image;
mod library;
pub mod limits;
mod name;
mod queue;

pub use error::OpenError;
pub use image::{Image, identity};
#[doc(hidden)]
pub use library::use_as_of_ceph_14;
pub use name::{Name, NameError};
pub use queue::Rbd;
