//! Shared disks: parses a name, opens the disk, and determines its identity.

use super::names::{absolute, name};
use super::{identity, mirrored, reserved};
use crate::{ceph, elsewhere, slow};
use farblock_admin::{Announcement, Opened};
use farblock_backends::file::{FileDisk, FileOptions};
use farblock_backends::{FileProblem, OpenError, REMOTE_RDMA_SCHEME, REMOTE_SCHEME, Spec, standby};
use farblock_block::Namespace;
use farblock_program::alike::alike;
use farblock_proto::ids::NamespaceId;
use farblock_target::{ReservationStore, Subsystem};
use farblock_volumes::{MirrorOptions, Taking};
use farblock_wire::nqn::UUID_NQN_PREFIX;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use uuid::Uuid;

pub(crate) fn parse(text: &str) -> Result<Spec, String> {
    if text.starts_with(REMOTE_SCHEME) || text.starts_with(REMOTE_RDMA_SCHEME) {
        return Err(format!(
            "{text} is a remote disk, and hosts can connect to its target directly: concat:{text} \
             shares it again from here, mirror:disk.img,{text} shares a mirror of it"
        ));
    }
    if let Some((scheme, _)) = text.split_once("://")
        && !scheme.is_empty()
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    {
        return Err(format!(
            "{text} is a URL, but a target shares files, block devices and RAM disks of its \
             machine: download it first, or use file:{text} for a file of this name"
        ));
    }
    let spec = Spec::parse(text).map_err(|error| error.to_string())?;
    ceph::check(&spec)?;
    Ok(spec)
}

/// Parses a disk name from the command line. A name that is not UTF-8 is always the name of a file.
pub fn parse_os(text: &OsStr) -> Result<Spec, String> {
    text.to_str().map_or_else(|| Ok(Spec::File(text.into())), parse)
}

/// Opens a disk, and leaves its identity empty. `given` is the namespace's UUID from the
/// configuration. `note` receives messages for the user.
pub(super) fn open(
    spec: &Spec,
    given: Option<Uuid>,
    block_size: u32,
    read_only: bool,
    note: &mut dyn FnMut(String),
) -> Result<Opened, OpenError> {
    slow::named(&name(spec), || open_now(spec, given, block_size, read_only, note))
}

fn open_now(
    spec: &Spec,
    given: Option<Uuid>,
    block_size: u32,
    read_only: bool,
    note: &mut dyn FnMut(String),
) -> Result<Opened, OpenError> {
    let whole = |namespace: Arc<dyn Namespace>| Opened {
        reservations: reservations(spec, given),
        ..Opened::alone(namespace, String::new())
    };
    if let Spec::Mirror { legs, create, degraded } = spec {
        let taking = if *create { Taking::Empty } else { Taking::Members };
        let options = MirrorOptions { taking, degraded: *degraded, ..MirrorOptions::default() };
        if given.is_none()
            && let Some(doubt) = mirrored::doubt(legs)
        {
            tracing::warn!("{doubt}");
        }
        let mirror = mirrored::open(legs, options, block_size, read_only)?;
        let record = mirrored::record(legs).filter(|_| given.is_none());
        let announced = record.map(|(leg, uuid)| identity::announce(leg, uuid));
        let announced = announced.transpose().map_err(OpenError::Set)?.flatten();
        let announcement = announced.map(|it| Arc::new(it) as Announcement);
        let legs = Some(mirrored::legs(&mirror));
        return Ok(Opened { legs, announcement, ..whole(mirror) });
    }
    let Spec::File(path) = spec else {
        let (namespace, legs) = elsewhere::open_with_legs(spec, block_size, read_only)?;
        let announcement = announce(spec, given, note)?;
        return Ok(Opened { legs: mirrored::pieces(legs), announcement, ..whole(namespace) });
    };
    let options = FileOptions { read_only, ..FileOptions::new(block_size) };
    match FileDisk::open(path, &options) {
        Ok(file) => {
            let announcement = announce(spec, given, note)?;
            let file = Arc::new(file);
            Ok(Opened { file: Some(Arc::clone(&file)), announcement, ..whole(file) })
        }
        Err(error) => Ok(whole(standby::instead_of(error, path, &options)?)),
    }
}

