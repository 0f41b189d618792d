//! Names of namespaces on a command line.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use farblock_block::size::{self, ExactSize, SizeError};

/// A parsed name of a namespace. [`Display`](fmt::Display) formats the name again.
///
/// | Text                        | Description                                           |
/// |-----------------------------|-------------------------------------------------------|
/// | `disk.img`, `/dev/sdb`      | a file or block device                                |
/// | `file:PATH`                 | a file whose PATH looks like another kind of name     |
/// | `mem:1GiB`                  | a RAM disk                                            |
/// | `null:1GiB`                 | a device that discards data                           |
/// | `stripe:64KiB,a.img,mem:1G` | RAID 0; the chunk size is optional                    |
/// | `concat:1GiB@a.img,b.img`   | the first 1 GiB of `a.img`, then all of `b.img`       |
/// | `range:1GiB+64MiB,SPEC`     | 64 MiB, starting at an offset of 1 GiB                |
/// | `mirror:a.img,nvme+tcp://…` | the same blocks on each; may end with `?create`, `?degraded` |
/// | `nvme+tcp://…`              | a remote disk, only as a part of another kind         |
/// | `rbd:pool/image@snap?id=me` | an image of a Ceph cluster                            |
/// | `delay:500us,SPEC`          | delays completions; `delay:1ms+200us,` adds jitter    |
/// | `limit:1000/s,SPEC`         | at most this many operations per second               |
/// | `limit:64MiB/s,SPEC`        | at most this many bytes per second                    |
/// | `fault:100,SPEC`            | every 100th read and every 100th write fails          |
///
/// `SPEC` is the rest of the text including its commas, so that it may be a stripe set. Commas
/// separate the disks of a stripe set, a concatenation or a mirror, so the names of these disks
/// contain no commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spec {
    /// A file or block device.
    File(PathBuf),
    /// A RAM disk.
    Mem {
        /// The capacity in bytes.
        bytes: u64,
    },
    /// The null device.
    Null {
        /// The capacity in bytes.
        bytes: u64,
    },
    /// RAID 0 over several disks.
    Stripe {
        /// The chunk size in bytes.
        chunk_bytes: u64,
        /// The disks of the stripe set.
        children: Vec<Spec>,
    },
    /// Several disks, one after the other.
    Concat {
        /// The disks, in order.
        children: Vec<Spec>,
    },
    /// The first bytes of a disk, as a part of a concatenation.
    Front {
        /// The number of bytes to use.
        bytes: u64,
        /// The disk.
        inner: Box<Spec>,
    },
    /// A range of a disk.
    Range {
        /// The offset of the range's first byte.
        offset_bytes: u64,
        /// The length of the range in bytes.
        bytes: u64,
        /// The disk.
        inner: Box<Spec>,
    },
    /// A mirror: the same blocks on each leg. A crate with network access opens it.
    Mirror {
        /// The disks of the mirror.
        legs: Vec<Spec>,
        /// Whether to create a mirror from empty legs.
        create: bool,
        /// Whether to open the mirror even if a leg in sync is missing.
        degraded: bool,
    },
    /// The URL of a remote disk. A crate with network access opens it.
    Remote(String),
    /// An image of a Ceph cluster, as the text after `rbd:`. A crate that uses librbd opens it.
    Rbd(String),
    /// Delays completions.
    Delay {
        /// The fixed delay.
        fixed: Duration,
        /// The maximum of the random delay, which is added to `fixed`.
        jitter: Duration,
        /// The disk.
        inner: Box<Spec>,
    },
    /// Limits the rate of operations or bytes.
    Limit {
        /// The limit.
        rate: Rate,
        /// The disk.
        inner: Box<Spec>,
    },
    /// Injects faults.
    Fault {
        /// Every n-th read and every n-th write fails, where n is this number.
        every: u64,
        /// The disk.
        inner: Box<Spec>,
    },
}

/// The maximum rate of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Operations per second.
    Ops(u64),
    /// Bytes per second.
    Bytes(u64),
}

/// The maximum nesting depth of names.
const MAX_DEPTH: usize = 16;

/// The default chunk size of a stripe set, in bytes.
pub const DEFAULT_CHUNK_BYTES: u64 = 64 << 10;

