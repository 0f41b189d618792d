//! Changes one document to another, with a failure at every step.

use farblock_state::{
    Ana, Document, Host, Limits, Listener, Namespace, Referral, Running, Step, Subsystem,
};
use farblock_state::{merge, patch, pointer, reconcile, steps};
use std::collections::BTreeMap;

/// The state of a simulated target, and the step at which it fails.
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
            Step::AddListener(address, listener) => {
                let listeners = &mut self.document.listeners;
                assert!(listeners.insert(address, listener).is_none());
            }
            Step::RemoveListener(address, listener) => {
                assert_eq!(self.document.listeners.remove(&address), Some(listener));
            }
            Step::ChangeListener { address, from, to } => {
                assert_eq!(self.document.listeners.insert(address, to), Some(from));
            }
            Step::AddSubsystem { nqn, subsystem } => {
                assert!(subsystem.namespaces.is_empty() && subsystem.hosts.is_empty());
                assert!(all.insert(nqn, subsystem).is_none());
            }
            Step::RemoveSubsystem { nqn, .. } => {
                let gone = all.remove(&nqn).expect("the subsystem exists");
                assert!(gone.namespaces.is_empty() && gone.hosts.is_empty(), "{gone:?}");
            }
            Step::AddNamespace { nqn, nsid, namespace } => {
                let spaces = &mut all.get_mut(&nqn).expect("the subsystem exists").namespaces;
                assert!(
                    spaces.values().all(|other| other.path != namespace.path),
                    "no other namespace has this file"
                );
                assert!(spaces.insert(nsid, namespace).is_none());
            }
            Step::RemoveNamespace { nqn, nsid, .. } => {
                all.get_mut(&nqn).unwrap().namespaces.remove(&nsid).expect("the namespace exists");
            }
            Step::ChangeNamespace { nqn, nsid, from, to } => {
                let place = all.get_mut(&nqn).unwrap().namespaces.get_mut(&nsid).unwrap();
                assert_eq!(*place, from);
                *place = to;
            }
            Step::AllowHost { nqn, host, entry } => {
                assert!(all.get_mut(&nqn).unwrap().hosts.insert(host, entry).is_none());
            }
            Step::ChangeHost { nqn, host, from, to } => {
                let place = all.get_mut(&nqn).unwrap().hosts.get_mut(&host).unwrap();
                assert_eq!(*place, from);
                *place = to;
            }
            Step::DisallowHost { nqn, host } => {
                all.get_mut(&nqn).unwrap().hosts.remove(&host).expect("the host exists");
            }
            Step::AllowAnyHost { nqn, allow } => {
                all.get_mut(&nqn).unwrap().allow_any_host = allow;
            }
            Step::AddReferral(address) => {
                assert!(self.document.referrals.insert(address, Referral {}).is_none());
            }
            Step::RemoveReferral(address) => {
                self.document.referrals.remove(&address).expect("the referral exists");
            }
        }
        Ok(before)
    }

    fn take_back(&mut self, before: Document) -> Result<(), String> {
        self.document = before;
        Ok(())
    }
}

fn keyed(key: &str) -> Host {
    Host { dhchap_key: Some(format!("/{key}.key")), ..Host::default() }
}

/// A subsystem. Each host is NAME, or NAME=KEY.
fn subsystem(hosts: &[&str], paths: &[(u32, &str)]) -> Subsystem {
    let entry = |host: &&str| match host.split_once('=') {
        Some((host, key)) => (format!("nqn.2026-11.h:{host}"), keyed(key)),
        None => (format!("nqn.2026-11.h:{host}"), Host::default()),
    };
    Subsystem {
        allow_any_host: hosts.is_empty(),
        hosts: hosts.iter().map(entry).collect(),
        namespaces: paths.iter().map(|(id, path)| (*id, Namespace::new(*path))).collect(),
        ..Subsystem::default()
    }
}

