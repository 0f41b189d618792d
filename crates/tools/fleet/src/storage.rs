//! The storage that an agent shares: drives, stripe sets, and the target.

use crate::limits::DRIVES;
use crate::memory::{self, Held, Memory};
use crate::message::{Say, Share, Shared};
use crate::sets::{self, Group};
use farblock_backends::nodes::Machine;
use farblock_backends::stripe::Stripe;
use farblock_backends::{DEFAULT_CHUNK_BYTES, Spec};
use farblock_block::Namespace;
use farblock_host::disk::DiskOptions;
use farblock_host::url::UrlError;
use farblock_host::{Disk, Options, Url};
use farblock_proto::ids::NamespaceId;
use farblock_target::{Export, Subsystem, Target, TargetConfig};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// The iSCSI name of the target that an agent starts, and of tgt, the target to compare with.
pub(crate) const ISCSI_NAME: &str = "iqn.2026-11.org.farblock:fleet";

/// The drives that an agent may share, besides memory drives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// All files that the user of the agent may open. A controller that starts its own agents uses
    /// this.
    All,
    /// Only files and disks that are requested with exactly these names.
    Only(Vec<PathBuf>),
}

impl Allowed {
    fn check(&self, spec: &Spec) -> Result<(), String> {
        let Allowed::Only(paths) = self else { return Ok(()) };
        match spec {
            Spec::Mem { .. } | Spec::Null { .. } => Ok(()),
            Spec::File(path) if paths.contains(path) => Ok(()),
            Spec::Stripe { .. }
            | Spec::Concat { .. }
            | Spec::Front { .. }
            | Spec::Range { .. }
            | Spec::Delay { .. }
            | Spec::Limit { .. }
            | Spec::Fault { .. } => spec.parts().iter().try_for_each(|it| self.check(it)),
            _ => Err(format!(
                "this agent may not share {spec}: start the agent with --drive and this name"
            )),
        }
    }
}

enum Served {
    /// One target, or one for each NUMA node.
    Nvme(Vec<Target>),
    Iscsi(farblock_iscsi::Server),
}

impl Served {
    fn stop(self) -> Result<(), String> {
        match self {
            Served::Nvme(targets) => {
                let stopped = targets.into_iter().map(Target::stop).collect::<Vec<_>>();
                let stopped: Result<(), _> = stopped.into_iter().collect();
                stopped.map_err(|error| error.to_string())
            }
            Served::Iscsi(server) => server.stop(true).map_err(|error| error.to_string()),
        }
    }
}

/// The addresses and namespaces of the shared drives.
#[derive(Debug)]
pub(crate) struct Sharing {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) namespaces: Vec<Shared>,
    pub(crate) not_by_node: Option<String>,
}

impl Sharing {
    pub(crate) fn said(self) -> Say {
        let Sharing { addresses, namespaces, not_by_node } = self;
        Say::Sharing { addresses, namespaces, not_by_node }
    }
}

/// The drives that an agent has opened and shares.
pub(crate) struct Storage {
    allowed: Allowed,
    memory: Memory,
    held: Option<Held>,
    served: Option<Served>,
    drives: Vec<Arc<dyn Namespace>>,
}

impl Storage {
    pub(crate) fn new(allowed: Allowed, memory: Memory) -> Storage {
        Storage { allowed, memory, held: None, served: None, drives: Vec::new() }
    }

    pub(crate) fn share(&mut self, share: &Share) -> Result<Sharing, String> {
        self.unshare()?;
        if share.drives.is_empty() || share.drives.len() > DRIVES {
            return Err(format!("a target must have 1 to {DRIVES} drives"));
        }
        let open = |name: &String| -> Result<Arc<dyn Namespace>, String> {
            let spec = Spec::parse(name).map_err(|error| error.to_string())?;
            self.allowed.check(&spec)?;
            if farblock_host::url::is_url(name) {
                return remote(name, &share.nqn);
            }
            spec.open(share.block_size, false).map_err(|error| error.to_string())
        };
        let held = self.memory.take(memory::of_share(share), "these drives")?;
        let drives = share.drives.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let (groups, not_by_node) = sets::groups(share, &Machine::here())?;
        let (served, addresses, namespaces) = serve(share, &drives, &groups)?;
        (self.served, self.drives, self.held) = (Some(served), drives, Some(held));
        Ok(Sharing { addresses, namespaces, not_by_node })
    }

    /// Stops sharing, and closes the drives.
    pub(crate) fn unshare(&mut self) -> Result<(), String> {
        self.drives.clear();
        let stopped = self.served.take().map_or(Ok(()), Served::stop);
        self.held = None;
        stopped.map_err(|error| format!("the target failed: {error}"))
    }