/// The kinds of disks, which are the prefixes of names.
pub const KINDS: [&str; 11] = [
    "file", "mem", "null", "stripe", "concat", "range", "mirror", "rbd", "delay", "limit", "fault",
];

/// The scheme of remote disks over TCP.
pub const REMOTE_SCHEME: &str = "nvme+tcp://";
/// The scheme of remote disks over RDMA.
pub const REMOTE_RDMA_SCHEME: &str = "nvme+rdma://";

/// The error for an invalid name. Its `Display` is a sentence with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError(pub(crate) String);

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SpecError {}

impl From<SizeError> for SpecError {
    fn from(error: SizeError) -> SpecError {
        SpecError(error.to_string())
    }
}

impl Spec {
    /// Parses a name, without opening the namespace.
    pub fn parse(text: &str) -> Result<Spec, SpecError> {
        Self::parse_within(text, 0)
    }

    /// Parses a name that is nested `depth` levels deep. The maximum depth limits the stack of all
    /// recursive functions.
    fn parse_within(text: &str, depth: usize) -> Result<Spec, SpecError> {
        if depth > MAX_DEPTH {
            return Err(SpecError(format!(
                "disks are nested more than {MAX_DEPTH} levels deep: use fewer levels"
            )));
        }
        let within = depth + 1;
        if text.trim().is_empty() {
            return Err(SpecError(
                "a disk is missing: name a file, or for example mem:1GiB".to_owned(),
            ));
        }
        let Some((kind, rest)) = text.split_once(':') else {
            return Ok(Spec::File(text.into()));
        };
        if text.starts_with(REMOTE_SCHEME) || text.starts_with(REMOTE_RDMA_SCHEME) {
            return Ok(Spec::Remote(text.to_owned()));
        }
        match kind {
            "file" if rest.is_empty() => Err(SpecError("file: needs a path".to_owned())),
            "file" => Ok(Spec::File(rest.into())),
            "mem" => Ok(Spec::Mem { bytes: size::parse(rest)? }),
            "null" => Ok(Spec::Null { bytes: size::parse(rest)? }),
            "stripe" => Self::parse_stripe(rest, within),
            "concat" => {
                let front = |text: &str| Spec::parse_front(text, within);
                Ok(Spec::Concat { children: Self::parse_children(kind, rest, front)? })
            }
            "range" => Self::parse_range(text, rest, within),
            "mirror" => Self::parse_mirror(rest, within),
            "rbd" => Ok(Spec::Rbd(rest.to_owned())),
            "delay" => {
                let (delay, inner) = decorated(text, rest, within)?;
                let (fixed, jitter) = delay.split_once('+').unwrap_or((delay, "0s"));
                let (fixed, jitter) = (parse_duration(fixed)?, parse_duration(jitter)?);
                Ok(Spec::Delay { fixed, jitter, inner })
            }
            "limit" => {
                let (rate, inner) = decorated(text, rest, within)?;
                Ok(Spec::Limit { rate: parse_rate(rate)?, inner })
            }
            "fault" => {
                let (every, inner) = decorated(text, rest, within)?;
                let every = every.parse().ok().filter(|&every| every > 0).ok_or_else(|| {
                    SpecError(format!(
                        "{every:?} is not a count: fault:100,a.img fails every 100th read and write"
                    ))
                })?;
                Ok(Spec::Fault { every, inner })
            }
            _ => Ok(Spec::File(text.into())), // a path may contain colons
        }
    }

    /// The specs directly inside this spec.
    pub fn parts(&self) -> &[Spec] {
        match self {
            Spec::Mirror { legs: parts, .. }
            | Spec::Stripe { children: parts, .. }
            | Spec::Concat { children: parts } => parts,
            Spec::Delay { inner, .. }
            | Spec::Limit { inner, .. }
            | Spec::Fault { inner, .. }
            | Spec::Front { inner, .. }
            | Spec::Range { inner, .. } => std::slice::from_ref(&**inner),
            Spec::File(_)
            | Spec::Mem { .. }
            | Spec::Null { .. }
            | Spec::Remote(_)
            | Spec::Rbd(_) => &[],
        }
    }

