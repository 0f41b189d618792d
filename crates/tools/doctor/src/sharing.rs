//! Checks the targets on this machine that this user may query.

use super::finding::Finding;
use farblock_admin_api::{ControllerStatus, LegStatus, NamespaceStatus, Status, part_name};
use farblock_backends::Spec;
use farblock_block::size::Size;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

const CHECK: &str = "target";

pub(super) fn examine(target: &Status) -> Vec<Finding> {
    let at = target.listening.join(", ");
    let hosts: BTreeSet<_> = target.controllers.iter().map(|it| &it.host_nqn).collect();
    let what = format!("a target runs at {at}, with {} connected hosts", hosts.len());
    let mut findings = vec![Finding::ok(CHECK, what)];
    for warning in &target.warnings {
        let advice = "admit only hosts with a key (docs/security.md), or use another address";
        findings.push(Finding::hint(CHECK, warning.as_str(), advice));
    }
    findings.extend(namesakes(&target.controllers));
    findings.extend(memory(target));
    findings.extend(namespaces(target, |_, _| true));
    findings
}

/// Returns findings about the namespaces whose subsystem NQN and ID satisfy `is_meant`.
pub(super) fn namespaces(target: &Status, is_meant: impl Fn(&str, u32) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for subsystem in &target.subsystems {
        let all = subsystem.namespaces.iter();
        let meant = all.filter(|namespace| is_meant(&subsystem.nqn, namespace.nsid));
        findings.extend(meant.flat_map(|namespace| {
            let storage = storage(&subsystem.nqn, namespace);
            storage.into_iter().chain(parts(&subsystem.nqn, namespace))
        }));
    }
    findings
}

/// Returns a hint if the RAM disks can grow larger than the machine's memory.
fn memory(target: &Status) -> Option<Finding> {
    let namespaces = target.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
    let specs = namespaces.filter_map(|one| Spec::parse(one.path.as_deref()?).ok());
    let specs: Vec<Spec> = specs.collect();
    let doubt = farblock_disks::memory_doubt(&specs.iter().collect::<Vec<_>>())?;
    let advice = "share smaller RAM disks, or files";
    Some(Finding::hint("memory", doubt, advice))
}

/// Returns findings about failures of a namespace's storage, and about differences that a
/// comparison of a mirror's legs found.
fn storage(nqn: &str, namespace: &NamespaceStatus) -> Vec<Finding> {
    const CHECK: &str = "storage";
    let NamespaceStatus { nsid, health, last_failure, trouble, mirror, .. } = namespace;
    let place = namespace.path.as_ref().map_or(String::new(), |path| format!(" ({path})"));
    let disk = format!("namespace {nsid} of {nqn}{place}");
    let mut findings = Vec::new();
    let said = last_failure.as_ref().map_or(String::new(), |said| format!(": {said}"));
    let advice = "repair the storage: check its free space, its device (`dmesg`), or the target of \
        a remote disk; the hosts received each error";
    // Another finding reports the trouble of a remote part.
    let is_of_a_part = namespace.legs.iter().any(|leg| leg.reason == *trouble);
    if let Some(trouble) = trouble.as_ref().filter(|_| !is_of_a_part) {
        let advice = "correct the cause; the target detects the correction, and notifies its hosts";
        findings.push(Finding::problem(CHECK, format!("{disk}: {trouble}"), advice));
    } else if health == "failing" {
        let what = format!("{disk} fails reads or writes{said}");
        findings.push(Finding::problem(CHECK, what, advice));
    } else if last_failure.is_some() {
        let what = format!("{disk} had failures, but none in the last minute{said}");
        findings.push(Finding::hint(CHECK, what, advice));
    }
    if let Some(mirror) = mirror {
        let differ = (mirror.differing_bytes > 0)
            .then(|| format!("the legs differ within {}", Size(mirror.differing_bytes)));
        let unread = (mirror.uncompared_bytes > 0)
            .then(|| format!("{} could not be compared", Size(mirror.uncompared_bytes)));
        let found: Vec<_> = differ.into_iter().chain(unread).collect();
        if !found.is_empty() {
            let what = format!("{disk}: the last comparison found that {}", found.join(" and "));
            let advice = format!(
                "check the data (docs/mirror.md), then compare again: `farblock ctl verify {nqn} \
                 {nsid}`"
            );
            findings.push(Finding::problem("mirror", what, advice));
        }
    }
    findings
}

