//! Starts and stops a target.

use crate::budget::{self, Budget, cores};
use crate::config::{Export, RdmaListeners, StartError, Subsystem, TargetConfig, TlsPolicy};
use crate::control::Control;
use crate::core::Core;
use crate::door::Door;
use crate::limits;
use crate::mailbox::Mailbox;
use crate::reservations::{self, Keeper, Stores};
use crate::shared::{
    Exports, TargetShared, describe, first_number, nest, numbered, warn_of_same_serial,
};
use crate::tls::{TlsTerms, security};

use farblock_proto::controller::{Entrance, HostChannel, NamespaceInfo, PortId, Registry};
use farblock_proto::ids::NamespaceId;
use farblock_proto::limits::IN_CAPSULE_BYTES;
use farblock_reactor::os::{self, JoinHandle, ListenSocket};
use farblock_reactor::{Config as ReactorConfig, EngineKind, Reactor};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// The number of connections that the system queues before accept.
const BACKLOG: i32 = 1024;

/// The prefix of every core thread's name, for CPU accounting.
pub const THREAD_NAME_PREFIX: &str = "target-";

/// A running target. The target stops when this is dropped.
pub struct Target {
    shared: Arc<TargetShared>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    /// The listen addresses with their actual ports.
    addresses: Vec<SocketAddr>,
    engine: EngineKind,
}

impl Target {
    /// Binds the listeners, starts the cores and serves hosts.
    ///
    /// # Errors
    /// Fails if the target cannot bind an address or start a thread, or the configuration is not
    /// valid. The target does not run then.
    pub fn start(config: &TargetConfig) -> Result<Self, StartError> {
        Self::start_with(config, Vec::new())
    }

    /// Starts like [`Self::start`], with open sockets for some of the listen addresses. A service
    /// manager can keep these sockets open while the target restarts, so that hosts that connect
    /// meanwhile wait instead of failing.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Self::start`].
    pub fn start_with(
        config: &TargetConfig,
        sockets: Vec<TcpListener>,
    ) -> Result<Self, StartError> {
        if config.entrances().is_empty() {
            return Err(StartError::NoListener);
        }
        let listeners = bind_all(&config.listeners, sockets)?;
        let addresses: Vec<SocketAddr> = listeners
            .iter()
            .map(|listener| listener.local_addr().expect("a listener has an address"))
            .collect();
        let seed = u64::from_ne_bytes(draw()?);
        let tls = TlsTerms::new(config, seed).map_err(StartError::Tls)?;
        let mut door = open_door(config, &tls)?;
        let bound = bound(&addresses, door.as_ref());
        let (registry, exports, stores) = register(config, &bound, &tls)?;
        raise_file_limit();
        let cpus = cores(config);
        let most = most_connections(config, exports.count() * cpus.len());
        let budget = Budget::new(config, cpus.len(), most);
        let keeper = Keeper::new();
        let keeps = !stores.is_empty();
        stores.into_iter().for_each(|(key, store)| keeper.keep_in(key, store));
        share_reservations(&registry, config, &keeper);
        let shared = Arc::new(TargetShared::new(registry, exports, budget, keeper, tls));
        let provider = config.rdma.as_ref().map(|rdma| rdma.provider.clone());
        shared.listening.begin(&bound, &config.controller_ids, provider);
        config.subsystems.iter().for_each(|one| shared.authenticator.require(one));
        let mut started = Vec::new();
        let mut threads = Vec::new();
        // The threads of the cores wait until this cell is set: then all cores have mailboxes.
        let gate = Arc::new(OnceLock::new());
        let TargetConfig { engine, polling, call_bytes, .. } = *config;
        shared.set_polling(polling);
        let reactor = ReactorConfig { engine, polling, call_bytes, ..ReactorConfig::default() };
        let mut listeners = Some(listeners);
        for (index, &cpu) in cpus.iter().enumerate() {
            let (sender, receiver) = mpsc::channel();
            let listeners = listeners.take().unwrap_or_default();
            let start = CoreStart {
                index,
                cpu,
                config: reactor.clone(),
                listeners,
                door: door.take(),
                shared: Arc::clone(&shared),
                gate: Arc::clone(&gate),
                sender,
            };
            let name = format!("{THREAD_NAME_PREFIX}{index}");
            let thread = os::spawn(name, move || start.run());
            match thread {
                Ok(thread) => threads.push(thread),
                Err(error) => return Err(give_up(&gate, threads, StartError::Thread(error))),
            }
            started.push(receiver);
        }
        let (mailboxes, engine) = match collect(started) {
            Ok(collected) => collected,
            Err(error) => return Err(give_up(&gate, threads, error)),
        };
        shared.set_mailboxes(mailboxes);
        if keeps && let Err(error) = shared.start_keeper() {
            return Err(give_up(&gate, threads, StartError::Thread(error)));
        }
        gate.set(true).expect("set only here");
        shared.watch_exports();
        Ok(Self { shared, threads, addresses, engine })
    }

