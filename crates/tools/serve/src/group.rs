//! `serve --group`: the target as a member of a group.
//!
//! The namespace with number N is the only one in the ANA group N. The subsystem's name and the
//! identifiers of its namespaces come from the group's name and these numbers, so they are the same
//! at every member.

use super::document::Shares;
use super::{disks, machine, names, slow};
use crate::args::ServeArgs;
use crate::error::{Failure, Result, os};
use crate::signals::Stop;
use farblock_admin::{Grouped, Opened};
use farblock_admin_api::GroupOrder;
use farblock_backends::Spec;
use farblock_block::{Geometry, Namespace};
use farblock_group::{Duty, FenceKind, Holder, Outcome, Permit, Phase, Report, Timing};
use farblock_group_service::watchdog::{self, Watchdog};
use farblock_group_service::{
    AnaGroupStatus, Disks, EtcdConfig, Events, GroupStatus, MemberStatus, Reporter, Service,
    ServiceConfig, start,
};
use farblock_group_target::{Absent, Handle, Leading, LeadingAnswer, LedNamespace};
use farblock_proto::controller::PortAccess;
use farblock_proto::ids::NamespaceId;
use farblock_target::{Control, Target, TargetConfig};
use farblock_wire::log::AnaState;
use farblock_wire::nqn::UUID_NQN_PREFIX;
use std::collections::BTreeMap;
use std::io::{Seek, SeekFrom};
use std::net::ToSocketAddrs;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// The time for handing over all ANA groups before the target stops.
const LEAVE_LIMIT: Duration = Duration::from_secs(20);
/// The interval at which a member tells its target about the other members.
const MEMBERS_EVERY: Duration = Duration::from_millis(200);
/// The interval at which a starting target looks whether it has joined its group.
const LOOK: Duration = Duration::from_millis(20);

/// The wish to join a group.
pub(super) struct Wished {
    group: String,
    member: String,
    addresses: Vec<String>,
    watchdog: Watchdog,
}

/// Checks the options of a group, and starts the watchdog process: the target cannot start programs
/// later. Returns `None` if the target joins no group.
pub(super) fn prepare(args: &ServeArgs) -> Result<Option<Wished>> {
    let Some(group) = args.group.group.clone() else { return Ok(None) };
    if args.paths.is_empty() {
        return Err(Failure::usage("--group shares disks: name at least one"));
    }
    let member = match &args.group.member {
        Some(member) => member.clone(),
        None => machine::name().to_ascii_lowercase(),
    };
    if !farblock_group::is_name(&member) {
        return Err(Failure::usage(format_args!(
            "{member} is no name for a member of a group: choose one with --member"
        )));
    }
    let addresses = addresses(args)?;
    Ok(Some(Wished { group, member, addresses, watchdog: watchdog()? }))
}

/// The addresses at which hosts reach this member.
fn addresses(args: &ServeArgs) -> Result<Vec<String>> {
    if args.listen.iter().any(|entrance| entrance.rdma_address().is_some()) {
        return Err(Failure::usage("--group works over TCP only: remove the rdma: listeners"));
    }
    if !args.group.advertise.is_empty() {
        return Ok(args.group.advertise.clone());
    }
    let listeners: Vec<_> = args.listen.iter().filter_map(|one| one.tcp_address()).collect();
    let is_known = |it: &std::net::SocketAddr| it.port() != 0 && !it.ip().is_unspecified();
    match !listeners.is_empty() && listeners.iter().all(is_known) {
        true => Ok(listeners.iter().map(ToString::to_string).collect()),
        false => Err(Failure::usage(
            "hosts and other members must know this member's address: use --listen with an address \
             and a port, or --advertise HOST:PORT",
        )),
    }
}

/// Whether the target is to join a group.
pub(super) fn is_wished(args: &ServeArgs) -> bool {
    args.group.group.is_some()
}

/// The default NQN of the subsystem of a group.
pub(super) fn nqn(args: &ServeArgs) -> Option<String> {
    let group = args.group.group.as_deref()?;
    Some(format!("{UUID_NQN_PREFIX}{}", identifier(group, "subsystem")))
}

fn identifier(group: &str, part: &str) -> Uuid {
    Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("farblock group\n{group}\n{part}").as_bytes())
}

/// Adds to a namespace's description the identity and the ANA group that all members share.
pub(super) fn described(
    args: &ServeArgs,
    nsid: u32,
    namespace: farblock_state::Namespace,
) -> farblock_state::Namespace {
    let Some(group) = &args.group.group else { return namespace };
    let uuid = Some(identifier(group, &nsid.to_string()));
    farblock_state::Namespace { uuid, ana_group: nsid, ..namespace }
}

