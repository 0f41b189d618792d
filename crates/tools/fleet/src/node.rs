//! Nodes in which the controller starts agents.

use crate::error::FleetError;
use crate::network::{Namespace, Network};
use crate::peer::{Peer, Terms};
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program to start as an agent. It communicates over its standard streams.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// The path of the program.
    pub program: PathBuf,
    /// The arguments of the program.
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

    /// The address for storage. Faults do not affect the network of this address.
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
        // The folder also contains the files that a killed agent leaves behind.
        command.args(&launcher.args).env("TMPDIR", folder);
        Peer::start(name, &mut command, terms)
    }

    /// The network namespace of the node, if faults are possible there.
    pub(crate) fn namespace(&self) -> Option<&Namespace> {
        self.namespace.as_ref()
    }
}
