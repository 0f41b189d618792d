//! What an agent shares: drives, stripe sets of them, and the target.

use crate::limits::DRIVES;
use crate::memory::{self, Held, Memory};
use crate::message::Share;
use farblock_backends::Spec;
use farblock_backends::stripe::{DEFAULT_CHUNK_BYTES, Stripe};
use farblock_block::Namespace;
use farblock_host::disk::DiskOptions;
use farblock_host::url::UrlError;
use farblock_host::{Disk, Options, Url};
use farblock_proto::ids::NamespaceId;
use farblock_target::{Export, Subsystem, Target, TargetConfig};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// The drives that an agent may share, besides those of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Whatever its user may open: for a controller that started it.
    All,
    /// These files and disks, by these names.
    Only(Vec<PathBuf>),
}

impl Allowed {
    fn check(&self, spec: &Spec) -> Result<(), String> {
        let Allowed::Only(paths) = self else { return Ok(()) };
        match spec {
            Spec::Mem { .. } | Spec::Null { .. } => Ok(()),
            Spec::File(path) if paths.contains(path) => Ok(()),
            Spec::Stripe { .. }
            | Spec::Concat { .. }
            | Spec::Front { .. }
            | Spec::Range { .. }
            | Spec::Delay { .. }
            | Spec::Limit { .. }
            | Spec::Fault { .. } => spec.parts().iter().try_for_each(|it| self.check(it)),
            _ => Err(format!(
                "this agent may not share {spec}: who starts it has to say --drive, with that name"
            )),
        }
    }
}

/// What serves the drives.
enum Served {
    Nvme(Target),
    Iscsi(farblock_iscsi::Server),
}

impl Served {
    fn stop(self) -> Result<(), String> {
        match self {
            Served::Nvme(target) => target.stop().map_err(|error| error.to_string()),
            Served::Iscsi(server) => server.stop(true).map_err(|error| error.to_string()),
        }
    }
}

/// Nothing at first.
pub(crate) struct Storage {
    allowed: Allowed,
    memory: Memory,
    held: Option<Held>,
    served: Option<Served>,
    drives: Vec<Arc<dyn Namespace>>,
}

impl Storage {
    pub(crate) fn new(allowed: Allowed, memory: Memory) -> Storage {
        Storage { allowed, memory, held: None, served: None, drives: Vec::new() }
    }

    /// Opens the drives and shares them.
    pub(crate) fn share(&mut self, share: &Share) -> Result<SocketAddr, String> {
        self.unshare()?;
        if share.drives.is_empty() || share.drives.len() > DRIVES {
            return Err(format!("a target has 1 to {DRIVES} drives"));
        }
        let open = |name: &String| -> Result<Arc<dyn Namespace>, String> {
            let spec = Spec::parse(name).map_err(|error| error.to_string())?;
            self.allowed.check(&spec)?;
            if name.starts_with("nvme+tcp://") {
                return remote(name, &share.nqn);
            }
            spec.open(share.block_size, false).map_err(|error| error.to_string())
        };
        let held = self.memory.take(memory::of_share(share), "these drives")?;
        let drives = share.drives.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let (served, address) = serve(share, &drives)?;
        (self.served, self.drives, self.held) = (Some(served), drives, Some(held));
        Ok(address)
    }

    /// Shares nothing any more.
    pub(crate) fn unshare(&mut self) -> Result<(), String> {
        self.drives.clear();
        let stopped = self.served.take().map_or(Ok(()), Served::stop);
        self.held = None;
        stopped.map_err(|error| format!("the target failed: {error}"))
    }

    /// One of the drives.
    pub(crate) fn drive(&self, index: usize) -> Result<Arc<dyn Namespace>, String> {
        self.drives.get(index).cloned().ok_or_else(|| format!("it has no drive {index}"))
    }
}

