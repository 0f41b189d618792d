//! `serve --group`: the target as a member of a group, whose targets share the same disks. For each
//! disk, one member at a time is the leader, which alone does I/O on it.
//!
//! Each disk of the command line has its own ANA group, whose number is the namespace ID. The
//! subsystem's NQN and the namespaces' UUIDs are derived from the group's name and these numbers,
//! so every member reports the same.

mod cache;

use super::document::{Led, Shares};
use super::group_config::{check_advertised, check_etcd};
use super::{disks, machine, names, slow};
use crate::args::ServeArgs;
use crate::error::{Failure, Result, os};
use crate::signals::Stop;
use farblock_admin::{Grouped, Opened};
use farblock_admin_api::GroupOrder;
use farblock_backends::Spec;
use farblock_block::{Geometry, Namespace};
use farblock_group::{
    Duty, FenceKind, Holder, Outcome, Permit, Phase, Report, ReservationRecord, Timing,
};
use farblock_group_service::watchdog::{self, Watchdog};
use farblock_group_service::{
    AnaGroupStatus, Disks, EtcdConfig, EtcdTls, Events, GroupStatus, MemberStatus, Reporter,
    Service, ServiceConfig, start,
};
use farblock_group_target::{Absent, Handle, Leading, LeadingAnswer, LedNamespace};
use farblock_proto::controller::PortAccess;
use farblock_proto::ids::NamespaceId;
use farblock_target::{Control, Target, TargetConfig};
use farblock_wire::log::AnaState;
use farblock_wire::nqn::UUID_NQN_PREFIX;
use std::collections::BTreeMap;
use std::io::{Seek, SeekFrom};
use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// The time limit for handing all ANA groups to other members before the target stops.
const LEAVE_LIMIT: Duration = Duration::from_secs(20);
/// The interval at which a member publishes its connected hosts to the other members.
const HOSTS_EVERY: Duration = Duration::from_secs(1);
/// The time limit for leaving the group after an attempt to join failed.
const JOIN_FAILED_LIMIT: Duration = Duration::from_secs(2);
/// The interval at which a starting target checks whether it has joined its group.
const LOOK: Duration = Duration::from_millis(20);

/// A request of the command line to join a group.
pub(super) struct Wished {
    group: String,
    member: String,
    etcd: EtcdConfig,
    watchdog: Watchdog,
}