fn document(ports: &[u16], subsystems: &[(&str, Subsystem)]) -> Document {
    let listener = |port: &u16| (([127, 0, 0, 1], *port).into(), Listener::default());
    let named = |(name, it): &(&str, Subsystem)| (format!("nqn.2026-11.s:{name}"), it.clone());
    Document {
        listeners: ports.iter().map(listener).collect(),
        subsystems: subsystems.iter().map(named).collect(),
        ..Document::default()
    }
}

/// Documents that differ from each other in every setting.
fn documents() -> Vec<Document> {
    let mut changed = subsystem(&["a=1", "c=2"], &[(1, "x"), (2, "z"), (3, "y")]);
    let first = changed.namespaces.get_mut(&1).unwrap();
    (first.read_only, first.size, first.ana_group) = (true, Some(4096), 2);
    first.limits = Limits { iops: Some(100), burst_ms: Some(5), ..Limits::default() };
    first.visible_to = Some(["nqn.2026-11.h:a".to_owned()].into());
    let ana_groups = [(2, Ana::Inaccessible), (7, Ana::Change)].into();
    let far = Listener { ana: Ana::NonOptimized, ana_groups, ..Listener::default() };
    let mut reached = document(&[1, 3], &[("one", subsystem(&[], &[(2, "x")]))]);
    reached.listeners.values_mut().for_each(|listener| listener.clone_from(&far));
    let mut referring = document(&[1], &[("two", subsystem(&[], &[]))]);
    referring.referrals = [8, 9].map(|port| (([10, 0, 0, 1], port).into(), Referral {})).into();
    let mut elsewhere = referring.clone();
    elsewhere.referrals = [9, 7].map(|port| (([10, 0, 0, 1], port).into(), Referral {})).into();
    let renamed = Subsystem { serial: Some("N".to_owned()), ..subsystem(&[], &[(1, "x")]) };
    vec![
        document(&[1], &[]),
        document(&[1], &[("one", subsystem(&["a", "b"], &[(1, "x"), (2, "y")]))]),
        document(&[2, 3], &[("one", changed), ("two", subsystem(&[], &[(1, "w")]))]),
        document(&[1, 3], &[("one", subsystem(&[], &[(2, "x")])), ("three", subsystem(&[], &[]))]),
        document(&[3], &[("one", renamed)]),
        document(&[1], &[("one", subsystem(&["a", "c=3"], &[(1, "x")]))]),
        reached,
        referring,
        elsewhere,
    ]
}

