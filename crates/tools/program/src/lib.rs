//! Common code of farblock's commands and daemons.
//!
//! It implements the conventions on which users and scripts rely. Results go to the standard
//! output, and everything else to the standard error. An error is one sentence with an exit code
//! ([`error`]). A closed pipe is not an error ([`output`]). A file is replaced by renaming a
//! complete new one ([`replace`]). A process with untrusted peers drops the rights that it does not
//! need (`sandbox`), and a `broker` process keeps the few rights that it still needs.
//!
//! This crate does not depend on a particular command.

pub mod alike;
pub mod args;
#[cfg(all(target_os = "linux", feature = "manage"))]
pub mod broker;
#[cfg(feature = "manage")]
pub mod configuration;
pub mod descriptors;
pub mod discovery;
pub mod error;
pub mod lives;
#[cfg(all(target_os = "linux", feature = "manage"))]
pub mod notify;
pub mod output;
pub mod reachable;
pub mod remote;
pub mod replace;
mod report;
#[cfg(all(target_os = "linux", feature = "manage"))]
pub mod sandbox;
pub mod shell;
pub mod signals;
pub mod table;
pub mod values;
