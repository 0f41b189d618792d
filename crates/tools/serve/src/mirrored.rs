//! Mirrors that a target shares: their legs are files, devices or remote disks.

use super::names::{name, without_keys};
use crate::elsewhere::{self, Leg};
use crate::signals::Stop;
use crate::{journal, remote};
use farblock_admin::{Legs, Mirrored};
use farblock_admin_api::{LegStatus, MirrorOrder, part_name};
use farblock_backends::{FileProblem, OpenError, Spec};
use farblock_block::{Availability, Namespace};
use farblock_host::disk::{Disk, DiskOptions, OrphanedControllers};
use farblock_host::url::Url;
use farblock_volumes::{LegSource, LegState, Mirror, MirrorOptions, MirrorStatus, limits};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use uuid::Uuid;

type Opening = Result<Arc<dyn Namespace>, String>;

/// A leg that this machine opens: a file, a device or a set.
struct Local {
    spec: Spec,
    block_size: u32,
    /// The result of the first attempt to open the leg, which the first call of `open` returns.
    first: Mutex<Option<Opening>>,
}

impl Local {
    /// Opens the leg. Fails if another process uses it. A mirror can start without a missing leg,
    /// but not without a leg in use: the other process may write to it, and the legs would diverge.
    fn new(spec: &Spec, block_size: u32) -> Result<Local, OpenError> {
        use FileProblem::{Busy, InUse, Locked};
        let first = match elsewhere::open(spec, block_size, false) {
            Ok(namespace) => Ok(namespace),
            Err(in_use @ OpenError::File { problem: Busy | InUse { .. } | Locked { .. }, .. }) => {
                return Err(in_use);
            }
            Err(error) => Err(error.to_string()),
        };
        Ok(Local { spec: spec.clone(), block_size, first: Mutex::new(Some(first)) })
    }
}

impl LegSource for Local {
    fn name(&self) -> String {
        name(&self.spec)
    }

    fn is_local(&self) -> bool {
        let is_far = |leaf: &&Spec| matches!(leaf, Spec::Remote(_) | Spec::Rbd(_));
        !self.spec.leaves().iter().any(is_far)
    }

    fn open(&self) -> Opening {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        first.unwrap_or_else(|| {
            elsewhere::open(&self.spec, self.block_size, false).map_err(|error| error.to_string())
        })
    }
}

/// The stop signal of this process, set before it opens disks.
static STOP: OnceLock<Stop> = OnceLock::new();

/// Makes this signal end a mirror's wait for its legs at the start of the target.
pub(super) fn end_with(stop: &Stop) {
    let _ = STOP.set(stop.clone());
}

/// A leg on a remote target. The host reconnects to it until the process ends.
struct Remote {
    url: Url,
    options: DiskOptions,
    /// Controllers of a killed process, whose commands the remote target may still execute.
    orphans: Mutex<OrphanedControllers>,
}

impl Remote {
    fn new(url: Url) -> Remote {
        Remote { url, options: elsewhere::leg_options(), orphans: Mutex::default() }
    }

