//! The identity of a disk. The identity of a file is in an extended attribute, so it survives
//! renaming and moving, and another file at the same path has another identity.
//!
//! The attribute also contains the file's inode number, and a second attribute contains its
//! [place](place::FilePlace). A copy or a snapshot of the file includes both attributes, but is
//! another disk and gets a new identity. A file from an earlier version of farblock has only the
//! first attribute and keeps its identity. Earlier versions can still read that attribute.

#[cfg(target_os = "linux")]
mod live;
#[cfg(target_os = "linux")]
mod place;

#[cfg(target_os = "linux")]
pub(super) use live::{Announced, Gathering, announce};

use std::fs::File;
use std::path::Path;
use uuid::Uuid;

pub(super) struct Kept {
    pub(super) uuid: Uuid,
    pub(super) origin: Origin,
}

#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux stores identities"))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// The file or device had this identity already.
    Known,
    /// The file had no identity, and got a new one.
    Made,
    /// The file is a copy with the identity of its original, and got a new one.
    Copied,
}

/// Returns the identity of the disk at `path`, or `None` if only its path can identify the disk.
pub(super) fn of(path: &Path) -> Option<Kept> {
    let metadata = std::fs::metadata(path).ok()?;
    if metadata.is_file() {
        let file = File::open(path).ok()?;
        return kept(&file).or_else(|| by_number(&file));
    }
    by_device(&metadata).map(|text| known(&text))
}

/// A stub: only Linux announces files to other targets.
#[cfg(not(target_os = "linux"))]
pub(super) struct Announced;

/// # Errors
/// Never fails.
#[cfg(not(target_os = "linux"))]
pub(super) fn announce(_: &Path, _: Uuid) -> Result<Option<Announced>, String> {
    Ok(None)
}

/// A stub: only Linux compares the identities of files that several targets share.
#[cfg(not(target_os = "linux"))]
pub(super) struct Gathering;

#[cfg(not(target_os = "linux"))]
impl Gathering {
    pub(super) fn begin() -> Gathering {
        Gathering
    }

    /// # Errors
    /// Never fails.
    pub(super) fn check(self) -> Result<(), String> {
        Ok(())
    }
}

fn known(text: &str) -> Kept {
    let uuid = Uuid::new_v5(&Uuid::NAMESPACE_OID, text.as_bytes());
    Kept { uuid, origin: Origin::Known }
}

/// Returns the identity in the file's attribute. Stores a new identity if necessary and possible.
#[cfg(target_os = "linux")]
fn kept(file: &File) -> Option<Kept> {
    use place::FilePlace;
    use rustix::fs::{XattrFlags, fsetxattr};
    use std::os::unix::fs::MetadataExt;
    let number = file.metadata().ok()?.ino();
    let read = || parse(&attribute(file, IDENTITY)?);
    let place = FilePlace::of(file);
    let set_place = || {
        let _ = fsetxattr(file, PLACE, place.text().as_bytes(), XattrFlags::empty());
        let _ = file.sync_all();
    };
    let found = read();
    let recorded = attribute(file, PLACE).map(|text| FilePlace::parse(&text));
    let is_moved = recorded.as_ref().is_some_and(|recorded| recorded.differs(&place));
    if let Some((uuid, of)) = found
        && of == number
        && !is_moved
    {
        if recorded.as_ref() != Some(&place) {
            set_place();
        }
        return Some(Kept { uuid, origin: Origin::Known });
    }
    let mut random = [0; 16];
    getrandom::fill(&mut random).ok()?;
    let uuid = uuid::Builder::from_random_bytes(random).into_uuid();
    // If two processes store an identity at the same time, the first one wins.
    let (flags, origin) = match found {
        None => (XattrFlags::CREATE, Origin::Made),
        Some(_) => (XattrFlags::REPLACE, Origin::Copied),
    };
    let text = format!("{uuid} {number}");
    let is_set = fsetxattr(file, IDENTITY, text.as_bytes(), flags).is_ok();
    if is_moved && !is_set {
        return None; // A read-only snapshot still has its original's identity.
    }
    // Store the place after the identity. Otherwise a copy could have its own place with the
    // original's identity, and the next start would not detect it.
    set_place();
    let (uuid, of) = read()?;
    (of == number).then_some(Kept { uuid, origin })
}

#[cfg(target_os = "linux")]
const IDENTITY: &str = "user.farblock.identity";
#[cfg(target_os = "linux")]
const PLACE: &str = "user.farblock.place";

#[cfg(target_os = "linux")]
fn attribute(file: &File, name: &str) -> Option<String> {
    let mut text = [0; 512];
    let length = rustix::fs::fgetxattr(file, name, &mut text[..]).ok()?;
    std::str::from_utf8(&text[..length]).ok().map(str::to_owned)
}

