//! A crash while a state is stored leaves the old state or the new one.

use farblock_state::{Document, Host, Kept, Namespace, Stage, Store};

fn kept(port: u16) -> Kept {
    let mut document = Document::default();
    document.listeners.insert(([127, 0, 0, 1], port).into(), Default::default());
    Kept { configured: document.clone(), shared: document }
}

#[test]
fn a_crash_leaves_the_old_state_or_the_new_one() {
    use Stage::{Created, Durable, Renamed, Synced, Written};
    for (number, last) in [Created, Written, Synced, Renamed, Durable].into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().join("state.json"));
        assert_eq!(store.load().unwrap(), None);
        store.save(&kept(1)).unwrap();
        store.save_until(&kept(2), |stage| stage != last).unwrap();
        let expected = if number < 3 { kept(1) } else { kept(2) };
        assert_eq!(store.load().unwrap(), Some(expected), "{last:?}");
        // The leftovers of a crash do not disturb the next save.
        store.save(&kept(3)).unwrap();
        assert_eq!(store.load().unwrap(), Some(kept(3)));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

#[test]
fn an_invalid_state_file_is_neither_used_nor_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    std::fs::write(&path, "{").unwrap();
    let said = Store::new(&path).load().unwrap_err().to_string();
    assert!(said.contains("remove it to start from the configuration"), "{said}");
    let mut wrong = kept(1);
    wrong.shared.version = 9;
    Store::new(&path).save(&wrong).unwrap();
    assert!(Store::new(&path).load().unwrap_err().to_string().contains("documents of version 1"));
}

/// Names that an earlier version accepted must not stop a target that uses them.
#[test]
fn a_stored_state_with_old_names_is_loaded() {
    let named = |hosts: &[&str], visible_to: &str| {
        let mut kept = kept(1);
        let subsystem = kept.shared.subsystems.entry("nqn.2026-11.s:one".into()).or_default();
        subsystem.hosts.extend(hosts.iter().map(|&host| (host.into(), Host::default())));
        let mut namespace = Namespace::new("mem:1MiB");
        namespace.visible_to = Some([visible_to.to_owned()].into());
        subsystem.namespaces.insert(3, namespace);
        kept
    };
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path().join("state.json"));
    let old = named(&["nqm.2026-11.h:a", "nqn.2026-11.h:b"], "two words");
    store.save(&old).unwrap();
    assert_eq!(store.load().unwrap(), Some(old.clone()));
    let doubts = old.shared.doubtful_names();
    assert_eq!(doubts.len(), 2, "{doubts:?}");
    assert!(doubts[0].contains("did you mean nqn.2026-11.h:a?"), "{doubts:?}");
    assert!(doubts[0].contains("ctl disallow-host 'nqn.2026-11.s:one' 'nqm.2026-11.h:a'"));
    assert!(doubts[1].contains("ctl visible-to 'nqn.2026-11.s:one' 3 "), "{doubts:?}");

    // A request can change and remove all these objects, but cannot add an object with such a name.
    assert!(Document::parse(&old.shared.to_json()).is_err());
    assert!(Document::parse_after(&old.shared.to_json(), &old.shared).is_ok());
    let fewer = named(&["nqm.2026-11.h:a"], "nqn.2026-11.h:b").shared;
    assert_eq!(fewer.check_after(&old.shared), Ok(()));
    let more = named(&["nqm.2026-11.h:c"], "two words").shared;
    assert!(more.check_after(&old.shared).unwrap_err().sentence.contains("nqn.2026-11.h:c"));

    for name in ["", "a\nb", "nqn.nonsense", &"x".repeat(300)] {
        store.save(&named(&[name], "two words")).unwrap();
        let said = store.load().unwrap_err().to_string();
        assert!(said.contains("is not a valid state file"), "{name:?}: {said}");
    }
}

/// A file cannot replace a folder. The new file must not stay beside the folder.
#[test]
fn a_failed_save_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path().join("state.json"));
    std::fs::create_dir_all(store.path().join("folder")).unwrap();
    let said = store.save(&kept(1)).unwrap_err().to_string();
    assert!(said.contains("state.json") && !said.contains("os error"), "{said}");
    let left = std::fs::read_dir(folder.path()).unwrap().map(|one| one.unwrap().file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["state.json"]);
    let said = store.load().unwrap_err().to_string();
    assert!(said.contains("not a regular file"), "{said}");
}

#[cfg(unix)]
#[test]
fn a_state_file_belongs_to_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    let mut one = Store::new(&path);
    one.claim().unwrap();
    let refused = Store::new(&path).claim().unwrap_err().to_string();
    assert!(refused.contains("another farblock"), "{refused}");
    one.save(&kept(1)).unwrap();
    Store::new(&path).claim().unwrap_err();
    drop(one);
    Store::new(&path).claim().unwrap();
    assert!(Store::new(folder.path()).claim().is_ok(), "only `load` reports the damage");
}

#[cfg(unix)]
#[test]
fn a_symbolic_link_to_a_state_file_stays_a_link() {
    let folder = tempfile::tempdir().unwrap();
    let (link, path) = (folder.path().join("link"), folder.path().join("state.json"));
    Store::new(&path).save(&kept(1)).unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    Store::new(&link).save(&kept(2)).unwrap();
    assert_eq!(Store::new(&path).load().unwrap(), Some(kept(2)));
    assert!(link.is_symlink());
}

#[cfg(unix)]
#[test]
fn only_the_owner_can_read_a_state_file() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path().join("state.json"));
    store.save(&kept(1)).unwrap();
    assert_eq!(store.path().metadata().unwrap().permissions().mode() & 0o777, 0o600);
}
