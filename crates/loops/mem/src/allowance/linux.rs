//! Reads Linux's limits from `/proc` and the control groups. Tests can set another root directory.

use super::{Allowance, Source};
use rustix::process::{Resource, getrlimit};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// The root directory that contains `/proc` and the control groups that `/proc/self/mountinfo`
/// lists.
pub(super) struct Tree {
    root: PathBuf,
}

/// The directory of a control group of this process, and the mount point of the group's hierarchy.
struct Group {
    is_second: bool,
    mounted: PathBuf,
    own: PathBuf,
}

impl Tree {
    pub(super) fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the lowest memory limit.
    pub(super) fn memory(&self) -> Option<Allowance> {
        let machine = self.machine().map(|amount| Allowance { amount, source: Source::Machine });
        let first: &[&str] = &["memory.limit_in_bytes"];
        let second: &[&str] = &["memory.max", "memory.high"];
        let groups = self.groups("memory").into_iter().flat_map(|group| {
            let files = if group.is_second { second } else { first };
            self.limits(&group, files)
        });
        let resources = [("RLIMIT_AS", Resource::As), ("RLIMIT_DATA", Resource::Data)]
            .into_iter()
            .filter_map(|(name, resource)| {
                let amount = getrlimit(resource).current?;
                Some(Allowance { amount, source: Source::Resource(name) })
            });
        machine.into_iter().chain(groups).chain(resources).min_by_key(|it| it.amount)
    }

    /// Returns how many more threads this process may start within the lowest limit of its control
    /// groups.
    pub(super) fn threads(&self) -> Option<Allowance> {
        let groups = self.groups("pids").into_iter().flat_map(|group| {
            let mut all = self.limits(&group, &["pids.max"]);
            for one in &mut all {
                let Source::Group(file) = &one.source else { continue };
                let used = Path::new(file).with_file_name("pids.current");
                one.amount = one.amount.saturating_sub(self.number(&used).unwrap_or(0));
            }
            all
        });
        groups.min_by_key(|it| it.amount)
    }

    fn read(&self, path: &Path) -> Option<String> {
        fs::read_to_string(self.root.join(path.strip_prefix("/").unwrap_or(path))).ok()
    }

    /// Returns the number in a file; `None` if the file contains `max` or is unreadable.
    fn number(&self, path: &Path) -> Option<u64> {
        self.read(path)?.trim().parse().ok()
    }

