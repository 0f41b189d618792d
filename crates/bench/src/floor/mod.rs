//! The floor: the same bytes over bare sockets, with no protocol at all.
mod client;
mod frame;
mod pin;
mod server;
mod spin;
mod stream;
mod tuning;

pub use client::CLIENT_THREAD_PREFIX;
pub use server::{SERVER_THREAD_PREFIX, Server};

use std::net::SocketAddr;
use std::time::Duration;

use crate::cpu::Meters;
use crate::error::RunError;
use crate::pattern::Pattern;
use crate::progress::Cancel;
use crate::result::Figures;

/// A load for [`drive()`].
#[derive(Clone)]
pub struct Drive {
    /// The pattern; its jobs are connections, which the threads share.
    pub pattern: Pattern,
    /// Threads, at most one per connection.
    pub threads: u32,
    /// Processors to pin them to, in turn; none is anywhere.
    pub cpus: Vec<usize>,
    /// Unmeasured load at the start.
    pub ramp: Duration,
    /// Measured time.
    pub runtime: Duration,
    /// What is measured beside the I/Os.
    pub meters: Meters,
}

/// Puts a load on a [`Server`], once.
///
/// # Errors
///
/// If it cannot be reached, goes away, or is no such server.
pub fn drive(address: SocketAddr, load: &Drive, cancel: &Cancel) -> Result<Figures, RunError> {
    let spec = client::FloorSpec {
        address,
        pattern: &load.pattern,
        threads: load.threads,
        cpus: &load.cpus,
        ramp: load.ramp,
        runtime: load.runtime,
        seed: 0,
        meters: &load.meters,
    };
    let sample = client::run(&spec, cancel, &mut |_| {})?;
    Figures::average(&load.pattern, &[sample]).ok_or(RunError::NothingMeasured)
}
