//! Checks each step of a connection to a target, in this order:
//!
//! - the name, and over TCP the connection and the path MTU, over RDMA this machine's devices;
//! - the first answer, TLS, Connect, and authentication;
//! - Identify, the namespaces, an I/O queue, and reads of a block over that queue.

use super::finding::{Finding, Verdict};
use super::first_answer::{self, FirstAnswer};
use super::{rdma, refusal, speed};
use crate::error::os;
use farblock_block::blocking::Blocking;
use farblock_block::size::Size;
use farblock_block::{BlockError, Namespace};
use farblock_host::url::{Carriage, Url};
use farblock_host::{Controller, Options, RemoteNamespace};
use farblock_wire::log::AnaState;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// The number of reads of one block, to measure the latency.
const READS: usize = 8;
/// The size of the headers of IPv4 and TCP (with a time stamp) in a packet.
const HEADERS_BYTES: u32 = 52;
/// The packet size in bytes that Ethernet carries by default.
const USUAL_MTU_BYTES: u32 = 1500;
/// The largest usual MTU of Ethernet, in bytes. For larger packets, doctor reports no MTU.
const JUMBO_MTU_BYTES: u32 = 9216;
/// doctor reports addresses that failed before the first success if they took at least this time in
/// all. Users notice longer delays.
const FELT: Duration = Duration::from_millis(200);
const CONNECTION: &str = "connection";

pub(super) fn examine(url: &Url, options: &Options) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Err(problem) = walk(url, options, &mut findings) {
        findings.push(problem);
    }
    findings
}

fn walk(url: &Url, options: &Options, found: &mut Vec<Finding>) -> Result<(), Finding> {
    let time = options.connect_timeout;
    let addresses = resolve(url)?;
    if url.carriage == Carriage::Rdma {
        found.extend(rdma::here());
        if let Some(at) = found.iter().position(|one| one.verdict == Verdict::Problem) {
            return Err(found.remove(at));
        }
        return serves(url, options, found, None);
    }
    let (stream, address, round_trip) = connect(&addresses, time, found)?;
    found.push(path(&stream));
    drop(stream);
    let settings = options.with_url(url);
    if settings.tcp.tls_key.is_none() {
        let answer = first_answer::ask(address, time);
        found.push(protocol(answer, address, settings.tcp.concatenate)?);
    }
    serves(url, options, found, Some((address, round_trip)))
}

/// Checks the steps that are the same over all transports. `reached` is the address that accepted
/// a TCP connection, and the time that it took.
fn serves(
    url: &Url,
    options: &Options,
    found: &mut Vec<Finding>,
    reached: Option<(SocketAddr, Duration)>,
) -> Result<(), Finding> {
    let settings = options.with_url(url);
    let begin = Instant::now();
    let controller = Controller::connect_url(url, options)
        .map_err(|error| refusal::finding(&error, url, options))?;
    found.push(connected(&controller, &settings, begin.elapsed()));
    let info = controller.info();
    found.push(Finding::ok(
        "controller",
        format!(
            "the controller is a {} {} with serial number {}",
            info.model, info.firmware, info.serial
        ),
    ));
    if let Some((address, round_trip)) = reached {
        found.extend(speed::of_controller(info, &settings, address, round_trip));
    }
    if info.discovery {
        found.push(discovery(&controller, url)?);
        return Ok(());
    }
    let Some(namespace) = choose_namespace(&controller, url, options, found)? else {
        return Ok(());
    };
    found.extend(access(&controller, namespace.info().nsid)?);
    found.push(read(&namespace, options)?);
    Ok(())
}

fn resolve(url: &Url) -> Result<Vec<SocketAddr>, Finding> {
    let host = url.host.as_str();
    let problem = |reason: String| {
        let what = format!("the name {host} cannot be resolved: {reason}");
        let advice =
            "correct the name, check the name service (getent hosts NAME), or use an address";
        Finding::problem("name", what, advice)
    };
    let found = (host, url.port_or_default()).to_socket_addrs();
    let addresses: Vec<_> = found.map_err(|error| problem(resolver(&error)))?.collect();
    match addresses.is_empty() {
        true => Err(problem("it has no address".to_owned())),
        false => Ok(addresses),
    }
}

