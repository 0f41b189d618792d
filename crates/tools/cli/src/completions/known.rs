//! Completes names that exist on this machine: attachments, and the objects of a running target.
//! This module reports no errors, because the shell that completes a command line could not show
//! them.

use clap::{Arg, Command};
use std::ffi::OsString;
use std::path::Path;

/// The words of an incomplete command line.
struct Typed<'a> {
    /// The command, its subcommands, and the arguments of the last one.
    positionals: Vec<&'a str>,
    /// The options with their values; `None` if the value is not typed yet.
    options: Vec<(&'a str, Option<&'a str>)>,
}

impl<'a> Typed<'a> {
    /// Divides `words` into positionals and options. `command` defines which options take a value.
    fn new(words: &'a [String], command: &Command) -> Typed<'a> {
        let mut typed = Typed { positionals: Vec::new(), options: Vec::new() };
        let mut path = vec![command];
        let mut words = words.iter().map(String::as_str);
        while let Some(word) = words.next() {
            if let Some((name, value)) = word.split_once('=').filter(|_| word.starts_with('-')) {
                typed.options.push((name, Some(value)));
            } else if path.iter().any(|command| is_valued(command, word)) {
                typed.options.push((word, words.next()));
            } else if !word.starts_with('-') {
                path.extend(path.last().and_then(|command| command.find_subcommand(word)));
                typed.positionals.push(word);
            }
        }
        typed
    }

    /// Whether the last word is an option that still needs its value.
    fn ends_in_option(&self) -> bool {
        self.options.last().is_some_and(|(_, value)| value.is_none())
    }

    fn option(&self, name: &str) -> Option<OsString> {
        let found = self.options.iter().find(|(option, _)| *option == name);
        found.and_then(|(_, value)| value.map(OsString::from))
    }
}

/// Whether the word is an option of this command that takes the next word as its value.
fn is_valued(command: &Command, word: &str) -> bool {
    let is_it = |arg: &&Arg| match word.strip_prefix("--") {
        Some(long) => {
            let aliases = arg.get_all_aliases().unwrap_or_default();
            arg.get_long() == Some(long) || aliases.contains(&long)
        }
        None => match word.strip_prefix('-') {
            Some(short) => arg.get_short().is_some_and(|own| short == own.to_string()),
            None => false,
        },
    };
    let mut options = command.get_arguments().filter(|arg| !arg.is_positional());
    options.find(is_it).is_some_and(|arg| arg.get_action().takes_values())
}

/// Returns the candidates for the last word, which may be empty. `words` does not include the name
/// of the program.
pub(super) fn known(words: &[String], command: &Command) -> Vec<String> {
    let Some((_, before)) = words.split_last() else { return Vec::new() };
    let typed = Typed::new(before, command);
    match (&typed.positionals[..], typed.options.last()) {
        // `attach --name` also accepts an attached disk, to add a path or to start a new
        // supervisor.
        (["attach", ..], Some(("--name", None))) => {
            return attachments(typed.option("--runtime-dir"));
        }
        _ if typed.ends_in_option() => return Vec::new(),
        _ => {}
    }
    match typed.positionals[..] {
        ["detach" | "authenticate", ..] | ["doctor"] => attachments(typed.option("--runtime-dir")),
        ["ctl", change, ref given @ ..] => steered(typed.option("--control"), change, given),
        _ => Vec::new(),
    }
}

fn attachments(folder: Option<OsString>) -> Vec<String> {
    crate::attach::names(folder.as_deref().map(Path::new)).unwrap_or_default()
}

#[cfg(unix)]
fn steered(control: Option<OsString>, change: &str, given: &[&str]) -> Vec<String> {
    let Some(state) = farblock_steer::state(control.as_deref().map(Path::new)) else {
        return Vec::new();
    };
    offered(&state, change, given)
}

#[cfg(not(unix))]
fn steered(_: Option<OsString>, _: &str, _: &[&str]) -> Vec<String> {
    Vec::new()
}

/// Returns the names in a target's state that can be the next argument of the command `change`,
/// after the arguments `given`.
#[cfg(unix)]
fn offered(state: &serde_json::Value, change: &str, given: &[&str]) -> Vec<String> {
    let keys = |value: &serde_json::Value| -> Vec<String> {
        value.as_object().map(|map| map.keys().cloned().collect()).unwrap_or_default()
    };
    let subsystems = &state["subsystems"];
    match (change, given) {
        ("remove-listener" | "set-ana" | "set-tls", []) => keys(&state["listeners"]),
        ("remove-referral", []) => keys(&state["referrals"]),
        (
            "add-subsystem" | "add-listener" | "remove-listener" | "set-ana" | "set-tls"
            | "add-referral" | "remove-referral",
            _,
        ) => Vec::new(),
        (_, []) => keys(subsystems),
        (
            "remove-namespace" | "replace-namespace" | "resize" | "read-only" | "visible-to"
            | "limit" | "ana-group" | "verify" | "copy-speed",
            [nqn],
        ) => keys(&subsystems[nqn]["namespaces"]),
        ("visible-to", [nqn, _, ..]) | ("disallow-host" | "limit-host" | "allow-host", [nqn]) => {
            keys(&subsystems[nqn]["hosts"])
        }
        ("read-only", [_, _]) | ("allow-any-host", [_]) => vec!["on".into(), "off".into()],
        _ => Vec::new(),
    }
}

// Only targets on Unix have a control socket.
#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_parser_separates_options_and_their_values_from_positionals() {
        let command = super::super::command();
        let line = words("ctl --control /a -v resize --engine=uring --token-file x NQN --nsid 1");
        let typed = Typed::new(&line, &command);
        assert_eq!(
            typed.positionals,
            ["ctl", "resize", "NQN", "1"],
            "`resize` has no --nsid, so 1 is positional"
        );
        assert_eq!(typed.option("--control"), Some("/a".into()));
        assert_eq!(typed.option("--engine"), Some("uring".into()));
        assert_eq!(typed.option("--runtime-dir"), None);
        // Whether the same option takes a value depends on the command.
        for (line, found) in [
            ("bench --json a mem:1MiB", &["bench", "mem:1MiB"][..]),
            ("doctor --json data", &["doctor", "data"]),
            ("ctl --api http://a --api-ca b add-namespace N", &["ctl", "add-namespace", "N"]),
            ("ctl add-namespace --nsid 3 --block-size 512 N", &["ctl", "add-namespace", "N"]),
            ("read -o file URL --dhchap_secret key", &["read", "URL"]),
            ("ctl --control", &["ctl"]),
        ] {
            assert_eq!(Typed::new(&words(line), &command).positionals, found, "{line}");
        }
        let known = |line: &str| known(&words(line), &command);
        assert!(known("ctl resize --control ").is_empty());
        assert!(super::known(&[], &command).is_empty());
    }

    #[test]
    fn every_ctl_command_completes_the_names_of_existing_objects() {
        let state = serde_json::json!({
            "listeners": { "127.0.0.1:1": {} }, "referrals": { "127.0.0.1:2": {} },
            "subsystems": { "nqn.a:b": { "namespaces": { "3": {} }, "hosts": { "nqn.h": {} } } }
        });
        let command = super::super::command();
        let ctl = command.find_subcommand("ctl").expect("the subcommand exists");
        for change in ctl.get_subcommands().filter(|change| change.get_name() != "help") {
            let positionals: Vec<_> =
                change.get_positionals().map(|it| it.get_id().as_str()).collect();
            let name = change.get_name();
            let (mut given, adds) = (Vec::new(), name.starts_with("add-"));
            for positional in positionals {
                let expected = match positional {
                    "nqn" if name != "add-subsystem" => "nqn.a:b",
                    "nsid" => "3",
                    "host" | "hosts" => "nqn.h",
                    "address" if name == "remove-referral" => "127.0.0.1:2",
                    "address" if !adds => "127.0.0.1:1",
                    "switch" => "on off",
                    _ => "",
                };
                assert_eq!(offered(&state, name, &given).join(" "), expected, "{name} {given:?}");
                given.push(expected);
            }
        }
    }

    #[test]
    fn ctl_completion_offers_the_next_argument_of_each_command() {
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
