//! Changes a part of a document.

use crate::document::{Document, Host, Tls};
use crate::problem::Problem;
use serde_json::Value;

/// The value at the end of this path of names; `None` if it does not exist.
pub fn pointer<'a>(document: &'a mut Value, names: &[&str]) -> Option<&'a mut Value> {
    names.iter().try_fold(document, |value, name| value.get_mut(*name))
}

/// Checks that every listener still requires TLS, and every host keeps its keys, unless `new`
/// changes that explicitly. A setting that `new` leaves out is not explicit; `null` is.
///
/// # Errors
/// The first listener or host that would lose the setting.
pub fn keys_kept(old: &Document, new: &Value) -> Result<(), Problem> {
    for (address, _) in old.listeners.iter().filter(|(_, one)| one.tls == Tls::Required) {
        // Compare parsed addresses, because an address can be written in several ways.
        let is_it = |text: &str| text.parse() == Ok(*address);
        let mut listeners = new["listeners"].as_object().into_iter().flatten();
        if listeners.any(|(text, entry)| is_it(text) && entry.get("tls").is_none()) {
            let sentence =
                "all hosts must use TLS at this listener, and the change omits tls: include it";
            return Err(Problem::new(format!("listeners.{address}.tls"), sentence));
        }
    }
    for (nqn, host, had) in hosts_with_keys(old) {
        let entry = new["subsystems"].get(nqn).and_then(|it| it["hosts"].get(host));
        let is_left_out = |name| entry.is_some_and(|entry| entry.get(name).is_none());
        if let Some(demand) = had.demand.filter(|_| is_left_out("demand")) {
            let sentence = format!(
                "this host's demand is {}, and the change omits demand: include it, or set it to \
                 null",
                demand.name()
            );
            return Err(Problem::new(format!("subsystems.{nqn}.hosts.{host}.demand"), sentence));
        }
        let had = had.keys().into_iter().filter(|(_, key)| key.is_some());
        for (name, _) in had {
            if is_left_out(name) {
                let sentence = format!(
                    "this host has a key, and without the key any peer with this host's name could \
                     connect: include the key, or set {name} to null"
                );
                let field = format!("subsystems.{nqn}.hosts.{host}.{name}");
                return Err(Problem::new(field, sentence));
            }
        }
    }
    Ok(())
}

/// Gives a new listener without a TLS setting in `said` the setting of the strictest existing
/// listener: a further address must not make access easier.
pub fn tls_inherited(old: &Document, said: &Value, new: &mut Document) {
    let listeners = said["listeners"].as_object().into_iter().flatten();
    let unsaid = listeners.filter(|(_, entry)| entry.get("tls").is_none());
    for address in unsaid.filter_map(|(text, _)| text.parse().ok()) {
        if !old.listeners.contains_key(&address)
            && let Some(listener) = new.listeners.get_mut(&address)
        {
            listener.tls = old.strictest();
        }
    }
}

/// Checks that no subsystem becomes open to any host while its listed hosts must authenticate.
///
/// # Errors
/// The first subsystem that would become open.
pub fn doors_kept(old: &Document, new: &Document) -> Result<(), Problem> {
    for (nqn, _, _) in hosts_with_keys(old) {
        if new.subsystems.get(nqn).is_some_and(|subsystem| subsystem.allow_any_host) {
            let sentence = "the list contains hosts with keys, and any peer with their names could \
                connect without a key: remove them from the list first";
            return Err(Problem::new(format!("subsystems.{nqn}.allow_any_host"), sentence));
        }
    }
    Ok(())
}

fn hosts_with_keys(document: &Document) -> impl Iterator<Item = (&String, &String, &Host)> {
    document.subsystems.iter().flat_map(|(nqn, subsystem)| {
        let locked = subsystem.hosts.iter().filter(|(_, host)| host.has_key());
        locked.map(move |(name, host)| (nqn, name, host))
    })
}

/// Applies a JSON merge patch (RFC 7396) to `target`.
pub fn patch(target: &mut Value, patch_with: &Value) {
    let Value::Object(changes) = patch_with else {
        target.clone_from(patch_with);
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let fields = target.as_object_mut().expect("`target` is an object");
    for (name, change) in changes {
        if change.is_null() {
            fields.remove(name);
        } else {
            patch(fields.entry(name.clone()).or_insert(Value::Null), change);
        }
    }
}
