//! The limits of a simulated fleet.

use std::time::Duration;

/// Limit for the hosts of a simulated fleet: each has a stack and an event loop.
pub(crate) const HOSTS: u32 = 20_000;

/// Limit for the targets of a simulated fleet.
pub(crate) const TARGETS: u32 = 4_000;

pub(crate) const DISKS_PER_HOST: u32 = 16;

/// Default number of disks of each host.
pub(crate) const DISKS: u32 = 4;

/// Limit for the disks of all hosts: each takes some tens of KiB.
pub(crate) const DISKS_ALL: u32 = 100_000;

/// Commands of each I/O queue of a host.
pub(crate) const DEPTH: u16 = 8;

/// Hosts that start in parallel.
pub(crate) const STARTS: u32 = 64;

/// Hosts that stop in parallel.
pub(crate) const ENDS: usize = 64;
/// Virtual time for each group to stop.
pub(crate) const END: Duration = Duration::from_millis(100);

/// Targets that die at once, in successive scenes.
pub(crate) const RESTARTS: [u32; 3] = [1, 10, 100];

/// One in this many hosts is behind the switch that fails.
pub(crate) const SWITCHES: u32 = 10;

/// Default time that targets or a switch are away, in seconds: longer than a keep-alive timeout, so
/// that every host notices.
pub(crate) const AWAY_SECONDS: u32 = 15;

/// Limit for the time that targets or a switch are away, in seconds: shorter than the time after
/// which a host gives up a path.
pub(crate) const AWAY_SECONDS_MAX: u32 = 300;

/// Virtual time limit for all simulated hosts to resume I/O.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(600);

/// Time after which a scene is given up, while targets refuse hosts and no further host resumes
/// I/O.
pub(crate) const STANDSTILL: Duration = Duration::from_secs(60);
/// The time of [`STANDSTILL`] is at least this many of a host's longest pauses.
pub(crate) const STANDSTILL_PAUSES: u32 = 6;

/// Simulated time between two scenes.
pub(crate) const REST: Duration = Duration::from_secs(20);

/// Limit for connections that wait until a simulated target accepts them: farblock asks Linux for
/// the same.
pub(crate) const BACKLOG: usize = 1024;

/// A simulated target's processor time for a new connection, in microseconds: an assumption, not a
/// measurement.
pub(crate) const ACCEPT_US: u32 = 100;

/// A simulated target's processor time for each arriving piece of a stream, in microseconds:
/// another assumption.
pub(crate) const MESSAGE_US: u32 = 10;
