//! Where reservations are kept, so that they persist through a power loss: with a file, in an
//! extended attribute beside its identity, so that they go where the data go and whoever was fenced
//! stays so, also where the disk is served next; what carries no attribute has them in the target's
//! own folder, if it has one.
//!
//! The attribute names the file's inode: a copy that takes it along is another disk, which nobody
//! has reserved. One attribute is changed at once, as the file's metadata are.

mod folder;

pub(super) use folder::{keep_in, wanted};

use farblock_target::ReservationStore;
use std::path::Path;
use std::sync::Arc;
use uuid::Uuid;

/// Where the reservations of a disk are kept, if they can be: with the file at `file`, if it is
/// one, or in the target's folder, if the disk has an identity that outlasts restarts.
pub(super) fn of(
    file: Option<&Path>,
    identity: impl FnOnce() -> Option<Uuid>,
) -> Option<Arc<dyn ReservationStore>> {
    let in_folder = || folder::is_there().then(identity)?.and_then(folder::of);
    file.and_then(with).or_else(in_folder)
}

/// Where the reservations of the file at `path` are kept, if they can be.
#[cfg(target_os = "linux")]
fn with(path: &Path) -> Option<Arc<dyn ReservationStore>> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    let attribute = attribute::Attribute::new(std::fs::File::open(path).ok()?, metadata.ino());
    // Some file systems keep no attributes, and some files cannot be changed.
    attribute.is_usable().then(|| Arc::new(attribute) as Arc<dyn ReservationStore>)
}

#[cfg(not(target_os = "linux"))]
fn with(_: &Path) -> Option<Arc<dyn ReservationStore>> {
    None
}

#[cfg(target_os = "linux")]
mod attribute {
    use farblock_target::ReservationStore;
    use rustix::fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr};
    use rustix::io::Errno;
    use std::fs::File;
    use std::io;

    const NAME: &str = "user.farblock.reservations";
    /// More than any state needs, in bytes.
    const MOST_BYTES: usize = 16 << 10;

    /// See the file's text.
    pub(super) struct Attribute {
        file: File,
        inode: u64,
    }

    impl Attribute {
        pub(super) fn new(file: File, inode: u64) -> Self {
            Self { file, inode }
        }

        fn read(&self) -> Result<Option<String>, io::Error> {
            let mut value = vec![0; MOST_BYTES];
            let length = match fgetxattr(&self.file, NAME, &mut value[..]) {
                Err(Errno::NODATA) => return Ok(None),
                length => length?,
            };
            value.truncate(length);
            String::from_utf8(value).map(Some).map_err(io::Error::other)
        }

        fn write(&self, value: &str) -> io::Result<()> {
            Ok(fsetxattr(&self.file, NAME, value.as_bytes(), XattrFlags::empty())?)
        }

        fn remove(&self) -> io::Result<()> {
            match fremovexattr(&self.file, NAME) {
                Err(Errno::NODATA) => Ok(()),
                done => Ok(done?),
            }
        }

        /// Whether there is anything, or something could be written. What is there is heeded even
        /// if it cannot be changed or read: the target says what is wrong with it.
        pub(super) fn is_usable(&self) -> bool {
            match self.read() {
                Ok(None) => self.write("").and_then(|()| self.remove()).is_ok(),
                Ok(Some(_)) => true,
                Err(error) => error.raw_os_error() != Some(Errno::OPNOTSUPP.raw_os_error()),
            }
        }
    }

    fn damaged() -> io::Error {
        io::Error::other("it is damaged")
    }

    impl ReservationStore for Attribute {
        fn load(&self) -> io::Result<String> {
            // Empty: the power went while it was tried whether it can be written.
            let Some(value) = self.read()?.filter(|value| !value.is_empty()) else {
                return Ok(String::new());
            };
            let (inode, text) = value.split_once('\n').ok_or_else(damaged)?;
            let is_ours = inode.parse::<u64>().map_err(|_| damaged())? == self.inode;
            Ok(if is_ours { text.to_owned() } else { String::new() })
        }

        fn save(&self, text: &str) -> io::Result<()> {
            match text {
                "" => self.remove()?,
                text => self.write(&format!("{}\n{text}", self.inode))?,
            }
            self.file.sync_all()
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_goes_with_the_file_and_not_with_a_copy() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("a"), "a").unwrap();
        // The file system keeps no attributes.
        let Some(store) = with(&path("a")) else { return };
        assert_eq!(store.load().unwrap(), "");
        store.save("something\n").unwrap();
        std::fs::rename(path("a"), path("b")).unwrap();
        let load = |name: &str| with(&path(name)).unwrap().load().unwrap();
        assert_eq!(load("b"), "something\n");
        let copy = std::process::Command::new("cp").arg("-a").args([path("b"), path("c")]).status();
        assert!(copy.unwrap().success());
        assert_eq!((load("c").as_str(), load("b").as_str()), ("", "something\n"));
        with(&path("b")).unwrap().save("").unwrap();
        assert_eq!(load("b"), "");
        // As much as there can be.
        store.save(&"x".repeat(3700)).unwrap();
        assert_eq!(load("b").len(), 3700);
    }

    /// Puts `value` where reservations are kept. False if the file system keeps no attributes.
    fn put(path: &Path, value: &[u8]) -> bool {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(path, "user.farblock.reservations", value, flags).is_ok()
    }

    #[test]
    fn what_is_damaged_is_not_taken_for_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "a").unwrap();
        let load = || with(&path).expect("there is something").load();
        for damaged in [&b"12x\nhosts\n"[..], b"hosts", b"\n", &[0xff; 9], &[b'1'; 4000]] {
            if !put(&path, damaged) {
                return;
            }
            assert!(load().is_err(), "{damaged:?}");
        }
        // Left by a power loss while it was tried out.
        assert!(put(&path, b""));
        assert_eq!(load().unwrap(), "");
    }
}
