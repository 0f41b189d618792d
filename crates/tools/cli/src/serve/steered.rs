//! A target that is changed while it runs: what it begins with, its control socket, and SIGHUP.

use super::document::{self, Shares};
use super::{check_listeners, config, disks};
use crate::args::{Global, ServeArgs};
use crate::error::{Failure, Result, os};
use crate::output;
use crate::signals::Hangup;
use crate::steer;
use farblock_admin::{Disks, Open, Opened, Server, Steering, serve};
use farblock_proto::controller::{AddressFamily, Referral};
use farblock_proto::ids::NamespaceId;
use farblock_state::{Document, Namespace, Store, merge};
use farblock_target::{Subsystem, Target, TargetConfig};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// Opens what a document names.
struct Opener;

impl Open for Opener {
    fn open(&mut self, namespace: &Namespace) -> Result<Opened, String> {
        let spec = disks::parse(&namespace.path)?;
        let opened = disks::open(&spec, namespace.block_size, namespace.read_only);
        let (namespace, file) =
            opened.map_err(|error| disks::refused(&error, "read_only = true"))?;
        let identity = disks::identity(&spec, &mut |text| tracing::info!("{text}"));
        Ok(Opened { namespace, file, identity })
    }

    /// A namespace that is added has no reservations yet; who was fenced must not get in so.
    fn may_be_added(&self, namespace: &Namespace) -> Result<(), String> {
        let store = disks::reservations(&disks::parse(&namespace.path)?);
        match store.map_or(Ok(String::new()), |store| store.load()) {
            Ok(kept) if kept.is_empty() => Ok(()),
            _ => Err(format!(
                "{} has reservations that were kept, and only a target that starts takes them up: \
                 put it into what it is started with, and restart it",
                namespace.path
            )),
        }
    }
}

/// What the target begins with: what the configuration says, and what was changed at run time
/// before, if that is kept.
pub(super) fn resumed(
    args: &ServeArgs,
    shares: Shares,
    note: &mut dyn FnMut(String),
) -> Result<Shares> {
    let Some(path) = &args.persist else { return Ok(shares) };
    if has_keys(&shares.config) {
        return Err(Failure::usage(
            "--persist keeps no secrets, and a host here has one: leave --persist out",
        ));
    }
    let Some(kept) = Store::new(path).load().map_err(Failure::run)? else { return Ok(shares) };
    let wanted = merge(&kept.configured, &shares.document, &kept.shared);
    if wanted == shares.document {
        return Ok(shares);
    }
    wanted.check().map_err(|problem| {
        let path = path.display();
        Failure::run(format_args!("{path} and the configuration do not go together: {problem}"))
    })?;
    note(format!("what was changed before goes on: {}", path.display()));
    let Shares { mut config, disks, .. } = shares;
    // Their files are to be opened again, and are locked.
    config.subsystems.clear();
    drop(disks);
    from_document(config, wanted)
}

fn from_document(mut config: TargetConfig, document: Document) -> Result<Shares> {
    config.listeners = document.listeners.keys().copied().collect();
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
        offered.allow_any_host = described.allow_any_host;
        offered.allowed_hosts = described.hosts.keys().cloned().collect();
        config.subsystems.push(subsystem);
    }
    let mut shares = Shares { config, document, ..Shares::default() };
    let described = shares.document.subsystems.clone();
    for (index, (nqn, subsystem)) in described.iter().enumerate() {
        for (nsid, namespace) in &subsystem.namespaces {
            let opened = Opener.open(namespace).map_err(|problem| {
                Failure::run(format_args!("namespace {nsid} of {nqn}: {problem}"))
            })?;
            let identity = namespace.uuid.map_or(opened.identity, |uuid| uuid.to_string());
            shares.add(index, NamespaceId(*nsid), Opened { identity, ..opened });
            if let Ok(spec) = disks::parse(&namespace.path) {
                shares.keep_reservations(index, NamespaceId(*nsid), &spec);
            }
        }
    }
    Ok(shares)
}

