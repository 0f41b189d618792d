//! Where a remote namespace is, as one line of text.
//!
//! ```text
//! nvme+tcp://storage.example:4420/nqn.2024-01.example:disk?ns=1&data-digest=1
//! ```
//! The address is a name, an IPv4 address, or an IPv6 address in brackets. Port and subsystem may
//! be left out: the port is then 4420, and a target without a subsystem is one to discover. In
//! the name and in values, `%20` and the like stand for bytes that would end them.
//!
//! Parameters: `ns` (namespace identifier), `header-digest` and `data-digest` (0 or 1), `hostnqn`
//! and `hostid` (who the host says it is), `dhchap-secret`, `dhchap-ctrl-secret`
//! and `tls-key` (files with the host's secret, the controller's, and the host's key for TLS),
//! `dhchap-hashes` and `dhchap-dhgroups` (what the authentication may use, with commas between) and
//! `concat` (0 or 1: TLS comes of the authentication).

use crate::identity::HostId;
use crate::transport::tcp::TcpOptions;
use farblock_secure::{Group, Hash};
use farblock_wire::nqn;
use farblock_wire::tcp::PORT_IO;
use farblock_wire::text::is_plain;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::str::FromStr;

/// What the text begins with.
pub const SCHEME: &str = "nvme+tcp://";

/// A parsed URL; see the [module](self).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Url {
    /// Name or address, an IPv6 address without its brackets.
    pub host: String,
    /// The port, if it is given.
    pub port: Option<u16>,
    /// NQN of the subsystem, if it is given.
    pub subsystem: Option<String>,
    /// Namespace identifier (`ns`).
    pub namespace: Option<u32>,
    /// Host NQN (`hostnqn`).
    pub hostnqn: Option<String>,
    /// Host identifier (`hostid`).
    pub hostid: Option<HostId>,
    /// File with the host's secret (`dhchap-secret`).
    pub dhchap_secret: Option<PathBuf>,
    /// File with the controller's secret (`dhchap-ctrl-secret`).
    pub dhchap_ctrl_secret: Option<PathBuf>,
    /// Hash functions that the authentication may use (`dhchap-hashes`); empty for all.
    pub dhchap_hashes: Vec<Hash>,
    /// Groups that it may use (`dhchap-dhgroups`); empty for all.
    pub dhchap_dhgroups: Vec<Group>,
    /// What only TCP can be asked for (`header-digest`, `data-digest`, `tls-key`, `concat`).
    pub tcp: TcpOptions,
}

impl Url {
    /// The port to connect to.
    #[must_use]
    pub fn port_or_default(&self) -> u16 {
        self.port.unwrap_or(PORT_IO)
    }

    /// `host:port` as the resolver and people read it.
    #[must_use]
    pub fn address(&self) -> String {
        format!("{}:{}", Bracketed(&self.host), self.port_or_default())
    }

    /// Where the keys are that it names: files, or what [`key_file`](crate::key_file) says.
    pub fn keys(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let keys = [&mut self.dhchap_secret, &mut self.dhchap_ctrl_secret, &mut self.tcp.tls_key];
        keys.into_iter().flatten()
    }

    /// The same without keys: what is there, however it is reached.
    #[must_use]
    pub fn without_keys(&self) -> Url {
        Url {
            dhchap_secret: None,
            dhchap_ctrl_secret: None,
            dhchap_hashes: Vec::new(),
            dhchap_dhgroups: Vec::new(),
            tcp: self.tcp.without_keys(),
            ..self.clone()
        }
    }
}

/// Why a text is not a URL of a remote namespace: one sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UrlError(String);

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UrlError {}