/// Shares absent namespaces in place of the disks, which only the leader opens.
pub(super) fn absent(args: &ServeArgs, specs: &[Spec], mut shares: Shares) -> Result<Shares> {
    for (nsid, spec) in (1..).zip(specs) {
        let name = names::name(spec);
        let geometry = slow::named(&name, || geometry(args, spec))?;
        let namespace: Arc<dyn Namespace> = Arc::new(Absent::new(&name, geometry));
        let group = args.group.group.as_deref().unwrap_or_default();
        let identity = identifier(group, &nsid.to_string()).to_string();
        shares.add(0, NamespaceId(nsid), Opened::alone(namespace, identity));
    }
    Ok(shares)
}

/// Reads the size of a disk without a lock, since another member may use it.
fn geometry(args: &ServeArgs, spec: &Spec) -> Result<Geometry> {
    let name = names::name(spec);
    let bytes = match spec {
        Spec::File(path) => bytes(path).map_err(|error| {
            Failure::run(format_args!("cannot read the size of {name}: {}", os(&error)))
        })?,
        Spec::Rbd(_) => {
            let opened = farblock_disks::open_to_measure(spec, args.block_size, true);
            let opened = opened.map_err(|error| Failure::Run(disks::refused(&error, "")))?;
            return Ok(Geometry { read_only: args.read_only, ..opened.geometry() });
        }
        _ => {
            return Err(Failure::usage(format_args!(
                "{name}: a group shares files, block devices and Ceph images (rbd:POOL/IMAGE) that \
                 every member can open"
            )));
        }
    };
    let blocks = bytes / u64::from(args.block_size);
    if blocks == 0 || bytes % u64::from(args.block_size) != 0 {
        return Err(Failure::run(format_args!(
            "{name} has {bytes} bytes, which is not a multiple of the block size {}",
            args.block_size
        )));
    }
    let geometry = Geometry::new(args.block_size, blocks);
    Ok(Geometry { read_only: args.read_only, volatile_cache: true, deallocate: true, ..geometry })
}

fn bytes(path: &Path) -> std::io::Result<u64> {
    std::fs::File::open(path)?.seek(SeekFrom::End(0))
}

/// A member of a group.
pub(super) struct Member {
    service: Arc<Joined>,
    handle: Handle,
}

/// The member's service; `None` once it leaves the group.
struct Joined(Mutex<Option<Service>>);

impl Joined {
    fn lock(&self) -> MutexGuard<'_, Option<Service>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Grouped for Joined {
    fn status(&self) -> serde_json::Value {
        let seen = self.lock().as_ref().map(Service::snapshot);
        serde_json::to_value(seen).unwrap_or_default()
    }

    fn order(&self, order: &GroupOrder) -> Result<(), String> {
        let service = self.lock();
        let service = service.as_ref().ok_or("this member leaves the group: ask another one")?;
        match order {
            GroupOrder::Move { ana_group, member } => service.pin(*ana_group, member),
            GroupOrder::Unpin { ana_group } => service.unpin(*ana_group),
            GroupOrder::Resume { member } => service.order(member, Duty::Serve),
            GroupOrder::Drain { member } => service.order(member, Duty::Drain),
            GroupOrder::Pause { member } => service.order(member, Duty::Pause),
        }
    }
}

