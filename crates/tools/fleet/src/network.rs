//! Nodes on one machine: network namespaces with one address each, on one bridge.
//!
//! If the system allows user namespaces, this needs no root. The controller runs itself again in a
//! user and a network namespace ([`inside`]), in which it has the necessary rights. The namespaces
//! disappear together with the controller. A node is a process that only holds a namespace, in
//! which the controller starts agents. The controller uses util-linux (`unshare`, `nsenter`) and
//! iproute2 (`ip`, `tc`).
//!
//! ```text
//!   farblock0 (bridge) 10.77.255.254/16
//!     |  n1 == eth0 10.77.0.1     |  n2 == eth0 10.77.0.2   ...
//!     |  s1 == eth1 10.78.0.1     |  s2 == eth1 10.78.0.2   ...
//!   farblock1 (bridge)            if targets have their drives on another node
//! ```

use crate::error::FleetError;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const BRIDGE: &str = "farblock0";
/// The second bridge, for the drives of the targets.
const STORAGE_BRIDGE: &str = "farblock1";
/// The time limit for a process to enter its namespace.
const UNSHARE_TIME: Duration = Duration::from_secs(20);

/// The command that runs a program with rights over its own network. `None` if this machine does
/// not support that.
#[must_use]
pub fn inside() -> Option<Command> {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net", "--"]);
        command
    };
    let mut trial = unshare();
    trial.args(["sh", "-c", "ip link add b0 type bridge && command -v tc nsenter"]);
    trial.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    trial.status().is_ok_and(|status| status.success()).then(unshare)
}

/// The bridge between the nodes.
#[derive(Debug)]
pub(crate) struct Network {
    has_storage: bool,
}

impl Network {
    /// Creates the bridge, in the network namespace of this process. With `has_storage`, also
    /// creates a second bridge for storage only.
    pub(crate) fn new(has_storage: bool) -> Result<Network, FleetError> {
        ip(&["link", "set", "lo", "up"])?;
        ip(&["link", "add", BRIDGE, "type", "bridge"])?;
        ip(&["address", "add", "10.77.255.254/16", "dev", BRIDGE])?;
        ip(&["link", "set", BRIDGE, "up"])?;
        if has_storage {
            ip(&["link", "add", STORAGE_BRIDGE, "type", "bridge"])?;
            ip(&["link", "set", STORAGE_BRIDGE, "up"])?;
        }
        Ok(Network { has_storage })
    }
}

/// The network namespace of a node.
#[derive(Debug)]
pub(crate) struct Namespace {
    holder: Child,
    link: String,
    address: Ipv4Addr,
}

impl Namespace {
    /// Creates the node with this number, from 1.
    pub(crate) fn new(network: &Network, number: u32) -> Result<Namespace, FleetError> {
        let mut command = Command::new("unshare");
        // The process exits when its input ends.
        command.args(["--net", "--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let holder = command.spawn().map_err(|error| failed("unshare", &error.to_string()))?;
        let [.., high, low] = number.to_be_bytes();
        let (link, address) = (format!("n{number}"), Ipv4Addr::new(10, 77, high, low));
        let namespace = Namespace { holder, link, address };
        namespace.wait_until_apart()?;
        namespace.ip(&["link", "set", "lo", "up"])?;
        namespace.plug(&namespace.link, BRIDGE, "eth0", address)?;
        if network.has_storage {
            namespace.plug(&format!("s{number}"), STORAGE_BRIDGE, "eth1", namespace.storage())?;
        }
        Ok(namespace)
    }

    /// Connects a bridge with a device of the node, by a virtual cable.
    fn plug(
        &self,
        link: &str,
        bridge: &str,
        device: &str,
        address: Ipv4Addr,
    ) -> Result<(), FleetError> {
        let pid = self.holder.id().to_string();
        ip(&["link", "add", link, "type", "veth", "peer", "name", device, "netns", &pid])?;
        ip(&["link", "set", link, "master", bridge, "up"])?;
        self.ip(&["address", "add", &format!("{address}/16"), "dev", device])?;
        self.ip(&["link", "set", device, "up"])
    }

    fn storage(&self) -> Ipv4Addr {
        let [first, _, high, low] = self.address.octets();
        Ipv4Addr::new(first, 78, high, low)
    }

    pub(crate) fn storage_address(&self) -> IpAddr {
        IpAddr::V4(self.storage())
    }

    pub(crate) fn address(&self) -> IpAddr {
        IpAddr::V4(self.address)
    }

    /// The command prefix with which a program runs in the node.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.holder.id())).arg("--");
        command
    }

    /// Cuts the cable of the node, or connects it again.
    pub(crate) fn cut(&self, is_cut: bool) -> Result<(), FleetError> {
        ip(&["link", "set", &self.link, if is_cut { "down" } else { "up" }])
    }

    /// Limits the network of the node to a rate (`8mbit`), or removes the limit.
    pub(crate) fn slow(&self, rate: Option<&str>) -> Result<(), FleetError> {
        let link = self.link.as_str();
        let mut there = self.command();
        let limit = |rate| ["root", "tbf", "rate", rate, "burst", "64k", "latency", "400ms"];
        match rate {
            Some(rate) => {
                there.args(["tc", "qdisc", "add", "dev", "eth0"]).args(limit(rate));
                run(there)?;
                let mut here = Command::new("tc");
                here.args(["qdisc", "add", "dev", link]).args(limit(rate));
                run(here)
            }
            None => {
                there.args(["tc", "qdisc", "del", "dev", "eth0", "root"]);
                run(there)?;
                let mut here = Command::new("tc");
                here.args(["qdisc", "del", "dev", link, "root"]);
                run(here)
            }
        }
    }

    fn ip(&self, args: &[&str]) -> Result<(), FleetError> {
        let mut command = self.command();
        command.arg("ip").args(args);
        run(command)
    }

    fn wait_until_apart(&self) -> Result<(), FleetError> {
        let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
        let (ours, until) = (of("self"), Instant::now() + UNSHARE_TIME);
        let holder = self.holder.id().to_string();
        loop {
            match of(&holder) {
                Some(theirs) if Some(&theirs) != ours.as_ref() => return Ok(()),
                Some(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
                _ => return Err(failed("unshare --net", "it created no network namespace")),
            }
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

fn ip(args: &[&str]) -> Result<(), FleetError> {
    let mut command = Command::new("ip");
    command.args(args);
    run(command)
}

fn run(mut command: Command) -> Result<(), FleetError> {
    let words = |command: &Command| {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    };
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| failed(&words(&command), &error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(&words(&command), String::from_utf8_lossy(&output.stderr).trim()))
}

fn failed(what: &str, why: &str) -> FleetError {
    FleetError::Network(format!("`{what}` failed: {why}"))
}