/// Returns the resolver's message, without the library's prefix.
fn resolver(error: &io::Error) -> String {
    let text = os(error);
    text.rsplit_once("information: ").map_or(text.as_str(), |(_, reason)| reason).to_owned()
}

/// Connects to the first address that answers. Adds a hint if the addresses before it delay each
/// connection.
fn connect(
    addresses: &[SocketAddr],
    time: Duration,
    found: &mut Vec<Finding>,
) -> Result<(TcpStream, SocketAddr, Duration), Finding> {
    let (mut last, mut lost) = (None, Duration::ZERO);
    for &address in addresses {
        let begin = Instant::now();
        match TcpStream::connect_timeout(&address, time) {
            Ok(stream) => {
                let took = begin.elapsed();
                // An address that refuses connections at once causes no delay.
                if let Some(Finding { what, .. }) = last.filter(|_| lost >= FELT) {
                    let advice = "use an address in the URL, or correct the addresses of the name";
                    found.push(Finding::hint("name", what, advice));
                }
                let what = format!("{address} accepted a connection within {took:.1?}");
                found.push(Finding::ok(CONNECTION, what));
                return Ok((stream, address, took));
            }
            Err(error) => {
                last = Some(unreachable(address, &error, time));
                lost += begin.elapsed();
            }
        }
    }
    Err(last.expect("a name has an address"))
}

/// Returns the finding for a failed TCP connection.
fn unreachable(address: SocketAddr, error: &io::Error, time: Duration) -> Finding {
    let port = address.port();
    let (what, advice) = match error.kind() {
        ErrorKind::ConnectionRefused => (
            format!("nothing listens at {address}"),
            format!(
                "start the target there (`farblock serve … --listen 0.0.0.0:{port}`; without \
                 --listen it accepts only local connections), or correct the port"
            ),
        ),
        ErrorKind::TimedOut | ErrorKind::WouldBlock => (
            format!("{address} does not answer within {time:?}"),
            format!(
                "check that the machine is on, and that the address is right; if so, a firewall \
                 may drop packets to port {port}: allow them"
            ),
        ),
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::NetworkDown => (
            format!("there is no route to {address}: {}", os(error)),
            "correct the address, or this machine's routes (`ip route get ADDRESS`)".to_owned(),
        ),
        _ => (
            format!("cannot connect to {address}: {}", os(error)),
            "check the system's log".to_owned(),
        ),
    };
    Finding::problem(CONNECTION, what, advice)
}

/// Returns a finding about the path MTU to the target.
fn path(stream: &TcpStream) -> Finding {
    const CHECK: &str = "path MTU";
    let Some(segment_bytes) = segment_bytes(stream) else {
        return Finding::ok(CHECK, "this system does not report the path MTU");
    };
    let mtu_bytes = segment_bytes + HEADERS_BYTES;
    // Packets that are larger than Ethernet's occur on the loopback. There the TCP window limits
    // the segments, not an MTU.
    let mtu = match mtu_bytes <= JUMBO_MTU_BYTES {
        true => format!(" (MTU {mtu_bytes})"),
        false => String::new(),
    };
    let what = format!("a packet carries up to {segment_bytes} bytes of data{mtu}");
    // The IPv6 header is 20 bytes longer, so the MTU may be 20 bytes larger than this estimate.
    match mtu_bytes + 20 < USUAL_MTU_BYTES {
        false => Finding::ok(CHECK, what),
        true => Finding::hint(
            CHECK,
            what,
            "this is less than Ethernet's MTU of 1500: a tunnel on the path costs throughput; \
             avoid the tunnel, or raise its MTU",
        ),
    }
}