/// Joins the group, and waits until the group has assigned controller identifiers.
pub(super) fn join(
    wished: Option<Wished>,
    mut config: TargetConfig,
    args: &ServeArgs,
    stop: &Stop,
) -> Result<(TargetConfig, Option<Member>)> {
    let Some(wished) = wished else { return Ok((config, None)) };
    let leads = led(args, &config, &wished.watchdog.reporter())?;
    let numbers: Vec<u32> = leads.iter().map(|one| one.sharing.ana_group).collect();
    let flight_ms = u64::try_from(args.group.disk_flight.as_millis()).unwrap_or(u64::MAX);
    let fences = |group: &u32| (*group, vec![FenceKind::None { flight_ms }]);
    let settings = ServiceConfig {
        etcd: EtcdConfig { endpoints: args.group.etcd.clone(), ..EtcdConfig::default() },
        group: wished.group.clone(),
        name: wished.member,
        addresses: wished.addresses,
        weight: 100,
        program: env!("CARGO_PKG_VERSION").to_owned(),
        state_folder: args.state_dir.clone(),
        ana_groups: numbers.iter().map(fences).collect::<BTreeMap<_, _>>(),
        watchdog: Some(wished.watchdog),
        timing: Timing::default(),
    };
    let events: Arc<OnceLock<Events>> = Arc::default();
    let answers = Arc::clone(&events);
    // The member's thread sets the events before it gives the first order.
    let sink = Arc::new(move |answer| match (answers.get(), answer) {
        (Some(events), LeadingAnswer::Event(event)) => events.send(event),
        (Some(events), LeadingAnswer::Parked { group, epoch }) => events.parked(group, epoch),
        (None, _) => {}
    });
    let (leading, handle) = Leading::start(leads, sink).map_err(|error| {
        Failure::run(format_args!("cannot start a thread for the group: {}", os(&error)))
    })?;
    let service = start(settings, move |its| {
        let _ = events.set(its);
        Box::new(Orders(leading))
    });
    let service = service.map_err(|error| Failure::run(format_args!("--group: {error}")))?;
    config.permits = handle.permits();
    config.access = (0..config.listeners.len())
        .map(|index| (index, PortAccess::all(AnaState::INACCESSIBLE)))
        .collect();
    config.controller_ids = controller_ids(&service, &wished.group, stop)?;
    let service = Arc::new(Joined(Mutex::new(Some(service))));
    Ok((config, Some(Member { service, handle })))
}

/// Waits until this member has joined and has its range of controller identifiers.
fn controller_ids(service: &Service, group: &str, stop: &Stop) -> Result<RangeInclusive<u16>> {
    let mut next = Instant::now() + Duration::from_secs(3);
    loop {
        let seen = service.snapshot();
        let own = seen.members.iter().find(|it| it.name == seen.member && seen.joined);
        if let Some((first, last)) = own.and_then(|own| own.controller_ids) {
            return Ok(first..=last);
        }
        if stop.requested() {
            return Err(Failure::run(format_args!("stopped before it joined the group {group}")));
        }
        if Instant::now() >= next {
            next = Instant::now() + Duration::from_secs(30);
            let trouble = seen.store.trouble.unwrap_or_else(|| "etcd does not answer".to_owned());
            tracing::warn!("waiting until this target has joined the group {group}: {trouble}");
        }
        std::thread::sleep(LOOK);
    }
}

/// Starts the watchdog process.
fn watchdog() -> Result<Watchdog> {
    let started = std::env::current_exe()
        .and_then(|program| watchdog::spawn(&[program.into(), "watchdog".into()]));
    started.map_err(|error| {
        Failure::run(format_args!("cannot start the watchdog process: {}", os(&error)))
    })
}

/// The namespaces that the group leads.
fn led(args: &ServeArgs, config: &TargetConfig, reporter: &Reporter) -> Result<Vec<LedNamespace>> {
    let mut all = Vec::new();
    for subsystem in &config.subsystems {
        for ((nsid, export), path) in subsystem.exports.iter().zip(&args.paths) {
            let spec = disks::parse_os(path).map_err(Failure::Usage)?;
            let uuid = export.identity.parse().ok();
            let (block_size, read_only) = (args.block_size, args.read_only);
            let absent = Absent::new(&names::name(&spec), export.namespace.geometry());
            let (reporter, sharing) = (reporter.clone(), subsystem.sharing.get(nsid).cloned());
            let sharing = sharing.unwrap_or_default();
            let group = sharing.ana_group;
            let open = move || {
                let note: &mut dyn FnMut(String) = &mut |text| tracing::info!("{text}");
                let opened = disks::open(&spec, uuid, block_size, read_only, note);
                let refused = |error| disks::refused(&error, "--read-only");
                let namespace = opened.map_err(refused)?.namespace;
                // A read-only disk has a shared lock, which proves nothing.
                let locked = match &spec {
                    Spec::File(path) if !read_only => Some(path.as_path()),
                    _ => None,
                };
                let reported = reporter.opened(group, locked);
                reported.map_err(|error| format!("the watchdog process has ended: {error}"))?;
                Ok(namespace)
            };
            all.push(LedNamespace {
                nqn: subsystem.config.nqn.clone(),
                nsid: *nsid,
                sharing,
                identity: export.identity.clone(),
                absent,
                open: Box::new(open),
            });
        }
    }
    Ok(all)
}

