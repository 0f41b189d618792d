//! `farblock serve`: runs a target until it is told to stop.

mod announce;
mod config;
mod disks;
mod document;
mod identity;
mod keys;
mod located;
mod reserved;
#[cfg(unix)]
mod steered;

pub(crate) use announce::reachable;
#[cfg(unix)]
pub(crate) use disks::{name as disk_name, parse_os as parse_disk};

use crate::args::{Global, ServeArgs};
use crate::error::{Failure, Result};
use crate::output;
use crate::signals::{self, Stop};
use document::Shares;
use farblock_admin::Opened;
use farblock_proto::ids::NamespaceId;
use farblock_target::{StartError, Subsystem, Target, TargetConfig};
use farblock_wire::tcp::PORT_IO;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

/// Runs the command.
pub(crate) fn run(args: &ServeArgs, global: &Global) -> Result<()> {
    if let Some(path) = &args.check {
        return check(path);
    }
    // First, so that a signal while disks are being opened ends it cleanly as well.
    let stop = Stop::install()?;
    let hangup = signals::outlive_others().map_err(|error| {
        Failure::run(format_args!("cannot handle signals: {}", crate::error::os(&error)))
    })?;
    let mut note = |text: String| {
        if !global.quiet {
            output::note(&text);
        }
    };
    let mut shares = match &args.config {
        Some(path) => config::load(path, &mut note)?,
        None => from_paths(args, &mut note)?,
    };
    if !args.listen.is_empty() {
        shares.config.listeners.clone_from(&args.listen);
    }
    check_listeners(&shares.config.listeners)?;
    shares.document.listeners = document::listeners(&shares.config.listeners);
    if args.config.is_none() || global.engine != farblock_reactor::EngineKind::Auto {
        shares.config.engine = global.engine;
    }
    if global.poll {
        shares.config.polling = global.polling();
    }
    let configured = shares.document.clone();
    #[cfg(unix)]
    let shares = steered::resumed(args, shares, &mut note)?;
    let Shares { config, disks, document } = shares.distinguished();
    let target = Target::start(&config).map_err(|error| explain(&error, args))?;
    #[cfg(unix)]
    let steering = match steered::has_keys(&config) {
        true => steered::closed(args, hangup)?,
        false => steered::begin(args, global, &target, disks, document, configured, hangup)?,
    };
    #[cfg(not(unix))]
    let () = without_steering(args, (disks, document, configured, hangup))?;
    announce::announce(&target, &config, args.json, global.quiet)?;
    // It has the disks, too: the file of one that is removed is to be free.
    drop(config);
    stop.wait();
    #[cfg(unix)]
    drop(steering);
    let connections = target.connections();
    if !global.quiet && connections > 0 {
        let plural = if connections == 1 { "" } else { "s" };
        output::note(&format!(
            "stopping: finishing what {connections} connection{plural} had accepted \
             (again to stop at once)"
        ));
    }
    target.stop().map_err(|error| {
        Failure::run(format_args!("an event loop had failed: {}", crate::error::os(&error)))
    })
}

/// There a target is as it was started.
#[cfg(not(unix))]
fn without_steering<T>(args: &ServeArgs, _: T) -> Result<()> {
    let wanted = args.control.is_some() || args.persist.is_some() || args.metrics.is_some();
    match wanted && !args.no_control {
        true => Err(Failure::usage(
            "--control, --persist and --metrics need a Unix system: leave them out here",
        )),
        false => Ok(()),
    }
}

/// Says whether a configuration is in order.
fn check(path: &std::path::Path) -> Result<()> {
    let document = config::document(path)?;
    let namespaces: usize = document.subsystems.values().map(|it| it.namespaces.len()).sum();
    let count = |count, what| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    output::print(&format!(
        "{} is in order: {}, {}, {}\n",
        path.display(),
        count(document.subsystems.len(), "subsystem"),
        count(namespaces, "namespace"),
        count(document.listeners.len(), "listener"),
    ))
}

