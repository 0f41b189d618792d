//! The modules of a crate must not depend on each other in a cycle. This test finds cycles among
//! the top-level modules of each crate, from the paths in their sources, and compares them with the
//! list of allowed cycles.

use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The allowed cycles: crate, modules and reason. A new cycle fails the test. An entry whose cycle
/// no longer exists also fails the test.
const MAY_STAY: &[(&str, &str, &str)] = &[
    (
        "nvmf-target",
        "session transport",
        "a session is generic over its transport, and the transport calls the session",
    ),
    (
        "block",
        "error geometry op",
        "`op` checks an operation against a geometry, and the error contains both",
    ),
    ("mem", "buffer huge", "a buffer maps huge pages, whose size is a constant of its module"),
    (
        "daemon",
        "claim connect folder leftover record rights settings ways",
        "not divided yet: the state of an attached disk, and the attach methods (ublk, NBD, FUSE)",
    ),
];

type Arrows = BTreeMap<String, BTreeSet<String>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// Every crate of the workspace, with its folder.
fn crates() -> Vec<(String, PathBuf)> {
    let rooms = fs::read_dir(root().join("crates")).expect("crates/");
    let mut all: Vec<_> = rooms
        .flat_map(|room| fs::read_dir(room.expect("an entry").path()).expect("a folder of crates"))
        .map(|folder| folder.expect("a crate").path())
        .filter(|folder| folder.join("src").is_dir())
        .map(|folder| (folder.file_name().expect("a name").to_string_lossy().into_owned(), folder))
        .collect();
    all.sort();
    assert!(all.len() > 20, "too few crates: {all:?}");
    all
}

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            into.push(path);
        }
    }
}

/// The modules that are compiled only for tests, as paths without the file extension.
fn test_modules(files: &[PathBuf]) -> Vec<PathBuf> {
    let declared = Regex::new(r"#\[cfg\(test\)\]\n(?:pub(?:\(\w+\))? )?mod (\w+);").expect("valid");
    let mut modules = Vec::new();
    for file in files {
        let text = fs::read_to_string(file).expect("a source");
        let is_top = ["mod.rs", "lib.rs", "main.rs"].iter().any(|name| file.ends_with(name));
        let folder = if is_top {
            file.parent().expect("a file in src").to_owned()
        } else {
            file.with_extension("")
        };
        modules.extend(declared.captures_iter(&text).map(|found| folder.join(&found[1])));
    }
    modules
}

/// The text of a source without its comments and tests.
fn product(text: &str) -> String {
    let tests = Regex::new(r"\n#\[cfg\(test\)\]\nmod \w+ \{").expect("valid");
    let text = tests.split(text).next().unwrap_or_default();
    let item = Regex::new(r"#\[cfg\((?:test|all\(test[^\n]*)\)?\]\s*\n[^\n]*\n").expect("valid");
    let comment = Regex::new(r"(?m)//.*$").expect("valid");
    comment.replace_all(&item.replace_all(text, ""), "").into_owned()
}

/// For each top-level module of a crate, the top-level modules that its source names.
fn arrows(folder: &Path) -> Arrows {
    let source = folder.join("src");
    let mut files = Vec::new();
    sources(&source, &mut files);
    let tests = test_modules(&files);
    let is_test = |file: &Path| {
        tests.iter().any(|module| file.with_extension("") == *module || file.starts_with(module))
    };
    let path = Regex::new(r"crate::(\w+)").expect("valid");
    let group = Regex::new(r"crate::\{((?:[^{}]|\{[^{}]*\})*)\}").expect("valid");
    let inner = Regex::new(r"\{[^{}]*\}").expect("valid");
    let name = Regex::new(r"(?:^|,)\s*(\w+)").expect("valid");
    let mut all = Arrows::new();
    for file in files.iter().filter(|file| !is_test(file)) {
        let place = file.strip_prefix(&source).expect("a file below the folder").with_extension("");
        let module = place.components().next().expect("a name").as_os_str().to_string_lossy();
        if module == "lib" || module == "main" {
            continue;
        }
        let mut text = product(&fs::read_to_string(file).expect("a source"));
        let depth = place.components().count() - usize::from(place.ends_with("mod"));
        // Replace the `super::` paths that lead to the root of the crate.
        text = text.replace(&format!(" {}", "super::".repeat(depth)), " crate::");
        let used = all.entry(module.clone().into_owned()).or_default();
        used.extend(path.captures_iter(&text).map(|found| found[1].to_owned()));
        for found in group.captures_iter(&text) {
            let names = inner.replace_all(&found[1], "").into_owned();
            used.extend(name.captures_iter(&names).map(|found| found[1].to_owned()));
        }
        used.remove(&*module);
    }
    let modules: BTreeSet<_> = all.keys().cloned().collect();
    all.values_mut().for_each(|used| used.retain(|module| modules.contains(module)));
    all
}

/// The modules on which `from` depends, directly or through other modules.
fn reached(arrows: &Arrows, from: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut left = vec![from.to_owned()];
    while let Some(module) = left.pop() {
        for next in &arrows[&module] {
            if reached.insert(next.clone()) {
                left.push(next.clone());
            }
        }
    }
    reached
}

/// The groups of modules that depend on each other.
fn cycles(arrows: &Arrows) -> BTreeSet<String> {
    let reach: BTreeMap<_, _> = arrows.keys().map(|from| (from, reached(arrows, from))).collect();
    let cycle = |from: &String| {
        let mutual = reach[from].iter().filter(|to| reach[to].contains(from));
        mutual.cloned().collect::<Vec<_>>().join(" ")
    };
    reach.keys().map(|from| cycle(from)).filter(|cycle| !cycle.is_empty()).collect()
}

#[test]
fn there_is_no_new_cycle_of_modules() {
    let mut found = BTreeSet::new();
    for (name, folder) in crates() {
        found.extend(cycles(&arrows(&folder)).into_iter().map(|cycle| (name.clone(), cycle)));
    }
    let may_stay: BTreeSet<_> =
        MAY_STAY.iter().map(|(name, cycle, _)| ((*name).to_owned(), (*cycle).to_owned())).collect();
    let new: Vec<_> = found.difference(&may_stay).collect();
    assert!(new.is_empty(), "break these cycles, or say in MAY_STAY why they stay: {new:#?}");
    let gone: Vec<_> = may_stay.difference(&found).collect();
    assert!(gone.is_empty(), "these cycles are gone, so remove their lines: {gone:#?}");
    assert!(MAY_STAY.iter().all(|(_, _, reason)| !reason.is_empty()));
}

#[test]
fn a_cycle_through_other_modules_is_found() {
    let arrow = |from: &str, to: &[&str]| {
        (from.to_owned(), to.iter().map(|to| (*to).to_owned()).collect::<BTreeSet<_>>())
    };
    let arrows = Arrows::from([
        arrow("a", &["b"]),
        arrow("b", &["c"]),
        arrow("c", &["a", "d"]),
        arrow("d", &[]),
        arrow("e", &["a"]),
    ]);
    assert_eq!(cycles(&arrows), BTreeSet::from(["a b c".to_owned()]));
}
