//! Describes which hosts may use a target's namespaces, and with which keys and limits.

use crate::table::printable;
use farblock_admin_api::{Status, SubsystemStatus};
use farblock_block::size::Size;
use farblock_state::Limits;
use std::fmt::Write as _;

/// The maximum number of hosts to list for a subsystem; JSON lists all of them.
const NAMED: usize = 16;
/// The default ANA group of a namespace.
const USUAL_GROUP: u32 = 1;

/// Describes the ANA states and the TLS policy of each listener, one line each.
pub(super) fn listeners(status: &Status) -> String {
    let mut text = String::new();
    for address in &status.listening {
        let tls = match status.tls.get(address).map(String::as_str) {
            Some("required") => "TLS required",
            Some("plain") => "no TLS",
            Some("allowed") => "TLS for hosts with a TLS key",
            _ => continue,
        };
        let _ = write!(text, "listener {address}: {tls}");
        if let Some(ana) = status.ana.get(address) {
            let _ = write!(text, "; ANA {}", printable(&ana.state));
            for (group, state) in &ana.groups {
                let _ = write!(text, ", group {} {}", printable(group), printable(state));
            }
        }
        text.push('\n');
    }
    text
}

/// Describes the allowed hosts of a subsystem, one line each.
pub(super) fn hosts(subsystem: &SubsystemStatus) -> String {
    if subsystem.allow_any_host {
        return "  hosts: any may connect\n".to_owned();
    }
    let SubsystemStatus { hosts, keys, tls_hosts, .. } = subsystem;
    let mut names: Vec<&String> = hosts.iter().chain(keys.keys()).chain(tls_hosts).collect();
    names.sort_unstable();
    names.dedup();
    if names.is_empty() {
        return "  hosts: none may connect\n".to_owned();
    }
    let mut text = String::new();
    for name in names.iter().take(NAMED) {
        let _ = writeln!(text, "  host {}: {}", printable(name), terms_of(subsystem, name));
    }
    if let Some(more @ 1..) = names.len().checked_sub(NAMED) {
        let _ = writeln!(text, "  and {more} more hosts (--json names all)");
    }
    text
}

fn terms_of(subsystem: &SubsystemStatus, host: &String) -> String {
    let demand = subsystem.demands.get(host).map(String::as_str);
    let mut proofs = Vec::new();
    if subsystem.keys.contains_key(host) {
        proofs.push(match demand {
            Some("mutual") => "authenticates, and so does the target",
            Some("concat") => "authenticates, then uses TLS",
            _ => "authenticates",
        });
    }
    if subsystem.tls_hosts.contains(host) {
        proofs.push("TLS with its key");
    }
    if proofs.is_empty() {
        proofs.push("no key: the target trusts its name");
    }
    let limits = subsystem.host_limits.get(host).map(limits).unwrap_or_default();
    let limits = if limits.is_empty() { limits } else { format!("; {limits}") };
    format!("{}{limits}", proofs.join(", "))
}

/// Describes the namespace settings that differ from the defaults, one line each.
pub(super) fn namespaces(subsystem: &SubsystemStatus) -> String {
    let mut text = String::new();
    for namespace in &subsystem.namespaces {
        let nsid = namespace.nsid;
        if let Some(hosts) = &namespace.visible_to {
            let named: Vec<String> = hosts.iter().take(NAMED).map(|it| printable(it)).collect();
            let named = if named.is_empty() { "no host".to_owned() } else { named.join(", ") };
            let more = match hosts.len().saturating_sub(NAMED) {
                0 => String::new(),
                more => format!(" and {more} more (--json names all)"),
            };
            let _ = writeln!(text, "  namespace {nsid}: visible only to {named}{more}");
        }
        if namespace.ana_group > USUAL_GROUP {
            let _ = writeln!(text, "  namespace {nsid}: ANA group {}", namespace.ana_group);
        }
        if !namespace.limits.is_empty() {
            let _ = writeln!(text, "  namespace {nsid}: {}", limits(&namespace.limits));
        }
    }
    text
}

fn limits(limits: &Limits) -> String {
    let mut parts: Vec<String> = Vec::new();
    for (name, rate) in limits.rates() {
        let Some(rate) = rate else { continue };
        parts.push(match name {
            "iops" => format!("{rate} I/Os/s"),
            "read_iops" => format!("{rate} reads/s"),
            "write_iops" => format!("{rate} writes/s"),
            "bytes" => format!("{}/s", Size(rate)),
            "read_bytes" => format!("{}/s read", Size(rate)),
            _ => format!("{}/s written", Size(rate)),
        });
    }
    let mut text =
        if parts.is_empty() { String::new() } else { format!("at most {}", parts.join(", ")) };
    if let Some(weight) = limits.weight {
        let comma = if text.is_empty() { "" } else { "; " };
        let _ = write!(text, "{comma}weight {weight}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_described_in_words() {
        let none = Limits::default();
        assert_eq!(limits(&none), "");
        let some = Limits { iops: Some(100), read_bytes: Some(1 << 20), ..none };
        assert_eq!(limits(&some), "at most 100 I/Os/s, 1 MiB/s read");
        let weighed = Limits { weight: Some(50), ..some };
        assert_eq!(limits(&weighed), "at most 100 I/Os/s, 1 MiB/s read; weight 50");
    }
}