/// An address that is listed twice, or that another one covers, would be in its own way.
fn check_listeners(listeners: &[SocketAddr]) -> Result<()> {
    for (index, address) in listeners.iter().enumerate().filter(|(_, it)| it.port() != 0) {
        if listeners[..index].contains(address) {
            return Err(Failure::usage(format_args!(
                "{address} is twice among the addresses to listen on: leave one out"
            )));
        }
        if let Some(all) = listeners.iter().find(|all| covers(all, address)) {
            return Err(Failure::usage(format_args!(
                "{all} is every address of this machine, {address} too: leave {address} out"
            )));
        }
    }
    Ok(())
}

/// Whether a listener at `all` has the connections to `address`, another one, as well.
fn covers(all: &SocketAddr, address: &SocketAddr) -> bool {
    let same = all.port() == address.port() && all.is_ipv4() == address.is_ipv4();
    all.ip().is_unspecified() && same && all != address
}

/// One subsystem with a namespace for each path.
fn from_paths(args: &ServeArgs, note: &mut dyn FnMut(String)) -> Result<Shares> {
    let specs = args.paths.iter().map(|path| disks::parse_os(path)).collect::<Result<Vec<_>, _>>();
    let specs = specs.map_err(Failure::Usage)?;
    disks::memory_doubt(&specs.iter().collect::<Vec<_>>()).map(&mut *note);
    let nqn = args.nqn.clone().unwrap_or_else(|| disks::default_nqn(&specs, note));
    let mut subsystem = Subsystem::new(&nqn);
    subsystem.config.allow_any_host = args.allow_host.is_empty() && args.host_key.is_empty();
    subsystem.config.allowed_hosts.clone_from(&args.allow_host);
    keys::add_given(args, &mut subsystem)?;
    subsystem.config.check().map_err(|error| Failure::usage(format_args!("--nqn: {error}")))?;
    let config = TargetConfig {
        subsystems: vec![subsystem],
        listeners: vec![(Ipv4Addr::LOCALHOST, PORT_IO).into()],
        cores: args.cores.clone().map(|cores| cores.0).unwrap_or_default(),
        ..TargetConfig::default()
    };
    let mut shares = Shares { document: document::of(&config), config, ..Shares::default() };
    for (index, spec) in specs.iter().enumerate() {
        let opened = disks::open(spec, args.block_size, args.read_only);
        let (namespace, file) =
            opened.map_err(|error| Failure::Run(disks::refused(&error, "--read-only")))?;
        let nsid = NamespaceId(index as u32 + 1);
        let identity = disks::identity(spec, note);
        let described = document::namespace(spec, args.block_size, args.read_only);
        shares.describe(&nqn, nsid, described);
        shares.add(0, nsid, Opened { namespace, file, identity });
        shares.keep_reservations(0, nsid, spec);
    }
    Ok(shares)
}

/// Says which option would help.
fn explain(error: &StartError, args: &ServeArgs) -> Failure {
    let place = match &args.config {
        Some(path) => format!("listeners in {}", path.display()),
        None => "--listen".to_owned(),
    };
    Failure::run(match error {
        StartError::Listen(address, problem) if problem.kind() == io::ErrorKind::AddrInUse => {
            let next = address.port().checked_add(1).unwrap_or(0);
            let other = SocketAddr::new(address.ip(), next);
            format!(
                "cannot listen on {address}: another program uses this port; \
                 choose another one with {place} {other} (port 0 takes a free one)"
            )
        }
        StartError::Listen(address, problem)
            if problem.kind() == io::ErrorKind::AddrNotAvailable =>
        {
            format!(
                "cannot listen on {address}: this machine has no such address; choose another one \
                 with {place}, for example 0.0.0.0:{} for all of this machine's",
                address.port()
            )
        }
        StartError::Core(core, _) => {
            let count = std::thread::available_parallelism().map_or(1, usize::from);
            format!(
                "cannot run on processor {core}: this process may use {count} of them; \
                 choose others with {}",
                if args.config.is_some() { "cores" } else { "--cores" }
            )
        }
        other => other.to_string(),
    })
}
