//! The built-in plans: the published tests of StarWind and LINBIT, and failure tests.

use crate::documents::Documents;
use crate::plan::{Action, Fault, IscsiTarget, Plan};

/// The drive of plans that compare the speed of a fleet with the summed speed of its drives. Drives
/// in memory without a limit are faster than the processor transfers data, so the comparison would
/// measure the processor. With limits the drives are the bottleneck, as in the published tests.
const LIMITED: &str = "limit:2000/s,limit:64MiB/s,mem:64MiB";

impl Plan {
    /// The built-in plans.
    #[must_use]
    pub fn built_in() -> Vec<Plan> {
        all()
    }

    /// The built-in plan with this name, scaled to this many processors.
    #[must_use]
    pub fn named(name: &str, cores: u32) -> Option<Plan> {
        let plan = all().into_iter().find(|plan| plan.name == name);
        plan.map(|plan| scaled(plan, cores))
    }
}

fn all() -> Vec<Plan> {
    vec![hci(), six_patterns(), nvme_vs_iscsi(), failover()]
}

fn action(load: &str, documents: Option<Documents>) -> Action {
    Action { load: load.to_owned(), vm: false, documents }
}

/// A load of clients that are virtual machines.
fn vm(load: &str, documents: Documents) -> Action {
    Action { load: load.to_owned(), vm: true, documents: Some(documents) }
}

/// A plan of 12 nodes, each with two targets of two drives, and 48 clients in total.
fn hci() -> Plan {
    let actions = vec![
        action(
            "randread,bs=4k,iodepth=8,numjobs=1,name=raw 4k random read",
            Some(Documents::iops(22_239_158.0, Some(84.0))),
        ),
        action(
            "randrw,bs=4k,iodepth=8,numjobs=1,rwmixread=90,name=raw 4k random 90/10",
            Some(Documents::iops(21_923_445.0, None)),
        ),
        action(
            "randrw,bs=4k,iodepth=8,numjobs=1,rwmixread=70,name=raw 4k random 70/30",
            Some(Documents::iops(21_906_429.0, None)),
        ),
        action(
            "read,bs=2M,iodepth=2,numjobs=1,name=raw 2M sequential read",
            Some(Documents::gb(119.01, Some(106.0))),
        ),
        action(
            "write,bs=2M,iodepth=2,numjobs=1,name=raw 2M sequential write",
            Some(Documents::gb(101.93, None)),
        ),
        vm(
            "randread,bs=4k,iodepth=16,numjobs=1,name=VM 4k random read",
            Documents::iops(20_187_670.0, Some(76.0)),
        ),
        vm(
            "randrw,bs=4k,iodepth=16,numjobs=1,rwmixread=90,name=VM 4k random 90/10",
            Documents::iops(19_882_005.0, None),
        ),
        vm(
            "randrw,bs=4k,iodepth=16,numjobs=1,rwmixread=70,name=VM 4k random 70/30",
            Documents::iops(19_229_996.0, None),
        ),
        vm(
            "read,bs=2M,iodepth=2,numjobs=1,name=VM 2M sequential read",
            Documents::gb(118.7, Some(105.5)),
        ),
        vm(
            "write,bs=2M,iodepth=2,numjobs=1,name=VM 2M sequential write",
            Documents::gb(102.25, None),
        ),
    ];
    Plan {
        name: "hci-12".to_owned(),
        about:
            "the published cluster: every node shares its drives and uses the drives of all nodes"
                .to_owned(),
        storage_nodes: 12,
        host_nodes: 0,
        together: true,
        targets_per_node: 2,
        drives_per_target: 2,
        drive: LIMITED.to_owned(),
        clients_per_node: 48,
        runtime_seconds: 5.0,
        ramp_seconds: 1.0,
        runs: 3,
        alone_seconds: 1.0,
        actions,
        ..Plan::default()
    }
}

/// A plan of four clients, and one target with two RAID 0 sets of four drives each. If the user
/// names drives, the drives of each NUMA node form one set.
fn six_patterns() -> Plan {
    let rows = [
        ("randread,bs=4k,iodepth=32,numjobs=16", 5_540_879.0, 97.3),
        ("randwrite,bs=4k,iodepth=4,numjobs=8", 1_582_294.0, 100.9),
        ("randread,bs=64k,iodepth=32,numjobs=4", 745_625.0, 92.3),
        ("randwrite,bs=64k,iodepth=1,numjobs=4", 115_447.0, 100.8),
        ("read,bs=1M,iodepth=8,numjobs=2", 42_871.0, 84.4),
        ("write,bs=1M,iodepth=8,numjobs=1", 25_388.0, 96.5),
    ];
    let actions =
        rows.map(|(load, iops, percent)| action(load, Some(Documents::iops(iops, Some(percent)))));
    Plan {
        name: "six-patterns".to_owned(),
        about: "the published six patterns: four hosts, one target with two RAID 0 sets".to_owned(),
        storage_nodes: 1,
        host_nodes: 4,
        drives_per_target: 8,
        sets_per_target: 2,
        sets_by_node: true,
        drive: LIMITED.to_owned(),
        runtime_seconds: 5.0,
        ramp_seconds: 1.0,
        runs: 3,
        alone_seconds: 1.0,
        actions: actions.to_vec(),
        ..Plan::default()
    }
}