/// Announces a disk's files to the other targets of this machine, until the returned value is
/// dropped. If two targets open files with the same identity at once, at least one of them fails.
/// Does not announce files with a configured UUID, because several files may legitimately have the
/// same one.
fn announce(
    spec: &Spec,
    given: Option<Uuid>,
    note: &mut dyn FnMut(String),
) -> Result<Option<Announcement>, OpenError> {
    let mut announced: Vec<identity::Announced> = Vec::new();
    for leaf in spec.leaves() {
        if let Spec::File(path) = leaf
            && given.is_none()
            && let Some(uuid) = of_file(path, note)
        {
            announced.extend(identity::announce(path, uuid).map_err(OpenError::Set)?);
        }
    }
    Ok((!announced.is_empty()).then(|| Arc::new(announced) as Announcement))
}

/// Describes why a disk cannot be opened. The message names `way`, the setting for read-only
/// access, if that would help.
pub(super) fn refused(error: &OpenError, way: &str) -> String {
    explained(told(error, way))
}

/// Describes why a disk of the command line cannot be opened. Unlike a disk of a configuration or
/// of a saved state, it may be a file that the user has yet to create.
pub(super) fn refused_new(spec: &Spec, error: &OpenError) -> String {
    if let Spec::File(path) = spec
        && let OpenError::File { path: missing, problem: FileProblem::NotFound } = error
        && missing == path
        && meant(path).is_none()
        && may_be_created(path)
    {
        let path = path.display();
        let command = match cfg!(windows) {
            true => format!("fsutil file createnew {path} 1073741824"),
            false => format!("truncate -s 1G {path}"),
        };
        return explained(format!(
            "{path} does not exist: check the name, and that its file system is mounted; \
             `{command}` creates a new disk"
        ));
    }
    refused(error, "--read-only")
}

/// Whether a file with this name can be created. Returns false for a device, for a file in a
/// missing folder, and for a name with a colon, which is usually a misspelled kind of disk.
fn may_be_created(path: &Path) -> bool {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let has_colon = cfg!(not(windows)) && path.to_string_lossy().contains(':');
    let is_whole = |path: &Path| path.canonicalize().is_ok_and(|path| !path.starts_with("/dev"));
    !has_colon && is_whole(folder.unwrap_or(Path::new(".")))
}

fn told(error: &OpenError, way: &str) -> String {
    use FileProblem::{MayNotWrite, ReadOnly};
    match error {
        OpenError::File { problem: MayNotWrite | ReadOnly, .. } => format!("{error} ({way})"),
        OpenError::File { path, problem: FileProblem::NotFound } => match meant(path) {
            Some(meant) => format!("{} does not exist: did you mean {meant}?", path.display()),
            None => error.to_string(),
        },
        _ => error.to_string(),
    }
}

/// Returns the disk name that the user may have misspelled as this file name: `mirror:a,b` for
/// `miror:a,b`.
fn meant(path: &Path) -> Option<String> {
    let (kind, rest) = path.to_str()?.split_once(':')?;
    let meant = alike(kind, farblock_backends::KINDS)?;
    Some(format!("{meant}:{rest}"))
}

/// Adds to an error that `--allow-path` may be the cause.
#[cfg(target_os = "linux")]
pub(super) use crate::sandbox::explained;

/// Returns the error unchanged: only Linux restricts paths.
#[cfg(not(target_os = "linux"))]
pub(super) fn explained(problem: String) -> String {
    problem
}

