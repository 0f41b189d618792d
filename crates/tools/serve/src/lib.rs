//! `farblock serve`: runs a target until a signal stops it.

mod announce;
pub mod args;
mod config;
#[cfg(target_os = "linux")]
mod confined;
#[cfg(unix)]
pub mod dashboard;
mod disks;
mod document;
#[cfg_attr(not(target_os = "linux"), path = "group/none.rs")]
pub mod group;
mod group_config;
mod identity;
mod keys;
mod located;
mod machine;
mod mirrored;
mod names;
#[cfg(target_os = "linux")]
mod nodes;
mod reserved;
mod slow;
#[cfg(target_os = "linux")]
mod sockets;
#[cfg(unix)]
mod steered;
#[cfg(unix)]
pub mod tokens;
mod twice;
#[cfg(target_os = "linux")]
mod watched;

pub use disks::parse_os as parse_disk;
pub use keys::reference as key_reference;
pub use names::name as disk_name;

#[cfg(unix)]
use args::ApiArgs;
use args::{Global, ServeArgs};
use document::{Led, Opening, Shares};
use error::{Failure, Result};
use farblock_admin::Opened;
use farblock_backends::Spec;
use farblock_disks::{self as elsewhere, ceph, journal};
#[cfg(target_os = "linux")]
use farblock_program::{broker, notify, sandbox};
use farblock_program::{configuration, error, output, remote, signals, table, values};
use farblock_proto::ids::NamespaceId;
#[cfg(target_os = "linux")]
use farblock_state::Document;
use farblock_state::{Entrance, Tls};
use farblock_target::{RdmaListeners, StartError, Subsystem, Target, TargetConfig};
use farblock_wire::tcp::PORT_IO;
#[cfg(target_os = "linux")]
use notify::Notifier;
use signals::Stop;
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, TcpListener};

/// Runs the target until a signal stops it.
pub fn run(mut args: ServeArgs, global: &Global) -> Result<()> {
    let sockets = handed_over()?;
    args.listen.extend(sockets.iter().flat_map(TcpListener::local_addr).map(Entrance::from));
    if let Some(path) = &args.check {
        let in_order = check(path)?;
        checked_certificate(&args)?;
        return output::print(&in_order);
    }
    // Read the configuration only once: it may be a pipe.
    let written = args.config.as_deref().map(configuration::read).transpose()?;
    let written = written.as_deref();
    #[cfg(target_os = "linux")]
    configure(&mut args, written)?;
    let args = &args;
    let wished = group::prepare(args)?;
    // Drop rights before any thread starts: earlier threads would keep theirs.
    #[cfg(target_os = "linux")]
    confined::confine(args, written)?;
    // Install the handler before opening disks, so that a signal stops the process cleanly
    // meanwhile.
    let stop = stopped_by(args)?;
    let hangup = signals::outlive_others().map_err(|error| {
        Failure::run(format_args!("cannot handle signals: {}", crate::error::os(&error)))
    })?;
    let mut note = notes(global);
    if let Some(folder) = reserved::wanted(args.state_dir.as_deref()) {
        reserved::keep_in(&folder)?;
    }
    let (shares, opening) = asked_for(args, written, global, &mut note)?;
    let configured = shares.document.clone();
    #[cfg(unix)]
    let (shares, store) = steered::resumed(args, shares, opening, &mut note)?;
    #[cfg(not(unix))]
    let shares = opening(shares, &mut note)?;
    let Shares { config, disks, document, led } = shares.distinguished().agreed();
    #[cfg(target_os = "linux")]
    let config = confined_to_node(config, &document);
    let (config, member) = group::join(wished, config, (args, led), &stop)?;
    let target = Target::start_with(&config, sockets).map_err(|error| explain(&error, args))?;
    #[cfg(unix)]
    let steering = {
        let keys = steered::keys(&config);
        let group = member.as_ref().map(group::Member::grouped);
        let begun = steered::Begun { disks, document, configured, keys, store, group };
        steered::begin(args, &target, begun, hangup)?
    };
    #[cfg(not(unix))]
    let steering = without_steering(args, (disks, document, configured, hangup))?;
    member.iter().for_each(|member| member.attach(&target));
    warn(&target);
    announce::announce(&target, &config, on_tcp(&steering), args.json, global.quiet)?;
    #[cfg(target_os = "linux")]
    let manager = Notifier::from_environment();
    #[cfg(target_os = "linux")]
    manager.ready(&sharing(&target, &config));
    // The configuration holds the disks, too. Drop it, so that removing a disk at run time closes
    // its file.
    drop(config);
    stop.wait();
    #[cfg(target_os = "linux")]
    manager.stopping("finishing accepted commands");
    let starts_again = member.is_some_and(|member| member.leave(global.quiet));
    #[cfg(unix)]
    drop(steering);
    finish(target, global)?;
    if starts_again { Err(start_again()) } else { Ok(()) }
}