    /// The specs directly inside this spec, mutable.
    pub fn parts_mut(&mut self) -> &mut [Spec] {
        match self {
            Spec::Mirror { legs: parts, .. }
            | Spec::Stripe { children: parts, .. }
            | Spec::Concat { children: parts } => parts,
            Spec::Delay { inner, .. }
            | Spec::Limit { inner, .. }
            | Spec::Fault { inner, .. }
            | Spec::Front { inner, .. }
            | Spec::Range { inner, .. } => std::slice::from_mut(&mut **inner),
            Spec::File(_)
            | Spec::Mem { .. }
            | Spec::Null { .. }
            | Spec::Remote(_)
            | Spec::Rbd(_) => &mut [],
        }
    }

    /// The innermost specs, which contain no other specs.
    pub fn leaves(&self) -> Vec<&Spec> {
        match self.parts() {
            [] => vec![self],
            parts => parts.iter().flat_map(Spec::leaves).collect(),
        }
    }

    fn parse_range(text: &str, rest: &str, within: usize) -> Result<Spec, SpecError> {
        let (place, inner) = decorated(text, rest, within)?;
        let (offset, bytes) = place.split_once('+').ok_or_else(|| {
            SpecError(format!(
                "{place:?} is not a range: range:1GiB+64MiB,disk.img is 64 MiB from 1 GiB on"
            ))
        })?;
        let offset_bytes = if offset == "0" { 0 } else { size::parse(offset)? };
        Ok(Spec::Range { offset_bytes, bytes: size::parse(bytes)?, inner })
    }

    /// Parses a disk of a concatenation, with or without an explicit size.
    fn parse_front(text: &str, within: usize) -> Result<Spec, SpecError> {
        let front = text.split_once('@').filter(|_| text.starts_with(|c: char| c.is_ascii_digit()));
        let Some((bytes, inner)) = front else { return Spec::parse_within(text, within) };
        let (bytes, inner) = (size::parse(bytes)?, Box::new(Spec::parse_within(inner, within)?));
        Ok(Spec::Front { bytes, inner })
    }

    /// Returns a disk of a concatenation without its explicit size.
    pub fn without_front(&self) -> &Spec {
        match self {
            Spec::Front { inner, .. } => inner,
            spec => spec,
        }
    }

    /// Parses the disks of a set. Refuses a remote disk that is listed twice.
    fn parse_children(
        kind: &str,
        list: &str,
        parse: impl Fn(&str) -> Result<Spec, SpecError>,
    ) -> Result<Vec<Spec>, SpecError> {
        let children: Vec<Spec> = list.split(',').map(parse).collect::<Result<_, _>>()?;
        for (at, whole) in children.iter().enumerate() {
            let child = whole.without_front();
            child.check_no_set(kind)?;
            let mut before = children[..at].iter().map(Spec::without_front);
            if matches!(child, Spec::Remote(_)) && before.any(|other| other == child) {
                return Err(SpecError(format!(
                    "{kind}: contains {child} twice: name each disk once"
                )));
            }
        }
        Ok(children)
    }

    /// Refuses a list of disks within a list, because the commas would be ambiguous.
    fn check_no_set(&self, kind: &str) -> Result<(), SpecError> {
        if !matches!(self, Spec::Stripe { .. } | Spec::Concat { .. } | Spec::Mirror { .. }) {
            return Ok(());
        }
        Err(SpecError(format!(
            "{kind}: cannot contain {self}, because its commas would be ambiguous: share {self} \
             separately, and use its URL here"
        )))
    }

    fn parse_mirror(rest: &str, within: usize) -> Result<Spec, SpecError> {
        let (mut legs, mut create, mut degraded) = (rest, false, false);
        loop {
            if let Some(before) = legs.strip_suffix("?create") {
                (legs, create) = (before, true);
            } else if let Some(before) = legs.strip_suffix("?degraded") {
                (legs, degraded) = (before, true);
            } else {
                break;
            }
        }
        let leg = |text| Spec::parse_within(text, within);
        let legs: Vec<Spec> = legs.split(',').map(leg).collect::<Result<_, _>>()?;
        legs.iter().try_for_each(|leg| leg.check_no_set("mirror"))?;
        if legs.len() < 2 {
            return Err(SpecError(format!(
                "mirror:{rest} lists one disk: write for example mirror:a.img,b.img"
            )));
        }
        Ok(Spec::Mirror { legs, create, degraded })
    }