impl Member {
    /// Lets the member lead at this target, and tells the target about the other members.
    pub(super) fn attach(&self, target: &Target) {
        self.handle.attach(target.control(), target.addresses().to_vec());
        let (service, control) = (Arc::downgrade(&self.service), target.control());
        let thread = std::thread::Builder::new().name("group-members".to_owned());
        if let Err(error) = thread.spawn(move || follow_members(&service, &control)) {
            tracing::warn!("hosts learn nothing about other members: {}", os(&error));
        }
    }

    /// Returns the group for the management interface.
    pub(super) fn grouped(&self) -> Arc<dyn Grouped> {
        Arc::clone(&self.service) as Arc<dyn Grouped>
    }

    /// Hands all ANA groups over, and leaves the group.
    pub(super) fn leave(self, quiet: bool) {
        let service = self.service.lock().take();
        let has_left = service.is_none_or(|service| service.leave(LEAVE_LIMIT));
        if !has_left && !quiet {
            crate::output::note("the group may take a while to notice that this member has left");
        }
    }
}

/// Keeps the target's knowledge of the other members up to date, until the member leaves.
fn follow_members(service: &Weak<Joined>, control: &Control) {
    let (mut known, mut listed, mut ended) = (Vec::new(), false, Vec::new());
    while let Some(seen) = service.upgrade().and_then(|it| Some(it.lock().as_ref()?.snapshot())) {
        let now_ended = ended_controllers(&seen);
        if now_ended != ended {
            control.set_ended_controllers(now_ended.clone());
            ended = now_ended;
        }
        let others = seen.members.into_iter().filter(|it| it.alive && it.name != seen.member);
        let others: Vec<_> = others.flat_map(|it| it.addresses).collect();
        if others != known || !listed {
            // A name may have several addresses, and they may change.
            let resolved = others.iter().map(|it| it.to_socket_addrs());
            listed = resolved.clone().all(|it| it.is_ok());
            let peers = resolved.flatten().flatten().collect();
            if let Err(error) = control.set_peers(&peers) {
                tracing::warn!("the discovery log page lacks members of the group: {error}");
            }
            known = others;
        }
        std::thread::sleep(MEMBERS_EVERY);
    }
}

/// Returns the controller identifiers of the members that execute no more commands.
///
/// Such a member has no lease, and other members lead all ANA groups after an effective fence. If
/// it returns, it disconnects its hosts before it leads again, since commands may be on their way.
fn ended_controllers(seen: &GroupStatus) -> Vec<RangeInclusive<u16>> {
    let is_out = |member: &&MemberStatus| {
        let is_settled = |group: &AnaGroupStatus| {
            group.phase == Phase::Serving
                && group.leader.as_ref().is_some_and(|leader| *leader != member.name)
                && !group.victims.contains(&member.name)
        };
        !member.alive && seen.ana_groups.iter().all(is_settled)
    };
    // A member that is cut off from etcd does not know whether another one has returned.
    let is_current = seen.joined && seen.store.reachable;
    let others = seen.members.iter().filter(|it| is_current && it.name != seen.member);
    let gone = others.filter(is_out);
    gone.filter_map(|member| member.controller_ids).map(|(first, last)| first..=last).collect()
}

/// Passes the member's orders to the disks.
struct Orders(Leading);

impl Disks for Orders {
    fn fence(&mut self, group: u32, epoch: u64, victims: Vec<Holder>) {
        self.0.fence(group, epoch, &victims);
    }

    fn enter(&mut self, group: u32, epoch: u64, _barrier: Option<u64>) {
        self.0.enter(group, epoch);
    }

    fn begin(&mut self, group: u32, epoch: u64) {
        self.0.begin(group, epoch);
    }

    fn publish(&mut self, group: u32, permit: Option<Permit>) {
        self.0.publish(group, permit);
    }

    fn park(&mut self, group: u32, epoch: u64) {
        self.0.park(group, epoch);
    }

    fn stop(&mut self, group: u32, epoch: u64) {
        self.0.stop(group, epoch);
    }

    fn apply(&mut self, namespace: &str, index: u64, _state: &str) {
        // No member of this version makes such a record, and none can enforce it. Without an
        // answer, the host that made the change waits.
        tracing::warn!("cannot enforce reservation change {index} of namespace {namespace}");
    }

    fn answer(&mut self, _proposal: u64, _outcome: Outcome) {}

    fn report(&mut self, report: &Report) {
        if *report == Report::LeaseLost {
            // Other members may have told these hosts that this member executes nothing any more.
            self.0.disconnect_hosts();
        }
        tracing::info!("group: {report:?}");
    }
}

/// Runs the watchdog of a member.
pub fn run_watchdog() -> std::process::ExitCode {
    watchdog::run()
}
