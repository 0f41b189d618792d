//! The floor: the same bytes over bare sockets, without a protocol.
//!
//! For a read, the client sends a request of 72 bytes, and receives 24 bytes and the data. For a
//! write, it sends 72 bytes and the data, and receives 24 bytes. These are the same numbers as in
//! NVMe/TCP. Depth and connections follow the pattern. There is no disk, no command parsing, and no
//! ordering. No block server over TCP sockets can be faster than the floor, so the ratio of
//! farblock to the floor is an objective measure.
//!
//! # Why it is fast
//!
//! Both ends poll all the time. Each end receives all available data, and sends its answers or next
//! requests with one gathered send. The client receives data directly into the buffer of each I/O
//! in flight, as a real host does. The server has no disk: it always sends the same memory, and
//! receives into another buffer.
//!
//! # Alternatives
//!
//! Thousands of I/Os per second on two cores of a virtual AMD EPYC, the best of several half-second
//! runs. Columns: 4k reads at depth 32, 4k writes at 32, 4k reads at 128, 64k reads and writes at
//! 32, 1M reads and writes at 8.
//!
//! | variant | 4k r | 4k w | 4k r 128 | 64k r | 64k w | 1M r | 1M w |
//! | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
//! | the chosen variant | 916 | 794 | 1302 | 121 | 95 | 7.5 | 6.4 |
//! | receives of at most 64 KiB | 826 | 491 | 990 | 69 | 72 | 6.6 | 7.2 |
//! | receives of at most 1 MiB | 816 | 800 | 1647 | 128 | 132 | 6.6 | 6.8 |
//! | sends of at most 64 KiB | 801 | 840 | 321 | 58 | 66 | 5.3 | 6.9 |
//! | sends of at most 256 KiB | 942 | 865 | 1115 | 84 | 93 | 6.1 | 7.5 |
//! | a send buffer of 4 MiB, not the system's choice | 926 | 825 | 1594 | 123 | 99 | 7.3 | 6.6 |
//! | one destination for everything, not one per I/O | 712 | 463 | 769 | 113 | 130 | 7.8 | 6.1 |
//!
//! Repeated runs differ by a fifth, so only larger differences are significant. Two variants were
//! rejected. One buffer for all I/Os is impossible for a disk. Both ends of a connection on one
//! core are twice as fast over loopback, but impossible over a network.
//!
//! Each spinning thread needs its own processor. On a machine with a single processor the threads
//! yield to each other, and the result is not a floor.

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
use crate::progress::Cancel;
use crate::result::Figures;
use crate::times::Times;

/// The floor to measure beside the namespaces of a plan. It runs the patterns of the plan, with the
/// same depth and number of connections, against a [`Server`].
#[derive(Clone, Debug)]
pub struct Floor {
    /// The address of the server.
    pub address: SocketAddr,
    /// The number of threads that share the connections of a pattern, at most one thread per
    /// connection. The threads never sleep, so more threads than processors make the floor slower.
    pub threads: u32,
    /// The sources of processor time and memory use.
    pub meters: Meters,
    /// The measured time of each run, if it is shorter than in the plan: bare sockets vary less
    /// than a disk. Such a run has no warm-up, and its ramp is half of this time.
    pub briefly: Option<Duration>,
}

impl Floor {
    pub(crate) fn describe(&self) -> String {
        format!("bare sockets to {}, no protocol and no disk", self.address)
    }

    /// The phases of a run on the floor, derived from the phases on a disk.
    pub(crate) fn times(&self, disk: Times) -> Times {
        let Some(runtime) = self.briefly.filter(|brief| *brief < disk.runtime) else { return disk };
        Times { warm_up: Duration::ZERO, ramp: disk.ramp.min(runtime / 2), runtime }
    }

    /// Checks that the patterns can run on the floor, and that the server answers.
    pub(crate) fn check(&self, runtime: Duration, patterns: &[Pattern]) -> Result<(), BenchError> {
        if runtime.is_zero() {
            return Err(BenchError::BadPlan("the floor needs a measuring time"));
        }
        for pattern in patterns {
            let wrong = |why: &str| {
                let (text, why) = (pattern.name.clone(), why.to_owned());
                Err(BenchError::BadPattern { text, why })
            };
            if pattern.rate_iops.is_some() {
                return wrong("the floor does not support a fixed rate");
            }
            if pattern.block_size_bytes > FLOOR_MAX_BYTES {
                return wrong("the floor's I/Os are at most 16 MiB");
            }
        }
        probe(self.address).map_err(|error| BenchError::Floor { address: self.address, error })
    }
}

/// Checks within seconds that a [`Server`] answers at the address.
///
/// # Errors
///
/// No program listens at the address, or the program is not a [`Server`].
pub fn probe(address: SocketAddr) -> io::Result<()> {
    client::probe(address)
}

/// A load for [`drive()`].
#[derive(Clone)]
pub struct Drive {
    /// The pattern. Its jobs are connections, which the threads share.
    pub pattern: Pattern,
    /// The number of threads, at most one per connection.
    pub threads: u32,
    /// The processors to which the threads are pinned, in turn. If empty, the threads are not
    /// pinned.
    pub cpus: Vec<usize>,
    /// The time of unmeasured load at the start.
    pub ramp: Duration,
    /// The measured time.
    pub runtime: Duration,
    /// The sources of processor time and memory use.
    pub meters: Meters,
}

/// Runs a load against a [`Server`] once.
///
/// # Errors
///
/// The client cannot reach the server, the server disconnects, or it is not a [`Server`].
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
