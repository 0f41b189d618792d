//! Mirrors on the command line: legs that are files, devices or remote disks.

use crate::ceph;
use crate::error::Failure;
use crate::remote;
use farblock_admin::{LegStatus, Legs, MirrorOrder, Mirrored};
use farblock_backends::{FileProblem, OpenError, Spec};
use farblock_block::Namespace;
use farblock_host::disk::DiskOptions;
use farblock_host::url::Url;
use farblock_volumes::{LegSource, LegState, Mirror, MirrorOptions, MirrorStatus, limits};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use uuid::Uuid;

/// The longest pause between two attempts to reach a remote leg.
const RECONNECT_DELAY: Duration = Duration::from_secs(2);

type Opening = Result<Arc<dyn Namespace>, String>;

/// A leg that this machine has.
struct Local {
    spec: Spec,
    block_size: u32,
    /// What came of opening it, for whoever asks first.
    first: Mutex<Option<Opening>>,
}

impl Local {
    /// A leg that somebody else uses is not missing: whoever that is may be writing this mirror,
    /// and starting without the leg would make two of it.
    fn new(spec: &Spec, block_size: u32) -> Result<Local, OpenError> {
        use FileProblem::{Busy, Locked};
        let first = match ceph::open(spec, block_size, false) {
            Ok(namespace) => Ok(namespace),
            Err(in_use @ OpenError::File { problem: Busy | Locked { .. }, .. }) => {
                return Err(in_use);
            }
            Err(error) => Err(error.to_string()),
        };
        Ok(Local { spec: spec.clone(), block_size, first: Mutex::new(Some(first)) })
    }
}

impl LegSource for Local {
    fn name(&self) -> String {
        self.spec.to_string()
    }

    fn open(&self) -> Opening {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        first.unwrap_or_else(|| {
            ceph::open(&self.spec, self.block_size, false).map_err(|error| error.to_string())
        })
    }
}

/// A leg that a target has. It is never given up.
struct Remote {
    url: Url,
    options: DiskOptions,
}

impl LegSource for Remote {
    fn name(&self) -> String {
        self.url.to_string()
    }

    fn open(&self) -> Opening {
        let opened = remote::open_disk(&self.url, &self.options);
        opened.map(|(disk, _)| Arc::new(disk) as _).map_err(|failure| match failure {
            Failure::Usage(text) | Failure::Run(text) | Failure::Interrupted(text) => text,
            _ => "it ended".to_owned(),
        })
    }
}

/// Opens a mirror.
pub(super) fn open(
    legs: &[Spec],
    options: MirrorOptions,
    block_size: u32,
    read_only: bool,
) -> Result<Arc<Mirror>, OpenError> {
    if read_only {
        return Err(OpenError::Mirror(
            "a mirror cannot be shared read-only, since it writes to its legs: share one leg \
             read-only instead"
                .to_owned(),
        ));
    }
    let source = |leg: &Spec| -> Result<Arc<dyn LegSource>, OpenError> {
        let Spec::Remote(url) = leg else {
            return Ok(Arc::new(Local::new(leg, block_size)?));
        };
        let url: Url = url.parse().map_err(|error| OpenError::Mirror(format!("{error}")))?;
        let options = DiskOptions {
            ctrl_loss_timeout: None,
            reconnect_delay: RECONNECT_DELAY,
            ..DiskOptions::default()
        };
        Ok(Arc::new(Remote { url, options }))
    };
    let sources = legs.iter().map(source).collect::<Result<Vec<_>, _>>()?;
    let mirror = Mirror::open(sources, options);
    Ok(Arc::new(mirror.map_err(|error| OpenError::Mirror(error.to_string()))?))
}

/// A mirror for whoever steers the target; it does not keep the mirror open.
struct Watched(Weak<Mirror>);

impl Mirrored for Watched {
    fn status(&self) -> Option<(Vec<LegStatus>, farblock_admin::MirrorStatus)> {
        let status = self.0.upgrade()?.status();
        let doing = doing(&status);
        Some((named(status), doing))
    }

