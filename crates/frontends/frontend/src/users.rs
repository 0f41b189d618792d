//! Finds the users of a file or a block device in `/proc` and `/sys`. A server checks for users
//! before it removes a disk.

pub mod loops;

use farblock_reactor::loop_device::{Underlying, device_number};
use loops::LoopDevice;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A user of a disk. Displays as part of a sentence: `fio (process 123) has /dev/loop0 open`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    /// The process ID. `None` if the kernel is the user, through a mount, swap or another device.
    pub pid: Option<u32>,
    /// The name of the process's command. Empty if the kernel is the user.
    pub command: String,
    /// The use of the disk, as the end of a sentence: `has /dev/loop0 open`.
    pub what: String,
    /// The loop device, if the user is a loop device.
    pub device: Option<PathBuf>,
}

impl User {
    /// A use of the disk by the kernel. `what` is a complete sentence.
    #[must_use]
    pub fn kernel(what: String) -> User {
        User { pid: None, command: String::new(), what, device: None }
    }

    /// A use by the loop device `above` on the file or device `below`.
    #[must_use]
    pub fn loop_device(above: &LoopDevice, below: &Path) -> User {
        let what = format!("{} is a loop device on {}", above.device.display(), below.display());
        User { device: Some(above.device.clone()), ..User::kernel(what) }
    }

    fn process(pid: u32, process: &Path, what: String) -> User {
        let command = fs::read_to_string(process.join("comm")).unwrap_or_default();
        User { pid: Some(pid), command: command.trim_end().into(), what, device: None }
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "{} (process {pid}) {}", self.command, self.what),
            None => f.write_str(&self.what),
        }
    }
}

/// Displays users as a list in one line of text.
pub struct Listed<'a>(pub &'a [User]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("a process that this user cannot see uses the disk");
        }
        for (index, user) in self.0.iter().enumerate() {
            write!(f, "{}{user}", if index == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

/// Finds processes that use a file at or below one of these paths: as an open or mapped file, as
/// their program, or as their root or working directory. Reads only links in `/proc`, so it never
/// waits for a file system that does not answer.
pub fn processes(paths: &[PathBuf]) -> Vec<User> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let process = entry.path();
        if let Some(what) = use_of(&process, paths)
            && !loops::only_asks(pid)
        {
            found.push(User::process(pid, &process, what));
        }
    }
    found
}

/// Describes how a process uses one of the paths. `None` if it uses none of them.
fn use_of(process: &Path, paths: &[PathBuf]) -> Option<String> {
    let below = |file: &Path| paths.iter().any(|path| file.starts_with(path));
    for entry in fs::read_dir(process.join("fd")).into_iter().flatten().flatten() {
        if let Some(file) = fs::read_link(entry.path()).ok().filter(|file| below(file)) {
            return Some(format!("has {} open", file.display()));
        }
    }
    for (link, verb) in [
        ("cwd", "has its working directory in"),
        ("root", "has its root directory at"),
        ("exe", "runs"),
    ] {
        if let Some(file) = fs::read_link(process.join(link)).ok().filter(|file| below(file)) {
            return Some(format!("{verb} {}", file.display()));
        }
    }
    let maps = fs::read(process.join("maps")).unwrap_or_default();
    // The path is the sixth field of a line. No other field contains a slash.
    let mapped = maps.split(|&byte| byte == b'\n').find_map(|line| {
        let path = &line[line.iter().position(|&byte| byte == b'/')?..];
        Some(Path::new(OsStr::from_bytes(path))).filter(|path| below(path))
    });
    mapped.map(|file| format!("has {} mapped", file.display()))
}

/// A line of `/proc/self/mountinfo`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mount {
    /// The device number of the file system: `major:minor`.
    pub device: String,
    /// The mountpoint.
    pub mountpoint: PathBuf,
    /// The file system type.
    pub kind: String,
    /// The mounted device or name.
    pub source: PathBuf,
}

/// All mounts of this mount namespace, in the kernel's order.
pub fn mounts() -> Vec<Mount> {
    let text = fs::read("/proc/self/mountinfo").unwrap_or_default();
    text.split(|&byte| byte == b'\n').filter_map(parse_mount).collect()
}

