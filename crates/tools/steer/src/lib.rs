//! Requests to a running target over its control socket: `status`, `top`, `reload`, `config` and
//! `ctl`.

#![cfg(unix)]
#![forbid(unsafe_code)]

pub mod args;
mod disks;
mod group;
mod mirrors;
mod rates;
mod shown;
mod terms;
pub mod top;
mod top_fleet;
mod upgrade;

use args::{
    AllowHostArgs, Change, ConfigArgs, ConfigCommand, ControlArgs, CtlArgs, LimitArgs, ReloadArgs,
    RemoteArgs, StatusArgs, Switch,
};
use farblock_admin_api::places::{default_socket, living};
use farblock_admin_api::{Stats, Status};
use farblock_admin_client::{Answer, Client};
use farblock_program::error::{self, Failure, Result};
use farblock_program::{output, signals, table, values};
use farblock_serve::{self as serve, key_reference, tokens};
use farblock_state::{Entrance, Tls};
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The HTTP status code 412: another client changed the object after this client had read it.
const STALE: u16 = 412;
/// Moves the terminal's cursor to the corner, and clears the rest of the screen.
const CLEAR_SCREEN: &str = "\x1b[H\x1b[2J";
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Returns a client of the target that the options select.
fn chosen(which: &ControlArgs) -> Result<Client> {
    meant(which.control.as_deref(), &which.remote)
}

fn meant(control: Option<&Path>, remote: &RemoteArgs) -> Result<Client> {
    match (&remote.api, &remote.token_file) {
        (None, None) => client(control),
        (Some(url), Some(file)) => {
            let text = farblock_host::key_file::text(file).map_err(Failure::Run)?;
            // The user may name the target's own token file, where a name and a role precede the
            // token.
            let token = text.split_whitespace().next_back().unwrap_or_default();
            let trust = remote.api_ca.as_deref().map(tokens::trust).transpose()?;
            Client::remote(url, token, trust.as_ref()).map_err(Failure::Usage)
        }
        _ => Err(Failure::usage("--api URL and --token-file FILE go together: name both")),
    }
}

/// Returns the path of the socket that `--control` names, directly or by an address of its target.
fn named_socket(given: &Path) -> PathBuf {
    let address = given.to_str().and_then(|text| text.parse::<SocketAddr>().ok());
    let place = address.filter(|_| !given.exists()).and_then(|address| default_socket(&address));
    place.unwrap_or_else(|| given.to_owned())
}

fn client(given: Option<&Path>) -> Result<Client> {
    if let Some(path) = given {
        return Ok(Client::new(named_socket(path)));
    }
    let none = || {
        Failure::run(
            "no target of this user runs here with a control socket: start one with farblock serve \
             (without --no-control), or name its socket with --control (farblock list shows \
             attached disks)",
        )
    };
    let living = living().ok_or_else(none)?;
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
    done(client.ask(method, uri, if_match, body).map_err(Failure::run)?)
}

/// Returns a successful answer, or converts the target's error into a sentence.
fn done(answer: Answer) -> Result<Answer> {
    if answer.is_success() {
        return Ok(answer);
    }
    let problem = answer.json();
    let text = |name: &str| problem[name].as_str().unwrap_or_default().to_owned();
    let (detail, field) = (text("detail"), text("field"));
    Err(Failure::run(match (detail.as_str(), field.as_str()) {
        ("", _) => format!("the target answers with HTTP status {}", answer.status),
        (_, "") => detail,
        _ => format!("{field}: {detail}"),
    }))
}

