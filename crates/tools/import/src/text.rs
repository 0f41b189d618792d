//! Writes a document as a configuration file.

use super::Imported;
use farblock_state::{Entrance, Host, Listener, Namespace, Subsystem, Tls};
use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

/// Formats a TOML string. A JSON string is also a valid TOML string if DEL is escaped, too.
fn quoted(text: impl Display) -> String {
    serde_json::Value::String(text.to_string()).to_string().replace('\x7f', "\\u007f")
}

fn array<T: Display>(all: impl IntoIterator<Item = T>) -> String {
    let all: Vec<_> = all.into_iter().map(quoted).collect();
    format!("[{}]", all.join(", "))
}

/// Returns the reason why a target would refuse the subsystem; `None` if it is complete.
fn lacks(it: &Subsystem) -> Option<&'static str> {
    match it {
        _ if it.namespaces.is_empty() => Some("has no namespace: add one"),
        _ if !it.allow_any_host && it.hosts.is_empty() => {
            Some("allows no host: list the allowed hosts")
        }
        _ => None,
    }
}

/// Returns the notes of the import, and a note for each subsystem that is commented out.
pub(super) fn notes(imported: &Imported) -> Vec<String> {
    let subsystems = imported.document.subsystems.iter();
    let left_out = subsystems.filter_map(|(nqn, it)| {
        Some(format!("{nqn} {}, and remove the # from its lines", lacks(it)?))
    });
    imported.notes.iter().cloned().chain(left_out).collect()
}

pub(super) fn of(imported: &Imported) -> String {
    let document = &imported.document;
    let mut text = String::new();
    let mut notes = notes(imported);
    // Compare only the ANA states: the file can give each listener its own TLS policy.
    let ana = |one: &Listener| Listener { tls: Tls::default(), ..one.clone() };
    let all: Vec<_> = document.listeners.iter().map(|(at, one)| address(at, one.tls)).collect();
    let listeners: BTreeMap<_, _> =
        document.listeners.iter().map(|(at, one)| (at, ana(one))).collect();
    let first = listeners.values().next().cloned().unwrap_or_default();
    if listeners.values().any(|listener| *listener != first) {
        notes.push("different ANA states of listeners: set them with farblock ctl set-ana".into());
    }
    for note in notes {
        // A control character could end the comment.
        let note: String = note.chars().map(|it| if it.is_control() { ' ' } else { it }).collect();
        let _ = writeln!(text, "# Not imported: {note}");
    }
    let _ = writeln!(text, "listeners = [{}]", all.join(", "));
    if listeners.values().all(|listener| *listener == first) {
        access(&mut text, &first);
    }
    if !document.referrals.is_empty() {
        let _ = writeln!(text, "referrals = {}", array(document.referrals.keys()));
    }
    for (nqn, it) in &document.subsystems {
        let mut whole = String::new();
        subsystem(&mut whole, nqn, it);
        if lacks(it).is_some() {
            // A target would refuse this subsystem, so comment it out until the operator completes
            // it.
            whole = whole.replace('\n', "\n# ").trim_end_matches("# ").replace("# \n", "\n");
        }
        text.push_str(&whole);
    }
    text
}

fn address(at: &Entrance, tls: Tls) -> String {
    match tls == Tls::default() {
        true => quoted(at),
        false => format!("{{ address = {}, tls = {} }}", quoted(at), quoted(tls.name())),
    }
}

fn access(text: &mut String, listener: &Listener) {
    if *listener == Listener::default() {
        return;
    }
    let _ = writeln!(text, "ana = {}", quoted(listener.ana.name()));
    let groups = listener.ana_groups.iter();
    let groups: Vec<_> =
        groups.map(|(group, ana)| format!("{group} = {}", quoted(ana.name()))).collect();
    if !groups.is_empty() {
        let _ = writeln!(text, "ana_groups = {{ {} }}", groups.join(", "));
    }
}

fn subsystem(text: &mut String, nqn: &str, it: &Subsystem) {
    let _ = writeln!(text, "\n[[subsystems]]\nnqn = {}", quoted(nqn));
    for (key, value) in [("serial", &it.serial), ("model", &it.model)] {
        if let Some(value) = value {
            let _ = writeln!(text, "{key} = {}", quoted(value));
        }
    }
    for (key, id) in [("min_cntlid", it.min_cntlid), ("max_cntlid", it.max_cntlid)] {
        if let Some(id) = id {
            let _ = writeln!(text, "{key} = {id}");
        }
    }
    match it.allow_any_host {
        true => text.push_str("allow_any_host = true\n"),
        false => {
            let plain = it.hosts.iter().filter(|(_, host)| !host.has_key()).map(|(nqn, _)| nqn);
            let _ = writeln!(text, "allowed_hosts = {}", array(plain));
        }
    }
    for (nqn, it) in it.hosts.iter().filter(|(_, host)| host.has_key()) {
        host(text, nqn, it);
    }
    for (nsid, it) in &it.namespaces {
        namespace(text, *nsid, it);
    }
}

/// Writes a host that has a key.
fn host(text: &mut String, nqn: &str, it: &Host) {
    let _ = writeln!(text, "\n[[subsystems.hosts]]\nnqn = {}", quoted(nqn));
    let keys = [
        ("dhchap_key", &it.dhchap_key),
        ("dhchap_ctrl_key", &it.dhchap_ctrl_key),
        ("tls_key", &it.tls_key),
    ];
    for (key, file) in keys.into_iter().filter_map(|(key, file)| Some((key, file.as_ref()?))) {
        let _ = writeln!(text, "{key} = {}", quoted(file));
    }
    for (key, names) in
        [("dhchap_hashes", &it.dhchap_hashes), ("dhchap_dhgroups", &it.dhchap_dhgroups)]
    {
        if !names.is_empty() {
            let _ = writeln!(text, "{key} = {}", array(names));
        }
    }
}

fn namespace(text: &mut String, nsid: u32, it: &Namespace) {
    let _ = writeln!(text, "\n[[subsystems.namespaces]]\nnsid = {nsid}");
    let _ = writeln!(text, "path = {}\nblock_size = {}", quoted(&it.path), it.block_size);
    if let Some(uuid) = it.uuid {
        let _ = writeln!(text, "uuid = {}", quoted(uuid));
    }
    if let Some(nguid) = it.nguid {
        let _ = writeln!(text, "nguid = {}", quoted(nguid));
    }
    if let Some(eui64) = it.eui64 {
        let _ = writeln!(text, "eui64 = {}", quoted(eui64));
    }
    if it.read_only {
        text.push_str("read_only = true\n");
    }
    let _ = writeln!(text, "ana_group = {}", it.ana_group);
    if let Some(hosts) = &it.visible_to {
        let _ = writeln!(text, "visible_to = {}", array(hosts));
    }
    let limits = it.limits.rates().into_iter();
    let limits: Vec<_> =
        limits.filter_map(|(name, rate)| Some(format!("{name} = {}", rate?))).collect();
    if !limits.is_empty() {
        let _ = writeln!(text, "limits = {{ {} }}", limits.join(", "));
    }
}