/// Returns the identity of a disk: unique across machines, and stable over restarts. It is a UUID
/// if it is stored with the data, and otherwise a text with the disk's path. A RAM disk gets a new
/// identity at each start, so that a host that reconnects does not mistake the empty disk for the
/// old one. `note` receives messages for the user.
pub(crate) fn identity(spec: &Spec, note: &mut dyn FnMut(String)) -> String {
    slow::named(&name(spec), || identity_now(spec, note))
}

fn identity_now(spec: &Spec, note: &mut dyn FnMut(String)) -> String {
    if let Some(uuid) = kept(spec, note) {
        return uuid.to_string();
    }
    let mut text = format!("{}\n{}", crate::machine::id(), absolute(spec));
    if forgets(spec) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        text.push_str(&format!("\n{} {}", std::process::id(), now.as_nanos()));
    }
    text
}

/// Returns the store for the disk's reservations, or `None` if they cannot survive a power loss. A
/// RAM disk has no store. A disk without a stored identity has none either: after a restart,
/// another disk could be at its path.
fn reservations(spec: &Spec, given: Option<Uuid>) -> Option<Arc<dyn ReservationStore>> {
    let lasting = || match forgets(spec) {
        true => None,
        // Only an identity that is stored with the data parses as a UUID.
        false => {
            given.or_else(|| identity_now(spec, &mut |text| tracing::info!("{text}")).parse().ok())
        }
    };
    reserved::of(file(spec), lasting)
}

/// Returns the single file or device of a disk, or `None` for a set.
fn file(spec: &Spec) -> Option<&Path> {
    match spec {
        Spec::File(path) => Some(path),
        Spec::Delay { inner, .. } | Spec::Limit { inner, .. } | Spec::Fault { inner, .. } => {
            file(inner)
        }
        // A set has several files.
        _ => None,
    }
}

/// Returns the identity stored with the data. Layers that delay, limit or fail I/O do not change
/// the identity.
fn kept(spec: &Spec, note: &mut dyn FnMut(String)) -> Option<Uuid> {
    match spec {
        Spec::File(path) => of_file(path, note),
        Spec::Delay { inner, .. } | Spec::Limit { inner, .. } | Spec::Fault { inner, .. } => {
            kept(inner, note)
        }
        Spec::Stripe { chunk_bytes, children } => {
            let mut text = format!("stripe {chunk_bytes}");
            for child in children {
                text.push_str(&format!("\n{}", kept(child, note)?));
            }
            Some(Uuid::new_v5(&Uuid::NAMESPACE_OID, text.as_bytes()))
        }
        Spec::Concat { children } => {
            let mut text = "concat".to_owned();
            for child in children {
                text.push_str(&format!("\n{}", kept(child, note)?));
            }
            Some(Uuid::new_v5(&Uuid::NAMESPACE_OID, text.as_bytes()))
        }
        // In a concatenation, `SIZE@PATH` has the same identity as `PATH`.
        Spec::Front { inner, .. } => kept(inner, note),
        Spec::Range { offset_bytes, bytes, inner } => {
            let text = format!("range {offset_bytes} {bytes}\n{}", kept(inner, note)?);
            Some(Uuid::new_v5(&Uuid::NAMESPACE_OID, text.as_bytes()))
        }
        Spec::Mirror { legs, .. } => mirrored::identity(legs),
        Spec::Rbd(name) => ceph::identity(name),
        Spec::Remote(url) => Some(mirrored::remote_identity(url)),
        Spec::Mem { .. } | Spec::Null { .. } => None,
    }
}

fn of_file(path: &Path, note: &mut dyn FnMut(String)) -> Option<Uuid> {
    // Check for an empty file first: storing an identity may allocate a block.
    let was_empty = is_empty(path);
    let found = identity::of(path)?;
    tell(path, &found, was_empty, note);
    Some(found.uuid)
}