/// Returns the failure whose exit code makes the supervisor restart this member of a group.
fn start_again() -> Failure {
    let sentence = "stopped by farblock ctl group upgrade, or without its watchdog: start this \
                    program again";
    Failure::StartAgain(sentence.to_owned())
}

/// Copies the section `[group]` of the configuration file to the options.
#[cfg(target_os = "linux")]
fn configure(args: &mut ServeArgs, written: Option<&str>) -> Result<()> {
    let (Some(path), Some(text)) = (args.config.clone(), written) else { return Ok(()) };
    let Some(group) = config::group_of(&path, text)? else { return Ok(()) };
    let refused = [
        ("--persist", args.persist.is_some()),
        ("--ana", args.ana.is_some()),
        ("--cntlids", args.cntlids.is_some()),
        ("--spdk-rpc", args.spdk_rpc.is_some()),
    ];
    if let Some((option, _)) = refused.iter().find(|(_, is_given)| *is_given) {
        return Err(Failure::usage(format_args!(
            "{option} does not work in a group, which sets this itself: leave it out, or remove \
             [group] from {}",
            path.display()
        )));
    }
    args.group = group;
    Ok(())
}

/// Stops the target, which first completes the accepted commands.
fn finish(target: Target, global: &Global) -> Result<()> {
    if !global.quiet {
        say_what_is_finished(target.connections());
    }
    target.stop().map_err(|error| {
        Failure::run(format_args!(
            "an event loop of the server failed: {}",
            crate::error::os(&error)
        ))
    })?;
    if !global.quiet {
        output::note("stopped");
    }
    Ok(())
}

/// Returns the function that prints notes, unless `--quiet` is given.
fn notes(global: &Global) -> impl FnMut(String) + use<> {
    let quiet = global.quiet;
    move |text| {
        if !quiet {
            output::note(&text);
        }
    }
}

fn say_what_is_finished(connections: usize) {
    if connections > 0 {
        let plural = if connections == 1 { "" } else { "s" };
        output::note(&format!(
            "stopping: finishing the accepted commands of {connections} connection{plural} \
             (signal again to stop at once)"
        ));
    }
}

/// Pins the target to the cores near its disks and network cards, unless the command line or the
/// configuration names cores.
#[cfg(target_os = "linux")]
fn confined_to_node(mut config: TargetConfig, document: &Document) -> TargetConfig {
    let namespaces = document.subsystems.values().flat_map(|one| one.namespaces.values());
    let paths = namespaces.map(|namespace| namespace.path.as_str());
    let at: Vec<_> = config.entrances().iter().map(|one| one.address).collect();
    if config.cores.is_empty()
        && let Some(nodes::Near { node, cores }) = nodes::Machine::here().near(paths, &at)
        && cores.len() <= farblock_reactor::allowance::loops()
    {
        tracing::info!("disks and network cards are on node {node}: using its cores {cores:?}");
        config.cores = cores;
    }
    config
}

/// Installs the handlers of the signals that stop the target.
fn stopped_by(args: &ServeArgs) -> Result<Stop> {
    let stop = Stop::install()?;
    mirrored::end_with(&stop);
    if args.end_with_input {
        signals::end_with_input()?;
    }
    Ok(stop)
}