/// Checks the options of a group, and starts the watchdog process, because the sandbox later
/// forbids starting programs. Returns `None` if the target joins no group.
pub(super) fn prepare(args: &ServeArgs) -> Result<Option<Wished>> {
    let Some(group) = args.group.group.clone() else { return Ok(None) };
    if args.paths.is_empty() && args.config.is_none() {
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
    for url in &args.group.etcd {
        check_etcd(url).map_err(Failure::Usage)?;
    }
    for address in &args.group.advertise {
        check_advertised(address).map_err(Failure::Usage)?;
    }
    let etcd = etcd(args)?;
    Ok(Some(Wished { group, member, etcd, watchdog: watchdog()? }))
}

/// Reads the files for access to etcd now, because the sandbox may hide them later.
fn etcd(args: &ServeArgs) -> Result<EtcdConfig> {
    let access = &args.group.etcd_access;
    let refused = |option: &str, what: String| Failure::run(format_args!("{option}: {what}"));
    let secret = |path: &Option<PathBuf>, option: &str| {
        let text = path.as_deref().map(farblock_host::key_file::text).transpose();
        text.map_err(|what| refused(option, what))
    };
    let public = |path: &Option<PathBuf>, option: &str| {
        let read = path.as_ref().map(|path| {
            std::fs::read(path).map_err(|error| format!("{}: {}", path.display(), os(&error)))
        });
        read.transpose().map_err(|what| refused(option, what))
    };
    let password = secret(&access.etcd_password_file, "--etcd-password-file")?;
    let password = password.map(|text| text.trim_end_matches(['\r', '\n']).to_owned());
    let key = secret(&access.etcd_key, "--etcd-key")?.map(|text| text.as_bytes().to_vec());
    let authorities = public(&access.etcd_ca, "--etcd-ca")?;
    let identity = public(&access.etcd_cert, "--etcd-cert")?.zip(key);
    let is_secure = |url: &String| url.starts_with("https://");
    if authorities.is_some() && !args.group.etcd.iter().all(is_secure) {
        return Err(Failure::usage(
            "certificates for etcd need https:// addresses of etcd: change --etcd",
        ));
    }
    if authorities.is_none() && args.group.etcd.iter().any(is_secure) {
        return Err(Failure::usage(
            "https:// addresses of etcd need the authorities of its certificates: name them with \
             --etcd-ca FILE",
        ));
    }
    Ok(EtcdConfig {
        endpoints: args.group.etcd.clone(),
        user: access.etcd_user.clone().zip(password),
        tls: authorities.map(|authorities| EtcdTls { authorities, identity }),
    })
}

/// The addresses at which hosts reach this member.
fn addresses(args: &ServeArgs, config: &TargetConfig) -> Result<Vec<String>> {
    if config.rdma.is_some() {
        return Err(Failure::usage("--group works over TCP only: remove the rdma: listeners"));
    }
    if !args.group.advertise.is_empty() {
        return Ok(args.group.advertise.clone());
    }
    let is_known = |it: &SocketAddr| it.port() != 0 && !it.ip().is_unspecified();
    match !config.listeners.is_empty() && config.listeners.iter().all(is_known) {
        true => Ok(config.listeners.iter().map(ToString::to_string).collect()),
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
    Some(format!("{UUID_NQN_PREFIX}{}", uuid(group, "subsystem")))
}

/// The UUID of the group's subsystem or of a namespace. Every member computes the same UUID.
pub(super) fn uuid(group: &str, part: &str) -> Uuid {
    Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("farblock group\n{group}\n{part}").as_bytes())
}

/// Sets the UUID and the ANA group of a namespace, which are the same at all members.
pub(super) fn described(
    args: &ServeArgs,
    nsid: u32,
    namespace: farblock_state::Namespace,
) -> farblock_state::Namespace {
    let Some(group) = &args.group.group else { return namespace };
    let uuid = Some(self::uuid(group, &nsid.to_string()));
    farblock_state::Namespace { uuid, ana_group: nsid, ..namespace }
}

/// Shares a placeholder ([`Absent`]) for a disk, which this member opens only while it leads.
pub(super) fn absent(shares: &mut Shares, at: (usize, NamespaceId), disk: Led) -> Result<()> {
    let (index, nsid) = at;
    let name = names::name(&disk.spec);
    let geometry = slow::named(&name, || geometry(&disk))?;
    let namespace: Arc<dyn Namespace> = Arc::new(Absent::new(&name, geometry));
    let nqn = shares.config.subsystems[index].config.nqn.clone();
    let described = shares.document.subsystems.get(&nqn).and_then(|it| it.namespaces.get(&nsid.0));
    let uuid = described.and_then(|described| described.uuid).unwrap_or_default();
    shares.add(index, nsid, Opened::alone(namespace, uuid.to_string()));
    shares.led.insert((nqn, nsid.0), disk);
    Ok(())
}

/// Reads the size of a disk without locking it, since another member may use it.
fn geometry(disk: &Led) -> Result<Geometry> {
    let (block_size, read_only) = (disk.block_size, disk.read_only);
    let name = names::name(&disk.spec);
    let bytes = match &disk.spec {
        Spec::File(path) => {
            cache::check_sectors(path, block_size)?;
            bytes(path).map_err(|error| {
                Failure::run(format_args!("cannot read the size of {name}: {}", os(&error)))
            })?
        }
        Spec::Rbd(_) => {
            let opened = farblock_disks::open_to_measure(&disk.spec, block_size, true);
            let opened = opened.map_err(|error| Failure::Run(disks::refused(&error, "")))?;
            return Ok(Geometry { read_only, ..opened.geometry() });
        }
        _ => {
            return Err(Failure::usage(format_args!(
                "{name}: a group shares files, block devices and Ceph images (rbd:POOL/IMAGE) that \
                 every member can open"
            )));
        }
    };
    let blocks = bytes / u64::from(block_size);
    if blocks == 0 || bytes % u64::from(block_size) != 0 {
        return Err(Failure::run(format_args!(
            "{name} has {bytes} bytes, which is not a multiple of the block size {block_size}"
        )));
    }
    let geometry = Geometry::new(block_size, blocks);
    Ok(Geometry { read_only, volatile_cache: true, deallocate: true, ..geometry })
}

fn bytes(path: &Path) -> std::io::Result<u64> {
    std::fs::File::open(path)?.seek(SeekFrom::End(0))
}

/// A member of a group.
pub(super) struct Member {
    service: Arc<Joined>,
    handle: Handle,
    /// Whether this process exits so that its supervisor restarts it.
    restarts: Arc<AtomicBool>,
}

/// The service that runs this member; `None` after it has left the group.
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

    fn leads(&self) -> Vec<u32> {
        let seen = self.lock().as_ref().map(Service::snapshot).unwrap_or_default();
        let groups = seen.ana_groups.into_iter().filter(|group| group.permitted_here);
        groups.map(|group| group.number).collect()
    }

    fn order(&self, order: &GroupOrder) -> Result<(), String> {
        let service = self.lock();
        let service = service.as_ref().ok_or("this member is leaving: ask another member")?;
        match order {
            GroupOrder::Move { ana_group, member } => service.pin(*ana_group, member),
            GroupOrder::Unpin { ana_group } => service.unpin(*ana_group),
            GroupOrder::Resume { member } => service.order(member, Duty::Serve),
            GroupOrder::Drain { member } => service.order(member, Duty::Drain),
            GroupOrder::Pause { member } => service.order(member, Duty::Pause),
            GroupOrder::BeginUpgrade => service.begin_upgrade(),
            GroupOrder::Restart { member } => service.restart(member),
            GroupOrder::EndUpgrade => service.end_upgrade(),
            GroupOrder::Forget { member } => service.forget(member),
        }
    }
}

