//! Chooses the cores of a target on a NUMA machine: the cores of the node to which all its disks
//! and network cards are attached.
//!
//! If a target runs on two nodes, every byte crosses between them. So without `--cores`, if all
//! known disks and cards are on one node, the target uses that node's processors, with one thread
//! on each. If they are on several nodes, or no node is known, the target uses all processors. An
//! operator with disks on each node starts one target per node.
//!
//! Sources: the node of a device is in sysfs (Documentation/ABI/stable/sysfs-devices-node,
//! testing/sysfs-bus-pci `numa_node`). The network card of an address is in the kernel's routing
//! tables (`/proc/net/route`, `/proc/net/ipv6_route`).

use super::disks;
use farblock_backends::{Spec, nodes};
use farblock_host::url::Url;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// The NUMA nodes and devices of the machine, as the kernel describes them in `/sys`.
pub(super) struct Machine(nodes::Machine);

/// A NUMA node, with the processors that this process may use there.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Near {
    pub(super) node: usize,
    pub(super) cores: Vec<usize>,
}

impl Machine {
    pub(super) fn here() -> Machine {
        Machine(nodes::Machine::here())
    }

    /// Returns the node of all disks and cards in use. Returns `None` if they are on several nodes,
    /// or if the machine has only one node.
    pub(super) fn near<'a>(
        &self,
        paths: impl Iterator<Item = &'a str>,
        listeners: &[SocketAddr],
    ) -> Option<Near> {
        if self.0.nodes().len() < 2 {
            return None;
        }
        let specs: Vec<Spec> = paths.filter_map(|path| disks::parse(path).ok()).collect();
        let mut nodes = BTreeSet::new();
        for leaf in specs.iter().flat_map(Spec::leaves) {
            match leaf {
                Spec::File(path) => nodes.extend(self.0.of_disk(path)),
                Spec::Remote(url) => nodes.extend(self.node_towards(url)),
                _ => {}
            }
        }
        nodes.extend(listeners.iter().filter_map(|address| self.node_of_address(address.ip())));
        let mut nodes = nodes.into_iter();
        let (Some(node), None) = (nodes.next(), nodes.next()) else { return None };
        let cores = self.0.processors(node);
        (!cores.is_empty()).then_some(Near { node, cores })
    }

    fn node_towards(&self, url: &str) -> Option<usize> {
        let url: Url = url.parse().ok()?;
        let mut addresses = url.address().to_socket_addrs().ok()?;
        self.node_of_address(addresses.next()?.ip())
    }

    /// Returns the node of the network card that has the address or routes to it.
    fn node_of_address(&self, address: IpAddr) -> Option<usize> {
        if address.is_unspecified() || address.is_loopback() {
            return None;
        }
        let card = match address {
            IpAddr::V4(address) => self.card4(u32::from(address)),
            IpAddr::V6(address) => self.card6(address),
        }?;
        self.0.of_device(&format!("sys/class/net/{card}"))
    }

    fn card4(&self, address: u32) -> Option<String> {
        let routes = self.0.text("proc/net/route")?;
        let fits = routes.lines().skip(1).filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // The file prints big-endian words as numbers in the machine's byte order.
            let number = |at: usize| u32::from_str_radix(fields.get(at)?, 16).ok().map(u32::to_be);
            let (network, mask) = (number(1)?, number(7)?);
            (address & mask == network).then(|| (mask, fields[0].to_owned()))
        });
        fits.max_by_key(|(mask, _)| *mask).map(|(_, card)| card)
    }

    fn card6(&self, address: Ipv6Addr) -> Option<String> {
        let routes = self.0.text("proc/net/ipv6_route")?;
        let fits = routes.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let network = u128::from_str_radix(fields.first()?, 16).ok()?;
            let length = u32::from_str_radix(fields.get(1)?, 16).ok().filter(|it| *it <= 128)?;
            let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
            let card = *fields.last().filter(|card| **card != "lo")?;
            (u128::from(address) & mask == network).then(|| (length, card.to_owned()))
        });
        fits.max_by_key(|(length, _)| *length).map(|(_, card)| card)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    /// A simulated machine with two nodes. Each node has a network card. [`Made::file`] adds a disk
    /// to one of the nodes.
    struct Made(tempfile::TempDir);

    impl Made {
        fn new(online: &str) -> Made {
            let made = Made(tempfile::tempdir().unwrap());
            made.write("sys/devices/system/node/online", online);
            made.write("sys/devices/system/node/node0/cpulist", "0-1,4-5\n");
            made.write("sys/devices/system/node/node1/cpulist", "2-3,6-7\n");
            for (card, node) in [("eth0", 0), ("eth1", 1)] {
                made.write(&format!("sys/class/net/{card}/device/numa_node"), &format!("{node}\n"));
            }
            made.write("sys/class/net/dummy0/address", "");
            made.write(
                "proc/net/route",
                "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
                 eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                 eth0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
                 eth1\t0001000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
                 dummy0\t0002000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n",
            );
            made.write(
                "proc/net/ipv6_route",
                "fd010000000000000000000000000000 40 00000000000000000000000000000000 00 \
                 00000000000000000000000000000000 00000100 00000001 00000000 00000001 eth1\n",
            );
            made
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        /// Creates a file on a disk of this node; "-1" means that the node is unknown.
        fn file(&self, node: &str) -> String {
            let path = self.0.path().join("disk.img");
            fs::write(&path, "").unwrap();
            let number = fs::metadata(&path).unwrap().dev();
            let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
            self.write("sys/devices/pci0/nvme/numa_node", node);
            self.write("sys/devices/pci0/nvme/nvme0/nvme0n1/size", "1");
            let link = self.0.path().join(format!("sys/dev/block/{major}:{minor}"));
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            let disk = self.0.path().join("sys/devices/pci0/nvme/nvme0/nvme0n1");
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(disk, link).unwrap();
            path.display().to_string()
        }

        fn near(&self, path: &str, listeners: &[&str]) -> Option<Near> {
            let root = fs::canonicalize(self.0.path()).unwrap();
            let machine = Machine(nodes::Machine::at(root, (0..7).collect()));
            let listeners: Vec<SocketAddr> =
                listeners.iter().map(|it| it.parse().unwrap()).collect();
            machine.near([path].into_iter(), &listeners)
        }
    }

    fn node(node: usize) -> Option<Near> {
        let cores = [vec![0, 1, 4, 5], vec![2, 3, 6]];
        Some(Near { node, cores: cores[node].clone() })
    }

    #[test]
    fn a_numa_node_is_chosen_only_if_it_has_all_disks_and_network_cards() {
        let made = Made::new("0-1\n");
        let at = |path: &str, listeners: &[&str]| made.near(path, listeners);
        assert_eq!(at("mem:1MiB", &["10.0.1.7:4420"]), node(1));
        assert_eq!(at("mem:1MiB", &["10.0.0.7:4420"]), node(0));
        assert_eq!(
            at("mem:1MiB", &["192.0.2.7:4420"]),
            node(0),
            "the default route leads to node 0"
        );
        assert_eq!(at("mem:1MiB", &["[fd01::7]:4420"]), node(1));
        assert_eq!(at("mem:1MiB", &["10.0.0.7:4420", "10.0.1.7:4420"]), None);
        for unknown in ["127.0.0.1:4420", "0.0.0.0:4420", "10.0.2.7:4420", "[fd02::7]:4420"] {
            assert_eq!(at("mem:1MiB", &[unknown]), None, "{unknown}");
        }
        let remote = "stripe:nvme+tcp://10.0.1.1/n?ns=1,nvme+tcp://10.0.1.2/n?ns=1";
        assert_eq!(at(remote, &["127.0.0.1:4420"]), node(1));
        assert_eq!(at(remote, &["10.0.0.7:4420"]), None);
        assert_eq!(at("concat:nvme+tcp://10.0.1.1/n,nvme+tcp://10.0.0.2/n", &[]), None);
        let file = made.file("1\n");
        assert_eq!(at(&file, &[]), node(1));
        assert_eq!(at(&format!("stripe:{file},mem:1GiB"), &["10.0.1.7:4420"]), node(1));
        assert_eq!(at(&file, &["10.0.0.7:4420"]), None);
        let file = made.file("-1\n");
        assert_eq!(at(&file, &["10.0.0.7:4420"]), node(0), "the disk's node is unknown");
    }

    #[test]
    fn on_a_machine_with_one_numa_node_no_node_is_chosen() {
        let made = Made::new("0\n");
        assert_eq!(made.near("mem:1MiB", &["10.0.1.7:4420"]), None);
        assert_eq!(made.near(&made.file("0\n"), &[]), None);
        let nothing = made.0.path().join("nothing");
        let empty = Machine(nodes::Machine::at(nothing, BTreeSet::new()));
        assert_eq!(empty.near(["mem:1MiB"].into_iter(), &[]), None);
    }
}
