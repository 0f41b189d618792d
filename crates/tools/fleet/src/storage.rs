//! What an agent shares: drives, stripe sets of them, and the target.

use crate::limits::DRIVES;
use crate::message::Share;
use farblock_backends::Spec;
use farblock_backends::stripe::{DEFAULT_CHUNK_BYTES, Stripe};
use farblock_block::Namespace;
use farblock_proto::ids::NamespaceId;
use farblock_target::{Export, Subsystem, Target, TargetConfig};
use std::net::SocketAddr;
use std::sync::Arc;

/// Nothing at first.
#[derive(Default)]
pub(crate) struct Storage {
    target: Option<Target>,
    drives: Vec<Arc<dyn Namespace>>,
}

impl Storage {
    /// Opens the drives and shares them.
    pub(crate) fn share(&mut self, share: &Share) -> Result<SocketAddr, String> {
        if let Some(before) = self.target.take() {
            before.stop().map_err(|error| format!("the target failed: {error}"))?;
        }
        self.drives.clear();
        if share.drives.is_empty() || share.drives.len() > DRIVES {
            return Err(format!("a target has 1 to {DRIVES} drives"));
        }
        let open = |name: &String| -> Result<Arc<dyn Namespace>, String> {
            let spec = Spec::parse(name).map_err(|error| error.to_string())?;
            spec.open(share.block_size, false).map_err(|error| error.to_string())
        };
        let drives = share.drives.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let target = Target::start(&config(share, &drives)?).map_err(|error| error.to_string())?;
        let address = target.addresses()[0];
        (self.target, self.drives) = (Some(target), drives);
        Ok(address)
    }

    /// One of the drives.
    pub(crate) fn drive(&self, index: usize) -> Result<Arc<dyn Namespace>, String> {
        self.drives.get(index).cloned().ok_or_else(|| format!("it has no drive {index}"))
    }
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
    Ok(TargetConfig {
        subsystems: vec![subsystem],
        listeners: vec![share.address],
        ..TargetConfig::default()
    })
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
