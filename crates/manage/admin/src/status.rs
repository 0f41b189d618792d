//! What a target does at the moment, for people and programs.

use farblock_target::{ControllerReport, NamespaceReport, Report, SubsystemReport};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A running target at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Status {
    /// Where it listens.
    pub listening: Vec<String>,
    /// Its process.
    pub pid: u32,
    /// How long it has been running.
    pub uptime_seconds: u64,
    /// Connections, those included of which nothing is known yet.
    pub connections: usize,
    /// What it shares.
    pub subsystems: Vec<SubsystemStatus>,
    /// The controllers that hosts have on it.
    pub controllers: Vec<ControllerStatus>,
}

/// A subsystem, and what was read and written there since it is shared.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SubsystemStatus {
    /// Its name.
    pub nqn: String,
    /// Whether hosts may connect that are not listed.
    pub allow_any_host: bool,
    /// The hosts that may.
    pub hosts: Vec<String>,
    /// Read commands that succeeded.
    pub reads: u64,
    /// Write commands that succeeded.
    pub writes: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Reads and writes that failed in what stores them.
    pub media_errors: u64,
    /// Its namespaces.
    pub namespaces: Vec<NamespaceStatus>,
}

/// A namespace as hosts see it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct NamespaceStatus {
    /// Its identifier.
    pub nsid: u32,
    /// Its size.
    pub bytes: u64,
    /// Bytes in a block.
    pub block_size: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// What tells it from other disks.
    pub uuid: String,
}

/// A host's controller.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ControllerStatus {
    /// Its identifier.
    pub id: u16,
    /// The subsystem; none on a discovery controller.
    pub subsystem: Option<String>,
    /// The host's name.
    pub host_nqn: String,
    /// The host's identifier.
    pub host_id: String,
    /// Where the host is.
    pub address: Option<String>,
    /// The address that it connected to.
    pub local_address: String,
    /// Whether the host has enabled it.
    pub ready: bool,
    /// Connected I/O queues.
    pub io_queues: usize,
    /// Commands that were refused.
    pub errors: u64,
}

impl Status {
    pub(crate) fn of(report: &Report) -> Self {
        Self {
            listening: report.addresses.iter().map(ToString::to_string).collect(),
            pid: std::process::id(),
            uptime_seconds: report.uptime.as_secs(),
            connections: report.connections,
            subsystems: report.subsystems.iter().map(subsystem).collect(),
            controllers: report.controllers.iter().map(controller).collect(),
        }
    }
}

fn subsystem(report: &SubsystemReport) -> SubsystemStatus {
    let count = |counter: u128| u64::try_from(counter).unwrap_or(u64::MAX);
    let counters = &report.counters;
    SubsystemStatus {
        nqn: report.nqn.clone(),
        allow_any_host: report.allow_any_host,
        hosts: report.hosts.clone(),
        reads: count(counters.read_commands),
        writes: count(counters.write_commands),
        read_bytes: count(counters.read_bytes),
        written_bytes: count(counters.written_bytes),
        media_errors: count(counters.media_errors),
        namespaces: report.namespaces.iter().map(namespace).collect(),
    }
}

fn namespace(report: &NamespaceReport) -> NamespaceStatus {
    NamespaceStatus {
        nsid: report.nsid,
        bytes: report.blocks * u64::from(report.block_size),
        block_size: report.block_size,
        read_only: report.read_only,
        uuid: Uuid::from_bytes(report.uuid).to_string(),
    }
}

fn controller(report: &ControllerReport) -> ControllerStatus {
    ControllerStatus {
        id: report.id,
        subsystem: report.subsystem.clone(),
        host_nqn: report.host_nqn.clone(),
        host_id: Uuid::from_bytes(report.host_id).to_string(),
        address: report.peer.map(|peer| peer.to_canonical().to_string()),
        local_address: report.local.clone(),
        ready: report.is_ready,
        io_queues: report.io_queues,
        errors: report.errors,
    }
}
