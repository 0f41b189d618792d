//! A client of targets' management interfaces.
//!
//! [`Client`] sends requests to a control socket, or to the interface on TCP, over HTTPS with the
//! certificates of [`Trust`]. [`running()`] finds the targets of this user. The types of the
//! answers are in `farblock-admin-api`.

#![cfg(unix)]
#![forbid(unsafe_code)]

mod client;
mod running;
pub mod trust;

pub use client::{Answer, Client, ClientError, HttpsServer, plain, send, whole};
pub use running::{looked_in, running};
pub use trust::Trust;
