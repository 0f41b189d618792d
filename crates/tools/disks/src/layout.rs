//! Stores the position of each file of a set in an extended attribute of the file. So the data of
//! the set stays in place if a file grows, or if a later command line names the files in another
//! order.
//!
//! Devices, remote disks and Ceph images have no such attribute, so the command line must name
//! their sizes in a concatenation. A copy of a file has the same position, because the attribute
//! does not contain the inode.

use farblock_backends::file::{FileDisk, FileOptions};
use farblock_backends::{FileProblem, OpenError, Spec};
use farblock_block::size::Size;
use std::fmt;
use std::path::Path;

/// The extended attribute with the position.
const ATTRIBUTE: &str = "user.farblock.part";

/// The position of a disk in a set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LayoutPlace {
    /// In a concatenation: the offset of the disk, and the number of bytes that it contributes;
    /// `None` for the last disk, which contributes all its bytes.
    Row { begin: u64, bytes: Option<u64> },
    /// In a stripe set: disk `number` of `count`, counted from 1.
    Turn { chunk_bytes: u64, number: usize, count: usize },
}

impl LayoutPlace {
    fn text(&self) -> String {
        match self {
            LayoutPlace::Row { begin, bytes: Some(bytes) } => format!("concat {begin} {bytes}"),
            LayoutPlace::Row { begin, bytes: None } => format!("concat {begin}"),
            LayoutPlace::Turn { chunk_bytes, number, count } => {
                format!("stripe {chunk_bytes} {number} {count}")
            }
        }
    }

    fn parse(text: &str) -> Option<LayoutPlace> {
        let (kind, numbers) = text.split_once(' ')?;
        let numbers: Vec<u64> =
            numbers.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
        match (kind, &numbers[..]) {
            ("concat", &[begin]) => Some(LayoutPlace::Row { begin, bytes: None }),
            ("concat", &[begin, bytes]) => Some(LayoutPlace::Row { begin, bytes: Some(bytes) }),
            ("stripe", &[chunk_bytes, number, count]) => Some(LayoutPlace::Turn {
                chunk_bytes,
                number: number.try_into().ok()?,
                count: count.try_into().ok()?,
            }),
            _ => None,
        }
    }

    /// Whether data stays in place if this position becomes `next`. A concatenation may get a disk
    /// after its last one.
    fn becomes(&self, next: &LayoutPlace) -> bool {
        let same_begin =
            |begin: &u64| matches!(next, LayoutPlace::Row { begin: now, .. } if now == begin);
        self == next || matches!(self, LayoutPlace::Row { begin, bytes: None } if same_begin(begin))
    }
}

impl fmt::Display for LayoutPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LayoutPlace::Row { begin, bytes: Some(bytes) } => {
                write!(f, "{} at offset {} of a concatenation", Size(*bytes), Size(*begin))
            }
            LayoutPlace::Row { begin, bytes: None } => {
                write!(f, "the last disk of a concatenation, at offset {}", Size(*begin))
            }
            LayoutPlace::Turn { chunk_bytes, number, count } => {
                let chunk = Size(*chunk_bytes);
                write!(f, "disk {number} of {count} in a stripe set with chunks of {chunk}")
            }
        }
    }
}

/// A set whose sizes are known, but that is not open yet.
pub(super) struct Settled {
    /// The set, with the sizes of its files.
    pub(super) spec: Spec,
    parts: Vec<SetPart>,
}

struct SetPart {
    path: std::path::PathBuf,
    place: LayoutPlace,
    /// Whether only the attribute records the number of bytes that the file contributes.
    is_needed: bool,
}

/// Determines the number of bytes that each file contributes to its concatenation.
pub(super) fn settle(spec: &Spec, block_size: u32) -> Result<Settled, OpenError> {
    let mut settled = Settled { spec: spec.clone(), parts: Vec::new() };
    let Settled { spec, parts } = &mut settled;
    settle_in(spec, block_size, parts)?;
    Ok(settled)
}

fn settle_in(spec: &mut Spec, block_size: u32, parts: &mut Vec<SetPart>) -> Result<(), OpenError> {
    match spec {
        Spec::Stripe { chunk_bytes, children } if children.len() > 1 => {
            let (chunk_bytes, count) = (*chunk_bytes, children.len());
            for (at, child) in children.iter().enumerate() {
                let Spec::File(path) = child else { continue };
                let place = LayoutPlace::Turn { chunk_bytes, number: at + 1, count };
                known(path)?.map_or(Ok(()), |known| fits(path, &known, &place))?;
                parts.push(SetPart { path: path.clone(), place, is_needed: false });
            }
            Ok(())
        }
        Spec::Concat { children } if children.len() > 1 => settle_row(children, block_size, parts),
        spec => spec.parts_mut().iter_mut().try_for_each(|it| settle_in(it, block_size, parts)),
    }
}