    /// Returns the listen addresses, with their actual ports.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the initial listeners, with their actual ports: those for TCP, then those for RDMA.
    #[must_use]
    pub fn entrances(&self) -> Vec<Entrance> {
        self.shared.listening.first()
    }

    /// Returns the initial RDMA listen addresses, with their actual ports.
    #[must_use]
    pub fn rdma_addresses(&self) -> Vec<SocketAddr> {
        self.entrances().into_iter().filter_map(Entrance::rdma_address).collect()
    }

    /// Returns the event loop engine in use.
    #[must_use]
    pub fn engine(&self) -> EngineKind {
        self.engine
    }

    /// Returns the current number of connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.connections.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Returns the handle that changes the target while it runs.
    #[must_use]
    pub fn control(&self) -> Control {
        Control { shared: Arc::clone(&self.shared) }
    }

    /// Stops the target: completes accepted commands, notifies hosts and ends the threads.
    ///
    /// # Errors
    /// Fails if an event loop has failed.
    pub fn stop(mut self) -> io::Result<()> {
        self.stop_threads()
    }

    /// Serves a host in this process. The serial number selects the core.
    #[cfg(test)]
    pub(crate) fn join(&self, wire: Arc<crate::transport::memory::Wire>) {
        let serial = self.shared.next_serial();
        let mailboxes = self.shared.mailboxes();
        let core = serial as usize % mailboxes.len();
        mailboxes[core].post(crate::mailbox::Message::Joined(wire, serial));
    }

    fn stop_threads(&mut self) -> io::Result<()> {
        self.shared.stop();
        let ended = self
            .threads
            .drain(..)
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .fold(Ok(()), io::Result::and);
        if let Some(keeper) = self.shared.keeper.end() {
            keeper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        self.shared.finish_notices();
        self.shared.forget_exports();
        ended
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if !thread::panicking()
            && let Err(error) = self.stop_threads()
        {
            tracing::error!("an event loop of the target failed: {error}");
        }
    }
}

struct CoreStart {
    index: usize,
    cpu: Option<usize>,
    config: ReactorConfig,
    listeners: Vec<ListenSocket>,
    door: Option<Door>,
    shared: Arc<TargetShared>,
    gate: Arc<OnceLock<bool>>,
    sender: Sender<Result<(Mailbox, EngineKind), StartError>>,
}

impl CoreStart {
    fn run(self) -> io::Result<()> {
        let Self { index, cpu, config, listeners, door, shared, gate, sender } = self;
        let pinned = Core::pin(cpu).map_err(|error| StartError::Core(cpu.unwrap_or(0), error));
        let engine = config.engine;
        let made = pinned.and_then(|()| {
            Reactor::new(&config).map_err(|error| StartError::Reactor(engine, error))
        });
        let reactor = match made {
            Ok(reactor) => reactor,
            Err(error) => {
                // If another core failed to start, the caller has dropped the receiver.
                let _ = sender.send(Err(error));
                return Ok(());
            }
        };
        let task = reactor.add_task();
        let _ = sender.send(Ok((Mailbox::new(reactor.waker(task)), reactor.engine())));
        if !os::wait_for(&gate) {
            return Ok(());
        }
        let _ends_all = EndsTarget(Arc::clone(&shared));
        let mut core = Core::new(index, reactor, task, shared);
        core.listen(listeners)?;
        core.open(door)?;
        core.run()
    }
}

/// A guard that each core's thread owns. When the thread ends, even by a panic, its drop stops the
/// target. Otherwise the other cores would still pass connections to this core.
struct EndsTarget(Arc<TargetShared>);

impl Drop for EndsTarget {
    fn drop(&mut self) {
        self.0.stop();
        self.0.core_ended();
    }
}

/// Ends the threads of a target that failed to start.
fn give_up(
    gate: &OnceLock<bool>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    error: StartError,
) -> StartError {
    let _ = gate.set(false);
    for thread in threads {
        let _ = thread.join();
    }
    error
}

/// Raises the limit of open files to the hard limit, since every connection needs a descriptor.
fn raise_file_limit() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Resource, getrlimit, setrlimit};
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::debug!("cannot raise the limit of open files: {error}");
        }
    }
}