#[cfg(unix)]
fn segment_bytes(stream: &TcpStream) -> Option<u32> {
    socket2::SockRef::from(stream).tcp_mss().ok()
}

#[cfg(not(unix))]
fn segment_bytes(_: &TcpStream) -> Option<u32> {
    None
}

/// Returns the finding about the server's first answer; `Err` if the server is no NVMe/TCP target.
fn protocol(
    answer: FirstAnswer,
    address: SocketAddr,
    concatenate: bool,
) -> Result<Finding, Finding> {
    const CHECK: &str = "protocol";
    let other = "correct the port: NVMe/TCP targets use port 4420, discovery services port 8009";
    let (what, advice) = match answer {
        FirstAnswer::Target(took) => {
            let what = format!("an NVMe/TCP target answers within {took:.1?}");
            return Ok(Finding::ok(CHECK, what));
        }
        FirstAnswer::Tls if concatenate => (
            format!("{address} accepts only TLS, but --concat starts without TLS"),
            "set the listener's TLS policy to allowed instead of required (`farblock ctl set-tls \
             ADDR:PORT allowed`), or use --tls-key FILE; if this is a web server (HTTPS), correct \
             the port",
        ),
        FirstAnswer::Tls => (
            format!("{address} accepts only TLS"),
            "if this is a target that requires TLS, use --tls-key FILE (or ?tls-key=FILE in the \
             URL) with this host's key; if this is a web server (HTTPS), correct the port",
        ),
        FirstAnswer::Other(name) => (format!("{name} listens at {address}, not a target"), other),
        FirstAnswer::Strange => (format!("the server at {address} does not speak NVMe/TCP"), other),
        FirstAnswer::Closed => (
            format!("{address} accepts connections and closes them without an answer"),
            "check the server's log: a target closes connections if it is full or shuts down, as \
             do other servers, and proxies whose backend is down",
        ),
        FirstAnswer::Silence => (
            format!("{address} accepts connections, but sends nothing"),
            "a target answers at once: either another kind of server listens there (correct the \
             port), or the target hangs (check its log)",
        ),
        FirstAnswer::Failed(reason) => (
            format!("the connection to {address} failed: {reason}"),
            "try again, and check the target's log",
        ),
    };
    Err(Finding::problem(CHECK, what, advice))
}

fn connected(controller: &Controller, settings: &Options, took: Duration) -> Finding {
    // Discovery connections do not use concatenation (`TcpOptions::concatenate`).
    let concatenates = settings.tcp.concatenate && !controller.info().discovery;
    let tls = match (settings.tcp.tls_key.is_some(), concatenates) {
        (true, _) => " over TLS",
        (_, true) => " over TLS, with a key from the authentication",
        _ => "",
    };
    let what = format!("{} accepted this host{tls} within {took:.1?}", controller.subsystem());
    Finding::ok("connect", what)
}

/// Returns a finding about the subsystems that the target lists for this host, for a URL without a
/// subsystem.
fn discovery(controller: &Controller, url: &Url) -> Result<Finding, Finding> {
    const CHECK: &str = "discovery";
    let entries = controller
        .discovery()
        .map_err(|error| Finding::problem(CHECK, error.to_string(), refusal::LARGE_PACKETS))?;
    let count = entries.iter().filter(|entry| entry.is_subsystem()).count();
    let look = format!("`farblock discover {}` prints the list", url.address());
    Ok(match count {
        0 => Finding::hint(
            CHECK,
            "the target lists no subsystem for this host",
            "allow this host at the target; `farblock whoami` prints its NQN",
        ),
        1 => Finding::hint(
            CHECK,
            "the target lists one subsystem for this host",
            format!("{look}: run doctor again with its URL to check the remaining steps"),
        ),
        many => Finding::hint(
            CHECK,
            format!("the target lists {many} subsystems for this host"),
            format!("{look}: run doctor again with one of their URLs to check the remaining steps"),
        ),
    })
}

