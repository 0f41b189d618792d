//! The settings of a member.

use crate::etcd::EtcdConfig;
use crate::watchdog::Watchdog;
use farblock_group::{FenceKind, Timing};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The settings of a member.
#[derive(Debug)]
pub struct ServiceConfig {
    /// The connection to etcd.
    pub etcd: EtcdConfig,
    /// The name of the group; see [`farblock_group::is_name`].
    pub group: String,
    /// The name of this member: the same after each restart.
    pub name: String,
    /// The addresses at which hosts reach this member.
    pub addresses: Vec<String>,
    /// The weight for placement; usually 100. 0: the member leads no ANA group.
    pub weight: u32,
    /// The version of the program.
    pub program: String,
    /// The folder of the member's state. A lock in it lets a restarted member continue at once.
    /// `None`: after each restart, the member waits as long as after a crash.
    pub state_folder: Option<PathBuf>,
    /// The ANA groups of this member's disks, with the kinds of fences of these disks.
    pub ana_groups: BTreeMap<u32, Vec<FenceKind>>,
    /// The namespaces of each ANA group with their identities, in order: the same at every member.
    pub namespaces: BTreeMap<u32, Vec<String>>,
    /// The process from [`watchdog::spawn`](crate::watchdog::spawn). `None`: the member may do no
    /// I/O on an ANA group with a disk that cannot refuse all I/O of earlier leaders.
    pub watchdog: Option<Watchdog>,
    /// The time limits and intervals of this member.
    pub timing: Timing,
}
