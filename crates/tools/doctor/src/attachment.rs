//! Checks an attachment: its state, its users and its paths. For each path with a problem, checks
//! every step of the connection to the target.

use super::finding::{Finding, Verdict};
use super::target;
use crate::attach::{Examined, Way};
use farblock_host::Options;
use std::time::Duration;

const CHECK: &str = "attachment";
/// A path that has reconnected more often than this is unstable.
const MANY_RECONNECTS: u64 = 10;
/// ANA states in which a target denies access.
const DENIED: [&str; 3] = ["inaccessible", "persistent-loss", "change"];

pub(super) fn examine(attachment: &Examined, patience: Duration) -> Vec<Finding> {
    let options =
        Options { connect_timeout: patience, io_timeout: patience, ..attachment.options.clone() };
    let mut findings = vec![state(attachment)];
    findings.extend(protection(attachment));
    findings.extend(users(attachment));
    findings.extend(swap(attachment));
    for way in &attachment.paths {
        let finding = path(way, is_usable(attachment));
        let is_well = finding.verdict != Verdict::Problem;
        findings.push(finding);
        if !is_well {
            let walked = target::examine(&way.url, &options);
            let leads = walked.iter().all(|one| one.verdict != Verdict::Problem);
            findings.extend(walked);
            findings.extend(leads.then(|| given_up(attachment, way)).flatten());
        }
    }
    findings
}

/// Whether the attachment uses this namespace, over any address.
pub(super) fn is_of(attachment: &Examined, (nqn, nsid): (&str, Option<u32>)) -> bool {
    attachment.paths.iter().any(|way| {
        let is_its = |own: u32| nsid.is_none_or(|nsid| nsid == own);
        way.url.subsystem.as_deref() == Some(nqn) && way.url.namespace.is_none_or(is_its)
    })
}

/// Returns a summary of an attachment: the findings about its state, and about its paths with a
/// problem.
pub(super) fn summary(attachment: &Examined) -> Vec<Finding> {
    let state = [Some(state(attachment)), protection(attachment), swap(attachment)];
    let is_served = !matches!(attachment.state, "restarting" | "stale");
    let is_usable = is_usable(attachment);
    let paths = attachment.paths.iter().filter(|_| is_served).map(|way| path(way, is_usable));
    let paths = paths.filter(|finding| finding.verdict != Verdict::Ok);
    let look = format!("run `farblock doctor {}`, which checks each step", attachment.name);
    let point_there = |finding: Finding| match &finding.advice {
        Some(advice) if advice.contains("see below") => {
            Finding { advice: Some(look.clone()), ..finding }
        }
        _ => finding,
    };
    state.into_iter().flatten().chain(paths).map(point_there).collect()
}

fn state(attachment: &Examined) -> Finding {
    let Examined { name, state, trouble, refusal, used, log, .. } = attachment;
    let why = trouble.as_ref().map_or(String::new(), |why| format!(": {why}"));
    let log = log.display();
    match *state {
        // The disk works, but its daemon reports a lost supervisor, a full directory or swap.
        "live" if trouble.is_some() => Finding::problem(
            CHECK,
            format!("{name} is live, but has a problem{why}"),
            format!(
                "correct the problem (see {log}); if the supervisor has stopped, `farblock attach` \
                 with this name starts a new one"
            ),
        ),
        "live" => {
            let used = used.as_ref().map_or(String::new(), |used| format!(" as {used}"));
            Finding::ok(CHECK, format!("{name} is live{used}"))
        }
        "degraded" if refusal.is_some() => Finding::problem(
            CHECK,
            format!("some operations on {name} fail{why}"),
            "correct the problem at the target (`farblock status` there), or release the other \
             host's reservation; the state ends with the next operation that succeeds",
        ),
        "degraded" if is_denied_everywhere(attachment) => Finding::problem(
            CHECK,
            format!("{name} is connected, but reads and writes wait{why}"),
            "see below; I/O continues as soon as a target allows access",
        ),
        "degraded" => Finding::hint(
            CHECK,
            format!("{name} works, but not over all paths{why}"),
            "see below for the failed paths",
        ),
        "reconnecting" => Finding::problem(
            CHECK,
            format!("{name} has no working path, so reads and writes wait{why}"),
            "see below for its paths; I/O continues as soon as one of them works",
        ),
        "failed" => Finding::problem(
            CHECK,
            format!("{name} has given up all its paths, so reads and writes fail{why}"),
            format!(
                "repair the paths, run `farblock detach {name}`, and attach the disk again; with \
                 --ctrl-loss-timeout never, reads and writes wait for a path instead"
            ),
        ),
        "restarting" => Finding::problem(
            CHECK,
            format!("the process that serves {name} is starting, or does not answer{why}"),
            format!("check {log}, and run doctor again in a few seconds"),
        ),
        "unusable" => Finding::problem(
            CHECK,
            format!("a process serves {name}, but this machine cannot use it{why}"),
            format!("run `farblock detach {name} --force`, and attach the disk again"),
        ),
        _ if !attachment.users.is_empty() => Finding::problem(
            CHECK,
            format!("the processes of {name} have stopped, so new writes to it are lost{why}"),
            format!("unmount or close the disk, then attach it again with this name; see {log}"),
        ),
        _ => Finding::problem(
            CHECK,
            format!("the processes of {name} have stopped{why}"),
            format!("attach the disk again with this name; {log} says why they stopped"),
        ),
    }
}

