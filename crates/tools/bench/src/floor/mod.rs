//! The floor: the same bytes over bare sockets, with no protocol at all.
//!
//! For each read a request of 72 bytes goes out, and 24 and the data come back; for each write 72
//! and the data go out, and 24 come back: as many bytes as NVMe/TCP moves. Depth and connections
//! are the pattern's. No disk is behind it, no command is parsed, nothing can be in the wrong
//! order. What it reaches, nothing that serves blocks over TCP sockets will surpass, and how near
//! farblock comes is the number that cannot be argued with.
//!
//! # How it is made fast
//!
//! Both ends look for work all the time. Each receives all that is there, and answers, or asks
//! again, with one gathered send. The asking end receives data straight to where they belong: every
//! I/O in flight has a place of its own, as every real host's has. The answering end has no disk:
//! it sends one piece of memory over and over, and receives to another.
//!
//! # What was tried
//!
//! On two cores of a virtual AMD EPYC, best of several half-second runs, thousands of I/Os per
//! second of: 4k reads at depth 32, 4k writes at 32, 4k reads at 128, 64k reads and writes at 32,
//! 1M reads and writes at 8.
//!
//! | what | 4k r | 4k w | 4k r 128 | 64k r | 64k w | 1M r | 1M w |
//! | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
//! | this | 916 | 794 | 1302 | 121 | 95 | 7.5 | 6.4 |
//! | receives of at most 64 KiB | 826 | 491 | 990 | 69 | 72 | 6.6 | 7.2 |
//! | receives of at most 1 MiB | 816 | 800 | 1647 | 128 | 132 | 6.6 | 6.8 |
//! | sends of at most 64 KiB | 801 | 840 | 321 | 58 | 66 | 5.3 | 6.9 |
//! | sends of at most 256 KiB | 942 | 865 | 1115 | 84 | 93 | 6.1 | 7.5 |
//! | a send buffer of 4 MiB, not the system's choice | 926 | 825 | 1594 | 123 | 99 | 7.3 | 6.6 |
//! | one destination for everything, not one per I/O | 712 | 463 | 769 | 113 | 130 | 7.8 | 6.1 |
//!
//! Repeated runs differ by a fifth, so the rows that are worse are the ones that say something. Not
//! taken: one destination for everything, which no disk could do; both ends of a connection on one
//! core, which over loopback is as fast again but is no network.
//!
//! Busy threads want a processor each. On a machine with a single one they yield to each other, and
//! the floor is then none.

mod client;
mod frame;
mod pin;
mod server;
mod spin;
mod stream;

pub(crate) use client::{FloorSpec, run};

pub use client::CLIENT_THREAD_PREFIX;
pub use server::{SERVER_THREAD_PREFIX, Server};

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::cpu::Meters;
use crate::error::{BenchError, RunError};
use crate::limits::FLOOR_MAX_BYTES;
use crate::pattern::Pattern;
use crate::plan::{Plan, Times};
use crate::progress::Cancel;
use crate::result::Figures;

/// The floor beside the namespaces of a [`Plan`]: its patterns, with the same depth and as many
/// connections, put on a [`Server`].
#[derive(Clone, Debug)]
pub struct Floor {
    /// Where the server listens.
    pub address: SocketAddr,
    /// Threads that share a pattern's connections, at most one for each. They never sleep, so more
    /// than there are processors for them make the floor worse, and not the network.
    pub threads: u32,
    /// What is measured beside the I/Os.
    pub meters: Meters,
    /// Measured time of each run, where the plan's is longer: bare sockets are sooner known than a
    /// disk. Then there is no warm-up, and a ramp of half of this.
    pub briefly: Option<Duration>,
}

impl Floor {
    pub(crate) fn describe(&self) -> String {
        format!("bare sockets to {}, no protocol and no disk", self.address)
    }

    /// The phases of one of its runs, where a disk's has these.
    pub(crate) fn times(&self, disk: Times) -> Times {
        let Some(runtime) = self.briefly.filter(|brief| *brief < disk.runtime) else { return disk };
        Times { warm_up: Duration::ZERO, ramp: disk.ramp.min(runtime / 2), runtime }
    }

    /// Checks that the plan can be put on it, and that it is there.
    pub(crate) fn check(&self, plan: &Plan) -> Result<(), BenchError> {
        if plan.runtime.is_zero() {
            return Err(BenchError::BadPlan("the floor needs a time to measure in"));
        }
        for pattern in &plan.patterns {
            let wrong = |why: &str| {
                let (text, why) = (pattern.name.clone(), why.to_owned());
                Err(BenchError::BadPattern { text, why })
            };
            if pattern.rate_iops.is_some() {
                return wrong("the floor has no fixed rate, only as fast as it goes");
            }
            if pattern.block_size_bytes > FLOOR_MAX_BYTES {
                return wrong("the floor's I/Os are at most 16 MiB");
            }
        }
        probe(self.address).map_err(|error| BenchError::Floor { address: self.address, error })
    }
}

/// Asks whether a [`Server`] answers there, which takes seconds at most.
///
/// # Errors
///
/// If nobody listens, or somebody else.
pub fn probe(address: SocketAddr) -> io::Result<()> {
    client::probe(address)
}

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
        connections: 1,
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
