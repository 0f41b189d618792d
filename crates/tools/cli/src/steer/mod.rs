//! Asking a running target for something: `status`, `reload`, `config` and `ctl`, clients of its
//! control socket.

pub(crate) mod args;
mod shown;

use crate::error::{Failure, Result};
use crate::output;
use crate::serve::{disk_name, parse_disk};
use args::{Change, ConfigArgs, ConfigCommand, CtlArgs, ReloadArgs, StatusArgs, Switch};
use farblock_admin::{Answer, Client, Status};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Where control sockets are when nobody says so, if there is such a place.
fn sockets() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|it| it.is_absolute());
    if let Some(given) = variable("FARBLOCK_RUNTIME_DIR") {
        let mut name = given.file_name()?.to_owned();
        name.push("-serve");
        return Some(given.with_file_name(name));
    }
    if rustix::process::geteuid().is_root() {
        return Some("/run/farblock-serve".into());
    }
    variable("XDG_RUNTIME_DIR").map(|folder| folder.join("farblock-serve"))
}

/// The control socket of a target that listens on this address.
pub(crate) fn default_socket(address: &SocketAddr) -> Option<PathBuf> {
    sockets().map(|folder| folder.join(address.to_string()))
}

/// The target that is meant.
fn client(given: Option<&Path>) -> Result<Client> {
    if let Some(path) = given {
        return Ok(Client::new(path));
    }
    let none = || {
        Failure::run(
            "no target of this user runs here that can be steered: start one with farblock serve \
             (without --no-control, and not yet with hosts that have a key), or name its socket \
             with --control",
        )
    };
    let folder = sockets().ok_or_else(none)?;
    let found = std::fs::read_dir(&folder).map_err(|_| none())?;
    let mut living: Vec<_> = found
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| UnixStream::connect(path).is_ok())
        .collect();
    living.sort();
    match &living[..] {
        [] => Err(none()),
        [path] => Ok(Client::new(path)),
        several => {
            let named: Vec<_> = several.iter().map(|path| path.display().to_string()).collect();
            let named = named.join(", ");
            Err(Failure::usage(format_args!(
                "several targets run here: name one of {named} with \
                                             --control"
            )))
        }
    }
}

fn ask(
    client: &Client,
    method: &str,
    uri: &str,
    if_match: Option<&str>,
    body: Option<&Value>,
) -> Result<Answer> {
    let answer = client.ask(method, uri, if_match, body).map_err(Failure::run)?;
    if answer.is_success() {
        return Ok(answer);
    }
    let problem = answer.json();
    let text = |name: &str| problem[name].as_str().unwrap_or_default().to_owned();
    let (detail, field) = (text("detail"), text("field"));
    Err(Failure::run(match (detail.as_str(), field.as_str()) {
        ("", _) => format!("the target answers with {}", answer.status),
        (_, "") => detail,
        _ => format!("{field}: {detail}"),
    }))
}