/// Joins the group, and waits until the group has assigned controller identifiers.
pub(super) fn join(
    wished: Option<Wished>,
    mut config: TargetConfig,
    (args, led): (&ServeArgs, BTreeMap<(String, u32), Led>),
    stop: &Stop,
) -> Result<(TargetConfig, Option<Member>)> {
    let Some(wished) = wished else { return Ok((config, None)) };
    let addresses = addresses(args, &config)?;
    let leads = led_namespaces(led, &config, &wished.watchdog.reporter());
    let numbers: Vec<u32> = leads.iter().map(|one| one.sharing.ana_group).collect();
    let mut namespaces: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for one in &leads {
        let block_size = one.absent.geometry().block_size;
        let named = format!("{} {} {} {block_size}", one.nqn, one.nsid.0, one.identity);
        namespaces.entry(one.sharing.ana_group).or_default().push(named);
    }
    let flight_ms = u64::try_from(args.group.disk_flight.as_millis()).unwrap_or(u64::MAX);
    let fences = |group: &u32| (*group, vec![FenceKind::None { flight_ms }]);
    let settings = ServiceConfig {
        etcd: wished.etcd,
        group: wished.group.clone(),
        name: wished.member,
        addresses,
        weight: 100,
        program: env!("CARGO_PKG_VERSION").to_owned(),
        state_folder: args.state_dir.clone(),
        ana_groups: numbers.iter().map(fences).collect::<BTreeMap<_, _>>(),
        namespaces: namespaces.clone(),
        watchdog: Some(wished.watchdog),
        timing: Timing::default(),
    };
    let events: Arc<OnceLock<Events>> = Arc::default();
    let answers = Arc::clone(&events);
    // No answer is lost: `start` sets `events` before the member sends its first order to the
    // disks.
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
    handle.share_reservations(&mut config.subsystems);
    config.access = (0..config.listeners.len())
        .map(|index| (index, PortAccess::all(AnaState::INACCESSIBLE)))
        .collect();
    config.controller_ids = match controller_ids(&service, &wished.group, &namespaces, stop) {
        Ok(ids) => ids,
        Err(failure) => {
            let _ = service.leave(JOIN_FAILED_LIMIT);
            return Err(failure);
        }
    };
    let service = Arc::new(Joined(Mutex::new(Some(service))));
    Ok((config, Some(Member { service, handle, restarts: Arc::default() })))
}

