//! The limits of a simulated fleet.

use std::time::Duration;

/// Hosts of a simulated fleet: each has a stack and a loop.
pub(crate) const HOSTS: u32 = 20_000;

/// Targets of a simulated fleet.
pub(crate) const TARGETS: u32 = 4_000;

/// Disks of each of its hosts.
pub(crate) const DISKS_PER_HOST: u32 = 16;

/// Disks of each of its hosts, unless it is said.
pub(crate) const DISKS: u32 = 4;

/// Disks of all its hosts: each takes some tens of KiB.
pub(crate) const DISKS_ALL: u32 = 100_000;

/// Commands of each I/O queue of theirs.
pub(crate) const DEPTH: u16 = 8;

/// Its hosts that come up side by side.
pub(crate) const STARTS: u32 = 64;

/// Its hosts that end side by side, and how long each such group has, in virtual time.
pub(crate) const ENDS: usize = 64;
/// See [`ENDS`].
pub(crate) const END: Duration = Duration::from_millis(100);

/// Targets that die at once, one number after the other.
pub(crate) const RESTARTS: [u32; 3] = [1, 10, 100];

/// One part in so many of the hosts are behind a switch that fails.
pub(crate) const SWITCHES: u32 = 10;

/// How long targets or a switch are away, unless it is said, in seconds: longer than a keep alive
/// timeout, so that everybody notices.
pub(crate) const AWAY_SECONDS: u32 = 15;

/// How long they may be away, in seconds: less than after which a host gives a path up.
pub(crate) const AWAY_SECONDS_MAX: u32 = 300;

/// Time in which all simulated hosts have to do I/O again.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

/// Time without one more host that does I/O, in which targets refuse hosts, after which nothing
/// else is waited for; longer where hosts pause longer.
pub(crate) const STANDSTILL: Duration = Duration::from_secs(60);
/// It is at least so many of a host's longest pauses.
pub(crate) const STANDSTILL_PAUSES: u32 = 6;

/// Simulated time between two things that happen.
pub(crate) const REST: Duration = Duration::from_secs(20);

/// Connections that wait to be accepted by a simulated target: what farblock asks Linux for.
pub(crate) const BACKLOG: usize = 1024;

/// A simulated target's processor time for a connection that is made, in microseconds: an
/// assumption, not a measurement.
pub(crate) const ACCEPT_US: u32 = 100;

/// And for each piece of a stream that arrives, in microseconds: another assumption.
pub(crate) const MESSAGE_US: u32 = 10;
