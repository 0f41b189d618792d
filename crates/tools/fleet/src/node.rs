//! Nodes, in which the controller starts agents.

use crate::error::FleetError;
use crate::network::{Namespace, Network};
use crate::peer::{Peer, Terms};
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program that serves as an agent over its standard streams.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// The program.
    pub program: PathBuf,
    /// The program's arguments.
    pub args: Vec<OsString>,
}

/// A node: a network namespace, or this machine's loopback.
#[derive(Debug)]
pub(crate) struct Node {
    namespace: Option<Namespace>,
}

impl Node {
    pub(crate) fn new(number: u32, network: Option<&Network>) -> Result<Node, FleetError> {
        let namespace = network.map(|network| Namespace::new(network, number)).transpose()?;
        Ok(Node { namespace })
    }

    pub(crate) fn address(&self) -> IpAddr {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        self.namespace.as_ref().map_or(loopback, Namespace::address)
    }

    /// The address for storage, which faults neither cut nor slow.
    pub(crate) fn storage_address(&self) -> IpAddr {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        self.namespace.as_ref().map_or(loopback, Namespace::storage_address)
    }

    pub(crate) fn agent(
        &self,
        name: &str,
        launcher: &Launcher,
        folder: &Path,
        terms: &Terms,
    ) -> Result<Peer, FleetError> {
        let mut command = match &self.namespace {
            Some(namespace) => {
                let mut command = namespace.command();
                command.arg(&launcher.program);
                command
            }
            None => Command::new(&launcher.program),
        };
        // The folder also holds the files that a killed agent leaves behind.
        command.args(&launcher.args).env("TMPDIR", folder);
        Peer::start(name, &mut command, terms)
    }

    /// The node's namespace, if faults can be applied to it.
    pub(crate) fn namespace(&self) -> Option<&Namespace> {
        self.namespace.as_ref()
    }
}