/// Returns the initial state that the command line and the configuration request, and the function
/// that opens its disks.
fn asked_for<'a>(
    args: &'a ServeArgs,
    written: Option<&'a str>,
    global: &Global,
    note: &mut dyn FnMut(String),
) -> Result<(Shares, Opening<'a>)> {
    let (mut shares, opening) = match args.config.as_deref().zip(written) {
        Some((path, text)) => config::load(path, text, note)?,
        None => from_paths(args, note)?,
    };
    let listen = match &args.listen[..] {
        [] => planned(&shares),
        given => given.to_vec(),
    };
    check_listeners(&listen)?;
    shares.config.listeners = listen.iter().filter_map(|one| one.tcp_address()).collect();
    shares.config.rdma = rdma_listeners(&listen)?;
    shares.listen_as(args);
    if args.config.is_none() || global.engine != farblock_reactor::EngineKind::Auto {
        shares.config.engine = global.engine;
    }
    shares.config.buffer_bytes = args.memory.or(shares.config.buffer_bytes);
    shares.config.polling = global.spin().unwrap_or(shares.config.polling);
    keys::add_tls(args, &mut shares.config)?;
    Ok((shares, opening))
}

/// Returns the listeners of a configuration, or the default listener. TCP listeners come first, in
/// the file's order.
fn planned(shares: &Shares) -> Vec<Entrance> {
    let by_rdma = shares.document.listeners.keys().filter(|one| one.rdma_address().is_some());
    let by_tcp = shares.config.listeners.iter().copied().map(Entrance::from);
    by_tcp.chain(by_rdma.copied()).collect()
}

/// Returns the RDMA listeners among these addresses. If there are none, this function does not load
/// the RDMA library.
fn rdma_listeners(all: &[Entrance]) -> Result<Option<RdmaListeners>> {
    let addresses: Vec<_> = all.iter().filter_map(|one| one.rdma_address()).collect();
    if addresses.is_empty() {
        return Ok(None);
    }
    RdmaListeners::here(addresses).map(Some).map_err(Failure::run)
}

/// Returns the status line for systemd: the number of namespaces, and the addresses.
#[cfg(target_os = "linux")]
fn sharing(target: &Target, config: &TargetConfig) -> String {
    let namespaces: usize = config.subsystems.iter().map(|it| it.exports.len()).sum();
    let plural = if namespaces == 1 { "" } else { "s" };
    let at: Vec<_> = target.entrances().iter().map(Entrance::to_string).collect();
    format!("sharing {namespaces} namespace{plural} at {}", at.join(", "))
}

#[cfg(target_os = "linux")]
use sockets::handed_over;

/// Returns no sockets: only systemd passes them to a process.
#[cfg(not(target_os = "linux"))]
fn handed_over() -> Result<Vec<std::net::TcpListener>> {
    Ok(Vec::new())
}

/// Returns the addresses of the dashboard, the management API and the metrics.
#[cfg(unix)]
fn on_tcp(steering: &steered::Sockets) -> announce::OnTcp<'_> {
    steering.control.as_ref().map(steered::Steered::on_tcp).unwrap_or_default()
}

#[cfg(not(unix))]
fn on_tcp((): &()) -> announce::OnTcp<'static> {
    announce::OnTcp::default()
}

/// Logs the warnings of [`farblock_admin::warnings`], for example that a host needs no key.
fn warn(target: &Target) {
    for warning in farblock_admin::warnings(&target.control().report()) {
        tracing::warn!("{warning}");
    }
}

/// Refuses the options for changes at run time, which this system does not support.
#[cfg(not(unix))]
fn without_steering<T>(args: &ServeArgs, _: T) -> Result<()> {
    let wanted = args.control.is_some() || args.persist.is_some() || args.metrics.is_some();
    let wanted = wanted || args.ui.ui.is_some() || args.api.api.is_some();
    match (wanted && !args.no_control) || args.spdk_rpc.is_some() {
        true => Err(Failure::usage(
            "--control, --persist, --metrics, --ui, --api and --spdk-rpc need a Unix system: leave \
             them out here",
        )),
        false => Ok(()),
    }
}

