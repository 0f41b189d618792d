//! Manages a target at run time: restores saved changes, serves the control socket, and handles
//! SIGHUP.

use super::dashboard::{self, Wanted};
use super::document::{self, Opening, Shares};
use super::keys as key_files;
use super::{announce, check_listeners, config, disks, identity, tokens};
use crate::args::ServeArgs;
use crate::configuration;
use crate::error::{Failure, Result, listening, os};
use crate::signals::Hangup;
use farblock_admin::{
    Certificate, Configured, Disks, Keys, NotOpened, OnTcp, Open, Opened, Server, Steering, serve,
};
use farblock_admin_api::places;
use farblock_proto::controller::{AddressFamily, Referral};
use farblock_proto::ids::NamespaceId;
use farblock_spdk_rpc::{Bdevs, SpdkRpc, SpdkServer, serve_spdk};
use farblock_state::{Ana, Document, Entrance, Host, Namespace, Store, StoreError, Tls, merge};
use farblock_target::{HostKeys, Subsystem, Target, TargetConfig};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The servers of the management API and the dashboard.
pub(super) struct Steered {
    server: Server,
    dashboard: Option<String>,
    is_secure: bool,
}

impl Steered {
    /// Returns the addresses of the dashboard, the management API and the metrics.
    pub(super) fn on_tcp(&self) -> announce::OnTcp<'_> {
        let dashboard = self.dashboard.as_deref();
        let (interface, counters) = (self.server.api(), self.server.metrics());
        announce::OnTcp { dashboard, interface, counters, is_secure: self.is_secure }
    }

    /// Warns if other machines can read the metrics without encryption.
    fn warn(&self) {
        let is_reached = |address: &SocketAddr| !address.ip().to_canonical().is_loopback();
        if let Some(address) = self.server.metrics().filter(is_reached).filter(|_| !self.is_secure)
        {
            tracing::warn!(
                "every client that reaches {address} can read the metrics, with names of hosts \
                 and addresses, and the connection is unencrypted (--https-cert, --https-key)"
            );
        }
    }
}

/// Opens the disks and reads the keys that a document names.
struct Opener;

impl Open for Opener {
    fn open(&self, namespace: &Namespace) -> Result<Opened, NotOpened> {
        let spec = disks::parse(&namespace.path)?;
        let note: &mut dyn FnMut(String) = &mut |text| tracing::info!("{text}");
        let Namespace { uuid, block_size, read_only, .. } = *namespace;
        let opened = disks::open(&spec, uuid, block_size, read_only, note)
            .map_err(|error| NotOpened::new(&error, disks::refused(&error, "read_only = true")))?;
        if let Some(doubt) = farblock_disks::memory_doubt(&[&spec]) {
            tracing::warn!("{doubt}");
        }
        let identity = disks::identity(&spec, note);
        Ok(Opened { identity, ..opened })
    }

    fn keys(&self, subsystem: &str, name: &str, host: &Host) -> Result<Option<HostKeys>, String> {
        key_files::of(subsystem, name, host).map_err(disks::explained)
    }
}

/// Returns the initial state: the saved state with its run-time changes if there is one, or else
/// the configuration's.
pub(super) fn resumed(
    args: &ServeArgs,
    shares: Shares,
    opening: Opening<'_>,
    note: &mut dyn FnMut(String),
) -> Result<(Shares, Option<Store>)> {
    let Some(path) = &args.persist else { return Ok((opening(shares, note)?, None)) };
    let store = store(path)?;
    let kept = store.load().map_err(Failure::run)?;
    let merged =
        kept.map(|kept| (merge(&kept.configured, &shares.document, &kept.shared), kept.shared));
    let Some((wanted, before)) = merged.filter(|(wanted, _)| *wanted != shares.document) else {
        return Ok((opening(shares, note)?, Some(store)));
    };
    wanted.check_after(&before).map_err(|problem| {
        let path = path.display();
        Failure::run(format_args!("{path} and the configuration contradict each other: {problem}"))
    })?;
    for doubt in wanted.doubtful_names() {
        tracing::warn!("{}: {doubt}", path.display());
    }
    note(format!("restored earlier changes from {}", path.display()));
    let mut config = shares.config;
    config.subsystems.clear();
    Ok((from_document(config, wanted)?, Some(store)))
}

/// Opens the store for changes, and locks it for this process.
fn store(path: &Path) -> Result<Store> {
    let mut store = Store::new(path);
    match store.claim() {
        Ok(()) => Ok(store),
        // Continue with the saved state. The store will refuse changes that it cannot save.
        Err(StoreError::Io(path, error)) if error.kind() != ErrorKind::NotFound => {
            let sentence = StoreError::Io(path, error);
            tracing::warn!(
                "changes may be lost, and another farblock may use the same file: {sentence}"
            );
            Ok(store)
        }
        Err(error) => Err(Failure::run(error)),
    }
}