/// A drive that another target has. Whoever shares the same is the same host to that one, so that
/// what one of them leaves behind is over before what another one brings for the same blocks.
fn remote(url: &str, nqn: &str) -> Result<Arc<dyn Namespace>, String> {
    let cannot = |error: &dyn std::fmt::Display| format!("{url}: {error}");
    let parsed: Url = url.parse().map_err(|error: UrlError| cannot(&error))?;
    let hostnqn = Some(format!("{nqn}-gateway"));
    let options = DiskOptions {
        connection: Options { hostnqn, ..Options::default() },
        ..DiskOptions::default()
    };
    let disk = Disk::connect(&[parsed], &options).map_err(|error| cannot(&error))?;
    Ok(Arc::new(disk))
}

fn serve(share: &Share, drives: &[Arc<dyn Namespace>]) -> Result<(Served, SocketAddr), String> {
    if !share.iscsi {
        let target = Target::start(&config(share, drives)?).map_err(|error| error.to_string())?;
        let address = target.addresses()[0];
        return Ok((Served::Nvme(target), address));
    }
    let [drive] = drives else { return Err("an iSCSI target has one drive".to_owned()) };
    let config = farblock_iscsi::Config::new(share.address, crate::iscsi::NAME);
    let server = farblock_iscsi::Server::start(&config, Arc::clone(drive));
    let server = server.map_err(|error| error.to_string())?;
    let address = server.address();
    Ok((Served::Iscsi(server), address))
}

fn config(share: &Share, drives: &[Arc<dyn Namespace>]) -> Result<TargetConfig, String> {
    let mut subsystem = Subsystem::new(&share.nqn);
    subsystem.config.allow_any_host = true;
    for (index, namespace) in namespaces(share.sets, drives)?.into_iter().enumerate() {
        // The same wherever the same is shared.
        let identity = format!("fleet {index} {}", share.drives[index]);
        let nsid = NamespaceId(u32::try_from(index + 1).map_err(|error| error.to_string())?);
        subsystem.exports.insert(nsid, Export { namespace, identity });
    }
    let mut config = TargetConfig {
        subsystems: vec![subsystem],
        listeners: vec![share.address],
        ..TargetConfig::default()
    };
    if let Some([first, last]) = share.controller_ids {
        config.controller_ids = first..=last;
    }
    Ok(config)
}

fn namespaces(
    sets: usize,
    drives: &[Arc<dyn Namespace>],
) -> Result<Vec<Arc<dyn Namespace>>, String> {
    if sets == 0 {
        return Ok(drives.to_vec());
    }
    if !drives.len().is_multiple_of(sets) {
        return Err(format!("{} drives do not make {sets} equal sets", drives.len()));
    }
    let set = |drives: &[Arc<dyn Namespace>]| -> Result<Arc<dyn Namespace>, String> {
        let set = Stripe::new(drives.to_vec(), DEFAULT_CHUNK_BYTES);
        Ok(Arc::new(set.map_err(|error| error.to_string())?))
    };
    drives.chunks(drives.len() / sets).map(set).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_memory_and_what_was_allowed_is_opened() {
        let allowed = Allowed::Only(vec!["/dev/spare".into(), "spare.img".into()]);
        let may = |name: &str| allowed.check(&Spec::parse(name).unwrap());
        for name in ["mem:1MiB", "null:1MiB", "limit:9/s,delay:1ms,mem:1MiB", "/dev/spare"] {
            may(name).unwrap();
        }
        may("stripe:64KiB,file:/dev/spare,spare.img,mem:1MiB").unwrap();
        for name in [
            "/dev/sda",
            "file:/etc/passwd",
            "/dev/../dev/spare",
            "spare.img/../other.img",
            "fault:3,limit:9/s,/dev/sda",
            "stripe:64KiB,/dev/spare,/dev/sda",
            "mirror:/dev/spare,spare.img",
            "rbd:pool/image",
        ] {
            let why = may(name).unwrap_err();
            assert!(why.contains("--drive"), "{why}");
            Allowed::All.check(&Spec::parse(name).unwrap()).unwrap();
        }
    }
}
