//! The loop devices of this machine, and the files and devices below them.
//!
//! The kernel identifies the file of a loop device by its inode number. After a rename or in
//! another mount namespace, the path in sysfs may lead to another file.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use farblock_reactor::loop_device::{self, Backing, ListedLoop, Underlying};
use rustix::fs::OFlags;

/// farblock waits at most this long for the file system of a loop device's file, which may depend
/// on a network or a process.
const ANSWER_TIME: Duration = Duration::from_secs(2);
/// The loop devices whose file systems have not responded so far.
static UNANSWERED: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());
/// farblock reuses a list of all mounts for this time before it reads the mounts again.
const MOUNTS_TIME: Duration = Duration::from_secs(1);
/// The last list of all mounts, and when it was read.
static RECENT_MOUNTS: Mutex<Option<(Instant, Arc<BTreeSet<String>>)>> = Mutex::new(None);

/// A loop device that has a file.
#[derive(Clone, Debug)]
pub(super) struct Loop {
    /// The device's name, such as `loop3`.
    pub(super) name: String,
    pub(super) number: u64,
    /// The file or device below, unless the system hides it.
    pub(super) below: Option<Underlying>,
    /// The path of the file in the mount namespace that created the loop device.
    pub(super) path: PathBuf,
    /// The loop device's first byte in the file, and the byte after its last.
    pub(super) range: (u64, u64),
    pub(super) read_only: bool,
}

impl Loop {
    /// Whether this loop device and another user share bytes of one file.
    pub(super) fn overlaps(&self, other: (u64, u64)) -> bool {
        self.range.0 < other.1 && other.0 < self.range.1
    }
}

/// All loop devices that have a file. `device` is the number of a file system that is known to
/// respond.
pub(super) fn all(device: u64) -> Vec<Loop> {
    let files = loop_device::listed(Path::new("/sys/block"));
    // Most machines have no loop devices. Do not read the mounts then.
    let mounts = if files.is_empty() { Arc::default() } else { recent_mounts() };
    let own = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    files
        .into_iter()
        .filter_map(|listed| {
            let may_ask = !mounts.iter().any(|mounts| may_hang(mounts, &listed.path, device));
            looked_at(listed, may_ask, &|path| may_have(&own, path, device))
        })
        .collect()
}

fn looked_at(listed: ListedLoop, may_ask: bool, may_stat: &dyn Fn(&Path) -> bool) -> Option<Loop> {
    let ListedLoop { sysfs, path, .. } = &listed;
    let name = listed.name.to_str()?.to_owned();
    let word = |file: &str| fs::read_to_string(sysfs.join(file)).map(|it| it.trim().to_owned());
    let number = listed.number?;
    let asked = if may_ask { ask(&name, number) } else { None };
    let bytes = |file: &str| word(file).ok().and_then(|it| it.parse().ok()).unwrap_or(0);
    let (start, limit) = asked.map_or_else(
        || (bytes("loop/offset"), bytes("loop/sizelimit")),
        |backing| (backing.offset_bytes, backing.limit_bytes),
    );
    let end = if limit == 0 { u64::MAX } else { start.saturating_add(limit) };
    // If the driver does not report the file, use the path, unless a stat of it could hang.
    let by_path = || match path.starts_with("/dev") || may_stat(path) {
        true => fs::metadata(path).ok().map(|found| Underlying::of(&found)),
        false => None,
    };
    let below = asked.as_ref().map(Backing::underlying).or_else(by_path);
    let read_only = word("ro").is_ok_and(|text| text == "1");
    Some(Loop { name, number, below, path: listed.path, range: (start, end), read_only })
}

/// The driver's report on the file of a loop device. `None` if this user may not open the device,
/// or if the file system of the file does not respond.
fn ask(name: &str, number: u64) -> Option<Backing> {
    let name = name.to_owned();
    within(ANSWER_TIME, &UNANSWERED, number, move || {
        let device = open_device(&name, number, OFlags::empty()).ok()?;
        loop_device::backing(&device).ok()
    })
}

/// Runs a query about a device on its own thread. Returns `None` after `time`. From then on until
/// the answer comes, further queries about this device return `None` at once, so that few threads
/// wait.
fn within<T: PartialEq + Send + 'static>(
    time: Duration,
    unanswered: &'static Mutex<BTreeSet<u64>>,
    number: u64,
    question: impl FnOnce() -> Option<T> + Send + 'static,
) -> Option<T> {
    let waiting = || unanswered.lock().unwrap_or_else(PoisonError::into_inner);
    if waiting().contains(&number) {
        return None;
    }
    let (tell, answers) = channel();
    let ask = move || {
        let answer = question();
        let mut waiting = waiting();
        let _ = tell.send(answer);
        waiting.remove(&number);
    };
    std::thread::Builder::new().name("loop-device".to_owned()).spawn(ask).ok()?;
    if let Ok(answer) = answers.recv_timeout(time) {
        return answer;
    }
    let mut waiting = waiting();
    // The thread may have answered since the timeout, so look once more.
    let answer = answers.try_recv();
    if answer == Err(TryRecvError::Empty) {
        waiting.insert(number);
    }
    answer.ok().flatten()
}

/// Opens a block device for reading, if its kernel name in `/dev` leads to this device.
pub(super) fn open_device(name: &str, number: u64, flags: OFlags) -> std::io::Result<File> {
    let path = Path::new("/dev").join(name.replace('!', "/"));
    let is_it = |found: &Metadata| Underlying::of(found) == Underlying::Device(number);
    if !fs::metadata(&path).is_ok_and(|found| is_it(&found)) {
        return Err(std::io::ErrorKind::NotFound.into());
    }
    let flags = (flags | OFlags::NONBLOCK).bits();
    let opened = File::options().read(true).custom_flags(flags.cast_signed()).open(&path)?;
    match opened.metadata().is_ok_and(|found| is_it(&found)) {
        true => Ok(opened),
        false => Err(std::io::ErrorKind::NotFound.into()),
    }
}