/// Waits until this member has joined. Returns the controller identifiers that the group assigned.
fn controller_ids(
    service: &Service,
    group: &str,
    namespaces: &BTreeMap<u32, Vec<String>>,
    stop: &Stop,
) -> Result<RangeInclusive<u16>> {
    let mut next = Instant::now() + Duration::from_secs(3);
    loop {
        let seen = service.snapshot();
        let own = seen.members.iter().find(|it| it.name == seen.member && seen.joined);
        if let Some((first, last)) = own.and_then(|own| own.controller_ids)
            && shares_the_same(&seen, namespaces)?
        {
            return Ok(first..=last);
        }
        if stop.requested() {
            return Err(Failure::run(format_args!("stopped before it joined the group {group}")));
        }
        if Instant::now() >= next {
            next = Instant::now() + Duration::from_secs(30);
            let trouble = seen.store.trouble.unwrap_or_else(|| match seen.store.reachable {
                true => format!("the lease of another process as {} has not ended", seen.member),
                false => "etcd does not answer".to_owned(),
            });
            tracing::warn!("waiting until this target has joined the group {group}: {trouble}");
        }
        std::thread::sleep(LOOK);
    }
}

/// Whether the group's records list the namespaces of this member. Fails if they list different
/// namespaces, and another member is alive.
fn shares_the_same(seen: &GroupStatus, own: &BTreeMap<u32, Vec<String>>) -> Result<bool> {
    let has_others = seen.members.iter().any(|it| it.alive && it.name != seen.member);
    for (number, own) in own {
        let group = seen.ana_groups.iter().find(|group| group.number == *number);
        let Some(group) = group.filter(|it| !it.namespaces.is_empty()) else { return Ok(false) };
        if group.namespaces != *own {
            // If no other member is alive, this member will replace the list: wait for that.
            if !has_others {
                return Ok(false);
            }
            return Err(Failure::run(format_args!(
                "the other members of the group {} share different namespaces as ANA \
                 group {number}: start every member with the same subsystems and disks, in the \
                 same order",
                seen.group
            )));
        }
    }
    Ok(true)
}

fn watchdog() -> Result<Watchdog> {
    let started = std::env::current_exe()
        .and_then(|program| watchdog::spawn(&[program.into(), "watchdog".into()]));
    started.map_err(|error| {
        Failure::run(format_args!("cannot start the watchdog process: {}", os(&error)))
    })
}

