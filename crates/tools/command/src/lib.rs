//! What farblock's commands and daemons stand on, and what none of them does in a way of its own.
//!
//! Their contract is with people and scripts: results go to the standard output, everything else to
//! the standard error; an error is one sentence with an exit code ([`error`]); a closed pipe is an
//! ordinary end ([`output`]). What replaces a file is written beside it and put over it whole
//! ([`replace`]). What a process that hears strangers does not need it gives up (`sandbox`), and a
//! `broker` beside it keeps the few rights that are left.
//!
//! Nothing here knows what a command does.

pub mod alike;
pub mod args;
#[cfg(all(target_os = "linux", feature = "manage"))]
pub mod broker;
#[cfg(feature = "manage")]
pub mod configuration;
pub mod discovery;
pub mod error;
pub mod lives;
#[cfg(all(target_os = "linux", feature = "manage"))]
pub mod notify;
pub mod output;
pub mod reachable;
pub mod remote;
pub mod replace;
#[cfg(all(target_os = "linux", feature = "manage"))]
pub mod sandbox;
pub mod shell;
pub mod signals;
pub mod table;
pub mod values;