fn settle_row(
    children: &mut [Spec],
    block_size: u32,
    parts: &mut Vec<SetPart>,
) -> Result<(), OpenError> {
    let last = children.len() - 1;
    // The offset of the next member; `None` after a member of unknown size.
    let mut begin = Some(0_u64);
    for (at, child) in children.iter_mut().enumerate() {
        let given = match child {
            Spec::Front { bytes, .. } | Spec::Mem { bytes } | Spec::Null { bytes } => Some(*bytes),
            _ => None,
        };
        let mut bytes = given;
        if let Spec::File(path) = child.without_front().clone()
            && let Some(begin) = begin
        {
            let known = known(&path)?;
            if given.is_none() && at < last {
                let kept = known.and_then(|known| match known {
                    LayoutPlace::Row { bytes, .. } => bytes,
                    LayoutPlace::Turn { .. } => None,
                });
                bytes = kept.or_else(|| length(&path, block_size));
                if let Some(bytes) = bytes {
                    *child = Spec::Front { bytes, inner: Box::new(child.clone()) };
                }
            }
            let place = LayoutPlace::Row { begin, bytes };
            if let Some(known) = known {
                fits(&path, &known, &place)?;
            }
            tell_unused(&path, bytes, length(&path, block_size));
            let is_needed = at < last && given.is_none();
            parts.push(SetPart { path, place, is_needed });
        }
        begin = begin.zip(bytes).and_then(|(begin, bytes)| begin.checked_add(bytes));
    }
    Ok(())
}

/// Returns the length of a file in bytes, rounded down to whole blocks; `None` if it is not a file.
fn length(path: &Path, block_size: u32) -> Option<u64> {
    let metadata = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    let blocks = metadata.len().checked_div(u64::from(block_size))?;
    Some(blocks * u64::from(block_size)).filter(|bytes| *bytes > 0)
}

fn tell_unused(path: &Path, used: Option<u64>, length: Option<u64>) {
    if let Some((used, length)) = used.zip(length).filter(|(used, length)| used < length) {
        tracing::info!(
            "{} has {}, but the concatenation uses only its first {}",
            path.display(),
            Size(length),
            Size(used)
        );
    }
}

fn fits(path: &Path, known: &LayoutPlace, place: &LayoutPlace) -> Result<(), OpenError> {
    if known.becomes(place) {
        return Ok(());
    }
    let shown = path.display();
    let sentence = format!(
        "{shown} was {known}, but would now be {place}: name the disks of the old set, with their \
         order and sizes; or, if you no longer need the old set's data, run `setfattr -x \
         {ATTRIBUTE} {shown}`"
    );
    Err(misplaced(path, sentence))
}

/// Returns the error for a file whose stored position does not fit. The error's text is `sentence`,
/// which advises to remove the position. But if the file is in use, its user needs the position,
/// so the error says only that the file is in use.
fn misplaced(path: &Path, sentence: String) -> OpenError {
    use FileProblem::{Busy, InUse, Locked};
    match FileDisk::open(path, &FileOptions::new(512)) {
        Err(error @ OpenError::File { problem: Busy | InUse { .. } | Locked { .. }, .. }) => error,
        _ => OpenError::Set(sentence),
    }
}

impl Settled {
    /// Stores the positions of the set's files. The caller has opened and locked the files.
    pub(super) fn keep(&self) -> Result<(), OpenError> {
        self.parts.iter().try_for_each(SetPart::keep)
    }
}