/// Returns a hint if the disk is read-only, although its settings do not request this.
fn protection(attachment: &Examined) -> Option<Finding> {
    let name = &attachment.name;
    attachment.is_protected.then(|| {
        Finding::hint(
            CHECK,
            format!("{name} cannot be written, because its target shares it read-only"),
            "check at the target whether this is intended; if so, attach with --read-only",
        )
    })
}

fn users(attachment: &Examined) -> Option<Finding> {
    let users = &attachment.users;
    (!users.is_empty()).then(|| Finding::ok("users", users.join("; ")))
}

fn swap(attachment: &Examined) -> Option<Finding> {
    let (what, advice) = attachment.swap.as_ref()?;
    Some(Finding::problem("swap", what.clone(), *advice))
}

/// Whether a path is connected and its target allows access.
fn is_usable(attachment: &Examined) -> bool {
    let usable = |way: &Way| way.state.as_deref() == Some("live") && !is_denied(way);
    attachment.paths.iter().any(usable)
}

/// Whether paths are connected, but no target allows access.
fn is_denied_everywhere(attachment: &Examined) -> bool {
    attachment.paths.iter().any(is_denied) && !is_usable(attachment)
}

fn is_denied(way: &Way) -> bool {
    way.access.as_ref().is_some_and(|access| DENIED.contains(&access.as_str()))
}

/// Returns the finding about a path. `is_usable`: whether the disk has a path on which its target
/// allows access.
fn path(way: &Way, is_usable: bool) -> Finding {
    const CHECK: &str = "path";
    let Way { url, state, since_seconds, access, reconnects, error } = way;
    match state.as_deref() {
        Some("live") if *reconnects > MANY_RECONNECTS => Finding::hint(
            CHECK,
            format!("{url} is live, but was lost {reconnects} times"),
            "look for the cause: cables, ports, or a target that restarts repeatedly",
        ),
        Some("live") if is_denied(way) => {
            let access = access.as_deref().unwrap_or_default();
            let what = format!("{url} is live, but its target denies access (ANA: {access})");
            let advice = "check the reason at the target; `farblock ctl set-ana` can allow access";
            match is_usable {
                true => Finding::hint(CHECK, what, advice),
                false => Finding::problem(CHECK, what, advice),
            }
        }
        Some("live") => {
            let access = access.as_ref().map_or(String::new(), |it| format!(", {it}"));
            Finding::ok(CHECK, format!("{url} is live{access}"))
        }
        Some(state) => {
            let why = error.as_ref().map_or(String::new(), |why| format!(": {why}"));
            let what = format!("{url} has been {state} for {since_seconds} s{why}");
            Finding::problem(CHECK, what, "see below for the step that fails")
        }
        None => Finding::problem(
            CHECK,
            format!("the state of {url} is unknown"),
            "see below for the steps of the connection",
        ),
    }
}