fn error<T>(text: impl Into<String>) -> Result<T, UrlError> {
    Err(UrlError(text.into()))
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Url, UrlError> {
        let Some(rest) = text.strip_prefix(SCHEME) else {
            return error(format!("the address does not start with {SCHEME}"));
        };
        if rest.contains('#') {
            return error("the address has a part after #, which means nothing here");
        }
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, Some(query)),
            None => (rest, None),
        };
        let (authority, path) = match rest.split_once('/') {
            Some((authority, path)) => (authority, path),
            None => (rest, ""),
        };
        let (host, port) = parse_authority(authority)?;
        // Here %25 stands for the % before a zone (RFC 6874, 2).
        let host = match host.split_once("%25") {
            Some((address, zone)) if authority.starts_with('[') && !zone.is_empty() => {
                format!("{address}%{zone}")
            }
            _ => host,
        };
        let mut url = Url { host, port, ..Url::default() };
        if !path.is_empty() {
            url.subsystem = Some(parse_name(path, "the subsystem's name")?);
        }
        let mut seen = Vec::new();
        for parameter in query.unwrap_or("").split('&').filter(|part| !part.is_empty()) {
            let key = parameter.split('=').next().unwrap_or_default();
            if seen.contains(&key) {
                return error(format!("the parameter {key:?} is there twice: keep one"));
            }
            seen.push(key);
            parse_parameter(&mut url, parameter)?;
        }
        Ok(url)
    }
}

/// Splits `host[:port]`.
pub(crate) fn parse_authority(text: &str) -> Result<(String, Option<u16>), UrlError> {
    if text.contains('@') {
        return error("the address has a user name before @, which NVMe/TCP does not know");
    }
    let (host, port) = if let Some(bracketed) = text.strip_prefix('[') {
        let Some((host, after)) = bracketed.split_once(']') else {
            return error("the IPv6 address has no closing bracket");
        };
        // A zone (fe80::1%eth0) is the resolver's to understand.
        let (address, zone) = host.split_once('%').unwrap_or((host, "0"));
        if address.parse::<Ipv6Addr>().is_err() || zone.is_empty() {
            return error(format!("{host:?} is not an IPv6 address"));
        }
        match after {
            "" => (host, None),
            _ => match after.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None => return error("after the IPv6 address only :port may follow"),
            },
        }
    } else {
        match text.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return error("an IPv6 address must be in brackets, as in [::1]:4420");
            }
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        }
    };
    check_host(host)?;
    let port = match port {
        None => None,
        Some(text) => match text.parse::<u16>() {
            Ok(port) if port > 0 && !text.starts_with('+') => Some(port),
            _ => return error(format!("{text:?} is not a port: use 1 to 65535")),
        },
    };
    Ok((host.to_owned(), port))
}

/// What only a URL that was not parsed can get wrong.
pub(crate) fn check_place(host: &str, port: Option<u16>) -> Result<(), UrlError> {
    match port {
        Some(0) => error("0 is not a port: use 1 to 65535"),
        _ => check_host(host),
    }
}

fn check_host(host: &str) -> Result<(), UrlError> {
    if host.is_empty() {
        return error("the address names no host");
    }
    if host.chars().any(|c| c.is_whitespace() || !is_plain(c)) {
        return error("the host's name contains a blank or a control character");
    }
    Ok(())
}

fn parse_name(text: &str, what: &str) -> Result<String, UrlError> {
    let name = decode(text, what)?;
    check_name(&name).map_err(|reason| UrlError(format!("{what} is not usable: {reason}")))?;
    Ok(name)
}

/// A name that can be sent: peers exist whose names are no proper NQNs, so only what the field
/// demands is checked.
pub(crate) fn check_name(name: &str) -> Result<(), nqn::NqnError> {
    if name.len() > nqn::NQN_MAX_BYTES {
        return Err(nqn::NqnError::TooLong);
    }
    nqn::parse_field_text(&nqn::nqn_field(name)).map(|_| ())
}

