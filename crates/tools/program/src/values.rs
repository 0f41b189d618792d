//! Parses values of the command line and the configuration. Errors are sentences.

use clap::builder::{PossibleValue, TypedValueParser};
use farblock_host::url::Carriage;
use farblock_host::{HostId, Url};
use farblock_proto::controller::limits::{MAX_ANA_GROUPS, MAX_NAMESPACE_ID};
use farblock_secure::Hash;
use farblock_state::Tls;
use farblock_state::{Ana, Entrance, Transport};
use farblock_wire::fabrics::CNTLID_MAX;
use farblock_wire::nqn::validate_name;
use farblock_wire::tcp::{PORT_DISCOVERY, PORT_IO};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

/// The highest accepted processor number, which no machine exceeds.
const MAX_CORE: usize = 4095;

/// Parses one of a few named values. Error messages list the names, and shells complete them.
#[derive(Clone)]
pub struct OneOf<P> {
    names: &'static [&'static str],
    parser: P,
}

/// Returns a parser for one of `names`.
pub fn one_of<P: TypedValueParser>(names: &'static [&'static str], parser: P) -> OneOf<P> {
    OneOf { names, parser }
}

impl<P: TypedValueParser> TypedValueParser for OneOf<P> {
    type Value = P::Value;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<P::Value, clap::Error> {
        self.parser.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.names.iter().map(PossibleValue::new)))
    }
}

/// The values of [`block_size`].
pub const BLOCK_SIZES: &[&str] = &["512", "4096"];

/// The values of [`ana`].
pub const ANA_STATES: &[&str] =
    &["optimized", "non-optimized", "inaccessible", "persistent-loss", "change"];

/// Parses a number of bytes, with an optional unit: `4096`, `64KiB`, `1G`.
pub fn bytes(text: &str) -> Result<u64, String> {
    farblock_block::size::parse(text).map_err(|error| error.to_string())
}

/// Returns a parser for whole numbers in `range`.
pub fn within<T: TryFrom<u32>>(
    range: RangeInclusive<u32>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| {
            format!("write a whole number from {} to {}", range.start(), range.end())
        })
    }
}

/// Parses a namespace ID.
pub fn nsid(text: &str) -> Result<u32, String> {
    within(1..=MAX_NAMESPACE_ID)(text).map_err(|_| {
        format!(
            "this is not a namespace ID: write 1 to {MAX_NAMESPACE_ID}, as farblock status shows \
             it"
        )
    })
}

/// Parses the number of an ANA group.
pub fn ana_group(text: &str) -> Result<u32, String> {
    within(1..=MAX_ANA_GROUPS)(text)
        .map_err(|_| format!("this is not an ANA group: write 1 to {MAX_ANA_GROUPS}"))
}

/// Parses a rate per second.
pub fn rate(text: &str) -> Result<u64, String> {
    let rate = text.parse().ok().filter(|&rate| rate > 0);
    let most = u64::MAX;
    rate.ok_or_else(|| {
        format!("write a whole number from 1 to {most}, as in 5000; leave it out for no limit")
    })
}

/// Parses a number of MiB, and returns bytes.
pub fn mib(text: &str) -> Result<u64, String> {
    let count = text.parse().ok().filter(|&count: &u64| count > 0);
    count.and_then(|count| count.checked_mul(1 << 20)).ok_or_else(|| {
        let most = u64::MAX >> 20;
        format!("write a whole number of MiB from 1 to {most}; leave it out for no limit")
    })
}

/// Parses the length of a DH-HMAC-CHAP secret in bytes.
pub fn key_length(text: &str) -> Result<usize, String> {
    let length = text.parse().ok().filter(|length| [32, 48, 64].contains(length));
    length.ok_or_else(|| "use 32, 48 or 64".to_owned())
}

