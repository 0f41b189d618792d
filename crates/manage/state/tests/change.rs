//! From one document to another, with a failure at every step.

use farblock_state::{Document, Host, Listener, Namespace, Running, Step, Subsystem};
use farblock_state::{merge, patch, pointer, reconcile, steps};
use std::collections::BTreeMap;

/// What a target would be, and at which step it fails.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Model {
    document: Document,
    fails_at: Option<usize>,
    taken: usize,
}

impl Running for Model {
    type Undo = Document;

    fn take(&mut self, step: &Step) -> Result<Document, String> {
        let before = self.document.clone();
        if self.fails_at == Some(self.taken) {
            return Err("it does not work".to_owned());
        }
        self.taken += 1;
        let all = &mut self.document.subsystems;
        match step.clone() {
            Step::AddListener(address) => {
                let listeners = &mut self.document.listeners;
                assert!(listeners.insert(address, Listener {}).is_none());
            }
            Step::RemoveListener(address) => {
                self.document.listeners.remove(&address).expect("it is there");
            }
            Step::AddSubsystem { nqn, subsystem } => {
                assert!(subsystem.namespaces.is_empty() && subsystem.hosts.is_empty());
                assert!(all.insert(nqn, subsystem).is_none());
            }
            Step::RemoveSubsystem { nqn, .. } => {
                let gone = all.remove(&nqn).expect("it is there");
                assert!(gone.namespaces.is_empty() && gone.hosts.is_empty(), "{gone:?}");
            }
            Step::AddNamespace { nqn, nsid, namespace } => {
                let spaces = &mut all.get_mut(&nqn).expect("it is there").namespaces;
                assert!(spaces.values().all(|other| other.path != namespace.path), "locked");
                assert!(spaces.insert(nsid, namespace).is_none());
            }
            Step::RemoveNamespace { nqn, nsid, .. } => {
                all.get_mut(&nqn).unwrap().namespaces.remove(&nsid).expect("it is there");
            }
            Step::ChangeNamespace { nqn, nsid, from, to } => {
                let place = all.get_mut(&nqn).unwrap().namespaces.get_mut(&nsid).unwrap();
                assert_eq!(*place, from);
                *place = to;
            }
            Step::AllowHost { nqn, host } => {
                assert!(all.get_mut(&nqn).unwrap().hosts.insert(host, Host {}).is_none());
            }
            Step::DisallowHost { nqn, host } => {
                all.get_mut(&nqn).unwrap().hosts.remove(&host).expect("it is there");
            }
            Step::AllowAnyHost { nqn, allow } => {
                all.get_mut(&nqn).unwrap().allow_any_host = allow;
            }
            Step::AddReferral(_) | Step::RemoveReferral(_) => unreachable!("there are none"),
        }
        Ok(before)
    }

    fn take_back(&mut self, before: Document) -> Result<(), String> {
        self.document = before;
        Ok(())
    }
}

fn subsystem(hosts: &[&str], paths: &[(u32, &str)]) -> Subsystem {
    Subsystem {
        allow_any_host: hosts.is_empty(),
        hosts: hosts.iter().map(|host| (format!("nqn.2026-11.h:{host}"), Host {})).collect(),
        namespaces: paths.iter().map(|(id, path)| (*id, Namespace::new(*path))).collect(),
        ..Subsystem::default()
    }
}

fn document(ports: &[u16], subsystems: &[(&str, Subsystem)]) -> Document {
    let listener = |port: &u16| (([127, 0, 0, 1], *port).into(), Listener {});
    let named = |(name, it): &(&str, Subsystem)| (format!("nqn.2026-11.s:{name}"), it.clone());
    Document {
        listeners: ports.iter().map(listener).collect(),
        subsystems: subsystems.iter().map(named).collect(),
        ..Document::default()
    }
}

/// Documents that differ in every way from each other.
fn documents() -> Vec<Document> {
    let mut changed = subsystem(&["a", "c"], &[(1, "x"), (2, "z"), (3, "y")]);
    let first = changed.namespaces.get_mut(&1).unwrap();
    (first.read_only, first.size) = (true, Some(4096));
    let renamed = Subsystem { serial: Some("N".to_owned()), ..subsystem(&[], &[(1, "x")]) };
    vec![
        document(&[1], &[]),
        document(&[1], &[("one", subsystem(&["a", "b"], &[(1, "x"), (2, "y")]))]),
        document(&[2, 3], &[("one", changed), ("two", subsystem(&[], &[(1, "w")]))]),
        document(&[1, 3], &[("one", subsystem(&[], &[(2, "x")])), ("three", subsystem(&[], &[]))]),
        document(&[3], &[("one", renamed)]),
    ]
}

#[test]
fn every_document_leads_to_every_other() {
    for from in documents() {
        from.check().unwrap();
        for to in documents() {
            let mut model = Model { document: from.clone(), ..Model::default() };
            let steps = steps(&from, &to);
            reconcile(&mut model, &steps).unwrap();
            assert_eq!(model.document, to);
            assert_eq!(steps.is_empty(), from == to, "{steps:?}");
        }
    }
}