/// Returns the namespace that the URL names, or else the subsystem's first namespace.
fn choose_namespace(
    controller: &Controller,
    url: &Url,
    options: &Options,
    found: &mut Vec<Finding>,
) -> Result<Option<RemoteNamespace>, Finding> {
    const CHECK: &str = "namespaces";
    let ids = controller
        .namespace_ids()
        .map_err(|error| Finding::problem(CHECK, error.to_string(), refusal::LARGE_PACKETS))?;
    let Some(nsid) = url.namespace.or(ids.first().copied()) else {
        let what = "the subsystem has no namespace that this host can see";
        let advice = "add a namespace at the target (`farblock ctl add-namespace`), or make one \
            visible to this host (`farblock ctl visible-to`)";
        found.push(Finding::problem(CHECK, what, advice));
        return Ok(None);
    };
    let namespace = refusal::namespace(controller, url, options, nsid)?;
    let info = namespace.info();
    let count =
        if ids.len() == 1 { "1 namespace".to_owned() } else { format!("{} namespaces", ids.len()) };
    let size = Size(info.blocks.saturating_mul(u64::from(info.block_size)));
    let access = if info.read_only { "read-only" } else { "writable" };
    let what =
        format!("{count}; number {nsid} has {size} in {}-byte blocks, {access}", info.block_size);
    found.push(match info.read_only {
        true => {
            let advice = "if hosts should write to it, check at the target why it is read-only";
            Finding::hint(CHECK, what, advice)
        }
        false => Finding::ok(CHECK, what),
    });
    Ok(Some(namespace))
}

/// Returns a hint if this path to the namespace is not optimized (ANA). Denied access is a problem.
fn access(controller: &Controller, nsid: u32) -> Result<Option<Finding>, Finding> {
    const CHECK: &str = "access";
    let advice = "also use the URL of another address of the target: `farblock attach` accepts \
        several URLs, and uses the best path";
    match controller.access(nsid) {
        Ok(AnaState::OPTIMIZED) => Ok(None),
        Ok(AnaState::NON_OPTIMIZED) => {
            let what = "the target reports that this path is not optimized (ANA)";
            Ok(Some(Finding::hint(CHECK, what, advice)))
        }
        Ok(state) => {
            let what =
                format!("the target denies access to the namespace on this path (ANA: {state})");
            Err(Finding::problem(CHECK, what, advice))
        }
        Err(error) => Err(Finding::problem(CHECK, error.to_string(), refusal::LARGE_PACKETS)),
    }
}

/// Reads one block a few times, and measures the latency.
fn read(namespace: &RemoteNamespace, options: &Options) -> Result<Finding, Finding> {
    const CHECK: &str = "reading";
    let failed = |error: BlockError| {
        let why = namespace.trouble().filter(|_| error == BlockError::Disconnected);
        let what = match why {
            Some(why) => format!("one block cannot be read: {error}: {why}"),
            None => format!("one block cannot be read: {error}"),
        };
        let advice = "check the target's log for an error of its storage or of this host";
        Finding::problem(CHECK, what, advice)
    };
    let silent = |time: Duration| {
        let what = format!("one block was not read within {time:?}");
        let advice = "check the target's log, and the disk that it shares";
        Finding::problem(CHECK, what, advice)
    };
    let mut disk = Blocking::with_engine(namespace, options.engine).map_err(failed)?;
    let mut block = vec![0; disk.geometry().block_size as usize];
    let mut times = Vec::with_capacity(READS);
    for _ in 0..READS {
        let begin = Instant::now();
        disk.read(0, &mut block).map_err(|error| match begin.elapsed() >= options.io_timeout {
            true => silent(options.io_timeout),
            false => failed(error),
        })?;
        times.push(begin.elapsed());
    }
    times.sort();
    Ok(Finding::ok(
        CHECK,
        format!("one block is read in {:.1?} (median of {READS})", times[READS / 2]),
    ))
}
