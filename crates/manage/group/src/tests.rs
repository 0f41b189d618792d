//! The group in a simulated world: members, their clocks, a modelled etcd, disks and hosts, all
//! from one seed.
//!
//! The oracle detects wrong results at the disks and at the hosts; see [`disk`] and [`hosts`].
//! `GROUP_SEED=17 cargo test -p farblock-group` repeats a run, and `GROUP_SEEDS=10000` runs more
//! seeds.

mod disk;
mod etcd;
mod faults;
mod hosts;
mod process;
mod runs;
mod scenarios;
mod world;
