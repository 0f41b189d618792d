//! Detects a file that a configuration names twice: two disks in one file would overwrite each
//! other.

use farblock_backends::Spec;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Finds the first file that two disks name, or that one disk names twice. Returns the later disk
/// and both names of the file. The `bool` of each disk says whether it is read-only: read-only
/// disks may share a file.
pub(super) fn find<'a, T>(
    disks: impl Iterator<Item = (T, &'a Spec, bool)>,
) -> Option<(T, &'a Path, &'a Path)> {
    let mut seen: BTreeMap<NamedFile, (bool, &Path)> = BTreeMap::new();
    for (disk, spec, read_only) in disks {
        for file in whole_files(spec) {
            match seen.insert(NamedFile::of(file), (read_only, file)) {
                Some((other_read_only, other)) if !(read_only && other_read_only) => {
                    return Some((disk, file, other));
                }
                _ => {}
            }
        }
    }
    None
}

/// A file, identified independently of its name.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum NamedFile {
    /// Device and inode number.
    #[cfg(unix)]
    Inode(u64, u64),
    /// The number of a block device, which may have several names in `/dev`.
    #[cfg(unix)]
    Device(u64),
    /// The absolute path, if the file does not exist or the system has no inode numbers.
    Path(PathBuf),
}

impl NamedFile {
    fn of(file: &Path) -> NamedFile {
        #[cfg(unix)]
        if let Ok(found) = file.metadata() {
            use std::os::unix::fs::{FileTypeExt, MetadataExt};
            return match found.file_type().is_block_device() {
                true => NamedFile::Device(found.rdev()),
                false => NamedFile::Inode(found.dev(), found.ino()),
            };
        }
        let name = file.canonicalize().or_else(|_| std::path::absolute(file));
        NamedFile::Path(name.unwrap_or_else(|_| file.to_owned()))
    }
}

/// Returns the files that a disk uses as a whole. Omits files of ranges (`range:`), because several
/// ranges may share a file.
fn whole_files(spec: &Spec) -> Vec<&Path> {
    match spec {
        Spec::File(path) => vec![path],
        Spec::Range { .. } => Vec::new(),
        _ => spec.parts().iter().flat_map(whole_files).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn twice(disks: &[(&str, bool)]) -> Option<(usize, String)> {
        let specs: Vec<_> = disks.iter().map(|(text, _)| Spec::parse(text).expect(text)).collect();
        let all = specs.iter().zip(disks).enumerate();
        let found = find(all.map(|(index, (spec, (_, read_only)))| (index, spec, *read_only)));
        found.map(|(index, file, _)| (index, file.display().to_string()))
    }

    #[cfg(unix)]
    #[test]
    fn a_hard_link_counts_as_the_same_file() {
        let folder = tempfile::tempdir().expect("the folder is created");
        let [one, link, other] = ["one", "link", "other"].map(|name| folder.path().join(name));
        std::fs::write(&one, "").expect("the file is written");
        std::fs::write(&other, "").expect("the file is written");
        std::fs::hard_link(&one, &link).expect("the link is created");
        let [one, link, other] = [one, link, other].map(|path| path.display().to_string());
        assert_eq!(twice(&[(&one, false), (&other, false)]), None);
        assert_eq!(twice(&[(&one, false), (&link, false)]), Some((1, link)));
    }

    #[test]
    fn a_file_named_twice_is_refused_if_a_disk_may_write_to_it() {
        let nowhere = |disks: &[(&str, bool)]| assert_eq!(twice(disks), None, "{disks:?}");
        nowhere(&[("a.img", false), ("b.img", false), ("mem:1MiB", false), ("mem:1MiB", false)]);
        nowhere(&[("a.img", true), ("a.img", true)]);
        nowhere(&[("range:0+1MiB,a.img", false), ("range:1MiB+1MiB,a.img", false)]);
        let second = Some((1, "a.img".to_owned()));
        assert_eq!(twice(&[("a.img", false), ("a.img", true)]), second);
        assert_eq!(twice(&[("stripe:b.img,a.img", false), ("limit:5/s,a.img", false)]), second);
        assert_eq!(twice(&[("stripe:a.img,a.img", false)]), Some((0, "a.img".to_owned())));
    }
}