/// Finds other mount namespaces in which this file system (`major:minor`) is mounted. Returns one
/// process for each of these namespaces.
pub fn elsewhere(device: &str) -> Vec<User> {
    let user = |(pid, mount): (u32, Mount)| {
        let at = mount.mountpoint.display();
        let what = format!("has the disk mounted at {at} in another mount namespace");
        User::process(pid, &Path::new("/proc").join(pid.to_string()), what)
    };
    mounts_elsewhere(device).into_iter().map(user).collect()
}

/// Finds other mount namespaces in which this file system (`major:minor`) is mounted. Returns the
/// ID of one process and the first mount for each of these namespaces.
#[must_use]
pub fn mounts_elsewhere(device: &str) -> Vec<(u32, Mount)> {
    let own = fs::read_link("/proc/self/ns/mnt").unwrap_or_default();
    let (mut seen, mut found) = (vec![own], Vec::new());
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let process = entry.path();
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(namespace) = fs::read_link(process.join("ns/mnt")) else { continue };
        if seen.contains(&namespace) {
            continue;
        }
        let table = fs::read(process.join("mountinfo")).unwrap_or_default();
        let mut mounts = table.split(|&byte| byte == b'\n').filter_map(parse_mount);
        if let Some(mount) = mounts.find(|mount| mount.device == device) {
            found.push((pid, mount));
        }
        seen.push(namespace);
    }
    found
}

fn parse_mount(line: &[u8]) -> Option<Mount> {
    let mut words = line.split(|&byte| byte == b' ');
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let device = text(words.nth(2)?);
    let mountpoint = unescape(words.nth(1)?);
    let mut rest = words.skip_while(|word| *word != b"-").skip(1);
    Some(Mount { device, mountpoint, kind: text(rest.next()?), source: unescape(rest.next()?) })
}

/// Decodes the octal escapes, such as `\040` for a space, in the kernel's tables.
fn unescape(word: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, tail)) = rest.split_first() {
        let digits = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if first == b'\\' => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// Finds the users of a block device and its partitions: mounts in any mount namespace, swap,
/// devices on top of it (also loop devices), and processes that have it open.
#[must_use]
pub fn of_block_device(path: &Path) -> Vec<User> {
    let Some(name) = path.file_name() else { return Vec::new() };
    let folders = with_partitions(&Path::new(BLOCK_DEVICES).join(name));
    let swaps = fs::read(SWAPS).unwrap_or_default();
    let mounts = mounts();
    let mut users = system_users(&folders, &mounts, &swaps);
    let loops = loops::all();
    for (number, device) in folders.iter().filter_map(|it| Some((number_of(it), device_of(it)?))) {
        let above = |it: &&LoopDevice| {
            device_number(&number).is_some_and(|number| it.is_on_device(number, &device))
        };
        users.extend(loops.iter().filter(above).map(|it| User::loop_device(it, &device)));
        // If the device is mounted in this mount namespace, do not search other mount namespaces:
        // most of them are copies with the same mounts.
        if !number.is_empty() && !mounts.iter().any(|mount| mount.device == number) {
            users.extend(elsewhere(&number));
        }
    }
    users.extend(processes(&folders.iter().filter_map(|it| device_of(it)).collect::<Vec<_>>()));
    users
}

/// Finds the swap areas on a block device, its partitions and devices on top of these (also loop
/// devices), and the swap files in their file systems. Returns the names in the kernel's table.
#[must_use]
pub fn swaps_on(path: &Path) -> Vec<PathBuf> {
    let Some(name) = path.file_name() else { return Vec::new() };
    let (folder, swaps) =
        (Path::new(BLOCK_DEVICES).join(name), fs::read(SWAPS).unwrap_or_default());
    let found = swaps_among(&stack(&folder, &[]), &swaps);
    // Query the loop driver, which may take long, only if some swap area is not found yet.
    if swap_names(&swaps).count() == found.len() {
        return found;
    }
    swaps_among(&stack(&folder, &loops::all()), &swaps)
}

/// The kernel's table of swap areas; `poll` reports changes.
pub const SWAPS: &str = "/proc/swaps";

fn swaps_among(folders: &[PathBuf], swaps: &[u8]) -> Vec<PathBuf> {
    let devices: Vec<PathBuf> = folders.iter().filter_map(|folder| device_of(folder)).collect();
    let numbers: Vec<String> = folders.iter().map(|folder| number_of(folder)).collect();
    let lies_there = |path: &PathBuf| {
        let number = fs::metadata(path).ok().map(|found| {
            let is_device = found.file_type().is_block_device();
            let number = if is_device { found.rdev() } else { found.dev() };
            format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number))
        });
        devices.contains(path) || number.is_some_and(|number| numbers.contains(&number))
    };
    swap_names(swaps).filter(lies_there).collect()
}