#[test]
fn a_failing_step_leaves_everything_as_it_was() {
    let mut failures = 0;
    for from in documents() {
        for to in documents() {
            let steps = steps(&from, &to);
            for (fails_at, step) in steps.iter().enumerate() {
                let fails_at = Some(fails_at);
                let mut model = Model { document: from.clone(), fails_at, taken: 0 };
                let failed = reconcile(&mut model, &steps).unwrap_err();
                assert_eq!((&*failed.step, failed.left.len()), (step, 0));
                assert_eq!(failed.to_string(), "it does not work");
                assert_eq!(model.document, from);
                failures += 1;
            }
        }
    }
    assert!(failures > 50, "{failures}");
}

#[test]
fn namespaces_are_there_before_their_listener_answers() {
    let all = documents();
    let steps = steps(&all[0], &all[2]);
    let said: Vec<String> = steps.iter().map(ToString::to_string).collect();
    let at = |what: &str| said.iter().position(|line| line.contains(what)).unwrap_or(usize::MAX);
    assert!(at("listens on 127.0.0.1:1 no more") < at("s:one: added"), "{said:#?}");
    assert!(at("s:one: added") < at("namespace 1 added, stored in x"), "{said:#?}");
    assert!(at("namespace 3 added") < at("host nqn.2026-11.h:a may"), "{said:#?}");
    assert!(at("host nqn.2026-11.h:c may") < at("listens on 127.0.0.1:2"), "{said:#?}");
    assert!(at("listens on 127.0.0.1:3") < usize::MAX, "{said:#?}");
}

#[test]
fn a_host_that_may_stay_is_not_sent_away() {
    let listed = document(&[1], &[("one", subsystem(&["a"], &[]))]);
    let any = document(&[1], &[("one", subsystem(&[], &[]))]);
    let is_any =
        |step: &Step, may: bool| matches!(step, Step::AllowAnyHost { allow, .. } if *allow == may);
    let opened = steps(&listed, &any);
    assert!(is_any(&opened[0], true) && matches!(opened[1], Step::DisallowHost { .. }));
    let closed = steps(&any, &listed);
    assert!(matches!(closed[0], Step::AllowHost { .. }) && is_any(&closed[1], false));
}

#[test]
fn a_file_changes_what_it_changed_and_nothing_else() {
    let configured = document(&[1], &[("one", subsystem(&["a"], &[(1, "x"), (2, "y")]))]);
    let mut current = configured.clone();
    let one = current.subsystems.values_mut().next().unwrap();
    one.namespaces.insert(7, Namespace::new("mine"));
    one.hosts.insert("nqn.2026-11.h:mine".to_owned(), Host {});
    one.namespaces.remove(&2);
    assert_eq!(merge(&configured, &configured, &current), current, "the file is the same");
    let mut file = configured.clone();
    let in_file = file.subsystems.values_mut().next().unwrap();
    in_file.namespaces.insert(3, Namespace::new("new"));
    in_file.namespaces.get_mut(&1).unwrap().read_only = true;
    in_file.hosts.clear();
    in_file.allow_any_host = true;
    let merged = merge(&configured, &file, &current);
    let one = merged.subsystems.values().next().unwrap();
    assert_eq!(one.namespaces.keys().collect::<Vec<_>>(), [&1, &3, &7]);
    assert!(one.namespaces[&1].read_only && one.allow_any_host);
    assert_eq!(one.hosts.keys().collect::<Vec<_>>(), ["nqn.2026-11.h:mine"]);
    file.subsystems.clear();
    assert_eq!(merge(&configured, &file, &current).subsystems, BTreeMap::new());
}

#[test]
fn what_is_wrong_is_said_with_its_field() {
    let good = documents().remove(2).to_json();
    assert_eq!(Document::parse(&good).unwrap(), documents()[2]);
    let wrong: [(&[&str], &str, &str, &str); 8] = [
        (&[], r#"{"version": 2}"#, "version", "version 1 only"),
        (&[], r#"{"colour": "red"}"#, "colour", "unknown field `colour`"),
        (&[], r#"{"listeners": {"host:1": {}}}"#, "listeners.host:1", "invalid socket address"),
        (&[], r#"{"listeners": {"127.0.0.1:0": {}}}"#, "listeners.127.0.0.1:0", "port 0"),
        (&["subsystems"], r#"{"nonsense": {"hosts": 7}}"#, "subsystems.nonsense.hosts", "map"),
        (
            &["subsystems", "nqn.2026-11.s:two", "namespaces"],
            r#"{"2000": {"path": "x"}}"#,
            "subsystems.nqn.2026-11.s:two.namespaces.2000",
            "use 1 to 1024",
        ),
        (
            &["subsystems", "nqn.2026-11.s:two", "namespaces", "1"],
            r#"{"size": 100}"#,
            "subsystems.nqn.2026-11.s:two.namespaces.1.size",
            "whole number of blocks",
        ),
        (
            &["subsystems", "nqn.2026-11.s:two"],
            r#"{"serial": "way too long for this field"}"#,
            "subsystems.nqn.2026-11.s:two.serial",
            "serial number",
        ),
    ];
    for (place, change, field, part) in wrong {
        let mut value = serde_json::from_str(&good).unwrap();
        let change = serde_json::from_str(change).unwrap();
        patch(pointer(&mut value, place).unwrap(), &change);
        let problem = Document::parse(&value.to_string()).unwrap_err();
        assert_eq!(problem.field, field, "{problem}");
        assert!(problem.sentence.contains(part), "{problem}");
    }
}