/// Parses a percentage of at least 0: `5%`, `5`, `2.5 %`.
pub fn percent(text: &str) -> Result<f64, String> {
    let digits = text.strip_suffix('%').unwrap_or(text).trim();
    let number: Option<f64> = digits.parse().ok();
    let usable = number.filter(|number| number.is_finite() && *number >= 0.0);
    usable.ok_or_else(|| "write a percentage of at least 0, as in 5%".to_owned())
}

/// Parses a UUID.
pub fn uuid(text: &str) -> Result<uuid::Uuid, String> {
    text.parse().map_err(|_| {
        "this is not a UUID: `farblock id` shows them, as in 2d6f12ca-6c90-538f-a383-5ab39f554825"
            .to_owned()
    })
}

/// Parses the identifier of another host, which is a UUID.
pub fn host_id(text: &str) -> Result<uuid::Uuid, String> {
    text.parse().map_err(|_| {
        "this is not a UUID: `farblock whoami` shows it on the host, as in \
         2d6f12ca-6c90-538f-a383-5ab39f554825"
            .to_owned()
    })
}

/// Parses the identifier for this host.
pub fn own_host_id(text: &str) -> Result<HostId, String> {
    text.parse().map_err(|error| {
        format!(
            "{error}, as in 2d6f12ca-6c90-538f-a383-5ab39f554825; `farblock whoami` shows this \
             host's identifier"
        )
    })
}

/// Parses a block size: 512 or 4096.
pub fn block_size(text: &str) -> Result<u32, String> {
    match bytes(text)? {
        512 => Ok(512),
        4096 => Ok(4096),
        _ => Err("use 512 or 4096".to_owned()),
    }
}

/// Parses the NQN of a host or a subsystem.
pub fn nqn(text: &str) -> Result<String, String> {
    farblock_state::check_name(text)?;
    Ok(text.to_owned())
}

/// Parses the NQN of a host or a subsystem that a target may already have. Accepts names that only
/// earlier versions of farblock allowed.
pub fn known_nqn(text: &str) -> Result<String, String> {
    validate_name(text).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

/// Parses the NQN of a new subsystem. Rejects a number, like [`subsystem`].
pub fn new_subsystem(text: &str) -> Result<String, String> {
    subsystem(text)?;
    nqn(text)
}

/// Parses the NQN of a subsystem. Rejects a number, which is probably a namespace ID whose NQN the
/// user forgot.
pub fn subsystem(text: &str) -> Result<String, String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!(
            "{text} is not the name of a subsystem: write its NQN first, as farblock status shows \
             it, and the namespace ID after it"
        ));
    }
    known_nqn(text)
}

/// Returns a warning for a valid name that does not start with `nqn.`.
pub fn doubt(name: &str) -> Option<String> {
    (!name.starts_with("nqn.")).then(|| {
        format!(
            "{name} is not an NVMe qualified name: Linux accepts it, but other hosts may not; \
             write for example nqn.2026-11.org.example:disks"
        )
    })
}

/// Parses a host and its key file: `NQN=FILE`.
pub fn host_key(text: &str) -> Result<(String, PathBuf), String> {
    let (name, file) = text
        .split_once('=')
        .filter(|(_, file)| !file.is_empty())
        .ok_or("write NQN=FILE: the host's NQN and the file with its secret")?;
    Ok((nqn(name)?, file.into()))
}

/// The values of [`tls_policy`].
pub const TLS_POLICIES: &[&str] = &["required", "allowed", "plain"];

/// Parses one of [`TLS_POLICIES`].
pub fn tls_policy(text: &str) -> Result<Tls, String> {
    Tls::from_name(text).ok_or_else(|| "use required, allowed or plain".to_owned())
}

/// Parses a hash function by name or by nvme-cli's number. Rejects 0, which means no hash.
pub fn hash(text: &str) -> Result<Hash, String> {
    let number = text.parse().ok().and_then(Hash::from_id);
    number.or_else(|| Hash::from_name(text)).ok_or("use sha256, sha384 or sha512".to_owned())
}

