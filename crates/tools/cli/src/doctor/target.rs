//! The way to a target, step by step: name, TCP connection, path MTU, first answer, TLS, Connect,
//! authentication, Identify, namespaces, an I/O queue, and reads of a block over that queue.

use super::finding::Finding;
use super::first_answer::{self, FirstAnswer};
use super::{refusal, speed};
use crate::error::os;
use farblock_block::blocking::Blocking;
use farblock_block::size::Size;
use farblock_block::{BlockError, Namespace};
use farblock_host::url::Url;
use farblock_host::{Controller, Options, RemoteNamespace};
use farblock_wire::log::AnaState;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// The number of reads that measure the latency of one block.
const READS: usize = 8;
/// A segment is smaller than its packet by the headers of IPv4 and TCP with a time stamp.
const HEADERS_BYTES: u32 = 52;
/// Every current network carries packets of this size whole.
const USUAL_MTU_BYTES: u32 = 1500;
/// Larger packets occur only within a machine.
const JUMBO_MTU_BYTES: u32 = 9216;
/// Delays from addresses that do not answer are reported from this length on: people notice them.
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
    let (stream, address, round_trip) = connect(&addresses, time, found)?;
    found.push(path(&stream));
    drop(stream);
    let settings = options.with_url(url);
    if settings.tcp.tls_key.is_none() {
        let answer = first_answer::ask(address, time);
        found.push(protocol(answer, address, settings.tcp.concatenate)?);
    }
    let begin = Instant::now();
    let controller = Controller::connect_url(url, options)
        .map_err(|error| refusal::finding(&error, url, options))?;
    found.push(connected(&controller, &settings, begin.elapsed()));
    let info = controller.info();
    found.push(Finding::ok(
        "controller",
        format!("it is a {} {} with serial number {}", info.model, info.firmware, info.serial),
    ));
    found.extend(speed::of_controller(info, &settings, address, round_trip));
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
        let advice = "correct it, ask the name service (getent hosts NAME), or use an address";
        Finding::problem("name", what, advice)
    };
    let found = (host, url.port_or_default()).to_socket_addrs();
    let addresses: Vec<_> = found.map_err(|error| problem(resolver(&error)))?.collect();
    match addresses.is_empty() {
        true => Err(problem("it has no address".to_owned())),
        false => Ok(addresses),
    }
}

/// The resolver's message, without the library's prefix.
fn resolver(error: &io::Error) -> String {
    let text = os(error);
    text.rsplit_once("information: ").map_or(text.as_str(), |(_, reason)| reason).to_owned()
}

/// Connects to the first address that answers; addresses before it delay every connection.
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
                // An address that refuses at once costs no time.
                if let Some(Finding { what, .. }) = last.filter(|_| lost >= FELT) {
                    let advice = "name an address instead, or correct what the name stands for";
                    found.push(Finding::hint("name", what, advice));
                }
                let what = format!("{address} accepts connections, within {took:.1?}");
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

/// The finding for a failed TCP connection.
fn unreachable(address: SocketAddr, error: &io::Error, time: Duration) -> Finding {
    let port = address.port();
    let (what, advice) = match error.kind() {
        ErrorKind::ConnectionRefused => (
            format!("nothing listens at {address}"),
            format!(
                "start the target there (`farblock serve … --listen 0.0.0.0:{port}`; without \
                 --listen only its own machine reaches it), or correct the port"
            ),
        ),
        ErrorKind::TimedOut | ErrorKind::WouldBlock => (
            format!("{address} does not answer within {time:?}"),
            format!(
                "see whether the machine is on and the address right; if it is, a firewall on the \
                 way drops what goes to port {port}: let that through"
            ),
        ),
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::NetworkDown => (
            format!("no way leads to {address}: {}", os(error)),
            "correct the address, or this machine's routes (`ip route get ADDRESS`)".to_owned(),
        ),
        _ => (
            format!("a connection to {address} fails: {}", os(error)),
            "see what the system's log says of it".to_owned(),
        ),
    };
    Finding::problem(CONNECTION, what, advice)
}

