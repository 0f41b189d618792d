//! Finds other users of a disk, or of the files and devices below it: loop devices, mounted file
//! systems, swap areas, and programs with locks.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use farblock_reactor::loop_device::{self, Underlying};
use rustix::fs::{OFlags, major, minor};

use super::loops::{self, Loop};
use super::others::{holder, is_refused, lock_of_another};
use crate::error::FileProblem;

/// The maximum number of files and devices to check below one disk.
const MOST: usize = 64;

/// The relation of a file or device to the disk above it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The layer is the disk itself.
    Itself,
    /// The layer is the file or device of a loop device. The kernel lets other programs use it,
    /// too.
    Loop,
    /// The disk is a partition of this layer. Other partitions may have other users.
    Partition,
    /// The kernel has claimed the layer for a volume or RAID.
    Claimed,
}

/// A file or device below a disk.
struct Layer {
    thing: Underlying,
    way: Way,
    /// The path of the file in the mount namespace of this process, if known.
    path: Option<PathBuf>,
    /// The disk's first byte in this layer, and the byte after its last.
    range: (u64, u64),
}

/// Checks a disk and the layers below it for other users.
///
/// # Errors
/// Returns [`FileProblem::InUse`], which names the other user.
pub(super) fn look(found: &Metadata, read_only: bool) -> Result<(), FileProblem> {
    let loops = loops::all(found.dev());
    let (parts, passed) = parts(Underlying::of(found), &loops);
    for part in &parts {
        let by = swap_at(part.thing)
            .or_else(|| loop_over(part, &passed, &loops, read_only))
            .or_else(|| user_of(part, read_only));
        if let Some(by) = by {
            return Err(FileProblem::InUse { by, read_only });
        }
    }
    Ok(())
}

/// The disk and all layers below it, and the numbers of the loop devices among them.
fn parts(disk: Underlying, loops: &[Loop]) -> (Vec<Layer>, BTreeSet<u64>) {
    let mut parts = vec![Layer { thing: disk, way: Way::Itself, path: None, range: (0, u64::MAX) }];
    let mut passed = BTreeSet::new();
    let mut next = 0;
    while let Some(part) = parts.get(next) {
        let thing = part.thing;
        next += 1;
        let Underlying::Device(number) = thing else { continue };
        let below = match loops.iter().find(|device| device.number == number) {
            Some(device) => {
                passed.insert(number);
                below_loop(device).into_iter().collect()
            }
            None => below_device(number),
        };
        for part in below {
            if parts.len() < MOST {
                parts.push(part);
            }
        }
    }
    (parts, passed)
}

fn below_loop(device: &Loop) -> Option<Layer> {
    let path = Some(device.path.clone());
    // If the driver reported nothing, use the path. The caller uses this loop device, so its file
    // system responds, and the stat does not hang.
    let by_path = || fs::metadata(&device.path).ok().map(|found| Underlying::of(&found));
    let thing = device.below.or_else(by_path)?;
    Some(Layer { thing, way: Way::Loop, path, range: device.range })
}

/// The devices below a volume or RAID, or the disk of a partition.
fn below_device(number: u64) -> Vec<Layer> {
    let sysfs = sysfs(number);
    let part = |folder: &Path, way| {
        let number = fs::read_to_string(folder.join("dev")).ok()?;
        let thing = Underlying::Device(loop_device::device_number(&number)?);
        Some(Layer { thing, way, path: None, range: (0, u64::MAX) })
    };
    if sysfs.join("partition").exists() {
        return part(&sysfs.join(".."), Way::Partition).into_iter().collect();
    }
    let slaves = fs::read_dir(sysfs.join("slaves")).into_iter().flatten().flatten();
    slaves.filter_map(|entry| part(&entry.path(), Way::Claimed)).collect()
}

fn sysfs(number: u64) -> PathBuf {
    PathBuf::from(format!("/sys/dev/block/{}:{}", major(number), minor(number)))
}

/// The kernel's name of a device, such as `loop3`.
fn name_of(number: u64) -> Option<String> {
    let folder = fs::canonicalize(sysfs(number)).ok()?;
    Some(folder.file_name()?.to_str()?.to_owned())
}

/// The swap area on this file or device, as the subject of a sentence.
fn swap_at(thing: Underlying) -> Option<String> {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let area = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    let mut areas = area.map(|area| area.replace("\\040", " "));
    let area =
        areas.find(|area| fs::metadata(area).is_ok_and(|it| Underlying::of(&it) == thing))?;
    Some(format!("the kernel, which swaps to {area}"))
}