    fn parse_stripe(rest: &str, within: usize) -> Result<Spec, SpecError> {
        let (first, others) = rest.split_once(',').unwrap_or((rest, ""));
        // A text that starts with a digit and has no dot is the chunk size.
        let is_size = first.starts_with(|c: char| c.is_ascii_digit()) && !first.contains('.');
        let (chunk_bytes, list) = match is_size {
            true => (size::parse(first)?, others),
            false => (DEFAULT_CHUNK_BYTES, rest),
        };
        if is_size && first == rest {
            return Err(SpecError(format!(
                "stripe:{rest} lists no disks: write for example stripe:64KiB,a.img,b.img"
            )));
        }
        let part = |text: &str| Spec::parse_within(text, within);
        let children = Self::parse_children("stripe", list, part)?;
        Ok(Spec::Stripe { chunk_bytes, children })
    }
}

/// Splits the text of a decorator into its argument and the decorated disk.
fn decorated<'a>(
    text: &str,
    rest: &'a str,
    within: usize,
) -> Result<(&'a str, Box<Spec>), SpecError> {
    match rest.split_once(',') {
        Some((argument, inner)) => Ok((argument, Box::new(Spec::parse_within(inner, within)?))),
        None => Err(SpecError(format!("{text} names no disk: add a comma and a disk"))),
    }
}

const DURATION_UNITS: [(&str, u64); 4] =
    [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

fn parse_duration(text: &str) -> Result<Duration, SpecError> {
    let parsed = DURATION_UNITS.iter().find_map(|(unit, nanos)| {
        let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
        number.checked_mul(*nanos).map(Duration::from_nanos)
    });
    parsed.ok_or_else(|| {
        SpecError(format!("{text:?} is not a time: write a number of us, ms or s, as in 500us"))
    })
}

fn parse_rate(text: &str) -> Result<Rate, SpecError> {
    let refuse = || {
        SpecError(format!("{text:?} is not a rate: write 1000/s for operations, 64MiB/s for bytes"))
    };
    let amount = text.strip_suffix("/s").ok_or_else(refuse)?;
    let rate = match amount.parse() {
        Ok(ops) => Rate::Ops(ops),
        Err(_) => Rate::Bytes(size::parse(amount)?),
    };
    if matches!(rate, Rate::Ops(0) | Rate::Bytes(0)) { Err(refuse()) } else { Ok(rate) }
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Spec, SpecError> {
        Spec::parse(text)
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Spec::File(path) => {
                let text = path.display().to_string();
                let plain = Spec::parse(&text).as_ref() == Ok(self);
                write!(f, "{}{text}", if plain { "" } else { "file:" })
            }
            Spec::Mem { bytes } => write!(f, "mem:{}", ExactSize(*bytes)),
            Spec::Null { bytes } => write!(f, "null:{}", ExactSize(*bytes)),
            Spec::Stripe { chunk_bytes, children } => {
                write!(f, "stripe:{}", ExactSize(*chunk_bytes))?;
                children.iter().try_for_each(|child| write!(f, ",{child}"))
            }
            Spec::Concat { children } => {
                for (at, child) in children.iter().enumerate() {
                    let text = child.to_string();
                    // A file name may look like the size and name of a disk. Write it with the
                    // prefix `file:` then, so that it is parsed as a file name again.
                    let plain = Spec::parse_front(&text, 0).as_ref() == Ok(child);
                    let before = if at == 0 { "concat:" } else { "," };
                    write!(f, "{before}{}{text}", if plain { "" } else { "file:" })?;
                }
                Ok(())
            }
            Spec::Front { bytes, inner } => write!(f, "{}@{inner}", ExactSize(*bytes)),
            Spec::Range { offset_bytes, bytes, inner } => {
                write!(f, "range:{}+{},{inner}", ExactSize(*offset_bytes), ExactSize(*bytes))
            }
            Spec::Mirror { legs, create, degraded } => {
                f.write_str("mirror:")?;
                for (at, leg) in legs.iter().enumerate() {
                    write!(f, "{}{leg}", if at == 0 { "" } else { "," })?;
                }
                f.write_str(if *create { "?create" } else { "" })?;
                f.write_str(if *degraded { "?degraded" } else { "" })
            }
            Spec::Remote(url) => f.write_str(url),
            Spec::Rbd(name) => write!(f, "rbd:{name}"),
            Spec::Delay { fixed, jitter, inner } if jitter.is_zero() => {
                write!(f, "delay:{},{inner}", Exact(*fixed))
            }
            Spec::Delay { fixed, jitter, inner } => {
                write!(f, "delay:{}+{},{inner}", Exact(*fixed), Exact(*jitter))
            }
            Spec::Limit { rate: Rate::Ops(rate), inner } => write!(f, "limit:{rate}/s,{inner}"),
            Spec::Limit { rate: Rate::Bytes(rate), inner } => {
                // Print a unit: a number without a unit would mean operations.
                let text = ExactSize(*rate).to_string();
                let unit = if text.ends_with('B') { "" } else { "B" };
                write!(f, "limit:{text}{unit}/s,{inner}")
            }
            Spec::Fault { every, inner } => write!(f, "fault:{every},{inner}"),
        }
    }
}

