//! Calls about listeners. A listener belongs to the whole target. This module remembers the
//! subsystem that a client named for each listener.

use super::message::{Answer, INTERNAL_ERROR, Params, RpcError};
use super::nvmf_calls::{OfSubsystem, check_target, parse};
use super::view::{View, is_discovery, shown_address};
use super::{Method, SpdkRpc, Table, method, refused, unsupported};
use farblock_state::{Ana, Document, Entrance, Listener, Tls, Transport};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

pub(super) const METHODS: &[Method] = &[
    method("nvmf_subsystem_add_listener", add_listener),
    method("nvmf_subsystem_remove_listener", remove_listener),
    method("nvmf_subsystem_get_listeners", get_listeners),
    method("nvmf_subsystem_listener_set_ana_state", set_ana_state),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Address {
    trtype: String,
    adrfam: Option<String>,
    traddr: String,
    trsvcid: Option<String>,
}

impl Address {
    fn parse(&self) -> Result<Entrance, RpcError> {
        let invalid = |field: &str, sentence: &str| {
            RpcError::invalid().because(format!("listen_address.{field}: {sentence}"))
        };
        let transport = Transport::from_name(&self.trtype)
            .ok_or_else(|| invalid("trtype", "farblock supports only TCP and RDMA"))?;
        let ip: IpAddr =
            self.traddr.parse().map_err(|_| invalid("traddr", "must be an IP address"))?;
        let family = if ip.is_ipv4() { "ipv4" } else { "ipv6" };
        if self.adrfam.as_ref().is_some_and(|given| !given.eq_ignore_ascii_case(family)) {
            return Err(invalid("adrfam", &format!("this address is {family}")));
        }
        let port = self.trsvcid.as_deref().and_then(|port| port.parse().ok());
        let port = port.filter(|&port: &u16| port > 0);
        let port = port.ok_or_else(|| invalid("trsvcid", "must be a port, 1 to 65535"))?;
        Ok(Entrance { transport, address: SocketAddr::new(ip, port) })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "accepted for compatibility, and ignored")]
struct AddListener {
    nqn: String,
    tgt_name: Option<String>,
    listen_address: Address,
    #[serde(default)]
    secure_channel: bool,
    ana_state: Option<String>,
    sock_impl: Option<IgnoredAny>,
    numa_id: Option<IgnoredAny>,
}

fn add_listener(rpc: &SpdkRpc, table: &mut Table, params: Params) -> Answer {
    let asked: AddListener = parse(params)?;
    check_target(asked.tgt_name.as_deref())?;
    let (document, _) = rpc.steering.document();
    check_subsystem(&document, &asked.nqn)?;
    let address = asked.listen_address.parse()?;
    let state = asked.ana_state.as_deref().map(state_of).transpose()?;
    if !table.transports.contains_key(&address.transport) {
        let kind = address.transport.name().to_ascii_uppercase();
        let sentence = format!(
            "this transport does not exist: call nvmf_create_transport with trtype {kind} first"
        );
        return Err(RpcError::invalid().because(sentence));
    }
    let nqn = key(&asked.nqn);
    let mut listening = table.listeners(nqn, &document);
    if listening.contains(&address) {
        return Err(
            RpcError::invalid().because(format!("the subsystem already listens on {address}"))
        );
    }
    unsupported(
        asked.secure_channel && !address.transport.has_tls(),
        "secure_channel: NVMe/RDMA has no TLS",
    )?;
    let covering = document.listeners.iter().find(|(listener, _)| covers(listener, &address));
    let is_open = covering.is_some_and(|(_, one)| one.tls != Tls::Required);
    unsupported(
        asked.secure_channel && is_open,
        "secure_channel: another listener has this address, and does not require TLS (farblock \
         ctl set-tls)",
    )?;
    let listener = covering.map(|(listener, _)| *listener);
    let opened = rpc.change(|document| {
        // Clients always send the default `false`, so `false` must not weaken TLS.
        let tls = if asked.secure_channel { Tls::Required } else { document.strictest() };
        let place = document.listeners.entry(listener.unwrap_or(address));
        let place = place.or_insert_with(|| Listener { tls, ..Listener::default() });
        place.ana = state.unwrap_or(place.ana);
    });
    opened.map_err(refused(RpcError::invalid()))?;
    if listener.is_none() {
        table.opened.insert(address);
    }
    listening.insert(address);
    table.extra(nqn).listeners = Some(listening);
    Ok(json!(true))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RemoveListener {
    nqn: String,
    tgt_name: Option<String>,
    listen_address: Address,
}

fn remove_listener(rpc: &SpdkRpc, table: &mut Table, params: Params) -> Answer {
    let asked: RemoveListener = parse(params)?;
    check_target(asked.tgt_name.as_deref())?;
    let (document, _) = rpc.steering.document();
    check_subsystem(&document, &asked.nqn)?;
    let address = asked.listen_address.parse()?;
    let nqn = key(&asked.nqn);
    let mut listening = table.listeners(nqn, &document);
    if !listening.remove(&address) {
        let sentence = format!("{} does not listen on {address}", asked.nqn);
        return Err(RpcError::invalid().because(sentence));
    }
    let unused = unused(table, &document, nqn, &listening, &address);
    if !unused.is_empty() {
        let closed = rpc.change(|document| {
            document.listeners.retain(|listener, _| !unused.contains(listener));
        });
        let error = RpcError::new(INTERNAL_ERROR, "error stopping listener: -16");
        closed.map_err(refused(error))?;
        table.opened.retain(|listener| !unused.contains(listener));
    }
    table.extra(nqn).listeners = Some(listening);
    Ok(json!(true))
}

/// The listeners that were opened for `address` and that no subsystem needs once the subsystem
/// `nqn` listens only on `left`. A wildcard listener is needed for each address that it covers.
fn unused(
    table: &Table,
    document: &Document,
    nqn: &str,
    left: &BTreeSet<Entrance>,
    address: &Entrance,
) -> Vec<Entrance> {
    let others = document.subsystems.keys().map(String::as_str).chain(["discovery"]);
    let others = others.filter(|other| *other != nqn);
    let listed: Vec<_> = others.map(|other| table.listeners(other, document)).collect();
    let is_needed =
        |open: &Entrance| listed.iter().chain([left]).flatten().any(|listed| covers(open, listed));
    let opened = table.opened.iter().filter(|open| covers(open, address) && !is_needed(open));
    opened.copied().collect()
}

fn get_listeners(rpc: &SpdkRpc, table: &mut Table, params: Params) -> Answer {
    let asked: OfSubsystem = parse(params)?;
    check_target(asked.tgt_name.as_deref())?;
    let (document, _) = rpc.steering.document();
    check_subsystem(&document, &asked.nqn)?;
    let listening: BTreeSet<_> = table.listeners(key(&asked.nqn), &document);
    let groups = groups(&document, &asked.nqn);
    let listed = listening.iter().map(|address| {
        let listener = listener(&document, address).map(|(_, listener)| listener);
        let state = |group: &u32| {
            let listener = listener?;
            let ana = listener.ana_groups.get(group).unwrap_or(&listener.ana);
            Some(json!({ "ana_group": group, "ana_state": name_of(*ana) }))
        };
        let states: Value = groups.iter().filter_map(state).collect();
        json!({ "address": shown_address(address), "ana_states": states })
    });
    Ok(listed.collect())
}

/// The listener that accepts connections to an address.
pub(super) fn listener<'a>(
    document: &'a Document,
    address: &Entrance,
) -> Option<(&'a Entrance, &'a Listener)> {
    document.listeners.iter().find(|(listener, _)| covers(listener, address))
}

/// The ANA groups of a subsystem's namespaces. The discovery service has none.
fn groups(document: &Document, nqn: &str) -> BTreeSet<u32> {
    let subsystem = document.subsystems.get(nqn).into_iter();
    subsystem.flat_map(|it| it.namespaces.values()).map(|it| it.ana_group).collect()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetAnaState {
    nqn: String,
    tgt_name: Option<String>,
    listen_address: Address,
    ana_state: String,
    anagrpid: Option<u32>,
}

fn set_ana_state(rpc: &SpdkRpc, table: &mut Table, params: Params) -> Answer {
    let asked: SetAnaState = parse(params)?;
    check_target(asked.tgt_name.as_deref())?;
    let (document, _) = rpc.steering.document();
    check_subsystem(&document, &asked.nqn)?;
    let address = asked.listen_address.parse()?;
    let state = state_of(&asked.ana_state)?;
    let listed = table.listeners(key(&asked.nqn), &document).contains(&address);
    let found = listener(&document, &address).filter(|_| listed && !is_discovery(&asked.nqn));
    let missing = || format!("{} does not listen on {address}", asked.nqn);
    let (at, _) = found.ok_or_else(|| RpcError::invalid().because(missing()))?;
    let changed = rpc.change(|document| {
        let Some(listener) = document.listeners.get_mut(at) else { return };
        match asked.anagrpid.filter(|&group| group > 0) {
            Some(group) => drop(listener.ana_groups.insert(group, state)),
            None => *listener = Listener { ana: state, tls: listener.tls, ..Listener::default() },
        }
    });
    changed.map_err(refused(RpcError::invalid()))?;
    Ok(json!(true))
}

/// The names of SPDK's states, and two states that SPDK lacks.
const STATES: [(&str, Ana); 5] = [
    ("optimized", Ana::Optimized),
    ("non_optimized", Ana::NonOptimized),
    ("inaccessible", Ana::Inaccessible),
    ("persistent_loss", Ana::PersistentLoss),
    ("change", Ana::Change),
];

fn state_of(name: &str) -> Result<Ana, RpcError> {
    let found = STATES.iter().find(|(known, _)| *known == name);
    let sentence =
        "ana_state: must be optimized, non_optimized, inaccessible, persistent_loss or change";
    found.map(|(_, state)| *state).ok_or_else(|| RpcError::invalid().because(sentence))
}

fn name_of(state: Ana) -> &'static str {
    STATES.iter().find(|(_, known)| *known == state).map_or("", |(name, _)| name)
}

/// The parameters of the calls that restore all ANA states except for the default.
pub(super) fn states(table: &Table, view: &View) -> impl Iterator<Item = Value> {
    let document = &view.document;
    let used = document.listeners.iter().filter_map(move |(at, listener)| {
        let reached = document.subsystems.keys().find_map(|nqn| {
            let listed = table.listeners(nqn, document);
            Some((nqn.clone(), listed.into_iter().find(|address| covers(at, address))?))
        });
        Some((reached?, listener))
    });
    used.flat_map(|((nqn, address), listener)| {
        let usual = Some((0, listener.ana)).filter(|(_, ana)| *ana != Ana::default());
        let groups = listener.ana_groups.iter().map(|(group, ana)| (*group, *ana));
        let all: Vec<_> = usual.into_iter().chain(groups).collect();
        all.into_iter().map(move |(group, ana)| {
            let address = shown_address(&address);
            let state = name_of(ana);
            let mut params = json!({ "nqn": nqn, "listen_address": address, "ana_state": state });
            if group > 0 {
                params["anagrpid"] = json!(group);
            }
            params
        })
    })
}

fn check_subsystem(document: &Document, nqn: &str) -> Result<(), RpcError> {
    match is_discovery(nqn) || document.subsystems.contains_key(nqn) {
        true => Ok(()),
        false => Err(super::view::no_subsystem(nqn)),
    }
}

/// The key of a subsystem in the table of listeners.
fn key(nqn: &str) -> &str {
    if is_discovery(nqn) { "discovery" } else { nqn }
}

/// Whether a listener accepts connections to an address.
fn covers(listener: &Entrance, address: &Entrance) -> bool {
    listener == address || listener.covers(*address)
}
