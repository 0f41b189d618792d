//! Calls about the transport, subsystems, namespaces and hosts.

use super::bdev_calls::is_claimed;
use super::bdevs::Bdev;
use super::keyring_calls::Keyring;
use super::message::{Answer, Errno, INTERNAL_ERROR, INVALID_PARAMETERS, Params, RpcError};
use super::view::{View, is_discovery, no_subsystem, shown_address};
use super::{Extra, Method, SpdkRpc, Table, method, refused, unsupported};
use farblock_admin::Reread;
use farblock_proto::controller::{USUAL_ANA_GROUP, limits};
use farblock_proto::limits::KEYED_IN_CAPSULE_BYTES;
use farblock_state::{Eui64, Host, Namespace, Subsystem, Transport};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

pub(super) const METHODS: &[Method] = &[
    method("nvmf_create_transport", create_transport),
    method("nvmf_get_transports", get_transports),
    method("nvmf_create_subsystem", create_subsystem),
    method("nvmf_delete_subsystem", delete_subsystem),
    method("nvmf_get_subsystems", get_subsystems),
    method("nvmf_subsystem_add_ns", add_ns),
    method("nvmf_subsystem_remove_ns", remove_ns),
    method("nvmf_subsystem_add_host", add_host),
    method("nvmf_subsystem_remove_host", remove_host),
    method("nvmf_subsystem_set_keys", set_keys),
    method("nvmf_subsystem_allow_any_host", allow_any_host),
];

/// The default range of controller IDs.
const CONTROLLER_IDS: (u16, u16) = (1, 0xffef);

pub(super) fn parse<T: DeserializeOwned>(params: Params) -> Result<T, RpcError> {
    params.parse().map_err(|sentence| RpcError::invalid().because(sentence))
}

