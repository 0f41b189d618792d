//! Checks a file or a block device of this machine: whether a target can share it, and its users.

use super::finding::{Finding, split};
use farblock_backends::file::has_byte_locks;
use farblock_backends::{FileProblem, OpenError};
use farblock_block::size::Size;
use farblock_frontend::users::{self, Listed, User};
use rustix::fs::{Access, OFlags};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

const DISK: &str = "disk";
/// The smallest block size of a shared disk.
const BLOCK_SIZE: u32 = 512;
const USERS: &str = "users";

/// Returns all findings; `None` if there is no file of this name.
pub(super) fn examine(path: &Path, patience: Duration) -> Option<Vec<Finding>> {
    let (done, outcome) = mpsc::channel();
    let asked = path.to_owned();
    // Use a helper thread, because opening a file on a dead network share may hang.
    std::thread::spawn(move || done.send(look(&asked)));
    outcome.recv_timeout(patience).unwrap_or_else(|_| {
        let what = format!("{} could not be opened within {patience:?}", path.display());
        let advice = "check whether its file server or its device responds (`dmesg`)";
        Some(vec![Finding::problem(DISK, what, advice)])
    })
}

fn look(path: &Path) -> Option<Vec<Finding>> {
    // The search for users compares this path with links in /proc, which are canonical.
    let path = match path.canonicalize() {
        Ok(path) => path,
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        Err(error) => return Some(vec![refused(path, problem(error))]),
    };
    let (kind, size, hold) = match open(&path) {
        Ok(opened) => opened,
        Err(problem) => return Some(vec![refused(&path, problem)]),
    };
    let disk = match size {
        0 => refused(&path, FileProblem::Empty),
        bytes if bytes % u64::from(BLOCK_SIZE) != 0 => {
            refused(&path, FileProblem::PartialBlock { bytes, block_size: BLOCK_SIZE })
        }
        _ if !may_be_written(&path) => Finding::hint(
            DISK,
            format!(
                "{} is a {kind} of {}, but this user may not write to it",
                path.display(),
                Size(size)
            ),
            "change its permissions or its owner, or share it read-only (serve --read-only)",
        ),
        _ => Finding::ok(DISK, format!("{} is a {kind} of {}", path.display(), Size(size))),
    };
    let mut users = match kind {
        FILE => users::of_file(&path),
        _ => users::of_block_device(&path),
    };
    users.retain(|user| user.pid != Some(std::process::id()));
    Some(vec![disk, held(&path, hold, &users)])
}

const FILE: &str = "file";
const DEVICE: &str = "block device";

/// The other user of the disk, as far as an attempt to open and lock the disk reveals it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hold {
    /// No other user holds a lock.
    Free,
    /// A writer has an exclusive lock.
    Writer,
    /// Readers have shared locks.
    Readers,
    /// The system or a program has opened the device exclusively.
    System,
}

/// Opens a file or device, and returns its kind, its size in bytes, and its other user.
fn open(path: &Path) -> Result<(&'static str, u64, Hold), FileProblem> {
    let found = path.metadata().map_err(problem)?.file_type();
    // Check the kind first: opening a pipe would wait until a process opens the other end.
    let kind = match () {
        () if found.is_file() => FILE,
        () if found.is_block_device() => DEVICE,
        () if found.is_dir() => return Err(FileProblem::Directory),
        () => return Err(FileProblem::NoDisk),
    };
    let mut file = File::open(path).map_err(problem)?;
    // A seek also works for devices, whose metadata contain no size.
    let size = file.seek(SeekFrom::End(0)).map_err(problem)?;
    let hold = match locked(&file) {
        Hold::Free if kind == DEVICE && is_claimed(path) => Hold::System,
        Hold::Free if has_byte_locks(&file, true) => Hold::Writer,
        Hold::Free if has_byte_locks(&file, false) => Hold::Readers,
        hold => hold,
    };
    Ok((kind, size, hold))
}

/// Tries each lock, and holds it for a moment. A program that tries to lock the file at this moment
/// fails. The kernel's list of locks is no alternative, because it omits the locks of other
/// containers.
fn locked(file: &File) -> Hold {
    let is_taken = |lock: Result<(), TryLockError>| matches!(lock, Err(TryLockError::WouldBlock));
    if is_taken(file.try_lock_shared()) {
        Hold::Writer
    } else if is_taken(file.try_lock()) {
        Hold::Readers
    } else {
        Hold::Free
    }
}

/// Whether another program, such as a target, has a device open exclusively.
fn is_claimed(device: &Path) -> bool {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlags::EXCL.bits() as i32);
    options.open(device).is_err_and(|error| error.kind() == ErrorKind::ResourceBusy)
}

/// Checks the write permission without opening the disk: if this function opened a device for
/// writing, udev would probe the device after the close.
fn may_be_written(path: &Path) -> bool {
    rustix::fs::access(path, Access::WRITE_OK).is_ok()
}

fn problem(error: io::Error) -> FileProblem {
    match error.kind() {
        ErrorKind::PermissionDenied => FileProblem::MayNotRead,
        _ => FileProblem::Other(error),
    }
}

