//! The sides to measure: how to start a target and a host, and how to parse their output.

pub(super) mod farblock;
mod floor;
mod iscsi;
pub(super) mod nbd;
mod spdk;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::process::Process;
use super::work::{Backend, Load};

/// The program that serves the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Target {
    /// No target: the host uses the backend without a network.
    None,
    Floor,
    Farblock {
        poll: bool,
        /// Whether the target requires TLS.
        tls: bool,
    },
    Spdk {
        zero_copy: bool,
    },
    /// tgt, an iSCSI target.
    Tgt,
    /// nbdkit, an NBD server.
    Nbdkit,
}

/// The program that generates the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    Floor,
    Farblock { poll: bool, tls: bool },
    SpdkPerf,
    IscsiPerf,
    Fio,
}

/// A pair of target and host to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Side {
    pub(crate) name: &'static str,
    pub(crate) target: Target,
    pub(crate) host: Host,
}

const fn side(name: &'static str, target: Target, host: Host) -> Side {
    Side { name, target, host }
}

pub(crate) const ADAPTIVE_TARGET: Target = Target::Farblock { poll: false, tls: false };
const ADAPTIVE_HOST: Host = Host::Farblock { poll: false, tls: false };
const SPDK_TARGET: Target = Target::Spdk { zero_copy: false };

pub(crate) const FARBLOCK: Side = side("farblock", ADAPTIVE_TARGET, ADAPTIVE_HOST);
/// farblock with polling on both ends, like SPDK.
pub(crate) const POLLING: Side = side(
    "farblock polling",
    Target::Farblock { poll: true, tls: false },
    Host::Farblock { poll: true, tls: false },
);
/// farblock with TLS 1.3 and AES-128-GCM.
pub(crate) const TLS: Side = side(
    "farblock TLS",
    Target::Farblock { poll: false, tls: true },
    Host::Farblock { poll: false, tls: true },
);
pub(crate) const FLOOR: Side = side("floor", Target::Floor, Host::Floor);
pub(crate) const LOCAL: Side = side("local", Target::None, ADAPTIVE_HOST);
pub(crate) const SPDK: Side = side("SPDK", SPDK_TARGET, Host::SpdkPerf);
/// SPDK with zero-copy send, which is its default.
pub(crate) const SPDK_ZERO_COPY: Side =
    side("SPDK zero-copy", Target::Spdk { zero_copy: true }, Host::SpdkPerf);
pub(crate) const SPDK_ON_FARBLOCK: Side =
    side("SPDK host, farblock target", ADAPTIVE_TARGET, Host::SpdkPerf);
pub(crate) const FARBLOCK_ON_SPDK: Side =
    side("farblock host, SPDK target", SPDK_TARGET, ADAPTIVE_HOST);
pub(crate) const ISCSI: Side = side("iSCSI", Target::Tgt, Host::IscsiPerf);
pub(crate) const NBD: Side = side("NBD", Target::Nbdkit, Host::Fio);

/// All sides, in the order of the tables.
pub(crate) const ALL: [Side; 11] = [
    FARBLOCK,
    POLLING,
    TLS,
    FLOOR,
    LOCAL,
    SPDK,
    SPDK_ZERO_COPY,
    SPDK_ON_FARBLOCK,
    FARBLOCK_ON_SPDK,
    ISCSI,
    NBD,
];
/// The sides of the rows about several connections, mixed loads, digests and a fixed rate.
pub(crate) const PAIRS: [Side; 3] = [FARBLOCK, FLOOR, SPDK];

impl Side {
    /// Whether the side can run this load with a meaningful result.
    pub(crate) fn supports(&self, backend: Backend, load: &Load) -> bool {
        let plain = load.rate.is_none() && !load.digests;
        match *self {
            FLOOR => plain && backend != Backend::File,
            // Polling saves wake-ups, whose cost shows only with a single I/O in flight.
            POLLING => plain && load.depth == 1 && backend == Backend::Mem,
            TLS => plain && load.depth > 1 && backend == Backend::Mem,
            ISCSI => plain && backend == Backend::Mem && !load.rw.writes(),
            NBD => plain && backend == Backend::Mem,
            SPDK_ZERO_COPY => plain && backend == Backend::Mem,
            SPDK_ON_FARBLOCK | FARBLOCK_ON_SPDK => backend != Backend::File,
            _ => true,
        }
    }
}

/// The programs, files and processors that the measurements use.
pub(crate) struct Means {
    pub(crate) farblock: PathBuf,
    pub(crate) xtask: PathBuf,
    pub(crate) spdk: Option<PathBuf>,
    /// The path of the disk file, which is full of data.
    pub(crate) file: PathBuf,
    pub(crate) disk_bytes: u64,
    pub(crate) target_cpu: usize,
    pub(crate) host_cpu: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    /// The name of the subsystem, or of the equivalent in another protocol.
    pub(crate) name: String,
}

pub(crate) struct Server {
    pub(crate) process: Process,
    pub(crate) endpoint: Endpoint,
}

/// The command of a host, and how to interpret its output.
pub(crate) struct Client {
    pub(crate) command: Command,
    /// The output line that shows that the load has started. `None` if the load starts at once.
    pub(crate) begins: Option<&'static str>,
    pub(crate) parse: fn(&str, &Load) -> Result<Measured, String>,
}