    fn orphans(&self) -> MutexGuard<'_, OrphanedControllers> {
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LegSource for Remote {
    fn name(&self) -> String {
        part_name(&self.url.to_string())
    }

    fn is_local(&self) -> bool {
        false
    }

    fn settle(&self) -> Result<(), String> {
        let left = journal::left(&self.url)?;
        if left.is_empty() {
            return Ok(());
        }
        let mut orphans = self.orphans();
        orphans.add(left.clone());
        let ended = orphans.end(&self.url, &self.options, limits::WAIT_LIMIT);
        if orphans.is_empty() {
            return journal::ended(&self.url, &left);
        }
        let why = ended.err().map_or(String::new(), |error| format!(" ({error})"));
        Err(format!(
            "its target has not confirmed yet that it executes no more commands of a killed \
             process{why}"
        ))
    }

    fn is_wanted(&self) -> bool {
        !STOP.get().is_some_and(Stop::requested)
    }

    fn open(&self) -> Opening {
        // While controllers of a killed process remain, the mirror only reads the leg. The journal
        // needs entries only for controllers that write.
        let is_settled = self.orphans().is_empty();
        let journal = if is_settled { journal::begin(&self.url)? } else { None };
        let opened = match journal {
            None => remote::open_disk(&self.url, &self.options),
            Some(journal) => remote::open_disk_by(&self.url, &self.options, |urls, options| {
                Disk::connect_recorded(urls, options, journal)
            }),
        };
        opened.map(|(disk, _)| Arc::new(disk) as _).map_err(elsewhere::said)
    }
}

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
        let url = elsewhere::leg_url(url).map_err(OpenError::Mirror)?;
        Ok(Arc::new(Remote::new(url)))
    };
    let sources = legs.iter().map(source).collect::<Result<Vec<_>, _>>()?;
    let mirror = Mirror::open(sources, options);
    Ok(Arc::new(mirror.map_err(|error| OpenError::Mirror(error.to_string()))?))
}

/// The status and commands of a mirror, for the management API. The mirror closes even while this
/// value exists.
struct Watched(Weak<Mirror>);