fn tell(path: &Path, found: &identity::Kept, was_empty: bool, note: &mut dyn FnMut(String)) {
    let (path_shown, uuid) = (path.display(), found.uuid);
    match found.origin {
        identity::Origin::Known => {}
        identity::Origin::Made if was_empty => {}
        identity::Origin::Made => note(format!(
            "{path_shown} now has a stored identity (UUID {uuid}), which survives renaming; hosts \
             that know it by an identity derived from its path see a new disk, this time only"
        )),
        identity::Origin::Copied => note(format!(
            "{path_shown} is a copy or snapshot of another file, or comes from another file \
             system: it has a new identity (UUID {uuid}), and hosts see another disk; to replace \
             the original with it, set the original's NQN and UUID"
        )),
    }
}

/// Whether the file was never written, so that no host can have used it.
fn is_empty(path: &Path) -> bool {
    #[cfg(unix)]
    let blocks = |metadata: std::fs::Metadata| std::os::unix::fs::MetadataExt::blocks(&metadata);
    #[cfg(not(unix))]
    let blocks = |metadata: std::fs::Metadata| metadata.len();
    std::fs::metadata(path).map(blocks).is_ok_and(|blocks| blocks == 0)
}

/// Returns the default NQN of a subsystem with these disks. It derives only from the identity of
/// the first disk, so it stays the same if the user adds disks. If necessary, stores a new identity
/// in that disk. `note` receives messages for the user.
pub(crate) fn default_nqn(specs: &[Spec], note: &mut dyn FnMut(String)) -> String {
    let first = &specs[0];
    let name = slow::named(&name(first), || match kept(first, note) {
        Some(uuid) => format!("farblock\n{uuid}"),
        None => format!("farblock\n{}\n{}", crate::machine::id(), absolute(first)),
    });
    format!("{UUID_NQN_PREFIX}{}", Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes()))
}

/// If one disk is shared as several namespaces, gives each namespace its own identity, because to
/// hosts they are different disks. Identities from the configuration (`given`) do not change.
pub(crate) fn distinguish(subsystems: &mut [Subsystem], given: &dyn Fn(&str, NamespaceId) -> bool) {
    let mut seen = std::collections::BTreeSet::new();
    for subsystem in &*subsystems {
        let nqn = &subsystem.config.nqn;
        let fixed = subsystem.exports.iter().filter(|(nsid, _)| given(nqn, **nsid));
        seen.extend(fixed.map(|(_, export)| export.identity.clone()));
    }
    for subsystem in subsystems {
        let nqn = &subsystem.config.nqn;
        for (nsid, export) in &mut subsystem.exports {
            if !given(nqn, *nsid) && !seen.insert(export.identity.clone()) {
                // With this suffix the identity is no UUID. Then the target derives the UUID for
                // hosts also from the subsystem and the namespace ID.
                export.identity.push_str(" once more");
                // Only one namespace can store its reservations with the disk.
                subsystem.reservations.remove(nsid);
            }
        }
    }
}

