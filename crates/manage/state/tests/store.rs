//! A crash while a state is stored leaves the old one or the new one.

use farblock_state::{Document, Kept, Stage, Store};

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
        // The leftovers do not disturb the next save.
        store.save(&kept(3)).unwrap();
        assert_eq!(store.load().unwrap(), Some(kept(3)));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

#[test]
fn what_is_no_state_is_not_used_and_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    std::fs::write(&path, "{").unwrap();
    let said = Store::new(&path).load().unwrap_err().to_string();
    assert!(said.contains("remove it to start from the configuration"), "{said}");
    let mut wrong = kept(1);
    wrong.shared.version = 9;
    Store::new(&path).save(&wrong).unwrap();
    assert!(Store::new(&path).load().unwrap_err().to_string().contains("version 1 only"));
}

/// A file cannot replace a folder; the new file is not left beside it.
#[test]
fn what_could_not_be_kept_leaves_nothing() {
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
fn a_state_is_of_one_process() {
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
    assert!(Store::new(folder.path()).claim().is_ok(), "who reads it is told");
}

#[cfg(unix)]
#[test]
fn a_link_to_a_state_stays_one() {
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
fn a_state_is_its_owners() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path().join("state.json"));
    store.save(&kept(1)).unwrap();
    assert_eq!(store.path().metadata().unwrap().permissions().mode() & 0o777, 0o600);
}
