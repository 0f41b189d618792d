//! Checks a document, without a running target.

use crate::document::{Demand, Document, Host, Limits, Namespace, Subsystem, Tls, VERSION};
use crate::eui64::Eui64;
use crate::json::parse as parse_json;
use crate::name::KnownNames;
use crate::problem::Problem;
use farblock_proto::controller::{Entrance, SubsystemConfig, limits};
use farblock_wire::fabrics::CNTLID_MAX;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The prefixes of the text forms of secrets and TLS keys.
const SECRETS: [&str; 2] = ["DHHC-1:", "NVMeTLSkey-1:"];
const CREDENTIAL: &str = "credential:";
const KEYRING: &str = "keyring:";
const LISTS: [&str; 3] = ["dhchap_hashes", "dhchap_dhgroups", "visible_to"];
/// The maximum length of a list of hash functions or Diffie-Hellman groups. It exceeds the number
/// of known algorithms.
const MAX_ALGORITHMS: usize = 16;

/// The largest weight of a host.
pub const MAX_WEIGHT: u32 = 1000;

/// The longest burst of limits, in milliseconds.
pub const MAX_BURST_MS: u32 = 60_000;

impl Document {
    /// Parses and checks a document.
    ///
    /// # Errors
    /// The first problem of the document.
    pub fn parse(json: &str) -> Result<Self, Problem> {
        Self::parse_after(json, &Self::default())
    }

    /// Parses and checks a document that is to replace `before`.
    ///
    /// # Errors
    /// The first problem of the document.
    pub fn parse_after(json: &str, before: &Self) -> Result<Self, Problem> {
        let mut deserializer = serde_json::Deserializer::from_str(json);
        let document: Self =
            serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
                let field = error.path().to_string();
                let sentence = without_place(&error.inner().to_string());
                Problem::new(if field == "." { String::new() } else { field }, sentence)
            })?;
        deserializer.end().map_err(|error| Problem::new("", error))?;
        let said = parse_json(json.as_bytes())?;
        if let Some(field) = misplaced_list(&said, "", "") {
            return Err(Problem::new(
                field,
                "this is a list, but must be an object: name its fields",
            ));
        }
        document.check_after(before)?;
        Ok(document)
    }

    /// The document as JSON, on several lines.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("our types serialize to JSON");
        text.push('\n');
        text
    }

    /// Checks the document.
    ///
    /// # Errors
    /// The first problem of the document.
    pub fn check(&self) -> Result<(), Problem> {
        self.check_after(&Self::default())
    }

    /// Checks a document that is to replace `before`. Names in `before` may stay even if
    /// [`check_name`](crate::check_name) would refuse them as new names.
    ///
    /// # Errors
    /// The first problem of the document.
    pub fn check_after(&self, before: &Self) -> Result<(), Problem> {
        if self.version != VERSION {
            let sentence = format!("this farblock accepts only documents of version {VERSION}");
            return Err(Problem::new("version", sentence));
        }
        let count = |field: &str, count, most| {
            let sentence = format!("there are more than {most}: remove some");
            if count > most { Err(Problem::new(field, sentence)) } else { Ok(()) }
        };
        count("listeners", self.listeners.len(), limits::MAX_LISTENERS)?;
        count("referrals", self.referrals.len(), limits::MAX_REFERRALS)?;
        count("subsystems", self.subsystems.len(), limits::MAX_SUBSYSTEMS)?;
        if self.listeners.is_empty() {
            return Err(Problem::new(
                "listeners",
                "no host could connect: name at least one listener",
            ));
        }
        let referrals = self.referrals.keys().copied().map(Entrance::from);
        for address in self.listeners.keys().copied().chain(referrals) {
            if address.port() == 0 {
                let sentence = "hosts cannot connect to port 0: choose another port";
                return Err(Problem::new(format!("listeners.{address}"), sentence));
            }
        }
        for (address, listener) in &self.listeners {
            if listener.tls == Tls::Required && !address.transport.has_tls() {
                let sentence = "NVMe/RDMA has no TLS, so this listener cannot require it: set tls \
                    to allowed, or use a TCP listener";
                return Err(Problem::new(format!("listeners.{address}.tls"), sentence));
            }
            let field = format!("listeners.{address}.ana_groups");
            listener.ana_groups.keys().try_for_each(|&group| check_group(&field, group))?;
        }
        let known = KnownNames::of(before);
        for (name, subsystem) in &self.subsystems {
            check_subsystem(name, subsystem, &known)?;
        }
        self.check_identifiers()
    }

    /// Checks that each disk has its own identifiers. If two disks have the same identifier, hosts
    /// treat them as one disk or refuse them.
    fn check_identifiers(&self) -> Result<(), Problem> {
        let mut seen = BTreeMap::new();
        for (name, subsystem) in &self.subsystems {
            for (nsid, namespace) in &subsystem.namespaces {
                for (key, id) in identifiers(namespace) {
                    let Some(id) = id else { continue };
                    let Some((other, at)) = seen.insert((key, id.clone()), (name, nsid)) else {
                        continue;
                    };
                    let field = format!("subsystems.{name}.namespaces.{nsid}.{key}");
                    let sentence = format!(
                        "namespace {at} of {other} has the same {key}, and hosts treat disks with \
                         the same {key} as one disk: omit it at one of them"
                    );
                    return Err(Problem::new(field, sentence));
                }
            }
        }
        Ok(())
    }
}

