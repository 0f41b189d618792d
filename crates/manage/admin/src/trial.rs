//! A managed target for the tests of this crate and of the crates above it.

use crate::opener::{Disks, NotOpened, Open, Opened};
#[cfg(all(test, unix))]
use crate::steering::Configured;
use crate::steering::Steering;
use farblock_backends::file::{FileDisk, FileOptions};
use farblock_backends::mem::Mem;
use farblock_state::{Document, Host, Listener, Namespace};
use farblock_target::{HostKeys, RdmaListeners, Target, TargetConfig};
use std::sync::Arc;
#[cfg(test)]
use std::time::Duration;

const MEM_BYTES: u64 = 1 << 20;

/// An opener that opens files, and opens all other storage in memory.
pub struct Opener;

impl Open for Opener {
    fn open(&self, namespace: &Namespace) -> Result<Opened, NotOpened> {
        let identity = namespace.path.clone();
        let Some(path) = namespace.path.strip_prefix("file:") else {
            let memory = Mem::new(namespace.block_size, MEM_BYTES);
            let namespace = Arc::new(memory.map_err(|error| error.to_string())?);
            return Ok(Opened::alone(namespace, identity));
        };
        let file = FileDisk::open(path, &FileOptions::new(namespace.block_size));
        let file = file.map_err(|error| NotOpened::new(&error, error.to_string()))?;
        let file = Arc::new(file);
        Ok(Opened { file: Some(file.clone()), ..Opened::alone(file, identity) })
    }

    fn keys(&self, _: &str, _: &str, _: &Host) -> Result<Option<HostKeys>, String> {
        Ok(None)
    }
}

/// Starts a target without subsystems. `opener` opens the namespaces that tests add.
///
/// # Panics
/// If the target does not start.
#[must_use]
pub fn start(opener: Arc<dyn Open>) -> (Target, Arc<Steering>) {
    let (target, steering) = begin(opener);
    (target, Arc::new(steering))
}

/// Like [`start`], with this time limit for opening disks.
#[cfg(test)]
pub(crate) fn start_with(opener: Arc<dyn Open>, longest: Duration) -> (Target, Arc<Steering>) {
    let (target, steering) = begin(opener);
    (target, Arc::new(steering.opening_within(longest)))
}

/// Like [`start_with`], with a configuration that `again` reads.
#[cfg(all(test, unix))]
pub(crate) fn reread(longest: Duration, again: Configured) -> (Target, Arc<Steering>) {
    reread_with(longest, again, None)
}

/// Like [`reread`], with RDMA listeners, too.
#[cfg(all(test, unix))]
pub(crate) fn reread_with(
    longest: Duration,
    again: Configured,
    rdma: Option<RdmaListeners>,
) -> (Target, Arc<Steering>) {
    let (target, steering) = begin_with(Arc::new(Opener), rdma);
    let (document, _) = steering.document();
    let steering = steering.configured(document, Some(again)).opening_within(longest);
    (target, Arc::new(steering))
}

fn begin(opener: Arc<dyn Open>) -> (Target, Steering) {
    begin_with(opener, None)
}

fn begin_with(opener: Arc<dyn Open>, rdma: Option<RdmaListeners>) -> (Target, Steering) {
    let listeners = vec!["127.0.0.1:0".parse().unwrap()];
    let config = TargetConfig { listeners, rdma, ..TargetConfig::default() };
    let target = Target::start(&config).unwrap();
    let listeners = target.entrances().into_iter().map(|one| (one, Listener::default()));
    let document = Document { listeners: listeners.collect(), ..Document::default() };
    let steering = Steering::new(target.control(), opener, document, Disks::new());
    (target, steering)
}