/// Returns the mounts that [`all_mounts`] has read less than [`MOUNTS_TIME`] ago, or reads them
/// again.
///
/// A target with thousands of files opens them one after the other. Reading the mounts of all
/// processes takes longer than all other checks of a file. An outdated list does no harm: this
/// process still finds every user of a file. At worst, it queries a driver that does not answer.
fn recent_mounts() -> Arc<BTreeSet<String>> {
    let mut recent = RECENT_MOUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    let known = recent.as_ref().filter(|(read, _)| read.elapsed() < MOUNTS_TIME);
    if let Some((_, mounts)) = known {
        return Arc::clone(mounts);
    }
    let mounts = Arc::new(all_mounts());
    *recent = Some((Instant::now(), Arc::clone(&mounts)));
    mounts
}

/// The mounts of every mount namespace with a process, as far as this user may read them.
pub(super) fn all_mounts() -> BTreeSet<String> {
    let mut namespaces = BTreeSet::new();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter(|entry| entry.file_name().to_str().is_some_and(|it| it.parse::<u32>().is_ok()))
        .filter(|entry| {
            // If the name of the namespace is unreadable, include its mounts anyway.
            fs::read_link(entry.path().join("ns/mnt")).map_or(true, |it| namespaces.insert(it))
        })
        .filter_map(|entry| fs::read_to_string(entry.path().join("mountinfo")).ok())
        .collect()
}

/// The mount of a path: its device number in the format of sysfs, and its type.
fn mount_of(mounts: &str, path: &Path) -> Option<(String, String)> {
    // Field 3 is the device, field 5 the mount point. The type follows a hyphen.
    let mount = |line: &'_ str| {
        let mut words = line.split(' ');
        let found = words.nth(2)?.to_owned();
        let at = words.nth(1)?.replace("\\040", " ");
        let kind = line.split(" - ").nth(1)?.split(' ').next()?.to_owned();
        path.starts_with(&at).then_some((at.len(), found, kind))
    };
    // If several mounts share a mount point, the last one is in use.
    let deepest = mounts.lines().filter_map(mount).max_by_key(|(length, ..)| *length);
    deepest.map(|(_, found, kind)| (found, kind))
}

fn number_text(device: u64) -> String {
    format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device))
}

/// Whether a path can be on the file system `device`. Only then is a stat safe: on another mount,
/// such as a FUSE disk whose target is down, it may hang.
fn may_have(mounts: &str, path: &Path, device: u64) -> bool {
    // Subvolumes of these file systems have other device numbers than the mount.
    mount_of(mounts, path).is_some_and(|(found, kind)| {
        found == number_text(device) || ["btrfs", "bcachefs", "overlay"].contains(&kind.as_str())
    })
}

/// Whether a path may be on a file system, other than `device`, that waits for a network or a
/// process.
fn may_hang(mounts: &str, path: &Path, device: u64) -> bool {
    const REMOTE: [&str; 10] =
        ["9p", "afs", "ceph", "cifs", "gfs2", "lustre", "nfs", "nfs4", "ocfs2", "smb3"];
    mount_of(mounts, path).is_some_and(|(found, kind)| {
        (kind.starts_with("fuse") || REMOTE.contains(&kind.as_str()))
            && found != number_text(device)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::makedev;

    const MOUNTS: &str = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
        40 21 0:50 / /run/disk rw - fuse.farblock farblock rw\n\
        41 21 0:60 / /data rw - btrfs /dev/sdb rw\n";

    #[test]
    fn a_path_on_another_mount_is_not_examined() {
        let device = makedev(8, 1);
        assert!(may_have(MOUNTS, Path::new("/srv/disk.img"), device));
        assert!(
            !may_have(MOUNTS, Path::new("/run/disk/disk"), device),
            "a path on a FUSE disk was examined"
        );
        assert!(
            may_have(MOUNTS, Path::new("/data/v/disk.img"), device),
            "a path on a subvolume was not examined"
        );
        assert!(!may_have(MOUNTS, Path::new("/srv/disk.img"), makedev(8, 2)));
    }

    #[test]
    fn a_file_system_that_does_not_answer_is_queried_once() {
        static WAITING: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());
        let asked = |question| within(Duration::from_millis(1), &WAITING, 7, question);
        let (answer, wait) = channel::<()>();
        let question: Box<dyn FnOnce() -> Option<()> + Send> = Box::new(move || wait.recv().ok());
        assert_eq!(asked(question), None);
        assert_eq!(asked(Box::new(|| panic!("the file was checked a second time"))), None);
        answer.send(()).expect("the first check waits");
        while !WAITING.lock().expect("no holder panics").is_empty() {
            std::thread::yield_now();
        }
        let again = within(Duration::MAX, &WAITING, 7, || Some(()));
        assert_eq!(again, Some(()));
    }

    #[test]
    fn the_loop_driver_is_not_queried_about_files_that_may_hang() {
        let device = makedev(8, 1);
        assert!(may_hang(MOUNTS, Path::new("/run/disk/disk"), device));
        assert!(
            !may_hang(MOUNTS, Path::new("/run/disk/disk"), makedev(0, 50)),
            "a file system that responds was avoided"
        );
        assert!(!may_hang(MOUNTS, Path::new("/srv/disk.img"), makedev(8, 2)));
    }
}