/// The identifiers by which hosts distinguish namespaces; `None` for each that the document leaves
/// out.
fn identifiers(namespace: &Namespace) -> [(&'static str, Option<String>); 3] {
    [
        ("uuid", namespace.uuid.map(|id| id.to_string())),
        ("nguid", namespace.nguid.map(|id| id.to_string())),
        ("eui64", namespace.eui64.map(|id| id.to_string())),
    ]
}

/// Finds a JSON list in the place of an object. serde would assign the elements of the list to the
/// fields of the object in order, and use defaults for the missing fields.
fn misplaced_list(part: &Value, field: &str, name: &str) -> Option<String> {
    match part {
        Value::Array(_) if !LISTS.contains(&name) => Some(field.to_owned()),
        Value::Object(entries) => entries.iter().find_map(|(name, part)| {
            let dot = if field.is_empty() { "" } else { "." };
            misplaced_list(part, &format!("{field}{dot}{name}"), name)
        }),
        _ => None,
    }
}

fn check_subsystem(
    name: &str,
    subsystem: &Subsystem,
    known: &KnownNames<'_>,
) -> Result<(), Problem> {
    let at = |field: &str| format!("subsystems.{name}{field}");
    let nqn_of =
        |field: String, name: &str| known.check(name).map_err(|error| Problem::new(field, error));
    nqn_of(at(""), name)?;
    let mut config = SubsystemConfig::new(name, "1");
    config.check().map_err(|error| Problem::new(at(""), error))?;
    if let Some(serial) = &subsystem.serial {
        config.serial.clone_from(serial);
        config.check().map_err(|error| Problem::new(at(".serial"), error))?;
    }
    if let Some(model) = &subsystem.model {
        config.model.clone_from(model);
        config.check().map_err(|error| Problem::new(at(".model"), error))?;
    }
    config.controller_ids = subsystem.controller_ids();
    config.check().map_err(|_| {
        let sentence = format!("use 1 to {CNTLID_MAX}, and not less than min_cntlid");
        Problem::new(at(".max_cntlid"), sentence)
    })?;
    if subsystem.allow_any_host && !subsystem.hosts.is_empty() {
        let sentence = "every host may connect, so a list of hosts has no effect: set \
            allow_any_host to false (farblock ctl allow-any-host NQN off), or remove the list";
        return Err(Problem::new(at(".allow_any_host"), sentence));
    }
    if subsystem.hosts.len() > limits::MAX_ALLOWED_HOSTS {
        let sentence = format!("a subsystem can list at most {} hosts", limits::MAX_ALLOWED_HOSTS);
        return Err(Problem::new(at(".hosts"), sentence));
    }
    let mut owners = BTreeMap::new();
    for (name, host) in &subsystem.hosts {
        let field = at(&format!(".hosts.{name}"));
        nqn_of(field.clone(), name)?;
        check_host(&field, host)?;
        if let Some(other) = host.host_id.and_then(|id| owners.insert(id, name)) {
            let sentence = format!("{other} has the same identifier: give each host its own");
            return Err(Problem::new(format!("{field}.host_id"), sentence));
        }
    }
    for (nsid, namespace) in &subsystem.namespaces {
        let field = at(&format!(".namespaces.{nsid}"));
        if !(1..=limits::MAX_NAMESPACE_ID).contains(nsid) {
            let sentence = format!("use 1 to {}", limits::MAX_NAMESPACE_ID);
            return Err(Problem::new(field, sentence));
        }
        check_namespace(&field, namespace)?;
    }
    check_visibility(subsystem, known, &at)
}

/// Checks the lists of hosts that see a namespace. A list may contain a host that may not connect:
/// the host may be allowed later.
fn check_visibility(
    subsystem: &Subsystem,
    known: &KnownNames<'_>,
    at: &dyn Fn(&str) -> String,
) -> Result<(), Problem> {
    let mut named = BTreeSet::new();
    for (nsid, namespace) in &subsystem.namespaces {
        let field = at(&format!(".namespaces.{nsid}.visible_to"));
        for host in namespace.visible_to.iter().flatten() {
            known.check(host).map_err(|error| Problem::new(field.clone(), error))?;
            named.insert(host);
        }
        if named.len() > limits::MAX_VISIBLE_TO {
            let most = limits::MAX_VISIBLE_TO;
            let sentence = format!("the namespaces of a subsystem can name at most {most} hosts");
            return Err(Problem::new(field, sentence));
        }
    }
    Ok(())
}

fn check_host(field: &str, host: &Host) -> Result<(), Problem> {
    let at = |name: &str| format!("{field}.{name}");
    let own = ("dhchap_ctrl_key", host.dhchap_ctrl_key.as_ref());
    for (name, value) in host.keys().into_iter().chain([own]) {
        let Some(value) = value else { continue };
        if SECRETS.iter().any(|prefix| value.starts_with(prefix)) {
            let sentence = "this is a secret: name the file that contains it instead";
            return Err(Problem::new(at(name), sentence));
        }
        let in_keyring = name == "tls_key" && value.starts_with(KEYRING);
        let is_elsewhere = value.starts_with(CREDENTIAL) || in_keyring;
        if !is_elsewhere && !Path::new(value).has_root() {
            let sentence = match name {
                "tls_key" => {
                    "give the absolute path of the file, or credential:NAME, or keyring: for the \
                     kernel's keyring"
                }
                _ => "give the absolute path of the file, or credential:NAME",
            };
            return Err(Problem::new(at(name), sentence));
        }
    }
    let lists =
        [("dhchap_hashes", &host.dhchap_hashes), ("dhchap_dhgroups", &host.dhchap_dhgroups)];
    let filled = lists.iter().find(|(_, list)| !list.is_empty()).map(|(name, _)| *name);
    host.limits.check().map_err(|problem| {
        Problem::new(format!("{}.{}", at("limits"), problem.field), problem.sentence)
    })?;
    let needs = own.1.map(|_| own.0).or(filled);
    if let Some(name) = needs.filter(|_| host.dhchap_key.is_none()) {
        return Err(Problem::new(at(name), "this setting has no effect without a dhchap_key"));
    }
    check_demand(host).map_err(|(name, sentence)| Problem::new(at(name), sentence))?;
    if host.host_id.is_some() && !host.has_key() {
        let sentence = "this setting has no effect without a dhchap_key or tls_key";
        return Err(Problem::new(at("host_id"), sentence));
    }
    for (name, list) in lists {
        if list.len() > MAX_ALGORITHMS {
            return Err(Problem::new(at(name), "the list is too long: name each algorithm once"));
        }
    }
    Ok(())
}

/// Checks that this host's keys, hashes and groups allow it to meet the entry's `demand`.
fn check_demand(host: &Host) -> Result<(), (&'static str, String)> {
    let Some(demand) = host.demand else { return Ok(()) };
    let word = demand.name();
    let none_but = |list: &[String], least: &str| {
        !list.is_empty() && list.iter().all(|name| name.eq_ignore_ascii_case(least))
    };
    if host.dhchap_key.is_none() {
        let sentence = format!(
            "this host's demand is {word}, which needs a dhchap_key: name a key, or remove the \
             demand first"
        );
        return Err(("dhchap_key", sentence));
    }
    if demand == Demand::Mutual && host.dhchap_ctrl_key.is_none() {
        let sentence = "this host must request mutual authentication, which needs a secret of the \
            target: name its file, or remove the demand first";
        return Err(("dhchap_ctrl_key", sentence.to_owned()));
    }
    if demand == Demand::Concat && none_but(&host.dhchap_hashes, "sha512") {
        let sentence = "an authentication with sha512 gives no TLS key: add sha256";
        return Err(("dhchap_hashes", sentence.to_owned()));
    }
    if demand == Demand::Concat && none_but(&host.dhchap_dhgroups, "null") {
        let sentence =
            "an authentication without a Diffie-Hellman group gives no TLS key: add ffdhe2048";
        return Err(("dhchap_dhgroups", sentence.to_owned()));
    }
    Ok(())
}

impl Limits {
    /// Checks the limits.
    ///
    /// # Errors
    /// The first invalid limit.
    pub fn check(&self) -> Result<(), Problem> {
        if let Some((name, _)) = self.rates().into_iter().find(|(_, rate)| *rate == Some(0)) {
            let sentence = "a limit of 0 allows no I/O: omit it for no limit";
            return Err(Problem::new(name, sentence));
        }
        match self.burst_ms {
            Some(burst_ms) if !(1..=MAX_BURST_MS).contains(&burst_ms) => {
                let sentence = format!("use 1 to {MAX_BURST_MS} milliseconds");
                Err(Problem::new("burst_ms", sentence))
            }
            _ => match self.weight {
                Some(weight) if !(1..=MAX_WEIGHT).contains(&weight) => {
                    let sentence = format!("use 1 to {MAX_WEIGHT}; the default is 100");
                    Err(Problem::new("weight", sentence))
                }
                _ => Ok(()),
            },
        }
    }

    /// Checks that the limits are valid for a namespace.
    ///
    /// # Errors
    /// The first invalid limit.
    pub fn check_of_namespace(&self) -> Result<(), Problem> {
        self.check()?;
        match self.weight {
            Some(_) => {
                Err(Problem::new("weight", "only hosts have weights: omit it for a namespace"))
            }
            None => Ok(()),
        }
    }
}

fn check_group(field: &str, group: u32) -> Result<(), Problem> {
    match (1..=limits::MAX_ANA_GROUPS).contains(&group) {
        true => Ok(()),
        false => {
            let sentence =
                format!("{group} is not an ANA group: use 1 to {}", limits::MAX_ANA_GROUPS);
            Err(Problem::new(field, sentence))
        }
    }
}

/// Checks the copy speed of a mirror.
fn check_copy_speed(field: &str, namespace: &Namespace) -> Result<(), Problem> {
    match namespace.copy_bytes_per_second {
        Some(0) => {
            let sentence =
                "at 0 bytes per second, the mirror never fills a leg: omit it for no limit";
            Err(Problem::new(field, sentence))
        }
        Some(_) if !namespace.path.trim_start().starts_with("mirror:") => {
            let sentence = format!(
                "{} is not a mirror, so it copies nothing: omit this setting, or use limits",
                namespace.path
            );
            Err(Problem::new(field, sentence))
        }
        _ => Ok(()),
    }
}

fn check_namespace(field: &str, namespace: &Namespace) -> Result<(), Problem> {
    let at = |name: &str| format!("{field}.{name}");
    if namespace.path.trim().is_empty() {
        let sentence = "a disk is missing: name a file, or for example mem:1GiB";
        return Err(Problem::new(at("path"), sentence));
    }
    if !matches!(namespace.block_size, 512 | 4096) {
        let sentence = format!("{} is not a block size: use 512 or 4096", namespace.block_size);
        return Err(Problem::new(at("block_size"), sentence));
    }
    let zero = [
        ("uuid", "UUID", namespace.uuid.is_some_and(|id| id.is_nil())),
        ("nguid", "NGUID", namespace.nguid.is_some_and(|id| id.is_nil())),
        ("eui64", "EUI-64", namespace.eui64.is_some_and(Eui64::is_nil)),
    ];
    for (key, name, is_nil) in zero {
        if is_nil {
            let sentence =
                format!("zero is not a valid {name}: omit it, and the target generates one");
            return Err(Problem::new(at(key), sentence));
        }
    }
    check_group(&at("ana_group"), namespace.ana_group)?;
    check_copy_speed(&at("copy_bytes_per_second"), namespace)?;
    namespace.limits.check_of_namespace().map_err(|problem| {
        Problem::new(format!("{}.{}", at("limits"), problem.field), problem.sentence)
    })?;
    match namespace.size {
        Some(0) => Err(Problem::new(at("size"), "a disk cannot have 0 bytes")),
        Some(size) if !size.is_multiple_of(u64::from(namespace.block_size)) => {
            let sentence = format!(
                "{size} bytes are not a whole number of {}-byte blocks: use a multiple",
                namespace.block_size
            );
            Err(Problem::new(at("size"), sentence))
        }
        Some(size) if i64::try_from(size).is_err() => {
            Err(Problem::new(at("size"), format!("no disk can have {size} bytes")))
        }
        _ => Ok(()),
    }
}

/// The message of serde_json without the line and column, because the error already names the
/// field.
fn without_place(text: &str) -> String {
    match text.rfind(" at line ") {
        Some(at) => text[..at].to_owned(),
        None => text.to_owned(),
    }
}
