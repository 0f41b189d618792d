//! The place of a file: facts that differ between a file and its copies, and survive restarts.
//!
//! The inode number alone does not distinguish a copy. A snapshot of btrfs or ZFS has the inode
//! numbers and birth times of its original. The first file of every new file system often has the
//! same number. Device numbers do not help either, because they change at a restart.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::time::UNIX_EPOCH;

use rustix::fs::{AtFlags, StatxFlags, fstatfs, fstatvfs, statx};

/// The `statx` flag for the subvolume (Linux 6.10).
const STATX_SUBVOL: StatxFlags = StatxFlags::from_bits_retain(0x8000);
/// The types of file systems with snapshots whose `f_fsid` differs for each snapshot and survives
/// restarts. XFS is not among them: its `f_fsid` is the device number.
const BTRFS: i64 = 0x9123_683e;
const BCACHEFS: i64 = 0xca45_1a4e;
const ZFS: i64 = 0x2fc1_2fc1;
/// The type of overlayfs, where a file's birth time changes when the kernel copies the file to the
/// upper layer.
const OVERLAYFS: i64 = 0x794c_7630;

/// The place of a file. A field is `None` if the system does not provide it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct FilePlace {
    /// The birth time in nanoseconds since 1970. A copy by `cp`, `rsync` or `tar` has a later one.
    born: Option<String>,
    /// The number of the file's subvolume in its file system.
    subvolume: Option<String>,
    /// The identifier of the file system or snapshot.
    system: Option<String>,
    /// The UUID of the LVM volume, which differs between a volume and its snapshots.
    volume: Option<String>,
}

impl FilePlace {
    pub(super) fn of(file: &File) -> FilePlace {
        let Ok(metadata) = file.metadata() else { return FilePlace::default() };
        // The kernel's value has 32 bits, but the type of `f_type` depends on the architecture.
        let kind = fstatfs(file).ok().map(|it| i64::from(it.f_type as u32));
        let born = metadata.created().ok().filter(|_| kind != Some(OVERLAYFS));
        let born = born.and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        let has_snapshots = matches!(kind, Some(BTRFS | BCACHEFS | ZFS));
        let system = fstatvfs(file).ok().filter(|_| has_snapshots).map(|it| it.f_fsid);
        FilePlace {
            born: born.map(|born| born.as_nanos().to_string()),
            subvolume: subvolume(file),
            system: system.map(|id| format!("{id:016x}")),
            volume: volume(metadata.dev()),
        }
    }

    /// Whether files at these two places are different files.
    pub(super) fn differs(&self, other: &FilePlace) -> bool {
        let differ = |one: &Option<String>, other: &Option<String>| {
            one.is_some() && other.is_some() && one != other
        };
        // While the original of a cloned file system is mounted, each mount gives the clone a new
        // `f_fsid`. So ignore `system` if both places have a subvolume.
        let has_subvolumes = self.subvolume.is_some() && other.subvolume.is_some();
        differ(&self.born, &other.born)
            || differ(&self.volume, &other.volume)
            || differ(&self.subvolume, &other.subvolume)
            || (!has_subvolumes && differ(&self.system, &other.system))
    }

    /// Returns the identifier that distinguishes a snapshot from its original, even if the file has
    /// no attributes.
    pub(super) fn snapshot(&self) -> Option<&str> {
        self.subvolume.as_deref().or(self.system.as_deref()).or(self.volume.as_deref())
    }

    pub(super) fn parse(text: &str) -> FilePlace {
        let part = |name: &str| {
            let mut words = text.split(' ').filter_map(|word| word.split_once('='));
            words.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
        };
        FilePlace {
            born: part("born"),
            subvolume: part("subvolume"),
            system: part("system"),
            volume: part("volume"),
        }
    }

    pub(super) fn text(&self) -> String {
        let parts = [
            ("born", &self.born),
            ("subvolume", &self.subvolume),
            ("system", &self.system),
            ("volume", &self.volume),
        ];
        let known =
            parts.iter().filter_map(|(name, part)| Some(format!("{name}={}", (*part).as_ref()?)));
        known.collect::<Vec<_>>().join(" ")
    }
}

fn subvolume(file: &File) -> Option<String> {
    let found = statx(file, c"", AtFlags::EMPTY_PATH, STATX_SUBVOL).ok()?;
    let is_known = found.stx_mask & STATX_SUBVOL.bits() != 0;
    is_known.then(|| found.stx_subvol.to_string())
}

/// Returns the UUID of the LVM volume under the file system, looking through an encryption layer.
fn volume(device: u64) -> Option<String> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let mut folder = std::path::PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    loop {
        let uuid = std::fs::read_to_string(folder.join("dm/uuid")).ok()?;
        if uuid.starts_with("LVM-") {
            return Some(uuid.trim().to_owned());
        }
        let mut below = std::fs::read_dir(folder.join("slaves")).ok()?.flatten();
        folder = below.next().filter(|_| below.next().is_none())?.path();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_places_differ_only_by_a_fact_that_both_record() {
        let place = FilePlace::parse;
        let full = place("born=5 subvolume=256 system=ab volume=LVM-1");
        assert_eq!(full.text(), "born=5 subvolume=256 system=ab volume=LVM-1");
        for same in ["", "born=5", "subvolume=256 system=changed", "later=1"] {
            assert!(!full.differs(&place(same)), "{same}");
        }
        for copy in ["born=6", "born=5 subvolume=257 system=ab", "system=cd", "volume=LVM-2"] {
            assert!(full.differs(&place(copy)) && place(copy).differs(&full), "{copy}");
        }
    }
}