    pub(crate) fn drive(&self, index: usize) -> Result<Arc<dyn Namespace>, String> {
        self.drives.get(index).cloned().ok_or_else(|| format!("the target has no drive {index}"))
    }
}

/// Connects to a drive of another target. All agents that share this drive use one host NQN. So for
/// that target they are one host: it stops the commands of a lost agent before it executes commands
/// of another agent on the same blocks.
fn remote(url: &str, nqn: &str) -> Result<Arc<dyn Namespace>, String> {
    let cannot = |error: &dyn std::fmt::Display| format!("{url}: {error}");
    let parsed: Url = url.parse().map_err(|error: UrlError| cannot(&error))?;
    let hostnqn = Some(format!("{nqn}-gateway"));
    let options = DiskOptions {
        connection: Options { hostnqn, ..Options::default() },
        ..DiskOptions::default()
    };
    let disk = Disk::connect(&[parsed], &options).map_err(|error| cannot(&error))?;
    Ok(Arc::new(disk))
}

type Drives = [Arc<dyn Namespace>];

fn serve(
    share: &Share,
    drives: &Drives,
    groups: &[Group],
) -> Result<(Served, Vec<SocketAddr>, Vec<Shared>), String> {
    if share.iscsi {
        let (server, address) = by_iscsi(share, drives)?;
        let url = format!("iscsi://{address}/{}/0", ISCSI_NAME);
        let shared = Shared { url, drives: vec![0], node: None, processors: Vec::new() };
        return Ok((Served::Iscsi(server), vec![address], vec![shared]));
    }
    let (mut targets, mut addresses, mut namespaces) = (Vec::new(), Vec::new(), Vec::new());
    for (index, group) in groups.iter().enumerate() {
        let config = config(share, drives, group, index)?;
        let target = Target::start(&config).map_err(|error| error.to_string())?;
        let (address, nqn) = (target.addresses()[0], &config.subsystems[0].config.nqn);
        let shared = |(nsid, drives): (usize, &Vec<usize>)| Shared {
            url: format!("nvme+tcp://{address}/{nqn}?ns={nsid}"),
            drives: drives.clone(),
            node: group.node,
            processors: group.processors.clone(),
        };
        namespaces.extend((1..).zip(&group.namespaces).map(shared));
        targets.push(target);
        addresses.push(address);
    }
    Ok((Served::Nvme(targets), addresses, namespaces))
}

fn by_iscsi(
    share: &Share,
    drives: &Drives,
) -> Result<(farblock_iscsi::Server, SocketAddr), String> {
    let [drive] = drives else {
        return Err("an iSCSI target must have exactly one drive".to_owned());
    };
    let config = farblock_iscsi::Config::new(share.address, ISCSI_NAME);
    let server = farblock_iscsi::Server::start(&config, Arc::clone(drive));
    let server = server.map_err(|error| error.to_string())?;
    let address = server.address();
    Ok((server, address))
}

/// The configuration of the target that serves the group with this index.
fn config(
    share: &Share,
    drives: &Drives,
    group: &Group,
    index: usize,
) -> Result<TargetConfig, String> {
    let nqn = match (index, group.node) {
        (0, _) | (_, None) => share.nqn.clone(),
        (_, Some(node)) => format!("{}-node-{node}", share.nqn),
    };
    let mut subsystem = Subsystem::new(&nqn);
    subsystem.config.allow_any_host = true;
    for (nsid, set) in (1..).zip(&group.namespaces) {
        // Agents that share one drive report the same identity, so that a host uses them as paths
        // to one disk.
        let identity = format!("fleet {index} {} {}", nsid - 1, share.drives[set[0]]);
        let namespace = namespace(set.iter().map(|&drive| Arc::clone(&drives[drive])).collect())?;
        subsystem.exports.insert(NamespaceId(nsid), Export { namespace, identity });
    }
    let mut config = TargetConfig {
        subsystems: vec![subsystem],
        listeners: vec![address(share, index)?],
        cores: group.processors.clone(),
        ..TargetConfig::default()
    };
    if let Some([first, last]) = share.controller_ids {
        config.controller_ids = first..=last;
    }
    Ok(config)
}

/// The address of the target with this index. Index 0 uses the requested address. Later targets use
/// the address of their previous start, or else the port of index 0 plus their index.
fn address(share: &Share, index: usize) -> Result<SocketAddr, String> {
    let Some(later) = index.checked_sub(1) else { return Ok(share.address) };
    if let Some(before) = share.more.get(later) {
        return Ok(*before);
    }
    let mut address = share.address;
    if address.port() != 0 {
        let port = u16::try_from(index).ok().and_then(|more| address.port().checked_add(more));
        address.set_port(port.ok_or_else(|| format!("{address} has no port"))?);
    }
    Ok(address)
}