/// The least memory for buffers in bytes: the size of the largest transfer.
const LEAST_MEMORY_BYTES: u64 = 1 << 20;

/// Parses the size of the memory that a target uses for the buffers of all hosts, in bytes.
pub fn memory(text: &str) -> Result<u64, String> {
    let bytes = farblock_block::size::parse(text).map_err(|error| error.to_string())?;
    match bytes >= LEAST_MEMORY_BYTES {
        true => Ok(bytes),
        false => Err("a target needs at least 1MiB for one transfer: write more".to_owned()),
    }
}

/// Parses a list of processors: `0-3,6`.
pub fn cores(text: &str) -> Result<Vec<usize>, String> {
    let mut cores = BTreeSet::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| match text.trim().parse::<usize>() {
            Ok(core) if core <= MAX_CORE => Ok(core),
            Ok(core) => Err(format!("there is no processor {core}: the highest is {MAX_CORE}")),
            Err(_) => Err(format!("{part:?} is not a processor: write a list such as 0-3,6")),
        };
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(format!("{part:?} is backwards: write {last}-{first}"));
        }
        for core in first..=last {
            if !cores.insert(core) {
                return Err(format!("processor {core} is listed twice"));
            }
        }
    }
    Ok(cores.into_iter().collect())
}

/// Parses a range of controller identifiers: `1-999`.
pub fn controller_ids(text: &str) -> Result<RangeInclusive<u16>, String> {
    let ends = text.split_once('-').and_then(|(first, last)| {
        Some((first.trim().parse::<u16>().ok()?, last.trim().parse::<u16>().ok()?))
    });
    match ends {
        Some((first, last)) if (1..=last).contains(&first) && last <= CNTLID_MAX => {
            Ok(first..=last)
        }
        _ => Err(format!("{text:?} is not a range of 1-{CNTLID_MAX}: write for example 1-999")),
    }
}

/// Parses an ANA state.
pub fn ana(text: &str) -> Result<Ana, String> {
    Ana::ALL.into_iter().find(|state| state.name() == text).ok_or_else(|| {
        let known: Vec<_> = Ana::ALL.iter().map(|state| state.name()).collect();
        format!("there is no such state: use {}", known.join(", "))
    })
}

/// Parses an address to listen on by TCP. The port is optional; port 0 selects a free port.
pub fn listen_address(text: &str) -> Result<SocketAddr, String> {
    Ok(text.parse::<Listen>()?.with_port(PORT_IO))
}

/// Parses `ADDR[:PORT]` or `rdma:ADDR[:PORT]`. Port 0 selects a free port.
pub fn entrance(text: &str) -> Result<Entrance, String> {
    let (transport, address) = Entrance::split(text);
    Ok(Entrance { transport, address: listen_address(address)? })
}

/// Parses the address of another discovery service. The port is optional.
pub fn referral(text: &str) -> Result<SocketAddr, String> {
    let Listen { ip, port, .. } = text.parse()?;
    match (ip.is_unspecified(), port.unwrap_or(PORT_DISCOVERY)) {
        (true, _) | (_, 0) => Err(format!(
            "hosts cannot connect to {text}: write a reachable address, as in 192.0.2.7:8009"
        )),
        (false, port) => Ok(SocketAddr::new(ip, port)),
    }
}

/// Parses the listening address of a service without a default port.
pub fn service_address(text: &str) -> Result<SocketAddr, String> {
    let listen: Listen = text.parse()?;
    let port = listen.port.ok_or_else(|| {
        format!(
            "{text:?} has no port: write ADDR:PORT, as in 127.0.0.1:8080, or port 0 for a free one"
        )
    })?;
    Ok(listen.with_port(port))
}

/// An address to listen on, with an optional port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listen {
    ip: IpAddr,
    /// The index of the interface of a link-local address; 0 for other addresses.
    zone: u32,
    port: Option<u16>,
}

