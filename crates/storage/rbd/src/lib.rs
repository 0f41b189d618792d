//! Namespaces on images of a Ceph cluster (RBD).
//!
//! [`Image::open`] connects to the cluster of a [`Name`] and opens the image. An [`Rbd`] is a
//! [`Namespace`](farblock_block::Namespace) on the image.
//!
//! ```text
//!   core ---submit: rbd_aio_*---> librbd ===> OSDs
//!   core <--inbox and waker------ librbd's threads
//!   keeper: one thread per image, for librbd's blocking calls (open, size, close)
//! ```
//!
//! **The library** is the system's librbd (`librbd.so.1`, from Ceph 14 or newer). The process loads
//! it when it first opens an image. Without the newer function `rbd_aio_write_zeroes`, this crate
//! writes a block of zeroes repeatedly. librbd then frees the space of whole objects, even if the
//! command forbids deallocation.
//!
//! **Contract.** The contract of [`farblock_block`] applies. An operation, its buffer and its image
//! belong to librbd from submission to completion, even if the queue, the namespace or the event
//! loop is dropped. The client has no cache: a completed write is on the OSDs, and two processes
//! that share an image read each other's writes. A missing OSD is not an error. Operations wait
//! until the cluster can execute them.
//!
//! **Exclusive lock.** This crate never locks the image as a whole. If an image has the feature
//! `exclusive-lock`, librbd passes the lock to each writer. This is safe with two writers, but
//! slow.
//!
//! **At exit** the process waits at most [5 seconds](limits::CLOSE) until its images are closed.
//!
//! **Not implemented.** Creating, resizing and removing images, snapshots and clones. Encryption.
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