#[test]
fn the_steps_turn_every_document_into_every_other() {
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
fn a_failed_step_is_rolled_back() {
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
fn namespaces_are_added_before_their_listener() {
    let all = documents();
    let steps = steps(&all[0], &all[2]);
    let said: Vec<String> = steps.iter().map(ToString::to_string).collect();
    let at = |what: &str| said.iter().position(|line| line.contains(what)).unwrap_or(usize::MAX);
    assert!(at("no longer listens on 127.0.0.1:1") < at("s:one: added"), "{said:#?}");
    assert!(at("s:one: added") < at("namespace 1 added, stored in x"), "{said:#?}");
    assert!(at("namespace 3 added") < at("host nqn.2026-11.h:a may"), "{said:#?}");
    assert!(at("host nqn.2026-11.h:c may") < at("listens on 127.0.0.1:2"), "{said:#?}");
    assert!(at("listens on 127.0.0.1:3") < usize::MAX, "{said:#?}");
}

#[test]
fn a_host_that_stays_allowed_is_not_disconnected() {
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
fn a_merge_applies_only_the_changes_of_the_file() {
    let configured = document(&[1], &[("one", subsystem(&["a"], &[(1, "x"), (2, "y")]))]);
    let mut current = configured.clone();
    let one = current.subsystems.values_mut().next().unwrap();
    one.namespaces.insert(7, Namespace::new("mine"));
    one.hosts.insert("nqn.2026-11.h:mine".to_owned(), Host::default());
    one.namespaces.remove(&2);
    assert_eq!(
        merge(&configured, &configured, &current),
        current,
        "a file without changes changes nothing"
    );
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
fn an_invalid_document_names_the_field() {
    let good = documents().remove(2).to_json();
    assert_eq!(Document::parse(&good).unwrap(), documents()[2]);
    let wrong: [(&[&str], &str, &str, &str); 13] = [
        (&["subsystems"], r#"{"two words": {}}"#, "subsystems.two words", "contains a space"),
        (
            &["subsystems", "nqn.2026-11.s:two"],
            r#"{"allow_any_host": false, "hosts": {"nqm.2026-11.h:a": {}}}"#,
            "subsystems.nqn.2026-11.s:two.hosts.nqm.2026-11.h:a",
            "did you mean nqn.2026-11.h:a?",
        ),
        (
            &["subsystems", "nqn.2026-11.s:two", "namespaces", "1"],
            r#"{"visible_to": ["two words"]}"#,
            "subsystems.nqn.2026-11.s:two.namespaces.1.visible_to",
            "contains a space",
        ),
        (&[], r#"{"version": 2}"#, "version", "documents of version 1"),
        (&[], r#"{"colour": "red"}"#, "colour", "unknown field `colour`"),
        (&[], r#"{"listeners": {"host:1": {}}}"#, "listeners.host:1", "not an IP address and port"),
        (&[], r#"{"listeners": {"127.0.0.1:0": {}}}"#, "listeners.127.0.0.1:0", "port 0"),
        (&["subsystems"], r#"{"nonsense": {"hosts": 7}}"#, "subsystems.nonsense.hosts", "map"),
        (&["subsystems"], r#"{"nonsense": [null, null]}"#, "subsystems.nonsense", "a list"),
        (
            &["subsystems", "nqn.2026-11.s:two", "namespaces", "1"],
            r#"{"limits": []}"#,
            "subsystems.nqn.2026-11.s:two.namespaces.1.limits",
            "a list",
        ),
        (
            &["subsystems", "nqn.2026-11.s:two", "namespaces"],
            r#"{"20000": {"path": "x"}}"#,
            "subsystems.nqn.2026-11.s:two.namespaces.20000",
            "use 1 to 10240",
        ),
        (
            &["subsystems", "nqn.2026-11.s:two", "namespaces", "1"],
            r#"{"size": 100}"#,
            "subsystems.nqn.2026-11.s:two.namespaces.1.size",
            "whole number of 512-byte blocks",
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

#[test]
fn a_file_that_omits_a_key_does_not_remove_it() {
    let configured = document(&[1], &[("one", subsystem(&["a", "b=1"], &[]))]);
    let current = document(&[1], &[("one", subsystem(&["a=9", "b=2", "c=3"], &[]))]);
    let keys = |file: &Document| {
        let merged = merge(&configured, file, &current);
        let hosts = merged.subsystems.into_values().next().unwrap().hosts;
        hosts.into_values().map(|host| host.dhchap_key).collect::<Vec<_>>()
    };
    let some = |names: [&str; 3]| names.map(|name| keyed(name).dhchap_key).to_vec();
    // The new file lists a host that got its key at run time, and changes the key of another host.
    let file = document(&[1], &[("one", subsystem(&["a", "b=4", "c"], &[]))]);
    assert_eq!(keys(&file), some(["9", "4", "3"]));
    // A key that the file itself contained is removed.
    let file = document(&[1], &[("one", subsystem(&["a", "b"], &[]))]);
    assert_eq!(keys(&file), [keyed("9").dhchap_key, None, keyed("3").dhchap_key]);
    // The new file lists a subsystem that was added at run time.
    let nothing = document(&[1], &[]);
    let file = document(&[1], &[("one", subsystem(&["a", "b", "c"], &[]))]);
    let merged = merge(&nothing, &file, &current);
    assert_eq!(merged, current);
}

#[test]
fn omitted_fields_of_a_request_do_not_remove_protection() {
    use farblock_state::{doors_kept, keys_kept};
    use serde_json::json;
    let old = document(&[1], &[("one", subsystem(&["a=1", "b"], &[]))]);
    let new = |host: serde_json::Value| {
        let hosts = json!({ "nqn.2026-11.h:a": host, "nqn.2026-11.h:b": {} });
        json!({ "subsystems": { "nqn.2026-11.s:one": { "hosts": hosts } } })
    };
    let problem = keys_kept(&old, &new(json!({}))).unwrap_err();
    assert!(problem.field.ends_with("h:a.dhchap_key"), "{problem}");
    assert_eq!(
        keys_kept(&old, &new(json!([]))).unwrap_err(),
        problem,
        "an array in place of a host omits its keys"
    );
    let any = document(&[1], &[("one", subsystem(&[], &[]))]);
    assert!(doors_kept(&old, &any).unwrap_err().field.ends_with("s:one.allow_any_host"));
    for good in [&old, &document(&[1], &[]), &document(&[1], &[("one", subsystem(&["b"], &[]))])] {
        assert_eq!(doors_kept(&old, good), Ok(()));
    }
    for good in [
        new(json!({ "dhchap_key": "/other.key" })),
        new(json!({ "dhchap_key": null })),
        json!({ "subsystems": { "nqn.2026-11.s:one": { "hosts": {} } } }),
        json!({ "subsystems": {} }),
        json!({}),
        json!(7),
    ] {
        assert_eq!(keys_kept(&old, &good), Ok(()), "{good}");
    }
}

#[test]
fn a_file_cannot_open_a_subsystem_while_a_host_has_a_key_from_run_time() {
    let with = |hosts: &[&str]| document(&[1], &[("one", subsystem(hosts, &[]))]);
    let any = with(&[]);
    let problem = merge(&with(&["a"]), &any, &with(&["a=1"])).check().unwrap_err();
    assert!(problem.field.ends_with("s:one.allow_any_host"), "{problem}");
    // The new file may open the subsystem if the old file contained the key, or if there is no key.
    // A host that was added at run time stays listed, so the document is then invalid.
    for (old, current) in [(&["a=1"], &["a=1"]), (&["a"], &["a"]), (&["a"], &["b"])] {
        let merged = merge(&with(old), &any, &with(current));
        assert_eq!(merged.check().is_ok(), *current != ["b"], "{merged:?}");
    }
}

/// While one listener replaces another, a host always has a path.
#[test]
fn a_listener_becomes_usable_before_another_becomes_unusable() {
    let with = |first, second| {
        let mut document = document(&[1, 2], &[]);
        for (listener, ana) in document.listeners.values_mut().zip([first, second]) {
            listener.ana = ana;
        }
        document
    };
    for turned in [false, true] {
        let (mut from, mut to) =
            (with(Ana::Optimized, Ana::Inaccessible), with(Ana::Inaccessible, Ana::NonOptimized));
        if turned {
            (from, to) =
                (with(Ana::Inaccessible, Ana::Optimized), with(Ana::Optimized, Ana::Change));
        }
        let said: Vec<_> = steps(&from, &to).iter().map(ToString::to_string).collect();
        let (opens, closes) = match turned {
            false => (
                "127.0.0.1:2: namespaces are non-optimized",
                "127.0.0.1:1: namespaces are inaccessible",
            ),
            true => ("127.0.0.1:1: namespaces are optimized", "127.0.0.1:2: namespaces are change"),
        };
        assert_eq!(said, [opens, closes]);
    }
}

#[test]
fn errors_about_a_key_do_not_contain_it() {
    let with = |change: &dyn Fn(&mut Host)| {
        let mut wrong = document(&[1], &[("one", subsystem(&["a=1"], &[]))]);
        change(wrong.subsystems.values_mut().next().unwrap().hosts.values_mut().next().unwrap());
        wrong.check()
    };
    assert_eq!(with(&|host| host.dhchap_key = Some("credential:host".to_owned())), Ok(()));
    type Change<'a> = &'a dyn Fn(&mut Host);
    let wrong: [(Change<'_>, &str, &str); 7] = [
        (
            &|host| {
                host.host_id = Some("01234567-89ab-cdef-0123-456789abcdef".parse().unwrap());
                host.dhchap_key = None;
            },
            "host_id",
            "without a dhchap_key",
        ),
        (&|host| host.dhchap_key = Some("host.key".to_owned()), "dhchap_key", "absolute path"),
        (&|host| host.dhchap_key = Some("DHHC-1:00:A:".to_owned()), "dhchap_key", "is a secret"),
        (&|host| host.tls_key = Some("tls.key".to_owned()), "tls_key", "absolute path"),
        (&|host| host.tls_key = Some("NVMeTLSkey-1:01:A:".to_owned()), "tls_key", "is a secret"),
        (&|host| host.dhchap_hashes = vec![String::new(); 17], "dhchap_hashes", "too long"),
        (
            &|host| {
                host.dhchap_ctrl_key = host.dhchap_key.take();
            },
            "dhchap_ctrl_key",
            "without a dhchap_key",
        ),
    ];
    for (change, field, part) in wrong {
        let problem = with(change).unwrap_err();
        assert!(problem.field.ends_with(field) && problem.sentence.contains(part), "{problem}");
        assert!(!problem.sentence.contains("DHHC"), "{problem}");
        assert!(!problem.sentence.contains("NVMeTLS"), "{problem}");
    }
}

#[test]
fn an_omitted_tls_key_does_not_remove_the_tls_requirement() {
    use farblock_state::{Tls, keys_kept};
    use serde_json::json;
    let with = |dhchap: bool, tls: bool, any: &str| {
        let mut made = document(&[1], &[("one", subsystem(&["a=1"], &[]))]);
        let host = made.subsystems.values_mut().next().unwrap().hosts.values_mut().next().unwrap();
        host.dhchap_key = dhchap.then(|| format!("/{any}.key"));
        host.tls_key = tls.then(|| "/tls.key".to_owned());
        made
    };
    let host = |document: &Document| {
        document.subsystems.values().next().unwrap().hosts.values().next().unwrap().clone()
    };
    let has = |document: &Document| (host(document).dhchap_key, host(document).tls_key.is_some());
    // The host gets a TLS key at run time. Then the file gives the host another secret.
    let (old, new, current) =
        (with(true, false, "a"), with(true, false, "b"), with(true, true, "a"));
    assert_eq!(has(&merge(&old, &new, &current)), (Some("/b.key".to_owned()), true));
    // The file removes the host's secret. The TLS key stays.
    assert_eq!(has(&merge(&old, &with(false, false, ""), &current)), (None, true));
    // The file contains the TLS key, and then removes it.
    let (old, new) = (with(true, true, "a"), with(true, false, "a"));
    assert_eq!(has(&merge(&old, &new, &old)), (Some("/a.key".to_owned()), false));
    // A request must contain both keys.
    let value = |document: &Document| serde_json::to_value(document).unwrap();
    let problem = keys_kept(&old, &value(&new)).unwrap_err();
    assert!(problem.field.ends_with(".tls_key"), "{problem}");
    assert_eq!(keys_kept(&old, &value(&old)), Ok(()));

    // A listener that requires TLS continues to do so until a request changes that.
    let mut strict = with(true, true, "a");
    strict.listeners.values_mut().for_each(|one| one.tls = Tls::Required);
    let mut said = value(&strict);
    assert_eq!(keys_kept(&strict, &said), Ok(()));
    said["listeners"]["127.0.0.1:1"] = json!({ "ana": "inaccessible" });
    assert!(keys_kept(&strict, &said).unwrap_err().field.ends_with("127.0.0.1:1.tls"));
    // The listener also keeps its requirement if the request spells the address in another way.
    let mut said = value(&strict);
    said["listeners"] = json!({ "127.0.0.1:01": {} });
    assert!(keys_kept(&strict, &said).unwrap_err().field.ends_with("127.0.0.1:1.tls"));
    let mut far = old.clone();
    far.listeners.values_mut().for_each(|one| one.ana = Ana::Inaccessible);
    let merged = merge(&old, &far, &strict);
    assert!(merged.listeners.values().all(|one| one.tls == Tls::Required), "{merged:?}");
}

#[test]
fn two_disks_with_one_identifier_are_refused() {
    const ID: &str = "2d6f12ca-6c90-538f-a383-5ab39f554825";
    let two = |one: &str, other: &str| {
        let text = format!(
            r#"{{"version": 1, "listeners": {{"127.0.0.1:1": {{}}}}, "subsystems": {{
                "nqn.2026-11.s:one": {{"namespaces": {{"1": {{"path": "a", {one}}}}}}},
                "nqn.2026-11.s:two": {{"namespaces": {{"7": {{"path": "b", {other}}}}}}}}}}}"#
        );
        Document::parse(&text)
    };
    let named = |key: &str, id: &str| format!(r#""{key}": "{id}""#);
    for key in ["uuid", "nguid"] {
        let problem = two(&named(key, ID), &named(key, ID)).expect_err("the same identifier twice");
        assert_eq!(problem.field, format!("subsystems.nqn.2026-11.s:two.namespaces.7.{key}"));
        assert!(problem.sentence.contains("namespace 1 of nqn.2026-11.s:one"), "{problem}");
        let nil = two(&named(key, &"0".repeat(32)), r#""size": 512"#)
            .expect_err("a zero identifier is no identifier");
        assert!(nil.sentence.contains("zero is not"), "{nil}");
    }
    assert!(two(&named("uuid", ID), &named("nguid", ID)).is_ok(), "a UUID may equal an NGUID");
}

#[test]
fn an_ana_group_out_of_range_is_refused() {
    let listeners = |groups: &str| {
        let text = format!(
            r#"{{"version": 1, "listeners": {{"127.0.0.1:1": {{"ana_groups": {groups}}}}}}}"#
        );
        Document::parse(&text)
    };
    assert!(listeners(r#"{"128": "persistent-loss"}"#).is_ok());
    for wrong in [r#"{"0": "optimized"}"#, r#"{"129": "optimized"}"#, r#"{"1": "good"}"#] {
        let problem = listeners(wrong).expect_err("invalid");
        assert!(problem.field.contains("ana_groups"), "{problem}");
    }
}

#[test]
fn the_visibility_of_a_namespace_is_validated_and_described() {
    let seen_by = |hosts: Option<&[&str]>| {
        let mut subsystem = subsystem(&["a"], &[(1, "x")]);
        let hosts = hosts.map(|hosts| hosts.iter().map(|host| (*host).to_owned()).collect());
        subsystem.namespaces.get_mut(&1).unwrap().visible_to = hosts;
        document(&[1], &[("one", subsystem)])
    };
    let said = |from: &Document, to: &Document| {
        let said: Vec<_> = steps(from, to).iter().map(ToString::to_string).collect();
        assert_eq!(Document::parse(&to.to_json()).as_ref(), Ok(to));
        said.join("; ")
    };
    let (all, none) = (seen_by(None), seen_by(Some(&[])));
    let two = seen_by(Some(&["nqn.2026-11.h:b", "nqn.2026-11.h:a"]));
    assert!(said(&all, &none).ends_with("namespace 1 visible to no host"));
    let only = "namespace 1 visible only to nqn.2026-11.h:a nqn.2026-11.h:b";
    assert!(said(&none, &two).ends_with(only));
    assert!(said(&two, &all).ends_with("namespace 1 visible to all hosts"));
    let problem = seen_by(Some(&["nqn.bad"])).check().unwrap_err();
    assert_eq!(problem.field, "subsystems.nqn.2026-11.s:one.namespaces.1.visible_to");
    let mut many = two;
    let hosts = (0..257).map(|index| format!("nqn.2026-11.h:{index}")).collect();
    let subsystem = many.subsystems.values_mut().next().unwrap();
    subsystem.namespaces.get_mut(&1).unwrap().visible_to = Some(hosts);
    let problem = many.check().unwrap_err();
    assert!(problem.sentence.contains("256 hosts"), "{problem}");
}

#[test]
fn a_demand_on_a_host_holds_until_it_is_changed() {
    use farblock_state::{Demand, keys_kept};
    use serde_json::json;
    let with = |demand: Option<Demand>, change: &dyn Fn(&mut Host)| {
        let mut made = document(&[1], &[("one", subsystem(&["a=1"], &[]))]);
        let host = made.subsystems.values_mut().next().unwrap().hosts.values_mut().next().unwrap();
        host.demand = demand;
        change(host);
        made
    };
    let own = |host: &mut Host| host.dhchap_ctrl_key = Some("/target.key".to_owned());
    for demand in [Demand::Auth, Demand::Mutual, Demand::Concat] {
        assert_eq!(Demand::from_name(demand.name()), Some(demand));
        assert_eq!(with(Some(demand), &own).check(), Ok(()));
        // A request cannot remove a key while the demand needs it.
        let without = with(Some(demand), &|host| host.dhchap_key = None);
        let problem = without.check().unwrap_err();
        assert!(problem.field.ends_with(".dhchap_key"), "{problem}");
        assert!(problem.sentence.contains("remove the demand first"), "{problem}");
    }
    let refused =
        |demand, change: &dyn Fn(&mut Host)| with(Some(demand), change).check().unwrap_err();
    assert!(refused(Demand::Mutual, &|_| {}).field.ends_with(".dhchap_ctrl_key"));
    let long = |host: &mut Host| host.dhchap_hashes = vec!["sha512".to_owned()];
    assert!(refused(Demand::Concat, &long).field.ends_with(".dhchap_hashes"));
    let none = |host: &mut Host| host.dhchap_dhgroups = vec!["null".to_owned()];
    assert!(refused(Demand::Concat, &none).field.ends_with(".dhchap_dhgroups"));

    let (old, plain) = (with(Some(Demand::Mutual), &own), with(None, &own));
    let value = |document: &Document| serde_json::to_value(document).unwrap();
    let problem = keys_kept(&old, &value(&plain)).unwrap_err();
    assert!(
        problem.field.ends_with(".demand") && problem.sentence.contains("demand is mutual"),
        "{problem}"
    );
    let mut said = value(&plain);
    let hosts = said["subsystems"].as_object_mut().unwrap().values_mut().next().unwrap();
    for host in hosts["hosts"].as_object_mut().unwrap().values_mut() {
        host["demand"] = json!(null);
    }
    assert_eq!(keys_kept(&old, &said), Ok(()));

    // If no file ever contained the demand, the demand stays. If the old file contained the demand
    // and the new file does not, it is removed.
    let demanded = |document: &Document| {
        document.subsystems.values().next().unwrap().hosts.values().next().unwrap().demand
    };
    let other = with(None, &|host| host.dhchap_key = Some("/other.key".to_owned()));
    assert_eq!(demanded(&merge(&plain, &other, &old)), Some(Demand::Mutual));
    assert_eq!(demanded(&merge(&old, &other, &old)), None);
}

#[test]
fn an_rdma_listener_and_a_tcp_listener_can_have_the_same_address() {
    let text = r#"{"version": 1, "listeners": {
        "192.0.2.7:4420": {"tls": "required"}, "rdma:192.0.2.7:4420": {"ana": "non-optimized"}}}"#;
    let both = Document::parse(text).expect("a valid document");
    let written = serde_json::to_string(&both).unwrap();
    assert!(written.contains(r#""rdma:192.0.2.7:4420":{"ana":"non-optimized"}"#), "{written}");
    assert_eq!(Document::parse(&written).unwrap(), both);
    let mut only_tcp = both.clone();
    only_tcp.listeners.retain(|one, _| one.rdma_address().is_none());
    let said: Vec<_> = steps(&only_tcp, &both).iter().map(ToString::to_string).collect();
    assert_eq!(said, ["listens on rdma:192.0.2.7:4420: namespaces are non-optimized"]);
    // RDMA has no TLS.
    let strict = text.replace(r#""ana": "non-optimized""#, r#""tls": "required""#);
    let refused = Document::parse(&strict).unwrap_err().to_string();
    assert!(
        refused.contains("listeners.rdma:192.0.2.7:4420.tls: NVMe/RDMA has no TLS"),
        "{refused}"
    );
    let wrong = Document::parse(&text.replace("rdma:", "roce:")).unwrap_err().to_string();
    assert!(wrong.contains("rdma:192.0.2.7:4420"), "{wrong}");
}