impl Listen {
    /// Returns the socket address, with `usual` as the port if the user named none.
    pub fn with_port(self, usual: u16) -> SocketAddr {
        let port = self.port.unwrap_or(usual);
        match self.ip {
            IpAddr::V4(ip) => SocketAddr::new(ip.into(), port),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, self.zone).into(),
        }
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        let (host, port) = host_and_port(text)?;
        let found = (host.as_str(), 0).to_socket_addrs();
        let found = found.ok().and_then(|mut addresses| addresses.next());
        let found = found.ok_or_else(|| match host.split_once('%') {
            Some((_, zone)) => format!(
                "this machine has no interface {zone:?}: write one of its interfaces after the % \
                 of {host:?}"
            ),
            None => format!(
                "{host:?} is not an address of a machine: write for example 0.0.0.0:{PORT_IO}"
            ),
        })?;
        let zone = match found {
            SocketAddr::V4(_) => 0,
            SocketAddr::V6(found) => found.scope_id(),
        };
        if let IpAddr::V6(ip) = found.ip()
            && ip.is_unicast_link_local()
            && zone == 0
        {
            return Err(format!(
                "{host} may be on any interface: write which one, as in [{host}%eth0]:{PORT_IO}"
            ));
        }
        Ok(Listen { ip: found.ip(), zone, port })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => self.with_port(port).fmt(f),
            None if self.zone != 0 => write!(f, "{}%{}", self.ip, self.zone),
            None => self.ip.fmt(f),
        }
    }
}

/// Splits `ADDR[:PORT]`. An IPv6 address with a port needs brackets. Its zone (the interface of a
/// link-local address) follows `%`, or `%25` as in a URL.
pub fn host_and_port(text: &str) -> Result<(String, Option<u16>), String> {
    let is_v6 = |text: &str| {
        let (address, zone) = text.split_once('%').unwrap_or((text, "0"));
        address.parse::<std::net::Ipv6Addr>().is_ok() && !zone.is_empty() && !zone.contains(']')
    };
    // A numeric zone is an interface index, and is never encoded: 255 is not an encoded 5.
    let is_number = |zone: &str| zone.bytes().all(|byte| byte.is_ascii_digit());
    let plain = |host: &str| match host.split_once("%25") {
        Some((address, zone)) if !is_number(zone) && is_v6(address) => format!("{address}%{zone}"),
        _ => host.to_owned(),
    };
    if is_v6(text) {
        return Ok((plain(text), None));
    }
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) =
                rest.split_once(']').ok_or("the IPv6 address has no closing bracket")?;
            let port = match after.strip_prefix(':') {
                None if !after.is_empty() => return Err("only :PORT may follow ]".to_owned()),
                port => port,
            };
            (host, port)
        }
        None => match text.rsplit_once(':') {
            Some((host, _)) if host.contains(':') => {
                return Err(format!("put the IPv6 address in brackets, as in [::1]:{PORT_IO}"));
            }
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c == '/') {
        return Err(format!("write ADDR:PORT, as in 127.0.0.1:{PORT_IO}"));
    }
    // Refuse a number: the resolver would interpret it as an address, such as 4421 as 0.0.17.69.
    if host.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("{host:?} is a number, not an address: write 127.0.0.1:{host}"));
    }
    let port = match port {
        None => None,
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(port.parse().map_err(|_| format!("{port:?} is not a port: use 0 to 65535"))?)
        }
        Some(port) => return Err(format!("{port:?} is not a port: use 0 to 65535")),
    };
    Ok((plain(host), port))
}

/// The place of the peer when a benchmark measures bare sockets (`--floor`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FloorPlace {
    /// The peer is in this process.
    Here,
    /// The peer is a `farblock bench --floor-serve` at this address.
    There(SocketAddr),
    /// Do not measure the floor.
    Nowhere,
}

/// The value of `--floor` without an address.
pub const FLOOR_HERE: &str = "here";

