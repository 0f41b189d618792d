//! The drives of a stripe set, and the processors that serve it.
//!
//! The processors of a drive's NUMA node reach the drive fastest, and a set with drives of only one
//! node causes no traffic between nodes. So if a machine has several nodes and the nodes of the
//! drives are known, each node has its own set and target, in the same process. Otherwise the
//! drives form sets in the order of the plan, and the report says why.

use crate::message::Share;
use farblock_backends::Spec;
use farblock_backends::nodes::Machine;
use std::collections::BTreeMap;

/// The drives and processors of one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// The NUMA node of all drives of the target; `None` if the target may use all processors.
    pub(crate) node: Option<usize>,
    /// The processors of this node. If empty, the target uses all processors of the machine.
    pub(crate) processors: Vec<usize>,
    /// The namespaces of the target, each with the indexes of its drives.
    pub(crate) namespaces: Vec<Vec<usize>>,
}

/// Divides the requested drives into groups. If the request wants a group per NUMA node and this is
/// impossible, also returns the reason.
pub(crate) fn groups(
    share: &Share,
    machine: &Machine,
) -> Result<(Vec<Group>, Option<String>), String> {
    let whole = |node: Option<usize>, namespaces| Group {
        node,
        processors: node.map(|node| machine.processors(node)).unwrap_or_default(),
        namespaces,
    };
    if share.sets == 0 {
        let each = (0..share.drives.len()).map(|drive| vec![drive]);
        return Ok((vec![whole(None, each.collect())], None));
    }
    if !share.by_node {
        return Ok((vec![whole(None, in_turn(share)?)], None));
    }
    match by_node(&share.drives, machine) {
        Ok(nodes) if nodes.len() > 1 => {
            let group = |(node, drives)| whole(Some(node), vec![drives]);
            Ok((nodes.into_iter().map(group).collect(), None))
        }
        Ok(nodes) => {
            let node = nodes.into_keys().next();
            let why = node.map(|node| format!("all drives are at NUMA node {node}"));
            Ok((vec![whole(node, in_turn(share)?)], why))
        }
        Err(why) => Ok((vec![whole(None, in_turn(share)?)], Some(why))),
    }
}

/// The drives of each node, or the reason why their nodes are unknown.
fn by_node(drives: &[String], machine: &Machine) -> Result<BTreeMap<usize, Vec<usize>>, String> {
    let online = machine.nodes().len();
    if online < 2 {
        return Err("the machine has only one NUMA node".to_owned());
    }
    let mut nodes = BTreeMap::<usize, Vec<usize>>::new();
    for (index, drive) in drives.iter().enumerate() {
        let spec = Spec::parse(drive).map_err(|error| error.to_string())?;
        let node = machine.of_spec(&spec).ok_or_else(|| {
            format!("the machine has {online} NUMA nodes, and the node of {drive} is unknown")
        })?;
        nodes.entry(node).or_default().push(index);
    }
    Ok(nodes)
}