/// LINBIT's fio command lines over NVMe/TCP, and over iSCSI on the same file.
fn nvme_vs_iscsi() -> Plan {
    let actions = vec![
        action("randread,bs=4k,iodepth=32,numjobs=16", Some(Documents::over_iscsi(550.0))),
        action("randwrite,bs=4k,iodepth=32,numjobs=16", Some(Documents::over_iscsi(550.0))),
        action("read,bs=4k,iodepth=32,numjobs=16", None),
        action("write,bs=4k,iodepth=32,numjobs=16", None),
    ];
    Plan {
        name: "nvme-vs-iscsi".to_owned(),
        about: "NVMe/TCP, farblock's iSCSI target and tgt in turn on one file".to_owned(),
        drive: "temporary:256MiB".to_owned(),
        runtime_seconds: 5.0,
        ramp_seconds: 1.0,
        runs: 3,
        iscsi: vec![IscsiTarget::Farblock, IscsiTarget::Tgt],
        actions,
        ..Plan::default()
    }
}

/// A plan of two targets on the same drives, which are on another node. The plan kills, cuts off
/// and slows each target in turn. Each fault lasts longer than a client waits before it sends a
/// lost write over the other path.
fn failover() -> Plan {
    Plan {
        name: "failover".to_owned(),
        about:
            "two paths to each drive; each path fails in turn while hosts write, read and compare"
                .to_owned(),
        storage_nodes: 2,
        paths: 2,
        host_nodes: 2,
        drives_per_target: 2,
        drive: "temporary:64MiB".to_owned(),
        clients_per_node: 2,
        writers: 2,
        verify_seconds: 2.0,
        faults: vec![Fault::Kill, Fault::Cut, Fault::Slow],
        fault_seconds: 6.0,
        ..Plan::default()
    }
}

/// The plan, reduced for a machine with this many processors, with a remark on each reduction.
///
/// Limits the number of clients per processor, and the number of processors per node. Beyond these
/// limits, the run would measure the scheduler.
fn scaled(mut plan: Plan, cores: u32) -> Plan {
    let cores = cores.max(1);
    let plural = if cores == 1 { "processor" } else { "processors" };
    let mut note = |what: &str, from: u32, to: u32| {
        plan.scaled.push(format!("{from} {what} scaled to {to} ({cores} {plural})"));
    };
    if plan.together {
        let nodes = plan.storage_nodes.min(cores.saturating_mul(2).max(3));
        if nodes < plan.storage_nodes {
            note("nodes", plan.storage_nodes, nodes);
        }
        let clients = plan.clients_per_node.min((cores.saturating_mul(8) / nodes).max(2));
        if clients < plan.clients_per_node {
            note("clients of each node", plan.clients_per_node, clients);
        }
        (plan.storage_nodes, plan.clients_per_node) = (nodes, clients);
    }
    let hosts = if plan.together { plan.storage_nodes } else { plan.host_nodes };
    let jobs = (cores / (hosts * plan.clients_per_node).max(1)).max(1);
    for action in &mut plan.actions {
        let Ok(pattern) = action.load.parse::<farblock_bench::Pattern>() else { continue };
        if pattern.numjobs > jobs {
            let (from, name) = (pattern.numjobs, &pattern.name);
            plan.scaled.push(format!("{name}: {from} jobs scaled to {jobs} ({cores} {plural})"));
            action.load =
                action.load.replace(&format!("numjobs={from}"), &format!("numjobs={jobs}"));
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_plan_is_valid_at_any_scale() {
        let names: Vec<_> = all().into_iter().map(|plan| plan.name).collect();
        assert_eq!(names, ["hci-12", "six-patterns", "nvme-vs-iscsi", "failover"]);
        for plan in all() {
            plan.check().unwrap_or_else(|why| panic!("{}: {why}", plan.name));
            assert_eq!(scaled(plan.clone(), 10_000).scaled, [""; 0], "{}", plan.name);
            for cores in [0, 1, 2, 8, 64] {
                let small = scaled(plan.clone(), cores);
                small.check().unwrap_or_else(|why| panic!("{} of {cores}: {why}", plan.name));
            }
        }
    }

    #[test]
    fn the_cluster_plan_matches_the_published_one_and_notes_its_scaling() {
        let plan = hci();
        assert_eq!(plan.storage_nodes * plan.clients_per_node, 576);
        assert_eq!(plan.storage_nodes * plan.targets_per_node * plan.drives_per_target, 48);
        assert_eq!(plan.actions.iter().filter(|action| action.vm).count(), 5);
        assert!(plan.actions.iter().all(|action| action.documents.is_some()));
        let small = scaled(plan, 2);
        assert_eq!((small.storage_nodes, small.clients_per_node), (4, 4));
        let said = [
            "12 nodes scaled to 4 (2 processors)",
            "48 clients of each node scaled to 4 (2 processors)",
        ];
        assert_eq!(small.scaled, said);
    }
}
