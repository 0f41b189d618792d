//! Who is measured: a target, a host, and how to start each and read what it says.

mod farblock;
mod floor;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::process::Process;
use super::work::{Backend, Load};

/// Who shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Target {
    /// Nobody: the host is at the backend.
    None,
    Floor,
    Farblock,
}

/// Who uses, and puts the load on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    Floor,
    Farblock,
}

/// A pair that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Side {
    pub(crate) name: &'static str,
    pub(crate) target: Target,
    pub(crate) host: Host,
}

const fn side(name: &'static str, target: Target, host: Host) -> Side {
    Side { name, target, host }
}

pub(crate) const FARBLOCK: Side = side("farblock", Target::Farblock, Host::Farblock);
pub(crate) const FLOOR: Side = side("floor", Target::Floor, Host::Floor);
pub(crate) const LOCAL: Side = side("local", Target::None, Host::Farblock);

/// All, in the order of the tables.
pub(crate) const ALL: [Side; 3] = [FARBLOCK, FLOOR, LOCAL];
/// Those that are measured where a row is about one thing.
pub(crate) const PAIRS: [Side; 2] = [FARBLOCK, FLOOR];

impl Side {
    /// Whether it can do this at all.
    pub(crate) fn supports(&self, backend: Backend, load: &Load) -> bool {
        let plain = load.rate.is_none() && !load.digests;
        match self.host {
            Host::Floor => plain && backend != Backend::File,
            Host::Farblock => true,
        }
    }
}

/// What the stand has to work with.
pub(crate) struct Means {
    /// The release build of farblock.
    pub(crate) farblock: PathBuf,
    /// This program.
    pub(crate) xtask: PathBuf,
    /// The disk file, full of data.
    pub(crate) file: PathBuf,
    /// Bytes of each disk.
    pub(crate) disk_bytes: u64,
    pub(crate) target_cpu: usize,
    pub(crate) host_cpu: usize,
}

/// Where a target is reached.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    /// The subsystem, or whatever the protocol has in its place.
    pub(crate) name: String,
}

/// A target that runs.
pub(crate) struct Server {
    pub(crate) process: Process,
    pub(crate) endpoint: Endpoint,
}

/// A host about to run.
pub(crate) struct Client {
    pub(crate) command: Command,
    /// The line after which it has begun. Without one it begins at once.
    pub(crate) begins: Option<&'static str>,
    pub(crate) parse: fn(&str, &Load) -> Result<Measured, String>,
}

/// How long a host runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) ramp: Duration,
    pub(crate) runtime: Duration,
}

/// What a host says that it measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Measured {
    pub(crate) iops: f64,
    pub(crate) mib_per_second: f64,
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    pub(crate) p99_9_us: Option<f64>,
}

/// Who gets a copy of the disk file.
pub(crate) const FILE_COPIES: [&str; 2] = ["farblock", "spdk"];

/// The name of somebody's copy of the disk file.
pub(crate) fn copy_of(file: &Path, whose: &str) -> PathBuf {
    file.with_extension(whose)
}

impl Means {
    /// A copy of the disk file for a target of its own.
    fn file_for(&self, whose: &str) -> Result<PathBuf, String> {
        assert!(FILE_COPIES.contains(&whose), "or nobody removes it");
        let copy = copy_of(&self.file, whose);
        std::fs::copy(&self.file, &copy)
            .and_then(|_| std::fs::File::open(&copy)?.sync_all())
            .map_err(|error| format!("cannot make {}: {error}", copy.display()))?;
        Ok(copy)
    }

    /// Starts a target that shares a backend, with data on it; nothing if there is none to start.
    pub(crate) fn serve(&self, target: Target, backend: Backend) -> Result<Option<Server>, String> {
        match target {
            Target::None => Ok(None),
            Target::Floor => floor::serve(self).map(Some),
            Target::Farblock => farblock::serve(self, backend).map(Some),
        }
    }

    /// The command that puts a load on a target, or on the backend itself.
    pub(crate) fn client(
        &self,
        host: Host,
        endpoint: Option<&Endpoint>,
        backend: Backend,
        load: &Load,
        times: Times,
    ) -> Client {
        match (host, endpoint) {
            (Host::Farblock, None) => farblock::local(self, backend, load, times),
            (Host::Farblock, Some(endpoint)) => farblock::remote(self, endpoint, load, times),
            (Host::Floor, Some(endpoint)) => floor::client(self, endpoint, load, times),
            (Host::Floor, None) => unreachable!("the floor is nothing without its server"),
        }
    }
}