/// Prints the effects of a change, or `nothing` if there were none.
fn say(answer: &Answer, nothing: &str) -> Result<()> {
    let answer = answer.json();
    let lines = answer["changed"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    output::print(if text.is_empty() { nothing } else { &text })
}

fn ask_stats(client: &Client) -> Result<Stats> {
    let answer = ask(client, "GET", "/v1/stats", None, None)?;
    serde_json::from_str(&answer.body).map_err(|error| {
        Failure::run(format_args!("the target has a different version of farblock: {error}"))
    })
}

/// Runs `farblock status`: prints a target's state. With `is_verbose`, prints all details.
///
/// # Errors
/// No target answers.
pub fn status(args: &StatusArgs, is_verbose: bool) -> Result<()> {
    // Omit local attachments if an option names the target, which may be remote. With `--json`
    // print only the target's answer.
    let is_here = args.which.control.is_none() && args.which.remote.api.is_none() && !args.json;
    let attached = || if is_here { attached() } else { String::new() };
    if !args.watch && is_here && living().is_none_or(|targets| targets.is_empty()) {
        let attached = attached();
        if !attached.is_empty() {
            return output::print(&format!("no target of this user runs here\n{attached}"));
        }
    }
    let client = chosen(&args.which)?;
    let mut before: Option<Stats> = None;
    loop {
        let answer = ask(&client, "GET", "/v1/status", None, None)?;
        let status: Status = serde_json::from_str(&answer.body).map_err(|error| {
            Failure::run(format_args!("the target has a different version of farblock: {error}"))
        })?;
        if args.json && args.watch {
            output::print_json_line(&status)?;
        } else if args.json {
            output::print_json(&status)?;
        } else {
            let stats = ask_stats(&client)?;
            let text = shown::status(&status, &stats, before.as_ref(), is_verbose);
            if args.watch && std::io::stdout().is_terminal() {
                output::print(CLEAR_SCREEN)?;
            }
            let group = group::shown(&client);
            output::print(&format!("{text}{group}{}", attached()))?;
            before = Some(stats);
        }
        if !args.watch {
            return Ok(());
        }
        std::thread::sleep(WATCH_EVERY);
    }
}

/// Returns a table of the disks attached to this machine.
#[cfg(target_os = "linux")]
fn attached() -> String {
    shown::attached(&farblock_daemon::brief())
}

/// Returns an empty text: this system has no attachments.
#[cfg(not(target_os = "linux"))]
fn attached() -> String {
    String::new()
}

/// Runs `farblock reload`: makes a target read its configuration file again.
///
/// # Errors
/// No target answers, or the target refuses its configuration.
pub fn reload(args: &ReloadArgs) -> Result<()> {
    let client = chosen(&args.which)?;
    say(&ask(&client, "POST", "/v1/reload", None, None)?, "the configuration has not changed\n")
}

/// Returns a running target's state as JSON, or `None` if no target answers.
#[must_use]
pub fn state(control: Option<&Path>) -> Option<Value> {
    let answer = client(control).ok()?.ask("GET", "/v1/state", None, None).ok()?;
    answer.is_success().then(|| answer.json())
}

/// Runs `farblock config`: prints a target's state, previews a reload, or imports a configuration.
///
/// # Errors
/// No target answers, or the target or the importer refuses the configuration.
pub fn config(args: &ConfigArgs) -> Result<()> {
    match &args.what {
        ConfigCommand::Show(which) => {
            let client = chosen(which)?;
            output::print_exact(&ask(&client, "GET", "/v1/state", None, None)?.body)
        }
        ConfigCommand::Diff(which) => {
            let client = chosen(which)?;
            let answer = ask(&client, "POST", "/v1/reload?dry_run=true", None, None)?;
            say(&answer, "a reload would change nothing\n")
        }
        ConfigCommand::Import { file } => farblock_import::run(file),
    }
}

/// Runs `farblock ctl`: changes what a target shares.
///
/// # Errors
/// No target answers, or the target refuses the change.
pub fn ctl(args: &CtlArgs) -> Result<()> {
    let client = meant(args.control.as_deref(), &args.remote)?;
    let send = |method: &str, uri: &str, body: Option<&Value>| {
        say(&ask(&client, method, uri, None, body)?, "nothing to change\n")
    };
    match &args.change {
        Change::AddNamespace(args) => disks::add(&client, args),
        Change::ReplaceNamespace { nqn, nsid, disk } => disks::replace(&client, nqn, *nsid, disk),
        Change::VisibleTo { nqn, nsid, hosts, all, none } => {
            let hosts = seen_by(hosts, *all, *none)?;
            send("PATCH", &namespace_at(nqn, *nsid), Some(&json!({ "visible_to": hosts })))
        }
        Change::RemoveNamespace { nqn, nsid } => send("DELETE", &namespace_at(nqn, *nsid), None),
        Change::Resize { nqn, nsid, size } => {
            send("PATCH", &namespace_at(nqn, *nsid), Some(&json!({ "size": size })))
        }
        Change::ReadOnly { nqn, nsid, switch } => {
            let read_only = *switch == Switch::On;
            send("PATCH", &namespace_at(nqn, *nsid), Some(&json!({ "read_only": read_only })))
        }
        Change::AllowHost(args) => allow_host(&client, args),
        Change::DisallowHost { nqn, host } => send("DELETE", &host_at(nqn, host), None),
        Change::AllowAnyHost { nqn, switch: Switch::On } => {
            let change = json!({ "allow_any_host": true, "hosts": null });
            send("PATCH", &subsystem_at(nqn), Some(&change))
        }
        Change::AllowAnyHost { nqn, switch: Switch::Off } => {
            send("PATCH", &subsystem_at(nqn), Some(&json!({ "allow_any_host": false })))
        }
        Change::AddSubsystem { nqn, allow_any_host, serial, model } => {
            let (allow, named) = (*allow_any_host, (serial, model));
            add_subsystem(&client, nqn, allow, named)
        }
        Change::RemoveSubsystem { nqn } => send("DELETE", &subsystem_at(nqn), None),
        Change::SetTls { address, tls } => {
            send("PATCH", &listener_at(address), Some(&json!({ "tls": tls })))
        }
        Change::AddListener { address, tls } => add_listener(&client, address, *tls),
        Change::SetAna { address, state, group } => {
            let change = match group {
                Some(group) => json!({ "ana_groups": { (group.to_string()): state } }),
                None => json!({ "ana": state }),
            };
            send("PATCH", &listener_at(address), Some(&change))
        }
        Change::Limit { nqn, limits, .. } if limits.weight.is_some() => {
            Err(Failure::usage(format_args!(
                "only hosts have a weight: use `farblock ctl limit-host {nqn} HOST --weight N`"
            )))
        }
        Change::Limit { nqn, nsid, limits } => {
            send("PATCH", &namespace_at(nqn, *nsid), Some(&json!({ "limits": of(limits) })))
        }
        Change::LimitHost { nqn, host, limits } => limit_host(&client, nqn, host, limits),
        Change::AnaGroup { nqn, nsid, group } => {
            send("PATCH", &namespace_at(nqn, *nsid), Some(&json!({ "ana_group": group })))
        }
        Change::Verify { nqn, nsid, no_wait } => mirrors::verify(&client, nqn, *nsid, !*no_wait),
        Change::CopySpeed { nqn, nsid, mib } => mirrors::copy_speed(&client, nqn, *nsid, *mib),
        Change::Group(args) => group::run(&client, args),
        Change::AddReferral { address } => send("PUT", &referral_at(address), Some(&json!({}))),
        Change::RemoveReferral { address } => send("DELETE", &referral_at(address), None),
        Change::RemoveListener { address } => send("DELETE", &listener_at(address), None),
    }
}

/// Returns the hosts that see a namespace; `None` means all hosts.
fn seen_by(hosts: &[String], all: bool, none: bool) -> Result<Option<&[String]>> {
    if hosts.is_empty() && !all && !none {
        return Err(Failure::usage(
            "name the hosts that see the namespace, or use --all or --none",
        ));
    }
    Ok(Some(hosts).filter(|_| !all))
}

fn add_subsystem(
    client: &Client,
    nqn: &str,
    allow_any_host: bool,
    (serial, model): (&Option<String>, &Option<String>),
) -> Result<()> {
    let uri = subsystem_at(nqn);
    let subsystem = json!({ "allow_any_host": allow_any_host, "serial": serial, "model": model });
    let answer = client.make(&uri, &subsystem).map_err(Failure::run)?;
    if answer.status == STALE {
        return Err(Failure::run(format_args!("{nqn} exists already")));
    }
    say(&done(answer)?, "nothing to change\n")?;
    values::doubt(nqn).iter().for_each(|doubt| output::note(doubt));
    Ok(())
}

/// Adds a listener. An existing listener keeps its settings. A new listener without a `tls`
/// argument gets the strictest TLS policy of the existing listeners.
fn add_listener(client: &Client, address: &Entrance, tls: Option<Tls>) -> Result<()> {
    let uri = listener_at(address);
    changed(client, "PATCH", &uri, |found| {
        let tls = match found.is_success() {
            true => tls,
            false => Some(tls.map_or_else(|| strictest(client), Ok)?),
        };
        Ok(tls.map_or(json!({}), |tls| json!({ "tls": tls })))
    })
}

fn strictest(client: &Client) -> Result<Tls> {
    let state = ask(client, "GET", "/v1/state", None, None)?.json();
    let listeners = state["listeners"].as_object().into_iter().flatten();
    let policy = |one: &Value| one["tls"].as_str().and_then(Tls::from_name).unwrap_or_default();
    Ok(listeners.map(|(_, one)| policy(one)).max().unwrap_or_default())
}

/// Allows a host to connect. Settings that the command does not name stay unchanged.
fn allow_host(client: &Client, args: &AllowHostArgs) -> Result<()> {
    let uri = host_at(&args.nqn, &args.host);
    changed(client, "PUT", &uri, |found| Ok(allowed(args, found)))
}

/// Returns the host entry to send: the existing entry `found` with the changes of the command.
fn allowed(args: &AllowHostArgs, found: &Answer) -> Value {
    let is_there = found.is_success();
    let mut host = if is_there { found.json() } else { json!({}) };
    if args.no_key {
        let rest = ["dhchap_ctrl_key", "dhchap_hashes", "dhchap_dhgroups"];
        rest.iter().for_each(|name| drop(host.as_object_mut().and_then(|it| it.remove(*name))));
        host["dhchap_key"] = Value::Null;
        // Keep the limits, which do not depend on the key.
        if let Some(limits) = found.json().get("limits").filter(|_| found.is_success()) {
            host["limits"] = limits.clone();
        }
    }
    if args.no_tls_key {
        host["tls_key"] = Value::Null;
    }
    let given = [
        ("dhchap_key", &args.key),
        ("dhchap_ctrl_key", &args.controller_key),
        ("tls_key", &args.tls_key),
    ];
    for (name, path) in given {
        if let Some(path) = path {
            host[name] = json!(key_reference(path));
        }
    }
    if let Some(id) = &args.host_id {
        host["host_id"] = json!(id);
    }
    for (name, given) in [("dhchap_hashes", &args.hashes), ("dhchap_dhgroups", &args.dhgroups)] {
        match given.iter().any(|one| one == "all") {
            true => host[name] = json!([]),
            false if !given.is_empty() => host[name] = json!(given),
            false => {}
        }
    }
    if let Some(demand) = &args.demand {
        host["demand"] =
            Some(demand).filter(|demand| *demand != "none").map_or(Value::Null, |it| json!(it));
    }
    if host["dhchap_key"].is_null() && host["tls_key"].is_null() {
        host.as_object_mut().and_then(|it| it.remove("host_id"));
    }
    host
}

/// Changes the object at `uri` with `method`, or creates it. `wanted` returns the new object from
/// the present one. If another client changes the object meanwhile, starts again.
fn changed(
    client: &Client,
    method: &str,
    uri: &str,
    wanted: impl Fn(&Answer) -> Result<Value>,
) -> Result<()> {
    loop {
        let found = client.ask("GET", uri, None, None).map_err(Failure::run)?;
        let wanted = wanted(&found)?;
        let answer = match found.is_success() {
            true => client.ask(method, uri, found.etag.as_deref(), Some(&wanted)),
            false => client.make(uri, &wanted),
        };
        let answer = answer.map_err(Failure::run)?;
        if answer.status != STALE {
            return say(&done(answer)?, "nothing to change\n");
        }
    }
}

fn subsystem_at(nqn: &str) -> String {
    format!("/v1/subsystems/{}", encoded(nqn))
}

fn namespace_at(nqn: &str, nsid: u32) -> String {
    format!("{}/namespaces/{nsid}", subsystem_at(nqn))
}

/// Limits a host that the subsystem lists. Refuses another host: to list it would let it connect.
fn limit_host(client: &Client, nqn: &str, host: &str, limits: &LimitArgs) -> Result<()> {
    let uri = host_at(nqn, host);
    changed(client, "PATCH", &uri, |found| match found.is_success() {
        true => Ok(json!({ "limits": of(limits) })),
        false => {
            let sentence = "is not in the list of hosts: add it with farblock ctl allow-host";
            Err(Failure::run(format_args!("{host} {sentence} {nqn} {host}")))
        }
    })
}

/// Converts the limits of the command to the target's JSON, in which `null` removes a limit.
fn of(limits: &LimitArgs) -> Value {
    json!({
        "iops": limits.iops, "read_iops": limits.read_iops, "write_iops": limits.write_iops,
        "bytes": limits.mib, "read_bytes": limits.read_mib, "write_bytes": limits.write_mib,
        "burst_ms": limits.burst_ms, "weight": limits.weight,
    })
}

fn host_at(nqn: &str, host: &str) -> String {
    format!("{}/hosts/{}", subsystem_at(nqn), encoded(host))
}

fn listener_at(address: &Entrance) -> String {
    format!("/v1/listeners/{}", encoded(&address.to_string()))
}

fn referral_at(address: &SocketAddr) -> String {
    format!("/v1/referrals/{}", encoded(&address.to_string()))
}

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
    fn names_are_percent_encoded_in_request_paths() {
        assert_eq!(encoded("nqn.2026-11.a:b"), "nqn.2026-11.a:b");
        assert_eq!(encoded("[::1]:1/ü"), "%5B::1%5D:1%2F%C3%BC");
    }
}