/// Returns findings about mirror legs that are not in sync or not in use, and about remote disks
/// that do not answer.
fn parts(nqn: &str, namespace: &NamespaceStatus) -> Vec<Finding> {
    let nsid = namespace.nsid;
    let of_mirror = |leg: &LegStatus| {
        let name = part_name(&leg.name);
        let why = leg.reason.as_ref().map_or(String::new(), |reason| format!(" ({reason})"));
        match leg.state.as_str() {
            "in_sync" if leg.reason.is_some() => Some(Finding::problem(
                "mirror",
                format!("leg {name} of namespace {nsid} of {nqn} is not used at present{why}"),
                "restore this leg with its data: while no other leg is in sync, operations wait \
                 for this leg, and then fail",
            )),
            "out" => Some(Finding::problem(
                "mirror",
                format!("leg {name} of namespace {nsid} of {nqn} is out of the mirror{why}"),
                "restore this leg: the mirror then copies the missing data to it; until then, \
                 another leg may have the only copy of the data (docs/mirror.md)",
            )),
            "catching_up" => Some(Finding::hint(
                "mirror",
                format!("leg {name} of namespace {nsid} of {nqn} is catching up"),
                format!(
                    "wait for `in sync again` in the log before you stop another leg; `farblock \
                     ctl copy-speed {nqn} {nsid} 0` removes the speed limit of the copy"
                ),
            )),
            "away" => Some(Finding::problem(
                "part",
                format!("{name}, a part of namespace {nsid} of {nqn}, is away{why}"),
                "restore the target of this part (`farblock doctor` with its URL checks each step \
                 of the connection): operations on the part wait, and then fail",
            )),
            _ => None,
        }
    };
    namespace.legs.iter().filter_map(of_mirror).collect()
}

/// Returns the finding that these places contain no target's socket.
pub(super) fn none(looked_in: &str) -> Finding {
    Finding::ok(
        CHECK,
        format!("no target runs here that this user can query: looked in {looked_in}"),
    )
}

/// Returns the finding that a target has a socket, but does not answer.
pub(super) fn silent(socket: &Path, patience: Duration) -> Finding {
    let what = format!("the target at {} does not answer within {patience:?}", socket.display());
    let advice = "check its log, and whether its process has been stopped (SIGSTOP)";
    Finding::problem(CHECK, what, advice)
}

