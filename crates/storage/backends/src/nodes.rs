//! NUMA nodes: the processors of each node, and the node of a disk.
//!
//! The kernel reports the nodes (Documentation/ABI/stable/sysfs-devices-node, testing/sysfs-bus-pci
//! `numa_node`). On a system without these files, farblock treats the node of every disk as
//! unknown.

use crate::Spec;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The largest plausible number of a processor or node.
const MAX_NUMBER: usize = 4095;

/// A machine, as the kernel reports it in a file tree.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
    /// The processors that this process may use.
    allowed: BTreeSet<usize>,
}

impl Machine {
    /// The machine on which this process runs.
    #[must_use]
    pub fn here() -> Machine {
        Machine::at(PathBuf::from("/"), allowed())
    }

    /// A machine whose kernel files are below `root`. This process may use only the `allowed`
    /// processors.
    #[must_use]
    pub fn at(root: PathBuf, allowed: BTreeSet<usize>) -> Machine {
        Machine { root, allowed }
    }

    /// The online nodes. The list is empty if the nodes are unknown.
    #[must_use]
    pub fn nodes(&self) -> Vec<usize> {
        self.list("sys/devices/system/node/online")
    }

    /// The processors of a node that this process may use.
    #[must_use]
    pub fn processors(&self, node: usize) -> Vec<usize> {
        let all = self.list(&format!("sys/devices/system/node/node{node}/cpulist"));
        all.into_iter().filter(|processor| self.allowed.contains(processor)).collect()
    }

    /// The contents of a kernel file; `None` if this user cannot read the file.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }

    /// The node of a device in `/sys`, or of its nearest parent that reports a node. For example,
    /// an NVMe namespace is on the node of its controller. `None` if the node is unknown.
    #[must_use]
    pub fn of_device(&self, device: &str) -> Option<usize> {
        let device = fs::canonicalize(self.root.join(device)).ok()?;
        let mut parts = device.ancestors().take_while(|part| *part != self.root);
        let said = parts.find_map(|part| {
            let file = [part.join("numa_node"), part.join("device/numa_node")];
            file.iter().find_map(|file| fs::read_to_string(file).ok())
        })?;
        // The file contains -1 if the kernel does not know the node.
        said.trim().parse().ok()
    }

    /// The node of a disk, or of the disk that stores this file. `None` if the node is unknown.
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn of_disk(&self, path: &Path) -> Option<usize> {
        use std::os::unix::fs::{FileTypeExt, MetadataExt};
        let metadata = fs::metadata(path).ok()?;
        let is_device = metadata.file_type().is_block_device();
        let number = if is_device { metadata.rdev() } else { metadata.dev() };
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        self.of_device(&format!("sys/dev/block/{major}:{minor}"))
    }

    /// Always `None`: on this system the node of a disk is unknown.
    #[cfg(not(target_os = "linux"))]
    #[must_use]
    pub fn of_disk(&self, _: &Path) -> Option<usize> {
        None
    }

    /// The common node of all files and disks of a spec; `None` if they are on several nodes, or if
    /// a node is unknown.
    #[must_use]
    pub fn of_spec(&self, spec: &Spec) -> Option<usize> {
        let of = |leaf: &&Spec| match leaf {
            Spec::File(path) => self.of_disk(path),
            _ => None,
        };
        let leaves = spec.leaves();
        let node = of(leaves.first()?)?;
        leaves.iter().all(|leaf| of(leaf) == Some(node)).then_some(node)
    }

    fn list(&self, path: &str) -> Vec<usize> {
        self.text(path).and_then(|text| numbers(text.trim())).unwrap_or_default()
    }
}

#[cfg(target_os = "linux")]
fn allowed() -> BTreeSet<usize> {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor)).collect()
}

#[cfg(not(target_os = "linux"))]
fn allowed() -> BTreeSet<usize> {
    BTreeSet::new()
}

/// Parses a list of numbers such as `0-3,8`. `None` if the list is invalid or exceeds
/// [`MAX_NUMBER`].
fn numbers(text: &str) -> Option<Vec<usize>> {
    let mut all = BTreeSet::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if last > MAX_NUMBER {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_lists_of_the_kernel_are_parsed() {
        assert_eq!(numbers("0"), Some(vec![0]));
        assert_eq!(numbers("0-2,8,10-11"), Some(vec![0, 1, 2, 8, 10, 11]));
        // A node may have no processors.
        assert_eq!(numbers(""), Some(Vec::new()));
        for text in ["a", "1-", "-1", "0-4096", "0-99999999999999999999"] {
            assert_eq!(numbers(text), None, "{text}");
        }
    }

    /// The test uses files on three file systems that every Linux has. Its simulated `/sys` says
    /// that their disks are on node 0, on node 1 and on no node.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_disk_is_on_the_numa_node_of_its_controller() {
        use std::os::unix::fs::{MetadataExt, symlink};
        let made = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(made.path()).unwrap();
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("sys/devices/system/node/online", "0-1\n");
        write("sys/devices/system/node/node1/cpulist", "2-3,6-7\n");
        fs::create_dir_all(root.join("sys/dev/block")).unwrap();
        let files = ["/proc/version", "/sys/kernel/notes", "/dev/null"];
        for (file, node) in files.iter().zip(["0", "1", "-1"]) {
            write(&format!("sys/devices/pci{node}/nvme/numa_node"), node);
            write(&format!("sys/devices/pci{node}/nvme/nvme0/nvme0n1/size"), "1");
            let number = fs::metadata(file).unwrap().dev();
            let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
            let disk = root.join(format!("sys/devices/pci{node}/nvme/nvme0/nvme0n1"));
            symlink(disk, root.join(format!("sys/dev/block/{major}:{minor}"))).unwrap();
        }
        let machine = Machine::at(root, (0..7).collect());
        assert_eq!((machine.nodes(), machine.processors(1)), (vec![0, 1], vec![2, 3, 6]));
        let of = |name: &str| machine.of_spec(&Spec::parse(name).unwrap());
        assert_eq!(of("/proc/version"), Some(0));
        assert_eq!(of("limit:9/s,/sys/kernel/notes"), Some(1));
        assert_eq!(of("concat:/sys/kernel/notes,/sys/kernel/fscaps"), Some(1));
        for unknown in [
            "/dev/null",
            "/no/such/file",
            "mem:1MiB",
            "concat:/proc/version,/sys/kernel/notes",
            "concat:/proc/version,mem:1MiB",
        ] {
            assert_eq!(of(unknown), None, "{unknown}");
        }
    }
}
