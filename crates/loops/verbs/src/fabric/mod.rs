//! An RDMA fabric in memory, for tests and the simulation. Its nodes (machines) connect, and
//! exchange messages in order and without loss.
//!
//! The fabric follows the InfiniBand rules for reliable connections, not the behaviour of one
//! device:
//!
//! - If the receiver has posted no receive, and the sender may retry forever, a message waits.
//!   Otherwise it fails at once, because the fabric has no clock.
//! - A wrong key, range, access or protection domain fails the request with
//!   [`REM_ACCESS_ERR`](crate::Status::REM_ACCESS_ERR), and puts both queue pairs into the error
//!   state.
//! - A SEND with Invalidate can only invalidate a key with remote access, as InfiniBand demands.
//! - A message that is longer than the posted receive fails both ends.
//! - After an error, a queue pair flushes all its requests.
//! - Private data arrives padded with zeroes to its maximum length, as on RoCE.
//!
//! [`Network::unplug`], [`Network::remove_device`] and [`Network::change_address`] simulate what a
//! machine's administrator may do.
//!
//! Events and completions call the [`Waker`](crate::Waker) of their channel or queue.
//!
//! Not modelled: time, limits of READs in flight, and the order of READs and later requests
//! (requests always execute in order).

mod connection;
mod execute;
mod node;
mod state;

pub use node::{Network, Node};
pub use state::Calls;
