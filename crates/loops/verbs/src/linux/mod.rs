//! Implements the verbs with the system's libibverbs and librdmacm.

mod address;
mod connection;
mod events;
#[cfg(test)]
mod layout;
mod library;
mod post;
mod resources;
mod sys;
mod system;

pub use system::System;