fn namespace(mut drives: Vec<Arc<dyn Namespace>>) -> Result<Arc<dyn Namespace>, String> {
    if drives.len() == 1 {
        return Ok(drives.remove(0));
    }
    let set = Stripe::new(drives, DEFAULT_CHUNK_BYTES);
    Ok(Arc::new(set.map_err(|error| error.to_string())?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_host::Controller;

    /// The machine may have only one processor, so both simulated nodes contain the same processor.
    #[test]
    fn each_numa_node_gets_its_own_target_at_a_stable_address() {
        let sizes = [1, 2, 4];
        let mut share = Share {
            nqn: "nqn.2026-11.org.farblock:fleet-1".to_owned(),
            address: ([127, 0, 0, 1], 0).into(),
            more: Vec::new(),
            drives: sizes.iter().map(|mib| format!("mem:{mib}MiB")).collect(),
            sets: 2,
            by_node: true,
            block_size: 512,
            controller_ids: None,
            iscsi: false,
        };
        let drives = share.drives.iter().map(|name| Spec::parse(name).unwrap().open(512, false));
        let drives: Vec<_> = drives.map(Result::unwrap).collect();
        let processors = Machine::here().processors(0).into_iter().take(1).collect::<Vec<_>>();
        let group = |node, set: &[usize]| Group {
            node: Some(node),
            processors: processors.clone(),
            namespaces: vec![set.to_vec()],
        };
        let groups = [group(0, &[0, 2]), group(1, &[1])];
        let (served, addresses, shared) = serve(&share, &drives, &groups).unwrap();
        assert_eq!(shared.iter().map(|it| it.node).collect::<Vec<_>>(), [Some(0), Some(1)]);
        let bytes = shared.iter().map(|shared| {
            let url: Url = shared.url.parse().unwrap();
            let controller = Controller::connect_url(&url, &Options::default()).unwrap();
            let namespace = controller.namespace(url.namespace.unwrap()).unwrap();
            namespace.geometry().capacity_bytes() >> 20
        });
        assert_eq!(bytes.collect::<Vec<_>>(), [2, 2], "MiB of the namespaces of nodes 0 and 1");
        served.stop().unwrap();

        (share.address, share.more) = (addresses[0], addresses[1..].to_vec());
        let (served, again, same) = serve(&share, &drives, &groups).unwrap();
        assert_eq!((again, same), (addresses, shared));
        served.stop().unwrap();
    }

    #[test]
    fn targets_of_later_nodes_use_the_next_ports() {
        let mut share = Share {
            nqn: "nqn.2026-11.org.farblock:fleet-1".to_owned(),
            address: "192.0.2.7:4420".parse().unwrap(),
            more: Vec::new(),
            drives: Vec::new(),
            sets: 2,
            by_node: true,
            block_size: 512,
            controller_ids: None,
            iscsi: false,
        };
        let at = |share: &Share, index| address(share, index).unwrap().port();
        assert_eq!([0, 1, 2].map(|index| at(&share, index)), [4420, 4421, 4422]);
        share.more = vec!["192.0.2.7:9".parse().unwrap()];
        assert_eq!([0, 1, 2].map(|index| at(&share, index)), [4420, 9, 4422]);
        (share.address, share.more) = ("[::]:65535".parse().unwrap(), Vec::new());
        address(&share, 1).unwrap_err();
    }

    #[test]
    fn an_agent_refuses_files_that_the_operator_did_not_allow() {
        let allowed = Allowed::Only(vec!["/dev/spare".into(), "spare.img".into()]);
        let may = |name: &str| allowed.check(&Spec::parse(name).unwrap());
        for name in ["mem:1MiB", "null:1MiB", "limit:9/s,delay:1ms,mem:1MiB", "/dev/spare"] {
            may(name).unwrap();
        }
        may("stripe:64KiB,file:/dev/spare,spare.img,mem:1MiB").unwrap();
        for name in [
            "/dev/sda",
            "file:/etc/passwd",
            "/dev/../dev/spare",
            "spare.img/../other.img",
            "fault:3,limit:9/s,/dev/sda",
            "stripe:64KiB,/dev/spare,/dev/sda",
            "mirror:/dev/spare,spare.img",
            "rbd:pool/image",
        ] {
            let why = may(name).unwrap_err();
            assert!(why.contains("--drive"), "{why}");
            Allowed::All.check(&Spec::parse(name).unwrap()).unwrap();
        }
    }
}