/// Checks the name of a target: there is only one target.
pub(super) fn check_target(name: Option<&str>) -> Result<(), RpcError> {
    match name {
        None | Some("nvmf_tgt") => Ok(()),
        Some(other) => {
            let sentence = format!("NVMf target '{other}' not found");
            Err(RpcError::new(INVALID_PARAMETERS, sentence))
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "farblock's transport has its own limits")]
struct CreateTransport {
    trtype: String,
    tgt_name: Option<String>,
    max_queue_depth: Option<u16>,
    max_io_qpairs_per_ctrlr: Option<u16>,
    in_capsule_data_size: Option<u32>,
    max_io_size: Option<u32>,
    io_unit_size: Option<u32>,
    max_aq_depth: Option<u32>,
    num_shared_buffers: Option<u32>,
    buf_cache_size: Option<u32>,
    iobuf_small_cache_size: Option<u32>,
    iobuf_large_cache_size: Option<u32>,
    zcopy: Option<bool>,
    num_cqe: Option<i32>,
    max_srq_depth: Option<u32>,
    no_srq: Option<bool>,
    c2h_success: Option<bool>,
    #[serde(default)]
    dif_insert_or_strip: bool,
    sock_priority: Option<u32>,
    acceptor_backlog: Option<i32>,
    abort_timeout_sec: Option<u32>,
    no_wr_batching: Option<bool>,
    control_msg_num: Option<u16>,
    disable_mappable_bar0: Option<bool>,
    disable_adaptive_irq: Option<bool>,
    disable_shadow_doorbells: Option<bool>,
    acceptor_poll_rate: Option<u32>,
    ack_timeout: Option<u32>,
    data_wr_pool_size: Option<u32>,
    disable_command_passthru: Option<bool>,
    kas: Option<u16>,
    min_kato: Option<u32>,
    masked_oncs: Option<IgnoredAny>,
    masked_fuses: Option<IgnoredAny>,
}

fn create_transport(_: &SpdkRpc, table: &mut Table, params: Params) -> Answer {
    let given = params.parse::<serde_json::Map<String, Value>>();
    let given = given.map_err(|sentence| RpcError::invalid().because(sentence))?;
    let asked: CreateTransport = serde_json::from_value(Value::Object(given.clone()))
        .map_err(|error| RpcError::invalid().because(error))?;
    check_target(asked.tgt_name.as_deref())?;
    let Some(transport) = Transport::from_name(&asked.trtype) else {
        let message = format!("Invalid transport type '{}'", asked.trtype);
        let error = RpcError::new(INVALID_PARAMETERS, message);
        return Err(error.because("farblock supports only TCP and RDMA"));
    };
    unsupported(asked.dif_insert_or_strip, "dif_insert_or_strip: farblock has no metadata")?;
    if table.transports.contains_key(&transport) {
        let message = format!("Transport type '{}' already exists", asked.trtype);
        return Err(RpcError::new(INVALID_PARAMETERS, message));
    }
    table.transports.insert(transport, given);
    Ok(json!(true))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetTransports {
    trtype: Option<String>,
    tgt_name: Option<String>,
}

fn get_transports(_: &SpdkRpc, table: &mut Table, params: Params) -> Answer {
    let asked: GetTransports = parse(params)?;
    check_target(asked.tgt_name.as_deref())?;
    let wanted = match asked.trtype.as_deref().map(Transport::from_name) {
        Some(None) => return Err(Errno::NoDevice.into()),
        wanted => wanted.flatten(),
    };
    let all = table.transports.keys().filter(|one| wanted.is_none_or(|wanted| wanted == **one));
    Ok(all.map(|one| shown_transport(*one)).collect())
}

/// The properties of the actual transport, which do not depend on the parameters of its creation.
fn shown_transport(transport: Transport) -> Value {
    let offered = farblock_target::Subsystem::new("nqn.2026-11.org.farblock:any").config;
    json!({
        "trtype": transport.name().to_ascii_uppercase(),
        "max_queue_depth": offered.max_queue_depth,
        "max_io_qpairs_per_ctrlr": offered.max_io_queues,
        "in_capsule_data_size": match transport {
            Transport::Tcp => offered.in_capsule_bytes,
            Transport::Rdma => KEYED_IN_CAPSULE_BYTES,
        },
        "max_io_size": offered.max_transfer_bytes,
        "max_aq_depth": limits::ADMIN_QUEUE_ENTRIES,
        "dif_insert_or_strip": false,
        "zcopy": false,
        "kas": limits::KEEP_ALIVE_GRANULARITY_MS / 100,
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "accepted for compatibility, and ignored")]
struct CreateSubsystem {
    nqn: String,
    tgt_name: Option<String>,
    serial_number: Option<String>,
    model_number: Option<String>,
    admin_label: Option<String>,
    max_namespaces: Option<u32>,
    #[serde(default)]
    allow_any_host: bool,
    ana_reporting: Option<bool>,
    min_cntlid: Option<u16>,
    max_cntlid: Option<u16>,
    dmrsl: Option<u32>,
    wzsl: Option<u8>,
    #[serde(default)]
    passthrough: bool,
    #[serde(default)]
    enable_nssr: bool,
}

fn create_subsystem(rpc: &SpdkRpc, table: &mut Table, params: Params) -> Answer {
    let asked: CreateSubsystem = parse(params)?;
    check_target(asked.tgt_name.as_deref())?;
    unsupported(asked.passthrough, "passthrough: not supported, omit it")?;
    unsupported(asked.enable_nssr, "enable_nssr: not supported, omit it")?;
    unsupported(asked.admin_label.is_some(), "admin_label: not supported, omit it")?;
    let (min_cntlid, max_cntlid) = asked_ids(&asked)?;
    let nqn = asked.nqn;
    let failed = || RpcError::new(INTERNAL_ERROR, format!("Unable to create subsystem {nqn}"));
    if rpc.steering.document().0.subsystems.contains_key(&nqn) {
        return Err(failed().because("a subsystem of this name already exists"));
    }
    let subsystem = Subsystem {
        serial: asked.serial_number,
        model: asked.model_number,
        min_cntlid,
        max_cntlid,
        allow_any_host: asked.allow_any_host,
        ..Subsystem::default()
    };
    let name = nqn.clone();
    let made = rpc.change(|document| {
        document.subsystems.insert(name, subsystem);
    });
    made.map_err(|why| match &why {
        farblock_admin::Refused::Problem(problem)
            if problem.field.ends_with(".serial") || problem.field.ends_with(".model") =>
        {
            RpcError::invalid().because(problem)
        }
        _ => failed().because(&why),
    })?;
    let extra = Extra {
        listeners: Some(BTreeSet::new()),
        dormant_hosts: BTreeMap::new(),
        max_namespaces: asked.max_namespaces.filter(|&most| most > 0),
    };
    table.subsystems.insert(nqn, extra);
    Ok(json!(true))
}

/// The ends of the requested range of controller IDs; `None` for a default.
fn asked_ids(asked: &CreateSubsystem) -> Result<(Option<u16>, Option<u16>), RpcError> {
    let (least, most) = CONTROLLER_IDS;
    let ids = (asked.min_cntlid.unwrap_or(least), asked.max_cntlid.unwrap_or(most));
    if ids.0 < least || ids.1 > most || ids.0 > ids.1 {
        let message = format!("Invalid cntlid range [{}-{}]", ids.0, ids.1);
        let error = RpcError::new(INVALID_PARAMETERS, message);
        return Err(error.because(format!("min_cntlid, max_cntlid: use {least} to {most}")));
    }
    Ok((Some(ids.0).filter(|id| *id != least), Some(ids.1).filter(|id| *id != most)))
}

/// The parameters of calls about one subsystem.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OfSubsystem {
    pub(super) nqn: String,
    pub(super) tgt_name: Option<String>,
}

fn delete_subsystem(rpc: &SpdkRpc, _: &mut Table, params: Params) -> Answer {
    let asked: OfSubsystem = parse(params)?;
    check_target(asked.tgt_name.as_deref())?;
    rpc.view().subsystem(&asked.nqn)?;
    let deleted = rpc.change(|document| {
        document.subsystems.remove(&asked.nqn);
    });
    deleted.map_err(refused(RpcError::internal()))?;
    Ok(json!(true))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetSubsystems {
    nqn: Option<String>,
    tgt_name: Option<String>,
}

fn get_subsystems(rpc: &SpdkRpc, table: &mut Table, params: Params) -> Answer {
    let asked: GetSubsystems = parse(params)?;
    check_target(asked.tgt_name.as_deref())?;
    let view = rpc.view();
    if let Some(nqn) = asked.nqn {
        let subsystem = view.subsystem(&nqn)?;
        return Ok(json!([shown(table, &view, &nqn, subsystem)]));
    }
    let listening = table.listeners("discovery", &view.document);
    let discovery = json!({
        "nqn": "nqn.2014-08.org.nvmexpress.discovery",
        "subtype": "Discovery",
        "listen_addresses": listening.iter().map(shown_address).collect::<Value>(),
        "allow_any_host": true,
        "hosts": [],
    });
    let mut all = vec![discovery];
    let subsystems = view.document.subsystems.iter();
    all.extend(subsystems.map(|(nqn, subsystem)| shown(table, &view, nqn, subsystem)));
    Ok(json!(all))
}

fn shown(table: &Table, view: &View, nqn: &str, subsystem: &Subsystem) -> Value {
    let offered = offered(nqn, subsystem);
    let listening = table.listeners(nqn, &view.document);
    let namespaces = subsystem.namespaces.iter().map(|(&nsid, namespace)| {
        let seen = view.reported(nqn, nsid);
        let [uuid, nguid] =
            seen.map_or([Uuid::nil(); 2], |seen| [seen.uuid, seen.nguid].map(Uuid::from_bytes));
        let bdev = view.bdev_at(nqn, nsid);
        let mut shown = json!({
            "nsid": nsid,
            "bdev_name": bdev,
            "name": bdev,
            "nguid": digits(nguid),
            "uuid": uuid.to_string(),
            "anagrpid": namespace.ana_group,
        });
        if let Some(eui64) = namespace.eui64 {
            shown["eui64"] = json!(eui64_digits(eui64));
        }
        if let Some(hosts) = &namespace.visible_to {
            shown["no_auto_visible"] = json!(true);
            shown["hosts"] = hosts.iter().map(|host| json!({ "nqn": host })).collect();
        }
        shown
    });
    let keyring = Keyring::of(table, &view.document);
    let listed = hosts(table, nqn, subsystem).map(|(name, host)| shown_host(&keyring, name, host));
    json!({
        "nqn": nqn,
        "subtype": "NVMe",
        "listen_addresses": listening.iter().map(shown_address).collect::<Value>(),
        "allow_any_host": subsystem.allow_any_host,
        "hosts": listed.collect::<Value>(),
        "serial_number": offered.serial,
        "model_number": offered.model,
        "max_namespaces": max_namespaces(table, nqn),
        "passthrough": false,
        "min_cntlid": subsystem.min_cntlid.unwrap_or(CONTROLLER_IDS.0),
        "max_cntlid": subsystem.max_cntlid.unwrap_or(CONTROLLER_IDS.1),
        "namespaces": namespaces.collect::<Value>(),
    })
}

/// A host with the names of its authentication keys. SPDK does not show the name of the TLS key.
fn shown_host(keyring: &Keyring, name: &str, host: &Host) -> Value {
    let mut shown = json!({ "nqn": name });
    for (parameter, key) in keyring.named(host) {
        if parameter != "psk" {
            shown[parameter] = json!(key);
        }
    }
    shown
}

/// An NGUID in SPDK's format.
pub(super) fn digits(nguid: Uuid) -> String {
    nguid.simple().to_string().to_uppercase()
}

/// An EUI-64 in SPDK's format.
pub(super) fn eui64_digits(eui64: Eui64) -> String {
    eui64.to_string().to_uppercase()
}

/// A subsystem with the properties that hosts see.
pub(super) fn offered(
    nqn: &str,
    subsystem: &Subsystem,
) -> farblock_proto::controller::SubsystemConfig {
    let mut config = farblock_target::Subsystem::new(nqn).config;
    config.serial = subsystem.serial.clone().unwrap_or(config.serial);
    config.model = subsystem.model.clone().unwrap_or(config.model);
    config
}

/// The hosts that a subsystem lists, and its dormant hosts.
pub(super) fn hosts<'a>(
    table: &'a Table,
    nqn: &str,
    subsystem: &'a Subsystem,
) -> impl Iterator<Item = (&'a String, &'a Host)> {
    let extra = table.subsystems.get(nqn).into_iter();
    subsystem.hosts.iter().chain(extra.flat_map(|extra| &extra.dormant_hosts))
}

fn max_namespaces(table: &Table, nqn: &str) -> u32 {
    let said = table.subsystems.get(nqn).and_then(|extra| extra.max_namespaces);
    said.unwrap_or(limits::MAX_NAMESPACE_ID).min(limits::MAX_NAMESPACE_ID)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AddNs {
    nqn: String,
    tgt_name: Option<String>,
    namespace: AskedNamespace,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AskedNamespace {
    bdev_name: String,
    nsid: Option<u32>,
    nguid: Option<Uuid>,
    eui64: Option<Eui64>,
    uuid: Option<Uuid>,
    ptpl_file: Option<String>,
    anagrpid: Option<u32>,
    #[serde(default)]
    no_auto_visible: bool,
    #[serde(default)]
    hide_metadata: bool,
}

fn add_ns(rpc: &SpdkRpc, table: &mut Table, params: Params) -> Answer {
    let asked: AddNs = parse(params)?;
    check_target(asked.tgt_name.as_deref())?;
    let view = rpc.view();
    let subsystem = view.subsystem(&asked.nqn)?;
    let invalid = |sentence: String| RpcError::invalid().because(sentence);
    let wanted = asked.namespace;
    let name = &wanted.bdev_name;
    let bdev = view.bdev(name).ok_or_else(|| invalid(format!("bdev {name} does not exist")))?;
    if is_claimed(&view, bdev) {
        return Err(invalid(format!("{name} is in use: a bdev stores one namespace")));
    }
    let uuid = wanted.uuid.unwrap_or(bdev.uuid);
    check_namespace(&wanted)?;
    let most = max_namespaces(table, &asked.nqn);
    let free = || (1..=most).find(|nsid| !subsystem.namespaces.contains_key(nsid));
    let nsid = wanted.nsid.filter(|&nsid| nsid > 0).or_else(free);
    let nsid = nsid.filter(|nsid| (1..=most).contains(nsid));
    let nsid = nsid.ok_or_else(|| invalid(format!("nsid: use 1 to {most}")))?;
    if subsystem.namespaces.contains_key(&nsid) {
        return Err(invalid(format!("nsid: namespace {nsid} already exists")));
    }
    let ana_group = wanted.anagrpid.unwrap_or(USUAL_ANA_GROUP);
    let visible_to = wanted.no_auto_visible.then(BTreeSet::new);
    let namespace = Namespace {
        uuid: Some(uuid),
        nguid: wanted.nguid,
        eui64: wanted.eui64.filter(|id| !id.is_nil()),
        ana_group,
        visible_to,
        ..bdev.namespace.clone()
    };
    share(rpc, bdev, &asked.nqn, nsid, &namespace)?;
    Ok(json!(nsid))
}

fn check_namespace(wanted: &AskedNamespace) -> Result<(), RpcError> {
    unsupported(
        wanted.ptpl_file.is_some(),
        "ptpl_file: farblock stores reservations with the data, omit it",
    )?;
    unsupported(wanted.hide_metadata, "hide_metadata: not supported, omit it")
}

fn share(
    rpc: &SpdkRpc,
    bdev: &Bdev,
    nqn: &str,
    nsid: u32,
    namespace: &Namespace,
) -> Result<(), RpcError> {
    rpc.bdevs.export(&bdev.name, namespace);
    let shared = rpc.change(|document| {
        if let Some(subsystem) = document.subsystems.get_mut(nqn) {
            subsystem.namespaces.insert(nsid, namespace.clone());
        }
    });
    shared.map_err(|why| {
        rpc.bdevs.export(&bdev.name, &bdev.namespace);
        refused(RpcError::invalid())(why)
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RemoveNs {
    nqn: String,
    nsid: u32,
    tgt_name: Option<String>,
}

fn remove_ns(rpc: &SpdkRpc, _: &mut Table, params: Params) -> Answer {
    let asked: RemoveNs = parse(params)?;
    check_target(asked.tgt_name.as_deref())?;
    let view = rpc.view();
    if !view.subsystem(&asked.nqn)?.namespaces.contains_key(&asked.nsid) {
        let sentence = format!("nsid: namespace {} does not exist", asked.nsid);
        return Err(RpcError::invalid().because(sentence));
    }
    let removed = rpc.change(|document| {
        if let Some(subsystem) = document.subsystems.get_mut(&asked.nqn) {
            subsystem.namespaces.remove(&asked.nsid);
        }
    });
    removed.map_err(refused(RpcError::internal()))?;
    Ok(json!(true))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AddHost {
    nqn: String,
    host: String,
    tgt_name: Option<String>,
    psk: Option<String>,
    dhchap_key: Option<String>,
    dhchap_ctrlr_key: Option<String>,
}

impl AddHost {
    /// Returns the parameters that add a host without keys.
    fn named(nqn: &str, host: &str) -> Self {
        Self {
            nqn: nqn.to_owned(),
            host: host.to_owned(),
            tgt_name: None,
            psk: None,
            dhchap_key: None,
            dhchap_ctrlr_key: None,
        }
    }
}

/// The error for a host key if every host may connect.
const NOBODY_IS_ASKED: &str = "every host may connect to this subsystem without a key: call \
    nvmf_subsystem_allow_any_host with false first";

fn add_host(rpc: &SpdkRpc, table: &mut Table, params: Params) -> Answer {
    let asked: AddHost = parse(params)?;
    check_target(asked.tgt_name.as_deref())?;
    let view = rpc.view();
    let subsystem = view.subsystem(&asked.nqn)?;
    if hosts(table, &asked.nqn, subsystem).any(|(host, _)| *host == asked.host) {
        return Err(RpcError::internal().because(format!("{} is already listed", asked.host)));
    }
    let keyring = Keyring::of(table, &view.document);
    let entry = keyed(&keyring, &asked, RpcError::internal())?;
    if subsystem.allow_any_host && entry.has_key() {
        return Err(RpcError::internal().because(NOBODY_IS_ASKED));
    }
    if subsystem.allow_any_host {
        return add_dormant(table, &view, asked.nqn, asked.host);
    }
    let error = if entry.has_key() { RpcError::internal() } else { RpcError::invalid() };
    let added = rpc.change(|document| {
        if let Some(subsystem) = document.subsystems.get_mut(&asked.nqn) {
            // The host may have been listed with a key through another interface meanwhile.
            subsystem.hosts.entry(asked.host).or_insert(entry);
        }
    });
    added.map_err(refused(error))?;
    Ok(json!(true))
}

/// A host with key files. `alone` is the error for a controller key without a host key.
fn keyed(keyring: &Keyring, asked: &AddHost, alone: RpcError) -> Result<Host, RpcError> {
    let file = |parameter: &str, name: &Option<String>, error: RpcError| {
        let Some(name) = name else { return Ok(None) };
        let missing =
            || format!("{parameter}: this key does not exist: add it with keyring_file_add_key");
        let file = keyring.file(name).cloned();
        file.map(Some).ok_or_else(|| error.because(missing()))
    };
    let host = Host {
        dhchap_key: file("dhchap_key", &asked.dhchap_key, RpcError::invalid())?,
        dhchap_ctrl_key: file("dhchap_ctrlr_key", &asked.dhchap_ctrlr_key, RpcError::invalid())?,
        tls_key: file("psk", &asked.psk, RpcError::internal())?,
        ..Host::default()
    };
    if host.dhchap_key.is_none() && host.dhchap_ctrl_key.is_some() {
        let sentence = "dhchap_ctrlr_key: has no effect without a dhchap_key";
        return Err(alone.because(sentence));
    }
    Ok(host)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetKeys {
    nqn: String,
    host: String,
    tgt_name: Option<String>,
    dhchap_key: Option<String>,
    dhchap_ctrlr_key: Option<String>,
}

/// Replaces the authentication keys of a listed host. Its TLS key and other settings stay.
fn set_keys(rpc: &SpdkRpc, table: &mut Table, params: Params) -> Answer {
    let asked: SetKeys = parse(params)?;
    check_target(asked.tgt_name.as_deref())?;
    let view = rpc.view();
    let subsystem = view.subsystem(&asked.nqn)?;
    let wrong = |sentence: String| RpcError::from(Errno::Invalid).because(sentence);
    let keyring = Keyring::of(table, &view.document);
    let keys = AddHost {
        dhchap_key: asked.dhchap_key,
        dhchap_ctrlr_key: asked.dhchap_ctrlr_key,
        ..AddHost::named(&asked.nqn, &asked.host)
    };
    let keys = keyed(&keyring, &keys, Errno::Invalid.into())?;
    if !hosts(table, &asked.nqn, subsystem).any(|(host, _)| *host == asked.host) {
        return Err(wrong(format!("host: {} is not listed", asked.host)));
    }
    if !subsystem.hosts.contains_key(&asked.host) {
        return match keys.has_key() {
            false => Ok(json!(true)),
            true => Err(wrong(NOBODY_IS_ASKED.to_owned())),
        };
    }
    // A file with the same name may have new contents.
    let reread = Reread::Host(asked.nqn.clone(), asked.host.clone());
    let changed = rpc.change_and_read(&reread, |document| {
        let subsystem = document.subsystems.get_mut(&asked.nqn);
        if let Some(host) = subsystem.and_then(|it| it.hosts.get_mut(&asked.host)) {
            (host.dhchap_key, host.dhchap_ctrl_key) = (keys.dhchap_key, keys.dhchap_ctrl_key);
        }
    });
    changed.map_err(refused(Errno::Invalid.into()))?;
    Ok(json!(true))
}

/// Stores a host while any host may connect. The document lists the host once only listed hosts may
/// connect.
fn add_dormant(table: &mut Table, view: &View, nqn: String, host: String) -> Answer {
    let mut wanted = view.document.clone();
    if let Some(subsystem) = wanted.subsystems.get_mut(&nqn) {
        subsystem.allow_any_host = false;
        subsystem.hosts.clone_from(&table.extra(&nqn).dormant_hosts);
        subsystem.hosts.insert(host.clone(), Host::default());
    }
    let checked = wanted.check_after(&view.document);
    checked.map_err(|problem| RpcError::invalid().because(problem))?;
    table.extra(&nqn).dormant_hosts.insert(host, Host::default());
    Ok(json!(true))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "farblock closes controllers immediately")]
struct RemoveHost {
    nqn: String,
    host: String,
    tgt_name: Option<String>,
    timeout_ms: Option<u64>,
}

fn remove_host(rpc: &SpdkRpc, table: &mut Table, params: Params) -> Answer {
    let asked: RemoveHost = parse(params)?;
    check_target(asked.tgt_name.as_deref())?;
    let view = rpc.view();
    let subsystem = view.subsystem(&asked.nqn)?;
    if !hosts(table, &asked.nqn, subsystem).any(|(host, _)| *host == asked.host) {
        return Err(RpcError::invalid().because(format!("host: {} is not listed", asked.host)));
    }
    let removed = rpc.change(|document| {
        if let Some(subsystem) = document.subsystems.get_mut(&asked.nqn) {
            subsystem.hosts.remove(&asked.host);
        }
    });
    removed.map_err(refused(RpcError::internal()))?;
    table.extra(&asked.nqn).dormant_hosts.remove(&asked.host);
    Ok(json!(true))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowAnyHost {
    nqn: String,
    allow_any_host: bool,
    tgt_name: Option<String>,
}

fn allow_any_host(rpc: &SpdkRpc, table: &mut Table, params: Params) -> Answer {
    let asked: AllowAnyHost = parse(params)?;
    check_target(asked.tgt_name.as_deref())?;
    if is_discovery(&asked.nqn) {
        return Err(no_subsystem(&asked.nqn));
    }
    rpc.view().subsystem(&asked.nqn)?;
    let known = table.extra(&asked.nqn).dormant_hosts.clone();
    let mut dormant = BTreeMap::new();
    let changed = rpc.change(|document| {
        if let Some(subsystem) = document.subsystems.get_mut(&asked.nqn) {
            let listed = std::mem::take(&mut subsystem.hosts);
            subsystem.allow_any_host = asked.allow_any_host;
            (subsystem.hosts, dormant) = divided(listed, known, asked.allow_any_host);
        }
    });
    changed.map_err(refused(RpcError::internal()))?;
    table.extra(&asked.nqn).dormant_hosts = dormant;
    Ok(json!(true))
}

type Hosts = BTreeMap<String, Host>;

/// Combines listed hosts and stored hosts. Returns the hosts to list, and the hosts to store.
fn divided(listed: Hosts, known: Hosts, any: bool) -> (Hosts, Hosts) {
    let mut all = known;
    // A listed host takes precedence: it may have got a key through another interface.
    all.extend(listed);
    // A host with a key stays listed, so that it must still authenticate.
    all.into_iter().partition(|(_, host)| !any || host.has_key())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dormant_host_without_a_key_does_not_replace_an_entry_with_a_key() {
        let locked = Host { dhchap_key: Some("/host.key".to_owned()), ..Host::default() };
        let (a, b) = ("nqn.2026-11.h:a".to_owned(), "nqn.2026-11.h:b".to_owned());
        let listed = Hosts::from([(a.clone(), locked.clone())]);
        let known = Hosts::from([(a.clone(), Host::default()), (b.clone(), Host::default())]);
        let (counts, dormant) = divided(listed.clone(), known.clone(), false);
        assert_eq!((counts.get(&a), counts.get(&b)), (Some(&locked), Some(&Host::default())));
        assert!(dormant.is_empty());
        let (counts, dormant) = divided(listed.clone(), known, true);
        assert_eq!((counts, dormant), (listed, Hosts::from([(b, Host::default())])));
    }
}