/// A duration that prints with the largest unit that divides it.
struct Exact(Duration);

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        let fits = |(_, unit): &&(&str, u64)| nanos.is_multiple_of(u128::from(*unit));
        let (name, unit) = DURATION_UNITS.iter().rev().find(fits).unwrap_or(&DURATION_UNITS[0]);
        write!(f, "{}{name}", nanos / u128::from(*unit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_deeply_nested_specifications_are_refused() {
        assert!(Spec::parse(&("delay:1us,".repeat(MAX_DEPTH) + "a.img")).is_ok());
        for part in ["delay:1us,", "range:0+512,", "limit:1/s,", "fault:1,", "stripe:", "concat:"] {
            let error = Spec::parse(&(part.repeat(100_000) + "a.img"))
                .expect_err("the nesting was accepted");
            assert!(error.to_string().contains("nested more than"), "{part}: {error}");
        }
        assert!(Spec::parse(&"mirror:".repeat(100_000)).is_err());
    }

    #[test]
    fn specifications_round_trip() {
        let file = |path: &str| Spec::File(path.into());
        let inner = || Box::new(file("a.img"));
        let second = Duration::from_secs(1);
        for (text, spec) in [
            ("a.img", file("a.img")),
            ("/dev/sdb", file("/dev/sdb")),
            ("C:\\disk.img", file("C:\\disk.img")),
            ("file:mem:1GiB", file("mem:1GiB")),
            ("rbd:p/i@s?id=me", Spec::Rbd("p/i@s?id=me".to_owned())),
            ("mem:1GiB", Spec::Mem { bytes: 1 << 30 }),
            ("null:512", Spec::Null { bytes: 512 }),
            (
                "stripe:128KiB,a.img,mem:1GiB",
                Spec::Stripe {
                    chunk_bytes: 128 << 10,
                    children: vec![file("a.img"), Spec::Mem { bytes: 1 << 30 }],
                },
            ),
            (
                "mirror:a.img,nvme+tcp://h:1/nqn?ns=1?create",
                Spec::Mirror {
                    legs: vec![file("a.img"), Spec::Remote("nvme+tcp://h:1/nqn?ns=1".to_owned())],
                    create: true,
                    degraded: false,
                },
            ),
            (
                "mirror:a.img,mem:1MiB?degraded",
                Spec::Mirror {
                    legs: vec![file("a.img"), Spec::Mem { bytes: 1 << 20 }],
                    create: false,
                    degraded: true,
                },
            ),
            (
                "delay:1s,a.img",
                Spec::Delay { fixed: second, jitter: Duration::ZERO, inner: inner() },
            ),
            (
                "delay:1s+500us,a.img",
                Spec::Delay { fixed: second, jitter: second / 2000, inner: inner() },
            ),
            ("limit:1000/s,a.img", Spec::Limit { rate: Rate::Ops(1000), inner: inner() }),
            ("limit:64MiB/s,a.img", Spec::Limit { rate: Rate::Bytes(64 << 20), inner: inner() }),
            ("limit:7B/s,a.img", Spec::Limit { rate: Rate::Bytes(7), inner: inner() }),
            (
                "fault:3,delay:0s,a.img",
                Spec::Fault {
                    every: 3,
                    inner: Box::new(Spec::Delay {
                        fixed: Duration::ZERO,
                        jitter: Duration::ZERO,
                        inner: inner(),
                    }),
                },
            ),
        ] {
            assert_eq!(Spec::parse(text).as_ref(), Ok(&spec), "{text}");
            assert_eq!(spec.to_string(), text);
        }
    }

    #[test]
    fn leaves_and_ranges_of_a_specification_are_listed() {
        let [file, other] = ["a.img", "b.img"].map(|path| Spec::File(path.into()));
        let remote = Spec::Remote("nvme+tcp://a/n?ns=1".to_owned());
        let range = Spec::Range { offset_bytes: 1 << 30, bytes: 4096, inner: Box::new(file) };
        let concat = Spec::Concat { children: vec![remote.clone(), other.clone()] };
        assert_eq!(concat.leaves(), [&remote, &other]);
        let front = Spec::Front { bytes: 1 << 30, inner: Box::new(remote.clone()) };
        let fronts = Spec::Concat { children: vec![front, other.clone()] };
        assert_eq!(fronts.leaves(), [&remote, &other]);
        for (text, spec) in [
            ("concat:1GiB@nvme+tcp://a/n?ns=1,b.img", fronts),
            ("concat:file:1@a.img", Spec::Concat { children: vec![Spec::File("1@a.img".into())] }),
            ("concat:nvme+tcp://a/n?ns=1,b.img", concat),
            ("range:1GiB+4KiB,a.img", range),
            (
                "limit:9/s,nvme+tcp://a/n?ns=1",
                Spec::Limit { rate: Rate::Ops(9), inner: Box::new(remote) },
            ),
        ] {
            assert_eq!(Spec::parse(text).as_ref(), Ok(&spec), "{text}");
            assert_eq!(spec.to_string(), text);
        }
    }

    #[test]
    fn a_stripe_without_a_chunk_size_uses_the_default() {
        let spec = Spec::parse("stripe:a.img,b.img").unwrap();
        assert_eq!(spec.to_string(), "stripe:64KiB,a.img,b.img");
        // A file name may start with a digit if it has an extension.
        let spec = Spec::parse("stripe:1.img,2.img").unwrap();
        assert_eq!(spec.to_string(), "stripe:64KiB,1.img,2.img");
    }

    #[test]
    fn invalid_specifications_are_refused() {
        for (text, message) in [
            ("", "a disk is missing"),
            ("file:", "needs a path"),
            ("mem:", "a size is missing"),
            ("mem:lots", "must begin with a number"),
            ("null:1GB", "write 1GiB"),
            ("stripe:", "a disk is missing"),
            ("stripe:64KiB", "lists no disks"),
            ("stripe:64KiB,", "a disk is missing"),
            ("stripe:64XB,a.img", "not known"),
            ("stripe:nvme+tcp://a/n,nvme+tcp://a/n", "twice"),
            ("concat:", "a disk is missing"),
            ("concat:1GB@a.img,b.img", "write 1GiB"),
            ("concat:1GiB@,b.img", "a disk is missing"),
            ("concat:1MiB@nvme+tcp://a/n,nvme+tcp://a/n", "twice"),
            ("concat:mirror:mem:1MiB,mem:1MiB", "lists one disk"),
            ("range:1GiB,a.img", "not a range"),
            ("range:0+1GB,a.img", "write 1GiB"),
            ("mirror:a.img", "lists one disk"),
            ("mirror:a.img,", "a disk is missing"),
            ("mirror:stripe:a.img,b.img", "cannot contain stripe:64KiB,a.img"),
            ("concat:a.img,stripe:b.img,c.img", "cannot contain stripe:64KiB,b.img"),
            ("delay:1ms", "add a comma and a disk"),
            ("delay:1,a.img", "not a time"),
            ("delay:1ms+x,a.img", "not a time"),
            ("limit:1000,a.img", "not a rate"),
            ("limit:0/s,a.img", "not a rate"),
            ("limit:1GB/s,a.img", "write 1GiB"),
            ("fault:0,a.img", "not a count"),
            ("fault:x,a.img", "not a count"),
        ] {
            let error = Spec::parse(text).unwrap_err().to_string();
            assert!(error.contains(message), "{text:?}: {error}");
        }
    }
}