/// Prints what a change did.
fn say(answer: &Answer, nothing: &str) -> Result<()> {
    let answer = answer.json();
    let lines = answer["changed"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    output::print(if text.is_empty() { nothing } else { &text })
}

/// `farblock status`.
pub(crate) fn status(args: &StatusArgs) -> Result<()> {
    let client = client(args.which.control.as_deref())?;
    let mut before: Option<Status> = None;
    loop {
        let answer = ask(&client, "GET", "/v1/status", None, None)?;
        let status: Status = serde_json::from_str(&answer.body).map_err(|error| {
            Failure::run(format_args!("the target is of another version than this: {error}"))
        })?;
        if args.json && args.watch {
            output::print_json_line(&status)?;
        } else if args.json {
            output::print_json(&status)?;
        } else {
            output::print(&shown::status(&status, before.as_ref()))?;
        }
        if !args.watch {
            return Ok(());
        }
        std::thread::sleep(WATCH_EVERY);
        before = Some(status);
    }
}

/// `farblock reload`.
pub(crate) fn reload(args: &ReloadArgs) -> Result<()> {
    let client = client(args.which.control.as_deref())?;
    say(&ask(&client, "POST", "/v1/reload", None, None)?, "nothing has changed in it\n")
}

/// `farblock config`.
pub(crate) fn config(args: &ConfigArgs) -> Result<()> {
    match &args.what {
        ConfigCommand::Show(which) => {
            let client = client(which.control.as_deref())?;
            output::print(&ask(&client, "GET", "/v1/state", None, None)?.body)
        }
        ConfigCommand::Diff(which) => {
            let client = client(which.control.as_deref())?;
            let answer = ask(&client, "POST", "/v1/reload?dry_run=true", None, None)?;
            say(&answer, "reading the configuration again would change nothing\n")
        }
    }
}

/// `farblock ctl`.
pub(crate) fn ctl(args: &CtlArgs) -> Result<()> {
    let client = client(args.control.as_deref())?;
    let send = |method: &str, uri: &str, body: Option<&Value>| {
        say(&ask(&client, method, uri, None, body)?, "it is like that already\n")
    };
    match &args.change {
        Change::AddNamespace { nqn, path, nsid, block_size, read_only } => {
            let namespace = json!({
                "path": stored_in(path)?, "block_size": block_size, "read_only": read_only
            });
            add_namespace(&client, nqn, *nsid, &namespace)
        }
        Change::RemoveNamespace { nqn, nsid } => send("DELETE", &namespace_at(nqn, *nsid), None),
        Change::Resize { nqn, nsid, size } => {
            send("PATCH", &namespace_at(nqn, *nsid), Some(&json!({ "size": size })))
        }
        Change::ReadOnly { nqn, nsid, switch } => {
            let read_only = *switch == Switch::On;
            send("PATCH", &namespace_at(nqn, *nsid), Some(&json!({ "read_only": read_only })))
        }
        Change::AllowHost { nqn, host } => send("PUT", &host_at(nqn, host), Some(&json!({}))),
        Change::DisallowHost { nqn, host } => send("DELETE", &host_at(nqn, host), None),
        Change::AllowAnyHost { nqn, switch: Switch::On } => {
            let change = json!({ "allow_any_host": true, "hosts": null });
            send("PATCH", &subsystem_at(nqn), Some(&change))
        }
        Change::AllowAnyHost { nqn, switch: Switch::Off } => {
            send("PATCH", &subsystem_at(nqn), Some(&json!({ "allow_any_host": false })))
        }
        Change::AddSubsystem { nqn, allow_any_host } => {
            let uri = subsystem_at(nqn);
            if client.ask("GET", &uri, None, None).map_err(Failure::run)?.is_success() {
                return Err(Failure::run(format_args!("{nqn} is there already")));
            }
            send("PUT", &uri, Some(&json!({ "allow_any_host": allow_any_host })))
        }
        Change::RemoveSubsystem { nqn } => send("DELETE", &subsystem_at(nqn), None),
        Change::AddListener { address } => send("PUT", &listener_at(address), Some(&json!({}))),
        Change::RemoveListener { address } => send("DELETE", &listener_at(address), None),
    }
}

/// A disk's name as the target understands it, wherever that runs.
fn stored_in(path: &OsStr) -> Result<String> {
    parse_disk(path).map(|spec| disk_name(&spec)).map_err(Failure::Usage)
}

/// Adds it under a number that is free when it is added.
fn add_namespace(client: &Client, nqn: &str, nsid: Option<u32>, namespace: &Value) -> Result<()> {
    const STALE: u16 = 412;
    loop {
        let found = ask(client, "GET", &subsystem_at(nqn), None, None)?;
        let subsystem = found.json();
        let is_free = |nsid: &u32| subsystem["namespaces"].get(nsid.to_string()).is_none();
        let nsid = match nsid {
            Some(nsid) if !is_free(&nsid) => {
                return Err(Failure::run(format_args!(
                    "{nqn} has a namespace {nsid} already: choose another number"
                )));
            }
            Some(nsid) => nsid,
            None => (1..u32::MAX).find(is_free).unwrap_or(u32::MAX),
        };
        let (uri, etag) = (namespace_at(nqn, nsid), found.etag.as_deref());
        let answer = client.ask("PUT", &uri, etag, Some(namespace)).map_err(Failure::run)?;
        if answer.status != STALE {
            let done = match answer.is_success() {
                true => answer,
                false => ask(client, "PUT", &uri, etag, Some(namespace))?,
            };
            return say(&done, "it is like that already\n");
        }
    }
}

fn subsystem_at(nqn: &str) -> String {
    format!("/v1/subsystems/{}", encoded(nqn))
}

fn namespace_at(nqn: &str, nsid: u32) -> String {
    format!("{}/namespaces/{nsid}", subsystem_at(nqn))
}

fn host_at(nqn: &str, host: &str) -> String {
    format!("{}/hosts/{}", subsystem_at(nqn), encoded(host))
}

fn listener_at(address: &SocketAddr) -> String {
    format!("/v1/listeners/{}", encoded(&address.to_string()))
}

/// A name as a part of an address.
fn encoded(name: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    };
    name.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parts_of_addresses() {
        assert_eq!(encoded("nqn.2026-11.a:b"), "nqn.2026-11.a:b");
        assert_eq!(encoded("[::1]:1/ü"), "%5B::1%5D:1%2F%C3%BC");
    }
}