fn from_document(mut config: TargetConfig, document: Document) -> Result<Shares> {
    let listen: Vec<_> = document.listeners.keys().copied().collect();
    config.listeners = listen.iter().filter_map(|one| one.tcp_address()).collect();
    config.rdma = super::rdma_listeners(&listen)?;
    config.referrals = document.referrals.keys().map(referral).collect();
    for (nqn, described) in &document.subsystems {
        let mut subsystem = Subsystem::new(nqn);
        let offered = &mut subsystem.config;
        if let Some(serial) = &described.serial {
            offered.serial.clone_from(serial);
        }
        if let Some(model) = &described.model {
            offered.model.clone_from(model);
        }
        offered.controller_ids = described.controller_ids();
        offered.allow_any_host = described.allow_any_host;
        offered.allowed_hosts = described.hosts.keys().cloned().collect();
        for (host, entry) in &described.hosts {
            let keys = key_files::of(nqn, host, entry)
                .map_err(|problem| Failure::run(format_args!("host {host} of {nqn}: {problem}")))?;
            subsystem.keys.extend(keys.map(|keys| (host.clone(), keys)));
        }
        config.subsystems.push(subsystem);
    }
    let mut shares = Shares { config, document, ..Shares::default() };
    let described = shares.document.subsystems.clone();
    let gathering = identity::Gathering::begin();
    for (index, (nqn, subsystem)) in described.iter().enumerate() {
        for (nsid, namespace) in &subsystem.namespaces {
            let opened = Opener.open(namespace).map_err(|why| {
                Failure::run(format_args!("namespace {nsid} of {nqn}: {}", why.sentence))
            })?;
            let identity = namespace.uuid.map_or(opened.identity, |uuid| uuid.to_string());
            shares.add(index, NamespaceId(*nsid), Opened { identity, ..opened });
        }
    }
    gathering.check().map_err(Failure::Run)?;
    Ok(shares)
}

fn referral(address: &SocketAddr) -> Referral {
    Referral {
        family: if address.is_ipv4() { AddressFamily::V4 } else { AddressFamily::V6 },
        address: address.ip().to_string(),
        service: address.port().to_string(),
    }
}

/// The parts of a running target that its management API needs.
pub(super) struct Begun {
    pub(super) disks: Disks,
    pub(super) keys: Keys,
    pub(super) document: Document,
    pub(super) configured: Document,
    /// The store for changes; `None` without `--persist`.
    pub(super) store: Option<Store>,
    /// The group of the target, if it has one.
    pub(super) group: Option<Arc<dyn farblock_admin::Grouped>>,
}

pub(super) fn keys(config: &TargetConfig) -> Keys {
    let all = config.subsystems.iter().flat_map(|subsystem| {
        let nqn = &subsystem.config.nqn;
        subsystem.keys.iter().map(|(host, keys)| ((nqn.clone(), host.clone()), keys.clone()))
    });
    all.collect()
}

/// The servers of the control socket, of TCP and of SPDK's clients. Dropping this stops them.
pub(super) struct Sockets {
    pub(super) control: Option<Steered>,
    _spdk: Option<SpdkServer>,
    _steering: Arc<Steering>,
}

/// Starts the management servers, and the handler for SIGHUP.
pub(super) fn begin(
    args: &ServeArgs,
    target: &Target,
    begun: Begun,
    hangup: Hangup,
) -> Result<Sockets> {
    let Begun { disks, keys, mut document, configured, store, group } = begun;
    // Replace port 0 by the ports that the target bound.
    document.listeners = document::bound(&document, &target.entrances());
    let again = args.config.clone().map(|path| {
        let listen = (!args.listen.is_empty()).then(|| args.listen.clone());
        let given = Given { listen, ana: args.ana, tls: document::tls(args) };
        reader(path, given)
    });
    let bdevs = Bdevs::new();
    let opener = match args.spdk_rpc {
        Some(_) => bdevs.opening(Arc::new(Opener)),
        None => Arc::new(Opener),
    };
    let mut steering = Steering::new(target.control(), opener, document, disks)
        .keyed(keys)
        .configured(configured, again);
    if let Some(store) = store {
        steering = steering.kept_in(store);
    }
    if let Some(group) = group {
        steering = steering.grouped(group);
    }
    #[cfg(target_os = "linux")]
    {
        steering = steering.confined(Box::new(crate::sandbox::seen));
    }
    steering.begin().map_err(Failure::run)?;
    let steering = Arc::new(steering);
    #[cfg(target_os = "linux")]
    if crate::broker::keys::may_ask() {
        super::watched::watch(Arc::downgrade(&steering));
    }
    // Hold the state weakly: the signal thread outlives the target, and must not keep its disks
    // open.
    let heard = Arc::downgrade(&steering);
    let listens = hangup.on_each(move || {
        if let Some(steering) = heard.upgrade() {
            answer(&steering);
        }
    });
    listens.map_err(|error| Failure::run(format_args!("cannot handle SIGHUP: {}", os(&error))))?;
    Ok(Sockets {
        _spdk: offer_spdk(args, &steering, bdevs)?,
        control: offer(args, target, &steering)?,
        _steering: steering,
    })
}

