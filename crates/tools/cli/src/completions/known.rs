//! What only this machine knows of a command line that is being typed: names of attachments, and of
//! what a running target shares. A shell that is completing is never told of an error.

use std::ffi::OsString;
use std::path::Path;

/// Options whose value is the next word.
const VALUED: &[&str] =
    &["--control", "--engine", "--nsid", "--block-size", "--runtime-dir", "--visible-to"];

/// What may stand in the place of the last of `words`, which may be empty; the program's name is
/// not among them.
pub(super) fn known(words: &[String]) -> Vec<String> {
    let Some((_, before)) = words.split_last() else { return Vec::new() };
    if before.last().is_some_and(|last| VALUED.contains(&last.as_str())) {
        return Vec::new();
    }
    match positionals(before)[..] {
        ["detach", ..] => attachments(option(words, "--runtime-dir")),
        ["ctl", change, ref given @ ..] => steered(option(words, "--control"), change, given),
        _ => Vec::new(),
    }
}

fn positionals(words: &[String]) -> Vec<&str> {
    let mut found = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if VALUED.contains(&word.as_str()) {
            words.next();
        } else if !word.starts_with('-') {
            found.push(word.as_str());
        }
    }
    found
}

fn option(words: &[String], name: &str) -> Option<OsString> {
    let mut words = words.iter();
    let value = words.find_map(|word| match word.strip_prefix(name) {
        Some("") => Some(None),
        Some(rest) => rest.strip_prefix('=').map(Some),
        None => None,
    })?;
    value.map(OsString::from).or_else(|| words.next().map(OsString::from))
}

fn attachments(folder: Option<OsString>) -> Vec<String> {
    crate::attach::names(folder.as_deref().map(Path::new)).unwrap_or_default()
}

#[cfg(unix)]
fn steered(control: Option<OsString>, change: &str, given: &[&str]) -> Vec<String> {
    let Some(state) = crate::steer::state(control.as_deref().map(Path::new)) else {
        return Vec::new();
    };
    offered(&state, change, given)
}

#[cfg(not(unix))]
fn steered(_: Option<OsString>, _: &str, _: &[&str]) -> Vec<String> {
    Vec::new()
}

/// What of a target's state a change may begin or go on with.
#[cfg(unix)]
fn offered(state: &serde_json::Value, change: &str, given: &[&str]) -> Vec<String> {
    let keys = |value: &serde_json::Value| -> Vec<String> {
        value.as_object().map(|map| map.keys().cloned().collect()).unwrap_or_default()
    };
    let subsystems = &state["subsystems"];
    match (change, given) {
        ("remove-listener", []) => keys(&state["listeners"]),
        ("add-subsystem" | "add-listener" | "remove-listener", _) => Vec::new(),
        (_, []) => keys(subsystems),
        ("remove-namespace" | "resize" | "read-only" | "visible-to", [nqn]) => {
            keys(&subsystems[nqn]["namespaces"])
        }
        ("visible-to", [nqn, _, ..]) => keys(&subsystems[nqn]["hosts"]),
        ("disallow-host", [nqn]) => keys(&subsystems[nqn]["hosts"]),
        ("read-only", [_, _]) | ("allow-any-host", [_]) => vec!["on".into(), "off".into()],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn options_are_no_positionals_and_have_values() {
        let line = words("ctl --control /a -v resize --engine=uring NQN --nsid 1");
        assert_eq!(positionals(&line), ["ctl", "resize", "NQN"]);
        assert_eq!(option(&line, "--control"), Some("/a".into()));
        assert_eq!(option(&line, "--engine"), Some("uring".into()));
        assert_eq!(option(&line, "--runtime-dir"), None);
        assert!(known(&words("ctl resize --control ")).is_empty());
        assert!(known(&[]).is_empty());
    }

    #[cfg(unix)]
    #[test]
    fn each_change_is_followed_by_what_it_changes() {
        let state = serde_json::json!({
            "listeners": { "127.0.0.1:4420": {} },
            "subsystems": { "nqn.a:b": { "namespaces": { "3": {} }, "hosts": { "nqn.h": {} } } }
        });
        let offered = |change, given: &[&str]| offered(&state, change, given).join(" ");
        assert_eq!(offered("resize", &[]), "nqn.a:b");
        assert_eq!(offered("resize", &["nqn.a:b"]), "3");
        assert_eq!(offered("resize", &["nqn.a:b", "3"]), "");
        assert_eq!(offered("resize", &["nqn.other"]), "");
        assert_eq!(offered("disallow-host", &["nqn.a:b"]), "nqn.h");
        assert_eq!(offered("read-only", &["nqn.a:b", "3"]), "on off");
        assert_eq!(offered("remove-listener", &[]), "127.0.0.1:4420");
        assert_eq!(offered("add-listener", &[]), "");
    }
}