fn parse_parameter(url: &mut Url, text: &str) -> Result<(), UrlError> {
    let Some((key, value)) = text.split_once('=') else {
        return error(format!("the parameter {text:?} has no value: write {text}=..."));
    };
    match key {
        "ns" => match value.parse::<u32>() {
            Ok(nsid @ 1..=0xffff_fffe) => url.namespace = Some(nsid),
            _ => return error(format!("ns={value} is not a namespace: use 1 to 4294967294")),
        },
        "header-digest" => url.tcp.header_digest = parse_switch(key, value)?,
        "data-digest" => url.tcp.data_digest = parse_switch(key, value)?,
        "concat" => url.tcp.concatenate = parse_switch(key, value)?,
        "hostnqn" => url.hostnqn = Some(parse_name(value, "the host NQN")?),
        "hostid" => match decode(value, "hostid")?.parse() {
            Ok(hostid) => url.hostid = Some(hostid),
            Err(reason) => return error(format!("hostid={value} is not usable: {reason}")),
        },
        "dhchap-secret" => url.dhchap_secret = Some(parse_path(key, value)?),
        "dhchap-ctrl-secret" => url.dhchap_ctrl_secret = Some(parse_path(key, value)?),
        "dhchap-hashes" => url.dhchap_hashes = parse_list(key, value)?,
        "dhchap-dhgroups" => url.dhchap_dhgroups = parse_list(key, value)?,
        "tls-key" => url.tcp.tls_key = Some(parse_path(key, value)?),
        _ => {
            return error(format!(
                "the parameter {key:?} is unknown: use ns, header-digest, data-digest, hostnqn, \
                 hostid, dhchap-secret, dhchap-ctrl-secret, dhchap-hashes, dhchap-dhgroups, \
                 tls-key or concat"
            ));
        }
    }
    Ok(())
}

/// A file's name. What looks like the secret itself is not wanted where everybody reads it.
fn parse_path(key: &str, value: &str) -> Result<PathBuf, UrlError> {
    let path = decode(value, key)?;
    if path.starts_with("DHHC-1:") || path.starts_with("NVMeTLSkey-1:") {
        return error(format!("{key} is the name of a file with the secret, not the secret"));
    }
    if path.is_empty() || !path.chars().all(is_plain) {
        return error(format!("{key}={value} is not the name of a file"));
    }
    Ok(path.into())
}

/// Names with commas between.
fn parse_list<T: FromStr<Err = &'static str>>(key: &str, value: &str) -> Result<Vec<T>, UrlError> {
    let names = decode(value, key)?;
    let parse = |name: &str| {
        let why = |what| UrlError(format!("{key}={value} is not usable: {what}"));
        name.parse().map_err(why)
    };
    names.split(',').map(parse).collect()
}

fn parse_switch(key: &str, value: &str) -> Result<bool, UrlError> {
    match value {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => error(format!("{key}={value} is neither 0 nor 1")),
    }
}

/// Undoes percent encoding.
fn decode(text: &str, what: &str) -> Result<String, UrlError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        if *first != b'%' {
            bytes.push(*first);
            rest = tail;
            continue;
        }
        let digit = |at: usize| tail.get(at).and_then(|&byte| char::from(byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            return error(format!("{what} contains a % without two hexadecimal digits"));
        };
        bytes.push((high * 16 + low) as u8);
        rest = &tail[2..];
    }
    String::from_utf8(bytes).or_else(|_| error(format!("{what} is not UTF-8")))
}

/// Text with those bytes percent-encoded that would end a part of a URL.
struct Encoded<'a>(&'a str);

impl fmt::Display for Encoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                // A comma ends a leg of a mirror; an apostrophe, what a shell takes for one word:
                // URLs stand in commands that people are told to type, and a peer chooses names.
                '%' | '?' | '#' | '&' | '+' | ' ' | ',' | '\'' => {
                    write!(f, "%{:02x}", u32::from(c))?;
                }
                c => write!(f, "{c}")?,
            }
        }
        Ok(())
    }
}

/// A host as it stands before `:port`.
pub(crate) struct Bracketed<'a>(pub(crate) &'a str);