/// The sysfs folders of a device, its partitions, and all devices on top of these. Includes each of
/// `loops` that is on one of these devices, or on a file in the device's file system.
fn stack(folder: &Path, loops: &[LoopDevice]) -> Vec<PathBuf> {
    let mut found = with_partitions(folder);
    let mut at = 0;
    while at < found.len() && found.len() < MAX_STACK {
        let holders = fs::read_dir(found[at].join("holders")).into_iter().flatten().flatten();
        let holders = holders.map(|holder| holder.file_name());
        let number = device_number(&number_of(&found[at]));
        let is_on_it = |it: &&LoopDevice| match it.backing {
            Some(Underlying::Device(below) | Underlying::File { device: below, .. }) => {
                number == Some(below)
            }
            None => false,
        };
        let loops = loops.iter().filter(is_on_it).filter_map(|it| it.device.file_name());
        let names = holders.chain(loops.map(ToOwned::to_owned));
        let above = names.map(|name| folder.with_file_name(name));
        for holder in above.flat_map(|above| with_partitions(&above)).collect::<Vec<_>>() {
            if !found.contains(&holder) {
                found.push(holder);
            }
        }
        at += 1;
    }
    found
}

/// The maximum number of devices that [`stack`] returns.
const MAX_STACK: usize = 1024;

/// Finds the users of a regular file: swap, loop devices, and processes that have the file open.
/// The path must be absolute and contain no symbolic links.
#[must_use]
pub fn of_file(path: &Path) -> Vec<User> {
    let mut users = Vec::new();
    if is_swap(&fs::read(SWAPS).unwrap_or_default(), path) {
        users.push(User::kernel(format!("{} is a swap area", path.display())));
    }
    users.extend(on_file(&loops::all(), path));
    users.extend(processes(&[path.to_path_buf()]));
    users
}

/// The folder in sysfs with an entry for each block device and partition.
const BLOCK_DEVICES: &str = "/sys/class/block";

/// The sysfs folders of a device and its partitions.
fn with_partitions(folder: &Path) -> Vec<PathBuf> {
    let below = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let parts = below.filter(|part| part.join("partition").exists());
    std::iter::once(folder.to_path_buf()).chain(parts).collect()
}

fn device_of(folder: &Path) -> Option<PathBuf> {
    Some(Path::new("/dev").join(folder.file_name()?))
}

/// The device number, `major:minor`, of the device with this sysfs folder.
fn number_of(folder: &Path) -> String {
    fs::read_to_string(folder.join("dev")).unwrap_or_default().trim_end().to_owned()
}

/// The kernel's uses of the devices with these sysfs folders.
fn system_users(folders: &[PathBuf], mounts: &[Mount], swaps: &[u8]) -> Vec<User> {
    let mut users = Vec::new();
    for (folder, device) in folders.iter().filter_map(|it| Some((it, device_of(it)?))) {
        let number = number_of(folder);
        for mount in mounts {
            // Some file systems (btrfs) report their own device number, so compare the source as
            // well.
            if mount.device == number || mount.source == device {
                let at = mount.mountpoint.display();
                users.push(User::kernel(format!("{} is mounted at {at}", device.display())));
            }
        }
        for holder in fs::read_dir(folder.join("holders")).into_iter().flatten().flatten() {
            let name = holder.file_name();
            let what = format!("{} is a part of /dev/{}", device.display(), name.display());
            users.push(User::kernel(what));
        }
        if is_swap(swaps, &device) {
            users.push(User::kernel(format!("{} is a swap area", device.display())));
        }
    }
    users
}