impl Mirrored for Watched {
    fn status(&self) -> Option<(Vec<LegStatus>, Option<farblock_admin_api::MirrorStatus>)> {
        let status = self.0.upgrade()?.status();
        let doing = doing(&status);
        Some((named(status), Some(doing)))
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

pub(super) fn legs(mirror: &Arc<Mirror>) -> Legs {
    Arc::new(Watched(Arc::downgrade(mirror)))
}

/// The status of the remote disks in a stripe set or concatenation, for the management API.
struct Pieces(Vec<Leg>);

impl Mirrored for Pieces {
    fn status(&self) -> Option<(Vec<LegStatus>, Option<farblock_admin_api::MirrorStatus>)> {
        let status = |leg: &Leg| {
            let namespace = leg.namespace.upgrade()?;
            let missing = leg.missing(&*namespace);
            let is_ready = namespace.availability() == Availability::Ready && missing.is_none();
            let state = if is_ready { "ready" } else { "away" }.to_owned();
            let reason = namespace.trouble().or(missing);
            Some(LegStatus { name: part_name(&leg.name), state, reason })
        };
        Some((self.0.iter().map(status).collect::<Option<_>>()?, None))
    }

    fn order(&self, _: &MirrorOrder) {}
}

/// Returns the status of these remote disks, or `None` if there are none.
pub(super) fn pieces(legs: Vec<Leg>) -> Option<Legs> {
    (!legs.is_empty()).then(|| Arc::new(Pieces(legs)) as Legs)
}

fn doing(status: &MirrorStatus) -> farblock_admin_api::MirrorStatus {
    let difference = |it: &farblock_volumes::mirror::Difference| farblock_admin_api::Difference {
        lba: it.lba,
        blocks: it.blocks,
    };
    farblock_admin_api::MirrorStatus {
        dirty_bytes: status.dirty_bytes,
        copied_bytes: status.copied_bytes,
        copy_bytes_per_second: status.copy_bytes_per_second.unwrap_or(0),
        verifying: status.verifying,
        verified_bytes: status.verified_bytes,
        uncompared_bytes: status.uncompared_bytes,
        unread_legs: status.unread_legs.clone(),
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

pub(super) fn remote_identity(url: &str) -> Uuid {
    Uuid::new_v5(&Uuid::NAMESPACE_OID, without_keys(url).as_bytes())
}

/// Returns the identity of a mirror: from the record on its first local leg, or derived from the
/// URLs if all legs are remote.
pub(super) fn identity(legs: &[Spec]) -> Option<Uuid> {
    if legs.iter().all(|leg| matches!(leg, Spec::Remote(_))) {
        let urls: Vec<String> = legs.iter().map(|leg| without_keys(&leg.to_string())).collect();
        return Some(Uuid::new_v5(&Uuid::NAMESPACE_OID, urls.join("\n").as_bytes()));
    }
    record(legs).map(|(_, mirror)| mirror)
}

/// Returns a warning about a mirror whose UUID derives from its URLs in their order. Sorting the
/// URLs now would change the UUIDs of existing mirrors.
pub(super) fn doubt(legs: &[Spec]) -> Option<String> {
    let is_remote = |leg: &Spec| matches!(leg, Spec::Remote(_));
    legs.iter().all(is_remote).then(|| {
        let names: Vec<String> = legs.iter().map(|leg| part_name(&leg.to_string())).collect();
        format!(
            "the UUID of the mirror of {} depends on these URLs and their order, since it has no \
             leg on this machine: always name the legs in this order, or give the namespace a \
             uuid in a configuration file",
            names.join(" and ")
        )
    })
}

/// Returns the first file or device with a mirror's record, and the mirror's UUID in it.
pub(super) fn record(legs: &[Spec]) -> Option<(&Path, Uuid)> {
    legs.iter().find_map(|leg| {
        let Spec::File(path) = leg else { return None };
        let mut file = File::open(path).ok()?;
        let end = file.seek(SeekFrom::End(0)).ok()?;
        file.seek(SeekFrom::Start(end.checked_sub(limits::RESERVED_BYTES)?)).ok()?;
        let mut bytes = vec![0; limits::RESERVED_BYTES as usize];
        file.read_exact(&mut bytes).ok()?;
        Some((&**path, farblock_volumes::mirror_of(&bytes)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_volumes::Taking;

    #[test]
    fn a_remote_leg_keeps_its_identity_with_another_key() {
        let leg = |more: &str| Spec::Remote(format!("nvme+tcp://10.0.0.1:4421/n?ns=1{more}"));
        let named = |more: &str| identity(&[leg(more), leg("&data-digest=1")]);
        assert_eq!(named(""), named("&tls-key=/etc/a.key"));
        assert_eq!(named("&concat=1&dhchap-secret=a"), named("&tls-key=credential:b"));
        assert_ne!(named(""), named("&hostnqn=nqn.2026-11.org.example:another"));
        let (one, other) = (leg(""), leg("&data-digest=1"));
        assert_ne!(
            identity(&[one.clone(), other.clone()]),
            identity(&[other.clone(), one.clone()])
        );
        let told = doubt(&[one.clone(), other]).expect("the mirror causes a warning");
        assert!(told.contains("their order") && told.contains("10.0.0.1:4421"), "{told}");
        assert_eq!(doubt(&[one, Spec::File("a.img".into())]), None);
    }

    fn refused(legs: &[&std::path::Path], options: &MirrorOptions) -> String {
        let legs: Vec<Spec> = legs.iter().map(|leg| Spec::File(leg.into())).collect();
        match open(&legs, options.clone(), 512, false) {
            Ok(_) => panic!("a mirror was opened"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_mirror_does_not_start_without_a_leg_in_use() {
        let folder = std::env::temp_dir().join(format!("farblock-legs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let [one, two] = ["one", "two"].map(|name| folder.join(name));
        for leg in [&one, &two] {
            File::create(leg).unwrap().set_len(2 << 20).unwrap();
        }
        let degraded = MirrorOptions { degraded: true, ..MirrorOptions::default() };
        let create = MirrorOptions { taking: Taking::Empty, ..degraded.clone() };
        assert!(refused(&[&one, &one], &create).contains("is in use"));
        let legs = [Spec::File(one.clone()), Spec::File(two.clone())];
        drop(open(&legs, create, 512, false).unwrap());
        let other = Spec::File(two.clone()).open(512, false).unwrap();
        let error = refused(&[&one, &two], &degraded);
        assert!(error.contains("is in use") && !error.contains("degraded"), "{error}");
        drop(other);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