    fn order(&self, order: &MirrorOrder) {
        let Some(mirror) = self.0.upgrade() else { return };
        if let Some(speed) = order.copy_bytes_per_second {
            mirror.set_copy_speed((speed > 0).then_some(speed));
        }
        if order.verify {
            mirror.verify();
        }
    }
}

/// What says what its legs are.
pub(super) fn legs(mirror: &Arc<Mirror>) -> Legs {
    Arc::new(Watched(Arc::downgrade(mirror)))
}

fn doing(status: &MirrorStatus) -> farblock_admin::MirrorStatus {
    let difference = |it: &farblock_volumes::mirror::Difference| farblock_admin::Difference {
        lba: it.lba,
        blocks: it.blocks,
    };
    farblock_admin::MirrorStatus {
        dirty_bytes: status.dirty_bytes,
        copied_bytes: status.copied_bytes,
        copy_bytes_per_second: status.copy_bytes_per_second.unwrap_or(0),
        verifying: status.verifying,
        verified_bytes: status.verified_bytes,
        differing_bytes: status.differing_bytes,
        differences: status.differences.iter().map(difference).collect(),
        verifies: status.verifies,
    }
}

fn named(status: MirrorStatus) -> Vec<LegStatus> {
    let named = |leg: farblock_volumes::mirror::LegStatus| {
        let state = match leg.state {
            LegState::InSync => "in_sync",
            LegState::CatchingUp => "catching_up",
            LegState::Out => "out",
        };
        LegStatus { name: leg.name, state: state.to_owned(), reason: leg.reason }
    };
    status.legs.into_iter().map(named).collect()
}

/// What names the mirror wherever it is used: as the first leg of this machine has it, or the URLs
/// of legs that are all remote.
pub(super) fn identity(legs: &[Spec]) -> Option<Uuid> {
    if legs.iter().all(|leg| matches!(leg, Spec::Remote(_))) {
        let urls: Vec<String> = legs.iter().map(Spec::to_string).collect();
        return Some(Uuid::new_v5(&Uuid::NAMESPACE_OID, urls.join("\n").as_bytes()));
    }
    legs.iter().find_map(|leg| {
        let Spec::File(path) = leg else { return None };
        let mut file = File::open(path).ok()?;
        let end = file.seek(SeekFrom::End(0)).ok()?;
        file.seek(SeekFrom::Start(end.checked_sub(limits::RESERVED_BYTES)?)).ok()?;
        let mut bytes = vec![0; limits::RESERVED_BYTES as usize];
        file.read_exact(&mut bytes).ok()?;
        farblock_volumes::mirror_of(&bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_volumes::Taking;

    fn refused(legs: &[&std::path::Path], options: &MirrorOptions) -> String {
        let legs: Vec<Spec> = legs.iter().map(|leg| Spec::File(leg.into())).collect();
        match open(&legs, options.clone(), 512, false) {
            Ok(_) => panic!("it is a mirror"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_leg_in_use_is_not_missing() {
        let folder = std::env::temp_dir().join(format!("farblock-legs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let [one, two] = ["one", "two"].map(|name| folder.join(name));
        for leg in [&one, &two] {
            File::create(leg).unwrap().set_len(2 << 20).unwrap();
        }
        let degraded = MirrorOptions { degraded: true, ..MirrorOptions::default() };
        let create = MirrorOptions { taking: Taking::Empty, ..degraded.clone() };
        assert!(refused(&[&one, &one], &create).contains("twice here"));
        let legs = [Spec::File(one.clone()), Spec::File(two.clone())];
        drop(open(&legs, create, 512, false).unwrap());
        let other = Spec::File(two.clone()).open(512, false).unwrap();
        let error = refused(&[&one, &two], &degraded);
        assert!(error.contains("is in use") && !error.contains("degraded"), "{error}");
        drop(other);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
