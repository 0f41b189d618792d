//! Images of a Ceph cluster (RBD) as namespaces.
//!
//! **What it is.** [`Image::open`] connects to the cluster that a [`Name`] names and opens the
//! image; an [`Rbd`] is a [`Namespace`](farblock_block::Namespace) over it.
//!
//! ```text
//!   core ---submit: rbd_aio_*---> librbd ===> OSDs
//!   core <--inbox and waker------ librbd's threads
//!   keeper: one thread an image, for whatever of librbd blocks (opening, sizes, closing)
//! ```
//!
//! **The library** is the system's librbd (`librbd.so.1`, of Ceph 14 or newer), loaded when an
//! image is first opened and not before. What it lacks that is newer is done in another way:
//! without `rbd_aio_write_zeroes`, a block of zeroes is written again and again, of which librbd
//! gives back the space of whole objects, asked or not.
//!
//! **Contract.** That of [`farblock_block`]. An operation and its buffer belong to librbd from its
//! submission to its completion, whatever happens to the queue, the namespace or the event loop
//! meanwhile; so does the image. There is no cache on this side: a write that is complete is on the
//! OSDs, and two processes that share an image read what the other has written. An operation waits
//! for as long as the cluster cannot do it: an OSD that is away is not an error.
//!
//! **Exclusive lock.** None is taken for the image as a whole. For an image that has the feature
//! `exclusive-lock`, librbd passes the lock on to whoever writes, which is safe with two writers,
//! but slow.
//!
//! **The end of a process** waits [a little](limits::CLOSE) for images to be closed.
//!
//! **What it does not do.** Making, resizing or removing images, snapshots or clones; encryption;
//! reconnecting after the cluster has put this client on its block list: operations fail with
//! [`Disconnected`](farblock_block::BlockError::Disconnected) then.

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