/// Starts the control socket and the servers on TCP.
fn offer(args: &ServeArgs, target: &Target, steering: &Arc<Steering>) -> Result<Option<Steered>> {
    let default = target.entrances().first().and_then(|one| places::default_socket(&one.address));
    let control = args.control.clone().or(default).filter(|_| !args.no_control);
    if control.is_none() && !args.no_control {
        tracing::warn!(
            "there is no control socket, so farblock status and ctl cannot reach this target: set \
             $XDG_RUNTIME_DIR, or name a path with --control"
        );
    }
    let certificate = tokens::certificate(args)?;
    if let Some(doubt) = certificate.as_ref().and_then(Certificate::doubt) {
        tracing::warn!("--https-cert: {doubt}");
    }
    let is_secure = certificate.is_some();
    let (ui, fragment) = dashboard::wanted(&args.ui, is_secure)?.map(Wanted::split).unzip();
    let api = tokens::wanted(&args.api)?;
    let is_asked_for = args.control.is_some() || args.metrics.is_some() || ui.is_some();
    let is_asked_for = is_asked_for || api.is_some();
    let on_tcp = OnTcp { metrics: args.metrics, ui, api, certificate };
    match serve(Arc::clone(steering), control.as_deref(), on_tcp) {
        Ok(server) => {
            let dashboard = server.ui().zip(fragment);
            let dashboard = dashboard.map(|(address, rest)| Wanted::url(&rest, address, is_secure));
            let steered = Steered { server, dashboard, is_secure };
            steered.warn();
            Ok(Some(steered))
        }
        Err((what, error)) if is_asked_for => Err(listening(&what, &error, option_of(args, &what))),
        Err((what, error)) => {
            tracing::warn!("no control socket at {what}: {} (--control PATH)", os(&error));
            Ok(None)
        }
    }
}

/// Returns the name of the option that set this listening address.
fn option_of(args: &ServeArgs, place: &str) -> &'static str {
    let asked = [(args.metrics, "--metrics"), (args.ui.ui, "--ui"), (args.api.api, "--api")];
    let at = |address: &Option<SocketAddr>| address.is_some_and(|it| it.to_string() == place);
    // If two options have the same address, the server that starts later fails.
    let found = asked.iter().rev().find(|(address, _)| at(address));
    found.map_or("--control", |(_, option)| option)
}

fn offer_spdk(
    args: &ServeArgs,
    steering: &Arc<Steering>,
    bdevs: Arc<Bdevs>,
) -> Result<Option<SpdkServer>> {
    let Some(path) = &args.spdk_rpc else { return Ok(None) };
    let rpc = SpdkRpc::new(Arc::clone(steering), bdevs, Arc::new(Opener));
    serve_spdk(rpc, path).map(Some).map_err(|error| {
        Failure::run(format_args!("cannot listen on {}: {}", path.display(), os(&error)))
    })
}

/// The listener settings of the command line.
struct Given {
    listen: Option<Vec<Entrance>>,
    ana: Option<Ana>,
    tls: Option<Tls>,
}

/// Returns a function that reads the configuration again and applies the command line's overrides.
fn reader(path: PathBuf, given: Given) -> Configured {
    Arc::new(move || {
        let said = |failure: Failure| failure.sentence().to_owned();
        configuration::rereadable(&path).map_err(said)?;
        let mut document = config::document(&path).map_err(said)?;
        let access = document::common_access(&document, given.ana);
        let mut addresses: Vec<_> = document.listeners.keys().copied().collect();
        if let Some(listen) = &given.listen {
            addresses.clone_from(listen);
        }
        let before = std::mem::take(&mut document.listeners);
        document.listeners = document::listeners(&addresses, &before, &access, given.tls);
        check_listeners(&addresses).map_err(said)?;
        Ok(document)
    })
}

/// Handles SIGHUP: applies the changes in the configuration file, and logs them.
fn answer(steering: &Steering) {
    match steering.reload(false) {
        Ok(changed) => {
            let summary = changed.summary();
            tracing::info!(target: farblock_admin::AUDIT, who = "SIGHUP", "{summary}");
        }
        Err(refused) => {
            let said = format!("SIGHUP: nothing changed: {refused}");
            tracing::warn!(target: farblock_admin::AUDIT, "{said}");
        }
    }
}