#[cfg(not(target_os = "linux"))]
fn kept(_: &File) -> Option<Kept> {
    None
}

/// Parses the attribute's value: an identity and an inode number.
#[cfg(target_os = "linux")]
fn parse(text: &str) -> Option<(Uuid, u64)> {
    let (uuid, number) = text.split_once(' ')?;
    Some((uuid.parse().ok()?, number.parse().ok()?))
}

/// Derives an identity for a file without attributes from its inode number, which survives
/// renaming, and its birth time, which distinguishes a later file with the same number.
#[cfg(unix)]
fn by_number(file: &File) -> Option<Kept> {
    use std::os::unix::fs::MetadataExt;
    let metadata = file.metadata().ok()?;
    let born = metadata.created().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    let machine = crate::machine::id();
    let text = format!("{machine}\nfile {} of {}", metadata.ino(), born.as_nanos());
    #[cfg(target_os = "linux")]
    let text = match place::FilePlace::of(file).snapshot() {
        Some(snapshot) => format!("{text} in {snapshot}"),
        None => text,
    };
    Some(known(&text))
}

#[cfg(windows)]
fn by_number(file: &File) -> Option<Kept> {
    let found = winapi_util::file::information(file).ok()?;
    let (machine, volume) = (crate::machine::id(), found.volume_serial_number());
    let born = found.creation_time()?;
    Some(known(&format!("{machine}\nfile {volume}:{} of {born}", found.file_index())))
}

/// Returns the identity of a block device, from its hardware or its device-mapper or MD metadata.
#[cfg(target_os = "linux")]
fn by_device(metadata: &std::fs::Metadata) -> Option<String> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    if !metadata.file_type().is_block_device() {
        return None;
    }
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    let device = format!("/sys/dev/block/{major}:{minor}");
    let read = |path: String| {
        let text = std::fs::read_to_string(path).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let whole = |folder: &str| {
        let names = ["wwid", "device/wwid", "dm/uuid", "md/uuid", "serial"];
        names.iter().find_map(|name| read(format!("{folder}/{name}")))
    };
    match read(format!("{device}/partition")) {
        // The folder of a partition is inside the folder of its disk.
        Some(number) => whole(&format!("{device}/..")).map(|id| format!("{id} part {number}")),
        None => whole(&device),
    }
}

#[cfg(not(target_os = "linux"))]
fn by_device(_: &std::fs::Metadata) -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renamed_file_keeps_its_identity_and_a_new_file_gets_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let uuid = |name: &str| of(&path(name)).map(|kept| kept.uuid);
        std::fs::write(path("a"), "a").unwrap();
        let Some(first) = uuid("a") else { return };
        assert_eq!(uuid("a"), Some(first));
        std::fs::rename(path("a"), path("b")).unwrap();
        assert_eq!(uuid("b"), Some(first), "renaming changed the identity");
        std::fs::write(path("a"), "a").unwrap();
        assert_ne!(uuid("a"), Some(first), "a new file at the old path has the old identity");
        std::fs::write(path("c"), "c").unwrap();
        let third = uuid("c");
        std::fs::rename(path("c"), path("b")).unwrap();
        assert_eq!(uuid("b"), third, "a file that was moved over another changed its identity");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_copy_with_the_attributes_of_its_original_gets_another_identity() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        std::fs::write(&a, "a").unwrap();
        let first = of(&a).unwrap();
        if first.origin != Origin::Made {
            return; // The file system has no extended attributes.
        }
        let copied = std::process::Command::new("cp").arg("-a").args([&a, &b]).status();
        assert!(copied.unwrap().success());
        let second = of(&b).unwrap();
        assert_eq!(second.origin, Origin::Copied);
        assert_ne!(second.uuid, first.uuid);
        assert_eq!(of(&b).unwrap().uuid, second.uuid);
        assert_eq!(of(&a).unwrap().uuid, first.uuid);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_whose_recorded_place_differs_is_a_copy() {
        use rustix::fs::{XattrFlags, removexattr, setxattr};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        std::fs::write(&path, "a").unwrap();
        let first = of(&path).unwrap();
        if first.origin != Origin::Made {
            return; // The file system has no extended attributes.
        }
        removexattr(&path, PLACE).unwrap();
        assert_eq!(of(&path).unwrap().uuid, first.uuid, "a file without a place lost its identity");
        // A snapshot has the inode number of its original, and its attribute records the original's
        // place.
        setxattr(&path, PLACE, b"born=1 subvolume=1 system=1", XattrFlags::REPLACE).unwrap();
        let second = of(&path).unwrap();
        assert_eq!(second.origin, Origin::Copied);
        assert_ne!(second.uuid, first.uuid);
        assert_eq!(of(&path).unwrap().uuid, second.uuid, "the new identity was not stored");
        assert_eq!(of(&path).unwrap().origin, Origin::Known);
    }
}
