//! A fabric in memory. Nodes connect, and exchange messages, in order and without loss.
//!
//! The fabric follows the InfiniBand rules for reliable connections, not the behaviour of one
//! device:
//!
//! - If the receiver has posted no receive, a message waits if its sender retries forever.
//!   Otherwise the message fails at once, because the fabric has no clock.
//! - A wrong key, range, access or protection domain fails the request with
//!   [`REM_ACCESS_ERR`](crate::Status::REM_ACCESS_ERR), and puts both queue pairs into the error
//!   state.
//! - A SEND with Invalidate can only invalidate a key with remote access, as InfiniBand demands.
//! - A message longer than the receive fails both ends.
//! - After an error, a queue pair flushes all its requests.
//! - Private data arrives padded with zeroes to its maximum length, as on RoCE.
//!
//! [`Network::unplug`], [`Network::remove_device`] and [`Network::change_address`] simulate actions
//! of a machine's administrator.
//!
//! Events and completions call the [`Waker`](crate::Waker) of their channel or queue.
//!
//! Not modelled: time, limits of READs in flight, and the order of READs and later requests (every
//! request is fenced).

mod connection;
mod execute;
mod node;
mod state;

pub use node::{Network, Node};
