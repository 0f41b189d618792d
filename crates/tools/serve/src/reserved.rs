//! Stores reservations, so that they survive a power loss. The reservations of a file are in an
//! extended attribute, which moves with the file. So a fenced host stays fenced, whichever machine
//! serves the file. The reservations of other disks are in the target's state folder, if it has
//! one.
//!
//! The attribute contains the file's inode number, so a copy of the file has no reservations. The
//! file system updates an attribute atomically.

mod folder;

pub(super) use folder::{keep_in, wanted};

use farblock_target::ReservationStore;
use std::path::Path;
use std::sync::Arc;
use uuid::Uuid;

/// Returns the store for a disk's reservations: the attribute of `file`, or else the state folder
/// if the disk has an identity that survives restarts. Returns `None` if neither can store them.
pub(super) fn of(
    file: Option<&Path>,
    identity: impl FnOnce() -> Option<Uuid>,
) -> Option<Arc<dyn ReservationStore>> {
    let in_folder = || folder::is_there().then(identity)?.and_then(folder::of);
    file.and_then(with).or_else(in_folder)
}

/// Returns the store in the file at `path`, or `None` if the file's attributes cannot be written.
#[cfg(target_os = "linux")]
fn with(path: &Path) -> Option<Arc<dyn ReservationStore>> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    let attribute = attribute::Attribute::new(std::fs::File::open(path).ok()?, metadata.ino());
    // A file system may lack extended attributes, and a file may be read-only.
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
    /// The size limit of the attribute in bytes.
    const MOST_BYTES: usize = 16 << 10;

    /// The extended attribute of a file that stores its reservations.
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

        /// Whether the file has reservations or can store them. Returns true if an existing
        /// attribute cannot be read: the target then reports the error.
        pub(super) fn is_usable(&self) -> bool {
            match self.read() {
                Ok(None) => self.write("").and_then(|()| self.remove()).is_ok(),
                Ok(Some(_)) => true,
                Err(error) => error.raw_os_error() != Some(Errno::OPNOTSUPP.raw_os_error()),
            }
        }
    }

    fn damaged() -> io::Error {
        io::Error::other("the attribute user.farblock.reservations is damaged")
    }

    impl ReservationStore for Attribute {
        fn load(&self) -> io::Result<String> {
            // `is_usable` writes an empty attribute as a test, which remains if power fails then.
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
    fn a_renamed_file_keeps_its_reservations_and_a_copy_has_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("a"), "a").unwrap();
        // Skip the test if the file system has no extended attributes.
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
        // The size of the largest possible reservation state.
        store.save(&"x".repeat(3700)).unwrap();
        assert_eq!(load("b").len(), 3700);
    }

    /// Writes the attribute directly. Returns false if the file system has no extended attributes.
    fn put(path: &Path, value: &[u8]) -> bool {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(path, "user.farblock.reservations", value, flags).is_ok()
    }

    #[test]
    fn a_damaged_reservation_attribute_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "a").unwrap();
        let load = || with(&path).expect("the file has a store").load();
        for damaged in [&b"12x\nhosts\n"[..], b"hosts", b"\n", &[0xff; 9], &[b'1'; 4000]] {
            if !put(&path, damaged) {
                return;
            }
            assert!(load().is_err(), "{damaged:?}");
        }
        // A power loss during the write test leaves an empty attribute.
        assert!(put(&path, b""));
        assert_eq!(load().unwrap(), "");
    }
}