    fn machine(&self) -> Option<u64> {
        let text = self.read(Path::new("/proc/meminfo"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    }

    /// Returns the limits in these files of a group and its ancestors.
    fn limits(&self, group: &Group, files: &[&str]) -> Vec<Allowance> {
        let above = group.own.ancestors().take_while(|it| it.starts_with(&group.mounted));
        let files = above.flat_map(|directory| files.iter().map(|file| directory.join(file)));
        let stated = files.filter_map(|file| {
            let amount = self.number(&file)?;
            Some(Allowance { amount, source: Source::Group(file.display().to_string()) })
        });
        stated.collect()
    }

    /// Returns the groups of this process that may limit `controller`, of both versions of control
    /// groups.
    fn groups(&self, controller: &str) -> Vec<Group> {
        let read = |path: &str| self.read(Path::new(path)).unwrap_or_default();
        let (own, mounts) = (read("/proc/self/cgroup"), read("/proc/self/mountinfo"));
        mounts.lines().filter_map(|mount| group(mount, &own, controller)).collect()
    }
}

/// Returns this process's group in the hierarchy that this line of `mountinfo` mounts.
fn group(mount: &str, own: &str, controller: &str) -> Option<Group> {
    let (before, after) = mount.split_once(" - ")?;
    let mut fields = before.split(' ').skip(3);
    let (root, mounted) = (fields.next()?, fields.next()?);
    let mut after = after.split(' ');
    let is_second = match after.next()? {
        "cgroup2" => true,
        "cgroup" if after.nth(1)?.split(',').any(|it| it == controller) => false,
        _ => return None,
    };
    // Each line of `own` contains a number, the controllers (none in version 2), and a path.
    let path = own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let is_it = match is_second {
            true => controllers.is_empty(),
            false => controllers.split(',').any(|it| it == controller),
        };
        is_it.then_some(path)
    })?;
    // In a container, the mount point may be the container's own group, but `path` starts at the
    // host's root group.
    let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
    let is_plain = below.components().all(|it| matches!(it, Component::Normal(_)));
    let mounted = PathBuf::from(mounted);
    let own = if is_plain { mounted.join(below) } else { mounted.clone() };
    Some(Group { is_second, mounted, own })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Creates these files in a directory that only this test uses.
    fn tree(name: &str, files: &[(&str, &str)]) -> Tree {
        let root = std::env::temp_dir().join(format!("farblock-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a parent folder")).expect("a new folder");
            fs::write(path, text).expect("a writable file");
        }
        Tree::new(root)
    }

    fn amount_and_file(allowance: Option<Allowance>, tree: &Tree) -> (u64, String) {
        let _ = fs::remove_dir_all(&tree.root);
        let allowance = allowance.expect("a limit");
        (allowance.amount, allowance.source.to_string())
    }

    const SECOND: &str = "30 29 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";

    #[test]
    fn a_limit_of_an_ancestor_cgroup_v2_applies() {
        let tree = tree(
            "allowance-second",
            &[
                ("proc/meminfo", "MemTotal:  16777216 kB\nMemFree: 1 kB\n"),
                ("proc/self/cgroup", "0::/system.slice/target.service\n"),
                ("proc/self/mountinfo", SECOND),
                ("sys/fs/cgroup/system.slice/memory.max", "268435456\n"),
                ("sys/fs/cgroup/system.slice/memory.high", "max\n"),
                ("sys/fs/cgroup/system.slice/target.service/memory.max", "max\n"),
                ("sys/fs/cgroup/system.slice/target.service/memory.high", "max\n"),
            ],
        );
        let file = "/sys/fs/cgroup/system.slice/memory.max".to_owned();
        assert_eq!(amount_and_file(tree.memory(), &tree), (256 * MIB, file));
    }

    #[test]
    fn a_container_with_cgroup_v1_finds_its_limit_at_the_mount() {
        let mounts = "40 29 0:30 /docker/1f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n\
                      41 29 0:31 / /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n";
        let tree = tree(
            "allowance-first",
            &[
                ("proc/meminfo", "MemTotal:  16777216 kB\n"),
                ("proc/self/cgroup", "4:memory:/docker/1f\n1:cpu:/\n0::/\n"),
                ("proc/self/mountinfo", mounts),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "134217728\n"),
            ],
        );
        let file = "/sys/fs/cgroup/memory/memory.limit_in_bytes".to_owned();
        assert_eq!(amount_and_file(tree.memory(), &tree), (128 * MIB, file));
    }

    #[test]
    fn the_memory_of_the_machine_applies_without_a_cgroup() {
        let tree = tree("allowance-machine", &[("proc/meminfo", "MemTotal: 1024 kB\n")]);
        let machine = "this machine's memory".to_owned();
        assert_eq!(amount_and_file(tree.memory(), &tree), (MIB, machine));
    }

    #[test]
    fn running_threads_are_subtracted_from_the_thread_limit() {
        let tree = tree(
            "allowance-threads",
            &[
                ("proc/self/cgroup", "0::/../../other\n"),
                ("proc/self/mountinfo", SECOND),
                ("sys/fs/cgroup/pids.max", "20\n"),
                ("sys/fs/cgroup/pids.current", "7\n"),
            ],
        );
        let file = "/sys/fs/cgroup/pids.max".to_owned();
        assert_eq!(amount_and_file(tree.threads(), &tree), (13, file));
    }
}