/// Checks a configuration, and logs warnings. Returns a summary of a valid configuration.
fn check(path: &std::path::Path) -> Result<String> {
    let document = config::document(path)?;
    check_listeners(&document.listeners.keys().copied().collect::<Vec<_>>())?;
    let namespaces: usize = document.subsystems.values().map(|it| it.namespaces.len()).sum();
    let count = |count, what| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let mut serials = BTreeMap::new();
    for (nqn, subsystem) in &document.subsystems {
        let Some(serial) = &subsystem.serial else { continue };
        if let Some(other) = serials.insert(serial, nqn) {
            tracing::warn!(
                "{}: the subsystems {other} and {nqn} both have the serial number {serial}, by \
                 which hosts distinguish disks: change one of them",
                path.display()
            );
        }
    }
    Ok(format!(
        "{} is valid: {}, {}, {}\n",
        path.display(),
        count(document.subsystems.len(), "subsystem"),
        count(namespaces, "namespace"),
        count(document.listeners.len(), "listener"),
    ))
}

/// Fails if the certificate of the command line cannot be read or is not valid today.
#[cfg(unix)]
fn checked_certificate(args: &ServeArgs) -> Result<()> {
    let ApiArgs { https_cert, https_key, .. } = &args.api;
    let certificate = tokens::certified(https_cert.as_deref(), https_key.as_deref())?;
    let doubt = certificate.and_then(|certificate| certificate.doubt());
    doubt.map_or(Ok(()), |doubt| Err(Failure::run(format_args!("--https-cert: {doubt}"))))
}

#[cfg(not(unix))]
fn checked_certificate(_: &ServeArgs) -> Result<()> {
    Ok(())
}

/// Refuses an address that is listed twice, or that another listed address includes.
fn check_listeners(listeners: &[Entrance]) -> Result<()> {
    for (index, address) in listeners.iter().enumerate().filter(|(_, it)| it.port() != 0) {
        if listeners[..index].contains(address) {
            return Err(Failure::usage(format_args!(
                "{address} is listed twice as a listener: leave one out"
            )));
        }
        if let Some(all) = listeners.iter().find(|all| all.covers(*address)) {
            return Err(Failure::usage(format_args!(
                "{all} stands for every address, including {address}: leave {address} out"
            )));
        }
    }
    Ok(())
}

/// Plans one subsystem, with a namespace for each path of the command line. Without paths, plans
/// none.
fn from_paths<'a>(
    args: &'a ServeArgs,
    note: &mut dyn FnMut(String),
) -> Result<(Shares, Opening<'a>)> {
    if args.paths.is_empty() {
        return Ok((nothing_yet(args)?, Box::new(|shares, _| Ok(shares))));
    }
    let specs = args.paths.iter().map(|path| disks::parse_os(path)).collect::<Result<Vec<_>, _>>();
    let specs = specs.map_err(Failure::Usage)?;
    elsewhere::memory_doubt(&specs.iter().collect::<Vec<_>>()).map(&mut *note);
    let nqn = args.nqn.clone().or_else(|| group::nqn(args));
    let nqn = nqn.unwrap_or_else(|| disks::default_nqn(&specs, note));
    values::doubt(&nqn).map(&mut *note);
    let mut subsystem = Subsystem::new(&nqn);
    let only_with_tls = document::tls(args) == Some(Tls::Required);
    if only_with_tls && args.tls_key.is_empty() {
        return Err(Failure::usage(
            "with --tls required, only hosts with a TLS key can connect: name a host's key with \
             --tls-key NQN=FILE",
        ));
    }
    let is_open = args.allow_host.is_empty() && args.host_key.is_empty() && !only_with_tls;
    subsystem.config.allow_any_host = is_open;
    subsystem.config.allowed_hosts.clone_from(&args.allow_host);
    let hosts = keys::add_given(args, &mut subsystem)?;
    subsystem.config.check().map_err(|error| Failure::usage(format_args!("--nqn: {error}")))?;
    let config = TargetConfig {
        subsystems: vec![subsystem],
        listeners: vec![(Ipv4Addr::LOCALHOST, PORT_IO).into()],
        cores: args.cores.clone().map(|cores| cores.0).unwrap_or_default(),
        ..TargetConfig::default()
    };
    let mut shares = Shares { document: document::of(&config), config, ..Shares::default() };
    shares.document.subsystems.entry(nqn.clone()).or_default().hosts.extend(hosts);
    for (nsid, spec) in (1..).zip(&specs) {
        let described = document::namespace(spec, args.block_size, args.read_only);
        shares.describe(&nqn, NamespaceId(nsid), group::described(args, nsid, described));
    }
    Ok((shares, Box::new(move |shares, note| open_paths(args, &specs, shares, note))))
}