/// The warm-up time and the measured time of a host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) ramp: Duration,
    pub(crate) runtime: Duration,
}

/// The results that a host reports.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Measured {
    pub(crate) iops: f64,
    pub(crate) mib_per_second: f64,
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    pub(crate) p99_9_us: Option<f64>,
}

/// The sides that have their own copy of the disk file.
pub(crate) const FILE_COPIES: [&str; 3] = ["farblock", "spdk", "iscsi"];

/// The path of a side's copy of the disk file.
pub(crate) fn copy_of(file: &Path, whose: &str) -> PathBuf {
    file.with_extension(whose)
}

/// Like [`copy_of`], in a memory file system.
pub(crate) fn memory_copy_of(file: &Path, whose: &str) -> PathBuf {
    Path::new("/dev/shm").join(copy_of(file, whose).file_name().unwrap_or_default())
}

/// The path of the TLS key file, beside the disk file.
pub(crate) fn key_of(file: &Path) -> PathBuf {
    file.with_extension("key")
}

impl Means {
    /// Copies the disk file for one side.
    fn file_for(&self, whose: &str) -> Result<PathBuf, String> {
        assert!(FILE_COPIES.contains(&whose), "{whose} is not in FILE_COPIES: the copy would stay");
        let copy = copy_of(&self.file, whose);
        std::fs::copy(&self.file, &copy)
            .and_then(|_| std::fs::File::open(&copy)?.sync_all())
            .map_err(|error| format!("cannot create {}: {error}", copy.display()))?;
        Ok(copy)
    }

    /// Copies the disk file to a memory file system.
    fn file_in_memory(&self, whose: &str) -> Result<PathBuf, String> {
        assert!(FILE_COPIES.contains(&whose), "{whose} is not in FILE_COPIES: the copy would stay");
        let copy = memory_copy_of(&self.file, whose);
        std::fs::copy(&self.file, &copy)
            .map_err(|error| format!("cannot create {}: {error}", copy.display()))?;
        Ok(copy)
    }

    /// The reason why a side cannot be measured; `None` if it can be measured.
    pub(crate) fn lack(&self, side: Side) -> Option<String> {
        let spdk = matches!(side.target, Target::Spdk { .. }) || side.host == Host::SpdkPerf;
        match (&self.spdk, side) {
            (None, _) if spdk => {
                Some("SPDK: set FARBLOCK_SPDK to the directory of a build of SPDK".to_owned())
            }
            (Some(build), _) if spdk => spdk::check(build).err(),
            (_, ISCSI) => lack_of("iSCSI", &["tgtd", "tgtadm", "iscsi-perf"], "tgt libiscsi-bin"),
            (_, NBD) => lack_of("NBD", &["nbdkit", "fio"], "nbdkit fio"),
            _ => None,
        }
    }

    /// Starts a target with data on its backend. `None` if the side has no target.
    pub(crate) fn serve(&self, target: Target, backend: Backend) -> Result<Option<Server>, String> {
        match target {
            Target::None => return Ok(None),
            Target::Floor => floor::serve(self),
            Target::Farblock { poll, tls } => farblock::serve(self, backend, poll, tls),
            Target::Spdk { zero_copy } => spdk::serve(self, backend, zero_copy),
            Target::Tgt => iscsi::serve(self),
            Target::Nbdkit => nbd::serve(self),
        }
        .map(Some)
    }

    /// Sets the load's rate limit at SPDK's target, because SPDK's host has no such option. Removes
    /// the limit for other hosts.
    pub(crate) fn prepare(&self, side: Side, server: &Server, load: &Load) -> Result<(), String> {
        match (side.target, side.host) {
            (Target::Spdk { .. }, Host::SpdkPerf) => spdk::limit(server, load.rate),
            (Target::Spdk { .. }, _) => spdk::limit(server, None),
            _ => Ok(()),
        }
    }

    /// The command that runs a load on a target, or on the backend without a target.
    pub(crate) fn client(
        &self,
        host: Host,
        endpoint: Option<&Endpoint>,
        backend: Backend,
        load: &Load,
        times: Times,
    ) -> Client {
        let Some(endpoint) = endpoint else { return farblock::local(self, backend, load, times) };
        match host {
            Host::Farblock { poll, tls } => {
                farblock::remote(self, endpoint, (poll, tls), load, times)
            }
            Host::Floor => floor::client(self, endpoint, load, times),
            Host::SpdkPerf => spdk::client(self, endpoint, load, times),
            Host::IscsiPerf => iscsi::client(endpoint, load, times),
            Host::Fio => nbd::client(self, endpoint, load, times),
        }
    }
}

/// The packages to install for a peer; `None` if all of its programs exist.
pub(super) fn lack_of(peer: &str, programs: &[&str], packages: &str) -> Option<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories: Vec<PathBuf> =
        std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]).collect();
    let there = |program: &&str| directories.iter().any(|place| place.join(program).is_file());
    let missing = programs.iter().find(|program| !there(program))?;
    Some(format!("{peer}: {missing} is missing: apt-get install {packages}"))
}