/// Divides the drives into sets of equal size, in the order of the plan.
fn in_turn(share: &Share) -> Result<Vec<Vec<usize>>, String> {
    let (count, sets) = (share.drives.len(), share.sets);
    if !count.is_multiple_of(sets) {
        return Err(format!(
            "{count} drives cannot form {sets} equal sets: name a multiple of {sets}, or change \
             sets_per_target"
        ));
    }
    let all: Vec<usize> = (0..count).collect();
    Ok(all.chunks(count / sets).map(<[usize]>::to_vec).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn share(drives: &[&str], sets: usize, by_node: bool) -> Share {
        Share {
            nqn: "nqn.2026-11.org.farblock:fleet".to_owned(),
            address: ([127, 0, 0, 1], 0).into(),
            more: Vec::new(),
            drives: drives.iter().map(|&drive| drive.to_owned()).collect(),
            sets,
            by_node,
            block_size: 512,
            controller_ids: None,
            iscsi: false,
        }
    }

    fn nowhere() -> Machine {
        Machine::at("/no/such/folder".into(), BTreeSet::new())
    }

    #[test]
    fn drives_are_divided_in_order_without_numa_information() {
        let of = |drives: &[&str], sets, by_node| {
            let (mut groups, why) = groups(&share(drives, sets, by_node), &nowhere())?;
            assert_eq!(groups.len(), 1);
            let Group { node, processors, namespaces } = groups.remove(0);
            assert_eq!((node, processors), (None, Vec::new()));
            Ok::<_, String>((namespaces, why))
        };
        let four = ["mem:1MiB"; 4];
        let halves = vec![vec![0, 1], vec![2, 3]];
        assert_eq!(of(&four[..2], 0, true), Ok((vec![vec![0], vec![1]], None)));
        assert_eq!(of(&four, 2, false), Ok((halves.clone(), None)));
        let why = Some("the machine has only one NUMA node".to_owned());
        assert_eq!(of(&four, 2, true), Ok((halves, why)));
        let odd = of(&four[..3], 2, true).unwrap_err();
        assert_eq!(
            odd,
            "3 drives cannot form 2 equal sets: name a multiple of 2, or change sets_per_target"
        );
    }

    /// A simulated machine with two NUMA nodes. `files` lists each file with the node that `/sys`
    /// reports for its disk.
    #[cfg(target_os = "linux")]
    fn two_nodes(made: &tempfile::TempDir, files: &[(&str, &str)]) -> Machine {
        use std::fs;
        use std::os::unix::fs::{MetadataExt, symlink};
        let root = fs::canonicalize(made.path()).unwrap();
        let nodes = root.join("sys/devices/system/node");
        for (node, list) in [("0", "0-1\n"), ("1", "2-3\n")] {
            fs::create_dir_all(nodes.join(format!("node{node}"))).unwrap();
            fs::write(nodes.join(format!("node{node}/cpulist")), list).unwrap();
        }
        fs::write(nodes.join("online"), "0-1\n").unwrap();
        fs::create_dir_all(root.join("sys/dev/block")).unwrap();
        for (number, (file, node)) in files.iter().enumerate() {
            let disk = root.join(format!("sys/devices/pci{number}/disk"));
            fs::create_dir_all(&disk).unwrap();
            fs::write(disk.join("numa_node"), node).unwrap();
            let dev = fs::metadata(file).unwrap().dev();
            let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
            symlink(disk, root.join(format!("sys/dev/block/{major}:{minor}"))).unwrap();
        }
        Machine::at(root, (0..3).collect())
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn each_numa_node_gets_its_drives_and_processors() {
        let made = tempfile::tempdir().unwrap();
        let (zero, one, unknown) = ("/proc/version", "/sys/kernel/notes", "/dev/null");
        let machine = two_nodes(&made, &[(zero, "0"), (one, "1"), (unknown, "-1")]);
        let of = |drives: &[&str]| groups(&share(drives, 2, true), &machine).unwrap();
        let group = |node: usize, processors: &[usize], drives: &[usize]| Group {
            node: Some(node),
            processors: processors.to_vec(),
            namespaces: vec![drives.to_vec()],
        };
        let limited = format!("limit:9/s,{one}");
        let (groups, why) = of(&[zero, &limited, zero, one, one]);
        assert_eq!(groups, [group(0, &[0, 1], &[0, 2]), group(1, &[2], &[1, 3, 4])]);
        assert_eq!(why, None);

        let (groups, why) = of(&[one; 4]);
        let halves = vec![vec![0, 1], vec![2, 3]];
        let at_one = Group { namespaces: halves.clone(), ..group(1, &[2], &[]) };
        assert_eq!((groups, why.as_deref()), (vec![at_one], Some("all drives are at NUMA node 1")));

        let (groups, why) = of(&[zero, one, one, unknown]);
        assert_eq!((groups[0].node, &groups[0].namespaces), (None, &halves));
        let unknown = "the machine has 2 NUMA nodes, and the node of /dev/null is unknown";
        assert_eq!(why.unwrap(), unknown);
    }
}