fn forgets(spec: &Spec) -> bool {
    matches!(spec, Spec::Mem { .. }) || spec.parts().iter().any(forgets)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> Spec {
        parse(text).unwrap()
    }

    #[test]
    fn the_default_nqn_is_valid_and_depends_on_the_first_disk() {
        let nqn = |specs: &[Spec]| default_nqn(specs, &mut |_| ());
        let name = |text| nqn(&[spec(text)]);
        assert_eq!(name("a.img"), name("./a.img"));
        assert_ne!(name("a.img"), name("b.img"));
        assert_eq!(name("a.img"), nqn(&[spec("a.img"), spec("b.img")]));
        farblock_wire::nqn::validate(&name("mem:1GiB")).unwrap();
    }

    #[test]
    fn a_url_that_is_no_disk_is_refused() {
        let error = parse("http://x").unwrap_err();
        assert!(error.contains("is a URL") && !error.contains("truncate"), "{error}");
        assert!(parse("file:http://x").is_ok() && parse("a:b//c").is_ok());
    }

    #[test]
    fn a_misspelt_disk_kind_gets_a_suggestion() {
        let said = |path: &str| {
            told(&OpenError::File { path: path.into(), problem: FileProblem::NotFound }, "")
        };
        assert!(said("miror:a,b").ends_with("did you mean mirror:a,b?"), "{}", said("miror:a,b"));
        assert!(said("Strip:a,b").ends_with("did you mean stripe:a,b?"), "{}", said("Strip:a,b"));
        for other in ["a.img", "vm:disk", "/srv/a:b"] {
            assert!(!said(other).contains("did you mean"), "{}", said(other));
        }
    }

    /// A missing file may be a disk whose file system is not mounted. A user who then creates a new
    /// disk loses data.
    #[test]
    #[cfg(unix)]
    fn only_a_plain_missing_file_gets_advice_to_create_it() {
        let missing =
            |path: &str| OpenError::File { path: path.into(), problem: FileProblem::NotFound };
        let advised = |text: &str, path: &str| {
            let told = refused_new(&spec(text), &missing(path));
            assert!(told.contains("does not exist"), "{told}");
            told.contains("truncate -s 1G")
        };
        assert!(advised("none.img", "none.img"));
        for text in ["/dev/none", "/dev/../dev/none", "none/a.img", "miror:a,b", "vm:none"] {
            assert!(!advised(text, text), "{text}");
        }
        assert!(!advised("mirror:none.img,b.img", "none.img"));
        assert!(!advised("limit:5/s,none.img", "none.img"));
        assert!(!refused(&missing("none.img"), "").contains("truncate"));
    }

    #[test]
    fn only_disks_with_persistent_data_have_a_stable_identity() {
        let identity = |text: &str| identity(&spec(text), &mut |_| ());
        assert_eq!(identity("a.img"), identity("a.img"));
        assert_eq!(identity("null:1GiB"), identity("null:1GiB"));
        let stripe = "delay:1ms,stripe:64KiB,a.img,mem:1MiB";
        assert_ne!(identity(stripe), identity(stripe));
        for (one, other) in [("a.img", "b.img"), ("nvme+tcp://a/n", "nvme+tcp://b/n")] {
            let with_sizes = identity(&format!("concat:1MiB@{one},1MiB@{other}"));
            assert_eq!(identity(&format!("concat:{one},{other}")), with_sizes);
            assert_ne!(identity(&format!("concat:{other},{one}")), with_sizes);
        }
    }

    /// Each leg contains the mirror's record, so the mirror has the same identity in two files. The
    /// target must not report the second file as a copy.
    #[test]
    fn a_removed_mirror_can_be_added_with_its_legs_in_another_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let opened = |first: &str, last: &str| {
            let text = format!("mirror:{},{}", path(first).display(), path(last).display());
            let opened = open(&spec(&text), None, 512, false, &mut |_| ());
            opened.map_err(|error| error.to_string())
        };
        for leg in ["a.img", "b.img"] {
            std::fs::File::create(path(leg)).unwrap().set_len(2 << 20).unwrap();
        }
        let mirror = opened("a.img", "b.img?create").unwrap();
        if cfg!(target_os = "linux") {
            assert!(mirror.announcement.is_some());
        }
        // Keep the file open: if the announcement outlived the mirror, the file would count as in
        // use by another disk.
        let _open = std::fs::File::open(path("a.img")).unwrap();
        drop(mirror);
        drop(opened("b.img", "a.img").unwrap());
        drop(opened("a.img", "b.img").unwrap());
    }

    #[test]
    fn relative_paths_in_a_disk_name_start_at_the_given_directory() {
        let seen = crate::names::seen_from(
            &spec("limit:9/s,stripe:64KiB,a.img,/b.img"),
            Path::new("/etc"),
        );
        let separator = std::path::MAIN_SEPARATOR;
        assert_eq!(seen.to_string(), format!("limit:9/s,stripe:64KiB,/etc{separator}a.img,/b.img"));
    }
}