/// Returns the number of connections for which the process has descriptors, while `volumes` queues
/// into namespaces are open.
fn descriptors(volumes: usize) -> usize {
    if os::is_simulated() {
        return usize::MAX;
    }
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Resource, getrlimit};
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        let left = limit.saturating_sub(open + volumes + limits::RESERVED_DESCRIPTORS);
        match shortage(limit, left) {
            Some(few) if left < limits::FEW_CONNECTIONS => tracing::warn!("{few}"),
            Some(some) => tracing::info!("{some}"),
            None => {}
        }
        // Allow a few connections even if the descriptors do not suffice.
        left.max(limits::CONNECTIONS_MIN)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = volumes;
        usize::MAX
    }
}

/// Returns a log message if `limit`, the limit of open files, leaves descriptors for fewer than
/// [`limits::MAX_CONNECTIONS`] connections.
#[cfg(target_os = "linux")]
fn shortage(limit: usize, left: usize) -> Option<String> {
    (left < limits::MAX_CONNECTIONS).then(|| {
        format!(
            "the limit of {limit} open files leaves room for {left} connections: for more, raise \
             the limit (LimitNOFILE= in the systemd unit, ulimit -n)"
        )
    })
}

type Started = Receiver<Result<(Mailbox, EngineKind), StartError>>;

fn collect(started: Vec<Started>) -> Result<(Vec<Mailbox>, EngineKind), StartError> {
    let mut mailboxes = Vec::new();
    let mut chosen = EngineKind::Auto;
    for receiver in started {
        let died = |_| StartError::Thread(io::Error::other("the thread exited during the start"));
        let (mailbox, engine) = os::recv(&receiver).map_err(died)??;
        mailboxes.push(mailbox);
        chosen = engine;
    }
    Ok((mailboxes, chosen))
}

/// Binds every address that has no socket yet. If one bind fails, closes all sockets.
fn bind_all(
    addresses: &[SocketAddr],
    mut sockets: Vec<TcpListener>,
) -> Result<Vec<ListenSocket>, StartError> {
    for (index, address) in addresses.iter().enumerate() {
        if address.port() != 0 && addresses[..index].contains(address) {
            return Err(StartError::Twice(*address));
        }
    }
    let until = os::now() + limits::LISTEN_TIME;
    let mut listen = |&address: &SocketAddr| {
        let at = |socket: &TcpListener| socket.local_addr().is_ok_and(|it| it == address);
        match sockets.iter().position(at) {
            Some(index) => Ok(sockets.swap_remove(index).into()),
            None => bind_until(address, beside(address, addresses), until),
        }
    };
    addresses.iter().map(&mut listen).collect()
}