/// Another loop device on top of the layer. A read-only loop device does not conflict with a
/// read-only open.
fn loop_over(
    part: &Layer,
    passed: &BTreeSet<u64>,
    loops: &[Loop],
    read_only: bool,
) -> Option<String> {
    let is_over = |below: Underlying| {
        below == part.thing || (part.way != Way::Partition && is_partition_of(below, part.thing))
    };
    let device = loops.iter().find(|device| {
        let writes = !read_only || !device.read_only;
        writes
            && !passed.contains(&device.number)
            && device.below.is_some_and(is_over)
            && device.overlaps(part.range)
    })?;
    let name = &device.name;
    Some(format!("the loop device /dev/{name} (`losetup -d /dev/{name}` removes it)"))
}

fn is_partition_of(part: Underlying, whole: Underlying) -> bool {
    let Underlying::Device(number) = part else { return false };
    below_device(number).iter().any(|it| it.way == Way::Partition && it.thing == whole)
}

/// Another user of the layer: a file system, or a program that has locked the layer.
fn user_of(part: &Layer, read_only: bool) -> Option<String> {
    match (part.way, part.thing) {
        // Only a read-only open needs this check: a writable open is exclusive, so it fails if the
        // device has another user.
        (Way::Itself, Underlying::Device(number)) if read_only => writer_of_device(number),
        (Way::Loop, Underlying::Device(number)) => user_of_device(number, read_only),
        (Way::Loop, Underlying::File { .. }) => user_of_file(part, read_only),
        _ => None,
    }
}

fn user_of_device(number: u64, read_only: bool) -> Option<String> {
    let name = name_of(number)?;
    // An exclusive open fails while the kernel or another program has opened the device
    // exclusively.
    let flags = if read_only { OFlags::empty() } else { OFlags::EXCL };
    match loops::open_device(&name, number, flags) {
        Ok(device) if is_locked(&device, read_only) => {
            Some(holder(&Path::new("/dev").join(name), 1))
        }
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Some(claimant(&name, number)),
        _ => None,
    }
}

/// The user that has claimed a device and may write to it. A read-only mount is no conflict.
fn writer_of_device(number: u64) -> Option<String> {
    let name = name_of(number)?;
    match loops::open_device(&name, number, OFlags::EXCL) {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
        _ => return None,
    }
    let mounts = loops::all_mounts();
    let is_mounted = mounts_of(&mounts, &name, number).next().is_some();
    let may_write = |line: &str| !is_read_only_system(line);
    let is_written = mounts_of(&mounts, &name, number).any(may_write);
    (is_written || !is_mounted).then(|| claimant(&name, number))
}

/// The lines of `mountinfo` about file systems on a device. Also compares the source of the mount,
/// because Btrfs reports another device number.
fn mounts_of<'a>(
    mounts: &'a BTreeSet<String>,
    name: &str,
    number: u64,
) -> impl Iterator<Item = &'a str> {
    let (number, source) =
        (format!(" {}:{} ", major(number), minor(number)), format!("/dev/{name}"));
    let lines = mounts.iter().flat_map(|mounts| mounts.lines());
    lines.filter(move |line| line.contains(&number) || system_of(line).nth(1) == Some(&source))
}

/// The last fields of a line of `mountinfo`: the type, source and options of the file system.
fn system_of(line: &str) -> impl Iterator<Item = &str> {
    line.split_once(" - ").map_or("", |(_, system)| system).split(' ')
}

fn is_read_only_system(line: &str) -> bool {
    system_of(line).nth(2).is_some_and(|options| options.split(',').any(|it| it == "ro"))
}

/// The user that has claimed a device, as the subject of a sentence.
fn claimant(name: &str, number: u64) -> String {
    let mounts = loops::all_mounts();
    let place = mounts_of(&mounts, name, number).find_map(|line| line.split(' ').nth(4));
    match place {
        Some(place) => format!("the file system on /dev/{name} at {place}"),
        None => format!("the system or another program, which has claimed /dev/{name}"),
    }
}

/// The program that has locked the file of a layer, if any.
fn user_of_file(part: &Layer, read_only: bool) -> Option<String> {
    let path = part.path.as_deref()?;
    let is_it = |file: &File| file.metadata().is_ok_and(|it| Underlying::of(&it) == part.thing);
    match fs::metadata(path).and_then(|_| File::open(path)) {
        Ok(file) if is_it(&file) => {
            let is_used = is_locked(&file, read_only) || is_refused(&file, read_only);
            is_used.then(|| holder(path, 1))
        }
        // The path leads to another file or to none, or this user may not open the file.
        _ => lock_of_another(part.thing, read_only),
    }
}

fn is_locked(file: &File, read_only: bool) -> bool {
    let tried = if read_only { file.try_lock_shared() } else { file.try_lock() };
    matches!(tried, Err(fs::TryLockError::WouldBlock))
}