/// The path MTU to the target.
fn path(stream: &TcpStream) -> Finding {
    const CHECK: &str = "path MTU";
    let Some(segment_bytes) = segment_bytes(stream) else {
        return Finding::ok(CHECK, "this system does not tell it");
    };
    let mtu_bytes = segment_bytes + HEADERS_BYTES;
    // In packets larger than any network's, the window limits segments, not an MTU.
    let mtu = match mtu_bytes <= JUMBO_MTU_BYTES {
        true => format!(": an MTU of {mtu_bytes}"),
        false => String::new(),
    };
    let what = format!("a packet carries up to {segment_bytes} bytes{mtu}");
    // IPv6 has a longer header, so the estimate is 20 bytes too low.
    match mtu_bytes + 20 < USUAL_MTU_BYTES {
        false => Finding::ok(CHECK, what),
        true => Finding::hint(
            CHECK,
            what,
            "that is less than Ethernet has: a tunnel on the way costs throughput; go around it, \
             or raise its MTU",
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

/// Whether the first answer comes from an NVMe/TCP target.
fn protocol(
    answer: FirstAnswer,
    address: SocketAddr,
    concatenate: bool,
) -> Result<Finding, Finding> {
    const CHECK: &str = "protocol";
    let other = "correct the port: NVMe/TCP targets listen at 4420, their discovery at 8009";
    let (what, advice) = match answer {
        FirstAnswer::Target(took) => {
            let what = format!("an NVMe/TCP target answers, within {took:.1?}");
            return Ok(Finding::ok(CHECK, what));
        }
        FirstAnswer::Tls if concatenate => (
            format!("{address} takes nothing but TLS, and --concat begins without"),
            "have the listener allow TLS and not require it (`farblock ctl set-tls ADDR:PORT \
             allowed`), or give --tls-key FILE instead; if it is a web server (HTTPS), correct \
             the port",
        ),
        FirstAnswer::Tls => (
            format!("{address} takes nothing but TLS"),
            "if it is a target that requires TLS, give --tls-key FILE (or ?tls-key=FILE in the \
             URL) with this host's key; if it is a web server (HTTPS), correct the port",
        ),
        FirstAnswer::Other(name) => (format!("{name} listens at {address}, no target"), other),
        FirstAnswer::Strange => {
            (format!("what listens at {address} does not speak NVMe/TCP"), other)
        }
        FirstAnswer::Closed => (
            format!("{address} accepts connections and closes them without an answer"),
            "look at the log of what listens there: a target that is full or shuts down does \
             that, and so do other kinds of servers and proxies whose target is gone",
        ),
        FirstAnswer::Silence => (
            format!("{address} accepts connections and says nothing"),
            "a target answers at once: another kind of server listens there (correct the port), \
             or the target hangs (look at its log)",
        ),
        FirstAnswer::Failed(reason) => (
            format!("the connection to {address} fails: {reason}"),
            "try again, and look at the target's log",
        ),
    };
    Err(Finding::problem(CHECK, what, advice))
}

fn connected(controller: &Controller, settings: &Options, took: Duration) -> Finding {
    // Discovery connections do not use concatenation (`TcpOptions::concatenate`).
    let concatenates = settings.tcp.concatenate && !controller.info().discovery;
    let tls = match (settings.tcp.tls_key.is_some(), concatenates) {
        (true, _) => " over TLS",
        (_, true) => " over TLS, with a key that came of the authentication",
        _ => "",
    };
    let what = format!("{} lets this host in{tls}, within {took:.1?}", controller.subsystem());
    Finding::ok("connect", what)
}

/// The subsystems that a target lists for this host, if the URL names none.
fn discovery(controller: &Controller, url: &Url) -> Result<Finding, Finding> {
    const CHECK: &str = "discovery";
    let entries = controller
        .discovery()
        .map_err(|error| Finding::problem(CHECK, error.to_string(), refusal::LARGE_PACKETS))?;
    let count = entries.iter().filter(|entry| entry.is_subsystem()).count();
    let look = format!("`farblock discover {}` lists them", url.address());
    Ok(match count {
        0 => Finding::hint(
            CHECK,
            "the target shows this host no subsystem",
            "let this host in there; `farblock whoami` says what it is called",
        ),
        1 => Finding::hint(
            CHECK,
            "the target shows this host a subsystem",
            format!("{look}: run this again with the subsystem's URL, to go the rest of the way"),
        ),
        many => Finding::hint(
            CHECK,
            format!("the target shows this host {many} subsystems"),
            format!("{look}: run this again with one's URL, to go the rest of the way"),
        ),
    })
}

/// The namespace of the URL, or else the subsystem's first.
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
        let what = "the subsystem shows this host no namespace";
        let advice = "add one there (`farblock ctl add-namespace`), or let this host see one";
        found.push(Finding::problem(CHECK, what, advice));
        return Ok(None);
    };
    let namespace = refusal::namespace(controller, url, options, nsid)?;
    let info = namespace.info();
    let count =
        if ids.len() == 1 { "1 namespace".to_owned() } else { format!("{} namespaces", ids.len()) };
    let size = Size(info.blocks.saturating_mul(u64::from(info.block_size)));
    let access = if info.read_only { "read only" } else { "to be read and written" };
    let what =
        format!("{count}; number {nsid} has {size} in blocks of {}, {access}", info.block_size);
    found.push(match info.read_only {
        true => {
            let advice = "if hosts should write to it, see on the target's machine why it is so";
            Finding::hint(CHECK, what, advice)
        }
        false => Finding::ok(CHECK, what),
    });
    Ok(Some(namespace))
}

/// A hint if this path is not optimized for the namespace (ANA).
fn access(controller: &Controller, nsid: u32) -> Result<Option<Finding>, Finding> {
    const CHECK: &str = "access";
    let advice = "use the URL of another of the target's addresses as well: `farblock attach` \
        takes several, and reads and writes where it is best";
    match controller.access(nsid) {
        Ok(AnaState::OPTIMIZED) => Ok(None),
        Ok(AnaState::NON_OPTIMIZED) => {
            let what = "the target says that this is not the best way to the namespace (ANA)";
            Ok(Some(Finding::hint(CHECK, what, advice)))
        }
        Ok(state) => {
            let what = format!("the namespace cannot be reached by this way now (ANA: {state})");
            Err(Finding::problem(CHECK, what, advice))
        }
        Err(error) => Err(Finding::problem(CHECK, error.to_string(), refusal::LARGE_PACKETS)),
    }
}

/// Reads one block a few times.
fn read(namespace: &RemoteNamespace, options: &Options) -> Result<Finding, Finding> {
    const CHECK: &str = "reading";
    let failed = |error: BlockError| {
        let why = namespace.trouble().filter(|_| error == BlockError::Disconnected);
        let what = match why {
            Some(why) => format!("one block cannot be read: {error}: {why}"),
            None => format!("one block cannot be read: {error}"),
        };
        let advice = "look at the target's log: it says what its storage or this host did";
        Finding::problem(CHECK, what, advice)
    };
    let silent = |time: Duration| {
        let what = format!("one block is not read within {time:?}");
        let advice = "look at the target's log, and at the disk that it shares";
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