/// Binds one further address. While the address is in use, retries for `patience`.
pub(crate) fn bind_within(
    address: SocketAddr,
    others: &[SocketAddr],
    patience: Duration,
) -> Result<ListenSocket, StartError> {
    bind_until(address, beside(address, others), os::now() + patience)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Families {
    /// A listener on `[::]` also accepts IPv4 connections, unless the administrator disabled this
    /// (Linux: `net.ipv6.bindv6only`).
    Usual,
    /// The listener accepts only IPv6, since another listener uses the same port for IPv4.
    OnlyV6,
}

fn beside(address: SocketAddr, others: &[SocketAddr]) -> Families {
    let mut same = others.iter().filter(|it| it.is_ipv4() && it.port() == address.port());
    let shares = address.is_ipv6() && address.port() != 0 && same.next().is_some();
    if shares { Families::OnlyV6 } else { Families::Usual }
}

fn bind_until(
    address: SocketAddr,
    families: Families,
    until: Instant,
) -> Result<ListenSocket, StartError> {
    loop {
        match bind(address, families) {
            Err(StartError::Listen(_, error))
                if error.kind() == io::ErrorKind::AddrInUse && os::now() < until =>
            {
                os::sleep(limits::LISTEN_PAUSE);
            }
            other => return other,
        }
    }
}

fn bind(address: SocketAddr, families: Families) -> Result<ListenSocket, StartError> {
    let listen = || -> io::Result<ListenSocket> {
        if let Some(listener) = ListenSocket::simulated(address) {
            return listener;
        }
        let domain = socket2::Domain::for_address(address);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
        // Unix only: on Windows, SO_REUSEADDR would let two programs share one port.
        #[cfg(unix)]
        socket.set_reuse_address(true)?;
        // On Windows, IPv6 sockets accept only IPv6 by default, so set this explicitly.
        if families == Families::OnlyV6 || cfg!(windows) && address.is_ipv6() {
            socket.set_only_v6(families == Families::OnlyV6)?;
        }
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(TcpListener::from(socket).into())
    };
    listen().map_err(|error| StartError::Listen(address, error))
}

fn described(subsystem: &Subsystem, nsid: NamespaceId, export: &Export) -> NamespaceInfo {
    subsystem.sharing(nsid).of(describe(&subsystem.config.nqn, nsid, export))
}

fn register_listeners(
    registry: &mut Registry,
    config: &TargetConfig,
    entrances: &[Entrance],
    tls: &TlsTerms,
) -> Result<(), StartError> {
    for (index, entrance) in entrances.iter().enumerate() {
        let first = first_number(&config.controller_ids);
        let listener = numbered(PortId(index as u16 + 1), *entrance, first);
        let port = listener.port;
        let added =
            registry.add_listener(listener).and_then(|()| match config.access.get(&index) {
                Some(access) => registry.set_port_access(port, access.clone()),
                None => Ok(()),
            });
        added.map_err(|error| StartError::Address(entrance.to_string(), error))?;
        if !entrance.transport.has_tls() {
            tls.set_policy(port, TlsPolicy::Plain);
        }
        registry.set_security(port, security(tls.policy(port)));
    }
    Ok(())
}

/// Returns the maximum number of connections that the configuration and the limits of this process
/// allow, if the process has `volumes` open queues into namespaces.
fn most_connections(config: &TargetConfig, volumes: usize) -> usize {
    let most = config.max_connections.unwrap_or(limits::MAX_CONNECTIONS);
    most.min(descriptors(volumes)).min(budget::connections())
}

/// Opens the RDMA listeners, if there are any.
fn open_door(config: &TargetConfig, tls: &TlsTerms) -> Result<Option<Door>, StartError> {
    let Some(RdmaListeners { provider, addresses }) = &config.rdma else { return Ok(None) };
    if addresses.is_empty() {
        return Ok(None);
    }
    let ports = (config.listeners.len() as u16 + 1..).map(PortId);
    let is_strict = |(_, port): &(_, PortId)| tls.policy(*port) == TlsPolicy::Required;
    if let Some((&address, _)) = addresses.iter().zip(ports).find(is_strict) {
        return Err(StartError::RdmaTls(address));
    }
    let opened = Door::open(provider.clone(), addresses);
    opened.map(Some).map_err(|(address, error)| StartError::Rdma(address, error))
}

/// Returns the open listeners: those for TCP, then those for RDMA.
fn bound(by_tcp: &[SocketAddr], door: Option<&Door>) -> Vec<Entrance> {
    let by_rdma = door.map(Door::addresses).unwrap_or_default();
    let by_tcp = by_tcp.iter().copied().map(Entrance::from);
    by_tcp.chain(by_rdma.into_iter().map(Entrance::rdma)).collect()
}

/// Returns random bytes that peers cannot predict.
fn draw<const BYTES: usize>() -> Result<[u8; BYTES], StartError> {
    let mut bytes = [0; BYTES];
    if !os::fill_simulated(&mut bytes) {
        getrandom::fill(&mut bytes).map_err(|error| StartError::Random(error.into()))?;
    }
    Ok(bytes)
}

fn register(
    config: &TargetConfig,
    entrances: &[Entrance],
    tls: &TlsTerms,
) -> Result<(Registry, Exports, Stores), StartError> {
    let mut registry = Registry::new();
    registry.set_instance_key(draw()?);
    registry
        .set_controller_ids(config.controller_ids.clone())
        .map_err(StartError::ControllerIds)?;
    registry.set_origin(crate::identity::origin(entrances));
    registry.set_process(draw()?);
    let mut exports = Exports::new(config.permits.clone());
    let mut stores = Stores::new();
    register_listeners(&mut registry, config, entrances, tls)?;
    for referral in &config.referrals {
        registry
            .add_referral(referral.clone())
            .map_err(|error| StartError::Address(referral.address.clone(), error))?;
    }
    let keyed = config.tls_keys.iter().filter(|(_, keys)| !keys.is_empty());
    for (host, _) in keyed {
        registry.set_host_channel(None, host, HostChannel::Tls);
    }
    for subsystem in &config.subsystems {
        let mut offered = subsystem.offered();
        for (&nsid, export) in &subsystem.exports {
            let info = described(subsystem, nsid, export);
            let contents = nest(&*export.namespace, info.uuid)
                .map_err(|error| StartError::Subsystem(offered.nqn.clone(), error))?;
            if !contents.is_empty() {
                offered.contents.insert(nsid, contents);
            }
            offered.namespaces.insert(nsid, info);
            offered.visible_to.extend(subsystem.sharing(nsid).visible_to.map(|it| (nsid, it)));
        }
        let nqn = offered.nqn.clone();
        if offered.flush_on_shutdown {
            return Err(StartError::NotOffered(nqn, "flush_on_shutdown"));
        }
        if offered.in_capsule_bytes != IN_CAPSULE_BYTES {
            return Err(StartError::NotOffered(nqn, "in_capsule_bytes other than the default"));
        }
        warn_of_same_serial(&registry, &offered);
        let id = registry
            .add_subsystem(offered)
            .map_err(|error| StartError::Subsystem(nqn.clone(), error))?;
        for (host, keys) in &subsystem.keys {
            registry.set_host_channel(Some(id), host, keys.channel());
        }
        for (&nsid, store) in &subsystem.reservations {
            reservations::load(&mut registry, (id, nsid), &**store)
                .map_err(|error| StartError::Reservations(nqn.clone(), nsid, error))?;
            stores.insert((id, nsid), Arc::clone(store));
        }
        for &nsid in subsystem.shared_reservations.keys() {
            registry.share_reservations(id, nsid).map_err(|error| {
                StartError::Reservations(nqn.clone(), nsid, io::Error::other(error))
            })?;
        }
        for (&nsid, export) in &subsystem.exports {
            let info = describe(&subsystem.config.nqn, nsid, export);
            exports.insert(id, nsid, export, (info, &subsystem.sharing(nsid)));
        }
        exports.limit_hosts(id, &subsystem.host_rates);
    }
    // No host is connected yet, so drop the registry's actions.
    while registry.poll_action().is_some() {}
    Ok((registry, exports, stores))
}

/// Tells `keeper`, which stores reservations, the group of targets that shares each namespace's
/// reservations.
fn share_reservations(registry: &Registry, config: &TargetConfig, keeper: &Keeper) {
    for subsystem in &config.subsystems {
        let id =
            registry.find_subsystem(&subsystem.config.nqn).expect("the subsystem is registered");
        for (&nsid, group) in &subsystem.shared_reservations {
            keeper.share_with((id, nsid), Arc::clone(group));
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_warning_about_a_low_descriptor_limit_names_the_remedy() {
        let said = shortage(1024, 900).expect("too few descriptors for all connections");
        assert!(said.contains("limit of 1024") && said.contains("900 connections"), "{said}");
        assert!(said.contains("LimitNOFILE=") && said.contains("ulimit -n"), "{said}");
        assert_eq!(shortage(65_536, limits::MAX_CONNECTIONS), None);
    }
}