impl SetPart {
    fn keep(&self) -> Result<(), OpenError> {
        let SetPart { path, place, is_needed } = self;
        match known(path)? {
            Some(known) if known == *place => return Ok(()),
            Some(known) => fits(path, &known, place)?,
            None => {}
        }
        match attribute::write(path, &place.text()) {
            Err(error) if *is_needed => {
                let LayoutPlace::Row { bytes: Some(bytes), .. } = place else { return Ok(()) };
                let (path, bytes) = (path.display(), farblock_block::size::ExactSize(*bytes));
                Err(OpenError::Set(format!(
                    "farblock cannot store the size of {path} with the file ({}), and if the file \
                     grew, all data after it would move: name the size, {bytes}@{path}, if it has \
                     not changed since you created the concatenation",
                    crate::error::os(&error)
                )))
            }
            Err(error) => {
                tracing::debug!(%error, "{} cannot store its position in the set", path.display());
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
}

/// Returns the stored position of a file, if it has one.
fn known(path: &Path) -> Result<Option<LayoutPlace>, OpenError> {
    let Some(text) = attribute::read(path) else { return Ok(None) };
    LayoutPlace::parse(&text).map(Some).ok_or_else(|| {
        let shown = path.display();
        misplaced(path, format!(
            "this version of farblock does not know the format of the set position that {shown} \
             stores: use a newer version; or, if you no longer need the data of that set, run \
             `setfattr -x {ATTRIBUTE} {shown}`"
        ))
    })
}

#[cfg(target_os = "linux")]
mod attribute {
    use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};
    use std::fs::File;
    use std::io;
    use std::path::Path;

    /// The size of the buffer for the attribute, in bytes. Every position is shorter.
    const MOST_BYTES: usize = 256;

    fn open(path: &Path) -> io::Result<File> {
        // Do not open devices: they have no attributes, and opening one may have side effects.
        match std::fs::metadata(path)?.is_file() {
            true => File::open(path),
            false => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Returns the text of the attribute. Invalid UTF-8 becomes a text that is no known position.
    pub(super) fn read(path: &Path) -> Option<String> {
        let file = open(path).ok()?;
        let mut value = [0; MOST_BYTES];
        match fgetxattr(&file, super::ATTRIBUTE, &mut value[..]) {
            Ok(length) => Some(String::from_utf8_lossy(&value[..length]).into_owned()),
            Err(rustix::io::Errno::RANGE) => Some(String::new()),
            // The file has no attribute, or this process may not read it. If the set needs the
            // attribute, `SetPart::keep` fails later.
            Err(_) => None,
        }
    }

    pub(super) fn write(path: &Path, text: &str) -> io::Result<()> {
        let file = open(path)?;
        fsetxattr(&file, super::ATTRIBUTE, text.as_bytes(), XattrFlags::empty())?;
        file.sync_all()
    }
}

#[cfg(not(target_os = "linux"))]
mod attribute {
    use std::io;
    use std::path::Path;

    pub(super) fn read(_: &Path) -> Option<String> {
        None
    }

    pub(super) fn write(_: &Path, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::fs::{File, OpenOptions};

    const MIB: u64 = 1 << 20;

    struct Disks(tempfile::TempDir);

    impl Disks {
        /// Files of 1, 2 and 1 MiB; `None` if the file system has no extended attributes.
        fn new() -> Option<Disks> {
            let disks = Disks(tempfile::tempdir().unwrap());
            for (name, mib) in [("a", 1), ("b", 2), ("c", 1)] {
                File::create(disks.path(name)).unwrap().set_len(mib * MIB).unwrap();
            }
            attribute::write(&disks.path("c"), "x").ok()?;
            rustix::fs::removexattr(disks.path("c"), ATTRIBUTE).unwrap();
            Some(disks)
        }

        fn path(&self, name: &str) -> std::path::PathBuf {
            self.0.path().join(name)
        }

        fn lengthen(&self, name: &str, mib: u64) {
            let file = OpenOptions::new().write(true).open(self.path(name)).unwrap();
            file.set_len(mib * MIB).unwrap();
        }

        /// Opens the disk, and returns its size in MiB.
        fn open(&self, text: &str) -> Result<u64, String> {
            let names = ["a", "b", "c"];
            let named = text.split_inclusive([',', ':', '@']).map(|word| {
                let name = word.trim_end_matches(',');
                match names.contains(&name) {
                    true => word.replace(name, self.path(name).to_str().unwrap()),
                    false => word.to_owned(),
                }
            });
            let spec = Spec::parse(&named.collect::<String>()).unwrap();
            let opened =
                super::super::open(&spec, 512, false).map_err(|error| error.to_string())?;
            Ok(opened.geometry().capacity_bytes() / MIB)
        }

        fn refused(&self, text: &str, word: &str) {
            let said = self.open(text).expect_err(text);
            assert!(said.contains(word), "{text}: {said}");
        }
    }

    #[test]
    fn the_advice_to_remove_the_layout_is_omitted_while_files_are_in_use() {
        let Some(disks) = Disks::new() else { return };
        disks.open("stripe:a,c").expect("the new layout is accepted");
        let open = |name| {
            FileDisk::open(disks.path(name), &FileOptions::new(512)).expect("the disk opens")
        };
        let users = [open("a"), open("c")];
        let error = disks.open("stripe:c,a").expect_err("the other order was accepted");
        assert!(error.contains("in use") && !error.contains("setfattr"), "{error}");
        drop(users);
        let error = disks.open("stripe:c,a").expect_err("the other order was accepted");
        assert!(error.contains("setfattr"), "{error}");
    }

    #[test]
    fn a_concatenation_that_would_move_data_is_refused() {
        let Some(disks) = Disks::new() else { return };
        assert_eq!(disks.open("concat:a,b"), Ok(3));
        // A file that has grown does not move the data of other files. Only the last file adds new
        // bytes to the set.
        disks.lengthen("a", 3);
        assert_eq!(disks.open("limit:1000000/s,concat:a,b"), Ok(3));
        disks.lengthen("b", 5);
        assert_eq!(disks.open("concat:a,b"), Ok(6));
        // The set may get another disk, but cannot lose it again.
        assert_eq!(disks.open("concat:a,b,c"), Ok(7));
        disks.lengthen("b", 8);
        assert_eq!(disks.open("concat:a,b,c"), Ok(7));
        disks.refused("concat:a,b", "was 5 MiB at offset 1 MiB of a concatenation");
        disks.refused("concat:b,a", "was 5 MiB at offset 1 MiB of a concatenation, but would");
        disks.refused(
            "concat:mem:2MiB,b,c",
            "would now be 5 MiB at offset 2 MiB of a concatenation",
        );
        disks.refused("concat:2MiB@a,b,c", "was 1 MiB at offset 0 bytes of a concatenation");
        disks.refused("stripe:a,b", "but would now be disk 1 of 2 in a stripe set");
        assert_eq!(disks.open("concat:1MiB@a,b,c"), Ok(7));
        // `open` refuses a file that has shrunk.
        disks.lengthen("b", 4);
        disks.refused("concat:a,b,c", "shorter than its part of the concatenation, 5 MiB");
        disks.lengthen("b", 5);
        assert_eq!(disks.open("concat:a,b,c"), Ok(7));
    }

    #[test]
    fn a_stripe_set_that_would_move_data_is_refused() {
        let Some(disks) = Disks::new() else { return };
        assert_eq!(disks.open("stripe:4KiB,a,b"), Ok(2));
        disks.lengthen("a", 3);
        assert_eq!(disks.open("stripe:4KiB,a,b"), Ok(4));
        disks.refused("stripe:4KiB,b,a", "was disk 2 of 2");
        disks.refused("stripe:8KiB,a,b", "chunks of 4 KiB, but would now be");
        disks.refused("stripe:4KiB,a,b,c", "but would now be disk 1 of 3");
        disks.refused("concat:a,b", "was disk 1 of 2");
        // The command that the message advises removes the stored positions.
        for name in ["a", "b"] {
            rustix::fs::removexattr(disks.path(name), ATTRIBUTE).unwrap();
        }
        assert_eq!(disks.open("concat:a,b"), Ok(5));
    }

    #[test]
    fn a_set_that_fails_to_open_stores_no_positions() {
        let Some(disks) = Disks::new() else { return };
        disks.refused("concat:a,nothing", "does not exist");
        disks.refused("stripe:4KiB,a,nothing", "does not exist");
        assert_eq!(known(&disks.path("a")).unwrap(), None);
        // A set of one disk is the disk itself, and stores no position.
        assert_eq!(disks.open("concat:a"), Ok(1));
        assert_eq!(known(&disks.path("a")).unwrap(), None);
    }

    #[test]
    fn an_unknown_layout_attribute_is_refused() {
        let Some(disks) = Disks::new() else { return };
        for text in ["", "concat", "concat x", "concat 1 2 3", "stripe 1 2", "ring 1", "\u{fffd}"] {
            attribute::write(&disks.path("a"), text).unwrap();
            disks.refused("concat:a,b", "does not know");
        }
        attribute::write(&disks.path("a"), &"1".repeat(1000)).unwrap();
        disks.refused("stripe:a,b", "does not know");
    }

    #[test]
    fn a_stored_position_round_trips() {
        for place in [
            LayoutPlace::Row { begin: 0, bytes: Some(5) },
            LayoutPlace::Row { begin: u64::MAX, bytes: None },
            LayoutPlace::Turn { chunk_bytes: 4096, number: 3, count: 7 },
        ] {
            assert_eq!(LayoutPlace::parse(&place.text()), Some(place));
        }
    }
}
