//! An attachment: its state, its users, and for each path with a problem the way to the target.

use super::finding::{Finding, Verdict};
use super::target;
use crate::attach::{Examined, Way};
use farblock_host::Options;
use std::time::Duration;

const CHECK: &str = "attachment";
/// A path with more reconnections than this is unstable.
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

/// Whether the attachment is of this namespace, over whichever address.
pub(super) fn is_of(attachment: &Examined, (nqn, nsid): (&str, Option<u32>)) -> bool {
    attachment.paths.iter().any(|way| {
        let is_its = |own: u32| nsid.is_none_or(|nsid| nsid == own);
        way.url.subsystem.as_deref() == Some(nqn) && way.url.namespace.is_none_or(is_its)
    })
}

/// A summary for the list of all attachments: everything about its state, and the paths with a
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
            format!("{name} is live, but not as it should be{why}"),
            format!(
                "mend that; `farblock attach` under this name adopts a disk that lost its \
                 supervisor; {log} says more"
            ),
        ),
        "live" => {
            let used = used.as_deref().unwrap_or("nowhere");
            Finding::ok(CHECK, format!("{name} is live, to be used as {used}"))
        }
        "degraded" if refusal.is_some() => Finding::problem(
            CHECK,
            format!("{name} cannot be used fully{why}"),
            "mend that on the target's machine (`farblock status` there), or release the \
             reservation of the other host: the next operation that succeeds ends this state",
        ),
        "degraded" if is_denied_everywhere(attachment) => Finding::problem(
            CHECK,
            format!("{name} is connected, and what is read and written waits{why}"),
            "see below: it goes on by itself as soon as a target allows access",
        ),
        "degraded" => Finding::hint(
            CHECK,
            format!("{name} works, with a path less{why}"),
            "see below what that path lacks",
        ),
        "reconnecting" => Finding::problem(
            CHECK,
            format!("{name} has no path, and what is read and written waits{why}"),
            "see below what its paths lack: it goes on by itself as soon as one leads there",
        ),
        "failed" => Finding::problem(
            CHECK,
            format!("{name} has given all its paths up, and fails what is read and written{why}"),
            format!(
                "mend what its paths lack, then `farblock detach {name}` and attach it again, with \
                 --ctrl-loss-timeout never if it is to wait"
            ),
        ),
        "restarting" => Finding::problem(
            CHECK,
            format!("the process that serves {name} does not answer, or is being started{why}"),
            format!("see what {log} says, and run this again in a few seconds"),
        ),
        "unusable" => Finding::problem(
            CHECK,
            format!("{name} is served, and this machine cannot use it{why}"),
            format!("`farblock detach {name} --force`, then attach it again"),
        ),
        _ if !attachment.users.is_empty() => Finding::problem(
            CHECK,
            format!("the processes of {name} are gone, and what its users write is lost{why}"),
            format!("unmount or close it first, then attach it again under this name; see {log}"),
        ),
        _ => Finding::problem(
            CHECK,
            format!("the processes of {name} are gone{why}"),
            format!("attach it again under this name; {log} says how they ended"),
        ),
    }
}

/// A hint that the disk is read-only, which its settings do not ask for.
fn protection(attachment: &Examined) -> Option<Finding> {
    let name = &attachment.name;
    attachment.is_protected.then(|| {
        Finding::hint(
            CHECK,
            format!("{name} cannot be written, because its target shares it read-only"),
            "see on the target's machine whether that is meant; if it is, attach with --read-only",
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

/// Whether paths are connected, and no target allows access.
fn is_denied_everywhere(attachment: &Examined) -> bool {
    attachment.paths.iter().any(is_denied) && !is_usable(attachment)
}

fn is_denied(way: &Way) -> bool {
    way.access.as_ref().is_some_and(|access| DENIED.contains(&access.as_str()))
}

/// `is_usable`: whether the disk has a path on which its target allows access.
fn path(way: &Way, is_usable: bool) -> Finding {
    const CHECK: &str = "path";
    let Way { url, state, since_seconds, access, reconnects, error } = way;
    match state.as_deref() {
        Some("live") if *reconnects > MANY_RECONNECTS => Finding::hint(
            CHECK,
            format!("{url} is live, and was lost {reconnects} times"),
            "look for what breaks it: cables, ports, a target that is started again and again",
        ),
        Some("live") if is_denied(way) => {
            let access = access.as_deref().unwrap_or_default();
            let what = format!("{url} is live, and its target denies access (ANA: {access})");
            let advice = "see on the target's machine why; `farblock ctl set-ana` allows it there";
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
            let what = format!("{url} is {state} for {since_seconds} s{why}");
            Finding::problem(CHECK, what, "see below where the way there ends")
        }
        None => Finding::problem(
            CHECK,
            format!("nobody says how {url} is"),
            "see below whether the way there is free",
        ),
    }
}

/// The target is reachable, but the attachment has given up the path.
fn given_up(attachment: &Examined, way: &Way) -> Option<Finding> {
    (way.state.as_deref() == Some("failed")).then(|| {
        Finding::hint(
            "path",
            format!("the way to {} is free now, and was given up before", way.url),
            format!("`farblock detach {}`, and attach it again", attachment.name),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(state: &'static str, path: Option<&str>) -> Examined {
        let url = "nvme+tcp://127.0.0.1:1/nqn.2026-11.org.example:a?ns=1".parse().expect("a URL");
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
    fn each_state_has_its_sentence() {
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
    fn a_summary_names_what_is_wrong_and_how_to_see_more() {
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
    fn a_path_that_is_lost_is_gone_along() {
        let found = examine(&attachment("reconnecting", Some("reconnecting")), WAIT_LIMIT);
        let last = found.last().expect("some");
        assert!(last.what.contains("nothing listens at 127.0.0.1:1"), "{found:?}");
        let well = Examined { trouble: None, ..attachment("live", Some("live")) };
        let found = examine(&well, WAIT_LIMIT);
        assert!(found.iter().all(|one| one.verdict == Verdict::Ok), "{found:?}");
    }

    #[test]
    fn swap_on_the_disk_is_a_problem() {
        let swap = Some(("the machine swaps to /dev/x".to_owned(), "swap elsewhere"));
        let swapped = Examined { swap, trouble: None, ..attachment("live", Some("live")) };
        let problem = |one: &&Finding| one.verdict == Verdict::Problem;
        let found = examine(&swapped, WAIT_LIMIT);
        assert_eq!(found.iter().find(problem).map(|one| one.check), Some("swap"), "{found:?}");
        assert!(summary(&swapped).iter().any(|one| one.check == "swap"), "{found:?}");
    }

    #[test]
    fn a_disk_that_refuses_writes_is_a_problem_wherever_it_is_looked_at() {
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
    fn an_attachment_is_of_its_namespace_over_any_address() {
        let one = attachment("live", Some("live"));
        let nqn = "nqn.2026-11.org.example:a";
        assert!(is_of(&one, (nqn, Some(1))) && is_of(&one, (nqn, None)));
        assert!(!is_of(&one, (nqn, Some(2))) && !is_of(&one, ("nqn.2026-11.org.example:b", None)));
    }

    const WAIT_LIMIT: Duration = Duration::from_secs(5);
}