/// Returns a hint if the attachment has given up a path whose target is reachable now.
fn given_up(attachment: &Examined, way: &Way) -> Option<Finding> {
    (way.state.as_deref() == Some("failed")).then(|| {
        Finding::hint(
            "path",
            format!("{} is reachable now, but the attachment has given up this path", way.url),
            format!("run `farblock detach {}`, and attach the disk again", attachment.name),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(state: &'static str, path: Option<&str>) -> Examined {
        let url = "nvme+tcp://127.0.0.1:1/nqn.2026-11.org.example:a?ns=1"
            .parse()
            .expect("the URL is valid");
        Examined {
            name: "data".to_owned(),
            state,
            trouble: Some("it broke".to_owned()),
            refusal: None,
            is_protected: false,
            used: Some("/dev/x".to_owned()),
            users: vec!["fio (process 7) has /dev/x open".to_owned()],
            swap: None,
            paths: vec![Way {
                url,
                state: path.map(str::to_owned),
                since_seconds: 7,
                access: None,
                reconnects: 0,
                error: Some("it is lost".to_owned()),
            }],
            options: Options::default(),
            log: "/run/x/log".into(),
        }
    }

    #[test]
    fn each_attachment_state_has_a_verdict() {
        let well = Examined { trouble: None, ..attachment("live", Some("live")) };
        assert_eq!(state(&well).verdict, Verdict::Ok);
        for (name, path, verdict) in [
            ("live", Some("live"), Verdict::Problem),
            ("unusable", Some("live"), Verdict::Problem),
            ("degraded", Some("reconnecting"), Verdict::Hint),
            ("reconnecting", Some("reconnecting"), Verdict::Problem),
            ("failed", Some("failed"), Verdict::Problem),
            ("restarting", None, Verdict::Problem),
            ("stale", None, Verdict::Problem),
        ] {
            let found = state(&attachment(name, path));
            assert_eq!(found.verdict, verdict, "{found:?}");
            assert!(found.advice.is_some() && found.what.contains("it broke"), "{found:?}");
        }
        let found = state(&Examined { trouble: None, ..attachment("live", Some("live")) });
        assert!(found.verdict == Verdict::Ok && found.advice.is_none(), "{found:?}");
    }

    #[test]
    fn a_summary_reports_the_problem_and_names_the_doctor_command() {
        let found = summary(&attachment("reconnecting", Some("reconnecting")));
        assert_eq!(found.len(), 2, "{found:?}");
        for one in found {
            assert_eq!(one.verdict, Verdict::Problem, "{one:?}");
            assert!(one.advice.as_ref().is_some_and(|it| it.contains("`farblock doctor data`")));
        }
        assert_eq!(summary(&attachment("stale", None)).len(), 1);
        assert_eq!(summary(&attachment("live", Some("live"))).len(), 1);
    }

    #[test]
    fn doctor_probes_the_address_of_a_lost_path() {
        let found = examine(&attachment("reconnecting", Some("reconnecting")), WAIT_LIMIT);
        let last = found.last().expect("the list is not empty");
        assert!(last.what.contains("nothing listens at 127.0.0.1:1"), "{found:?}");
        let well = Examined { trouble: None, ..attachment("live", Some("live")) };
        let found = examine(&well, WAIT_LIMIT);
        assert!(found.iter().all(|one| one.verdict == Verdict::Ok), "{found:?}");
    }

    #[test]
    fn swap_on_an_attached_disk_is_a_problem() {
        let swap = Some(("the machine swaps to /dev/x".to_owned(), "swap elsewhere"));
        let swapped = Examined { swap, trouble: None, ..attachment("live", Some("live")) };
        let problem = |one: &&Finding| one.verdict == Verdict::Problem;
        let found = examine(&swapped, WAIT_LIMIT);
        assert_eq!(found.iter().find(problem).map(|one| one.check), Some("swap"), "{found:?}");
        assert!(summary(&swapped).iter().any(|one| one.check == "swap"), "{found:?}");
    }

    #[test]
    fn the_summary_and_the_details_report_a_disk_that_refuses_writes() {
        let refusal = Some("the target refuses writes: reserved".to_owned());
        let of = |refusal: &Option<String>| {
            let (refusal, trouble) = (refusal.clone(), refusal.clone());
            Examined { refusal, trouble, ..attachment("degraded", Some("live")) }
        };
        for found in [summary(&of(&refusal)), examine(&of(&refusal), WAIT_LIMIT)] {
            let problem = found.iter().find(|one| one.verdict == Verdict::Problem);
            assert!(problem.is_some_and(|one| one.what.contains("refuses writes")), "{found:?}");
        }
        let found = summary(&of(&None));
        assert!(found.iter().all(|one| one.verdict != Verdict::Problem), "{found:?}");
        let mut denied = of(&None);
        denied.paths[0].access = Some("inaccessible".to_owned());
        for found in [summary(&denied), examine(&denied, Duration::from_millis(200))] {
            let of = |check: &str| found.iter().find(|one| one.check == check);
            for check in [CHECK, "path"] {
                let verdict = of(check).map(|one| one.verdict);
                assert_eq!(verdict, Some(Verdict::Problem), "{found:?}");
            }
        }
        let protected = Examined { is_protected: true, ..of(&refusal) };
        let is_said = |found: &[Finding]| found.iter().any(|one| one.what.contains("read-only"));
        assert!(is_said(&summary(&protected)) && is_said(&examine(&protected, WAIT_LIMIT)));
    }

    #[test]
    fn an_attachment_matches_its_subsystem_and_namespace_at_any_address() {
        let one = attachment("live", Some("live"));
        let nqn = "nqn.2026-11.org.example:a";
        assert!(is_of(&one, (nqn, Some(1))) && is_of(&one, (nqn, None)));
        assert!(!is_of(&one, (nqn, Some(2))) && !is_of(&one, ("nqn.2026-11.org.example:b", None)));
    }

    const WAIT_LIMIT: Duration = Duration::from_secs(5);
}