fn referral(address: &SocketAddr) -> Referral {
    Referral {
        family: if address.is_ipv4() { AddressFamily::V4 } else { AddressFamily::V6 },
        address: address.ip().to_string(),
        service: address.port().to_string(),
    }
}

/// Whether a host has to authenticate. What is changed while the target runs knows nothing of
/// secrets yet, and must never let a host in without the one that it had.
pub(super) fn has_keys(config: &TargetConfig) -> bool {
    config.subsystems.iter().any(|subsystem| !subsystem.keys.is_empty())
}

/// Lets nobody change a target with hosts that have to authenticate.
pub(super) fn closed(args: &ServeArgs, hangup: Hangup) -> Result<Option<Server>> {
    if args.control.is_some() || args.metrics.is_some() {
        return Err(Failure::usage(
            "a target with hosts that have a key cannot be steered yet: leave --control and \
             --metrics out",
        ));
    }
    let said = || {
        tracing::warn!(
            "SIGHUP is ignored: a target with hosts that have a key cannot be changed while it \
             runs yet; restart it"
        );
    };
    let listens = hangup.on_each(said);
    listens.map_err(|error| Failure::run(format_args!("cannot handle SIGHUP: {}", os(&error))))?;
    Ok(None)
}

/// Lets a running target be changed.
pub(super) fn begin(
    args: &ServeArgs,
    global: &Global,
    target: &Target,
    disks: Disks,
    mut document: Document,
    configured: Document,
    hangup: Hangup,
) -> Result<Option<Server>> {
    // With the ports that were taken.
    document.listeners = document::listeners(target.addresses());
    let again = args.config.clone().map(|path| reader(path, args.listen.clone()));
    let mut steering = Steering::new(target.control(), Box::new(Opener), document, disks)
        .configured(configured, again);
    if let Some(path) = &args.persist {
        steering = steering.kept_in(Store::new(path));
    }
    steering.begin().map_err(Failure::run)?;
    let steering = Arc::new(steering);
    let heard = Arc::clone(&steering);
    let quiet = global.quiet;
    let listens = hangup.on_each(move || answer(&heard, quiet));
    listens.map_err(|error| Failure::run(format_args!("cannot handle SIGHUP: {}", os(&error))))?;
    let default = steer::default_socket(&target.addresses()[0]);
    let control = args.control.clone().or(default).filter(|_| !args.no_control);
    match serve(Arc::clone(&steering), control.as_deref(), args.metrics) {
        Ok(server) => Ok(Some(server)),
        Err((what, error)) if args.control.is_some() || args.metrics.is_some() => {
            Err(Failure::run(format_args!("cannot listen on {what}: {}", os(&error))))
        }
        Err((what, error)) => {
            tracing::warn!("no control socket at {what}: {} (--control PATH)", os(&error));
            Ok(None)
        }
    }
}

type Reader = Box<dyn Fn() -> Result<Document, String> + Send + Sync>;

/// What reads the configuration again. The command line still wins over it.
fn reader(path: PathBuf, listen: Vec<SocketAddr>) -> Reader {
    Box::new(move || {
        let said = |failure: Failure| failure.sentence().to_owned();
        let mut document = config::keyless_document(&path).map_err(said)?;
        if !listen.is_empty() {
            document.listeners = document::listeners(&listen);
        }
        let addresses: Vec<_> = document.listeners.keys().copied().collect();
        check_listeners(&addresses).map_err(said)?;
        Ok(document)
    })
}

/// SIGHUP: what changed in the configuration is changed, and what is done is said.
fn answer(steering: &Steering, quiet: bool) {
    match steering.reload(false) {
        Ok(changed) if !quiet && changed.steps.is_empty() => {
            output::note("read the configuration again: nothing has changed in it");
        }
        Ok(changed) if !quiet => {
            output::note("read the configuration again:");
            changed.steps.iter().for_each(|step| output::note(&format!("  {step}")));
        }
        Ok(_) => {}
        Err(refused) => tracing::warn!("SIGHUP: everything stays as it is: {refused}"),
    }
}