/// The value of `--floor` that disables this measurement.
const NO_FLOOR: &str = "none";

/// Parses the value of `--floor`.
pub fn floor_driven(text: &str) -> Result<FloorPlace, String> {
    match text {
        FLOOR_HERE => return Ok(FloorPlace::Here),
        NO_FLOOR => return Ok(FloorPlace::Nowhere),
        _ => {}
    }
    let hint = "after --floor write the ADDR:PORT of a `farblock bench --floor-serve`, or nothing \
                if it is the last option";
    let address = floor_address(text).map_err(|error| format!("{error}; {hint}"))?;
    match address.port() {
        0 => Err("\"0\" is not a port to connect to: use 1 to 65535".to_owned()),
        _ => Ok(FloorPlace::There(address)),
    }
}

/// Parses the listening address of `--floor-serve`: `ADDR:PORT`, with port 0 for a free port.
pub fn floor_served(text: &str) -> Result<SocketAddr, String> {
    floor_address(text).map_err(|error| format!("{error}; write for example 0.0.0.0:4421"))
}

fn floor_address(text: &str) -> Result<SocketAddr, String> {
    let (host, port) = host_and_port(text)?;
    let port = port.ok_or_else(|| format!("{text:?} has no port"))?;
    let found = (host.as_str(), port).to_socket_addrs();
    let first = found.ok().and_then(|mut addresses| addresses.next());
    first.ok_or_else(|| format!("{host:?} is not an address of a machine"))
}

/// The address of a discovery service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiscoveryAddress {
    /// A host name or an IP address.
    pub host: String,
    /// The ports to try, the most likely one first.
    pub ports: Vec<u16>,
    /// The parsed URL, which may contain the host's identity and options.
    pub url: Url,
}

/// Parses `ADDR[:PORT]` of a discovery service, or a URL. Ignores a subsystem in the URL.
pub fn discovery_address(text: &str) -> Result<DiscoveryAddress, String> {
    let url = match farblock_host::url::is_url(text) {
        true => text.parse::<Url>().map_err(|error| error.to_string())?,
        false => {
            let (transport, place) = Entrance::split(text);
            let carriage = match transport {
                Transport::Tcp => Carriage::Tcp,
                Transport::Rdma => Carriage::Rdma,
            };
            let (host, port) = host_and_port(place)?;
            Url { carriage, host, port, ..Url::default() }
        }
    };
    let ports = match url.port {
        Some(0) => return Err("\"0\" is not a port to connect to: use 1 to 65535".to_owned()),
        Some(port) => vec![port],
        None => vec![PORT_DISCOVERY, PORT_IO],
    };
    let host = url.host.clone();
    Ok(DiscoveryAddress { host, ports, url })
}

/// Parses a time in fio's form: `30` or `30s`, `500ms`, `2m`, `1h`.
pub fn seconds(text: &str) -> Result<std::time::Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(no_time(text)),
    };
    let number: f64 = number.parse().map_err(|_| no_time(text))?;
    std::time::Duration::try_from_secs_f64(number * factor)
        .ok()
        .filter(|time| time.as_secs() <= 7 * 24 * 3600)
        .ok_or_else(|| format!("{text:?} is too long: use at most a week"))
}

fn no_time(text: &str) -> String {
    format!("{text:?} is not a time: write seconds, as in 30, or 500ms, 2m, 1h")
}

/// Parses a size in fio's form: `4k`, `1M`, `1g`. All units are binary.
pub fn fio_size(text: &str) -> Result<u64, String> {
    farblock_block::size::parse(text)
        .ok()
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| format!("{text:?} is not a size: write for example 4k or 1M"))
}

