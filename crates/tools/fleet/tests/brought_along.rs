//! Runs the built-in plans on loopback with all hosts, drives and sets, but with small drives and
//! for fractions of a second.

mod support;

use farblock_fleet::Plan;
use support::{TOKEN, carry_out, listener, place};

/// The plan with this name, with small drives and short runs.
fn tiny(name: &str) -> Plan {
    let mut plan = Plan::named(name, 1).expect("a built-in plan");
    (plan.runtime_seconds, plan.ramp_seconds, plan.alone_seconds) = (1.0, 0.05, 0.3);
    (plan.runs, plan.warm_up_seconds) = (1, 0.0);
    let storage = (1..=plan.storage_nodes)
        .map(|at| place(&format!("storage {at}"), listener(), true))
        .collect::<Vec<_>>();
    let hosts = (1..=plan.host_nodes).map(|at| place(&format!("host {at}"), listener(), false));
    plan.agents = storage.into_iter().chain(hosts).collect();
    plan
}

#[test]
fn the_six_patterns_plan_runs_four_hosts_on_two_sets_of_four_drives() {
    let mut plan = tiny("six-patterns");
    assert_eq!(plan.actions.len(), 6);
    // Use one action of each block size, because each action first measures eight drives alone.
    plan.actions = [0, 3, 4].map(|at| plan.actions[at].clone()).to_vec();
    // Limit only the I/O rate: with a byte rate, a write of 1 MiB would outlast the short run.
    plan.drive = "limit:2000/s,mem:8MiB".to_owned();
    let report = carry_out(&plan, TOKEN).expect("the plan runs");
    assert!(!report.has_errors(), "{report:?}");
    assert_eq!((report.actions.len(), report.nodes.len()), (3, 5));
    let [made] = report.sets.as_slice() else {
        panic!("the report must have the sets of one target, not {:?}", report.sets)
    };
    let sizes: Vec<usize> = made.sets.iter().map(|set| set.drives.len()).collect();
    assert_eq!(sizes, [4, 4]);
    // A memory disk has no NUMA node, so the sets cannot follow the nodes.
    assert!(made.not_by_node.is_some(), "{made:?}");
    let text = farblock_fleet::text::render_within(&report, usize::MAX);
    let said = "4 × limit:2000/s,mem:8MiB; 4 × limit:2000/s,mem:8MiB; no set per NUMA node";
    assert!(text.contains(said), "{text}");
    for action in &report.actions {
        assert_eq!(action.clients, 4, "{action:?}");
        assert!(action.total.iops > 0.0 && action.percent_of_theoretical > Some(0.0), "{action:?}");
        let documents = action.documents.as_ref().expect("the plan has published results");
        assert!(documents.percent_of_theoretical.is_some(), "{documents:?}");
    }
    // Eight drives, measured alone, each with a limit of 2000 I/Os per second.
    let reads = report
        .actions
        .first()
        .and_then(|action| action.alone_iops)
        .expect("the drives were measured alone");
    assert!(reads > 0.0 && reads < 8.0 * 4000.0, "{reads}");
}