/// Returns the group's namespaces, each with the function that opens its disk for a leader.
fn led_namespaces(
    mut disks: BTreeMap<(String, u32), Led>,
    config: &TargetConfig,
    reporter: &Reporter,
) -> Vec<LedNamespace> {
    let mut all = Vec::new();
    for subsystem in &config.subsystems {
        for (nsid, export) in &subsystem.exports {
            let nqn = subsystem.config.nqn.clone();
            let Some(disk) = disks.remove(&(nqn.clone(), nsid.0)) else { continue };
            let uuid = export.identity.parse().ok();
            let absent = Absent::new(&names::name(&disk.spec), export.namespace.geometry());
            let (reporter, sharing) = (reporter.clone(), subsystem.sharing.get(nsid).cloned());
            let sharing = sharing.unwrap_or_default();
            let group = sharing.ana_group;
            let open = move || {
                let note: &mut dyn FnMut(String) = &mut |text| tracing::info!("{text}");
                let opened = disks::open(&disk.spec, uuid, disk.block_size, disk.read_only, note);
                let refused = |error| disks::refused(&error, "--read-only");
                let opened = opened.map_err(refused)?;
                if let (Spec::File(path), Some(file)) = (&disk.spec, &opened.file) {
                    cache::check_direct(path, file)?;
                }
                let namespace = opened.namespace;
                // Report only an exclusive lock: the lock of a read-only disk is shared, so another
                // process may write.
                let locked = match &disk.spec {
                    Spec::File(path) if !disk.read_only => Some(path.as_path()),
                    _ => None,
                };
                let reported = reporter.opened(group, locked);
                reported.map_err(|error| format!("the watchdog process has ended: {error}"))?;
                Ok(namespace)
            };
            all.push(LedNamespace {
                nqn,
                nsid: *nsid,
                sharing,
                identity: export.identity.clone(),
                absent,
                open: Box::new(open),
            });
        }
    }
    all
}

impl Member {
    /// Connects the member to this target. From then on, the member can make the target lead ANA
    /// groups, and tells it the addresses of the other members.
    pub(super) fn attach(&self, target: &Target) {
        self.handle.attach(target.control(), target.addresses().to_vec());
        let (service, control) = (Arc::downgrade(&self.service), target.control());
        let restarts = Arc::clone(&self.restarts);
        let thread = std::thread::Builder::new().name("group-members".to_owned());
        if let Err(error) = thread.spawn(move || follow_members(&service, &control, &restarts)) {
            tracing::warn!(
                "cannot start the thread that tells hosts about other members: {}",
                os(&error)
            );
        }
    }

    /// Returns the group for the management interface.
    pub(super) fn grouped(&self) -> Arc<dyn Grouped> {
        Arc::clone(&self.service) as Arc<dyn Grouped>
    }

    /// Hands all ANA groups over, and leaves the group. Returns whether this process exits so that
    /// its supervisor restarts it.
    pub(super) fn leave(self, quiet: bool) -> bool {
        let service = self.service.lock().take();
        let has_left = service.is_none_or(|service| service.leave(LEAVE_LIMIT));
        if !has_left && !quiet {
            crate::output::note("the group may take a while to notice that this member has left");
        }
        self.restarts.load(Ordering::Relaxed)
    }
}

/// Reports every change of the other members to the target, until this member leaves the group.
fn follow_members(service: &Weak<Joined>, control: &Control, restarts: &AtomicBool) {
    let (mut known, mut listed, mut ended) = (Vec::new(), false, Vec::new());
    let changes = |it: Arc<Joined>| Some(it.lock().as_ref()?.changes());
    let Some(changes) = service.upgrade().and_then(changes) else { return };
    let mut version = 0;
    while let Some(joined) = service.upgrade() {
        publish_hosts(&joined, control);
        drop(joined);
        let before = version;
        version = changes.wait(version, HOSTS_EVERY);
        if version == before && listed {
            continue;
        }
        let snapshot = |it: Arc<Joined>| Some(it.lock().as_ref()?.snapshot());
        let Some(seen) = service.upgrade().and_then(snapshot) else { return };
        let reason = match seen.has_no_watchdog {
            true => "the watchdog process has ended, so this process exits",
            false => "the group has ordered this process to exit",
        };
        let ends = seen.has_no_watchdog || is_to_restart(&seen);
        if ends && !restarts.swap(true, Ordering::Relaxed) {
            tracing::info!("{reason}; its supervisor must start it again");
            farblock_program::signals::stop_this_process();
        }
        let now_ended = ended_controllers(&seen);
        if now_ended != ended {
            control.set_ended_controllers(now_ended.clone());
            ended = now_ended;
        }
        let others = seen.members.into_iter().filter(|it| it.alive && it.name != seen.member);
        let others: Vec<_> =
            others.map(|it| (it.addresses, it.controller_ids.unwrap_or_default())).collect();
        if others != known || !listed {
            let peers;
            (peers, listed) = resolved(&others);
            if let Err(error) = control.set_peers(&peers) {
                tracing::warn!("the discovery log page lacks members of the group: {error}");
            }
            known = others;
        }
    }
}