/// Parses the size of one I/O, in fio's form.
pub fn fio_block_size(text: &str) -> Result<u32, String> {
    u32::try_from(fio_size(text)?).map_err(|_| format!("{text:?} is too large for one I/O"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_nqn_is_refused_as_new_and_accepted_as_known() {
        // A target may have such a name from an earlier version.
        for text in ["nqm.2026-11.org.example:a", "two words"] {
            assert_eq!(known_nqn(text).as_deref(), Ok(text));
            assert_eq!(subsystem(text).as_deref(), Ok(text));
            assert!(nqn(text).is_err() && new_subsystem(text).is_err(), "{text}");
        }
        assert!(known_nqn("a\nb").is_err() && new_subsystem("7").is_err());
        for text in ["nqm.2026-11.org.example:h", "NQN.2026-11.org.example:h", "nq:2026-11.org.h"] {
            assert!(nqn(text).unwrap_err().contains("did you mean nqn.2026-11.org."), "{text}");
        }
        for text in ["two words", "a\tb", "", "nqn.2026.org", "a\u{a0}b"] {
            assert!(nqn(text).is_err(), "{text}");
        }
        for text in ["nqn.2026-11.org.example:h", "blktests-subsystem-1", "my-host", "h.2026", "1"]
        {
            assert_eq!(nqn(text).as_deref(), Ok(text));
        }
        assert!(subsystem("1").unwrap_err().contains("write its NQN first"));
    }

    #[test]
    fn percentages_are_parsed_with_and_without_the_percent_sign() {
        assert_eq!((percent("5%"), percent("2.5 %"), percent("0")), (Ok(5.0), Ok(2.5), Ok(0.0)));
        for bad in ["", "%", "-1", "five", "nan", "inf"] {
            assert!(percent(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_values_of_floor_are_parsed() {
        let there = FloorPlace::There(SocketAddr::from(([192, 0, 2, 7], 4421)));
        assert_eq!(floor_driven("192.0.2.7:4421"), Ok(there));
        assert_eq!(floor_driven(FLOOR_HERE), Ok(FloorPlace::Here));
        assert_eq!(floor_driven("none"), Ok(FloorPlace::Nowhere));
        for text in ["disk.img", "mem:64MiB", "192.0.2.7"] {
            let error = floor_driven(text).unwrap_err();
            assert!(error.contains("--floor-serve"), "{error}");
        }
        assert!(floor_driven("192.0.2.7:0").unwrap_err().contains("not a port to connect to"));
        assert_eq!(floor_served("[::]:0"), Ok("[::]:0".parse().unwrap()));
        assert!(floor_served("0.0.0.0").unwrap_err().contains("0.0.0.0:4421"));
    }

    #[test]
    fn core_lists_are_parsed() {
        assert_eq!(cores("0-3,6"), Ok(vec![0, 1, 2, 3, 6]));
        assert_eq!(cores("2,1"), Ok(vec![1, 2]));
        for (text, reason) in [
            ("", "is not a processor"),
            ("a", "is not a processor"),
            ("1-", "is not a processor"),
            ("3-1", "backwards"),
            ("1,1", "twice"),
            ("0-99999999999", "highest is 4095"),
            ("-1", "is not a processor"),
        ] {
            let error = cores(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn listen_addresses_are_parsed() {
        let parsed = |text| listen_address(text).unwrap().to_string();
        assert_eq!(parsed("127.0.0.1:0"), "127.0.0.1:0");
        assert_eq!(parsed("0.0.0.0"), "0.0.0.0:4420");
        assert_eq!(parsed("[::1]:9"), "[::1]:9");
        assert_eq!(parsed("::1"), "[::1]:4420");
        for text in ["", ":1", "1.2.3.4:", "1.2.3.4:65536", "1.2.3.4:+1", "[::1", "::1:x", "a b:1"]
        {
            assert!(listen_address(text).is_err(), "{text}");
        }
        assert!(listen_address("4421").unwrap_err().contains("write 127.0.0.1:4421"));
        assert!(listen_address("rdma:192.0.2.7").is_err());
        let parsed = |text| entrance(text).unwrap();
        assert_eq!(parsed("rdma:192.0.2.7").rdma_address(), Some(([192, 0, 2, 7], 4420).into()));
        assert_eq!(parsed("192.0.2.7:9").tcp_address(), Some(([192, 0, 2, 7], 9).into()));
        assert_eq!(parsed("192.0.2.7:9").rdma_address(), None);
        assert!(entrance("rdma:").is_err());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn zones_of_ipv6_addresses_are_parsed() {
        let index = std::fs::read_to_string("/sys/class/net/lo/ifindex").unwrap();
        let index = index.trim();
        let address = format!("[fe80::1%{index}]:4421");
        let zones = ["lo", "25lo", index].map(|zone| format!("%{zone}"));
        for zone in zones {
            let listen: Listen = format!("[fe80::1{zone}]:4421").parse().unwrap();
            assert_eq!(listen.with_port(1).to_string(), address, "{zone}");
            let listen: Listen = format!("fe80::1{zone}").parse().unwrap();
            assert_eq!(listen.with_port(4421).to_string(), address, "{zone}");
            assert_eq!(listen.to_string(), format!("fe80::1%{index}"), "{zone}");
        }
        let refused = |text| listen_address(text).unwrap_err();
        assert!(refused("[fe80::1%nowhere0]:1").contains("no interface \"nowhere0\""));
        assert!(refused("[fe80::1]:1").contains("[fe80::1%eth0]"));
        assert!(refused("[fe80::1%]:1").contains("fe80::1%"));
    }

    #[test]
    fn a_listen_address_without_a_port_gets_the_default() {
        for (text, address) in [
            ("127.0.0.1", "127.0.0.1:10809"),
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("::1", "[::1]:10809"),
            ("[::1]:3260", "[::1]:3260"),
        ] {
            let listen: Listen = text.parse().unwrap();
            assert_eq!(listen.with_port(10809).to_string(), address);
            assert_eq!(listen.to_string(), text);
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        let percent = within::<u8>(0..=100);
        assert_eq!((percent("0"), percent("100")), (Ok(0), Ok(100)));
        for text in ["", "x", "-1", "101", "1.5", "99999999999"] {
            assert_eq!(percent(text).unwrap_err(), "write a whole number from 0 to 100", "{text}");
        }
        assert!(uuid("foo").unwrap_err().contains("farblock id"));
    }

    #[test]
    fn discovery_addresses_are_parsed() {
        let of = |text| discovery_address(text).unwrap();
        assert_eq!(of("10.0.0.1").ports, [8009, 4420]);
        assert_eq!(of("nvme+tcp://10.0.0.1:4421/").ports, [4421]);
        let url = of("nvme+tcp://[::1]:4421/nqn.2026-11.org.example:disks?ns=1");
        assert_eq!((url.host.as_str(), &url.ports[..]), ("::1", &[4421][..]));
        assert!(discovery_address("10.0.0.1:0").is_err());
    }

    #[test]
    fn times_and_sizes_are_parsed_in_the_syntax_of_fio() {
        assert_eq!(seconds("30").unwrap().as_secs(), 30);
        assert_eq!(seconds("0.5s").unwrap().as_millis(), 500);
        assert_eq!(seconds("250ms").unwrap().as_millis(), 250);
        assert_eq!(seconds("2m").unwrap().as_secs(), 120);
        for text in ["", "s", "-1", "1d", "1.2.3", "1e9", "99999h", "inf", "NaN"] {
            assert!(seconds(text).is_err(), "{text}");
        }
        assert_eq!(fio_size("4k"), Ok(4096));
        assert!(fio_size("0").is_err() && fio_size("4x").is_err());
        assert!(fio_block_size("8g").is_err());
    }

    #[test]
    fn an_invalid_nqn_is_refused_with_an_example() {
        assert!(nqn("nqn.2026-11.org.example:a").is_ok());
        assert!(nqn("nqn.disk").unwrap_err().contains("nqn.2026-11.org.example:disks"));
    }
}