/// Returns findings about hosts whose name several machines seem to use.
fn namesakes(controllers: &[ControllerStatus]) -> Vec<Finding> {
    let mut ids: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut places: BTreeMap<(&str, &str), BTreeSet<String>> = BTreeMap::new();
    for one in controllers {
        ids.entry(&one.host_nqn).or_default().insert(&one.host_id);
        let address = one.address.as_ref().and_then(|it| it.parse::<SocketAddr>().ok());
        if let Some(address) = address {
            let from = places.entry((&one.host_nqn, &one.local_address)).or_default();
            from.insert(address.ip().to_string());
        }
    }
    let advice = "give each machine its own name (`farblock whoami` prints the current name and \
        its source); reservations and --allow-host treat machines with one name as one host";
    let differ = ids.iter().filter(|(_, ids)| ids.len() > 1).map(|(nqn, ids)| {
        let ids = ids.iter().copied().collect::<Vec<_>>().join(", ");
        let what = format!("hosts with different identifiers ({ids}) all have the name {nqn}");
        Finding::problem("host names", what, advice)
    });
    let apart = places.iter().filter(|((nqn, _), from)| from.len() > 1 && ids[nqn].len() == 1);
    let apart = apart.map(|((nqn, _), from)| {
        let from = from.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let what = format!("{nqn} is connected to one listener from several addresses: {from}");
        Finding::hint("host names", what, format!("if these are different machines, {advice}"))
    });
    differ.chain(apart).collect()
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;
    use farblock_state::Limits;

    fn controller(nqn: &str, id: &str, from: &str) -> ControllerStatus {
        ControllerStatus {
            id: 1,
            subsystem: None,
            host_nqn: nqn.to_owned(),
            host_id: id.to_owned(),
            address: Some(from.to_owned()),
            local_address: "192.0.2.7:4420".to_owned(),
            transport: "tcp".to_owned(),
            ready: true,
            io_queues: 1,
            errors: 0,
        }
    }

    fn disk(health: &str, last_failure: Option<&str>) -> NamespaceStatus {
        NamespaceStatus {
            nsid: 3,
            bytes: 1 << 20,
            block_size: 512,
            read_only: false,
            uuid: String::new(),
            ana_group: 1,
            visible_to: None,
            limits: Limits::default(),
            path: None,
            health: health.to_owned(),
            last_failure: last_failure.map(str::to_owned),
            trouble: None,
            legs: Vec::new(),
            mirror: None,
        }
    }

    #[test]
    fn failing_storage_is_a_problem_and_a_past_failure_is_a_hint() {
        let found = storage("nqn.a", &disk("failing", Some("no space left")));
        assert_eq!(found.len(), 1, "{found:?}");
        let what = "namespace 3 of nqn.a fails reads or writes: no space left";
        assert_eq!((found[0].verdict, found[0].what.as_str()), (Verdict::Problem, what));
        let found = storage("nqn.a", &disk("ok", Some("no space left")));
        assert_eq!(found.iter().map(|it| it.verdict).collect::<Vec<_>>(), [Verdict::Hint]);
        assert_eq!(storage("nqn.a", &disk("ok", None)), []);
        let trouble = Some("/srv/a.img cannot be written".to_owned());
        let found = storage("nqn.a", &NamespaceStatus { trouble, ..disk("failing", None) });
        let what = "namespace 3 of nqn.a: /srv/a.img cannot be written";
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].verdict, found[0].what.as_str()), (Verdict::Problem, what));
    }

    #[test]
    fn doctor_names_each_mirror_leg_that_is_not_in_sync() {
        let leg = |state: &str, reason: Option<&str>| LegStatus {
            name: format!("nvme+tcp://192.0.2.2/{state}?ns=1"),
            state: state.to_owned(),
            reason: reason.map(str::to_owned),
        };
        let legs = vec![leg("in_sync", None), leg("out", Some("gone")), leg("catching_up", None)];
        let namespace = NamespaceStatus { legs, ..disk("degraded", None) };
        let found = parts("nqn.a", &namespace);
        assert_eq!(found.len(), 2, "{found:?}");
        let names =
            "leg nvme+tcp://192.0.2.2/out?ns=1 of namespace 3 of nqn.a is out of the mirror (gone)";
        assert_eq!((found[0].verdict, found[0].what.as_str()), (Verdict::Problem, names));
        assert_eq!(found[1].verdict, Verdict::Hint);
        assert!(found[1].advice.as_ref().is_some_and(|it| it.contains("copy-speed nqn.a 3 0")));
        let last = leg("in_sync", Some("it is away"));
        let found = parts("nqn.a", &NamespaceStatus { legs: vec![last], ..disk("away", None) });
        assert!(
            found.len() == 1 && found[0].what.ends_with("at present (it is away)"),
            "{found:?}"
        );
    }

    #[test]
    fn doctor_finds_machines_that_share_a_host_name() {
        let one = controller("nqn.a", "1", "192.0.2.1:5000");
        let again = controller("nqn.a", "1", "192.0.2.1:5001");
        let other = controller("nqn.b", "2", "192.0.2.2:5000");
        assert_eq!(namesakes(&[one.clone(), again, other]), []);
        let found = namesakes(&[one.clone(), controller("nqn.a", "3", "192.0.2.2:5000")]);
        assert!(found.len() == 1 && found[0].verdict == Verdict::Problem, "{found:?}");
        let found = namesakes(&[one, controller("nqn.a", "1", "192.0.2.2:5000")]);
        assert!(found.len() == 1 && found[0].verdict == Verdict::Hint, "{found:?}");
    }
}
