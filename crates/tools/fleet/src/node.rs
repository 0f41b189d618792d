//! Nodes: where agents run, and how they are started there.

use crate::error::FleetError;
use crate::network::{Namespace, Network};
use crate::peer::{Peer, Terms};
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program that is an agent over its standard streams.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// The program.
    pub program: PathBuf,
    /// What it is told.
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

    /// Where only storage is reached, which is neither cut nor slowed with the node.
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
        // What it leaves behind when it is killed goes with the folder.
        command.args(&launcher.args).env("TMPDIR", folder);
        Peer::start(name, &mut command, terms)
    }

    /// Its network, if that can be harmed.
    pub(crate) fn namespace(&self) -> Option<&Namespace> {
        self.namespace.as_ref()
    }
}