/// Returns the addresses of other members with their PORTIDs, and whether all host names could be
/// resolved. A name may have several addresses.
fn resolved(members: &[(Vec<String>, (u16, u16))]) -> (BTreeMap<SocketAddr, u16>, bool) {
    let (mut peers, mut all_known) = (BTreeMap::new(), true);
    for (addresses, (first, last)) in members {
        let found = addresses.iter().map(|address| address.to_socket_addrs());
        all_known &= found.clone().all(|found| found.is_ok());
        let number = Control::first_port_number(&(*first..=*last));
        peers.extend(found.flatten().flatten().zip(number..));
    }
    (peers, all_known)
}

/// Whether this process must exit now: the group has ordered it, and this member leads no ANA
/// group.
fn is_to_restart(seen: &GroupStatus) -> bool {
    let own = seen.members.iter().find(|it| it.name == seen.member);
    let is_ordered =
        |own: &MemberStatus| seen.incarnation.is_some() && own.restart == seen.incarnation;
    seen.joined && own.is_some_and(|own| own.leads.is_empty() && is_ordered(own))
}

/// Tells the other members which hosts are connected to this one.
fn publish_hosts(joined: &Joined, control: &Control) {
    let hosts = control.hosts();
    if let Some(service) = joined.lock().as_ref() {
        service.set_hosts(hosts);
    }
}

/// Returns the controller identifiers of the members that certainly execute no more commands.
///
/// Such a member has lost its lease, and other members have fenced it and lead all ANA groups. If
/// it returns, it disconnects its hosts before it leads again, since their old commands may still
/// be in flight.
fn ended_controllers(seen: &GroupStatus) -> Vec<RangeInclusive<u16>> {
    let is_out = |member: &&MemberStatus| {
        let is_settled = |group: &AnaGroupStatus| {
            group.phase == Phase::Serving
                && group.leader.as_ref().is_some_and(|leader| *leader != member.name)
                && !group.victims.contains(&member.name)
        };
        !member.alive && seen.ana_groups.iter().all(is_settled)
    };
    // Without etcd, this member does not know whether another one has returned.
    let is_current = seen.joined && seen.store.reachable;
    let others = seen.members.iter().filter(|it| is_current && it.name != seen.member);
    let gone = others.filter(is_out);
    gone.filter_map(|member| member.controller_ids).map(|(first, last)| first..=last).collect()
}

/// Passes the orders of the group service to the disks of this target.
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

    fn apply(&mut self, namespace: &str, record: ReservationRecord) {
        self.0.apply(namespace, record);
    }

    fn answer(&mut self, proposal: u64, outcome: Outcome) {
        self.0.answer(proposal, outcome);
    }

    fn report(&mut self, report: &Report) {
        if *report == Report::LeaseLost {
            // Other members may already have told the hosts that this member executes no more
            // commands. So close the hosts' connections, before further commands arrive.
            self.0.disconnect_hosts();
        }
        tracing::info!("group: {report}");
    }
}

/// Runs the watchdog process, which kills the member at the end of its permission to do I/O.
pub fn run_watchdog() -> std::process::ExitCode {
    watchdog::run()
}