fn refused(path: &Path, problem: FileProblem) -> Finding {
    let name = path.display().to_string();
    let (what, advice) = match &problem {
        FileProblem::NoDisk => (
            format!("{name} is neither a regular file nor a block device"),
            "name a file or a block device".to_owned(),
        ),
        FileProblem::Other(error) => (
            format!("{name} cannot be opened: {}", crate::error::os(error)),
            "check the kernel's log (`dmesg`)".to_owned(),
        ),
        _ => {
            let sentence = OpenError::File { path: path.to_owned(), problem }.to_string();
            let (what, advice) = split(sentence.trim_start_matches(&name));
            (format!("{name}{what}"), advice)
        }
    };
    Finding::problem(DISK, what, advice)
}

fn held(path: &Path, hold: Hold, users: &[User]) -> Finding {
    let name = path.display();
    let (system, programs): (Vec<_>, Vec<_>) =
        users.iter().cloned().partition(|user| user.pid.is_none());
    match hold {
        // A disk that is mounted or part of an array must not be written to, whatever its locks.
        _ if !system.is_empty() || hold == Hold::System => Finding::problem(
            USERS,
            format!("{name} is in use by the system: {}", Listed(users)),
            "first unmount it, switch its swap off (`swapoff`), or remove it from its RAID, volume \
             group or loop device (`losetup -d`)",
        ),
        Hold::Writer => Finding::problem(
            USERS,
            format!("{name} is locked by a program that writes to it: {}", Listed(&programs)),
            "stop that program, because two writers would corrupt the data; if the program is \
             farblock, use the disk by its URL instead (`farblock status`, `farblock list`)",
        ),
        Hold::Readers => Finding::hint(
            USERS,
            format!("{name} is locked by programs that read it: {}", Listed(&programs)),
            "share it read-only, or stop these programs before a host writes to it",
        ),
        Hold::Free if !programs.is_empty() => Finding::hint(
            USERS,
            format!("{name} is not locked, but {}", Listed(&programs)),
            "stop all programs that write to it before you share it: two writers would corrupt \
             the data",
        ),
        _ => {
            Finding::ok(USERS, format!("no other program uses {name}, as far as this user can see"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    fn is(finding: &Finding, check: &str, verdict: Verdict, parts: &[&str]) {
        assert_eq!((finding.check, finding.verdict), (check, verdict), "{finding:?}");
        for part in parts {
            assert!(finding.what.contains(part), "{part:?} is missing in {finding:?}");
        }
        assert_eq!(finding.advice.is_none(), verdict == Verdict::Ok, "{finding:?}");
    }

    #[test]
    fn a_file_lock_shows_a_writer_readers_or_no_user() {
        let file = tempfile::NamedTempFile::new().expect("the temporary file is created");
        let held = |lock: fn(&File) -> Result<(), TryLockError>| {
            let other = File::open(file.path()).expect("the file opens");
            lock(&other).expect("the file is not locked");
            locked(file.as_file())
        };
        assert_eq!(held(File::try_lock), Hold::Writer);
        assert_eq!(held(File::try_lock_shared), Hold::Readers);
        file.as_file().unlock().expect("the lock is released");
        assert_eq!(held(|_| Ok(())), Hold::Free);
    }

    #[test]
    fn doctor_recognizes_the_lock_of_qemu_on_an_image() {
        let folder = tempfile::tempdir().expect("a temporary folder is created");
        let image = folder.path().join("disk.img");
        std::fs::write(&image, [0; 4096]).expect("the file is written");
        let mut machine = Command::new("qemu-io")
            .args(["-f", "raw"])
            .arg(&image)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("no qemu-io: interop/packages.sh installs it");
        // The tool's answer shows that the tool has opened the image.
        let mut input = machine.stdin.take().expect("the stream is a pipe");
        input.write_all(b"read 0 512\n").expect("the program reads commands");
        let mut lines =
            BufReader::new(machine.stdout.take().expect("the stream is a pipe")).lines();
        assert!(lines.any(|line| line.expect("the line is UTF-8").contains("read 512/512")));
        assert_eq!(open(&image).expect("the file opens").2, Hold::Writer);
        drop(input);
        machine.wait().expect("the process exits");
        assert_eq!(open(&image).expect("the file opens").2, Hold::Free);
    }

    #[test]
    fn each_kind_of_disk_user_has_a_verdict_and_a_message() {
        let disk = Path::new("/dev/sdx");
        let mount = User::kernel("/dev/sdx1 is mounted at /data".to_owned());
        let what = "has /dev/sdx open".to_owned();
        let fio = User { pid: Some(7), command: "fio".to_owned(), ..User::kernel(what) };
        for (hold, users, verdict, parts) in [
            (Hold::Free, vec![], Verdict::Ok, ["no other program uses /dev/sdx", ""]),
            (Hold::Free, vec![fio.clone()], Verdict::Hint, ["not locked", "fio (process 7) has"]),
            (Hold::Readers, vec![fio.clone()], Verdict::Hint, ["read it", "fio (process 7)"]),
            (Hold::Writer, vec![fio.clone()], Verdict::Problem, ["writes", "fio (process 7)"]),
            (Hold::Writer, vec![], Verdict::Problem, ["writes", "this user cannot see"]),
            (Hold::System, vec![], Verdict::Problem, ["the system", "this user cannot see"]),
            (Hold::System, vec![mount.clone()], Verdict::Problem, ["system", "mounted at /data"]),
            // A loop device does not lock its file.
            (Hold::Free, vec![fio, mount], Verdict::Problem, ["system", "mounted at /data"]),
        ] {
            is(&held(disk, hold, &users), USERS, verdict, &parts);
        }
    }
}