impl fmt::Display for Bracketed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.parse::<IpAddr>() {
            Ok(IpAddr::V4(_)) => f.write_str(self.0),
            Ok(IpAddr::V6(_)) => write!(f, "[{}]", self.0),
            // An address with a zone is none to the parser, but has colons all the same.
            Err(_) if self.0.contains(':') => write!(f, "[{}]", self.0),
            Err(_) => f.write_str(self.0),
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.split_once('%') {
            // As it is read: a zone that begins with these digits would lose them.
            Some((address, zone)) if zone.starts_with("25") && self.host.contains(':') => {
                write!(f, "{SCHEME}[{address}%25{zone}]")?;
            }
            _ => write!(f, "{SCHEME}{}", Bracketed(&self.host))?,
        }
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        if let Some(subsystem) = &self.subsystem {
            write!(f, "/{}", Encoded(subsystem))?;
        }
        let mut separator = '?';
        let mut parameter = |key: &str, value: &dyn fmt::Display| {
            write!(f, "{separator}{key}={value}")?;
            separator = '&';
            Ok(())
        };
        if let Some(nsid) = self.namespace {
            parameter("ns", &nsid)?;
        }
        if self.tcp.header_digest {
            parameter("header-digest", &1)?;
        }
        if self.tcp.data_digest {
            parameter("data-digest", &1)?;
        }
        if self.tcp.concatenate {
            parameter("concat", &1)?;
        }
        if let Some(hostnqn) = &self.hostnqn {
            parameter("hostnqn", &Encoded(hostnqn))?;
        }
        if let Some(hostid) = &self.hostid {
            parameter("hostid", hostid)?;
        }
        // As one is given them: without a comma, which ends a leg of a mirror.
        let list = |names: Vec<String>| names.join("%2c");
        if !self.dhchap_hashes.is_empty() {
            let names = self.dhchap_hashes.iter().map(|it| it.to_string()).collect();
            parameter("dhchap-hashes", &list(names))?;
        }
        if !self.dhchap_dhgroups.is_empty() {
            let names = self.dhchap_dhgroups.iter().map(|it| it.to_string()).collect();
            parameter("dhchap-dhgroups", &list(names))?;
        }
        for (key, path) in [
            ("dhchap-secret", &self.dhchap_secret),
            ("dhchap-ctrl-secret", &self.dhchap_ctrl_secret),
            ("tls-key", &self.tcp.tls_key),
        ] {
            if let Some(path) = path {
                parameter(key, &Encoded(&path.to_string_lossy()))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Url {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn all_parts() {
        let text = "nvme+tcp://storage.example:4421/nqn.2024-01.example:disk?ns=7&header-digest=1\
                    &data-digest=1&concat=1&hostnqn=nqn.2014-08.org.example:me\
                    &hostid=01234567-89ab-cdef-0123-456789abcdef\
                    &dhchap-secret=/etc/a%20key&dhchap-ctrl-secret=b.key&tls-key=t";
        let limited = "nvme+tcp://a/n?dhchap-hashes=sha384%2cSHA-512&dhchap-dhgroups=ffdhe2048";
        let limited = parse(limited);
        assert_eq!(limited.dhchap_hashes, [Hash::Sha384, Hash::Sha512]);
        assert_eq!(limited.dhchap_dhgroups, [Group::Ffdhe2048]);
        assert_eq!(parse(&limited.to_string()), limited);
        assert!(!limited.to_string().contains(','), "{limited}");
        let quoted = parse("nvme+tcp://a/n';id;'");
        assert_eq!(quoted.to_string(), "nvme+tcp://a/n%27;id;%27");
        assert_eq!(parse(&quoted.to_string()), quoted);
        assert_eq!(limited.without_keys(), parse("nvme+tcp://a/n"));
        let url = parse(text);
        assert_eq!((url.host.as_str(), url.port), ("storage.example", Some(4421)));
        assert_eq!(url.subsystem.as_deref(), Some("nqn.2024-01.example:disk"));
        assert_eq!(
            (url.namespace, url.tcp.header_digest, url.tcp.data_digest),
            (Some(7), true, true)
        );
        assert_eq!(url.hostnqn.as_deref(), Some("nqn.2014-08.org.example:me"));
        assert_eq!(url.to_string(), text);
    }

    #[test]
    fn few_parts() {
        let url = parse("nvme+tcp://10.0.0.1");
        assert_eq!((url.port, url.port_or_default(), url.subsystem.clone()), (None, 4420, None));
        assert_eq!(url.address(), "10.0.0.1:4420");
        assert_eq!(parse("nvme+tcp://a/").subsystem, None);
        assert_eq!(parse("nvme+tcp://a/n?").subsystem.as_deref(), Some("n"));
    }

    #[test]
    fn ipv6() {
        let url = parse("nvme+tcp://[fe80::1]:8009/n");
        assert_eq!((url.host.as_str(), url.port), ("fe80::1", Some(8009)));
        assert_eq!(url.to_string(), "nvme+tcp://[fe80::1]:8009/n");
        assert_eq!(parse("nvme+tcp://[::1]").address(), "[::1]:4420");
        assert_eq!(parse("nvme+tcp://[fe80::1%eth0]").address(), "[fe80::1%eth0]:4420");
        for (text, host) in [
            ("[fe80::1%25eth0]", "fe80::1%eth0"),
            ("[fe80::1%253]", "fe80::1%3"),
            ("[fe80::1%25]", "fe80::1%25"),
            ("[fe80::1%25255]", "fe80::1%255"),
        ] {
            let url = parse(&format!("nvme+tcp://{text}"));
            assert_eq!(url.host, host, "{text}");
            assert_eq!(parse(&url.to_string()), url, "{text}");
        }
    }

    #[test]
    fn every_bad_part_has_its_sentence() {
        for (text, sentence) in [
            ("nvme://a", "start with nvme+tcp://"),
            ("nvme+tcp://", "names no host"),
            ("nvme+tcp://:4420/n", "names no host"),
            ("nvme+tcp://me@a/n", "user name"),
            ("nvme+tcp://a:0/n", "not a port"),
            ("nvme+tcp://a:+1/n", "not a port"),
            ("nvme+tcp://a:70000/n", "not a port"),
            ("nvme+tcp://a:/n", "not a port"),
            ("nvme+tcp://::1/n", "in brackets"),
            ("nvme+tcp://[::1/n", "closing bracket"),
            ("nvme+tcp://[a.b]/n", "not an IPv6 address"),
            ("nvme+tcp://[::1]4420/n", "only :port"),
            ("nvme+tcp://a b/n", "blank"),
            ("nvme+tcp://a/n%2", "hexadecimal"),
            ("nvme+tcp://a/%ff", "not UTF-8"),
            ("nvme+tcp://a/n%0a", "control character"),
            ("nvme+tcp://a/n#x", "after #"),
            ("nvme+tcp://a/n?ns", "no value"),
            ("nvme+tcp://a/n?ns=0", "not a namespace"),
            ("nvme+tcp://a/n?ns=4294967295", "not a namespace: use 1 to 4294967294"),
            ("nvme+tcp://a/n?ns=1&ns=2", "\"ns\" is there twice"),
            ("nvme+tcp://a/n?data-digest=2", "neither 0 nor 1"),
            ("nvme+tcp://a/n?hostid=1", "not usable"),
            ("nvme+tcp://a/n?hostnqn=", "the host NQN is not usable"),
            ("nvme+tcp://a/n?dhchap-secret=", "not the name of a file"),
            ("nvme+tcp://a/n?dhchap-secret=DHHC-1:00:x:", "not the secret"),
            ("nvme+tcp://a/n?tls-key=NVMeTLSkey-1:01:x:", "not the secret"),
            ("nvme+tcp://a/n?dhchap-hashes=sha1", "use sha256, sha384 or sha512"),
            ("nvme+tcp://a/n?dhchap-dhgroups=null,", "use null, ffdhe2048"),
            ("nvme+tcp://a/n?depth=1", "is unknown"),
        ] {
            let error = text.parse::<Url>().expect_err(text).to_string();
            assert!(error.contains(sentence), "{text}: {error}");
        }
        let long = format!("nvme+tcp://a/{}", "n".repeat(224));
        assert!(long.parse::<Url>().unwrap_err().to_string().contains("223"));
    }

    proptest! {
        #[test]
        fn any_text_parses_or_says_why(text in "(nvme\\+tcp://)?\\PC*") {
            if let Ok(url) = text.parse::<Url>() {
                prop_assert_eq!(url.to_string().parse::<Url>(), Ok(url));
            }
        }

        #[test]
        fn names_round_trip(name in "[ -~]{1,223}") {
            let url = Url {
                host: "a".into(),
                subsystem: Some(name.clone()),
                hostnqn: Some(name),
                ..Url::default()
            };
            prop_assert_eq!(url.to_string().parse::<Url>(), Ok(url));
        }
    }
}