fn open_paths(
    args: &ServeArgs,
    specs: &[Spec],
    mut shares: Shares,
    note: &mut dyn FnMut(String),
) -> Result<Shares> {
    if group::is_wished(args) {
        for (nsid, spec) in (1..).zip(specs) {
            let (spec, block_size, read_only) = (spec.clone(), args.block_size, args.read_only);
            let led = Led { spec, block_size, read_only };
            group::absent(&mut shares, (0, NamespaceId(nsid)), led)?;
        }
        return Ok(shares);
    }
    let gathering = identity::Gathering::begin();
    for (nsid, spec) in (1..).zip(specs) {
        let opened = disks::open(spec, None, args.block_size, args.read_only, note);
        let opened = opened.map_err(|error| Failure::Run(disks::refused_new(spec, &error)))?;
        let identity = disks::identity(spec, note);
        shares.add(0, NamespaceId(nsid), Opened { identity, ..opened });
    }
    gathering.check().map_err(Failure::Run)?;
    Ok(shares)
}

/// Plans a target without subsystems, which SPDK clients will configure.
fn nothing_yet(args: &ServeArgs) -> Result<Shares> {
    if args.nqn.is_some() || !args.allow_host.is_empty() || !args.host_key.is_empty() {
        return Err(Failure::usage(
            "--nqn, --allow-host and --host-key configure the subsystem of the shared disks: name \
             a disk, or leave these options out",
        ));
    }
    let config = TargetConfig {
        listeners: vec![(Ipv4Addr::LOCALHOST, PORT_IO).into()],
        cores: args.cores.clone().map(|cores| cores.0).unwrap_or_default(),
        ..TargetConfig::default()
    };
    Ok(Shares { document: document::of(&config), config, ..Shares::default() })
}

/// Describes a start error, and names the option that helps.
fn explain(error: &StartError, args: &ServeArgs) -> Failure {
    let place = match &args.config {
        Some(path) => format!("listeners in {}", path.display()),
        None => "--listen".to_owned(),
    };
    Failure::run(match error {
        StartError::Listen(address, problem) if problem.kind() == io::ErrorKind::AddrInUse => {
            let mut other = *address;
            other.set_port(address.port().checked_add(1).unwrap_or(0));
            format!(
                "cannot listen on {address}: another program uses this port; \
                 choose another port with {place} {other} (port 0 selects a free port)"
            )
        }
        StartError::Listen(address, problem)
            if problem.kind() == io::ErrorKind::AddrNotAvailable =>
        {
            format!(
                "cannot listen on {address}: this machine has no such address; choose another \
                 with {place}, for example 0.0.0.0:{} for all addresses of this machine",
                address.port()
            )
        }
        StartError::Core(core, _) => {
            let count = std::thread::available_parallelism().map_or(1, usize::from);
            format!(
                "cannot run on processor {core}: this process may use {count} processors; \
                 choose others with {}",
                if args.config.is_some() { "cores" } else { "--cores" }
            )
        }
        other => other.to_string(),
    })
}
