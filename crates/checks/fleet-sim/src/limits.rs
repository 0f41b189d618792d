//! The limits of a simulated fleet.

use std::time::Duration;

/// The maximum number of hosts of a simulated fleet. Each host has a stack and an event loop.
pub(crate) const HOSTS: u32 = 20_000;

/// The maximum number of targets of a simulated fleet.
pub(crate) const TARGETS: u32 = 4_000;

pub(crate) const DISKS_PER_HOST: u32 = 16;

/// The default number of disks of each host.
pub(crate) const DISKS: u32 = 4;

/// The maximum number of disks of all hosts together. Each disk takes some tens of KiB of memory.
pub(crate) const DISKS_ALL: u32 = 100_000;

/// The number of commands of each I/O queue of a host.
pub(crate) const DEPTH: u16 = 8;

/// At most this many hosts start in parallel.
pub(crate) const STARTS: u32 = 64;

/// At most this many hosts stop in parallel.
pub(crate) const ENDS: usize = 64;
/// The virtual time in which a group of [`ENDS`] hosts stops.
pub(crate) const END: Duration = Duration::from_millis(100);

/// For each scene with restarts, the number of targets that die at once.
pub(crate) const RESTARTS: [u32; 3] = [1, 10, 100];

/// One in this many hosts is behind the network switch that fails in the last scenes.
pub(crate) const SWITCHES: u32 = 10;

/// The default time for which targets or a switch are down, in seconds. It is longer than a
/// keep-alive timeout, so that every host notices the outage.
pub(crate) const AWAY_SECONDS: u32 = 15;

/// The maximum time for which targets or a switch are down, in seconds. It is shorter than the time
/// after which a host gives up a path.
pub(crate) const AWAY_SECONDS_MAX: u32 = 300;

/// The virtual time limit for all simulated hosts to resume I/O.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(600);

/// The simulation gives up a scene if, for this time, targets refuse hosts and no host resumes I/O.
pub(crate) const STANDSTILL: Duration = Duration::from_secs(60);
/// Before the simulation gives up a scene, it waits at least this many times the longest pause
/// between two connection attempts of a host, even if that exceeds [`STANDSTILL`].
pub(crate) const STANDSTILL_PAUSES: u32 = 6;

/// The virtual time between two scenes.
pub(crate) const REST: Duration = Duration::from_secs(20);

/// The listen backlog of a simulated target, in connections. farblock requests the same backlog
/// from Linux.
pub(crate) const BACKLOG: usize = 1024;

/// The default processor time of a simulated target for a new connection, in microseconds. It is an
/// assumption, not a measurement.
pub(crate) const ACCEPT_US: u32 = 100;

/// The default processor time of a simulated target for each piece of data that a connection
/// delivers, in microseconds. It is an assumption, not a measurement.
pub(crate) const MESSAGE_US: u32 = 10;