/// True if the kernel's table of swap areas has this path in its first column.
fn is_swap(swaps: &[u8], path: &Path) -> bool {
    swap_names(swaps).any(|name| name == path)
}

fn swap_names(swaps: &[u8]) -> impl Iterator<Item = PathBuf> {
    let lines = swaps.split(|&byte| byte == b'\n').skip(1);
    let names = lines.filter_map(|line| line.split(u8::is_ascii_whitespace).next());
    names.filter(|name| !name.is_empty()).map(unescape)
}

fn on_file(loops: &[LoopDevice], path: &Path) -> Vec<User> {
    let found = fs::metadata(path).ok();
    let file = found.map(|found| Underlying::File { device: found.dev(), inode: found.ino() });
    let is_on = |it: &&LoopDevice| match file {
        Some(file) => it.is_on_file(file, path),
        None => it.path == path,
    };
    loops.iter().filter(is_on).map(|it| User::loop_device(it, path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_table_lines_are_parsed() {
        let line = b"36 35 7:3 / /mnt/a\\040b rw,noatime shared:1 - ext4 /dev/loop3 rw";
        let mount = parse_mount(line).expect("a mount");
        assert_eq!(mount.device, "7:3");
        assert_eq!(mount.mountpoint, Path::new("/mnt/a b"));
        assert_eq!((mount.kind.as_str(), mount.source.as_path()), ("ext4", "/dev/loop3".as_ref()));
        assert_eq!(parse_mount(b""), None);
        assert!(mounts().iter().any(|mount| mount.mountpoint == Path::new("/")));
    }

    #[test]
    fn invalid_escapes_stay_unchanged() {
        assert_eq!(unescape(b"a\\b\\04"), Path::new("a\\b\\04"));
    }

    /// Makes the sysfs files of a disk with a partition, and of a loop device.
    fn system() -> tempfile::TempDir {
        let system = tempfile::tempdir().expect("a folder");
        for (path, text) in [
            ("sdx/dev", "8:16\n"),
            ("sdx/sdx1/dev", "8:17\n"),
            ("sdx/sdx1/partition", "1\n"),
            ("sdx/queue/nr_requests", "64\n"),
            ("loop7/loop/backing_file", "/srv/a disk\n"),
        ] {
            let path = system.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        system
    }

    #[test]
    fn system_users_of_a_device_and_its_partitions_are_found() {
        let system = system();
        let folders = with_partitions(&system.path().join("sdx"));
        assert_eq!(folders, [system.path().join("sdx"), system.path().join("sdx/sdx1")]);
        let users = |mounts: &[Mount], swaps: &str| {
            let users = system_users(&folders, mounts, swaps.as_bytes());
            users.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let mount = |line: &[u8]| parse_mount(line).expect("a mount");
        let root = mount(b"36 35 8:32 / / rw - ext4 /dev/sdy rw");
        assert_eq!(users(&[root], "Filename Type\n/dev/sdx2 partition 1 0 -2\n"), [""; 0]);
        let data = mount(b"36 35 8:17 / /data rw - ext4 /dev/sdx1 rw");
        assert_eq!(users(&[data], ""), ["/dev/sdx1 is mounted at /data"]);
        let btrfs = mount(b"36 35 0:31 / /data rw - btrfs /dev/sdx rw");
        assert_eq!(users(&[btrfs], ""), ["/dev/sdx is mounted at /data"]);
        let swaps = "Filename Type\n/dev/sdx1 partition 1 0 -2\n";
        assert_eq!(users(&[], swaps), ["/dev/sdx1 is a swap area"]);
        fs::create_dir_all(system.path().join("sdx/holders/md0")).expect("a folder");
        assert_eq!(users(&[], ""), ["/dev/sdx is a part of /dev/md0"]);
    }

    #[test]
    fn swap_is_found_on_a_device_and_on_devices_above_it() {
        let system = system();
        let swaps = b"Filename Type\n/dev/sdx1 partition 1 0 -2\n/dev/sdy partition 1 0 -3\n";
        let on =
            |name: &str, swaps: &[u8]| swaps_among(&stack(&system.path().join(name), &[]), swaps);
        assert_eq!(on("sdx", swaps), [Path::new("/dev/sdx1")]);
        assert_eq!(on("sdx", b"Filename Type\n"), [""; 0].map(PathBuf::from));
        fs::create_dir_all(system.path().join("sdx/sdx1/holders/dm-3")).expect("a folder");
        fs::create_dir_all(system.path().join("dm-3/holders/dm-3")).expect("a folder");
        let mapped = b"Filename Type\n/dev/dm-3 partition 1 0 -2\n";
        assert_eq!(on("sdx", mapped), [Path::new("/dev/dm-3")]);
    }

    #[test]
    fn swap_is_found_on_loop_devices_above_a_device() {
        let system = system();
        for (name, number) in [("loop7", "7:7\n"), ("loop8", "7:8\n"), ("loop9", "7:9\n")] {
            fs::create_dir_all(system.path().join(name)).expect("a folder");
            fs::write(system.path().join(name).join("dev"), number).expect("a file");
        }
        let on = |name: &str, number: &str, backing| LoopDevice {
            device: Path::new("/dev").join(name),
            number: device_number(number).expect("a number"),
            backing: Some(backing),
            path: PathBuf::from("/srv/disk"),
        };
        let [partition, first] = ["8:17", "7:7"].map(|it| device_number(it).expect("a number"));
        let loops = [
            on("loop7", "7:7", Underlying::Device(partition)),
            on("loop8", "7:8", Underlying::File { device: first, inode: 12 }),
            on("loop9", "7:9", Underlying::Device(1)),
        ];
        let swaps = b"Filename Type\n/dev/loop8 partition 1 0 -2\n/dev/loop9 partition 1 0 -3\n";
        let folder = system.path().join("sdx");
        assert_eq!(swaps_among(&stack(&folder, &loops), swaps), [Path::new("/dev/loop8")]);
        assert_eq!(swaps_among(&stack(&folder, &[]), swaps), [""; 0].map(PathBuf::from));
    }

    #[test]
    fn a_swap_file_is_found_through_its_file_system() {
        let system = system();
        let file = system.path().join("swapfile");
        fs::write(&file, "").expect("a file");
        let device = fs::metadata(&file).expect("a file").dev();
        let number = format!("{}:{}\n", rustix::fs::major(device), rustix::fs::minor(device));
        let swaps = format!("Filename Type\n{} file 1 0 -2\n", file.display());
        let on_sdx = || swaps_among(&stack(&system.path().join("sdx"), &[]), swaps.as_bytes());
        assert_eq!(on_sdx(), [""; 0].map(PathBuf::from));
        fs::write(system.path().join("sdx/sdx1/dev"), number).expect("a file");
        assert_eq!(on_sdx(), [file]);
    }

    #[test]
    fn system_users_of_a_file_are_found() {
        let system = system();
        let loops = loops::in_folder(system.path());
        let found = on_file(&loops, Path::new("/srv/a disk"));
        assert_eq!(found[0].to_string(), "/dev/loop7 is a loop device on /srv/a disk");
        assert_eq!(found[0].device.as_deref(), Some(Path::new("/dev/loop7")));
        assert_eq!((found.len(), on_file(&loops, Path::new("/srv/a")).len()), (1, 0));
        let swaps = b"Filename Type\n/srv/a\\040disk file 1 0 -2\n";
        assert!(is_swap(swaps, Path::new("/srv/a disk")) && !is_swap(swaps, Path::new("/srv")));
        // The first line is a heading, not a swap area.
        assert!(!is_swap(swaps, Path::new("Filename")));
    }

    #[test]
    fn a_process_with_an_open_file_is_found() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let found = processes(&[file.path().to_path_buf()]);
        let own = |found: &[User]| {
            let own = found.iter().find(|user| user.pid == Some(std::process::id()));
            own.is_some_and(|user| user.what.ends_with(" open"))
        };
        assert!(own(&found), "{found:?}");
        let path = file.path().canonicalize().expect("the path exists");
        assert!(own(&of_file(&path)), "{found:?}");
    }
}
